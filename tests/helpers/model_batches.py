"""Small batches for the tests of the model."""

from __future__ import annotations

import torch

from largegt.loader.batch import TokenBatch


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
