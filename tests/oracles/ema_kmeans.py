"""EMA k-means step by step in NumPy float64, the random choices handed in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class EmaKMeans:
    """The state, and one `step` at a time. `centroids` are the ones to begin with, each of size `size`."""

    centroids: np.ndarray
    size: float
    decay: float = 0.99
    epsilon: float = 1e-5
    dead_code_threshold: float = 0.0
    where: dict[int, int] = field(default_factory=dict)
    """Which centroid each node seen so far is assigned to."""
    mean: np.ndarray | None = None
    variance: np.ndarray | None = None
    revived: int = 0
    """How many centroids were moved so far because they had lost their nodes."""

    def __post_init__(self) -> None:
        self.sizes = np.full(len(self.centroids), self.size)
        self.sums = self.centroids * self.size

    def step(self, z: np.ndarray, nodes: np.ndarray, revived_to: np.ndarray | None = None) -> None:
        """One batch; `revived_to[c]` is the row of the batch that centroid c moves to if it is dead."""
        mean, variance = z.mean(axis=0), z.var(axis=0)
        self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        self.variance = variance if self.variance is None else 0.9 * self.variance + 0.1 * variance
        z = (z - mean) / np.sqrt(variance + 1e-5)
        nearest = [int(np.argmin([((row - c) ** 2).sum() for c in self.centroids])) for row in z]
        share = len(z) / len(self.centroids)
        for c in range(len(self.centroids)):
            mine = [row for row, which in zip(z, nearest, strict=True) if which == c]
            total = np.sum(mine, axis=0) if mine else np.zeros(z.shape[1])
            self.sizes[c] = self.decay * self.sizes[c] + (1 - self.decay) * len(mine)
            self.sums[c] = self.decay * self.sums[c] + (1 - self.decay) * total
            if self.sizes[c] < self.dead_code_threshold * share:
                assert revived_to is not None
                self.revived += 1
                self.sizes[c] = share
                self.sums[c] = z[revived_to[c]] * share
        everything = self.sizes.sum()
        for c in range(len(self.centroids)):
            smoothed = (self.sizes[c] + self.epsilon) / (everything + len(self.sizes) * self.epsilon) * everything
            self.centroids[c] = self.sums[c] / smoothed
        self.where.update(zip(nodes.tolist(), nearest, strict=True))

    def counts(self) -> list[int]:
        """How many nodes are assigned to each centroid now, counted again."""
        return [sum(which == c for which in self.where.values()) for c in range(len(self.centroids))]
