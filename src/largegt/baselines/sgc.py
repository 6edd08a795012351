"""SGC: a linear layer on the features after the last hop, Ãʰ H. All of the graph is in the preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def __init__(self, num_features: int, num_outputs: int, hops: int = 2) -> None:
        super().__init__()
        self.hops = hops
        self.head = PaddedLinear(num_features, num_outputs)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> SGC:
        """A model whose shapes fit a Prepared; the configuration has nothing to say."""
        return cls(prepared.num_features, prepared.meta["num_outputs"], prepared.hops)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        h_bd = batch.tokens[:, self.hops]
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=None)
