"""Laplacian eigenvectors: the smoothest nontrivial functions on the graph.

Enters: a GraphStore. Leaves: float32 [N, p], whose columns are the eigenvectors of L = I - D^{-1/2} A D^{-1/2} with the
smallest eigenvalues above 0. A is always the undirected view, because L must be symmetric.

The eigenvectors of eigenvalue 0, √degree within each connected component, are trivial. They are shifted to the other
end of the spectrum, so that the solver finds the `dim` requested ones. Columns have mean square one, like the other
encodings, and the first of their largest entries is positive. Nodes without edges and columns beyond the last
eigenvector are zero.

Cost: `laplacian_bytes` of memory; about `STEPS_PER_VECTOR`·dim passes over the edges (Lanczos with a fixed start), more
for poorly connected graphs. One machine always gives the same bytes; on another one the last digits may differ, and
eigenvectors of a repeated eigenvalue may be rotated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.runtime.progress import Progress, silent
from largegt.types import Array

STEPS_PER_VECTOR = 30
"""Approximate products with A per eigenvector, measured on graphs of some hundred thousand nodes."""
_DENSE_NODES = 200
_TOLERANCE = 1e-5
_MAX_RESTARTS = 2000
_SHIFT = 3.0
"""Subtracted from the trivial eigenvalue 1 of D^{-1/2} A D^{-1/2}: -2 is below all others."""


def num_lanczos_vectors(dim: int) -> int:
    return max(2 * dim + 1, 20)


def laplacian_bytes(store: GraphStore, dim: int) -> int:
    """Memory of the matrix, the Lanczos vectors (copied once), the result, and some [N] vectors."""
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
        """D^{-1/2} A D^{-1/2} x, with the trivial eigenvalues shifted."""
        nonlocal steps
        steps += 1
        show("positions, laplacian", steps, None)
        x = np.asarray(x, dtype=np.float64).reshape(-1)
        projection = np.bincount(component, weights=trivial * x)
        return np.asarray(
            adjacency @ (x / np.sqrt(weight)) / np.sqrt(weight) - _SHIFT * trivial * projection[component]
        )

    encodings = np.zeros((size, dim), dtype=np.float32)
    if (count := min(dim, size - num_components)) > 0:
        found = _largest(product, size, count) * np.sqrt(size)
        absolute = np.abs(found)  # the first entry that is maximal up to rounding becomes positive
        first = (absolute >= (1 - 1e-4) * absolute.max(axis=0)).argmax(axis=0)
        encodings[:, :count] = found * np.where(found[first, np.arange(count)] < 0, -1.0, 1.0)
        encodings[degrees == 0] = 0
    return encodings


def _largest(product: Callable[[Array], Array], size: int, count: int) -> Array:
    """[N, count] eigenvectors of the largest eigenvalues, the smallest ones of L."""
    if size <= max(num_lanczos_vectors(count), _DENSE_NODES):
        matrix = np.stack([product(column) for column in np.eye(size)])
        return np.asarray(np.linalg.eigh((matrix + matrix.T) / 2)[1][:, ::-1][:, :count])
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator, start = LinearOperator((size, size), product, dtype=np.float64), np.random.default_rng(0)
    try:
        _, vectors = eigsh(
            operator, count, which="LA", v0=start.standard_normal(size), ncv=num_lanczos_vectors(count),
            tol=_TOLERANCE, maxiter=_MAX_RESTARTS,
        )  # fmt: skip
    except ArpackNoConvergence as error:
        raise ConfigError(
            f"{len(error.eigenvalues)} of {count} Laplacian eigenvectors found in {_MAX_RESTARTS:,} restarts: use a "
            "smaller prepare.positional_encoding.dim, or `prepare.positional_encoding.method=random_projection`"
        ) from None
    return np.asarray(vectors[:, ::-1])
