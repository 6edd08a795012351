"""The inner loops of ingest: grouping and sorting of pairs, transpose and union.

Each kernel takes plain arrays and a range of rows or pairs, releases the GIL, and writes only what is its own: a
thread pool may run disjoint ranges side by side, and the result is the same for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..types import Array


def frozen(array: Array) -> Array:
    """A read-only view: a kernel is compiled once, for mapped files and for arrays in memory."""
    view = np.asarray(array)[:]
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True)
def mix(value: Any) -> Any:
    """A full-avalanche mix of 64 bits (the finaliser of splitmix64). One to one."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def lower_bound(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """First place in the sorted values[low:high] that holds `wanted` or more."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def keep_pairs(sources: Any, targets: Any, undirected: Any, pairs: Any) -> Any:
    """Copy edges with known, different ends into `pairs`, both ways if undirected; (pairs, self loops)."""
    kept, loops = 0, 0
    for e in range(len(sources)):
        source, target = sources[e], targets[e]
        if source < 0 or target < 0:
            continue
        if source == target:
            loops += 1
            continue
        pairs[kept, 0] = source
        pairs[kept, 1] = target
        kept += 1
        if undirected:
            pairs[kept, 0] = target
            pairs[kept, 1] = source
            kept += 1
    return kept, loops


@njit(nogil=True, cache=True)
def group_pairs(pairs: Any, shift: Any, starts: Any, grouped: Any) -> None:
    """Counting sort of pairs by bucket (row >> shift); bucket b is grouped[starts[b] : starts[b + 1]]."""
    for e in range(len(pairs)):
        starts[(pairs[e, 0] >> shift) + 1] += 1
    for bucket in range(1, len(starts)):
        starts[bucket] += starts[bucket - 1]
    cursor = starts[:-1].copy()
    for e in range(len(pairs)):
        bucket = pairs[e, 0] >> shift
        place = cursor[bucket]
        grouped[place, 0] = pairs[e, 0]
        grouped[place, 1] = pairs[e, 1]
        cursor[bucket] = place + 1


@njit(nogil=True, cache=True)
def turn_rows(indptr: Any, indices: Any, low: Any, high: Any, pairs: Any) -> None:
    """The edges of rows [low, high) as (target, source) pairs."""
    at = 0
    for i in range(low, high):
        for place in range(indptr[i], indptr[i + 1]):
            pairs[at, 0] = indices[place]
            pairs[at, 1] = i
            at += 1


@njit(nogil=True, cache=True)
def count_pieces(pairs: Any, begins: Any, ends: Any, low: Any, counts: Any) -> None:
    """counts[i] += pairs of row low + i, over the pieces pairs[begin : end]; other rows are passed over."""
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            row = pairs[e, 0] - low
            if 0 <= row < len(counts):
                counts[row] += 1


@njit(nogil=True, cache=True)
def place_pieces(pairs: Any, begins: Any, ends: Any, low: Any, cursor: Any, values: Any) -> None:
    """Each pair's value goes to the next free place of its row."""
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            row = pairs[e, 0] - low
            if 0 <= row < len(cursor):
                values[cursor[row]] = pairs[e, 1]
                cursor[row] += 1


@njit(nogil=True, cache=True)
def sort_rows(starts: Any, values: Any, counts: Any, first_row: Any) -> Any:
    """Sort each row, drop its repeats and move the rows together; counts[i] is what row i keeps. Returns the
    asymmetry of what is left (see `asymmetry_of`)."""
    kept = 0
    asymmetry = np.uint64(0)
    for i in range(len(counts)):
        row = values[starts[i] : starts[i + 1]]
        rising = True
        for at in range(1, len(row)):
            if row[at] < row[at - 1]:
                rising = False
                break
        if not rising and len(row) > 24:
            row.sort()
        elif not rising:
            for right in range(1, len(row)):
                value = row[right]
                left = right - 1
                while left >= 0 and row[left] > value:
                    row[left + 1] = row[left]
                    left -= 1
                row[left + 1] = value
        first = kept
        for at in range(len(row)):
            if kept == first or row[at] != values[kept - 1]:
                values[kept] = row[at]
                kept += 1
        counts[i] = kept - first
        asymmetry += asymmetry_of(first_row + i, values[first:kept])
    return asymmetry


@njit(nogil=True, cache=True)
def asymmetry_of(i: Any, row: Any) -> Any:
    """Sum of h(i, j) - h(j, i) over a row, modulo 2⁶⁴. Over all rows it is zero when every edge has its inverse; when
    it is not zero, some edge has none."""
    total = np.uint64(0)
    for at in range(len(row)):
        a, b = np.uint64(i), np.uint64(row[at])
        total += mix(mix(a) + b) - mix(mix(b) + a)
    return total


@njit(nogil=True, cache=True)
def largest_of_row(pairs: Any, begins: Any, ends: Any, row: Any) -> Any:
    """The largest value of one row."""
    largest = 0
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            if pairs[e, 0] == row and pairs[e, 1] > largest:
                largest = pairs[e, 1]
    return largest


@njit(nogil=True, cache=True)
def mark_row(pairs: Any, begins: Any, ends: Any, row: Any, marks: Any) -> None:
    """Set the bit of every value of one row."""
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            if pairs[e, 0] == row:
                value = pairs[e, 1]
                marks[value >> 3] |= np.uint8(1 << (value & 7))


@njit(nogil=True, cache=True)
def union_rows(
    a_indptr: Any, a: Any, b_indptr: Any, b: Any, counts: Any, out: Any, low: Any, high: Any
) -> Any:  # fmt: skip
    """Merge the sorted rows [low, high) of a and b without repeats, one after the other into `out`; how many."""
    size = 0
    for i in range(low, high):
        left, left_end = a_indptr[i], a_indptr[i + 1]
        right, right_end = b_indptr[i], b_indptr[i + 1]
        first = size
        while left < left_end or right < right_end:
            if right == right_end or (left < left_end and a[left] < b[right]):
                value = a[left]
                left += 1
            elif left == left_end or b[right] < a[left]:
                value = b[right]
                right += 1
            else:
                value = a[left]
                left += 1
                right += 1
            out[size] = value
            size += 1
        counts[i - low] = size - first
    return size
