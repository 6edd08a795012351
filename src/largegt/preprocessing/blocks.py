"""Sums over neighbours in blocks: AX for a matrix X that need not fit in memory.

Enters: the rows of A that are wanted and a way to load rows of X. Leaves: the sums, lot after lot of rows. Cost:
the memory given. X is loaded once if it fits, otherwise once per block of wanted rows, always from front to back.

A row's neighbours are added in rising order in any case, so the sums are the same bits for any amount of memory. Where
A has weights, each row of X is multiplied by its own first.
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

from .sampling import kernels

Load = Callable[[int, int, Array], None]
"""`load(first, last, out)` fills out [last - first, width] with these rows of X."""

Finish = Callable[[int, int, Array], None]

_CHUNK_ROWS = 2048
_SMALL_LOT = 1 << 17
_PIECE_ROWS = 1 << 16
_NOWHERE = np.zeros(0, dtype=np.int32)


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

    def degrees(self, nodes: Array | range) -> Array:
        if isinstance(nodes, range):
            return np.diff(self.indptr[nodes.start : nodes.stop + 1])
        wanted = numbers(nodes)
        return np.asarray(self.indptr[wanted + 1] - self.indptr[wanted])

    def around(self, nodes: Array | range) -> Neighbors:
        """The same rows where kernels can read them, if they lie at a URL; then only those from the first of `nodes`,
        which are sorted, to the last."""
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


def marked_numbers(marked: Array, dtype: np.dtype[Any]) -> Array:
    """The nodes that are marked in a boolean [N], sorted. NumPy's own makes int64 of all first."""
    found, at = np.empty(np.count_nonzero(marked), dtype=dtype), 0
    for first in range(0, len(marked), _SMALL_LOT):
        some = np.flatnonzero(marked[first : first + _SMALL_LOT])
        found[at : at + len(some)] = some + first
        at += len(some)
    return found


@dataclass(frozen=True)
class NeighborSums:
    """The sums over the neighbours of `nodes`, which are sorted numbers or a range, of rows of X that `load` fills in,
    `width` wide. `sources` are the nodes that X has rows of, sorted (None: every node); all neighbours must be among
    them."""

    neighbors: Neighbors
    nodes: Array | range
    load: Load
    width: int
    sources: Array | None = None

    @property
    def num_sources(self) -> int:
        return self.neighbors.num_nodes if self.sources is None else len(self.sources)


def block_sums(
    wanted: NeighborSums, finish: Finish, memory: int, threads: int | None = None,
    show: Callable[[int, int], None] | None = None, start: int = 0,
) -> None:  # fmt: skip
    """`finish(first, last, sums)` with the float32 sums of nodes[first:last], lot after lot, from nodes[start] on.

    The sums are for `finish` to change and to write; where lots are small that happens in the background, one lot at a
    time and in order, while the next one is summed.
    """
    neighbors, nodes, sources, width = wanted.neighbors, wanted.nodes, wanted.sources, wanted.width
    show, num_sources = show or _nothing_shown, wanted.num_sources
    at_once, source_rows = plan(len(nodes), num_sources, width, memory)
    dense = np.empty((source_rows, width), dtype=np.float32)
    rooms = [np.empty((at_once, width), dtype=np.float32) for _ in range(2 if at_once <= _SMALL_LOT else 1)]
    loaded = -1
    show(start, len(nodes))
    with ThreadPoolExecutor(1) as behind:
        waiting: Future[None] | None = None
        for number, first in enumerate(range(start, len(nodes), at_once)):
            last = min(len(nodes), first + at_once)
            some = numbers(nodes[first:last])
            cursor = neighbors.indptr[some]
            sums = rooms[number % len(rooms)][: last - first]
            for begin in range(0, num_sources, source_rows):
                end = min(num_sources, begin + source_rows)
                low, high = _range(sources, begin, end, neighbors.num_nodes)
                place_of = _places(sources, begin, end, low, high)
                if loaded != begin:
                    _fill(wanted.load, begin, end, dense, threads)
                    loaded = begin
                _add(neighbors, (some, cursor, sums), (low, high, dense, place_of), threads)
                show(first + (last - first) * end // num_sources, len(nodes))
            if waiting is not None:
                waiting.result()
            waiting = behind.submit(_finish_in_pieces, finish, first, sums)
            if len(rooms) == 1:
                waiting.result()
        if waiting is not None:
            waiting.result()


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
    rooms = 2 if at_once <= _SMALL_LOT else 1
    return 4 * width * (rooms * at_once + source_rows) + 24 * at_once + 4 * source_rows


def _range(sources: Array | None, begin: int, end: int, num_nodes: int) -> tuple[int, int]:
    """The node numbers that a block of sources stands for: the blocks lie end to end over all nodes."""
    if sources is None:
        return begin, end
    low = int(sources[begin]) if begin else 0
    return low, int(sources[end]) if end < len(sources) else num_nodes


def _places(sources: Array | None, begin: int, end: int, low: int, high: int) -> Array:
    """Where in the block each node of the range lies; empty when that is its place in the range."""
    if sources is None:
        return _NOWHERE
    places = np.full(high - low, -1, dtype=np.int32)
    for first in range(begin, end, _CHUNK_ROWS):
        last = min(end, first + _CHUNK_ROWS)
        places[numbers(sources[first:last]) - low] = np.arange(first - begin, last - begin, dtype=np.int32)
    return places


def _fill(load: Load, begin: int, end: int, dense: Array, threads: int | None) -> None:
    def part(first: int, last: int) -> None:
        load(begin + first, begin + last, dense[first:last])

    run_chunks(part, end - begin, min(_CHUNK_ROWS, rows_within(4 * dense.shape[1])), threads)


def _add(
    neighbors: Neighbors, rows: tuple[Array, Array, Array], block: tuple[int, int, Array, Array], threads: int | None
) -> None:
    """Add to the rows (their nodes, where their lists go on, their sums) what a block of X brings (the nodes from and
    to which it has rows, the rows, and where in it each node is). The first block finds anything in the sums."""
    nodes, cursor, sums = rows
    low, high, dense, place_of = block

    def part(first: int, last: int) -> None:
        if low == 0:
            sums[first:last] = 0
        some = (nodes[first:last], cursor[first:last], low, high, neighbors.self_loops, dense, place_of)
        if neighbors.weights is None:
            kernels.add_neighbors(neighbors.indptr, neighbors.indices, *some, sums[first:last])
        else:
            kernels.add_weighted(
                neighbors.indptr, neighbors.indices, *some, sums[first:last], neighbors.weights, neighbors.weight_scale
            )

    run_chunks(part, len(nodes), _CHUNK_ROWS, threads)


def _nothing_shown(done: int, total: int) -> None:
    """Where nobody looks."""
