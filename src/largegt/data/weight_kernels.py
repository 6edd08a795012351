"""The inner loops of edge weights: entries with their weight, their sorting, transpose, union and sums.

An *entry* is a neighbour and the weight of the edge to it in one int64: the neighbour in the upper bits, and below them
the 31 bits of a positive float32, which are ordered as the numbers are. So the buckets and sorts of kernels.py take
entries as they take neighbours, and the weights of an edge that comes twice are always added in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .kernels import asymmetry_of

SUM_BLOCK = 64
"""Entries whose weights are summed beforehand, so that a draw from a long list passes over them in one step."""
_BITS = 31
_WEIGHT = (1 << _BITS) - 1


@njit(nogil=True, cache=True)
def keep_entries(sources: Any, targets: Any, bits: Any, undirected: Any, pairs: Any) -> Any:
    """As `keep_pairs`, with entries for values; `bits` are those of each edge's weight."""
    kept, loops = 0, 0
    for e in range(len(sources)):
        source, target = np.int64(sources[e]), np.int64(targets[e])
        if source < 0 or target < 0:
            continue
        if source == target:
            loops += 1
            continue
        pairs[kept, 0] = source
        pairs[kept, 1] = (target << _BITS) | bits[e]
        kept += 1
        if undirected:
            pairs[kept, 0] = target
            pairs[kept, 1] = (source << _BITS) | bits[e]
            kept += 1
    return kept, loops


@njit(nogil=True, cache=True)
def sort_entries(starts: Any, entries: Any, counts: Any, first_row: Any, values: Any, weights: Any) -> Any:
    """Sort each row of entries into `values` and `weights`, one after the other, repeats with their weights added;
    counts[i] is what row i keeps. Returns the asymmetry of the values (see `asymmetry_of`)."""
    kept = 0
    asymmetry = np.uint64(0)
    for i in range(len(counts)):
        row = entries[starts[i] : starts[i + 1]]
        row.sort()
        first, kept = kept, add_entries(row, values, weights, kept, kept)
        counts[i] = kept - first
        asymmetry += asymmetry_of(first_row + i, values[first:kept])
    return asymmetry


@njit(nogil=True, cache=True)
def add_entries(row: Any, values: Any, weights: Any, first: Any, kept: Any) -> Any:
    """Put sorted entries of a row that begins at `first` behind values[:kept]; how many are kept then. Weights of one
    value are added one by one in float64, `weights` is of that or narrower."""
    at = 0
    one = np.empty(1, np.int32)
    while at < len(row):
        value = row[at] >> _BITS
        total = np.float64(0.0)
        if kept > first and values[kept - 1] == value:
            kept -= 1
            total = np.float64(weights[kept])
        while at < len(row) and row[at] >> _BITS == value:
            one[0] = row[at] & _WEIGHT
            total += np.float64(one.view(np.float32)[0])
            at += 1
        values[kept] = value
        weights[kept] = total
        kept += 1
    return kept


@njit(nogil=True, cache=True)
def count_keys(pairs: Any, begins: Any, ends: Any, row: Any, low: Any, shift: Any, counts: Any) -> None:
    """counts[k] += entries e of one row with (e - low) >> shift == k; others are passed over."""
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            if pairs[e, 0] == row and pairs[e, 1] >= low:
                key = (pairs[e, 1] - low) >> shift
                if key < len(counts):
                    counts[key] += 1


@njit(nogil=True, cache=True)
def take_keys(pairs: Any, begins: Any, ends: Any, row: Any, low: Any, high: Any, out: Any, taken: Any) -> Any:
    """Copy the entries of one row from `low` to `high` behind out[:taken]; how many are there then."""
    for piece in range(len(begins)):
        for e in range(begins[piece], ends[piece]):
            if pairs[e, 0] == row and low <= pairs[e, 1] <= high:
                out[taken] = pairs[e, 1]
                taken += 1
    return taken


@njit(nogil=True, cache=True)
def turn_entries(indptr: Any, indices: Any, bits: Any, low: Any, high: Any, pairs: Any) -> None:
    """The edges of rows [low, high) as (target, entry of the source); `bits` are those of the rows' weights alone."""
    at = 0
    for i in range(low, high):
        for place in range(indptr[i], indptr[i + 1]):
            pairs[at, 0] = indices[place]
            pairs[at, 1] = (np.int64(i) << _BITS) | bits[at]
            at += 1


@njit(nogil=True, cache=True)
def union_entries(
    a_indptr: Any, a: Any, a_weights: Any, b_indptr: Any, b: Any, b_weights: Any, counts: Any, out: Any, weights: Any,
    low: Any, high: Any,
) -> Any:  # fmt: skip
    """As `union_rows`; where both have a value, their weights are added."""
    size = 0
    for i in range(low, high):
        left, left_end = a_indptr[i], a_indptr[i + 1]
        right, right_end = b_indptr[i], b_indptr[i + 1]
        first = size
        while left < left_end or right < right_end:
            is_left = right == right_end or (left < left_end and a[left] <= b[right])
            is_right = left == left_end or (right < right_end and b[right] <= a[left])
            total = np.float64(0.0)
            if is_left:
                out[size] = a[left]
                total += np.float64(a_weights[left])
                left += 1
            if is_right:
                out[size] = b[right]
                total += np.float64(b_weights[right])
                right += 1
            weights[size] = total
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


@njit(nogil=True, cache=True)
def sum_blocks(weights: Any, sums: Any) -> None:
    """sums[b] is the sum of the weights of block b."""
    for block in range(len(sums)):
        total = 0.0
        for place in range(block * SUM_BLOCK, min(len(weights), (block + 1) * SUM_BLOCK)):
            total += np.float64(weights[place])
        sums[block] = total
