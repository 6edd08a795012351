"""Charts as inline SVG: lines, dots with error bars, bars, heat maps.

Enters: numbers and names. Leaves: one `<svg>` per chart that scales with the page, takes its colours from the page's
style (so it follows dark mode and print), and has the data that the page's script shows on hover. Cost: a few bytes per
point; long lines are thinned.

Lines differ in colour, dashes and marker, so readers do not depend on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .markup import Html, clipped, percent, short, tag

COLORS = ("#0063a8", "#c8520a", "#00775f", "#a8327d", "#806000", "#3b86c6", "#4b5563", "#8c2d04")
"""Distinguishable with red-green colour blindness, and dark enough on white."""
DARK_COLORS = ("#6cb4ff", "#ff9d5c", "#3fd0a8", "#f08bc9", "#e3c04a", "#a9d8ff", "#c3c9d1", "#d99a80")
NUM_COLORS, GRAY = len(COLORS), 6
WIDTH = 460.0
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300.0, 50.0, 12.0, 28.0, 42.0
_SIDE = 14.0
_DASHES = (None, "7 4", "2 3", "9 3 2 3", "12 4")
_MANY, _MAX_POINTS = 30, 150


@dataclass(frozen=True)
class Axis:
    """The label and the scale of an axis."""

    label: str
    log: bool = False
    whole: bool = False
    """Ticks are whole numbers."""
    low: float | None = None
    high: float | None = None
    names: tuple[str, ...] = ()
    """Tick labels of 0, 1, …"""
    at: tuple[float, ...] = ()
    """Positions of the ticks."""


@dataclass(frozen=True)
class Line:
    """Points of one line from left to right; `style` is its colour, dashes and marker."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    errors: Sequence[float] = ()
    rings: Sequence[int] = ()
    """Indices of the points with a ring."""


@dataclass(frozen=True)
class Dot:
    """A value in a row of dots, with half the width of its error bar. Open dots are lower in the row."""

    what: str
    value: float | None
    error: float
    style: int
    is_open: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar with its value as text."""

    name: str
    value: float
    words: str
    style: int = 0
    error: float = 0.0


@dataclass(frozen=True)
class Scale:
    """A map from values to pixels."""

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
        """The scale as text, for the script to convert pixels to values."""
        return " ".join(f"{part:.10g}" for part in (self.low, self.high, self.start, self.end, int(self.log)))


# the charts ------------------------------------------------------------------------------------------------------


def line_chart(
    lines: Sequence[Line], x: Axis, y: Axis, title: str, diagonal: bool = False, is_named: bool = False
) -> Html:
    """Lines over a numeric or a named axis. `diagonal` adds the line y = x, `is_named` a legend below."""
    lines = [line for given in lines if (line := _drawable(given, x, y)).xs]
    if not lines:
        return nothing(title)
    reach = _reach((y, e) for line in lines for y, e in zip(line.ys, line.errors or [0.0] * len(line.ys), strict=True))
    sx = scale(x, [value for line in lines for value in line.xs], _LEFT, WIDTH - _RIGHT, 0.5 if x.names else 0.03)
    sy = scale(y, reach, _HEIGHT - _BOTTOM, _TOP, 0.06)
    grid = "".join(path("M", _LEFT, sy(value), "H", WIDTH - _RIGHT) for value, _ in _ticks_of(sy, y, 5))
    parts = [tag("path", d=grid, class_="grid"), *_x_ticks(sx, x, _HEIGHT - _BOTTOM), *_y_ticks(sy, y, _LEFT)]
    if diagonal:
        parts.append(_diagonal(sx, sy))
    parts += [_drawn(line, sx, sy) for line in lines]
    height = _HEIGHT
    for line in lines if is_named else ():
        key = _line_key(line.style, _LEFT, height + 6)
        parts += [tag("g", *key, class_=shape_class(line.style)), _text(line.name, _LEFT + 42, height + 10, "name")]
        height += 18
    names = "|".join(name.replace("|", "/") for name in x.names) or None
    return svg(title, height, *parts, data_x=sx.data, data_y=sy.data, data_xn=names, data_xl=x.label,
               data_whole=1 if x.whole else None)  # fmt: skip


def dot_chart(rows: Sequence[tuple[str, Sequence[Dot]]], x: Axis, title: str) -> Html:
    """A row per name, its values as dots with error bars; the axis may start above zero."""
    reach = _reach((dot.value, dot.error) for _, dots in rows for dot in dots if dot.value is not None)
    if not reach:
        return nothing(title)
    sx = scale(x, reach, _SIDE, WIDTH - _SIDE, 0.06)
    step = 46.0 if any(dot.is_open for _, dots in rows for dot in dots) else 36.0
    parts = []
    for at, (name, dots) in enumerate(rows):
        for dot in reversed(dots):
            if dot.value is None:
                continue
            y = step * at + 29.0 + 11.0 * dot.is_open
            shapes = [tag("path", d=marker(dot.style, sx(dot.value), y, 4.5))]
            if dot.error:
                shapes.insert(0, tag("path", d=_whisker(sx(dot.value - dot.error), sx(dot.value + dot.error), y)))
            tip = f"{name}: {dot.what} {short(dot.value)}" + (f" ± {short(dot.error)}" if dot.error else "")
            parts.append(tag("g", *shapes, class_=shape_class(dot.style, dot.is_open), data_tip=tip))
    return _row_chart([(name, "") for name, _ in rows], step, sx, x, title, parts)


def bar_chart(bars: Sequence[Bar], x: Axis, title: str) -> Html:
    """Bars from zero; negative bars are open and of another colour."""
    if not bars:
        return nothing(title)
    low, high = (pick(0.0, *(bar.value + bar.error for bar in bars)) for pick in (min, max))
    sx = scale(replace(x, low=None if low else 0.0), [low, high], _SIDE, WIDTH - _SIDE, 0.02)
    step = 36.0
    zero = "".join(path("M", sx(0.0), step * at + 16, "v", 18) for at in range(len(bars)))
    parts = [tag("path", d=zero, class_="base")]
    for at, bar in enumerate(bars):
        y = step * at + 19
        left, right = sorted((sx(0.0), sx(bar.value)))
        shapes = [tag("path", d=path("M", left, y, "H", max(right, left + 1), "v", 12, "H", left, "z"))]
        if bar.error:
            ends = sx(max(0.0, bar.value - bar.error)), sx(bar.value + bar.error)
            shapes.append(tag("path", d=_whisker(*ends, y + 6), class_="error"))
        style = bar.style if bar.value >= 0 else 1
        parts.append(tag("g", *shapes, class_=shape_class(style, bar.value < 0), data_tip=f"{bar.name}: {bar.words}"))
    return _row_chart([(bar.name, bar.words) for bar in bars], step, sx, x, title, parts)


def _row_chart(
    names: Sequence[tuple[str, str]], step: float, sx: Scale, x: Axis, title: str, marks: Sequence[Html]
) -> Html:
    """Rows over one axis, each with a name on the left and a text on the right."""
    bottom = step * len(names) + 4.0
    grid = "".join(path("M", sx(value), 4, "V", bottom) for value, _ in _ticks_of(sx, x, 6))
    parts = [tag("path", d=grid, class_="grid"), *_x_ticks(sx, x, bottom)]
    for at, (name, words) in enumerate(names):
        parts.append(_text(clipped(name, 44), _SIDE, step * at + 13, "name"))
        if words:
            parts.append(_text(words, WIDTH - _SIDE, step * at + 13, "end value"))
    return svg(title, bottom + 36.0, *parts, *marks)


def confusion_chart(cells: Sequence[Sequence[int]], names: Sequence[str], title: str) -> Html:
    """Nodes by true class (row) and predicted class (column); the shade of a cell is its share of the row."""
    left, top, right, num = 128.0, 26.0, WIDTH - _RIGHT, len(names)
    side = (right - left) / num
    inks = [[value / max(1, sum(line)) for value in line] for line in cells]
    parts = _cells(cells, inks, ("true class", names), ("predicted class", names), (left, top, right, top + side * num))
    for i, name in enumerate(names):
        parts.append(_text(clipped(f"{i + 1} {name}", 15), left - 6, top + side * (i + 0.5) + 4, "end"))
        parts.append(_text(str(i + 1), left + side * (i + 0.5), top - 6, "mid"))
        for j, ink in enumerate(inks[i]):
            if side >= 17 and ink >= 0.01:
                place = left + side * (j + 0.5), top + side * (i + 0.5) + 3.5
                parts.append(_text(f"{100 * ink:.0f}", *place, "in on" if ink > 5 / 9 else "in"))
    parts.append(_text("predicted class", (left + right) / 2, top + side * num + 18, "mid axis"))
    parts.append(_text("true class", left - 6, top - 6, "end axis"))
    return svg(title, top + side * num + 28.0, *parts)


def density_chart(cells: Sequence[Sequence[int]], x: Axis, y: Axis, title: str) -> Html:
    """Nodes by two values over the same range, the first row of cells at the bottom; darker cells have more nodes."""
    left, top, right, bottom = 62.0, 28.0, WIDTH - _RIGHT, 328.0
    sx, sy = scale(x, [], left, right, 0.0), scale(y, [], bottom, top, 0.0)
    edges = [sx.low + (sx.high - sx.low) * at / len(cells) for at in range(len(cells) + 1)]
    bins = [" to ".join(short(float(f"{edge:.3g}")) for edge in pair) for pair in pairwise(edges)]
    most, downwards = max(map(max, cells)), cells[::-1]
    inks = [[math.sqrt(value / most) for value in line] for line in downwards]
    parts = _cells(downwards, inks, (y.label, bins[::-1]), (x.label, bins), (left, top, right, bottom))
    parts += [*_x_ticks(sx, x, bottom), *_y_ticks(sy, y, left), _diagonal(sx, sy)]
    return svg(title, bottom + 40.0, *parts)


def nothing(title: str) -> Html:
    """A note in place of an empty chart."""
    return tag("p", "Nothing to draw here: no such numbers in these runs.", class_="note", aria_label=title)


# legends ---------------------------------------------------------------------------------------------------------


def legend(keys: Iterable[tuple[str, Html]]) -> Html:
    """A legend of (name, key) pairs that wraps."""
    return tag("ul", *(tag("li", key, name) for name, key in keys), class_="legend")


def line_legend(names: Iterable[tuple[str, int]]) -> Html:
    """A legend of (name, style) pairs of lines."""
    return legend(
        (name, tag("svg", *_line_key(style, 1, 7), viewBox="0 0 34 14", class_=f"key {shape_class(style)}",
                   aria_hidden="true"))
        for name, style in names
    )  # fmt: skip


def _line_key(style: int, x: float, y: float) -> tuple[Html, Html]:
    line = tag("path", d=path("M", x, y, "h", 32), class_="line", stroke_dasharray=_dash(style))
    return line, tag("path", d=marker(style, x + 16, y, 4.0), class_="mark")


def dot_key(style: int, is_open: bool = False) -> Html:
    return tag("svg", tag("path", d=marker(style, 7, 7, 4.5)), viewBox="0 0 14 14", aria_hidden="true",
               class_=f"key dot {shape_class(style, is_open)}")  # fmt: skip


# ticks and axes --------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, wanted: int = 5, whole: bool = False) -> list[float]:
    """Round numbers in [low, high] with a step of 1, 2 or 5 times a power of ten."""
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
    """Powers of ten in [low, high], with 2 and 5 times them if they are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    parts = (1, 2, 5) if len(powers) <= 3 else (1,)
    every = 1 if len(powers) <= 7 else 2
    found = [part * 10.0**power for power in powers[::every] for part in parts]
    return [value for value in found if low * 0.999 <= value <= high * 1.001] or [low]


def scale(axis: Axis, values: Sequence[float], start: float, end: float, room: float) -> Scale:
    """A scale over the values with a margin of `room`."""
    if axis.names:
        return Scale(-room, len(axis.names) - 1 + room, start, end)
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.log:
        low, high = (low, high) if high > low else (low / 2, high * 2)
        return Scale(low * (high / low) ** -room, high * (high / low) ** room, start, end, log=True)
    if not high > low:
        spread = 1.0 if axis.whole else abs(low) * 0.1 or 1.0
        return Scale(low - spread, high + spread, start, end)
    spread = (high - low) * room
    return Scale(low - (spread if axis.low is None else 0), high + (spread if axis.high is None else 0), start, end)


def _reach(values: Iterable[tuple[float, float]]) -> list[float]:
    """The ends of all error bars."""
    return [end for value, error in values for end in (value - error, value + error)]


def _ticks_of(of: Scale, axis: Axis, wanted: int) -> list[tuple[float, str]]:
    if axis.names:
        return [(float(at), name) for at, name in enumerate(axis.names)][:: math.ceil(len(axis.names) / 9)]
    if axis.at:
        found = list(axis.at[:: math.ceil(len(axis.at) / 9)])
    else:
        found = log_ticks(of.low, of.high) if of.log else ticks(of.low, of.high, wanted, axis.whole)
    return [(value, short(value)) for value in found]


def _x_ticks(sx: Scale, x: Axis, bottom: float) -> list[Html]:
    base = tag("path", d=path("M", sx.start, bottom, "H", sx.end), class_="base")
    texts = [_text(words, sx(value), bottom + 16, "mid") for value, words in _ticks_of(sx, x, 6)]
    return [base, *texts, _text(x.label, (sx.start + sx.end) / 2, bottom + 34, "mid axis")]


def _y_ticks(sy: Scale, y: Axis, left: float) -> list[Html]:
    texts = [_text(words, left - 6, sy(value) + 4, "end") for value, words in _ticks_of(sy, y, 5)]
    return [*texts, _text(y.label, 4, sy.end - 13, "axis")]


# the parts -------------------------------------------------------------------------------------------------------


def path(*parts: str | float) -> str:
    """The `d` of a path: commands, and lengths with at most one decimal."""
    return " ".join(part if isinstance(part, str) else f"{part:.1f}".removesuffix(".0") for part in parts)


def marker(style: int, x: float, y: float, r: float) -> str:
    """A path around (x, y), by style a circle, a square, a diamond or a triangle."""
    wide = 1.3 * r
    return path(*(
        ("M", x - r, y, "a", r, r, "0 1 0", 2 * r, "0a", r, r, "0 1 0", -2 * r, "0z"),
        ("M", x - r, y - r, "h", 2 * r, "v", 2 * r, "h", -2 * r, "z"),
        ("M", x, y - wide, "l", wide, wide, "l", -wide, wide, "l", -wide, -wide, "z"),
        ("M", x, y - 1.2 * r, "l", 1.2 * r, 2.1 * r, "h", -2.4 * r, "z"),
        ("M", x, y + 1.2 * r, "l", 1.2 * r, -2.1 * r, "h", -2.4 * r, "z"),
    )[style % 5])  # fmt: skip


def svg(title: str, height: float, *parts: Html, **data: object) -> Html:
    """A chart of the page's width."""
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {height:.1f}", role="img", aria_label=title, class_="chart",
               **data)  # fmt: skip


def _drawable(line: Line, x: Axis, y: Axis) -> Line:
    """The line without points off the scale, thinned to at most `_MAX_POINTS` with the first, last and ringed ones."""
    keep = [
        at
        for at, point in enumerate(zip(line.xs, line.ys, strict=True))
        if all(math.isfinite(v) and (v > 0 or not axis.log) for v, axis in zip(point, (x, y), strict=True))
    ]
    if len(keep) > _MAX_POINTS:
        shares = [at / (_MAX_POINTS - 1) for at in range(_MAX_POINTS)]
        evenly = {keep[round(len(keep) ** share if x.log else share * (len(keep) - 1)) - x.log] for share in shares}
        keep = sorted(evenly | (set(line.rings) & set(keep)))
    xs, ys, errors = ([values[at] for at in keep] if values else [] for values in (line.xs, line.ys, line.errors))
    return replace(line, xs=xs, ys=ys, errors=errors, rings=[keep.index(at) for at in line.rings if at in keep])


def _drawn(line: Line, sx: Scale, sy: Scale) -> Html:
    places = [(sx(x), sy(y)) for x, y in zip(line.xs, line.ys, strict=True)]
    points = " ".join(f"{px:.2f},{py:.2f}" for px, py in places)
    parts = [tag("polyline", points=points, class_="line", stroke_dasharray=_dash(line.style), data_n=line.name)]
    bars = ""
    for (px, _), y, error in zip(places, line.ys, line.errors or [0.0] * len(places), strict=True):
        if error:
            low, high = sy(y - error), sy(y + error)
            bars += path("M", px, low, "V", high, "M", px - 4, low, "h", 8, "M", px - 4, high, "h", 8)
    every = 1 if len(places) <= _MANY else math.ceil(len(places) / 12)
    marks = "".join(marker(line.style, *place, 3.2) for place in places[::every])
    rings = "".join(marker(0, *places[at], 7.0) for at in line.rings)
    parts += [tag("path", d=d, class_=kind) for d, kind in ((bars, "bar-of"), (marks, "mark"), (rings, "ring")) if d]
    return tag("g", *parts, class_=shape_class(line.style))


def _cells(
    cells: Sequence[Sequence[int]], inks: Sequence[Sequence[float]], rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]], place: tuple[float, float, float, float],
) -> list[Html]:  # fmt: skip
    """A frame and the non-empty cells; rows and columns are (axis title, names) for the tooltip."""
    left, top, right, bottom = place
    wide, tall = (right - left) / len(columns[1]), (bottom - top) / len(rows[1])
    parts = [tag("path", d=path("M", left, top, "H", right, "V", bottom, "H", left, "z"), class_="frame")]
    for i, (row, values) in enumerate(zip(rows[1], cells, strict=True)):
        for j, (column, value) in enumerate(zip(columns[1], values, strict=True)):
            if value:
                d = path("M", left + wide * j, top + tall * i, "h", wide, "v", tall, "h", -wide, "z")
                level = 0 if inks[i][j] < 0.01 else min(9, math.ceil(inks[i][j] * 9))
                share = percent(value / sum(values))
                tip = f"{rows[0]}: {row}\n{columns[0]}: {column}\n{value:,} nodes ({share} of the row)"
                parts.append(tag("path", d=d, class_=f"heat h{level}", data_tip=tip))
    return parts


def _diagonal(sx: Scale, sy: Scale) -> Html:
    low, high = max(sx.low, sy.low), min(sx.high, sy.high)
    return tag("path", d=path("M", sx(low), sy(low), "L", sx(high), sy(high)), class_="diagonal")


def _text(words: str, x: float, y: float, class_: str) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", class_=class_)


def _whisker(low: float, high: float, y: float) -> str:
    return path("M", low, y, "H", high, "M", low, y - 4, "v", 8, "M", high, y - 4, "v", 8)


def _dash(style: int) -> str | None:
    return _DASHES[style % len(_DASHES)]


def shape_class(style: int, is_open: bool | None = None) -> str:
    """The CSS classes of a style: its colour, and full or open shapes."""
    return f"c{style % NUM_COLORS}" + ("" if is_open is None else " open" if is_open else " full")
