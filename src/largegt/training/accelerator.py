"""Accelerator: the device, the precision and the rank of one process.

Mixed precision is PyTorch's: `torch.autocast` around the forward pass, and in float16 a `GradScaler`, whose state
belongs to a checkpoint. Models of several ranks are wrapped in DistributedDataParallel.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from largegt.config.schema import TrainConfig
from largegt.errors import ConfigError
from largegt.models.base import NodeModel
from largegt.runtime.distributed import ALONE, Ranks
from largegt.runtime.hardware import ability, usable

_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Accelerator:
    """Where a process computes, and in which precision."""

    device: torch.device
    precision: str
    scaler: GradScaler
    """Disabled in every precision but 16-mixed: it passes everything through."""
    ranks: Ranks = ALONE

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        if self.precision not in _MIXED:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_MIXED[self.precision])

    def distribute(self, model: NodeModel) -> nn.Module:
        """A model that is on the device; of several ranks, with gradients averaged over them. Its buffers are the same
        on every rank by themselves."""
        if self.ranks.size == 1:
            return model
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # its new name is not in every torch
            return DistributedDataParallel(model, broadcast_buffers=False)


def make_accelerator(config: TrainConfig, ranks: Ranks = ALONE, trains: bool = False) -> Accelerator:
    """One device, chosen at run time, with the precision that suits it. Each rank has one of its own. One that trains
    is refused a precision that this CPU cannot compute in."""
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ConfigError("train.device=cuda, but this machine has no usable GPU: use --set train.device=cpu")
    kind = "cuda" if cuda and config.device != "cpu" else "cpu"
    precision = precision_of(config, kind, trains)
    if kind == "cpu" and precision == "16-mixed":
        warnings.warn("train.precision=16-mixed computes in bfloat16 on a CPU", stacklevel=2)
        precision = "bf16-mixed"
    if precision == "bf16-mixed":
        torch.set_float32_matmul_precision("high")  # the few products left in float32 are small, and as exact as that
    device = torch.device("cuda", ranks.gpu) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    return Accelerator(device, precision, GradScaler(kind, enabled=precision == "16-mixed"), ranks)


def precision_of(config: TrainConfig, device_type: str, trains: bool = False) -> str:
    """The precision to compute in. `auto` is float32 on every CPU: results must not depend on how fast it is. A run
    that was trained in bfloat16 elsewhere is evaluated in float32 where bfloat16 does not work."""
    if config.precision == "auto":
        return "bf16-mixed" if device_type == "cuda" and torch.cuda.is_bf16_supported() else "32-true"
    if device_type == "cuda" or config.precision not in _MIXED:
        return config.precision
    if trains and (found := ability("bfloat16_cpu")).works is False:
        raise ConfigError(
            f"train.precision={config.precision} computes in bfloat16 on a CPU, which does not work on this one "
            f"({found.reason}): use --set train.precision=32-true"
        )
    return config.precision if usable("bfloat16_cpu", "float32 is used instead of bfloat16") else "32-true"
