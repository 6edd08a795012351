"""Rows gathered and rounded in one pass, and rows read over the bus."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from largegt.loader.bf16_gather import gather_bf16
from largegt.loader.pinned_gather import gather_pinned


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_rounded_as_torch_rounds(threads: int) -> None:
    rng = np.random.default_rng(0)
    source = (rng.normal(size=(50, 3, 7)) * 10.0 ** rng.integers(-38, 38, (50, 3, 7))).astype(np.float32)
    source[0, 0] = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 2**-140, 3.38e38]  # ties go to even
    at = rng.integers(0, 50, 400)
    out = np.empty((400, 3, 7), dtype=np.uint16)
    gather_bf16(source, at, out, 17, threads)
    found = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(found, torch.from_numpy(source[at]).bfloat16())


@pytest.mark.parametrize("width", [5, 8, 64])
def test_rows_over_the_bus_have_zeros_behind_their_features(width: int) -> None:
    table, rows = torch.randn(9, 3, 8), torch.tensor([3, 3, 0, 8])
    found = gather_pinned(table, rows, width)
    assert found.shape == (4, 3, width)
    assert torch.equal(found[..., :5], table[rows, :, :5])
    assert not found[..., 8:].any()
