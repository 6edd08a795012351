"""InputTokens (Algorithm 2) as the paper's double loop."""

from __future__ import annotations

import numpy as np


def input_tokens(local_nodes: np.ndarray, h: np.ndarray, c: np.ndarray) -> np.ndarray:
    """X [m, 3k, d] from S [m, k], H [n, d] and C [n, 2, d]."""
    m, k = local_nodes.shape
    x = np.zeros((m, 3 * k, h.shape[1]), dtype=h.dtype)
    for i in range(m):
        for j in range(k):
            x[i, 3 * j] = h[local_nodes[i, j]]
            x[i, 3 * j + 1] = c[local_nodes[i, j], 0]
            x[i, 3 * j + 2] = c[local_nodes[i, j], 1]
    return x
