"""SGC, SIGN and the MLP: against dense algebra and layers written out; what they and NAGphormer pass over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from largegt.config.models import MLPConfig, NAGphormerConfig, SGCConfig
from largegt.config.schema import (
    Config,
    LocalNodesConfig,
    PositionalEncodingConfig,
    PrepareConfig,
    TokensConfig,
)
from largegt.inference.predictor import predict
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenForm, TokenTable
from largegt.models.base import NodeModel
from largegt.models.baselines.feature_models import MLP, SGC, SIGN
from largegt.models.baselines.nagphormer import NAGphormer
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.trainer import train
from oracles.context import adjacency, normalized

CONFIG = MLPConfig(hidden_dim=8, num_layers=2, dropout=0.4)


@pytest.fixture
def graph(make_store: Any, random_edges: Any) -> tuple[Any, Any]:
    """(store, edges), directed."""
    edges = random_edges(50, 150)
    return make_store(edges, 50, undirected=False), edges


def prepared_of(store: Any, hops: int = 2, k: int = 1, method: Any = "none") -> Prepared:
    config = PrepareConfig(
        local_nodes=LocalNodesConfig(k=k, direction="out"),
        tokens=TokensConfig(num_hops=hops, normalize="none"),
        positional_encoding=PositionalEncodingConfig(method=method, dim=4),
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
    model = SGC.for_prepared(prepared, SGCConfig())
    expected = powers_of(store, edges, hops)[-1] @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(logits_of(model, prepared), expected, atol=1e-4, rtol=1e-4)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * (4 + 1)


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_sign_written_out(graph: Any, hops: int) -> None:
    store, edges = graph
    prepared = prepared_of(store, hops)
    torch.manual_seed(0)
    model = SIGN.for_prepared(prepared, CONFIG)
    assert len(model.layers) == hops + 1
    parts = [layer(branch, power) for branch, power in zip(model.layers, powers_of(store, edges, hops), strict=True)]
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


@pytest.mark.parametrize("method", ["laplacian", "random_projection", "none"])
@pytest.mark.parametrize("kind", [MLP, SGC, SIGN, NAGphormer])
def test_local_nodes_and_zeros_behind_the_features_change_nothing(graph: Any, kind: Any, method: Any) -> None:
    """A preparation made for LargeGT serves as well, whether or not the loader leaves its local nodes out."""
    store, _ = graph
    alone, sampled = prepared_of(store, method=method), prepared_of(store, k=5, method=method)
    torch.manual_seed(0)
    config = {MLP: CONFIG, SIGN: CONFIG, SGC: SGCConfig(), NAGphormer: NAGphormerConfig(hidden_dim=8)}[kind]
    model = kind.for_prepared(alone, config)
    assert kind.num_local_nodes == 1
    assert model.takes_padding
    if kind is NAGphormer:
        assert (model.project_positions is None) == (method == "none")
    expected = logits_of(model, alone)
    assert expected.shape == (50, 3)
    torch.testing.assert_close(logits_of(model, sampled), expected)
    cut = TokenLoader(TokenTable(sampled), torch.device("cpu"), k=1)
    padded = TokenLoader(TokenTable(alone, form=TokenForm(multiple=3)), torch.device("cpu"))
    assert padded.gather(torch.arange(50)).tokens.shape == (50, 3, 6)
    for loader in (cut, padded):
        with torch.no_grad():
            found = torch.cat([model(batch).logits for batch in loader.batches(np.arange(50), 7)])
        torch.testing.assert_close(found, expected)


def test_an_mlp_is_the_same_on_what_was_prepared_for_it_and_for_largegt(graph: Any, tmp_path: Path) -> None:
    """From the store nothing is sampled; a preparation with samples serves as well, and its run can be opened again."""
    store, _ = graph
    overrides = ["model.name=mlp", "model.hidden_dim=8", "train.epochs=2", "prepare.local_nodes.k=5"]
    config = Config.from_recipe("base", overrides)
    from_store = train(store, config, tmp_path / "from_store")
    assert from_store.prepared().k == 1
    assert from_store.config == config
    sampled = prepare(store, config.prepare)
    assert sampled.k == 5
    given = train(sampled, config, tmp_path / "given")
    assert given.config.prepare == sampled.config.settings
    for run in (from_store, given):
        assert run.metrics["test"] == from_store.metrics["test"]
        assert evaluate(run.path) == run.metrics["test"]
        assert predict(run.path, split="test").equals(predict(from_store.path, split="test"))
    train(store, config, tmp_path / "from_store", resume=True)
    train(sampled, config, tmp_path / "given", resume=True)
