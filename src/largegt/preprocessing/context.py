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
from dataclasses import dataclass, field, replace

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.runtime.memory import rows_within
from largegt.types import OPPOSITE, Array, Direction

from .blocks import Finish, Neighbors, NeighborSums, degrees_of, marked_numbers, numbers, selection
from .engine import Engine
from .features import EdgeMeans, NodeFeatures

_CHUNK_ROWS = 1 << 14


def context_names(directions: Sequence[Direction], hops: int) -> list[str]:
    """What the contexts of a token row are called, in their order: C0, C1, … along one direction, and by their
    direction and hop along several."""
    if len(directions) == 1:
        return [f"C{hop}" for hop in range(hops)]
    return [f"{side} {hop} {'hop' if hop == 1 else 'hops'}" for hop in range(1, hops + 1) for side in directions]


@dataclass(frozen=True)
class _RootScale:
    """float32 (degree + 1)^{-1/2} of nodes: degrees are lengths of rows, or with `unit` sums of weights times that."""

    known: Array
    unit: float | None

    def __call__(self, nodes: Array | range) -> Array:
        weighted = self.unit is not None
        degrees = self.known[selection(nodes)] * self.unit if weighted else degrees_of(self.known, nodes)
        return np.asarray(1.0 / np.sqrt(degrees + 1.0), dtype=np.float32)[:, None]


@dataclass(frozen=True)
class _Walk:
    """One direction: its Ã, the nodes that each hop is needed of, and the contexts made so far."""

    direction: Direction
    neighbors: Neighbors
    row_scale: _RootScale
    column_scale: _RootScale
    rings: list[Array | range]
    """The nodes that hop 0, 1, …, `hops` is needed of: those of the last, and from there on the neighbours too."""
    contexts: list[Array] = field(default_factory=list)

    @classmethod
    def along(cls, direction: Direction, store: GraphStore, weighted: bool) -> _Walk:
        neighbors, opposite = Neighbors(*store.csr(direction), self_loops=True), store.reverse_csr(direction)[0]
        if not weighted:
            return cls(direction, neighbors, _RootScale(neighbors.indptr, None), _RootScale(opposite, None), [])
        unit = 1.0 / store.mean_weight(direction)
        weights, strengths, _ = store.weights_of(direction)
        neighbors = replace(neighbors, weights=weights, weight_scale=unit)
        opposite = store.weights_of(OPPOSITE[direction])[1]
        return cls(direction, neighbors, _RootScale(strengths, unit), _RootScale(opposite, unit), [])

    def set_rings(self, nodes: Array, hops: int, engine: Engine) -> None:
        self.rings.append(nodes)
        num_nodes = self.neighbors.num_nodes
        for _ in range(hops):
            marked = np.ones(num_nodes, dtype=np.bool_)
            if len(self.rings[0]) < num_nodes:
                marked[:] = False
                marked[self.rings[0]] = True
                engine.mark_neighbors(self.neighbors, numbers(self.rings[0]), marked)
            most = np.count_nonzero(marked) > 0.9 * num_nodes
            self.rings.insert(0, range(num_nodes) if most else marked_numbers(marked, nodes.dtype))

    def scratch(self, hop: int) -> str:
        return f"scratch_context_{self.direction}_{hop}"


@dataclass(frozen=True)
class ContextFeatures:
    """Computes the token rows of `nodes` (sorted node numbers) of one store, with contexts along each direction."""

    features: NodeFeatures
    nodes: Array
    shift: Array
    """[d] of the features, and behind them of the means of edge features where contexts have these; so is `gain`."""
    gain: Array
    directions: Sequence[Direction]
    engine: Engine
    weighted: bool = False
    edge_features: bool = False

    @property
    def edge_width(self) -> int:
        return self.features.store.num_edge_features if self.edge_features else 0

    @property
    def width(self) -> int:
        return self.features.width + self.edge_width

    def write(self, writer: ArrayWriter, dtype: str, hops: int = 2) -> None:
        """Grow `tokens` [t, 1 + hops·directions, d] in the writer's folder, from where an earlier run stopped."""
        names = context_names(self.directions, hops)
        walks = [_Walk.along(side, self.features.store, self.weighted) for side in self.directions]
        for walk in walks:
            walk.set_rings(self.nodes, hops, self.engine)
        out = writer.grow("tokens", dtype, (1 + len(names), self.width))
        token_rows_at_once = rows_within(4 * (1 + len(names)) * self.width)
        # the last context goes straight into the rows, all others lie aside until then
        aside = [(walk, hop) for walk in walks for hop in range(1, hops if walk is walks[-1] else hops + 1)]
        missing = (1 + len(names)) * (len(self.nodes) - out.rows) * self.width * out.stored.itemsize
        for walk, hop in aside:
            missing += 4 * (len(walk.rings[hop]) - writer.rows(walk.scratch(hop))) * self.width
        require_space(writer.path, missing, "context features")
        for walk, hop in aside:
            name = names[(hop - 1) * len(walks) + walks.index(walk)]
            walk.contexts.append(self._write_context(writer, walk, hop, name))

        def finish(first: int, last: int, sums: Array | None) -> None:
            if sums is not None:
                sums = self._context_rows(walks[-1], self.nodes[first:last], sums, hops)
            for start in range(first, last, token_rows_at_once):
                stop = min(last, start + token_rows_at_once)
                rows = self._token_rows(self.nodes[start:stop], walks, 1 + len(names))
                if sums is not None:
                    rows[:, -1] = sums[start - first : stop - first]
                out.append(self._stored(rows, dtype, start))
            writer.commit()

        if hops:
            self._sum(walks[-1], hops, names[-1], finish, out.rows)
        else:
            for start in range(out.rows, len(self.nodes), _CHUNK_ROWS):
                self.engine.show("token rows", start, len(self.nodes))
                finish(start, min(len(self.nodes), start + _CHUNK_ROWS), None)
        writer.close("tokens")
        for walk, hop in aside:
            writer.drop(walk.scratch(hop))

    def _write_context(self, writer: ArrayWriter, walk: _Walk, hop: int, name: str) -> Array:
        """The context after `hop` hops, of its ring, as a scratch array, mapped."""
        nodes = walk.rings[hop]
        made = writer.grow(walk.scratch(hop), "float32", (self.width,))

        def finish(first: int, last: int, sums: Array) -> None:
            made.append(self._context_rows(walk, nodes[first:last], sums, hop))
            writer.commit()

        if made.rows < len(nodes):
            self._sum(walk, hop, name, finish, made.rows)
        return made.so_far()

    def _sum(self, walk: _Walk, hop: int, name: str, finish: Finish, start: int) -> None:
        own, sources = self.features.width, walk.rings[hop - 1]
        context = walk.contexts[hop - 2] if hop > 1 else None
        load = _Scaled(self.features, self.shift[:own], self.gain[:own], context, walk.column_scale, sources)
        width = own if context is None else self.width
        wanted = NeighborSums(walk.neighbors, walk.rings[hop], load, width, sources)
        self.engine.sums(wanted, finish, f"context {name}", start)

    def _context_rows(self, walk: _Walk, nodes: Array | range, sums: Array, hop: int) -> Array:
        """Sums over neighbours, which are changed, as rows of a context; behind those of the first hop comes what the
        edges bring."""
        sums *= walk.row_scale(nodes)
        if hop > 1 or not self.edge_width:
            return sums
        edges = EdgeMeans(self.features.store, walk.direction).rows(nodes)
        own = self.features.width
        return np.concatenate([sums, (edges - self.shift[own:]) * self.gain[own:]], axis=1)

    def _token_rows(self, nodes: Array, walks: list[_Walk], num_tokens: int) -> Array:
        """float32 [n, tokens, d]: H and the contexts that lie aside."""
        rows = np.zeros((len(nodes), num_tokens, self.width), dtype=np.float32)
        own = self.features.width
        np.multiply(self.features.rows(nodes) - self.shift[:own], self.gain[:own], out=rows[:, 0, :own])
        for side, walk in enumerate(walks):
            for hop, context in enumerate(walk.contexts, start=1):
                ring = walk.rings[hop]
                places = nodes if isinstance(ring, range) else np.searchsorted(ring, nodes)
                rows[:, 1 + (hop - 1) * len(walks) + side] = context[selection(places)]
        return rows

    def _stored(self, rows: Array, dtype: str, start: int) -> Array:
        """The same rows in the precision they are stored in; refused where that does not hold them."""
        with np.errstate(over="ignore"):
            stored = rows.astype(dtype)
        if not np.isfinite(stored).all():
            row, _, column = (int(at) for at in np.argwhere(~np.isfinite(stored))[0])
            node = self.features.store.ids_of(self.nodes[start + row : start + row + 1])[0]
            mend = "prepare.tokens.dtype=float32" if np.isfinite(rows).all() else "prepare.tokens.normalize=per_feature"
            raise ConfigError(f"token rows overflow {dtype} at node {node!r}, feature {column}: run with `{mend}`")
        return stored


@dataclass(frozen=True)
class _Scaled:
    """Rows of D_c^{-1/2} X of the nodes `sources`, where X is a context, or the normalised features if None."""

    features: NodeFeatures
    shift: Array
    gain: Array
    context: Array | None
    scale: _RootScale
    sources: Array | range

    def __call__(self, first: int, last: int, out: Array) -> None:
        nodes = self.sources[first:last]
        if self.context is not None:
            np.multiply(self.context[first:last], self.scale(nodes), out=out)
            return
        np.subtract(self.features.rows(nodes), self.shift, out=out)
        out *= self.gain
        out *= self.scale(nodes)
