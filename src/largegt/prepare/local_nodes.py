"""LocalNodes (the paper's Algorithm 1): K local nodes for each node, from its one- and two-hop neighbourhood.

Enters: a GraphStore or a SciPy sparse matrix, and the nodes to sample for. Leaves: int32 [n, K], column 0 the node
itself. Cost: about K·(paths / neighbours) random reads per node; memory is the result and a few K per thread, never
A·A and seldom even one neighbourhood.

The sample is uniform over the *set* of distinct nodes at distance 1 or 2: neither hubs nor nodes reached by many
paths are favoured. It depends on (seed, epoch, node) alone, so threads, order and the choice of nodes change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, InputError
from ..progress import Progress
from ..types import Array, Direction
from . import kernels
from .engines.local import run_chunks

if TYPE_CHECKING:
    from ..graph.store import GraphStore

_CHUNK_NODES = 1024


def local_nodes(
    graph: GraphStore | Any,
    nodes: Array | None = None,
    k: int = 50,
    seed: int = 0,
    epoch: int = 0,
    direction: Direction = "both",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """`S` of Algorithm 1 for `nodes` (all when None). `graph` is a GraphStore or a SciPy sparse matrix whose entry
    (i, j) is an edge from i to j."""
    if k < 2:
        raise ConfigError(f"K is {k}: it must be at least 2, the node itself and one neighbour")
    indptr, indices, rev_indptr, rev_indices = _both_ways(graph, direction)
    num_nodes = len(indptr) - 1
    wanted = np.arange(num_nodes) if nodes is None else np.ascontiguousarray(nodes, dtype=np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= num_nodes):
        raise InputError(f"node {int(wanted.max())} asked for, but nodes go from 0 to {num_nodes - 1}")
    rows = np.empty((len(wanted), k), dtype=np.int32 if num_nodes <= 2**31 else np.int64)

    def work(start: int, stop: int) -> None:
        kernels.local_nodes_rows(
            indptr, indices, rev_indptr, rev_indices, wanted[start:stop], seed, epoch, rows[start:stop]
        )

    run_chunks(work, len(wanted), _CHUNK_NODES, threads, progress, "local nodes")
    return rows


def _both_ways(graph: GraphStore | Any, direction: Direction) -> tuple[Array, Array, Array, Array]:
    """(indptr, indices) along `direction` and of the transpose."""
    from ..graph.store import GraphStore

    if isinstance(graph, GraphStore):
        return (*graph.csr(direction), *graph.reverse_csr(direction))
    forward = _clean(graph if direction == "out" else graph.T if direction == "in" else graph + graph.T)
    backward = forward if direction == "both" else _clean(forward.T)
    return (
        forward.indptr.astype(np.int64), forward.indices, backward.indptr.astype(np.int64), backward.indices
    )  # fmt: skip


def _clean(matrix: Any) -> Any:
    """A SciPy CSR with sorted rows, no duplicates and no diagonal."""
    import scipy.sparse as sp

    entries = sp.coo_array(matrix)
    if entries.shape[0] != entries.shape[1]:
        raise InputError(f"the adjacency matrix has shape {entries.shape}, expected a square one")
    keep = (entries.row != entries.col) & (entries.data != 0)
    ones = np.ones(int(keep.sum()), dtype=np.int8)
    csr = sp.csr_array((ones, (entries.row[keep], entries.col[keep])), shape=entries.shape)
    csr.sum_duplicates()
    csr.sort_indices()
    return csr
