"""The distinct ids of a stream, sorted, in bounded memory.

Enters: a stream of ids (see `ids`), a folder for scratch files, a number of bytes. Leaves: `SortedIds`, to be
read as a stream. Cost: at most `memory` bytes besides the chunk that comes in; on disk, at most four times 16 bytes
and its text for each distinct id, and at the end 8 bytes and its text.

How: batches are freed of repeats and written as runs, whole numbers in order, text in the order of a hash; merging a
range of keys over all runs takes out the rest of the repeats. Whole numbers are then sorted. Text goes back to disk
in runs sorted by text, and ranges of text over all of these are sorted in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..threads import run_ranges
from .id_columns import Columns, ColumnWriter, Pieces, Strings, remove_columns
from .id_sorting import SIGN, batches, merged, sorted_batch, taken, text_columns
from .ids import Ids

_LEAST_RUNS = 8
"""So many are there before runs are made one."""


class SortedIds:
    """Distinct ids in order, on disk. `total` of them; text has `text_bytes` bytes in all."""

    def __init__(self, columns: Columns | None) -> None:
        self._columns = columns
        strings = columns.strings if columns is not None else None
        self.total = 0 if columns is None else columns.num_rows
        self.kind = "integer" if strings is None else "string"
        self.text_bytes = 0 if strings is None else len(strings.text)

    @property
    def are_rows(self) -> bool:
        """True when these are just the whole numbers 0..total-1."""
        if self._columns is None or self.kind == "string" or self.total == 0:
            return False
        return bool(self._columns.keys[0] == SIGN and self._columns.keys[-1] == SIGN + np.uint64(self.total - 1))

    def chunks(self, rows: int = 1 << 20) -> Iterator[Ids]:
        """The ids in pieces, as often as asked. Text is mapped, not copied."""
        if self._columns is None:
            return
        for low in range(0, self.total, rows):
            high = min(low + rows, self.total)
            if self._columns.strings is not None:
                yield self._columns.strings.rows(low, high)
            else:
                yield (self._columns.keys[low:high] ^ SIGN).view(np.int64)

    def remove(self) -> None:
        """Delete the files; text chunks that are still held stay readable."""
        if self._columns is not None:
            self._columns.remove()


def sorted_unique(chunks: Iterable[Ids], folder: Path, memory: int, threads: int = 1) -> SortedIds:
    """The distinct ids of all chunks, sorted (text by its UTF-8 bytes).

    `folder` is made if need be, and must not be the one of an `IdFile`."""
    limit = memory // 2  # the other half is for what libraries need, and the allocator keeps
    _clear(folder)
    try:
        return SortedIds(_sorted_columns(chunks, folder, limit, threads))
    except BaseException:
        _clear(folder)
        raise


def _sorted_columns(chunks: Iterable[Ids], folder: Path, limit: int, threads: int) -> Columns | None:
    runs = distinct_runs(folder / "runs", chunks, limit, threads)
    if runs is None:
        return None
    if runs.strings is None:
        columns = _merge_distinct(runs, ColumnWriter(folder, ("key",)), limit, threads)
    else:
        by_text = _merge_distinct(runs, ColumnWriter(folder / "by_text", ("offsets", "text")), limit, threads)
        runs.remove()
        columns = _mergesorted_text(by_text, folder, limit, threads)
        by_text.remove()
    runs.remove()
    remove_columns(folder / "runs")
    return columns


def _clear(folder: Path) -> None:
    for part in (folder / "runs" / "odd", folder / "runs" / "even", folder / "runs", folder / "by_text", folder):
        remove_columns(part)


def distinct_runs(folder: Path, chunks: Iterable[Ids], limit: int, threads: int) -> Columns | None:
    """Runs of distinct ids: whole numbers by value, text by hash. None when there is no chunk.

    Runs have ids in common, so they are made one whenever they have grown to three times the last such one."""
    writer: ColumnWriter | None = None
    places = cycle([folder / "odd", folder / "even"])
    num_compact = 0
    try:
        for _, batch in batches(chunks, limit):
            strings = batch if isinstance(batch, Strings) else None
            writer = writer or ColumnWriter(next(places), ("key", *text_columns(strings)))
            keys, positions, keep = sorted_batch(batch, threads, by_value=True)
            writer.append({"key": keys[keep]}, taken(strings, positions[keep], threads))
            del keys, positions, keep
            if len(writer.run_starts) > _LEAST_RUNS and writer.num_rows > 3 * num_compact:
                runs = writer.finish()
                writer = ColumnWriter(next(places), runs.columns)
                _compact(runs, writer, limit // 2, threads)  # the batch has its memory still
                num_compact = writer.num_rows
                runs.remove()
        return writer.finish() if writer is not None else None
    finally:
        if writer is not None:
            writer.close()


def _compact(runs: Columns, writer: ColumnWriter, limit: int, threads: int) -> None:
    """All runs as one without repeats, in the order of keys."""
    for pieces in runs.key_ranges(limit):
        keys, positions, keep = merged(runs, pieces, threads)
        writer.append({"key": keys[keep]}, taken(runs.strings, positions[keep], threads))
    writer.join_runs()


def _merge_distinct(runs: Columns, writer: ColumnWriter, limit: int, threads: int) -> Columns:
    """Distinct ids of all runs: whole numbers as one sorted run, text as runs that are each sorted by text."""
    try:
        for pieces in runs.key_ranges(limit):
            keys, positions, keep = merged(runs, pieces, threads)
            if runs.strings is None:
                writer.append({"key": keys[keep]})
                continue
            strings = runs.strings.take(positions[keep], threads)
            del keys, positions, keep
            bounds = np.linspace(0, len(strings), threads + 1).astype(np.int64)
            for part in run_ranges(partial(_sorted_rows, strings), bounds, threads):
                writer.append({}, part)
        return writer.finish()
    finally:
        writer.close()


def _mergesorted_text(runs: Columns, folder: Path, limit: int, threads: int) -> Columns:
    """Runs that are each sorted by text as one such run."""
    writer = ColumnWriter(folder, runs.columns)
    ranges = runs.text_ranges(limit // threads)
    try:
        while group := list(islice(ranges, threads)):
            for part in run_ranges(partial(_sorted_pieces, runs, group), range(len(group) + 1), threads):
                writer.append({}, part)
        return writer.finish()
    finally:
        writer.close()


def _sorted_pieces(runs: Columns, ranges: list[Pieces], which: int, _: int) -> Strings:
    assert runs.strings is not None
    return sorted_text(pa.concat_arrays([runs.strings.rows(low, high) for low, high in ranges[which]]))


def _sorted_rows(strings: Strings, low: int, high: int) -> Strings:
    return sorted_text(strings.rows(low, high))


def sorted_text(ids: Any) -> Strings:
    """Text in the order of its bytes."""
    return Strings.of(ids.take(pc.sort_indices(ids)))
