"""Embed: the vectors are those that the model computes, in the user's order, in every kind of file; and the nearest
nodes are those of a search written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.inference.embed import embed, nearest_nodes
from largegt.inference.predictor import predict
from largegt.loader.loader import token_batches
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.prepared import sample_rows
from largegt.reporting.page import report
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import Cli, homophilous, left_in, one_thread, refusal, small, thirds  # noqa: F401

NAMES = np.array([f"n{number:03d}|<b>" for number in np.random.default_rng(1).permutation(150)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With text for ids, and every fifth node without a label."""
    folder = tmp_path_factory.mktemp("embedded")
    edges, features, classes = homophilous()
    labels: Any = np.array(["blue", "green", "red"])[classes].astype(object)
    labels[::5] = None
    parts = {name: nodes[nodes % 5 != 0] for name, nodes in thirds(150).items()}
    source = arrays(NAMES[edges], features, labels, parts, node_ids=NAMES)
    store = ingest(source, folder / "g", IngestConfig(undirected=True), threads=1)
    settings = ("model.name=largegt-full", "model.neighbor_label_hops=2", "train.epochs=2", "train.num_eval_samples=1")
    return train(store, small(*settings), folder / "run")


def vectors(table: Any) -> np.ndarray:
    return np.array(table["embedding"].to_pylist())


@torch.no_grad()
def written_out(run: Run, layer: str, nodes: np.ndarray) -> np.ndarray:
    """The same by the model alone, one node after the other."""
    prepared = run.prepared()
    model = run.load_model(prepared)
    assert isinstance(model, LargeGT)
    assert model.inputs is not None
    assert model.local_module is not None
    assert model.global_module is not None
    found = []
    for batch in token_batches(prepared, nodes=nodes, batch_size=1):
        halves = {
            "local": model.local_module(model.inputs(batch.tokens)),
            "global": model.global_module(batch.tokens[:, 0], batch.positions)[0],
            "output": model(batch).hidden,
        }
        found.append(halves[layer][0].numpy())
    return np.array(found)


@pytest.mark.parametrize("layer", ["output", "local", "global"])
def test_vectors_are_those_of_the_model(layer: str, run: Run) -> None:
    nodes = run.store().splits["test"]
    table = embed(run, split="test", layer=layer)
    assert table.column_names == ["node", "embedding"]
    assert table["node"].to_pylist() == run.store().ids_of(nodes)
    assert vectors(table) == pytest.approx(written_out(run, layer, nodes), abs=1e-5)


def test_the_head_makes_the_prediction_of_the_joined_vector(run: Run) -> None:
    model = run.load_model(run.prepared())
    assert isinstance(model, LargeGT)
    with torch.no_grad():
        logits = model.head(torch.tensor(vectors(embed(run)), dtype=torch.float32))
    said = [run.store().classes[c] for c in logits.argmax(dim=1).tolist()]
    assert said == predict(run)["label"].to_pylist()


def test_nodes_come_in_the_order_asked_for_prepared_or_not(run: Run) -> None:
    every = vectors(embed(run))
    ids = [NAMES[140], NAMES[0], NAMES[5], NAMES[140]]
    table = embed(run, ids=ids)
    assert table["node"].to_pylist() == ids
    assert vectors(table) == pytest.approx(every[[140, 0, 5, 140]], abs=1e-5)


def test_draws_are_averaged(run: Run) -> None:
    """The mean of the first draw's vector and of one whose local nodes are drawn anew."""
    store, prepared = run.store(), run.prepared(reachable=True)
    rows = prepared.split_rows("valid")
    model = run.load_model(prepared)
    assert isinstance(model, LargeGT)
    assert model.inputs is not None
    assert model.local_module is not None
    with torch.no_grad():
        made = []
        for local_nk in (np.array(prepared.local_rows[rows]), sample_rows(store, prepared, rows, 1).local_rows):
            tokens = torch.from_numpy(np.array(prepared.tokens[local_nk])).float()
            made.append(model.local_module(model.inputs(tokens.flatten(1, 2))).numpy())
    got = vectors(embed(run, split="valid", layer="local", num_eval_samples=2))
    assert got == pytest.approx((made[0] + made[1]) / 2, abs=1e-5)
    assert not np.allclose(made[0], made[1], atol=1e-3)


def test_files_say_what_the_table_says(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in several groups."""
    monkeypatch.setattr("largegt.inference.predictor._GROUP_ROWS", 40)
    for suffix in (".parquet", ".npy", ".npz"):
        out = tmp_path / f"e{suffix}"
        table = embed(run, out)
        expected, ids = vectors(table).astype(np.float32), table["node"].to_pylist()
        if suffix == ".parquet":
            kept = pq.read_table(out)
            assert kept.equals(table)
            assert kept.schema.field("embedding").type.list_size == 8
        elif suffix == ".npy":
            assert np.array_equal(np.load(out, allow_pickle=False), expected)
        else:
            with np.load(out, allow_pickle=False) as archive:
                assert archive["node"].tolist() == ids
                assert np.array_equal(archive["embedding"], expected)
    assert left_in(tmp_path) == ["e.npy", "e.npz", "e.parquet"]


@pytest.mark.parametrize("split", [None, "train"])
def test_the_nearest_are_those_of_a_search_written_out(split: str | None, run: Run) -> None:
    store = run.store()
    every = vectors(embed(run))
    nodes = np.arange(150) if split is None else store.splits[split]
    similarity = {
        int(node): float(every[node] @ every[5] / np.linalg.norm(every[node]) / np.linalg.norm(every[5]))
        for node in nodes if node != 5
    }  # fmt: skip
    best = sorted(similarity, key=lambda node: -similarity[node])[:7]
    found = nearest_nodes(run, NAMES[5], top_k=7, split=split).to_pylist()
    assert [row["node"] for row in found] == [str(NAMES[node]) for node in best]
    assert [row["similarity"] for row in found] == pytest.approx([similarity[node] for node in best], abs=1e-5)
    assert [row["label"] for row in found] == [store.label_of(node) for node in best]


@pytest.mark.parametrize(
    ("model", "asked", "said"),
    [
        (None, {"layer": "locl"}, "did you mean 'local'"),
        (None, {"out": "e.csv"}, ".parquet, .npy, .npz"),
        (None, {"ids": [NAMES[0]], "split": "test"}, "not both"),
        ("mlp", {}, "is a mlp"),
        ("largegt-local", {"layer": "global"}, "has no global layer"),
    ],
)
def test_what_is_refused(model: str | None, asked: dict[str, Any], said: str, run: Run, tmp_path: Path) -> None:
    if model is not None:
        run = train(run.store(), small(f"model.name={model}", "train.epochs=1"), tmp_path / "run")
    assert said in refusal(lambda: embed(run, **asked))


def test_what_has_no_nearest_nodes(run: Run) -> None:
    assert "has no node 'nobody'" in refusal(lambda: nearest_nodes(run, "nobody"))
    assert "at least 1" in refusal(lambda: nearest_nodes(run, NAMES[0], top_k=0))
    assert nearest_nodes(run, NAMES[5], top_k=1000).num_rows == 149


def test_the_commands(run: Run, lg: Cli, tmp_path: Path) -> None:
    out = tmp_path / "e.npy"
    done = lg("embed", run.path, "--out", out, "--split", "test", "--layer", "local", "--json")
    assert done.json == {"out": str(out), "rows": len(run.store().splits["test"]), "width": 8, "layer": "local"}
    again = lg("embed", run.path, "--out", out)
    assert again.code == 2
    assert "already exists" in again.err
    near = lg("embed", run.path, "--nearest", NAMES[5], "--top-k", 3, "--json").json
    assert near["nearest"] == nearest_nodes(run, NAMES[5], top_k=3).to_pylist()
    shown = lg("embed", run.path, "--nearest", NAMES[5], "--top-k", 3)
    assert near["nearest"][0]["node"] in shown.out


def test_the_map_in_the_report(run: Run, tmp_path: Path) -> None:
    """Every test node is a point at the place that a singular value decomposition gives it, under its true class."""
    page = report([run.path], tmp_path / "page.html").read_text()
    [found] = [json.loads((run.path / "analysis.json").read_text())["map"]]
    nodes = run.store().splits["test"]
    assert found["ids"] == [str(NAMES[node]) for node in nodes]
    assert [found["groups"][at] for at in found["group"]] == [run.store().label_of(int(node)) for node in nodes]
    centred = vectors(embed(run, split="test"))
    centred = centred - centred.mean(axis=0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    for at, axis in enumerate("xy"):
        expected = left[:, at] * scale[at]
        got = np.array(found[axis])
        assert abs(got @ expected) == pytest.approx(np.linalg.norm(expected) ** 2, rel=1e-3)
    assert found["share"] == pytest.approx((scale[:2] ** 2 / (scale**2).sum()).tolist(), abs=1e-4)
    assert 'id="map"' in page
    assert all(f"{name[:4]}/&lt;b&gt;" in page for name in NAMES[nodes])
    assert "|<b>" not in page
