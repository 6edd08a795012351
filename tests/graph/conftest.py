"""The hand-drawn graph as a fixture."""

from __future__ import annotations

from typing import Any

import pytest
from graph_helpers import SIX_EDGES


@pytest.fixture
def six() -> Any:
    return SIX_EDGES.copy()
