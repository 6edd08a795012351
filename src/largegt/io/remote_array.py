"""RemoteArray: a `.npy` file at a URL, read in parts.

Enters: a URL, and the dtype and shape from the manifest. Leaves: ordinary arrays, for slices, single rows and sorted
row numbers. Cost: one request per range of up to 8 MiB, eight at a time; sequential reads prefetch 16 MiB into memory.
Only `window` uses the disk: it stores a range, so that kernels can read it in place.
"""

from __future__ import annotations

import math
import tempfile
import threading
from itertools import pairwise
from typing import Any

import numpy as np

from largegt.errors import FormatError
from largegt.types import Array

from .remote import PART_BYTES, PARTS_AT_ONCE, cache_folder, read, read_ranges

_PREFETCH_BYTES = 1 << 24
_NEARBY_BYTES = 1 << 16
"""Reading a single row also reads nearby rows, which a binary search needs next."""
_GAP_BYTES = 1 << 18
"""Rows with smaller gaps are read in one request."""
HEADER_BYTES = 128


class RemoteArray:
    """An array at a URL. `offset` is the position of its data in the file; None: read from the header."""

    def __init__(self, url: str, dtype: str, shape: tuple[int, ...], offset: int | None = None) -> None:
        self.url, self.dtype, self.shape, self.ndim = url, np.dtype(dtype), shape, len(shape)
        self._offset = offset
        self._row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        self.nbytes = len(self) * self._row_bytes
        self._lock = threading.Lock()
        self._first, self._rows = 0, np.empty((0, *shape[1:]), self.dtype)
        """Cached rows, and the number of the first of them."""
        self._last = -1
        """End of the last slice."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteArray, (self.url, self.dtype.str, self.shape, self._offset)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            assert step == 1, "rows are read from front to back"
            return self._slice(start, max(start, stop))
        if np.ndim(key):
            return self._take(np.asarray(key, dtype=np.int64))
        row, around = range(len(self))[int(key)], max(1, _NEARBY_BYTES // max(1, self._row_bytes))
        with self._lock:
            return self._cached(row, row + 1, row - row % around, row - row % around + around)[0]

    def _slice(self, start: int, stop: int) -> Array:
        with self._lock:
            is_sequential = start <= self._last <= stop and self._last > 0
            self._last = stop
            if (stop - start) * self._row_bytes > _PREFETCH_BYTES:
                return self._read(start, stop)
            ahead = start + _PREFETCH_BYTES // max(1, self._row_bytes) if is_sequential else stop
            return self._cached(start, stop, start, max(stop, ahead))

    def _cached(self, start: int, stop: int, low: int, high: int) -> Array:
        """Rows from the cache; if they are not cached, read rows `low` to `high`."""
        if not self._first <= start <= stop <= self._first + len(self._rows):
            self._rows, self._first = self._read(low, min(len(self), high)), low
        return self._rows[start - self._first : stop - self._first]

    def _take(self, rows: Array) -> Array:
        """The given rows; sorted rows that lie close together share a request."""
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if (np.diff(rows) < 0).any():
            order = np.argsort(rows, kind="stable")
            out[order] = self._take(rows[order])
            return out
        pairs = list(pairwise(self._cuts(rows)))
        if len(pairs) == 1:
            return np.asarray(self._slice(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]])
        for group in range(0, len(pairs), PARTS_AT_ONCE):
            some = pairs[group : group + PARTS_AT_ONCE]
            wanted = [(self._position(int(rows[low])), self._position(int(rows[high - 1]) + 1)) for low, high in some]
            for (low, high), part in zip(some, read_ranges(self.url, wanted), strict=True):
                between = np.frombuffer(part, self.dtype).reshape(-1, *self.shape[1:])
                out[low:high] = between[rows[low:high] - rows[low]]
        return out

    def _cuts(self, rows: Array) -> Array:
        """Boundaries between the requests for sorted rows."""
        if not len(rows) or not self._row_bytes:
            return np.zeros(1, dtype=np.int64)
        begins = np.flatnonzero(np.append(True, np.diff(rows) * self._row_bytes > _GAP_BYTES))
        run = np.repeat(begins, np.diff(np.append(begins, len(rows))))
        part = (rows - rows[run]) * self._row_bytes // PART_BYTES
        new = (run[1:] != run[:-1]) | (part[1:] != part[:-1])
        return np.concatenate([[0], np.flatnonzero(new) + 1, [len(rows)]])

    def _read(self, start: int, stop: int) -> Array:
        """A copy of a range of rows."""
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if not out.nbytes:
            return out
        left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        for low in range(self._position(start), self._position(stop), PART_BYTES * PARTS_AT_ONCE):
            for part in read(self.url, low, min(self._position(stop), low + PART_BYTES * PARTS_AT_ONCE)):
                left[: len(part)] = part
                left = left[len(part) :]
        return out

    def _position(self, row: int) -> int:
        """Position of a row in the file."""
        if self._offset is None:
            (head,) = read(self.url, 0, HEADER_BYTES)
            if head[:6] != b"\x93NUMPY":
                raise FormatError(f"{self.url} is no .npy file: it was damaged or changed; make it again")
            wide = 2 if head[6] > 1 else 0
            self._offset = 10 + wide + int.from_bytes(head[8 : 10 + wide], "little")
        return self._offset + row * self._row_bytes


def window(array: Any, first: int, last: int) -> Array:
    """An array whose rows `first` to `last` can be read in place: the array itself, or for a RemoteArray a sparse file
    with these rows, memory-mapped. The file is deleted together with the array."""
    if not isinstance(array, RemoteArray):
        return np.asanyarray(array)
    if not array.nbytes:
        return np.empty(array.shape, dtype=array.dtype)
    row_bytes = array.nbytes // len(array)
    step = max(1, PART_BYTES * PARTS_AT_ONCE // row_bytes)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as stream:
        stream.truncate(array.nbytes)
        stream.seek(first * row_bytes)
        for low in range(first, last, step):
            stream.write(array[low : min(last, low + step)].data)
        stream.flush()
        return np.memmap(stream, dtype=array.dtype, mode="r", shape=array.shape)
