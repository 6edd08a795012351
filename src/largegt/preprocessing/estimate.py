"""Estimate the disk space, memory and time of a preparation before it runs.

Enters: a GraphStore, a ResolvedPrepareConfig and the memory limit. Leaves: an Estimate, one line per stage. Cost: about
a second to sample LocalNodes of some thousand nodes, which measures the speed of this machine and the overlap between
samples. Sizes are exact except for the number of token rows of a `sampled` preparation, which is extrapolated; times
are rough and assume the core and disk speeds below.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from largegt.config.schema import ResolvedPrepareConfig
from largegt.data.labels import num_label_columns
from largegt.data.pair_runs import index_dtype
from largegt.data.store import GraphStore
from largegt.runtime.memory import held_bytes, memory_budget, release_freed
from largegt.runtime.threads import num_threads
from largegt.types import Array, Direction

from .blocks import Neighbors, block_bytes, plan
from .cache_key import directions_of, is_prepared, nodes_to_prepare, resolve_config
from .engine import SEGMENT_NODES, Engine
from .features import NodeFeatures
from .label_features import counts_dtype, num_count_columns
from .laplacian import STEPS_PER_VECTOR, laplacian_bytes, num_lanczos_vectors
from .positional_encoding import node2vec_bytes
from .sampling.local_nodes import sample

_SAMPLE_NODES = 1 << 14
_FIXED_BYTES = 232 << 20
"""Python, the libraries, kernel compilation (100 MiB less if cached), and the minimal blocks."""
_READ_BYTES_PER_S, _WRITE_BYTES_PER_S = 1e9, 4e8
_SUM_CORE_S = 1e-9
"""Core seconds per number added to a sum over neighbours."""
_NODE2VEC_CORE_S = 1.2e-3 / (10 * 40 * 20 * 64 * 2)
"""Core seconds per node and walk, step, window position, dimension and side (walk or negatives), measured on a CPU."""
_LANCZOS_EDGE_S, _LANCZOS_NODE_S = 8e-9, 2e-9
"""Seconds of a Lanczos step per edge, and per node and vector of the orthogonalisation."""


@dataclass(frozen=True)
class StageEstimate:
    """One stage."""

    name: str
    disk_bytes: int
    """The result."""
    scratch_bytes: int
    """Temporary files."""
    memory_bytes: int
    """The peak memory of the process."""
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
    """The peak of results and temporary files."""
    free_disk_bytes: int
    memory_bytes: int
    elapsed_s: float
    already_prepared: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    store: GraphStore, config: ResolvedPrepareConfig, memory: str | int | None = None, threads: int | None = None
) -> Estimate:
    """The estimate of `prepare(store, config, memory=memory)`."""
    config = resolve_config(store, config)
    nodes = nodes_to_prepare(store, config)
    engine = Engine(memory_budget(memory, min_memory(store, config, len(nodes))), threads)
    sample_s, token_rows = _measure_local_nodes(store, nodes, config, threads)
    release_freed()
    estimates = _Stages(store, config, engine, len(nodes), token_rows, held_bytes())  # with the kernels loaded
    stages = (estimates.local_nodes(sample_s), estimates.tokens(), estimates.positions(), *estimates.labels())
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


def min_memory(store: GraphStore, config: ResolvedPrepareConfig, num_rows: int) -> int:
    """The smallest `--memory-limit` for a preparation of `num_rows` nodes; `config` is resolved."""
    return _FIXED_BYTES + max(_node_bytes(store, config, num_rows))


def _node_bytes(store: GraphStore, config: ResolvedPrepareConfig, num_rows: int) -> tuple[int, int, int]:
    """Memory of LocalNodes, context features and labels per node, without their blocks."""
    item, num_nodes = np.dtype(index_dtype(store.num_nodes)).itemsize, store.num_nodes
    rings = config.tokens.num_hops * len(directions_of(config)) if num_rows < num_nodes else 0
    labels = 22 if store.task == "regression" else 1
    return (1 + 2 * item) * num_nodes, (1 + item * (1 + rings)) * num_nodes, labels * num_nodes


def extrapolated_union(half: int, whole: int, num_sampled: int, wanted: int, most: int) -> int:
    """The number of distinct nodes in `wanted` samples, extrapolated from `half` distinct nodes in half of
    `num_sampled` samples and `whole` in all: the saturating curve u(m) = U m / (m + h) fits real unions."""
    curvature = 1 / half - 1 / whole
    inverse = max(0.0, 1 / whole - curvature) + curvature * num_sampled / wanted
    return int(min(most, max(whole, 1 / inverse if inverse > 0 else most)))


def _measure_local_nodes(
    store: GraphStore, nodes: Array, config: ResolvedPrepareConfig, threads: int | None
) -> tuple[float, int]:
    """(seconds for LocalNodes of all nodes, token rows)."""
    if config.local_nodes.k == 1:
        return 0.0, len(nodes) if config.tokens.precompute_for == "sampled" else store.num_nodes
    sampled_nodes = nodes[np.linspace(0, len(nodes) - 1, min(len(nodes), _SAMPLE_NODES)).astype(np.int64)]
    sample(store, sampled_nodes[:2], config.local_nodes, 0, threads)  # compile the kernels
    begin = time.perf_counter()
    sampled, _ = sample(store, sampled_nodes, config.local_nodes, 0, threads)
    elapsed_s = (time.perf_counter() - begin) * len(nodes) / len(sampled_nodes)
    if len(nodes) == store.num_nodes or config.tokens.precompute_for != "sampled":
        return elapsed_s, store.num_nodes
    whole, half = len(np.unique(sampled)), len(np.unique(sampled[::2]))
    if len(sampled_nodes) == len(nodes):
        return elapsed_s, whole
    return elapsed_s, extrapolated_union(half, whole, len(sampled_nodes), len(nodes), store.num_nodes)


@dataclass(frozen=True)
class _Stages:
    """The estimate of each stage."""

    store: GraphStore
    config: ResolvedPrepareConfig
    engine: Engine
    num_rows: int
    """Nodes that get a row."""
    token_rows: int
    held: int
    """The current memory of the process."""

    def _stage(
        self, name: str, kept: int, scratch: int = 0, memory: int = 0, work_s: float = 0.0, read: int = 0
    ) -> StageEstimate:  # fmt: skip
        """The estimate of a stage from the bytes that it keeps, needs temporarily and reads."""
        elapsed_s = work_s + read / _READ_BYTES_PER_S + (kept + scratch) / _WRITE_BYTES_PER_S
        return StageEstimate(name, kept, scratch, self.held + memory, elapsed_s)

    def _blocks(self, rows: int, width: int, reserved: int = 0) -> tuple[int, int]:
        """(memory, number of passes over the sources) to sum this many rows."""
        num_nodes = self.store.num_nodes
        at_once, sources = plan(rows, num_nodes, width, self.engine.free_memory(reserved))
        return reserved + block_bytes(at_once, sources, width), -(-rows // at_once) if sources < num_nodes else 1

    def _sum_s(self, num_rows: int, direction: Direction, width: int) -> float:
        """Seconds to sum the neighbours of this many nodes."""
        edges = num_rows / self.store.num_nodes * len(self.store.csr(direction)[1])
        return edges * width * _SUM_CORE_S / num_threads(self.engine.threads)

    @property
    def _node_bytes(self) -> tuple[int, int, int]:
        return _node_bytes(self.store, self.config, self.num_rows)

    def local_nodes(self, sample_s: float) -> StageEstimate:
        k, item = self.config.local_nodes.k, np.dtype(index_dtype(self.store.num_nodes)).itemsize
        sampled = self.num_rows * k * item
        kept = sampled + self.num_rows * -(-k // 8) + self.token_rows * item
        memory = self._node_bytes[0] + 2 * min(self.num_rows, SEGMENT_NODES) * k * item
        return self._stage("local nodes", kept, sampled if k > 1 else 0, memory, sample_s)

    def tokens(self) -> StageEstimate:
        store, tokens, directions = self.store, self.config.tokens, directions_of(self.config)
        width, hops, num_nodes = NodeFeatures(store, tokens.add_degrees).width, tokens.num_hops, store.num_nodes
        width += store.num_edge_features if tokens.use_edge_features is True else 0
        kept = self.token_rows * (1 + hops * len(directions)) * width * np.dtype(tokens.dtype).itemsize
        stored = int(store.folder.manifest["arrays"]["features"]["bytes"])
        read = (stored if tokens.normalize else 0) + stored
        memory, scratch, sum_s = self._node_bytes[1], 0, 0.0
        for direction in directions if hops else ():
            growth = 1 + len(store.csr(direction)[1]) / num_nodes
            rows_of_hop = [self.token_rows]
            for _ in range(hops - 1):
                rows_of_hop.insert(0, int(min(num_nodes, rows_of_hop[0] * growth)))
            scratch += 4 * width * sum(rows_of_hop[:-1] if direction == directions[-1] else rows_of_hop)
            source_bytes = stored
            for rows in rows_of_hop:
                held, times = self._blocks(rows, width, self._node_bytes[1])
                read += times * source_bytes
                memory, source_bytes = max(memory, held), 4 * rows * width
            sum_s += self._sum_s(sum(rows_of_hop), direction, width)
        return self._stage("context features", kept, scratch, memory, sum_s, read)

    def positions(self) -> StageEstimate:
        settings, num_nodes = self.config.positional_encoding, self.store.num_nodes
        kept, name = 4 * self.num_rows * settings.dim, f"positions, {settings.method}"
        if settings.method == "none":
            return self._stage("positions", 0)
        if settings.method == "node2vec":
            work = settings.walks_per_node * settings.walk_length * settings.context_size * settings.dim
            work *= num_nodes * (1 + settings.num_negative_samples) * settings.epochs
            work_s = work * _NODE2VEC_CORE_S / num_threads(self.engine.threads)
            return self._stage(name, kept, 0, node2vec_bytes(num_nodes, settings), work_s)
        if settings.method == "laplacian":
            step_s = len(self.store.csr("both")[1]) * _LANCZOS_EDGE_S
            step_s += num_nodes * num_lanczos_vectors(settings.dim) * _LANCZOS_NODE_S
            memory = laplacian_bytes(self.store, settings.dim)
            return self._stage(name, kept, 0, memory, STEPS_PER_VECTOR * settings.dim * step_s)
        others = (len(settings.projection_weights) - 1) * num_nodes
        memory, times = self._blocks(num_nodes, settings.dim)
        sum_s = self._sum_s(others + self.num_rows, self.config.local_nodes.direction, settings.dim)
        scratch = 4 * others * settings.dim
        return self._stage(name, kept, scratch, memory, sum_s, times * scratch)

    def labels(self) -> list[StageEstimate]:
        store, hops, stages = self.store, self.config.neighbor_label_hops, []
        width, reserved = num_count_columns(store.task, store.num_outputs), self._node_bytes[2]
        dtype = counts_dtype(Neighbors(*store.csr("both"), self_loops=False), store.task == "regression")
        row_bytes = dtype.itemsize * (width + 1)
        if hops:
            kept = 2 * self.num_rows * hops * (num_label_columns(store.task, store.num_outputs) + 1)
            counts, memory = row_bytes * store.num_nodes, self._blocks(store.num_nodes, width, reserved)[0]
            sum_s = self._sum_s(store.num_nodes + (hops - 1) * self.num_rows, "both", width)
            stages.append(self._stage("label histograms", kept, counts, memory, sum_s, counts))
        if self.config.local_label_histograms:
            memory = self._blocks(self.token_rows, width, reserved)[0]
            sum_s = self._sum_s(self.token_rows, "both", width)
            stages.append(self._stage("label counts", row_bytes * self.token_rows, 0, memory, sum_s))
        return stages
