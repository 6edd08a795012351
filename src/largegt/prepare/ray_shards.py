"""Neighbour lists spread over a Ray cluster: shard s holds the lists of a range of nodes, in the memory of one actor.

Enters: a store on a path that all machines see, or at a URL. Leaves: `RayShards`, which any worker of the cluster can
sample from. Cost: a shard holds its share of the edges (and 8 bytes per node); a request is one call per shard that
holds part of it, all of them under way at once.

An actor that dies with its machine is started again elsewhere, reads its range again, and is asked again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import ray

from ..data.store import GraphStore
from ..types import OPPOSITE, Array, Direction
from .neighbor_lists import MappedCSR, NeighborLists


class Shard:
    """The lists of nodes `first` to `last` along the given directions, copied from the store's files: only these ranges
    of them are read."""

    def __init__(self, place: str, version: str, directions: Sequence[Direction], first: int, last: int) -> None:
        store = GraphStore.open(place, version).in_ranges()
        self.lists: dict[Direction, MappedCSR] = {}
        for direction in directions:
            indptr, indices = store.csr(direction)
            mine = np.array(indptr[first : last + 1])
            self.lists[direction] = MappedCSR(mine - mine[0], np.array(indices[mine[0] : mine[-1]]), first=first)

    def answer(self, what: str, direction: Direction, *numbers: Array) -> Any:
        """`lists.what(*numbers)`."""
        return getattr(self.lists[direction], what)(*numbers)


class RayShards(NeighborLists):
    """The lists of all shards together. `bounds[s]` is the first node of shard s."""

    def __init__(
        self, shards: Sequence[Any], bounds: Array, direction: Direction, reverse: Direction, num_nodes: int
    ) -> None:
        self.shards, self.bounds, self.num_nodes = shards, bounds, num_nodes
        self.direction, self.opposite = direction, reverse

    @property
    def reverse(self) -> RayShards:
        if self.opposite == self.direction:
            return self
        return RayShards(self.shards, self.bounds, self.opposite, self.direction, self.num_nodes)

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        parts, _ = self._ask("neighbors", nodes)
        if not parts:
            return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32)
        counts = np.concatenate([np.diff(indptr) for indptr, _ in parts])
        return np.append(0, np.cumsum(counts)), np.concatenate([indices for _, indices in parts])

    def degrees(self, nodes: Array) -> Array:
        return self._in_order("degrees", nodes)

    def at(self, nodes: Array, places: Array) -> Array:
        return self._in_order("at", nodes, places)

    def has(self, nodes: Array, others: Array) -> Array:
        return self._in_order("has", nodes, others)

    def _in_order(self, what: str, nodes: Array, *more: Array) -> Array:
        """The answers, each where its question was."""
        parts, order = self._ask(what, nodes, *more)
        if not parts:
            return np.zeros(0, dtype=np.int64)
        out = np.empty(len(nodes), dtype=parts[0].dtype)
        out[order] = np.concatenate(parts)
        return out

    def _ask(self, what: str, nodes: Array, *more: Array) -> tuple[list[Any], Array]:
        """One call to each shard that holds some of the nodes; its answers, and whose they are."""
        shard = (np.searchsorted(self.bounds, nodes, side="right") - 1).astype(np.int16)  # a short type sorts fast
        order = np.argsort(shard, kind="stable")
        cuts = np.searchsorted(shard[order], np.arange(len(self.shards) + 1))
        calls = []
        for s, handle in enumerate(self.shards):
            mine = order[cuts[s] : cuts[s + 1]]
            if len(mine):
                numbers = [np.asarray(values)[mine] for values in (nodes, *more)]
                calls.append(handle.answer.remote(what, self.direction, *numbers))
        return ray.get(calls), order


def start_shards(store: GraphStore, direction: Direction, count: int) -> RayShards:
    """Start `count` actors over the cluster, with about the same number of bytes each."""
    forward: Direction = direction if store.directed else "out"
    backward: Direction = OPPOSITE[direction] if store.directed else "out"
    sides = sorted({forward, backward})
    indptrs = [store.csr(side)[0] for side in sides]

    def bytes_before(node: int) -> int:
        return sum(4 * int(indptr[node]) + 8 * node for indptr in indptrs)

    total = bytes_before(store.num_nodes)
    nodes = range(store.num_nodes + 1)
    cuts = {bisect_left(nodes, total * s // count, key=bytes_before) for s in range(count)}
    bounds = [*sorted(cuts - {store.num_nodes}), store.num_nodes]
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
    actor = ray.remote(**options)(Shard)
    place = store.place if store.folder.url else str(store.path.resolve())
    shards = [actor.remote(place, store.fingerprint, sides, first, last) for first, last in pairwise(bounds)]
    return RayShards(shards, np.array(bounds[:-1]), forward, backward, store.num_nodes)
