"""LocalNodes over neighbour lists that lie elsewhere: the bytes of sampler.py, from few requests and little memory.

Enters: NeighborLists and the nodes to sample for. Leaves: their rows [n, K]. Cost: about ten requests for a batch of
some thousand nodes; memory `buffer_bytes`, or one node's own neighbours where they alone are more.

What a node needs depends on the way it is sampled (sampler.py), which its neighbours' degrees decide:

- by listing (few paths): the lists of its neighbours, each fetched once for the batch;
- by paths and by nodes (many): its draws do not depend on which of them are kept. So many are drawn at once, the drawn
  places of the neighbours' lists are asked for, and then, to see whether an earlier neighbour leads to a drawn node
  too, either that node's reverse list or, where it is long, only whether the few edges in question are there. The
  list of a hub is never sent.

Verdicts are the same as in sampler.py, so the random streams go on from the same numbers. Who runs out of tries falls
back to listing there and here; that happens where many paths lead to few nodes, at most some 75·K of them, so there
are no more than (75·K)² entries to fetch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from largegt.types import Array

from . import remote_kernels as kernels
from . import sampler
from .neighbor_lists import NeighborLists

BUFFER_BYTES = 1 << 28
"""What a batch may hold: a quarter its own lists and rows, a quarter the draws, half what is fetched for them."""
_NEIGHBOR_BYTES, _SLOT_BYTES, _TRY_BYTES, _PROBE_BYTES = 48, 256, 96, 40
"""Held per neighbour of the batch, per slot of its rows, per try, and per edge asked about; with NumPy's copies."""
_LIST_ENTRIES_PER_PROBE = 8
"""Entries of a list that cost as much to fetch as asking about one edge."""


def fetched_rows(
    lists: NeighborLists, nodes: Array, hop1_slots: int, forced: int, seed: int, epoch: int, rows: Array,
    buffer_bytes: int = BUFFER_BYTES,
) -> None:  # fmt: skip
    """LocalNodes of `nodes` into rows [n, K]: `sampler.local_nodes_rows` for lists that are not at hand."""
    distinct, back = np.unique(nodes, return_inverse=True)
    made = np.empty((len(distinct), rows.shape[1]), dtype=rows.dtype)
    sizes = lists.degrees(distinct) * _NEIGHBOR_BYTES + rows.shape[1] * _SLOT_BYTES
    for first, last in portions(sizes, buffer_bytes // 4):
        batch = _Batch(lists, distinct[first:last], made[first:last], hop1_slots, buffer_bytes // 4)
        batch.sample(forced, seed, epoch)
    rows[:] = made[back]


def portions(sizes: Array, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges that follow each other, each of no more than `limit` in sum, or of one member."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield first, last
        first = last


class _Batch:
    """Some nodes with their own lists, and how far each row has come."""

    def __init__(self, lists: NeighborLists, nodes: Array, rows: Array, hop1_slots: int, part_bytes: int) -> None:
        self.lists, self.nodes, self.rows, self.part_bytes = lists, nodes, rows, part_bytes
        self.hop1_slots, self.one_hop = hop1_slots, hop1_slots < 0
        self.own_indptr, self.own = lists.neighbors(nodes)
        self.near, self.row_of = np.unique(self.own, return_inverse=True)
        """The distinct neighbours, and where among them each entry of `own` is."""
        through = np.append(0, np.cumsum(lists.degrees(self.near)[self.row_of]))
        self.ends = through[1:] - np.repeat(through[self.own_indptr[:-1]], np.diff(self.own_indptr))
        self.states = np.zeros(len(nodes), dtype=np.uint64)
        self.num_far, self.paths, self.max_tries, self.found, self.tries_done = np.zeros(
            (5, len(nodes)), dtype=np.int64
        )
        self.ways, self.outcomes = np.zeros((2, len(nodes)), dtype=np.int8)

    def sample(self, forced: int, seed: int, epoch: int) -> None:
        num_nodes = self.lists.num_nodes
        self.rows[:, 0] = self.nodes
        kernels.begin(
            self.nodes, self.own_indptr, self.ends, num_nodes, self.rows.shape[1] - 1, self.hop1_slots, forced, seed,
            epoch, self.states, self.num_far, self.paths, self.ways, self.max_tries,
        )  # fmt: skip
        self.outcomes[self.num_far == 0] = kernels.FULL
        self.outcomes[(self.num_far > 0) & ((self.ways == sampler.BY_LISTING) | (self.max_tries <= 0))] = kernels.FAILED
        while len(active := np.flatnonzero(self.outcomes == kernels.GOES_ON)):
            self._try(active)
        self._list(np.flatnonzero(self.outcomes == kernels.FAILED))
        kernels.complete_rows(self.own_indptr, self.own, self.one_hop, num_nodes, self.states, self.found, self.rows)

    # by paths and by nodes

    def _try(self, active: Array) -> None:
        """Draw as many tries for each as will probably do, and see which can be kept."""
        tries_indptr = np.append(0, np.cumsum(self._num_tries(active)))
        total = int(tries_indptr[-1])
        before, drawn, places = np.empty((3, total), dtype=np.int64)
        verdicts = np.empty(total, dtype=np.int8)
        later_states = np.empty(total // sampler.BATCH, dtype=np.uint64)
        kernels.draw_tries(
            active, tries_indptr, self.own_indptr, self.own, self.ends, self.ways, self.one_hop, self.lists.num_nodes,
            self.states, later_states, before, drawn, places,
        )  # fmt: skip
        elsewhere = np.flatnonzero(places >= 0)
        drawn[elsewhere] = self.lists.at(drawn[elsewhere], places[elsewhere])
        kernels.judge_near(
            active, tries_indptr, self.nodes, self.own_indptr, self.own, self.ways, self.one_hop, before, drawn,
            verdicts,
        )  # fmt: skip
        tries = np.flatnonzero(verdicts == kernels.OPEN)
        target = np.repeat(active, np.diff(tries_indptr))[tries]
        met = self._led_to(drawn[tries], self.own_indptr[target], before[tries])
        by_nodes = self.ways[target] == sampler.BY_NODES
        verdicts[tries] = np.where(met == by_nodes, kernels.ACCEPTED, kernels.REFUSED)
        kernels.keep_tries(
            active, tries_indptr, drawn, verdicts, later_states, self.num_far, self.max_tries, self.states,
            self.tries_done, self.found, self.outcomes, self.rows,
        )  # fmt: skip

    def _num_tries(self, active: Array) -> Array:
        """By what was kept so far, or half at first: whole batches of tries, within the limit and the memory."""
        done, found = self.tries_done[active], self.found[active]
        rate = np.where(done > 0, (found + 1) / (done + 1), 0.5)
        expected = 1.2 * (self.num_far[active] - found) / rate + sampler.BATCH
        most = max(1, self.part_bytes // (_TRY_BYTES * sampler.BATCH * len(active)))
        batches = np.minimum(np.ceil(expected / sampler.BATCH), most)
        left = -(-(self.max_tries[active] - done) // sampler.BATCH)
        return np.asarray(np.minimum(batches, left).astype(np.int64) * sampler.BATCH)

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
                met[mine] = kernels.meet(starts[mine], before[mine], self.own, place, *lists)
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
        for first, last in portions(self.paths[some] * 2 * self.own.itemsize, self.part_bytes):
            these = some[first:last]
            wanted = np.zeros(len(self.near), dtype=np.bool_)
            for n in these:
                wanted[self.row_of[self.own_indptr[n] : self.own_indptr[n + 1]]] = True
            lists_of = (np.cumsum(wanted) - 1)[self.row_of]
            kernels.list_rows(
                these, self.nodes, self.own_indptr, self.own, lists_of, *self.lists.neighbors(self.near[wanted]),
                self.one_hop, self.num_far, self.paths, self.states, self.found, self.rows,
            )  # fmt: skip
