"""Ã, C⁰ = ÃH and C¹ = ÃC⁰ with dense matrices in float64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def adjacency(edges: Iterable[tuple[int, int]], num_nodes: int, direction: str) -> np.ndarray:
    """0/1 matrix without its diagonal; `in` is the transpose, `both` the union."""
    a = np.zeros((num_nodes, num_nodes))
    for source, target in edges:
        if source != target:
            a[source, target] = 1.0
    if direction == "in":
        return a.T
    return np.maximum(a, a.T) if direction == "both" else a


def normalized(a: np.ndarray) -> np.ndarray:
    """D_row^{-1/2} (A + I) D_column^{-1/2}, with the degrees of A + I."""
    a = a + np.eye(len(a))
    return np.diag(a.sum(axis=1) ** -0.5) @ a @ np.diag(a.sum(axis=0) ** -0.5)


def token_rows(edges: Iterable[tuple[int, int]], features: np.ndarray, direction: str, standardize: bool) -> np.ndarray:
    """[N, 3, d]: H, C⁰, C¹ of every node."""
    h = features.astype(np.float64)
    if standardize:
        deviation = h.std(axis=0)
        h = (h - h.mean(axis=0)) / np.where(deviation == 0, 1.0, deviation)
    a = normalized(adjacency(edges, len(h), direction))
    return np.stack([h, a @ h, a @ (a @ h)], axis=1)
