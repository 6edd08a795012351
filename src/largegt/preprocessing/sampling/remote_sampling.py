"""LocalNodes over remote neighbour lists: the same bytes as uniform.py, with few requests and little memory.

Enters: NeighborLists and the nodes to sample for. Leaves: their rows [n, K]. Cost: about ten requests for a batch of
some thousand nodes; memory `buffer_bytes`, or the neighbours of one node if they need more.

Requests depend on the method that samples a node (uniform.py), which follows from its neighbours' degrees:

- by listing (few paths): the lists of its neighbours, each fetched once for the batch;
- by paths and by nodes (many paths): tries do not depend on which of them are accepted, so many are drawn at once. One
  request fetches their entries of the neighbours' lists. Whether an earlier neighbour leads to a drawn node is decided
  by the node's reverse list or, if that is long, by requests for single edges. Lists of hubs are never fetched.

Decisions are the same as in uniform.py, so the random streams continue identically. Nodes that run out of tries fall
back to listing in both modules. That happens if many paths lead to at most about 75·K nodes, so at most (75·K)² entries
are fetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.preprocessing.kernels import FOR_LOCAL_NODES, in_rows, randint, share_an_element, start_stream
from largegt.types import Array

from . import uniform
from .neighbor_lists import NeighborLists, split_by_size

BUFFER_BYTES = 1 << 28
"""The memory of a batch: a quarter for its neighbour lists and rows, a quarter for tries, half for fetched data."""
_NEIGHBOR_BYTES, _SLOT_BYTES, _TRY_BYTES, _PROBE_BYTES = 48, 256, 96, 40
"""Memory per neighbour of the batch, per slot of its rows, per try, and per edge request, with NumPy's copies."""
_LIST_ENTRIES_PER_PROBE = 8
"""List entries that cost as much to fetch as a request for one edge."""

_TRIES, _FULL, _FAILED = 0, 1, 2
"""The outcome of a node's tries."""
_STATE = np.dtype([
    (name, np.int64) for name in (
        "node", "start", "stop",  # its neighbours are neighbors[start:stop]
        "paths", "num_hop2_slots", "method", "max_tries", "num_tries", "found", "outcome",
    )
])  # fmt: skip
"""The state of a node of a batch. Parallel arrays are `random`, its random stream, and `ends`, the cumulative number of
two-hop paths through its neighbours. A try is a candidate for one node; the tries of active[a] are tries_indptr[a] to
tries_indptr[a + 1]."""


def remote_rows(
    lists: NeighborLists, nodes: Array, hop1_slots: int, forced: int, seed: int, epoch: int, rows: Array,
    buffer_bytes: int = BUFFER_BYTES,
) -> None:  # fmt: skip
    """LocalNodes of `nodes` into rows [n, K]: `uniform.local_nodes_rows` for remote lists."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    sampled = np.empty((len(distinct), rows.shape[1]), dtype=rows.dtype)
    sizes = lists.degrees(distinct) * _NEIGHBOR_BYTES + rows.shape[1] * _SLOT_BYTES
    for first, last in split_by_size(sizes, buffer_bytes // 4):
        batch = _Batch(lists, distinct[first:last], sampled[first:last], hop1_slots < 0, buffer_bytes // 4)
        batch.sample(hop1_slots, forced, seed, epoch)
    rows[:] = sampled[inverse]


class _Batch:
    """Some nodes, their neighbour lists, and the state of their rows."""

    def __init__(self, lists: NeighborLists, nodes: Array, rows: Array, one_hop: bool, part_bytes: int) -> None:
        self.lists, self.nodes, self.rows, self.part_bytes = lists, nodes, rows, part_bytes
        self.one_hop, self.num_nodes = one_hop, lists.num_nodes
        self.indptr, self.neighbors = lists.neighbors(nodes)
        self.distinct_neighbors, self.row_of = np.unique(self.neighbors, return_inverse=True)
        """The distinct neighbours, and the index of each entry of `neighbors` in them."""
        through = np.append(0, np.cumsum(lists.degrees(self.distinct_neighbors)[self.row_of]))
        self.ends = through[1:] - np.repeat(through[self.indptr[:-1]], np.diff(self.indptr))
        self.random, self.state = np.zeros(len(nodes), dtype=np.uint64), np.zeros(len(nodes), dtype=_STATE)
        self.state["node"], self.state["start"], self.state["stop"] = nodes, self.indptr[:-1], self.indptr[1:]

    def sample(self, hop1_slots: int, forced: int, seed: int, epoch: int) -> None:
        self.rows[:, 0] = self.nodes
        _begin(self.state, self.random, self.ends, self.num_nodes, self.rows, hop1_slots, forced, seed, epoch)
        while len(active := np.flatnonzero(self.state["outcome"] == _TRIES)):
            self._try(active)
        self._list(np.flatnonzero(self.state["outcome"] == _FAILED))
        _complete_rows(self.state, self.random, self.neighbors, self.one_hop, self.num_nodes, self.rows)

    # by paths and by nodes

    def _try(self, active: Array) -> None:
        """Draw enough tries for each node, and decide which ones to accept."""
        tries_indptr = np.append(0, np.cumsum(self._num_tries(active)))
        before, drawn, places = np.empty((3, int(tries_indptr[-1])), dtype=np.int64)
        later = np.empty(len(drawn) // uniform.BATCH, dtype=np.uint64)
        _draw_tries(
            self.state, self.random, active, tries_indptr, self.neighbors, self.ends, self.one_hop, self.num_nodes,
            later, before, drawn, places,
        )  # fmt: skip
        remote = np.flatnonzero(places >= 0)
        drawn[remote] = self.lists.at(drawn[remote], places[remote])
        drawn_for = np.repeat(active, np.diff(tries_indptr))
        by_nodes = (self.state["method"] == uniform.BY_NODES)[drawn_for]
        is_one_hop = in_rows(self.indptr, self.neighbors, drawn_for, drawn)
        accepted = (before < 0) | (is_one_hop & by_nodes & self.one_hop)
        tries = np.flatnonzero(~(accepted | is_one_hop | (drawn == self.nodes[drawn_for])))
        has_path = self._has_path(drawn[tries], self.indptr[drawn_for[tries]], before[tries])
        accepted[tries] = has_path == by_nodes[tries]
        _keep_tries(self.state, self.random, active, tries_indptr, drawn, accepted, later, self.rows)

    def _num_tries(self, active: Array) -> Array:
        """The number of tries from the acceptance rate so far (initially a half): whole batches, within the limit and
        the memory."""
        done, found = self.state["num_tries"][active], self.state["found"][active]
        rate = np.where(done > 0, (found + 1) / (done + 1), 0.5)
        expected = 1.2 * (self.state["num_hop2_slots"][active] - found) / rate + uniform.BATCH
        most = max(1, self.part_bytes // (_TRY_BYTES * uniform.BATCH * len(active)))
        left = -(-(self.state["max_tries"][active] - done) // uniform.BATCH)
        batches = np.minimum(np.minimum(np.ceil(expected / uniform.BATCH), most), left)
        return np.asarray(batches.astype(np.int64) * uniform.BATCH)

    def _has_path(self, drawn: Array, starts: Array, before: Array) -> Array:
        """Boolean: whether one of the `before` neighbours from `starts` on leads to the drawn node."""
        has_path = np.zeros(len(drawn), dtype=np.bool_)
        distinct, row = np.unique(drawn, return_inverse=True)
        degrees = self.lists.reverse.degrees(distinct)
        use_list = np.zeros(len(distinct), dtype=np.bool_)
        use_list[row[degrees[row] <= _LIST_ENTRIES_PER_PROBE * before]] = True
        rank: Array = np.cumsum(use_list) - use_list  # among the fetched lists
        for first, last in split_by_size(np.where(use_list, degrees, 0) * 2 * self.neighbors.itemsize, self.part_bytes):
            mine = np.flatnonzero(use_list[row] & (row >= first) & (row < last))
            if len(mine):
                lists = self.lists.reverse.neighbors(distinct[first:last][use_list[first:last]])
                place: Array = rank[row[mine]] - rank[first]
                has_path[mine] = _share_elements(starts[mine], before[mine], self.neighbors, place, *lists)
        probed = np.flatnonzero(~use_list[row] & (before > 0))
        for first, last in split_by_size(before[probed] * _PROBE_BYTES, self.part_bytes):
            some = probed[first:last]
            ends = np.cumsum(before[some])
            neighbor_index = np.arange(ends[-1]) - np.repeat(ends - before[some] - starts[some], before[some])
            has_edge = self.lists.has(self.neighbors[neighbor_index], np.repeat(drawn[some], before[some]))
            has_path[some] = np.logical_or.reduceat(has_edge, ends - before[some])
        return has_path

    # by listing

    def _list(self, some: Array) -> None:
        """Sample these nodes by listing, in parts whose neighbours' lists fit into memory."""
        for first, last in split_by_size(self.state["paths"][some] * 2 * self.neighbors.itemsize, self.part_bytes):
            these = some[first:last]
            wanted = np.zeros(len(self.distinct_neighbors), dtype=np.bool_)
            for n in these:
                wanted[self.row_of[self.indptr[n] : self.indptr[n + 1]]] = True
            lists_of = (np.cumsum(wanted) - 1)[self.row_of]
            lists = self.lists.neighbors(self.distinct_neighbors[wanted])
            _list_rows(self.state, self.random, these, self.neighbors, lists_of, *lists, self.one_hop, self.rows)


@njit(nogil=True, cache=True)
def _begin(
    state: Any, random: Any, ends: Any, num_nodes: int, rows: Any, hop1_slots: int, forced: int, seed: int, epoch: int
) -> None:
    """Initialise the state of each node."""
    for n in range(len(state)):
        s = state[n]
        start_stream(random[n : n + 1], FOR_LOCAL_NODES, seed, epoch, s.node)
        s.paths = ends[s.stop - 1] if s.stop > s.start else 0
        s.num_hop2_slots = uniform.num_hop2_slots(rows.shape[1] - 1, hop1_slots, s.stop - s.start)
        s.method = (
            uniform.choose_method(s.paths, num_nodes, s.num_hop2_slots) if forced == uniform.ANY_METHOD else forced
        )
        price = uniform.PATHS_PER_NODE_TRY if s.method == uniform.BY_NODES else uniform.PATHS_PER_PATH_TRY
        s.max_tries = 2 * s.paths // price
        if s.num_hop2_slots == 0:
            s.outcome = _FULL
        elif s.method == uniform.BY_LISTING or s.max_tries <= 0:
            s.outcome = _FAILED


@njit(nogil=True, cache=True)
def _draw_tries(
    state: Any, random: Any, active: Any, tries_indptr: Any, neighbors: Any, ends: Any, one_hop: bool, num_nodes: int,
    later: Any, before: Any, drawn: Any, places: Any,
) -> None:  # fmt: skip
    """Draw every try. The candidate is drawn[t] if places[t] = -1, otherwise entry places[t] of the list of drawn[t].
    None of the first before[t] neighbours may lead to it (by paths; -1 for a one-hop path), or one of them must (by
    nodes). `later` are the random states after each uniform.BATCH of tries."""
    for a in range(len(active)):
        s, stream = state[active[a]], random[active[a] : active[a] + 1]
        degree = s.stop - s.start if one_hop else 0
        for t in range(tries_indptr[a], tries_indptr[a + 1]):
            places[t] = -1
            if s.method == uniform.BY_NODES:
                drawn[t], before[t] = randint(stream, num_nodes), s.stop - s.start
            else:
                draw = randint(stream, degree + s.paths)
                if draw < degree:
                    drawn[t], before[t] = neighbors[s.start + draw], -1
                else:
                    draw -= degree
                    middle = s.start + np.searchsorted(ends[s.start : s.stop], draw, side="right")
                    drawn[t], before[t] = neighbors[middle], middle - s.start
                    places[t] = draw - (ends[middle - 1] if middle > s.start else 0)
            if (t + 1) % uniform.BATCH == 0:
                later[t // uniform.BATCH] = stream[0]


@njit(nogil=True, cache=True)
def _share_elements(starts: Any, before: Any, neighbors: Any, rows: Any, indptr: Any, indices: Any) -> Any:
    """Boolean: whether the before[t] neighbours from starts[t] on and row rows[t] of a CSR share an element."""
    has_path = np.empty(len(rows), np.bool_)
    for t in range(len(rows)):
        low, high = indptr[rows[t]], indptr[rows[t] + 1]
        has_path[t] = share_an_element(neighbors, starts[t], starts[t] + before[t], indices, low, high)
    return has_path


@njit(nogil=True, cache=True)
def _keep_tries(
    state: Any, random: Any, active: Any, tries_indptr: Any, drawn: Any, accepted: Any, later: Any, rows: Any
) -> None:
    """Insert the accepted tries into the rows, in order, until a row is full or gives up. The random stream is then set
    to the state after that batch of tries."""
    table = np.empty(uniform.table_size(rows.shape[1] - 1) // 8, np.int64)
    for a in range(len(active)):
        s = state[active[a]]
        row = rows[active[a], 1 : 1 + s.num_hop2_slots]
        table[:] = -1
        for slot in range(s.found):
            uniform.insert(table, np.int64(row[slot]))
        low, high = tries_indptr[a], tries_indptr[a + 1]
        last = high // uniform.BATCH - 1
        for t in range(low, high):
            num_tries = s.num_tries + t - low
            if num_tries % uniform.BATCH == 0 and uniform.should_give_up(num_tries, s.found, len(row), s.max_tries):
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
    state: Any,
    random: Any,
    some: Any,
    neighbors: Any,
    lists_of: Any,
    indptr: Any,
    indices: Any,
    one_hop: bool,
    rows: Any,
) -> None:
    """Sample some[s] of the batch by listing; the list of neighbors[p] is row lists_of[p] of (indptr, indices)."""
    size = uniform.table_size(rows.shape[1] - 1)
    table, members = np.empty(size, np.int64), np.empty(size // 2, np.int64)
    bits = np.zeros(uniform.FILTER_BITS // 64, np.uint64)
    for n in some:
        s = state[n]
        uniform.fill_filter(bits, neighbors, s.start, s.stop)
        s.found = uniform.sample_by_listing(
            neighbors[s.start : s.stop], lists_of[s.start : s.stop], indptr, indices, s.node, one_hop, s.paths, bits,
            random[n : n + 1], table, members, rows[n, 1 : 1 + s.num_hop2_slots],
        )  # fmt: skip
        uniform.clear_filter(bits, neighbors, s.start, s.stop)


@njit(nogil=True, cache=True)
def _complete_rows(state: Any, random: Any, neighbors: Any, one_hop: bool, num_nodes: int, rows: Any) -> None:
    """Complete every row of the batch."""
    size = uniform.table_size(rows.shape[1] - 1)
    table, members = np.empty(size // 8, np.int64), np.empty(size // 2, np.int64)
    for n in range(len(rows)):
        s = state[n]
        own = neighbors[s.start : s.stop]
        uniform.complete_row(own, rows[n, 1:], s.found, one_hop, num_nodes, random[n : n + 1], table, members)
