"""Where preparation runs. `Engine` is this process and its threads; RayEngine (ray.py) a cluster.

A stage asks its engine for the work that grows with the graph, and writes what comes back. Results come in order and do
not depend on who made them, so every engine leaves the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import LocalNodesConfig
from ...memory import held_bytes, release_freed, rows_within
from ...progress import Progress, silent
from ...threads import num_threads, run_ahead
from ...types import Array, Direction
from .. import kernels
from ..blocks import Finish, Neighbors, NeighborSums, block_sums
from ..local_nodes import near_of, packed, sample
from ..neighbor_lists import NeighborLists

if TYPE_CHECKING:
    from ...data.store import GraphStore

SEGMENT_NODES = 1 << 15
"""Nodes whose rows are sampled between two commits."""

_LEAST_ROOM = 1 << 25
"""Bytes that sums have in any case."""
_THREAD_BYTES = 1 << 21
"""Of the pieces that a thread copies at once."""

MakeRows = Callable[[Array, int | None], Array]
"""`make(nodes, memory)`: their rows, made within `memory` bytes; as is best for mapped files when None."""


class Engine:
    """This process. `memory` is what a stage may hold; `neighbors` is the URL of lists to sample from, where that is
    not the store."""

    def __init__(
        self, memory: int, threads: int | None = None, progress: Progress | None = None, neighbors: str | None = None
    ) -> None:
        self.memory, self.threads, self.progress, self.neighbors = memory, threads, progress, neighbors
        self.wait = True
        """Whether a stage that another process is making is waited for."""
        self._held = held_bytes()

    def room(self, aside: int = 0) -> int:
        """What is left of `memory`: kernels that were loaded and arrays that a stage holds meanwhile count too, and
        `aside` bytes that it is going to hold."""
        release_freed()
        taken = aside + max(0, held_bytes() - self._held) + num_threads(self.threads) * _THREAD_BYTES
        return max(min(self.memory, _LEAST_ROOM), self.memory - taken)

    def check_positions(self, method: str) -> None:
        """Refuse a method that this engine does not run."""

    def opened(self, store: GraphStore) -> GraphStore:
        """The store as this engine reads it."""
        return store

    def lists(self, store: GraphStore, direction: Direction) -> GraphStore | NeighborLists:
        """What LocalNodes samples from."""
        if self.neighbors is None:
            return store
        from ..redis_lists import RedisLists

        return RedisLists(self.neighbors, direction, store.structure_fingerprint)

    def local_nodes(self, store: GraphStore, nodes: Array, settings: LocalNodesConfig) -> Iterator[tuple[Array, Array]]:
        """LocalNodes of `nodes` and, packed, which of them are neighbours, segment after segment."""
        lists = self.lists(store, settings.direction)
        for start in range(0, len(nodes), SEGMENT_NODES):
            some = nodes[start : start + SEGMENT_NODES]
            local_nk = sample(lists, some, settings, 0, self.threads)
            yield local_nk, packed(near_of(lists, some, local_nk, settings.direction, self.threads))

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order. `memory` is what each may hold, where that is asked for."""
        return run_ahead(lambda call: task(*call), calls, self.threads)

    def rows(self, task: MakeRows, nodes: Array, width: int, start: int) -> Iterator[Array]:
        """Rows of `width` numbers that `task` makes for `nodes`, lot after lot, from nodes[start] on."""
        size = min(SEGMENT_NODES, rows_within(width))
        return self.run(task, ((nodes[low : low + size], None) for low in range(start, len(nodes), size)))

    def mark_neighbors(self, neighbors: Neighbors, nodes: Array, marked: Array) -> None:
        """Set `marked` [N] at every neighbour of `nodes`."""
        kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)

    def sums(self, wanted: NeighborSums, finish: Finish, stage: str, start: int) -> None:
        """Sums over neighbours, as `block_sums` has them."""
        show = partial(self.progress or silent, stage)
        block_sums(wanted, finish, self.room(), self.threads, show, start)


def mark_bits(neighbors: Neighbors, nodes: Array) -> Array:
    """Every neighbour of `nodes`, which are sorted, as one bit per node."""
    neighbors = neighbors.around(nodes)
    marked = np.zeros(neighbors.num_nodes, dtype=np.bool_)
    kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)
    return np.packbits(marked)
