"""From ids to node numbers, by a merge join with files on disk.

Enters: a stream of ids (see `ids`), a folder for scratch files, a number of bytes. Leaves: an `IdFile`. Cost: at most
`memory` bytes besides the chunk that comes in, whatever the number of ids; files of 20 bytes and its text for each id
(12 bytes for a whole number; 4 more beyond 2³¹ ids), about twice that while they are made. A lookup sorts what is
asked for and goes once through the mapped files, in order: page cache, and no memory of ours.

How: batches of ids are sorted by a 64-bit key and written as runs; then one range of keys after the other is taken
from all runs and merged. A whole number's key is a one-to-one mix of it; a text's key is a hash of it, and texts of
the same key are compared. The files are the same bytes for any amount of memory and any number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..io.atomic import write_text_atomically
from ..types import Array
from . import id_kernels, id_sorting
from .id_columns import NO_STRINGS, Columns, ColumnWriter, Strings, frozen, on_threads, remove_columns
from .id_sorting import batches, integer_keys, merged, sort_by_key, sorted_batch, taken, text_columns, text_keys
from .ids import Ids, as_numbers, as_text, is_text

_WHOLE = "whole.json"
_FORMAT = 2
_MOST_SMALL = 2**31 - 1


class IdFile:
    """From ids to node numbers, on disk. Make one with `build` or `open`.

    `find` reads through the whole file when it is asked for more than a small share of the ids: ask for as many at a
    time as memory allows (40 bytes for each, besides the ids that are given).
    """

    def __init__(self, columns: Columns, where: str, threads: int) -> None:
        self.where, self.threads = where, threads
        self.num_nodes = columns.num_rows
        self.kind = "integer" if columns.strings is None else "string"
        self._columns = columns

    @classmethod
    def build(cls, folder: Path, chunks: Iterable[Ids], memory: int, threads: int, where: str) -> IdFile:
        """Number the ids 0, 1, 2, … in the order of the stream. `folder` is made if need be; what a killed run
        left of such a file in it is written anew."""
        remove_id_file(folder)
        limit = memory // 2  # the other half is for what libraries need, and the allocator keeps
        try:
            runs, repeat = numbered_runs(folder / "runs", chunks, limit, threads)
            if runs is None:
                runs = ColumnWriter(folder / "runs", ("key", "number")).finish()
            columns = _merge_numbered(runs, folder, limit, threads, repeat, where)
            runs.remove()
            return cls.finished(columns, where, threads)
        except BaseException:
            remove_id_file(folder)
            raise

    @classmethod
    def finished(cls, columns: Columns, where: str, threads: int) -> IdFile:
        """The file of these columns, which are one run in the order of keys."""
        write_text_atomically(columns.folder / _WHOLE, json.dumps(_description(columns)))
        return cls(columns, where, threads)

    @staticmethod
    def number_column(num_nodes: int) -> str:
        """The column that node numbers fit into."""
        return "number32" if num_nodes <= _MOST_SMALL else "number"

    @classmethod
    def open(cls, folder: Path, where: str, threads: int) -> IdFile | None:
        """The finished one in this folder; None when there is none, or not all of it."""
        try:
            said = json.loads((folder / _WHOLE).read_text(encoding="utf-8"))
            rows = np.array([0, said["num_nodes"]])
            columns = Columns(folder, tuple(said["bytes"]), rows)
            return cls(columns, where, threads) if said == _description(columns) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def find(self, wanted: Ids) -> Array:
        """Node numbers int64 of these ids, -1 where there is no such node."""
        if self.kind == "string":
            strings = Strings.of(as_text(wanted))
            return self._join(text_keys(strings, self.threads), strings)
        if is_text(wanted):
            numbers, meant = as_numbers(wanted)
            return np.where(meant, self.find(numbers), -1)
        return self._join(integer_keys(wanted, self.threads), NO_STRINGS)

    def _join(self, keys: Array, strings: Strings) -> Array:
        found = np.empty(len(keys), dtype=np.int64)
        keys, positions = sort_by_key(keys, np.arange(len(keys)), self.threads)
        known = self._columns.strings or NO_STRINGS
        on_threads(
            lambda low, high: id_kernels.join(
                keys, positions, frozen(strings.offsets), frozen(strings.text),
                frozen(self._columns.keys), frozen(self._columns.numbers),
                self.kind == "string", frozen(known.offsets), frozen(known.text), found, low, high,
            ),
            len(keys),
            self.threads,
        )  # fmt: skip
        return found

    def remove(self) -> None:
        """Delete the files: nothing can be looked up any more."""
        self._columns.remove()
        remove_id_file(self._columns.folder)


def remove_id_file(folder: Path) -> None:
    """Delete what `IdFile.build` left in a folder, whole or not."""
    (folder / _WHOLE).unlink(missing_ok=True)
    remove_columns(folder / "runs")
    remove_columns(folder)


def _description(columns: Columns) -> dict[str, Any]:
    """What a finished file says of itself, to tell a whole one from one that was cut off."""
    sizes = {name: (columns.folder / name).stat().st_size for name in columns.columns}
    return {"format": _FORMAT, "num_nodes": columns.num_rows, "bytes": sizes, "hash_mask": id_sorting.HASH_MASK}


@dataclass(frozen=True)
class Repeat:
    """A row of the stream whose id was there before."""

    row: int
    node_id: Any

    def error(self, where: str) -> InputError:
        return InputError(
            f"{where}: id {self.node_id!r} occurs twice (again in row {self.row}): each node may have one row only"
        )


def earlier(one: Repeat | None, other: Repeat | None) -> Repeat | None:
    return min((repeat for repeat in (one, other) if repeat is not None), key=lambda repeat: repeat.row, default=None)


def first_repeat(keys: Array, numbers: Array, strings: Strings | None, again: Array) -> Repeat | None:
    """The first in the stream of the ids at the positions `again`."""
    if not len(again):
        return None
    at = int(again[numbers[again].argmin()])
    return Repeat(int(numbers[at]), id_kernels.unmix(int(keys[at])) if strings is None else strings.at(at).decode())


def numbered_runs(
    folder: Path, chunks: Iterable[Ids], limit: int, threads: int, start: int = 0
) -> tuple[Columns | None, Repeat | None]:
    """Runs sorted by key, numbered from `start` on, and the first row that repeats an id within a batch: nothing is
    read after it."""
    writer: ColumnWriter | None = None
    repeat = None
    try:
        for first, batch in batches(chunks, limit):
            strings = batch if isinstance(batch, Strings) else None
            writer = writer or ColumnWriter(folder, ("key", "number", *text_columns(strings)))
            keys, positions, keep = sorted_batch(batch, threads)
            if not keep.all():
                row = int(positions[~keep].min())
                node_id = int(batch[row]) if isinstance(batch, np.ndarray) else batch.at(row).decode()
                repeat = Repeat(start + first + row, node_id)
                keys, positions = keys[keep], positions[keep]
            writer.append({"key": keys, "number": positions + (start + first)}, taken(strings, positions, threads))
            if repeat is not None:
                break
        return writer.finish() if writer is not None else None, repeat
    finally:
        if writer is not None:
            writer.close()


def _merge_numbered(
    runs: Columns, folder: Path, limit: int, threads: int, repeat: Repeat | None, where: str
) -> Columns:
    """All runs as one, in the order of keys. The first row of the stream that repeats an id is refused."""
    number = IdFile.number_column(runs.num_rows)
    writer = ColumnWriter(folder, ("key", number, *text_columns(runs.strings)))
    try:
        for pieces in runs.key_ranges(limit):
            keys, positions, keep = merged(runs, pieces, threads)
            repeat = earlier(repeat, first_repeat(runs.keys, runs.numbers, runs.strings, positions[~keep]))
            if repeat is None:
                writer.append({"key": keys, number: runs.numbers[positions]}, taken(runs.strings, positions, threads))
        if repeat is not None:
            raise repeat.error(where)
        return writer.finish()
    finally:
        writer.close()
