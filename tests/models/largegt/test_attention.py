"""Attention and the encoder layer against written-out versions."""

from __future__ import annotations

import pytest
import torch

from largegt.models.largegt.attention import Attention, EncoderLayer, attend_in_full
from oracles import attention as oracle


def tokens(b: int = 2, t: int = 5, d: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(b, t, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 6), (2, 3), (2, 6), (2, 8), (3, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_attention(heads: int, head_dim: int, biased: bool) -> None:
    """Output and gradients; heads no narrower than the model are computed without keys and values."""
    torch.manual_seed(1)
    module = Attention(6, heads, head_dim).double()
    x = tokens().requires_grad_()
    bias = torch.tensor([[0.0, 0.7, -1.0, 2.0, 0.1], [0.0, 0.0, 1.1, -float("inf"), -float("inf")]]).double()
    found = module(x, bias if biased else None)
    scores = bias.tolist() if biased else [[0.0] * 5] * 2
    rows = [torch.stack(oracle.self_attention(module, list(x[row]), scores[row])) for row in range(2)]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected)
    leaves = [x, *module.parameters()]
    for one, other in zip(*(torch.autograd.grad((y**2).sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("ffn_width", [0, 7])
def test_encoder_layer(ffn_width: int) -> None:
    torch.manual_seed(2)
    layer = EncoderLayer(6, 2, 3, ffn_width, 0.5, 0.5).double().eval()
    for norm in [m for m in layer.modules() if isinstance(m, torch.nn.LayerNorm)]:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    assert (layer.ffn is None) == (ffn_width == 0)
    x = tokens()
    found = layer(x)
    for row in range(2):
        torch.testing.assert_close(found[row], torch.stack(oracle.encoder_layer(layer, list(x[row]), [0.0] * 5)))


def test_each_kind_of_dropout_does_something() -> None:
    for rates in ((0.5, 0.0), (0.0, 0.5)):
        layer = EncoderLayer(6, 2, 3, 0, *rates).double()
        assert not torch.equal(layer(tokens()), layer(tokens()))


@pytest.mark.parametrize("head_dim", [3, 6])
def test_dropout_falls_on_the_weights_and_not_on_the_values_bias(head_dim: int) -> None:
    torch.manual_seed(4)
    module = Attention(6, 2, head_dim, dropout=0.5).double()
    x = tokens(b=1)
    with torch.no_grad():
        mean = torch.stack([module(x) for _ in range(4000)]).mean(dim=0)
        torch.testing.assert_close(mean, module.eval()(x), atol=0.05, rtol=0)
        module.qkv.weight.zero_()  # values are their bias alone now
        assert torch.allclose(module.train()(x), module.eval()(x))


@pytest.mark.parametrize("num_keys", [5, 8])
@pytest.mark.parametrize("biased", [False, True])
def test_scores_in_full_are_the_same_attention(num_keys: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 1, rows, 6, generator=generator, requires_grad=True) for rows in (9, num_keys, num_keys))
    bias = torch.randn(2, 1, 1, num_keys, generator=generator) if biased else None
    if bias is not None:
        bias[1, :, :, -2:] = -torch.inf
    found = attend_in_full(q, k, v, bias, 0.0, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, generator=generator)
    for one, other in zip(*(torch.autograd.grad(y, (q, k, v), weight) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_of_scores_in_full_is_of_the_weights() -> None:
    ones = torch.ones(1, 1, 400, 8)
    found = attend_in_full(ones, ones, ones, None, 0.4, 1.0)
    assert found.std() > 0.01
    assert float(found.mean()) == pytest.approx(1.0, abs=0.01)
