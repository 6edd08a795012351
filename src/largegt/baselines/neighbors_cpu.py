"""The neighbour sampler's backend for a CPU: numba kernels over ranges, on a pool of threads.

Enters: a CSR, nodes, the key that names a hop's random streams. Leaves: what neighbors.py asks of a backend.

Axes: b seeds, m members of a neighbourhood, t targets of a hop.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..data.kernels import mix
from ..data.pair_runs import index_dtype
from ..threads import num_threads, run_ranges
from ..types import Array

_TARGETS_PER_TASK, _SEEDS_PER_TASK = 1 << 13, 1 << 7
"""Fewer are done before another thread has begun."""
GOLDEN, SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x94D049BB133111EB)
LOW_32 = 0xFFFFFFFF


class NumbaBackend:
    """On a CPU: kernels over ranges, on a pool of threads where there is enough to do."""

    def __init__(self, indptr: Array, indices: Array, threads: int | None) -> None:
        self.indptr, self.indices, self.threads = np.asarray(indptr), np.asarray(indices), num_threads(threads)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        targets = nodes.numpy()
        starts = np.zeros(len(targets) + 1, np.int64)
        count_draws(self.indptr, targets, fanout, starts)
        neighbors = np.empty(starts[-1], np.int64)

        def work(low: int, high: int) -> None:
            draw_rows(self.indptr, self.indices, targets, starts, np.uint64(key), low, high, neighbors)

        bounds = [*range(0, len(targets), _TARGETS_PER_TASK), len(targets)]
        for _ in run_ranges(work, bounds, self.threads):
            pass
        return torch.from_numpy(starts), torch.from_numpy(neighbors)

    def distinct(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        keys = np.concatenate([part.numpy() for part in parts])
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, index_dtype(len(keys)))
        places, values = np.empty_like(keys), np.empty_like(keys)
        count = number_distinct(keys, table, places, values)
        return torch.from_numpy(values[:count]), torch.from_numpy(places)

    def neighborhoods(self, seeds: Tensor, fanouts: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
        roots, ends = seeds.numpy(), np.empty((len(seeds), 1 + len(fanouts)), np.int64)
        hops = (np.array(fanouts, np.int64), np.array(keys, np.uint64))

        def work(low: int, high: int) -> Array:
            found: Array = list_neighborhoods(self.indptr, self.indices, roots[low:high], *hops, ends[low:high])
            return found

        bounds = [*range(0, len(roots), _SEEDS_PER_TASK), len(roots)]
        pieces = list(run_ranges(work, bounds, self.threads))
        shape = (len(roots), int(ends[:, -1].max(initial=1)))
        member, distance = np.empty(shape, np.int64), np.empty(shape, np.int8)
        spread_members(np.concatenate([roots[:0], *pieces]), ends, member, distance)
        return torch.from_numpy(member), torch.from_numpy(distance)


@njit(nogil=True, cache=True)
def num_drawn(indptr: Any, i: Any, fanout: int) -> Any:
    """How many neighbours node i draws."""
    degree = indptr[i + 1] - indptr[i]
    return fanout if 0 <= fanout < degree else degree


@njit(nogil=True, cache=True)
def count_draws(indptr: Any, nodes: Any, fanout: int, starts: Any) -> None:
    """starts[t] = what the targets before t draw together."""
    for t in range(len(nodes)):
        starts[t + 1] = starts[t] + num_drawn(indptr, nodes[t], fanout)


@njit(nogil=True, cache=True)
def draw_rows(
    indptr: Any, indices: Any, nodes: Any, starts: Any, key: Any, low: int, high: int, neighbors: Any
) -> None:  # fmt: skip
    """What targets [low, high) draw, into neighbors[starts[t] : starts[t + 1]]."""
    for t in range(low, high):
        pick_entries(indptr, nodes[t], key, neighbors[starts[t] : starts[t + 1]])
    for place in range(starts[low], starts[high]):  # a loop of its own: the memory answers many of them at once
        neighbors[place] = indices[neighbors[place]]


@njit(nogil=True, cache=True)
def pick_entries(indptr: Any, i: Any, key: Any, row: Any) -> None:
    """Fill `row` with distinct entries of node i's row of the CSR: all of them in order, or a subset by Floyd's way,
    one random number each, however large the degree."""
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
    """64 random bits as a whole number in [0, bound): the high word of their product, in halves. No number is more
    likely than another by over bound / 2⁶⁴; bound must be less than 2³¹."""
    n = np.uint64(bound)
    high, low = bits >> np.uint64(32), bits & np.uint64(LOW_32)
    return np.int64((high * n + (low * n >> np.uint64(32))) >> np.uint64(32))


@njit(nogil=True, cache=True)
def number_distinct(keys: Any, table: Any, places: Any, values: Any) -> int:
    """places[j] = the number of keys[j] among the distinct `values`, which are numbered as they appear; how many.
    `table` is open-addressed and holds numbers: -1s at first, a power of two of them, more than there are keys."""
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


@njit(nogil=True, cache=True)
def list_neighborhoods(indptr: Any, indices: Any, seeds: Any, fanouts: Any, keys: Any, ends: Any) -> Any:
    """The members of each seed's neighbourhood, one seed after the other; ends[b, h] = how many within h hops."""
    members, table = np.empty(1024, np.int64), np.full(64, -1, np.int64)
    base = 0
    for b in range(len(seeds)):
        members, table = with_room(members, table, base, base, 1)
        add_member(members, table, base, base, seeds[b])
        at, begin = base + 1, base
        ends[b, 0] = 1
        for hop in range(len(fanouts)):
            end, total = at, 0
            for place in range(begin, end):
                total += num_drawn(indptr, members[place], fanouts[hop])
            members, table = with_room(members, table, base, end, total)
            stop = end
            for place in range(begin, end):
                row = members[stop : stop + num_drawn(indptr, members[place], fanouts[hop])]
                pick_entries(indptr, members[place], keys[hop], row)
                stop += len(row)
            for place in range(end, stop):
                members[place] = indices[members[place]]
            for place in range(end, stop):  # the new ones move together: `at` is never ahead of `place`
                at += add_member(members, table, base, at, members[place])
            begin = end
            ends[b, hop + 1] = at - base
        base = at
    return members[:base].copy()


@njit(nogil=True, cache=True)
def add_member(members: Any, table: Any, base: int, at: int, node: Any) -> int:
    """Put a node at members[at] unless it is among members[base:at]; 1 or 0. `table` is open-addressed and holds
    places of members: those below `base` are of another seed and count as empty, so that nothing need be cleared."""
    mask = len(table) - 1
    slot = np.int64(mix(node) & np.uint64(mask))
    while table[slot] >= base:
        if members[table[slot]] == node:
            return 0
        slot = (slot + 1) & mask
    table[slot] = at
    members[at] = node
    return 1


@njit(nogil=True, cache=True)
def with_room(members: Any, table: Any, base: int, at: int, count: int) -> Any:
    """(members, table), larger ones if `count` more members would not fit."""
    if at + count > len(members):
        larger = np.empty(2 * (at + count), np.int64)
        larger[:at] = members[:at]
        members = larger
    if 2 * (at + count - base) > len(table):
        size = len(table)
        while size < 2 * (at + count - base):
            size *= 2
        table = np.full(size, -1, np.int64)
        for place in range(base, at):
            add_member(members, table, base, place, members[place])
    return members, table


@njit(nogil=True, cache=True)
def spread_members(found: Any, ends: Any, member: Any, distance: Any) -> None:
    """One seed's members after the other's → a row each, padded with the seed."""
    at = 0
    for b in range(len(ends)):
        hop = 0
        for column in range(member.shape[1]):
            while hop < ends.shape[1] and column == ends[b, hop]:
                hop += 1
            inside = hop < ends.shape[1]
            member[b, column] = found[at + column] if inside else found[at]
            distance[b, column] = hop if inside else -1
        at += ends[b, -1]
