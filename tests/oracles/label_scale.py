"""The scale that a node reads the values of a regression in: that of the training nodes of the other half."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def scale_for(reader: int, train: Sequence[int] | np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(mean, standard deviation). Every second training node is of half 0, as are all other nodes."""
    in_order = sorted(int(node) for node in train)
    halves = in_order[1::2], in_order[0::2]
    values = np.array([labels[node] for node in halves[0 if reader in halves[1] else 1]], dtype=np.float64)
    return float(values.mean()), float(values.std())


def steps(reader: int, node: int, train: Sequence[int] | np.ndarray, labels: np.ndarray) -> float:
    """What the value of `node` counts for where `reader` reads it: whole steps of 1/32 standard deviation."""
    mean, std = scale_for(reader, train, labels)
    return float(np.clip(np.rint((float(labels[node]) - mean) / std * 32), -256, 256))
