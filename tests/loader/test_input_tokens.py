"""InputTokens (Algorithm 2) against the double loop, and distinct rows against a Counter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.loader.batch import TokenBatch, distinct_rows, input_tokens
from oracles import input_tokens as oracle


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(1, 2), (5, 4), (3, 1)])
def test_tokens_against_the_double_loop(index: torch.dtype, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 3, 4)).astype(np.float32)
    rows = rng.integers(0, 9, shape)
    expected = oracle.input_tokens(rows, table[:, 0], table[:, 1:])
    found = input_tokens(torch.from_numpy(table), torch.from_numpy(rows).to(index))
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("h", [1, 2, 5])
def test_tokens_of_any_number_of_hops(h: int) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, h, 4)).astype(np.float32)
    rows = rng.integers(0, 9, (6, 3))
    found = input_tokens(torch.from_numpy(table), torch.from_numpy(rows)).numpy()
    assert found.shape == (6, h * 3, 4)
    for i in range(6):
        for j in range(3):
            for hop in range(h):
                assert np.array_equal(found[i, h * j + hop], table[rows[i, j], hop])


def test_half_precision_tables_give_float32_tokens() -> None:
    table = torch.randn(4, 3, 2).half()
    found = input_tokens(table, torch.tensor([[3, 0]]))
    assert found.dtype == torch.float32
    assert torch.equal(found, table[[3, 0]].reshape(1, 6, 2).float())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_distinct_rows_against_a_counter(data: st.DataObject) -> None:
    k = data.draw(st.integers(2, 9))
    rows = data.draw(st.lists(st.lists(st.integers(0, 6), min_size=k, max_size=k), min_size=1, max_size=6))
    found, multiplicity = distinct_rows(torch.tensor(rows, dtype=torch.int32))
    assert found.shape == multiplicity.shape
    lengths = []
    for row, distinct, times in zip(rows, found.tolist(), multiplicity.tolist(), strict=True):
        assert (distinct[0], times[0]) == (row[0], 1), "the node itself stays first and alone"
        counts = Counter(row[1:])
        lengths.append(1 + len(counts))
        assert all(m > 0 for m in times[: lengths[-1]])
        assert not any(times[lengths[-1] :]), "shorter rows end in multiplicity 0"
        assert dict(zip(distinct[1 : lengths[-1]], times[1:], strict=False)) == counts
        assert all(0 <= r <= 6 for r in distinct), "padding has to be a row that exists"
    assert found.shape[1] == max(lengths)


def test_a_batch_moves_whole() -> None:
    batch = TokenBatch(torch.arange(2), torch.zeros(2, 6, 3), torch.ones(2, 2), torch.zeros(2, 1), torch.zeros(2))
    moved = batch.to("meta")
    assert len(moved) == 2
    for part in (moved.nodes, moved.tokens, moved.multiplicity, moved.positions, moved.labels):
        assert part is not None
        assert part.device.type == "meta"
    assert TokenBatch(batch.nodes, batch.tokens, None, batch.positions, batch.labels).to("cpu").multiplicity is None
