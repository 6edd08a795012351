"""Figures: a chart under its title, and below it the same numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from .charts import Axis, Bar, Dot, Line, bar_chart, dot_chart, line_chart
from .markup import NONE, Html, mean_and_spread, short, tag
from .tables import Cell, PageTable

_MOST_ROWS, _STEPS = 25, 10


def figure(title: str, chart: Html, table: PageTable, legend: Html = Html()) -> Html:
    numbers = tag("details", tag("summary", "Numbers"), table.html())
    return tag("figure", tag("figcaption", title), legend, chart, numbers)


def figures(items: Iterable[Html]) -> Html:
    """Figures side by side on wide screens."""
    return tag("div", *items, class_="figures")


def bar_figure(title: str, bars: Sequence[Bar], label: str, table: PageTable | None = None) -> Html:
    table = table or PageTable(title, ["", label], [[bar.name, bar.words] for bar in bars])
    return figure(title, bar_chart(bars, Axis(label), title), table)


def dot_figure(
    title: str,
    rows: Sequence[tuple[str, Sequence[Dot]]],
    x: Axis,
    table: PageTable | None = None,
    legend: Html = Html(),
) -> Html:
    if table is None:
        head = ["", *(dot.what for dot in rows[0][1])] if rows else [""]
        table = PageTable(title, head, [[name, *(mean_and_spread(dot.value, dot.error) for dot in dots)]
                                    for name, dots in rows])  # fmt: skip
    return figure(title, dot_chart(rows, x, title), table, legend)


def line_figure(
    title: str, lines: Sequence[Line], x: Axis, y: Axis, table: PageTable | None = None,
    more: Mapping[str, Sequence[Cell]] | None = None,
) -> Html:  # fmt: skip
    """A line chart and its table; `more` are columns of the table only."""
    return figure(title, line_chart(lines, x, y, title), table or _line_table(title, lines, x, more or {}))


def _line_table(title: str, lines: Sequence[Line], x: Axis, more: Mapping[str, Sequence[Cell]]) -> PageTable:
    """A column per line, a row per x; on a continuous axis, the last value up to each of a few evenly spaced x."""
    every = sorted({at for line in lines for at in line.xs})
    is_exact = bool(x.names or x.at or x.whole)
    if is_exact:
        step = math.ceil(len(every) / _MOST_ROWS)
        shown, note = [*every[:-1:step], *every[-1:]], f"Every {step} of them." if step > 1 else ""
    else:
        shown, note = [every[-1] * (at + 1) / _STEPS for at in range(_STEPS)], "The last value by then."
    rows: list[list[Cell]] = [
        [x.names[round(at)] if x.names else short(at), *(_value(line, at, is_exact) for line in lines)] for at in shown
    ]
    for row, *values in zip(rows, *more.values(), strict=True):
        row += values
    return PageTable(title, [x.label, *(line.name for line in lines), *more], rows, left=1 if x.names else 0, note=note)


def _value(line: Line, at: float, is_exact: bool) -> str:
    places = [place for place, x in enumerate(line.xs) if x <= at * (1 + 1e-9)]
    if not places or (is_exact and line.xs[places[-1]] != at):
        return NONE
    return mean_and_spread(line.ys[places[-1]], line.errors[places[-1]] if line.errors else 0.0)
