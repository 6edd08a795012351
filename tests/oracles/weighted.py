"""Edge weights the slow, obvious way: dense matrices, walks written out, and every order that nodes can be drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from oracles.context import normalized


def weight_matrix(edges: np.ndarray, weights: Sequence[float], num_nodes: int, undirected: bool = False) -> np.ndarray:
    """[N, N] float64 sums of the weights as float32, each pair's added from the smallest up; no diagonal."""
    found: dict[tuple[int, int], list[float]] = {}
    for (source, target), weight in zip(np.asarray(edges).T.tolist(), np.float32(weights).tolist(), strict=True):
        for a, b in ((source, target), (target, source)) if undirected else ((source, target),):
            if a != b:
                found.setdefault((a, b), []).append(weight)
    matrix = np.zeros((num_nodes, num_nodes))
    for (a, b), every in found.items():
        for weight in sorted(every):
            matrix[a, b] += weight
    return matrix


def along(matrix: np.ndarray, direction: str) -> np.ndarray:
    """The same seen along a direction; both: an edge and its inverse are added."""
    return {"out": matrix, "in": matrix.T, "both": matrix + matrix.T}[direction]


def steps(matrix: np.ndarray) -> np.ndarray:
    """P: where one step in proportion to the weights leads; a row of zeros where it leads nowhere."""
    total = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)


def walk_chances(matrix: np.ndarray, i: int) -> dict[str, np.ndarray]:
    """How likely walks from i end at each node, but for a factor: near, far and either, as weighted_sampler.py says."""
    p = steps(matrix)
    twice = np.array([sum(p[i, j] * p[j, v] for j in range(len(p))) for v in range(len(p))])
    twice[i] = 0
    return {"is_neighbor": p[i], "far": np.where(p[i] > 0, 0, twice), "either": p[i] + twice}


def set_chances(chances: np.ndarray, wanted: int) -> dict[frozenset[int], float]:
    """How likely each set of `wanted` nodes is, drawn one after the other without replacement, each in proportion to
    `chances` over those that are left: by every order of draws."""
    nodes = np.flatnonzero(chances > 0).tolist()
    found: dict[frozenset[int], float] = {}
    for order in permutations(nodes, wanted):
        likely, left = 1.0, float(chances.sum())
        for v in order:
            likely, left = likely * chances[v] / left, left - chances[v]
        found[frozenset(order)] = found.get(frozenset(order), 0.0) + likely
    return found


def token_rows(matrix: np.ndarray, features: np.ndarray, hops: int = 2) -> np.ndarray:
    """[N, 1 + hops, d]: H, ÃH, Ã²H of A with weights that were divided by their mean."""
    a = normalized(matrix / matrix[matrix > 0].mean())
    return np.stack([np.linalg.matrix_power(a, hop) @ features.astype(np.float64) for hop in range(hops + 1)], axis=1)


def edge_means(edges: np.ndarray, features: np.ndarray, num_nodes: int, direction: str) -> np.ndarray:
    """[N, f]: the mean of the features of the edges at each node; zeros where there are none."""
    means = np.zeros((num_nodes, features.shape[1]))
    for node in range(num_nodes):
        rows = []
        for (source, target), row in zip(np.asarray(edges).T.tolist(), features, strict=True):
            if source == target:
                continue
            if (source == node and direction in ("out", "both")) or (target == node and direction in ("in", "both")):
                rows.append(row.astype(np.float64))
        if rows:
            means[node] = np.mean(rows, axis=0)
    return means
