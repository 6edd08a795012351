"""Kernels of the neighbour sampler on a CPU: plain arrays in, plain arrays out."""

# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.data.kernels import mix

GOLDEN, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x94D049BB133111EB)
LOW_32 = 0xFFFFFFFF


@njit(nogil=True, cache=True)
def num_drawn(indptr: Any, i: Any, fanout: int) -> Any:
    """Number of neighbours sampled for node i."""
    degree = indptr[i + 1] - indptr[i]
    return fanout if 0 <= fanout < degree else degree


@njit(nogil=True, cache=True)
def count_draws(indptr: Any, nodes: Any, fanout: int, starts: Any) -> None:
    """starts[t] = number of neighbours sampled for all targets before t."""
    for t in range(len(nodes)):
        starts[t + 1] = starts[t] + num_drawn(indptr, nodes[t], fanout)


@njit(nogil=True, cache=True)
def draw_rows(
    indptr: Any, indices: Any, nodes: Any, starts: Any, key: Any, low: int, high: int, neighbors: Any
) -> None:  # fmt: skip
    """Sample neighbours of targets [low, high) into neighbors[starts[t] : starts[t + 1]]."""
    for t in range(low, high):
        pick_entries(indptr, nodes[t], key, neighbors[starts[t] : starts[t + 1]])
    for place in range(starts[low], starts[high]):  # a separate loop, so that memory reads overlap
        neighbors[place] = indices[neighbors[place]]


@njit(nogil=True, cache=True)
def pick_entries(indptr: Any, i: Any, key: Any, row: Any) -> None:
    """Fill `row` with distinct entries of node i's row of the CSR: all of them in order, or a subset by Floyd's
    algorithm, which needs one random number per entry for any degree."""
    first = indptr[i]
    degree = indptr[i + 1] - first
    if degree == len(row):
        for slot in range(degree):
            row[slot] = first + slot
        return
    state = mix(key ^ (np.uint64(i) * SPREAD + GOLDEN))
    for slot in range(len(row)):
        last = first + degree - len(row) + slot
        state += GOLDEN
        pick = first + below(mix(state), last - first + 1)
        taken = False
        for other in range(slot):
            taken |= row[other] == pick
        row[slot] = last if taken else pick


@njit(nogil=True, cache=True)
def below(bits: Any, bound: Any) -> Any:
    """An integer in [0, bound) from 64 random bits: the high word of their product, computed in halves. Probabilities
    differ by at most bound / 2⁶⁴; bound must be less than 2³¹."""
    n = np.uint64(bound)
    high, low = bits >> np.uint64(32), bits & np.uint64(LOW_32)
    return np.int64((high * n + (low * n >> np.uint64(32))) >> np.uint64(32))


@njit(nogil=True, cache=True)
def number_distinct(keys: Any, table: Any, places: Any, values: Any) -> int:
    """places[j] = the position of keys[j] in the distinct `values`, in order of first appearance; returns their number.
    `table` is an open-addressing hash table of positions: initially -1, its size a power of two above len(keys)."""
    mask, count = len(table) - 1, 0
    for j in range(len(keys)):
        slot = np.int64(mix(keys[j]) & np.uint64(mask))
        while table[slot] >= 0 and values[table[slot]] != keys[j]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = count
            values[count] = keys[j]
            count += 1
        places[j] = table[slot]
    return count
