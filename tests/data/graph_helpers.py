"""A hand-drawn graph of six nodes, and the slow, obvious way to read edges.

0 → 1 (twice), 1 → 2, 2 → 0, 2 → 3, 3 → 2, 3 → 3 (a self loop); 4 → 3; 5 is alone
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIX_EDGES = np.array([[0, 0, 1, 2, 2, 3, 3, 4], [1, 1, 2, 0, 3, 2, 3, 3]])


def left_behind(folder: Path, *known: str) -> list[str]:
    """Everything in a folder but what the test put there."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in known)


def rows(store: Any, direction: str) -> dict[int, list[int]]:
    indptr, indices = store.csr(direction)
    return {i: indices[indptr[i] : indptr[i + 1]].tolist() for i in range(store.num_nodes)}


def edge_sets(edges: Any, num_nodes: int) -> dict[str, dict[int, list[int]]]:
    """The rows as Python sets would have them."""
    pairs = {(int(a), int(b)) for a, b in np.asarray(edges).T if a != b}
    out = {i: sorted(b for a, b in pairs if a == i) for i in range(num_nodes)}
    back = {i: sorted(a for a, b in pairs if b == i) for i in range(num_nodes)}
    both = {i: sorted(set(out[i]) | set(back[i])) for i in range(num_nodes)}
    return {"out": out, "in": back, "both": both}
