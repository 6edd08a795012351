"""Baselines that read a node's own row of the token table: MLP (its features), SGC (the last hop), SIGN (every hop).

Axes: b batch, h = hops + 1, d hidden width.
"""

from __future__ import annotations

import torch
from torch import nn

from largegt.config.models import BlockConfig, MLPConfig, SGCConfig
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape, NodeModel, NodeOutput
from largegt.models.largegt.model import make_norm
from largegt.models.largegt.padding import PaddedLinear


class MLP(NodeModel):
    """`num_layers + 1` hidden layers with norm, ReLU and dropout, then a linear head. What every graph model must
    beat."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, shape: DataShape, config: MLPConfig) -> None:
        super().__init__()
        self.body = hidden_layers(shape.num_features, config, config.num_layers + 1)
        self.head = PaddedLinear(config.hidden_dim, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = self.body(batch.tokens[:, 0])
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)


class SGC(NodeModel):
    """A linear layer on the features after the last hop, Ãʰ H; with no hops, on the node's own features."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, shape: DataShape, config: SGCConfig) -> None:
        super().__init__()
        self.hops = shape.hops
        self.drop = nn.Dropout(config.input_dropout)
        self.head = PaddedLinear(shape.num_features, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = batch.tokens[:, self.hops]
        return NodeOutput(logits=self.head(self.drop(h_bd)), hidden=h_bd, nodes=batch.nodes)


class SIGN(NodeModel):
    """Per hop one layer with norm, ReLU and dropout; joined, `num_layers` more of them, then a linear head."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, shape: DataShape, config: MLPConfig) -> None:
        super().__init__()
        self.hops = nn.ModuleList(hidden_layers(shape.num_features, config, 1) for _ in range(shape.hops + 1))
        self.body = hidden_layers((shape.hops + 1) * config.hidden_dim, config, config.num_layers)
        self.head = PaddedLinear(config.hidden_dim, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        joined_bhd = torch.cat([layer(batch.tokens[:, hop]) for hop, layer in enumerate(self.hops)], dim=1)
        h_bd = self.body(joined_bhd)
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)


def hidden_layers(width: int, config: BlockConfig, num_layers: int) -> nn.Sequential:
    """So many layers of `config.hidden_dim` from an input of this width: linear, norm, ReLU, dropout."""
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers += [
            PaddedLinear(width, config.hidden_dim), make_norm(config.norm, config.hidden_dim), nn.ReLU(),
            nn.Dropout(config.dropout),
        ]  # fmt: skip
        width = config.hidden_dim
    return nn.Sequential(*layers)
