"""Pieces of a page: tags, figures, sections, numbers.

Enters: plain strings and numbers. Leaves: `Html`, text in which everything that came from outside is escaped. What is
not `Html` is escaped wherever it is put in, so a name can only be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev

from largegt.runtime.text import clipped as clipped
from largegt.runtime.text import printable

NONE = "–"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


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


def note(text: str) -> Html:
    return tag("p", text, class_="note") if text else Html()


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
        return NONE
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def mean_and_spread(mean: float | None, spread: float) -> str:
    """`0.8090 ± 0.0011`; one value alone has no ±."""
    return number(mean) + (f" ± {number(spread)}" if spread else "")


def mean_of(values: Sequence[float]) -> tuple[float | None, float]:
    """Mean, and standard deviation: 0 of one."""
    return (fmean(values) if values else None), (stdev(values) if len(values) > 1 else 0.0)


def short(value: float | None) -> str:
    """Four significant digits at most, thousands apart: for ticks, tips and counts of any size."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def percent(share: float | None) -> str:
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """In the unit a person would say."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 120:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
