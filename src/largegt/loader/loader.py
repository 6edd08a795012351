"""The loader: shuffled node ids → TokenBatches, with prefetching.

Enters: a Prepared and a split or nodes. Leaves: an iterator of TokenBatch. The order is a function of (seed, epoch).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from largegt.errors import ConfigError, InputError
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.local_nodes import node_numbers
from largegt.runtime.cuda_streams import side_stream
from largegt.runtime.distributed import ALONE, Ranks
from largegt.runtime.threads import run_ahead
from largegt.types import Array, TablePlace

from .batch import TokenBatch, distinct_rows, drop_local_nodes, to_compute_dtype
from .label_inputs import LocalLabels
from .table import TokenTable

BatchT = TypeVar("BatchT")

_MAX_BYTES_AHEAD, _MIN_STEPS_AHEAD, _MAX_STEPS_AHEAD = 1 << 30, 2, 64
"""The CPU may run ahead of the GPU by as many steps as their batches fit into this memory, within bounds."""


@dataclass(frozen=True)
class TokenLoader:
    """Gathers batches of rows of one table."""

    table: TokenTable
    device: torch.device
    k: int | None = None
    """Use only the first k local nodes; all if None."""
    distinct: bool = False
    """Compute a repeated local node once; rows of a batch are then sorted by their number of distinct local nodes."""
    local_labels: LocalLabels | None = None
    """Training labels of local nodes, for models that read them."""
    local_node_dropout: float = 0.0
    """The fraction of local nodes, except the node itself, that shuffled (training) batches drop."""
    ranks: Ranks = ALONE
    """Shuffled batches contain only this rank's part."""

    @property
    def bytes_per_node(self) -> int:
        """The maximal size of one node in a batch: its tokens, and the label counts around its local nodes."""
        table = self.table
        k = table.local_rows_nk.shape[1] if self.k is None else self.k
        dtype = table.form.dtype or table.tokens_rhd.dtype
        token = table.tokens_rhd.shape[1] * table.width * to_compute_dtype(torch.empty(0, dtype=dtype)).itemsize
        return max(1, k * (token + 2 * 4 * table.label_counts.shape[1]))

    def num_batches(self, num_rows: int, batch_size: int) -> int:
        return -(-num_rows // batch_size)

    def batches(self, rows: Array, batch_size: int, seed: int | None = None, epoch: int = 0) -> Iterator[TokenBatch]:
        """Batches over `rows`, shuffled by (seed, epoch) unless seed is None."""
        dropout_seed = None if seed is None else local_dropout_seed(seed, epoch)
        yield from self.batches_of(split_batches(rows, batch_size, self.ranks, seed, epoch), dropout_seed)

    def batches_of(
        self, pieces: Sequence[torch.Tensor], dropout_seed: int | None = None
    ) -> Generator[TokenBatch, None, None]:
        """One batch per piece."""
        if not pieces:
            return
        pieces = torch.split(torch.cat(tuple(pieces)).to(self.table.device), [len(piece) for piece in pieces])  # 1 copy
        at_once = self.table.place == "cuda"  # the CPU only launches these gathers: threads would slow them down
        gather = partial(self.gather, dropout_seed=dropout_seed)
        yield from prefetch_batches(gather, pieces, self.device, self.table.ahead, at_once)

    def gather(self, rows: torch.Tensor, dropout_seed: int | None = None) -> TokenBatch:
        """The batch of these rows of the table, on the loader's device. Without `dropout_seed` no local node is
        dropped."""
        local_rows = self.table.marked_rows_of(rows, self.k)
        if self.local_node_dropout and dropout_seed is not None:
            local_rows = drop_local_nodes(local_rows, self.local_node_dropout, dropout_seed)
        multiplicity = None
        if self.distinct and local_rows.shape[1] > 1:
            local_rows, multiplicity = distinct_rows(local_rows)
            order = (multiplicity > 0).sum(dim=1).argsort(stable=True)
            rows, local_rows, multiplicity = rows[order], local_rows[order], multiplicity[order]
        local_rows, is_neighbor = self.table.unmarked(local_rows)
        labels = self.table.labels[rows]
        batch = TokenBatch(
            nodes=self.table.nodes[rows].long(),
            tokens=self.table.tokens_of(local_rows),
            multiplicity=multiplicity,
            positions=self.table.positions_np[rows],
            labels=labels if labels.is_floating_point() else labels.long(),
            neighbor_label_histogram=self.table.neighbor_label_histogram[rows]
            if self.table.neighbor_label_histogram.shape[1]
            else None,
            local_labels=None if self.local_labels is None else self.local_labels.labels_for(local_rows),
            is_neighbor=is_neighbor,
            local_label_histogram=self.table.local_label_histogram_of(rows, local_rows, is_neighbor),
        )
        return batch.to(self.device, non_blocking=True)


def local_dropout_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's local node dropout."""
    return int(np.random.SeedSequence([seed, epoch, 1]).generate_state(1)[0])


def shuffled(rows: Array, seed: int, epoch: int) -> Array:
    """The rows in the order of this epoch."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def split_batches(rows: Array, batch_size: int, ranks: Ranks, seed: int | None, epoch: int) -> tuple[torch.Tensor, ...]:
    """The rows of each batch, in order; with a seed, this rank's part of batches shuffled by (seed, epoch)."""
    if not len(rows):
        return ()
    if seed is None:
        return torch.split(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)), batch_size)
    pieces = torch.split(torch.from_numpy(shuffled(rows, seed, epoch).astype(np.int64)), batch_size)
    return tuple(ranks.part(piece) for piece in pieces)


def prefetch_batches(
    gather: Callable[[torch.Tensor], BatchT], pieces: Sequence[torch.Tensor], device: torch.device, ahead: int,
    at_once: bool = False,
) -> Generator[BatchT, None, None]:  # fmt: skip
    """`gather(piece)` for each piece, `ahead` of the consumer; on a GPU on a side stream, in parallel with the training
    step. A batch is a dataclass of tensors or of such dataclasses.

    The CPU launches steps faster than the GPU runs them, and a batch stays in GPU memory until its step is done. To
    bound that memory, each batch waits until all but the last few steps are done."""
    if device.type != "cuda":
        with closing(run_ahead(gather, pieces, ahead, at_once)) as batches:
            yield from batches
        return
    side = side_stream(device, "gather")
    side.wait_stream(torch.cuda.current_stream(device))  # the table may not be complete yet

    def make(rows: torch.Tensor) -> tuple[BatchT, torch.Event]:
        with torch.cuda.stream(side):
            return gather(rows), side.record_event()

    steps: deque[torch.Event] = deque()
    try:
        with closing(run_ahead(make, pieces, ahead, at_once)) as batches:
            for batch, gathered in batches:
                main = torch.cuda.current_stream(device)
                steps.append(main.record_event())
                main.wait_event(gathered)
                num_bytes = 1
                for tensor in _tensors_in(batch):
                    tensor.record_stream(main)
                    num_bytes += tensor.nbytes
                while len(steps) > max(_MIN_STEPS_AHEAD, min(_MAX_STEPS_AHEAD, _MAX_BYTES_AHEAD // num_bytes)):
                    steps.popleft().synchronize()
                yield batch
    finally:  # later work may free or change the table: wait for unused gathers
        torch.cuda.current_stream(device).wait_stream(side)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        value = tuple(vars(value).values())
    if isinstance(value, tuple):
        for part in value:
            yield from _tensors_in(part)


def token_batches(
    prepared: Prepared,
    split: str | None = None,
    nodes: Array | list[int] | None = None,
    batch_size: int = 1024,
    seed: int | None = None,
    epoch: int = 0,
    distinct: bool = False,
    device: torch.device | str = "cpu",
    table: TablePlace = "auto",
    local_labels: bool = False,
    local_node_dropout: float = 0.0,
) -> Iterator[TokenBatch]:
    """Iterate over batches of nodes with their tokens, for a training loop of one's own.

    Args:
        prepared: a preparation.
        split: train, valid or test.
        nodes: node numbers instead of a split; without either, every prepared node.
        batch_size: nodes in a batch.
        seed: shuffle by (seed, epoch); None keeps the order.
        epoch: another order for each epoch.
        distinct: give each distinct token once, with its multiplicity.
        device: where batches are used.
        table: where token rows lie meanwhile, as the setting train.token_table. The batches do not depend on it.
        local_labels: add the labels of local nodes that are training nodes, for a model with `label_embeddings`.
        local_node_dropout: leave out this fraction of the local nodes of shuffled batches.

    Returns:
        An iterator of TokenBatch.

    Raises:
        ConfigError: an argument is out of range, or both a split and nodes are given.
        InputError: the split is unknown, or a node was not prepared.

    Examples:
        >>> for batch in lg.token_batches(prepared, split="train", batch_size=32, seed=0):
        ...     assert batch.tokens.shape[0] == len(batch.labels)
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: it must be at least 1")
    if seed is not None and seed < 0:
        raise ConfigError(f"seed is {seed}: it must not be negative")
    if not 0 <= local_node_dropout < 1:
        raise ConfigError(f"local_node_dropout is {local_node_dropout}: it must be at least 0 and less than 1")
    if nodes is not None and split is not None:
        raise ConfigError("give token_batches a split or nodes, not both")
    if nodes is not None:
        wanted = node_numbers(nodes)
        rows = prepared.rows_of(wanted)
        if (rows < 0).any():
            missing = int(wanted[rows < 0][0])
            raise InputError(f"node {missing} was not prepared: prepare with local_nodes.target_nodes=all")
    else:
        rows = prepared.split_rows(split) if split is not None else np.arange(len(prepared.nodes))
    arrays = TokenTable(prepared, device, table)
    labels = LocalLabels.of_training_nodes(prepared, arrays.device) if local_labels else None
    loader = TokenLoader(
        arrays, torch.device(device), distinct=distinct, local_labels=labels, local_node_dropout=local_node_dropout
    )
    return loader.batches(rows, batch_size, seed, epoch)
