"""SGC: a linear layer on the features after the last hop, Ãʰ H. All of the graph is in the preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..config import ModelConfig
from ..model.node_model import NodeModel, NodeOutput
from ..model.padding import PaddedLinear
from ..tokens.input_tokens import TokenBatch

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared


class SGC(NodeModel):
    """Logistic (or linear) regression on the context of `hops` hops; with no hops, on the node's own features."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, num_features: int, num_outputs: int, hops: int = 2, input_dropout: float = 0.0) -> None:
        super().__init__()
        self.hops = hops
        self.drop = nn.Dropout(input_dropout)
        self.head = PaddedLinear(num_features, num_outputs)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> SGC:
        """A model whose shapes fit a Prepared."""
        return cls(prepared.num_features, prepared.meta["num_outputs"], prepared.hops, config.input_dropout)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = batch.tokens[:, self.hops]
        return NodeOutput(logits=self.head(self.drop(h_bd)), hidden=h_bd, nodes=batch.nodes, codebook_input=None)
