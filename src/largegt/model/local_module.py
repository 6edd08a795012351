"""LocalModule: a Transformer encoder over the tokens of a node, 3K in the paper, and a readout to one vector.

Axes: b batch, k local nodes, h = hops + 1, t = h·k tokens, f input features, d model width, c classes or label columns.

Readout: h₀ + Σ_j softmax_j(w·h_j) h_j over the tokens after the first. (A score that also sees h₀, `a·h₀ + w·h_j`,
gives the same weights: its first half is constant over j.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .attention import EncoderLayer
from .fused_readout import can_fuse, fused_readout
from .padding import PaddedLinear

_SEGMENTS = 8
_LABEL_STD = 0.5
"""About as wide as a projected token: from 0.02, as hops have it, labels are found to matter only many steps later."""


class Told(NamedTuple):
    """What a node is told of its local nodes beside their tokens; None where the module does not read it."""

    labels: Tensor | None = None
    """[b, k] or [b, k, c] their labels."""
    near: Tensor | None = None
    """[b, k] whether they are neighbours."""
    contexts: Tensor | None = None
    """[b, k, c + 1] training labels around them."""

    def part(self, of: slice, longest: int) -> Told:
        """Of some rows, and the first so many local nodes."""
        return Told(*(None if each is None else each[of, :longest] for each in self))


class LocalModule(nn.Module):
    """Tokens [b, h·k, f] → H_local [b, d]."""

    def __init__(self, num_features: int, config: ModelConfig, hops: int = 2, num_labels: int = 0) -> None:
        """num_labels: classes, or numbers in a label, where local nodes tell of labels; 0: they do not."""
        super().__init__()
        width = config.hidden
        self.tokens_per_node = hops + 1
        head_width = config.head_width or max(1, width // config.heads)
        self.project = PaddedLinear(num_features, width)
        self.hop_embedding: nn.Parameter | None = None
        if config.hop_embeddings:
            self.hop_embedding = nn.Parameter(torch.empty(2, self.tokens_per_node, width).normal_(std=0.02))
        self.label_embedding: nn.Parameter | None = None
        """[1 + c, 1, d]: of no label, then of each class or label column; for a node's first token alone."""
        if num_labels and config.label_tokens:
            self.label_embedding = nn.Parameter(torch.empty(1 + num_labels, 1, width).normal_(std=_LABEL_STD))
        self.near_embedding: nn.Parameter | None = None
        """[h, d]: of neighbours; nodes farther away have none."""
        if config.distances:
            self.near_embedding = nn.Parameter(torch.empty(self.tokens_per_node, width).normal_(std=0.02))
        self.context: PaddedLinear | None = None
        """Of the labels around a local node, for its first token."""
        if num_labels and config.label_surroundings:
            self.context = PaddedLinear(num_labels + 1, width)
        self.input_drop = nn.Dropout(config.input_dropout) if config.input_dropout else nn.Identity()
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
            self.apply(normal_init)

    def forward(
        self,
        tokens_btf: Tensor,
        multiplicity_bk: Tensor | None = None,
        told: Told = Told(),
    ) -> Tensor:
        if multiplicity_bk is None:
            return self._encode(tokens_btf, None, told)
        multiplicity_bk = multiplicity_bk.to(torch.promote_types(tokens_btf.dtype, torch.float32))
        log_multiplicity_bt = multiplicity_bk.log().repeat_interleave(self.tokens_per_node, dim=1)
        pieces = []
        for of, longest in _segments(multiplicity_bk):
            used = (of, slice(self.tokens_per_node * longest))
            pieces.append(self._encode(tokens_btf[used], log_multiplicity_bt[used], told.part(of, longest)))
        return torch.cat(pieces)

    def embed(self, tokens_btf: Tensor, told: Told = Told()) -> Tensor:
        """[b, t, d] what enters the first layer: projected tokens, with what is learned of hops and of what is told."""
        x_btd: Tensor = self.project(self.input_drop(tokens_btf))
        if self.hop_embedding is not None:
            x_btd = x_btd + self.hop_vectors(x_btd.shape[1] // self.tokens_per_node)
        return self._tell(x_btd, told)

    def _tell(self, x_btd: Tensor, told: Told) -> Tensor:
        """With what is learned of what is told. May write to what is given."""
        if not self.is_told:
            return x_btd
        x_bkhd = x_btd.view(len(x_btd), -1, self.tokens_per_node, x_btd.shape[2])
        if self.near_embedding is not None:
            assert told.near is not None, "which local nodes are neighbours"
            x_bkhd = torch.addcmul(
                x_bkhd, told.near[:, :, None, None].to(x_bkhd.dtype), self.near_embedding.to(x_bkhd.dtype)
            )
        if self.tells_labels:
            x_bkhd[:, :, :1] += self.told_vectors(told)
        return x_bkhd.view(x_btd.shape)

    @property
    def is_told(self) -> bool:
        """Whether nodes are told of their local nodes beside their tokens."""
        return self.tells_labels or self.near_embedding is not None

    @property
    def tells_labels(self) -> bool:
        """Whether local nodes tell of labels, theirs or those around them."""
        return self.label_embedding is not None or self.context is not None

    def told_vectors(self, told: Told) -> Tensor:
        """[b, k, 1, d] what is learned of the labels that local nodes tell of."""
        vectors = []
        if self.label_embedding is not None:
            assert told.labels is not None, "what local nodes tell of their labels"
            vectors.append(self.label_vectors(told.labels))
        if self.context is not None:
            assert told.contexts is not None, "the labels around local nodes"
            vectors.append(self.context(told.contexts.to(self.context.weight.dtype))[:, :, None])
        return vectors[0] + vectors[1] if len(vectors) > 1 else vectors[0]

    def nothing_told(self) -> Tensor:
        """[1, d] what `told_vectors` are of a node that tells no label and has none around it."""
        vector_1d = torch.zeros_like(self.readout.weight)
        if self.label_embedding is not None:
            vector_1d = vector_1d + self.label_embedding[0]
        if self.context is not None:
            vector_1d = vector_1d + self.context.bias
        return vector_1d

    def label_vectors(self, labels: Tensor) -> Tensor:
        """[b, k, 1, d] a learned vector for each label: of its class, or the sum of its columns' times their values."""
        assert self.label_embedding is not None
        if not labels.is_floating_point():
            return nn.functional.embedding(labels + 1, self.label_embedding.flatten(1))[:, :, None]
        values_bk1c = labels.view(*labels.shape[:2], 1, -1)
        none_1d, columns_cd = self.label_embedding[0], self.label_embedding[1:, 0]
        vectors_bk1d = values_bk1c.nan_to_num(0.0).to(columns_cd.dtype) @ columns_cd
        return torch.where(values_bk1c.isnan().all(dim=3, keepdim=True), none_1d, vectors_bk1d)

    def _encode(self, tokens_btf: Tensor, bias_bt: Tensor | None, told: Told) -> Tensor:
        x_btd = self.embed(tokens_btf, told)
        *_, last = self.layers
        for layer in self.layers:
            x_btd, added_btd = layer.parts(x_btd, bias_bt)  # type: ignore[operator]
            if layer is not last:
                x_btd = x_btd + layer.drop(added_btd)  # type: ignore[operator]
        if bias_bt is None and can_fuse(x_btd):
            dropout = last.drop.p if self.training else 0.0  # type: ignore[union-attr]
            return fused_readout(x_btd, added_btd, self.norm, self.readout.weight[0], dropout)  # type: ignore[arg-type]
        return self._read(self.norm(x_btd + last.drop(added_btd)), bias_bt)  # type: ignore[operator]

    def hop_vectors(self, k: int) -> Tensor:
        """[h·k, d]: a learned vector for each hop, one set for the node itself and one for its local nodes."""
        assert self.hop_embedding is not None
        own, others = self.hop_embedding.unbind(0)
        return torch.cat([own, others.repeat(k - 1, 1)])

    def _read(self, h_btd: Tensor, bias_bt: Tensor | None) -> Tensor:
        if h_btd.shape[1] == 1:  # nothing after the first: one local node and no hops
            return h_btd[:, 0]
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


def normal_init(module: nn.Module, std: float = 0.02) -> None:
    """N(0, std) weights and zero biases, for a linear layer."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
