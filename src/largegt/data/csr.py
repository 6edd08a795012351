"""Build CSR arrays on disk from unsorted edges: sorted distinct rows, their transpose and their union.

Enters: chunks of (source, target) node numbers, with weights if edges have them. Leaves: `out_*` and, for a directed
graph, `in_*` and `both_*` arrays in the writer's folder, with weights (weights.py). Cost: the given memory, but at
least the largest row (pair_runs.py); all files are read and written sequentially. Scratch on disk: 8 bytes per edge
(int32), 16 with weights, deleted at the end.

Method: an external bucket sort. Pairs are written in *runs*, each as large as memory allows and grouped by bucket, a
range of rows. Workers then sort the buckets of all runs one by one, and the rows are appended. A killed ingest resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from largegt.io.array_writer import ArrayWriter
from largegt.runtime.progress import Progress
from largegt.runtime.workers import Workers, new_token
from largegt.types import Array

from . import kernels
from .pair_runs import EdgeKind, PairBuffer, PairRuns, Piece, RunFolder, SortedRun, index_dtype, windows
from .weights import refuse_overflow, write_sums

_LEAST_RUN, _MOST_RUN = 1 << 21, 1 << 24
_LEAST_PIECE, _WINDOW_EDGES = 1 << 16, 1 << 20
RowsFrom = Callable[[int], Iterator[Any]]


@dataclass(frozen=True)
class EdgeCounts:
    """Counts of edges, and statistics of their weights if they have weights."""

    num_edges: int
    directed: bool
    self_loops_dropped: int
    duplicates_merged: int
    weights: dict[str, Any] | None = None


class Rows(NamedTuple):
    """Rows of a CSR; `weights` is empty if edges have no weights."""

    indptr: Array
    indices: Array
    weights: Array = kernels.NO_WEIGHTS


class EdgeBuilder:
    """Collects pairs, then writes the CSR rows. Scratch files are in the writer's folder."""

    def __init__(
        self, writer: ArrayWriter, kind: EdgeKind, expected: int | None, workers: Workers, task_memory: int,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._writer, self.kind, self._workers, self._progress = writer, kind, workers, progress
        pair_bytes = 2 * kind.pair_dtype.itemsize
        self.run_pairs = int(np.clip(workers.memory // (8 * pair_bytes), _LEAST_RUN, _MOST_RUN))
        self._most_pairs = max(_LEAST_PIECE, task_memory // (3 * pair_bytes))
        expected_pairs = None if expected is None else (2 if kind.undirected else 1) * expected
        self.runs = PairRuns(writer, "scratch_out", kind, expected_pairs)
        self._buffer = PairBuffer(kind, self.run_pairs, lambda pairs: self.runs.write(pairs, **self._state))
        self._buffer.self_loops = int(writer.state.get("self_loops", 0))
        self._state: dict[str, Any] = {}

    @property
    def is_read(self) -> bool:
        """Whether an earlier run has read all edges."""
        return "num_pairs" in self._writer.state

    @property
    def seen(self) -> int:
        """Number of input edges that earlier runs have read."""
        return int(self._writer.state.get("edges_seen", 0))

    @property
    def num_pairs(self) -> int:
        if self.is_read:
            return int(self._writer.state["num_pairs"])
        return self.runs.num_pairs + self._buffer.filled

    @property
    def self_loops(self) -> int:
        return self._buffer.self_loops

    def close(self) -> None:
        """Wait for pending writes."""
        self.runs.close()

    def forget(self) -> None:
        """Discard all pairs and start again."""
        self.runs.remove()
        for name in [name for name in self._writer.state if name.startswith("edges_") or name == "self_loops"]:
            del self._writer.state[name]
        self._buffer.self_loops = 0
        self.runs = PairRuns(self._writer, "scratch_out", self.kind, None)  # with the same buckets

    def add(self, sources: Array, targets: Array, weights: Array = kernels.NO_WEIGHTS, **state: Any) -> None:
        """Add a chunk of edges, except ends of -1 and self loops. `state` is saved for resuming after this chunk."""
        self._buffer.add(sources, targets, weights)
        self._state = {**state, "self_loops": self.self_loops}

    def add_runs(self, runs: list[SortedRun], self_loops: int, **state: Any) -> None:
        """Take edges that a worker has read and written to files of the runs' folder."""
        self._buffer.self_loops += self_loops
        self.runs.add(runs, self_loops=self.self_loops, **state)

    def end(self) -> None:
        """Finish reading; requires at least one pair."""
        self._buffer.flush()
        self._writer.commit(num_pairs=self.num_pairs, **self._state)

    def finish(self) -> EdgeCounts:
        """Write all edge arrays."""
        writer, kind, report, num_pairs = self._writer, self.kind, self._progress, self.num_pairs
        write_rows(writer, "out", kind, partial(self._sorted, self.runs), partial(report, "sort edges"))
        self.runs.remove()
        num_edges = len(writer.array("out_indices"))
        if not kind.undirected and "directed" not in writer.state:
            reversed_runs = PairRuns(writer, "scratch_in", kind, num_edges)
            if not writer.has("in_indices"):
                self._reverse_rows(reversed_runs)
            write_rows(writer, "in", kind, partial(self._sorted, reversed_runs), partial(report, "sort turned edges"))
            reversed_runs.remove()
            writer.commit(directed=not same_rows(writer, "out", "in", kind.weighted))
        directed = bool(writer.state.get("directed", False))
        if directed:
            write_rows(writer, "both", kind, self._merged, partial(report, "merge directions"))
        else:
            for part in ("indptr", "indices", "weights"):
                writer.drop(f"in_{part}")
        weights = write_sums(writer, directed) if kind.weighted else None
        return EdgeCounts(num_edges, directed, self.self_loops, num_pairs - num_edges, weights)

    def _sorted(self, runs: PairRuns, first: int) -> Iterator[Any]:
        """Sorted rows from row `first` on, from the pairs in `runs`."""
        pieces = ((piece,) for piece in runs.pieces(first, self._most_pairs))
        return self._workers.run(Piece.sorted, pieces, self._workers.memory)

    def _reverse_rows(self, runs: PairRuns) -> None:
        """Write the reversed edges of all rows into `runs`, resuming where an earlier run stopped."""
        out = self._read_rows("out")
        reverse = partial(_turned, out, self.kind, runs.folder, new_token())
        ranges = windows(out.indptr, int(self._writer.state.get("rows_turned", 0)), min(_MOST_RUN, self._most_pairs))
        for run, done in self._workers.run(reverse, ranges, self._workers.memory):
            runs.add([run], rows_turned=done)
            self._progress("turn edges", done, self.kind.num_nodes)

    def _merged(self, first: int) -> Iterator[Any]:
        """Rows from row `first` on, with neighbours in both directions."""
        out = self._read_rows("out")
        merge = partial(merge_rows, out, self._read_rows("in"))
        return self._workers.run(merge, windows(out.indptr, first, min(_WINDOW_EDGES, self._most_pairs // 8)))

    def _read_rows(self, name: str) -> Rows:
        return Rows(*(self._writer.array(f"{name}_{part}") for part in _parts(self.kind.weighted)))


def write_rows(
    writer: ArrayWriter, name: str, kind: EdgeKind, rows_from: RowsFrom, report: Callable[[int, int], None]
) -> None:
    """Write the CSR `name`, unless it is complete, resuming where an earlier run stopped. `rows_from(first)` yields
    blocks of rows from row `first` on: neighbour counts, neighbours, weights."""
    if writer.has(f"{name}_indices"):
        return
    dtypes = {"indptr": "int64", "indices": index_dtype(kind.num_nodes), "weights": "float32"}
    arrays = {part: writer.grow(f"{name}_{part}", dtypes[part]) for part in _parts(kind.weighted)}
    indptr, indices = arrays["indptr"], arrays["indices"]
    if not indptr.rows:
        indptr.append(np.zeros(1, dtype=np.int64))
    for counts, neighbors, weights in rows_from(indptr.rows - 1):
        indptr.append(indices.rows + np.cumsum(counts))
        indices.append(neighbors)
        if kind.weighted:
            refuse_overflow(weights)
            arrays["weights"].append(weights)
        writer.commit()
        report(indptr.rows - 1, kind.num_nodes)
    for part in arrays:
        writer.close(f"{name}_{part}")
    writer.commit()


def _parts(weighted: bool) -> tuple[str, ...]:
    """Names of the arrays of a CSR."""
    return ("indptr", "indices", "weights") if weighted else ("indptr", "indices")


def _turned(rows: Rows, kind: EdgeKind, folder: RunFolder, token: str, low: int, high: int) -> tuple[SortedRun, int]:
    """Write the rows from `low` to `high` as a run of (target, source) pairs; the run and `high`."""
    begin, end = int(rows.indptr[low]), int(rows.indptr[high])
    sources = np.repeat(np.arange(low, high, dtype=rows.indices.dtype), np.diff(rows.indptr[low : high + 1]))
    pairs = np.empty((end - begin, 2), dtype=kind.pair_dtype)
    kernels.keep_pairs(rows.indices[begin:end], sources, rows.weights[begin:end].view(np.int32), False, pairs)
    return folder.write(f"{token}-{low}", pairs), high


def same_rows(writer: ArrayWriter, name: str, other: str, weighted: bool = False) -> bool:
    """Whether two CSRs are equal."""
    step = 1 << 20
    for part in _parts(weighted):
        a, b = writer.array(f"{name}_{part}"), writer.array(f"{other}_{part}")
        if any(not np.array_equal(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step)):
            return False
    return True


def merge_rows(a: Rows, b: Rows, low: int, high: int) -> tuple[Array, Array, Array]:
    """The union of rows of a and b: (neighbour counts, neighbours, sums of weights or empty)."""
    most = int(a.indptr[high] - a.indptr[low] + b.indptr[high] - b.indptr[low])
    counts, values = np.empty(high - low, dtype=np.int64), np.empty(most, dtype=a.indices.dtype)
    weights = np.empty(most if len(a.weights) else 0, dtype=np.float32)
    size = int(kernels.union_rows(a, b, low, high, counts, values, weights))
    return counts, values[:size], weights[:size]
