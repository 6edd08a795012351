"""Columns of ids on disk: raw little-endian numbers (`key`, `number` or `number32`, `offsets`, `text`) in a file each.

Enters: runs of ids, each sorted. Leaves: the same, mapped, and ranges of them that go over all runs and are worth a
bounded number of bytes. Cost: mapped files take page cache and no memory of ours; a range costs `ROW_BYTES` and twice
its text for each id once it is read and sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ..threads import run_ranges
from ..types import Array
from . import id_kernels
from .ids import Ids

ROW_BYTES = 64
"""What an id of a block costs besides twice its text: keys and positions before and after sorting, offsets, number."""
SERIAL = 1 << 14
"""Below this many ids, threads cost more than they save."""
Pieces = list[tuple[int, int]]
"""Rows [low, high) of several runs."""
_DTYPES = {"key": "<u8", "number": "<i8", "number32": "<i4", "offsets": "<i8", "text": "u1"}


@dataclass(frozen=True)
class Strings:
    """Ids that lie end to end: id i is text[offsets[i] : offsets[i + 1]]. `offsets` may begin anywhere."""

    offsets: Array
    text: Array

    @classmethod
    def of(cls, ids: Ids) -> Strings:
        """Those of an Arrow large_string array, without a copy."""
        _, offsets, text = ids.buffers()
        if len(ids) == 0 or offsets is None:
            return NO_STRINGS
        begin = np.frombuffer(offsets, dtype=np.int64, count=ids.offset + len(ids) + 1)[ids.offset :]
        return cls(begin, NO_STRINGS.text if text is None else np.frombuffer(text, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, row: int) -> bytes:
        return bytes(self.text[self.offsets[row] : self.offsets[row + 1]])

    def rows(self, low: int, high: int) -> Any:
        """Rows [low, high) as an Arrow array, without a copy."""
        buffers = [None, pa.py_buffer(self.offsets[low : high + 1]), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.large_string(), high - low, buffers)

    def take(self, positions: Array, threads: int) -> Strings:
        """The ids at these positions, in their order, copied."""
        offsets = np.zeros(len(positions) + 1, dtype=np.int64)
        np.cumsum(self.offsets[positions + 1] - self.offsets[positions], out=offsets[1:])
        text = np.empty(offsets[-1], dtype=np.uint8)
        on_threads(
            lambda low, high: id_kernels.gather_text(
                positions, frozen(self.offsets), frozen(self.text), offsets, text, low, high
            ),
            len(positions),
            threads,
        )
        return Strings(offsets, text)


def frozen(array: Array) -> Array:
    """A read-only view: a kernel is compiled once, for mapped files and for arrays in memory."""
    view = np.asarray(array)[:]
    view.flags.writeable = False
    return view


NO_STRINGS = Strings(frozen(np.zeros(1, dtype=np.int64)), frozen(np.zeros(0, dtype=np.uint8)))


def on_threads(task: Callable[[int, int], Any], size: int, threads: int) -> None:
    """`task(low, high)` over [0, size), a range for each thread."""
    parts = threads if size >= SERIAL else 1
    for _ in run_ranges(task, np.linspace(0, size, parts + 1).astype(np.int64), threads):
        pass


class ColumnWriter:
    """Files that grow: a column each, named in `columns`. `run_starts` says where each run that was added begins.

    Plain writes: a full disk is an OSError at once."""

    def __init__(self, folder: Path, columns: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.columns = folder, columns
        self.run_starts = [0]
        self._text_end = 0
        self._files: dict[str, BinaryIO] = {}
        for name in columns:
            self._files[name] = (folder / name).open("wb", buffering=0)
        if "offsets" in columns:
            self._write("offsets", np.zeros(1, dtype=np.int64))

    def append(self, numbers: dict[str, Array], strings: Strings | None = None) -> None:
        """One more run: its numbers by column, and its text."""
        for name, values in numbers.items():
            self._write(name, values)
        if strings is not None:
            begin, end = int(strings.offsets[0]), int(strings.offsets[-1])
            self._write("offsets", strings.offsets[1:] + (self._text_end - begin))
            self._write("text", strings.text[begin:end])
            self._text_end += end - begin
        num_rows = len(strings if strings is not None else numbers["key"])
        self.run_starts.append(self.run_starts[-1] + num_rows)

    @property
    def num_rows(self) -> int:
        return self.run_starts[-1]

    def join_runs(self) -> None:
        """What was added so far is one run: the caller knows that it is sorted as a whole."""
        self.run_starts = [0, self.num_rows]

    def _write(self, name: str, values: Array) -> None:
        rest = np.ascontiguousarray(values, dtype=_DTYPES[name]).view(np.uint8)
        while len(rest):
            rest = rest[self._files[name].write(rest.data) :]

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def finish(self) -> Columns:
        self.close()
        return Columns(self.folder, self.columns, np.array(self.run_starts, dtype=np.int64))


class Columns:
    """Finished columns, mapped; runs of them are sorted, by key or (without keys) by text."""

    def __init__(self, folder: Path, columns: tuple[str, ...], run_starts: Array) -> None:
        self.folder, self.columns, self.run_starts = folder, columns, run_starts
        self._arrays = {name: map_file(folder / name, _DTYPES[name]) for name in columns}
        self.strings = Strings(self._arrays["offsets"], self._arrays["text"]) if "text" in columns else None

    @property
    def keys(self) -> Array:
        return self._arrays["key"]

    @property
    def numbers(self) -> Array:
        return self._arrays["number32" if "number32" in self.columns else "number"]

    @property
    def num_rows(self) -> int:
        return int(self.run_starts[-1])

    def key_ranges(self, limit: int) -> Iterator[Pieces]:
        """The rows of every run whose keys lie in a range, range by range in rising order, each worth at most
        `limit` bytes. Only ids of one and the same key can be worth more."""
        pieces = self._runs()
        if not pieces:
            return
        low_key = min(int(self.keys[low]) for low, _ in pieces)
        high_key = max(int(self.keys[high - 1]) for _, high in pieces)
        waiting = [(low_key, high_key, pieces)]
        while waiting:
            low_key, high_key, pieces = waiting.pop()
            if self._cost(pieces) <= limit or low_key == high_key:
                if pieces:
                    yield pieces
                continue
            middle = (low_key + high_key) // 2
            cuts = [
                low + int(np.searchsorted(self.keys[low:high], np.uint64(middle), side="right")) for low, high in pieces
            ]
            left, right = _cut(pieces, cuts)
            waiting += [(middle + 1, high_key, right), (low_key, middle, left)]

    def text_ranges(self, limit: int) -> Iterator[Pieces]:
        """As `key_ranges`, for runs that are sorted by text and have no id in common."""
        assert self.strings is not None
        waiting = [self._runs()]
        while waiting:
            pieces = waiting.pop()
            widest = max(pieces, key=lambda piece: piece[1] - piece[0], default=(0, 0))
            if self._cost(pieces) <= limit or widest[1] - widest[0] < 2:
                if pieces:
                    yield pieces
                continue
            pivot = self.strings.at(sum(widest) // 2)
            cuts = [low + bisect_left(range(low, high), pivot, key=self.strings.at) for low, high in pieces]
            waiting += reversed(_cut(pieces, cuts))

    def remove(self) -> None:
        """Delete the files; the folder too, when nothing else is in it."""
        self._arrays, self.strings = {}, None
        remove_columns(self.folder)

    def _runs(self) -> Pieces:
        pairs = zip(self.run_starts[:-1].tolist(), self.run_starts[1:].tolist(), strict=True)
        return [(low, high) for low, high in pairs if low < high]

    def _cost(self, pieces: Pieces) -> int:
        cost = sum(ROW_BYTES * (high - low) for low, high in pieces)
        if self.strings is not None:
            offsets = self.strings.offsets
            cost += sum(2 * int(offsets[high] - offsets[low]) for low, high in pieces)
        return cost


def map_file(file: Path, dtype: str) -> Array:
    """The numbers of a file, mapped, read-only; of an empty file, none."""
    if file.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.asarray(np.memmap(file, dtype=dtype, mode="r"))


def remove_columns(folder: Path) -> None:
    for name in _DTYPES:
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _cut(pieces: Pieces, cuts: list[int]) -> tuple[Pieces, Pieces]:
    """The pieces below and from the cuts on; empty ones are left out."""
    left = [(low, cut) for (low, _), cut in zip(pieces, cuts, strict=True) if low < cut]
    right = [(cut, high) for (_, high), cut in zip(pieces, cuts, strict=True) if cut < high]
    return left, right
