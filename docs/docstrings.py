"""Docstrings for the site: lines such as `graph: a sparse adjacency …`, which tell of a parameter, as a list; sections
such as `Args:` with a heading, and examples as code."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe


class ParameterLines(griffe.Extension):  # type: ignore[misc]
    """Every docstring of a package, once all of it is known: a class may have its parameters from another."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        self._mend(pkg)

    def _mend(self, parent: Any) -> None:
        for member in parent.members.values():
            if member.is_alias:
                continue
            if member.docstring is not None and (member.is_function or member.is_class):
                known = {parameter.name for parameter in member.parameters}
                member.docstring.value = listed(with_headings(member.docstring.value), known)
            self._mend(member)


def with_headings(text: str) -> str:
    """The sections `Args:`, `Returns:`, `Raises:` and `Examples:`, which are indented, under headings."""
    main, *sections = re.split(r"^(Args|Returns|Raises|Examples):\n", text, flags=re.MULTILINE)
    parts = [main.rstrip()]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        lines = textwrap.dedent(body).rstrip()
        if name in ("Args", "Raises"):
            lines = re.sub(r"^(\w[\w, ]*): ", r"- `\1`: ", lines, flags=re.MULTILINE)
            lines = re.sub(r"^ {4}", "  ", lines, flags=re.MULTILINE)
        if name == "Examples":
            lines = f"```python\n{lines}\n```"
        parts.append(f"**{name}**\n\n{lines}")
    return "\n\n".join(parts)


def listed(text: str, known: set[str]) -> str:
    """Lines and sentences that begin with known names and a colon as items of a list, and what follows as part of the
    item."""
    names_of = "|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "$^"
    text = re.sub(rf"(?<=\.)\s(?=(?:{names_of}): )", "\n", text)
    lines: list[str] = []
    for line in text.split("\n"):
        names, colon, meaning = line.partition(": ")
        if colon and known.issuperset(re.split(r", | and ", names)):
            if lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")
            line = f"- `{names}`: {meaning}"
        elif line.strip() and not line.startswith("- ") and lines and lines[-1].startswith(("- ", "  ")):
            line = f"  {line.strip()}"
        lines.append(line)
    return "\n".join(lines)
