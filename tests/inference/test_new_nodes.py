"""New nodes: their rows are those of a preparation of everything, their predictions come without touching the store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grown_graphs import Grown, grown
from largegt.data import sources
from largegt.data.append import append
from largegt.data.ingest import ingest
from largegt.errors import LargeGTError
from largegt.inference.new_nodes import NewNodes, predict_new
from largegt.inference.predictor import PredictOptions, predict
from largegt.preprocessing import subgraph
from largegt.preprocessing.extended_graph import ExtendedGraph
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import left_in, lg, one_thread, small  # noqa: F401

pytestmark = pytest.mark.slow


def trained(graph: Grown, folder: Path, *overrides: str) -> Run:
    return train(graph.store(folder), small("train.epochs=1", *overrides), folder / "run")


def rows_of(run: Run, source: Any, folder: Path) -> tuple[Any, Prepared, list[Any]]:
    """(what predicts, the rows it makes of the new nodes, further samples)."""
    opened = NewNodes(run, PredictOptions(), source)
    nodes = np.arange(opened.graph.num_old, opened.graph.num_nodes)
    return opened, *opened.prepared_rows(nodes, folder / "rows")


CASES = {
    "base": (),
    "out, degrees, labels": (
        "prepare.local_nodes.direction=out", "prepare.tokens.add_degrees=true", "model.neighbor_label_hops=2",
    ),
    "separate directions, samples, label embeddings": (
        "prepare.tokens.separate_directions=true", "model.label_embeddings=true", "train.num_eval_samples=3",
    ),
    "in, shares, half precision": (
        "prepare.local_nodes.direction=in", "prepare.local_nodes.hop1_fraction=0.5", "prepare.tokens.dtype=float16",
        "prepare.tokens.normalize=global",
    ),
    "local label histograms": (
        "model.local_label_histograms=true", "model.hop_distance_embedding=true", "model.neighbor_label_hops=1",
        "train.num_eval_samples=2", "prepare.local_nodes.direction=out",
    ),
    "local label histograms of few": (
        "model.local_label_histograms=true", "prepare.tokens.precompute_for=sampled", "prepare.local_nodes.k=4",
    ),
    "many local nodes": ("prepare.local_nodes.k=60", "prepare.tokens.precompute_for=all", "prepare.tokens.num_hops=1"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "undirected"), [*((case, False) for case in CASES), ("base", True), ("many local nodes", True)]
)
def test_own_rows_are_those_of_a_preparation_of_everything(tmp_path: Path, case: str, undirected: bool) -> None:
    """Bit for bit, against a store with everything, prepared as of the training."""
    graph = grown(undirected=undirected, seed=len(case))
    run = trained(graph, tmp_path, *CASES[case])
    opened, made, others = rows_of(run, graph.source_of("new"), tmp_path)
    everyone = run.config.preparation.local_nodes.model_copy(update={"target_nodes": "all"})
    every = run.config.preparation.tokens.model_copy(update={"precompute_for": "all"})
    settings = run.config.preparation.model_copy(update={"local_nodes": everyone, "tokens": every})
    shutil.copytree(tmp_path / "old", tmp_path / "all")
    store = append(tmp_path / "all", graph.source_of("new"), threads=1)
    full = prepare(store, settings, threads=1, version=run.store_fingerprint)
    rows, nodes = full.rows_of(made.nodes), np.arange(150, 170)
    np.testing.assert_array_equal(made.nodes, nodes)
    np.testing.assert_array_equal(made.token_nodes[made.local_rows], full.token_nodes[full.local_rows[rows]])
    own = np.searchsorted(made.token_nodes, nodes)
    np.testing.assert_array_equal(made.tokens[own], full.tokens[nodes])
    np.testing.assert_array_equal(made.positions, full.positions[rows])
    np.testing.assert_array_equal(made.neighbor_label_histogram, full.neighbor_label_histogram[rows])
    np.testing.assert_array_equal(made.is_neighbor, full.is_neighbor[rows])
    np.testing.assert_array_equal(made.label_counts[own], full.label_counts[nodes])
    assert len(others) == run.config.train.num_eval_samples - 1
    old = np.flatnonzero(made.token_nodes < 150)
    before = prepare(tmp_path / "old", settings, threads=1)
    np.testing.assert_array_equal(made.tokens[old], before.tokens[made.token_nodes[old]], "as the training knew them")
    np.testing.assert_array_equal(made.label_counts[old], before.label_counts[made.token_nodes[old]])
    assert opened.graph.num_nodes == 170


@pytest.mark.parametrize("name", ["largegt-full", "nagphormer"])
def test_predictions_are_those_of_everything_where_nothing_old_changes(tmp_path: Path, name: str) -> None:
    """New nodes lead to old ones, and only successors are looked at. What is left of the new edges in the rows of old
    nodes is how often these are led to, which scales contexts: models that read others' rows are given none."""
    graph = grown(undirected=False, to_old=True)
    hops = 2 if name == "nagphormer" else 0
    settings = ("prepare.local_nodes.direction=out", f"prepare.tokens.num_hops={hops}", f"model.name={name}")
    run = trained(graph, tmp_path, *settings)
    found = predict_new(run, graph.source_of("new"), all_probabilities=True)
    append(tmp_path / "old", graph.source_of("new"), threads=1)
    expected = predict(run.path, ids=list(range(150, 170)), all_probabilities=True)
    assert found["node"].to_pylist() == list(range(150, 170))
    for column in found.column_names:
        if column.startswith("probability"):
            np.testing.assert_allclose(np.asarray(found[column]), np.asarray(expected[column]), atol=1e-6)


def test_input_labels_and_values_are_on_the_scale_of_the_training(tmp_path: Path) -> None:
    graph = grown(undirected=False, to_old=True)
    graph.labels = np.random.default_rng(0).normal(3.0, 2.0, 170)
    run = trained(graph, tmp_path, "model.label_embeddings=true", "model.neighbor_label_hops=2",
                  "train.num_eval_samples=2", "prepare.local_nodes.direction=out",
                  "prepare.tokens.num_hops=0")  # fmt: skip
    source = sources.arrays(graph.new_edges, graph.features[150:], num_nodes=20)
    found = predict_new(run, source)
    append(tmp_path / "old", source, threads=1)
    expected = predict(run.path, ids=list(range(150, 170)))
    far = np.asarray(found["value"]) - np.asarray(expected["value"])
    assert np.abs(far).max() < 1e-5


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over a store with ids of text."""
    folder, graph = tmp_path_factory.mktemp("text"), grown("string")
    graph.write(folder)
    return train(graph.ingested(folder, "old"), small("train.epochs=1"), folder / "run")


def test_files_ids_of_text_and_a_store_that_stays(tmp_path: Path, text_run: Run, lg: Any) -> None:  # noqa: F811
    graph, run = grown("string"), text_run
    graph.write(tmp_path, labels=False)
    store = run.store()
    before = {file: file.stat().st_mtime_ns for file in store.path.rglob("*")}
    new = ("--new-nodes", tmp_path / "nodes_new.parquet", "--new-edges", tmp_path / "edges_new.parquet")
    found = lg("predict", run.path, *new, "--out", tmp_path / "new.parquet", "--json").json
    assert found["rows"] == 20
    table = pq.read_table(tmp_path / "new.parquet")
    assert table["node"].to_pylist() == graph.ids[150:].tolist()
    assert table.column_names == ["node", "label", "probability"]
    assert {file: file.stat().st_mtime_ns for file in store.path.rglob("*")} == before
    assert not [name for name in left_in(tmp_path) if "partial" in name or "lock" in name]
    code, _, err = lg("predict", run.path, *new, "--out", tmp_path / "new.parquet")
    assert code == 2
    assert "already exists" in err
    again = predict_new(run, tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet")
    assert again.equals(table)
    for wrong in (("--node", "x"), ("--split", "test"), ("--devices", "2")):
        code, _, err = lg("predict", run.path, *new, *wrong, "--out", tmp_path / "x.csv")
        assert code == 2
        assert "leave out" in err
    assert lg("predict", run.path, "--new-edges", tmp_path / "edges_new.parquet", "--out", "x.csv").code == 2


def test_nodes_without_edges_and_arrays(tmp_path: Path) -> None:
    graph = grown()
    run = trained(graph, tmp_path)
    np.save(tmp_path / "x.npy", graph.features[150:])
    np.save(tmp_path / "e.npy", graph.new_edges)
    alone = predict_new(run, features=tmp_path / "x.npy")
    assert alone["node"].to_pylist() == list(range(150, 170))
    both = predict_new(run, None, tmp_path / "e.npy", features=tmp_path / "x.npy")
    assert both.slice(19).to_pylist() == alone.slice(19).to_pylist(), "the last one has no edges in either"
    assert both["probability"].to_pylist()[:19] != alone["probability"].to_pylist()[:19]


def test_in_small_segments_and_little_memory_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = grown()
    run = trained(graph, tmp_path)
    whole = predict_new(run, graph.source_of("new"))
    monkeypatch.setattr("largegt.inference.new_nodes._SEGMENT_NODES", 7)
    real = subgraph.Subgraph.__init__

    def small_subgraphs(self: Any, graph: ExtendedGraph, nodes: Any, directions: Any, hops: int, memory: int) -> None:
        if len(nodes) > 2:
            raise subgraph.TooLargeError("too large")
        real(self, graph, nodes, directions, hops, memory)

    monkeypatch.setattr(subgraph.Subgraph, "__init__", small_subgraphs)
    parts = predict_new(run, graph.source_of("new"))
    np.testing.assert_allclose(np.asarray(parts["probability"]), np.asarray(whole["probability"]), atol=1e-6)
    assert parts["label"].equals(whole["label"])


@pytest.mark.parametrize("method", ["laplacian", "node2vec"])
def test_encodings_that_cannot_be_computed_are_means_of_the_neighbours(tmp_path: Path, method: str) -> None:
    graph = grown()
    settings = (
        "prepare.positional_encoding.walks_per_node=1",
        "prepare.positional_encoding.walk_length=4",
        "prepare.positional_encoding.context_size=2",
    )
    run = trained(graph, tmp_path, f"prepare.positional_encoding.method={method}", *settings)
    opened, made, _ = rows_of(run, graph.source_of("new"), tmp_path)
    known = dict(zip(opened.prepared.nodes.tolist(), opened.prepared.positions, strict=True))
    pairs = {(int(a), int(b)) for a, b in graph.new_edges.T} | {(int(b), int(a)) for a, b in graph.new_edges.T}
    for row, node in enumerate(range(150, 170)):
        near = [known[b] for a, b in pairs if a == node and b in known]
        expected = np.mean(near, axis=0) if near else np.zeros(3)
        np.testing.assert_allclose(made.positions[row], expected, atol=1e-6)
    assert not made.positions[19].any()
    assert made.positions[:19].any()


def test_degrees_as_features(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    splits = {"train": np.arange(100), "valid": np.arange(100, 150)}
    ingest(sources.arrays(graph.old_edges, None, graph.labels[:150], splits), tmp_path / "old", threads=1)
    run = train(tmp_path / "old", small("train.epochs=1", "prepare.tokens.normalize=none"), tmp_path / "run")
    source = sources.arrays(graph.new_edges, num_nodes=20)
    _, made, _ = rows_of(run, source, tmp_path)
    store = append(tmp_path / "old", source, out=tmp_path / "all", threads=1)
    settings = run.config.preparation
    tokens = settings.tokens.model_copy(update={"precompute_for": "all"})
    full = prepare(store, settings.model_copy(update={"tokens": tokens}), threads=1)
    own = np.searchsorted(made.token_nodes, np.arange(150, 170))
    np.testing.assert_array_equal(made.tokens[own], full.tokens[150:])


def test_an_infinite_cell_is_a_missing_one(tmp_path: Path, text_run: Run) -> None:
    graph = grown("string")
    pq.write_table(graph.edges(graph.new_edges), tmp_path / "e.parquet")
    found = []
    for cells in (pa.array([float("inf")] * 20), pa.array([None] * 20, pa.float32()), pa.array([7.0] * 20)):
        pq.write_table(graph.nodes(150).set_column(1, "f0", cells), tmp_path / "n.parquet")
        found.append(predict_new(text_run, tmp_path / "n.parquet", tmp_path / "e.parquet"))
    assert found[0].equals(found[1])
    assert not found[0].equals(found[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n, e, old: (n.set_column(0, "id", pa.array([*n["id"].to_pylist()[1:], old])), e), "is in .* already"),
        (lambda n, e, old: (n, pa.table({"src": [old], "dst": ["nobody"]})), "'nobody' is neither in"),
        (lambda n, e, old: (n.drop_columns(["f1"]), e), "has no column 'f1'"),
    ],
    ids=["known id", "unknown end", "no column"],
)  # fmt: skip
def test_refusals_are_one_line(tmp_path: Path, text_run: Run, lg: Any, change: Any, message: str) -> None:  # noqa: F811
    graph, run = grown("string"), text_run
    nodes, edges = change(graph.nodes(150), graph.edges(graph.new_edges), str(graph.ids[3]))
    pq.write_table(nodes, tmp_path / "n.parquet")
    pq.write_table(edges, tmp_path / "e.parquet")
    with pytest.raises(LargeGTError, match=message):
        predict_new(run, tmp_path / "n.parquet", tmp_path / "e.parquet")
    new = ("--new-nodes", tmp_path / "n.parquet", "--new-edges", tmp_path / "e.parquet")
    code, out, err = lg("predict", run.path, *new, "--out", tmp_path / "p.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "p.csv").exists()


def test_models_that_go_to_the_store_themselves_are_refused(tmp_path: Path) -> None:
    graph = grown()
    run = trained(graph, tmp_path, "model.name=graphsage")
    with pytest.raises(LargeGTError, match="graphsage, which reads neighbours from the store itself: append"):
        predict_new(run, graph.source_of("new"))
