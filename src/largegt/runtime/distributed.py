"""Ranks: the processes that train one model together, each on its part of every batch.

Enters: what `--devices`, torchrun or Ray Train say in the environment. Leaves: a `Ranks`, which cuts batches into parts
and brings the tensors of all ranks together, the same bits on each of them. Tensors of GPUs travel by NCCL where each
rank has one, all others by gloo. One process alone is `ALONE`: nothing is cut, nothing travels, nothing is waited for.

A batch with fewer nodes than there are ranks leaves some of them `idle`. They compute its first node too, so that all
take part in the same sums in the same order, but what they compute weighs nothing.
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
"""A rank that is not there for so long is lost. One that dies is missed at once."""
_WORK_LIMIT = timedelta(days=30)
"""Preparing, scoring and writing take as long as they take."""

LOST_RANK_CODE = 75
"""A launched rank leaves with this exit code, and silently, when it is another one that is gone."""

Rows = TypeVar("Rows", Tensor, Array)
Cut = TypeVar("Cut", Array, range)
T = TypeVar("T")


class LostRank(LargeGTError):
    """A rank is gone, so the others cannot go on."""


class Ranks:
    """This process among those that train together."""

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, host: Any = None, patient: Any = None
    ) -> None:
        """Of `size` ranks this is number `rank`, and number `local_rank` of its machine. `host` and `patient` are
        process groups of gloo for what lies on the host, and for what takes its time."""
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.idle = False
        """Whether no node of the present batch is this rank's."""
        self._host, self._patient = host, patient

    @classmethod
    def here(cls, device: str = "auto") -> Ranks:
        """The ranks that this process was started among; joins them the first time. `device` as in train.device."""
        global _joined
        if _joined is None and not dist.is_initialized() and started_among() > 1:
            backend = backend_for(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            dist.init_process_group(backend, timeout=_STEP_LIMIT)
            atexit.register(_leave)
        if _joined is None and dist.is_initialized():
            host, patient = (dist.new_group(backend="gloo", timeout=limit) for limit in (_STEP_LIMIT, _WORK_LIMIT))
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            _joined = cls(dist.get_rank(), dist.get_world_size(), local_rank, host, patient)
        return _joined or ALONE

    @property
    def is_first(self) -> bool:
        """Whether it is this rank that writes, logs and shows progress."""
        return self.rank == 0

    @property
    def gpu(self) -> int:
        """The GPU of this machine that is this rank's."""
        return self.local_rank % max(1, torch.cuda.device_count())

    def attach(self, model: nn.Module) -> None:
        """Let the parts of a model that look at whole batches, codebook and batch norm, look at those of all ranks."""
        for module in model.modules():
            if isinstance(getattr(module, "ranks", None), Ranks):
                module.ranks = self  # type: ignore[assignment]

    # parts of batches

    def shares(self, count: int) -> list[int]:
        """How many of so many rows each rank takes: as many as the others, or one less."""
        bounds = [count * rank // self.size for rank in range(self.size + 1)]
        return [high - low for low, high in pairwise(bounds)]

    def part(self, rows: Rows) -> Rows:
        """This rank's of these rows, in order; the first one where it would have none."""
        if self.size == 1:
            return rows
        mine = rows[len(rows) * self.rank // self.size : len(rows) * (self.rank + 1) // self.size]
        return mine if len(mine) else rows[:1]

    def batches_of(self, rows: Cut, batch_size: int) -> Cut:
        """This rank's of these rows, in order, perhaps none: whole batches, so that they are composed as for one
        process and give the same floats."""
        num_batches = -(-len(rows) // batch_size)
        low, high = (num_batches * rank // self.size * batch_size for rank in (self.rank, self.rank + 1))
        return rows[low:high]

    # tensors of all ranks

    def counts(self, num_rows: int) -> list[int]:
        """How many rows each rank says that it has. They meet on the host: no GPU is waited for."""
        if self.size == 1:
            return [num_rows]
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = num_rows
        return self.sum_(counts).tolist()

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place; without gradient."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._group_of(tensor))
        return tensor

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, and its gradient."""
        if self.size == 1:
            return tensor
        from torch.distributed.nn.functional import all_reduce

        # what a rank adds reaches the losses of all ranks, so the gradient is a sum over them too
        summed: Tensor = all_reduce(tensor, group=self._group_of(tensor))  # type: ignore[no-untyped-call]
        return summed

    def joined(self, rows: Tensor, counts: list[int]) -> Tensor:
        """The rows of all ranks one behind the other; `counts` says how many each has."""
        if self.size == 1:
            return rows
        every = rows.new_zeros((sum(counts), *rows.shape[1:]))
        every[self._start(counts) :][: len(rows)] = rows
        return self.sum_(every)  # of numbers and zeros; gloo gathers neither on a GPU nor different lengths

    def rows_at(self, rows: Tensor, at: Tensor, counts: list[int]) -> Tensor:
        """[at, w] some of the rows [·, w] of all ranks, by where they are in `joined`, without joining them."""
        if self.size == 1:
            return rows[at]
        at = at - self._start(counts)
        mine = (at >= 0) & (at < len(rows))
        if not len(rows):
            return self.sum_(rows.new_zeros((len(at), rows.shape[1])))
        return self.sum_(torch.where(mine[:, None], rows[at.clamp(0, len(rows) - 1)], 0.0))

    def from_first(self, tensor: Tensor) -> Tensor:
        """As the first rank has it."""
        if self.size > 1:
            dist.broadcast(tensor, src=0, group=self._group_of(tensor))
        return tensor

    def _group_of(self, tensor: Tensor) -> Any:
        """The process group that a tensor travels in."""
        return self._host if tensor.device.type == "cpu" else dist.group.WORLD

    def _start(self, counts: list[int]) -> int:
        return [0, *accumulate(counts)][self.rank]

    # work that takes its time

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier(self._patient)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank does it before the others: they find it done."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def collected(self, value: T) -> list[T]:
        """What each rank has, on the first one; nothing on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, values, dst=0, group=self._patient)
        return values or []

    def give(self, rows_nw: Tensor) -> None:
        """Hand float32 rows to the first rank, which takes those of one rank after the other's. No rows: the end."""
        dist.send(torch.tensor([len(rows_nw)]), 0, group=self._patient)
        if len(rows_nw):
            dist.send(rows_nw, 0, group=self._patient)

    def taken(self, rank: int, width: int) -> Tensor | None:
        """[·, width] the next rows that a rank gives; None when there are no more."""
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, rank, group=self._patient)
        if not int(count):
            return None
        rows_nw = torch.empty(int(count), width)
        dist.recv(rows_nw, rank, group=self._patient)
        return rows_nw

    def first_says(self, value: T) -> T:
        """What the first rank has."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, group=self._patient)
        said: T = values[0]
        return said


ALONE = Ranks()
_joined: Ranks | None = None


def started_among() -> int:
    """How many processes this one was started among, by torchrun or in its manner; 1: alone."""
    known = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if known else 1


def is_first_here() -> bool:
    """Whether this process is the first of those it was started among, before they join."""
    return started_among() == 1 or os.environ["RANK"] == "0"


def backend_for(device: str, num_here: int) -> str:
    """How the tensors of so many ranks on this machine travel."""
    num_gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if not num_gpus:
        return "gloo"
    if num_here > num_gpus:
        if is_first_here():
            _log.warning(
                f"{num_here} ranks share {num_gpus} GPU{'s' if num_gpus > 1 else ''}: they talk by gloo, through the "
                "host's memory, since NCCL wants a GPU for each; one rank per GPU is faster"
            )
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def check_devices(devices: int) -> bool:
    """Whether this process has to start so many ranks, and is not one of them."""
    among = started_among()
    if among > 1 and devices not in (1, among):
        raise ConfigError(f"`devices={devices}`, but this is one of {among} processes already: leave `devices` out")
    return devices > 1 and among == 1


def is_joined() -> bool:
    """Whether this process is one of several that have joined."""
    return _joined is not None and _joined.size > 1


def is_lost_rank(error: BaseException) -> bool:
    """Whether an error says that another rank is gone, or not to be reached in time."""
    if not is_joined() or not isinstance(error, RuntimeError):
        return False
    if isinstance(error, dist.DistError):
        return True
    return any(word in str(error) for word in ("gloo", "Connection closed by peer", "NCCL"))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
