"""Engines run preparation: `Engine` on the threads of this process, RayEngine (ray_engine.py) on a cluster.

Enters: the tasks of a stage. Leaves: results in order, the same for every engine.
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
"""The maximal number of nodes sampled between two commits."""

MIN_TASK_NODES = 1 << 10
_MIN_FREE_BYTES = 1 << 25
"""The minimal memory for sums."""
_THREAD_BYTES = 1 << 21
"""Temporary memory per thread."""

MakeRows = Callable[[Array, int | None], Array]
"""`make(nodes, memory)`: the rows of `nodes`, computed within `memory` bytes; None does not limit it."""


class Engine:
    """Runs on the threads of this process. A stage may use `memory` bytes; `neighbors` is the URL of neighbour lists to
    sample from instead of the store."""

    task_memory: int | None = None
    """The memory limit of a row task besides its result, if any."""

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

    def free_memory(self, reserved: int = 0) -> int:
        """The rest of `memory` without `reserved` bytes, loaded kernels and the arrays of a stage."""
        release_freed()
        used = reserved + max(0, held_bytes() - self._held) + num_threads(self.threads) * _THREAD_BYTES
        return max(min(self.memory, _MIN_FREE_BYTES), self.memory - used)

    def check_positions(self, method: str) -> None:
        """Refuse a method that this engine does not support."""

    def opened(self, store: GraphStore) -> GraphStore:
        """The store as this engine reads it."""
        return store

    def lists(self, store: GraphStore, direction: Direction) -> GraphStore | NeighborLists:
        """The neighbour lists that LocalNodes samples from."""
        if self.neighbors is None:
            return store
        from .sampling.redis_lists import RedisLists

        return RedisLists(self.neighbors, direction, store.structure_fingerprint)

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order; each may use `memory` bytes if given."""
        return run_ahead(lambda call: task(*call), calls, self.threads)

    def local_nodes(self, store: GraphStore, nodes: Array, settings: LocalNodesConfig) -> Iterator[tuple[Array, Array]]:
        """LocalNodes of `nodes`, and which of them are neighbours, segment by segment."""
        if not len(nodes):
            return
        buffer_bytes = min(BUFFER_BYTES, self.memory)
        task = partial(
            sample, self.lists(store, settings.direction), settings=settings, threads=1, buffer_bytes=buffer_bytes
        )
        size = min(SEGMENT_NODES, max(MIN_TASK_NODES, len(nodes) // (4 * self.num_workers)))
        calls = ((np.array(nodes[low : low + size]),) for low in range(0, len(nodes), size))
        yield from self.run(task, calls, buffer_bytes)

    def mark_neighbors(self, neighbors: Neighbors, nodes: Array, marked: Array) -> None:
        """Set `marked` [N] at every neighbour of `nodes`."""
        kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)

    def rows(self, task: MakeRows, nodes: Array, width: int, start: int) -> Iterator[Array]:
        """Rows of `width` numbers that `task` computes for `nodes`, chunk by chunk, from nodes[start] on."""
        calls = (
            (np.array(nodes[low:high]), self.task_memory) for low, high in self._task_ranges(len(nodes), width, start)
        )
        return self.run(task, calls, self.memory)

    def sums(self, wanted: NeighborSums, finish: Finish, stage: str, start: int) -> None:
        """Sums over neighbours, as in `block_sums`."""
        block_sums(wanted, finish, self.free_memory(), self.threads, partial(self.show, stage), start)

    def _task_ranges(self, num_nodes: int, width: int, start: int) -> list[tuple[int, int]]:
        """The node range of each task."""
        size = min(SEGMENT_NODES, rows_within(width))
        return [(low, min(num_nodes, low + size)) for low in range(start, num_nodes, size)]
