"""Charts as inline SVG: lines, dots with error bars, bars, and maps of cells.

Enters: numbers and names. Leaves: one `<svg>` per chart that scales with the page, takes its colours from the page's
style (so it follows dark mode and print), and carries what the page's script needs to answer a hover. Cost: a few bytes
per point; a long line is thinned.

Lines differ in colour, dashes and marker, so that none needs to be told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .colors import COLORS
from .markup import Html, clipped, f1, join, short, tag

WIDTH, HEIGHT = 460.0, 300.0
NUM_COLORS = len(COLORS)
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 28.0, 42.0
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_MARKERS = "osd^xv+"
_CLOSED = "osd^v"
_MAX_POINTS = 150


@dataclass(frozen=True)
class Axis:
    """What an axis says, and how values lie on it."""

    label: str
    log: bool = False
    whole: bool = False
    """Only whole numbers have ticks."""
    low: float | None = None
    high: float | None = None
    names: tuple[str, ...] = ()
    """Places 0, 1, … have these names instead of numbers."""
    at: tuple[float, ...] = ()
    """Ticks are here."""


@dataclass(frozen=True)
class Line:
    """Points of one line from left to right; `style` is its colour, dashes and marker."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    errors: Sequence[float] = ()
    rings: Sequence[int] = ()
    """Points to mark by a ring."""
    markers: bool = False


@dataclass(frozen=True)
class Dots:
    """One row of a dot chart. Of one style: the first value is a full dot, the second an open square."""

    name: str
    style: int | Sequence[int]
    values: Sequence[tuple[str, float | None, float]]
    """(what, value, half the width of its error bar)"""


@dataclass(frozen=True)
class Scale:
    """From values to places on the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @property
    def data(self) -> str:
        """What the script needs to go back from places to values."""
        return " ".join(f"{part:.10g}" for part in (self.low, self.high, self.start, self.end, int(self.log)))


# the charts ------------------------------------------------------------------------------------------------------


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, title: str, diagonal: bool = False) -> Html:
    """Lines over a numeric axis, or over named places. `diagonal` draws where y = x."""
    lines = [_finite(line, x, y) for line in lines]
    lines = [_thinned(line) for line in lines if len(line.xs)]
    if not lines:
        return nothing(title)
    reach = [
        value + sign * error
        for line in lines
        for value, error in zip(line.ys, line.errors or [0.0] * len(line.ys), strict=True)
        for sign in (-1, 1)
    ]
    sx = _scale(x, [value for line in lines for value in line.xs], _LEFT, WIDTH - _RIGHT, 0.5 if x.names else 0.03)
    sy = _scale(y, reach, HEIGHT - _BOTTOM, _TOP, 0.06)
    parts = [_grid(sx, sy, x, y)]
    if diagonal:
        ends = max(sx.low, sy.low), min(sx.high, sy.high)
        parts.append(tag("path", d=f"M{_at(sx, sy, ends[0])}L{_at(sx, sy, ends[1])}", class_="diagonal"))
    parts += [_drawn(line, sx, sy) for line in lines]
    named = "|".join(name.replace("|", "/") for name in x.names) or None
    return _svg(title, HEIGHT, *parts, data_x=sx.data, data_y=sy.data, data_xn=named, data_xl=x.label,
                data_whole=1 if x.whole else None)  # fmt: skip


def dot_chart(rows: Sequence[Dots], x: Axis, title: str) -> Html:
    """A row per name, its values as dots with error bars; the axis need not begin at zero."""
    reach = [
        value + sign * error for row in rows for _, value, error in row.values if value is not None for sign in (-1, 1)
    ]
    if not reach:
        return nothing(title)
    two = any(isinstance(row.style, int) and len(row.values) > 1 for row in rows)
    step, top = (46.0 if two else 36.0), 8.0
    bottom = top + step * len(rows)
    sx = _scale(x, reach, 14.0, WIDTH - 14.0, 0.06)
    parts = [_vertical_grid(sx, x, top, bottom)]
    for number, row in enumerate(rows):
        parts.append(_row_name(row.name, top + step * number + 13.0))
        for place, (what, value, error) in reversed(list(enumerate(row.values))):
            if value is None:
                continue
            said = f"{row.name}: {what} {short(value)}" + (f" ± {short(error)}" if error else "")
            one = isinstance(row.style, int)
            style = row.style if isinstance(row.style, int) else row.style[place]
            mark = ("s" if place else "o") if one else _mark(style)
            middle = top + step * number + 25.0 + (11.0 * place if one else 0.0)
            shapes = [tag("path", d=_marker(mark, sx(value), middle, 4.5))]
            if error:
                shapes.insert(0, tag("path", d=_whisker(sx(value - error), sx(value + error), middle)))
            kind = f"c{style % NUM_COLORS} {'open' if one and place else 'full'}"
            parts.append(tag("g", *shapes, class_=kind, data_tip=said))
    return _svg(title, bottom + 36.0, *parts)


def bar_chart(rows: Sequence[tuple[str, float, float, int, str]], x: Axis, title: str) -> Html:
    """Bars from zero: (name, value, error, style, the value in words) each."""
    if not rows:
        return nothing(title)
    step, top = 36.0, 4.0
    bottom = top + step * len(rows)
    high = max(value + error for _, value, error, _, _ in rows) or 1.0
    sx = Scale(0.0, high * 1.02, 14.0, WIDTH - 14.0)
    parts = [_vertical_grid(sx, x, top, bottom)]
    for number, (name, value, error, style, words) in enumerate(rows):
        y = top + step * number
        width = max(1.0, sx(value) - sx(0.0))
        shapes: list[Html] = [tag("rect", x=f1(sx(0.0)), y=f1(y + 19), width=f1(width), height=12, rx=2)]
        if error:
            shapes.append(
                tag("path", d=_whisker(sx(max(0.0, value - error)), sx(value + error), y + 25), class_="error")
            )
        parts.append(_row_name(name, y + 13.0))
        parts.append(tag("text", words, x=f1(WIDTH - 14.0), y=f1(y + 13.0), class_="end value"))
        parts.append(tag("g", *shapes, class_=f"c{style % NUM_COLORS} solid", data_tip=f"{name}: {words}"))
    return _svg(title, bottom + 36.0, *parts)


def signed_chart(rows: Sequence[tuple[str, float, str]], label: str, title: str) -> Html:
    """Bars to both sides of zero: (name, value, the value in words) each; full to the right, open to the left."""
    if not rows:
        return nothing(title)
    step, top = 36.0, 4.0
    bottom = top + step * len(rows)
    low, high = (pick(0.0, *(value for _, value, _ in rows)) for pick in (min, max))
    sx = _scale(Axis(label), [low, high], 14.0, WIDTH - 14.0, 0.03)
    parts = [_vertical_grid(sx, Axis(label), top, bottom)]
    zero = "".join(f"M{f1(sx(0.0))} {f1(top + step * at + 16)}v18" for at in range(len(rows)))
    parts.append(tag("path", d=zero, class_="base"))
    for at, (name, value, words) in enumerate(rows):
        y = top + step * at
        left, right = sorted((sx(0.0), sx(value)))
        bar = tag("path", d=f"M{f1(left)} {f1(y + 19)}H{f1(max(right, left + 1))}v12H{f1(left)}z")
        parts.append(_row_name(name, y + 13.0))
        parts.append(tag("text", words, x=f1(WIDTH - 14.0), y=f1(y + 13.0), class_="end value"))
        way = "c0 full" if value >= 0 else "c1 open"
        parts.append(tag("g", bar, class_=way, data_tip=f"{name}: {words}"))
    return _svg(title, bottom + 36.0, *parts)


def cell_chart(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    row_axis: str,
    column_axis: str,
    title: str,
    shade: Sequence[Sequence[float]],
    numbers: bool = True,
    edges: tuple[Axis, Axis] | None = None,
) -> Html:
    """A map of cells: `shade` in [0, 1] is the ink of each, `values` are what a hover says of it. With `edges`, the
    cells are bins of two numeric axes (x, y) and the first row lies at the bottom."""
    if not values or not values[0]:
        return nothing(title)
    num_rows, num_columns = len(values), len(values[0])
    left, top = (62.0, 28.0) if edges else (128.0, 26.0)
    side = (WIDTH - left - 12.0) / num_columns
    tall = side if not edges else 300.0 / num_rows
    bottom = top + tall * num_rows
    by_level: dict[int, list[str]] = {}
    texts = []
    for i, line in enumerate(shade):
        y = bottom - tall * (i + 1) if edges else top + tall * i
        for j, ink in enumerate(line):
            if not values[i][j]:
                continue
            level = 0 if ink < 0.01 else min(9, math.ceil(ink * 9))
            by_level.setdefault(level, []).append(f"M{f1(left + side * j)} {f1(y)}h{f1(side)}v{f1(tall)}h-{f1(side)}z")
            if numbers and side >= 17 and ink >= 0.01:
                texts.append(
                    tag("text", f"{100 * ink:.0f}", x=f1(left + side * (j + 0.5)), y=f1(y + tall / 2 + 3.5),
                        class_="in on" if level > 5 else "in")
                )  # fmt: skip
    parts = [
        tag("path", d=f"M{f1(left)} {f1(top)}H{f1(WIDTH - 12)}V{f1(bottom)}H{f1(left)}z", class_="frame"),
        *(tag("path", d="".join(cells), class_=f"heat h{level}") for level, cells in sorted(by_level.items())),
        *texts,
    ]
    if edges:
        sx = _scale(edges[0], [], left, WIDTH - 12.0, 0.0)
        sy = _scale(edges[1], [], bottom, top, 0.0)
        parts += [*_x_ticks(sx, edges[0], bottom), *_y_ticks(sy, edges[1], left)]
        parts.append(tag("path", d=f"M{_at(sx, sy, sx.low)}L{_at(sx, sy, sx.high)}", class_="diagonal"))
    else:
        size = 15 if num_rows <= 15 else 14
        for i, name in enumerate(rows):
            parts.append(
                tag("text", clipped(name, size), x=f1(left - 6), y=f1(top + tall * (i + 0.5) + 4), class_="end")
            )
        for j in range(num_columns):
            parts.append(tag("text", j + 1, x=f1(left + side * (j + 0.5)), y=f1(top - 6), class_="mid"))
        parts.append(tag("text", column_axis, x=f1((left + WIDTH - 12) / 2), y=f1(bottom + 18), class_="mid axis"))
        parts.append(tag("text", row_axis, x=f1(left - 6), y=f1(top - 6), class_="end axis"))
    cells = ";".join(",".join(f"{value:.6g}" for value in line) for line in values)
    place = " ".join(f1(part) for part in (left, top, side, tall, num_rows, num_columns))
    clean = ["|".join(name.replace("|", "/") for name in names) for names in (rows, columns)]
    height = bottom + (40.0 if edges else 28.0)
    return _svg(title, height, *parts, data_cells=cells, data_place=place, data_rows=clean[0], data_columns=clean[1],
                data_says=f"{row_axis}|{column_axis}", data_up=1 if edges else None)  # fmt: skip


def legend(names: Sequence[tuple[str, int]], dots: Sequence[str] = ()) -> Html:
    """What each line or dot stands for, as text that wraps."""
    items = [
        tag("li", tag("svg", tag("path", d="M1 7H33", class_="line", stroke_dasharray=_dash(style)),
                      tag("path", d=_marker(_mark(style), 17, 7, 4.0), class_="mark"),
                      viewBox="0 0 34 14", class_=f"key c{style % NUM_COLORS}", aria_hidden="true"), name)
        for name, style in names
    ]  # fmt: skip
    items += [
        tag("li", tag("svg", tag("path", d=_marker("s" if number else "o", 7, 7, 4.5)), viewBox="0 0 14 14",
                      class_=f"key dot c6 {'open' if number else 'full'}", aria_hidden="true"), name)
        for number, name in enumerate(dots)
    ]  # fmt: skip
    return tag("ul", *items, class_="legend")


def nothing(title: str) -> Html:
    """In place of a chart that has nothing to draw."""
    return tag("p", "Nothing to draw here: no such numbers in these runs.", class_="note", aria_label=title)


# ticks and axes --------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, wanted: int = 5, whole: bool = False) -> list[float]:
    """Round numbers in [low, high]: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / wanted
    if not 1e-300 < raw < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high], with 2 and 5 between them where those are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    parts = (1, 2, 5) if len(powers) <= 3 else (1,)
    every = 1 if len(powers) <= 7 else 2
    found = [part * 10.0**power for power in powers[::every] for part in parts]
    return [value for value in found if low * 0.999 <= value <= high * 1.001] or [low]


def _scale(axis: Axis, values: Sequence[float], start: float, end: float, room: float) -> Scale:
    """A scale that holds the values with some room around them."""
    if axis.names:
        return Scale(-room, len(axis.names) - 1 + room, start, end)
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.log:
        low, high = (low, high) if high > low else (low / 2, high * 2)
        return Scale(low * (high / low) ** -room, high * (high / low) ** room, start, end, log=True)
    if not high > low:
        spread = 1.0 if axis.whole else abs(low) * 0.1 or 1.0
        low, high = low - spread, high + spread
        return Scale(low, high, start, end)
    spread = (high - low) * room
    return Scale(low - (spread if axis.low is None else 0), high + (spread if axis.high is None else 0), start, end)


def _ticks_of(scale: Scale, axis: Axis, wanted: int) -> list[tuple[float, str]]:
    if axis.names:
        every = math.ceil(len(axis.names) / 9)
        return [(float(place), name) for place, name in enumerate(axis.names) if place % every == 0]
    if axis.at:
        every = math.ceil(len(axis.at) / 9)
        return [(value, short(value)) for value in axis.at[::every]]
    found = log_ticks(scale.low, scale.high) if scale.log else ticks(scale.low, scale.high, wanted, axis.whole)
    return [(value, short(value)) for value in found]


def _grid(sx: Scale, sy: Scale, x: Axis, y: Axis) -> Html:
    lines = "".join(f"M{f1(_LEFT)} {f1(sy(value))}H{f1(WIDTH - _RIGHT)}" for value, _ in _ticks_of(sy, y, 5))
    return join((
        tag("path", d=lines, class_="grid"), *_x_ticks(sx, x, HEIGHT - _BOTTOM), *_y_ticks(sy, y, _LEFT),
    ))  # fmt: skip


def _x_ticks(sx: Scale, x: Axis, bottom: float) -> list[Html]:
    base = tag("path", d=f"M{f1(sx.start)} {f1(bottom)}H{f1(sx.end)}", class_="base")
    texts = [tag("text", words, x=f1(sx(v)), y=f1(bottom + 16), class_="mid") for v, words in _ticks_of(sx, x, 6)]
    label = tag("text", x.label, x=f1((sx.start + sx.end) / 2), y=f1(bottom + 34), class_="mid axis")
    return [base, *texts, label]


def _y_ticks(sy: Scale, y: Axis, left: float) -> list[Html]:
    texts = [tag("text", words, x=f1(left - 6), y=f1(sy(v) + 4), class_="end") for v, words in _ticks_of(sy, y, 5)]
    label = tag("text", y.label, x=4, y=f1(sy.end - 13), class_="axis")
    return [*texts, label]


def _vertical_grid(sx: Scale, x: Axis, top: float, bottom: float) -> Html:
    lines = "".join(f"M{f1(sx(value))} {f1(top)}V{f1(bottom)}" for value, _ in _ticks_of(sx, x, 6))
    return join((tag("path", d=lines, class_="grid"), *_x_ticks(sx, x, bottom)))


# the parts -------------------------------------------------------------------------------------------------------


def _drawn(line: Line, sx: Scale, sy: Scale) -> Html:
    places = [(sx(x), sy(y)) for x, y in zip(line.xs, line.ys, strict=True)]
    points = " ".join(f"{px:.2f},{py:.2f}" for px, py in places)
    parts = [tag("polyline", points=points, class_="line", stroke_dasharray=_dash(line.style), data_n=line.name)]
    bars = "".join(
        _upright(px, sy(y - error), sy(y + error))
        for (px, _), y, error in zip(places, line.ys, line.errors, strict=bool(line.errors))
        if error
    )
    if bars:
        parts.append(tag("path", d=bars, class_="bar-of"))
    few = line.markers or len(places) <= 30
    every = 1 if few else math.ceil(len(places) / 12)
    marks = "".join(_marker(_mark(line.style), px, py, 3.2) for px, py in places[::every])
    parts.append(tag("path", d=marks, class_="mark"))
    rings = "".join(_marker("o", *places[at], 7.0) for at in line.rings)
    if rings:
        parts.append(tag("path", d=rings, class_="ring"))
    return tag("g", *parts, class_=f"c{line.style % NUM_COLORS}")


def _finite(line: Line, x: Axis, y: Axis) -> Line:
    """Without points that have no place."""
    keep = [
        at
        for at, (a, b) in enumerate(zip(line.xs, line.ys, strict=True))
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not x.log) and (b > 0 or not y.log)
    ]
    if len(keep) == len(line.xs):
        return line
    return _picked(line, keep)


def _thinned(line: Line) -> Line:
    """At most so many points, first, last and ringed ones among them."""
    if len(line.xs) <= _MAX_POINTS:
        return line
    last = len(line.xs) - 1
    keep = sorted({round(at * last / (_MAX_POINTS - 1)) for at in range(_MAX_POINTS)} | set(line.rings))
    return _picked(line, keep)


def _picked(line: Line, keep: Sequence[int]) -> Line:
    errors = [line.errors[at] for at in keep] if line.errors else ()
    rings = [keep.index(at) for at in line.rings if at in keep]
    return Line(line.name, [line.xs[at] for at in keep], [line.ys[at] for at in keep], line.style, errors, rings,
                line.markers)  # fmt: skip


def _row_name(name: str, y: float) -> Html:
    return tag("text", clipped(name, 44), x=14, y=f1(y), class_="name")


def _marker(kind: str, x: float, y: float, r: float) -> str:
    """A path around (x, y)."""
    if kind == "o":
        return f"M{f1(x - r)} {f1(y)}a{f1(r)} {f1(r)} 0 1 0 {f1(2 * r)} 0a{f1(r)} {f1(r)} 0 1 0 {f1(-2 * r)} 0z"
    if kind == "s":
        return f"M{f1(x - r)} {f1(y - r)}h{f1(2 * r)}v{f1(2 * r)}h{f1(-2 * r)}z"
    if kind == "d":
        e = 1.3 * r
        return f"M{f1(x)} {f1(y - e)}l{f1(e)} {f1(e)}l{f1(-e)} {f1(e)}l{f1(-e)} {f1(-e)}z"
    if kind in "^v":
        s = r if kind == "^" else -r
        return f"M{f1(x)} {f1(y - 1.2 * s)}l{f1(1.2 * r)} {f1(2.1 * s)}h{f1(-2.4 * r)}z"
    if kind == "x":
        return f"M{f1(x - r)} {f1(y - r)}l{f1(2 * r)} {f1(2 * r)}m0 {f1(-2 * r)}l{f1(-2 * r)} {f1(2 * r)}"
    return f"M{f1(x - 1.2 * r)} {f1(y)}h{f1(2.4 * r)}m{f1(-1.2 * r)} {f1(-1.2 * r)}v{f1(2.4 * r)}"


def dot(style: int, x: float, y: float, r: float) -> str:
    """A path around (x, y) that can be full or open; styles differ in shape."""
    return _marker(_CLOSED[style % len(_CLOSED)], x, y, r)


def _whisker(low: float, high: float, y: float) -> str:
    return f"M{f1(low)} {f1(y)}H{f1(high)}M{f1(low)} {f1(y - 4)}v8M{f1(high)} {f1(y - 4)}v8"


def _upright(x: float, low: float, high: float) -> str:
    return f"M{f1(x)} {f1(low)}V{f1(high)}M{f1(x - 4)} {f1(low)}h8M{f1(x - 4)} {f1(high)}h8"


def _dash(style: int) -> str | None:
    return _DASHES[style % len(_DASHES)] or None


def _mark(style: int) -> str:
    return _MARKERS[style % len(_MARKERS)]


def _at(sx: Scale, sy: Scale, value: float) -> str:
    return f"{f1(sx(value))} {f1(sy(value))}"


def _svg(title: str, height: float, *parts: Html, **data: object) -> Html:
    return tag("svg", *parts, viewBox=f"0 0 {f1(WIDTH)} {f1(height)}", role="img", aria_label=title, class_="chart",
               **data)  # fmt: skip
