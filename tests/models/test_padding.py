"""Linear layers with zeros behind their inputs, and at widths that suit a GPU."""

from __future__ import annotations

import torch

from largegt.models.largegt.padding import PaddedLinear


def test_zeros_behind_the_features_change_nothing() -> None:
    torch.manual_seed(0)
    layer = PaddedLinear(5, 3)
    plain = torch.nn.Linear(5, 3)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, 5)
    padded = torch.nn.functional.pad(x, (0, 3))
    torch.testing.assert_close(layer(padded), plain(x))
    layer(padded).square().sum().backward()
    plain(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad)


def test_without_zeros_it_is_a_linear_layer() -> None:
    torch.manual_seed(0)
    layer = PaddedLinear(5, 3)
    x = torch.randn(4, 5)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
