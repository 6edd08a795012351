"""Leaving local nodes out of training batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import LocalNodesConfig, PositionalEncodingConfig, PrepareConfig
from largegt.errors import ConfigError
from largegt.loader.batch import drop_local_nodes
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared

CPU = torch.device("cpu")


@pytest.fixture
def prepared(make_store: Any, random_edges: Any) -> Prepared:
    store = make_store(random_edges(60, 90), 60, np.arange(60, dtype=np.float32)[:, None])
    return prepare(
        store,
        PrepareConfig(local_nodes=LocalNodesConfig(k=9), positional_encoding=PositionalEncodingConfig(method="none")),
    )


@pytest.mark.parametrize(("dropout", "left"), [(0.0, 8), (0.05, 8), (0.25, 6), (0.5, 4), (0.9, 1), (0.99, 1)])
def test_a_share_of_the_draws_stays(dropout: float, left: int) -> None:
    rows = torch.randint(0, 40, (30, 9), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    fewer = drop_local_nodes(rows, dropout, 5)
    assert fewer.shape == (30, 1 + left)
    assert fewer.dtype == rows.dtype
    assert torch.equal(fewer[:, 0], rows[:, 0])
    for some, every in zip(fewer[:, 1:].tolist(), rows[:, 1:].tolist(), strict=True):
        assert not Counter(some) - Counter(every)


def test_copies_of_a_node_go_together() -> None:
    rows = torch.tensor([[7, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]])
    seen = set()
    for seed in range(200):
        counts = Counter(drop_local_nodes(rows, 0.5, seed)[0, 1:].tolist())
        assert sorted(counts.values()) == [3, 3]
        seen.add(tuple(sorted(counts)))
        assert sorted(Counter(drop_local_nodes(rows, 0.6, seed)[0, 1:].tolist()).values()) == [2, 3]
    assert len(seen) == 6, "every pair of the four nodes"


def test_every_node_is_left_out_as_often_as_any_other() -> None:
    rows = torch.arange(21)[None].repeat(50, 1)
    rows[:, 0] = torch.arange(100, 150)
    kept = torch.zeros(50, 21)
    for seed in range(200):
        fewer = drop_local_nodes(rows, 0.3, 1000 * seed)
        kept.scatter_add_(1, fewer[:, 1:], torch.ones(fewer.shape[0], 14))
    share = kept[:, 1:] / 200
    assert float(share.mean()) == pytest.approx(0.7)
    assert float((share.mean(dim=0) - 0.7).abs().max()) < 0.02, "10,000 draws each: a deviation of 0.005"
    assert float((share - 0.7).abs().max()) < 0.16, "200 draws each: a deviation of 0.03"
    assert float(share.std()) > 0.02


def test_nothing_to_leave_out() -> None:
    alone = torch.arange(5)[:, None]
    assert torch.equal(drop_local_nodes(alone, 0.5, 0), alone)
    pair = torch.stack([torch.arange(5), torch.arange(5) + 1], dim=1)
    assert torch.equal(drop_local_nodes(pair, 0.9, 0), pair), "one stays"


def left_in(prepared: Prepared, batch_size: int = 8, **key: Any) -> dict[int, list[int]]:
    """Local nodes of every training node."""
    batches = token_batches(prepared, "train", batch_size=batch_size, local_node_dropout=0.5, **key)
    return {
        node: sorted(local) for b in batches
        for node, local in zip(b.nodes.tolist(), b.tokens[:, 3::3, 0].tolist(), strict=True)
    }  # fmt: skip


def test_a_function_of_seed_and_epoch_in_any_batch(prepared: Prepared) -> None:
    first = left_in(prepared, seed=1, epoch=2)
    assert all(len(local) == 4 for local in first.values())
    assert first == left_in(prepared, seed=1, epoch=2)
    assert first == left_in(prepared, 3, seed=1, epoch=2)
    assert first != left_in(prepared, seed=1, epoch=3)
    assert first != left_in(prepared, seed=2, epoch=2)


def test_batches_in_order_are_whole(prepared: Prepared) -> None:
    assert all(len(local) == 8 for local in left_in(prepared).values())
    loader = TokenLoader(TokenTable(prepared), CPU, local_node_dropout=0.5)
    assert loader.gather(torch.arange(3)).tokens.shape == (3, 27, 1)


def test_merged_batches_leave_out_the_same(prepared: Prepared) -> None:
    plain = left_in(prepared, seed=4)
    for batch in token_batches(prepared, "train", batch_size=8, local_node_dropout=0.5, seed=4, distinct=True):
        assert batch.multiplicity is not None
        assert (batch.multiplicity.sum(dim=1) == 5).all()
        for row, node in enumerate(batch.nodes.tolist()):
            spread = batch.tokens[row, ::3, 0].repeat_interleave(batch.multiplicity[row].long())
            assert sorted(spread[1:].tolist()) == plain[node]


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_an_impossible_share_is_refused(prepared: Prepared, dropout: float) -> None:
    with pytest.raises(ConfigError, match="local_node_dropout"):
        token_batches(prepared, local_node_dropout=dropout)
