"""Estimate: what a preparation will take before it runs: bytes on disk, memory, rough time.

Enters: a GraphStore, a PrepareConfig and the memory to be used. Leaves: an Estimate, one line per stage. Cost: a few
seconds: LocalNodes of some thousand nodes are really drawn, and some thousand rows really summed, to see how fast this
machine is and how much the samples of different nodes overlap. Sizes are exact but for the number of token rows of a
`sampled` preparation, which is extrapolated; time is rough, and assumes a disk of the speeds below.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..config import PrepareConfig
from ..data.labels import num_label_columns
from ..data.pair_runs import index_dtype
from ..data.store import GraphStore
from ..memory import held_bytes, memory_budget, release_freed
from ..threads import num_threads
from ..types import Array
from .blocks import Neighbors, block_bytes, block_sums, plan
from .cache_key import directions_of, is_prepared, nodes_to_prepare, settled
from .engines.engine import SEGMENT_NODES, Engine
from .features import NodeFeatures
from .label_contexts import num_count_columns
from .laplacian import STEPS_PER_VECTOR, laplacian_bytes, num_lanczos_vectors
from .positions import node2vec_bytes
from .prepared import sample
from .surroundings import counts_dtype

_SAMPLE_NODES = 1 << 14
_SUM_NODES = 1 << 13
_SUM_SOURCES = 1 << 18
_SUM_BYTES = 1 << 28
_FIXED_BYTES = 232 << 20
"""Python, the libraries, kernels that a first run compiles (warm, they take 100 MiB less), and the least for blocks."""
_READ_BYTES_PER_S, _WRITE_BYTES_PER_S = 1e9, 4e8
_NODE2VEC_CORE_S = 1.2e-3 / (10 * 40 * 20 * 64 * 2)
"""Core seconds per node and walk, step, window place, dimension and side (walk or negatives), measured on a CPU."""
_LANCZOS_EDGE_CORE_S, _LANCZOS_NODE_S = 8e-9, 2e-9
"""Of a step: core seconds per edge, and seconds per node and vector that the new one is made orthogonal to."""
_SEARCH_CORE_S = 1e-7
"""Core seconds to look for a local node among the neighbours."""


@dataclass(frozen=True)
class StageEstimate:
    """One stage."""

    name: str
    disk_bytes: int
    """What it leaves."""
    scratch_bytes: int
    """What it needs on disk besides, while it runs."""
    memory_bytes: int
    """What the process holds at most."""
    elapsed_s: float


@dataclass(frozen=True)
class Estimate:
    """A whole preparation."""

    num_nodes: int
    """Nodes that get a row."""
    token_rows: int
    stages: tuple[StageEstimate, ...]
    disk_bytes: int
    peak_disk_bytes: int
    """Kept and scratch together, at the worst moment."""
    free_disk_bytes: int
    memory_bytes: int
    elapsed_s: float
    already_prepared: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    store: GraphStore, config: PrepareConfig, memory: str | int | None = None, threads: int | None = None
) -> Estimate:
    """What `prepare(store, config, memory=memory)` will take."""
    config = settled(store, config)
    nodes = nodes_to_prepare(store, config)
    engine = Engine(memory_budget(memory, least_memory(store, config, len(nodes))), threads)
    draw_s, token_rows = _try_local_nodes(store, nodes, config, threads)
    measured = _Speed(store, config, threads)
    release_freed()
    room, held = engine.room, held_bytes()  # with the kernels loaded
    own, rings, labels = (size * store.num_nodes for size in _node_bytes(store, config, len(nodes)))
    stages = (
        _local_nodes(store, nodes, config, draw_s, token_rows, held + own),
        _tokens(store, config, token_rows, room(rings), measured, held + rings),
        _positions(store, nodes, config, room(), measured, held),
        *_label_contexts(store, nodes, config, room(labels), measured, held + labels),
        *_surroundings(store, nodes, config, token_rows, room(labels), measured, held + labels),
    )
    kept = peak = 0
    for stage in stages:
        peak = max(peak, kept + stage.disk_bytes + stage.scratch_bytes)
        kept += stage.disk_bytes
    return Estimate(
        num_nodes=len(nodes),
        token_rows=token_rows,
        stages=stages,
        disk_bytes=kept,
        peak_disk_bytes=peak,
        free_disk_bytes=shutil.disk_usage(store.path).free,
        memory_bytes=max(stage.memory_bytes for stage in stages),
        elapsed_s=sum(stage.elapsed_s for stage in stages) + kept / _READ_BYTES_PER_S,
        already_prepared=is_prepared(store, config),
    )


def least_memory(store: GraphStore, config: PrepareConfig, num_rows: int) -> int:
    """The smallest `--memory` that a preparation of `num_rows` nodes keeps, of settled settings."""
    return _FIXED_BYTES + max(_node_bytes(store, config, num_rows)) * store.num_nodes


def _node_bytes(store: GraphStore, config: PrepareConfig, num_rows: int) -> tuple[int, int, int]:
    """Bytes per node that LocalNodes, context features and labels hold, beside their blocks."""
    item = np.dtype(index_dtype(store.num_nodes)).itemsize
    rings = config.tokens.hops * len(directions_of(config)) if num_rows < store.num_nodes else 0
    return 1 + 2 * item, 1 + item * (1 + rings), 22 if store.task == "regression" else 1


def extrapolated_union(half: int, whole: int, drawn: int, wanted: int, most: int) -> int:
    """Distinct nodes in `wanted` samples, when half of `drawn` samples held `half` and all of them `whole`: along
    u(m) = U m / (m + h), which bends as real unions do."""
    bend = 1 / half - 1 / whole
    inverse = max(0.0, 1 / whole - bend) + bend * drawn / wanted
    return int(min(most, max(whole, 1 / inverse if inverse > 0 else most)))


def _try_local_nodes(store: GraphStore, nodes: Array, config: PrepareConfig, threads: int | None) -> tuple[float, int]:
    """(seconds that LocalNodes of all nodes will take, token rows)."""
    if config.local_nodes.k == 1:
        return 0.0, len(nodes) if config.tokens.nodes == "sampled" else store.num_nodes
    tried = nodes[np.linspace(0, len(nodes) - 1, min(len(nodes), _SAMPLE_NODES)).astype(np.int64)]
    sample(store, tried[:2], config.local_nodes, 0, threads)  # compiled by now
    begin = time.perf_counter()
    drawn = sample(store, tried, config.local_nodes, 0, threads)
    elapsed_s = (time.perf_counter() - begin) * len(nodes) / len(tried)
    if len(nodes) == store.num_nodes or config.tokens.nodes != "sampled":
        return elapsed_s, store.num_nodes
    whole = len(np.unique(drawn))
    if len(tried) == len(nodes):
        return elapsed_s, whole
    half = len(np.unique(drawn[::2]))
    return elapsed_s, extrapolated_union(half, whole, len(tried), len(nodes), store.num_nodes)


class _Speed:
    """How fast rows are summed here."""

    def __init__(self, store: GraphStore, config: PrepareConfig, threads: int | None) -> None:
        indptr, indices = store.csr(config.local_nodes.direction)
        self.num_edges = len(indices)
        """Along the direction of the local nodes, which positions follow too."""
        self.threads = num_threads(threads)
        count = min(store.num_nodes, _SUM_NODES)
        first = (store.num_nodes - count) // 2
        edges = int(indptr[first + count] - indptr[first]) + count
        size = min(store.num_nodes, _SUM_SOURCES)
        ends = (np.arange(edges, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) % np.uint64(size)
        indptr = np.minimum(np.arange(size + 1) * (edges // count), edges // count * count)
        rows = Neighbors(indptr, ends.astype(np.int32), self_loops=False)

        def load(start: int, stop: int, out: Array) -> None:
            out[:] = 1

        def forget(first: int, last: int, sums: Array) -> None:
            pass

        def sum_s(times: int) -> float:
            begin = time.perf_counter()
            block_sums(rows, np.tile(np.arange(count), times), None, load, 64, forget, _SUM_BYTES, threads)
            return time.perf_counter() - begin

        sum_s(1)  # compiled by now
        self.floats_per_s = 3 * 64 * edges / max(1e-6, sum_s(4) - sum_s(1))

    def passes_s(self, passes: float, num_edges: int, width: int) -> float:
        """Seconds to sum rows of this width along so many edges so many times."""
        return passes * num_edges * width / self.floats_per_s


def _local_nodes(
    store: GraphStore, nodes: Array, config: PrepareConfig, draw_s: float, token_rows: int, held: int
) -> StageEstimate:
    item = np.dtype(index_dtype(store.num_nodes)).itemsize
    sampled = len(nodes) * config.local_nodes.k * item
    scratch = sampled if config.local_nodes.k > 1 else 0
    elapsed_s = draw_s + (sampled + scratch) / _WRITE_BYTES_PER_S
    segment = 2 * min(len(nodes), SEGMENT_NODES) * config.local_nodes.k * item
    return StageEstimate("local nodes", sampled + token_rows * item, scratch, held + segment, elapsed_s)


def _tokens(
    store: GraphStore, config: PrepareConfig, token_rows: int, budget: int, speed: _Speed, held: int
) -> StageEstimate:
    width, hops, directions = (
        NodeFeatures(store, config.tokens.degrees).width,
        config.tokens.hops,
        directions_of(config),
    )
    width += store.num_edge_features if config.tokens.edge_features is True else 0
    kept = token_rows * (1 + hops * len(directions)) * width * np.dtype(config.tokens.dtype).itemsize
    stored = int(store.folder.manifest["arrays"]["features"]["bytes"])
    read = (stored if config.tokens.standardize else 0) + stored
    memory, scratch, sum_s = 0, 0, 0.0
    for direction in directions if hops else ():
        num_edges = len(store.csr(direction)[1])
        rows_of_hop = [token_rows]
        for _ in range(hops - 1):
            rows_of_hop.insert(0, int(min(store.num_nodes, rows_of_hop[0] * (1 + num_edges / store.num_nodes))))
        aside = rows_of_hop[:-1] if direction == directions[-1] else rows_of_hop
        scratch += 4 * width * sum(aside)
        source_bytes = stored
        for rows in rows_of_hop:
            at_once, sources = plan(rows, store.num_nodes, width, budget)
            blocks = -(-rows // at_once) if sources < store.num_nodes else 1
            read += blocks * source_bytes
            memory = max(memory, block_bytes(at_once, sources, width))
            source_bytes = 4 * rows * width
        sum_s += speed.passes_s(sum(rows_of_hop) / store.num_nodes, num_edges, width)
    elapsed_s = sum_s + read / _READ_BYTES_PER_S + (kept + scratch) / _WRITE_BYTES_PER_S
    return StageEstimate("context features", kept, scratch, held + memory, elapsed_s)


def _positions(
    store: GraphStore, nodes: Array, config: PrepareConfig, budget: int, speed: _Speed, held: int
) -> StageEstimate:
    positions = config.positions
    if positions.method == "none":
        return StageEstimate("positions", 0, 0, held, 0.0)
    kept = 4 * len(nodes) * positions.dim
    if positions.method == "node2vec":
        work = positions.walks_per_node * positions.walk_length * positions.context * positions.dim
        core_s = store.num_nodes * work * (1 + positions.negatives) * positions.epochs * _NODE2VEC_CORE_S
        memory = held + node2vec_bytes(store.num_nodes, positions)
        return StageEstimate("positions, node2vec", kept, 0, memory, core_s / speed.threads)
    if positions.method == "laplacian":
        step_s = (
            len(store.csr("both")[1]) * _LANCZOS_EDGE_CORE_S / speed.threads
            + store.num_nodes * num_lanczos_vectors(positions.dim) * _LANCZOS_NODE_S
        )
        memory = held + laplacian_bytes(store.num_nodes, positions.dim)
        return StageEstimate("positions, laplacian", kept, 0, memory, STEPS_PER_VECTOR * positions.dim * step_s)
    whole = 4 * store.num_nodes * positions.dim
    powers = len(positions.projection_weights)
    at_once, sources = plan(store.num_nodes, store.num_nodes, positions.dim, budget)
    blocks = -(-store.num_nodes // at_once) if sources < store.num_nodes else 1
    passes = powers - 1 + len(nodes) / store.num_nodes
    elapsed_s = (
        speed.passes_s(passes, speed.num_edges, positions.dim)
        + (powers - 1) * whole * (blocks / _READ_BYTES_PER_S + 1 / _WRITE_BYTES_PER_S)
    )  # fmt: skip
    memory = held + block_bytes(at_once, sources, positions.dim)
    return StageEstimate("positions, projection", kept, min(2, powers - 1) * whole + kept, memory, elapsed_s)


def _label_contexts(
    store: GraphStore, nodes: Array, config: PrepareConfig, budget: int, speed: _Speed, held: int
) -> list[StageEstimate]:
    hops = config.labels.hops
    if not hops:
        return []
    width = num_count_columns(store.task, store.num_outputs)
    kept = 2 * len(nodes) * hops * (num_label_columns(store.task, store.num_outputs) + 1)
    counts = 4 * store.num_nodes * width
    at_once, sources = plan(store.num_nodes, store.num_nodes, width, budget)
    num_edges = len(store.csr("both")[1])
    passes = 1 + (hops - 1) * len(nodes) / store.num_nodes
    elapsed_s = speed.passes_s(passes, num_edges, width) + counts / _WRITE_BYTES_PER_S + counts / _READ_BYTES_PER_S
    return [StageEstimate("label contexts", kept, counts, held + block_bytes(at_once, sources, width), elapsed_s)]


def _surroundings(
    store: GraphStore, nodes: Array, config: PrepareConfig, token_rows: int, budget: int, speed: _Speed, held: int
) -> list[StageEstimate]:
    found = []
    if config.local_nodes.near:
        kept = len(nodes) * -(-config.local_nodes.k // 8)
        searched_s = len(nodes) * config.local_nodes.k * _SEARCH_CORE_S / speed.threads
        found.append(StageEstimate("distances", kept, 0, held, searched_s + kept / _WRITE_BYTES_PER_S))
    if config.labels.local:
        width = num_count_columns(store.task, store.num_outputs)
        lists = Neighbors(*store.csr("both"), self_loops=False)
        kept = counts_dtype(lists, store.task == "regression").itemsize * token_rows * (width + 1)
        at_once, sources = plan(token_rows, store.num_nodes, width, budget)
        elapsed_s = speed.passes_s(token_rows / store.num_nodes, len(store.csr("both")[1]), width)
        memory = held + block_bytes(at_once, sources, width)
        found.append(StageEstimate("label surroundings", kept, 0, memory, elapsed_s + kept / _WRITE_BYTES_PER_S))
    return found
