"""Draw the pictures of README.md and how-it-works.md: python docs/pictures/draw.py [FOLDER]

Writes NAME-light.svg and NAME-dark.svg for each picture, beside this file or into FOLDER. Figures are 420 points wide
with letters of at least 10 points, to be readable on a phone. Letters are paths, to look the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

WIDTH = 420 / 72


@dataclass(frozen=True)
class Ink:
    """Colours of one of the two looks."""

    text: str
    soft: str
    line: str
    panel: str
    own: str
    near: str
    far: str
    classes: tuple[str, str, str]


LIGHT = Ink(
    "#1f2430", "#5b6372", "#aab2c0", "#eef1f7", "#c2410c", "#2f55d4", "#0f8a6b", ("#2f55d4", "#c2410c", "#0f8a6b")
)
DARK = Ink(
    "#e8ebf2", "#a9b1c2", "#5d6678", "#2b3142", "#ff9a5c", "#8fabff", "#4fd1a9", ("#8fabff", "#ff9a5c", "#4fd1a9")
)


def page(height: float) -> tuple[Any, Any]:
    """A figure whose axes are points: 420 wide, `height` high."""
    figure = plt.figure(figsize=(WIDTH, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 420), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def say(axes: Any, x: float, y: float, text: str, ink: str, size: float = 11, **how: Any) -> None:
    axes.text(x, y, text, color=ink, fontsize=size, **({"ha": "center", "va": "center"} | how))


def box(axes: Any, x: float, y: float, w: float, h: float, fill: str, edge: str, style: str = "-") -> None:
    shape = "round,pad=0,rounding_size=6"
    axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=shape, fc=fill, ec=edge, lw=1.2, ls=style))


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], ink: str, **how: Any) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=ink, lw=1.4, **how))


def dot(axes: Any, at: Any, radius: float, fill: str, edge: str, lw: float = 1.4) -> None:
    axes.add_patch(Circle(tuple(at), radius, fc=fill, ec=edge, lw=lw, zorder=3))


def draw_method(ink: Ink) -> Any:
    """The local module, the label inputs and the codebook, which meet before the prediction."""
    figure, axes = page(330)
    columns = [
        (12, ink.near, "-", [("K local nodes", "sampled within 2 hops"), ("3K tokens", "H, ÃH, Ã²H of each"),
                             ("Transformer", "encoder and readout")]),
        (147, ink.own, "--", [("training labels", "within 3 hops"), ("label distributions", "own label left out")]),
        (282, ink.far, "-", [("query", "features and position"), ("codebook", "centroids of all nodes"),
                             ("attention", "score + log(size)")]),
    ]  # fmt: skip
    for x, colour, style, steps in columns:
        for number, (name, what) in enumerate(steps):
            y = 276 - 76 * number
            box(axes, x, y, 126, 46, ink.panel, colour, style)
            say(axes, x + 63, y + 31, name, colour, 11, weight="bold")
            say(axes, x + 63, y + 14, what, ink.text, 10)
            end = 88 if number == len(steps) - 1 else y - 27
            arrow(axes, (x + 63, y - 3), (x + 63, end), colour)
    arrow(axes, (147, 204), (128, 166), ink.own)
    box(axes, 12, 40, 396, 46, ink.panel, ink.line)
    say(axes, 210, 71, "FFN, residual, prediction", ink.text, 12, weight="bold")
    say(axes, 210, 53, "the residual adds the node's own features", ink.text, 10)
    say(axes, 210, 22, "Solid: as in the paper. Dashed: inputs that the default recipe adds.", ink.soft, 10)
    say(axes, 210, 8, "The default recipe trains without the codebook.", ink.soft, 10)
    return figure


def draw_pipeline(ink: Ink) -> Any:
    """Ingest, prepare, train, predict, and the folder that each stage writes."""
    figure, axes = page(452)
    stages = [
        ("your files", "edges, features, labels", "Parquet, CSV, npy, PyG, SciPy"),
        ("store", "neighbour lists, features, labels, split", "data/g/"),
        (
            "prepared",
            "K local nodes per node, token rows,\npositional encodings, label distributions",
            "data/g/prepared/…/",
        ),
        ("run", "weights of the best epoch, scores", "runs/a/"),
        ("predictions", "your own ids, label, probability", "predictions.parquet"),
    ]
    verbs = [("ingest", "once"), ("prepare", "once, and kept beside the store"), ("train", "batches of tokens"),
             ("predict", "every node, or some")]  # fmt: skip
    top = 446
    for number, (name, what, where) in enumerate(stages):
        high = 58 if "\n" in what else 50
        y = top - high
        box(axes, 12, y, 396, high, ink.panel, ink.line)
        say(axes, 24, y + high / 2, name, ink.text, 13, ha="left", weight="bold")
        say(axes, 120, y + high - 17 - 6 * ("\n" in what), what, ink.text, 11, ha="left", linespacing=1.2)
        say(
            axes,
            120,
            y + 12,
            where,
            ink.soft,
            10,
            ha="left",
            family="monospace" if "/" in where or ".p" in where else None,
        )
        top = y - 44
        if number < len(verbs):
            arrow(axes, (60, y - 3), (60, top + 3), ink.near)
            verb, note = verbs[number]
            say(axes, 76, y - 22, verb, ink.near, 13, ha="left", weight="bold")
            say(axes, 150, y - 22, note, ink.soft, 10.5, ha="left")
    return figure


def neighbourhood() -> tuple[Any, list[tuple[int, int]], Any]:
    """A hand-drawn graph: node 0, four neighbours, nine nodes at distance two, four beyond."""
    at = np.array([
        (210, 158), (150, 205), (275, 200), (140, 110), (285, 112),
        (78, 245), (150, 268), (215, 255), (290, 272), (352, 225), (65, 120), (110, 50), (215, 62), (345, 75),
        (28, 190), (28, 60), (392, 150), (285, 30),
    ])  # fmt: skip
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (1, 6), (1, 7), (2, 7), (2, 8), (2, 9), (3, 10), (3, 11), (3, 12),
             (4, 12), (4, 13), (4, 9), (5, 14), (10, 14), (10, 15), (11, 15), (9, 16), (13, 16), (12, 17), (13, 17),
             (1, 3)]  # fmt: skip
    hop = np.array([0] + [1] * 4 + [2] * 9 + [3] * 4)
    return at, edges, hop


def draw_local_nodes(ink: Ink) -> Any:
    """K = 8: the node itself, and seven sampled from everything within two hops."""
    figure, axes = page(350)
    at, edges, hop = neighbourhood()
    sampled = {1, 2, 4, 6, 9, 10, 12}
    shift = np.array((0, 52))
    for a, b in edges:
        axes.plot(*zip(at[a] + shift, at[b] + shift, strict=True), color=ink.line, lw=1.3, zorder=1)
    for node, place in enumerate(at + shift):
        colour = (ink.own, ink.near, ink.far, ink.soft)[hop[node]]
        chosen = node == 0 or node in sampled
        dot(axes, place, 12 if chosen else 8, colour if chosen else ink.panel, colour if hop[node] < 3 else ink.line)
    say(axes, *(at[0] + shift), "i", "#ffffff" if ink is LIGHT else "#1f2430", 12, weight="bold", zorder=4)
    for x, colour, fill, text in (
        (22, ink.own, ink.own, "the node"), (112, ink.near, ink.near, "one hop"), (196, ink.far, ink.far, "two hops"),
        (286, ink.soft, ink.panel, "not sampled"),
    ):  # fmt: skip
        dot(axes, (x, 44), 7, fill, colour)
        say(axes, x + 13, 44, text, ink.text, 11, ha="left")
    say(axes, 210, 16, "K = 8: i and seven of the thirteen within two hops", ink.soft, 11)
    return figure


def draw_tokens(ink: Ink) -> Any:
    """Two hops to a local node, two more in its contexts; three tokens each."""
    figure, axes = page(404)
    rng = np.random.default_rng(3)
    y = 268
    for radius, style in ((112, "-"), (56, ":")):
        axes.add_patch(Circle((120, y), radius, fc="none", ec=ink.own, lw=1.3, ls=style))
        axes.add_patch(
            Circle(
                (216, y + 18), radius, fc=ink.panel if radius > 100 else "none", ec=ink.far, lw=1.3, ls=style, zorder=0
            )
        )
    angle, far = rng.uniform(0, 6.28, 26), rng.uniform(20, 106, 26)
    axes.plot(216 + far * np.cos(angle), y + 18 + far * np.sin(angle), "o", ms=5, mew=0, color=ink.line)
    axes.plot([120, 168, 216], [y, y + 26, y + 18], color=ink.text, lw=1.6, zorder=2)
    dot(axes, (168, y + 26), 6, ink.soft, ink.text)
    dot(axes, (120, y), 11, ink.own, ink.text)
    dot(axes, (216, y + 18), 11, ink.far, ink.text)
    dark = "#ffffff" if ink is LIGHT else "#1f2430"
    say(axes, 120, y, "i", dark, 11, weight="bold", zorder=4)
    say(axes, 216, y + 18, "j", dark, 11, weight="bold", zorder=4)
    say(axes, 372, y + 44, "j's contexts\nreach two hops\nfrom j:", ink.far, 10.5, linespacing=1.3)
    say(axes, 372, y - 4, "four from i", ink.far, 11.5, weight="bold")
    say(axes, 72, y - 128, "local nodes are\nwithin two hops of i", ink.own, 10.5, linespacing=1.3)
    say(axes, 24, 100, "a local node's three tokens", ink.text, 11, ha="left", weight="bold")
    for x, name, what in ((24, "H", "its features"), (152, "ÃH", "neighbours"), (280, "Ã²H", "two hops")):
        box(axes, x, 52, 116, 36, ink.panel, ink.far)
        say(axes, x + 10, 70, name, ink.far, 13, ha="left", weight="bold")
        say(axes, x + 46, 70, what, ink.text, 10, ha="left")
    for number in range(24):
        own = number < 3
        axes.add_patch(Rectangle((24 + number * 15.5, 20), 13, 16, fc=ink.own if own else ink.far, ec="none",
                                 alpha=(1.0, 0.7, 0.45)[number % 3]))  # fmt: skip
    say(axes, 24, 8, "3K tokens enter the Transformer; the first three are the node's own", ink.soft, 10.5, ha="left")
    return figure


def draw_codebook(ink: Ink) -> Any:
    """Centroids of everything seen so far, as large as their clusters; one node attends to all of them."""
    figure, axes = page(330)
    rng = np.random.default_rng(1)
    centres = np.array([(70, 250), (150, 292), (120, 180), (230, 232), (205, 150)])
    sizes = (60, 18, 34, 90, 12)
    for centre, size in zip(centres, sizes, strict=True):
        spread = rng.normal(size=(size, 2)) * (7 + size / 8)
        axes.plot(*(centre + spread).T, "o", ms=3, mew=0, color=ink.line)
    node = np.array((352, 262))
    for centre, size in zip(centres, sizes, strict=True):
        axes.plot(*zip(node, centre, strict=True), color=ink.near, lw=0.8 + size / 22, alpha=0.55, zorder=2)
        axes.add_patch(Rectangle(tuple(centre - 7), 14, 14, fc=ink.far, ec=ink.text, lw=1.2, zorder=3))
    dot(axes, node, 11, ink.own, ink.text)
    say(axes, *node, "i", "#ffffff" if ink is LIGHT else "#1f2430", 11, weight="bold", zorder=4)
    say(axes, 352, 236, "query: its features and\npositional encoding", ink.text, 10, va="top", linespacing=1.3)
    axes.add_patch(Rectangle((24, 86), 12, 12, fc=ink.far, ec=ink.text, lw=1.2))
    say(axes, 44, 92, "a centroid: the moving average of the nodes nearest to it", ink.text, 10.5, ha="left")
    dot(axes, (30, 66), 3, ink.line, ink.line, 0)
    say(axes, 44, 66, "nodes of batches so far, each with its nearest centroid", ink.text, 10.5, ha="left")
    say(axes, 24, 38, "score  =  query · key  +  log(number of its nodes)", ink.near, 12, ha="left", weight="bold")
    say(axes, 24, 14, "attention to centroids approximates attention to all nodes", ink.soft, 10.5, ha="left")
    return figure


def walk_shares(edges: list[tuple[int, int]], label: list[int]) -> dict[str, Any]:
    """Shares of the labels that walks of one and two steps from node 0 end at, those that come back to it left out."""
    adjacency = np.zeros((14, 14))
    for a, b in edges:
        adjacency[a, b] = adjacency[b, a] = 1
    one_hot = np.eye(3)[np.maximum(label, 0)] * (np.array(label) >= 0)[:, None]
    one_hot[0] = 0
    step = adjacency / adjacency.sum(axis=1, keepdims=True)
    ends = {"one step": step[0] @ one_hot, "two steps": step[0] @ step @ one_hot}
    return {name: sums / sums.sum() for name, sums in ends.items()}


def draw_label_distributions(ink: Ink) -> Any:
    """The label distribution of the training nodes around a node, without its own label."""
    figure, axes = page(372)
    at, edges, hop = neighbourhood()
    shift = np.array((0, 84))
    label = [0, 0, 1, 0, -1, 0, 2, 1, -1, 1, 0, -1, 2, 1]
    for a, b in edges:
        if a < 14 and b < 14:
            axes.plot(*zip(at[a] + shift, at[b] + shift, strict=True), color=ink.line, lw=1.3, zorder=1)
    for node in range(14):
        known = label[node] >= 0
        colour = ink.classes[label[node]] if known else ink.soft
        dot(axes, at[node] + shift, 12 if hop[node] < 2 else 9, ink.panel if node == 0 or not known else colour,
            ink.own if node == 0 else colour, 2 if node == 0 else 1.4)  # fmt: skip
    say(axes, *(at[0] + shift), "?", ink.own, 13, weight="bold", zorder=4)
    for number, (name, shares) in enumerate(walk_shares([pair for pair in edges if max(pair) < 14], label).items()):
        y = 78 - 34 * number
        say(axes, 24, y, name, ink.text, 11, ha="left")
        x = 96.0
        for share, colour in zip(shares, ink.classes, strict=True):
            axes.add_patch(Rectangle((x, y - 9), 296 * share, 18, fc=colour, ec="none"))
            if share:
                say(
                    axes,
                    x + 148 * share,
                    y,
                    f"{share:.0%}",
                    "#ffffff" if ink is LIGHT else "#1f2430",
                    10.5,
                    weight="bold",
                )
            x += 296 * share
    say(
        axes,
        24,
        14,
        "grey: no training label. The node's own label is left out of every count.",
        ink.soft,
        10,
        ha="left",
    )
    return figure


PICTURES: dict[str, Callable[[Ink], Any]] = {
    "method": draw_method,
    "pipeline": draw_pipeline,
    "local-nodes": draw_local_nodes,
    "tokens": draw_tokens,
    "codebook": draw_codebook,
    "label-distributions": draw_label_distributions,
}


def main(folder: Path) -> None:
    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "largegt", "font.family": "DejaVu Sans"})
    for name, draw in PICTURES.items():
        for look, ink in (("light", LIGHT), ("dark", DARK)):
            figure = draw(ink)
            figure.savefig(folder / f"{name}-{look}.svg", transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
