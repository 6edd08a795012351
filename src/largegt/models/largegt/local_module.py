"""LocalModule (the paper's Eqn 3): a Transformer encoder over the tokens of a node, 3K in the paper, and a readout.

Axes: b batch, k local nodes, h = hops + 1, t = h·k tokens, f input features, d model width, c classes or label columns.

    embed    X = the projected tokens of Algorithm 2, plus learned vectors of the optional inputs
    encode   X = EncoderLayer(X), num_layers times; the paper has one layer
             H_local = h₀ + Σ_j softmax_j(w·h_j) h_j, over the tokens after the first

A score that also reads h₀, `a·h₀ + w·h_j`, gives the same weights: its first half is constant over j. On a GPU the end
of `encode` is one kernel (fused_readout.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from largegt.config.models import LargeGTLocalConfig

from .attention import EncoderLayer
from .fused_readout import can_fuse, fused_readout
from .padding import PaddedLinear

_SEGMENTS = 8
_LABEL_STD = 0.5
"""About as wide as a projected token: from 0.02, as hops have it, labels are found to matter only many steps later."""


class LocalNodeInputs(NamedTuple):
    """Inputs of local nodes beside their tokens; None where the module does not read them."""

    labels: Tensor | None = None
    """[b, k] or [b, k, c] labels of local nodes."""
    is_neighbor: Tensor | None = None
    """[b, k] whether local nodes are direct neighbours."""
    contexts: Tensor | None = None
    """[b, k, c + 1] training labels around local nodes."""


class LocalModule(nn.Module):
    """Tokens [b, h·k, f] → H_local [b, d]."""

    def __init__(self, num_features: int, config: LargeGTLocalConfig, hops: int = 2, num_labels: int = 0) -> None:
        """num_labels: classes, or numbers in a label, where the module reads labels of local nodes; 0: it does not."""
        super().__init__()
        width = config.hidden_dim
        self.tokens_per_node = hops + 1
        head_dim = config.head_dim or max(1, width // config.num_heads)
        self.project = PaddedLinear(num_features, width)
        self.hop_embedding: nn.Parameter | None = None
        """[2, h, d]: of the node's own tokens, and of those of its local nodes."""
        if config.hop_embedding:
            self.hop_embedding = nn.Parameter(torch.empty(2, self.tokens_per_node, width).normal_(std=0.02))
        self.label_embedding: nn.Parameter | None = None
        """[1 + c, 1, d]: of no label, then of each class or label column; for a node's first token alone."""
        if num_labels and config.label_embeddings:
            self.label_embedding = nn.Parameter(torch.empty(1 + num_labels, 1, width).normal_(std=_LABEL_STD))
        self.distance_embedding: nn.Parameter | None = None
        """[h, d]: of neighbours; nodes farther away have none."""
        if config.hop_distance_embedding:
            self.distance_embedding = nn.Parameter(torch.empty(self.tokens_per_node, width).normal_(std=0.02))
        self.context: PaddedLinear | None = None
        """Of the labels around a local node, for its first token."""
        if num_labels and config.local_label_histograms:
            self.context = PaddedLinear(num_labels + 1, width)
        self.input_drop = nn.Dropout(config.input_dropout) if config.input_dropout else nn.Identity()
        self.layers = nn.ModuleList(
            EncoderLayer(
                width, config.num_heads, head_dim, round(config.ffn_ratio * width),
                config.encoder_dropout, config.attention_dropout,
            )
            for _ in range(config.num_layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1, bias=False)
        if config.init == "normal":
            self.apply(normal_init)

    @property
    def reads_labels(self) -> bool:
        """Whether the module reads labels of local nodes, their own or those around them."""
        return self.label_embedding is not None or self.context is not None

    def forward(
        self, tokens_btf: Tensor, multiplicity_bk: Tensor | None = None, inputs: LocalNodeInputs = LocalNodeInputs()
    ) -> Tensor:
        return self.encode(self.embed(tokens_btf, inputs), self.token_bias(multiplicity_bk, tokens_btf.dtype))

    def token_bias(self, multiplicity_bk: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """[b, t] log(multiplicity) of each token's local node: -inf where there is none."""
        if multiplicity_bk is None:
            return None
        log_bk = multiplicity_bk.to(torch.promote_types(dtype, torch.float32)).log()
        return log_bk.repeat_interleave(self.tokens_per_node, dim=1)

    # embed: from tokens to vectors

    def embed(self, tokens_btf: Tensor, inputs: LocalNodeInputs = LocalNodeInputs()) -> Tensor:
        """[b, t, d] what the first layer reads."""
        return self.join(tokens_btf, self.label_vectors(inputs) if self.reads_labels else None, inputs.is_neighbor)

    def join(self, tokens_btf: Tensor, label_vectors_bk1d: Tensor | None, is_neighbor_bk: Tensor | None) -> Tensor:
        """[b, t, d] projected tokens plus the vectors of hops, of neighbours and of labels."""
        x_btd: Tensor = self.project(self.input_drop(tokens_btf))
        k = x_btd.shape[1] // self.tokens_per_node
        if self.hop_embedding is not None:
            x_btd = x_btd + self.hop_vectors(k)
        x_bkhd = x_btd.view(len(x_btd), k, self.tokens_per_node, x_btd.shape[2])
        if self.distance_embedding is not None:
            assert is_neighbor_bk is not None, "which local nodes are neighbours"
            is_neighbor_bk11 = is_neighbor_bk[:, :, None, None].to(x_bkhd.dtype)
            x_bkhd = torch.addcmul(x_bkhd, is_neighbor_bk11, self.distance_embedding.to(x_bkhd.dtype))
        if label_vectors_bk1d is not None:
            x_bkhd[:, :, :1] += label_vectors_bk1d
        return x_bkhd.view(x_btd.shape)

    def hop_vectors(self, k: int) -> Tensor:
        """[h·k, d]: a learned vector for each hop, one set for the node itself and one for its local nodes."""
        assert self.hop_embedding is not None
        own, others = self.hop_embedding.unbind(0)
        return torch.cat([own, others.repeat(k - 1, 1)])

    def label_vectors(self, inputs: LocalNodeInputs) -> Tensor:
        """[b, k, 1, d] vectors of the labels of local nodes and of those around them."""
        vectors = []
        if self.label_embedding is not None:
            assert inputs.labels is not None, "labels of local nodes"
            vectors.append(self._own_label_vectors(inputs.labels))
        if self.context is not None:
            assert inputs.contexts is not None, "the labels around local nodes"
            vectors.append(self.context(inputs.contexts.to(self.context.weight.dtype))[:, :, None])
        return vectors[0] + vectors[1] if len(vectors) > 1 else vectors[0]

    def no_label_vector(self) -> Tensor:
        """[1, d] `label_vectors` of a node without a label and without labels around it."""
        vector_1d = torch.zeros_like(self.readout.weight)
        if self.label_embedding is not None:
            vector_1d = vector_1d + self.label_embedding[0]
        if self.context is not None:
            vector_1d = vector_1d + self.context.bias
        return vector_1d

    def _own_label_vectors(self, labels: Tensor) -> Tensor:
        """[b, k, 1, d] a learned vector for each label: of its class, or the sum of its columns' times their values."""
        assert self.label_embedding is not None
        if not labels.is_floating_point():
            return nn.functional.embedding(labels + 1, self.label_embedding.flatten(1))[:, :, None]
        values_bk1c = labels.view(*labels.shape[:2], 1, -1)
        none_1d, columns_cd = self.label_embedding[0], self.label_embedding[1:, 0]
        vectors_bk1d = values_bk1c.nan_to_num(0.0).to(columns_cd.dtype) @ columns_cd
        return torch.where(values_bk1c.isnan().all(dim=3, keepdim=True), none_1d, vectors_bk1d)

    # encode: from vectors to H_local

    def encode(self, x_btd: Tensor, bias_bt: Tensor | None = None) -> Tensor:
        """H_local [b, d] of embedded tokens; `bias_bt` is added to every score of a token, -inf leaves it out."""
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
        """[b, t, d] the encoder's output for each token, which the readout reads."""
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
        """[b, t] softmax_j(w·h_j) over the tokens after the first, which has 0; 0 everywhere where it is alone."""
        if torch.compiler.is_compiling():  # as sums, which become one kernel with the norm before them
            score_bt = (h_btd * self.readout.weight[0]).sum(dim=2)
        else:
            score_bt = self.readout(h_btd).squeeze(-1)
        if bias_bt is not None:
            score_bt = score_bt + bias_bt
        first = torch.arange(score_bt.shape[1], device=score_bt.device) == 0  # masked, not cut off: no copy of the rest
        return score_bt.masked_fill(first, -torch.inf).softmax(dim=1).nan_to_num(0.0)

    @property
    def _last(self) -> EncoderLayer:
        layer = self.layers[-1]
        assert isinstance(layer, EncoderLayer)
        return layer

    def _encoder(self, x_btd: Tensor, bias_bt: Tensor | None) -> tuple[Tensor, Tensor]:
        """The layers, up to the last sum: its two terms, which the kernel of the readout adds."""
        for layer in self.layers[:-1]:
            x_btd = layer(x_btd, bias_bt)
        return self._last.parts(x_btd, bias_bt)


def _segments(x_btd: Tensor, bias_bt: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Runs of rows, each cut behind its last token. The loader orders rows by length, so little padding is left. Any
    order is right, this one is fast."""
    place_t = torch.arange(1, bias_bt.shape[1] + 1, device=bias_bt.device)
    lengths = ((bias_bt > -torch.inf) * place_t).amax(dim=1).tolist()
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
