"""GT-sparse: a graph transformer with attention only along sampled edges.

Axes: n inputs, t targets, d width of the inputs, h heads, w width of a head, g targets of a group, m their neighbours.

A head computes Σ_j p_ij v_j with p_i = softmax_j(q_i·k_j / √w); q from the target, k and v from its neighbours. As in
models/largegt/attention.py, up to terms that are equal for every j,

    q_i · k_j = (W_kᵀ q_i) · h_j    and    Σ_j p_ij v_j = W_v (Σ_j p_ij h_j) + b_v Σ_j p_ij,

so targets attend to the inputs themselves, without keys and values. The last sum is 1 unless dropout removed weights or
a target has no neighbours; keys need no bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import GTSparseConfig
from largegt.models.base import DataShape

from .message_passing import MessagePassing, edge_weights, gather, layers_of_heads, over_neighbors
from .neighbors import Block


class TransformerLayer(nn.Module):
    """Concatenated heads (`average`: their mean) plus a linear skip connection from the target."""

    def __init__(self, width_in: int, head_dim: int, average: bool, config: GTSparseConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.average = config.num_heads, head_dim, average
        self.dropout = config.attention_dropout
        together = config.num_heads * head_dim
        self.query = nn.Linear(width_in, together)
        self.key = nn.Linear(width_in, together, bias=False)
        self.value = nn.Linear(width_in, together)
        self.skip = nn.Linear(width_in, head_dim if average else together)

    def forward(self, h_nd: Tensor, block: Block) -> Tensor:
        own_td = h_nd[: block.num_targets]
        q_thw = self.query(own_td).view(len(own_td), self.num_heads, -1)
        q_thd = torch.einsum("thw,hwd->thd", q_thw, self._per_head(self.key.weight)) * self.head_dim**-0.5
        dropout = self.dropout if self.training else 0.0

        def attend(rows: Tensor | slice, source_gm: Tensor, is_edge_gm: Tensor) -> Tensor:
            h_gmd = gather(h_nd, source_gm)
            score_ghm = q_thd[rows] @ h_gmd.to(q_thd.dtype).transpose(1, 2)
            weight_ghm = edge_weights(score_ghm, is_edge_gm, dropout).to(h_gmd.dtype)
            return torch.cat([weight_ghm @ h_gmd, weight_ghm.sum(dim=2, keepdim=True)], dim=2)

        sums = over_neighbors(block, attend)
        sum_thd, total_th1 = sums[..., :-1], sums[..., -1:]
        y_thw = torch.einsum("thd,hwd->thw", sum_thd, self._per_head(self.value.weight))
        y_thw = y_thw + total_th1 * self.value.bias.view(self.num_heads, -1)
        skip_tw: Tensor = self.skip(own_td)
        return skip_tw + (y_thw.mean(dim=1) if self.average else y_thw.flatten(1))

    def _per_head(self, weight: Tensor) -> Tensor:
        """[h·w, d] → [h, w, d]."""
        return weight.view(self.num_heads, self.head_dim, -1)


class GTSparse(MessagePassing):
    """One layer per fan-out, with ReLU between them; the last layer averages its heads into logits."""

    def __init__(self, shape: DataShape, config: GTSparseConfig) -> None:
        super().__init__(*layers_of_heads(TransformerLayer, shape, config), F.relu, config)
