"""Means of edge features, as columns of the contexts.

The first context of a node gathers what comes over its edges, so the features of the edges come with it (the paper,
section 3: by "using edge features during message passing to update node representations"). With e_i the mean over the
edges at i along the context's direction (zeros where there are none), brought to the scale of the other columns:

  H_i = [H_i, 0]    C⁰_i = [(ÃH)_i, e_i]    C¹_i = [(Ã²H)_i, (Ãe)_i]    and so on

Enters: a store whose edges have features. Leaves: float32 rows. Cost: a copy of the rows asked for.
"""

from __future__ import annotations

from ..data.store import GraphStore
from ..types import Array, Direction
from .features import NodeFeatures, as_range


class EdgeMeans(NodeFeatures):
    """Rows [n, f]: e of each node along a direction, as stored."""

    def __init__(self, store: GraphStore, direction: Direction) -> None:
        super().__init__(store)
        self.direction, self.width = direction, store.num_edge_features

    def rows(self, nodes: slice | Array) -> Array:
        return self.store.edge_features(self.direction)[nodes if isinstance(nodes, slice) else as_range(nodes)]
