"""Edges on disk: a scratch file of pairs becomes sorted, distinct CSR rows, their transpose and their union.

Enters: (source, target) node numbers, chunk by chunk. Leaves: `out_*` and, for a directed graph, `in_*` and
`both_*` arrays in the writer's folder. Cost: O(N) memory (a few int64 per node) and a chunk; all that is O(E)
is a mapped file: 8 + 4 bytes of scratch per edge while it runs (int32), gone at the end. Time is linear in E:
one counting sort over windows of rows small enough to stay in the page cache, and one small sort per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import disk_errors
from ..folder import FolderWriter, take_space
from ..progress import Progress
from ..threads import run_ranges
from ..types import Array
from . import kernels

WINDOW_EDGES = 1 << 27
"""Edges whose places are filled in one pass over the pairs: 512 MB of int32."""


@dataclass(frozen=True)
class EdgeCounts:
    """What became of the edges."""

    num_edges: int
    directed: bool
    self_loops_dropped: int
    duplicates_merged: int
    out_degree: Array
    in_degree: Array


def index_dtype(num_nodes: int) -> str:
    """int32 where node numbers fit."""
    return "int32" if num_nodes <= 2**31 - 1 else "int64"


class EdgeBuilder:
    """Collects pairs, then writes the rows. The scratch files live in the writer's folder and go with it."""

    def __init__(
        self, writer: FolderWriter, num_nodes: int, undirected: bool, threads: int, progress: Progress
    ) -> None:
        self._writer, self._num_nodes, self._undirected = writer, num_nodes, undirected
        self._threads, self._progress = threads, progress
        self._dtype = np.dtype(index_dtype(num_nodes))
        self._pairs_file = writer.partial / "scratch-pairs.bin"
        self._counts = np.zeros(num_nodes, dtype=np.int64)
        self._num_pairs = 0
        self._loops = 0
        self._stream = open(self._pairs_file, "wb")  # noqa: SIM115 - closed by finish or close

    def close(self) -> None:
        """Let go of the pairs' file. On a full disk even closing fails; that failure is known by then."""
        with suppress(OSError):
            self._stream.close()

    def add(self, sources: Array, targets: Array) -> None:
        """Take a chunk of edges; ends of -1 and self loops are left out."""
        pairs = np.empty((len(sources), 2), dtype=self._dtype)
        kept, loops = kernels.keep_pairs(sources, targets, self._undirected, self._counts, pairs)
        self._loops += int(loops)
        self._num_pairs += int(kept)
        with disk_errors(self._writer.path):
            self._stream.write(pairs[:kept].data)

    @property
    def num_pairs(self) -> int:
        return self._num_pairs

    @property
    def self_loops(self) -> int:
        return self._loops

    def finish(self) -> EdgeCounts:
        """Write every array of edges; needs at least one pair."""
        with disk_errors(self._writer.path):
            self._stream.close()
        out_indptr, out_indices, num_placed = self._write_out()
        num_edges = len(out_indices)
        out_degree = np.diff(out_indptr)
        in_degree = out_degree
        directed = False
        if not self._undirected:
            in_degree = np.zeros(self._num_nodes, dtype=np.int64)
            kernels.count_targets(out_indices, in_degree)
            directed = not self._is_symmetric(out_indptr, out_indices, out_degree, in_degree)
        if directed:
            in_indptr, in_indices = self._write_in(out_indptr, out_indices, in_degree)
            self._write_both(out_indptr, out_indices, in_indptr, in_indices)
        return EdgeCounts(num_edges, directed, self._loops, num_placed - num_edges, out_degree, in_degree)

    def _write_out(self) -> tuple[Array, Array, int]:
        loose_indptr = offsets(self._counts)
        loose_file = self._writer.partial / "scratch-rows.bin"
        loose = self._scratch(loose_file, int(loose_indptr[-1]))
        distinct = self._sort(loose_indptr, loose)
        indptr = self._writer.create("out_indptr", (self._num_nodes + 1,), "int64")
        indptr[:] = offsets(distinct)
        indptr = np.asarray(indptr)
        indices = np.asarray(self._writer.create("out_indices", (int(indptr[-1]),), self._dtype.name))

        def window(low: int, high: int) -> int:
            kernels.pack_rows(loose_indptr, loose, indptr, indices, low, high)
            return int(indptr[high] - indptr[low])

        self._drive("pack edges", window, indptr)
        loose_file.unlink()
        return indptr, indices, int(loose_indptr[-1])

    def _sort(self, indptr: Array, loose: Array) -> Array:
        """Fill `loose` with each row's targets, sorted, the distinct ones first; how many are distinct."""
        pairs = np.asarray(np.memmap(self._pairs_file, dtype=self._dtype, mode="r+", shape=(self._num_pairs, 2)))
        cursor = indptr[:-1].copy()
        distinct = np.empty(self._num_nodes, dtype=np.int64)

        def window(low: int, high: int) -> int:
            kernels.place_pairs(pairs, self._undirected, cursor, loose, low, high)
            kernels.sort_rows(indptr, loose, distinct, low, high)
            return int(indptr[high] - indptr[low])

        self._drive("sort edges", window, indptr)
        self._pairs_file.unlink()
        return distinct

    def _write_in(self, out_indptr: Array, out_indices: Array, in_degree: Array) -> tuple[Array, Array]:
        indptr = self._writer.create("in_indptr", (self._num_nodes + 1,), "int64")
        indptr[:] = offsets(in_degree)
        indptr = np.asarray(indptr)
        indices = np.asarray(self._writer.create("in_indices", out_indices.shape, self._dtype.name))
        cursor = indptr[:-1].copy()

        def window(low: int, high: int) -> int:
            kernels.transpose_rows(out_indptr, out_indices, cursor, indices, low, high)
            return int(indptr[high] - indptr[low])

        self._drive("transpose", window, indptr)
        return indptr, indices

    def _write_both(self, out_indptr: Array, out_indices: Array, in_indptr: Array, in_indices: Array) -> None:
        counts = np.empty(self._num_nodes, dtype=np.int64)
        nothing = np.empty(0, dtype=self._dtype)

        def merge(start: Array, out: Array, write: bool) -> Callable[[int, int], int]:
            def task(low: int, high: int) -> int:
                kernels.union_rows(out_indptr, out_indices, in_indptr, in_indices, start, out, counts, low, high, write)
                return int(out_indptr[high] - out_indptr[low])

            return task

        self._drive("merge directions", merge(out_indptr, nothing, False), out_indptr)
        indptr = self._writer.create("both_indptr", (self._num_nodes + 1,), "int64")
        indptr[:] = offsets(counts)
        indptr = np.asarray(indptr)
        indices = np.asarray(self._writer.create("both_indices", (int(indptr[-1]),), self._dtype.name))
        self._drive("merge directions", merge(indptr, indices, True), out_indptr)

    def _is_symmetric(self, indptr: Array, indices: Array, out_degree: Array, in_degree: Array) -> bool:
        if not np.array_equal(out_degree, in_degree):
            return False
        bounds = windows(indptr, self._threads)
        checks = run_ranges(
            lambda low, high: bool(kernels.rows_are_symmetric(indptr, indices, low, high)),
            bounds,
            self._threads,
        )
        return all(checks)

    def _drive(self, stage: str, task: Callable[[int, int], Any], indptr: Array) -> None:
        """Run `task` over windows of rows, reporting the edges done."""
        done, total = 0, int(indptr[-1])
        self._progress(stage, 0, total)
        for size in run_ranges(task, windows(indptr, self._threads), self._threads):
            done = min(total, done + int(size))
            self._progress(stage, done, total)
        self._progress(stage, total, total)

    def _scratch(self, file: Path, size: int) -> Array:
        with disk_errors(self._writer.path):
            file.touch()
            take_space(file, size * self._dtype.itemsize)
            return np.asarray(np.memmap(file, dtype=self._dtype, mode="r+", shape=(size,)))


def offsets(counts: Array) -> Array:
    """int64 [n+1]: where each row starts, and the end."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def windows(indptr: Array, threads: int) -> Iterable[int]:
    """Row bounds of windows with about equally many edges, at least one per thread."""
    num_rows, total = len(indptr) - 1, int(indptr[-1])
    parts = max(1, min(num_rows, max(threads, -(-total // WINDOW_EDGES))))
    goals = np.linspace(0, total, parts + 1)[1:-1]
    inner = np.searchsorted(indptr, goals, side="left")
    return np.unique(np.concatenate([[0], inner, [num_rows]])).tolist()  # type: ignore[no-any-return]
