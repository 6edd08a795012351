"""The page of an experiment's folder: its finished tables and curves of the paper, then the report of its runs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from largegt.errors import FormatError, first_line
from largegt.pages.charts import Axis, Line, line_legend
from largegt.pages.figures import figures, line_figure
from largegt.pages.markup import Section, section
from largegt.pages.tables import PLACE, PLACES, Cell, PageTable, Ranked
from largegt.reporting.page import report
from largegt.runtime.progress import Progress

_TABLES = {"table-datasets": "The data", "table-main": "Main results", "table-extended": "Original and 2-hop forms"}


def page(out: Path, title: str, progress: Progress | None = None) -> Path:
    """Write OUT/report.html from the files and the finished runs in OUT."""
    runs = sorted(file.parent for file in (out / "runs").glob("*/metrics.json"))
    first = [part for part in (_tables(out), _curves(out)) if part is not None]
    # after fig-curves alone, all runs are watched runs
    shown = [run for run in runs if "-watched-" not in run.name] or runs
    return report(shown, out / "report.html", title, first=first, progress=progress)


def _tables(out: Path) -> Section | None:
    made = [_table(out / f"{name}.csv", title).html() for name, title in _TABLES.items()
            if (out / f"{name}.csv").is_file()]  # fmt: skip
    lead = (
        "As in the paper, and beside its own numbers where the data is the paper's. The same as CSV, Markdown and "
        "LaTeX lie beside this page."
    )
    return section("paper", "The paper's tables", lead, *made) if made else None


def _table(file: Path, title: str) -> PageTable:
    """Read a table of an experiment; a last column of places becomes the ranks of the second column."""
    head, *rows = _read(file)
    cells: list[list[Cell]] = [[cell or None for cell in row] for row in rows]
    if head[-1] != PLACE:
        return PageTable(title, head, cells)
    ranked = [[cells[at][0], Ranked(row[1], PLACES.get(row[-1])), *cells[at][2:-1]] for at, row in enumerate(rows)]
    return PageTable(title, head[:-1], ranked)


def _curves(out: Path) -> Section | None:
    if not (out / "fig-curves.csv").is_file():
        return None
    head, *rows = _read(out / "fig-curves.csv", numbers=3)
    x, made = Axis("minutes of training", low=0.0), []
    for at in (2, 3):
        lines = curve_lines(rows, at)
        made.append(line_figure(f"{head[at]} by {x.label}", lines, x, Axis(head[at].lower())))
    lead = "Runs of their own, in which the test nodes were scored after every epoch, for this picture alone."
    key = line_legend((line.name, line.style) for line in lines)
    return section("while-training", "Validation and test while training", lead, key, figures(made))


def curve_lines(rows: Sequence[Sequence[str]], at: int) -> list[Line]:
    """A line per model from rows of (model, minutes, values), with the values of column `at`."""
    names = dict.fromkeys(row[0] for row in rows)
    curves = {name: [(float(row[1]), float(row[at])) for row in rows if row[0] == name] for name in names}
    return [Line(name, [x for x, _ in points], [y for _, y in points], style)
            for style, (name, points) in enumerate(curves.items())]  # fmt: skip


def _read(file: Path, numbers: int = 0) -> list[list[str]]:
    """Head and rows of a CSV table, checked to be of one length; `numbers` columns after the first are numeric."""
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            head, *rows = csv.reader(stream)
        if len(head) < max(2, 1 + numbers) or any(len(row) != len(head) for row in rows):
            raise ValueError("rows differ in length")
        for row in rows:
            list(map(float, row[1 : 1 + numbers]))
    except (ValueError, csv.Error) as error:
        raise FormatError(f"{file} is no table of ours ({first_line(error)}): remove it") from error
    return [head, *rows]
