"""Analyse: what the page says of the weights, against evaluate, predict and the forward of the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.models import LargeGTLocalConfig
from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.errors import InputError
from largegt.explanation.node import explain
from largegt.inference.predictor import predict
from largegt.models.input_encoder import InputEncoder
from largegt.models.largegt.local_module import LocalModule
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from largegt.reporting import analysis
from largegt.reporting.analysis import analyse, codebook_use
from largegt.reporting.attention import attention_use, kinds
from largegt.reporting.page import report
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import easy_store, homophilous, one_thread, small, table_store  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("analysis")
    store = easy_store(folder / "g")
    names = ("mlp", "largegt-full", "graphsage")
    return {name: train(store, small(f"model.name={name}"), folder / name).path for name in names}


@pytest.mark.parametrize("name", ["mlp", "largegt-full", "graphsage"])
def test_it_agrees_with_evaluate_and_predict(name: str, runs: dict[str, Path]) -> None:
    found = analyse(runs[name])
    assert found["scores"]["accuracy"] == pytest.approx(evaluate(runs[name])["accuracy"], abs=1e-5)
    store = Run.open(runs[name]).store()
    table = predict(runs[name], split="test")
    said = np.array(table["label"].to_pylist())
    nodes = store.splits["test"]
    truth = np.array([store.classes[c] for c in np.asarray(store.labels)[nodes]])
    assert table["node"].to_pylist() == nodes.tolist()
    classes, cells = found["confusion"]["classes"], found["confusion"]["cells"]
    for i, a in enumerate(classes):
        for j, b in enumerate(classes):
            assert cells[i][j] == int(((truth.astype(str) == a) & (said.astype(str) == b)).sum())
    right = said == truth
    indptr, indices = store.csr("both")
    degree = [len(indices[indptr[node] : indptr[node + 1]]) for node in nodes]
    assert sum(count for _, count, _ in found["by_degree"]) == len(nodes)
    assert sum(count * value for _, count, value in found["by_degree"]) == pytest.approx(right.sum(), abs=0.01)
    assert found["no_neighbours"] == degree.count(0)
    confidence = np.array(table["probability"].to_pylist())
    gaps = [abs(confidence[of].sum() - right[of].sum())
            for b in range(15) if (of := np.minimum((confidence * 15).astype(int), 14) == b).any()]  # fmt: skip
    assert found["calibration"]["ece"] == pytest.approx(sum(gaps) / len(nodes), abs=1e-4)


def test_it_is_kept_while_the_weights_are_the_same(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(runs["mlp"], tmp_path / "run"))
    (run / analysis.FILE).unlink(missing_ok=True)
    (run / "checksums.json").unlink()
    first = analyse(run)
    kept = json.loads((run / analysis.FILE).read_text())
    assert kept.pop("checksum").startswith("xxh3:")
    assert kept == first
    calls: list[Any] = []
    inner = analysis._analysis
    monkeypatch.setattr(analysis, "_analysis", lambda *given: (calls.append(given), inner(*given))[1])
    assert analyse(run) == first
    assert not calls
    weights = (runs["graphsage"] / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes((runs["mlp"] / "model.safetensors").read_bytes())
    assert analyse(run) == first, "rewritten, but the same"
    assert not calls
    analyse(run, max_nodes=10)
    assert len(calls) == 1, "another sample is another analysis"
    (run / analysis.FILE).write_text("{ damaged")
    assert analyse(run) == first
    assert len(calls) == 2
    text = (run / analysis.FILE).read_text()
    (run / analysis.FILE).write_text(text.replace('"num_nodes": ', '"num_nodes": 1'))
    assert analyse(run) == first, "a changed one is not believed"
    assert len(calls) == 3
    (run / "model.safetensors").write_bytes(weights)
    with pytest.raises(Exception, match="does not fit"):
        analyse(run)


def test_a_sample_of_the_test_nodes(runs: dict[str, Path]) -> None:
    found = analyse(runs["mlp"], max_nodes=10)
    assert found["num_nodes"] == 10
    assert found["num_split"] > 10
    assert sum(map(sum, found["confusion"]["cells"])) == 10


def test_the_reasons_for_none(runs: dict[str, Path], tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    run = train(store, small("train.epochs=1"), tmp_path / "run").path
    shutil.rmtree(tmp_path / "g" / "prepared")
    with pytest.raises(InputError, match="preparation"):
        analyse(run)
    assert not (tmp_path / "g" / "prepared").exists(), "a report does not prepare"
    shutil.rmtree(tmp_path / "g")
    with pytest.raises(InputError, match="no longer at"):
        analyse(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        analyse(run)
    assert codebook_use(run) is None


def test_codebook_use_is_what_the_codebook_counted(runs: dict[str, Path]) -> None:
    run = Run.open(runs["largegt-full"])
    model: Any = run.load_model(run.prepared())
    counts = model.global_module.codebook.counts.tolist()
    found = codebook_use(run)
    assert found is not None
    assert found["sizes"] == sorted(counts, reverse=True)
    assert found["live"] == sum(count > 0 for count in counts)
    assert 1 <= found["effective"] <= found["live"] + 1e-9
    assert codebook_use(runs["mlp"]) is None


@pytest.mark.parametrize("overrides", [{}, {"hop_embedding": False}, {"num_layers": 2, "ffn_ratio": 2.0}])
def test_readout_weights_are_those_of_the_forward(overrides: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = LargeGTLocalConfig(hidden_dim=8, num_heads=2, **overrides)
    encoder, module = InputEncoder(5, 8, 2, config).eval(), LocalModule(config).eval()
    tokens = torch.randn(6, 12, 5)
    with torch.no_grad():
        h = module.hidden_states(encoder(tokens))
        weight = module.readout_weights(h)
    assert weight.shape == (6, 12)
    assert (weight[:, 0] == 0).all()
    torch.testing.assert_close(weight.sum(dim=1), torch.ones(6))
    read = h[:, 0] + (weight[:, :, None] * h).sum(dim=1)
    torch.testing.assert_close(read, module(encoder(tokens)).detach(), atol=1e-5, rtol=1e-4)


def test_attention_is_summed_by_hop_and_by_whose_token() -> None:
    # a path 0-1-2-3 and node 4 alone
    lists = MappedCSR(np.array([0, 1, 3, 5, 6, 6]), np.array([1, 0, 2, 1, 3, 2]))
    nodes = np.array([[0, 1, 2, 1], [1, 0, 2, 3], [4, 0, 1, 2]])
    kind = kinds(lists, nodes)
    assert kind.tolist() == [[0, 1, 2, 1], [0, 1, 1, 2], [0, 2, 2, 2]]
    weight = np.random.default_rng(0).random((3, 12))
    weight[:, 0] = 0
    weight /= weight.sum(axis=1, keepdims=True)
    found = attention_use(weight, kind, ["H", "C0", "C1"])
    assert found is not None
    wanted = np.zeros((3, 3))
    for b in range(3):
        for j in range(4):
            for hop in range(3):
                wanted[kind[b, j], hop] += weight[b, 3 * j + hop] / 3
    np.testing.assert_allclose(found["share"], wanted, rtol=1e-5)
    assert found["tokens_per_node"][0] == [0, 1, 1]
    assert np.sum(found["tokens_per_node"]) == pytest.approx(11)
    assert found["top"]["1"] == pytest.approx(weight.max(axis=1).mean())
    assert found["top"]["20"] == pytest.approx(1)
    assert 1 <= found["effective_tokens"] <= 11
    assert attention_use(weight[:, :1], kind[:, :1], ["H"]) is None, "no choice"


def test_attention_of_a_run(runs: dict[str, Path]) -> None:
    found = analyse(runs["largegt-full"])["attention"]
    assert np.sum(found["share"]) == pytest.approx(1, abs=1e-4)
    assert found["hops"] == ["H", "C0", "C1"]
    assert "attention" not in analyse(runs["mlp"])


def test_attention_of_a_run_with_directions_apart(tmp_path: Path) -> None:
    edges, features, labels = homophilous()
    store = ingest(arrays(edges, features, labels), tmp_path / "g", IngestConfig(undirected=False))
    assert store.directed
    config = small("prepare.tokens.separate_directions=true", "prepare.tokens.add_degrees=true", "train.epochs=1")
    run = train(store, config, tmp_path / "run").path
    found = analyse(run)["attention"]
    assert found["hops"] == ["H", "out 1 hop", "in 1 hop", "out 2 hops", "in 2 hops"]
    assert np.shape(found["share"]) == (3, 5)
    assert np.sum(found["share"]) == pytest.approx(1, abs=1e-4)
    page = report([run], tmp_path / "report.html").read_text()
    assert "in 2 hops of its neighbours" in page


@pytest.mark.parametrize("task", ["multilabel", "regression", "binary"])
def test_other_tasks(task: str, tmp_path: Path) -> None:
    _, features, classes = homophilous()
    labels: Any = {
        "multilabel": np.where(np.arange(150)[:, None] % 9 == 0, np.nan, np.eye(3)[classes]),
        "regression": features[:, 0] * 2.5,
        "binary": classes == 1,
    }[task]
    run = train(easy_store(tmp_path / "g", labels, splits=None), small(), tmp_path / "run").path
    found = analyse(run)
    assert found["task"] == task
    if task == "regression":
        scores = evaluate(run)
        assert sum(map(sum, found["values"]["cells"])) == found["num_nodes"]
        weights = [part[0] for part in found["by_value"]]
        error = np.average([part[3] for part in found["by_value"]], weights=weights)
        assert error == pytest.approx(scores["mae"], rel=1e-4)
    else:
        assert len(found["per_class"]) == (3 if task == "multilabel" else 2)
        assert ("confusion" in found) == (task == "binary")
        assert 0 <= found["calibration"]["ece"] <= 1


def test_columns_carry_the_mean_of_what_explanations_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several nodes at once, against one explanation after the other."""
    monkeypatch.setattr(analysis, "_COLUMN_NODES", 5)
    settings = ("model.name=largegt-local", "model.residual=true", "train.num_eval_samples=1")
    run = train(table_store(tmp_path / "g"), small(*settings), tmp_path / "run")
    found = analyse(run)["columns"]
    assert (found["num_nodes"], found["num_columns"]) == (5, 4)
    rows = run.prepared().split_rows("test")
    some = rows[np.linspace(0, len(rows) - 1, 5).astype(int)]
    expected: dict[str, float] = {}
    for node in run.store().ids_of(np.asarray(run.prepared().nodes[some])):
        for each in explain(run, node).columns:
            expected[each.column] = expected.get(each.column, 0.0) + abs(each.carried) / 5
    for one in found["listed"]:
        assert one["carried"] == pytest.approx(expected.pop(one["column"]), abs=5e-3)
    assert not expected
