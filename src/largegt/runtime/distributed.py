"""Ranks: data-parallel training, each process on its part of every batch.

Enters: the environment variables of `--devices`, torchrun or Ray Train. Leaves: a `Ranks`, which splits batches and
runs collectives with the same bits on every rank. GPU tensors use NCCL where each rank has a GPU of its own; all others
use gloo. `ALONE` is a single process: it splits nothing and communicates nothing.

If a batch has fewer nodes than there are ranks, some ranks have none (`has_empty_batch`). They compute the first node
too, so that all ranks run the same collectives in the same order; its loss has weight zero.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from largegt.errors import ConfigError, LargeGTError
from largegt.types import Array

_log = logging.getLogger(__name__)

_STEP_LIMIT = timedelta(seconds=120)
"""A rank that does not answer for this long is lost. A rank that dies is detected at once."""
_WORK_LIMIT = timedelta(days=30)
"""Timeout of preparation, evaluation and writing."""

LOST_RANK_CODE = 75
"""Exit code of a launched rank that stops silently because another rank is lost."""

Rows = TypeVar("Rows", Tensor, Array)
Cut = TypeVar("Cut", Array, range)
T = TypeVar("T")


class LostRank(LargeGTError):
    """A rank is lost and the others cannot continue."""


class Ranks:
    """This process and the process group it belongs to."""

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, host_group: Any = None, slow_group: Any = None
    ) -> None:
        """Rank `rank` of `size`, and `local_rank` on its machine. `host_group` and `slow_group` are gloo process groups
        for CPU tensors and for slow work."""
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.has_empty_batch = False
        """Whether this rank has no node of the current batch."""
        self._host_group, self._slow_group = host_group, slow_group

    @property
    def is_first(self) -> bool:
        """Whether this is rank zero, which writes, logs and shows progress."""
        return self.rank == 0

    @property
    def gpu(self) -> int:
        """The index of this rank's GPU on its machine."""
        return self.local_rank % max(1, torch.cuda.device_count())

    def attach(self, model: nn.Module) -> None:
        """Synchronise the codebook and the batch norms of a model over all ranks."""
        for module in model.modules():
            if isinstance(getattr(module, "ranks", None), Ranks):
                module.ranks = self  # type: ignore[assignment]

    # parts of batches

    def shares(self, count: int) -> list[int]:
        """The number of rows of each rank when `count` rows are split evenly."""
        bounds = [count * rank // self.size for rank in range(self.size + 1)]
        return [high - low for low, high in pairwise(bounds)]

    def part(self, rows: Rows) -> Rows:
        """This rank's part of these rows, in order; the first row if the part is empty."""
        if self.size == 1:
            return rows
        mine = rows[len(rows) * self.rank // self.size : len(rows) * (self.rank + 1) // self.size]
        return mine if len(mine) else rows[:1]

    def batches_of(self, rows: Cut, batch_size: int) -> Cut:
        """This rank's part of these rows, in order, possibly empty. Parts are whole batches, so each batch gives the
        same floats as in a single process."""
        num_batches = -(-len(rows) // batch_size)
        low, high = (num_batches * rank // self.size * batch_size for rank in (self.rank, self.rank + 1))
        return rows[low:high]

    # tensors of all ranks

    def row_counts(self, num_rows: int) -> list[int]:
        """The number of rows of each rank; exchanged on the host, without a GPU synchronisation."""
        if self.size == 1:
            return [num_rows]
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = num_rows
        return self.all_reduce_(counts).tolist()

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place and without a gradient."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._group_of(tensor))
        return tensor

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, with a gradient."""
        if self.size == 1:
            return tensor
        from torch.distributed.nn.functional import all_reduce

        # each rank's term enters the losses of all ranks, so the gradient is their sum
        summed: Tensor = all_reduce(tensor, group=self._group_of(tensor))  # type: ignore[no-untyped-call]
        return summed

    def all_gather(self, rows: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks, concatenated; `counts` are their numbers of rows."""
        if self.size == 1:
            return rows
        gathered = rows.new_zeros((sum(counts), *rows.shape[1:]))
        gathered[self._start(counts) :][: len(rows)] = rows
        return self.all_reduce_(gathered)  # gloo has no all_gather for GPU tensors or different lengths

    def rows_at(self, rows: Tensor, at: Tensor, counts: list[int]) -> Tensor:
        """[at, w] rows of all ranks by their index in `all_gather(rows)`, without gathering all of them."""
        if self.size == 1:
            return rows[at]
        at = at - self._start(counts)
        mine = (at >= 0) & (at < len(rows))
        if not len(rows):
            return self.all_reduce_(rows.new_zeros((len(at), rows.shape[1])))
        return self.all_reduce_(torch.where(mine[:, None], rows[at.clamp(0, len(rows) - 1)], 0.0))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The tensor of rank zero."""
        if self.size > 1:
            dist.broadcast(tensor, src=0, group=self._group_of(tensor))
        return tensor

    def _group_of(self, tensor: Tensor) -> Any:
        """The process group that communicates this tensor."""
        return self._host_group if tensor.device.type == "cpu" else dist.group.WORLD

    def _start(self, counts: list[int]) -> int:
        return [0, *accumulate(counts)][self.rank]

    # slow work and Python objects

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(self._slow_group)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Run the block on rank zero first, then on the others."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def gather_objects(self, value: T) -> list[T]:
        """The objects of all ranks on rank zero; an empty list on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, values, dst=0, group=self._slow_group)
        return values or []

    def send_rows(self, rows_nw: Tensor) -> None:
        """Send float32 rows to rank zero, which receives from one rank at a time. An empty tensor ends the stream."""
        dist.send(torch.tensor([len(rows_nw)]), 0, group=self._slow_group)
        if len(rows_nw):
            dist.send(rows_nw, 0, group=self._slow_group)

    def receive_rows(self, rank: int, width: int) -> Tensor | None:
        """[·, width] the next rows that a rank sends; None at the end."""
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, rank, group=self._slow_group)
        if not int(count):
            return None
        rows_nw = torch.empty(int(count), width)
        dist.recv(rows_nw, rank, group=self._slow_group)
        return rows_nw

    def broadcast_object(self, value: T) -> T:
        """The object of rank zero."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, group=self._slow_group)
        received: T = values[0]
        return received


ALONE = Ranks()
_current: Ranks | None = None


def get_distributed(device: str = "auto") -> Ranks:
    """The ranks that this process was launched with; the first call joins them. `device` as in train.device."""
    global _current
    if _current is None and not dist.is_initialized() and launched_world_size() > 1:
        backend = backend_for(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        dist.init_process_group(backend, timeout=_STEP_LIMIT)
        atexit.register(_destroy_group)
    if _current is None and dist.is_initialized():
        host_group, slow_group = (dist.new_group(backend="gloo", timeout=limit) for limit in (_STEP_LIMIT, _WORK_LIMIT))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        _current = Ranks(dist.get_rank(), dist.get_world_size(), local_rank, host_group, slow_group)
    return _current or ALONE


def launched_world_size() -> int:
    """WORLD_SIZE as torchrun sets it; 1 without a launcher."""
    is_launched = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if is_launched else 1


def is_first_process() -> bool:
    """Whether this process has rank zero; valid before the process group exists."""
    return launched_world_size() == 1 or os.environ["RANK"] == "0"


def backend_for(device: str, num_local: int) -> str:
    """The torch.distributed backend for this many ranks on one machine."""
    num_gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if not num_gpus:
        return "gloo"
    if num_local > num_gpus:
        if is_first_process():
            _log.warning(
                f"{num_local} ranks share {num_gpus} GPU{'s' if num_gpus > 1 else ''}: they talk by gloo, through the "
                "host's memory, since NCCL wants a GPU for each; one rank per GPU is faster"
            )
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def check_devices(devices: int) -> bool:
    """Whether this process has to start so many ranks, and is not one of them."""
    among = launched_world_size()
    if among > 1 and devices not in (1, among):
        raise ConfigError(f"`devices={devices}`, but this is one of {among} processes already: leave `devices` out")
    return devices > 1 and among == 1


def is_joined() -> bool:
    """Whether this process is one of several joined ranks."""
    return _current is not None and _current.size > 1


def is_lost_rank(error: BaseException) -> bool:
    """Whether an error means that another rank is lost or timed out."""
    if not is_joined() or not isinstance(error, RuntimeError):
        return False
    if isinstance(error, dist.DistError):
        return True
    return any(word in str(error) for word in ("gloo", "Connection closed by peer", "NCCL"))


def _destroy_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
