"""What a node's own label reaches: never its own inputs; its training-time logits through batch norm alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import largegt as lg
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import token_batches
from largegt.preprocessing.label_features import LabelScale

NUM, NODE = 50, 21
INPUTS = {
    "label_tokens": ["model.label_tokens=true"],
    "label_contexts": ["model.label_contexts=2"],
    "label_surroundings": ["model.label_surroundings=true"],
}
TASKS = ["multiclass", "binary", "multilabel", "regression"]
CASES = pytest.mark.parametrize(("task", "label_input"), [(task, which) for task in TASKS for which in INPUTS])


def labels_of(task: str, own: int) -> np.ndarray:
    """Random, but for `NODE`: its label is of its own choice."""
    rng = np.random.default_rng(1)
    if task == "multilabel":
        labels = rng.integers(0, 2, (NUM, 3)).astype(np.float32)
        labels[NODE] = [own, 1 - own, own]
        return labels
    if task == "regression":
        labels = rng.normal(5.0, 3.0, NUM).astype(np.float32)
        labels[NODE] = 5.0 + 1e4 * own
        return labels
    labels = rng.integers(0, 2 if task == "binary" else 4, NUM)
    labels[NODE] = own
    return labels


def store_of(path: Path, task: str, own: int) -> GraphStore:
    rng = np.random.default_rng(0)
    splits = {"train": np.arange(0, 40), "valid": np.arange(40, 45), "test": np.arange(45, NUM)}
    features = rng.normal(size=(NUM, 4)).astype(np.float32)
    source = lg.sources.arrays(rng.integers(0, NUM, size=(2, 120)), features, labels_of(task, own), splits)
    return lg.ingest(source, path, lg.IngestConfig(undirected=True, task=task))


def both(tmp_path: Path, task: str, label_input: str, norm: str) -> tuple[lg.LargeGT, list[TokenBatch]]:
    """A model, and the batch of all training nodes with the one label of `NODE` and with the other."""
    config = Config.from_recipe("plain", [
        "model.hidden=16", "model.codebook.centroids=8", "prepare.local_nodes.k=8", f"model.norm={norm}",
        *INPUTS[label_input],
    ])  # fmt: skip
    batches = []
    for own in (0, 1):
        prepared = lg.prepare(store_of(tmp_path / f"g{own}", task, own), config.preparation)
        batches += token_batches(prepared, "train", batch_size=NUM, local_labels=config.model.label_tokens)
    torch.manual_seed(0)
    return lg.LargeGT.for_prepared(prepared, config.model), batches


def logits(model: lg.LargeGT, batch: TokenBatch) -> Tensor:
    torch.manual_seed(1)  # the same dropout
    return model(batch).logits.detach()


def label_inputs(batch: TokenBatch) -> list[Tensor]:
    """What a batch holds of labels, but the targets."""
    every = (batch.label_contexts, batch.local_labels, batch.local_contexts)
    return [torch.nan_to_num(tensor, -1.0) for tensor in every if tensor is not None]


@pytest.mark.parametrize("mode", ["evaluation", "training with layer norm"])
@CASES
def test_a_nodes_logits_do_not_depend_on_its_own_label(tmp_path: Path, task: str, label_input: str, mode: str) -> None:
    """Equal bits, while those of other nodes differ. Evaluation has batch norm: its statistics are fixed then."""
    model, (before, after) = both(tmp_path, task, label_input, "batch" if mode == "evaluation" else "layer")
    model.train(mode != "evaluation")
    assert not torch.equal(before.labels[NODE], after.labels[NODE])
    for one, other in zip(label_inputs(before), label_inputs(after), strict=True):
        assert torch.equal(one[NODE], other[NODE])
        assert not torch.equal(one, other)
    one, other = logits(model, before), logits(model, after)
    assert torch.equal(one[NODE], other[NODE])
    assert not torch.equal(one, other)


@CASES
def test_batch_norm_carries_it_through_other_nodes_of_a_training_batch(
    tmp_path: Path, task: str, label_input: str
) -> None:
    """The label is an input of other nodes, and these are in the statistics of the batch: the docs say so."""
    model, (before, after) = both(tmp_path, task, label_input, "batch")
    model.train()
    moved = (logits(model, before) - logits(model, after))[NODE].abs().max()
    assert moved > 1e-6


def test_all_nodes_of_a_half_read_the_scale_of_the_other() -> None:
    """One scale for a whole half: it does not depend on which node of the half reads."""
    values = np.random.default_rng(0).normal(size=20).astype(np.float32)
    is_train = np.arange(20) % 4 != 3
    scale = LabelScale.fit(values, is_train)
    assert (scale.half[~is_train] == 0).all()
    assert abs(int((scale.half[is_train] == 0).sum()) - int((scale.half == 1).sum())) <= 1
    for half in (0, 1):
        others = values[is_train & (scale.half != half)].astype(np.float64)
        assert (scale.mean[half], scale.std[half]) == (others.mean(), others.std())


@pytest.mark.parametrize("num_train", [0, 1, 2])
def test_few_values_have_a_finite_scale(num_train: int) -> None:
    values = np.full(5, 7e5, dtype=np.float32)
    found = LabelScale.fit(values, np.arange(5) < num_train).standardized(values)
    assert np.isfinite(found).all()
    if num_train == 2:
        assert (found == 0).all()
