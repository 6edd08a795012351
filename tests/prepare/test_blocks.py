"""Sums over neighbours in blocks, against dense algebra and against themselves with other amounts of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.prepare.blocks import Neighbors, block_sums, plan


def rows_of(dense: np.ndarray, self_loops: bool) -> Neighbors:
    indptr = np.append(0, np.cumsum((dense > 0).sum(axis=1)))
    return Neighbors(indptr, np.nonzero(dense)[1].astype(np.int32), self_loops)


def sums(neighbors: Neighbors, nodes: Any, sources: Any, x: np.ndarray, memory: int, **more: Any) -> np.ndarray:
    loads = x if sources is None else x[sources]
    out = np.full((len(nodes), x.shape[1]), np.nan, dtype=np.float32)

    def load(first: int, last: int, into: np.ndarray) -> None:
        into[:] = loads[first:last]

    for first, last, part in block_sums(neighbors, nodes, sources, load, x.shape[1], memory, **more):
        out[first:last] = part
    return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 40), width=st.integers(1, 6), self_loops=st.booleans(),
    memory=st.integers(1, 4000), some=st.booleans(), threads=st.sampled_from([1, 3]),
)  # fmt: skip
def test_any_memory_gives_the_dense_product(
    seed: int, size: int, width: int, self_loops: bool, memory: int, some: bool, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.random((size, size)) < 0.2).astype(np.float32)
    np.fill_diagonal(dense, 0)
    x = rng.normal(size=(size, width)).astype(np.float32)
    nodes: Any = np.flatnonzero(rng.random(size) < 0.5) if some else range(size)
    sources = None
    if some:
        needed = dense[nodes].sum(axis=0) > 0
        needed[nodes] = True
        sources = np.flatnonzero(needed)
    neighbors = rows_of(dense, self_loops)
    found = sums(neighbors, nodes, sources, x, memory, threads=threads)
    expected = ((dense + np.eye(size) * self_loops) @ x)[np.asarray(nodes, dtype=np.int64)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.tobytes() == sums(neighbors, nodes, sources, x, 1 << 30).tobytes()


def test_it_begins_where_it_is_told() -> None:
    dense = 1.0 - np.eye(9, dtype=np.float32)
    x = np.arange(18, dtype=np.float32).reshape(9, 2)
    found = sums(rows_of(dense, True), range(9), None, x, 100, start=5)
    assert np.isnan(found[:5]).all()
    assert (found[5:] == x.sum(axis=0)).all()


@pytest.mark.parametrize("memory", [1 << 20, 1 << 28, 1 << 32])
def test_what_is_planned_fits(memory: int) -> None:
    for num_nodes in (10, 10**6, 10**8):
        for width in (1, 128, 1000):
            at_once, sources = plan(num_nodes, 10**8, width, memory)
            assert at_once <= num_nodes
            assert sources <= 10**8
            assert 4 * width * (at_once + sources) + 24 * at_once + 4 * sources <= memory


def test_sources_are_loaded_once_when_the_sums_fit() -> None:
    loads: list[tuple[int, int]] = []

    def load(first: int, last: int, into: np.ndarray) -> None:
        loads.append((first, last))
        into[:] = 1

    neighbors = rows_of(1.0 - np.eye(50, dtype=np.float32), False)
    blocks = list(block_sums(neighbors, range(50), None, load, 4, 4000, threads=1))
    assert [block[:2] for block in blocks] == [(0, 50)]
    assert loads == [(0, 50)]
    loads.clear()
    blocks = list(block_sums(neighbors, range(50), None, load, 4, 500, threads=1))
    assert len(loads) == len(blocks) * len(set(loads)) > len(blocks) > 1
