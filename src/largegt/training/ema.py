"""Weight average: an exponential moving average of the weights over the steps, which is scored in their place.

Parameters alone are averaged: buffers (the codebook, the running statistics of batch norm) are moving averages already.
Cost: one more copy of the parameters, and a pass over them per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class WeightAverage:
    """`update()` after every step; `with average.in_place():` the model has the averaged weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Of a model that is on its device already."""
        self.decay = decay
        self._own = dict(model.named_parameters())
        self._averaged = {name: parameter.detach().clone() for name, parameter in self._own.items()}
        device = next(iter(self._own.values())).device
        self._num_steps = torch.zeros((), device=device)  # on the device: a recorded step counts there

    @torch.no_grad()
    def update(self) -> None:
        """Count the newest weights in. After t steps the decay is (1 + t) / (10 + t) at most."""
        decay = ((1 + self._num_steps) / (10 + self._num_steps)).clamp(max=self.decay)
        self._num_steps += 1
        averaged = list(self._averaged.values())
        steps = torch._foreach_sub(list(self._own.values()), averaged)
        torch._foreach_mul_(steps, 1 - decay)
        torch._foreach_add_(averaged, steps)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, to the bit. They are copied, since
        compiled and recorded code looks for them where they lie."""
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
        for own, averaged in zip(self._own.values(), self._averaged.values(), strict=True):
            kept = own.clone()
            own.copy_(averaged)
            averaged.copy_(kept)
