"""Sorting of ids by key, a block at a time: batches of a stream, and ranges of runs.

Enters: a stream of ids, or pieces of sorted runs on disk. Leaves: (keys, positions, first of its kind) of a block in
the order of keys; the ids themselves are copied only when they are written. Cost: `ROW_BYTES` and twice its text for
each id of a block; the sort is a radix sort, O(block), on all threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from ..threads import run_ranges
from ..types import Array
from . import id_kernels
from .id_columns import NO_STRINGS, ROW_BYTES, SERIAL, Columns, Pieces, Strings, frozen, on_threads
from .ids import Ids, MixedIdsError, is_text

HASH_MASK = (1 << 64) - 1
"""Of a text's hash, the bits in use: all of them, but in tests."""
SIGN = np.uint64(1 << 63)
_MOST_PART_BITS = 12


def batches(chunks: Iterable[Ids], limit: int) -> Iterator[tuple[int, Array | Strings]]:
    """(first row, ids) of the stream in batches that cost at most `limit` bytes; a batch lives until the next.

    An id too long for that comes in a batch of its own; chunks without any id give one empty batch, which says of
    what kind they are. Whole numbers and text in one stream: MixedIdsError."""
    first, rows, text_rows = 0, 0, None
    offsets = np.zeros(max(1, limit // ROW_BYTES) + 1, dtype=np.int64)
    values = np.empty(0, dtype=np.int64)
    for chunk in chunks:
        if text_rows is None:
            text_rows = is_text(chunk)
            values = np.empty(limit // 2, dtype=np.uint8) if text_rows else np.empty(len(offsets) - 1, dtype=np.int64)
        elif text_rows != is_text(chunk):
            raise MixedIdsError("ids are partly whole numbers and partly text")
        strings = Strings.of(chunk) if text_rows else None
        done = 0
        while done < len(chunk):
            if strings is None:
                taken = min(len(chunk) - done, len(values) - rows)
                values[rows : rows + taken] = chunk[done : done + taken]
            else:
                taken = _fitting(strings.offsets[done:], limit - ROW_BYTES * rows - 2 * int(offsets[rows]))
                if rows == 0:
                    taken = max(1, taken)
                begin, end = int(strings.offsets[done]), int(strings.offsets[done + taken])
                at = int(offsets[rows])
                if end - begin > len(values):
                    values = np.empty(end - begin, dtype=np.uint8)
                values[at : at + end - begin] = strings.text[begin:end]
                offsets[rows + 1 : rows + taken + 1] = strings.offsets[done + 1 : done + taken + 1] + (at - begin)
            rows, done = rows + taken, done + taken
            if done < len(chunk) and rows:
                yield first, Strings(offsets[: rows + 1], values) if text_rows else values[:rows]
                first, rows = first + rows, 0
    if rows or (first == 0 and text_rows is not None):
        yield first, Strings(offsets[: rows + 1], values) if text_rows else values[:rows]


def _fitting(offsets: Array, room: int) -> int:
    """How many of the first rows cost at most `room`."""
    begin = int(offsets[0])
    return bisect_right(range(1, len(offsets)), room, key=lambda row: ROW_BYTES * row + 2 * (int(offsets[row]) - begin))


def text_keys(strings: Strings, threads: int) -> Array:
    """A 64-bit hash of each id."""
    keys = np.empty(len(strings), dtype=np.uint64)
    offsets, text = frozen(strings.offsets), frozen(strings.text)
    on_threads(
        lambda low, high: id_kernels.hash_text(offsets, text, np.uint64(HASH_MASK), keys, low, high), len(keys), threads
    )
    return keys


def integer_keys(ids: Array, threads: int) -> Array:
    """A 64-bit key of each id, another one for another id."""
    keys = np.empty(len(ids), dtype=np.uint64)
    values = frozen(np.ascontiguousarray(ids).view(np.uint64))
    on_threads(lambda low, high: id_kernels.hash_integers(values, keys, low, high), len(keys), threads)
    return keys


def sort_by_key(keys: Array, positions: Array, threads: int) -> tuple[Array, Array]:
    """(keys, positions) in rising order of key; equal keys keep their order."""
    if len(keys) < 2:
        return keys, positions
    low_key = keys.min()
    bits = int(keys.max() - low_key).bit_length()
    shift = max(0, bits - max(0, min(_MOST_PART_BITS, len(keys).bit_length() - 9)))
    starts = np.empty((1 << (bits - shift)) + 1, dtype=np.int64)
    out_keys, out_positions = np.empty_like(keys), np.empty_like(positions)
    if shift == 64:  # a shift by all 64 bits is not defined: all keys are in the one part
        out_keys[:], out_positions[:], starts[:] = keys, positions, (0, len(keys))
    else:
        id_kernels.place_parts(keys, positions, low_key, np.uint64(shift), starts, out_keys, out_positions)
    bounds = np.searchsorted(starts, np.linspace(0, len(keys), (4 * threads if len(keys) >= SERIAL else 1) + 1))
    bounds[-1] = len(starts) - 1
    for _ in run_ranges(
        lambda low, high: id_kernels.sort_parts(out_keys, out_positions, low_key, shift, starts, low, high),
        np.maximum.accumulate(bounds),
        threads,
    ):
        pass
    return out_keys, out_positions


def mark_first(keys: Array, positions: Array, strings: Strings | None) -> Array:
    """bool [n]: True where an id stands for the first time. Keys are sorted; `positions` says where the ids are."""
    keep = np.empty(len(keys), dtype=np.bool_)
    given = strings or NO_STRINGS
    id_kernels.keep_first(keys, positions, strings is not None, frozen(given.offsets), frozen(given.text), keep)
    return keep


def sorted_batch(batch: Array | Strings, threads: int, by_value: bool = False) -> tuple[Array, Array, Array]:
    """(keys, positions, first of its kind) of a batch in the order of keys; whole numbers by value when asked."""
    strings = batch if isinstance(batch, Strings) else None
    if strings is not None:
        keys = text_keys(strings, threads)
    elif by_value:
        keys = np.asarray(batch).view(np.uint64) ^ SIGN
    else:
        keys = integer_keys(np.asarray(batch), threads)
    keys, positions = sort_by_key(keys, np.arange(len(keys)), threads)
    return keys, positions, mark_first(keys, positions, strings)


def merged(runs: Columns, pieces: Pieces, threads: int) -> tuple[Array, Array, Array]:
    """(keys, positions, first of its kind) of pieces of runs in the order of keys; equal keys by run."""
    keys = np.concatenate([runs.keys[low:high] for low, high in pieces])
    positions = np.concatenate([np.arange(low, high) for low, high in pieces])
    keys, positions = sort_by_key(keys, positions, threads)
    return keys, positions, mark_first(keys, positions, runs.strings)


def taken(strings: Strings | None, positions: Array, threads: int) -> Strings | None:
    return None if strings is None else strings.take(positions, threads)


def text_columns(strings: Strings | None) -> tuple[str, ...]:
    return () if strings is None else ("offsets", "text")
