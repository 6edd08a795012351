"""LocalNodes (the paper's Algorithm 1): K local nodes for each node, from its one- and two-hop neighbourhood.

Enters: a GraphStore, a SciPy sparse matrix, an edge_index or NeighborLists, and the nodes to sample for. Leaves: int32
[n, K], column 0 the node itself. Cost: grows with K, not with the neighbourhood (sampler.py).

The sample is uniform over the *set* of distinct nodes at distance 1 or 2; with `weighted` it is in proportion to edge
weights (weighted_sampler.py). It depends on (seed, epoch, node) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from largegt.config.schema import LocalNodesConfig
from largegt.data.kernels import frozen
from largegt.data.pair_runs import index_dtype
from largegt.data.weights import as_weights, in_memory
from largegt.errors import ConfigError, InputError
from largegt.runtime.progress import Progress
from largegt.runtime.threads import run_chunks
from largegt.types import Array, Direction

from . import sampler
from .neighbor_lists import NeighborLists
from .remote import BUFFER_BYTES, fetched_rows
from .weighted import weighted_rows

if TYPE_CHECKING:
    from largegt.data.store import GraphStore

_CHUNK_NODES, _FETCHED_NODES = 1 << 10, 1 << 14
_CHECKED_BYTES = 1 << 30

Fill = Callable[[Array, Array], None]
"""`fill(nodes, rows)` writes LocalNodes of `nodes` into rows [n, K]."""


def local_nodes(
    graph: GraphStore | Any,
    nodes: Array | None = None,
    k: int = 50,
    seed: int = 0,
    epoch: int = 0,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
    hop1_share: float | None = None,
    num_nodes: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    weighted: bool = False,
) -> Array:
    """`S` of Algorithm 1 for `nodes` (all when None).

    Args:
        graph: a GraphStore, a SciPy sparse matrix whose entry (i, j) is an edge from i to j, an `edge_index` [2, E]
            over `num_nodes` nodes (by default as many as it names), or NeighborLists, whose direction is their own and
            of which each thread holds `buffer_bytes`.
        hop1_share: this share of the K - 1 slots is drawn from the one-hop neighbours and the rest from the nodes at
            distance two, each without replacement while it lasts; what one cannot fill the other does.
        weighted: draw nodes as a walk goes that takes each step in proportion to edge weights (a matrix's values):
            one step for one-hop slots, two steps for those at distance two, either with the same chance where slots
            are not told apart. What is left over is filled with repeats.
    """
    if k < 1:
        raise ConfigError(f"K is {k}: it must be at least 1, the node itself")
    if hop1_share is not None and not 0.0 <= hop1_share <= 1.0:
        raise ConfigError(f"hop1_share is {hop1_share}: it must be between 0 and 1")
    hop1_slots = -1 if hop1_share is None else round(hop1_share * (k - 1))
    if direction not in get_args(Direction):
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(get_args(Direction))}")
    if isinstance(graph, NeighborLists):
        refuse_weights(weighted)
        size, fill = graph.num_nodes, _from_lists(graph, hop1_slots, seed, epoch, buffer_bytes)
    else:
        size, fill = _from_csr(_as_graph(graph, num_nodes), direction, weighted, hop1_slots, seed, epoch)
    wanted = np.arange(size) if nodes is None else node_numbers(nodes)
    outside = (wanted < 0) | (wanted >= size)
    if outside.any():
        raise InputError(f"node {int(wanted[outside][0])} asked for, but nodes go from 0 to {size - 1}")
    rows = np.empty((len(wanted), k), dtype=index_dtype(size))
    if k == 1:
        rows[:, 0] = wanted
        return rows
    chunk = _FETCHED_NODES if isinstance(graph, NeighborLists) else _CHUNK_NODES
    run_chunks(
        lambda start, stop: fill(wanted[start:stop], rows[start:stop]), len(wanted), chunk, threads, progress,
        "local nodes",
    )  # fmt: skip
    return rows


def _from_lists(lists: NeighborLists, hop1_slots: int, seed: int, epoch: int, buffer_bytes: int) -> Fill:
    def fill(chosen: Array, rows: Array) -> None:
        fetched_rows(lists, chosen, hop1_slots, sampler.ANY_WAY, seed, epoch, rows, buffer_bytes)

    return fill


def _from_csr(
    graph: Any, direction: Direction, weighted: bool, hop1_slots: int, seed: int, epoch: int
) -> tuple[int, Fill]:
    """How many nodes there are, and how their rows are filled."""
    if weighted:
        lists = _weighted(graph, direction)

        def fill(chosen: Array, rows: Array) -> None:
            weighted_rows(*lists, chosen, hop1_slots, -1, seed, epoch, rows)

        return len(lists[0]) - 1, fill
    csr = _both_ways(graph, direction)

    def fill_uniform(chosen: Array, rows: Array) -> None:
        sampler.local_nodes_rows(*csr, chosen, hop1_slots, sampler.ANY_WAY, seed, epoch, rows)

    return len(csr[0]) - 1, fill_uniform


def sample(
    graph: GraphStore | NeighborLists, nodes: Array, settings: LocalNodesConfig, draw: int = 0,
    threads: int | None = None, buffer_bytes: int = BUFFER_BYTES,
) -> tuple[Array, Array]:  # fmt: skip
    """LocalNodes of `nodes` as configured, and boolean [n, K]: which an edge joins to the node, whichever way. Draw 0
    is what `prepare` keeps; others are fresh and independent."""
    weighted = settings.weighted is True or (settings.weighted == "auto" and bool(getattr(graph, "weighted", False)))
    rows = local_nodes(
        graph, nodes, settings.k, settings.seed, draw, settings.direction, threads, None, settings.hop1_share,
        buffer_bytes=buffer_bytes, weighted=weighted,
    )  # fmt: skip
    near, nodes = np.zeros(rows.shape, dtype=np.bool_), np.asarray(nodes, dtype=np.int64)

    def mark(start: int, stop: int) -> None:
        some = slice(start, stop)
        for indptr, indices, owners in _own_lists(graph, nodes[some], settings.direction):
            sampler.mark_near(indptr, indices, owners, rows[some], near[some])

    if settings.k > 1:
        chunk = _FETCHED_NODES if isinstance(graph, NeighborLists) else _CHUNK_NODES
        run_chunks(mark, len(nodes), chunk, threads)
    return rows, near


def _own_lists(
    graph: GraphStore | NeighborLists, nodes: Array, direction: Direction
) -> list[tuple[Array, Array, Array]]:
    """(indptr, indices, which row is whose) of CSRs that together hold the neighbours of `nodes` both ways."""
    if isinstance(graph, NeighborLists):
        distinct, rows = np.unique(nodes, return_inverse=True)
        sides = (graph,) if graph.reverse is graph else (graph, graph.reverse)
        found = (side.neighbors(distinct) for side in sides)
        return [(frozen(indptr), frozen(indices), rows) for indptr, indices in found]
    both = [(*graph.csr(direction), nodes), (*graph.reverse_csr(direction), nodes)]
    return both if graph.directed and direction != "both" else both[:1]


def refuse_weights(weighted: bool) -> None:
    """Lists that lie elsewhere are of neighbours alone."""
    if weighted:
        raise ConfigError(
            "lists on a cluster or in Redis have no edge weights: sample without them, --set "
            "prepare.local_nodes.weighted=false, or from the store itself"
        )


def node_numbers(nodes: Any) -> Array:
    """int64 node numbers from a list or array of them, or from a boolean mask."""
    array = np.asarray(nodes)
    if array.dtype == np.bool_:
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"nodes must be whole numbers or a mask, found {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _as_graph(graph: Any, num_nodes: int | None) -> Any:
    """An `edge_index` as a SciPy matrix; anything else as it is."""
    if hasattr(graph, "csr") or hasattr(graph, "tocoo"):
        return graph
    import scipy.sparse as sp

    edges = np.asarray(graph)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise InputError(
            f"expected a store, a sparse matrix or an edge_index [2, E], found {edges.dtype} {edges.shape}"
        )
    size = num_nodes if num_nodes is not None else int(edges.max(initial=-1)) + 1
    if edges.size and (edges.min() < 0 or edges.max() >= size):
        raise InputError(f"edge_index names node {int(edges.max())}, but nodes go from 0 to {size - 1}")
    return sp.coo_array((np.ones(edges.shape[1], dtype=np.int8), (edges[0], edges[1])), shape=(size, size))


def _both_ways(graph: GraphStore | Any, direction: Direction) -> tuple[Array, Array, Array, Array]:
    """(indptr, indices) along `direction` and of the transpose."""
    if hasattr(graph, "csr"):
        _check(graph, *(("both",) if direction == "both" else ("in", "out")))
        return (*graph.csr(direction), *graph.reverse_csr(direction))
    forward = _clean(graph)
    if direction == "in":
        forward = _clean(forward.T)
    elif direction == "both":
        forward = _clean(forward + forward.T)
    backward = forward if direction == "both" else _clean(forward.T)
    return (
        forward.indptr.astype(np.int64), forward.indices, backward.indptr.astype(np.int64), backward.indices
    )  # fmt: skip


def _weighted(graph: GraphStore | Any, direction: Direction) -> tuple[Array, Array, Array, Array, Array]:
    """(indptr, indices, weights, strengths, sums of blocks) along `direction`."""
    if hasattr(graph, "csr"):
        _check(graph, direction)
        return (*graph.csr(direction), *graph.weights_of(direction))
    values = _clean(graph, weighted=True)
    if direction != "out":
        values = _clean(values.T if direction == "in" else values + values.T, weighted=True)
    indptr, indices = values.indptr.astype(np.int64), values.indices.astype(index_dtype(values.shape[0]))
    weights, strengths, sums = in_memory(indptr, as_weights(values.data, "the adjacency matrix"))
    return frozen(indptr), frozen(indices), frozen(weights), frozen(strengths), frozen(sums)


def _check(store: GraphStore, *directions: Direction) -> None:
    """Refuse damaged lists; those of a larger store a stage has checked before it comes here."""
    if store.folder.num_bytes <= _CHECKED_BYTES:
        store.check(*directions)


def _clean(matrix: Any, weighted: bool = False) -> Any:
    """A SciPy CSR with sorted rows, no duplicates and no diagonal; its values count only if `weighted`."""
    import scipy.sparse as sp

    entries = sp.coo_array(matrix)
    if entries.shape[0] != entries.shape[1]:
        raise InputError(f"the adjacency matrix has shape {entries.shape}, expected a square one")
    keep = (entries.row != entries.col) & (entries.data != 0)
    values = entries.data[keep].astype(np.float64) if weighted else np.ones(int(keep.sum()), dtype=np.int8)
    csr = sp.csr_array((values, (entries.row[keep], entries.col[keep])), shape=entries.shape)
    csr.sum_duplicates()
    csr.sort_indices()
    return csr
