"""Distances and labels around local nodes in the model: what is added where, what is read, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_batches import make_batch

import largegt as lg
from largegt.config.schema import ModelConfig
from largegt.errors import ConfigError
from largegt.loader.loader import token_batches
from largegt.models.largegt.local_module import LocalModule, LocalNodeInputs
from run_helpers import easy_store, one_thread, small  # noqa: F401

CLASSES = np.where(np.arange(150) % 5 != 4, np.arange(150) % 3, -1)
BOTH = ("model.distances=true", "model.label_surroundings=true")


@pytest.mark.parametrize("hop_embeddings", [False, True])
@pytest.mark.parametrize("label_tokens", [False, True])
def test_what_is_added_to_which_token(label_tokens: bool, hop_embeddings: bool) -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        hidden=8, hop_embeddings=hop_embeddings, label_tokens=label_tokens, distances=True, label_surroundings=True
    )
    module = LocalModule(5, config, num_labels=4).double()
    tokens = torch.randn(2, 9, 5, dtype=torch.float64)
    near = torch.tensor([[False, True, False], [False, True, True]])
    contexts = torch.rand(2, 3, 5, dtype=torch.float64)
    labels = torch.tensor([[-1, 3, 0], [-1, -1, 1]])
    embedded = module.embed(tokens, LocalNodeInputs(labels if label_tokens else None, near, contexts))
    for b in range(2):
        for t in range(9):
            expected = module.project(tokens[b, t])
            if hop_embeddings:
                expected = expected + module.hop_embedding[0 if t < 3 else 1, t % 3]
            if near[b, t // 3]:
                expected = expected + module.near_embedding[t % 3]
            if t % 3 == 0:
                expected = expected + module.context(contexts[b, t // 3])
                if label_tokens:
                    expected = expected + module.label_embedding[1 + labels[b, t // 3], 0]
            torch.testing.assert_close(embedded[b, t], expected)
    no_label = torch.tensor([[-1]]) if label_tokens else None
    nothing = module.label_vectors(LocalNodeInputs(no_label, None, torch.zeros(1, 1, 5)))
    torch.testing.assert_close(module.no_label_vector(), nothing[0, 0])


def test_off_is_the_model_without() -> None:
    plain = lg.LargeGT(5, 3, 50, 3, ModelConfig(hidden=8))
    assert not any("near" in name or "context" in name for name in plain.state_dict())
    for setting in ("distances", "label_surroundings"):
        model = lg.LargeGT(5, 3, 50, 3, ModelConfig(hidden=8, **{setting: True})).double()
        with pytest.raises(ConfigError, match=f"model.{setting} is set"):
            model(make_batch())


@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize("name", ["largegt-full", "largegt-local"])
def test_a_training_nodes_own_label_changes_nothing_it_reads(name: str, task: str, tmp_path: Path) -> None:
    config = small(f"model.name={name}", *BOTH, "model.label_contexts=2", "model.label_tokens=true")
    labels: Any = CLASSES if task == "multiclass" else np.where(CLASSES >= 0, CLASSES + 0.5, np.nan)
    store = easy_store(tmp_path / "g", labels)
    assert store.task == task
    node = int(store.splits["train"][5])
    other_labels = labels.copy()
    other_labels[node] = (CLASSES[node] + 1) % 3 + (0.5 if task == "regression" else 0)
    other = easy_store(tmp_path / "other", other_labels)
    torch.manual_seed(0)
    found, model = [], None
    for one in (store, other):
        prepared = lg.prepare(one, config.preparation)
        model = model or lg.LargeGT.for_prepared(prepared, config.model).eval()
        batches = token_batches(
            prepared, nodes=store.splits["train"], batch_size=500, local_labels=task != "regression"
        )
        if task == "regression":
            model.reads_labels = False  # values that are told have mean 0 over all, its own among them
            model.local_module.label_embedding = None  # type: ignore[union-attr]
        found.append({n: row for batch in batches for n, row in zip(batch.nodes.tolist(), model(batch).logits)})  # noqa: B905
    assert torch.equal(found[0][node], found[1][node])
    assert any(not torch.equal(found[0][other], found[1][other]) for other in found[0])


@pytest.mark.parametrize("settings", [BOTH, BOTH[:1], BOTH[1:]])
def test_merged_tokens_give_the_same_logits(settings: tuple[str, ...], tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", CLASSES)
    config = small("prepare.local_nodes.k=40", "model.num_layers=2", *settings)
    prepared = lg.prepare(store, config.preparation)
    torch.manual_seed(0)
    model = lg.LargeGT.for_prepared(prepared, config.model).eval()
    if model.local_module.near_embedding is not None:  # type: ignore[union-attr]
        torch.nn.init.normal_(model.local_module.near_embedding)  # type: ignore[union-attr]
    plain, merged = (
        {n: row for batch in token_batches(prepared, batch_size=40, distinct=distinct)
         for n, row in zip(batch.nodes.tolist(), model(batch).logits, strict=True)}
        for distinct in (False, True)
    )  # fmt: skip
    for node, row in plain.items():
        torch.testing.assert_close(merged[node], row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_training_scoring_predicting_and_embedding(task: str, tmp_path: Path) -> None:
    labels: Any = {
        "multiclass": CLASSES, "binary": np.where(CLASSES >= 0, CLASSES == 0, -1),
        "multilabel": np.where(CLASSES[:, None] >= 0, np.stack([CLASSES == 0, CLASSES > 1], axis=1), np.nan),
        "regression": np.where(CLASSES >= 0, CLASSES + 0.5, np.nan),
    }[task]  # fmt: skip
    store = easy_store(tmp_path / "g", labels, task=task)
    config = small(*BOTH, "train.epochs=3", "train.draws=2", "train.resample=epoch", "model.input_dropout=0.2")
    run = lg.train(store, config, tmp_path / "run")
    assert {"local_nodes", "label_counts"} <= set(run.prepared().folder.meta["stages"])
    assert lg.evaluate(run, "test") == pytest.approx(run.metrics["test"], rel=1e-5)
    assert lg.predict(run).num_rows == 150, "nodes without a label too"
    for part in ("joined", "local"):
        assert lg.embed(run, part=part).num_rows == 150
    assert np.isfinite(lg.explain(run, 7).score)


def test_a_label_two_hops_behind_a_neighbour_is_found(tmp_path: Path) -> None:
    """A task that nothing else can tell: a node is what the one training node around its neighbour's neighbour is, and
    a path's middle nodes have no label. Features say nothing."""
    rng = np.random.default_rng(0)
    num = 1200  # paths a - m - b: a and b have the same label
    first, middle, last = np.arange(0, num, 3), np.arange(1, num, 3), np.arange(2, num, 3)
    labels = np.full(num, -1)
    labels[first] = labels[last] = rng.integers(0, 2, len(first))
    edges = np.concatenate([np.stack([first, middle]), np.stack([middle, last])], axis=1)
    where = rng.permutation(len(first))
    splits = {"train": np.sort(np.concatenate([first, last[where[:250]]])), "valid": np.sort(last[where[250:320]]),
              "test": np.sort(last[where[320:]])}  # fmt: skip
    source = lg.sources.arrays(edges, rng.normal(size=(num, 4)).astype(np.float32), labels, splits)
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    config = small(
        "model.name=largegt-local", "model.label_surroundings=true", "prepare.local_nodes.k=8", "train.epochs=20",
        "train.learning_rate=1e-2", "model.dropout=0",
    )  # fmt: skip
    run = lg.train(store, config, tmp_path / "run")
    assert run.metrics["test"]["accuracy"] > 0.95


def test_features_that_are_dropped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = LocalModule(50, ModelConfig(hidden=8, input_dropout=0.5))
    tokens = torch.ones(64, 6, 50)
    module.train()
    dropped = module.input_drop(tokens)
    assert 0.4 < float((dropped == 0).float().mean()) < 0.6
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    assert torch.equal(module(tokens), module(tokens))
