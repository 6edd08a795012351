"""Columns of ids on disk: raw little-endian numbers (`key`, `number` or `number32`, `offsets`, `text`) in a file each.

Enters: runs of ids, each sorted. Leaves: the same, mapped, and ranges of them that go over all runs and are worth a
bounded number of bytes. Cost: mapped files take page cache and no memory of ours; a range costs `ROW_BYTES` and twice
its text for each id once it is read and sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
Cuts = list[tuple[int, int, int]]
"""Rows [low, high) of several runs that are counted each by itself: (run, low, high)."""
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

    def runs(self) -> list[Run]:
        """Each run by itself, none of them empty."""
        return [Run(self, low, high) for low, high in pairwise(self.run_starts.tolist()) if low < high]

    def key_ranges(self, limit: int) -> Iterator[Pieces]:
        """As the function of this name, for the runs of one folder."""
        runs = self.runs()
        for cuts in key_ranges(runs, limit):
            yield [(runs[run].low + low, runs[run].low + high) for run, low, high in cuts]

    def text_ranges(self, limit: int) -> Iterator[Pieces]:
        """As the function of this name, for the runs of one folder."""
        runs = self.runs()
        for cuts in text_ranges(runs, limit):
            yield [(runs[run].low + low, runs[run].low + high) for run, low, high in cuts]

    def remove(self) -> None:
        """Delete the files; the folder too, when nothing else is in it."""
        self._arrays, self.strings = {}, None
        remove_columns(self.folder)


class Run:
    """Rows [low, high) of columns, which are sorted."""

    def __init__(self, columns: Columns, low: int, high: int) -> None:
        self.columns, self.low, self.high = columns, low, high
        self.keys = columns.keys[low:high] if "key" in columns.columns else None
        self.strings = None
        if columns.strings is not None:
            self.strings = Strings(columns.strings.offsets[low : high + 1], columns.strings.text)

    def __len__(self) -> int:
        return self.high - self.low

    def cost(self, low: int, high: int) -> int:
        """Bytes to read and sort these rows."""
        text = 0 if self.strings is None else int(self.strings.offsets[high] - self.strings.offsets[low])
        return ROW_BYTES * (high - low) + 2 * text


def key_ranges(runs: Sequence[Run], limit: int) -> Iterator[Cuts]:
    """The rows of every run whose keys lie in a range, range by range in rising order, each worth at most `limit`
    bytes. Only ids of one and the same key can be worth more."""
    if not runs:
        return
    keys = [frozen(run.keys) for run in runs if run.keys is not None]
    low_key, high_key = min(int(some[0]) for some in keys), max(int(some[-1]) for some in keys)
    waiting = [(low_key, high_key, _whole(runs))]
    while waiting:
        low_key, high_key, cuts = waiting.pop()
        if _cost(runs, cuts) <= limit or low_key == high_key:
            if cuts:
                yield cuts
            continue
        middle = (low_key + high_key) // 2
        at = [
            low + int(np.searchsorted(keys[run][low:high], np.uint64(middle), side="right")) for run, low, high in cuts
        ]
        left, right = _cut(cuts, at)
        waiting += [(middle + 1, high_key, right), (low_key, middle, left)]


def text_ranges(runs: Sequence[Run], limit: int) -> Iterator[Cuts]:
    """As `key_ranges`, for runs that are sorted by text and have no id in common."""
    strings = [run.strings or NO_STRINGS for run in runs]
    waiting = [_whole(runs)]
    while waiting:
        cuts = waiting.pop()
        widest = max(cuts, key=lambda cut: cut[2] - cut[1], default=(0, 0, 0))
        if _cost(runs, cuts) <= limit or widest[2] - widest[1] < 2:
            if cuts:
                yield cuts
            continue
        pivot = strings[widest[0]].at((widest[1] + widest[2]) // 2)
        at = [low + bisect_left(range(low, high), pivot, key=strings[run].at) for run, low, high in cuts]
        waiting += reversed(_cut(cuts, at))


def _whole(runs: Sequence[Run]) -> Cuts:
    return [(run, 0, len(rows)) for run, rows in enumerate(runs) if len(rows)]


def _cost(runs: Sequence[Run], cuts: Cuts) -> int:
    return sum(runs[run].cost(low, high) for run, low, high in cuts)


def _cut(cuts: Cuts, at: list[int]) -> tuple[Cuts, Cuts]:
    """The rows below and from these places on; empty ones are left out."""
    left = [(run, low, cut) for (run, low, _), cut in zip(cuts, at, strict=True) if low < cut]
    right = [(run, cut, high) for (run, _, high), cut in zip(cuts, at, strict=True) if cut < high]
    return left, right


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
