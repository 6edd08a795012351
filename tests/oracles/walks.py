"""node2vec written out: transition probabilities of the second-order walk, and the skip-gram loss as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def transition(neighbors: Sequence[set[int]], previous: int | None, here: int, p: float, q: float) -> dict[int, float]:
    """P(next | previous, here); a node without neighbours is never left."""
    if not neighbors[here]:
        return {here: 1.0}
    weights = {}
    for target in sorted(neighbors[here]):
        if previous is None:
            weights[target] = 1.0
        elif target == previous:
            weights[target] = 1.0 / p
        elif target in neighbors[previous]:
            weights[target] = 1.0
        else:
            weights[target] = 1.0 / q
    total = sum(weights.values())
    return {target: weight / total for target, weight in weights.items()}


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def skip_gram_loss(table: np.ndarray, walks: np.ndarray, strangers: np.ndarray, context: int) -> float:
    """Mean of -log σ(c·v) over each centre and the `context - 1` nodes behind it, and of -log σ(-c·u) with strangers.

    Row n·W + w of `strangers` is contrasted with walk w of W.
    """
    num_walks, length = walks.shape
    near, far = [], []
    for w in range(num_walks):
        for c in range(length - context + 1):
            center = table[walks[w, c]]
            for place in range(c + 1, c + context):
                near.append(-log_sigmoid(float(center @ table[walks[w, place]])))
                for row in range(w, len(strangers), num_walks):
                    far.append(-log_sigmoid(-float(center @ table[strangers[row, place]])))
    return float(np.mean(near) + np.mean(far))
