"""LocalModule (the paper's Eqn 3): a Transformer encoder over the embedded tokens of a node, and a readout.

Axes: b batch, t tokens, 3K in the paper, d model width.

    X = EncoderLayer(X), num_layers times; the paper has one layer
    H_local = h₀ + Σ_j softmax_j(w·h_j) h_j, over the tokens after the first

A score that also includes h₀, `a·h₀ + w·h_j`, gives the same weights, since `a·h₀` is constant over j. On a GPU, last
residual sum, norm and readout are one kernel (fused_readout.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from largegt.config.models import LargeGTLocalConfig

from .attention import EncoderLayer
from .fused_readout import can_fuse, fused_readout

_SEGMENTS = 8


class LocalModule(nn.Module):
    """Embedded tokens [b, t, d] → H_local [b, d]."""

    def __init__(self, config: LargeGTLocalConfig) -> None:
        super().__init__()
        width = config.hidden_dim
        head_dim = config.head_dim or max(1, width // config.num_heads)
        self.layers = nn.ModuleList(
            EncoderLayer(
                width, config.num_heads, head_dim, round(config.ffn_ratio * width),
                config.encoder_dropout, config.attention_dropout,
            )
            for _ in range(config.num_layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1, bias=False)

    def forward(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        """H_local [b, d] of embedded tokens; `bias_bt` is added to every score of a token, -inf masks the token."""
        if bias_bt is None:
            return self._encode(x_btd, None)
        return torch.cat([self._encode(*segment) for segment in _segments(x_btd, bias_bt)])

    def _encode(self, x_btd: Tensor, bias_bt: Tensor | None) -> Tensor:
        x_btd, added_btd = self._encoder(x_btd, bias_bt)
        if bias_bt is None and can_fuse(x_btd):
            dropout = self._last.drop.p if self.training else 0.0
            return fused_readout(x_btd, added_btd, self.norm, self.readout.weight[0], dropout)
        return self.read(self.norm(x_btd + self._last.drop(added_btd)), bias_bt)

    def hidden_states(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        """[b, t, d] the encoder's output for each token, the input of the readout."""
        x_btd, added_btd = self._encoder(x_btd, bias_bt)
        h_btd: Tensor = self.norm(x_btd + self._last.drop(added_btd))
        return h_btd

    def read(self, h_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        """[b, d] h₀ + Σ_j softmax_j(w·h_j) h_j."""
        weight_bt = self.readout_weights(h_btd, bias_bt)
        if torch.compiler.is_compiling():
            return h_btd[:, 0] + (weight_bt[:, :, None] * h_btd).sum(dim=1)
        return h_btd[:, 0] + torch.einsum("bt,btd->bd", weight_bt, h_btd)

    def readout_weights(self, h_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        """[b, t] softmax_j(w·h_j) over the tokens after the first, whose weight is 0; all 0 without other tokens."""
        if torch.compiler.is_compiling():  # a sum, which the compiler fuses with the norm before it
            score_bt = (h_btd * self.readout.weight[0]).sum(dim=2)
        else:
            score_bt = self.readout(h_btd).squeeze(-1)
        if bias_bt is not None:
            score_bt = score_bt + bias_bt
        first = torch.arange(score_bt.shape[1], device=score_bt.device) == 0  # masking avoids a copy of the rest
        return score_bt.masked_fill(first, -torch.inf).softmax(dim=1).nan_to_num(0.0)

    @property
    def _last(self) -> EncoderLayer:
        layer = self.layers[-1]
        assert isinstance(layer, EncoderLayer)
        return layer

    def _encoder(self, x_btd: Tensor, bias_bt: Tensor | None) -> tuple[Tensor, Tensor]:
        """The two terms of the last layer's final sum, which the fused readout adds itself."""
        for layer in self.layers[:-1]:
            x_btd = layer(x_btd, bias_bt)
        return self._last.parts(x_btd, bias_bt)


def _segments(x_btd: Tensor, bias_bt: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of the batch, each cut to its longest row. The loader sorts rows by length, so little padding remains; the
    result is correct for any order."""
    position_t = torch.arange(1, bias_bt.shape[1] + 1, device=bias_bt.device)
    lengths = ((bias_bt > -torch.inf) * position_t).amax(dim=1).tolist()
    size = -(-len(lengths) // _SEGMENTS)
    starts = range(0, len(lengths), size)
    for start, x, bias in zip(starts, torch.split(x_btd, size), torch.split(bias_bt, size), strict=True):
        longest = max(lengths[start : start + size])
        yield x[:, :longest], bias[:, :longest]


def normal_init(module: nn.Module, std: float = 0.02) -> None:
    """N(0, std) weights and zero biases, for a linear layer."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
