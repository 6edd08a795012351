"""The page of an experiment's folder: the paper's tables and curves that are there, then the report of its runs."""

from __future__ import annotations

import csv
from pathlib import Path

from largegt.errors import FormatError, first_line
from largegt.pages.charts import Axis, Line, legend, line_chart
from largegt.pages.markup import Html, Section, figure, figures, join, rank_mark, section, table
from largegt.reporting.page import report
from largegt.runtime.progress import Progress

from .output import PLACE, PLACES

_TABLES = {"table-datasets": "The data", "table-main": "Main results", "table-extended": "Original and 2-hop forms"}


def page(out: Path, title: str, progress: Progress | None = None) -> Path:
    """OUT/report.html from the files and the finished runs in OUT."""
    runs = sorted(file.parent for file in (out / "runs").glob("*/metrics.json") if "-watched-" not in file.parent.name)
    first = [part for part in (_tables(out), _curves(out)) if part is not None]
    if not runs:  # curves alone: the runs that were watched are all there is
        runs = sorted(file.parent for file in (out / "runs").glob("*/metrics.json"))
    return report(runs, out / "report.html", title, first=first, progress=progress)


def _tables(out: Path) -> Section | None:
    made = []
    for name, heading in _TABLES.items():
        if (out / f"{name}.csv").is_file():
            head, *rows = _rows(out / f"{name}.csv")
            made.append(table(heading, *_marked(head, rows)))
    lead = (
        "As in the paper, and beside its own numbers where the data is the paper's. The same as CSV, Markdown and "
        "LaTeX lie beside this page."
    )
    return section("paper", "The paper's tables", lead, *made) if made else None


def _marked(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str | Html]]]:
    """The same table with its last column, where that has places, as marks before the second."""
    if head[-1] != PLACE:
        return head, [list(row) for row in rows]
    rank = {name: number for number, name in enumerate(PLACES, start=1)}
    marked = [[row[0], join((rank_mark(rank.get(row[-1])), row[1])), *row[2:-1]] for row in rows]
    return head[:-1], marked


def _curves(out: Path) -> Section | None:
    if not (out / "fig-curves.csv").is_file():
        return None
    head, *rows = _rows(out / "fig-curves.csv", numbers=3)
    names = list(dict.fromkeys(row[0] for row in rows))
    made: list[Html] = []
    for column in (2, 3):
        lines = [
            Line(name, [float(row[1]) for row in rows if row[0] == name],
                 [float(row[column]) for row in rows if row[0] == name], style)
            for style, name in enumerate(names)
        ]  # fmt: skip
        title = f"{head[column]} by minutes of training"
        chart = line_chart(lines, Axis("minutes of training", low=0.0), Axis(head[column].lower()), title)
        below = table(title, [head[0], head[1], head[column]], [[row[0], row[1], row[column]] for row in rows])
        made.append(figure(chart, title, below))
    key = legend([(name, style) for style, name in enumerate(names)])
    lead = "Runs of their own, in which the test nodes were scored after every epoch, for this picture alone."
    return section("while-training", "Validation and test while training", lead, join((key, figures(*made))))


def _rows(file: Path, numbers: int = 0) -> list[list[str]]:
    """Head and rows of a table of ours, all of one length; so many columns behind the first hold numbers."""
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            head, *rows = csv.reader(stream)
        if len(head) < max(2, 1 + numbers) or any(len(row) != len(head) for row in rows):
            raise ValueError("rows differ in length")
        for row in rows:
            for cell in row[1 : 1 + numbers]:
                float(cell)
    except (ValueError, csv.Error) as error:
        raise FormatError(f"{file} is no table of ours ({first_line(error)}): remove it") from error
    return [head, *rows]
