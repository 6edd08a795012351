"""Contexts as weighted means, against dense algebra, and what settings make of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from largegt.config.schema import Config, IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from oracles import context
from oracles.weighted import along, token_rows, weight_matrix

FEATURES = np.random.default_rng(5).normal(size=(30, 4)).astype(np.float32)


def store_of(graph: Any, folder: Path, weights: Any, undirected: bool = False) -> GraphStore:
    source = sources.arrays(graph.edges, FEATURES, np.arange(30) % 3, num_nodes=30, weights=weights)
    return ingest(source, folder, IngestConfig(undirected=undirected))


def prepared_of(store: GraphStore, *settings: str, engine: Engine | None = None) -> Prepared:
    given = [
        "prepare.tokens.precompute_for=all",
        "prepare.tokens.normalize=none",
        "prepare.positional_encoding.method=none",
    ]
    config = Config.from_recipe("base", [*given, "prepare.local_nodes.k=4", *settings]).prepare
    return prepare(store, config, engine=engine)


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_contexts_are_those_of_dense_matrices(graph: Any, tmp_path: Path, direction: str) -> None:
    matrix = along(weight_matrix(graph.edges, graph.weights, 30), direction)
    store = store_of(graph, tmp_path / "g", graph.weights)
    found = prepared_of(store, f"prepare.local_nodes.direction={direction}", "prepare.tokens.num_hops=3")
    np.testing.assert_allclose(found.tokens, token_rows(matrix, FEATURES, 3), rtol=2e-5, atol=2e-5)


def test_directions_apart(graph: Any, tmp_path: Path) -> None:
    matrix = weight_matrix(graph.edges, graph.weights, 30)
    found = prepared_of(store_of(graph, tmp_path / "g", graph.weights), "prepare.tokens.separate_directions=true")
    rows = [token_rows(along(matrix, side), FEATURES) for side in ("out", "in")]
    expected = [rows[0][:, 0], *(rows[side][:, hop] for hop in (1, 2) for side in (0, 1))]
    np.testing.assert_allclose(found.tokens, np.stack(expected, axis=1), rtol=2e-5, atol=2e-5)


def test_only_differences_between_weights_matter(graph: Any, tmp_path: Path) -> None:
    """Distinct edges that all weigh the same are plain ones, and a unit of weight is nothing."""
    graph = graph._replace(edges=np.unique(graph.edges, axis=1))
    plain = prepared_of(
        store_of(graph, tmp_path / "plain", None, undirected=False), "prepare.local_nodes.direction=out"
    )
    alike = prepared_of(store_of(graph, tmp_path / "alike", np.full(graph.edges.shape[1], 0.3)),
                        "prepare.local_nodes.direction=out")  # fmt: skip
    np.testing.assert_allclose(alike.tokens, plain.tokens, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plain.tokens, context.token_rows(graph.edges.T, FEATURES, "out", False), atol=1e-5)
    weights = graph.weights[: graph.edges.shape[1]]
    one, other = (store_of(graph, tmp_path / f"{unit}", unit * weights) for unit in (1, 1024))
    assert np.array_equal(prepared_of(one).tokens, prepared_of(other).tokens)
    assert np.array_equal(prepared_of(one).local_rows, prepared_of(other).local_rows)


def test_any_memory_gives_the_same_bytes(graph: Any, tmp_path: Path) -> None:
    stores = {memory: store_of(graph, tmp_path / f"{memory}", graph.weights) for memory in (900, 1 << 28)}
    made = [prepared_of(store, engine=Engine(memory, 2)) for memory, store in stores.items()]
    assert np.array_equal(made[0].tokens, made[1].tokens)


def test_settings_say_whether_weights_count(graph: Any, tmp_path: Path) -> None:
    plain, store = store_of(graph, tmp_path / "plain", None), store_of(graph, tmp_path / "g", graph.weights)
    without = prepared_of(store, "prepare.tokens.use_edge_weights=false", "prepare.local_nodes.use_edge_weights=false")
    expected = prepared_of(plain)
    assert np.array_equal(without.tokens, expected.tokens)
    assert np.array_equal(without.local_rows, expected.local_rows)
    auto, said = (
        prepared_of(store),
        prepared_of(store, "prepare.tokens.use_edge_weights=true", "prepare.local_nodes.use_edge_weights=true"),
    )
    assert auto.path == said.path != without.path
    assert auto.config.tokens.use_edge_weights is True
    mixed = prepared_of(store, "prepare.tokens.use_edge_weights=false")
    assert np.array_equal(mixed.tokens, without.tokens)
    assert np.array_equal(mixed.local_rows, auto.local_rows)
    assert not np.array_equal(auto.local_rows, without.local_rows)
    for name in ("tokens.use_edge_weights", "local_nodes.use_edge_weights", "tokens.use_edge_features"):
        with pytest.raises(ConfigError, match=f"prepare.{name}=true"):
            prepared_of(plain, f"prepare.{name}=true")
