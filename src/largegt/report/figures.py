"""Figures as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from typing import Any

from ..training.run import Run

INK, MUTED = "#1f2933", "#7b8794"
COLORS = ("#2563eb", "#d9480f", "#0f9d58", "#8e44ad", "#c2255c", "#0c8599", "#a16207", "#495057")


def curves(runs: list[Run], metric: str, x: str = "epoch") -> str:
    """Validation `metric` of each run over epochs or seconds, its best epoch marked."""
    figure, axes = _figure()
    for number, run in enumerate(runs):
        history = [entry for entry in run.history if metric in entry["valid"]]
        if not history:
            continue
        steps = [entry["epoch"] if x == "epoch" else entry["elapsed_s"] for entry in history]
        values = [entry["valid"][metric] for entry in history]
        color = COLORS[number % len(COLORS)]
        axes.plot(steps, values, color=color, linewidth=2, marker="o", markersize=3, label=run.path.name)
        best = run.metrics["best_epoch"] - 1
        if 0 <= best < len(values):
            axes.plot(steps[best], values[best], "o", color=color, markersize=9, markerfacecolor="none")
    _finish(axes, "epoch" if x == "epoch" else "seconds of training", f"validation {metric}")
    return _svg(figure)


def losses(runs: list[Run]) -> str:
    """Training and validation loss of each run over epochs."""
    figure, axes = _figure()
    for number, run in enumerate(runs):
        history = run.history
        epochs = [entry["epoch"] for entry in history]
        color = COLORS[number % len(COLORS)]
        axes.plot(epochs, [entry["train"]["loss"] for entry in history], color=color, linewidth=2, linestyle="--",
                  label=f"{run.path.name}, train")  # fmt: skip
        valid = [(entry["epoch"], entry["valid"]["loss"]) for entry in history if entry["valid"]]
        if valid:
            axes.plot(*zip(*valid, strict=True), color=color, linewidth=2, label=f"{run.path.name}, valid")
    _finish(axes, "epoch", "loss")
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


def _finish(axes: Any, x: str, y: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)


def _svg(figure: Any) -> str:
    """The figure as an <svg> element, the same bytes every time."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "largegt", "svg.fonttype": "none", "font.family": "sans-serif"}):
        stream = io.StringIO()
        figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
