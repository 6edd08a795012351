"""Features as tokens begin: those of the store, with log(1 + degree) behind them where asked for, and their scale.

Enters: a GraphStore. Leaves: float32 rows of the nodes asked for, and the shift and gain that normalise them.
Cost: a copy of the rows asked for at most; the scale is one pass over the features. Nothing is held.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from largegt.data.precision import decode
from largegt.data.store import GraphStore
from largegt.runtime.memory import rows_within
from largegt.types import Array, Direction, Normalization

from .blocks import degrees_of, selection

if TYPE_CHECKING:
    from .engine import Engine

_CHUNK_ROWS = 1 << 14
_ZEROS, _ALIKE = 0.8, 20.0
"""Words: so large a share of zeros, and no feature whose values are so many times as large as those of others."""


class NodeFeatures:
    """Rows [n, d] of a store's features; with `degrees`, d is one more for an undirected graph (its degree) and two
    for a directed one (out, in)."""

    def __init__(self, store: GraphStore, degrees: bool = False) -> None:
        self.store, self.num_nodes = store, store.num_nodes
        sides: tuple[Direction, ...] = ("out", "in") if store.directed else ("out",)
        self._indptrs = [store.csr(side)[0] for side in sides] if degrees else []
        self.width = store.num_features + len(self._indptrs)

    def rows(self, nodes: Array | range) -> Array:
        """float32 [n, d] of sorted nodes; may be a view of the file."""
        stored = decode(self.store.features[selection(nodes)], self.store.feature_dtype)
        if not self._indptrs:
            return stored
        counts = np.stack([degrees_of(indptr, nodes) for indptr in self._indptrs], axis=1)
        return np.concatenate([stored, np.log1p(counts.astype(np.float64)).astype(np.float32)], axis=1)


class EdgeMeans(NodeFeatures):
    """Rows [n, f] of what the edges of a node along a direction have for features, their mean; zeros where there are
    none."""

    def __init__(self, store: GraphStore, direction: Direction) -> None:
        super().__init__(store)
        self.direction, self.width = direction, store.num_edge_features

    def rows(self, nodes: Array | range) -> Array:
        return self.store.edge_features(self.direction)[selection(nodes)]


def _moments(features: NodeFeatures, pilot: Array, start: int, stop: int) -> tuple[Array, int]:
    """float64 [3, d]: sums of x - pilot and of its square over a range of nodes, and how many values are not zero; and
    how many nodes have a stored feature that is not."""
    sums, nodes_with_any = np.zeros((3, features.width)), 0
    for low, high in pairwise([*range(start, stop, rows_within(8 * features.width)), stop]):
        rows = features.rows(range(low, high))
        away = rows - pilot
        sums += away.sum(axis=0), (away * away).sum(axis=0), np.count_nonzero(rows, axis=0)
        nodes_with_any += int(np.count_nonzero(rows[:, : features.store.num_features].any(axis=1)))
    return sums, nodes_with_any


def feature_scale(features: NodeFeatures, normalize: Normalization, engine: Engine) -> tuple[Array, Array]:
    """`(shift, gain)` float32 [d]: (x - shift)·gain has mean 0 and variance 1; zeros and ones without it. `global` is
    one gain for all features of the store, by their mean square, and no shift; degrees have their own as ever. `auto`
    is global for words: four fifths of the features are zero, nodes without any left out, and the others alike in
    size. Features of one category or text column share a gain, and their variances add up to 1: with a gain for each,
    rare categories and words would be the largest features."""
    width, num_nodes, num_stored = features.width, features.num_nodes, features.store.num_features
    if normalize == "none":
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    pilot = features.rows(range(1)).astype(np.float64)[0]
    sums, nodes_with_any = np.zeros((3, width)), 0
    parts = pairwise([*range(0, num_nodes, _CHUNK_ROWS), num_nodes])
    for part, part_nodes in engine.run(partial(_moments, features, pilot), parts):  # in order: always the same bits
        sums += part
        nodes_with_any += part_nodes
    mean = sums[0] / num_nodes
    deviation = np.sqrt(np.maximum(sums[1] / num_nodes - mean * mean, 0.0))
    shift = mean + pilot
    constant = deviation <= 1e-7 * np.abs(shift)
    gain = 1.0 / np.where(constant, 1.0, deviation)
    for column, span in features.store.columns.spans if features.store.columns is not None else ():
        if column.kind in ("category", "text"):
            gain[span] = 1.0 / max(np.sqrt(np.sum(deviation[span] ** 2)), 1e-7)
    mean_square = (deviation**2 + shift**2)[:num_stored]
    if normalize == "auto" and _are_words(sums[2, :num_stored], nodes_with_any, num_nodes * mean_square):
        normalize = "global"
    if normalize == "global":
        size = np.sqrt(np.mean(mean_square)) if num_stored else 0.0
        shift[:num_stored], gain[:num_stored] = 0.0, 1.0 / size if size > 0 else 1.0
    return shift.astype(np.float32), gain.astype(np.float32)


def _are_words(there: Array, nodes: int, squares: Array) -> bool:
    """By how many values of each feature are not zero, how many nodes have any, and the sums of their squares."""
    if not there.any() or there.sum() > (1 - _ZEROS) * nodes * len(there):
        return False
    sizes = np.sqrt(squares[there > 0] / there[there > 0])
    return bool(sizes.max() <= _ALIKE * np.median(sizes))
