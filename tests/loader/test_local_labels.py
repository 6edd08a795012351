"""What a node is told of the labels of its local nodes and around them: against plain loops, and never of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import (
    LocalNodesConfig,
    PositionalEncodingConfig,
    ResolvedPrepareConfig,
    TokensConfig,
)
from largegt.data.ingest import ingest
from largegt.data.labels import num_label_columns
from largegt.data.sources import arrays
from largegt.data.store import GraphStore
from largegt.loader.batch import TokenBatch
from largegt.loader.label_inputs import LocalLabels
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared, sample_rows
from oracles import label_scale

NUM, K = 60, 9
TASKS = ["multiclass", "binary", "multilabel", "regression"]
CPU = torch.device("cpu")


def labels_of(task: str) -> np.ndarray:
    """Labels of 45 nodes; the last two, which have no neighbour, are among them."""
    rng = np.random.default_rng(1)
    without = np.arange(NUM) % 4 == 1
    if task == "multilabel":
        labels = rng.integers(0, 2, (NUM, 3)).astype(np.float32)
        labels[rng.random(labels.shape) < 0.2] = np.nan
        labels[:, 0] = np.arange(NUM) % 2
        labels[without] = np.nan
        return labels
    if task == "regression":
        return np.where(without, np.nan, rng.normal(5.0, 3.0, NUM)).astype(np.float32)
    return np.where(without, -1, rng.integers(0, 2 if task == "binary" else 4, NUM))


@pytest.fixture
def make(make_store: Any, random_edges: Any) -> Any:
    """`make(task)`: a store whose only feature is the node's number, so that a token says whose it is."""

    def make(task: str, labels: Any = None, **config: Any) -> GraphStore:
        labels = labels_of(task) if labels is None else labels
        known = np.flatnonzero(np.arange(NUM) % 4 != 1)
        splits = {"train": known[known % 5 < 3], "valid": known[known % 5 == 3], "test": known[known % 5 == 4]}
        numbers = np.arange(NUM, dtype=np.float32)[:, None]
        return make_store(random_edges(NUM, 90), NUM, numbers, labels, splits, task=task, **config)

    return make


def prepare_(store: GraphStore, rows: Any = "sampled", **local_nodes: Any) -> Prepared:
    return prepare(store, ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=K, **local_nodes), tokens=TokensConfig(precompute_for=rows, normalize="none"),
        local_label_histograms=True, positional_encoding=PositionalEncodingConfig(method="none"),
    ))  # fmt: skip


class Oracle:
    """One local node and one neighbour after the other."""

    def __init__(self, store: GraphStore) -> None:
        indptr, indices = store.csr("both")
        self.around = [indices[indptr[i] : indptr[i + 1]].tolist() for i in range(store.num_nodes)]
        self.labels, self.task, self.train = np.asarray(store.labels), store.task, store.splits["train"].tolist()
        self.width = num_label_columns(store.task, store.num_outputs)

    def label(self, node: int, local: int) -> Any:
        """What `local` tells `node` of its own, as a list of numbers; None: nothing."""
        if local == node or local not in self.train:
            return None
        value = self.labels[local]
        if self.task == "regression":
            mean, std = label_scale.scale_for(node, self.train, self.labels)
            value = (value - mean) / std
        return np.atleast_1d(value).tolist()

    def counts_for(self, reader: int, node: int) -> np.ndarray:
        row = np.zeros(self.width)
        if self.task == "multilabel":
            row[:] = np.nan_to_num(self.labels[node]) > 0
        elif self.task == "regression":
            row[0] = label_scale.steps(reader, node, self.train, self.labels) / 32
        else:
            row[self.labels[node]] = 1
        return row

    def context(self, node: int, local: int) -> np.ndarray:
        """What `node` is told of the labels around `local`."""
        known = [other for other in self.around[local] if other in self.train and other != node]
        shares = sum((self.counts_for(node, other) for other in known), np.zeros(self.width)) / max(1, len(known))
        return np.array([*shares, len(known) / max(1, len(self.around[local]))])

    def check(self, batches: Iterator[TokenBatch]) -> Counter[str]:
        """Compare every local node of every batch; counts of what was met."""
        met: Counter[str] = Counter()
        for batch in batches:
            assert batch.local_labels is not None
            assert batch.is_neighbor is not None
            assert batch.local_label_histogram is not None
            local_bk = batch.tokens[:, ::3, 0].long()
            assert batch.is_neighbor.shape == batch.local_labels.shape[:2] == local_bk.shape
            for b, node in enumerate(batch.nodes.tolist()):
                met["nodes"] += 1
                for k, local in enumerate(local_bk[b].tolist()):
                    found, wanted = np.atleast_1d(batch.local_labels[b, k].numpy()), self.label(node, local)
                    if wanted is None:
                        assert (np.isnan(found) if found.dtype.kind == "f" else found == -1).all()
                    else:
                        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
                    met["told" if wanted is not None else "untold"] += 1
                    met["itself"] += local == node and k > 0
                    if batch.multiplicity is not None and batch.multiplicity[b, k] == 0:
                        continue
                    assert bool(batch.is_neighbor[b, k]) == (local in self.around[node])
                    np.testing.assert_allclose(batch.local_label_histogram[b, k], self.context(node, local), atol=1e-6)
                    met["is_neighbor" if batch.is_neighbor[b, k] else "far"] += 1
                    met["left out"] += bool(batch.is_neighbor[b, k]) and node in self.train
        return met


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_every_local_node_tells(make: Any, task: str, directed: bool, distinct: bool) -> None:
    store = make(task, undirected=not directed)
    prepared = prepare_(store, direction="out" if directed else "both")
    met = Oracle(store).check(token_batches(prepared, batch_size=13, distinct=distinct, local_labels=True))
    assert met.pop("nodes") == len(np.flatnonzero(store.labelled))
    assert min(met[each] for each in ("told", "untold", "is_neighbor", "far", "left out")) > 20


@pytest.mark.parametrize("rows", ["sampled", "reachable", "all"])
@pytest.mark.parametrize("nodes", ["labelled", "all"])
def test_whatever_was_prepared(make: Any, nodes: str, rows: str) -> None:
    store = make("multiclass")
    batches = token_batches(prepare_(store, rows, target_nodes=nodes), batch_size=7, seed=0, local_labels=True)
    assert Oracle(store).check(batches)["nodes"] == (NUM if nodes == "all" else 45)


@pytest.mark.parametrize(("place", "is_large"), [("pinned", False), ("mmap", False), ("mmap", True)])
def test_other_samples_and_other_places(make: Any, place: Any, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make("multiclass")
    prepared, oracle = prepare_(store, rows="reachable"), Oracle(store)
    if is_large:
        monkeypatch.setattr("largegt.loader.table._MAX_HOST_FRACTION", 0.0)
    every = np.arange(len(prepared.nodes))
    loader = TokenLoader(
        TokenTable(prepared, CPU, place), CPU, local_labels=LocalLabels.of_training_nodes(prepared)
    )  # fmt: skip
    oracle.check(loader.batches(every, 20))
    first = loader.gather(torch.from_numpy(every)).tokens
    for draw in (1, 2):
        table = loader.table.with_local_rows(every[5:40], *sample_rows(store, prepared, every[5:40], draw))
        fresh = replace(loader, table=table, distinct=draw == 2)
        met = oracle.check(fresh.batches(every, 20))
        assert min(met[each] for each in ("told", "is_neighbor", "far", "left out")) > 40
        again = fresh.gather(torch.from_numpy(every)).tokens
        assert not torch.equal(first[:, : again.shape[1]], again)


def test_a_node_without_neighbours_may_draw_itself_and_learns_nothing(make_store: Any) -> None:
    """Five nodes, one edge: the others draw local nodes from all, and the node itself is among them."""
    numbers, labels = np.arange(5, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 1])
    store = make_store([(3, 4)], 5, numbers, labels, {"train": [0, 1, 2, 3, 4]}, task="multiclass")
    for distinct in (False, True):
        batches = token_batches(prepare_(store), batch_size=2, distinct=distinct, local_labels=True)
        met = Oracle(store).check(batches)
        assert met["itself"] >= 3
        assert met["told"] > 10


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("distinct", [False, True])
def test_labels_follow_their_nodes_when_some_are_left_out(make: Any, task: str, distinct: bool) -> None:
    store = make(task)
    options = {"distinct": distinct, "local_labels": True, "local_node_dropout": 0.5}
    batches = list(token_batches(prepare_(store), batch_size=11, seed=1, **options))
    assert max(batch.tokens.shape[1] for batch in batches) <= 3 * (1 + 4)
    met = Oracle(store).check(iter(batches))
    assert min(met["told"], met["left out"]) > 20


def inputs(prepared: Prepared) -> dict[int, list[torch.Tensor]]:
    """All that a batch holds of each node but its own label."""
    batches = token_batches(prepared, batch_size=1, local_labels=True)
    return {
        int(batch.nodes): [
            batch.tokens,
            torch.nan_to_num(batch.local_labels, -1.0),
            batch.is_neighbor,
            batch.local_label_histogram,
        ]
        for batch in batches
    }


@pytest.mark.parametrize("task", TASKS)
def test_nothing_leaks(make: Any, task: str) -> None:
    """Another label of a training node changes not a bit of its own inputs, but others'; another label of a valid or
    test node changes nothing at all."""
    labels, store = labels_of(task), make(task)
    before = inputs(prepare_(store, target_nodes="all"))

    def changed(other: np.ndarray) -> set[int]:
        after = inputs(prepare_(make(task, other), target_nodes="all"))
        return {node for node in before if not all(map(torch.equal, before[node], after[node]))}

    seen = 0
    for node in store.splits["train"].tolist():
        other = labels.copy()
        other[node] = labels[node] + 1e5 if task == "regression" else np.where(labels[node] == 0, 1, 0)
        after = changed(other)
        assert node not in after
        seen += bool(after)
    assert seen > 10
    other = labels.copy()
    for split in ("valid", "test"):
        at = store.splits[split]
        other[at] = np.where(np.isnan(labels[at]), labels[at], 1 - labels[at]) if labels.ndim == 2 else labels[at][::-1]
    assert not changed(other)


def test_a_graph_without_labels(random_edges: Any, tmp_path: Path) -> None:
    """Nothing is told, and nothing fails."""
    store = ingest(arrays(random_edges(NUM, 90).T, np.ones((NUM, 1), dtype=np.float32)), tmp_path / "g")
    batch = next(token_batches(prepare_(store, target_nodes="all"), batch_size=10))
    assert batch.local_label_histogram is not None
    assert not batch.local_label_histogram.any()


def test_a_batch_carries_along_what_was_asked_for(make: Any) -> None:
    store = make("multiclass")
    plain = next(token_batches(prepare(store, ResolvedPrepareConfig()), batch_size=6))
    assert plain.local_labels is plain.local_label_histogram is None
    batch = next(token_batches(prepare_(store), batch_size=6, local_labels=True))
    copy = batch.clone()
    for name in ("is_neighbor", "local_labels", "local_label_histogram"):
        one, other = getattr(batch, name), getattr(copy, name)
        assert any(tensor is one for tensor in batch.tensors())
        assert one.data_ptr() != other.data_ptr()
        assert torch.equal(one, other)
