"""Sections of the page about the inputs of runs: columns of tables, settings that differ, folders, commands."""

from __future__ import annotations

from collections.abc import Sequence

from largegt.data.column_encoding import Columns
from largegt.errors import LargeGTError
from largegt.io.remote import shown
from largegt.pages.markup import NONE, Html, Section, clipped, duration, join, section, tag
from largegt.pages.tables import Cell, PageTable
from largegt.runtime.text import quoted

from .groups import DatasetRuns, Opened, differing
from .results import headed

_MAX_VALUE = 28
_MOST_ROWS = 500


def columns(datasets: Sequence[DatasetRuns]) -> Section | None:
    """The columns of node and edge tables, as `largegt inspect` shows them; None if features come from arrays."""
    body = headed(datasets, map(_columns_of, datasets))
    lead = "What became of each column: its kind, how it is used or why it is not, and what to look at."
    return section("columns", "Columns of the tables", lead, *body) if body else None


def _columns_of(dataset: DatasetRuns) -> Html:
    """The columns of the first run with an available store; all runs of a dataset share one."""
    for run in dataset.runs:
        try:
            store = run.run.store()
            named = [("Columns of nodes", store.columns), ("Columns of edges", store.edge_columns)]
        except (LargeGTError, OSError):
            continue
        return join(_column_table(title, columns) for title, columns in named if columns is not None)
    return Html()


def _column_table(title: str, columns: Columns) -> Html:
    every = columns.table()
    rows: list[list[Cell]] = [
        [one["column"], one["kind"], one["used_as"], f"{one['missing']:,}",
         "" if one["distinct"] is None else f"{one['distinct']:,}"]
        for one in every[:_MOST_ROWS]
    ]  # fmt: skip
    more = f"{len(every) - _MOST_ROWS:,} more: largegt inspect --json shows all." if len(every) > _MOST_ROWS else ""
    made = PageTable(title, ["column", "kind", "used as", "missing", "distinct"], rows, left=3, note=more).html()
    notes = [tag("li", tag("b", one["column"]), ": ", note) for one in every for note in one["notes"]]
    return join((made, tag("div", "To look at:", tag("ul", *notes[:_MOST_ROWS]), class_="say") if notes else Html()))


def differences(datasets: Sequence[DatasetRuns], runs: Sequence[Opened]) -> Section:
    """Settings that differ between runs, a column per group."""
    if len(runs) == 1:
        return section("settings", "Settings", "One run, so there is nothing to compare; it is listed below.")
    names = differing(runs)
    if not names:
        return section("settings", "Settings that differ", "All runs have the same settings.")
    groups = {
        f"{group.name} on {dataset.name}" if len(datasets) > 1 else group.name: group.runs
        for dataset in datasets
        for group in dataset.groups
    }
    rows: list[list[Cell]] = []
    for name in names:
        values = [[run.settings.get(name) for run in members] for members in groups.values()]
        texts = ([clipped(NONE if one is None else str(one), _MAX_VALUE) for one in of] for of in values)
        rows.append([tag("code", name), *(", ".join(dict.fromkeys(of)) for of in texts)])
    table = PageTable("Settings that differ between runs", ["setting", *groups], rows)
    lead = "Everything else is the same in all runs. A column holds the runs that differ in nothing but their seeds."
    return section("settings", "Settings that differ", lead, table.html())


def listing(runs: Sequence[Opened]) -> Section:
    """Every run: its folder, its metrics, the command that repeats it, its whole configuration."""
    head = [
        "run",
        "model",
        "dataset",
        "seed",
        "best epoch",
        "epochs",
        "samples",
        "training",
        "parameters",
        "ended",
    ]
    rows: list[list[Cell]] = [
        [run.name, run.model, str(m["dataset"]), m["seed"], m["best_epoch"], m["epochs"], m["num_eval_samples"],
         duration(m["train_time_s"]), f"{m['num_parameters']:,}", m["stopped"] or "all epochs done"]
        for run in runs for m in [run.metrics]
    ]  # fmt: skip
    lead = (
        "A run's config.toml is a recipe: the commands train it again, with the same seed, into a folder beside it. "
        "Samples: those of local nodes or neighbours that test predictions are averaged over."
    )
    return section("runs", "Runs", lead, PageTable("All runs", head, rows, left=3).html(), *map(_details, runs))


def command(run: Opened) -> str:
    """The command that repeats the run."""
    folder, store = run.run.path, quoted(shown(run.run.store_path))
    return f"largegt train {store} --recipe {quoted(folder / 'config.toml')} --out {quoted(f'{folder}-again')}"


def _details(run: Opened) -> Html:
    text = (run.run.path / "config.toml").read_text(encoding="utf-8", errors="replace")
    scores = [
        [f"{split} {name}", f"{value:.6g}"] for split in ("valid", "test") for name, value in run.metrics[split].items()
    ]
    return tag(
        "details", tag("summary", run.name), tag("p", "Folder: ", tag("code", run.run.path)), tag("pre", command(run)),
        PageTable(f"Scores of {run.name}", ["metric", "value"], scores).html(), tag("pre", text),
    )  # fmt: skip
