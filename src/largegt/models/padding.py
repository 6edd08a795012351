"""Zero padding to widths that suit a GPU, with the same results.

Tensor cores need widths that are multiples of 8; with 100 features or 47 classes a matrix product uses kernels that are
several times slower. On a CPU nothing is padded.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

_MULTIPLE = 8


class PaddedLinear(nn.Linear):
    """A linear layer that accepts zero-padded features, and on a GPU pads its outputs internally. Its weights have the
    shapes of a plain `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        more_inputs = input.shape[-1] - self.in_features
        more_outputs = -self.out_features % _MULTIPLE if input.is_cuda else 0
        if not more_inputs and not more_outputs:
            return super().forward(input)
        weight = F.pad(self.weight, (0, more_inputs, 0, more_outputs))
        return F.linear(input, weight, F.pad(self.bias, (0, more_outputs)))[..., : self.out_features]
