"""Multi-head attention over tokens, and the pre-norm encoder layer around it.

Axes: b batch, t tokens, d model width, h heads, w width of a head.

Cost: O(b·t²·h·w) time; `scaled_dot_product_attention` keeps memory at O(b·t·h·w).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with q, k and v from one product. `bias_bt` is added to every score of token t."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * heads * head_width)
        self.join = nn.Linear(heads * head_width, width)

    def forward(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        b, t, _ = x_btd.shape
        q_bhtw, k_bhtw, v_bhtw = self.qkv(x_btd).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = None if bias_bt is None else bias_bt[:, None, None, :].to(q_bhtw.dtype)
        dropout = self.dropout if self.training else 0.0
        y_bhtw = F.scaled_dot_product_attention(q_bhtw, k_bhtw, v_bhtw, attn_mask=bias, dropout_p=dropout)
        joined: Tensor = self.join(y_bhtw.transpose(1, 2).reshape(b, t, -1))
        return joined


class EncoderLayer(nn.Module):
    """Pre-norm Transformer encoder layer; without its feed-forward part when `ffn_width` is 0."""

    def __init__(
        self, width: int, heads: int, head_width: int, ffn_width: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_width, attention_dropout)
        self.drop = nn.Dropout(dropout)
        self.ffn = None
        if ffn_width:
            self.ffn = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, ffn_width), nn.GELU(), nn.Dropout(dropout),
                nn.Linear(ffn_width, width),
            )  # fmt: skip

    def forward(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        x_btd = x_btd + self.drop(self.attention(self.attention_norm(x_btd), bias_bt))
        if self.ffn is not None:
            x_btd = x_btd + self.drop(self.ffn(x_btd))
        return x_btd
