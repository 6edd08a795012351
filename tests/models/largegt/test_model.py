"""LargeGT: Eqns 5 and 6, its three variants, and a user's own training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from largegt.config.models import model_config
from largegt.config.schema import LocalNodesConfig, PositionalEncodingConfig, PrepareConfig
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import token_batches
from largegt.models.largegt.model import BatchNorm, LargeGT
from largegt.preprocessing.pipeline import prepare
from model_batches import make_batch

NAMES = ["largegt-full", "largegt-local", "largegt-global"]


def model_of(name: str = "largegt-full", num_outputs: int = 3, num_positions: int = 3, **settings: Any) -> LargeGT:
    torch.manual_seed(0)
    codebook = {} if name == "largegt-local" else {"codebook": {"num_centroids": 6, "dim": 4}}
    config = model_config(name, **{"hidden_dim": 8, **codebook, **settings})
    return LargeGT(5, num_outputs, 50, num_positions, config).double()


def floats(batch: TokenBatch) -> TokenBatch:
    return TokenBatch(batch.nodes, batch.tokens.float(), None, batch.positions.float(), batch.labels)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("num_outputs", [1, 4])
@pytest.mark.parametrize("num_positions", [0, 3])
def test_shapes(name: str, norm: str, num_outputs: int, num_positions: int) -> None:
    model = model_of(name, num_outputs, num_positions, norm=norm)
    batch = make_batch(p=num_positions)
    output = model(batch)
    assert output.logits.shape == (6, num_outputs)
    assert output.hidden.shape == (6, 8)
    assert torch.equal(output.nodes, batch.nodes)
    assert (model.local_module is None) == (name == "largegt-global")
    assert (model.global_module is None) == (name == "largegt-local")
    if model.global_module is None:
        assert output.codebook_input is None
        model.update_codebook(output)  # nothing to do
    else:
        assert output.codebook_input.shape == (6, 4 + num_positions)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("residual", [True, False])
def test_equations_5_and_6(name: str, norm: str, residual: bool) -> None:
    """Ĥ = FFN(local ‖ global); H_out = H_in + Norm(Ĥ), or Norm(Ĥ) alone; then the head."""
    model = model_of(name, norm=norm, residual=residual)
    for _ in range(3):
        model(make_batch(seed=1))  # so that batch norm has statistics of its own
    model.eval()
    batch = make_batch()
    parts = []
    if model.local_module is not None:
        parts.append(model.local_module(model.inputs(batch.tokens)))
    if model.global_module is not None:
        parts.append(model.global_module(batch.tokens[:, 0], batch.positions)[0])

    def normalize(layer: Any, x: torch.Tensor) -> torch.Tensor:
        if norm == "batch":
            return (x - layer.running_mean) / torch.sqrt(layer.running_var + layer.eps) * layer.weight + layer.bias
        centered = x - x.mean(dim=1, keepdim=True)
        return centered / torch.sqrt((centered**2).mean(dim=1, keepdim=True) + layer.eps) * layer.weight + layer.bias

    inner, inner_norm, _, _, outer = model.ffn
    x = torch.cat(parts, dim=1) @ inner.weight.T + inner.bias
    h = torch.relu(normalize(inner_norm, x)) @ outer.weight.T + outer.bias
    h = normalize(model.norm, h)
    if residual:
        h = batch.tokens[:, 0] @ model.input.weight.T + model.input.bias + h
    else:
        assert model.input is None
    output = model(batch)
    logits, hidden = model.encode(model.embed(batch))
    assert torch.equal(logits, output.logits), "forward is encode of embed"
    assert torch.equal(hidden, output.hidden)
    torch.testing.assert_close(output.hidden, h)
    torch.testing.assert_close(output.logits, torch.relu(h) @ model.head[2].weight.T + model.head[2].bias)


def test_batch_norm_is_torch_s_but_for_a_batch_of_one() -> None:
    ours, theirs = BatchNorm(4), torch.nn.BatchNorm1d(4)
    for step in range(4):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        assert torch.equal(ours(x), theirs(x))
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    assert torch.equal(ours(x[:1]), theirs.eval()(x[:1]))
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())


def test_forward_changes_no_state_and_update_only_the_codebook() -> None:
    """In double precision too: `model.double()` is a plain nn.Module's right, and the codebook follows."""
    model = model_of().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    output = model(make_batch())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.update_codebook(output)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("global_module.codebook.") for name in changed)


def test_head_width_is_per_head() -> None:
    narrow = model_of(hidden_dim=8, num_heads=2)
    assert narrow.local_module.layers[0].attention.qkv.weight.shape == (3 * 2 * 4, 8)
    wide = model_of(
        hidden_dim=8, num_heads=2, head_dim=8, codebook={"num_centroids": 6, "dim": 4, "num_heads": 2, "head_dim": 8}
    )
    assert wide.local_module.layers[0].attention.qkv.weight.shape == (3 * 2 * 8, 8)
    assert wide.local_module.layers[0].attention.join.weight.shape == (8, 16)
    assert wide.global_module.query.weight.shape == (16, 7)
    assert wide(make_batch()).logits.shape == (6, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_user_s_own_loop_learns(make_store: Any, name: Any) -> None:
    """The loop of the public interface as it is written there, on two noisy groups of nodes."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    edges = [(a, b) for a, b in rng.integers(0, 120, (900, 2)) if labels[a] == labels[b]]
    features = rng.normal(size=(120, 4)) + labels[:, None]
    store = make_store(edges, 120, features.astype(np.float32), labels, task="multiclass")
    prepared = prepare(
        store, PrepareConfig(local_nodes=LocalNodesConfig(k=6), positional_encoding=PositionalEncodingConfig(dim=8))
    )
    torch.manual_seed(0)
    codebook = {} if name == "largegt-local" else {"codebook": {"num_centroids": 16, "dim": 8}}
    config = model_config(name, hidden_dim=16, **codebook)
    model = LargeGT.for_prepared(prepared, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    means = []
    for epoch in range(12):
        losses = []
        for batch in token_batches(prepared, split="train", batch_size=16, seed=0, epoch=epoch):
            output = model(batch)
            loss = F.cross_entropy(output.logits, batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.update_codebook(output)
            losses.append(loss.item())
        means.append(np.mean(losses))
    assert means[-1] < 0.6 * means[0]
    model.eval()
    with torch.no_grad():
        batches = list(token_batches(prepared, split="test", batch_size=50))
        hits = torch.cat([model(batch).logits.argmax(dim=1) == batch.labels for batch in batches])
    assert hits.float().mean() > 0.8
    if model.global_module is not None:
        assert int(model.global_module.codebook.counts.sum()) == len(store.splits["train"])
