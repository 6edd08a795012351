"""GAT: neighbours weighed by a small network of both ends, several heads side by side, and a linear skip.

Axes: n inputs, t targets, d width of the inputs, h heads, w width of a head, g targets of a group, m their neighbours.

A head gives Σ_j α_ij W h_j with α_i = softmax_j(leaky(a_t·W h_i + a_s·W h_j)). The scores need one number per node and
head, a_s·W h_j = (Wᵀa_s)·h_j, and the sum is W (Σ_j α_ij h_j): no input is projected.

No self-loops are added: the skip is how a node sees itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from .message_passing import MessagePassing, edge_weights, gather, layers_of_heads, over_neighbors
from .neighbors import Block

_SLOPE = 0.2


class GatLayer(nn.Module):
    """Heads side by side (`average`: their mean) plus a linear skip."""

    def __init__(self, width_in: int, head_width: int, average: bool, config: ModelConfig) -> None:
        super().__init__()
        heads = config.heads
        self.average, self.dropout = average, config.attention_dropout
        self.weight_hwd = nn.Parameter(torch.empty(heads, head_width, width_in))
        self.source_hw = nn.Parameter(torch.empty(heads, head_width))
        self.target_hw = nn.Parameter(torch.empty(heads, head_width))
        self.skip = nn.Linear(width_in, head_width if average else heads * head_width)
        nn.init.xavier_uniform_(self.weight_hwd.view(-1, width_in))
        nn.init.xavier_uniform_(self.source_hw)
        nn.init.xavier_uniform_(self.target_hw)

    def forward(self, h_nd: Tensor, block: Block) -> Tensor:
        own_td = h_nd[: block.num_targets]
        source_nh = h_nd @ self._scorer(self.source_hw)
        target_th = own_td @ self._scorer(self.target_hw)
        dropout = self.dropout if self.training else 0.0

        def attend(rows: Tensor | slice, place_gm: Tensor, here_gm: Tensor) -> Tensor:
            score_gmh = F.leaky_relu(target_th[rows][:, None] + gather(source_nh, place_gm), _SLOPE)
            weight_ghm = edge_weights(score_gmh.transpose(1, 2), here_gm, dropout)
            return weight_ghm.to(h_nd.dtype) @ gather(h_nd, place_gm)

        sum_thd = over_neighbors(block, attend)
        if self.average:
            heads_tw = sum_thd.flatten(1) @ self.weight_hwd.transpose(1, 2).flatten(0, 1) / len(self.weight_hwd)
        else:
            heads_tw = torch.einsum("thd,hwd->thw", sum_thd, self.weight_hwd).flatten(1)
        skip_tw: Tensor = self.skip(own_td)
        return heads_tw + skip_tw

    def _scorer(self, vector_hw: Tensor) -> Tensor:
        """[d, h]: Wᵀa of every head."""
        return torch.einsum("hw,hwd->dh", vector_hw, self.weight_hwd)


class GAT(MessagePassing):
    """As many layers as fan-outs, ELU between them; the last one averages its heads into logits."""

    def __init__(self, num_features: int, num_outputs: int, config: ModelConfig) -> None:
        super().__init__(*layers_of_heads(GatLayer, num_features, num_outputs, config), F.elu, config)
