"""The template of every page: a title, facts, contents, sections, one style sheet and one script.

Enters: escaped sections. Leaves: one HTML file that needs no network. Its content security policy blocks other scripts
and all requests. `standalone` makes an SVG file of charts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from largegt.errors import disk_errors
from largegt.io.atomic import write_text_atomically
from largegt.types import PathLike

from .charts import COLORS, DARK_COLORS
from .markup import Html, Section, join, tag

Fact = tuple[str, str]
"""A value and its caption."""


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _variables(colors: tuple[str, ...]) -> str:
    return f":root{{{''.join(f'--c{number}:{color};' for number, color in enumerate(colors))}}}"


_CLASSES = "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(len(COLORS)))
CHART_STYLE = _variables(COLORS) + _CLASSES + _read("chart.css")
_DARK = f"@media (prefers-color-scheme:dark){{@media screen{{{_variables(DARK_COLORS)}}}}}"
STYLE = CHART_STYLE + _DARK + _read("page.css")
SCRIPT = _read("page.js")
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_DIGEST}'; img-src data:"


def page_of(title: str, lead: str, facts: Iterable[Fact], sections: Iterable[Section | None]) -> str:
    """A page of these sections, with facts and a table of contents at the top."""
    shown = [part for part in sections if part is not None]
    links = (tag("li", tag("a", part.title, href=f"#{part.id}")) for part in shown)
    body = join((
        tag("h1", title), tag("p", lead, class_="lead"),
        tag("ul", *(tag("li", tag("b", value), tag("span", what)) for value, what in facts), class_="facts"),
        tag("nav", tag("ol", *links), aria_label="Contents"), *(part.html for part in shown),
    ))  # fmt: skip
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{tag("title", title)}'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def standalone(*charts: Html) -> str:
    """Charts side by side as a standalone SVG file, for browsers and editors."""
    sizes = [re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart)[0] for chart in charts]
    width, height = sum(float(size[0]) for size in sizes), max(float(size[1]) for size in sizes)
    left, placed = 0.0, []
    for chart, (wide, tall) in zip(charts, sizes, strict=True):
        placed.append(chart.replace("<svg", f'<svg x="{left:.0f}" width="{wide}" height="{tall}"', 1))
        left += float(wide)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"><style>{CHART_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(placed)}</svg>\n'
    )


def write_file(out: PathLike, text: str) -> Path:
    """Write a page or a picture, and create its folder."""
    with disk_errors(out):
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out, text)
    return Path(out)
