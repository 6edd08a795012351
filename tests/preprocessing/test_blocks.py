"""Sums over neighbours in blocks, against dense algebra and against themselves with other amounts of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.preprocessing import blocks as home
from largegt.preprocessing.blocks import Neighbors, NeighborSums, block_bytes, block_sums, plan


def rows_of(dense: np.ndarray, self_loops: bool) -> Neighbors:
    indptr = np.append(0, np.cumsum((dense > 0).sum(axis=1)))
    return Neighbors(indptr, np.nonzero(dense)[1].astype(np.int32), self_loops)


def sums(neighbors: Neighbors, nodes: Any, sources: Any, x: np.ndarray, memory: int, **more: Any) -> np.ndarray:
    sources = range(len(x)) if sources is None else sources
    loads = x[sources]
    out = np.full((len(nodes), x.shape[1]), np.nan, dtype=np.float32)

    def load(first: int, last: int, into: np.ndarray) -> None:
        into[:] = loads[first:last]

    def finish(first: int, last: int, part: np.ndarray) -> None:
        out[first:last] = part
        part[:] = np.nan  # it is ours to spoil

    block_sums(NeighborSums(neighbors, nodes, load, x.shape[1], sources), finish, memory, **more)
    return out


@pytest.mark.slow
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
            assert block_bytes(at_once, sources, width) <= memory


def test_sources_are_loaded_once_when_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[int, int]] = []

    def load(first: int, last: int, into: np.ndarray) -> None:
        loads.append((first, last))
        into[:] = 1

    def lots(memory: int) -> list[tuple[int, int]]:
        loads.clear()
        seen: list[tuple[int, int]] = []
        neighbors = rows_of(1.0 - np.eye(50, dtype=np.float32), False)
        block_sums(
            NeighborSums(neighbors, range(50), load, 4, range(50)),
            lambda low, high, _: seen.append((low, high)),
            memory,
            1,
        )
        return seen

    monkeypatch.setattr(home, "_SMALL_CHUNK", 20)
    assert lots(4000) == [(0, 20), (20, 40), (40, 50)]
    assert loads == [(0, 50)]
    assert len(loads) == 1
    few = lots(500)
    assert len(loads) == len(few) * len(set(loads)) > len(few) > 1


def test_an_error_behind_the_scenes_is_raised() -> None:
    def finish(first: int, last: int, sums: np.ndarray) -> None:
        raise OSError("no room")

    neighbors = rows_of(1.0 - np.eye(50, dtype=np.float32), False)
    with pytest.raises(OSError, match="no room"):
        block_sums(NeighborSums(neighbors, range(50), lambda first, last, into: None, 4, range(50)), finish, 500)
