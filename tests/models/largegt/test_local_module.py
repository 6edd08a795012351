"""LocalModule against the written-out version, and the identities its shortcuts rest on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from largegt.config.models import LargeGTLocalConfig
from largegt.loader.batch import distinct_rows, input_tokens
from largegt.models.largegt.model import LargeGT
from largegt.models.padding import PaddedLinear
from model_batches import EmbeddedModule, make_batch
from oracles import attention as oracle


def module_of(hops: int = 2, seed: int = 0, **settings: Any) -> EmbeddedModule:
    torch.manual_seed(seed)
    module = EmbeddedModule(hops=hops, **settings).double().eval()
    if module.inputs.hop_embedding is not None:
        torch.nn.init.normal_(module.inputs.hop_embedding)
    return module


@pytest.mark.parametrize("settings", [
    {},
    {"num_layers": 3},
    {"hop_embedding": False, "ffn_ratio": 0.0, "head_dim": 8},
    {"num_heads": 3, "hidden_dim": 12},
    {"num_heads": 1, "num_layers": 2, "ffn_ratio": 0.5, "init": "normal"},
])  # fmt: skip
@pytest.mark.parametrize("k", [1, 4])
def test_against_the_written_out_version(settings: dict[str, Any], k: int) -> None:
    module = module_of(**settings)
    batch = make_batch(b=2, k=k)
    found = module(batch.tokens)
    assert found.shape == (2, settings.get("hidden_dim", 8))
    for row in range(2):
        torch.testing.assert_close(found[row], oracle.local_module(module, batch.tokens[row]))


@pytest.mark.parametrize("hop_embedding", [False, True])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("hops", [0, 1, 2, 4])
def test_any_number_of_hops(hops: int, k: int, hop_embedding: bool) -> None:
    module = module_of(hops, hop_embedding=hop_embedding)
    if hop_embedding:
        assert module.inputs.hop_embedding.shape == (2, hops + 1, 8)
    table = torch.randn(6, hops + 1, 5, dtype=torch.float64)
    rows = torch.randint(0, 6, (3, k))
    rows[0, 1:] = rows[0, :1]
    tokens = input_tokens(table, rows)
    found = module(tokens)
    for row in range(3):
        torch.testing.assert_close(found[row], oracle.local_module(module, tokens[row], h=hops + 1))
    if k > 1:
        distinct, multiplicity = distinct_rows(rows)
        torch.testing.assert_close(module(input_tokens(table, distinct), multiplicity), found)


def test_multiplicity_equals_repetition() -> None:
    """The distinct tokens with log(multiplicity) in their scores stand for the whole multiset."""
    table = torch.randn(5, 3, 5, dtype=torch.float64)
    rows = torch.tensor(
        [[0, 1, 1, 2, 1, 2], [3, 0, 1, 2, 3, 4], [4, 4, 4, 4, 4, 4], [1, 0, 0, 0, 0, 2], [2, 2, 1, 0, 0, 0]]
    )
    many = torch.randint(0, 5, (37, 6), generator=torch.Generator().manual_seed(0))
    many[::3, 2:] = many[::3, 1:2]
    rows = torch.cat([rows, many])  # more than segments, in any order
    distinct, multiplicity = distinct_rows(rows)
    module = module_of(num_layers=2)
    whole = module(input_tokens(table, rows).double())
    merged = module(input_tokens(table, distinct).double(), multiplicity)
    torch.testing.assert_close(merged, whole)
    for row in range(5):
        bias = [math.log(m) if m else -math.inf for m in multiplicity[row].tolist() for _ in range(3)]
        used = [t for t, b in enumerate(bias) if b > -math.inf]
        tokens = input_tokens(table, distinct).double()[row, used]
        torch.testing.assert_close(merged[row], oracle.local_module(module, tokens, [bias[t] for t in used]))


def test_gradient_of_merged_tokens_is_that_of_repeated_ones() -> None:
    rows = torch.tensor([[0, 1, 1, 2], [3, 0, 0, 0]])
    table = torch.randn(4, 3, 5, dtype=torch.float64)
    module = module_of()

    def gradients(tokens: torch.Tensor, multiplicity: torch.Tensor | None) -> list[torch.Tensor]:
        module.zero_grad()
        module(tokens, multiplicity).square().sum().backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    distinct, multiplicity = distinct_rows(rows)
    plain = gradients(input_tokens(table, rows).double(), None)
    merged = gradients(input_tokens(table, distinct).double(), multiplicity)
    assert len(plain) == len(list(module.parameters()))
    for a, b in zip(plain, merged, strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b)


def test_under_dropout_copies_of_a_merged_token_share_a_mask() -> None:
    """So merged and repeated tokens differ while training: eight copies average out less noise as one. The docs of
    train.deduplicate_tokens say so."""
    table = torch.randn(2, 3, 5, dtype=torch.float64)
    rows = torch.tensor([[0, *[1] * 8]]).expand(3000, -1)
    module = module_of(encoder_dropout=0.5).train()
    distinct, multiplicity = distinct_rows(rows)
    with torch.no_grad():
        whole = module(input_tokens(table, rows).double())
        merged = module(input_tokens(table, distinct).double(), multiplicity)
    assert merged.std(dim=0).mean() > 1.05 * whole.std(dim=0).mean()


def test_target_half_of_an_additive_readout_cancels() -> None:
    """softmax_j(a·h₀ + w·h_j) has the weights of softmax_j(w·h_j)."""
    module = module_of()
    h = torch.randn(3, 7, 8, dtype=torch.float64)
    a = torch.randn(8, dtype=torch.float64)
    score = h[:, :1] @ a + h[:, 1:] @ module.local.readout.weight[0]
    expected = h[:, 0] + (score.softmax(dim=1)[:, :, None] * h[:, 1:]).sum(dim=1)
    torch.testing.assert_close(module.local.read(h, None), expected)


def test_normal_init_is_as_published() -> None:
    module = LargeGT(50, 3, 0, config=LargeGTLocalConfig(hidden_dim=64, init="normal"))
    module = torch.nn.ModuleList([module.inputs, module.local_module])
    weights = torch.cat([m.weight.flatten() for m in module.modules() if isinstance(m, torch.nn.Linear)])
    assert 0.018 < weights.std() < 0.022
    assert all((m.bias == 0).all() for m in module.modules() if isinstance(m, torch.nn.Linear) and m.bias is not None)


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
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias)), "without zeros"
