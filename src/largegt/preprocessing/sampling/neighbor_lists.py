"""Neighbour lists behind one small interface, for LocalNodes over any storage of the edges.

Enters: a request for many nodes at once. Leaves: plain arrays. Cost: one message per request to each server with a part
of the result, for any number of nodes. Backends keep no state between requests.

- `MappedCSR`: the files of a store, or any CSR in memory;
- `RedisLists` (redis_lists.py): a key-value store;
- `RayShards` (ray_engine.py): ranges of nodes, each held by one worker of a Ray cluster.

A list is sorted, without duplicates and without the node itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from largegt.data.pair_runs import index_dtype
from largegt.preprocessing import kernels
from largegt.types import Array, Direction

if TYPE_CHECKING:
    from largegt.data.store import GraphStore


_ENTRIES_AT_ONCE = 1 << 22
"""The maximal number of list entries to search at once, or those of one node."""


class NeighborLists(ABC):
    """The lists of all nodes along one direction. A backend implements `neighbors`; overriding the other methods avoids
    transferring lists."""

    num_nodes: int

    @abstractmethod
    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        """`(indptr, indices)` of the lists of `nodes` (sorted), concatenated; int32 if node numbers fit."""

    @property
    @abstractmethod
    def reverse(self) -> NeighborLists:
        """The lists of the transposed graph."""

    def degrees(self, nodes: Array) -> Array:
        """int64: the list lengths of `nodes` (sorted)."""
        return np.diff(self.neighbors(nodes)[0])

    def at(self, nodes: Array, places: Array) -> Array:
        """The neighbour places[n] of nodes[n]; nodes in any order, with repetition."""
        distinct, row = np.unique(nodes, return_inverse=True)
        indptr, indices = self.neighbors(distinct)
        return np.asarray(indices[indptr[row] + places])

    def has(self, nodes: Array, others: Array) -> Array:
        """Boolean: whether others[n] is in the list of nodes[n]; nodes in any order, with repetition."""
        distinct, row = np.unique(nodes, return_inverse=True)
        others, found = np.asarray(others, dtype=np.int64), np.zeros(len(nodes), dtype=np.bool_)
        for first, last in split_by_size(self.degrees(distinct), _ENTRIES_AT_ONCE):
            some = np.flatnonzero((row >= first) & (row < last))
            found[some] = kernels.in_rows(*self.neighbors(distinct[first:last]), row[some] - first, others[some])
        return found


class MappedCSR(NeighborLists):
    """The lists of nodes `first`, `first + 1`, … as a CSR, in memory or in mapped files."""

    def __init__(self, indptr: Array, indices: Array, reverse: MappedCSR | None = None, first: int = 0) -> None:
        self.indptr, self.indices, self.first = indptr, indices, first
        self.num_nodes = len(indptr) - 1
        self._reverse = reverse

    @classmethod
    def of_store(cls, store: GraphStore, direction: Direction) -> MappedCSR:
        is_symmetric = direction == "both" or not store.directed
        return cls(*store.csr(direction), None if is_symmetric else cls(*store.reverse_csr(direction)))

    @property
    def reverse(self) -> MappedCSR:
        return self if self._reverse is None else self._reverse

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        rows = self._rows(nodes)
        indptr = np.append(0, np.cumsum(self.indptr[rows + 1] - self.indptr[rows]))
        indices = np.empty(indptr[-1], dtype=self.indices.dtype)
        kernels.copy_rows(self.indptr, self.indices, rows, indptr, indices)
        return indptr, indices

    def degrees(self, nodes: Array) -> Array:
        rows = self._rows(nodes)
        return np.asarray(self.indptr[rows + 1] - self.indptr[rows])

    def at(self, nodes: Array, places: Array) -> Array:
        return np.asarray(self.indices[self.indptr[self._rows(nodes)] + places])

    def has(self, nodes: Array, others: Array) -> Array:
        rows, wanted = self._rows(nodes), np.asarray(others, dtype=np.int64)
        return np.asarray(kernels.in_rows(self.indptr, self.indices, rows, wanted))

    def _rows(self, nodes: Array) -> Array:
        return np.asarray(nodes, dtype=np.int64) - self.first


def split_by_size(sizes: Array, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges whose sizes sum to at most `limit`, or of a single member."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield first, last
        first = last


def index_type(num_nodes: int) -> np.dtype[Any]:
    """The dtype of neighbour lists."""
    return np.dtype(index_dtype(num_nodes))
