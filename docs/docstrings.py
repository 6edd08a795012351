"""Docstrings for the site: lines such as `graph: a sparse adjacency …`, which tell of a parameter, as a list."""

from __future__ import annotations

import re
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
                member.docstring.value = listed(member.docstring.value, known)
            self._mend(member)


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
        elif line.strip() and lines and lines[-1].startswith(("- ", "  ")):
            line = f"  {line.strip()}"
        lines.append(line)
    return "\n".join(lines)
