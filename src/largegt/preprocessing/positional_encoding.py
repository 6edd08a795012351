"""Positional encodings: where a node lies in the whole graph, for the GlobalModule.

Enters: a GraphStore and the nodes that need a row. Leaves: float32 [n, p].

- `projection`: Σ_t w_t · normalised((D⁻¹A)ᵗ R) with R random signs. Nodes with overlapping t-hop neighbourhoods get
  similar rows (Johnson–Lindenstrauss). Cost: one pass over the edges per power, within the memory given; two powers
  (8·N·p bytes) lie on disk while it runs.
- `node2vec`: second-order random walks and skip-gram with negative sampling, the paper's choice and settings.
  Cost: N · walks_per_node · walk_length · context products of width p, on the GPU where there is one;
  memory 3·N·p floats (embedding and SparseAdam's moments).
- `laplacian`: eigenvectors of the normalised Laplacian (laplacian.py). Cost: some dozen passes over the edges per
  dimension; memory about 4·N·p doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from largegt.config.schema import PositionsConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.runtime.engine import Engine
from largegt.runtime.memory import format_bytes
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import run_chunks
from largegt.types import Array, Direction

from .blocks import Load, Neighbors, NeighborSums
from .laplacian import laplacian, laplacian_bytes
from .sampling import kernels

if TYPE_CHECKING:
    import torch

_CHUNK_WALKS = 4096
_CHUNK_ROWS = 1 << 14


def write_positions(
    writer: ArrayWriter,
    store: GraphStore,
    nodes: Array,
    config: PositionsConfig,
    direction: Direction,
    engine: Engine,
    numbers: Array | None = None,
) -> None:
    """Write `positions` [n, p], the encodings of `nodes` (sorted), by the configured method; width 0 for `none`.
    `numbers` are those that random signs are drawn by, where the store is a part of a graph (cutout.py)."""
    memory, threads, progress = engine.memory, engine.threads, engine.show
    if config.method == "none":
        writer.save("positions", np.zeros((len(nodes), 0), dtype=np.float32))
    elif config.method == "node2vec":
        _check_memory(config.method, node2vec_bytes(store.num_nodes, config), store.num_nodes, memory)
        writer.save("positions", node2vec(store, config, direction, threads, progress)[nodes])
    elif config.method == "laplacian":
        _check_memory(config.method, laplacian_bytes(store.num_nodes, config.dim), store.num_nodes, memory)
        writer.save("positions", laplacian(store, config.dim, threads, progress)[nodes])
    else:
        _Projection(writer, store, nodes, config, direction, engine, numbers).write()


def _check_memory(method: str, needed: int, num_nodes: int, memory: int) -> None:
    """Refuse a method that keeps everything in memory where it does not fit."""
    if needed > memory:
        raise ConfigError(
            f"{method} holds {format_bytes(needed)} for {num_nodes:,} nodes, more than the memory given: "
            "use --set prepare.positions.method=projection, or a larger --memory"
        )


def node2vec_bytes(num_nodes: int, config: PositionsConfig) -> int:
    """Memory of the embedding, its gradient's moments, and a batch of walks."""
    walks = config.batch_size * config.walks_per_node * config.walk_length
    return 3 * 4 * num_nodes * config.dim + 4 * walks * (config.dim + config.context) * (1 + config.negatives)


class _Projection:
    """Random projections of powers of D⁻¹A, each row of each power scaled to length one.

    Power t is a scratch array [N, p] on disk, made from power t - 1 in blocks (blocks.py); the last one is made for the
    wanted nodes alone. The weighted sum so far is a second, small array that each power writes anew.
    """

    def __init__(
        self, writer: ArrayWriter, store: GraphStore, nodes: Array, config: PositionsConfig, direction: Direction,
        engine: Engine, numbers: Array | None = None,
    ) -> None:  # fmt: skip
        self.writer, self.nodes, self.config, self.engine, self.numbers = writer, nodes, config, engine, numbers
        self.neighbors = Neighbors(*store.csr(direction), self_loops=False)
        self.num_nodes, self.width = store.num_nodes, config.dim

    def write(self) -> None:
        weights = self.config.projection_weights
        powers_on_disk = min(2, len(weights) - 1) * self.num_nodes + 2 * len(self.nodes)
        require_space(self.writer.path, 4 * self.width * powers_on_disk, "positional encodings")
        for power, weight in enumerate(weights, start=1):
            if power > int(self.writer.state.get("powers", 0)):
                self._step(power, np.float32(weight), last=power == len(weights))
                self.writer.commit(powers=power)
            for name in (self._power(power - 1), self._total(power - 1)):
                self.writer.drop(name)

    def _power(self, power: int) -> str:
        return f"scratch_power_{power}"

    def _total(self, power: int) -> str:
        return "positions" if power == len(self.config.projection_weights) else f"scratch_positions_{power}"

    def _step(self, power: int, weight: Any, last: bool) -> None:
        writer = self.writer
        wanted = self.nodes if last else range(self.num_nodes)
        before = writer.array(self._total(power - 1)) if power > 1 else None
        made = None if last else writer.grow(self._power(power), "float32", (self.width,))
        total = writer.grow(self._total(power), "float32", (self.width,))
        start = made.rows if made is not None else total.rows

        def finish(first: int, stop: int, rows: Array) -> None:
            rows /= np.maximum(self.neighbors.degrees(wanted[first:stop]), 1).astype(np.float32)[:, None]
            begin, end = (first, stop) if last else np.searchsorted(self.nodes, [first, stop])
            for low in range(int(begin), int(end), _CHUNK_ROWS):
                mine = slice(low, min(int(end), low + _CHUNK_ROWS))
                at = np.arange(mine.start, mine.stop) if last else np.asarray(self.nodes[mine], dtype=np.int64)
                unit = _unit_rows(rows[at - first]) * weight
                total.append(unit if before is None else before[mine] + unit)
            if made is not None:
                made.append(rows)
            writer.commit()

        sums = NeighborSums(self.neighbors, wanted, self._load(power), self.width)
        self.engine.sums(sums, finish, f"positions, power {power}", start)
        if made is not None:
            writer.close(self._power(power))
        writer.close(self._total(power))

    def _load(self, power: int) -> Load:
        if power == 1:
            return _Signs(self.config.seed, self.numbers)
        return _Stored(self.writer.array(self._power(power - 1)))


@dataclass(frozen=True)
class _Signs:
    """Rows of R."""

    seed: int
    numbers: Array | None = None

    def __call__(self, first: int, last: int, out: Array) -> None:
        numbers = np.arange(first, last) if self.numbers is None else self.numbers[first:last]
        ends = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1), len(numbers)]
        for low, high in pairwise(ends):  # numbers that follow each other
            kernels.random_signs(numbers[low], self.seed, out[low:high])


@dataclass(frozen=True)
class _Stored:
    """Rows of an array, as they are."""

    rows: Array

    def __call__(self, first: int, last: int, out: Array) -> None:
        out[:] = self.rows[first:last]


def _unit_rows(rows: Array) -> Array:
    length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.maximum(length, np.float32(1e-12)))


def node2vec(
    store: GraphStore,
    config: PositionsConfig,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """node2vec embeddings of every node; [N, p]."""
    import torch

    show = progress or silent
    num_nodes = store.num_nodes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(config.seed)
    table = torch.nn.Embedding(num_nodes, config.dim, sparse=True)
    with torch.no_grad():
        table.weight.normal_(generator=generator)
    table.to(device)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=config.learning_rate)
    rng = np.random.default_rng(config.seed)
    total = config.epochs * num_nodes
    for epoch in range(config.epochs):
        order = rng.permutation(num_nodes)
        for first in range(0, num_nodes, config.batch_size):
            starts = np.repeat(order[first : first + config.batch_size], config.walks_per_node)
            first_walk = (epoch * num_nodes + first) * config.walks_per_node
            walks = _walks(store, config, direction, starts, first_walk, threads)
            shape = (config.negatives * walks.shape[0], walks.shape[1])
            strangers = torch.randint(num_nodes, shape, generator=generator)
            loss = _skip_gram_loss(table, torch.from_numpy(walks).to(device), strangers.to(device), config.context)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
            show("positions, node2vec", min(total, epoch * num_nodes + first + config.batch_size), total)
    embedding: Array = table.weight.detach().cpu().numpy()
    return embedding


def _walks(
    store: GraphStore,
    config: PositionsConfig,
    direction: Direction,
    starts: Array,
    first_walk: int,
    threads: int | None,
) -> Array:
    indptr, indices = store.csr(direction)
    walks = np.empty((len(starts), config.walk_length), dtype=np.int64)

    def work(start: int, stop: int) -> None:
        kernels.random_walks(
            indptr, indices, starts[start:stop], config.p, config.q, config.seed, first_walk + start, walks[start:stop]
        )

    run_chunks(work, len(starts), _CHUNK_WALKS, threads)
    return walks


def _skip_gram_loss(
    table: torch.nn.Embedding, walks_wl: torch.Tensor, strangers_wl: torch.Tensor, context: int
) -> torch.Tensor:
    """-log σ(c·v) for every node v within `context - 1` steps behind a centre c of the walk, and -log σ(-c·u) for
    as many random nodes u. One product of each walk with itself holds all of its windows."""
    import torch
    from torch.nn.functional import logsigmoid

    length = walks_wl.shape[1]
    context = min(context, length)
    num_centers = length - context + 1
    place = torch.arange(length, device=walks_wl.device)
    behind = place[None, :] - place[:num_centers, None]
    window = (behind > 0) & (behind < context)
    rows_wlp = table(walks_wl)
    centers_wcp = rows_wlp[:, :num_centers]
    near = torch.einsum("wcp,wlp->wcl", centers_wcp, rows_wlp)[:, window]
    strangers_nwlp = table(strangers_wl).view(-1, *rows_wlp.shape)
    far = torch.einsum("wcp,nwlp->nwcl", centers_wcp, strangers_nwlp)[:, :, window]
    return -(logsigmoid(near).mean() + logsigmoid(-far).mean())
