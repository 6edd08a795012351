"""Node features: those of the store, optionally with log(1 + degree), and their normalisation.

Enters: a GraphStore. Leaves: float32 rows of the requested nodes, and the shift and gain that normalise them. Cost: at
most a copy of the requested rows; the scale is one pass over the features.
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

from .blocks import as_index, degrees_of

if TYPE_CHECKING:
    from .engine import Engine

_CHUNK_ROWS = 1 << 14
_MIN_ZEROS, _MAX_SIZE_RATIO = 0.8, 20.0
"""Bag-of-words features: the minimal fraction of zeros, and the maximal ratio of a feature's size to the median."""


class NodeFeatures:
    """Rows [n, d] of a store's features; `degrees` adds one column for an undirected graph and two (out, in) for a
    directed one."""

    def __init__(self, store: GraphStore, degrees: bool = False) -> None:
        self.store, self.num_nodes = store, store.num_nodes
        sides: tuple[Direction, ...] = ("out", "in") if store.directed else ("out",)
        self._indptrs = [store.csr(side)[0] for side in sides] if degrees else []
        self.width = store.num_features + len(self._indptrs)

    def rows(self, nodes: Array | range) -> Array:
        """float32 [n, d] of sorted nodes; possibly a view of the file."""
        stored = decode(self.store.features[as_index(nodes)], self.store.feature_dtype)
        if not self._indptrs:
            return stored
        counts = np.stack([degrees_of(indptr, nodes) for indptr in self._indptrs], axis=1)
        return np.concatenate([stored, np.log1p(counts.astype(np.float64)).astype(np.float32)], axis=1)


class EdgeMeans(NodeFeatures):
    """Rows [n, f] of the mean edge features of each node along a direction; zeros for a node without edges."""

    def __init__(self, store: GraphStore, direction: Direction) -> None:
        super().__init__(store)
        self.direction, self.width = direction, store.num_edge_features

    def rows(self, nodes: Array | range) -> Array:
        return self.store.edge_features(self.direction)[as_index(nodes)]


def _moments(features: NodeFeatures, pilot: Array, start: int, stop: int) -> tuple[Array, int]:
    """float64 [3, d] over a range of nodes: sums of x - pilot, sums of its square, counts of nonzero values; and the
    number of nodes with a nonzero stored feature."""
    sums, nodes_with_any = np.zeros((3, features.width)), 0
    for low, high in pairwise([*range(start, stop, rows_within(8 * features.width)), stop]):
        rows = features.rows(range(low, high))
        away = rows - pilot
        sums += away.sum(axis=0), (away * away).sum(axis=0), np.count_nonzero(rows, axis=0)
        nodes_with_any += int(np.count_nonzero(rows[:, : features.store.num_features].any(axis=1)))
    return sums, nodes_with_any


def feature_scale(features: NodeFeatures, normalize: Normalization, engine: Engine) -> tuple[Array, Array]:
    """`(shift, gain)` float32 [d]: (x - shift)·gain has mean 0 and variance 1; `none` is zeros and ones. `global` uses
    one gain, from the mean square, for all stored features and no shift; degrees keep their own scale. `auto` is global
    for bag-of-words features: four fifths of the values are zero, not counting empty nodes, and the others similar in
    size. The features of one category or text column share a gain so that their variances add up to 1: separate gains
    would make rare categories and words the largest features."""
    width, num_nodes, num_stored = features.width, features.num_nodes, features.store.num_features
    if normalize == "none":
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    pilot = features.rows(range(1)).astype(np.float64)[0]
    sums, nodes_with_any = np.zeros((3, width)), 0
    parts = pairwise([*range(0, num_nodes, _CHUNK_ROWS), num_nodes])
    for part, part_nodes in engine.run(
        partial(_moments, features, pilot), parts
    ):  # results in order: deterministic sums
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
    if normalize == "auto" and _are_bag_of_words(sums[2, :num_stored], nodes_with_any, num_nodes * mean_square):
        normalize = "global"
    if normalize == "global":
        size = np.sqrt(np.mean(mean_square)) if num_stored else 0.0
        shift[:num_stored], gain[:num_stored] = 0.0, 1.0 / size if size > 0 else 1.0
    return shift.astype(np.float32), gain.astype(np.float32)


def _are_bag_of_words(nonzero: Array, nodes: int, squares: Array) -> bool:
    """From the nonzero values per feature, the number of nodes with any, and the sums of squares."""
    if not nonzero.any() or nonzero.sum() > (1 - _MIN_ZEROS) * nodes * len(nonzero):
        return False
    sizes = np.sqrt(squares[nonzero > 0] / nonzero[nonzero > 0])
    return bool(sizes.max() <= _MAX_SIZE_RATIO * np.median(sizes))
