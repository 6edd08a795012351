"""Random numbers and the helpers of the samplers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from largegt.preprocessing import kernels
from largegt.preprocessing.sampling import uniform
from oracles.statistics import independence_p, uniformity_p


def stream(seed: int, epoch: int = 0, node: int = 0) -> np.ndarray:
    state = np.zeros(1, np.uint64)
    kernels.start_stream(state, kernels.FOR_LOCAL_NODES, seed, epoch, node)
    return state


def draws(bound: int, size: int, seed: int = 0) -> np.ndarray:
    state = stream(seed)
    return np.array([kernels.randint(state, bound) for _ in range(size)], dtype=np.int64)


@pytest.mark.parametrize("bound", [2, 3, 5, 7, 12])
def test_below_small_bounds(bound: int) -> None:
    values = draws(bound, 12_000)
    assert values.min() >= 0
    assert values.max() < bound
    assert uniformity_p(np.bincount(values, minlength=bound)) > 1e-4


def test_below_one_is_zero() -> None:
    assert set(draws(1, 100)) == {0}


def test_below_is_exact_where_32_bits_do_not_divide_evenly() -> None:
    """3·2³⁰ of 2³² values: a multiply-and-shift that does not reject gives every third number twice."""
    bound = 3 << 30
    values = draws(bound, 12_000)
    assert 0 <= values.min() <= values.max() < bound
    assert uniformity_p(np.bincount(values % 3, minlength=3)) > 1e-4
    naive = np.random.default_rng(0).integers(0, 1 << 32, 12_000, dtype=np.uint64) * np.uint64(bound) >> np.uint64(32)
    assert uniformity_p(np.bincount((naive % np.uint64(3)).astype(int), minlength=3)) < 1e-6


def test_below_is_exact_where_64_bits_do_not_divide_evenly() -> None:
    """3·2⁶¹ of 2⁶⁴ values: a plain remainder gives the first two thirds more often."""
    bound = 3 << 61
    values = draws(bound, 12_000)
    assert 0 <= values.min() <= values.max() < bound
    assert uniformity_p(np.bincount(values // (1 << 61), minlength=3)) > 1e-4
    naive = np.random.default_rng(0).integers(0, 2**64, 12_000, dtype=np.uint64) % np.uint64(bound)
    assert uniformity_p(np.bincount((naive >> np.uint64(61)).astype(int), minlength=3)) < 1e-6


@pytest.mark.parametrize("bound", [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 40) + 7])
def test_below_on_both_sides_of_32_bits(bound: int) -> None:
    values = draws(bound, 4_000)
    assert 0 <= values.min() <= values.max() < bound
    assert uniformity_p(_sixteenths(values, bound)) > 1e-4
    assert uniformity_p(np.bincount(values % 16, minlength=16)) > 1e-4


def _sixteenths(values: np.ndarray, bound: int) -> np.ndarray:
    return np.bincount([int(v) * 16 // bound for v in values], minlength=16)


@pytest.mark.parametrize("part", ["seed", "epoch", "node"])
def test_neighbouring_streams_are_independent(part: str) -> None:
    """The first numbers of stream n and of stream n + 1 know nothing of each other."""
    first = []
    for n in range(8_001):
        state = stream(**{"seed": 7, "epoch": 3, "node": 5, part: n})
        first.append(int(kernels.randint(state, 8)))
    assert uniformity_p(np.bincount(first, minlength=8)) > 1e-4
    assert independence_p(first[:-1], first[1:], 8) > 1e-4
    assert independence_p(first[:-1], first[:-1], 8) < 1e-6, "the test can fail"


def test_parts_of_a_stream_are_not_interchangeable() -> None:
    starts = {int(stream(*key)[0]) for key in [(a, b, c) for a in range(12) for b in range(12) for c in range(12)]}
    assert len(starts) == 12**3


def test_unit_is_uniform_in_half_open_interval() -> None:
    state = stream(1)
    values = np.array([kernels.random_unit(state) for _ in range(8_000)])
    assert 0 <= values.min() <= values.max() < 1
    assert uniformity_p(np.bincount((values * 20).astype(int), minlength=20)) > 1e-4


def test_sorted_ranges_against_sets() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a = np.unique(rng.integers(0, 30, rng.integers(0, 9))).astype(np.int32)
        b = np.unique(rng.integers(0, 30, rng.integers(0, 9))).astype(np.int32)
        assert kernels.share_an_element(a, 0, len(a), b, 0, len(b)) == bool(set(a) & set(b))
        wanted = int(rng.integers(0, 30))
        assert kernels.contains(a, 0, len(a), wanted) == (wanted in set(a))
        assert kernels.lower_bound(a, 0, len(a), wanted) == sum(v < wanted for v in a)


def test_hash_table_counts_distinct_nodes() -> None:
    nodes = np.random.default_rng(0).integers(0, 40, 60)
    table = np.full(128, -1, np.int64)
    fresh = [int(v) for v in nodes if uniform.insert(table, v)]
    assert Counter(fresh) == Counter(set(nodes.tolist()))
