"""Exponential moving average of the weights over the steps. Validation, saved weights and predictions use it.

Only parameters are averaged: buffers (the codebook, the running statistics of batch norm) are moving averages already.
Cost: one more copy of the parameters, and one pass over them per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class WeightAverage:
    """Call `update()` after every step; inside `with average.in_place():` the model has the averaged weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """The model must already be on its device."""
        self.decay = decay
        self._parameters = dict(model.named_parameters())
        self._averaged = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        device = next(iter(self._parameters.values())).device
        self._num_steps = torch.zeros((), device=device)  # on the device, so that a CUDA graph can count

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average. After t steps the decay is at most (1 + t) / (10 + t)."""
        decay = ((1 + self._num_steps) / (10 + self._num_steps)).clamp(max=self.decay)
        self._num_steps += 1
        averaged = list(self._averaged.values())
        differences = torch._foreach_sub(list(self._parameters.values()), averaged)
        torch._foreach_mul_(differences, 1 - decay)
        torch._foreach_add_(averaged, differences)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit for bit. Values are copied, since
        compiled code and CUDA graphs hold the addresses of the parameters."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._averaged, "num_steps": self._num_steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, averaged in self._averaged.items():
            averaged.copy_(state["weights"][name])
        self._num_steps.copy_(state["num_steps"])

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, averaged in zip(self._parameters.values(), self._averaged.values(), strict=True):
            current = parameter.clone()
            parameter.copy_(averaged)
            averaged.copy_(current)
