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

from collections.abc import Callable

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.runtime.progress import Progress, silent
from largegt.types import Array

STEPS_PER_VECTOR = 30
"""Rough: products with A per eigenvector, as seen on graphs of some hundred thousand nodes."""
_DENSE_NODES = 200
_TOLERANCE = 1e-5
_MOST_RESTARTS = 2000
_AWAY = 3.0
"""What is subtracted from the trivial vectors' eigenvalue of D^{-1/2} A D^{-1/2}: 1 becomes -2, below all others."""


def num_lanczos_vectors(dim: int) -> int:
    return max(2 * dim + 1, 20)


def laplacian_bytes(store: GraphStore, dim: int) -> int:
    """Memory of the matrix, the Lanczos vectors (which are copied once), the result, and some vectors of nodes."""
    per_node = 8 * (2 * num_lanczos_vectors(dim) + 3 * dim + 12)
    return per_node * store.num_nodes + 16 * len(store.csr("both")[1])


def laplacian(store: GraphStore, dim: int, progress: Progress | None = None) -> Array:
    """The encodings of every node; [N, dim]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    (indptr, indices), size, show = store.csr("both"), store.num_nodes, progress or silent
    adjacency = csr_array((np.ones(len(indices)), np.array(indices), np.array(indptr)), shape=(size, size))
    num_components, component = connected_components(adjacency, connection="strong")
    degrees = np.diff(indptr)
    weight = np.maximum(degrees, 1).astype(np.float64)
    trivial = np.sqrt(weight / np.bincount(component, weights=weight)[component])
    steps = 0

    def product(x: Array) -> Array:
        """D^{-1/2} A D^{-1/2} x, with the trivial vectors moved out of the way."""
        nonlocal steps
        steps += 1
        show("positions, laplacian", steps, None)
        x = np.asarray(x, dtype=np.float64).reshape(-1)
        share = np.bincount(component, weights=trivial * x)
        return np.asarray(adjacency @ (x / np.sqrt(weight)) / np.sqrt(weight) - _AWAY * trivial * share[component])

    encodings = np.zeros((size, dim), dtype=np.float32)
    if (count := min(dim, size - num_components)) > 0:
        found = _largest(product, size, count) * np.sqrt(size)
        absolute = np.abs(found)  # the first entry that is as large as any, but for rounding, becomes positive
        first = (absolute >= (1 - 1e-4) * absolute.max(axis=0)).argmax(axis=0)
        encodings[:, :count] = found * np.where(found[first, np.arange(count)] < 0, -1.0, 1.0)
        encodings[degrees == 0] = 0
    return encodings


def _largest(product: Callable[[Array], Array], size: int, count: int) -> Array:
    """The eigenvectors with the largest eigenvalues, which are the smallest of L; [N, count]."""
    if size <= max(num_lanczos_vectors(count), _DENSE_NODES):
        matrix = np.stack([product(column) for column in np.eye(size)])
        return np.asarray(np.linalg.eigh((matrix + matrix.T) / 2)[1][:, ::-1][:, :count])
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator, start = LinearOperator((size, size), product, dtype=np.float64), np.random.default_rng(0)
    try:
        _, vectors = eigsh(
            operator, count, which="LA", v0=start.standard_normal(size), ncv=num_lanczos_vectors(count),
            tol=_TOLERANCE, maxiter=_MOST_RESTARTS,
        )  # fmt: skip
    except ArpackNoConvergence as error:
        raise ConfigError(
            f"{len(error.eigenvalues)} of {count} Laplacian eigenvectors found in {_MOST_RESTARTS:,} restarts: use a "
            "smaller prepare.positional_encoding.dim, or `prepare.positional_encoding.method=random_projection`"
        ) from None
    return np.asarray(vectors[:, ::-1])
