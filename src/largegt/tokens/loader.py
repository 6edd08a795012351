"""The loader: shuffled node ids → TokenBatches, the next one gathered while this one is used.

Enters: a Prepared and a split or nodes. Leaves: an iterator of TokenBatch. The order is a function of (seed, epoch).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import ConfigError, InputError
from ..prepare.local_nodes import node_numbers
from ..prepare.prepared import Prepared
from ..types import Array
from .input_tokens import TokenBatch, distinct_rows, input_tokens
from .table import TokenTable


@dataclass(frozen=True)
class TokenLoader:
    """Gathers batches of chosen rows of one table."""

    table: TokenTable
    device: torch.device
    k: int | None = None
    """Take only the first k local nodes; all when None."""
    distinct: bool = False
    """Compute a repeated local node once; rows of a batch are then ordered by how many they have."""

    def num_batches(self, num_rows: int, batch_size: int) -> int:
        return -(-num_rows // batch_size)

    def batches(self, rows: Array, batch_size: int, seed: int | None = None, epoch: int = 0) -> Iterator[TokenBatch]:
        """Batches over `rows`, shuffled by (seed, epoch) unless seed is None."""
        if seed is not None:
            rows = np.random.default_rng([seed, epoch]).permutation(rows)
        order = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.table.device)
        pieces = torch.split(order, batch_size)
        if not len(order):
            return
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self.gather, pieces[0])
            for piece in pieces[1:]:
                batch, coming = coming.result(), pool.submit(self.gather, piece)
                yield batch.to(self.device, non_blocking=True)
            yield coming.result().to(self.device, non_blocking=True)

    def gather(self, rows: torch.Tensor) -> TokenBatch:
        """The batch of these rows of the table."""
        local_rows = self.table.local_rows_nk[rows, : self.k]
        multiplicity = None
        if self.distinct and local_rows.shape[1] > 1:
            local_rows, multiplicity = distinct_rows(local_rows)
            order = (multiplicity > 0).sum(dim=1).argsort(stable=True)
            rows, local_rows, multiplicity = rows[order], local_rows[order], multiplicity[order]
        labels = self.table.labels[rows]
        return TokenBatch(
            nodes=self.table.nodes[rows].long(),
            tokens=input_tokens(self.table.tokens_r3d, local_rows),
            multiplicity=multiplicity,
            positions=self.table.positions_np[rows],
            labels=labels if labels.is_floating_point() else labels.long(),
        )


def token_batches(
    prepared: Prepared,
    split: str | None = None,
    nodes: Array | list[int] | None = None,
    batch_size: int = 1024,
    seed: int | None = None,
    epoch: int = 0,
    distinct: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[TokenBatch]:
    """TokenBatches of a split (`train`, `valid`, `test`), of given nodes, or of every prepared node.

    Shuffled by (seed, epoch) when a seed is given, in order otherwise.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: it must be at least 1")
    if seed is not None and seed < 0:
        raise ConfigError(f"seed is {seed}: it must not be negative")
    if nodes is not None and split is not None:
        raise ConfigError("give token_batches a split or nodes, not both")
    if nodes is not None:
        wanted = node_numbers(nodes)
        rows = prepared.rows_of(wanted)
        if (rows < 0).any():
            missing = int(wanted[rows < 0][0])
            raise InputError(f"node {missing} was not prepared: prepare with local_nodes.nodes=all")
    else:
        rows = prepared.split_rows(split) if split is not None else np.arange(len(prepared.nodes))
    loader = TokenLoader(TokenTable(prepared, device), torch.device(device), distinct=distinct)
    return loader.batches(rows, batch_size, seed, epoch)
