"""Sums over neighbours in blocks: AX for a matrix X that need not fit in memory.

Enters: the rows of A that are wanted and a way to load rows of X. Leaves: the sums, lot after lot of rows. Cost:
the memory given. X is loaded once if it fits, otherwise once per lot of wanted rows, always from front to back.

A row's neighbours are added in rising order in any case, so the sums are the same bits for any amount of memory. Where
A has weights, each row of X is multiplied by its own first.

Sets of nodes are sorted node numbers or a range.
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
"""`load(first, last, out)` fills out [last - first, width] with these rows of X."""

Finish = Callable[[int, int, Array], None]

_CHUNK_ROWS = 2048
_SMALL_LOT = 1 << 17
_PIECE_ROWS = 1 << 16


@dataclass(frozen=True)
class Neighbors:
    """Rows of A: sorted neighbour lists, with the node itself among them if `self_loops`. An entry is 1, or its weight
    times `weight_scale` where there are weights; a self loop is 1 in any case."""

    indptr: Array
    indices: Array
    self_loops: bool
    weights: Array | None = None
    weight_scale: float = 1.0

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def around(self, nodes: Array | range) -> Neighbors:
        """The same rows where kernels can read them, if they lie at a URL; then only those from the first of `nodes`
        to the last."""
        if isinstance(self.indptr, np.ndarray) or not len(nodes):
            return self
        first, last = int(nodes[0]), int(nodes[-1]) + 1
        indptr = window(self.indptr, first, last + 1)
        low, high = int(indptr[first]), int(indptr[last])
        weights = None if self.weights is None else window(self.weights, low, high)
        return Neighbors(indptr, window(self.indices, low, high), self.self_loops, weights, self.weight_scale)


def numbers(nodes: Array | range) -> Array:
    """int64 node numbers."""
    return np.arange(nodes.start, nodes.stop) if isinstance(nodes, range) else np.asarray(nodes, dtype=np.int64)


def selection(nodes: Array | range) -> slice | Array:
    """What selects these rows: a slice where they lie side by side, so that a file is read from front to back."""
    if len(nodes) and nodes[-1] - nodes[0] + 1 == len(nodes):
        return slice(int(nodes[0]), int(nodes[-1]) + 1)
    return numbers(nodes)


def degrees_of(indptr: Array, nodes: Array | range) -> Array:
    """Lengths of these rows of a CSR."""
    at = selection(nodes)
    if isinstance(at, slice):
        return np.diff(indptr[at.start : at.stop + 1])
    return np.asarray(indptr[at + 1] - indptr[at])


def marked_numbers(marked: Array, dtype: np.dtype[Any]) -> Array:
    """The nodes that are marked in a boolean [N], sorted. NumPy's own makes int64 of all first."""
    starts = range(0, len(marked), _SMALL_LOT)
    some = [(np.flatnonzero(marked[low : low + _SMALL_LOT]) + low).astype(dtype) for low in starts]
    return np.concatenate([np.zeros(0, dtype=dtype), *some])


@dataclass(frozen=True)
class NeighborSums:
    """The sums over the neighbours of `nodes` of rows of X that `load` fills in, `width` wide. `sources` are the nodes
    that X has rows of; all neighbours must be among them."""

    neighbors: Neighbors
    nodes: Array | range
    load: Load
    width: int
    sources: Array | range


def block_sums(
    wanted: NeighborSums, finish: Finish, memory: int, threads: int | None = None,
    show: Callable[[int, int], None] = lambda done, total: None, start: int = 0,
) -> None:  # fmt: skip
    """`finish(first, last, sums)` with the float32 sums of nodes[first:last], lot after lot, from nodes[start] on.

    The sums are for `finish` to change and to write; where lots are small that happens in the background, one lot at a
    time and in order, while the next one is summed.
    """
    nodes, num_sources = wanted.nodes, len(wanted.sources)
    at_once, source_rows = plan(len(nodes), num_sources, wanted.width, memory)
    block = _Block(wanted, np.empty((source_rows, wanted.width), dtype=np.float32), threads)
    lots = [np.empty((at_once, wanted.width), dtype=np.float32) for _ in range(_num_lots(at_once))]
    show(start, len(nodes))
    with ThreadPoolExecutor(1) as background:
        writing: Future[Any] = background.submit(int)
        for number, first in enumerate(range(start, len(nodes), at_once)):
            some = numbers(nodes[first : first + at_once])
            cursor, sums = wanted.neighbors.indptr[some], lots[number % len(lots)][: len(some)]
            if len(lots) == 1:
                writing.result()
            for begin in range(0, num_sources, source_rows):
                block.load(begin, min(num_sources, begin + source_rows))
                block.add(some, cursor, sums)
                show(first + len(some) * min(num_sources, begin + source_rows) // num_sources, len(nodes))
            writing.result()
            writing = background.submit(_finish_in_pieces, finish, first, sums)
        writing.result()


def _finish_in_pieces(finish: Finish, first: int, sums: Array) -> None:
    """What `finish` makes of a piece, beside the sums, is small."""
    for low in range(0, len(sums), _PIECE_ROWS):
        piece = sums[low : low + _PIECE_ROWS]
        finish(first + low, first + low + len(piece), piece)


def plan(num_nodes: int, num_sources: int, width: int, memory: int) -> tuple[int, int]:
    """(rows of sums at once, rows of X at once) that fit `memory` bytes.

    If X fits, it is loaded once and sums come in small lots. Otherwise sums have the larger part, because X is read
    anew for each lot of them.
    """
    row_bytes = 4 * width
    if num_sources * (row_bytes + 4) <= 0.7 * memory:
        source_rows, most = num_sources, _SMALL_LOT
    else:
        source_rows, most = int(0.35 * memory / (row_bytes + 4)), num_nodes
    at_once = int(0.8 * (memory - source_rows * (row_bytes + 4)) / (row_bytes + 24))
    if at_once <= 2 * _SMALL_LOT:
        at_once //= 2  # one is summed while the other is written
    return max(1, min(num_nodes, at_once, most)), max(1, min(num_sources, source_rows))


def block_bytes(at_once: int, source_rows: int, width: int) -> int:
    """What `block_sums` holds with this plan."""
    return 4 * width * (_num_lots(at_once) * at_once + source_rows) + 24 * at_once + 4 * source_rows


def _num_lots(at_once: int) -> int:
    return 2 if at_once <= _SMALL_LOT else 1


class _Block:
    """Some rows of X, and where in them each node of a range is."""

    def __init__(self, wanted: NeighborSums, dense: Array, threads: int | None) -> None:
        self.wanted, self.dense, self.threads = wanted, dense, threads
        self.begin = -1

    def load(self, begin: int, end: int) -> None:
        """Rows `begin` to `end` of X. The nodes of all blocks lie end to end: each goes up to the next one's first."""
        if begin == self.begin:
            return
        self.begin, sources, num_nodes = begin, self.wanted.sources, self.wanted.neighbors.num_nodes
        self.low = int(sources[begin]) if begin else 0
        self.high = int(sources[end]) if end < len(sources) else num_nodes
        self.place_of = np.zeros(0, dtype=np.int32)
        if not isinstance(sources, range):
            self.place_of = np.full(self.high - self.low, -1, dtype=np.int32)
            for low in range(begin, end, _CHUNK_ROWS):
                some = numbers(sources[low : min(end, low + _CHUNK_ROWS)])
                self.place_of[some - self.low] = np.arange(low - begin, low - begin + len(some))

        def fill(first: int, last: int) -> None:
            self.wanted.load(begin + first, begin + last, self.dense[first:last])

        run_chunks(fill, end - begin, min(_CHUNK_ROWS, rows_within(4 * self.wanted.width)), self.threads)

    def add(self, nodes: Array, cursor: Array, sums: Array) -> None:
        """Add what the block brings to the sums of these nodes, whose lists go on at `cursor`; the first one finds
        anything in the sums."""
        neighbors = self.wanted.neighbors
        weights = np.zeros(0, dtype=np.float32) if neighbors.weights is None else neighbors.weights

        def part(first: int, last: int) -> None:
            if self.low == 0:
                sums[first:last] = 0
            kernels.add_neighbors(
                neighbors.indptr, neighbors.indices, weights, neighbors.weight_scale, neighbors.self_loops,
                nodes[first:last], cursor[first:last], self.low, self.high, self.dense, self.place_of,
                sums[first:last],
            )  # fmt: skip

        run_chunks(part, len(nodes), _CHUNK_ROWS, self.threads)
