"""Weights and features of edges by way of PyG, scikit-learn and the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from typer.testing import CliRunner

import largegt as lg
from largegt.cli import app
from largegt.data.store import GraphStore
from largegt.errors import InputError
from largegt.integrations.store_cache import read_graph

FAST: dict[str, Any] = {"k": 4, "hidden_dim": 8, "epochs": 1, "recipe": "base", "random_state": 0}


def test_pyg_there_and_back(graph: Any, tmp_path: Path) -> None:
    data_of = pytest.importorskip("torch_geometric.data").Data
    given = data_of(
        x=torch.randn(30, 4), edge_index=torch.from_numpy(graph.edges), y=torch.arange(30) % 2,
        edge_weight=torch.from_numpy(graph.weights), edge_attr=torch.from_numpy(graph.edge_features),
    )  # fmt: skip
    store = lg.from_pyg(given, tmp_path / "g")
    assert store.weighted
    assert store.num_edge_features == 3
    back = lg.to_pyg(store)
    assert torch.equal(back.edge_weight, torch.from_numpy(np.array(store.weights)))
    again = lg.from_pyg(back, tmp_path / "again")
    assert np.array_equal(again.weights, store.weights)
    plain = lg.from_pyg(given, tmp_path / "plain", edge_weights=False, edge_features=False)
    assert not plain.weighted
    assert not plain.num_edge_features
    assert getattr(lg.to_pyg(plain), "edge_weight", None) is None
    weighted, unweighted = (
        lg.pyg.loader(given, k=4),
        lg.pyg.loader(data_of(x=given.x, edge_index=given.edge_index), k=4),
    )
    tokens = [next(iter(loader)).tokens for loader in (weighted, unweighted)]
    assert tokens[0].shape == tokens[1].shape
    assert not torch.equal(*tokens)


@pytest.mark.slow
def test_a_classifier_takes_the_values_of_a_matrix_when_asked(graph: Any) -> None:
    matrix = sp.coo_array((graph.weights, tuple(graph.edges)), shape=(30, 30)).tocsr()
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2
    nodes = np.arange(30)
    said = {}
    for choice in (False, True):
        model = lg.LargeGTClassifier(matrix, x, edge_weights=choice, **FAST).fit(nodes, y)
        said[choice] = model.predict_proba(nodes)
    twin = pickle.loads(pickle.dumps(model))
    assert np.array_equal(twin.predict_proba(nodes), said[True])
    assert not np.array_equal(said[False], said[True])
    ones = lg.LargeGTClassifier(matrix.astype(bool).astype(float), x, edge_weights=True, **FAST).fit(nodes, y)
    assert np.array_equal(ones.predict_proba(nodes), said[False]), "a matrix of ones has no weights"
    assert lg.LargeGTClassifier().get_params()["edge_weights"] is False
    with pytest.raises(InputError, match="an edge_index has no weights"):
        read_graph(graph.edges, edge_weights=True)
    with pytest.raises(InputError, match="row 0, counted from 0, is -"):
        lg.LargeGTClassifier(-matrix, x, edge_weights=True, **FAST).fit(nodes, y)


def test_command_line(graph: Any, tmp_path: Path) -> None:
    """The walk of a user with amounts: ingest, inspect, prepare."""
    columns = {"source": graph.edges[0], "target": graph.edges[1], "amount": graph.weights}
    columns |= {f"f{at}": graph.edge_features[:, at] for at in range(3)}
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    pq.write_table(pa.table({"id": np.arange(30), "label": np.arange(30) % 2}), tmp_path / "n.parquet")
    cli, store = CliRunner(), str(tmp_path / "g")

    def run(*words: str) -> Any:
        done = cli.invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    given = ["--edges", str(tmp_path / "e.parquet"), "--nodes", str(tmp_path / "n.parquet")]
    facts = run("ingest", *given, "--weight-column", "amount", "--edge-feature-columns", "f*", "--out", store, "--json")
    assert facts["edge_features"] == "f0, f1, f2"
    assert facts["mean_weight"] == pytest.approx(GraphStore.open(store).weights.mean())
    assert run("inspect", store, "--verify", "--json")["verified"] is True
    prepared = run("prepare", store, "--recipe", "base", "--set", "prepare.local_nodes.k=4", "--json")
    assert prepared["config"]["tokens"]["use_edge_weights"] is True
    assert prepared["features"] == 2 + 3
