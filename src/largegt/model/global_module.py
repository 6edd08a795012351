"""GlobalModule (the paper's Algorithm 3): a node attends to the codebook of the whole graph.

Axes: b batch, f input features, p positional width, x feature half, w = x + p joined width, c centroids, h heads.

x = MLP_a(H_in), joined with the node's positional encoding. Query from the joined vector, keys from the centroids,
values from their feature half, `log(count)` of a centroid added to its score. Cost: O(b·c) time and memory per head:
one batch against one codebook is small, and the scores in full are several times faster than a fused kernel here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .codebook import Codebook
from .padding import PaddedLinear


class GlobalModule(nn.Module):
    """Features [b, f] and positions [b, p] → H_global [b, d], and the joined vector for the codebook."""

    def __init__(self, num_features: int, num_positions: int, num_nodes: int, config: ModelConfig) -> None:
        super().__init__()
        settings = config.codebook
        self.heads = settings.heads
        self.width = settings.width
        head_width = settings.head_width or max(1, config.hidden // settings.heads)
        joined = settings.width + num_positions
        self.mlp_a = nn.Sequential(
            PaddedLinear(num_features, config.hidden), nn.ReLU(), nn.Linear(config.hidden, settings.width)
        )
        self.codebook = Codebook(num_nodes, joined, settings)
        self.query = nn.Linear(joined, self.heads * head_width)
        self.key = nn.Linear(joined, self.heads * head_width, bias=False)  # a bias would cancel in the softmax
        self.value = nn.Linear(settings.width, self.heads * head_width)
        self.mlp_b = nn.Sequential(
            nn.Linear(self.heads * head_width, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.hidden)
        )
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, features_bf: Tensor, positions_bp: Tensor) -> tuple[Tensor, Tensor]:
        x_bx = self.mlp_a(features_bf)
        joined_bw = torch.cat([x_bx, positions_bp.to(x_bx.dtype)], dim=1)
        centroids_cw = self.codebook.centroids.to(joined_bw.dtype)
        y_bd = codebook_attention(
            self.query(self.codebook.normalize(joined_bw)), self.key(centroids_cw),
            self.value(centroids_cw[:, : self.width]), self.codebook.log_counts(), self.heads,
        )  # fmt: skip
        return self.norm(self.mlp_b(y_bd)), joined_bw


def codebook_attention(
    query_bw: Tensor, key_cw: Tensor, value_cw: Tensor, log_counts_c: Tensor, heads: int
) -> Tensor:  # fmt: skip
    """[b, h·w] nodes attend to centroids, whose scores get log(count); the heads side by side."""
    q_hbw, k_hcw, v_hcw = (_split(rows, heads) for rows in (query_bw, key_cw, value_cw))
    score_hbc = q_hbw @ k_hcw.transpose(1, 2) * q_hbw.shape[-1] ** -0.5 + log_counts_c
    y_hbw: Tensor = score_hbc.softmax(dim=-1).to(v_hcw.dtype) @ v_hcw
    return y_hbw.transpose(0, 1).flatten(1)


def _split(rows: Tensor, heads: int) -> Tensor:
    """[rows, h·w] → [h, rows, w]."""
    return rows.view(len(rows), heads, -1).transpose(0, 1)
