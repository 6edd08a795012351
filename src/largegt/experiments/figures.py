"""The paper's figures, drawn by matplotlib without a display: SVG for pages, PDF for papers, PNG to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largegt.errors import disk_errors
from largegt.pages.colors import COLORS, INK, MUTED
from largegt.runtime.text import printable

_SUFFIXES = (".svg", ".pdf", ".png")


def bars(seconds: Mapping[str, float], beside: Mapping[str, float], title: str, file: Path) -> list[Path]:
    """Seconds of an epoch per model, on a logarithmic scale; the paper's as hollow bars where it has them."""
    figure, axes = _figure(len(seconds) * 0.75 + 2)
    names = list(seconds)
    width = 0.4 if beside else 0.7
    at = range(len(names))
    shift = width / 2 if beside else 0.0
    drawn = axes.bar([i - shift for i in at], [seconds[name] for name in names], width, color=COLORS[0], label="here")
    axes.bar_label(drawn, fmt=lambda value: f"{value:.3g}", fontsize=8, color=INK)
    if beside:
        values = [beside.get(name, float("nan")) for name in names]
        theirs = axes.bar(
            [i + shift for i in at], values, width, color="none", edgecolor=MUTED, label="the paper (V100)"
        )
        axes.bar_label(theirs, fmt=lambda value: f"{value:.3g}" if value == value else "", fontsize=8, color=MUTED)
        axes.legend(frameon=False)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(list(at), names, rotation=30, ha="right")
    _finish(axes, "", "seconds of an epoch", title)
    return _save(figure, file)


def by_k(points: Sequence[tuple[int, float, float, float]], metric: str, title: str, file: Path) -> list[Path]:
    """Score over K with its spread; each point says how long an epoch takes. Points: (K, mean, std, seconds)."""
    figure, axes = _figure(6.0)
    ks, means, spreads, _ = zip(*points, strict=True)
    at = range(len(ks))  # evenly apart, as the values of K are not
    axes.errorbar(at, means, yerr=spreads, color=COLORS[0], ecolor=MUTED, marker="o", linewidth=2, capsize=3)
    for place, (_, value, _, seconds) in zip(at, points, strict=True):
        label = {"textcoords": "offset points", "ha": "left", "fontsize": 8, "color": INK}
        axes.annotate(f"{seconds:.3g} s", (place, value), (4, 6), **label)
    axes.set_xticks(list(at), [str(k) for k in ks])
    _finish(axes, "K, local nodes per node", f"test {metric}", title)
    return _save(figure, file)


def curves(
    lines: Mapping[str, Sequence[tuple[float, float, float]]], metric: str, title: str, file: Path
) -> list[Path]:
    """Validation and test score over minutes of training, side by side. Lines: (minutes, valid, test) per epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for column, (axes, split) in enumerate(zip(both, ("validation", "test"), strict=True), start=1):
        for number, (name, points) in enumerate(lines.items()):
            minutes, values = [point[0] for point in points], [point[column] for point in points]
            axes.plot(minutes, values, color=COLORS[number % len(COLORS)], linewidth=1.8, label=name,
                      marker="o" if len(points) < 20 else None, markersize=3,
                      linestyle=("-", "--", ":")[number // len(COLORS) % 3])  # fmt: skip
        _finish(axes, "minutes of training", f"{split} {metric}", title if column == 1 else "")
    both[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, file)


def _figure(width: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, width), 4.2), layout="constrained")
    return figure, figure.subplots()


def _finish(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)
    axes.set_title(printable(title), loc="left", fontsize=11, parse_math=False)
    axes.grid(axis="y", color="#e4e7eb")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Any, file: Path) -> list[Path]:
    file.parent.mkdir(parents=True, exist_ok=True)
    written = [file.with_suffix(suffix) for suffix in _SUFFIXES]
    for path in written:
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        partial = path.with_name(f".{path.name}.partial")
        with disk_errors(path):
            figure.savefig(partial, format=path.suffix[1:], dpi=150, metadata=metadata)
            partial.replace(path)
    return written
