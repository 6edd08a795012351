"""LocalNodes (the paper's Algorithm 1): K local nodes for each node, from its one- and two-hop neighbourhood.

Enters: a GraphStore, a SciPy sparse matrix, an edge_index or NeighborLists (a graph that lies elsewhere), and the nodes
to sample for. Leaves: int32 [n, K], column 0 the node itself. Cost: grows with K, not with the neighbourhood (see
sampler.py); memory is the result and some K per thread, never A·A and not even one neighbourhood.

The sample is uniform over the *set* of distinct nodes at distance 1 or 2: neither hubs nor nodes reached by many
paths are favoured. With `weighted` it is in proportion to edge weights instead (weighted_sampler.py). It depends on
(seed, epoch, node) alone, so threads, order and the choice of nodes change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..config import LocalNodesConfig
from ..data.pair_runs import index_dtype
from ..data.weights import as_weights, in_memory
from ..errors import ConfigError, InputError
from ..progress import Progress
from ..threads import run_chunks
from ..types import Array, Direction
from . import sampler
from .fetched_nodes import BUFFER_BYTES, fetched_rows
from .neighbor_lists import NeighborLists
from .weighted_sampler import weighted_rows

if TYPE_CHECKING:
    from ..data.store import GraphStore

_CHUNK_NODES = 1024
_CHECKED_BYTES = 1 << 30
_FETCHED_NODES = 1 << 14
_SLOTS_ASKED = 1 << 18
"""Slots of local nodes that lists elsewhere are asked about at once."""


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
    """`S` of Algorithm 1 for `nodes` (all when None). `graph` is a GraphStore, a SciPy sparse matrix whose entry
    (i, j) is an edge from i to j, or an `edge_index` [2, E] (NumPy or torch) over `num_nodes` nodes, by default as
    many as it names. It may also be NeighborLists, whose direction is their own; `buffer_bytes` is then what each
    thread may hold of them (see fetched_nodes.py). The rows are the same.

    With `hop1_share`, that share of the K - 1 slots is drawn from the one-hop neighbours and the rest from the nodes
    at distance two, each without replacement while it lasts; what one cannot fill the other does.

    With `weighted`, nodes are drawn as a walk goes that takes each step in proportion to the weights of the edges there
    (a matrix's values): slots for one-hop neighbours by one step, those for nodes at distance two by two steps, and
    where they are not told apart by one step or two, with the same chance. What is left over is filled with repeats,
    by one step or two.
    """
    if k < 1:
        raise ConfigError(f"K is {k}: it must be at least 1, the node itself")
    if hop1_share is not None and not 0.0 <= hop1_share <= 1.0:
        raise ConfigError(f"hop1_share is {hop1_share}: it must be between 0 and 1")
    hop1_slots = -1 if hop1_share is None else round(hop1_share * (k - 1))
    if direction not in get_args(Direction):
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(get_args(Direction))}")
    settings = (hop1_slots, sampler.ANY_WAY, seed, epoch)
    if isinstance(graph, NeighborLists):
        refuse_weights(weighted)
        lists, size, chunk = graph, graph.num_nodes, _FETCHED_NODES

        def fill(chosen: Array, result: Array) -> None:
            fetched_rows(lists, chosen, *settings, result, buffer_bytes)
    elif weighted:
        lists_of_weights = _weighted(_as_graph(graph, num_nodes), direction)
        size, chunk = len(lists_of_weights[0]) - 1, _CHUNK_NODES

        def fill(chosen: Array, result: Array) -> None:
            weighted_rows(*lists_of_weights, chosen, hop1_slots, -1, seed, epoch, result)
    else:
        csr = _both_ways(_as_graph(graph, num_nodes), direction)
        size, chunk = len(csr[0]) - 1, _CHUNK_NODES

        def fill(chosen: Array, result: Array) -> None:
            sampler.local_nodes_rows(*csr, chosen, *settings, result)

    wanted = np.arange(size) if nodes is None else node_numbers(nodes)
    outside = (wanted < 0) | (wanted >= size)
    if outside.any():
        raise InputError(f"node {int(wanted[outside][0])} asked for, but nodes go from 0 to {size - 1}")
    rows = np.empty((len(wanted), k), dtype=index_dtype(size))
    if k == 1:
        rows[:, 0] = wanted
        return rows

    def work(start: int, stop: int) -> None:
        fill(wanted[start:stop], rows[start:stop])

    run_chunks(work, len(wanted), chunk, threads, progress, "local nodes")
    return rows


def sample(
    graph: GraphStore | NeighborLists, nodes: Array, settings: LocalNodesConfig, draw: int,
    threads: int | None = None, buffer_bytes: int = BUFFER_BYTES,
) -> Array:  # fmt: skip
    """LocalNodes of `nodes` as configured. Draw 0 is what `prepare` keeps; others are fresh and independent."""
    weighted = settings.weighted is True or (settings.weighted == "auto" and bool(getattr(graph, "weighted", False)))
    return local_nodes(
        graph, nodes, settings.k, settings.seed, draw, settings.direction, threads, None, settings.hop1_share,
        buffer_bytes=buffer_bytes, weighted=weighted,
    )  # fmt: skip


def near_of(
    graph: GraphStore | NeighborLists, nodes: Array, local_nk: Array, direction: Direction, threads: int | None = None
) -> Array:
    """Boolean [n, K]: which local nodes an edge joins to the node, whichever way."""
    nodes, near_nk = np.asarray(nodes, dtype=np.int64), np.zeros(local_nk.shape, dtype=np.bool_)

    def look_up(start: int, stop: int) -> None:
        some = slice(start, stop)
        if isinstance(graph, NeighborLists):
            owners, others = np.repeat(nodes[some], local_nk.shape[1]), local_nk[some].reshape(-1)
            for lists in (graph,) if graph.reverse is graph else (graph, graph.reverse):
                near_nk[some] |= lists.has(owners, others).reshape(-1, local_nk.shape[1])
            return
        one_way = graph.directed and direction != "both"
        for csr in (graph.csr(direction), graph.reverse_csr(direction)) if one_way else (graph.csr(direction),):
            sampler.mark_near(*csr, nodes[some], local_nk[some], near_nk[some])

    is_elsewhere = isinstance(graph, NeighborLists)
    run_chunks(
        look_up, len(nodes), max(1, _SLOTS_ASKED // local_nk.shape[1]) if is_elsewhere else _CHUNK_NODES, threads
    )
    return near_nk


def packed(near_nk: Array) -> Array:
    """uint8 [n, ⌈K/8⌉]: a bit per local node, the lowest first."""
    return np.packbits(near_nk, axis=1, bitorder="little")


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
    from ..data.store import GraphStore

    if isinstance(graph, GraphStore):
        if graph.folder.num_bytes <= _CHECKED_BYTES:  # a stage has checked a larger one before it comes here
            graph.check(*(("both",) if direction == "both" else ("in", "out")))
        return (*graph.csr(direction), *graph.reverse_csr(direction))
    forward = _clean(graph)
    if direction == "in":
        forward = _clean(forward.T)
    elif direction == "both":
        forward = _clean(forward.astype(bool) + forward.T.astype(bool))
    backward = forward if direction == "both" else _clean(forward.T)
    return (
        forward.indptr.astype(np.int64), forward.indices, backward.indptr.astype(np.int64), backward.indices
    )  # fmt: skip


def _weighted(graph: GraphStore | Any, direction: Direction) -> tuple[Array, Array, Array, Array, Array]:
    """(indptr, indices, weights, strengths, sums of blocks) along `direction`."""
    from ..data.store import GraphStore

    if isinstance(graph, GraphStore):
        if graph.folder.num_bytes <= _CHECKED_BYTES:
            graph.check(direction)
        return (*graph.csr(direction), *graph.weights_of(direction))
    values = _clean(graph, weighted=True)
    if direction != "out":
        values = _clean(values.T if direction == "in" else values + values.T, weighted=True)
    indptr, indices = values.indptr.astype(np.int64), values.indices.astype(index_dtype(values.shape[0]))
    found = (indptr, indices, *in_memory(indptr, as_weights(values.data, "the adjacency matrix")))
    for array in found:
        array.flags.writeable = False  # as those of a store are: one kernel for both
    return found


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
