"""Sums over neighbours in blocks: AX for a matrix X that need not fit in memory.

Enters: the requested rows of A and a function that loads rows of X. Leaves: the sums, chunk by chunk. Cost: the memory
limit. X is loaded once if it fits, otherwise once per chunk, always in order.

Neighbours are added in ascending order, so the sums are the same bits for any memory limit. If A has weights, each row
of X is multiplied by its weight first.

A set of nodes is a sorted array of node numbers or a range.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from largegt.io.remote_array import window
from largegt.runtime.memory import rows_within
from largegt.runtime.threads import run_chunks
from largegt.types import Array

from . import kernels

Load = Callable[[int, int, Array], None]
"""`load(first, last, out)` fills out [last - first, width] with rows first:last of X."""

Finish = Callable[[int, int, Array], None]

_CHUNK_ROWS = 2048
_SMALL_CHUNK = 1 << 17
_PIECE_ROWS = 1 << 16


@dataclass(frozen=True)
class Neighbors:
    """Rows of A: sorted neighbour lists, with the node itself if `self_loops`. An entry is 1, or its weight times
    `weight_scale` if there are weights; a self loop is always 1."""

    indptr: Array
    indices: Array
    self_loops: bool
    weights: Array | None = None
    weight_scale: float = 1.0

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def load_rows(self, nodes: Array | range) -> Neighbors:
        """These rows in memory, for kernels. Of rows at a URL, only those from the first of `nodes` to the last are
        loaded."""
        if isinstance(self.indptr, np.ndarray) or not len(nodes):
            return self
        first, last = int(nodes[0]), int(nodes[-1]) + 1
        indptr = window(self.indptr, first, last + 1)
        low, high = int(indptr[first]), int(indptr[last])
        weights = None if self.weights is None else window(self.weights, low, high)
        return Neighbors(indptr, window(self.indices, low, high), self.self_loops, weights, self.weight_scale)


def node_array(nodes: Array | range) -> Array:
    """The node numbers as an int64 array."""
    return np.arange(nodes.start, nodes.stop) if isinstance(nodes, range) else np.asarray(nodes, dtype=np.int64)


def as_index(nodes: Array | range) -> slice | Array:
    """An index of these rows: a slice if they are contiguous, so that a file is read in order."""
    if len(nodes) and nodes[-1] - nodes[0] + 1 == len(nodes):
        return slice(int(nodes[0]), int(nodes[-1]) + 1)
    return node_array(nodes)


def degrees_of(indptr: Array, nodes: Array | range) -> Array:
    """The lengths of these rows of a CSR."""
    at = as_index(nodes)
    if isinstance(at, slice):
        return np.diff(indptr[at.start : at.stop + 1])
    return np.asarray(indptr[at + 1] - indptr[at])


def marked_nodes(marked: Array, dtype: np.dtype[Any]) -> Array:
    """The nodes marked in a boolean [N], sorted. np.flatnonzero would allocate int64 for all of them."""
    starts = range(0, len(marked), _SMALL_CHUNK)
    some = [(np.flatnonzero(marked[low : low + _SMALL_CHUNK]) + low).astype(dtype) for low in starts]
    return np.concatenate([np.zeros(0, dtype=dtype), *some])


@dataclass(frozen=True)
class NeighborSums:
    """A request for the sums over the neighbours of `nodes`: rows of X, filled by `load`, of this width. `sources` are
    the nodes with rows in X; they must include all neighbours."""

    neighbors: Neighbors
    nodes: Array | range
    load: Load
    width: int
    sources: Array | range


def block_sums(
    wanted: NeighborSums, finish: Finish, memory: int, threads: int | None = None,
    show: Callable[[int, int], None] = lambda done, total: None, start: int = 0,
) -> None:  # fmt: skip
    """Call `finish(first, last, sums)` with the float32 sums of nodes[first:last], chunk by chunk, from nodes[start]
    on.

    `finish` may change the sums and writes them. If chunks are small, it runs in a background thread, one chunk at a
    time and in order, while the next chunk is summed.
    """
    nodes, num_sources = wanted.nodes, len(wanted.sources)
    rows_at_once, source_rows = plan(len(nodes), num_sources, wanted.width, memory)
    block = _Block(wanted, np.empty((source_rows, wanted.width), dtype=np.float32), threads)
    buffers = [np.empty((rows_at_once, wanted.width), dtype=np.float32) for _ in range(_num_buffers(rows_at_once))]
    show(start, len(nodes))
    with ThreadPoolExecutor(1) as background:
        writing: Future[Any] = background.submit(int)
        for number, first in enumerate(range(start, len(nodes), rows_at_once)):
            some = node_array(nodes[first : first + rows_at_once])
            cursor, sums = wanted.neighbors.indptr[some], buffers[number % len(buffers)][: len(some)]
            if len(buffers) == 1:
                writing.result()
            for begin in range(0, num_sources, source_rows):
                block.load(begin, min(num_sources, begin + source_rows))
                block.add(some, cursor, sums)
                show(first + len(some) * min(num_sources, begin + source_rows) // num_sources, len(nodes))
            writing.result()
            writing = background.submit(_finish_in_pieces, finish, first, sums)
        writing.result()


def _finish_in_pieces(finish: Finish, first: int, sums: Array) -> None:
    """Call `finish` in small pieces to bound its temporary arrays."""
    for low in range(0, len(sums), _PIECE_ROWS):
        piece = sums[low : low + _PIECE_ROWS]
        finish(first + low, first + low + len(piece), piece)


def plan(num_nodes: int, num_sources: int, width: int, memory: int) -> tuple[int, int]:
    """(rows of sums per chunk, rows of X per block) that fit into `memory` bytes.

    If X fits, it is loaded once and chunks are small. Otherwise the sums get the larger part, because X is read again
    for each chunk.
    """
    row_bytes = 4 * width
    if num_sources * (row_bytes + 4) <= 0.7 * memory:
        source_rows, max_rows = num_sources, _SMALL_CHUNK
    else:
        source_rows, max_rows = int(0.35 * memory / (row_bytes + 4)), num_nodes
    rows_at_once = int(0.8 * (memory - source_rows * (row_bytes + 4)) / (row_bytes + 24))
    if rows_at_once <= 2 * _SMALL_CHUNK:
        rows_at_once //= 2  # one is summed while the other is written
    return max(1, min(num_nodes, rows_at_once, max_rows)), max(1, min(num_sources, source_rows))


def block_bytes(rows_at_once: int, source_rows: int, width: int) -> int:
    """The memory of `block_sums` with this plan."""
    return 4 * width * (_num_buffers(rows_at_once) * rows_at_once + source_rows) + 24 * rows_at_once + 4 * source_rows


def _num_buffers(rows_at_once: int) -> int:
    return 2 if rows_at_once <= _SMALL_CHUNK else 1


class _Block:
    """A block of rows of X, with the row of each node in a range."""

    def __init__(self, wanted: NeighborSums, dense: Array, threads: int | None) -> None:
        self.wanted, self.dense, self.threads = wanted, dense, threads
        self.begin = -1

    def load(self, begin: int, end: int) -> None:
        """Load rows `begin` to `end` of X. The node ranges of all blocks are contiguous: each ends at the first node of
        the next."""
        if begin == self.begin:
            return
        self.begin, sources, num_nodes = begin, self.wanted.sources, self.wanted.neighbors.num_nodes
        self.low = int(sources[begin]) if begin else 0
        self.high = int(sources[end]) if end < len(sources) else num_nodes
        self.row_of = np.zeros(0, dtype=np.int32)
        if not isinstance(sources, range):
            self.row_of = np.full(self.high - self.low, -1, dtype=np.int32)
            for low in range(begin, end, _CHUNK_ROWS):
                some = node_array(sources[low : min(end, low + _CHUNK_ROWS)])
                self.row_of[some - self.low] = np.arange(low - begin, low - begin + len(some))

        def fill(first: int, last: int) -> None:
            self.wanted.load(begin + first, begin + last, self.dense[first:last])

        run_chunks(fill, end - begin, min(_CHUNK_ROWS, rows_within(4 * self.wanted.width)), self.threads)

    def add(self, nodes: Array, cursor: Array, sums: Array) -> None:
        """Add the rows of this block to the sums of these nodes, whose lists continue at `cursor`. The first block
        overwrites the sums."""
        neighbors = self.wanted.neighbors
        weights = np.zeros(0, dtype=np.float32) if neighbors.weights is None else neighbors.weights

        def part(first: int, last: int) -> None:
            if self.low == 0:
                sums[first:last] = 0
            kernels.add_neighbors(
                neighbors.indptr, neighbors.indices, weights, neighbors.weight_scale, neighbors.self_loops,
                nodes[first:last], cursor[first:last], self.low, self.high, self.dense, self.row_of,
                sums[first:last],
            )  # fmt: skip

        run_chunks(part, len(nodes), _CHUNK_ROWS, self.threads)
