"""Positional encodings: the position of a node in the whole graph, for the GlobalModule.

Enters: a GraphStore and the nodes that need a row. Leaves: float32 [n, p].

- `random_projection`: Σ_t w_t · normalised((D⁻¹A)ᵗ R) with R random signs. Nodes with overlapping t-hop neighbourhoods
  get similar rows (Johnson–Lindenstrauss). Cost: one pass over the edges per power, within the memory limit; all powers
  except the last (4·N·p bytes each) are temporary files.
- `node2vec`: second-order random walks and skip-gram with negative sampling, the paper's choice and settings.
  Cost: N · walks_per_node · walk_length · context products of width p, on a GPU if there is one;
  memory 3·N·p floats (embedding and SparseAdam's moments).
- `laplacian`: eigenvectors of the normalised Laplacian (laplacian.py). Cost: some dozen passes over the edges per
  dimension; memory about 4·N·p doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from largegt.config.schema import PositionalEncodingConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.runtime.memory import format_bytes
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import run_chunks
from largegt.types import Array, Direction

from . import kernels
from .blocks import Load, Neighbors, NeighborSums, as_index, degrees_of
from .engine import Engine
from .laplacian import laplacian, laplacian_bytes

if TYPE_CHECKING:
    import torch

_CHUNK_WALKS = 4096


def write_positions(
    writer: ArrayWriter,
    store: GraphStore,
    nodes: Array,
    config: PositionalEncodingConfig,
    direction: Direction,
    engine: Engine,
) -> None:
    """Write `positions` [n, p], the encodings of `nodes` (sorted), by the configured method; width 0 for `none`."""
    if config.method == "none":
        writer.save("positions", np.zeros((len(nodes), 0), dtype=np.float32))
    elif config.method == "random_projection":
        neighbors = Neighbors(*store.csr(direction), self_loops=False)
        write_projection(writer, neighbors, nodes, config, engine, RandomSigns(config.seed, range(store.num_nodes)))
    elif config.method == "node2vec":
        _check_memory(config.method, node2vec_bytes(store.num_nodes, config), store, engine)
        writer.save("positions", node2vec(store, config, direction, engine.threads, engine.show)[nodes])
    else:
        _check_memory(config.method, laplacian_bytes(store, config.dim), store, engine)
        writer.save("positions", laplacian(store, config.dim, engine.show)[nodes])


def _check_memory(method: str, needed: int, store: GraphStore, engine: Engine) -> None:
    """Refuse an in-memory method that does not fit."""
    if needed > engine.memory:
        raise ConfigError(
            f"{method} holds {format_bytes(needed)} for {store.num_nodes:,} nodes, more than the memory given: "
            "use `prepare.positional_encoding.method=random_projection`, or a larger `memory`"
        )


# random projections of powers of D⁻¹A ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomSigns:
    """Rows of R: ±1, a function of the node numbers in the whole graph."""

    seed: int
    numbers: Array | range

    def __call__(self, first: int, last: int, out: Array) -> None:
        kernels.random_signs(np.asarray(self.numbers[first:last], dtype=np.int64), self.seed, out)


@dataclass(frozen=True)
class _ArrayRows:
    """Loads rows of an array unchanged."""

    rows: Array

    def __call__(self, first: int, last: int, out: Array) -> None:
        out[:] = self.rows[first:last]


def write_projection(
    writer: ArrayWriter,
    neighbors: Neighbors,
    nodes: Array,
    config: PositionalEncodingConfig,
    engine: Engine,
    signs: RandomSigns,
) -> None:
    """Write `positions`: Σ_t w_t · (power t of D⁻¹A times R, with rows of length one).

    Power t is a scratch array [N, p], computed from power t - 1 in blocks (blocks.py). The last power is computed only
    for `nodes`, together with the sum.
    """
    *weights, last_weight = config.projection_weights
    names = [f"scratch_power_{power}" for power in range(1, len(weights) + 1)]
    all_nodes = range(neighbors.num_nodes)
    require_space(writer.path, 4 * config.dim * (len(names) * len(all_nodes) + len(nodes)), "positional encodings")

    def grow(name: str, rows_of: Array | range, load: Load, others: list[tuple[float, Array]] | None = None) -> Array:
        """The next power of `rows_of`; with `others`, the weights and earlier powers, the weighted sum of all."""
        out = writer.grow(name, "float32", (config.dim,))

        def finish(first: int, stop: int, rows: Array) -> None:
            some = rows_of[first:stop]
            rows /= np.maximum(degrees_of(neighbors.indptr, some), 1).astype(np.float32)[:, None]
            if others is not None:
                rows = _unit_rows(rows) * np.float32(last_weight)
                for weight, power in others:
                    rows += _unit_rows(power[as_index(some)]) * np.float32(weight)
            out.append(rows)
            writer.commit()

        wanted = NeighborSums(neighbors, rows_of, load, config.dim, all_nodes)
        engine.sums(wanted, finish, f"positions, {name.removeprefix('scratch_').replace('_', ' ')}", out.rows)
        writer.close(name)
        return writer.array(name)

    load: Load = signs
    for name in names:
        load = _ArrayRows(writer.array(name) if writer.has(name) else grow(name, all_nodes, load))
    kept = [(weight, writer.array(name)) for weight, name in zip(weights, names, strict=True) if weight]
    grow("positions", nodes, load, kept)
    for name in names:
        writer.drop(name)


def _unit_rows(rows: Array) -> Array:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12)))


# node2vec -------------------------------------------------------------------------------------------------------


def node2vec_bytes(num_nodes: int, config: PositionalEncodingConfig) -> int:
    """Memory of the embedding, the optimizer state, and a batch of walks."""
    walks = config.batch_size * config.walks_per_node * config.walk_length
    return 3 * 4 * num_nodes * config.dim + 4 * walks * (config.dim + config.context_size) * (
        1 + config.num_negative_samples
    )


def node2vec(
    store: GraphStore, config: PositionalEncodingConfig, direction: Direction = "both", threads: int | None = None,
    progress: Progress | None = None,
) -> Array:  # fmt: skip
    """node2vec embeddings of every node; [N, p]."""
    import torch

    show, num_nodes = progress or silent, store.num_nodes
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
            walks = _random_walks(
                store, config, direction, starts, (epoch * num_nodes + first) * config.walks_per_node, threads
            )
            shape = (config.num_negative_samples * walks.shape[0], walks.shape[1])
            negatives = torch.randint(num_nodes, shape, generator=generator)
            loss = _skip_gram_loss(table, torch.from_numpy(walks).to(device), negatives.to(device), config.context_size)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
            show("positions, node2vec", min(total, epoch * num_nodes + first + config.batch_size), total)
    embedding: Array = table.weight.detach().cpu().numpy()
    return embedding


def _random_walks(
    store: GraphStore,
    config: PositionalEncodingConfig,
    direction: Direction,
    starts: Array,
    first: int,
    threads: int | None,
) -> Array:
    """[w, walk_length] one walk from each of `starts`; the first has walk number `first`."""
    csr, walks = store.csr(direction), np.empty((len(starts), config.walk_length), dtype=np.int64)

    def work(low: int, high: int) -> None:
        kernels.random_walks(*csr, starts[low:high], config.p, config.q, config.seed, first + low, walks[low:high])

    run_chunks(work, len(starts), _CHUNK_WALKS, threads)
    return walks


def _skip_gram_loss(
    table: torch.nn.Embedding, walks_wl: torch.Tensor, negatives_wl: torch.Tensor, context: int
) -> torch.Tensor:
    """-log σ(c·v) for every node v within `context - 1` steps after a centre c of the walk, and -log σ(-c·u) for as
    many random nodes u. One product of each walk with itself contains all windows."""
    import torch
    from torch.nn.functional import logsigmoid

    length = walks_wl.shape[1]
    context = min(context, length)
    num_centers = length - context + 1
    position = torch.arange(length, device=walks_wl.device)
    offset = position[None, :] - position[:num_centers, None]
    window = (offset > 0) & (offset < context)
    rows_wlp = table(walks_wl)
    centers_wcp = rows_wlp[:, :num_centers]
    positive = torch.einsum("wcp,wlp->wcl", centers_wcp, rows_wlp)[:, window]
    negatives_nwlp = table(negatives_wl).view(-1, *rows_wlp.shape)
    negative = torch.einsum("wcp,nwlp->nwcl", centers_wcp, negatives_nwlp)[:, :, window]
    return -(logsigmoid(positive).mean() + logsigmoid(-negative).mean())
