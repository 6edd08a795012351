"""Context features: C⁰ = ÃH, C¹ = ÃC⁰ and so on, and the token rows [H, C⁰, C¹, …] made of them.

Enters: NodeFeatures and the nodes that tokens will be gathered for. Leaves: `tokens` [t, 1 + contexts, d], one gather
for all tokens of a node. Cost: one pass per hop and direction over the edges that reach those nodes, in blocks within
the memory given (blocks.py); all contexts but the last lie on disk in between, each for the nodes that the next one
sums over. Sums are float32 whatever the features are stored as.

Ã = D_r^{-1/2} (A + I) D_c^{-1/2} with the degrees of A + I: by rows along the chosen direction, by columns against it.
For the undirected view both are the same and Ã is the usual symmetric normalisation. Where edges have weights, A has
them in place of ones, divided by their mean: an average edge counts as much as the node itself, weights that are all
alike change nothing, and neither does their unit.

Where edges have features, e are their means over the edges at each node, brought to the scale of the other columns (the
paper, section 3: by "using edge features during message passing to update node representations"):

  H_i = [H_i, 0]    C⁰_i = [(ÃH)_i, e_i]    C¹_i = [(Ã²H)_i, (Ãe)_i]    and so on

Along several directions a row is [H, Ã_out H, Ã_in H, Ã_out² H, Ã_in² H, …]: by hop, and within a hop by direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.runtime.engine import Engine
from largegt.runtime.memory import rows_within
from largegt.runtime.threads import run_chunks
from largegt.types import OPPOSITE, Array, Direction

from .blocks import Finish, Load, Neighbors, NeighborSums, marked_numbers
from .features import EdgeMeans, NodeFeatures, as_range, degrees_of

_CHUNK_ROWS = 1 << 14


def context_names(directions: Sequence[Direction], hops: int) -> list[str]:
    """What the contexts of a token row are called, in their order: C0, C1, … along one direction, and by their
    direction and hop along several."""
    if len(directions) == 1:
        return [f"C{hop}" for hop in range(hops)]
    return [f"{side} {hop} {'hop' if hop == 1 else 'hops'}" for hop in range(1, hops + 1) for side in directions]


@dataclass(frozen=True)
class Degrees:
    """Row sums of A, from where rows begin; or from the sums of weights, which are multiplied by `scale`."""

    known: Array
    scale: float | None = None

    def root_scale(self, nodes: slice | Array) -> Array:
        """float32 (degree + 1)^{-1/2} of a range of nodes or of sorted node numbers."""
        degrees = degrees_of(self.known, nodes) if self.scale is None else self.known[nodes] * self.scale
        return np.asarray(1.0 / np.sqrt(degrees + 1.0), dtype=np.float32)


class _Walk:
    """One direction: its Ã, the nodes that each hop is needed of, and the contexts made so far."""

    def __init__(
        self, store: GraphStore, nodes: Array, direction: Direction, hops: int, engine: Engine, weighted: bool
    ) -> None:
        self.direction, self.engine = direction, engine
        self.neighbors = Neighbors(*store.csr(direction), self_loops=True)
        self.degrees, self.reverse_degrees = Degrees(store.csr(direction)[0]), Degrees(store.reverse_csr(direction)[0])
        if weighted:
            scale = 1.0 / store.mean_weight(direction)
            weights, strengths, _ = store.weights_of(direction)
            self.neighbors = replace(self.neighbors, weights=weights, weight_scale=scale)
            self.degrees = Degrees(strengths, scale)
            self.reverse_degrees = Degrees(store.weights_of(OPPOSITE[direction])[1], scale)
        self.rings: list[Array | None] = [nodes]
        """The nodes that hop 0, 1, …, `hops` is needed of, sorted: those of the last, and from there on the neighbours
        too; None for all nodes."""
        for _ in range(hops):
            self.rings.insert(0, None if self.rings[0] is None else self._with_neighbors(self.rings[0]))
        self.contexts: list[Array] = []

    def numbers(self, hop: int) -> Array | range:
        """The nodes of a ring."""
        ring = self.rings[hop]
        return range(self.neighbors.num_nodes) if ring is None else ring

    def scratch(self, hop: int) -> str:
        return f"scratch_context_{self.direction}_{hop}"

    def row_scale(self, nodes: Array | range) -> Array:
        return self.degrees.root_scale(_range_of(nodes))

    def _with_neighbors(self, nodes: Array) -> Array | None:
        """These nodes and their neighbours, sorted; None when that is every node, or nearly."""
        num_nodes = self.neighbors.num_nodes
        if len(nodes) == num_nodes:
            return None
        marked = np.zeros(num_nodes, dtype=np.bool_)
        marked[nodes] = True
        self.engine.mark_neighbors(self.neighbors, nodes, marked)
        if np.count_nonzero(marked) > 0.9 * num_nodes:
            return None
        return marked_numbers(marked, nodes.dtype)


class ContextFeatures:
    """Computes the token rows of `nodes` (sorted node numbers) of one store, with contexts along each direction."""

    def __init__(
        self, features: NodeFeatures, nodes: Array, shift: Array, gain: Array, directions: Sequence[Direction],
        engine: Engine, weighted: bool = False, edge_features: bool = False,
    ) -> None:  # fmt: skip
        """`shift` and `gain` [d] are of the features, and behind them of the means of edge features where contexts have
        these."""
        self.features, self.nodes, self.shift, self.gain = features, nodes, shift, gain
        self.directions, self.engine, self.weighted = directions, engine, weighted
        self.edge_width = features.store.num_edge_features if edge_features else 0
        self.width = features.width + self.edge_width

    def write(self, writer: ArrayWriter, dtype: str, hops: int = 2) -> None:
        """Grow `tokens` [t, 1 + hops·directions, d] in the writer's folder, from where an earlier run stopped."""
        names = context_names(self.directions, hops)
        store = self.features.store
        walks = [_Walk(store, self.nodes, side, hops, self.engine, self.weighted) for side in self.directions]
        out = writer.grow("tokens", dtype, (1 + len(names), self.width))
        token_rows_at_once = rows_within(4 * (1 + len(names)) * self.width)
        # the last context goes straight into the rows, all others lie aside until then
        aside = [(walk, hop) for walk in walks for hop in range(1, hops if walk is walks[-1] else hops + 1)]
        missing = (1 + len(names)) * (len(self.nodes) - out.rows) * self.width * out.stored.itemsize
        for walk, hop in aside:
            missing += 4 * (len(walk.numbers(hop)) - writer.rows(walk.scratch(hop))) * self.width
        require_space(writer.path, missing, "context features")
        for walk, hop in aside:
            name = names[(hop - 1) * len(walks) + walks.index(walk)]
            walk.contexts.append(self._write_context(writer, walk, hop, name))

        def finish(first: int, last: int, sums: Array | None) -> None:
            if sums is not None:
                sums = self._context_rows(walks[-1], self.nodes[first:last], sums, hops)
            for start in range(first, last, token_rows_at_once):
                stop = min(last, start + token_rows_at_once)
                part = None if sums is None else sums[start - first : stop - first]
                out.append(self._token_rows(start, stop, walks, len(names), part, dtype))
            writer.commit()

        if hops:
            self._sum(walks[-1], self.nodes, hops, names[-1], finish, out.rows)
        else:
            for start in range(out.rows, len(self.nodes), _CHUNK_ROWS):
                self.engine.show("token rows", start, len(self.nodes))
                finish(start, min(len(self.nodes), start + _CHUNK_ROWS), None)
        writer.close("tokens")
        for walk, hop in aside:
            writer.drop(walk.scratch(hop))

    def _write_context(self, writer: ArrayWriter, walk: _Walk, hop: int, name: str) -> Array:
        """The context after `hop` hops, of its ring, as a scratch array, mapped."""
        nodes = walk.numbers(hop)
        made = writer.grow(walk.scratch(hop), "float32", (self.width,))

        def finish(first: int, last: int, sums: Array) -> None:
            made.append(self._context_rows(walk, nodes[first:last], sums, hop))
            writer.commit()

        if made.rows < len(nodes):
            self._sum(walk, nodes, hop, name, finish, made.rows)
        return made.so_far()

    def _token_rows(
        self, start: int, stop: int, walks: list[_Walk], num_contexts: int, last: Array | None, dtype: str
    ) -> Array:
        nodes = np.asarray(self.nodes[start:stop], dtype=np.int64)
        rows = np.empty((stop - start, 1 + num_contexts, self.width), dtype=np.float32)
        own = self.features.width
        np.multiply(self.features.rows(nodes) - self.shift[:own], self.gain[:own], out=rows[:, 0, :own])
        rows[:, 0, own:] = 0
        for side, walk in enumerate(walks):
            for hop, context in enumerate(walk.contexts, start=1):
                ring = walk.rings[hop]
                places = nodes if ring is None else np.searchsorted(ring, nodes)
                rows[:, 1 + (hop - 1) * len(walks) + side] = context[as_range(places)]
        if last is not None:
            rows[:, -1] = last
        with np.errstate(over="ignore"):
            stored = rows.astype(dtype)
        if not np.isfinite(stored).all():
            row, _, column = (int(at) for at in np.argwhere(~np.isfinite(stored))[0])
            node = self.features.store.ids_of(nodes[row : row + 1])[0]
            mend = "prepare.tokens.dtype=float32" if np.isfinite(rows).all() else "prepare.tokens.standardize=true"
            raise ConfigError(f"token rows overflow {dtype} at node {node!r}, feature {column}: run with --set {mend}")
        return stored

    def _sum(self, walk: _Walk, nodes: Array | range, hop: int, name: str, finish: Finish, start: int) -> None:
        sources = walk.rings[hop - 1]
        load: Load
        width = self.width
        if hop == 1:
            width = self.features.width
            load = _FeatureRows(self.features, self.shift[:width], walk.reverse_degrees, sources)
        else:
            load = _ContextRows(walk.contexts[hop - 2], walk.reverse_degrees, sources)
        self.engine.sums(NeighborSums(walk.neighbors, nodes, load, width, sources), finish, f"context {name}", start)

    def _context_rows(self, walk: _Walk, nodes: Array | range, sums: Array, hop: int) -> Array:
        """Sums over neighbours, which are changed, as rows of a context; those of the first hop are of features without
        their gain, and what the edges bring comes behind them."""
        scale, own = walk.row_scale(nodes), self.features.width

        def part(first: int, last: int) -> None:
            sums[first:last] *= scale[first:last, None]
            if hop == 1:
                sums[first:last] *= self.gain[:own]

        run_chunks(part, len(sums), _CHUNK_ROWS, self.engine.threads)
        if hop > 1 or not self.edge_width:
            return sums
        rows = np.empty((len(sums), self.width), dtype=np.float32)
        rows[:, :own] = sums
        edges = EdgeMeans(self.features.store, walk.direction).rows(_range_of(nodes))
        np.multiply(edges - self.shift[own:], self.gain[own:], out=rows[:, own:])
        return rows


@dataclass(frozen=True)
class _FeatureRows:
    """Rows of D_c^{-1/2} (H - shift), of the nodes `sources` (None: of all)."""

    features: NodeFeatures
    shift: Array
    degrees: Degrees
    sources: Array | None

    def __call__(self, first: int, last: int, out: Array) -> None:
        nodes = _nodes_at(self.sources, first, last)
        np.subtract(self.features.rows(nodes), self.shift, out=out)
        out *= self.degrees.root_scale(nodes)[:, None]


@dataclass(frozen=True)
class _ContextRows:
    """Rows of D_c^{-1/2} C for a context C that has rows of the nodes `sources` (None: of all)."""

    context: Array
    degrees: Degrees
    sources: Array | None

    def __call__(self, first: int, last: int, out: Array) -> None:
        nodes = _nodes_at(self.sources, first, last)
        np.multiply(self.context[first:last], self.degrees.root_scale(nodes)[:, None], out=out)


def _range_of(nodes: Array | range) -> slice | Array:
    return slice(nodes.start, nodes.stop) if isinstance(nodes, range) else np.asarray(nodes, dtype=np.int64)


def _nodes_at(sources: Array | None, first: int, last: int) -> slice | Array:
    return slice(first, last) if sources is None else np.asarray(sources[first:last], dtype=np.int64)
