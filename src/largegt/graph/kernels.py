"""The inner loops of ingest: hash tables of ids, counting sort, row sort, transpose and union.

Each kernel takes plain arrays and a range of rows, releases the GIL, and writes only rows of its range: a
thread pool may run disjoint ranges side by side, and the result is the same for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_EMPTY = -1


@njit(nogil=True, cache=True)
def mix(value: Any) -> Any:
    """A full-avalanche mix of 64 bits (the finaliser of splitmix64)."""
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def hash_integers(ids: Any, table: Any) -> Any:
    """Enter every id into an open-addressing table of positions; where an id occurs again, or -1."""
    mask = np.uint64(len(table) - 1)
    for position in range(len(ids)):
        slot = mix(ids[position]) & mask
        while table[slot] != _EMPTY:
            if ids[table[slot]] == ids[position]:
                return position
            slot = (slot + np.uint64(1)) & mask
        table[slot] = position
    return -1


@njit(nogil=True, cache=True)
def find_integers(wanted: Any, ids: Any, table: Any, found: Any, low: Any, high: Any) -> None:
    """found[e] = position of wanted[e] among ids, or -1."""
    mask = np.uint64(len(table) - 1)
    for e in range(low, high):
        slot = mix(wanted[e]) & mask
        found[e] = -1
        while table[slot] != _EMPTY:
            if ids[table[slot]] == wanted[e]:
                found[e] = table[slot]
                break
            slot = (slot + np.uint64(1)) & mask


@njit(nogil=True, cache=True)
def _hash_text(text: Any, start: Any, stop: Any) -> Any:
    """FNV-1a over the bytes, mixed."""
    x = np.uint64(0xCBF29CE484222325)
    for at in range(start, stop):
        x = (x ^ np.uint64(text[at])) * np.uint64(0x100000001B3)
    return mix(x)


@njit(nogil=True, cache=True)
def _same_text(text: Any, start: Any, stop: Any, other: Any, other_start: Any, other_stop: Any) -> Any:
    if stop - start != other_stop - other_start:
        return False
    for step in range(stop - start):
        if text[start + step] != other[other_start + step]:
            return False
    return True


@njit(nogil=True, cache=True)
def hash_strings(offsets: Any, text: Any, table: Any) -> Any:
    """As `hash_integers`, for strings that lie end to end in `text`."""
    mask = np.uint64(len(table) - 1)
    for position in range(len(offsets) - 1):
        start, stop = offsets[position], offsets[position + 1]
        slot = _hash_text(text, start, stop) & mask
        while table[slot] != _EMPTY:
            other = table[slot]
            if _same_text(text, start, stop, text, offsets[other], offsets[other + 1]):
                return position
            slot = (slot + np.uint64(1)) & mask
        table[slot] = position
    return -1


@njit(nogil=True, cache=True)
def find_strings(
    wanted_offsets: Any, wanted: Any, offsets: Any, text: Any, table: Any, found: Any, low: Any, high: Any
) -> None:
    """As `find_integers`, for strings."""
    mask = np.uint64(len(table) - 1)
    for e in range(low, high):
        start, stop = wanted_offsets[e], wanted_offsets[e + 1]
        slot = _hash_text(wanted, start, stop) & mask
        found[e] = -1
        while table[slot] != _EMPTY:
            other = table[slot]
            if _same_text(wanted, start, stop, text, offsets[other], offsets[other + 1]):
                found[e] = other
                break
            slot = (slot + np.uint64(1)) & mask


@njit(nogil=True, cache=True)
def keep_pairs(sources: Any, targets: Any, undirected: Any, counts: Any, pairs: Any) -> Any:
    """Copy edges with known, different ends into `pairs` and count each row's; (kept, self loops)."""
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
        counts[source] += 1
        if undirected:
            counts[target] += 1
    return kept, loops


@njit(nogil=True, cache=True)
def place_pairs(pairs: Any, undirected: Any, cursor: Any, indices: Any, low: Any, high: Any) -> None:
    """Counting sort, rows [low, high) only: each edge's end goes to the next free place of its row."""
    for e in range(len(pairs)):
        source, target = pairs[e, 0], pairs[e, 1]
        if low <= source < high:
            indices[cursor[source]] = target
            cursor[source] += 1
        if undirected and low <= target < high:
            indices[cursor[target]] = source
            cursor[target] += 1


@njit(nogil=True, cache=True)
def sort_rows(indptr: Any, indices: Any, distinct: Any, low: Any, high: Any) -> None:
    """Sort each row in place and move its distinct values to the row's front; distinct[i] says how many."""
    for i in range(low, high):
        row = indices[indptr[i] : indptr[i + 1]]
        if len(row) > 24:
            row.sort()
        else:
            for right in range(1, len(row)):
                value = row[right]
                left = right - 1
                while left >= 0 and row[left] > value:
                    row[left + 1] = row[left]
                    left -= 1
                row[left + 1] = value
        kept = 0
        for at in range(len(row)):
            if kept == 0 or row[at] != row[kept - 1]:
                row[kept] = row[at]
                kept += 1
        distinct[i] = kept


@njit(nogil=True, cache=True)
def pack_rows(loose_indptr: Any, loose: Any, indptr: Any, indices: Any, low: Any, high: Any) -> None:
    """Copy the front of each loose row to its place in the packed rows."""
    for i in range(low, high):
        shift = loose_indptr[i] - indptr[i]
        for at in range(indptr[i], indptr[i + 1]):
            indices[at] = loose[at + shift]


@njit(nogil=True, cache=True)
def count_targets(indices: Any, counts: Any) -> None:
    """counts[j] += how often j occurs."""
    for e in range(len(indices)):
        counts[indices[e]] += 1


@njit(nogil=True, cache=True)
def transpose_rows(indptr: Any, indices: Any, cursor: Any, out: Any, low: Any, high: Any) -> None:
    """Rows [low, high) of the transpose. Sources are met in rising order, so the new rows come out sorted."""
    for i in range(len(indptr) - 1):
        for at in range(indptr[i], indptr[i + 1]):
            j = indices[at]
            if low <= j < high:
                out[cursor[j]] = i
                cursor[j] += 1


@njit(nogil=True, cache=True)
def rows_are_symmetric(indptr: Any, indices: Any, low: Any, high: Any) -> Any:
    """True when every edge i → j of these rows has its inverse j → i. Stops at the first that has not."""
    for i in range(low, high):
        for at in range(indptr[i], indptr[i + 1]):
            j = indices[at]
            left, right = indptr[j], indptr[j + 1]
            while left < right:
                middle = (left + right) // 2
                if indices[middle] < i:
                    left = middle + 1
                else:
                    right = middle
            if left == indptr[j + 1] or indices[left] != i:
                return False
    return True


@njit(nogil=True, cache=True)
def union_rows(
    a_indptr: Any,
    a: Any,
    b_indptr: Any,
    b: Any,
    start: Any,
    out: Any,
    counts: Any,
    low: Any,
    high: Any,
    write: Any,
) -> None:
    """Merge two sorted rows into one without repeats: count them, or write them from start[i] on."""
    for i in range(low, high):
        left, left_end = a_indptr[i], a_indptr[i + 1]
        right, right_end = b_indptr[i], b_indptr[i + 1]
        size = 0
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
            if write:
                out[start[i] + size] = value
            size += 1
        if not write:
            counts[i] = size
