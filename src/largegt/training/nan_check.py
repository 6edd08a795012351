"""NaN check: finds the first step whose loss is not a finite number, and its likely cause.

Enters: the loss of every step. Leaves: the losses of an epoch on the host (`Losses`), and an error that names the first
bad step, its likely cause and what to do. Cost on a GPU: three small kernels per step, part of its CUDA graph, and an
asynchronous copy of 64 losses every 64 steps: a bad loss is detected at most 128 steps later.
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
"""The sum of squares of larger numbers over a layer's width overflows float32."""


class Losses:
    """The losses of an epoch's steps. `add` runs on the device and may be part of a CUDA graph, `look` on the host."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.ranks = ranks
        self.every = _EVERY if device.type == "cuda" or ranks.size > 1 else 1
        self._ring = torch.zeros(2 * self.every, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self.restart()

    def restart(self) -> None:
        """Start a new epoch."""
        self._next.zero_()
        self._num_steps, self._seen = 0, list[float]()
        self._copying: tuple[Tensor, torch.Event | None] | None = None

    def add(self, loss: Tensor) -> None:
        """Store the loss of a step on the device."""
        self._ring.index_copy_(0, self._next, loss.detach().float().view(1))
        self._next.add_(1).remainder_(len(self._ring))

    def look(self) -> bool:
        """Call after each step. Whether a loss is known not to be finite; the same answer on all ranks."""
        self._num_steps += 1
        if self._num_steps % self.every:
            return False
        self._finish_copy()
        start = (self._num_steps - self.every) % len(self._ring)
        window = self._ring[start : start + self.every]
        if window.device.type == "cpu":
            self._copying = window, None
            self._finish_copy()
        else:
            copy = pinned_buffer(window.shape, window.dtype)
            copy.copy_(window, non_blocking=True)
            self._copying = copy, torch.cuda.current_stream(window.device).record_event()
        bad = not all(map(math.isfinite, self._seen[-self.every :]))
        return bool(self.ranks.all_reduce_(torch.tensor([bad], dtype=torch.int64)))

    def finish(self) -> Array:
        """float64 [steps] the losses of the epoch, summed over ranks."""
        self._finish_copy()
        start = len(self._seen) % len(self._ring)
        self._seen += self._ring[start : start + self._num_steps - len(self._seen)].tolist()
        return self.ranks.all_reduce_(torch.tensor(self._seen, dtype=torch.float64)).numpy()

    def _finish_copy(self) -> None:
        if self._copying is not None:
            copy, done = self._copying
            if done is not None:
                done.synchronize()  # the copy started `every` steps ago
            self._seen += copy.tolist()
            self._copying = None


def about_steps(losses: Array) -> dict[str, float | int]:
    """Log entries about an epoch's steps: the highest loss, its step (counted from 1), and the number of spikes."""
    highest = int(losses.argmax())
    return {"highest_loss": float(losses[highest]), "highest_step": highest + 1, "spikes": num_spikes(losses)}


def num_spikes(losses: Array) -> int:
    """The number of losses far above their neighbours: in blocks of about 50 steps, more than twice the median and more
    than ten times the median absolute deviation above it."""
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
    """Why the model's output for one of `batches` is not finite, and what to do. Checks the inputs of these batches,
    then those of the training batches just `before`."""
    largest = 0.0
    for nodes, batch in chain(zip(repeat("its nodes"), batches), zip(repeat("nodes of the steps before it"), before)):
        for name, values in _inputs(batch):
            if not bool(values.isfinite().all()):
                return f"{name} of {nodes} are not all finite: {prepared.path} is damaged, delete it and prepare again"
            largest = max(largest, float(values.abs().max()) if values.numel() else 0.0)
        if largest > _HUGE:
            is_scaled = prepared.config.tokens.normalize != "none"
            mend = "scale them before ingest" if is_scaled else "train with `prepare.tokens.normalize=per_feature`"
            return f"features of {nodes} are as large as {largest:.2g}: {mend}"
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
    """The inputs of a batch by name, without labels."""
    names = ("tokens", "features", "positions", "neighbor_label_histogram", "local_label_histogram")
    found = [(name.replace("_", " "), getattr(batch, name, None)) for name in names]
    return [(name, values) for name, values in found if isinstance(values, Tensor)]
