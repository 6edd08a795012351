"""LocalNodes in proportion to edge weights: inner loops, for one- and two-hop neighbours, without listing them first.

A *step* from i goes to a neighbour j with probability P(i, j) = w(i, j) / Σ w(i, ·). Three kinds of walks:

- NEAR: one step. v is drawn in proportion to P(i, v).
- FAR: two steps that end at distance two, in proportion to Σ_j P(i, j) P(j, v).
- EITHER: one step or two, each with the same chance, that do not end at i: P(i, v) + Σ_j P(i, j) P(j, v).

Slots are filled one after the other without replacement: each draw is in proportion to these weights over the nodes
not drawn yet. First walks are drawn, and those that end where one has been are forgotten, which is just that. When they
have cost as much as listing, the rest comes from a race over all paths: each path has an arrival time, exponential with
its probability for a rate, and who is first by any path wins. The first of several exponentials is one with the sum of
their rates, so a node's chance is the sum over its paths, though nothing but the earliest few arrivals is remembered.
What was drawn until then says nothing about what comes, so changing over at any moment leaves the distribution exact.

Memory per thread: some K. A row is a function of (seed, epoch, node) alone.

Kernels take a `graph` (indptr, indices, weights, strengths, sums of blocks: data/weights.py) and `room` (table, seen,
ends, times), which is theirs to write to; `table` holds the nodes drawn so far.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from largegt.data.kernels import SUM_BLOCK
from largegt.preprocessing.kernels import FOR_LOCAL_NODES, start_stream, unit

from .uniform import (
    FILTER_BITS,
    clear_filter,
    fill_filter,
    fill_up,
    insert,
    is_neighbor,
    num_far,
    shuffle,
    slot_of,
    table_size,
)

NEAR, FAR, EITHER = 0, 1, 2
PATHS_PER_WALK = 4
"""What one walk costs, in paths of a race."""


@njit(nogil=True, cache=True)
def step(graph: Any, i: Any, state: Any) -> Any:
    """A neighbour of i in proportion to the weights; -1 where it has none. Blocks of weights that lie before it are
    passed over by their sums."""
    indptr, indices, weights, strengths, sums = graph
    place, stop = indptr[i], indptr[i + 1]
    if place == stop:
        return np.int64(-1)
    left = unit(state) * strengths[i]
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
    """Where a walk of this kind from i ends; -1 where it comes to nothing."""
    v = step(graph, i, state)
    if v < 0 or kind == NEAR or (kind == EITHER and unit(state) < 0.5):
        return v
    v = step(graph, v, state)
    if v == i or (v >= 0 and kind == FAR and is_neighbor(bits, graph[1], graph[0][i], graph[0][i + 1], v)):
        return np.int64(-1)
    return v


@njit(nogil=True, cache=True)
def settle(room: Any, count: int, wanted: int) -> int:
    """Keep the `wanted` earliest distinct ends of the first `count`, by their earliest arrival, in that order."""
    _, seen, ends, times = room
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:  # Shell's sort: compiles in a tenth of the time that NumPy's takes
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
def race(graph: Any, i: Any, kind: int, bits: Any, state: Any, room: Any, row: Any) -> int:
    """Fill `row` with the first to arrive among the nodes that walks of this kind reach and the table does not hold;
    how many there are, at most its length. An end arrives at the rate of its probability."""
    indptr, indices, weights, strengths, _ = graph
    table, _, ends, times = room
    wanted, count, latest = len(row), 0, np.inf  # nobody who comes later has a chance
    start, stop = indptr[i], indptr[i + 1]
    if start == stop:
        return 0
    own = indices[start:stop]
    for n in range(-1 if kind != FAR else 0, len(own) if kind != NEAR else 0):  # -1: one step; n: by way of own[n]
        low, high, scale = start, stop, 1.0 / strengths[i]
        if n >= 0:
            low, high = indptr[own[n]], indptr[own[n] + 1]
            scale *= np.float64(weights[start + n]) / strengths[own[n]] if low < high else 0.0
        for place in range(low, high):
            time = -math.log(1.0 - unit(state)) / (np.float64(weights[place]) * scale)
            if not time < latest:
                continue
            v = np.int64(indices[place])
            if v == i or table[slot_of(table, v)] == v or (kind == FAR and is_neighbor(bits, own, 0, len(own), v)):
                continue
            ends[count], times[count] = v, time
            count += 1
            if count == len(ends):
                count = settle(room, count, wanted)
                latest = times[count - 1] if count == wanted else latest
    count = settle(room, count, wanted)
    for slot in range(count):
        row[slot] = ends[slot]
    return count


@njit(nogil=True, cache=True)
def draw_distinct(
    graph: Any, i: Any, kind: int, num_walks: Any, bits: Any, state: Any, room: Any, row: Any
) -> int:  # fmt: skip
    """Fill `row` with distinct nodes by at most `num_walks` walks, and a race for what these leave; how many there
    are."""
    table = room[0]
    table[:] = -1
    found = 0
    for _ in range(num_walks):
        if found == len(row):
            return found
        v = walk(graph, i, kind, bits, state)
        if v >= 0 and insert(table, v):
            row[found] = v
            found += 1
    return found + race(graph, i, kind, bits, state, room, row[found:]) if found < len(row) else found


@njit(nogil=True, cache=True)
def repeat_walks(graph: Any, i: Any, bits: Any, state: Any, row: Any, count: int) -> None:
    """Fill row[count:] with the ends of walks of one step or two, with replacement; without neighbours, from all
    nodes. Half of the walks cannot fail, so some hundred do not."""
    indptr, indices = graph[0], graph[1]
    if indptr[i] == indptr[i + 1]:
        fill_up(row, 0, len(indptr) - 1, state)
        return
    for slot in range(count, len(row)):
        row[slot] = indices[indptr[i]]
        for _ in range(200):
            v = walk(graph, i, EITHER, bits, state)
            if v >= 0:
                row[slot] = v
                break


@njit(nogil=True, cache=True)
def weighted_rows(
    indptr: Any, indices: Any, weights: Any, strengths: Any, sums: Any, nodes: Any, hop1_slots: int, max_walks: int,
    seed: int, epoch: int, rows: Any,
) -> None:  # fmt: skip
    """LocalNodes of `nodes` into rows [n, K] in proportion to weights. With `hop1_slots` ≥ 0 that many of the K - 1
    slots are for one-hop neighbours and the rest for nodes at distance two, otherwise all are for EITHER. `max_walks`
    ≥ 0 is how many walks to try before a race, for tests; -1 chooses."""
    graph = (indptr, indices, weights, strengths, sums)
    wanted = rows.shape[1] - 1
    size = table_size(wanted)
    state, bits = np.zeros(1, np.uint64), np.zeros(FILTER_BITS // 64, np.uint64)
    room = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size // 4, np.int64), np.empty(size // 4))
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
            count = draw_distinct(graph, i, EITHER, walks, bits, state, room, row)
            if count < wanted:
                repeat_walks(graph, i, bits, state, row, 0)
        else:
            walks = paths // PATHS_PER_WALK if max_walks < 0 else max_walks
            far = row[: num_far(wanted, hop1_slots, stop - start)]
            count = draw_distinct(graph, i, FAR, walks, bits, state, room, far)
            walks = (stop - start) // PATHS_PER_WALK if max_walks < 0 else max_walks
            near = row[count : count + min(wanted - count, stop - start)]
            count += draw_distinct(graph, i, NEAR, walks, bits, state, room, near)
            if count < wanted:
                repeat_walks(graph, i, bits, state, row, count)
            shuffle(row, state)
        clear_filter(bits, indices, start, stop)
