"""GOAT's codebook and its attention, from the facts of its public code, in NumPy float64 and plain loops.

Centroids, output centroids and sums are three tables of their own, sizes begin at 0. A step: batch norm without gain;
nearest centroid; averages of sizes and sums; the smoothed size is written back; centroids are sums by sizes; output
centroids are those in the scale of the input. Every node is assigned from the start, and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class GOATKMeans:
    """The state, and one `step` at a time."""

    centroids: np.ndarray
    output: np.ndarray
    sums: np.ndarray
    assignment: list[int]
    decay: float = 0.99

    def __post_init__(self) -> None:
        self.sizes = np.zeros(len(self.centroids))
        self.mean, self.variance = np.zeros(self.centroids.shape[1]), np.ones(self.centroids.shape[1])

    def step(self, z: np.ndarray, nodes: np.ndarray) -> None:
        mean, variance = z.mean(axis=0), z.var(axis=0)
        self.mean = 0.9 * self.mean + 0.1 * mean
        self.variance = 0.9 * self.variance + 0.1 * z.var(axis=0, ddof=1)
        z = (z - mean) / np.sqrt(variance + 1e-5)
        nearest = [int(np.argmin([((row - c) ** 2).sum() for c in self.centroids])) for row in z]
        for c in range(len(self.centroids)):
            mine = [row for row, which in zip(z, nearest, strict=True) if which == c]
            self.sizes[c] = self.decay * self.sizes[c] + (1 - self.decay) * len(mine)
            self.sums[c] = self.decay * self.sums[c] + (1 - self.decay) * sum(mine, np.zeros(z.shape[1]))
        total = self.sizes.sum()
        self.sizes = (self.sizes + 1e-5) / (total + len(self.sizes) * 1e-5) * total
        self.centroids = self.sums / self.sizes[:, None]
        self.output = self.centroids * np.sqrt(self.variance + 1e-5) + self.mean
        for node, which in zip(nodes.tolist(), nearest, strict=True):
            self.assignment[node] = which

    def counts(self) -> list[int]:
        return [self.assignment.count(c) for c in range(len(self.centroids))]


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, counts: list[int], heads: int) -> np.ndarray:
    """One node: softmax over the centroids that have nodes of q·k/√w + log(count), head by head, side by side."""
    width, used, parts = len(q) // heads, [c for c, count in enumerate(counts) if count], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = [q[part] @ keys[c][part] / math.sqrt(width) + math.log(counts[c]) for c in used]
        weights = np.exp(np.array(scores) - max(scores))
        parts.append(sum(w * values[c][part] for w, c in zip(weights / weights.sum(), used, strict=True)))
    return np.concatenate(parts)
