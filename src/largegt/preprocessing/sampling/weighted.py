"""Kernels of LocalNodes in proportion to edge weights, without listing the neighbourhood first.

A *step* from i goes to a neighbour j with probability P(i, j) = w(i, j) / Σ w(i, ·). Three kinds of walks:

- ONE_HOP: one step. v has probability P(i, v).
- TWO_HOP: two steps that end at distance two; v has weight Σ_j P(i, j) P(j, v).
- ANY_HOP: one step or two with equal probability, not ending at i; v has weight P(i, v) + Σ_j P(i, j) P(j, v).

Slots are filled without replacement: each one in proportion to these weights over the remaining nodes. Walks are
sampled first, and walks to sampled nodes are discarded. When they have cost as much as listing, an exponential race
over all paths fills the rest: each path has an arrival time, exponential with its probability as the rate, and the
nodes with the earliest arrivals win. The minimum of exponentials is exponential with the sum of their rates, so a
node's chance is the sum over its paths, and only the earliest few arrivals are kept. Walks and race are independent, so
the switch between them does not change the distribution.

Memory per thread: some K. A row is a function of (seed, epoch, node).

Kernels take a `graph` (indptr, indices, weights, strengths, sums of blocks: data/weights.py) and work arrays `buffers`
(table, seen, ends, times); `table` contains the nodes sampled so hop2_row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from largegt.data.kernels import SUM_BLOCK
from largegt.preprocessing.kernels import FOR_LOCAL_NODES, random_unit, start_stream

from .uniform import (
    FILTER_BITS,
    clear_filter,
    fill_filter,
    fill_up,
    insert,
    is_neighbor,
    num_hop2_slots,
    shuffle,
    slot_of,
    table_size,
)

ONE_HOP, TWO_HOP, ANY_HOP = 0, 1, 2
PATHS_PER_WALK = 4
"""The cost of a walk, in paths of a race."""


@njit(nogil=True, cache=True)
def step(graph: Any, i: Any, state: Any) -> Any:
    """A neighbour of i in proportion to the weights; -1 if it has none. Whole blocks of weights are skipped by their
    sums."""
    indptr, indices, weights, strengths, sums = graph
    place, stop = indptr[i], indptr[i + 1]
    if place == stop:
        return np.int64(-1)
    left = random_unit(state) * strengths[i]
    while place < stop - 1:
        if place % SUM_BLOCK == 0 and place + SUM_BLOCK <= stop and left >= sums[place // SUM_BLOCK]:
            left -= sums[place // SUM_BLOCK]
            place += SUM_BLOCK
            continue
        left -= np.float64(weights[place])
        if left < 0.0:
            break
        place += 1
    return np.int64(indices[min(place, stop - 1)])


@njit(nogil=True, cache=True)
def walk(graph: Any, i: Any, kind: int, bits: Any, state: Any) -> Any:
    """The end of a walk of this kind from i; -1 if it fails."""
    v = step(graph, i, state)
    if v < 0 or kind == ONE_HOP or (kind == ANY_HOP and random_unit(state) < 0.5):
        return v
    v = step(graph, v, state)
    if v == i or (v >= 0 and kind == TWO_HOP and is_neighbor(bits, graph[1], graph[0][i], graph[0][i + 1], v)):
        return np.int64(-1)
    return v


@njit(nogil=True, cache=True)
def keep_earliest(buffers: Any, count: int, wanted: int) -> int:
    """Keep the `wanted` earliest distinct ends of the first `count`, sorted by arrival time."""
    _, seen, ends, times = buffers
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:  # shell sort compiles ten times faster than NumPy's sort
        for place in range(gap, count):
            v, time, to = ends[place], times[place], place
            while to >= gap and times[to - gap] > time:
                ends[to], times[to] = ends[to - gap], times[to - gap]
                to -= gap
            ends[to], times[to] = v, time
        gap //= 3
    seen[:] = -1
    kept = 0
    for place in range(count):
        if kept < wanted and insert(seen, ends[place]):
            ends[kept], times[kept] = ends[place], times[place]
            kept += 1
    return kept


@njit(nogil=True, cache=True)
def race(graph: Any, i: Any, kind: int, bits: Any, state: Any, buffers: Any, row: Any) -> int:
    """Fill `row` with the earliest arrivals among the nodes that walks of this kind reach and that are not in the
    table; returns their number, at most len(row). The rate of an end is its probability."""
    indptr, indices, weights, strengths, _ = graph
    table, _, ends, times = buffers
    wanted, count, latest = len(row), 0, np.inf  # later arrivals lose
    start, stop = indptr[i], indptr[i + 1]
    if start == stop:
        return 0
    neighbors = indices[start:stop]
    for n in range(
        -1 if kind != TWO_HOP else 0, len(neighbors) if kind != ONE_HOP else 0
    ):  # -1: one step; n: through neighbors[n]
        low, high, scale = start, stop, 1.0 / strengths[i]
        if n >= 0:
            low, high = indptr[neighbors[n]], indptr[neighbors[n] + 1]
            scale *= np.float64(weights[start + n]) / strengths[neighbors[n]] if low < high else 0.0
        for place in range(low, high):
            time = -math.log(1.0 - random_unit(state)) / (np.float64(weights[place]) * scale)
            if not time < latest:
                continue
            v = np.int64(indices[place])
            if (
                v == i
                or table[slot_of(table, v)] == v
                or (kind == TWO_HOP and is_neighbor(bits, neighbors, 0, len(neighbors), v))
            ):
                continue
            ends[count], times[count] = v, time
            count += 1
            if count == len(ends):
                count = keep_earliest(buffers, count, wanted)
                latest = times[count - 1] if count == wanted else latest
    count = keep_earliest(buffers, count, wanted)
    for slot in range(count):
        row[slot] = ends[slot]
    return count


@njit(nogil=True, cache=True)
def sample_distinct(
    graph: Any, i: Any, kind: int, num_walks: Any, bits: Any, state: Any, buffers: Any, row: Any
) -> int:  # fmt: skip
    """Fill `row` with distinct nodes by at most `num_walks` walks and a race for the rest; returns their number."""
    table = buffers[0]
    table[:] = -1
    found = 0
    for _ in range(num_walks):
        if found == len(row):
            return found
        v = walk(graph, i, kind, bits, state)
        if v >= 0 and insert(table, v):
            row[found] = v
            found += 1
    return found + race(graph, i, kind, bits, state, buffers, row[found:]) if found < len(row) else found


@njit(nogil=True, cache=True)
def repeat_walks(graph: Any, i: Any, bits: Any, state: Any, row: Any, count: int) -> None:
    """Fill row[count:] with the ends of ANY_HOP walks, with replacement; from all nodes if i has no neighbours. Half of
    the walks cannot fail, so 200 attempts suffice."""
    indptr, indices = graph[0], graph[1]
    if indptr[i] == indptr[i + 1]:
        fill_up(row, 0, len(indptr) - 1, state)
        return
    for slot in range(count, len(row)):
        row[slot] = indices[indptr[i]]
        for _ in range(200):
            v = walk(graph, i, ANY_HOP, bits, state)
            if v >= 0:
                row[slot] = v
                break


@njit(nogil=True, cache=True)
def weighted_rows(
    indptr: Any, indices: Any, weights: Any, strengths: Any, sums: Any, nodes: Any, hop1_slots: int, max_walks: int,
    seed: int, epoch: int, rows: Any,
) -> None:  # fmt: skip
    """LocalNodes of `nodes` into rows [n, K] in proportion to weights. With `hop1_slots` ≥ 0 that many of the K - 1
    slots are for one-hop neighbours and the rest for nodes at distance two, otherwise all are for ANY_HOP. `max_walks`
    ≥ 0 is the number of walks before a race, for tests; -1 chooses it."""
    graph = (indptr, indices, weights, strengths, sums)
    wanted = rows.shape[1] - 1
    size = table_size(wanted)
    state, bits = np.zeros(1, np.uint64), np.zeros(FILTER_BITS // 64, np.uint64)
    buffers = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size // 4, np.int64), np.empty(size // 4))
    for n in range(len(nodes)):
        i = nodes[n]
        rows[n, 0] = i
        row = rows[n, 1:]
        start, stop = indptr[i], indptr[i + 1]
        start_stream(state, FOR_LOCAL_NODES, seed, epoch, i)
        fill_filter(bits, indices, start, stop)
        paths = np.int64(0)
        for place in range(start, stop):
            paths += indptr[indices[place] + 1] - indptr[indices[place]]
        if hop1_slots < 0:
            walks = paths // PATHS_PER_WALK if max_walks < 0 else max_walks
            count = sample_distinct(graph, i, ANY_HOP, walks, bits, state, buffers, row)
            if count < wanted:
                repeat_walks(graph, i, bits, state, row, 0)
        else:
            walks = paths // PATHS_PER_WALK if max_walks < 0 else max_walks
            hop2_row = row[: num_hop2_slots(wanted, hop1_slots, stop - start)]
            count = sample_distinct(graph, i, TWO_HOP, walks, bits, state, buffers, hop2_row)
            walks = (stop - start) // PATHS_PER_WALK if max_walks < 0 else max_walks
            hop1_row = row[count : count + min(wanted - count, stop - start)]
            count += sample_distinct(graph, i, ONE_HOP, walks, bits, state, buffers, hop1_row)
            if count < wanted:
                repeat_walks(graph, i, bits, state, row, count)
            shuffle(row, state)
        clear_filter(bits, indices, start, stop)
