"""Context features: C⁰ = ÃH, C¹ = ÃC⁰ and so on, and the token rows [H, C⁰, C¹, …] made of them.

Enters: a GraphStore and the nodes that tokens will be gathered for. Leaves: `tokens` [t, hops + 1, d], one gather for
all tokens of a node. Cost: one pass per hop over the edges that reach those nodes, in blocks within the memory given
(blocks.py); all contexts but the last lie on disk in between, each for the nodes that the next one sums over. Sums are
float32 whatever the features are stored as.

Ã = D_r^{-1/2} (A + I) D_c^{-1/2} with the degrees of A + I: by rows along the chosen direction, by columns against it.
For the undirected view both are the same and Ã is the usual symmetric normalisation.
"""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError
from ..folder import FolderWriter, require_space
from ..graph.precision import decode
from ..graph.store import GraphStore
from ..progress import Progress, silent
from ..threads import run_ranges
from ..types import Array, Direction
from . import kernels
from .blocks import Finish, Load, Neighbors, block_sums
from .engines.local import run_chunks

_CHUNK_ROWS = 1 << 14


def feature_scale(store: GraphStore, standardize: bool, threads: int | None = None) -> tuple[Array, Array]:
    """`(shift, gain)` float32 [d]: (x - shift)·gain has mean 0 and variance 1; zeros and ones without it."""
    width = store.num_features
    if not standardize:
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    pilot = decode(store.features[:1], store.feature_dtype).astype(np.float64)[0]

    def moments(start: int, stop: int) -> tuple[Array, Array]:
        block = decode(store.features[start:stop], store.feature_dtype).astype(np.float64) - pilot
        return block.sum(axis=0), (block * block).sum(axis=0)

    total, square = np.zeros(width), np.zeros(width)
    bounds = [*range(0, store.num_nodes, _CHUNK_ROWS), store.num_nodes]
    for part, part_square in run_ranges(moments, bounds, threads):  # in order: the same bits for any threads
        total += part
        square += part_square
    mean = total / store.num_nodes
    deviation = np.sqrt(np.maximum(square / store.num_nodes - mean * mean, 0.0))
    constant = deviation <= 1e-7 * np.abs(mean + pilot)
    gain = 1.0 / np.where(constant, 1.0, deviation)
    return (mean + pilot).astype(np.float32), gain.astype(np.float32)


class ContextFeatures:
    """Computes the token rows of `nodes` (sorted node numbers) of one store."""

    def __init__(
        self, store: GraphStore, nodes: Array, shift: Array, gain: Array, direction: Direction, memory: int,
        threads: int | None = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.store, self.nodes, self.shift, self.gain = store, nodes, shift, gain
        self.memory, self.threads, self.progress = memory, threads, progress
        self.neighbors = Neighbors(*store.csr(direction), self_loops=True)
        self.reverse_indptr, _ = store.reverse_csr(direction)
        self.width = store.num_features

    def write(self, writer: FolderWriter, dtype: str, hops: int = 2) -> None:
        """Grow `tokens` [t, hops + 1, d] in the writer's folder, from where an earlier run stopped."""
        rings = self._rings(hops)
        out = writer.grow("tokens", dtype, (hops + 1, self.width))
        missing = (hops + 1) * (len(self.nodes) - out.rows) * self.width * out.stored.itemsize
        for hop in range(1, hops):
            missing += 4 * (len(self._numbers(rings[hop])) - writer.rows(_scratch(hop))) * self.width
        require_space(writer.path, missing, "context features")
        contexts: list[Array] = []
        for hop in range(1, hops):
            contexts.append(self._write_context(writer, hop, rings, contexts))

        def finish(first: int, last: int, sums: Array | None) -> None:
            if sums is not None:
                self._scale_rows(self.nodes[first:last], sums, self.gain if hops == 1 else None)
            for start in range(first, last, _CHUNK_ROWS):
                stop = min(last, start + _CHUNK_ROWS)
                part = None if sums is None else sums[start - first : stop - first]
                out.append(self._token_rows(start, stop, rings, contexts, part, dtype))
            writer.commit()

        if hops:
            self._sum(self.nodes, hops, rings, contexts, finish, out.rows)
        else:
            show = self.progress or silent
            for start in range(out.rows, len(self.nodes), _CHUNK_ROWS):
                show("token rows", start, len(self.nodes))
                finish(start, min(len(self.nodes), start + _CHUNK_ROWS), None)
        writer.close("tokens")
        for hop in range(1, hops):
            writer.drop(_scratch(hop))

    def _rings(self, hops: int) -> list[Array | None]:
        """The nodes that hop 0, 1, …, `hops` is needed of, sorted: those of the last, and from there on the neighbours
        too; None for all nodes."""
        rings: list[Array | None] = [self.nodes]
        for _ in range(hops):
            rings.insert(0, None if rings[0] is None else self._with_neighbors(rings[0]))
        return rings

    def _numbers(self, ring: Array | None) -> Array | range:
        return range(self.store.num_nodes) if ring is None else ring

    def _write_context(
        self, writer: FolderWriter, hop: int, rings: list[Array | None], contexts: list[Array]
    ) -> Array:  # fmt: skip
        """The context after `hop` hops, of its ring, as a scratch array, mapped."""
        nodes = self._numbers(rings[hop])
        made = writer.grow(_scratch(hop), "float32", (self.width,))

        def finish(first: int, last: int, sums: Array) -> None:
            self._scale_rows(nodes[first:last], sums, self.gain if hop == 1 else None)
            made.append(sums)
            writer.commit()

        if made.rows < len(nodes):
            self._sum(nodes, hop, rings, contexts, finish, made.rows)
        return made.so_far()

    def _token_rows(
        self, start: int, stop: int, rings: list[Array | None], contexts: list[Array], last: Array | None, dtype: str
    ) -> Array:
        nodes = np.asarray(self.nodes[start:stop], dtype=np.int64)
        rows = np.empty((stop - start, len(rings), self.width), dtype=np.float32)
        own = decode(_rows(self.store.features, nodes), self.store.feature_dtype)
        np.multiply(own - self.shift, self.gain, out=rows[:, 0])
        for hop, context in enumerate(contexts, start=1):
            ring = rings[hop]
            rows[:, hop] = _rows(context, nodes if ring is None else np.searchsorted(ring, nodes))
        if last is not None:
            rows[:, -1] = last
        with np.errstate(over="ignore"):
            stored = rows.astype(dtype)
        if not np.isfinite(stored).all():
            raise ConfigError(f"token rows overflow {dtype}: run with --set prepare.tokens.dtype=float32")
        return stored

    def _sum(
        self, nodes: Array | range, hop: int, rings: list[Array | None], contexts: list[Array], finish: Finish,
        start: int,
    ) -> None:  # fmt: skip
        sources = rings[hop - 1]
        load = self._load_features(sources) if hop == 1 else self._load_context(contexts[hop - 2], sources)
        block_sums(
            self.neighbors, nodes, sources, load, self.width, finish, self.memory, self.threads, self.progress,
            f"context C{hop - 1}", start,
        )  # fmt: skip

    def _load_features(self, sources: Array | None) -> Load:
        def load(first: int, last: int, out: Array) -> None:
            nodes = slice(first, last) if sources is None else np.asarray(sources[first:last], dtype=np.int64)
            block = decode(self.store.features[nodes], self.store.feature_dtype)
            np.subtract(block, self.shift, out=out)
            out *= self._column_scale(nodes)[:, None]

        return load

    def _load_context(self, context: Array, near: Array | None) -> Load:
        def load(first: int, last: int, out: Array) -> None:
            nodes = slice(first, last) if near is None else np.asarray(near[first:last], dtype=np.int64)
            np.multiply(context[first:last], self._column_scale(nodes)[:, None], out=out)

        return load

    def _column_scale(self, nodes: slice | Array) -> Array:
        if isinstance(nodes, slice):
            degrees = np.diff(self.reverse_indptr[nodes.start : nodes.stop + 1])
        else:
            degrees = self.reverse_indptr[nodes + 1] - self.reverse_indptr[nodes]
        return _root_scale(degrees)

    def _scale_rows(self, nodes: Array | range, sums: Array, gain: Array | None) -> None:
        scale = _root_scale(self.neighbors.degrees(nodes))

        def part(first: int, last: int) -> None:
            sums[first:last] *= scale[first:last, None]
            if gain is not None:
                sums[first:last] *= gain

        run_chunks(part, len(sums), _CHUNK_ROWS, self.threads)

    def _with_neighbors(self, nodes: Array) -> Array | None:
        """These nodes and their neighbours, sorted; None when that is every node, or nearly."""
        num_nodes = self.store.num_nodes
        if len(nodes) == num_nodes:
            return None
        marked = np.zeros(num_nodes, dtype=np.bool_)
        marked[nodes] = True
        kernels.mark_neighbors(self.neighbors.indptr, self.neighbors.indices, nodes, marked)
        if np.count_nonzero(marked) > 0.9 * num_nodes:
            return None
        return np.flatnonzero(marked).astype(nodes.dtype)


def _scratch(hop: int) -> str:
    return f"scratch_context_{hop}"


def _rows(matrix: Array, rows: Array) -> Array:
    """Rows of a mapped matrix; a range of them as a slice, which reads from front to back."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return matrix[int(rows[0]) : int(rows[-1]) + 1]
    return matrix[rows]


def _root_scale(degrees: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(degrees + 1.0), dtype=np.float32)
