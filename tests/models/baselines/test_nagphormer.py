"""NAGphormer: against the written-out encoder and the readout as its paper has it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from largegt.config.models import NAGphormerConfig
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape
from largegt.models.baselines.nagphormer import NAGphormer
from oracles import attention as oracle


def model_of(hops: int = 2, positions: int = 3, seed: int = 0, **settings: Any) -> NAGphormer:
    torch.manual_seed(seed)
    config = NAGphormerConfig(**{"hidden_dim": 8, **settings})
    return NAGphormer(DataShape(5, 4, 0, positions, hops), config).double().eval()


def batch_of(hops: int = 2, positions: int = 3, b: int = 6, k: int = 1) -> TokenBatch:
    g = torch.Generator().manual_seed(1)
    tokens = torch.randn(b, k * (hops + 1), 5, generator=g, dtype=torch.float64)
    encodings = torch.randn(b, positions, generator=g, dtype=torch.float64)
    return TokenBatch(torch.arange(b), tokens, None, encodings, torch.randint(4, (b,), generator=g))


def written_out(model: NAGphormer, tokens_tf: Tensor, position_p: Tensor, target_half_d: Tensor) -> Tensor:
    """Logits of one node. The projection is of joined vectors, and the readout's score sees [h₀; h_k]."""
    project = model.inputs.project
    weight, bias = project.weight, project.bias
    if model.project_positions is not None:
        weight = torch.cat([weight, model.project_positions.weight], dim=1)
    x = [weight @ torch.cat([token, position_p]) + bias for token in tokens_tf]
    for layer in model.layers:
        x = oracle.encoder_layer(layer, x, [0.0] * len(x))
    own, *others = [oracle.layer_norm(model.norm, token) for token in x]
    if others:
        assert model.readout is not None
        weight_2d = torch.cat([target_half_d, model.readout.weight[0]])
        shares = oracle.softmax([(weight_2d * torch.cat([own, other])).sum() + 0.7 for other in others])
        own = own + torch.stack([share * other for share, other in zip(shares, others, strict=True)]).sum(dim=0)
    inner, _, outer = model.head
    return oracle.linear(outer, torch.relu(oracle.linear(inner, own)))


@pytest.mark.parametrize("settings", [
    {},
    {"num_layers": 3, "init": "normal"},
    {"num_heads": 1, "head_dim": 8},
    {"num_heads": 4, "ffn_ratio": 0.0},
])  # fmt: skip
@pytest.mark.parametrize("hops", [0, 1, 2, 7])
@pytest.mark.parametrize("positions", [0, 3])
def test_against_the_written_out_version(settings: dict[str, Any], hops: int, positions: int) -> None:
    model, batch = model_of(hops, positions, **settings), batch_of(hops, positions)
    output = model(batch)
    assert output.logits.shape == (6, 4)
    assert output.hidden.shape == (6, 8)
    target_half = torch.randn(8, dtype=torch.float64)
    for row in range(6):
        expected = written_out(model, batch.tokens[row], batch.positions[row], target_half)
        torch.testing.assert_close(output.logits[row], expected)


def test_its_authors_shapes() -> None:
    """FFN of twice the width, a head of half the width; scores alone would be 2·hidden + 1 numbers more there."""
    model = model_of(hidden_dim=16, num_heads=4)
    ffn = [part for part in model.layers[0].ffn if isinstance(part, torch.nn.Linear)]
    assert [part.weight.shape for part in ffn] == [(32, 16), (16, 32)]
    assert model.head[0].weight.shape == (8, 16)
    assert model.head[2].weight.shape == (4, 8)


def test_dropout_is_the_encoders() -> None:
    model, batch = model_of(encoder_dropout=0.5).train(), batch_of()
    assert not torch.allclose(model(batch).logits, model(batch).logits)
    model = model_of(encoder_dropout=0.0).train()
    assert torch.equal(model(batch).logits, model(batch).logits)


@pytest.mark.parametrize("num_layers", [1, 4])
def test_normal_init_is_as_published(num_layers: int) -> None:
    model = NAGphormer(
        DataShape(50, 9, 0, 20, 3), NAGphormerConfig(hidden_dim=128, init="normal", num_layers=num_layers)
    )
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weights = torch.cat([m.weight.flatten() for m in linears])
    assert weights.std().item() == pytest.approx(0.02 / math.sqrt(num_layers), rel=0.05)
    assert all((m.bias == 0).all() for m in linears if m.bias is not None)
