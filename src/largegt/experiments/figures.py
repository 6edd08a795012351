"""The paper's figures as files: SVG as on pages; also PDF and PNG if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from largegt.io.atomic import replacing
from largegt.pages.charts import COLORS, NUM_COLORS, Axis, Dot, Line, dot_chart, line_chart
from largegt.pages.template import standalone, write_file
from largegt.runtime.text import printable


@dataclass(frozen=True)
class Panel:
    """Lines over the x axis, or rows of dots along it."""

    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    rows: Sequence[tuple[str, Sequence[Dot]]] = ()


def save_figure(file: Path, title: str, panels: Sequence[Panel]) -> list[Path]:
    """Write FILE.svg, and FILE.pdf and FILE.png if matplotlib is installed, with the panels side by side."""
    charts = [
        line_chart(panel.lines, panel.x, panel.y, title, is_named=True) if panel.lines
        else dot_chart(panel.rows, panel.x, title)
        for panel in panels
    ]  # fmt: skip
    written = [write_file(file.with_suffix(".svg"), standalone(*charts))]
    if find_spec("matplotlib") is None:
        return written
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(panels), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    figure.suptitle(printable(title), fontsize=11, parse_math=False)
    for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", None)):
        with replacing(file.with_suffix(suffix)) as partial:
            figure.savefig(partial, format=suffix[1:], dpi=150, metadata=metadata)
        written.append(file.with_suffix(suffix))
    return written


def _draw(axes: Any, panel: Panel) -> None:
    for line in panel.lines:
        axes.errorbar(
            line.xs,
            line.ys,
            line.errors or None,
            color=COLORS[line.style % NUM_COLORS],
            label=line.name,
            linestyle=("-", "--", ":")[line.style // NUM_COLORS % 3],
            marker="o",
            markersize=3,
            capsize=3,
        )
    for at, (_, dots) in enumerate(panel.rows):
        for dot in dots:
            if dot.value is not None:
                color = COLORS[dot.style % NUM_COLORS]
                axes.errorbar([dot.value], [at], xerr=[dot.error], color=color, marker="o",
                              markerfacecolor="none" if dot.is_open else color)  # fmt: skip
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), [printable(name) for name, _ in panel.rows], parse_math=False)
        axes.invert_yaxis()
    if panel.x.log:
        axes.set_xscale("log")
    if panel.x.names:
        axes.set_xticks(range(len(panel.x.names)), panel.x.names)
    if len(panel.lines) > 1:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(panel.x.label, parse_math=False)
    axes.set_ylabel(panel.y.label, parse_math=False)
    axes.grid(color="#e4e7eb")
