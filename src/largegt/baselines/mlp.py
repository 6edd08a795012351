"""MLP: the node's own features and nothing of the graph. What every graph model must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..config import ModelConfig
from ..model.largegt import make_norm
from ..model.node_model import NodeModel, NodeOutput
from ..model.padding import PaddedLinear
from ..tokens.input_tokens import TokenBatch

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared


class MLP(NodeModel):
    """`num_layers + 1` hidden layers with norm, ReLU and dropout, then a linear head."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, num_features: int, num_outputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.body = hidden_layers(num_features, config, config.num_layers + 1)
        self.head = PaddedLinear(config.hidden, num_outputs)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> MLP:
        """A model whose shapes fit a Prepared."""
        return cls(prepared.num_features, prepared.meta["num_outputs"], config)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = self.body(batch.tokens[:, 0])
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=None)


def hidden_layers(width: int, config: ModelConfig, num_layers: int) -> nn.Sequential:
    """So many layers of `config.hidden` from an input of this width: linear, norm, ReLU, dropout."""
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers += [
            PaddedLinear(width, config.hidden), make_norm(config.norm, config.hidden), nn.ReLU(),
            nn.Dropout(config.dropout),
        ]  # fmt: skip
        width = config.hidden
    return nn.Sequential(*layers)
