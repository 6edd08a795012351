"""Laplacian eigenvectors: the slowest ways in which something could even out over the graph.

Enters: a GraphStore. Leaves: float32 [N, p], column after column the eigenvectors of L = I - D^{-1/2} A D^{-1/2} with
the smallest eigenvalues above 0. A is the undirected view whatever the direction of other stages: L must be symmetric.

The eigenvalue 0 is trivial: its vectors, one per connected component, are known (√degree within the component) and are
moved to the other end of the spectrum, so that what is found are the `dim` vectors asked for. Columns have mean square
one, so that their entries compare with those of the other encodings, and the first of their largest entries is
positive. A node without edges has zeros, and so has a column where the graph has no more vectors.

Cost: everything in memory, `laplacian_bytes`; time some `STEPS_PER_VECTOR`·dim passes over the edges (Lanczos with a
fixed start), more where the graph hangs together badly. The same machine gives the same bytes; on another one the last
digits may differ, and vectors of a repeated eigenvalue may come out turned.
"""

from __future__ import annotations

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import run_chunks
from largegt.types import Array

from .sampling import kernels

STEPS_PER_VECTOR = 30
"""Rough: products with A per eigenvector, as seen on graphs of some hundred thousand nodes."""
_CHUNK_ROWS = 1 << 14
_DENSE_NODES = 200
_TOLERANCE = 1e-5
_MOST_RESTARTS = 2000
_AWAY = 3.0
"""What is subtracted from the trivial vectors' eigenvalue of D^{-1/2} A D^{-1/2}: 1 becomes -2, below all others."""


def num_lanczos_vectors(dim: int) -> int:
    return max(2 * dim + 1, 20)


def laplacian_bytes(num_nodes: int, dim: int) -> int:
    """Memory of the Lanczos vectors (which are copied once), the result, and some vectors over the nodes."""
    return 8 * num_nodes * (2 * num_lanczos_vectors(dim) + 3 * dim + 12)


def laplacian(store: GraphStore, dim: int, threads: int | None = None, progress: Progress | None = None) -> Array:
    """The encodings of every node; [N, dim]."""
    operator = _Normalized(store, threads, progress)
    count = min(dim, operator.num_nodes - operator.num_components)
    vectors = np.zeros((operator.num_nodes, dim), dtype=np.float32)
    if count > 0:
        found = _largest(operator, count)
        found *= np.sqrt(operator.num_nodes)
        vectors[:, :count] = found * _signs(found)
        vectors[operator.is_isolated] = 0
    return vectors


class _Normalized:
    """x ↦ D^{-1/2} A D^{-1/2} x, with the trivial vectors moved out of the way."""

    def __init__(self, store: GraphStore, threads: int | None, progress: Progress | None) -> None:
        self.indptr, self.indices = store.csr("both")
        self.num_nodes = store.num_nodes
        self.threads, self.show = threads, progress or silent
        degrees = np.diff(self.indptr)
        self.is_isolated = degrees == 0
        self.scale = 1.0 / np.sqrt(np.maximum(degrees, 1))
        root = np.arange(self.num_nodes)
        kernels.join_components(self.indptr, self.indices, root)
        is_root = root == np.arange(self.num_nodes)
        self.num_components = int(np.count_nonzero(is_root))
        self.component = (np.cumsum(is_root) - 1)[root]
        weight = np.maximum(degrees, 1).astype(np.float64)
        self.trivial = np.sqrt(weight / np.bincount(self.component, weights=weight)[self.component])
        self.steps = 0

    def __call__(self, x: Array) -> Array:
        x = np.asarray(x, dtype=np.float64).reshape(-1)
        scaled = x * self.scale
        y = np.empty_like(scaled)

        def work(start: int, stop: int) -> None:
            kernels.sum_neighbors(self.indptr, self.indices, scaled, start, y[start:stop])

        run_chunks(work, self.num_nodes, _CHUNK_ROWS, self.threads)
        y *= self.scale
        share = np.bincount(self.component, weights=self.trivial * x)
        y -= _AWAY * self.trivial * share[self.component]
        self.steps += 1
        self.show("positions, laplacian", self.steps, None)
        return y


def _largest(operator: _Normalized, count: int) -> Array:
    """The eigenvectors with the largest eigenvalues, which are the smallest of L; [N, count]."""
    size = operator.num_nodes
    if size <= max(num_lanczos_vectors(count), _DENSE_NODES):
        matrix = np.stack([operator(column) for column in np.eye(size)])
        _, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return np.ascontiguousarray(vectors[:, ::-1][:, :count])
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    start = np.random.default_rng(0).standard_normal(size)
    try:
        _, vectors = eigsh(
            LinearOperator((size, size), matvec=operator, dtype=np.float64), k=count, which="LA", v0=start,
            ncv=num_lanczos_vectors(count), tol=_TOLERANCE, maxiter=_MOST_RESTARTS,
        )  # fmt: skip
    except ArpackNoConvergence as error:
        raise ConfigError(
            f"{len(error.eigenvalues)} of {count} Laplacian eigenvectors found in {operator.steps:,} passes over the "
            "edges: use a smaller prepare.positions.dim, or --set prepare.positions.method=projection"
        ) from None
    return np.ascontiguousarray(vectors[:, ::-1])


def _signs(vectors: Array) -> Array:
    """±1 per column, so that the first entry that is as large as any, but for rounding, becomes positive."""
    size = np.abs(vectors)
    first = (size >= (1 - 1e-4) * size.max(axis=0)).argmax(axis=0)
    return np.where(vectors[first, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
