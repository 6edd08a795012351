"""Builds the parts of a training from a configuration: device and precision, model, loader, optimizer, learning rate.

Mixed precision uses PyTorch's `torch.autocast` around the forward pass, and in float16 a `GradScaler`, whose state is
part of a checkpoint. With several ranks the model is wrapped in DistributedDataParallel.
"""

from __future__ import annotations

import logging
import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from largegt.config.models import ModelConfig
from largegt.config.schema import TrainConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.hardware.abilities import ability, usable
from largegt.loader.label_inputs import LocalLabels
from largegt.loader.loader import TokenLoader
from largegt.loader.table import TokenForm, TokenTable
from largegt.models.base import NodeModel
from largegt.models.baselines.loader import NeighborLoader
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import ALONE, Ranks
from largegt.types import TablePlace

_log = logging.getLogger(__name__)

_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_FEATURES_PER_TILE = 64
_STEPS_WORTH_COMPILING = 4000


@dataclass(frozen=True)
class Accelerator:
    """The device and the precision of a process."""

    device: torch.device
    precision: str
    scaler: GradScaler
    """Enabled only in 16-mixed; otherwise it changes nothing."""
    ranks: Ranks = ALONE

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        if self.precision not in _MIXED:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_MIXED[self.precision])

    def distribute(self, model: NodeModel) -> nn.Module:
        """Wrap a model that is on the device so that gradients are averaged over ranks. Its buffers need no broadcast:
        every rank computes the same ones."""
        if self.ranks.size == 1:
            return model
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # older torch lacks the new name
            return DistributedDataParallel(model, broadcast_buffers=False)


def make_accelerator(config: TrainConfig, ranks: Ranks = ALONE, trains: bool = False) -> Accelerator:
    """The device of this rank, chosen at run time, and its precision. `trains`: refuse a precision that this CPU does
    not support; evaluation uses float32 instead."""
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ConfigError("train.device=cuda, but this machine has no usable GPU: use `train.device=cpu`")
    kind = "cuda" if cuda and config.device != "cpu" else "cpu"
    precision = precision_of(config, kind, trains)
    if kind == "cpu" and precision == "16-mixed":
        _log.warning("train.precision=16-mixed computes in bfloat16 on a CPU")
        precision = "bf16-mixed"
    if precision == "bf16-mixed":
        torch.set_float32_matmul_precision("high")  # few products stay in float32, and TF32 is accurate enough for them
    device = torch.device("cuda", ranks.gpu) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    return Accelerator(device, precision, GradScaler(kind, enabled=precision == "16-mixed"), ranks)


def precision_of(config: TrainConfig, device_type: str, trains: bool = False) -> str:
    """The precision to compute in. `auto` is float32 on every CPU: results must not depend on the CPU's speed. A run
    trained in bfloat16 on another machine is evaluated in float32 where bfloat16 does not work."""
    if config.precision == "auto":
        return "bf16-mixed" if device_type == "cuda" and torch.cuda.is_bf16_supported() else "32-true"
    if device_type == "cuda" or config.precision not in _MIXED:
        return config.precision
    if trains and (found := ability("bfloat16_cpu")).works is False:
        raise ConfigError(
            f"train.precision={config.precision} computes in bfloat16 on a CPU, which does not work on this one "
            f"({found.reason}): use `train.precision=32-true`"
        )
    return config.precision if usable("bfloat16_cpu", "float32 is used instead of bfloat16") else "32-true"


def build_model(config: ModelConfig, prepared: Prepared) -> NodeModel:
    """The model named `config.name`, with shapes that fit the data."""
    model: NodeModel = config.spec.load().for_prepared(prepared, config)
    return model


def is_worth_compiling(config: TrainConfig, device: torch.device, num_steps: int) -> bool:
    """Whether `train.compile` is on and works on this machine. `auto` compiles if the number of faster steps outweighs
    the minute of compilation."""
    is_on = config.compile is True
    if config.compile == "auto":
        is_on = device.type == "cuda" and num_steps >= _STEPS_WORTH_COMPILING
    return is_on and usable(
        "compile_cuda" if device.type == "cuda" else "compile_cpu", "the model is not compiled, since that fails"
    )


AnyLoader = TokenLoader | NeighborLoader


def make_loader(
    prepared: Prepared,
    model: NodeModel,
    config: TrainConfig,
    device: torch.device,
    place: TablePlace = "auto",
    store: GraphStore | None = None,
) -> AnyLoader:
    """Batches of what the model reads. Tokens: as many local nodes as it wants, repeated ones once where that is
    faster; for a GPU in the precision it computes in, padded to a width it likes."""
    form = TokenForm()
    if device.type == "cuda" and model.takes_padding:
        form = TokenForm(torch.bfloat16 if precision_of(config, "cuda") == "bf16-mixed" else None, _FEATURES_PER_TILE)
    table = TokenTable(prepared, device, place, form)
    if model.reads != "tokens":
        store = store or prepared.store()
        return NeighborLoader.make(table, device, model, prepared, store, config.seed)
    distinct = config.deduplicate_tokens is True or (config.deduplicate_tokens == "auto" and device.type == "cpu")
    labels = LocalLabels.of_training_nodes(prepared, table.device) if model.reads_labels else None
    return TokenLoader(table, device, model.num_local_nodes, distinct, labels, model.local_node_dropout)


def num_samples(model: NodeModel, config: TrainConfig, wanted: int) -> int:
    """`wanted` samples, or one if the model's predictions do not depend on a sample."""
    is_random = {
        "tokens": model.num_local_nodes is None, "neighborhoods": True, "sample": not config.layerwise_inference
    }  # fmt: skip
    return wanted if is_random.get(model.reads, False) else 1


def make_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Adam or AdamW, with weight decay only on matrices, not on biases, norms and embeddings."""
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if device.type == "cuda" and config.precision != "16-mixed":  # 16-mixed: gradients are unscaled before clipping
        # one kernel, usable in a CUDA graph: the learning rate is a tensor on the device
        return kind(groups, lr=torch.tensor(config.learning_rate, device=device), fused=True, capturable=True)
    return kind(groups, lr=config.learning_rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int, num_steps: int) -> None:
    """Set the rate of a step: constant, or linear warm-up and then cosine to zero or linear to min_learning_rate."""
    rate = config.learning_rate * _factor(config, step, num_steps)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _factor(config: TrainConfig, step: int, num_steps: int) -> float:
    if config.lr_scheduler == "constant":
        return 1.0
    warmup_steps = config.warmup_ratio * num_steps if config.warmup_steps is None else config.warmup_steps
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if config.lr_scheduler == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1.0, num_steps - warmup_steps)))
    done = (step - warmup_steps) / max(1.0, num_steps - 1 - warmup_steps)
    return 1 - (1 - config.min_learning_rate / config.learning_rate) * done
