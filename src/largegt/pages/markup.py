"""Pieces of a page: tags, sections, numbers.

Enters: plain strings and numbers. Leaves: `Html`, escaped text. All functions escape their arguments, except those of
type `Html`, so text from data cannot inject markup.
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
    """Text that is already HTML."""

    __slots__ = ()


def safe(text: object) -> Html:
    """The text, escaped unless it is Html."""
    return text if isinstance(text, Html) else Html(escape(printable(text, keep="\n\t")))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(safe(part) for part in parts))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """`<name …>content</name>`; `class_` means class, `aria_label` means aria-label, attributes of None are omitted."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{text}>{join(content)}</{name}>")


def note(text: str) -> Html:
    return tag("p", text, class_="note") if text else Html()


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in the table of contents."""

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
    """A number with `digits` decimals; a dash for None."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def mean_and_spread(mean: float | None, spread: float) -> str:
    """`0.8090 ± 0.0011`; no ± for a spread of 0."""
    return number(mean) + (f" ± {number(spread)}" if spread else "")


def mean_of(values: Sequence[float]) -> tuple[float | None, float]:
    """Mean and standard deviation; the deviation of a single value is 0."""
    return (fmean(values) if values else None), (stdev(values) if len(values) > 1 else 0.0)


def short(value: float | None) -> str:
    """A number with at most four significant digits and thousands separators: for ticks, tips and counts."""
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
    """A duration in ms, s, min or h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 120:
        return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
