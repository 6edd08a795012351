"""GAT: attention weights from a small network on both ends of an edge, several heads, and a linear skip connection.

Axes: n inputs, t targets, d width of the inputs, h heads, w width of a head, g targets of a group, m their neighbours.

A head computes Σ_j α_ij W h_j with α_i = softmax_j(leaky(a_t·W h_i + a_s·W h_j)). The scores need one number per node
and head, a_s·W h_j = (Wᵀa_s)·h_j, and the sum is W (Σ_j α_ij h_j): inputs are not projected. Where that costs more, for
wide inputs shared by many targets (bags of words, whole graphs), each input is projected once for Σ_j α_ij (W h_j).

The skip connection adds the node itself. Without it (`residual` off, as in the GAT paper) the node has an edge to
itself, and dropout also applies to the projected inputs, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import GATConfig
from largegt.models.base import DataShape

from .message_passing import MessagePassing, edge_weights, gather, is_less_projected, layers_of_heads, over_neighbors
from .neighbors import Block

_SLOPE = 0.2


class GatLayer(nn.Module):
    """Concatenated heads (`average`: their mean) plus a linear skip connection, or attention to the target as well."""

    def __init__(self, width_in: int, head_dim: int, average: bool, config: GATConfig) -> None:
        super().__init__()
        heads = config.num_heads
        self.average, self.dropout = average, config.attention_dropout
        self.input_dropout = 0.0 if config.residual else config.dropout
        self.weight = nn.Parameter(torch.empty(heads * head_dim, width_in))
        self.source_hw = nn.Parameter(torch.empty(heads, head_dim))
        self.target_hw = nn.Parameter(torch.empty(heads, head_dim))
        width_out = head_dim if average else heads * head_dim
        self.skip = nn.Linear(width_in, width_out) if config.residual else None
        if self.skip is None:
            self.own_bias = nn.Parameter(torch.zeros(width_out))
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.source_hw)
        nn.init.xavier_uniform_(self.target_hw)

    @property
    def weight_hwd(self) -> Tensor:
        """W of every head. Stored as one matrix, so that weight decay applies to it."""
        return self.weight.view(*self.source_hw.shape, -1)

    def forward(self, h_nd: Tensor, block: Block) -> Tensor:
        own_td = h_nd[: block.num_targets]
        if self.skip is None:
            block = with_own(block)
        drops = self.training and self.input_dropout > 0
        projects = drops or is_less_projected(block, h_nd.shape[1], self.source_hw.shape[1])
        x_nd = F.dropout(F.linear(h_nd, self.weight), self.input_dropout, drops) if projects else None
        source_nh = h_nd @ self._scorer(self.source_hw)
        target_th = own_td @ self._scorer(self.target_hw)
        dropout = self.dropout if self.training else 0.0

        def attend(rows: Tensor | slice, source_gm: Tensor, is_edge_gm: Tensor) -> Tensor:
            score_gmh = F.leaky_relu(target_th[rows][:, None] + gather(source_nh, source_gm), _SLOPE)
            weight_ghm = edge_weights(score_gmh.transpose(1, 2), is_edge_gm, dropout)
            if x_nd is None:
                return weight_ghm.to(h_nd.dtype) @ gather(h_nd, source_gm)
            x_gmhw = gather(x_nd, source_gm).view(*source_gm.shape, *self.source_hw.shape)
            return torch.einsum("ghm,gmhw->ghw", weight_ghm.to(x_nd.dtype), x_gmhw)

        sums = over_neighbors(block, attend)
        heads_thw = sums if x_nd is not None else torch.einsum("thd,hwd->thw", sums, self.weight_hwd)
        heads_tw = heads_thw.mean(dim=1) if self.average else heads_thw.flatten(1)
        own_tw: Tensor = self.own_bias if self.skip is None else self.skip(own_td)
        return heads_tw + own_tw

    def _scorer(self, vector_hw: Tensor) -> Tensor:
        """[d, h]: Wᵀa of every head."""
        return torch.einsum("hw,hwd->dh", vector_hw, self.weight_hwd)


def with_own(block: Block) -> Block:
    """The block with an edge from every target to itself, before its other edges."""
    number_t = torch.arange(block.num_targets, device=block.source.device)
    number_e = torch.arange(len(block.source), device=block.source.device)
    source = block.source.new_empty(len(number_t) + len(number_e))
    source[block.indptr[:-1] + number_t] = number_t
    source[number_e + block.target + 1] = block.source
    return replace(block, indptr=block.indptr + F.pad(number_t + 1, (1, 0)), source=source)


class GAT(MessagePassing):
    """One layer per fan-out, with ELU between them; the last layer averages its heads into logits."""

    def __init__(self, shape: DataShape, config: GATConfig) -> None:
        super().__init__(*layers_of_heads(GatLayer, shape, config), F.elu, config)
