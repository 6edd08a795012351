"""MLP: the node's own features and nothing of the graph. What every graph model must beat."""

from __future__ import annotations

from torch import nn

from ..config import ModelConfig
from ..model.largegt import make_norm
from ..model.node_model import NodeModel, NodeOutput
from ..tokens.input_tokens import TokenBatch


class MLP(NodeModel):
    """`num_layers + 1` hidden layers with norm, ReLU and dropout, then a linear head."""

    num_local_nodes = 1

    def __init__(self, num_features: int, num_outputs: int, config: ModelConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = num_features
        for _ in range(config.num_layers + 1):
            layers += [
                nn.Linear(width, config.hidden), make_norm(config.norm, config.hidden), nn.ReLU(),
                nn.Dropout(config.dropout),
            ]  # fmt: skip
            width = config.hidden
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = self.body(batch.tokens[:, 0])
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=None)
