"""What the batches of models that draw neighbours themselves have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor


class DrawnBatch:
    """Base of frozen dataclasses of tensors, or of tuples of blocks; what a model sees of b nodes."""

    nodes: Tensor
    multiplicity: ClassVar[None] = None
    """As a TokenBatch has it: every row stands for itself."""

    def __len__(self) -> int:
        return len(self.nodes)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""

        def moved(value: Any) -> Any:
            return tuple(map(moved, value)) if isinstance(value, tuple) else value.to(device, non_blocking=non_blocking)

        return replace(self, **{name: moved(value) for name, value in vars(self).items()})  # type: ignore[type-var]
