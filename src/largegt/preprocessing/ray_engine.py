"""The Ray engine: preparation as tasks on a cluster, with the same bytes as in one process.

Enters: the tasks of an Engine. Leaves: the results, in order. Cost: a task uses `memory` bytes; the driver holds about
two results per core until they are written, and some bytes per node, but no edges.

The store and its preparation must be visible to every machine under the same path or URL. A mapped array is sent as its
file name; other arrays are copied once to each machine's shared memory. If a machine dies, its tasks run again, and so
do tasks whose results it held.
"""

from __future__ import annotations

import mmap
import pickle
import socket
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from largegt.config.schema import LocalNodesConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, LargeGTError, first_line
from largegt.io.remote import publish
from largegt.io.remote_array import RemoteArray
from largegt.runtime.memory import format_bytes
from largegt.runtime.progress import Progress
from largegt.types import OPPOSITE, Array, Direction

from . import kernels
from .blocks import Finish, Neighbors, NeighborSums, block_sums, node_array
from .engine import MIN_TASK_NODES, Engine
from .sampling.local_nodes import refuse_weights
from .sampling.neighbor_lists import MappedCSR, NeighborLists

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise ConfigError("the Ray engine needs Ray: pip install 'largegt[ray]'") from None

TASK_BYTES = 1 << 30
"""The default memory of a task."""
_RETRIES = 20


def connect(address: str | None) -> None:
    """Connect to the cluster at `address`, or start one on this machine; does nothing if already connected."""
    if ray.is_initialized():
        return
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself retries for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({first_line(error)}): start one with ray start --head, "
            "or leave `address` out"
        ) from error


class RayEngine(Engine):
    """A Ray cluster: the connected one, the one at `address`, or a new one on this machine. Each task may use `memory`
    bytes. The neighbour lists are held in `shards` parts: by default one per machine, or one per four cores if that is
    more."""

    def __init__(
        self, address: str | None = None, shards: int | None = None, memory: int = TASK_BYTES,
        progress: Progress | None = None, neighbors: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(memory, None, progress, neighbors)
        connect(address)
        ray.util.register_serializer(np.memmap, serializer=_serialize_view, deserializer=_deserialize_view)
        self.num_shards, self.task_memory = shards, memory // 2
        largest = max((machine["Resources"].get("memory", 0) for machine in _machines()), default=0)
        if memory > largest:
            raise ConfigError(
                f"a task may hold {format_bytes(memory)}, but no machine of the cluster has more than "
                f"{format_bytes(largest)}: give a smaller `memory`"
            )

    @property
    def num_workers(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def check_positions(self, method: str) -> None:
        if method in ("node2vec", "laplacian"):
            raise ConfigError(
                f"{method} needs the whole graph in one process, which a Ray cluster does without: use "
                "`prepare.positional_encoding.method=random_projection`, or leave `engine` out"
            )

    def opened(self, store: GraphStore) -> GraphStore:
        return store.in_ranges()

    def lists(self, store: GraphStore, direction: Direction) -> GraphStore | NeighborLists:
        if self.neighbors is not None:
            return super().lists(store, direction)
        # a shard spends a third of the time that its clients spend
        return start_shards(store, direction, self.num_shards or max(len(_machines()), self.num_workers // 4))

    def local_nodes(self, store: GraphStore, nodes: Array, settings: LocalNodesConfig) -> Iterator[tuple[Array, Array]]:
        refuse_weights(settings.use_edge_weights is True)
        return super().local_nodes(store, nodes, settings)

    def mark_neighbors(self, neighbors: Neighbors, nodes: Array, marked: Array) -> None:
        size = max(1, -(-len(nodes) // (2 * self.num_workers)))
        parts = ((np.array(nodes[low : low + size]),) for low in range(0, len(nodes), size))
        for bits in self.run(partial(_mark_bits, neighbors), parts):
            marked |= np.unpackbits(bits, count=len(marked)).view(np.bool_)

    def sums(self, wanted: NeighborSums, finish: Finish, stage: str, start: int) -> None:
        """Each task sums a range of nodes over all sources, in blocks: a third of its memory is for the result, half
        for the sources."""
        ranges = self._task_ranges(len(wanted.nodes), wanted.width, start)
        task = partial(_sum, replace(wanted, nodes=range(0)), self.memory // 2)
        self.show(stage, start, len(wanted.nodes))
        parts = (node_array(wanted.nodes[low:high]) for low, high in ranges)
        results = self.run(task, ((part,) for part in parts), self.memory)
        for (low, high), rows in zip(ranges, results, strict=True):
            finish(low, high, np.array(rows))  # Ray results are read-only
            self.show(stage, high, len(wanted.nodes))

    def _task_ranges(self, num_nodes: int, width: int, start: int) -> list[tuple[int, int]]:
        """The fewest tasks that use the whole cluster, because each reads all sources."""
        max_rows = max(1, self.memory // (3 * 4 * width))
        fit = sum(int(machine["Resources"].get("memory", 0) // self.memory) for machine in _machines())
        size = min(max_rows, max(MIN_TASK_NODES, -(-(num_nodes - start) // min(2 * self.num_workers, max(1, fit)))))
        return [(low, min(num_nodes, low + size)) for low in range(start, num_nodes, size)]

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order. Enough calls are in flight to use all cores, within the memory
        of each machine."""
        shared = ray.put(task)
        remote = _remote_task.options(memory=memory) if memory else _remote_task
        waiting: deque[Any] = deque()
        try:
            for call in calls:
                waiting.append(remote.remote(shared, cloudpickle.dumps(call)))
                if len(waiting) >= 2 * self.num_workers:
                    yield _get_result(waiting.popleft())
            while waiting:
                yield _get_result(waiting.popleft())
        finally:
            for reference in waiting:
                ray.cancel(reference)


def _sum(wanted: NeighborSums, memory: int, nodes: Array) -> Array:
    rows = np.empty((len(nodes), wanted.width), dtype=np.float32)

    def finish(first: int, last: int, sums: Array) -> None:
        rows[first:last] = sums

    block_sums(replace(wanted, neighbors=wanted.neighbors.load_rows(nodes), nodes=nodes), finish, memory, 1)
    return rows


def _mark_bits(neighbors: Neighbors, nodes: Array) -> Array:
    """The neighbours of `nodes` (sorted), as one bit per node."""
    neighbors = neighbors.load_rows(nodes)
    marked = np.zeros(neighbors.num_nodes, dtype=np.bool_)
    kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)
    return np.packbits(marked)


def _machines() -> list[dict[str, Any]]:
    return [machine for machine in ray.nodes() if machine["Alive"]]


# serialisation of tasks


@ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")  # type: ignore[untyped-decorator]
def _remote_task(task: Callable[..., Any], call: bytes) -> Any:
    return task(*pickle.loads(call))


def _get_result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LargeGTError):  # without the worker's traceback
            raise type(error.cause)(str(error.cause)) from None
        raise


def _serialize_view(view: Any) -> Array | RemoteArray | tuple[str, str, int, tuple[int, ...]]:
    """A mapped array as a reference to its part of a file or of a bucket object."""
    if view.filename is None or not view.flags.c_contiguous or not view.size:
        return np.array(view)
    file, start = Path(view.filename).resolve(), np.frombuffer(view._mmap, dtype=np.uint8).ctypes.data
    offset = int(view.ctypes.data - start + view.offset - view.offset % mmap.ALLOCATIONGRANULARITY)
    if (url := publish(file)) is not None:
        return RemoteArray(url, view.dtype.str, view.shape, offset)
    return str(file), view.dtype.str, offset, view.shape


def _deserialize_view(reference: Any) -> Any:
    if not isinstance(reference, tuple):
        return reference
    file, dtype, offset, shape = reference
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


# neighbour lists on the cluster


class Shard:
    """The lists of nodes `first` to `last` along the given directions, copied from these ranges of the store's files. A
    Ray actor: if it dies, Ray restarts it elsewhere and repeats the calls."""

    def __init__(self, place: str, version: str, directions: Sequence[Direction], first: int, last: int) -> None:
        store = GraphStore.open(place, version).in_ranges()
        self.lists: dict[Direction, MappedCSR] = {}
        for direction in directions:
            indptr, indices = store.csr(direction)
            part = np.array(indptr[first : last + 1])
            self.lists[direction] = MappedCSR(part - part[0], np.array(indices[part[0] : part[-1]]), first=first)

    def call_lists(self, method: str, direction: Direction, *arrays: Array) -> Any:
        """`lists.method(*arrays)`."""
        return getattr(self.lists[direction], method)(*arrays)


class RayShards(NeighborLists):
    """The lists of all shards. `bounds[s]` is the first node of shard s. A request is one parallel call to each shard
    that holds part of it."""

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
        parts, _ = self._request("neighbors", nodes)
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

    def _in_order(self, method: str, nodes: Array, *more: Array) -> Array:
        """The results in the order of `nodes`."""
        parts, order = self._request(method, nodes, *more)
        out = np.empty(len(nodes), dtype=parts[0].dtype if parts else np.int64)
        out[order] = np.concatenate([out[:0], *parts])
        return out

    def _request(self, method: str, nodes: Array, *more: Array) -> tuple[list[Any], Array]:
        """One call to each shard that holds some of the nodes: the results, and the order of the nodes in them."""
        shard = (np.searchsorted(self.bounds, nodes, side="right") - 1).astype(np.int16)  # a short type sorts fast
        order = np.argsort(shard, kind="stable")
        cuts = np.searchsorted(shard[order], np.arange(len(self.shards) + 1))
        calls = []
        for handle, (low, high) in zip(self.shards, pairwise(cuts), strict=True):
            if low < high:
                arrays = [np.asarray(values)[order[low:high]] for values in (nodes, *more)]
                calls.append(handle.call_lists.remote(method, self.direction, *arrays))
        return ray.get(calls), order


def start_shards(store: GraphStore, direction: Direction, count: int) -> RayShards:
    """Start `count` actors on the cluster, with about the same number of bytes each."""
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
