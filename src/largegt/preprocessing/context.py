"""Context features: C⁰ = ÃH, C¹ = ÃC⁰ and so on, and the token rows [H, C⁰, C¹, …].

Enters: NodeFeatures and the nodes that need token rows. Leaves: `tokens` [t, 1 + contexts, d], one gather for all
tokens of a node. Cost: one pass per hop and direction over the edges that reach those nodes, in blocks within the
memory limit (blocks.py). All contexts except the last are scratch files, each for the nodes that the next hop sums
over. Sums are float32 for any feature precision.

Ã = D_r^{-1/2} (A + I) D_c^{-1/2} with the degrees of A + I: row degrees along the direction, column degrees against it.
For the undirected view both are equal and Ã is the usual symmetric normalisation. With edge weights, the entries of A
are the weights divided by their mean: an average edge counts as much as the self loop, and neither equal weights nor
the unit of the weights change the result.

With edge features, e is their mean over the edges of each node, normalised like the other columns (the paper, section
3: by "using edge features during message passing to update node representations"):

  H_i = [H_i, 0]    C⁰_i = [(ÃH)_i, e_i]    C¹_i = [(Ã²H)_i, (Ãe)_i]    and so on

With separate directions a row is [H, Ã_out H, Ã_in H, Ã_out² H, Ã_in² H, …]: by hop, then by direction.
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

from .blocks import Finish, Neighbors, NeighborSums, as_index, degrees_of, marked_nodes, node_array
from .engine import Engine
from .features import EdgeMeans, NodeFeatures

_CHUNK_ROWS = 1 << 14


def context_names(directions: Sequence[Direction], hops: int) -> list[str]:
    """The names of the contexts of a token row, in order: C0, C1, … for one direction, direction and hop for
    several."""
    if len(directions) == 1:
        return [f"C{hop}" for hop in range(hops)]
    return [f"{side} {hop} {'hop' if hop == 1 else 'hops'}" for hop in range(1, hops + 1) for side in directions]


@dataclass(frozen=True)
class _DegreeScale:
    """float32 (degree + 1)^{-1/2}, where the degree is a row length or, with `weight_scale`, a scaled sum of
    weights."""

    source: Array
    """The indptr of a CSR, or sums of weights."""
    weight_scale: float | None

    def __call__(self, nodes: Array | range) -> Array:
        weighted = self.weight_scale is not None
        degrees = self.source[as_index(nodes)] * self.weight_scale if weighted else degrees_of(self.source, nodes)
        return np.asarray(1.0 / np.sqrt(degrees + 1.0), dtype=np.float32)[:, None]


@dataclass(frozen=True)
class _ContextChain:
    """The contexts along one direction: its Ã, the nodes of each hop, and the contexts computed so far."""

    direction: Direction
    neighbors: Neighbors
    row_scale: _DegreeScale
    column_scale: _DegreeScale
    nodes_of_hop: list[Array | range]
    """The nodes that need hop 0, 1, …, `hops`: each set contains the next one and its neighbours."""
    contexts: list[Array] = field(default_factory=list)

    @classmethod
    def along(cls, direction: Direction, store: GraphStore, weighted: bool) -> _ContextChain:
        neighbors, opposite = Neighbors(*store.csr(direction), self_loops=True), store.reverse_csr(direction)[0]
        if not weighted:
            return cls(direction, neighbors, _DegreeScale(neighbors.indptr, None), _DegreeScale(opposite, None), [])
        scale = 1.0 / store.mean_weight(direction)
        weights, strengths, _ = store.weights_of(direction)
        neighbors = replace(neighbors, weights=weights, weight_scale=scale)
        opposite = store.weights_of(OPPOSITE[direction])[1]
        return cls(direction, neighbors, _DegreeScale(strengths, scale), _DegreeScale(opposite, scale), [])

    def set_nodes(self, nodes: Array, hops: int, engine: Engine) -> None:
        self.nodes_of_hop.append(nodes)
        num_nodes = self.neighbors.num_nodes
        for _ in range(hops):
            marked = np.ones(num_nodes, dtype=np.bool_)
            if len(self.nodes_of_hop[0]) < num_nodes:
                marked[:] = False
                marked[self.nodes_of_hop[0]] = True
                engine.mark_neighbors(self.neighbors, node_array(self.nodes_of_hop[0]), marked)
            use_all = np.count_nonzero(marked) > 0.9 * num_nodes
            self.nodes_of_hop.insert(0, range(num_nodes) if use_all else marked_nodes(marked, nodes.dtype))

    def scratch(self, hop: int) -> str:
        return f"scratch_context_{self.direction}_{hop}"


@dataclass(frozen=True)
class ContextFeatures:
    """Computes the token rows of `nodes` (sorted node numbers), with contexts along each direction."""

    features: NodeFeatures
    nodes: Array
    shift: Array
    """[d] of the features, then of the edge feature means if contexts have them; `gain` has the same layout."""
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
        """Write `tokens` [t, 1 + hops·directions, d], resuming after an interrupted run."""
        names = context_names(self.directions, hops)
        chains = [_ContextChain.along(side, self.features.store, self.weighted) for side in self.directions]
        for chain in chains:
            chain.set_nodes(self.nodes, hops, self.engine)
        out = writer.grow("tokens", dtype, (1 + len(names), self.width))
        token_rows_at_once = rows_within(4 * (1 + len(names)) * self.width)
        # the last context goes directly into the rows; all others are scratch files
        scratch = [(chain, hop) for chain in chains for hop in range(1, hops + (chain is not chains[-1]))]
        missing = (1 + len(names)) * (len(self.nodes) - out.rows) * self.width * out.stored.itemsize
        for chain, hop in scratch:
            missing += 4 * (len(chain.nodes_of_hop[hop]) - writer.rows(chain.scratch(hop))) * self.width
        require_space(writer.path, missing, "context features")
        for chain, hop in scratch:
            name = names[(hop - 1) * len(chains) + chains.index(chain)]
            chain.contexts.append(self._write_context(writer, chain, hop, name))

        def finish(first: int, last: int, sums: Array | None) -> None:
            if sums is not None:
                sums = self._context_rows(chains[-1], self.nodes[first:last], sums, hops)
            for start in range(first, last, token_rows_at_once):
                stop = min(last, start + token_rows_at_once)
                rows = self._token_rows(self.nodes[start:stop], chains, 1 + len(names))
                if sums is not None:
                    rows[:, -1] = sums[start - first : stop - first]
                out.append(self._stored(rows, dtype, start))
            writer.commit()

        if hops:
            self._sum(chains[-1], hops, names[-1], finish, out.rows)
        else:
            for start in range(out.rows, len(self.nodes), _CHUNK_ROWS):
                self.engine.show("token rows", start, len(self.nodes))
                finish(start, min(len(self.nodes), start + _CHUNK_ROWS), None)
        writer.close("tokens")
        for chain, hop in scratch:
            writer.drop(chain.scratch(hop))

    def _write_context(self, writer: ArrayWriter, chain: _ContextChain, hop: int, name: str) -> Array:
        """The context of this hop for `nodes_of_hop[hop]`, as a mapped scratch array."""
        nodes = chain.nodes_of_hop[hop]
        context = writer.grow(chain.scratch(hop), "float32", (self.width,))

        def finish(first: int, last: int, sums: Array) -> None:
            context.append(self._context_rows(chain, nodes[first:last], sums, hop))
            writer.commit()

        if context.rows < len(nodes):
            self._sum(chain, hop, name, finish, context.rows)
        return context.so_far()

    def _sum(self, chain: _ContextChain, hop: int, name: str, finish: Finish, start: int) -> None:
        num_features, sources = self.features.width, chain.nodes_of_hop[hop - 1]
        context = chain.contexts[hop - 2] if hop > 1 else None
        shift, gain = self.shift[:num_features], self.gain[:num_features]
        load = _Scaled(self.features, shift, gain, context, chain.column_scale, sources)
        width = num_features if context is None else self.width
        wanted = NeighborSums(chain.neighbors, chain.nodes_of_hop[hop], load, width, sources)
        self.engine.sums(wanted, finish, f"context {name}", start)

    def _context_rows(self, chain: _ContextChain, nodes: Array | range, sums: Array, hop: int) -> Array:
        """Context rows from sums over neighbours, which are scaled in place; the first hop appends the edge feature
        means."""
        sums *= chain.row_scale(nodes)
        if hop > 1 or not self.edge_width:
            return sums
        edges = EdgeMeans(self.features.store, chain.direction).rows(nodes)
        width = self.features.width
        return np.concatenate([sums, (edges - self.shift[width:]) * self.gain[width:]], axis=1)

    def _token_rows(self, nodes: Array, chains: list[_ContextChain], num_tokens: int) -> Array:
        """float32 [n, tokens, d]: H and the contexts in scratch files."""
        rows = np.zeros((len(nodes), num_tokens, self.width), dtype=np.float32)
        width = self.features.width
        np.multiply(self.features.rows(nodes) - self.shift[:width], self.gain[:width], out=rows[:, 0, :width])
        for side, chain in enumerate(chains):
            for hop, context in enumerate(chain.contexts, start=1):
                hop_nodes = chain.nodes_of_hop[hop]
                places = nodes if isinstance(hop_nodes, range) else np.searchsorted(hop_nodes, nodes)
                rows[:, 1 + (hop - 1) * len(chains) + side] = context[as_index(places)]
        return rows

    def _stored(self, rows: Array, dtype: str, start: int) -> Array:
        """The rows in their storage precision; an error if they overflow."""
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
    """Rows of D_c^{-1/2} X of the nodes `sources`, where X is `context`, or the normalised features if None."""

    features: NodeFeatures
    shift: Array
    gain: Array
    context: Array | None
    scale: _DegreeScale
    sources: Array | range

    def __call__(self, first: int, last: int, out: Array) -> None:
        nodes = self.sources[first:last]
        if self.context is not None:
            np.multiply(self.context[first:last], self.scale(nodes), out=out)
            return
        np.subtract(self.features.rows(nodes), self.shift, out=out)
        out *= self.gain
        out *= self.scale(nodes)
