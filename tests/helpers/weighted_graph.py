"""An ingest in tiny steps, and a small graph with weights and features of its edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest


class Weighted(NamedTuple):
    """Edges with repetitions and self loops; the last two nodes have none."""

    edges: np.ndarray
    weights: np.ndarray
    edge_features: np.ndarray
    num_nodes: int


@pytest.fixture
def graph() -> Weighted:
    """30 nodes, 260 edges with weights and three features each."""
    rng = np.random.default_rng(3)
    edges = (rng.random((2, 260)) ** 2 * 28).astype(np.int64)
    return Weighted(edges, rng.exponential(2.0, 260) + 0.01, rng.normal(3.0, 2.0, (260, 3)), 30)


@pytest.fixture
def tinier(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A small ingest does everything that a large one does; `memory` is a number of bytes, however small."""
    small: dict[str, Any] = {
        "parts.EDGE_CHUNK_ROWS": 50, "parts._MIN_PART_EDGES": 60,
        "pair_runs._BUCKET_PAIRS": 60, "pair_runs._MOST_BUCKETS": 6, "csr._LEAST_RUN": 70, "csr._MOST_RUN": 150,
        "csr._LEAST_PIECE": 20, "csr._WINDOW_EDGES": 80, "edge_reading._FEW_EDGES": 50, "weights._WINDOW": 256,
    }  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(f"largegt.data.{name}", value)
    monkeypatch.setattr("largegt.data.ingest.memory_budget", lambda memory: int(memory or 1 << 28))
    return monkeypatch
