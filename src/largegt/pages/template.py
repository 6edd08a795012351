"""The template of every page: contents, sections, one style sheet and one script.

Enters: a head and sections, in which everything from outside is escaped. Leaves: one HTML file that needs no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from largegt.errors import disk_errors
from largegt.io.atomic import write_text_atomically
from largegt.types import PathLike

from .markup import Html, Section, join, tag
from .style import SCRIPT, STYLE, policy


def write_page(out: PathLike, title: str, head: Html, sections: Iterable[Section | None]) -> Path:
    """Write a page of these sections."""
    with disk_errors(out):
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out, page_of(title, head, sections))
    return Path(out)


def page_of(title: str, head: Html, sections: Iterable[Section | None]) -> str:
    """A page of these sections, with their contents above them."""
    shown = [part for part in sections if part is not None]
    return _page(title, join((head, _contents(shown), *(part.html for part in shown))))


def facts_of(facts: Iterable[tuple[str, str]]) -> Html:
    """(number, what it is) each, large and side by side."""
    return tag("ul", *(tag("li", tag("b", value), tag("span", what)) for value, what in facts), class_="facts")


def _contents(sections: Sequence[Section]) -> Html:
    links = (tag("li", tag("a", part.title, href=f"#{part.id}")) for part in sections)
    return tag("nav", tag("ol", *links), aria_label="Contents")


def _page(title: str, body: Html) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{tag("title", title)}'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )
