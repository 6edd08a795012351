"""Figures as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

from ..training.run import Run

INK, MUTED = "#1f2933", "#7b8794"
COLORS = ("#2563eb", "#d9480f", "#0f9d58", "#8e44ad", "#c2255c", "#0c8599", "#a16207", "#495057")


def curves(runs: list[Run], metric: str, x: str = "epoch") -> str:
    """Validation `metric` of each run over epochs or seconds, the epoch that was kept marked by a ring."""
    figure, axes = _figure()
    named = []
    for number, run in enumerate(runs):
        points = {
            entry["epoch"]: (entry["epoch"] if x == "epoch" else entry["elapsed_s"], entry["valid"][metric])
            for entry in run.history
            if metric in entry["valid"]
        }
        if not points:
            continue
        style = {"color": COLORS[number % len(COLORS)], "marker": "o"}
        line = axes.plot(*zip(*points.values(), strict=True), linewidth=2, markersize=3, **style)[0]
        named.append((line, run.path.name))
        if (best := run.metrics["best_epoch"]) in points:
            axes.plot(*points[best], markersize=9, markerfacecolor="none", **style)
    _finish(axes, "epoch" if x == "epoch" else "seconds of training", f"validation {metric}", named)
    return _svg(figure)


def losses(runs: list[Run]) -> str:
    """Training and validation loss of each run over epochs."""
    figure, axes = _figure()
    named = []
    for number, run in enumerate(runs):
        for split, dashes in (("train", "--"), ("valid", "-")):
            points = [(entry["epoch"], entry[split]["loss"]) for entry in run.history if entry[split]]
            if points:
                color = COLORS[number % len(COLORS)]
                line = axes.plot(*zip(*points, strict=True), color=color, linewidth=2, linestyle=dashes)[0]
                named.append((line, f"{run.path.name}, {split}"))
    _finish(axes, "epoch", "loss", named)
    return _svg(figure)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8))
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _finish(axes: Any, x: str, y: str, named: list[tuple[Any, str]]) -> None:
    """Label the axes and the lines; a line's name is shown to the letter, whatever is in it."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if named:
        legend = axes.legend(*zip(*named, strict=True), frameon=False, fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _svg(figure: Any) -> str:
    """The figure as an <svg> element, the same bytes every time."""
    import matplotlib

    settings: Any = {"svg.hashsalt": "largegt", "svg.fonttype": "none", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has its own fonts
        stream = io.StringIO()
        figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
