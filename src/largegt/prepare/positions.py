"""Positional encodings: where a node lies in the whole graph, for the GlobalModule.

Enters: a GraphStore and the nodes that need a row. Leaves: float32 [n, p].

- `projection`: Σ_t w_t · normalised((D⁻¹A)ᵗ R) with R random signs. Nodes with overlapping t-hop neighbourhoods get
  similar rows (Johnson–Lindenstrauss). Cost: one pass over the edges per power; memory 3·N·p floats.
- `node2vec`: second-order random walks and skip-gram with negative sampling, the paper's choice and settings.
  Cost: N · walks_per_node · walk_length · context products of width p, on the GPU where there is one;
  memory 3·N·p floats (embedding and SparseAdam's moments).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..config import PositionsConfig
from ..graph.store import GraphStore
from ..progress import Progress, silent
from ..types import Array, Direction
from . import kernels
from .engines.local import run_chunks

if TYPE_CHECKING:
    import torch

_CHUNK_NODES = 4096
_CHUNK_WALKS = 4096
_NOWHERE = np.zeros(0, dtype=np.int64)


def positions(
    store: GraphStore,
    nodes: Array,
    config: PositionsConfig,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """The encodings of `nodes` by the configured method; width 0 for `none`."""
    if config.method == "none":
        return np.zeros((len(nodes), 0), dtype=np.float32)
    make = projection if config.method == "projection" else node2vec
    return make(store, config, direction, threads, progress)[nodes]


def projection(
    store: GraphStore,
    config: PositionsConfig,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """Random projections of powers of D⁻¹A, each row of each power scaled to length one; [N, p]."""
    indptr, indices = store.csr(direction)
    num_nodes, width = store.num_nodes, config.dim
    row_scale = (1.0 / np.maximum(np.diff(indptr), 1)).astype(np.float32)
    ones = np.ones(num_nodes, dtype=np.float32)
    shift, gain = np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    nodes = np.arange(num_nodes)
    now, after = np.empty((2, num_nodes, width), dtype=np.float32)
    total = np.zeros((num_nodes, width), dtype=np.float32)

    def signs(start: int, stop: int) -> None:
        kernels.random_signs(start, config.seed, now[start:stop])

    run_chunks(signs, num_nodes, _CHUNK_NODES, threads)
    for power, weight in enumerate(config.projection_weights, start=1):

        def step(start: int, stop: int, weight: float = weight, now: Array = now, after: Array = after) -> None:
            kernels.propagate_rows(
                indptr, indices, nodes[start:stop], row_scale, ones, False,
                now, _NOWHERE, shift, gain, after[start:stop],
            )  # fmt: skip
            length = np.sqrt((after[start:stop] ** 2).sum(axis=1, keepdims=True))
            total[start:stop] += np.float32(weight) * after[start:stop] / np.maximum(length, np.float32(1e-12))

        run_chunks(step, num_nodes, _CHUNK_NODES, threads, progress, f"positions, power {power}")
        now, after = after, now
    return total


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
