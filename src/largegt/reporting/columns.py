"""Sections of the page on columns of tables: what became of each, and what they carried.

Enters: the stores of the runs, where they are at hand, and analyses. Leaves: no section where features were arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from largegt.data.column_encoding import Columns
from largegt.data.store import GraphStore
from largegt.errors import LargeGTError
from largegt.explanation.explanation import column_words
from largegt.pages.charts import Axis, bar_chart
from largegt.pages.markup import Cell, Html, Section, figure, figures, join, section, short, table, tag

from .groups import Dataset
from .insight import Look, label

_MOST_BARS, _MOST_ROWS = 15, 500


def tables(datasets: Sequence[Dataset]) -> Section | None:
    """What became of each column of the tables of nodes and edges, as `largegt inspect` shows it."""
    body: list[Html] = []
    for dataset in datasets:
        made = [_table(title, columns) for title, columns in _columns_of(dataset)]
        if made and len(datasets) > 1:
            body.append(tag("h3", dataset.name))
        body += made
    if not body:
        return None
    lead = "What became of each column: its kind, how it is used or why it is not, and what to look at."
    return section("columns", "Columns of the tables", lead, *body)


def _columns_of(dataset: Dataset) -> list[tuple[str, Columns]]:
    """Those of the first run whose store is at hand: all runs of a dataset have the same one."""
    for run in dataset.runs:
        try:
            store: GraphStore = run.run.store()
            named = [("Columns of nodes", store.columns), ("Columns of edges", store.edge_columns)]
        except (LargeGTError, OSError):
            continue
        return [(title, columns) for title, columns in named if columns is not None]
    return []


def _table(title: str, columns: Columns) -> Html:
    rows: list[list[Cell]] = []
    notes: list[tuple[str, str]] = []
    every = columns.table()
    for one in every:
        distinct = "" if one["distinct"] is None else f"{one['distinct']:,}"
        rows.append([one["column"], one["kind"], one["used_as"], f"{one['missing']:,}", distinct])
        notes += [(one["column"], note) for note in one["notes"]]
    head = ["column", "kind", "used as", "missing", "distinct"]
    more = f"{len(every) - _MOST_ROWS:,} more: largegt inspect --json shows all." if len(every) > _MOST_ROWS else ""
    shown = table(title, head, rows[:_MOST_ROWS], left=3, note=more)
    items = (tag("li", tag("b", name), ": ", note) for name, note in notes[:_MOST_ROWS])
    return join((shown, tag("div", "To look at:", tag("ul", *items), class_="say") if notes else Html()))


def use(looks: Sequence[Look]) -> Section | None:
    """What each column carries of the predictions; None where no model could be asked."""
    known = [(look, found) for look in looks if look.found and (found := look.found.get("columns"))]
    if not known:
        return None
    lead = (
        "For each of some test nodes, how much of the score of the predicted class (or of the value) a column carried, "
        "with all features that it became, of the node and of its local nodes: by integrated gradients, the mean of "
        "the absolute value. largegt explain tells it of one node, and which way."
    )
    return section("column-use", "Which columns mattered", lead, figures(*(_use(looks, *one) for one in known)))


def _use(looks: Sequence[Look], look: Look, found: dict[str, Any]) -> Html:
    name = label(looks, look)
    rows: list[list[Cell]] = []
    bars = []
    for one in found["listed"]:
        words, value = column_words(one["column"], one["table"]), float(one["carried"])
        bars.append((words, value, 0.0, look.group.style, short(value)))
        rows.append([words, short(value)])
    chart = bar_chart(bars[:_MOST_BARS], Axis("carried, mean absolute value"), f"Which columns mattered, {name}")
    note = f"Mean over {found['num_nodes']:,} nodes."
    if len(rows) < found["num_columns"]:
        note += f" The {len(rows)} strongest of {found['num_columns']:,} columns."
    below = table("What columns carried", ["column", "carried, mean absolute value"], rows, note=note)
    return figure(chart, f"{name}: which columns mattered", below)
