"""What local nodes tell of their labels: those of training nodes, to everyone but themselves, in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import LocalNodesConfig, PositionsConfig, PrepareConfig, TokensConfig
from largegt.data.store import GraphStore
from largegt.loader.batch import TokenBatch
from largegt.loader.label_inputs import LocalLabels
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared, sample_rows
from oracles import label_scale

NUM_NODES, K = 60, 9
TASKS = ["multiclass", "binary", "multilabel", "regression"]
CPU = torch.device("cpu")


def labels_of(task: str) -> np.ndarray:
    """Labels of 45 nodes; the last two, which have no neighbour, are among them."""
    rng = np.random.default_rng(1)
    without = np.arange(NUM_NODES) % 4 == 1
    if task == "multilabel":
        labels = rng.integers(0, 2, (NUM_NODES, 3)).astype(np.float32)
        labels[rng.random(labels.shape) < 0.2] = np.nan
        labels[:, 0] = np.arange(NUM_NODES) % 2
        labels[without] = np.nan
        return labels
    if task == "regression":
        return np.where(without, np.nan, rng.normal(5.0, 3.0, NUM_NODES)).astype(np.float32)
    return np.where(without, -1, rng.integers(0, 2 if task == "binary" else 4, NUM_NODES))


@pytest.fixture
def make(make_store: Any, random_edges: Any) -> Any:
    """`make(task)`: a store whose only feature is the node's number, so that a token says whose it is."""

    def make(task: str, labels: Any = None) -> GraphStore:
        numbers = np.arange(NUM_NODES, dtype=np.float32)[:, None]
        labels = labels_of(task) if labels is None else labels
        known = np.flatnonzero(
            ~np.isnan(labels).all(axis=1) if labels.ndim == 2 else ~(np.nan_to_num(labels, nan=-1) == -1)
        )
        splits = {"train": known[known % 5 < 3], "valid": known[known % 5 == 3], "test": known[known % 5 == 4]}
        return make_store(random_edges(NUM_NODES, 90), NUM_NODES, numbers, labels, splits, task=task)

    return make


def prepare_(store: GraphStore, which: Any = "labelled", rows: Any = "sampled") -> Prepared:
    tokens = TokensConfig(nodes=rows, standardize=False)
    local = LocalNodesConfig(k=K, nodes=which)
    return prepare(store, PrepareConfig(local_nodes=local, tokens=tokens, positions=PositionsConfig(method="none")))


def expected_label(store: GraphStore, node: int, local: int) -> Any:
    """What `local` tells `node`, as a list of numbers; None: nothing."""
    if local == node or local not in set(store.splits["train"].tolist()):
        return None
    value = np.array(store.labels[local])
    if store.task == "regression":
        mean, std = label_scale.scale_for(node, store.splits["train"], np.asarray(store.labels))
        value = (value - mean) / std
    return np.atleast_1d(value).tolist()


def check(store: GraphStore, batches: Iterator[TokenBatch]) -> dict[str, int]:
    """Compare every local node of every batch with the slow answer; counts of what was met."""
    met = {"told": 0, "untold": 0, "itself": 0, "nodes": 0}
    for batch in batches:
        assert batch.local_labels is not None
        local_bk = batch.tokens[:, ::3, 0].long()
        assert batch.local_labels.shape[:2] == local_bk.shape
        for b, node in enumerate(batch.nodes.tolist()):
            met["nodes"] += 1
            for k, local in enumerate(local_bk[b].tolist()):
                found = np.atleast_1d(batch.local_labels[b, k].numpy())
                wanted = expected_label(store, node, local)
                is_empty = np.isnan(found).all() if found.dtype.kind == "f" else (found == -1).all()
                if wanted is None:
                    assert is_empty
                else:
                    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
                met["told" if wanted is not None else "untold"] += 1
                met["itself"] += local == node and k > 0
    return met


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_training_nodes_tell_their_labels(make: Any, task: str, distinct: bool) -> None:
    store = make(task)
    batches = token_batches(prepare_(store), batch_size=13, distinct=distinct, local_labels=True)
    met = check(store, batches)
    assert met["nodes"] == len(np.flatnonzero(store.labelled))
    assert met["told"] > 60
    assert met["untold"] > 60


@pytest.mark.parametrize("rows", ["sampled", "reachable", "all"])
@pytest.mark.parametrize("which", ["labelled", "all"])
def test_whatever_was_prepared(make: Any, which: str, rows: str) -> None:
    store = make("multiclass")
    met = check(store, token_batches(prepare_(store, which, rows), batch_size=7, seed=0, local_labels=True))
    assert met["nodes"] == (NUM_NODES if which == "all" else 45)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_other_draws_and_other_places(make: Any, place: Any) -> None:
    store = make("multiclass")
    prepared = prepare_(store, rows="reachable")
    every = np.arange(len(prepared.nodes))
    table = TokenTable(prepared, CPU, place)
    loader = TokenLoader(table, CPU, local_labels=LocalLabels.of_training_nodes(prepared))
    first = torch.cat([batch.tokens for batch in loader.batches(every, 20)])
    for draw in (1, 2):
        fresh = TokenLoader(
            table.with_local_rows(every, *sample_rows(store, prepared, every, draw)), CPU,
            local_labels=loader.local_labels, distinct=draw == 2,
        )  # fmt: skip
        assert check(store, fresh.batches(every, 20))["told"] > 50
    assert not torch.equal(first, torch.cat([b.tokens for b in fresh.batches(every, 20)])[:, : first.shape[1]])


def test_a_node_without_neighbours_may_draw_itself_and_learns_nothing(make_store: Any) -> None:
    """Five nodes, one edge: the others draw local nodes from all, and the node itself is among them."""
    numbers = np.arange(5, dtype=np.float32)[:, None]
    store = make_store(
        [(3, 4)],
        5,
        numbers,
        np.array([0, 1, 0, 1, 1]),
        {"train": [0, 1, 2, 3, 4]},
        task="multiclass",
    )
    for distinct in (False, True):
        batches = token_batches(prepare_(store), batch_size=2, distinct=distinct, local_labels=True)
        met = check(store, batches)
        assert met["itself"] >= 3
        assert met["told"] > 10


def test_no_more_than_a_choice_of_columns(make: Any) -> None:
    """Labels follow their nodes when some are left out and when repeated ones are merged."""
    store = make("multilabel")
    for distinct in (False, True):
        batches = token_batches(
            prepare_(store), "train", batch_size=9, seed=3, distinct=distinct, local_labels=True, node_dropout=0.4
        )
        assert check(store, batches)["told"] > 20


def inputs(prepared: Prepared) -> dict[int, list[torch.Tensor]]:
    """All that a batch holds of each node but its own label."""
    batches = token_batches(prepared, batch_size=1, local_labels=True)
    return {
        int(batch.nodes): [batch.tokens, batch.positions, torch.nan_to_num(batch.local_labels, -1.0)]
        for batch in batches
    }


@pytest.mark.parametrize("task", TASKS)
def test_nothing_leaks(make: Any, task: str) -> None:
    """Another label of a training node changes nothing in its own input, but in others'; another label of a valid or
    test node changes nothing at all."""
    labels = labels_of(task)
    store = make(task)
    before = inputs(prepare_(store, "all"))
    seen = 0
    for node in store.splits["train"].tolist():
        other = labels.copy()
        other[node] = labels[node] + 1e5 if task == "regression" else np.where(labels[node] == 0, 1, 0)
        after = inputs(prepare_(make(task, other), "all"))
        changed = {each for each in before if not all(map(torch.equal, before[each], after[each]))}
        assert node not in changed
        seen += bool(changed)
    assert seen > 10
    other = labels.copy()
    for split in ("valid", "test"):
        at = store.splits[split]
        other[at] = np.where(np.isnan(labels[at]), labels[at], 1 - labels[at]) if labels.ndim == 2 else labels[at][::-1]
    after = inputs(prepare_(make(task, other), "all"))
    assert all(all(map(torch.equal, before[node], after[node])) for node in before)


def test_a_batch_carries_them_along(make: Any) -> None:
    prepared = prepare_(make("multiclass"))
    batch = next(token_batches(prepared, batch_size=6, local_labels=True))
    assert batch.local_labels is not None
    assert any(tensor is batch.local_labels for tensor in batch.tensors())
    copy = batch.clone()
    assert [t.shape for t in copy.tensors()] == [t.shape for t in batch.tensors()]
    assert copy.local_labels is not None
    assert copy.local_labels.data_ptr() != batch.local_labels.data_ptr()
    assert torch.equal(copy.local_labels, batch.local_labels)
    assert next(token_batches(prepared, batch_size=6)).local_labels is None
