"""The Ray engine: the work of preparation as tasks of a cluster, the same bytes as in one process.

Enters: what an Engine is asked for. Leaves: the results, in order. Cost: a task holds `memory` bytes; the driver holds
what comes back until it is written, about two results per core, and some bytes per node, never an edge.

The folders of the store and of its preparation must lie where every machine sees them: under the same path, or at a
URL. An array that is a view of a file travels as that file's name, another large one goes once to each machine's shared
memory. Lists for LocalNodes are held by shards (ray_shards.py); features, contexts and the edges that sums run over are
mapped, from front to back. At a URL they are read in ranges (ranged.py): of the edges a task takes its own rows, of
features and contexts block after block; what the driver has made for tasks to read goes to the URL first. A task that
dies with its machine is run again, and so is the one whose result was there.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import LocalNodesConfig
from ...errors import ConfigError, LargeGTError
from ...io.remote import publish
from ...io.remote_array import RemoteArray
from ...memory import format_bytes
from ...progress import Progress, silent
from ...ray_cluster import connect
from ...types import Array, Direction
from ..blocks import Finish, Neighbors, NeighborSums, block_sums, numbers
from ..fetched_nodes import BUFFER_BYTES
from ..local_nodes import near_of, packed, refuse_weights, sample
from ..neighbor_lists import NeighborLists
from .engine import SEGMENT_NODES, Engine, MakeRows, mark_bits

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise ConfigError("the Ray engine needs Ray: pip install 'largegt[ray]'") from None

if TYPE_CHECKING:
    from ...data.store import GraphStore

TASK_BYTES = 1 << 30
"""What a task may hold when nothing is asked for."""
_FEWEST_SEGMENT_NODES = 1 << 10
_LARGE_BYTES = 1 << 20
_RETRIES = 20


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
        self.num_shards = shards
        largest = max((machine["Resources"].get("memory", 0) for machine in _machines()), default=0)
        if memory > largest:
            raise ConfigError(
                f"a task may hold {format_bytes(memory)}, but no machine of the cluster has more than "
                f"{format_bytes(largest)}: give a smaller --memory"
            )

    def check_positions(self, method: str) -> None:
        if method in ("node2vec", "laplacian"):
            raise ConfigError(
                f"{method} needs the whole graph in one process, which --engine ray does without: use "
                "--set prepare.positions.method=projection, or leave --engine out"
            )

    def opened(self, store: GraphStore) -> GraphStore:
        return store.in_ranges()

    def lists(self, store: GraphStore, direction: Direction) -> NeighborLists:
        from ..ray_shards import start_shards

        if self.neighbors is not None:
            found = super().lists(store, direction)
            assert isinstance(found, NeighborLists)
            return found
        # answering takes a third of the time of asking
        return start_shards(store, direction, self.num_shards or max(len(_machines()), _num_cpus() // 4))

    def local_nodes(self, store: GraphStore, nodes: Array, settings: LocalNodesConfig) -> Iterator[tuple[Array, Array]]:
        refuse_weights(settings.weighted is True)
        if not len(nodes):
            return
        buffer_bytes = min(BUFFER_BYTES, self.memory)
        task = partial(_sample, self.lists(store, settings.direction), settings, buffer_bytes)
        size = min(SEGMENT_NODES, max(_FEWEST_SEGMENT_NODES, len(nodes) // (4 * _num_cpus())))
        calls = ((np.array(nodes[low : low + size]),) for low in range(0, len(nodes), size))
        yield from self.run(task, calls, buffer_bytes)

    def rows(self, task: MakeRows, nodes: Array, width: int, start: int) -> Iterator[Array]:
        ranges = self._ranges(len(nodes), width, start)
        return self.run(task, ((_some(nodes, low, high), self.memory // 2) for low, high in ranges), self.memory)

    def mark_neighbors(self, neighbors: Neighbors, nodes: Array, marked: Array) -> None:
        size = max(1, -(-len(nodes) // (2 * _num_cpus())))
        parts = ((np.array(nodes[low : low + size]),) for low in range(0, len(nodes), size))
        for bits in self.run(partial(mark_bits, neighbors), parts):
            marked |= np.unpackbits(bits, count=len(marked)).view(np.bool_)

    def sums(self, wanted: NeighborSums, finish: Finish, stage: str, start: int) -> None:
        """A task sums for a range of nodes, over all sources, block after block of them within its memory: a third of
        it is for the result, a half for what that is made from."""
        show = self.progress or silent
        ranges = self._ranges(len(wanted.nodes), wanted.width, start)
        task = partial(_sum, replace(wanted, nodes=range(0)), self.memory // 2)
        show(stage, start, len(wanted.nodes))
        made = self.run(task, ((_some(wanted.nodes, *bounds),) for bounds in ranges), self.memory)
        for (low, high), rows in zip(ranges, made, strict=True):
            finish(low, high, np.array(rows))  # a result of Ray's is read-only
            show(stage, high, len(wanted.nodes))

    def _ranges(self, num_nodes: int, width: int, start: int) -> list[tuple[int, int]]:
        """As few tasks as keep the cluster busy, because each reads all sources."""
        most = max(1, self.memory // (3 * 4 * width))
        fit = sum(int(machine["Resources"].get("memory", 0) // self.memory) for machine in _machines())
        size = min(most, max(_FEWEST_SEGMENT_NODES, -(-(num_nodes - start) // min(2 * _num_cpus(), max(1, fit)))))
        return [(low, min(num_nodes, low + size)) for low in range(start, num_nodes, size)]

    @property
    def num_workers(self) -> int:
        """Tasks that run at the same time."""
        return _num_cpus()

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order; as many under way as keep all cores busy, and no more on a
        machine than it has `memory` for."""
        packed, shared = _pack(task)
        packed = ray.put(packed)
        remote = _remote.options(memory=memory) if memory else _remote
        ahead = 2 * _num_cpus()
        waiting: deque[Any] = deque()
        left = iter(calls)
        try:
            while True:
                for call in left:
                    waiting.append(remote.remote(packed, cloudpickle.dumps(call), *shared))
                    if len(waiting) >= ahead:
                        break
                if not waiting:
                    return
                yield _result(waiting.popleft())
        finally:
            for reference in waiting:
                ray.cancel(reference)


def _sample(lists: NeighborLists, settings: LocalNodesConfig, buffer_bytes: int, nodes: Array) -> tuple[Array, Array]:
    local_nk = sample(lists, nodes, settings, 0, 1, buffer_bytes)
    return local_nk, packed(near_of(lists, nodes, local_nk, settings.direction, 1))


def _sum(wanted: NeighborSums, memory: int, nodes: Array | range) -> Array:
    rows = np.empty((len(nodes), wanted.width), dtype=np.float32)

    def finish(first: int, last: int, sums: Array) -> None:
        rows[first:last] = sums

    block_sums(replace(wanted, neighbors=wanted.neighbors.around(nodes), nodes=nodes), finish, memory, 1)
    return rows


def _some(nodes: Array | range, low: int, high: int) -> Array | range:
    return nodes[low:high] if isinstance(nodes, range) else numbers(nodes[low:high])


def _machines() -> list[dict[str, Any]]:
    return [machine for machine in ray.nodes() if machine["Alive"]]


def _num_cpus() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


# how work travels


@ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")  # type: ignore[untyped-decorator]
def _remote(task: bytes, call: bytes, *shared: Array) -> Any:
    return _unpack(task, shared)(*pickle.loads(call))


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LargeGTError):  # without the traceback of the worker
            raise type(error.cause)(str(error.cause)) from None
        raise


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles for workers: views of files go by name or by URL, large arrays apart, once to each machine."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.large: list[Array] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.memmap) and value.filename is not None and value.flags.c_contiguous and value.size:
            file = Path(value.filename).resolve()
            if (url := publish(file)) is not None:
                return RemoteArray, (url, value.dtype.str, value.shape, _offset(value))
            return _mapped, (str(file), value.dtype.str, _offset(value), value.shape)
        return super().reducer_override(value)

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not np.ndarray or value.nbytes < _LARGE_BYTES:
            return None
        for number, other in enumerate(self.large):
            if other is value:
                return number
        self.large.append(value)
        return len(self.large) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, shared: Sequence[Array]) -> None:
        super().__init__(stream)
        self.shared = shared

    def persistent_load(self, number: int) -> Array:
        return self.shared[number]


def _pack(value: Any) -> tuple[bytes, list[Any]]:
    """A value as bytes, and references to its large arrays."""
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(value)
    return stream.getvalue(), [ray.put(array) for array in packer.large]


def _unpack(packed: bytes, shared: Sequence[Array]) -> Any:
    return _Unpacker(io.BytesIO(packed), shared).load()


def _offset(view: Any) -> int:
    """Where in its file a mapped array begins, also when it is a part of the array that was mapped first."""
    start = np.frombuffer(view._mmap, dtype=np.uint8).ctypes.data
    return int(view.ctypes.data - start + view.offset - view.offset % mmap.ALLOCATIONGRANULARITY)


def _mapped(file: str, dtype: str, offset: int, shape: tuple[int, ...]) -> Array:
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)
