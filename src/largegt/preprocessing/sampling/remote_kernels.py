"""The inner loops of LocalNodes over fetched lists (fetched_nodes.py): the same draws as sampler.py, many at a time.

A batch is `nodes` [n] with the neighbours of all of them, one list behind the other: `own_indptr`, `own`. `ends` says
for each neighbour how many two-hop paths there are through it and those before it in the list. A try is a node drawn
for one of them; the tries of active[a] are tries_indptr[a] to tries_indptr[a + 1].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from . import sampler
from .kernels import FOR_LOCAL_NODES, below, contains, share_an_element, start_stream

REFUSED, ACCEPTED, OPEN = 0, 1, 2
"""What becomes of a try; open as long as it takes more lists to tell."""
GOES_ON, FULL, FAILED = 0, 1, 2
"""How far a node has come by trying."""


@njit(nogil=True, cache=True)
def begin(
    nodes: Any, own_indptr: Any, ends: Any, num_nodes: int, wanted: int, hop1_slots: int, forced: int, seed: int,
    epoch: int, states: Any, num_far: Any, paths: Any, ways: Any, max_tries: Any,
) -> None:  # fmt: skip
    """What is known of each node before any draw."""
    for n in range(len(nodes)):
        degree = own_indptr[n + 1] - own_indptr[n]
        start_stream(states[n : n + 1], FOR_LOCAL_NODES, seed, epoch, nodes[n])
        paths[n] = ends[own_indptr[n + 1] - 1] if degree else 0
        num_far[n] = sampler.num_far(wanted, hop1_slots, degree)
        ways[n] = sampler.choose_way(paths[n], num_nodes, num_far[n]) if forced == sampler.ANY_WAY else forced
        price = sampler.PATHS_PER_NODE_TRY if ways[n] == sampler.BY_NODES else sampler.PATHS_PER_PATH_TRY
        max_tries[n] = 2 * paths[n] // price


@njit(nogil=True, cache=True)
def draw_tries(
    active: Any, tries_indptr: Any, own_indptr: Any, own: Any, ends: Any, ways: Any, one_hop: bool, num_nodes: int,
    states: Any, later_states: Any, before: Any, drawn: Any, places: Any,
) -> None:  # fmt: skip
    """Draw every try. One that is known at once is drawn[t], with places[t] = -1; otherwise it is the neighbour at
    that place of the list of drawn[t]. before[t] is how many neighbours must not lead to it (by paths; -1 for a
    neighbour itself) or one of which must (by nodes). later_states are those after each sampler.BATCH of tries."""
    for a in range(len(active)):
        n = active[a]
        start, stop = own_indptr[n], own_indptr[n + 1]
        state = states[n : n + 1]
        degree = stop - start if one_hop else 0
        paths = ends[stop - 1]
        for t in range(tries_indptr[a], tries_indptr[a + 1]):
            if ways[n] == sampler.BY_NODES:
                drawn[t], places[t], before[t] = below(state, num_nodes), -1, stop - start
            else:
                draw = below(state, degree + paths)
                if draw < degree:
                    drawn[t], places[t], before[t] = own[start + draw], -1, -1
                else:
                    draw -= degree
                    middle = start + np.searchsorted(ends[start:stop], draw, side="right")
                    drawn[t], before[t] = own[middle], middle - start
                    places[t] = draw - (ends[middle - 1] if middle > start else 0)
            if (t + 1) % sampler.BATCH == 0:
                later_states[t // sampler.BATCH] = state[0]


@njit(nogil=True, cache=True)
def judge_near(
    active: Any, tries_indptr: Any, nodes: Any, own_indptr: Any, own: Any, ways: Any, one_hop: bool, before: Any,
    drawn: Any, verdicts: Any,
) -> None:  # fmt: skip
    """What the node's own list says of each try."""
    for a in range(len(active)):
        n = active[a]
        start, stop = own_indptr[n], own_indptr[n + 1]
        for t in range(tries_indptr[a], tries_indptr[a + 1]):
            verdicts[t] = OPEN
            if before[t] < 0:
                verdicts[t] = ACCEPTED
            elif drawn[t] == nodes[n]:
                verdicts[t] = REFUSED
            elif contains(own, start, stop, drawn[t]):
                verdicts[t] = ACCEPTED if one_hop and ways[n] == sampler.BY_NODES else REFUSED


@njit(nogil=True, cache=True)
def meet(starts: Any, before: Any, own: Any, rows: Any, indptr: Any, indices: Any) -> Any:
    """Boolean: whether the first before[t] neighbours from starts[t] on and row rows[t] of a CSR have one in common."""
    met = np.empty(len(rows), np.bool_)
    for t in range(len(rows)):
        low, high = indptr[rows[t]], indptr[rows[t] + 1]
        met[t] = share_an_element(own, starts[t], starts[t] + before[t], indices, low, high)
    return met


@njit(nogil=True, cache=True)
def keep_tries(
    active: Any, tries_indptr: Any, drawn: Any, verdicts: Any, later_states: Any, num_far: Any, max_tries: Any,
    states: Any, tries_done: Any, found: Any, outcomes: Any, rows: Any,
) -> None:  # fmt: skip
    """Put the accepted tries into the rows, in their order, until they are full or it is time to give up; the state is
    then left as it was at that batch of tries."""
    table = np.empty(sampler.table_size(rows.shape[1] - 1) // 8, np.int64)
    for a in range(len(active)):
        n = active[a]
        row = rows[n, 1 : 1 + num_far[n]]
        table[:] = -1
        for slot in range(found[n]):
            sampler.insert(table, np.int64(row[slot]))
        low, high = tries_indptr[a], tries_indptr[a + 1]
        outcome, last = GOES_ON, high // sampler.BATCH - 1
        for t in range(low, high):
            tries = tries_done[n] + t - low
            if tries % sampler.BATCH == 0 and sampler.out_of_hope(tries, found[n], len(row), max_tries[n]):
                outcome, last = FAILED, t // sampler.BATCH - 1
                break
            if verdicts[t] == ACCEPTED and sampler.insert(table, drawn[t]):
                row[found[n]] = drawn[t]
                found[n] += 1
                if found[n] == len(row):
                    outcome, last = FULL, t // sampler.BATCH
                    break
        tries_done[n] += high - low
        if outcome == GOES_ON and tries_done[n] >= max_tries[n]:
            outcome = FAILED
        outcomes[n] = outcome
        states[n] = later_states[last]


@njit(nogil=True, cache=True)
def list_rows(
    some: Any, nodes: Any, own_indptr: Any, own: Any, lists_of: Any, indptr: Any, indices: Any, one_hop: bool,
    num_far: Any, paths: Any, states: Any, found: Any, rows: Any,
) -> None:  # fmt: skip
    """Sample some[s] of the batch by listing; the list of own[p] is row lists_of[p] of (indptr, indices)."""
    size = sampler.table_size(rows.shape[1] - 1)
    table, members = np.empty(size, np.int64), np.empty(size // 2, np.int64)
    bits = np.zeros(sampler.FILTER_BITS // 64, np.uint64)
    for n in some:
        start, stop = own_indptr[n], own_indptr[n + 1]
        sampler.fill_filter(bits, own, start, stop)
        found[n] = sampler.sample_by_listing(
            own[start:stop], lists_of[start:stop], indptr, indices, nodes[n], one_hop, paths[n], bits,
            states[n : n + 1], table, members, rows[n, 1 : 1 + num_far[n]],
        )  # fmt: skip
        sampler.clear_filter(bits, own, start, stop)


@njit(nogil=True, cache=True)
def complete_rows(own_indptr: Any, own: Any, one_hop: bool, num_nodes: int, states: Any, found: Any, rows: Any) -> None:
    """Complete every row of the batch."""
    size = sampler.table_size(rows.shape[1] - 1)
    table, members = np.empty(size // 8, np.int64), np.empty(size // 2, np.int64)
    for n in range(len(rows)):
        near = own[own_indptr[n] : own_indptr[n + 1]]
        sampler.complete_row(near, rows[n, 1:], found[n], one_hop, num_nodes, states[n : n + 1], table, members)
