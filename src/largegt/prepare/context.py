"""Context features: C⁰ = ÃH and C¹ = ÃC⁰, and the token rows [H, C⁰, C¹] made of them.

Enters: a GraphStore and the nodes that tokens will be gathered for. Leaves: tokens [t, 3, d], one gather per token
triple. Cost: two passes over the edges that reach those nodes, at memory bandwidth; memory is C⁰ in float32 for
those nodes and their neighbours, and the features in float32 where they are stored in 16 bits. Sums are float32.

Ã = D_r^{-1/2} (A + I) D_c^{-1/2} with the degrees of A + I: by rows along the chosen direction, by columns against it.
For the undirected view both are the same and Ã is the usual symmetric normalisation.
"""

from __future__ import annotations

import numpy as np

from ..graph.precision import decode
from ..graph.store import GraphStore
from ..progress import Progress
from ..types import Array, Direction
from . import kernels
from .engines.local import run_chunks

_CHUNK_NODES = 4096
_CHUNK_ROWS = 1 << 16
_NOWHERE = np.zeros(0, dtype=np.int64)


def feature_scale(store: GraphStore, standardize: bool) -> tuple[Array, Array]:
    """`(shift, gain)` float32 [d]: (x - shift)·gain has mean 0 and variance 1; zeros and ones without it."""
    width = store.num_features
    if not standardize:
        return np.zeros(width, dtype=np.float32), np.ones(width, dtype=np.float32)
    total, square = np.zeros(width), np.zeros(width)
    pilot = decode(store.features[:1], store.feature_dtype).astype(np.float64)[0]
    for start in range(0, store.num_nodes, _CHUNK_ROWS):
        block = decode(store.features[start : start + _CHUNK_ROWS], store.feature_dtype).astype(np.float64) - pilot
        total += block.sum(axis=0)
        square += (block * block).sum(axis=0)
    mean = total / store.num_nodes
    deviation = np.sqrt(np.maximum(square / store.num_nodes - mean * mean, 0.0))
    constant = deviation <= 1e-7 * np.abs(mean + pilot)
    gain = 1.0 / np.where(constant, 1.0, deviation)
    return (mean + pilot).astype(np.float32), gain.astype(np.float32)


def token_rows(
    store: GraphStore,
    nodes: Array,
    shift: Array,
    gain: Array,
    direction: Direction,
    out: Array,
    threads: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Fill out [t, 3, d] with H, C⁰ and C¹ of `nodes` (sorted node numbers)."""
    indptr, indices = store.csr(direction)
    rev_indptr, _ = store.reverse_csr(direction)
    row_scale = (1.0 / np.sqrt(np.diff(indptr) + 1.0)).astype(np.float32)
    column_scale = (1.0 / np.sqrt(np.diff(rev_indptr) + 1.0)).astype(np.float32)
    near, place_of = _nodes_and_neighbors(indptr, indices, nodes, store.num_nodes)
    features = store.features
    if store.feature_dtype != "float32":
        features = decode(features, store.feature_dtype)

    once = np.empty((len(near), store.num_features), dtype=np.float32)

    def first_hop(start: int, stop: int) -> None:
        kernels.propagate_rows(
            indptr, indices, near[start:stop], row_scale, column_scale, True,
            features, _NOWHERE, shift, gain, once[start:stop],
        )  # fmt: skip

    zeros, ones = np.zeros_like(shift), np.ones_like(gain)

    def second_hop(start: int, stop: int) -> None:
        rows = nodes[start:stop]
        twice = np.empty((len(rows), store.num_features), dtype=np.float32)
        kernels.propagate_rows(indptr, indices, rows, row_scale, column_scale, True, once, place_of, zeros, ones, twice)
        with np.errstate(over="ignore"):  # the caller looks for infinities and says what to do
            out[start:stop, 0] = (features[rows] - shift) * gain
            out[start:stop, 1] = once[place_of[rows] if len(place_of) else rows]
            out[start:stop, 2] = twice

    run_chunks(first_hop, len(near), _CHUNK_NODES, threads, progress, "context C0")
    run_chunks(second_hop, len(nodes), _CHUNK_NODES, threads, progress, "context C1")


def _nodes_and_neighbors(indptr: Array, indices: Array, nodes: Array, num_nodes: int) -> tuple[Array, Array]:
    """The nodes whose C⁰ is needed, and where each lies among them (empty when that is the node itself)."""
    marked = np.zeros(num_nodes, dtype=np.bool_)
    marked[nodes] = True
    if len(nodes) < num_nodes:
        kernels.mark_neighbors(indptr, indices, nodes, marked)
    near = np.flatnonzero(marked)
    if len(near) == num_nodes:
        return near, _NOWHERE
    return near, np.cumsum(marked, dtype=np.int64) - 1
