"""Tables: one class for pages, terminals, CSV, Markdown and LaTeX.

Enters: cells; those that are not `Html` may hold any text. Leaves: text with the cells escaped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from largegt.io.atomic import write_text_atomically
from largegt.runtime.text import clipped, latex, markdown, printable

from .markup import NONE, Html, join, note, safe, tag

PLACES = {"first": 1, "second": 2, "third": 3}
PLACE = "place"
"""Name of the last column in the CSV file of a ranked table, as CSV has no bold text."""
_MARKDOWN = {1: "**{}**", 2: "*{}*", 3: "{} (3rd)"}
_LATEX = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
_WIDEST = 28


@dataclass(frozen=True)
class Ranked:
    """A value and its rank in its column; ranks above 3 are not shown."""

    text: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def html(self) -> Html:
        """The value, marked with a small 1, 2 or 3 if it is among the best."""
        words = {1: "best", 2: "second", 3: "third"}.get(self.rank or 0)
        if words is None:
            return safe(self.text)
        mark = tag("span", self.rank, class_=f"rank r{self.rank}", title=words, aria_label=f"{words}:", role="img")
        return join((mark, self.text))


Cell = Html | str | int | Ranked | None


@dataclass(frozen=True)
class PageTable:
    """Rows under a head. The first `left` columns are text, the first names its row."""

    caption: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    left: int = 1
    note: str = ""

    def html(self) -> Html:
        """A table element that scrolls if it is wide."""
        heads = (tag("th", name, scope="col", class_="l" if at < self.left else None)
                 for at, name in enumerate(self.head))  # fmt: skip
        body = (tag("tr", *(self._html(cell, at) for at, cell in enumerate(row))) for row in self.rows)
        made = tag("table", tag("caption", self.caption), tag("thead", tag("tr", *heads)), tag("tbody", *body))
        # a scrolling region needs keyboard focus
        region = tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=self.caption)
        return join((region, note(self.note)))

    def _html(self, cell: Cell, at: int) -> Html:
        shown = cell.html if isinstance(cell, Ranked) else NONE if cell is None else cell
        name, scope = ("td", None) if at else ("th", "row")
        return tag(name, shown, scope=scope, class_="l" if at < self.left else None)

    def text(self, most: int) -> str:
        """The first `most` rows as aligned text."""
        some = [self.head, *self.rows[:most]]
        lines = [[clipped(printable(NONE if cell is None else cell), _WIDEST) for cell in row] for row in some]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        title = self.caption + (f", the strongest {most} of {len(self.rows)}" if most < len(self.rows) else "")
        return "\n".join([title, *(self._line(line, widths) for line in lines)])

    def _line(self, cells: list[str], widths: list[int]) -> str:
        padded = (cell.ljust(width) if at < self.left else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(cells, widths, strict=True)))  # fmt: skip
        return "  ".join(padded).rstrip()

    def markdown(self) -> str:
        rows = [[_marked(cell, markdown, _MARKDOWN) for cell in row] for row in self.rows]
        lines = [[markdown(name) for name in self.head], ["---"] * len(self.head), *rows]
        return f"{markdown(self.caption)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        ranks = [next((cell.rank for cell in row if isinstance(cell, Ranked) and cell.rank), 0) for row in self.rows]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.head, *([PLACE] if any(ranks) else [])])
        for row, rank in zip(self.rows, ranks, strict=True):
            place = next((name for name, number in PLACES.items() if number == rank), "")
            writer.writerow([*row, *([place] if any(ranks) else [])])
        return text.getvalue()

    def latex(self) -> str:
        rows = [" & ".join(_marked(cell, latex, _LATEX) for cell in row) + r" \\" for row in self.rows]
        head = " & ".join(rf"\textbf{{{latex(name)}}}" for name in self.head) + r" \\"
        return "\n".join([
            r"\begin{table}[t]", r"\centering", rf"\caption{{{latex(self.caption)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(self.head) - 1)}}}", r"\toprule", head, r"\midrule", *rows,
            r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ])  # fmt: skip

    def write(self, file: Path) -> list[Path]:
        """FILE.csv, FILE.md and FILE.tex."""
        file.parent.mkdir(parents=True, exist_ok=True)
        written = {file.with_name(f"{file.name}.{kind}"): text
                   for kind, text in (("csv", self.csv()), ("md", self.markdown()), ("tex", self.latex()))}  # fmt: skip
        for path, text in written.items():
            write_text_atomically(path, text)
        return list(written)


def _marked(cell: Cell, escaped: Callable[[object], str], marks: dict[int, str]) -> str:
    rank = cell.rank if isinstance(cell, Ranked) else None
    return marks.get(rank or 0, "{}").format(escaped(NONE if cell is None else cell))


def ranks(values: Sequence[float | None], sign: float = 1) -> list[int | None]:
    """1 for the best, and so on; equal values share a rank. `sign` is -1 if smaller values are better."""
    known = [sign * value for value in values if value is not None]
    return [None if value is None else 1 + sum(other > sign * value for other in known) for value in values]
