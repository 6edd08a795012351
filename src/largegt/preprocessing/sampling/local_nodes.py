"""LocalNodes (the paper's Algorithm 1): K local nodes for each node, from its one- and two-hop neighbourhood.

Enters: a GraphStore, a SciPy sparse matrix, an edge_index or NeighborLists, and the nodes to sample for. Leaves: int32
[n, K], column 0 the node itself. Cost: grows with K, not with the neighbourhood (uniform.py).

The sample is uniform over the *set* of distinct nodes at distance 1 or 2; with `weighted`, sampling is proportional to
edge weights (weighted.py). It is a function of (seed, epoch, node).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from largegt.config.schema import LocalNodesConfig
from largegt.data.kernels import frozen
from largegt.data.pair_runs import index_dtype
from largegt.data.weights import as_weights, in_memory
from largegt.errors import ConfigError, InputError
from largegt.runtime.progress import Progress
from largegt.runtime.threads import run_chunks
from largegt.types import OPPOSITE, Array, Direction

from . import uniform
from .neighbor_lists import NeighborLists
from .remote_sampling import BUFFER_BYTES, remote_rows
from .weighted import weighted_rows

if TYPE_CHECKING:
    from largegt.data.store import GraphStore

_CHUNK_NODES, _REMOTE_CHUNK_NODES = 1 << 10, 1 << 14
_CHECKED_BYTES = 1 << 30


def local_nodes(
    graph: GraphStore | Any,
    nodes: Array | None = None,
    k: int = 50,
    seed: int = 0,
    epoch: int = 0,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
    hop1_fraction: float | None = None,
    num_nodes: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    weighted: bool = False,
) -> Array:
    """Sample the local nodes of each node: LocalNodes, Algorithm 1.

    Args:
        graph: a GraphStore, a SciPy sparse matrix whose entry (i, j) is an edge from i to j, an `edge_index` [2, E]
            over `num_nodes` nodes (by default as many as it names), or NeighborLists, whose direction is their own and
            of which each thread holds `buffer_bytes`.
        nodes: node numbers, all by default.
        k: local nodes of each node, itself included (the paper's K).
        seed: seed of the sample.
        epoch: another sample for each epoch.
        direction: which edges lead to neighbours: out, in or both.
        threads: threads to use, all cores by default. The result does not depend on it.
        progress: is called as `progress(stage, done, total)`.
        hop1_fraction: this fraction of the K - 1 slots is sampled from the one-hop neighbours and the rest from the
            nodes at distance two, each without replacement while it lasts; the others fill what one cannot. None:
            uniform over both.
        num_nodes: the nodes of an `edge_index`.
        buffer_bytes: what a thread holds of NeighborLists.
        weighted: sample nodes as a walk visits them that takes each step in proportion to edge weights (a matrix's
            values): one step for one-hop slots, two steps for those at distance two, either with the same chance
            without `hop1_fraction`. What is left over is filled with repeats.

    Returns:
        An array [n, k] of node numbers. Each row begins with the node itself.

    Raises:
        ConfigError: k, the fraction or the direction is out of range.
        InputError: the graph or a node cannot be read.

    Examples:
        >>> rows = lg.local_nodes(edge_index, nodes=[3, 5], k=4)
        >>> rows.shape
        (2, 4)
        >>> rows[:, 0]
        array([3, 5], dtype=int32)
    """
    if k < 1:
        raise ConfigError(f"K is {k}: it must be at least 1, the node itself")
    if hop1_fraction is not None and not 0.0 <= hop1_fraction <= 1.0:
        raise ConfigError(f"hop1_fraction is {hop1_fraction}: it must be between 0 and 1")
    if direction not in get_args(Direction):
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(get_args(Direction))}")
    hop1_slots, chunk = -1 if hop1_fraction is None else round(hop1_fraction * (k - 1)), _CHUNK_NODES
    if isinstance(graph, NeighborLists):
        refuse_weights(weighted)
        chunk = _REMOTE_CHUNK_NODES
    else:
        graph = _as_graph(graph, direction, num_nodes)
        kernel: Any = weighted_rows if weighted else uniform.local_nodes_rows
        lists = weighted_csr(graph, direction) if weighted else csr_and_reverse(graph, direction)
    size = graph.num_nodes
    wanted = np.arange(size) if nodes is None else node_numbers(nodes)
    outside = (wanted < 0) | (wanted >= size)
    if outside.any():
        raise InputError(f"node {int(wanted[outside][0])} does not exist: nodes go from 0 to {size - 1}")
    rows = np.empty((len(wanted), k), dtype=index_dtype(size))
    rows[:, 0] = wanted

    def fill(start: int, stop: int) -> None:
        some, out = wanted[start:stop], rows[start:stop]
        if isinstance(graph, NeighborLists):
            remote_rows(graph, some, hop1_slots, uniform.ANY_METHOD, seed, epoch, out, buffer_bytes)
        else:
            kernel(*lists, some, hop1_slots, uniform.ANY_METHOD, seed, epoch, out)

    if k > 1:
        run_chunks(fill, len(wanted), chunk, threads, progress, "local nodes")
    return rows


def sample(
    graph: GraphStore | NeighborLists, nodes: Array, settings: LocalNodesConfig, sample_index: int = 0,
    threads: int | None = None, buffer_bytes: int = BUFFER_BYTES,
) -> tuple[Array, Array]:  # fmt: skip
    """LocalNodes of `nodes` as configured, and boolean [n, K]: whether an edge joins each one to the node in either
    direction. Sample 0 is the prepared one; others are independent of it."""
    weighted = settings.use_edge_weights is True or (
        settings.use_edge_weights == "auto" and bool(getattr(graph, "weighted", False))
    )
    rows = local_nodes(
        graph, nodes, settings.k, settings.seed, sample_index, settings.direction, threads,
        hop1_fraction=settings.hop1_fraction, buffer_bytes=buffer_bytes, weighted=weighted,
    )  # fmt: skip
    is_neighbor, nodes = np.zeros(rows.shape, dtype=np.bool_), np.asarray(nodes, dtype=np.int64)

    def mark(start: int, stop: int) -> None:
        some = slice(start, stop)
        for indptr, indices, owners in _neighbor_csrs(graph, nodes[some], settings.direction):
            uniform.mark_one_hop(indptr, indices, owners, rows[some], is_neighbor[some])

    if settings.k > 1:
        chunk = _REMOTE_CHUNK_NODES if isinstance(graph, NeighborLists) else _CHUNK_NODES
        run_chunks(mark, len(nodes), chunk, threads)
    return rows, is_neighbor


def _neighbor_csrs(
    graph: GraphStore | NeighborLists, nodes: Array, direction: Direction
) -> list[tuple[Array, Array, Array]]:
    """(indptr, indices, row of each node) of CSRs that together contain the neighbours of `nodes` in both
    directions."""
    if isinstance(graph, NeighborLists):
        distinct, rows = np.unique(nodes, return_inverse=True)
        sides = (graph,) if graph.reverse is graph else (graph, graph.reverse)
        found = (side.neighbors(distinct) for side in sides)
        return [(frozen(indptr), frozen(indices), rows) for indptr, indices in found]
    both = [(*graph.csr(direction), nodes), (*graph.reverse_csr(direction), nodes)]
    return both if graph.directed and direction != "both" else both[:1]


def refuse_weights(weighted: bool) -> None:
    """Remote neighbour lists have no weights."""
    if weighted:
        raise ConfigError(
            "lists on a cluster or in Redis have no edge weights: sample without them, "
            "`prepare.local_nodes.use_edge_weights=false`, or from the store itself"
        )


def node_numbers(nodes: Any) -> Array:
    """int64 node numbers from a list, an array or a boolean mask."""
    array = np.asarray(nodes)
    if array.dtype == np.bool_:
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"nodes must be whole numbers or a mask, found {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


# graphs in memory -----------------------------------------------------------------------------------------------


def csr_and_reverse(graph: GraphStore | Any, direction: Direction) -> tuple[Array, ...]:
    """(indptr, indices) along `direction` and of the transposed graph."""
    graph = _as_graph(graph, direction)
    return (*graph.csr(direction), *graph.reverse_csr(direction))


def weighted_csr(graph: GraphStore | Any, direction: Direction) -> tuple[Array, ...]:
    """(indptr, indices, weights, strengths, sums of blocks) along `direction`."""
    graph = _as_graph(graph, direction)
    return (*graph.csr(direction), *graph.weights_of(direction))


def _as_graph(graph: Any, direction: Direction, num_nodes: int | None = None) -> Any:
    """A store, or a matrix with the interface of a store. Damaged lists are refused; a stage checks larger stores
    beforehand."""
    if isinstance(graph, _Matrix):
        return graph
    if hasattr(graph, "csr"):
        if graph.folder.num_bytes <= _CHECKED_BYTES:
            graph.check(direction, OPPOSITE[direction])
        return graph
    if hasattr(graph, "tocoo"):
        return _Matrix(graph)
    import scipy.sparse as sp

    edges = np.asarray(graph)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise InputError(
            f"expected a store, a sparse matrix or an edge_index [2, E], found {edges.dtype} {edges.shape}"
        )
    size = num_nodes if num_nodes is not None else int(edges.max(initial=-1)) + 1
    if edges.size and (edges.min() < 0 or edges.max() >= size):
        raise InputError(f"edge_index contains node {int(edges.max())}, but nodes go from 0 to {size - 1}")
    return _Matrix(sp.coo_array((np.ones(edges.shape[1], dtype=np.int8), (edges[0], edges[1])), shape=(size, size)))


class _Matrix:
    """A SciPy matrix with the interface of a store: lists are sorted, without duplicates and without the diagonal."""

    def __init__(self, matrix: Any) -> None:
        import scipy.sparse as sp

        entries = sp.coo_array(matrix)
        if entries.shape[0] != entries.shape[1]:
            raise InputError(f"the adjacency matrix has shape {entries.shape}, expected a square one")
        self.num_nodes = entries.shape[0]
        keep = (entries.row != entries.col) & (entries.data != 0)
        self._ends, self._values = (entries.row[keep], entries.col[keep]), entries.data[keep]

    def _along(self, direction: Direction, values: Array) -> Any:
        import scipy.sparse as sp

        matrix = sp.csr_array((values, self._ends), shape=(self.num_nodes, self.num_nodes))
        if direction != "out":
            matrix = sp.csr_array(matrix.T if direction == "in" else matrix + matrix.T)
        matrix.sum_duplicates()
        return matrix

    def csr(self, direction: Direction) -> tuple[Array, Array]:
        matrix = self._along(direction, np.ones(len(self._values), dtype=np.bool_))
        return frozen(matrix.indptr.astype(np.int64)), frozen(matrix.indices.astype(index_dtype(self.num_nodes)))

    def reverse_csr(self, direction: Direction) -> tuple[Array, Array]:
        return self.csr(OPPOSITE[direction])

    def weights_of(self, direction: Direction) -> tuple[Array, Array, Array]:
        matrix = self._along(direction, self._values.astype(np.float64))
        weights = as_weights(matrix.data, "the adjacency matrix")
        weights, strengths, sums = in_memory(matrix.indptr.astype(np.int64), weights)
        return frozen(weights), frozen(strengths), frozen(sums)
