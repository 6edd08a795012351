"""Label contexts from the preparation to the scores: what the model reads, and what it cannot have read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.config.schema import ModelConfig
from largegt.errors import ConfigError
from largegt.loader.loader import token_batches
from largegt.preprocessing.estimate import estimate
from run_helpers import easy_store, one_thread, small  # noqa: F401

CLASSES = np.where(np.arange(150) % 5 != 4, np.arange(150) % 3, -1)


def labels_of(task: str) -> np.ndarray:
    if task == "multiclass":
        return CLASSES
    if task == "binary":
        return np.where(CLASSES >= 0, CLASSES == 0, -1)
    return np.where(CLASSES[:, None] >= 0, np.stack([CLASSES == 0, CLASSES > 1], axis=1), np.nan).astype(np.float32)


@pytest.mark.parametrize("table", ["host", "disk"])
@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_batches_carry_the_rows_of_their_nodes(task: str, table: Any, tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", labels_of(task), task=task)
    prepared = lg.prepare(store, small("model.label_contexts=2").preparation)
    width = {"multiclass": 3, "binary": 2, "multilabel": 2}[task]
    assert prepared.label_contexts.shape == (len(prepared.nodes), 2, width + 1)
    for batch in token_batches(prepared, "train", batch_size=30, seed=1, table=table):
        rows = prepared.rows_of(batch.nodes.numpy())
        assert batch.label_contexts is not None
        assert np.array_equal(batch.label_contexts.numpy(), prepared.label_contexts[rows].reshape(len(rows), -1))
    without = lg.prepare(store, small().preparation)
    assert next(token_batches(without)).label_contexts is None
    assert without.path != prepared.path


def test_the_model_reads_them_and_fewer_hops_are_the_first(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", CLASSES)
    prepared = lg.prepare(store, small("model.label_contexts=2").preparation)
    batch = next(token_batches(prepared, "valid", batch_size=20))
    for hops in (1, 2):
        torch.manual_seed(0)
        model = lg.LargeGT.for_prepared(prepared, ModelConfig(hidden=8, label_contexts=hops)).eval()
        before = model(batch).logits
        for column in range(8):
            changed = batch.label_contexts.clone()  # type: ignore[union-attr]
            changed[:, column] += 0.5
            after = model(lg.TokenBatch(**{**vars(batch), "label_contexts": changed})).logits
            assert torch.equal(after, before) == (column >= 4 * hops)


@pytest.mark.parametrize("name", ["largegt-full", "largegt-local", "largegt-global"])
def test_a_training_nodes_own_label_changes_nothing_it_reads(name: str, tmp_path: Path) -> None:
    config = small(f"model.name={name}", "model.label_contexts=2", "model.label_tokens=true")
    store = easy_store(tmp_path / "g", CLASSES)
    node = int(store.splits["train"][5])
    other_labels = CLASSES.copy()
    other_labels[node] = (CLASSES[node] + 1) % 3
    other = easy_store(tmp_path / "other", other_labels)
    assert np.array_equal(other.splits["train"], store.splits["train"])
    torch.manual_seed(0)
    found = []
    model = None
    for one in (store, other):
        prepared = lg.prepare(one, config.preparation)
        model = model or lg.LargeGT.for_prepared(prepared, config.model).eval()
        batches = token_batches(prepared, nodes=store.splits["train"], batch_size=500, local_labels=True)
        found.append({n: row for batch in batches for n, row in zip(batch.nodes.tolist(), model(batch).logits)})  # noqa: B905
    assert torch.equal(found[0][node], found[1][node])
    assert any(not torch.equal(found[0][other], found[1][other]) for other in found[0])


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_training_evaluating_and_predicting_with_them(task: str, tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", CLASSES if task == "multiclass" else CLASSES + 0.5)
    assert store.task == task
    config = small("model.label_contexts=2", "train.epochs=3", "train.draws=2")
    run = lg.train(store, config, tmp_path / "run")
    assert lg.evaluate(run, "test") == pytest.approx(run.metrics["test"], rel=1e-5)
    assert lg.predict(run).num_rows == 150, "nodes without a label too"
    assert "label_contexts" in run.prepared().folder.meta["stages"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", CLASSES)
    prepared = lg.prepare(store, small().preparation)
    with pytest.raises(ConfigError, match=r"prepare\.labels\.hops"):
        lg.train(prepared, small("model.label_contexts=1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_estimate_counts_them(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", CLASSES)
    config = small("model.label_contexts=2").preparation
    more = estimate(store, config).disk_bytes - estimate(store, small().preparation).disk_bytes
    assert more == lg.prepare(store, config).label_contexts.nbytes
