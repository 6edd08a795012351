"""NAGphormer: a Transformer encoder over one token per hop, [H, ÃH, Ã²H, …], and an attention readout of the hops.

Axes: b batch, t = hops + 1 tokens, f input features, p positional width, d model width.

Positional encodings, if the Prepared has any, are concatenated to the features of every token. Readout:

    h₀ + Σ_k softmax_k(w·[h₀; h_k]) h_k    over the hops k ≥ 1,

where the half of w for h₀ adds the same number to every score and cancels in the softmax: the code has only the other
half. Cost: attention over a few tokens, so mostly the products with the encoder's weights.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from largegt.config.models import NAGphormerConfig
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape, NodeModel, NodeOutput
from largegt.models.input_encoder import InputEncoder, LabelEncoder
from largegt.models.largegt.attention import EncoderLayer
from largegt.models.largegt.local_module import normal_init
from largegt.models.padding import PaddedLinear


class NAGphormer(NodeModel):
    """`num_layers` pre-norm encoder layers (its authors use `ffn_ratio` 2), and a head of two layers."""

    num_local_nodes = 1
    takes_padding = True

    def __init__(self, shape: DataShape, config: NAGphormerConfig) -> None:
        super().__init__()
        width = config.hidden_dim
        self.hops = shape.hops
        self.inputs = InputEncoder(shape.num_features, width, shape.hops)
        self.project_positions = nn.Linear(shape.num_positions, width, bias=False) if shape.num_positions else None
        self.layers = nn.ModuleList(
            EncoderLayer(
                width, config.num_heads, config.head_dim or max(1, width // config.num_heads),
                round(config.ffn_ratio * width), config.encoder_dropout, config.attention_dropout,
            )
            for _ in range(config.num_layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.labels: LabelEncoder | None = None
        if config.neighbor_label_hops:
            self.labels = LabelEncoder(config, shape.num_labels, width, config.encoder_dropout)
        self.readout = nn.Linear(width, 1, bias=False) if shape.hops or self.labels is not None else None
        half = max(1, width // 2)
        self.head = nn.Sequential(nn.Linear(width, half), nn.ReLU(), PaddedLinear(half, shape.num_outputs))
        if config.init == "normal":
            self.apply(partial(normal_init, std=0.02 / math.sqrt(config.num_layers)))

    def forward(self, batch: TokenBatch) -> NodeOutput:
        x_btd = self.inputs(batch.tokens[:, : self.hops + 1])
        if self.project_positions is not None:  # the projection of a concatenation is the sum of two projections
            x_btd = x_btd + self.project_positions(batch.positions.to(x_btd.dtype))[:, None]
        if self.labels is not None:  # one more token
            x_btd = torch.cat([x_btd, self.labels(self.labels.shares(batch))[:, None]], dim=1)
        for layer in self.layers:
            x_btd = layer(x_btd)
        h_bd = self._read(self.norm(x_btd))
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes)

    def _read(self, h_btd: Tensor) -> Tensor:
        own_bd, hops_btd = h_btd[:, 0], h_btd[:, 1:]
        if self.readout is None:
            return own_bd
        weight_bt = self.readout(hops_btd).squeeze(-1).softmax(dim=1)
        return own_bd + torch.einsum("bt,btd->bd", weight_bt, hops_btd)
