"""LINKX: an MLP of the node's row of the adjacency matrix, one of its features, and one of both.

Axes: b batch, e neighbours of them all, f input features, p positional width, d hidden width.

h_A = W_A a_i + b_A, h_X = W_X x_i + b_X, and logits = MLP(σ(W [h_A; h_X] + h_A + h_X)). The row a_i of the adjacency
matrix is never formed: W_A a_i is a sum of the neighbours' rows of a table [num_nodes, d].

Cost: O(e·d) time. The table is most of the model, and it learns nothing for a node that no training node has as a
neighbour; an optimizer step touches all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..model.largegt import make_norm
from ..model.node_model import NodeModel, NodeOutput
from .batch import DrawnBatch

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared


@dataclass(frozen=True)
class AdjacencyBatch(DrawnBatch):
    """What LINKX sees of b nodes: all their neighbours, by number."""

    nodes: Tensor
    """[b] node numbers."""
    features: Tensor
    """[b, f]"""
    neighbors_indptr: Tensor
    """[b+1] int64: the neighbours of node i are neighbors[indptr[i] : indptr[i + 1]]."""
    neighbors: Tensor
    """[e] int64: node numbers."""
    positions: Tensor
    """[b, p] positional encodings; p may be 0."""
    labels: Tensor
    """[b] classes (-1: none) or values (NaN: none), or [b, c] for multi-label."""


class LINKX(NodeModel):
    """One layer for each of adjacency and features, then `num_layers` hidden layers and a linear head."""

    num_local_nodes = 1
    reads = "adjacency"

    def __init__(self, num_features: int, num_outputs: int, num_nodes: int, config: ModelConfig) -> None:
        super().__init__()
        width = config.hidden
        self.table_nd = nn.Parameter(torch.empty(num_nodes, width))
        self.table_bias_d = nn.Parameter(torch.empty(width))
        bound = num_nodes**-0.5  # of a linear layer on rows of num_nodes numbers
        nn.init.uniform_(self.table_nd, -bound, bound)
        nn.init.uniform_(self.table_bias_d, -bound, bound)
        self.features = nn.Linear(num_features, width)
        self.join = nn.Linear(2 * width, width)
        layers: list[nn.Module] = []
        for _ in range(config.num_layers):
            layers += [
                nn.Linear(width, width), make_norm(config.norm, width), nn.ReLU(), nn.Dropout(config.dropout),
            ]  # fmt: skip
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_outputs)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> LINKX:
        """A model whose shapes fit a Prepared."""
        return cls(prepared.num_features, prepared.meta["num_outputs"], prepared.meta["num_nodes"], config)

    def forward(self, batch: AdjacencyBatch) -> NodeOutput:
        sum_bd = F.embedding_bag(
            batch.neighbors, self.table_nd, batch.neighbors_indptr, mode="sum", include_last_offset=True
        )
        adjacency_bd = sum_bd + self.table_bias_d
        features_bd = self.features(batch.features)
        both_bd = self.join(torch.cat([adjacency_bd, features_bd], dim=1))
        h_bd = self.body(F.relu(both_bd + adjacency_bd + features_bd))
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=None)
