"""LINKX: MLPs on the node's row of the adjacency matrix, on its features, and on both.

Axes: b batch, e neighbours of all batch nodes, f input features, p positional width, d hidden width.

h_A = W_A a_i + b_A, h_X = W_X x_i + b_X, and logits = MLP(σ(W [h_A; h_X] + h_A + h_X)). The row a_i of the adjacency
matrix is never formed: W_A a_i is the sum of the neighbours' rows in a table [num_nodes, d].

Cost: O(e·d) time. The table holds most of the parameters; rows of nodes that are no neighbour of a training node get no
gradient, and an optimizer step updates the whole table.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from largegt.config.models import LINKXConfig
from largegt.models.base import DataShape, NodeModel, NodeOutput

from .batch import AdjacencyBatch
from .feature_models import hidden_layers


class LINKX(NodeModel):
    """One layer for the adjacency and one for the features, then `num_layers` hidden layers and a linear head."""

    num_local_nodes = 1
    reads = "adjacency"

    def __init__(self, shape: DataShape, config: LINKXConfig) -> None:
        super().__init__()
        width, num_nodes = config.hidden_dim, shape.num_nodes
        self.table_nd = nn.Parameter(torch.empty(num_nodes, width))
        self.table_bias_d = nn.Parameter(torch.empty(width))
        bound = num_nodes**-0.5  # as in nn.Linear with num_nodes inputs
        nn.init.uniform_(self.table_nd, -bound, bound)
        nn.init.uniform_(self.table_bias_d, -bound, bound)
        self.features = nn.Linear(shape.num_features, width)
        self.join = nn.Linear(2 * width, width)
        self.body = hidden_layers(width, config, config.num_layers)
        self.head = nn.Linear(width, shape.num_outputs)

    def forward(self, batch: AdjacencyBatch) -> NodeOutput:
        sum_bd = F.embedding_bag(
            batch.neighbors, self.table_nd, batch.neighbors_indptr, mode="sum", include_last_offset=True
        )
        adjacency_bd = sum_bd + self.table_bias_d
        features_bd = self.features(batch.features)
        both_bd = self.join(torch.cat([adjacency_bd, features_bd], dim=1))
        h_bd = self.body(F.relu(both_bd + adjacency_bd + features_bd))
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)
