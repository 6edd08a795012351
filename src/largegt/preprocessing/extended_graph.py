"""Extended: a store with new nodes behind it and new edges, as if it had been ingested with them. Nothing is copied.

Enters: a store, features of the new nodes, and edges by node number; the store's nodes are 0..N-1, new ones N and on.
Leaves: neighbour lists and feature rows of any of them. Cost: the new nodes and edges; a list that is asked for is
merged then.

Where the store has no directions, new edges go both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from largegt.data.csr import Rows, merge_rows
from largegt.data.pair_runs import offsets
from largegt.data.precision import decode, encode_degrees
from largegt.data.store import GraphStore
from largegt.types import OPPOSITE, Array, Direction

from .features import as_range
from .sampling.kernels import in_rows
from .sampling.neighbor_lists import MappedCSR, NeighborLists, index_type


class Extended:
    """A store, new nodes with these features (as the store stores its own), and new edges. Where the store has degrees
    for features, those of the new nodes do not count, and all are as the edges say."""

    def __init__(self, store: GraphStore, features: Array, sources: Array, targets: Array) -> None:
        self.store, self.new_features = store, features
        self.num_old, self.num_nodes = store.num_nodes, store.num_nodes + len(features)
        differ = sources != targets  # self loops are dropped, as at ingest
        self._pairs = np.stack([sources[differ], targets[differ]])
        self._lists: dict[Direction, OverlaidLists] = {}

    def lists(self, direction: Direction) -> OverlaidLists:
        """Each node's successors (`out`), predecessors (`in`) or either (`both`)."""
        direction = direction if self.store.directed else "both"
        if direction not in self._lists:
            for side in {direction, OPPOSITE[direction]}:
                old = MappedCSR(*self.store.csr(side))
                self._lists[side] = OverlaidLists(old, self._news(side, old), self.num_nodes)
            for side in {direction, OPPOSITE[direction]}:
                self._lists[side].opposite = self._lists[OPPOSITE[side]]
        return self._lists[direction]

    def _news(self, side: Direction, old: MappedCSR) -> _News:
        """The new neighbours of each node that has some: sorted, each once, and none that it had before."""
        there, back = self._pairs, self._pairs[::-1]
        rows, values = {"out": there, "in": back, "both": np.concatenate([there, back], axis=1)}[side]
        keys = np.unique(rows * self.num_nodes + values)
        rows, values = np.divmod(keys, self.num_nodes)
        known = np.zeros(len(rows), dtype=np.bool_)
        both_old = np.flatnonzero((rows < self.num_old) & (values < self.num_old))
        known[both_old] = in_rows(old.indptr, old.indices, rows[both_old], values[both_old])
        nodes, counts = np.unique(rows[~known], return_counts=True)
        return _News(nodes, offsets(counts), values[~known].astype(index_type(self.num_nodes)))

    def feature_rows(self, nodes: Array, degrees: bool) -> Array:
        """float32 rows of these nodes (sorted), with log(1 + degree) behind them if asked for."""
        dtype, first = self.store.feature_dtype, int(np.searchsorted(nodes, self.num_old))
        if self.store.features_are_degrees:
            counts = np.stack([self.lists(side).degrees(nodes) for side in ("out", "in")], axis=1)
            rows = decode(encode_degrees(counts, dtype), dtype)
        else:
            old = self.store.features[as_range(nodes[:first])] if first else self.new_features[:0]
            rows = decode(np.concatenate([old, self.new_features[nodes[first:] - self.num_old]]), dtype)
        if not degrees:
            return rows
        sides: tuple[Direction, ...] = ("out", "in") if self.store.directed else ("out",)
        counts = np.stack([self.lists(side).degrees(nodes) for side in sides], axis=1)
        return np.concatenate([rows, np.log1p(counts.astype(np.float64)).astype(np.float32)], axis=1)


@dataclass(frozen=True)
class _News:
    """Lists of some nodes."""

    nodes: Array
    indptr: Array
    indices: Array

    def places(self, nodes: Array) -> Array:
        """Where these nodes' lists are, -1 for those that have none."""
        if not len(self.nodes):
            return np.full(len(nodes), -1)
        at = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        return np.where(self.nodes[at] == nodes, at, -1)

    def degrees(self, nodes: Array) -> Array:
        at = self.places(nodes)
        return np.where(at >= 0, self.indptr[at + 1] - self.indptr[at], 0)

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        lists = MappedCSR(np.append(self.indptr, self.indptr[-1:]), self.indices)  # the last row is for those with none
        at = self.places(nodes)
        return lists.neighbors(np.where(at >= 0, at, len(self.nodes)))


class OverlaidLists(NeighborLists):
    """Mapped lists, new neighbours of some of their nodes, and lists of nodes behind the last."""

    opposite: OverlaidLists

    def __init__(self, old: MappedCSR, news: _News, num_nodes: int) -> None:
        self.old, self.news, self.num_nodes = old, news, num_nodes

    @property
    def reverse(self) -> OverlaidLists:
        return self.opposite

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        nodes = np.asarray(nodes, dtype=np.int64)
        is_old = nodes < self.old.num_nodes
        counts = np.zeros(len(nodes), dtype=np.int64)
        starts, indices = self.old.neighbors(nodes[is_old])
        counts[is_old] = np.diff(starts)
        new_indptr, new_indices = self.news.neighbors(nodes)
        if not len(new_indices):
            return offsets(counts), indices
        news, old = Rows(new_indptr, new_indices), Rows(offsets(counts), indices)
        lengths, merged, _ = merge_rows(news, old, 0, len(nodes))
        return offsets(lengths), merged

    def degrees(self, nodes: Array) -> Array:
        nodes = np.asarray(nodes, dtype=np.int64)
        is_old = nodes < self.old.num_nodes
        counts = self.news.degrees(nodes)
        counts[is_old] += self.old.degrees(nodes[is_old])
        return counts

    def at(self, nodes: Array, places: Array) -> Array:
        found = np.empty(len(nodes), dtype=np.int64)
        plain = (self.news.places(nodes) < 0) & (nodes < self.old.num_nodes)
        found[plain] = self.old.at(nodes[plain], places[plain])
        if not plain.all():
            found[~plain] = super().at(nodes[~plain], places[~plain])
        return found
