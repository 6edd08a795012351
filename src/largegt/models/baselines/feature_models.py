"""Baselines on a node's own token row: MLP (its features), SGC (the last hop), SIGN (every hop).

Axes: b batch, h = hops + 1, d hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from largegt.config.models import BlockConfig, MLPConfig, NodeLabelsConfig, SGCConfig
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape, NodeModel, NodeOutput
from largegt.models.input_encoder import label_shares
from largegt.models.largegt.model import make_norm
from largegt.models.padding import PaddedLinear


class FeatureModel(NodeModel):
    """A model on the node's own token row; with `model.neighbor_label_hops` also on the label distributions around the
    node."""

    num_local_nodes = 1

    def __init__(self, shape: DataShape, config: NodeLabelsConfig) -> None:
        super().__init__()
        self.hops = shape.hops
        self.label_width = config.label_width(shape.num_labels)
        self.takes_padding = not self.label_width

    def rows(self, batch: TokenBatch, hop: int) -> Tensor:
        """[b, f + l] features after `hop` hops, and label distributions."""
        rows_bf = batch.tokens[:, hop]
        if not self.label_width:
            return rows_bf
        return torch.cat([rows_bf, label_shares(batch, self.label_width).to(rows_bf.dtype)], dim=1)


class MLP(FeatureModel):
    """`num_layers + 1` hidden layers with norm, ReLU and dropout, then a linear head."""

    def __init__(self, shape: DataShape, config: MLPConfig) -> None:
        super().__init__(shape, config)
        self.body = hidden_layers(shape.num_features + self.label_width, config, config.num_layers + 1)
        self.head = PaddedLinear(config.hidden_dim, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = self.body(self.rows(batch, 0))
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)


class SGC(FeatureModel):
    """A linear layer on the features after the last hop, Ãʰ H; without hops, on the node's own features."""

    def __init__(self, shape: DataShape, config: SGCConfig) -> None:
        super().__init__(shape, config)
        self.drop = nn.Dropout(config.input_dropout)
        self.head = PaddedLinear(shape.num_features + self.label_width, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = self.rows(batch, self.hops)
        return NodeOutput(logits=self.head(self.drop(h_bd)), hidden=h_bd, nodes=batch.nodes)


class SIGN(FeatureModel):
    """One layer per hop with norm, ReLU and dropout; concatenated, `num_layers` more layers and a linear head."""

    def __init__(self, shape: DataShape, config: MLPConfig) -> None:
        super().__init__(shape, config)
        width = shape.num_features + self.label_width
        self.layers = nn.ModuleList(hidden_layers(width, config, 1) for _ in range(shape.hops + 1))
        self.body = hidden_layers((shape.hops + 1) * config.hidden_dim, config, config.num_layers)
        self.head = PaddedLinear(config.hidden_dim, shape.num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        joined_bhd = torch.cat([layer(self.rows(batch, hop)) for hop, layer in enumerate(self.layers)], dim=1)
        h_bd = self.body(joined_bhd)
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)


def hidden_layers(width: int, config: BlockConfig, num_layers: int) -> nn.Sequential:
    """`num_layers` layers of `config.hidden_dim` on an input of this width: linear, norm, ReLU, dropout."""
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers += [
            PaddedLinear(width, config.hidden_dim), make_norm(config.norm, config.hidden_dim), nn.ReLU(),
            nn.Dropout(config.dropout),
        ]  # fmt: skip
        width = config.hidden_dim
    return nn.Sequential(*layers)
