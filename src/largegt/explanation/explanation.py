"""Explanation: what was found out about one prediction, as plain values, as JSON and as text.

Enters: numbers and the user's own names. Leaves: a ranked table to read, a dict for programs; the page and the picture
are made by page.py and picture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from largegt.runtime.text import clipped, printable

_NAME = 28
HOPS = {0: "drawn at random", 1: "1 hop", 2: "2 hops"}


@dataclass(frozen=True)
class Piece:
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
    """How often it stands among the local nodes, mean over the draws."""
    carried: float
    told: float
    """The part of it that is due to the label it told."""
    by_token: dict[str, float]
    """The rest, by its tokens: H and its contexts."""
    without: float
    """How much the score falls when it is not among the local nodes."""
    weight: float
    """Attention: the readout's weight of its tokens, mean over the draws."""


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

    @property
    def words(self) -> str:
        return column_words(self.column, self.table)


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
    draws: int
    pieces: list[Piece]
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

    def text(self, top: int = 15) -> str:
        """The strongest of everything, to read."""
        said = self.predicted if self.task != "regression" else number(self.predicted)
        sure = "" if self.probability is None else f", probability of {self.target}: {self.probability:.3f}"
        parts = [
            printable(f"{self.run} says of node {self.node}: {in_words(said)}{sure}"
                      f" (its own label: {in_words(self.label)})"),
            printable(f"{self.explained}: {number(self.score)}; of inputs that say nothing: {number(self.base_score)}. "
                      f"The pieces below add up to the difference{_missed(self.gap)}. Mean of {self.draws} "
                      f"draw{'s' if self.draws > 1 else ''} of local nodes."),
            _lines("What carried it", ("", "carried", "falls without"),
                   [(piece.name, number(piece.carried), number(piece.without)) for piece in self.pieces]),
        ]  # fmt: skip
        head: tuple[str, ...]
        rows: list[tuple[str, ...]]
        if self.columns:
            head = ("", "carried", "own value", "falls without", "mostly")
            rows = [
                (one.words, number(one.carried), number(one.itself), number(one.without),
                 "" if one.mostly == one.column else one.mostly)
                for one in self.columns[:top]
            ]  # fmt: skip
            parts.append(_lines(_of("Columns", rows, self.columns), head, rows))
        if self.local_nodes:
            head = ("", "label", "split", "where", "carried", "falls without", "attention")
            rows = [
                (in_words(one.node), in_words(one.label), one.split, HOPS[one.hop], number(one.carried),
                 number(one.without), f"{100 * one.weight:.1f} %")
                for one in self.local_nodes[:top]
            ]  # fmt: skip
            parts.append(_lines(_of("Local nodes", rows, self.local_nodes), head, rows))
        if self.labels_around:
            head = ("", "hops", "share", "carried")
            rows = [
                (around_words(one), str(one.hop), f"{one.share:.3f}", number(one.carried))
                for one in self.labels_around[:top]
            ]
            parts.append(_lines(_of("Training labels around", rows, self.labels_around), head, rows))
        if self.centroids:
            head = ("", "mostly", "nodes", "attention", "by size", "carried", "falls without")
            rows = [
                (str(one.number), in_words(one.mostly), f"{one.nodes:,}", f"{100 * one.weight:.1f} %",
                 f"{100 * one.by_size:.1f} %", number(one.carried), number(one.without))
                for one in self.centroids[:top]
            ]  # fmt: skip
            parts.append(_lines("Centroids of the whole graph", head, rows))
        return "\n\n".join(parts) + "\n"

    def svg(self) -> str:
        """The picture of the neighbourhood, as a file of its own."""
        from .picture import standalone

        return standalone(self)

    def html(self) -> str:
        """A page with the picture and the tables, which needs no other file."""
        from .page import page

        return page(self)


def in_words(value: Any) -> str:
    """A name or label as text; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def column_words(column: str, table: str) -> str:
    """The column's name; of which table, if not of nodes."""
    return f"{column} (edges)" if table == "edges" else column


def around_words(one: LabelAround) -> str:
    return "any label at all" if one.label is None else in_words(one.label)


def number(value: float) -> str:
    """With a sign, to be added up."""
    if abs(value) >= 1e4:
        return f"{value:+.4g}"
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0.000"


def _missed(gap: float) -> str:
    return f", but for {gap:+.1g} that the integral misses" if abs(gap) >= 5e-4 else ""


def _of(title: str, shown: Sequence[Any], every: Sequence[Any]) -> str:
    return f"{title}, the strongest {len(shown)} of {len(every)}" if len(shown) < len(every) else title


def _lines(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first and those of words left, numbers right."""
    rows = [[clipped(printable(cell), _NAME) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    left = {0, *(at for at, name in enumerate(head) if name in ("label", "split", "where", "mostly"))}

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([title, line(head), *(line(row) for row in rows)])
