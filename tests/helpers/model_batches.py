"""Small batches for the tests of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from largegt.config.models import LargeGTLocalConfig
from largegt.loader.batch import TokenBatch
from largegt.models.input_encoder import InputEncoder
from largegt.models.largegt.local_module import LocalModule


def make_batch(
    b: int = 6, k: int = 4, f: int = 5, p: int = 3, classes: int = 3, first: int = 0, seed: int = 0
) -> TokenBatch:
    """Random tokens of the nodes `first`, `first + 1`, …, in float64."""
    g = torch.Generator().manual_seed(seed)
    return TokenBatch(
        nodes=torch.arange(first, first + b),
        tokens=torch.randn(b, 3 * k, f, generator=g, dtype=torch.float64),
        multiplicity=None,
        positions=torch.randn(b, p, generator=g, dtype=torch.float64),
        labels=torch.randint(classes, (b,), generator=g),
    )


class EmbeddedModule(nn.Module):
    """An InputEncoder and the LocalModule behind it: tokens [b, t, f] → H_local [b, d]."""

    def __init__(self, num_features: int = 5, hops: int = 2, num_labels: int = 0, **settings: Any) -> None:
        super().__init__()
        config = LargeGTLocalConfig(**{"hidden_dim": 8, **settings})
        self.inputs = InputEncoder(num_features, config.hidden_dim, hops, config, num_labels, config.input_dropout)
        self.local = LocalModule(config)

    def forward(self, tokens: torch.Tensor, multiplicity: torch.Tensor | None = None) -> torch.Tensor:
        return self.local(self.inputs(tokens), self.inputs.token_bias(multiplicity, tokens.dtype))
