"""Pieces of the page: tables, figures, sections, numbers.

Enters: plain strings and numbers. Leaves: `Html`, text in which everything that came from outside is escaped. What is
not `Html` is escaped wherever it is put in, so a name can only be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from largegt.runtime.text import clipped as clipped
from largegt.runtime.text import printable

_NONE = "–"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Cell = Html | str | int | None


def safe(text: object) -> Html:
    """The text itself where it is Html, escaped where it is not."""
    return text if isinstance(text, Html) else Html(escape(printable(text, keep="\n\t")))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(safe(part) for part in parts))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """`<name …>content</name>`; `class_` stands for class, `aria_label` for aria-label, None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def table(caption: str, head: Sequence[Cell], rows: Iterable[Sequence[Cell]], left: int = 1, note: str = "") -> Html:
    """A table with a caption that scrolls by itself where it is wide; the first `left` columns are text, the first
    names its row."""
    heads = (tag("th", name, scope="col", class_="l" if place < left else None) for place, name in enumerate(head))
    body = (tag("tr", *(_cell(cell, place, left) for place, cell in enumerate(row))) for row in rows)
    made = tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body))
    # a region that scrolls must be reachable by keyboard
    return join((tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption), _note(note)))


def rank_mark(rank: int | None) -> Html:
    """A small 1, 2 or 3 to stand before a value that is among the best; nothing for others."""
    words = {1: "best", 2: "second", 3: "third"}.get(rank or 0)
    if words is None:
        return Html("")
    return tag("span", rank, class_=f"rank r{rank}", title=words, aria_label=f"{words}:", role="img")


def _cell(cell: Cell, place: int, left: int) -> Html:
    text = _NONE if cell is None else cell
    if place == 0:
        return tag("th", text, scope="row", class_="l" if left else None)
    return tag("td", text, class_="l" if place < left else None)


def _note(text: str) -> Html:
    return tag("p", text, class_="note") if text else Html()


def figure(chart: Html, caption: str, below: Html, legend: Html | None = None) -> Html:
    """A chart with its caption, its legend, and its table for those who cannot hover."""
    numbers = tag("details", tag("summary", "Numbers"), below)
    return tag("figure", tag("figcaption", caption), legend or Html(), chart, numbers)


def figures(*items: Html) -> Html:
    """Figures side by side where there is room."""
    return tag("div", *items, class_="figures")


@dataclass(frozen=True)
class Section:
    """A part of the page with a place in its contents."""

    id: str
    title: str
    lead: str
    body: Html

    @property
    def html(self) -> Html:
        return tag("section", tag("h2", self.title), tag("p", self.lead, class_="lead"), self.body, id=self.id)


def section(id: str, title: str, lead: str, *body: Html) -> Section:
    return Section(id, title, lead, join(body))


# numbers ---------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4) -> str:
    """With so many decimals; a dash for none."""
    if value is None or not math.isfinite(value):
        return _NONE
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def short(value: float | None) -> str:
    """Four significant digits at most, thousands apart: for ticks, tips and counts of any size."""
    if value is None or not math.isfinite(value):
        return _NONE
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def percent(share: float | None) -> str:
    return _NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """In the unit a person would say."""
    if seconds is None or not math.isfinite(seconds):
        return _NONE
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def f1(value: float) -> str:
    """A length in a picture: one digit behind the point, none where that is 0."""
    return f"{value:.1f}".removesuffix(".0")
