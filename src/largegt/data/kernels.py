"""The inner loops of ingest: grouping and sorting of pairs, union of rows and sums of weights.

Each kernel takes plain arrays and a range of rows or pairs, releases the GIL, and writes only what is its own: a
thread pool may run disjoint ranges side by side, and the result is the same for any number of threads.

A pair is (row, value). The value is a neighbour or, where edges have weights, an *entry*: an int64 with the neighbour
in the upper bits and the 31 bits of a positive float32 below them, which are ordered as the numbers are. So the weights
of an edge that comes twice are always added in the same order. Without weights, their arrays have length 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.types import Array

SUM_BLOCK = 64
"""Weights that are summed beforehand, so that a draw from a long list passes over them in one step."""
NO_WEIGHTS = np.empty(0, dtype=np.float32)
NO_WEIGHTS.flags.writeable = False
_BITS = 31
_WEIGHT = (1 << _BITS) - 1


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
def keep_pairs(sources: Any, targets: Any, bits: Any, undirected: Any, pairs: Any) -> Any:
    """Copy edges with known, different ends into `pairs`, both ways if undirected; (pairs, self loops)."""
    weighted = len(bits) > 0
    shift = _BITS if weighted else 0
    kept, loops = 0, 0
    for e in range(len(sources)):
        source, target = np.int64(sources[e]), np.int64(targets[e])
        if source < 0 or target < 0:
            continue
        if source == target:
            loops += 1
            continue
        weight = bits[e] if weighted else 0
        pairs[kept, 0] = source
        pairs[kept, 1] = (target << shift) | weight
        kept += 1
        if undirected:
            pairs[kept, 0] = target
            pairs[kept, 1] = (source << shift) | weight
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
def count_pairs(pairs: Any, low: Any, counts: Any) -> None:
    """counts[i] += pairs of row low + i; other rows are passed over."""
    for e in range(len(pairs)):
        row = pairs[e, 0] - low
        if 0 <= row < len(counts):
            counts[row] += 1


@njit(nogil=True, cache=True)
def place_pairs(pairs: Any, low: Any, cursor: Any, values: Any) -> None:
    """Each pair's value goes to the next free place of its row."""
    for e in range(len(pairs)):
        row = pairs[e, 0] - low
        if 0 <= row < len(cursor):
            values[cursor[row]] = pairs[e, 1]
            cursor[row] += 1


@njit(nogil=True, cache=True)
def sort_rows(starts: Any, values: Any, counts: Any, weights: Any) -> None:
    """Sort each row, drop its repeats and move the rows together; counts[i] is what row i keeps. Entries become
    neighbours, and weights[place] the sum of a neighbour's weights, added in float64."""
    weighted = len(weights) > 0
    shift = _BITS if weighted else 0
    bits = np.empty(1, np.int32)
    kept = 0
    for i in range(len(counts)):
        row = values[starts[i] : starts[i + 1]]
        _sort_row(row)
        first, total = kept, 0.0
        for at in range(len(row)):
            value = row[at]
            neighbor = value >> shift
            if kept == first or neighbor != values[kept - 1]:
                values[kept] = neighbor
                kept += 1
                total = 0.0
            if weighted:
                bits[0] = value & _WEIGHT
                total += np.float64(bits.view(np.float32)[0])
                weights[kept - 1] = total
        counts[i] = kept - first


@njit(nogil=True, cache=True)
def _sort_row(row: Any) -> None:
    """Sort in place; short and sorted rows cost little."""
    if len(row) > 24:
        if (row[1:] < row[:-1]).any():
            row.sort()
        return
    for right in range(1, len(row)):
        value = row[right]
        left = right - 1
        while left >= 0 and row[left] > value:
            row[left + 1] = row[left]
            left -= 1
        row[left + 1] = value


@njit(nogil=True, cache=True)
def union_rows(a: Any, b: Any, low: Any, high: Any, counts: Any, values: Any, weights: Any) -> Any:
    """Merge the sorted rows [low, high) of a and b, each (indptr, indices, weights), without repeats into `values`; how
    many. Where both have a value, their weights are added."""
    a_indptr, a_values, a_weights = a
    b_indptr, b_values, b_weights = b
    size = 0
    for i in range(low, high):
        left, left_end = a_indptr[i], a_indptr[i + 1]
        right, right_end = b_indptr[i], b_indptr[i + 1]
        first = size
        while left < left_end or right < right_end:
            is_left = right == right_end or (left < left_end and a_values[left] <= b_values[right])
            is_right = left == left_end or (right < right_end and b_values[right] <= a_values[left])
            values[size] = a_values[left] if is_left else b_values[right]
            if len(weights) > 0:
                total = np.float64(a_weights[left]) if is_left else 0.0
                weights[size] = total + (np.float64(b_weights[right]) if is_right else 0.0)
            left += is_left
            right += is_right
            size += 1
        counts[i - low] = size - first
    return size


@njit(nogil=True, cache=True)
def sum_rows(indptr: Any, weights: Any, low: Any, strengths: Any) -> None:
    """strengths[n] is the sum of the weights of row low + n; weights[0] is the first of them."""
    begin = indptr[low]
    for n in range(len(strengths)):
        total = 0.0
        for place in range(indptr[low + n], indptr[low + n + 1]):
            total += np.float64(weights[place - begin])
        strengths[n] = total
