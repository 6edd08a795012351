"""Edges on disk: pairs in any order become sorted, distinct CSR rows, their transpose and their union.

Enters: (source, target) node numbers, chunk by chunk. Leaves: `out_*` and, for a directed graph, `in_*` and
`both_*` arrays in the writer's folder. Cost: memory as given, whatever the size of the graph; every file is read and
written from front to back. Scratch on disk while it runs: 8 bytes per edge (int32), gone at the end.

How: an external bucket sort. Pairs are written in *runs*, each as large as memory allows and grouped by bucket, a range
of rows. Then bucket by bucket the pieces of all runs are brought together, sorted in memory and appended to the result.
Every step notes how far it came, so that a killed ingest goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..folder import ArrayAppender, FolderWriter
from ..progress import Progress
from ..threads import run_ahead
from ..types import Array
from . import kernels

_BUCKET_PAIRS = 1 << 20
_MOST_BUCKETS = 1 << 10
_LEAST_RUN, _MOST_RUN = 1 << 21, 1 << 24
_LEAST_PIECE = 1 << 16
_WINDOW_EDGES = 1 << 20
_ASYMMETRY = "asymmetry"


@dataclass(frozen=True)
class EdgeCounts:
    """What became of the edges."""

    num_edges: int
    directed: bool
    self_loops_dropped: int
    duplicates_merged: int


def index_dtype(num_nodes: int) -> str:
    """int32 where node numbers fit."""
    return "int32" if num_nodes <= 2**31 - 1 else "int64"


class PairRuns:
    """(row, value) pairs on disk: runs, each grouped by bucket. Bucket b holds the rows r with r >> shift == b."""

    def __init__(self, writer: FolderWriter, name: str, num_nodes: int, expected: int | None) -> None:
        self._writer, self.num_nodes = writer, num_nodes
        shift = f"{name}_shift"
        if shift not in writer.state:
            writer.state[shift] = _bucket_shift(num_nodes, expected)
        self.shift = int(writer.state[shift])
        self.num_buckets = ((num_nodes - 1) >> self.shift) + 1
        self.dtype = np.dtype(index_dtype(num_nodes))
        self._pairs = writer.grow(f"{name}_pairs", self.dtype.name, (2,))
        self._starts = writer.grow(f"{name}_starts", "int64", (self.num_buckets + 1,))
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    @property
    def num_pairs(self) -> int:
        return self._pairs.rows

    def add(self, pairs: Array, **state: Any) -> None:
        """Write a run in the background; once it is on disk, `state` is what the writer goes on from."""
        self.wait()
        self._last = self._pool.submit(self._write, pairs, state)

    def wait(self) -> None:
        """Until the last run is written."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _write(self, pairs: Array, state: dict[str, Any]) -> None:
        starts = np.zeros(self.num_buckets + 1, dtype=np.int64)
        grouped = np.empty_like(pairs)
        kernels.group_pairs(pairs, self.shift, starts, grouped)
        first = self._pairs.rows
        self._pairs.append(grouped)
        self._starts.append((starts + first)[None])
        self._writer.commit(**state)

    def rows(self, first_row: int, most_pairs: int) -> Iterator[_Piece]:
        """Ranges of rows from `first_row` on with their pairs, each of at most `most_pairs` unless it is one row."""
        pairs, starts = self._pairs.so_far(), np.array(self._starts.so_far())
        for bucket in range(first_row >> self.shift, self.num_buckets):
            low = max(first_row, bucket << self.shift)
            high = min(self.num_nodes, (bucket + 1) << self.shift)
            begins, ends = starts[:, bucket], starts[:, bucket + 1]
            if int((ends - begins).sum()) <= most_pairs:
                yield _Piece(pairs, begins, ends, low, high)
                continue
            counts = np.zeros(high - low, dtype=np.int64)
            kernels.count_pieces(pairs, begins, ends, low, counts)
            for start, stop in windows(offsets(counts), 0, most_pairs):
                yield _Piece(pairs, begins, ends, low + start, low + stop)


def remove_runs(writer: FolderWriter, name: str) -> None:
    """The pairs of these runs have served."""
    for part in ("pairs", "starts"):
        writer.drop(f"{name}_{part}")


@dataclass(frozen=True)
class _Piece:
    """Some rows and where their pairs are, among others."""

    pairs: Array
    begins: Array
    ends: Array
    low: int
    high: int

    def sorted(self, most_pairs: int) -> tuple[Array, Array, int]:
        """(how many distinct values each row has, the values row after row, how asymmetric they are)."""
        counts = np.zeros(self.high - self.low, dtype=np.int64)
        kernels.count_pieces(self.pairs, self.begins, self.ends, self.low, counts)
        total = int(counts.sum())
        if total > most_pairs:  # one row with more pairs than memory: its values are marked in a bitmap
            return self._one_row()
        values = np.empty(total, dtype=self.pairs.dtype)
        starts = offsets(counts)
        kernels.place_pieces(self.pairs, self.begins, self.ends, self.low, starts[:-1].copy(), values)
        asymmetry = kernels.sort_rows(starts, values, counts, self.low)
        return counts, values[: int(counts.sum())], int(asymmetry)

    def _one_row(self) -> tuple[Array, Array, int]:
        largest = kernels.largest_of_row(self.pairs, self.begins, self.ends, self.low)
        marks = np.zeros((int(largest) >> 3) + 1, dtype=np.uint8)
        kernels.mark_row(self.pairs, self.begins, self.ends, self.low, marks)
        values = np.flatnonzero(np.unpackbits(marks, bitorder="little")).astype(self.pairs.dtype)
        return np.array([len(values)]), values, int(kernels.asymmetry_of(self.low, values))


class EdgeBuilder:
    """Collects pairs, then writes the rows. The scratch arrays live in the writer's folder and go with it."""

    def __init__(
        self,
        writer: FolderWriter,
        num_nodes: int,
        undirected: bool,
        threads: int,
        memory: int,
        progress: Progress,
        expected: int | None,
    ) -> None:
        self._writer, self._num_nodes, self._undirected = writer, num_nodes, undirected
        self._threads, self._progress = threads, progress
        self._dtype = np.dtype(index_dtype(num_nodes))
        pair_bytes = 2 * self._dtype.itemsize
        self._run_pairs = int(np.clip(memory // (8 * pair_bytes), _LEAST_RUN, _MOST_RUN))
        self._most_pairs = max(_LEAST_PIECE, memory // (3 * (threads + 2) * pair_bytes))
        self._twice = 2 if undirected else 1
        self._expected = None if expected is None else self._twice * expected
        self._buffer = np.empty((0, 2), dtype=self._dtype)
        self._filled = 0
        self._state: dict[str, Any] = {}
        self._loops = int(writer.state.get("self_loops", 0))
        self._runs: PairRuns | None = None
        if not self.is_read:
            self._runs = PairRuns(writer, "scratch_out", num_nodes, self._expected)

    @property
    def is_read(self) -> bool:
        """Whether an earlier run has read all edges already."""
        return "num_pairs" in self._writer.state

    @property
    def seen(self) -> int:
        """Edges of the input that earlier runs have taken already."""
        return int(self._writer.state.get("edges_seen", 0))

    @property
    def num_pairs(self) -> int:
        if self.is_read:
            return int(self._writer.state["num_pairs"])
        return (self._runs.num_pairs if self._runs else 0) + self._filled

    @property
    def self_loops(self) -> int:
        return self._loops

    def close(self) -> None:
        """Wait for what is being written."""
        if self._runs is not None:
            self._runs.close()

    def add(self, sources: Array, targets: Array, **state: Any) -> None:
        """Take a chunk of edges; ends of -1 and self loops are left out. `state` is what to go on from after it."""
        room = self._twice * len(sources)
        if self._filled + room > len(self._buffer):
            self._flush()
            self._buffer = np.empty((max(self._run_pairs, room), 2), dtype=self._dtype)
        kept, loops = kernels.keep_pairs(sources, targets, self._undirected, self._buffer[self._filled :])
        self._filled += int(kept)
        self._loops += int(loops)
        self._state = {**state, "self_loops": self._loops}

    def _flush(self, **state: Any) -> None:
        assert self._runs is not None
        if self._filled or state:
            self._runs.wait()
            self._runs.add(self._buffer[: self._filled], **self._state, **state)
        self._filled = 0

    def end(self) -> None:
        """No more edges; needs at least one pair."""
        if self._runs is not None:
            self._runs.wait()
            self._flush(num_pairs=self.num_pairs)
            self._runs.wait()
            self._buffer = np.empty((0, 2), dtype=self._dtype)

    def finish(self) -> EdgeCounts:
        """Write every array of edges."""
        writer = self._writer
        num_pairs = self.num_pairs
        if not writer.has("out_indices"):
            runs = self._runs or PairRuns(writer, "scratch_out", self._num_nodes, self._expected)
            self._append_rows("out", "sort edges", runs, num_pairs)
            runs.close()
        remove_runs(writer, "scratch_out")
        num_edges = len(writer.array("out_indices"))
        if not self._undirected and "directed" not in writer.state:
            if not writer.has("in_indices"):
                self._transpose(num_edges)
            remove_runs(writer, "scratch_in")
            writer.commit(directed=writer.state[_ASYMMETRY] != 0 or not self._same("out", "in"))
        directed = bool(writer.state.get("directed", False))
        if directed and not writer.has("both_indices"):
            self._write_both(num_edges)
        elif not directed:
            for name in ("in_indptr", "in_indices"):
                writer.drop(name)
        return EdgeCounts(num_edges, directed, self._loops, num_pairs - num_edges)

    def _append_rows(self, name: str, stage: str, runs: PairRuns, total: int) -> None:
        """Sort the pairs of `runs` into rows `name`, from where an earlier run stopped."""
        indptr, indices = self._begin_rows(name)
        most = self._most_pairs
        pieces = runs.rows(indptr.rows - 1, most)
        asymmetry = int(self._writer.state.get(_ASYMMETRY, 0)) if name == "out" else 0
        for counts, values, part in run_ahead(lambda piece: piece.sorted(most), pieces, self._threads):
            asymmetry = (asymmetry + part) % 2**64
            self._append(indptr, indices, counts, values, {_ASYMMETRY: asymmetry} if name == "out" else {})
            self._progress(stage, indices.rows, total)
        self._progress(stage, total, total)
        self._end_rows(name)

    def _transpose(self, num_edges: int) -> None:
        writer = self._writer
        runs = PairRuns(writer, "scratch_in", self._num_nodes, num_edges)
        if "transposed" not in writer.state:
            indptr, indices = writer.array("out_indptr"), writer.array("out_indices")
            first = int(writer.state.get("rows_transposed", 0))
            for low, high in windows(indptr, first, self._run_pairs):
                pairs = np.empty((int(indptr[high] - indptr[low]), 2), dtype=self._dtype)
                kernels.turn_rows(indptr, indices, low, high, pairs)
                runs.add(pairs, rows_transposed=high)
                self._progress("turn edges", int(indptr[high]), num_edges)
            runs.wait()
            writer.commit(transposed=True)
        self._append_rows("in", "sort turned edges", runs, num_edges)
        runs.close()

    def _write_both(self, num_edges: int) -> None:
        out_indptr, out_indices = self._writer.array("out_indptr"), self._writer.array("out_indices")
        in_indptr, in_indices = self._writer.array("in_indptr"), self._writer.array("in_indices")

        def merge(bounds: tuple[int, int]) -> tuple[Array, Array]:
            low, high = bounds
            most = int(out_indptr[high] - out_indptr[low] + in_indptr[high] - in_indptr[low])
            counts, values = np.empty(high - low, dtype=np.int64), np.empty(most, dtype=self._dtype)
            size = kernels.union_rows(out_indptr, out_indices, in_indptr, in_indices, counts, values, low, high)
            return counts, values[: int(size)]

        indptr, indices = self._begin_rows("both")
        bounds = windows(out_indptr, indptr.rows - 1, _WINDOW_EDGES)
        for counts, values in run_ahead(merge, bounds, self._threads):
            self._append(indptr, indices, counts, values, {})
            self._progress("merge directions", int(out_indptr[indptr.rows - 1]), num_edges)
        self._end_rows("both")

    def _begin_rows(self, name: str) -> tuple[ArrayAppender, ArrayAppender]:
        indptr = self._writer.grow(f"{name}_indptr", "int64")
        indices = self._writer.grow(f"{name}_indices", self._dtype.name)
        if not indptr.rows:
            indptr.append(np.zeros(1, dtype=np.int64))
        return indptr, indices

    def _append(
        self, indptr: ArrayAppender, indices: ArrayAppender, counts: Array, values: Array, state: dict[str, Any]
    ) -> None:
        indptr.append(indices.rows + np.cumsum(counts))
        indices.append(values)
        self._writer.commit(**state)

    def _end_rows(self, name: str) -> None:
        for part in ("indptr", "indices"):
            self._writer.close(f"{name}_{part}")
        self._writer.commit()

    def _same(self, name: str, other: str) -> bool:
        """Whether two sets of rows are equal."""
        for part in ("indptr", "indices"):
            a, b = self._writer.array(f"{name}_{part}"), self._writer.array(f"{other}_{part}")
            step = 1 << 24
            if any(not np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step)):
                return False
        return True


def offsets(counts: Array) -> Array:
    """int64 [n+1]: where each row starts, and the end."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def windows(indptr: Array, first: int, most_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows from `first` on with at most `most_edges` edges each, or one row; and at most as many rows."""
    num_rows = len(indptr) - 1
    while first < num_rows:
        last = min(num_rows, first + most_edges)
        near = np.searchsorted(indptr[first : last + 1], indptr[first] + most_edges, side="right")
        last = min(last, max(first + 1, first + int(near) - 1))
        yield first, last
        first = last


def _bucket_shift(num_nodes: int, expected: int | None) -> int:
    """Rows of a bucket, as a power of two: about a million pairs each, and not too many buckets."""
    wanted = min(_MOST_BUCKETS, max(1, -(-(expected or _BUCKET_PAIRS * 256) // _BUCKET_PAIRS)))
    shift = 0
    while (num_nodes - 1) >> shift >= wanted:
        shift += 1
    return shift
