"""Ã, C⁰ = ÃH and C¹ = ÃC⁰, in one direction or in both apart, with dense matrices in float64."""

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


def with_degrees(edges: Iterable[tuple[int, int]], features: np.ndarray, directed: bool) -> np.ndarray:
    """The features and, behind them, log(1 + degree): of the undirected view, or out and in."""
    edges = list(edges)
    sides = ("out", "in") if directed else ("both",)
    counts = [adjacency(edges, len(features), side).sum(axis=1) for side in sides]
    return np.column_stack([features.astype(np.float64), *(np.log(1 + count) for count in counts)])


def token_rows(
    edges: Iterable[tuple[int, int]], features: np.ndarray, direction: str, standardize: bool, hops: int = 2
) -> np.ndarray:
    """[N, 1 + contexts, d]: H, C⁰, C¹, … of every node; direction "apart": H, Ã_out H, Ã_in H, Ã_out² H, Ã_in² H, …"""
    edges = list(edges)
    h = features.astype(np.float64)
    if standardize:
        deviation = h.std(axis=0)
        h = (h - h.mean(axis=0)) / np.where(deviation == 0, 1.0, deviation)
    sides = ("out", "in") if direction == "apart" else (direction,)
    matrices = [normalized(adjacency(edges, len(h), side)) for side in sides]
    rows = [h]
    for hop in range(1, hops + 1):
        rows += [np.linalg.matrix_power(a, hop) @ h for a in matrices]
    return np.stack(rows, axis=1)
