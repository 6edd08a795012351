"""What an object shows of itself: three lines in a console, a small table in a notebook."""

from __future__ import annotations

from html import escape

from .text import printable


class Summary:
    """An object that says what it is, how large and where."""

    def summary(self) -> tuple[str, dict[str, object], str]:
        """What it is; its sizes by name; where it lies."""
        raise NotImplementedError

    def __repr__(self) -> str:
        what, sizes, where = self.summary()
        numbers = ", ".join(f"{_text(value)} {name}" for name, value in sizes.items())
        return "\n  ".join((f"{type(self).__name__} {printable(what)}", numbers, printable(where)))

    def _repr_html_(self) -> str:
        what, sizes, where = self.summary()
        rows = {type(self).__name__: what, **{name: _text(value) for name, value in sizes.items()}, "path": where}
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(printable(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else printable(value)
