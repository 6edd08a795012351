"""Pairs of node numbers on disk, on their way to rows: in by runs, each grouped by bucket, out by ranges of rows.

Enters: (row, value) pairs in any order, from this process or in files that workers wrote. Leaves: `Piece`s, ranges of
rows that say where their pairs are and sort them. Cost: a run at a time; 8 bytes of disk per pair (int32), 16 beyond
2³¹ nodes or with weights; where every bucket of every run begins, 8 bytes each.

Where edges have weights, the values are entries: a neighbour and a weight in one number (weight_kernels.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..io.array_writer import ArrayWriter
from ..types import Array
from . import kernels, weight_kernels
from .workers import Workers

_BUCKET_PAIRS = 1 << 20
_MOST_BUCKETS = 1 << 10
_MOST_BUCKET_ROWS = 1 << 22
_WRITE_BYTES = 1 << 30
_ENTRY_BITS, _SPLIT_BITS = 63, 12


def index_dtype(num_nodes: int) -> str:
    """int32 where node numbers fit."""
    return "int32" if num_nodes <= 2**31 - 1 else "int64"


@dataclass(frozen=True)
class Buckets:
    """Ranges of 2^shift rows: bucket b holds the rows r with r >> shift == b."""

    num_nodes: int
    shift: int

    @property
    def count(self) -> int:
        return ((self.num_nodes - 1) >> self.shift) + 1

    def grouped(self, pairs: Array) -> tuple[Array, Array]:
        """(the pairs by bucket, where each bucket begins among them)."""
        starts = np.zeros(self.count + 1, dtype=np.int64)
        grouped = np.empty_like(pairs)
        kernels.group_pairs(pairs, self.shift, starts, grouped)
        return grouped, starts


def pair_dtype(num_nodes: int, weighted: bool) -> str:
    """What pairs are made of."""
    return "int64" if weighted else index_dtype(num_nodes)


class PairBuffer:
    """Collects pairs until they make a run, and hands that to `sink`, which may keep it."""

    def __init__(
        self, num_nodes: int, undirected: bool, run_pairs: int, sink: Callable[[Array], None], weighted: bool = False
    ) -> None:
        self._undirected, self._run_pairs, self._sink = undirected, run_pairs, sink
        self._pairs = np.empty((0, 2), dtype=pair_dtype(num_nodes, weighted))
        self.filled, self.self_loops = 0, 0

    def add(self, sources: Array, targets: Array, weights: Array | None = None) -> None:
        """Take a chunk of edges; ends of -1 and self loops are left out."""
        room = (2 if self._undirected else 1) * len(sources)
        if self.filled + room > len(self._pairs):
            self.flush()
            self._pairs = np.empty((max(self._run_pairs, room), 2), dtype=self._pairs.dtype)
        free = self._pairs[self.filled :]
        if weights is None:
            kept, loops = kernels.keep_pairs(sources, targets, self._undirected, free)
        else:
            bits = weights.view(np.int32)
            kept, loops = weight_kernels.keep_entries(sources, targets, bits, self._undirected, free)
        self.filled += int(kept)
        self.self_loops += int(loops)

    def flush(self) -> None:
        pairs, self.filled = self._pairs[: self.filled], 0
        self._pairs = self._pairs[:0]
        if len(pairs):
            self._sink(pairs)


class PairFile:
    """Runs of pairs in a file of their own, as a worker writes them."""

    def __init__(self, file: Path, buckets: Buckets) -> None:
        self._buckets, self._num_pairs = buckets, 0
        self._starts = [np.zeros((0, buckets.count + 1), dtype=np.int64)]
        self._stream = open(file, "wb", buffering=0)  # noqa: SIM115 - closed by close

    def add(self, pairs: Array) -> None:
        grouped, starts = self._buckets.grouped(pairs)
        rest = memoryview(grouped.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        while rest:
            rest = rest[self._stream.write(rest[:_WRITE_BYTES]) :]
        self._starts.append((starts + self._num_pairs)[None])
        self._num_pairs += len(pairs)

    def close(self) -> Array:
        """int64 [runs, buckets + 1]: where each bucket of each run begins in the file."""
        self._stream.close()
        return np.concatenate(self._starts)


class PairRuns:
    """(row, value) pairs on disk: runs, each grouped by bucket. This process appends its runs to one file; workers
    bring files of their own in `folder`."""

    def __init__(
        self, writer: ArrayWriter, name: str, num_nodes: int, expected: int | None, weighted: bool = False
    ) -> None:
        self._writer, self.num_nodes = writer, num_nodes
        self._file_key = f"{name}_files"
        shift = f"{name}_shift"
        if shift not in writer.state:
            writer.state[shift] = _bucket_shift(num_nodes, expected)
        self.buckets = Buckets(num_nodes, int(writer.state[shift]))
        self.dtype = np.dtype(pair_dtype(num_nodes, weighted))
        self.folder = (writer.partial / name).absolute()
        self._pairs = writer.grow(f"{name}_pairs", self.dtype.name, (2,))
        self._starts = writer.grow(f"{name}_starts", "int64", (self.buckets.count + 1,))
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    @property
    def num_pairs(self) -> int:
        return self._pairs.rows + sum(num_pairs for _, _, _, num_pairs in self._files)

    @property
    def _files(self) -> list[tuple[str, int, int, int]]:
        """(name, first run, last run, pairs) of each file that a worker brought; all other runs are in our own."""
        found: list[tuple[str, int, int, int]] = self._writer.state.get(self._file_key, [])
        return found

    def add(self, pairs: Array, **state: Any) -> None:
        """Write a run in the background; once it is on disk, `state` is what the writer goes on from."""
        self.wait()
        self._last = self._pool.submit(self._write, pairs, state)

    def add_file(self, name: str, starts: Array, **state: Any) -> None:
        """Take the runs of a worker's file; `state` is what the writer goes on from."""
        first = self._starts.rows
        self._starts.append(starts)
        num_pairs = int(starts[-1, -1]) if len(starts) else 0
        files = [*self._files, (name, first, self._starts.rows, num_pairs)] if num_pairs else self._files
        self._writer.commit(**{self._file_key: files}, **state)

    def wait(self) -> None:
        """Until the last run is written."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _write(self, pairs: Array, state: dict[str, Any]) -> None:
        grouped, starts = self.buckets.grouped(pairs)
        first = self._pairs.rows
        self._pairs.append(grouped)
        self._starts.append((starts + first)[None])
        self._writer.commit(**state)

    def rows(self, first_row: int, most_pairs: int, workers: Workers) -> Iterator[Piece]:
        """Ranges of rows from `first_row` on with their pairs, each of at most `most_pairs` unless it is one row."""
        starts, files = np.array(self._starts.so_far()), self._files
        header = self._pairs.num_bytes - 2 * self.dtype.itemsize * self._pairs.rows
        own = np.ones(len(starts), dtype=np.bool_)
        for _, first, last, _ in files:
            own[first:last] = False

        def whole(bucket: int) -> Piece:
            parts = [_Part(self._pairs.file.absolute(), header, starts[own, bucket], starts[own, bucket + 1])]
            for name, first, last, _ in files:
                parts.append(_Part(self.folder / name, 0, starts[first:last, bucket], starts[first:last, bucket + 1]))
            low, high = bucket << self.buckets.shift, (bucket + 1) << self.buckets.shift
            parts = [part for part in parts if part.num_pairs]
            return Piece(parts, self.dtype, max(first_row, low), min(self.num_nodes, high))

        buckets = range(first_row >> self.buckets.shift, self.buckets.count)
        sizes = (starts[:, 1:] - starts[:, :-1]).sum(axis=0)
        large = ((whole(bucket), most_pairs) for bucket in buckets if sizes[bucket] > most_pairs)
        split = iter(workers.run(_split_rows, large, workers.memory))
        for bucket in buckets:
            piece = whole(bucket)
            if sizes[bucket] <= most_pairs:
                yield piece
                continue
            for low, high in next(split):
                yield replace(piece, low=low, high=high)


def remove_runs(writer: ArrayWriter, name: str) -> None:
    """The pairs of these runs have served."""
    writer.state.pop(f"{name}_files", None)
    for part in ("pairs", "starts"):
        writer.drop(f"{name}_{part}")
    shutil.rmtree(writer.partial / name, ignore_errors=True)


@dataclass(frozen=True)
class _Part:
    """Where pairs are in a file."""

    file: Path
    offset: int
    begins: Array
    ends: Array

    @property
    def num_pairs(self) -> int:
        return int((self.ends - self.begins).sum())


@dataclass(frozen=True)
class Piece:
    """Some rows and where their pairs are, among others."""

    parts: list[_Part]
    dtype: np.dtype[Any]
    low: int
    high: int

    def pairs(self) -> Iterator[tuple[Array, Array, Array]]:
        """(pairs of a file, mapped, where those in question begin and end), file after file."""
        for part in self.parts:
            size = int(part.ends.max())
            pairs = np.memmap(part.file, dtype=self.dtype, mode="r", offset=part.offset, shape=(size, 2))
            yield pairs, part.begins, part.ends

    def counts(self) -> Array:
        """Pairs of each row."""
        counts = np.zeros(self.high - self.low, dtype=np.int64)
        for pairs, begins, ends in self.pairs():
            kernels.count_pieces(pairs, begins, ends, self.low, counts)
        return counts

    def sorted(self, most_pairs: int) -> tuple[Array, Array, int]:
        """(how many distinct values each row has, the values row after row, how asymmetric they are)."""
        counts = self.counts()
        total = int(counts.sum())
        if total > most_pairs:  # one row with more pairs than memory: its values are marked in a bitmap
            return self._one_row()
        values = np.empty(total, dtype=self.dtype)
        starts = offsets(counts)
        cursor = starts[:-1].copy()
        for pairs, begins, ends in self.pairs():
            kernels.place_pieces(pairs, begins, ends, self.low, cursor, values)
        asymmetry = kernels.sort_rows(starts, values, counts, self.low)
        return counts, values[: int(counts.sum())], int(asymmetry)

    def _one_row(self) -> tuple[Array, Array, int]:
        largest = max(kernels.largest_of_row(*pairs, self.low) for pairs in self.pairs())
        marks = np.zeros((int(largest) >> 3) + 1, dtype=np.uint8)
        for pairs in self.pairs():
            kernels.mark_row(*pairs, self.low, marks)
        values = np.flatnonzero(np.unpackbits(marks, bitorder="little")).astype(self.dtype)
        return np.array([len(values)]), values, int(kernels.asymmetry_of(self.low, values))


@dataclass(frozen=True)
class WeightedPiece:
    """A piece whose values are entries."""

    piece: Piece

    def sorted(self, most_pairs: int) -> tuple[Array, Array, int, Array]:
        """(how many distinct neighbours each row has, the neighbours row after row, how asymmetric they are, the sums
        of their weights in float64)."""
        piece = self.piece
        counts = piece.counts()
        total = int(counts.sum())
        if total > most_pairs:
            return self._one_row(total, most_pairs)
        starts, entries = offsets(counts), np.empty(total, dtype=np.int64)
        cursor = starts[:-1].copy()
        for pairs, begins, ends in piece.pairs():
            kernels.place_pieces(pairs, begins, ends, piece.low, cursor, entries)
        values, weights = np.empty(total, dtype=np.int64), np.empty(total)
        asymmetry = weight_kernels.sort_entries(starts, entries, counts, piece.low, values, weights)
        kept = int(counts.sum())
        return counts, values[:kept], int(asymmetry), weights[:kept]

    def _one_row(self, total: int, most_pairs: int) -> tuple[Array, Array, int, Array]:
        """One row with more pairs than memory: range after range of its entries, in their order. What a range ends
        with may go on in the next."""
        values, weights = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for low, high, size in self._ranges(0, _ENTRY_BITS, total, most_pairs):
            for entries in self._taken(low, high, size, most_pairs):
                entries.sort()
                begun = min(1, len(values[-1]))
                more, sums = np.empty(begun + len(entries), dtype=np.int64), np.empty(begun + len(entries))
                more[:begun], sums[:begun] = values[-1][-1:], weights[-1][-1:]
                kept = weight_kernels.add_entries(entries, more, sums, 0, begun)
                values[-1], weights[-1] = values[-1][: -1 if begun else None], weights[-1][: -1 if begun else None]
                values.append(more[:kept].copy())
                weights.append(sums[:kept].copy())
        every = np.concatenate(values)
        asymmetry = int(kernels.asymmetry_of(self.piece.low, every))
        return np.array([len(every)]), every, asymmetry, np.concatenate(weights)

    def _ranges(self, low: int, bits: int, size: int, most: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, how many) of ranges of entries with at most `most` each, or of one that comes that often; of
        the entries that are `low` but for so many bits."""
        if size <= most or not bits:
            yield low, low + (1 << bits) - 1, size
            return
        shift = max(0, bits - _SPLIT_BITS)
        counts = np.zeros(1 << (bits - shift), dtype=np.int64)
        for pairs in self.piece.pairs():
            weight_kernels.count_keys(*pairs, self.piece.low, low, shift, counts)
        for first, last in windows(offsets(counts), 0, most):
            here = int(counts[first:last].sum())
            if last == first + 1:
                yield from self._ranges(low + (first << shift), shift, here, most)
            elif here:
                yield low + (first << shift), low + (last << shift) - 1, here

    def _taken(self, low: int, high: int, size: int, most: int) -> Iterator[Array]:
        """The entries of a range; one that comes more often than memory holds, in lots."""
        if low == high:
            for done in range(0, size, most):
                yield np.full(min(most, size - done), low)
            return
        entries, taken = np.empty(size, dtype=np.int64), 0
        for pairs in self.piece.pairs():
            taken = weight_kernels.take_keys(*pairs, self.piece.low, low, high, entries, taken)
        yield entries


def _split_rows(piece: Piece, most_pairs: int) -> list[tuple[int, int]]:
    """The rows of a piece in ranges of at most so many pairs, or one row."""
    return [(piece.low + low, piece.low + high) for low, high in windows(offsets(piece.counts()), 0, most_pairs)]


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
    """Rows of a bucket, as a power of two: about a million pairs or less than some million rows each,
    and not too many buckets."""
    wanted = max(-(-(expected or _BUCKET_PAIRS * 256) // _BUCKET_PAIRS), -(-num_nodes // _MOST_BUCKET_ROWS))
    wanted = min(_MOST_BUCKETS, max(1, wanted))
    shift = 0
    while (num_nodes - 1) >> shift >= wanted:
        shift += 1
    return shift
