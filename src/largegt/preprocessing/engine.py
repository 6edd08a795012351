"""Where preparation runs: `Engine` is this process and its threads, RayEngine (ray_engine.py) a cluster.

Enters: what a stage wants computed for many nodes. Leaves: results in order, which do not depend on who made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from largegt.config.schema import LocalNodesConfig
from largegt.data.store import GraphStore
from largegt.preprocessing.sampling.remote_sampling import BUFFER_BYTES
from largegt.runtime.memory import held_bytes, release_freed, rows_within
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import num_threads, run_ahead
from largegt.types import Array, Direction

from . import kernels
from .blocks import Finish, Neighbors, NeighborSums, block_sums
from .sampling.local_nodes import sample
from .sampling.neighbor_lists import NeighborLists

SEGMENT_NODES = 1 << 15
"""Nodes whose rows are sampled between two commits, at most."""

FEWEST_NODES = 1 << 10
_LEAST_ROOM = 1 << 25
"""Bytes that sums have in any case."""
_THREAD_BYTES = 1 << 21
"""Of the pieces that a thread copies at once."""

MakeRows = Callable[[Array, int | None], Array]
"""`make(nodes, memory)`: their rows, made within `memory` bytes; as is best for mapped files when None."""


class Engine:
    """This process. `memory` is what a stage may hold; `neighbors` is the URL of lists to sample from, where that is
    not the store."""

    task_memory: int | None = None
    """What a task that makes rows may hold beside its result, where that is limited."""

    def __init__(
        self, memory: int, threads: int | None = None, progress: Progress | None = None, neighbors: str | None = None
    ) -> None:
        self.memory, self.threads, self.neighbors = memory, threads, neighbors
        self.show = progress or silent
        self._held = held_bytes()

    @property
    def num_workers(self) -> int:
        """Tasks that run at the same time."""
        return num_threads(self.threads)

    def room(self, aside: int = 0) -> int:
        """What is left of `memory` beside `aside` bytes: loaded kernels and arrays that a stage holds count too."""
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
        from .sampling.redis_lists import RedisLists

        return RedisLists(self.neighbors, direction, store.structure_fingerprint)

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order. `memory` is what each may hold, where that is asked for."""
        return run_ahead(lambda call: task(*call), calls, self.threads)

    def local_nodes(self, store: GraphStore, nodes: Array, settings: LocalNodesConfig) -> Iterator[tuple[Array, Array]]:
        """LocalNodes of `nodes` and which of them are neighbours, segment after segment."""
        if not len(nodes):
            return
        buffer_bytes = min(BUFFER_BYTES, self.memory)
        task = partial(
            sample, self.lists(store, settings.direction), settings=settings, threads=1, buffer_bytes=buffer_bytes
        )
        size = min(SEGMENT_NODES, max(FEWEST_NODES, len(nodes) // (4 * self.num_workers)))
        calls = ((np.array(nodes[low : low + size]),) for low in range(0, len(nodes), size))
        yield from self.run(task, calls, buffer_bytes)

    def mark_neighbors(self, neighbors: Neighbors, nodes: Array, marked: Array) -> None:
        """Set `marked` [N] at every neighbour of `nodes`."""
        kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)

    def rows(self, task: MakeRows, nodes: Array, width: int, start: int) -> Iterator[Array]:
        """Rows of `width` numbers that `task` makes for `nodes`, lot after lot, from nodes[start] on."""
        calls = ((np.array(nodes[low:high]), self.task_memory) for low, high in self._lots(len(nodes), width, start))
        return self.run(task, calls, self.memory)

    def sums(self, wanted: NeighborSums, finish: Finish, stage: str, start: int) -> None:
        """Sums over neighbours, as `block_sums` has them."""
        block_sums(wanted, finish, self.room(), self.threads, partial(self.show, stage), start)

    def _lots(self, num_nodes: int, width: int, start: int) -> list[tuple[int, int]]:
        """Ranges of nodes whose rows are made by one task."""
        size = min(SEGMENT_NODES, rows_within(width))
        return [(low, min(num_nodes, low + size)) for low in range(start, num_nodes, size)]
