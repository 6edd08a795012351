"""Runs of (row, value) pairs on disk: written grouped by bucket, read by ranges of rows.

Enters: (row, value) pairs in any order, in files of this process and of workers. Leaves: `Piece`s, ranges of rows with
the locations of their pairs, which they sort. Cost: memory of one run and its bucket offsets; 8 bytes of disk per pair
(int32), 16 beyond 2³¹ nodes or with weights. A row is always sorted in memory, so the minimum is 16 bytes x largest
degree, duplicates included; 20 bytes for the transpose of a directed graph, and 36 with weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from largegt.io.array_writer import ArrayWriter
from largegt.runtime.workers import new_token, written_atomically
from largegt.types import Array

from . import kernels

_BUCKET_PAIRS = 1 << 20
_MOST_BUCKETS = 1 << 10
_MOST_BUCKET_ROWS = 1 << 22

SortedRun = tuple[str, Array]
"""The name of a file of pairs, and int64 [buckets + 1]: where each bucket begins in it."""


def index_dtype(num_nodes: int) -> str:
    """int32 if node numbers fit, else int64."""
    return "int32" if num_nodes <= 2**31 - 1 else "int64"


@dataclass(frozen=True)
class EdgeKind:
    """Properties of the edges: number of nodes, undirected, weighted."""

    num_nodes: int
    undirected: bool
    weighted: bool = False

    @property
    def pair_dtype(self) -> np.dtype[Any]:
        return np.dtype("int64" if self.weighted else index_dtype(self.num_nodes))


@dataclass(frozen=True)
class RunFolder:
    """The folder of runs. Bucket b of a run has the pairs of rows r with r >> shift == b."""

    path: Path
    num_buckets: int
    shift: int

    def write(self, name: str, pairs: Array) -> SortedRun:
        """Write pairs as a run, grouped by bucket."""
        starts, grouped = np.zeros(self.num_buckets + 1, dtype=np.int64), np.empty_like(pairs)
        kernels.group_pairs(pairs, self.shift, starts, grouped)
        with written_atomically(self.path / name) as aside:
            aside.write_bytes(grouped.data)
        return name, starts


class PairBuffer:
    """Collects pairs until a run is full, and passes the run to `sink`, which may keep the array."""

    def __init__(self, kind: EdgeKind, run_pairs: int, sink: Callable[[Array], None]) -> None:
        self._undirected, self._run_pairs, self._sink = kind.undirected, run_pairs, sink
        self._pairs = np.empty((0, 2), dtype=kind.pair_dtype)
        self.filled, self.self_loops = 0, 0

    def add(self, sources: Array, targets: Array, weights: Array = kernels.NO_WEIGHTS) -> None:
        """Add a chunk of edges, except ends of -1 and self loops."""
        room = (2 if self._undirected else 1) * len(sources)
        if self.filled + room > len(self._pairs):
            self.flush()
            self._pairs = np.empty((max(self._run_pairs, room), 2), dtype=self._pairs.dtype)
        free = self._pairs[self.filled :]
        kept, loops = kernels.keep_pairs(sources, targets, weights.view(np.int32), self._undirected, free)
        self.filled += int(kept)
        self.self_loops += int(loops)

    def flush(self) -> None:
        pairs, self.filled = self._pairs[: self.filled], 0
        self._pairs = np.empty((0, 2), dtype=self._pairs.dtype)
        if len(pairs):
            self._sink(pairs)


class PairRuns:
    """Runs of (row, value) pairs on disk."""

    def __init__(self, writer: ArrayWriter, name: str, kind: EdgeKind, expected: int | None) -> None:
        self._writer, self._name, self._kind = writer, name, kind
        self._files: list[str] = writer.state.setdefault(f"{name}_files", [])
        shift = writer.state.setdefault(f"{name}_shift", _bucket_shift(kind.num_nodes, expected))
        path = (writer.partial / name).absolute()
        path.mkdir(exist_ok=True)
        self.folder = RunFolder(path, ((kind.num_nodes - 1) >> shift) + 1, shift)
        self._starts = writer.grow(f"{name}_starts", "int64", (self.folder.num_buckets + 1,))
        self._pool, self._token = ThreadPoolExecutor(1), new_token()
        self._last: Future[None] | None = None

    @property
    def num_pairs(self) -> int:
        self.wait()
        return int(self._starts.so_far()[:, -1].sum())

    def write(self, pairs: Array, **state: Any) -> None:
        """Write a run in the background; then commit `state` for resuming."""
        self.wait()
        self._last = self._pool.submit(self._write, pairs, state)

    def _write(self, pairs: Array, state: dict[str, Any]) -> None:
        self.add([self.folder.write(f"{self._token}-{self._starts.rows}", pairs)], **state)

    def add(self, runs: list[SortedRun], **state: Any) -> None:
        """Take runs that are in the folder; `state` is what the writer goes on from."""
        for name, starts in runs:
            self._files.append(name)
            self._starts.append(starts[None])
        self._writer.commit(**state)

    def wait(self) -> None:
        """Wait until the last run is written."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def remove(self) -> None:
        """Delete the runs."""
        self.close()
        del self._writer.state[f"{self._name}_files"]
        self._writer.drop(f"{self._name}_starts")
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def pieces(self, first_row: int, most_pairs: int) -> Iterator[Piece]:
        """Ranges of rows from `first_row` on, with at most `most_pairs` pairs each or a single row."""
        starts, shift = np.array(self._starts.so_far()), self.folder.shift
        for bucket in range(first_row >> shift, self.folder.num_buckets):
            places = zip(self._files, starts[:, bucket].tolist(), starts[:, bucket + 1].tolist(), strict=True)
            parts = [(self.folder.path / name, begin, end) for name, begin, end in places if begin < end]
            low, high = max(first_row, bucket << shift), min(self._kind.num_nodes, (bucket + 1) << shift)
            piece = Piece(parts, self._kind, low, high)
            if sum(end - begin for _, begin, end in parts) <= most_pairs:
                yield piece
                continue
            for first, last in windows(offsets(piece.counts()), 0, most_pairs):
                yield replace(piece, low=low + first, high=low + last)


@dataclass(frozen=True)
class Piece:
    """A range of rows, and the parts of files that contain their pairs."""

    parts: list[tuple[Path, int, int]]
    kind: EdgeKind
    low: int
    high: int

    def pairs(self) -> Iterator[Array]:
        """The memory-mapped pairs of each file."""
        dtype = self.kind.pair_dtype
        for file, begin, end in self.parts:
            yield np.memmap(file, dtype, mode="r", offset=2 * dtype.itemsize * begin, shape=(end - begin, 2))

    def counts(self) -> Array:
        """Number of pairs per row."""
        counts = np.zeros(self.high - self.low, dtype=np.int64)
        for pairs in self.pairs():
            kernels.count_pairs(pairs, self.low, counts)
        return counts

    def sorted(self) -> tuple[Array, Array, Array]:
        """(neighbour counts, neighbours in row order, weights or empty)."""
        counts = self.counts()
        starts = offsets(counts)
        cursor = starts[:-1].copy()
        values = np.empty(int(starts[-1]), dtype=self.kind.pair_dtype)
        for pairs in self.pairs():
            kernels.place_pairs(pairs, self.low, cursor, values)
        weights = np.empty(len(values) if self.kind.weighted else 0, dtype=np.float32)
        kernels.sort_rows(starts, values, counts, weights)
        kept = int(counts.sum())
        return counts, values[:kept], weights[:kept]


def offsets(counts: Array) -> Array:
    """int64 [n+1]: the start of each row, and the end."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def windows(indptr: Array, first: int, most_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows from `first` on with at most `most_edges` edges or a single row, and at most `most_edges` rows."""
    num_rows = len(indptr) - 1
    while first < num_rows:
        last = min(num_rows, first + most_edges)
        fitting = np.searchsorted(indptr[first : last + 1], indptr[first] + most_edges, side="right")
        last = min(last, max(first + 1, first + int(fitting) - 1))
        yield first, last
        first = last


def _bucket_shift(num_nodes: int, expected: int | None) -> int:
    """log2 of the rows per bucket, for about a million pairs per bucket and bounded rows and numbers of buckets."""
    num_buckets = max(-(-(expected or _BUCKET_PAIRS * 256) // _BUCKET_PAIRS), -(-num_nodes // _MOST_BUCKET_ROWS))
    return ((num_nodes - 1) // min(_MOST_BUCKETS, max(1, num_buckets))).bit_length()
