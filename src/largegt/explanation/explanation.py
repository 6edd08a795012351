"""Explanation: the attributions of one prediction, as plain values; page.py and picture.py show them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from largegt.errors import ConfigError
from largegt.pages.markup import NONE
from largegt.pages.template import standalone, write_file
from largegt.types import PathLike

HOPS = {0: "drawn at random", 1: "1 hop", 2: "2 hops"}
SUFFIXES = (".html", ".svg", ".json")
MOST_DRAWN = 40
"""Local nodes in the picture, those with the largest attributions."""


@dataclass(frozen=True)
class Contribution:
    """One kind of input."""

    name: str
    carried: float
    """Its attribution: all pieces add up to score - base_score - gap."""
    without: float
    """How much the score falls when this input is replaced by the baseline: an average node's, or no label."""


@dataclass(frozen=True)
class LocalNode:
    """One of the sampled local nodes of the explained node."""

    node: Any
    label: Any
    """Its own label, None without one."""
    split: str
    hop: int
    """1 or 2; 0: the explained node has no neighbours, so this node is sampled from the whole graph."""
    drawn: float
    """Number of its slots among the local nodes, mean over the samples."""
    carried: float
    from_label: float
    """The part of `carried` from its label."""
    by_token: dict[str, float]
    """The rest, by token: H and its contexts."""
    without: float
    """How much the score falls when it is not among the local nodes."""
    weight: float
    """Attention: the readout weight of its tokens, mean over the samples."""


@dataclass(frozen=True)
class Centroid:
    """One row of the codebook."""

    number: int
    nodes: int
    """Nodes assigned to it."""
    mostly: Any
    """The commonest class of the training nodes assigned to it, None if unknown."""
    weight: float
    """Attention weight, mean over heads."""
    by_size: float
    """The attention weight that its size alone would give."""
    carried: float
    without: float


@dataclass(frozen=True)
class LabelAround:
    """The share of random walks from the node that end at a training node with one label."""

    hop: int
    label: Any
    """None: the share of walks that end at any training node."""
    share: float
    carried: float


@dataclass(frozen=True)
class InputColumn:
    """One column of the user's tables: all features made from it, together."""

    column: str
    table: str
    """nodes or edges; graph: a degree, which is no column."""
    carried: float
    """The attribution of its features in all tokens, of the node and of its local nodes."""
    itself: float
    """The part of `carried` from the node's own value."""
    without: float
    """How much the score falls when all tokens have the average node's value."""
    mostly: str
    """The feature of the column with the largest attribution."""


@dataclass(frozen=True)
class Explanation:
    """Attributions of a run's prediction for one node. Numbers are parts of `score`."""

    run: str
    model: str
    task: str
    node: Any
    label: Any
    """The node's own label, None without one."""
    predicted: Any
    """A class, the labels of a multi-label node, or a value."""
    explained: str
    """What the score measures, in words."""
    target: Any
    """The class or label whose log-odds are explained; None for a value."""
    probability: float | None
    """Of the target."""
    score: float
    base_score: float
    """The score of the baseline inputs."""
    gap: float
    """The error of the integral: score - base_score minus the sum of the pieces."""
    num_eval_samples: int
    pieces: list[Contribution]
    columns: list[InputColumn]
    """Columns of the tables, largest attribution first; empty if features came from an array."""
    local_nodes: list[LocalNode]
    centroids: list[Centroid]
    labels_around: list[LabelAround]
    edges: list[tuple[int, int]]
    """Edges in the picture: indices into `local_nodes`, -1 for the node itself."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self, top_k: int = 15) -> str:
        """The explanation as text, with the `top_k` largest rows of each table."""
        from .page import text

        return text(self, top_k)

    def svg(self) -> str:
        """The picture of the neighbourhood, as a standalone SVG."""
        from .picture import picture

        return standalone(picture(self))

    def html(self) -> str:
        """A self-contained page with the picture and the tables."""
        from .page import page

        return page(self)

    def write(self, out: PathLike) -> Path:
        """Write a file in the format of its suffix: .html, .svg or .json."""
        made = {".html": self.html, ".svg": self.svg, ".json": self._json}.get(Path(out).suffix)
        if made is None:
            raise ConfigError(f"cannot write {out}: explanations end in {', '.join(SUFFIXES)}")
        return write_file(out, made())

    def _json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, default=str) + "\n"


def in_words(value: Any) -> str:
    """A name or label as text; a dash for none."""
    if value is None:
        return NONE
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def column_words(column: str, table: str) -> str:
    """The column's name, with the table if that is not the node table."""
    return f"{column} (edges)" if table == "edges" else column


def number(value: float) -> str:
    """A number with its sign."""
    if abs(value) >= 1e4:
        return f"{value:+.4g}"
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0.000"
