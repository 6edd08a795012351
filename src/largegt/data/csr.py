"""Edges on disk: pairs in any order become sorted, distinct CSR rows, their transpose and their union.

Enters: (source, target) node numbers, chunk by chunk, with weights where edges have them. Leaves: `out_*` and, for a
directed graph, `in_*` and `both_*` arrays in the writer's folder, weights beside them (weights.py). Cost: memory as
given, whatever the size of the graph; every file is read and written from front to back. Scratch on disk while it runs:
8 bytes per edge (int32), 16 with weights, gone at the end.

How: an external bucket sort. Pairs are written in *runs* (see pair_runs.py), each as large as memory allows and grouped
by bucket, a range of rows. Then bucket by bucket the pieces of all runs are brought together, sorted by workers and
appended to the result. Every step notes how far it came, so that a killed ingest goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from ..io.array_writer import ArrayWriter
from ..progress import Progress
from ..types import Array, sides_of
from . import kernels, weight_kernels
from .pair_runs import (
    Buckets,
    PairBuffer,
    PairFile,
    PairRuns,
    Piece,
    WeightedPiece,
    index_dtype,
    pair_dtype,
    remove_runs,
    windows,
)
from .weights import bits_of, facts_of, narrowed, write_sums
from .workers import Workers, new_token, written_aside

__all__ = ["EdgeBuilder", "EdgeCounts", "index_dtype"]

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
    weights: dict[str, Any] | None = None
    """Facts about them, where edges have weights."""


class EdgeBuilder:
    """Collects pairs, then writes the rows. The scratch arrays live in the writer's folder and go with it."""

    def __init__(
        self,
        writer: ArrayWriter,
        num_nodes: int,
        undirected: bool,
        workers: Workers,
        task_memory: int,
        progress: Progress,
        expected: int | None,
        weighted: bool = False,
    ) -> None:
        self._writer, self._num_nodes, self.undirected, self.weighted = writer, num_nodes, undirected, weighted
        self._parts = ("indptr", "indices", *(("weights",) if weighted else ()))
        self._workers, self._progress = workers, progress
        pair_bytes = 2 * np.dtype(pair_dtype(num_nodes, weighted)).itemsize
        self.run_pairs = int(np.clip(workers.memory // (8 * pair_bytes), _LEAST_RUN, _MOST_RUN))
        self._most_pairs = max(_LEAST_PIECE, task_memory // (3 * pair_bytes))
        self._turned_pairs = min(_MOST_RUN, self._most_pairs)
        self._expected = None if expected is None else (2 if undirected else 1) * expected
        self._state: dict[str, Any] = {}
        self._loops_before = int(writer.state.get("self_loops", 0))
        self._buffer = PairBuffer(num_nodes, undirected, self.run_pairs, self._write_run, weighted)
        self._runs: PairRuns | None = None
        if not self.is_read:
            self._runs = PairRuns(writer, "scratch_out", num_nodes, self._expected, weighted)

    @property
    def is_read(self) -> bool:
        """Whether an earlier run has read all edges already."""
        return "num_pairs" in self._writer.state

    @property
    def seen(self) -> int:
        """Edges of the input that earlier runs have taken already."""
        return int(self._writer.state.get("edges_seen", 0))

    @property
    def runs(self) -> PairRuns:
        """What is collected, as long as edges are read."""
        assert self._runs is not None
        return self._runs

    @property
    def num_pairs(self) -> int:
        if self.is_read:
            return int(self._writer.state["num_pairs"])
        return self.runs.num_pairs + self._buffer.filled

    @property
    def self_loops(self) -> int:
        return self._loops_before + self._buffer.self_loops

    def close(self) -> None:
        """Wait for what is being written."""
        if self._runs is not None:
            self._runs.close()

    def forget(self) -> None:
        """Begin again with the first edge."""
        self.runs.close()
        remove_runs(self._writer, "scratch_out")
        for name in [name for name in self._writer.state if name.startswith("edges_") or name == "self_loops"]:
            del self._writer.state[name]
        self._loops_before = 0
        self._runs = PairRuns(self._writer, "scratch_out", self._num_nodes, self._expected, self.weighted)

    def add(self, sources: Array, targets: Array, weights: Array | None = None, **state: Any) -> None:
        """Take a chunk of edges; ends of -1 and self loops are left out. `state` is what to go on from after it."""
        self._buffer.add(sources, targets, weights)
        self._state = {**state, "self_loops": self.self_loops}

    def add_file(self, name: str, starts: Array, self_loops: int, **state: Any) -> None:
        """Take edges that a worker has read and written to a file of the runs' folder."""
        self._loops_before += self_loops
        self.runs.add_file(name, starts, self_loops=self.self_loops, **state)

    def _write_run(self, pairs: Array) -> None:
        self.runs.add(pairs, **self._state)

    def end(self) -> None:
        """No more edges; needs at least one pair."""
        self.runs.wait()
        num_pairs = self.num_pairs
        self._buffer.flush()
        self.runs.wait()
        self._writer.commit(**self._state, num_pairs=num_pairs)

    def finish(self) -> EdgeCounts:
        """Write every array of edges."""
        writer = self._writer
        num_pairs = self.num_pairs
        if not writer.has("out_indices"):
            runs = self._runs or PairRuns(writer, "scratch_out", self._num_nodes, self._expected, self.weighted)
            self._append_rows("out", "sort edges", runs, num_pairs)
            runs.close()
        remove_runs(writer, "scratch_out")
        num_edges = len(writer.array("out_indices"))
        if not self.undirected and "directed" not in writer.state:
            if not writer.has("in_indices"):
                self._transpose(num_edges)
            remove_runs(writer, "scratch_in")
            writer.commit(directed=writer.state[_ASYMMETRY] != 0 or not same_rows(writer, "out", "in", self._parts))
        directed = bool(writer.state.get("directed", False))
        if directed and not writer.has("both_indices"):
            self._write_both(num_edges)
        elif not directed:
            for part in self._parts:
                writer.drop(f"in_{part}")
        weights = None
        if self.weighted:
            for side in sides_of(directed):
                write_sums(writer, side)
            weights = facts_of(writer, directed)
        return EdgeCounts(num_edges, directed, self.self_loops, num_pairs - num_edges, weights)

    def _append_rows(self, name: str, stage: str, runs: PairRuns, total: int) -> None:
        """Sort the pairs of `runs` into rows `name`, from where an earlier run stopped."""
        rows = self._rows(name)
        most = self._most_pairs
        sort = _sorted_entries if self.weighted else Piece.sorted
        pieces = ((piece, most) for piece in runs.rows(rows.done, most, self._workers))
        asymmetry = int(self._writer.state.get(_ASYMMETRY, 0)) if name == "out" else 0
        for counts, values, part, *weights in self._workers.run(sort, pieces, self._workers.memory):
            asymmetry = (asymmetry + part) % 2**64
            rows.add(counts, (values, *weights), **({_ASYMMETRY: asymmetry} if name == "out" else {}))
            self._progress(stage, rows.num_values, total)
        self._progress(stage, total, total)
        rows.close()

    def _transpose(self, num_edges: int) -> None:
        writer = self._writer
        runs = PairRuns(writer, "scratch_in", self._num_nodes, num_edges, self.weighted)
        if "transposed" not in writer.state:
            indptr, indices = writer.array("out_indptr"), writer.array("out_indices")
            first = int(writer.state.get("rows_transposed", 0))
            weights = writer.array("out_weights") if self.weighted else None
            turn = _Turn(indptr, indices, runs.buckets, runs.folder, weights)
            runs.folder.mkdir(exist_ok=True)
            token = new_token()
            calls, ranges = tee(
                (low, high, f"{token}-{low}") for low, high in windows(indptr, first, self._turned_pairs)
            )
            made = self._workers.run(turn, calls, self._workers.memory)
            for (_, high, name), starts in zip(ranges, made, strict=True):
                runs.add_file(name, starts, rows_transposed=high)
                self._progress("turn edges", int(indptr[high]), num_edges)
            writer.commit(transposed=True)
        self._append_rows("in", "sort turned edges", runs, num_edges)
        runs.close()

    def _write_both(self, num_edges: int) -> None:
        merged = [self._writer.array(f"{side}_{part}") for side in ("out", "in") for part in self._parts]
        out_indptr = merged[0]
        merge: Callable[..., Any] = _merge_entries if self.weighted else merge_rows
        merge = partial(merge, *merged)
        rows = self._rows("both")
        for counts, *values in self._workers.run(merge, windows(out_indptr, rows.done, _WINDOW_EDGES)):
            rows.add(counts, values)
            self._progress("merge directions", int(out_indptr[rows.done]), num_edges)
        rows.close()

    def _rows(self, name: str) -> GrowingRows:
        return GrowingRows(self._writer, name, self._num_nodes, self._parts)


class GrowingRows:
    """Rows of a CSR that are appended, and committed, some at a time; from where an earlier run stopped."""

    def __init__(
        self, writer: ArrayWriter, name: str, num_nodes: int, parts: Sequence[str] = ("indptr", "indices")
    ) -> None:
        dtypes = {"indptr": "int64", "indices": index_dtype(num_nodes), "weights": "float32"}
        self._writer, self._names = writer, [f"{name}_{part}" for part in parts]
        self._indptr, *self._values = (writer.grow(f"{name}_{part}", dtypes[part]) for part in parts)
        if not self._indptr.rows:
            self._indptr.append(np.zeros(1, dtype=np.int64))

    @property
    def done(self) -> int:
        """How many rows there are."""
        return self._indptr.rows - 1

    @property
    def num_values(self) -> int:
        return self._values[0].rows

    def add(self, counts: Array, values: Sequence[Array], **state: Any) -> None:
        """Rows with so many values each: the values one after the other, for each part. `state` is committed too."""
        self._indptr.append(self.num_values + np.cumsum(counts))
        for array, part in zip(self._values, values, strict=True):
            array.append(part)
        self._writer.commit(**state)

    def close(self) -> None:
        for name in self._names:
            self._writer.close(name)
        self._writer.commit()


@dataclass(frozen=True)
class _Turn:
    """Some rows as (target, source) pairs, in a file."""

    indptr: Array
    indices: Array
    buckets: Buckets
    folder: Path
    weights: Array | None = None

    def __call__(self, low: int, high: int, name: str) -> Array:
        begin, end = int(self.indptr[low]), int(self.indptr[high])
        pairs = np.empty((end - begin, 2), dtype=self.indices.dtype if self.weights is None else np.int64)
        if self.weights is None:
            kernels.turn_rows(self.indptr, self.indices, low, high, pairs)
        else:
            bits = bits_of(self.weights[begin:end])
            weight_kernels.turn_entries(self.indptr, self.indices, bits, low, high, pairs)
        with written_aside(self.folder / name) as aside:
            file = PairFile(aside, self.buckets)
            if len(pairs):
                file.add(pairs)
            return file.close()


def _sorted_entries(piece: Piece, most_pairs: int) -> tuple[Array, Array, int, Array]:
    """As `Piece.sorted`, with the weights."""
    counts, values, asymmetry, weights = WeightedPiece(piece).sorted(most_pairs)
    return counts, values, asymmetry, narrowed(weights)


def _merge_entries(
    out_indptr: Array, out_indices: Array, out_weights: Array, in_indptr: Array, in_indices: Array, in_weights: Array,
    low: int, high: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(neighbours of each row, the neighbours, their weights) in either direction."""
    most = int(out_indptr[high] - out_indptr[low] + in_indptr[high] - in_indptr[low])
    counts, values = np.empty(high - low, dtype=np.int64), np.empty(most, dtype=out_indices.dtype)
    weights = np.empty(most)
    size = weight_kernels.union_entries(
        out_indptr, out_indices, out_weights, in_indptr, in_indices, in_weights, counts, values, weights, low, high
    )
    return counts, values[: int(size)], narrowed(weights[: int(size)])


def same_rows(writer: ArrayWriter, name: str, other: str, parts: Sequence[str] = ("indptr", "indices")) -> bool:
    """Whether two sets of rows are equal, in all of these parts."""
    for part in parts:
        a, b = writer.array(f"{name}_{part}"), writer.array(f"{other}_{part}")
        step = 1 << 24
        if any(not np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step)):
            return False
    return True


def merge_rows(
    out_indptr: Array, out_indices: Array, in_indptr: Array, in_indices: Array, low: int, high: int
) -> tuple[Array, Array]:
    """(neighbours of each row, the neighbours) in either direction."""
    most = int(out_indptr[high] - out_indptr[low] + in_indptr[high] - in_indptr[low])
    counts, values = np.empty(high - low, dtype=np.int64), np.empty(most, dtype=out_indices.dtype)
    size = kernels.union_rows(out_indptr, out_indices, in_indptr, in_indices, counts, values, low, high)
    return counts, values[: int(size)]
