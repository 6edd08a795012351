"""SIGN: a layer of its own for the features after every hop, side by side, and an MLP on top.

Axes: b batch, h = hops + 1, d hidden width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..config import ModelConfig
from ..model.node_model import NodeModel, NodeOutput
from ..model.padding import PaddedLinear
from ..tokens.input_tokens import TokenBatch
from .mlp import hidden_layers

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared


class SIGN(NodeModel):
    """Per hop one layer with norm, ReLU and dropout; joined, `num_layers` more of them, then a linear head."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, num_features: int, num_outputs: int, config: ModelConfig, hops: int = 2) -> None:
        super().__init__()
        self.hops = nn.ModuleList(hidden_layers(num_features, config, 1) for _ in range(hops + 1))
        self.body = hidden_layers((hops + 1) * config.hidden, config, config.num_layers)
        self.head = PaddedLinear(config.hidden, num_outputs)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> SIGN:
        """A model whose shapes fit a Prepared."""
        return cls(prepared.num_features, prepared.meta["num_outputs"], config, prepared.hops)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        joined_bhd = torch.cat([layer(batch.tokens[:, hop]) for hop, layer in enumerate(self.hops)], dim=1)
        h_bd = self.body(joined_bhd)
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=None)
