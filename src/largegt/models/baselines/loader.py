"""Batches for models with a neighbour sampler, with the interface of loader/loader.py.

Enters: rows of a Prepared whose token table holds the features of every node (row = node number), and the graph.
Leaves: batches (batch.py); the next ones are sampled in the background. Order and samples are functions of (seed,
epoch, node). The graph is copied to the GPU and sampled there if it fits; otherwise each CPU core samples a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from largegt.data.store import GraphStore
from largegt.loader.loader import prefetch_batches, split_batches
from largegt.loader.table import TokenTable
from largegt.models.base import NodeModel
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import ALONE, Ranks
from largegt.runtime.threads import num_threads
from largegt.types import Array

from .batch import AdjacencyBatch, NeighborBatch, NeighborhoodBatch
from .neighbors import NeighborSampler

_GPU_SHARE = 0.25
_EVAL_EPOCH = 1 << 40
"""Evaluation samples use epoch numbers that training never reaches."""


@dataclass(frozen=True)
class NeighborLoader:
    """Samples and gathers batches for chosen rows of one table."""

    table: TokenTable
    device: torch.device
    sampler: NeighborSampler
    reads: str
    """The kind of batch: sample, neighborhoods or adjacency."""
    csr: tuple[Array, Array]
    draw: int = 0
    """Number of the evaluation sample."""
    ranks: Ranks = ALONE
    """This rank samples only its part of each shuffled batch."""

    @classmethod
    def make(
        cls, table: TokenTable, device: torch.device, model: NodeModel, prepared: Prepared, store: GraphStore, seed: int
    ) -> NeighborLoader:
        """The loader for this model's kind of batch."""
        store.check(prepared.config.local_nodes.direction)
        csr = store.csr(prepared.config.local_nodes.direction)
        where = torch.device("cpu")
        if device.type == "cuda" and sum(part.nbytes for part in csr) < _GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
            where = device
        sampler = NeighborSampler(*csr, model.fanouts or (-1,), seed, where, threads=1)
        return cls(table, device, sampler, model.reads, csr)

    def num_batches(self, num_rows: int, batch_size: int) -> int:
        return -(-num_rows // batch_size)

    def batches(self, rows: Array, batch_size: int, seed: int | None = None, epoch: int = 0) -> Iterator[Any]:
        """Batches over `rows`: shuffled and sampled by (seed, epoch); without a seed in order, sampled by `draw`."""
        gather = partial(self.gather, epoch=_EVAL_EPOCH + self.draw if seed is None else epoch)
        ahead = 2 if self.sampler.device.type == "cuda" else num_threads(None)
        yield from prefetch_batches(
            gather, split_batches(rows, batch_size, self.ranks, seed, epoch), self.device, ahead
        )

    def gather(self, rows: Tensor, epoch: int) -> Any:
        """The batch of these rows of the table, on the loader's device."""
        at = rows.to(self.table.device)
        nodes, labels = self.table.nodes[at].long(), self.table.labels[at]
        shared = {
            "nodes": nodes,
            "positions": self.table.positions_np[at],
            "labels": labels if labels.is_floating_point() else labels.long(),
        }
        seeds = nodes.to(self.sampler.device)
        batch: NeighborBatch | NeighborhoodBatch | AdjacencyBatch
        if self.reads == "sample":
            sample = self.sampler.sample(seeds, epoch)
            batch = NeighborBatch(features=self.features(sample.nodes), blocks=sample.blocks, **shared)
        elif self.reads == "neighborhoods":
            around, member, distance = self.sampler.neighborhoods(seeds, epoch)
            batch = NeighborhoodBatch(features=self.features(around), member=member, distance=distance, **shared)
        else:
            indptr, neighbors = self.sampler.draw(seeds, 0, 0)
            own = self.table.tokens_of(self.table.local_rows_of(at, 1))[:, 0]
            batch = AdjacencyBatch(features=own, neighbors_indptr=indptr, neighbors=neighbors, **shared)
        return batch.to(self.device, non_blocking=True)

    def features(self, nodes: Tensor) -> Tensor:
        """[u, d] features of these nodes, on the loader's device."""
        rows = nodes.to(self.table.device)[:, None]
        return self.table.tokens_of(rows).view(len(nodes), -1, self.table.width)[:, 0]
