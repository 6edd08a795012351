"""Numerics: is every loss of a training a number; and if one is not, which was the first, and why?

Enters: the loss of every step. Leaves: `Losses`, those of an epoch on the host, and an error that names the first bad
step, its likely cause and what to do. Cost on a GPU: three small kernels a step, which are recorded with it, and a copy
of 64 losses every 64 steps, which nothing waits for: a bad one is known 128 steps later at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.config.schema import TrainConfig
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.cuda_streams import pinned_buffer
from largegt.runtime.distributed import Ranks
from largegt.types import Array

_EVERY = 64
_BLOCK, _LEAST, _TIMES_MEDIAN, _TIMES_SPREAD = 50, 10, 2.0, 10.0
_HUGE, _FLOAT16_MAX = 1e15, 65504.0
"""Squares of larger numbers leave float32 when they are summed over a layer's width."""


class Losses:
    """The losses of an epoch's steps. `add` is the device's part of a step and may be recorded, `look` the host's."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.ranks = ranks
        self.every = _EVERY if device.type == "cuda" or ranks.size > 1 else 1
        self._ring = torch.zeros(2 * self.every, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self.restart()

    def restart(self) -> None:
        """A new epoch begins."""
        self._at.zero_()
        self._num_steps, self._seen = 0, list[float]()
        self._coming: tuple[Tensor, torch.Event | None] | None = None

    def add(self, loss: Tensor) -> None:
        """Keep the loss of a step where it is."""
        self._ring.index_copy_(0, self._at, loss.detach().float().view(1))
        self._at.add_(1).remainder_(len(self._ring))

    def look(self) -> bool:
        """After a step: whether a loss is known to be no number. All ranks say the same."""
        self._num_steps += 1
        if self._num_steps % self.every:
            return False
        self._arrive()
        start = (self._num_steps - self.every) % len(self._ring)
        window = self._ring[start : start + self.every]
        if window.device.type == "cpu":
            self._coming = window, None
            self._arrive()
        else:
            copy = pinned_buffer(window.shape, window.dtype)
            copy.copy_(window, non_blocking=True)
            self._coming = copy, torch.cuda.current_stream(window.device).record_event()
        bad = not all(map(math.isfinite, self._seen[-self.every :]))
        return bool(self.ranks.all_reduce_(torch.tensor([bad], dtype=torch.int64)))

    def finish(self) -> Array:
        """float64 [steps] every loss of the epoch: the sum of what ranks have of it."""
        self._arrive()
        start = len(self._seen) % len(self._ring)
        self._seen += self._ring[start : start + self._num_steps - len(self._seen)].tolist()
        return self.ranks.all_reduce_(torch.tensor(self._seen, dtype=torch.float64)).numpy()

    def _arrive(self) -> None:
        if self._coming is not None:
            copy, whole = self._coming
            if whole is not None:
                whole.synchronize()  # it set out a window of steps ago
            self._seen += copy.tolist()
            self._coming = None


def about_steps(losses: Array) -> dict[str, float | int]:
    """What the log says of an epoch's steps: the highest loss, its step from 1 on, and how many spikes there were."""
    at = int(losses.argmax())
    return {"highest_loss": float(losses[at]), "highest_step": at + 1, "spikes": num_spikes(losses)}


def num_spikes(losses: Array) -> int:
    """How many of these losses stand far above those around them: over twice the median of some 50 steps, and further
    from it than ten times their spread."""
    spikes = 0
    for block in np.array_split(losses, -(-len(losses) // _BLOCK)):
        median = float(np.median(block))
        spread = float(np.median(np.abs(block - median)))
        limit = max(_TIMES_MEDIAN * median, median + _TIMES_SPREAD * spread)
        spikes += int(np.count_nonzero(block > limit)) if len(block) >= _LEAST else 0
    return spikes


def likely_cause(
    config: TrainConfig, precision: str, prepared: Prepared, batches: Iterable[Any], before: Iterable[Any] = ()
) -> str:
    """Why a model's output for one of these batches is no number, and what to do: by their inputs, then by those of the
    batches that it learned from just `before`."""
    largest = 0.0
    for whose, batch in chain(zip(repeat("its nodes"), batches), zip(repeat("nodes of the steps before it"), before)):
        for name, values in _inputs(batch):
            if not bool(values.isfinite().all()):
                return f"{name} of {whose} are not all finite: {prepared.path} is damaged, delete it and prepare again"
            largest = max(largest, float(values.abs().max()) if values.numel() else 0.0)
        if largest > _HUGE:
            is_scaled = prepared.config.tokens.normalize != "none"
            mend = "scale them before ingest" if is_scaled else "train with `prepare.tokens.normalize=per_feature`"
            return f"features of {whose} are as large as {largest:.2g}: {mend}"
    if precision == "16-mixed":
        hint = f" (features are as large as {largest:.2g})" if largest > math.sqrt(_FLOAT16_MAX) else ""
        return (
            f"float16 ends at {_FLOAT16_MAX:.0f}{hint}: use `train.precision=bf16-mixed` or 32-true, or a smaller "
            f"train.learning_rate (now {config.learning_rate:g})"
        )
    clip = "" if config.max_grad_norm is not None else " or `train.max_grad_norm=1`"
    return (
        "its inputs are finite, so most likely steps are too large: use a smaller train.learning_rate "
        f"(now {config.learning_rate:g}){clip}"
    )


def _inputs(batch: Any) -> list[tuple[str, Tensor]]:
    """The inputs of a batch by name, labels apart."""
    names = ("tokens", "features", "positions", "neighbor_label_histogram", "local_label_histogram")
    found = [(name.replace("_", " "), getattr(batch, name, None)) for name in names]
    return [(name, values) for name, values in found if isinstance(values, Tensor)]
