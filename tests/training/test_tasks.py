"""Tasks: each one trained, evaluated and predicted; its scores against written-out versions over its predictions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import TrainConfig
from largegt.data.store import GraphStore
from largegt.inference.predictor import predict
from largegt.preprocessing.pipeline import prepare
from largegt.training.evaluate import Scorer, evaluate
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.training.setup import make_accelerator, make_loader
from largegt.training.trainer import train
from run_helpers import easy_store, homophilous, small, thirds

NAN = float("nan")


# the written-out versions


def roc_auc(score: np.ndarray, truth: np.ndarray) -> float:
    """The share of (positive, negative) pairs in the right order, ties half."""
    pairs = score[truth == 1][:, None] - score[truth == 0][None, :]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def average_precision(score: np.ndarray, truth: np.ndarray) -> float:
    """Σ (recall gained at a threshold) · (precision there)."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(score.tolist()), reverse=True):
        chosen = score >= threshold
        recall = float((truth[chosen] == 1).sum() / (truth == 1).sum())
        total += (recall - before) * float((truth[chosen] == 1).mean())
        before = recall
    return total


def f1(said: np.ndarray, truth: np.ndarray) -> float:
    hits = int(((said == 1) & (truth == 1)).sum())
    wrong = int((said != truth).sum())
    return 2 * hits / (2 * hits + wrong)


def cross_entropy(probability: np.ndarray, truth: np.ndarray) -> float:
    return float(-np.log(probability[np.arange(len(truth)), truth]).mean())


def binary_loss(probability: np.ndarray, truth: np.ndarray) -> float:
    known = ~np.isnan(truth)
    p, t = probability[known], truth[known]
    return float(-(t * np.log(p) + (1 - t) * np.log(1 - p)).mean())


# the four data sets


def labels_of(task: str) -> Any:
    _, features, classes = homophilous()
    rng = np.random.default_rng(3)
    if task == "multiclass":
        return np.array(["blue", "green", "red"])[classes]
    if task == "binary":
        return np.where(classes == 2, "yes", "no")
    if task == "multilabel":
        parts = np.stack([classes == 0, classes == 1, features[:, 3] > 0, rng.random(150) < 0.5], axis=1).astype(
            np.float32
        )
        parts[rng.random(parts.shape) < 0.2] = NAN
        return parts
    values = (10 + 3 * classes + rng.normal(scale=0.1, size=150)).astype(np.float32)
    values[5] = NAN
    return values


TASKS = ("multiclass", "binary", "multilabel", "regression")


@pytest.fixture(scope="module", params=TASKS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    store = easy_store(folder / "g", labels_of(request.param))
    assert store.task == request.param
    return train(store, small("train.epochs=6", "train.eval_batch_size=11"), folder / "run")


def truth_and_probability(run: Run, split: str) -> tuple[np.ndarray, np.ndarray]:
    store = run.store()
    nodes = store.splits[split]
    table = predict(run.path, ids=nodes, all_probabilities=True)
    if store.task == "regression":
        return np.asarray(store.labels[nodes]), table["value"].to_numpy()
    columns = [table[f"probability_{name}"].to_numpy() for name in store.classes]
    return np.asarray(store.labels[nodes]), np.stack(columns, axis=1).astype(np.float64)


def written_out(task: str, truth: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    if task == "multiclass":
        said = probability.argmax(axis=1)
        every = [f1((said == c).astype(int), (truth == c).astype(int)) for c in range(probability.shape[1])]
        return {
            "loss": cross_entropy(probability, truth), "accuracy": float((said == truth).mean()),
            "macro_f1": float(np.mean(every)),
        }  # fmt: skip
    if task == "binary":
        said = (probability[:, 1] >= 0.5).astype(int)
        return {
            "loss": cross_entropy(probability, truth), "accuracy": float((said == truth).mean()), "f1": f1(said, truth),
            "roc_auc": roc_auc(probability[:, 1], truth),
            "average_precision": average_precision(probability[:, 1], truth),
        }  # fmt: skip
    if task == "multilabel":
        known = ~np.isnan(truth)
        columns = [(probability[known[:, c], c], truth[known[:, c], c]) for c in range(truth.shape[1])]
        said = (probability >= 0.5).astype(int)
        return {
            "loss": binary_loss(probability, truth),
            "roc_auc": float(np.mean([roc_auc(*column) for column in columns])),
            "average_precision": float(np.mean([average_precision(*column) for column in columns])),
            "micro_f1": f1(said[known], truth[known]),
        }  # fmt: skip
    miss = probability - truth
    return {
        "rmse": float(np.sqrt((miss**2).mean())), "mae": float(np.abs(miss).mean()),
        "r2": float(1 - (miss**2).sum() / ((truth - truth.mean()) ** 2).sum()),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_scores_are_those_of_the_written_out_versions(split: str, run: Run) -> None:
    truth, probability = truth_and_probability(run, split)
    expected = written_out(run.store().task, truth, probability)
    got = evaluate(run.path, split)
    if run.store().task == "regression":
        train_labels = np.asarray(run.store().labels[run.store().splits["train"]])
        expected["loss"] = (expected["rmse"] / float(train_labels.std())) ** 2
    assert got == pytest.approx(expected, abs=2e-5, rel=2e-5)
    if split != "train":
        assert run.metrics[split] == got


@pytest.mark.slow
def test_it_learns(run: Run) -> None:
    losses = [entry["train"]["loss"] for entry in run.history]
    assert losses[-1] < losses[0]
    better_than = {"multiclass": ("accuracy", 0.6), "binary": ("roc_auc", 0.8), "multilabel": ("roc_auc", 0.6)}
    name, floor = better_than.get(run.store().task, ("r2", 0.2))
    assert run.metrics["valid"][name] > floor


def test_the_best_epoch_is_by_the_metric_of_the_task(run: Run) -> None:
    name = {"multiclass": "accuracy", "regression": "rmse"}.get(run.store().task, "roc_auc")
    scores = [entry["valid"][name] for entry in run.history]
    best = np.argmin(scores) if name == "rmse" else np.argmax(scores)
    assert run.metrics["best_epoch"] == best + 1


def test_predictions_of_every_node(run: Run) -> None:
    store = run.store()
    table = predict(run.path, all_probabilities=True)
    assert table.num_rows == store.num_nodes
    assert table["node"].to_pylist() == list(range(store.num_nodes))
    if store.task == "regression":
        assert table.column_names == ["node", "value"]
        assert np.isfinite(table["value"].to_numpy()).all()
    elif store.task == "multilabel":
        assert table.column_names == ["node", *(part for c in range(4) for part in (f"label_{c}", f"probability_{c}"))]
        for c in range(4):
            assert (table[f"label_{c}"].to_numpy() == (table[f"probability_{c}"].to_numpy() >= 0.5)).all()
    else:
        each = np.stack([table[f"probability_{name}"].to_numpy() for name in store.classes], axis=1)
        assert each.sum(axis=1) == pytest.approx(np.ones(store.num_nodes), abs=1e-5)
        assert table["label"].to_pylist() == [store.classes[best] for best in each.argmax(axis=1)]
        assert (table["probability"].to_numpy() == each.max(axis=1)).all()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_scores_do_not_depend_on_the_batch_size(task: str, weights: str, tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", labels_of(task))
    config = small("train.epochs=2", f"train.class_weights={weights}", "model.name=mlp")
    run = train(store, config, tmp_path / "run")
    prepared = run.prepared()
    model, head = run.load_model(prepared), run.head(prepared)
    accelerator, sized = make_accelerator(config.train), config.train.model_copy
    loader, rows = make_loader(prepared, model, config.train, accelerator.device), prepared.split_rows("valid")
    scores = [
        Scorer(model, head, sized(update={"eval_batch_size": size}), accelerator, loader, prepared, store).scores(rows)
        for size in (1, 7, 1000)
    ]
    assert scores[0] == pytest.approx(scores[2], rel=1e-4)
    assert scores[1] == pytest.approx(scores[2], rel=1e-4)


# the head


def head(task: Any, weight: torch.Tensor | None = None, smoothing: float = 0.0, outputs: int = 3) -> TaskHead:
    return TaskHead(task, outputs, weight, smoothing, 10.0, 2.0)


def test_multiclass_loss_with_weights_and_smoothing() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -1.0]])
    labels = torch.tensor([0, 2], dtype=torch.int32)
    log_p = np.log(np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=1, keepdims=True))
    plain = -(log_p[0, 0] + log_p[1, 2]) / 2
    assert float(head("multiclass").loss(logits, labels)) == pytest.approx(plain, rel=1e-5)
    weight = np.array([1.0, 2.0, 4.0])
    weighted = -(1 * log_p[0, 0] + 4 * log_p[1, 2]) / 5
    assert float(head("multiclass", torch.tensor(weight).float()).loss(logits, labels)) == pytest.approx(
        weighted, rel=1e-5
    )
    smooth = 0.9 * plain - 0.1 * log_p.mean()
    assert float(head("multiclass", smoothing=0.1).loss(logits, labels)) == pytest.approx(smooth, rel=1e-5)


def test_binary_loss_with_weights_and_smoothing() -> None:
    logits = torch.tensor([[2.0], [-1.0]])
    labels = torch.tensor([0, 1], dtype=torch.int32)
    p = 1 / (1 + np.exp(-logits[:, 0].numpy()))
    plain = -(np.log(1 - p[0]) + np.log(p[1])) / 2
    assert float(head("binary", outputs=1).loss(logits, labels)) == pytest.approx(plain, rel=1e-5)
    weighted = -(2 * np.log(1 - p[0]) + 3 * np.log(p[1])) / 5
    assert float(head("binary", torch.tensor([2.0, 3.0]), outputs=1).loss(logits, labels)) == pytest.approx(
        weighted, rel=1e-5
    )
    t = np.array([0.1, 0.9])
    smooth = -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    assert float(head("binary", smoothing=0.2, outputs=1).loss(logits, labels)) == pytest.approx(smooth, rel=1e-5)


def test_multilabel_loss_leaves_missing_parts_out_and_out_of_the_gradient() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 3.0]], requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [0.0, NAN]])
    loss = head("multilabel", outputs=2).loss(logits, labels)
    p = 1 / (1 + np.exp(-np.array([2.0, 0.5])))
    assert loss.item() == pytest.approx(-(np.log(p[0]) + np.log(1 - p[1])) / 2, rel=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[:, 1].tolist() == [0.0, 0.0]
    empty = head("multilabel", outputs=2).loss(logits, torch.full((2, 2), NAN))
    assert empty.item() == 0.0


def test_regression_loss_is_of_the_standardised_target_and_the_value_is_not() -> None:
    logits = torch.tensor([[0.0], [1.0]])
    assert float(head("regression", outputs=1).loss(logits, torch.tensor([10.0, 14.0]))) == pytest.approx(0.5)
    assert head("regression", outputs=1).probabilities(logits)[:, 0].tolist() == [10.0, 12.0]


def test_balanced_weights_are_inverse_frequencies(tmp_path: Path) -> None:
    labels = np.array([0] * 100 + [1] * 40 + [2] * 10)
    everyone = {"train": np.arange(150)}
    store = easy_store(tmp_path / "g", labels, everyone)
    weight = TaskHead.for_training(prepare(store, small().prepare), TrainConfig(class_weights="balanced")).weight
    assert weight is not None
    assert weight.tolist() == pytest.approx([150 / 300, 150 / 120, 150 / 30])
    store = easy_store(tmp_path / "h", (labels > 0).astype(int), everyone)
    weight = TaskHead.for_training(prepare(store, small().prepare), TrainConfig(class_weights="balanced")).weight
    assert weight is not None
    assert weight.tolist() == [150 / 200, 150 / 100]


def test_balanced_weights_of_multilabel_leave_missing_parts_out(tmp_path: Path) -> None:
    parts = np.zeros((150, 2), dtype=np.float32)
    parts[:30, 0], parts[100:, 0], parts[:75, 1] = 1, NAN, 1
    store = easy_store(tmp_path / "g", parts, {"train": np.arange(150)})
    weight = TaskHead.for_training(prepare(store, small().prepare), TrainConfig(class_weights="balanced")).weight
    assert weight is not None
    assert weight.tolist() == pytest.approx([70 / 30, 1.0])


def test_weights_and_scale_come_from_the_training_nodes_alone(tmp_path: Path) -> None:
    values = np.arange(150, dtype=np.float32) + 0.5
    store = easy_store(tmp_path / "g", values, {"train": np.arange(50), "valid": np.arange(50, 150)})
    made = TaskHead.for_training(prepare(store, small().prepare), TrainConfig())
    assert made.target_mean == pytest.approx(25.0)
    assert made.target_std == pytest.approx(np.arange(50).std())


def test_a_constant_target_does_not_divide_by_zero(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", np.full(150, 2.5, dtype=np.float32))
    assert store.task == "regression"
    run = train(store, small("train.epochs=2"), tmp_path / "run")
    assert all(math.isfinite(entry["train"]["loss"]) for entry in run.history)


# small and lopsided splits


def lopsided(tmp_path: Path, labels: Any, valid: Any) -> GraphStore:
    parts = thirds(150)
    rest = np.setdiff1d(np.arange(150), valid)
    return easy_store(tmp_path / "g", labels, {"train": rest[:100], "valid": valid, "test": parts["test"][:0]})


@pytest.mark.parametrize("task", TASKS)
def test_a_single_validation_node(task: str, tmp_path: Path) -> None:
    run = train(lopsided(tmp_path, labels_of(task), np.array([7])), small("train.epochs=2"), tmp_path / "run")
    assert run.metrics["epochs"] == 2


def test_validation_nodes_of_one_class_only(tmp_path: Path) -> None:
    labels = labels_of("binary")
    run = train(
        lopsided(tmp_path, labels, np.flatnonzero(labels == "no")[:20]), small("train.epochs=2"), tmp_path / "run"
    )
    assert run.metrics["epochs"] == 2


def test_a_label_without_positives_in_validation_does_not_count_as_zero(tmp_path: Path) -> None:
    """ROC-AUC of a label that has one class only is undefined: the mean is over the others."""
    labels = labels_of("multilabel")
    parts = thirds(150)
    labels[parts["valid"], 3] = 0.0
    store = easy_store(tmp_path / "g", labels, parts)
    run = train(store, small("train.epochs=3"), tmp_path / "run")
    truth, probability = truth_and_probability(run, "valid")
    known = ~np.isnan(truth)
    defined = [roc_auc(probability[known[:, c], c], truth[known[:, c], c]) for c in range(3)]
    assert evaluate(run.path, "valid")["roc_auc"] == pytest.approx(np.mean(defined), abs=1e-4)
