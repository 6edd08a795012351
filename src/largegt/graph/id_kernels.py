"""The inner loops of ids on disk: hashing, a stable radix sort, repeats, gathering of text, and the merge join.

Each kernel takes plain arrays and releases the GIL. Those that take a range write only what belongs to it: a
thread pool may run disjoint ranges side by side, and the result is the same for any number of threads. Text lies
end to end in an array of bytes; `offsets[i] : offsets[i + 1]` is id i. Loops over bytes count without sign: numba then
leaves out its care for negative indices, and they run several times faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .kernels import lower_bound, mix

_DIGIT = 8
_SMALL = 40
"""Parts up to this size are sorted by insertion."""
_BLOCK = 64
"""Ids that are looked up together."""


def unmix(key: int) -> int:
    """The int64 whose mix (see `kernels.mix`) is `key`."""
    x, mask = key, (1 << 64) - 1
    x ^= (x >> 31) ^ (x >> 62)
    x = x * 0x319642B2D24D8EC3 & mask
    x ^= (x >> 27) ^ (x >> 54)
    x = x * 0x96DE1B173F119089 & mask
    x ^= (x >> 30) ^ (x >> 60)
    return x - (1 << 64) if x >> 63 else x


@njit(nogil=True, cache=True)
def hash_integers(ids: Any, keys: Any, low: Any, high: Any) -> None:
    """keys[i] = the mix of ids[i] (both uint64): different ids have different keys."""
    for i in range(low, high):
        keys[i] = mix(ids[i])


@njit(nogil=True, cache=True)
def hash_text(offsets: Any, text: Any, mask: Any, keys: Any, low: Any, high: Any) -> None:
    """keys[i] = a 64-bit hash of id i, masked."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    for i in range(low, high):
        start, stop = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        x = (stop - start) * prime
        word, shift = np.uint64(0), np.uint64(0)
        for at in range(start, stop):
            word |= np.uint64(text[at]) << shift
            shift += np.uint64(8)
            if shift == np.uint64(64):
                x = (x ^ word) * prime
                x ^= x >> np.uint64(32)
                word, shift = np.uint64(0), np.uint64(0)
        keys[i] = mix((x ^ word) * prime) & mask


@njit(nogil=True, cache=True)
def place_parts(
    keys: Any, positions: Any, low_key: Any, shift: Any, starts: Any, out_keys: Any, out_positions: Any
) -> None:
    """Counting sort by (key - low_key) >> shift, stable. starts [parts + 1] comes out as where each part begins."""
    starts[:] = 0
    for i in range(len(keys)):
        starts[((keys[i] - low_key) >> shift) + np.uint64(1)] += 1
    for part in range(1, len(starts)):
        starts[part] += starts[part - 1]
    cursor = starts.copy()
    for i in range(len(keys)):
        part = (keys[i] - low_key) >> shift
        at = cursor[part]
        out_keys[at] = keys[i]
        out_positions[at] = positions[i]
        cursor[part] = at + 1


@njit(nogil=True, cache=True)
def sort_parts(keys: Any, positions: Any, low_key: Any, bits: Any, starts: Any, low: Any, high: Any) -> None:
    """Sort parts [low, high) in place by the low `bits` of key - low_key, stable: insertion, or radix by digits."""
    for part in range(low, high):
        begin, end = starts[part], starts[part + 1]
        if end - begin > _SMALL:
            _radix_sort(keys[begin:end], positions[begin:end], low_key, bits)
            continue
        for right in range(begin + 1, end):
            key, position = keys[right], positions[right]
            left = right - 1
            while left >= begin and keys[left] > key:
                keys[left + 1] = keys[left]
                positions[left + 1] = positions[left]
                left -= 1
            keys[left + 1] = key
            positions[left + 1] = position


@njit(nogil=True, cache=True)
def _radix_sort(keys: Any, positions: Any, low_key: Any, bits: Any) -> None:
    """Least significant digit first; a digit that all keys share is passed over."""
    n = len(keys)
    digits = 1 << _DIGIT
    mask = np.uint64(digits - 1)
    other_keys, other_positions = np.empty_like(keys), np.empty_like(positions)
    cursor = np.zeros(digits, dtype=np.int64)
    for digit in range(0, bits, _DIGIT):
        shift = np.uint64(digit)
        cursor[:] = 0
        for i in range(n):
            cursor[((keys[i] - low_key) >> shift) & mask] += 1
        if cursor[((keys[0] - low_key) >> shift) & mask] == n:
            continue
        total = 0
        for value in range(digits):
            count = cursor[value]
            cursor[value] = total
            total += count
        for i in range(n):
            value = ((keys[i] - low_key) >> shift) & mask
            at = cursor[value]
            other_keys[at] = keys[i]
            other_positions[at] = positions[i]
            cursor[value] = at + 1
        keys[:] = other_keys
        positions[:] = other_positions


@njit(nogil=True, cache=True)
def _same_text(text: Any, start: Any, stop: Any, other: Any, other_start: Any, other_stop: Any) -> Any:
    if stop - start != other_stop - other_start:
        return False
    begin, other_begin = np.uint64(start), np.uint64(other_start)
    for step in range(np.uint64(stop - start)):
        if text[begin + step] != other[other_begin + step]:
            return False
    return True


@njit(nogil=True, cache=True)
def keep_first(keys: Any, positions: Any, is_text: Any, offsets: Any, text: Any, keep: Any) -> Any:
    """keep[i] = no id before i is the same, keys being sorted; how many are kept. Only equal keys are compared."""
    kept, begin = 0, 0
    for i in range(len(keys)):
        keep[i] = True
        if i == 0 or keys[i] != keys[i - 1]:
            begin = i
        for other in range(begin, i):
            if not keep[other]:
                continue
            p, q = positions[i], positions[other]
            if not is_text or _same_text(text, offsets[p], offsets[p + 1], text, offsets[q], offsets[q + 1]):
                keep[i] = False
                break
        kept += keep[i]
    return kept


@njit(nogil=True, cache=True)
def gather_text(
    positions: Any, from_offsets: Any, from_text: Any, offsets: Any, text: Any, low: Any, high: Any
) -> None:
    """Copy id positions[i] to text[offsets[i] : offsets[i + 1]]."""
    for i in range(low, high):
        begin, from_begin = np.uint64(offsets[i]), np.uint64(from_offsets[positions[i]])
        for step in range(np.uint64(offsets[i + 1]) - begin):
            text[begin + step] = from_text[from_begin + step]


@njit(nogil=True, cache=True)
def _first_not_below(keys: Any, key: Any, at: Any) -> Any:
    """The first place from `at` on whose key is not below `key`, by steps that double: near places are cheap."""
    n = len(keys)
    if at >= n or keys[at] >= key:
        return at
    step = 1
    while at + step < n and keys[at + step] < key:
        at += step
        step *= 2
    return lower_bound(keys, at + 1, min(at + step, n), key)


@njit(nogil=True, cache=True)
def _fetch(positions: Any, offsets: Any, text: Any, starts: Any, stops: Any) -> Any:
    """starts, stops = where these ids are. Two short loops without branches, so that the processor waits for many of
    the scattered reads at once; the sum of first bytes means nothing, but makes it read them."""
    for e in range(len(positions)):
        starts[e], stops[e] = offsets[positions[e]], offsets[positions[e] + 1]
    touched = 0
    for e in range(len(positions)):
        if starts[e] < stops[e]:
            touched += text[starts[e]]
    return touched


@njit(nogil=True, cache=True)
def join(
    wanted_keys: Any,
    wanted_positions: Any,
    wanted_offsets: Any,
    wanted_text: Any,
    keys: Any,
    numbers: Any,
    is_text: Any,
    offsets: Any,
    text: Any,
    found: Any,
    low: Any,
    high: Any,
) -> Any:
    """found[wanted_positions[e]] = the number of that id, or -1. Both sides are in the order of their keys."""
    at, touched = 0, 0
    places = np.empty(_BLOCK, dtype=np.int64)
    starts, stops = np.zeros(_BLOCK, dtype=np.int64), np.zeros(_BLOCK, dtype=np.int64)
    for begin in range(low, high, _BLOCK):
        end = min(begin + _BLOCK, high)
        if is_text:
            touched += _fetch(wanted_positions[begin:end], wanted_offsets, wanted_text, starts, stops)
        for e in range(begin, end):
            at = _first_not_below(keys, wanted_keys[e], at)
            places[e - begin] = at
        for e in range(begin, end):
            same, number = places[e - begin], -1
            while same < len(keys) and keys[same] == wanted_keys[e]:
                start, stop = starts[e - begin], stops[e - begin]
                if not is_text or _same_text(wanted_text, start, stop, text, offsets[same], offsets[same + 1]):
                    number = numbers[same]
                    break
                same += 1
            found[wanted_positions[e]] = number
    return touched
