"""Features as tokens begin: those of the store, with log(1 + degree) behind them where asked for, and their scale.

Enters: a GraphStore. Leaves: float32 rows of the nodes asked for, and the shift and gain that standardise them.
Cost: a copy of the rows asked for at most; the scale is one pass over the features. Nothing is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from largegt.data.precision import decode
from largegt.data.store import GraphStore
from largegt.runtime.memory import rows_within
from largegt.types import Array, Direction

if TYPE_CHECKING:
    from largegt.runtime.engine import Engine

_CHUNK_ROWS = 1 << 14
_ZEROS, _ALIKE = 0.8, 20.0
"""Words: so large a share of zeros, and no feature whose values are so many times as large as those of others."""


class NodeFeatures:
    """Rows [n, d] of a store's features; with `degrees`, d is one more for an undirected graph (its degree) and two
    for a directed one (out, in)."""

    def __init__(self, store: GraphStore, degrees: bool = False) -> None:
        self.store, self.num_nodes = store, store.num_nodes
        sides: tuple[Direction, ...] = ("out", "in") if store.directed else ("out",)
        self._sides = {side: store.csr(side)[0] for side in sides} if degrees else {}
        self.width = store.num_features + len(self._sides)

    def rows(self, nodes: slice | Array) -> Array:
        """float32 [n, d] of a range of nodes or of sorted node numbers; may be a view of the file."""
        if not isinstance(nodes, slice):
            nodes = as_range(nodes)
        stored = decode(self.store.features[nodes], self.store.feature_dtype)
        if not self._sides:
            return stored
        rows = np.empty((len(stored), self.width), dtype=np.float32)
        rows[:, : stored.shape[1]] = stored
        for column, side in enumerate(self._sides, start=stored.shape[1]):
            rows[:, column] = np.log1p(degrees_of(self._sides[side], nodes).astype(np.float64))
        return rows


class EdgeMeans(NodeFeatures):
    """Rows [n, f] of what the edges of a node along a direction have for features, their mean; zeros where there are
    none."""

    def __init__(self, store: GraphStore, direction: Direction) -> None:
        super().__init__(store)
        self.direction, self.width = direction, store.num_edge_features

    def rows(self, nodes: slice | Array) -> Array:
        return self.store.edge_features(self.direction)[nodes if isinstance(nodes, slice) else as_range(nodes)]


@dataclass(frozen=True)
class _Moments:
    """Sums of x - pilot and of its square over a range of nodes; of each of the first `counted` features, how many
    values are not zero; and how many nodes have such a one."""

    features: NodeFeatures
    pilot: Array
    counted: int

    def __call__(self, start: int, stop: int) -> tuple[Array, Array, Array, int]:
        total, square = np.zeros_like(self.pilot), np.zeros_like(self.pilot)
        there, nodes_with_any = np.zeros(self.counted, dtype=np.int64), 0
        for first, last in pairwise([*range(start, stop, rows_within(8 * len(self.pilot))), stop]):
            rows = self.features.rows(slice(first, last))
            is_there = rows[:, : self.counted] != 0
            block = rows.astype(np.float64)
            block -= self.pilot
            squares = block * block
            block[0] += total  # row after row, so the bits do not depend on the pieces
            squares[0] += square
            total, square = block.sum(axis=0), squares.sum(axis=0)
            there += is_there.sum(axis=0)
            nodes_with_any += int(is_there.any(axis=1).sum())
        return total, square, there, nodes_with_any


def feature_scale(
    features: NodeFeatures, standardize: bool | Literal["whole", "auto"], engine: Engine
) -> tuple[Array, Array]:
    """`(shift, gain)` float32 [d]: (x - shift)·gain has mean 0 and variance 1; zeros and ones without it. `whole` is
    one gain for all features of the store, by their mean square, and no shift; degrees have their own as ever. `auto`
    is whole for words: four fifths of the features are zero, nodes without any left out, and the others alike in
    size. Features of one category or text column share a gain, and their variances add up to 1: with a gain for each,
    rare categories and words would be the largest features."""
    width, num_nodes = features.width, features.num_nodes
    if not standardize:
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    pilot = features.rows(slice(0, 1)).astype(np.float64)[0]
    counted = features.store.num_features if standardize == "auto" else 0
    total, square = np.zeros(width), np.zeros(width)
    there, nodes_with_any = np.zeros(counted, dtype=np.int64), 0
    bounds = [*range(0, num_nodes, _CHUNK_ROWS), num_nodes]
    for part, part_square, part_there, part_nodes in engine.run(_Moments(features, pilot, counted), pairwise(bounds)):
        total += part  # in order: always the same bits
        square += part_square
        there += part_there
        nodes_with_any += part_nodes
    mean = total / num_nodes
    deviation = np.sqrt(np.maximum(square / num_nodes - mean * mean, 0.0))
    shift = mean + pilot
    constant = deviation <= 1e-7 * np.abs(shift)
    gain = 1.0 / np.where(constant, 1.0, deviation)
    for column, span in features.store.columns.spans if features.store.columns is not None else ():
        if column.kind in ("category", "text"):
            gain[span] = 1.0 / max(np.sqrt(np.sum(deviation[span] ** 2)), 1e-7)
    mean_square = deviation**2 + shift**2
    squares = num_nodes * mean_square[:counted]
    if standardize == "whole" or (standardize == "auto" and _are_words(there, nodes_with_any, squares)):
        stored = slice(0, features.store.num_features)
        size = np.sqrt(np.mean(mean_square[stored])) if features.store.num_features else 0.0
        shift[stored], gain[stored] = 0.0, 1.0 / size if size > 0 else 1.0
    return shift.astype(np.float32), gain.astype(np.float32)


def _are_words(there: Array, nodes: int, squares: Array) -> bool:
    """By how many values of each feature are not zero, how many nodes have any, and the sums of their squares."""
    if not there.any() or there.sum() > (1 - _ZEROS) * nodes * len(there):
        return False
    sizes = np.sqrt(squares[there > 0] / there[there > 0])
    return bool(sizes.max() <= _ALIKE * np.median(sizes))


def as_range(rows: Array) -> slice | Array:
    """Sorted row numbers, as a slice where they lie side by side: a mapped file is then read from front to back."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def degrees_of(indptr: Array, nodes: slice | Array) -> Array:
    """Lengths of these rows of a CSR."""
    if isinstance(nodes, slice):
        return np.diff(indptr[nodes.start : nodes.stop + 1])
    return np.asarray(indptr[nodes + 1] - indptr[nodes])
