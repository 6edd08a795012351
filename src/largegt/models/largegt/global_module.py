"""GlobalModule (the paper's Eqn 4, Algorithm 3): a node attends to the codebook of the whole graph.

Axes: b batch, f input features, p positional width, x feature half, w = x + p joined width, c centroids, h heads.

Line numbers in the code refer to Algorithm 3. In addition, x is joined with the node's positional encoding: the query
and the keys come from the joined vectors, the values from their feature half. Line 8, the EMA k-means, is
`Codebook.update`, after the optimizer's step. Cost: O(b·c) time and memory per head. The scores of a batch are small,
and computing all of them is several times faster than a fused attention kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from largegt.config.models import CodebookModelConfig
from largegt.models.padding import PaddedLinear

from .codebook import Codebook


class GlobalModule(nn.Module):
    """Features [b, f] and positions [b, p] → H_global [b, d], and the joined vector for the codebook."""

    codebook_class = Codebook

    def __init__(self, num_features: int, num_positions: int, num_nodes: int, config: CodebookModelConfig) -> None:
        super().__init__()
        settings = config.codebook
        self.num_heads = settings.num_heads
        self.dim = settings.dim
        head_dim = settings.head_dim or max(1, config.hidden_dim // settings.num_heads)
        joined = settings.dim + num_positions
        self.mlp_a = nn.Sequential(
            PaddedLinear(num_features, config.hidden_dim), nn.ReLU(), nn.Linear(config.hidden_dim, settings.dim)
        )
        self.codebook = self.codebook_class(num_nodes, joined, settings)
        self.query = nn.Linear(joined, self.num_heads * head_dim)
        self.key = nn.Linear(joined, self.num_heads * head_dim, bias=False)  # a bias would cancel in the softmax
        self.value = nn.Linear(settings.dim, self.num_heads * head_dim)
        self.mlp_b: nn.Module = nn.Sequential(
            nn.Linear(self.num_heads * head_dim, config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, config.hidden_dim),
        )
        self.norm: nn.Module = nn.LayerNorm(config.hidden_dim)
        self.out_width = config.hidden_dim

    def forward(self, features_bf: Tensor, positions_bp: Tensor) -> tuple[Tensor, Tensor]:
        weights_hbc, joined_bw = self.attend(features_bf, positions_bp)
        return self.read(weights_hbc), joined_bw

    def attend(self, features_bf: Tensor, positions_bp: Tensor) -> tuple[Tensor, Tensor]:
        """[h, b, c] attention weights (the softmax of line 6), and the joined vectors [b, w] for the codebook."""
        x_bx = self.mlp_a(features_bf)  # line 2
        joined_bw = torch.cat([x_bx, positions_bp.to(x_bx.dtype)], dim=1)
        q_hbw = self._split(self.query(self.codebook.query_space(joined_bw)))  # line 3
        k_hcw = self._split(self.key(self.codebook.attended().to(joined_bw.dtype)))  # line 4
        score_hbc = q_hbw @ k_hcw.transpose(1, 2) * q_hbw.shape[-1] ** -0.5 + self.codebook.log_counts()
        return score_hbc.softmax(dim=-1), joined_bw

    def read(self, weights_hbc: Tensor) -> Tensor:
        """H_global [b, d] from the attention weights."""
        v_hcw = self._split(self.value(self.codebook.attended()[:, : self.dim]))  # line 5
        y_hbw: Tensor = weights_hbc.to(v_hcw.dtype) @ v_hcw  # line 6
        h_bd: Tensor = self.norm(self.mlp_b(y_hbw.transpose(0, 1).flatten(1)))  # line 7
        return h_bd

    def _split(self, rows: Tensor) -> Tensor:
        """[rows, h·w] → [h, rows, w]."""
        return rows.view(len(rows), self.num_heads, -1).transpose(0, 1)
