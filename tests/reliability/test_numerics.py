"""Numbers at their edges: each strange graph trains and predicts, or is refused with one clear line; a loss that is no
number is found at its step, with its cause, and what was good before is kept."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.inference.predictor import predict
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import token_batches
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.sampling.local_nodes import sample
from largegt.runtime.distributed import ALONE
from largegt.training import trainer
from largegt.training.evaluate import evaluate
from largegt.training.nan_check import Losses, about_steps, likely_cause, num_spikes
from largegt.training.run import Run
from largegt.training.run_checksums import replacing
from largegt.training.trainer import train
from run_helpers import Cli, easy_store, history, homophilous, one_thread, refusal, small, thirds  # noqa: F401

NUM_NODES = 60
QUICK = (
    "model.name=largegt-full", "model.neighbor_label_hops=0", "train.resample=never", "train.num_eval_samples=1",
    "train.epochs=2", "train.batch_size=16", "prepare.tokens.add_degrees=false",
)  # fmt: skip


def graph(
    folder: Path, edges: Any = None, features: Any = None, labels: Any = None, parts: Any = None, **settings: Any
):  # type: ignore[no-untyped-def]
    """A store of sixty nodes, of which some part is strange."""
    plain, values, classes = homophilous(NUM_NODES)
    source = arrays(
        plain if edges is None else edges, values if features is None else features,
        classes if labels is None else labels, thirds(NUM_NODES) if parts is None else parts, num_nodes=NUM_NODES,
    )  # fmt: skip
    return ingest(source, folder / "g", IngestConfig(undirected=True, **settings), threads=1)


def without(name: str) -> dict[str, np.ndarray]:
    return {split: nodes for split, nodes in thirds(NUM_NODES).items() if split != name}


def with_train(nodes: Any) -> dict[str, np.ndarray]:
    parts = thirds(NUM_NODES)
    return {**parts, "train": parts["train"][:nodes]}


def one_class_in_validation() -> np.ndarray:
    labels = np.arange(NUM_NODES) % 2
    labels[thirds(NUM_NODES)["valid"]] = 1
    return labels


def a_class_that_only(split: str) -> np.ndarray:
    labels = np.arange(NUM_NODES) % 2
    labels[thirds(NUM_NODES)[split][:4]] = 2
    return labels


FEATURES = homophilous(NUM_NODES)[1]
STRANGE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a class without training nodes": ({"labels": a_class_that_only("test")}, ()),
    "a class without training nodes, weighted": (
        {"labels": a_class_that_only("valid")}, ("train.class_weights=balanced",)
    ),
    "one class": ({"labels": np.zeros(NUM_NODES, np.int64)}, ()),
    "isolated but for two": ({"edges": np.array([[0], [1]])}, ()),
    "K larger than N": ({}, (f"prepare.local_nodes.k={2 * NUM_NODES}",)),
    "a last batch of one": ({"parts": with_train(17)}, ("model.norm=batch",)),
    "a batch larger than the training set": ({}, ("train.batch_size=1000", "train.eval_batch_size=1000")),
    "a codebook larger than the data": ({}, ("model.codebook.num_centroids=500",)),
    "no validation nodes": ({"parts": without("valid")}, ("train.patience=1",)),
    "no test nodes": ({"parts": without("test")}, ()),
    "one training node": ({"parts": with_train(1)}, ("model.norm=batch",)),
    "one training node, weighted": ({"parts": with_train(1)}, ("train.class_weights=balanced",)),
    "a constant target": ({"labels": np.full(NUM_NODES, 2.5)}, ()),
    "targets whose squares leave float32": ({"labels": np.linspace(-1e37, 1e37, NUM_NODES)}, ()),
    "one class in validation": ({"labels": one_class_in_validation()}, ()),
    "features of zeros": ({"features": np.zeros_like(FEATURES)}, ()),
    "features of zeros, as they are": ({"features": np.zeros_like(FEATURES)}, ("prepare.tokens.normalize=none",)),
    "a constant feature": ({"features": np.where(np.arange(5) == 1, 7.0, FEATURES).astype(np.float32)}, ()),
    "a constant feature of 1e30": ({"features": np.where(np.arange(5) == 1, 1e30, FEATURES).astype(np.float32)}, ()),
    "features of 1e30": ({"features": FEATURES * np.float32(1e30)}, ()),
    "features of 1e-30": ({"features": FEATURES * np.float32(1e-30)}, ()),
    "one node of 1e30": ({"features": np.where(np.arange(60)[:, None] == 3, 1e30, FEATURES).astype(np.float32)}, ()),
    "float16": ({}, ("train.precision=16-mixed",)),
    "no features": ({"features": np.zeros((NUM_NODES, 1), np.float32)}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_it_trains_and_predicts(name: str, tmp_path: Path) -> None:
    given, overrides = STRANGE[name]
    store = graph(tmp_path, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = train(store, small(*QUICK, *overrides), tmp_path / "run")
    for entry in run.history:
        assert all(math.isfinite(value) for value in (entry["train"]["loss"], *entry["valid"].values()))
    for split in ("valid", "test"):
        assert all(math.isfinite(value) for value in run.metrics[split].values())
        assert bool(run.metrics[split]) == bool(len(store.splits[split]))
    table = predict(run.path)
    assert table.num_rows == NUM_NODES
    number = table["value" if store.task == "regression" else "probability"].to_numpy()
    assert np.isfinite(number).all()


# refused, in one line


def test_features_that_overflow_float16(tmp_path: Path) -> None:
    """In token rows: which node, which feature, what to do."""
    features = FEATURES.copy()
    features[5, 2] = 1e5
    store = graph(tmp_path, features=features)
    as_given = small(*QUICK, "prepare.tokens.normalize=none", "prepare.tokens.dtype=float16")
    said = refusal(lambda: prepare(store, as_given.prepare))
    assert "overflow float16 at node 5, feature 2: run with --set prepare.tokens.dtype=float32" in said


def test_sums_that_overflow_float32(tmp_path: Path) -> None:
    store = graph(tmp_path, features=np.full_like(FEATURES, 3e38))
    said = refusal(lambda: prepare(store, small(*QUICK, "prepare.tokens.normalize=none").prepare))
    assert "overflow float32 at node" in said
    assert "prepare.tokens.normalize=per_feature" in said


# a loss that is no number


PAIRS = np.stack([np.arange(0, NUM_NODES, 2), np.arange(1, NUM_NODES, 2)])
"""Edges that join each node to one other: what is strange stays where it is."""


def with_huge(*nodes: int) -> np.ndarray:
    features = FEATURES.copy()
    features[list(nodes)] = 1e30
    return features


AS_GIVEN = (*QUICK, "prepare.tokens.normalize=none")


@pytest.mark.parametrize("every", [1, 3, 64])
def test_the_first_bad_step_is_named_with_its_cause(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once on a CPU; a window of steps later where losses come from a device, but the step is the same."""
    real = Losses.__init__

    def windowed(self: Losses, *args: Any) -> None:
        real(self, *args)
        self.every = every
        self._ring = torch.zeros(2 * every)

    monkeypatch.setattr(Losses, "__init__", windowed)
    train_nodes = thirds(NUM_NODES)["train"]
    store = graph(tmp_path, PAIRS, with_huge(train_nodes[9]))
    prepared = prepare(store, small(*AS_GIVEN).prepare)
    order = prepared.nodes[np.random.default_rng([0, 0]).permutation(prepared.split_rows("train"))]
    pair = train_nodes[9] // 2
    step = 1 + int(np.flatnonzero(order // 2 == pair)[0]) // 2
    assert step > 1
    said = refusal(lambda: train(prepared, small(*AS_GIVEN, "train.batch_size=2"), tmp_path / "run"))
    assert f"the loss of step {step} in epoch 1 is not a finite number: features of its nodes are as large as" in said
    assert (
        "train with --set prepare.tokens.normalize=per_feature; no epoch was finished: start anew with --overwrite"
        in said
    )
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_causes(tmp_path: Path) -> None:
    """What the error says of a batch, by what it holds and how it was computed."""
    config = small(*QUICK, "train.max_grad_norm=none")
    prepared = prepare(graph(tmp_path), config.prepare)
    batch = next(token_batches(prepared, split="train", batch_size=5))
    tokens, positions = batch.tokens.clone(), batch.positions.clone()
    tokens[3, 2, 1], positions[0, 0] = torch.nan, -torch.inf

    def cause(batch: TokenBatch, precision: str = "32-true", before: tuple[TokenBatch, ...] = ()) -> str:
        return likely_cause(config.train, precision, prepared, iter([batch]), before)

    assert cause(replace(batch, tokens=tokens)).startswith("tokens of its nodes are not all finite")
    assert cause(replace(batch, positions=positions)).startswith("positions of its nodes are not all finite")
    assert "delete it and prepare again" in cause(replace(batch, tokens=tokens))
    assert "as large as 2e+20: scale them before ingest" in cause(replace(batch, tokens=torch.full_like(tokens, 2e20)))
    huge = replace(batch, tokens=torch.full_like(tokens, 2e20))
    assert cause(batch, before=(batch, huge)).startswith("features of nodes of the steps before it are as large as")
    assert "float16 ends at 65504: use --set train.precision=bf16-mixed" in cause(batch, "16-mixed")
    much = replace(batch, tokens=torch.full_like(tokens, 1e4))
    assert "float16 ends at 65504 (features are as large as 1e+04)" in cause(much, "16-mixed")
    assert "use a smaller train.learning_rate (now 0.02) or --set train.max_grad_norm=1" in cause(batch)


def test_what_was_good_is_kept(tmp_path: Path) -> None:
    """A node with huge features is first drawn in the second epoch: the checkpoint and the weights of the first stay,
    and work."""
    fresh = ("train.resample=epoch", "prepare.tokens.num_hops=0", "train.epochs=9", "prepare.local_nodes.k=4")
    config = small(*AS_GIVEN, *fresh)
    labels = np.where(np.arange(NUM_NODES) % 3, np.arange(NUM_NODES) % 2, -1)
    parts = {"train": np.flatnonzero(labels >= 0)[:20], "valid": np.flatnonzero(labels >= 0)[20:]}
    plain = graph(tmp_path / "base", labels=labels, parts=parts)
    first = sample(plain, np.flatnonzero(labels >= 0), config.prepare.local_nodes, 0)
    second = sample(plain, parts["train"], config.prepare.local_nodes, 1)
    drawn_late = np.setdiff1d(second, np.union1d(first, np.flatnonzero(labels >= 0)))
    store = graph(tmp_path, features=with_huge(drawn_late[0]), labels=labels, parts=parts)
    said = refusal(lambda: train(store, config, tmp_path / "run"))
    assert "in epoch 2 is not a finite number: features of its nodes are as large as" in said
    assert "keeps its last checkpoint and its best weights, of epoch 1, which evaluate and predict take" in said
    run = Run.open(tmp_path / "run")
    assert len(run.history) == 1
    checkpoint = torch.load(run.path / "checkpoints" / "last.pt", weights_only=True)
    assert checkpoint["progress"]["epoch"] == 1
    assert all(value.isfinite().all() for value in checkpoint["model"].values())
    assert evaluate(run, "valid")["loss"] == pytest.approx(run.history[0]["valid"]["loss"])
    assert predict(run, split="valid").num_rows == 20
    assert refusal(lambda: train(store, config, tmp_path / "run", resume=True)) == said, "a resumed run is the same run"


def test_a_validation_loss_that_is_no_number(tmp_path: Path) -> None:
    """Training nodes and their neighbours are fine, a validation node is not."""
    parts = {"train": np.arange(20), "valid": np.arange(20, 40), "test": np.arange(40, 60)}
    store = graph(tmp_path, PAIRS, with_huge(38), parts=parts)
    said = refusal(lambda: train(store, small(*AS_GIVEN), tmp_path / "run"))
    assert "the validation loss in epoch 1 is not a finite number: features of its nodes are as large as" in said


def test_a_prediction_that_is_no_number_is_no_label(tmp_path: Path) -> None:
    """The likeliest of NaNs would be the first class: it is refused, with the node's own id, and nothing is written."""
    names = np.array([f"page {node}" for node in range(NUM_NODES)])
    labels: Any = homophilous(NUM_NODES)[2].astype(object)
    labels[20:22] = None
    source = arrays(names[PAIRS], with_huge(20), labels, node_ids=names)
    store = ingest(source, tmp_path / "g", IngestConfig(undirected=True), threads=1)
    run = train(store, small(*AS_GIVEN), tmp_path / "run")
    said = refusal(lambda: predict(run, tmp_path / "p.csv"))
    assert "what the model says of node 'page 20' is not a finite number: features of this node" in said
    assert sorted(item.name for item in tmp_path.iterdir()) == ["g", "run"]
    weights = run.load_model(run.prepared())
    with torch.no_grad():
        next(weights.parameters()).fill_(torch.nan)
    with replacing(run.path) as folder:
        trainer.save_weights(folder / "model.safetensors", weights)
    assert "since its weights are not: train it again" in refusal(lambda: predict(run, tmp_path / "p.csv"))
    assert "names the first node" in refusal(lambda: evaluate(run, "train"))


def test_a_metric_that_is_undefined_is_said_to_be(tmp_path: Path) -> None:
    store = graph(tmp_path, labels=one_class_in_validation())
    with pytest.warns(UserWarning, match="roc_auc is undefined on the validation nodes, which are all of one class"):
        run = train(store, small(*QUICK), tmp_path / "run")
    assert "roc_auc" not in run.metrics["valid"]
    losses = [entry["valid"]["loss"] for entry in run.history]
    assert run.metrics["best_epoch"] == 1 + int(np.argmin(losses))


# what the log says of steps


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("num_steps", [1, 3, 4, 5, 8, 21])
def test_losses_come_to_the_host_in_order(every: int, num_steps: int) -> None:
    losses = Losses(torch.device("cpu"), ALONE)
    losses.every, losses._ring = every, torch.zeros(2 * every)
    for _ in range(2):  # epochs
        losses.restart()
        given = torch.rand(num_steps)
        for loss in given:
            losses.add(loss)
            assert not losses.look()
        assert losses.finish().tolist() == given.tolist()


def test_spikes_are_those_far_above_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    calm = 1.0 + 0.1 * rng.random(230)
    assert num_spikes(calm) == 0
    assert num_spikes(np.linspace(3.0, 0.1, 230)) == 0, "falling is no spike"
    calm[[60, 61, 170]] = 4.0, 5.0, 2.9
    assert num_spikes(calm) == 3
    assert about_steps(calm) == {"highest_loss": 5.0, "highest_step": 62, "spikes": 3}
    assert num_spikes(np.array([1.0, 9.0])) == 0, "too few to say"


def test_the_log_has_them(tmp_path: Path) -> None:
    """One training node has a target far from all others: a spike in every epoch, at the step that has it."""
    store = easy_store(tmp_path / "g", labels=np.where(np.arange(150) == thirds(150)["train"][0], 3e3, 0.5))
    run = train(store, small(*QUICK, "train.batch_size=2"), tmp_path / "run")
    entries = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    for epoch, entry in enumerate(entries):
        order = np.random.default_rng([0, epoch]).permutation(run.prepared().split_rows("train"))
        step = int(np.flatnonzero(run.prepared().labels[order] > 1)[0]) // 2 + 1
        assert entry["highest_step"] == step
        assert entry["spikes"] >= 1
        assert entry["highest_loss"] > 10
