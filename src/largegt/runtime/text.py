"""Escape text from data for a terminal, a shell, Markdown or LaTeX.

Names of nodes, classes, columns, graphs and files may contain any character. pages/markup.py escapes HTML.
"""

from __future__ import annotations

import os
import re
import shlex

_JOINERS = "\u200c\u200d"
"""Invisible characters that Persian and several Indic scripts need."""
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "δ": r"$\delta$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


def printable(text: object, keep: str = "") -> str:
    """The text with control characters, direction marks and lone surrogates as escapes such as `\\x1b`.

    Characters in `keep` stay, for example line breaks.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep or c in _JOINERS else repr(c)[1:-1] for c in shown)


def clipped(text: str, length: int) -> str:
    """The text, truncated to `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def quoted(word: object) -> str:
    """A path or name quoted as one word of a shell command line."""
    text = str(word)
    if text.startswith("-"):
        text = f"./{text}"
    if text.isprintable():
        return shlex.quote(text)
    return "$'{}'".format("".join(c if c.isprintable() and c not in "\\'" else _bytes(c) for c in text))


def _bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def markdown(text: object) -> str:
    """The text as Markdown that shows it literally, on one line, also in a table cell."""
    line = printable(" ".join(str(text).split()))
    line = re.sub(r"[\\`*\[\]#|~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^(\d*)([-+=.)])(?=[-=\s]|$)", r"\1\\\2", line)


def latex(text: object) -> str:
    """The text as LaTeX that shows it literally, on one line."""
    return "".join(_LATEX.get(c, c) for c in printable(" ".join(str(text).split())))
