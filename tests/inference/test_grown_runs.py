"""A run whose store has grown predicts old nodes and new ones, with the scale and the labels of its training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from grown_graphs import Grown, grown
from largegt.data import sources
from largegt.data.append import append
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, LargeGTError
from largegt.inference.embed import embed
from largegt.inference.predictor import PredictOptions, Predictor, predict
from largegt.io.remote import folders
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import lg, one_thread, small  # noqa: F401

pytestmark = pytest.mark.slow

AWAY = {"num_old": 300, "num_edges": 500}


def trained(graph: Grown, folder: Path, *overrides: str) -> tuple[GraphStore, Run]:
    store = graph.store(folder)
    return store, train(store, small("train.epochs=2", *overrides), folder / "run")


def far_from(store: GraphStore, hops: int) -> np.ndarray:
    """Old nodes that so many steps from them lead to no change: by sets, slowly."""
    indptr, indices = store.csr("both")
    changed = set(range(300, store.num_nodes)) | {
        int(other) for node in range(300, store.num_nodes) for other in indices[indptr[node] : indptr[node + 1]]
    }
    for _ in range(hops):
        changed |= {int(other) for node in changed for other in indices[indptr[node] : indptr[node + 1]]}
    alone = {node for node in range(300) if indptr[node] == indptr[node + 1]}
    return np.array(sorted(set(range(300)) - changed - alone))


@pytest.mark.parametrize("task", ["classes", "values"])
def test_nodes_far_from_what_is_new_are_predicted_as_before(tmp_path: Path, task: str) -> None:
    """To the bit: the same scale of features, of values, of labels that local nodes tell."""
    graph = grown(**AWAY, num_new=8, num_new_edges=6, to_old=True)
    if task == "values":
        graph.labels = np.random.default_rng(0).normal(size=308)
    store, run = trained(
        graph, tmp_path, "model.name=largegt-local", "prepare.tokens.add_degrees=true", "model.label_embeddings=true",
        "model.neighbor_label_hops=1", "model.local_label_histograms=true", "model.hop_distance_embedding=true",
    )  # fmt: skip
    before = predict(run, all_probabilities=True)
    graph.features[300:] += 50  # any other scale would show
    grown_store = append(store, graph.source_of("new"), threads=1)
    after = predict(run.path, all_probabilities=True)
    assert after.num_rows == 308
    assert after["node"].to_pylist() == list(range(308))
    same = far_from(grown_store, 4)
    assert len(same) > 20
    columns = [name for name in before.column_names if name != "label"]
    for name in columns:
        np.testing.assert_array_equal(np.asarray(after[name])[same], np.asarray(before[name])[same], name)
    assert any(np.asarray(after[name])[:300].tolist() != np.asarray(before[name]).tolist() for name in columns)


@pytest.mark.parametrize("name", ["largegt-full", "goat-full", "graphsage"])
def test_every_kind_of_model_goes_on(tmp_path: Path, name: str) -> None:
    graph = grown()
    store, run = trained(graph, tmp_path, f"model.name={name}", "train.epochs=1")
    append(store, graph.source_of("new"), threads=1)
    found = predict(run.path)
    assert found.num_rows == 170
    assert np.isfinite(np.asarray(found["probability"])).all()
    assert 0 <= evaluate(run.path, "test")["accuracy"] <= 1
    if name == "largegt-full":
        assert embed(run.path).num_rows == 170


def test_two_nights(tmp_path: Path) -> None:
    """Each night's preparation is made from the last one's, which goes."""
    graph = grown(num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    store, run = trained(graph, tmp_path, "model.name=largegt-local")
    predict(run.path)
    append(store, graph.source_of("new"), threads=1)
    first = Predictor(run.path, PredictOptions(tmp_path / "1.parquet")).write()
    more = sources.arrays(np.array([[0, 606], [606, 9]]), np.ones((1, 4)), num_nodes=1)
    append(tmp_path / "old", more, threads=1)
    second = Predictor(run.path, PredictOptions(tmp_path / "2.parquet")).write()
    assert (first.num_rows, second.num_rows) == (606, 607)
    for written in (first, second):
        assert {"local nodes", "token rows"} <= set(written.reused)
        assert all(kept > made for kept, made in written.reused.values())
    assert second.reused["local nodes of labelled nodes"][1] > 0, "the last node has no label"
    versions = [Prepared.open(path).meta["fingerprint"] for path in folders(store.path / "prepared")]
    newest = GraphStore.open(store.path).fingerprint
    assert sorted(versions) == sorted([run.store_fingerprint, newest, newest]), "of labelled nodes, and of all"
    shutil.rmtree(store.path / "prepared")  # from nothing, the same
    again = Predictor(run.path, PredictOptions(tmp_path / "3.parquet")).write()
    assert again.num_rows == 607
    assert pq.read_table(tmp_path / "2.parquet").equals(pq.read_table(tmp_path / "3.parquet"))


def test_what_cannot_go_on_says_so(tmp_path: Path) -> None:
    graph = grown()
    store, run = trained(graph, tmp_path, "model.name=linkx", "train.epochs=1")
    other = train(
        store, small("prepare.positional_encoding.method=laplacian", "train.epochs=1"), tmp_path / "laplacian"
    )
    append(store, graph.source_of("new"), threads=1)
    with pytest.raises(ConfigError, match="linkx has weights for each node"):
        predict(run.path)
    with pytest.raises(ConfigError, match="laplacian encodings are unlike"):
        predict(other.path)
    with pytest.raises(LargeGTError, match="another store"):
        train(GraphStore.open(store.path), other.config, other.path, resume=True)


def test_the_nightly_walk(tmp_path: Path, lg: Any) -> None:  # noqa: F811
    graph = grown("string", num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    graph.write(tmp_path, labels=False)
    store = graph.ingested(tmp_path, "old")
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    new = ("--nodes", tmp_path / "nodes_new.parquet", "--edges", tmp_path / "edges_new.parquet")
    assert lg("append", store.path, *new).code == 0
    code, out, err = lg("predict", run.path, "--out", tmp_path / "tonight.parquet")
    assert code == 0
    assert "606 predictions" in out
    assert "rows computed" in err
    assert "kept from an earlier preparation" in err
    assert pq.read_table(tmp_path / "tonight.parquet")["node"].to_pylist() == graph.ids.tolist()
    assert lg("inspect", run.path, "--verify").code == 0
    assert lg("inspect", store.path, "--verify").code == 0
