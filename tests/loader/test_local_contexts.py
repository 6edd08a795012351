"""What a node is told of the labels around its local nodes: against plain loops, and never of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.config.schema import (
    LabelContextsConfig,
    LocalNodesConfig,
    PositionsConfig,
    PrepareConfig,
    TokensConfig,
)
from largegt.data.labels import num_label_columns
from largegt.data.store import GraphStore
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared, sample_rows
from oracles import label_scale

NUM, K = 50, 9
TASKS = ["multiclass", "binary", "multilabel", "regression"]
CPU = torch.device("cpu")
TRAIN = np.flatnonzero(np.arange(NUM) % 5 < 3)


def labels_of(task: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    if task == "multilabel":
        labels = rng.integers(0, 2, (NUM, 3)).astype(np.float32)
        labels[rng.random(labels.shape) < 0.2] = np.nan
        labels[:, 0] = np.arange(NUM) % 2
        return labels
    if task == "regression":
        return rng.normal(5.0, 3.0, NUM).astype(np.float32)
    return rng.integers(0, 2 if task == "binary" else 4, NUM)


def store_of(path: Path, task: str, labels: Any = None, directed: bool = False) -> GraphStore:
    """Its only feature is the node's number, so that a token says whose it is."""
    numbers = np.arange(NUM, dtype=np.float32)[:, None]
    splits = {"train": TRAIN, "valid": np.arange(3, NUM, 5), "test": np.arange(4, NUM, 5)}
    edges = np.random.default_rng(0).integers(0, NUM - 2, size=(2, 90))
    source = lg.sources.arrays(edges, numbers, labels_of(task) if labels is None else labels, splits)
    return lg.ingest(source, path, lg.IngestConfig(undirected=not directed, task=task))


def prepare_(store: GraphStore, rows: Any = "sampled", **local_nodes: Any) -> Prepared:
    return prepare(store, PrepareConfig(
        local_nodes=LocalNodesConfig(k=K, near=True, **local_nodes), tokens=TokensConfig(nodes=rows, standardize=False),
        labels=LabelContextsConfig(local=True), positions=PositionsConfig(method="none"),
    ))  # fmt: skip


class Oracle:
    """One neighbour after the other."""

    def __init__(self, store: GraphStore) -> None:
        indptr, indices = store.csr("both")
        self.around = [indices[indptr[i] : indptr[i + 1]].tolist() for i in range(NUM)]
        self.labels, self.task = np.asarray(store.labels), store.task
        self.width = num_label_columns(store.task, store.num_outputs)

    def counts_for(self, reader: int, node: int) -> np.ndarray:
        row = np.zeros(self.width)
        if self.task == "multilabel":
            row[:] = np.nan_to_num(self.labels[node]) > 0
        elif self.task == "regression":
            row[0] = label_scale.steps(reader, node, TRAIN, self.labels) / 32
        else:
            row[self.labels[node]] = 1
        return row

    def told(self, node: int, local: int) -> np.ndarray:
        known = [other for other in self.around[local] if other in TRAIN and other != node]
        shares = sum((self.counts_for(node, other) for other in known), np.zeros(self.width)) / max(1, len(known))
        return np.array([*shares, len(known) / max(1, len(self.around[local]))])

    def check(self, batches: Iterator[TokenBatch]) -> dict[str, int]:
        """Compare every local node of every batch; how many were neighbours, and how many of those of the training
        split's nodes."""
        met = {"near": 0, "far": 0, "left out": 0}
        for batch in batches:
            assert batch.near is not None
            assert batch.local_contexts is not None
            local_bk = batch.tokens[:, ::3, 0].long()
            assert batch.near.shape == local_bk.shape
            for b, node in enumerate(batch.nodes.tolist()):
                for k, local in enumerate(local_bk[b].tolist()):
                    if batch.multiplicity is not None and batch.multiplicity[b, k] == 0:
                        continue
                    assert bool(batch.near[b, k]) == (local in self.around[node])
                    np.testing.assert_allclose(batch.local_contexts[b, k], self.told(node, local), atol=1e-6)
                    met["near" if batch.near[b, k] else "far"] += 1
                    met["left out"] += bool(batch.near[b, k]) and node in TRAIN
        return met


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_every_local_node_tells_of_the_labels_around_it(
    tmp_path: Path, task: str, directed: bool, distinct: bool
) -> None:
    store = store_of(tmp_path / "g", task, directed=directed)
    prepared = prepare_(store, direction="out" if directed else "both")
    met = Oracle(store).check(token_batches(prepared, batch_size=13, distinct=distinct))
    assert min(met.values()) > 40


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("is_large", [False, True])
def test_other_draws_and_other_places(
    tmp_path: Path, place: Any, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path / "g", "multiclass")
    prepared = prepare_(store, rows="reachable")
    if is_large and place == "disk":
        monkeypatch.setattr("largegt.loader.table._HOST_SHARE", 0.0)
    every, oracle = np.arange(len(prepared.nodes)), Oracle(store)
    loader = TokenLoader(TokenTable(prepared, CPU, place), CPU)
    oracle.check(loader.batches(every, 20))
    for draw in (1, 2):
        table = loader.table.with_local_rows(every[5:40], *sample_rows(store, prepared, every[5:40], draw))
        met = oracle.check(replace(loader, table=table, distinct=draw == 2).batches(every, 20))
        assert min(met.values()) > 40


def test_local_nodes_that_are_left_out_take_it_along(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g", "multiclass")
    for distinct in (False, True):
        batches = list(token_batches(prepare_(store), batch_size=11, seed=1, node_dropout=0.5, distinct=distinct))
        assert max(batch.tokens.shape[1] for batch in batches) <= 3 * (1 + 4)
        assert Oracle(store).check(iter(batches))["left out"] > 20


@pytest.mark.parametrize("task", TASKS)
def test_a_nodes_own_label_is_no_part_of_it(tmp_path: Path, task: str) -> None:
    """Bits are the same, for every node of the training split; those of its neighbours are not."""
    store = store_of(tmp_path / "g", task)
    before = told_by_node(prepare_(store))
    changed = 0
    for number, node in enumerate(TRAIN[::7].tolist()):
        labels = labels_of(task)
        if task == "multilabel":
            labels[node] = 1 - np.nan_to_num(labels[node])
        elif task == "regression":
            labels[node] += 1e5
        else:
            labels[node] = (labels[node] + 1) % (2 if task == "binary" else 4)
        other = store_of(tmp_path / f"g{number}", task, labels)
        after = told_by_node(prepare_(other))
        assert torch.equal(before[node], after[node])
        changed += sum(not torch.equal(before[each], after[each]) for each in before)
    assert changed > 10


def told_by_node(prepared: Prepared) -> dict[int, torch.Tensor]:
    [batch] = token_batches(prepared, batch_size=100)
    assert batch.local_contexts is not None
    return dict(zip(batch.nodes.tolist(), batch.local_contexts, strict=True))


def test_labels_of_valid_and_test_nodes_are_not_told(tmp_path: Path) -> None:
    labels = labels_of("multiclass")
    store = store_of(tmp_path / "g", "multiclass", labels)
    others = np.setdiff1d(np.arange(NUM), TRAIN)
    labels = labels.copy()
    labels[others] = (labels[others] + 1) % 4
    other = store_of(tmp_path / "other", "multiclass", labels)
    before, after = told_by_node(prepare_(store)), told_by_node(prepare_(other))
    assert all(torch.equal(before[node], after[node]) for node in before)


def test_a_graph_without_labels(tmp_path: Path) -> None:
    """Nothing is told, and nothing fails."""
    edges = np.random.default_rng(0).integers(0, NUM, size=(2, 90))
    source = lg.sources.arrays(edges, np.ones((NUM, 1), dtype=np.float32))
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    batch = next(token_batches(prepare_(store, nodes="all"), batch_size=10))
    assert batch.local_contexts is not None
    assert batch.local_contexts.shape == (10, K, 1)
    assert not batch.local_contexts.any()


def test_a_preparation_without_tells_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g", "multiclass")
    batch = next(token_batches(prepare(store, PrepareConfig()), batch_size=5))
    assert batch.near is None
    assert batch.local_contexts is None
    told = next(token_batches(prepare_(store), batch_size=5))
    assert any(tensor is told.near for tensor in told.tensors())
    assert any(tensor is told.local_contexts for tensor in told.tensors())
