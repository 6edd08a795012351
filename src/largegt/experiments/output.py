"""Tables as people want them: CSV for programs, Markdown for notes, LaTeX for papers."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from largegt.io.atomic import write_text_atomically
from largegt.runtime.text import latex, markdown

PLACES = ("first", "second", "third")
PLACE = "place"
"""The last column of a CSV file whose table has places: a number in bold would be none."""
_MARKDOWN = {"first": "**{}**", "second": "*{}*", "third": "{} (3rd)"}
_LATEX = {"first": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "third": r"\textit{{{}}}"}


@dataclass(frozen=True)
class Cell:
    """A value, and its place among those of its column: first, second, third or none."""

    text: str
    place: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def write(self, folder: Path) -> list[Path]:
        """NAME.csv, NAME.md and NAME.tex."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {".csv": self.to_csv(), ".md": self.to_markdown(), ".tex": self.to_latex()}
        for suffix, text in files.items():
            write_text_atomically(folder / f"{self.name}{suffix}", text)
        return [folder / f"{self.name}{suffix}" for suffix in files]

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        places = [next((cell.place for cell in row if cell.place), "") for row in self.rows]
        has_places = any(places)
        writer.writerow([*self.columns, *([PLACE] if has_places else [])])
        for row, place in zip(self.rows, places, strict=True):
            writer.writerow([*(cell.text for cell in row), *([place] if has_places else [])])
        return text.getvalue()

    def to_markdown(self) -> str:
        rows = [[_MARKDOWN.get(cell.place, "{}").format(markdown(cell.text)) for cell in row] for row in self.rows]
        lines = [[markdown(column) for column in self.columns], ["---"] * len(self.columns), *rows]
        return f"{markdown(self.caption)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_latex(self) -> str:
        rows = [" & ".join(_LATEX.get(cell.place, "{}").format(latex(cell.text)) for cell in row) + r" \\"
                for row in self.rows]  # fmt: skip
        head = " & ".join(rf"\textbf{{{latex(column)}}}" for column in self.columns) + r" \\"
        alignment = "l" + "c" * (len(self.columns) - 1)
        return "\n".join([
            r"\begin{table}[t]", r"\centering", rf"\caption{{{latex(self.caption)}}}",
            rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule",
            r"\end{tabular}", r"\end{table}", "",
        ])  # fmt: skip


def spread(values: list[float], factor: float = 100.0, digits: int = 2) -> str:
    """`79.81±0.25`; one value alone has no ±."""
    if not values:
        return "–"
    around = f"±{factor * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * mean(values):.{digits}f}{around}"


def places(values: list[float | None], larger_is_better: bool = True) -> list[str]:
    """first, second, third, or nothing, for each value; equal ones share a place."""
    sign = 1 if larger_is_better else -1
    distinct = sorted({sign * value for value in values if value is not None}, reverse=True)
    rank = dict(zip(distinct, PLACES, strict=False))
    return ["" if value is None else rank.get(sign * value, "") for value in values]
