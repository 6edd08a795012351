"""LocalModule: a Transformer encoder over the 3K tokens of a node, and a readout to one vector.

Axes: b batch, k local nodes, t = 3k tokens, f input features, d model width.

Readout: h₀ + Σ_j softmax_j(w·h_j) h_j over the tokens after the first. (A score that also sees h₀, `a·h₀ + w·h_j`,
gives the same weights: its first half is constant over j.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .attention import EncoderLayer
from .padding import PaddedLinear

_SEGMENTS = 8


class LocalModule(nn.Module):
    """Tokens [b, 3k, f] → H_local [b, d]."""

    def __init__(self, num_features: int, config: ModelConfig) -> None:
        super().__init__()
        width = config.hidden
        head_width = config.head_width or max(1, width // config.heads)
        self.project = PaddedLinear(num_features, width)
        self.hop_embedding = nn.Parameter(torch.empty(2, 3, width).normal_(std=0.02)) if config.hop_embeddings else None
        self.layers = nn.ModuleList(
            EncoderLayer(
                width, config.heads, head_width, round(config.encoder_ffn * width),
                config.encoder_dropout, config.attention_dropout,
            )
            for _ in range(config.num_layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1, bias=False)
        if config.init == "normal":
            self.apply(_normal_init)

    def forward(self, tokens_btf: Tensor, multiplicity_bk: Tensor | None = None) -> Tensor:
        if multiplicity_bk is None:
            return self._encode(tokens_btf, None)
        log_multiplicity_bk = multiplicity_bk.to(tokens_btf.dtype).log()
        pieces = [
            self._encode(tokens_btf[rows, : 3 * longest], log_multiplicity_bk[rows, :longest])
            for rows, longest in _segments(multiplicity_bk)
        ]
        return torch.cat(pieces)

    def _encode(self, tokens_btf: Tensor, log_multiplicity_bk: Tensor | None) -> Tensor:
        x_btd = self.project(tokens_btf)
        bias_bt = None
        if log_multiplicity_bk is not None:
            bias_bt = log_multiplicity_bk.repeat_interleave(3, dim=1)
        if self.hop_embedding is not None:
            x_btd = x_btd + self._hops(x_btd.shape[1] // 3)
        for layer in self.layers:
            x_btd = layer(x_btd, bias_bt)
        return self._read(self.norm(x_btd), bias_bt)

    def _hops(self, k: int) -> Tensor:
        """[3k, d]: a learned vector for each hop, one set for the node itself and one for its local nodes."""
        assert self.hop_embedding is not None
        own, others = self.hop_embedding.unbind(0)
        return torch.cat([own, others.repeat(k - 1, 1)])

    def _read(self, h_btd: Tensor, bias_bt: Tensor | None) -> Tensor:
        if torch.compiler.is_compiling():  # as sums, which become one kernel with the norm before them
            score_bt = (h_btd * self.readout.weight[0]).sum(dim=2)
        else:
            score_bt = self.readout(h_btd).squeeze(-1)
        if bias_bt is not None:
            score_bt = score_bt + bias_bt
        first = torch.arange(score_bt.shape[1], device=score_bt.device) == 0  # masked, not cut off: no copy of the rest
        weight_bt = score_bt.masked_fill(first, -torch.inf).softmax(dim=1)
        if torch.compiler.is_compiling():
            return h_btd[:, 0] + (weight_bt[:, :, None] * h_btd).sum(dim=1)
        return h_btd[:, 0] + torch.einsum("bt,btd->bd", weight_bt, h_btd)


def _segments(multiplicity_bk: Tensor) -> Iterator[tuple[slice, int]]:
    """Runs of rows of similar length, each with its longest: the loader orders rows so, and padding then costs
    little. Any order is right, this one is fast."""
    lengths = (multiplicity_bk > 0).sum(dim=1).tolist()
    size = -(-len(lengths) // _SEGMENTS)
    for start in range(0, len(lengths), size):
        yield slice(start, start + size), max(lengths[start : start + size])


def _normal_init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
