"""GraphSAGE: each node's own representation and the mean of its neighbours', with separate weight matrices.

Axes: n inputs, t targets, d width.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import GraphSAGEConfig
from largegt.models.base import DataShape

from .message_passing import MessagePassing, is_less_projected, layer_widths, neighbor_mean
from .neighbors import Block


class SageLayer(nn.Module):
    """W_self h_i + W_neigh mean_j h_j; the mean over no neighbours is 0."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.self_weight = nn.Linear(width_in, width_out, bias=False)
        self.neighbor_weight = nn.Linear(width_in, width_out)

    def forward(self, h_nd: Tensor, block: Block) -> Tensor:
        own_td: Tensor = self.self_weight(h_nd[: block.num_targets])
        if is_less_projected(block, h_nd.shape[1], self.neighbor_weight.out_features):
            others_td = neighbor_mean(F.linear(h_nd, self.neighbor_weight.weight), block) + self.neighbor_weight.bias
        else:
            others_td = self.neighbor_weight(neighbor_mean(h_nd, block))
        return own_td + others_td


class GraphSAGE(MessagePassing):
    """One layer per fan-out, with ReLU between them."""

    def __init__(self, shape: DataShape, config: GraphSAGEConfig) -> None:
        widths = layer_widths(shape, config.hidden_dim, config)
        super().__init__((SageLayer(*pair) for pair in pairwise(widths)), widths[1:], F.relu, config)
