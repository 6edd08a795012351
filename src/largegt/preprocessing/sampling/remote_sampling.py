"""LocalNodes over neighbour lists that lie elsewhere: the bytes of uniform.py, from few requests and little memory.

Enters: NeighborLists and the nodes to sample for. Leaves: their rows [n, K]. Cost: about ten requests for a batch of
some thousand nodes; memory `buffer_bytes`, or one node's own neighbours where they alone are more.

What a node needs depends on the way it is sampled (uniform.py), which its neighbours' degrees decide:

- by listing (few paths): the lists of its neighbours, each fetched once for the batch;
- by paths and by nodes (many): its draws do not depend on which of them are kept. So many are drawn at once, the drawn
  places of the neighbours' lists are asked for, and then, to see whether an earlier neighbour leads to a drawn node
  too, either that node's reverse list or, where it is long, only whether the few edges in question are there. The
  list of a hub is never sent.

Verdicts are the same as in uniform.py, so the random streams go on from the same numbers. Who runs out of tries falls
back to listing there and here; that happens where many paths lead to few nodes, at most some 75·K of them, so there
are no more than (75·K)² entries to fetch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.preprocessing.kernels import FOR_LOCAL_NODES, below, in_rows, share_an_element, start_stream
from largegt.types import Array

from . import uniform
from .neighbor_lists import NeighborLists, portions

BUFFER_BYTES = 1 << 28
"""What a batch may hold: a quarter its own lists and rows, a quarter the draws, half what is fetched for them."""
_NEIGHBOR_BYTES, _SLOT_BYTES, _TRY_BYTES, _PROBE_BYTES = 48, 256, 96, 40
"""Held per neighbour of the batch, per slot of its rows, per try, and per edge asked about; with NumPy's copies."""
_LIST_ENTRIES_PER_PROBE = 8
"""Entries of a list that cost as much to fetch as asking about one edge."""

_TRIES, _FULL, _FAILED = 0, 1, 2
"""How far a node has come by trying."""
_STATE = np.dtype([
    (name, np.int64) for name in (
        "node", "start", "stop",  # its neighbours are own[start:stop]
        "paths", "num_far", "way", "max_tries", "num_tries", "found", "outcome",
    )
])  # fmt: skip
"""A node of a batch. Beside it are `random`, the state of its random stream, and `ends`: of each of its neighbours, how
many two-hop paths there are through it and those before it. A try is a node drawn for one of the batch; the tries of
active[a] are tries_indptr[a] to tries_indptr[a + 1]."""


def fetched_rows(
    lists: NeighborLists, nodes: Array, hop1_slots: int, forced: int, seed: int, epoch: int, rows: Array,
    buffer_bytes: int = BUFFER_BYTES,
) -> None:  # fmt: skip
    """LocalNodes of `nodes` into rows [n, K]: `uniform.local_nodes_rows` for lists that are not at hand."""
    distinct, back = np.unique(nodes, return_inverse=True)
    made = np.empty((len(distinct), rows.shape[1]), dtype=rows.dtype)
    sizes = lists.degrees(distinct) * _NEIGHBOR_BYTES + rows.shape[1] * _SLOT_BYTES
    for first, last in portions(sizes, buffer_bytes // 4):
        batch = _Batch(lists, distinct[first:last], made[first:last], hop1_slots < 0, buffer_bytes // 4)
        batch.sample(hop1_slots, forced, seed, epoch)
    rows[:] = made[back]


class _Batch:
    """Some nodes with their own lists, and how far each row has come."""

    def __init__(self, lists: NeighborLists, nodes: Array, rows: Array, one_hop: bool, part_bytes: int) -> None:
        self.lists, self.nodes, self.rows, self.part_bytes = lists, nodes, rows, part_bytes
        self.one_hop, self.num_nodes = one_hop, lists.num_nodes
        self.indptr, self.own = lists.neighbors(nodes)
        self.is_neighbor, self.row_of = np.unique(self.own, return_inverse=True)
        """The distinct neighbours, and where among them each entry of `own` is."""
        through = np.append(0, np.cumsum(lists.degrees(self.is_neighbor)[self.row_of]))
        self.ends = through[1:] - np.repeat(through[self.indptr[:-1]], np.diff(self.indptr))
        self.random, self.state = np.zeros(len(nodes), dtype=np.uint64), np.zeros(len(nodes), dtype=_STATE)
        self.state["node"], self.state["start"], self.state["stop"] = nodes, self.indptr[:-1], self.indptr[1:]

    def sample(self, hop1_slots: int, forced: int, seed: int, epoch: int) -> None:
        self.rows[:, 0] = self.nodes
        _begin(self.state, self.random, self.ends, self.num_nodes, self.rows, hop1_slots, forced, seed, epoch)
        while len(active := np.flatnonzero(self.state["outcome"] == _TRIES)):
            self._try(active)
        self._list(np.flatnonzero(self.state["outcome"] == _FAILED))
        _complete_rows(self.state, self.random, self.own, self.one_hop, self.num_nodes, self.rows)

    # by paths and by nodes

    def _try(self, active: Array) -> None:
        """Draw as many tries for each as will probably do, and see which can be kept."""
        tries_indptr = np.append(0, np.cumsum(self._num_tries(active)))
        before, drawn, places = np.empty((3, int(tries_indptr[-1])), dtype=np.int64)
        later = np.empty(len(drawn) // uniform.BATCH, dtype=np.uint64)
        _draw_tries(
            self.state, self.random, active, tries_indptr, self.own, self.ends, self.one_hop, self.num_nodes, later,
            before, drawn, places,
        )  # fmt: skip
        elsewhere = np.flatnonzero(places >= 0)
        drawn[elsewhere] = self.lists.at(drawn[elsewhere], places[elsewhere])
        drawn_for = np.repeat(active, np.diff(tries_indptr))
        by_nodes = (self.state["way"] == uniform.BY_NODES)[drawn_for]
        is_near = in_rows(self.indptr, self.own, drawn_for, drawn)
        accepted = (before < 0) | (is_near & by_nodes & self.one_hop)
        tries = np.flatnonzero(~(accepted | is_near | (drawn == self.nodes[drawn_for])))
        met = self._led_to(drawn[tries], self.indptr[drawn_for[tries]], before[tries])
        accepted[tries] = met == by_nodes[tries]
        _keep_tries(self.state, self.random, active, tries_indptr, drawn, accepted, later, self.rows)

    def _num_tries(self, active: Array) -> Array:
        """By what was kept so far, or half at first: whole batches of tries, within the limit and the memory."""
        done, found = self.state["num_tries"][active], self.state["found"][active]
        rate = np.where(done > 0, (found + 1) / (done + 1), 0.5)
        expected = 1.2 * (self.state["num_far"][active] - found) / rate + uniform.BATCH
        most = max(1, self.part_bytes // (_TRY_BYTES * uniform.BATCH * len(active)))
        left = -(-(self.state["max_tries"][active] - done) // uniform.BATCH)
        batches = np.minimum(np.minimum(np.ceil(expected / uniform.BATCH), most), left)
        return np.asarray(batches.astype(np.int64) * uniform.BATCH)

    def _led_to(self, drawn: Array, starts: Array, before: Array) -> Array:
        """Boolean: whether one of the `before` neighbours from `starts` on leads to the drawn node."""
        met = np.zeros(len(drawn), dtype=np.bool_)
        distinct, row = np.unique(drawn, return_inverse=True)
        degrees = self.lists.reverse.degrees(distinct)
        worth = np.zeros(len(distinct), dtype=np.bool_)
        worth[row[degrees[row] <= _LIST_ENTRIES_PER_PROBE * before]] = True
        rank: Array = np.cumsum(worth) - worth  # among the lists that are worth fetching
        for first, last in portions(np.where(worth, degrees, 0) * 2 * self.own.itemsize, self.part_bytes):
            mine = np.flatnonzero(worth[row] & (row >= first) & (row < last))
            if len(mine):
                lists = self.lists.reverse.neighbors(distinct[first:last][worth[first:last]])
                place: Array = rank[row[mine]] - rank[first]
                met[mine] = _meet(starts[mine], before[mine], self.own, place, *lists)
        asked = np.flatnonzero(~worth[row] & (before > 0))
        for first, last in portions(before[asked] * _PROBE_BYTES, self.part_bytes):
            some = asked[first:last]
            ends = np.cumsum(before[some])
            near_at = np.arange(ends[-1]) - np.repeat(ends - before[some] - starts[some], before[some])
            there = self.lists.has(self.own[near_at], np.repeat(drawn[some], before[some]))
            met[some] = np.logical_or.reduceat(there, ends - before[some])
        return met

    # by listing

    def _list(self, some: Array) -> None:
        """Sample these nodes by listing, as many at a time as their neighbours' lists fit the memory."""
        for first, last in portions(self.state["paths"][some] * 2 * self.own.itemsize, self.part_bytes):
            these = some[first:last]
            wanted = np.zeros(len(self.is_neighbor), dtype=np.bool_)
            for n in these:
                wanted[self.row_of[self.indptr[n] : self.indptr[n + 1]]] = True
            lists_of = (np.cumsum(wanted) - 1)[self.row_of]
            lists = self.lists.neighbors(self.is_neighbor[wanted])
            _list_rows(self.state, self.random, these, self.own, lists_of, *lists, self.one_hop, self.rows)


@njit(nogil=True, cache=True)
def _begin(
    state: Any, random: Any, ends: Any, num_nodes: int, rows: Any, hop1_slots: int, forced: int, seed: int, epoch: int
) -> None:
    """What is known of each node before any draw."""
    for n in range(len(state)):
        s = state[n]
        start_stream(random[n : n + 1], FOR_LOCAL_NODES, seed, epoch, s.node)
        s.paths = ends[s.stop - 1] if s.stop > s.start else 0
        s.num_far = uniform.num_far(rows.shape[1] - 1, hop1_slots, s.stop - s.start)
        s.way = uniform.choose_way(s.paths, num_nodes, s.num_far) if forced == uniform.ANY_WAY else forced
        price = uniform.PATHS_PER_NODE_TRY if s.way == uniform.BY_NODES else uniform.PATHS_PER_PATH_TRY
        s.max_tries = 2 * s.paths // price
        if s.num_far == 0:
            s.outcome = _FULL
        elif s.way == uniform.BY_LISTING or s.max_tries <= 0:
            s.outcome = _FAILED


@njit(nogil=True, cache=True)
def _draw_tries(
    state: Any, random: Any, active: Any, tries_indptr: Any, own: Any, ends: Any, one_hop: bool, num_nodes: int,
    later: Any, before: Any, drawn: Any, places: Any,
) -> None:  # fmt: skip
    """Draw every try. One that is known at once is drawn[t], with places[t] = -1; otherwise it is the neighbour at
    that place of the list of drawn[t]. before[t] is how many neighbours must not lead to it (by paths; -1 for a
    neighbour itself) or one of which must (by nodes). `later` are random states after each uniform.BATCH of tries."""
    for a in range(len(active)):
        s, stream = state[active[a]], random[active[a] : active[a] + 1]
        degree = s.stop - s.start if one_hop else 0
        for t in range(tries_indptr[a], tries_indptr[a + 1]):
            places[t] = -1
            if s.way == uniform.BY_NODES:
                drawn[t], before[t] = below(stream, num_nodes), s.stop - s.start
            else:
                draw = below(stream, degree + s.paths)
                if draw < degree:
                    drawn[t], before[t] = own[s.start + draw], -1
                else:
                    draw -= degree
                    middle = s.start + np.searchsorted(ends[s.start : s.stop], draw, side="right")
                    drawn[t], before[t] = own[middle], middle - s.start
                    places[t] = draw - (ends[middle - 1] if middle > s.start else 0)
            if (t + 1) % uniform.BATCH == 0:
                later[t // uniform.BATCH] = stream[0]


@njit(nogil=True, cache=True)
def _meet(starts: Any, before: Any, own: Any, rows: Any, indptr: Any, indices: Any) -> Any:
    """Boolean: whether the first before[t] neighbours from starts[t] on and row rows[t] of a CSR have one in common."""
    met = np.empty(len(rows), np.bool_)
    for t in range(len(rows)):
        low, high = indptr[rows[t]], indptr[rows[t] + 1]
        met[t] = share_an_element(own, starts[t], starts[t] + before[t], indices, low, high)
    return met


@njit(nogil=True, cache=True)
def _keep_tries(
    state: Any, random: Any, active: Any, tries_indptr: Any, drawn: Any, accepted: Any, later: Any, rows: Any
) -> None:
    """Put the accepted tries into the rows, in their order, until they are full or it is time to give up; the stream is
    then left as it was at that batch of tries."""
    table = np.empty(uniform.table_size(rows.shape[1] - 1) // 8, np.int64)
    for a in range(len(active)):
        s = state[active[a]]
        row = rows[active[a], 1 : 1 + s.num_far]
        table[:] = -1
        for slot in range(s.found):
            uniform.insert(table, np.int64(row[slot]))
        low, high = tries_indptr[a], tries_indptr[a + 1]
        last = high // uniform.BATCH - 1
        for t in range(low, high):
            num_tries = s.num_tries + t - low
            if num_tries % uniform.BATCH == 0 and uniform.out_of_hope(num_tries, s.found, len(row), s.max_tries):
                s.outcome, last = _FAILED, t // uniform.BATCH - 1
                break
            if accepted[t] and uniform.insert(table, drawn[t]):
                row[s.found] = drawn[t]
                s.found += 1
                if s.found == len(row):
                    s.outcome, last = _FULL, t // uniform.BATCH
                    break
        s.num_tries += high - low
        if s.outcome == _TRIES and s.num_tries >= s.max_tries:
            s.outcome = _FAILED
        random[active[a]] = later[last]


@njit(nogil=True, cache=True)
def _list_rows(
    state: Any, random: Any, some: Any, own: Any, lists_of: Any, indptr: Any, indices: Any, one_hop: bool, rows: Any
) -> None:
    """Sample some[s] of the batch by listing; the list of own[p] is row lists_of[p] of (indptr, indices)."""
    size = uniform.table_size(rows.shape[1] - 1)
    table, members = np.empty(size, np.int64), np.empty(size // 2, np.int64)
    bits = np.zeros(uniform.FILTER_BITS // 64, np.uint64)
    for n in some:
        s = state[n]
        uniform.fill_filter(bits, own, s.start, s.stop)
        s.found = uniform.sample_by_listing(
            own[s.start : s.stop], lists_of[s.start : s.stop], indptr, indices, s.node, one_hop, s.paths, bits,
            random[n : n + 1], table, members, rows[n, 1 : 1 + s.num_far],
        )  # fmt: skip
        uniform.clear_filter(bits, own, s.start, s.stop)


@njit(nogil=True, cache=True)
def _complete_rows(state: Any, random: Any, own: Any, one_hop: bool, num_nodes: int, rows: Any) -> None:
    """Complete every row of the batch."""
    size = uniform.table_size(rows.shape[1] - 1)
    table, members = np.empty(size // 8, np.int64), np.empty(size // 2, np.int64)
    for n in range(len(rows)):
        s = state[n]
        near = own[s.start : s.stop]
        uniform.complete_row(near, rows[n, 1:], s.found, one_hop, num_nodes, random[n : n + 1], table, members)
