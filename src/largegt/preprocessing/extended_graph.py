"""ExtendedGraph: a store with appended nodes and edges, as if ingested together, without copying the store.

Enters: a store, features of the new nodes, and edges by node number; the store's nodes are 0..N-1, new nodes follow.
Leaves: neighbour lists and feature rows of any node. Cost: the new nodes and edges; lists are merged on request.

In an undirected store new edges go both ways.
"""

from __future__ import annotations

import numpy as np

from largegt.data.pair_runs import offsets
from largegt.data.precision import decode, encode_degrees
from largegt.data.store import GraphStore
from largegt.preprocessing.kernels import in_rows
from largegt.types import OPPOSITE, Array, Direction

from .blocks import as_index
from .sampling.neighbor_lists import MappedCSR, NeighborLists, index_type


class ExtendedGraph:
    """A store, new nodes with these features (in the store's format), and new edges. If the store's features are
    degrees, the features of new nodes are ignored and all degrees count the new edges."""

    def __init__(self, store: GraphStore, features: Array, sources: Array, targets: Array) -> None:
        self.store, self.new_features = store, features
        self.num_old, self.num_nodes = store.num_nodes, store.num_nodes + len(features)
        is_edge = sources != targets  # drop self loops, as in ingest
        self._pairs = np.stack([sources[is_edge], targets[is_edge]])
        self._lists: dict[Direction, OverlaidLists] = {}

    def lists(self, direction: Direction) -> OverlaidLists:
        """Each node's successors (`out`), predecessors (`in`) or either (`both`)."""
        direction = direction if self.store.directed else "both"
        if direction not in self._lists:
            forward, backward = self._pairs, self._pairs[::-1]
            new_pairs = {"out": forward, "in": backward, "both": np.concatenate([forward, backward], axis=1)}
            for side in {direction, OPPOSITE[direction]}:
                old = MappedCSR(*self.store.csr(side))
                self._lists[side] = OverlaidLists(old, new_pairs[side], self.num_nodes)
            for side in {direction, OPPOSITE[direction]}:
                self._lists[side].opposite = self._lists[OPPOSITE[side]]
        return self._lists[direction]

    def feature_rows(self, nodes: Array, degrees: bool) -> Array:
        """float32 rows of these nodes (sorted), with log(1 + degree) appended if `degrees`."""
        dtype, first = self.store.feature_dtype, int(np.searchsorted(nodes, self.num_old))
        if self.store.features_are_degrees:
            rows = decode(encode_degrees(self._degrees(nodes, "out", "in"), dtype), dtype)
        else:
            old = self.store.features[as_index(nodes[:first])]
            rows = decode(np.concatenate([old, self.new_features[nodes[first:] - self.num_old]]), dtype)
        if not degrees:
            return rows
        counts = self._degrees(nodes, *(("out", "in") if self.store.directed else ("out",)))
        return np.concatenate([rows, np.log1p(counts.astype(np.float64)).astype(np.float32)], axis=1)

    def _degrees(self, nodes: Array, *sides: Direction) -> Array:
        return np.stack([self.lists(side).degrees(nodes) for side in sides], axis=1)


class OverlaidLists(NeighborLists):
    """Mapped lists, with new neighbours of their nodes (sorted, without duplicates) and the lists of new nodes."""

    opposite: OverlaidLists

    def __init__(self, old: MappedCSR, new_pairs: Array, num_nodes: int) -> None:
        self.old, self.num_nodes = old, num_nodes
        rows, values = np.divmod(np.unique(new_pairs[0] * num_nodes + new_pairs[1]), num_nodes)
        exists = np.zeros(len(rows), dtype=np.bool_)
        both_old = np.flatnonzero((rows < old.num_nodes) & (values < old.num_nodes))
        exists[both_old] = in_rows(old.indptr, old.indices, rows[both_old], values[both_old])
        self.rows, self.values = rows[~exists], values[~exists].astype(index_type(num_nodes))

    @property
    def reverse(self) -> OverlaidLists:
        return self.opposite

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        nodes = np.asarray(nodes, dtype=np.int64)
        is_old, counts = nodes < self.old.num_nodes, np.zeros((2, len(nodes)), dtype=np.int64)
        indptr, indices = self.old.neighbors(nodes[is_old])
        counts[0, is_old] = np.diff(indptr)
        counts[1] = self._num_new(nodes)
        starts = np.searchsorted(self.rows, nodes) - np.cumsum(counts[1]) + counts[1]
        values = np.concatenate([indices, self.values[np.repeat(starts, counts[1]) + np.arange(counts[1].sum())]])
        owner = np.repeat(np.tile(np.arange(len(nodes)), 2), counts.reshape(-1))
        return offsets(counts.sum(axis=0)), values[np.lexsort((values, owner))]

    def degrees(self, nodes: Array) -> Array:
        nodes = np.asarray(nodes, dtype=np.int64)
        is_old, counts = nodes < self.old.num_nodes, self._num_new(nodes)
        counts[is_old] += self.old.degrees(nodes[is_old])
        return counts

    def _num_new(self, nodes: Array) -> Array:
        return np.asarray(np.searchsorted(self.rows, nodes, side="right") - np.searchsorted(self.rows, nodes))
