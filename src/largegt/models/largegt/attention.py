"""Multi-head attention over tokens, and the pre-norm encoder layer around it.

Axes: b batch, t tokens, d model width, h heads, w width of a head.

Cost: O(b·t²·h·w) time; `scaled_dot_product_attention` keeps memory at O(b·t·h·w).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_CUDNN, _FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
_OTHERS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_WIDEST_FUSED, _ALIGNED = 256, 8


class Attention(nn.Module):
    """Self-attention with q, k and v from one matrix product. `bias_bt` is added to every score of token t.

    Weights p_ij sum to one, so the values' bias b_v can be added after the sum, where dropout does not apply to it.
    Heads at least as wide as the model (the published configuration) need no separate keys and values. Up to terms that
    are equal for every j and cancel in the softmax,

        q_i · k_j = (W_kᵀ(W_q x_i + b_q)) · x_j    and    W_o Σ_j p_ij W_v x_j = W_o W_v (Σ_j p_ij x_j),

    so all heads attend to the tokens themselves: half of the products, a third of the memory, the same result.
    """

    def __init__(self, width: int, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.join = nn.Linear(heads * head_dim, width)

    def forward(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        bias = None if bias_bt is None else bias_bt[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        attention = self._to_the_tokens if self.is_wide else self._to_keys_and_values
        return attention(x_btd, bias, dropout)

    @property
    def is_wide(self) -> bool:
        """Whether heads are at least as wide as the model."""
        return self.head_dim >= self.join.out_features

    def _to_keys_and_values(self, x_btd: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        b, t, _ = x_btd.shape
        width = self.num_heads * self.head_dim
        qkv_bt = F.linear(x_btd, self.qkv.weight, F.pad(self.qkv.bias[: 2 * width], (0, width)))
        q_bhtw, k_bhtw, v_bhtw = qkv_bt.view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y_bhtw = attend(q_bhtw, k_bhtw, v_bhtw, bias, dropout, self.head_dim**-0.5)
        join_bias = self._join_bias(self.qkv.bias[2 * width :])
        return F.linear(y_bhtw.transpose(1, 2).reshape(b, t, -1), self.join.weight, join_bias)

    def _to_the_tokens(self, x_btd: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        if torch.is_autocast_enabled(x_btd.device.type):
            x_btd = x_btd.to(torch.get_autocast_dtype(x_btd.device.type))  # cast once for all uses below
        b, t, d = x_btd.shape
        query_weight, query_bias, join_weight, join_bias = self.merged()
        q_b1sd = F.linear(x_btd, query_weight, query_bias).view(
            b, 1, t * self.num_heads, d
        )  # s: every head of every token
        x_b1td = x_btd[:, None]
        y_b1sd = attend(q_b1sd, x_b1td, x_b1td, bias, dropout, self.head_dim**-0.5)
        return F.linear(y_b1sd.view(b, t, -1), join_weight, join_bias)

    def merged(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias of the merged query projection [h·d, d] and of the merged output projection [d, h·d]."""
        with torch.autocast(self.qkv.weight.device.type, enabled=False):
            query_hwd, key_hwd, value_hwd = self.qkv.weight.view(3, self.num_heads, self.head_dim, -1).unbind(0)
            query_bias_hw, _, value_bias_hw = self.qkv.bias.view(3, self.num_heads, -1).unbind(0)
            join_hdw = self.join.weight.view(-1, self.num_heads, self.head_dim).transpose(0, 1)
            query_weight = (key_hwd.transpose(1, 2) @ query_hwd).flatten(0, 1)
            query_bias = (query_bias_hw[:, None, :] @ key_hwd).flatten()
            join_weight = (join_hdw @ value_hwd).transpose(0, 1).flatten(1)
            return query_weight, query_bias, join_weight, self._join_bias(value_bias_hw.flatten())

    def _join_bias(self, value_bias: Tensor) -> Tensor:
        with torch.autocast(self.join.bias.device.type, enabled=False):
            return self.join.bias + self.join.weight @ value_bias


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, scale: float) -> Tensor:
    """Attention by the fastest kernel that supports the inputs, as measured on an H200: cuDNN's, the flash kernel for
    wide heads with dropout, and unfused attention for heads that neither supports."""
    bias = None if bias is None else bias.to(q.dtype)
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    if q.shape[-1] > _WIDEST_FUSED:
        return attend_in_full(q, k, v, bias, dropout, scale)
    first = [_FLASH, _CUDNN] if dropout and q.shape[-1] > 128 else [_CUDNN, _FLASH]
    with sdpa_kernel([*first, *_OTHERS], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)


def attend_in_full(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, scale: float) -> Tensor:
    """Unfused attention: two matrix products and a softmax. Keys are padded to a number that suits tensor cores; the
    padding has weight 0."""
    num_keys, padding = k.shape[-2], -k.shape[-2] % _ALIGNED
    k, v = F.pad(k, (0, 0, 0, padding)), F.pad(v, (0, 0, 0, padding))
    with torch.autocast(q.device.type, enabled=False):  # softmax accumulates in float32 anyway; this stores less
        score = q @ k.transpose(-1, -2) * scale
        if bias is not None:
            score = score + F.pad(bias, (0, padding))
        if padding:
            score = score.masked_fill(torch.arange(num_keys + padding, device=q.device) >= num_keys, -torch.inf)
        return F.dropout(score.softmax(dim=-1), dropout) @ v


class EncoderLayer(nn.Module):
    """Pre-norm Transformer encoder layer, without feed-forward part if `ffn_width` is 0."""

    def __init__(
        self, width: int, heads: int, head_dim: int, ffn_width: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_dim, attention_dropout)
        self.drop = nn.Dropout(dropout)
        self.ffn = None
        if ffn_width:
            self.ffn = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, ffn_width), nn.GELU(), nn.Dropout(dropout),
                nn.Linear(ffn_width, width),
            )  # fmt: skip

    def forward(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        x_btd, added_btd = self.parts(x_btd, bias_bt)
        joined_btd: Tensor = x_btd + self.drop(added_btd)
        return joined_btd

    def parts(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The two terms of the layer's last sum, residual stream and update, which the fused readout adds itself."""
        added_btd: Tensor = self.attention(self.attention_norm(x_btd), bias_bt)
        if self.ffn is not None:
            x_btd = x_btd + self.drop(added_btd)
            added_btd = self.ffn(x_btd)
        return x_btd, added_btd
