"""SGC, SIGN and the MLP: against dense algebra and layers written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from largegt.config.schema import (
    Config,
    LocalNodesConfig,
    ModelConfig,
    PositionsConfig,
    PrepareConfig,
    TokensConfig,
)
from largegt.inference.predictor import predict
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenForm, TokenTable
from largegt.models.base import DataShape, NodeModel
from largegt.models.baselines.feature_models import MLP, SGC, SIGN
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.trainer import train
from oracles.context import adjacency, normalized

CONFIG = ModelConfig(hidden=8, num_layers=2, dropout=0.4)


@pytest.fixture
def graph(make_store: Any, random_edges: Any) -> tuple[Any, Any]:
    """(store, edges), directed."""
    edges = random_edges(50, 150)
    return make_store(edges, 50, undirected=False), edges


def prepared_of(store: Any, hops: int = 2, k: int = 1) -> Prepared:
    config = PrepareConfig(
        local_nodes=LocalNodesConfig(k=k, direction="out"),
        tokens=TokensConfig(hops=hops, standardize=False),
        positions=PositionsConfig(method="none"),
    )
    return prepare(store, config)


def powers_of(store: Any, edges: Any, hops: int) -> list[torch.Tensor]:
    """H, ÃH, …, dense."""
    a = normalized(adjacency(edges, store.num_nodes, "out"))
    powers = [np.asarray(store.features, dtype=np.float64)]
    for _ in range(hops):
        powers.append(a @ powers[-1])
    return [torch.from_numpy(power).float() for power in powers]


def logits_of(model: NodeModel, prepared: Prepared) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model.eval()(batch).logits for batch in token_batches(prepared, batch_size=7)])


def layer(sequence: Any, x: torch.Tensor) -> torch.Tensor:
    """Linear, layer norm, ReLU; without dropout."""
    linear, norm = sequence[0], sequence[1]
    y = x @ linear.weight.T + linear.bias
    return F.relu((y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, correction=0) + norm.eps).sqrt())


@pytest.mark.parametrize("hops", [0, 1, 2, 4])
def test_sgc_is_linear_in_the_last_hop(graph: Any, hops: int) -> None:
    store, edges = graph
    prepared = prepared_of(store, hops)
    model = SGC.for_prepared(prepared, CONFIG)
    expected = powers_of(store, edges, hops)[-1] @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(logits_of(model, prepared), expected, atol=1e-4, rtol=1e-4)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * (4 + 1)


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_sign_written_out(graph: Any, hops: int) -> None:
    store, edges = graph
    prepared = prepared_of(store, hops)
    torch.manual_seed(0)
    model = SIGN.for_prepared(prepared, CONFIG)
    assert len(model.hops) == hops + 1
    parts = [layer(branch, power) for branch, power in zip(model.hops, powers_of(store, edges, hops), strict=True)]
    h = torch.cat(parts, dim=1)
    assert len(model.body) == 2 * 4
    for first in (0, 4):
        h = layer(model.body[first : first + 4], h)
    expected = h @ model.head.weight.T + model.head.bias
    assert expected.std() > 1e-2
    torch.testing.assert_close(logits_of(model, prepared), expected, atol=1e-4, rtol=1e-4)


def test_mlp_written_out(graph: Any) -> None:
    store, edges = graph
    prepared = prepared_of(store, hops=0)
    model = MLP.for_prepared(prepared, CONFIG)
    h = powers_of(store, edges, 0)[0]
    assert len(model.body) == 3 * 4
    for first in (0, 4, 8):
        h = layer(model.body[first : first + 4], h)
    torch.testing.assert_close(logits_of(model, prepared), h @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("kind", [MLP, SGC, SIGN])
def test_local_nodes_that_are_there_are_passed_over(graph: Any, kind: Any) -> None:
    """A preparation made for LargeGT serves as well, whether or not the loader leaves its local nodes out."""
    store, _ = graph
    alone, sampled = prepared_of(store), prepared_of(store, k=5)
    torch.manual_seed(0)
    model = kind.for_prepared(alone, CONFIG)
    assert kind.num_local_nodes == 1
    expected = logits_of(model, alone)
    torch.testing.assert_close(logits_of(model, sampled), expected)
    cut = TokenLoader(TokenTable(sampled), torch.device("cpu"), k=1)
    with torch.no_grad():
        found = torch.cat([model(batch).logits for batch in cut.batches(np.arange(50), 7)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [MLP, SGC, SIGN])
def test_zeros_behind_the_features_change_nothing(graph: Any, kind: Any) -> None:
    prepared = prepared_of(graph[0])
    model = kind.for_prepared(prepared, CONFIG)
    assert kind.takes_padding
    table = TokenTable(prepared, form=TokenForm(multiple=3))
    batch = TokenLoader(table, torch.device("cpu")).gather(torch.arange(50))
    assert batch.tokens.shape == (50, 3, 6)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(batch).logits, logits_of(model, prepared))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_every_weight_learns(norm: Any) -> None:
    batch = TokenBatch(torch.arange(6), torch.randn(6, 4, 5), None, torch.zeros(6, 0), torch.zeros(6))
    config = CONFIG.model_copy(update={"norm": norm, "dropout": 0.0})
    for kind in (SGC, SIGN, MLP):
        model = kind(DataShape(5, 3, hops=3), config)
        output = model.train()(batch)
        assert output.logits.shape == (6, 3)
        assert output.codebook_input is None
        output.logits.square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        one = TokenBatch(batch.nodes[:1], batch.tokens[:1], None, batch.positions[:1], batch.labels[:1])
        assert torch.isfinite(model(one).logits).all()


def test_an_mlp_is_the_same_on_what_was_prepared_for_it_and_for_largegt(graph: Any, tmp_path: Path) -> None:
    """From the store nothing is sampled; a preparation with samples serves as well, and its run can be opened again."""
    store, _ = graph
    overrides = ["model.name=mlp", "model.hidden=8", "train.epochs=2", "prepare.local_nodes.k=5"]
    config = Config.from_recipe("plain", overrides)
    from_store = train(store, config, tmp_path / "from_store")
    assert from_store.prepared().k == 1
    assert from_store.config == config
    sampled = prepare(store, config.prepare)
    assert sampled.k == 5
    given = train(sampled, config, tmp_path / "given")
    assert given.config.prepare == sampled.config
    for run in (from_store, given):
        assert run.metrics["test"] == from_store.metrics["test"]
        assert evaluate(run.path) == run.metrics["test"]
        assert predict(run.path, split="test").equals(predict(from_store.path, split="test"))
    train(store, config, tmp_path / "from_store", resume=True)
    train(sampled, config, tmp_path / "given", resume=True)
