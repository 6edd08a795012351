"""Few positives: metrics and class weights against scikit-learn, and what they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

from largegt.config.schema import Config
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.inference.predictor import predict
from largegt.preprocessing.pipeline import prepare
from largegt.reporting.page import report
from largegt.training.metrics import Scores, TaskHead
from largegt.training.run import Run
from largegt.training.trainer import train

FAST = ["prepare.local_nodes.k=4", "prepare.positional_encoding.method=none", "model.name=largegt-local",
        "model.hidden_dim=16", "train.batch_size=256", "train.learning_rate=0.005"]  # fmt: skip


def rare_store(folder: Path, num_nodes: int = 1200, share: float = 0.03) -> GraphStore:
    """Positives are 3 %, tend to meet each other, and show in one feature, which is noisy."""
    rng = np.random.default_rng(0)
    labels = (rng.random(num_nodes) < share).astype(int)
    positives = np.flatnonzero(labels)
    edges = np.hstack([rng.integers(0, num_nodes, (2, 3 * num_nodes)), rng.choice(positives, (2, 4 * len(positives)))])
    features = rng.normal(size=(num_nodes, 4)).astype(np.float32)
    features[:, 0] += 1.2 * labels
    return ingest(sources.arrays(edges, features, labels, num_nodes=num_nodes), folder)


def head_for(store: GraphStore, weights: str) -> TaskHead:
    config = Config.from_recipe("base", [*FAST, f"train.class_weights={weights}"])
    return TaskHead.for_training(prepare(store, config.prepare), config.train)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_balanced_weights_are_scikit_learns(tmp_path: Path, num_classes: int) -> None:
    rng = np.random.default_rng(1)
    labels = np.minimum(rng.geometric(0.6, 200) - 1, num_classes - 1)
    store = ingest(sources.arrays(rng.integers(0, 200, (2, 300)), labels=labels, num_nodes=200), tmp_path / "g")
    assert store.task == ("binary" if num_classes == 2 else "multiclass")
    train_labels = labels[store.splits["train"]]
    expected = compute_class_weight("balanced", classes=np.arange(num_classes), y=train_labels)
    head = head_for(store, "balanced")
    assert head.weight is not None
    assert head.weight.tolist() == pytest.approx(expected.tolist())
    logits = torch.from_numpy(rng.normal(size=(len(train_labels), head.num_outputs))).float()
    likely = head.probabilities(logits).double().numpy()
    likely /= likely.sum(axis=1, keepdims=True)  # scikit-learn wants sums of one more exactly than float32 has them
    each = -np.log(likely[np.arange(len(likely)), train_labels])
    found = head.loss(logits, torch.from_numpy(train_labels).int())
    assert float(found) == pytest.approx(np.average(each, weights=expected[train_labels]), rel=1e-5)
    log_loss = metrics.log_loss(train_labels, likely, sample_weight=expected[train_labels])
    assert float(found) == pytest.approx(log_loss, rel=1e-5)


@pytest.mark.slow
def test_a_linear_model_trained_with_the_loss_is_scikit_learns(tmp_path: Path) -> None:
    """The minimum of the weighted loss is where LogisticRegression(class_weight="balanced") finds it."""
    store = rare_store(tmp_path / "g")
    head, nodes = head_for(store, "balanced"), store.splits["train"]
    x, y = np.array(store.features)[nodes], np.array(store.labels)[nodes]
    expected = LogisticRegression(class_weight="balanced", C=1e6, tol=1e-10).fit(x, y)
    weight, bias = torch.zeros(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Any:
        search.zero_grad()
        loss = head.loss(torch.from_numpy(x) @ weight + bias, torch.from_numpy(y))
        loss.backward()
        return loss

    search.step(closure)
    assert weight.detach()[:, 0].tolist() == pytest.approx(expected.coef_[0].tolist(), abs=2e-3)
    assert bias.tolist() == pytest.approx(expected.intercept_.tolist(), abs=2e-3)


def test_binary_metrics_are_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    truth = (rng.random(500) < 0.03).astype(np.int32)
    logits = np.round(rng.normal(size=500) + truth - 1.0, 1)  # ties among them
    scores = Scores(TaskHead("binary", 1, None, 0.0, 0.0, 1.0))
    for part in np.array_split(np.arange(500), 7):
        scores.add(torch.from_numpy(logits[part, None]).float(), torch.from_numpy(truth[part]))
    found, said = scores.result(), logits >= 0
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, said))
    assert found["roc_auc"] == pytest.approx(metrics.roc_auc_score(truth, logits))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(truth, logits))
    assert found["f1"] == pytest.approx(metrics.f1_score(truth, said))


def test_macro_f1_is_scikit_learns() -> None:
    rng = np.random.default_rng(3)
    truth, logits = np.minimum(rng.geometric(0.5, 400) - 1, 3), rng.normal(size=(400, 4))
    scores = Scores(TaskHead("multiclass", 4, None, 0.0, 0.0, 1.0))
    scores.add(torch.from_numpy(logits).float(), torch.from_numpy(truth))
    assert scores.result()["macro_f1"] == pytest.approx(metrics.f1_score(truth, logits.argmax(1), average="macro"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("rare")
    store = rare_store(folder / "g")
    settings = [*FAST, "train.epochs=6", "train.monitor=average_precision"]
    return {
        weights: train(store, Config.from_recipe("base", [*settings, f"train.class_weights={weights}"]),
                       folder / weights)
        for weights in ("none", "balanced")
    }  # fmt: skip


@pytest.mark.slow
def test_balanced_weights_find_what_is_rare(runs: dict[str, Run]) -> None:
    recall, f1 = {}, {}
    for name, run in runs.items():
        store = run.store()
        table = predict(run.path, split="test")
        truth = np.array(store.labels)[store.nodes_of(table["node"].to_pylist())]
        said = np.array(table["label"].to_pylist())
        recall[name], f1[name] = metrics.recall_score(truth, said), metrics.f1_score(truth, said)
        assert run.metrics["test"]["f1"] == pytest.approx(f1[name])
        assert set(run.metrics["test"]) == {"loss", "accuracy", "roc_auc", "average_precision", "f1"}
    assert recall["balanced"] > recall["none"] + 0.3
    assert f1["balanced"] > f1["none"]


@pytest.mark.slow
def test_the_metric_asked_for_picks_the_epoch(runs: dict[str, Run]) -> None:
    for run in runs.values():
        best = max(run.history, key=lambda entry: entry["valid"]["average_precision"])
        assert run.metrics["best_epoch"] == best["epoch"]
        assert run.metrics["valid"]["average_precision"] == pytest.approx(best["valid"]["average_precision"], rel=1e-4)
    config = Config.from_recipe("base", [*FAST, "train.monitor=macro_f1"])
    with pytest.raises(ConfigError, match="no metric of a binary task"):
        train(runs["none"].store(), config, runs["none"].path.parent / "other")


def test_the_report_shows_them(runs: dict[str, Run], tmp_path: Path) -> None:
    report([run.path for run in runs.values()], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in ("test average_precision", "test roc_auc", "test f1", "test accuracy", "class_weights"):
        assert words in page, words
