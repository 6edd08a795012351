"""Steps of a training without the training around them, for the tests of recorded steps."""

from __future__ import annotations

from typing import Any

import torch

from largegt.config.schema import Config
from largegt.preprocessing.prepared import Prepared
from largegt.training.checkpoint import State
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_accelerator, make_loader
from largegt.training.step import TrainingStep


def recorded_step(
    prepared: Prepared, config: Config, is_recorded: bool, compiled_sizes: set[int] | frozenset[int] = frozenset()
) -> tuple[TrainingStep, Any, Any]:
    """(step, model, loader): always from the same first weights."""
    torch.manual_seed(0)
    accelerator = make_accelerator(config.train)
    model: Any = build_model(config.model, prepared)
    state = State.make(model, config.train, accelerator)
    if compiled_sizes:
        model.compile_for(set(compiled_sizes))
    head = TaskHead.for_training(prepared, config.train)
    step = TrainingStep(accelerator, state, head, config.train, is_recorded)
    return step, model, make_loader(prepared, model, config.train, accelerator.device)


def weights_that_matter(model: torch.nn.Module) -> list[torch.Tensor]:
    """Without the bias of keys: no softmax changes with it, so its gradient is rounding, which Adam makes large."""
    values = [(name, parameter.detach().cpu()) for name, parameter in model.named_parameters()]
    return [torch.cat([*value.chunk(3)[::2]]) if name.endswith("qkv.bias") else value for name, value in values]
