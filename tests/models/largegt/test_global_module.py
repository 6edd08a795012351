"""GlobalModule against Algorithm 3 written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from largegt.config.models import LargeGTConfig
from largegt.models.largegt.global_module import GlobalModule
from oracles import attention as oracle


def module_of(num_positions: int = 3, **codebook: Any) -> GlobalModule:
    torch.manual_seed(0)
    config = LargeGTConfig(hidden_dim=8, codebook={"num_centroids": 6, "dim": 4, **codebook})
    module = GlobalModule(5, num_positions, 20, config).double().eval()
    module.codebook.mean.normal_()
    module.codebook.variance.uniform_(0.5, 2.0)
    torch.nn.init.normal_(module.norm.weight)
    torch.nn.init.normal_(module.norm.bias)
    return module


@pytest.mark.parametrize("counts", [[1, 2, 3, 4, 5, 6], [0, 7, 0, 0, 1, 30], [0, 0, 0, 0, 0, 1]])
@pytest.mark.parametrize("settings", [{}, {"num_heads": 1}, {"num_heads": 3, "head_dim": 5}])
@pytest.mark.parametrize("num_positions", [0, 3])
def test_against_algorithm_3(counts: list[int], settings: dict[str, Any], num_positions: int) -> None:
    module = module_of(num_positions, **settings)
    module.codebook.counts.copy_(torch.tensor(counts))
    features, positions = torch.randn(4, 5).double(), torch.randn(4, num_positions).double()
    found, joined = module(features, positions)
    assert found.shape == (4, 8)
    for row in range(4):
        torch.testing.assert_close(found[row], oracle.global_module(module, features[row], positions[row], counts))
        expected = torch.cat([oracle.mlp(module.mlp_a, features[row]), positions[row]])
        torch.testing.assert_close(joined[row], expected)


def test_before_the_first_step_every_centroid_counts_alike() -> None:
    module = module_of()
    features, positions = torch.randn(2, 5).double(), torch.randn(2, 3).double()
    found, _ = module(features, positions)
    for row in range(2):
        torch.testing.assert_close(found[row], oracle.global_module(module, features[row], positions[row], [1] * 6))
