"""The Ray engine: the work of preparation as tasks of a cluster, the same bytes as in one process.

Enters: what an Engine is asked for. Leaves: the results, in order. Cost: a task holds `memory` bytes; the driver holds
about two results per core until they are written, and some bytes per node, never an edge.

The store and its preparation must lie where every machine sees them: under the same path, or at a URL. A view of a file
travels as the file's name; other arrays go once to each machine's shared memory. A task that dies with its machine runs
again, and so does the one whose result was there.
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
from .blocks import Finish, Neighbors, NeighborSums, block_sums, numbers
from .engine import FEWEST_NODES, Engine
from .sampling.local_nodes import refuse_weights
from .sampling.neighbor_lists import MappedCSR, NeighborLists

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise ConfigError("the Ray engine needs Ray: pip install 'largegt[ray]'") from None

TASK_BYTES = 1 << 30
"""What a task may hold when nothing is asked for."""
_RETRIES = 20


def connect(address: str | None) -> None:
    """Join the cluster at `address`, or start one on this machine; nothing where this process is connected already."""
    if ray.is_initialized():
        return
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself would try for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({first_line(error)}): start one with ray start --head, "
            "or leave `address` out"
        ) from error


class RayEngine(Engine):
    """A Ray cluster: the one that this process is connected to, the one at `address`, or a new one on this machine.
    `memory` is what each task may hold, `shards` how many parts the lists are held in: by default one per machine, or
    one per four cores where that is more."""

    def __init__(
        self, address: str | None = None, shards: int | None = None, memory: int = TASK_BYTES,
        progress: Progress | None = None, neighbors: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(memory, None, progress, neighbors)
        connect(address)
        ray.util.register_serializer(np.memmap, serializer=_described, deserializer=_mapped)
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
        # answering takes a third of the time of asking
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
        """A task sums for a range of nodes, over all sources, block after block of them within its memory: a third of
        it is for the result, a half for what that is made from."""
        ranges = self._lots(len(wanted.nodes), wanted.width, start)
        task = partial(_sum, replace(wanted, nodes=range(0)), self.memory // 2)
        self.show(stage, start, len(wanted.nodes))
        parts = (numbers(wanted.nodes[low:high]) for low, high in ranges)
        made = self.run(task, ((part,) for part in parts), self.memory)
        for (low, high), rows in zip(ranges, made, strict=True):
            finish(low, high, np.array(rows))  # a result of Ray's is read-only
            self.show(stage, high, len(wanted.nodes))

    def _lots(self, num_nodes: int, width: int, start: int) -> list[tuple[int, int]]:
        """As few tasks as keep the cluster busy, because each reads all sources."""
        most = max(1, self.memory // (3 * 4 * width))
        fit = sum(int(machine["Resources"].get("memory", 0) // self.memory) for machine in _machines())
        size = min(most, max(FEWEST_NODES, -(-(num_nodes - start) // min(2 * self.num_workers, max(1, fit)))))
        return [(low, min(num_nodes, low + size)) for low in range(start, num_nodes, size)]

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order; as many under way as keep all cores busy, and no more on a
        machine than it has `memory` for."""
        shared = ray.put(task)
        remote = _remote.options(memory=memory) if memory else _remote
        waiting: deque[Any] = deque()
        try:
            for call in calls:
                waiting.append(remote.remote(shared, cloudpickle.dumps(call)))
                if len(waiting) >= 2 * self.num_workers:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for reference in waiting:
                ray.cancel(reference)


def _sum(wanted: NeighborSums, memory: int, nodes: Array) -> Array:
    rows = np.empty((len(nodes), wanted.width), dtype=np.float32)

    def finish(first: int, last: int, sums: Array) -> None:
        rows[first:last] = sums

    block_sums(replace(wanted, neighbors=wanted.neighbors.around(nodes), nodes=nodes), finish, memory, 1)
    return rows


def _mark_bits(neighbors: Neighbors, nodes: Array) -> Array:
    """Every neighbour of `nodes`, which are sorted, as one bit per node."""
    neighbors = neighbors.around(nodes)
    marked = np.zeros(neighbors.num_nodes, dtype=np.bool_)
    kernels.mark_neighbors(neighbors.indptr, neighbors.indices, nodes, marked)
    return np.packbits(marked)


def _machines() -> list[dict[str, Any]]:
    return [machine for machine in ray.nodes() if machine["Alive"]]


# how work travels


@ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")  # type: ignore[untyped-decorator]
def _remote(task: Callable[..., Any], call: bytes) -> Any:
    return task(*pickle.loads(call))


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LargeGTError):  # without the traceback of the worker
            raise type(error.cause)(str(error.cause)) from None
        raise


def _described(view: Any) -> Array | RemoteArray | tuple[str, str, int, tuple[int, ...]]:
    """A mapped array as the part of a file, or of an object in a bucket, that it shows."""
    if view.filename is None or not view.flags.c_contiguous or not view.size:
        return np.array(view)
    file, start = Path(view.filename).resolve(), np.frombuffer(view._mmap, dtype=np.uint8).ctypes.data
    offset = int(view.ctypes.data - start + view.offset - view.offset % mmap.ALLOCATIONGRANULARITY)
    if (url := publish(file)) is not None:
        return RemoteArray(url, view.dtype.str, view.shape, offset)
    return str(file), view.dtype.str, offset, view.shape


def _mapped(described: Any) -> Any:
    if not isinstance(described, tuple):
        return described
    file, dtype, offset, shape = described
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


# neighbour lists, spread over the cluster


class Shard:
    """The lists of nodes `first` to `last` along the given directions, copied from the store's files: only these ranges
    of them are read. An actor: one that dies is started again elsewhere, and asked again."""

    def __init__(self, place: str, version: str, directions: Sequence[Direction], first: int, last: int) -> None:
        store = GraphStore.open(place, version).in_ranges()
        self.lists: dict[Direction, MappedCSR] = {}
        for direction in directions:
            indptr, indices = store.csr(direction)
            mine = np.array(indptr[first : last + 1])
            self.lists[direction] = MappedCSR(mine - mine[0], np.array(indices[mine[0] : mine[-1]]), first=first)

    def answer(self, what: str, direction: Direction, *arrays: Array) -> Any:
        """`lists.what(*arrays)`."""
        return getattr(self.lists[direction], what)(*arrays)


class RayShards(NeighborLists):
    """The lists of all shards together. `bounds[s]` is the first node of shard s. A request is one call to each shard
    that holds part of it, all of them under way at once."""

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
        out = np.empty(len(nodes), dtype=parts[0].dtype if parts else np.int64)
        out[order] = np.concatenate([out[:0], *parts])
        return out

    def _ask(self, what: str, nodes: Array, *more: Array) -> tuple[list[Any], Array]:
        """One call to each shard that holds some of the nodes; its answers, and whose they are."""
        shard = (np.searchsorted(self.bounds, nodes, side="right") - 1).astype(np.int16)  # a short type sorts fast
        order = np.argsort(shard, kind="stable")
        cuts = np.searchsorted(shard[order], np.arange(len(self.shards) + 1))
        calls = []
        for handle, (low, high) in zip(self.shards, pairwise(cuts), strict=True):
            if low < high:
                arrays = [np.asarray(values)[order[low:high]] for values in (nodes, *more)]
                calls.append(handle.answer.remote(what, self.direction, *arrays))
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
