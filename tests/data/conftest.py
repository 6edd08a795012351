"""The hand-drawn graph, and an ingest in tiny steps, as fixtures."""

from __future__ import annotations

from typing import Any

import pytest
from graph_helpers import SIX_EDGES


@pytest.fixture
def six() -> Any:
    return SIX_EDGES.copy()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Small inputs go through everything that large ones do; `memory` is a number of bytes, however small."""
    monkeypatch.setattr("largegt.data.ingest.memory_budget", lambda memory: int(memory or 1 << 28))

    monkeypatch.setattr("largegt.data.parts.EDGE_CHUNK_ROWS", 500)
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 3000)
    monkeypatch.setattr("largegt.data.nodes._CHUNK_ROWS", 70)
    for name, value in (
        ("pair_runs._BUCKET_PAIRS", 300),
        ("pair_runs._MOST_BUCKETS", 6),
        ("csr._LEAST_RUN", 700),
        ("csr._MOST_RUN", 2500),
        ("csr._LEAST_PIECE", 150),
        ("csr._WINDOW_EDGES", 800),
        ("edge_reading._FEW_EDGES", 1200),
    ):
        monkeypatch.setattr(f"largegt.data.{name}", value)
    return monkeypatch


@pytest.fixture
def small(tiny: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """So that workers have many parts, runs and ranges of a small graph too."""
    tiny.setattr("largegt.data.parts._MIN_PART_EDGES", 90)
    return tiny
