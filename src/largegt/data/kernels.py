"""Kernels of ingest: group and sort pairs, merge rows, sum weights.

Each kernel takes plain arrays and a range of rows or pairs, releases the GIL, and writes only its own range. Threads
may process disjoint ranges concurrently; the result does not depend on the number of threads.

A pair is (row, value). The value is a neighbour or, if edges have weights, an *entry*: an int64 with the neighbour in
the upper bits and the 31 bits of a positive float32 in the lower bits, which sort like the numbers. The weights of
duplicate edges are therefore always added in the same order. Without weights, weight arrays have length 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.types import Array

SUM_BLOCK = 64
"""Weights per precomputed sum, with which sampling from a long list skips a block in one step."""
NO_WEIGHTS = np.empty(0, dtype=np.float32)
NO_WEIGHTS.flags.writeable = False
_BITS = 31
_WEIGHT = (1 << _BITS) - 1


def frozen(array: Array) -> Array:
    """A read-only view, so that a kernel is compiled once for mapped files and for arrays in memory."""
    view = np.asarray(array)[:]
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True)
def mix(value: Any) -> Any:
    """Bijective 64-bit hash: the finaliser of splitmix64."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def keep_pairs(sources: Any, targets: Any, bits: Any, undirected: Any, pairs: Any) -> Any:
    """Copy edges with known, distinct ends into `pairs`, in both directions if undirected; (pairs, self loops)."""
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
    """counts[i] += pairs of row low + i; other rows are skipped."""
    for e in range(len(pairs)):
        row = pairs[e, 0] - low
        if 0 <= row < len(counts):
            counts[row] += 1


@njit(nogil=True, cache=True)
def place_pairs(pairs: Any, low: Any, cursor: Any, values: Any) -> None:
    """Write each pair's value to the next free place of its row."""
    for e in range(len(pairs)):
        row = pairs[e, 0] - low
        if 0 <= row < len(cursor):
            values[cursor[row]] = pairs[e, 1]
            cursor[row] += 1


@njit(nogil=True, cache=True)
def sort_rows(starts: Any, values: Any, counts: Any, weights: Any) -> None:
    """Sort each row, drop duplicates and compact the rows; counts[i] is the new length of row i. Entries become
    neighbours, and weights[place] is the sum of a neighbour's weights, computed in float64."""
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
    """Sort in place; fast for short and sorted rows."""
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
    """Merge the sorted rows [low, high) of a and b, each (indptr, indices, weights), into `values` without duplicates;
    return the number of values. The weights of a value in both are added."""
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
    """strengths[n] is the sum of the weights of row low + n; weights[0] is the first weight of row low."""
    begin = indptr[low]
    for n in range(len(strengths)):
        total = 0.0
        for place in range(indptr[low + n], indptr[low + n + 1]):
            total += np.float64(weights[place - begin])
        strengths[n] = total
