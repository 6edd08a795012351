"""Explanation: what was found out about one prediction, as plain values; page.py and picture.py show them."""

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
"""Local nodes in the picture, and their edges: the strongest."""


@dataclass(frozen=True)
class Contribution:
    """One kind of input."""

    name: str
    carried: float
    """Its share of the score: all pieces add up to score - base_score, but for the gap."""
    without: float
    """How much the score falls when this input says nothing: as of an average node, or no label."""


@dataclass(frozen=True)
class LocalNode:
    """One of the nodes that were sampled around the explained one."""

    node: Any
    label: Any
    """Its own label, None without one."""
    split: str
    hop: int
    """1 or 2; 0: the node has no neighbours, so this one was drawn from the whole graph."""
    drawn: float
    """How often it stands among the local nodes, mean over the samples."""
    carried: float
    from_label: float
    """The part of it that its label contributes."""
    by_token: dict[str, float]
    """The rest, by its tokens: H and its contexts."""
    without: float
    """How much the score falls when it is not among the local nodes."""
    weight: float
    """Attention: the readout's weight of its tokens, mean over the samples."""


@dataclass(frozen=True)
class Centroid:
    """One row of the codebook."""

    number: int
    nodes: int
    """Nodes assigned to it."""
    mostly: Any
    """The class that most training nodes assigned to it have, None where that is not known."""
    weight: float
    """Attention: how much is taken of it, mean over heads."""
    by_size: float
    """How much would be taken of it by its size alone."""
    carried: float
    without: float


@dataclass(frozen=True)
class LabelAround:
    """The share of one label among the training nodes that walks from the node end at."""

    hop: int
    label: Any
    """None: how likely a walk ends at a training node at all."""
    share: float
    carried: float


@dataclass(frozen=True)
class InputColumn:
    """One column of the user's tables: all features that it became, together."""

    column: str
    table: str
    """nodes or edges; graph: a degree, which is no column."""
    carried: float
    """By its features in all tokens, of the node and of its local nodes."""
    itself: float
    """The part of it that is due to the node's own value."""
    without: float
    """How much the score falls when it is as of an average node, everywhere."""
    mostly: str
    """The feature of the column that carried most."""


@dataclass(frozen=True)
class Explanation:
    """Why a run says what it says of a node. Numbers are parts of `score`."""

    run: str
    model: str
    task: str
    node: Any
    label: Any
    """The node's own label, None without one."""
    predicted: Any
    """A class, the labels of a multi-label node, or a value."""
    explained: str
    """What the score is, in words."""
    target: Any
    """The class or label whose log-odds are explained; None for a value."""
    probability: float | None
    """Of the target."""
    score: float
    base_score: float
    """The score of inputs that say nothing."""
    gap: float
    """What the pieces miss of score - base_score: the error of the integral."""
    num_eval_samples: int
    pieces: list[Contribution]
    columns: list[InputColumn]
    """Columns of the tables, by what their features carried; empty where features came from an array."""
    local_nodes: list[LocalNode]
    centroids: list[Centroid]
    labels_around: list[LabelAround]
    edges: list[tuple[int, int]]
    """Edges in the picture: places in `local_nodes`, -1 for the node itself."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self, top_k: int = 15) -> str:
        """The strongest of everything, to read."""
        from .page import text

        return text(self, top_k)

    def svg(self) -> str:
        """The picture of the neighbourhood, as a file of its own."""
        from .picture import picture

        return standalone(picture(self))

    def html(self) -> str:
        """A page with the picture and the tables, which needs no other file."""
        from .page import page

        return page(self)

    def write(self, out: PathLike) -> Path:
        """Write it in the form that the name asks for: .html, .svg or .json."""
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
    """The column's name; of which table, if not of nodes."""
    return f"{column} (edges)" if table == "edges" else column


def number(value: float) -> str:
    """With a sign, to be added up."""
    if abs(value) >= 1e4:
        return f"{value:+.4g}"
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0.000"
