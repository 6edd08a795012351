"""InputEncoder: tokens of local nodes (Algorithm 2) and their optional inputs, embedded for any model of tokens.

Axes: b batch, k local nodes, h = hops + 1, t = h·k tokens, f input features, d model width, c classes or label columns,
l numbers of the label distributions around a node.

    X[3j + hop] = W H_hop[S_j]  + hop embedding              the paper's tokens, Eqns 1 and 2
                                + distance embedding         of direct neighbours
    X[3j]      += label embedding, label histogram           of local node j, without the node's own label

Each addition is an option of the model (LocalInputsConfig). A new input of local nodes is a field there, a tensor of
TokenBatch and of LocalInputs, and a term here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from largegt.config.models import LocalInputsConfig, NodeLabelsConfig
from largegt.errors import ConfigError
from largegt.loader.batch import TokenBatch

from .padding import PaddedLinear

_LABEL_STD = 0.5
"""About as wide as a projected token: from 0.02, as hops have it, labels matter only many steps later."""


class LocalInputs(NamedTuple):
    """Inputs of local nodes beside their tokens; None where the model does not read them."""

    labels: Tensor | None = None
    """[b, k] or [b, k, c] labels of local nodes."""
    is_neighbor: Tensor | None = None
    """[b, k] whether local nodes are direct neighbours."""
    histogram: Tensor | None = None
    """[b, k, c + 1] distribution of the training labels around local nodes."""


class InputEncoder(nn.Module):
    """Tokens [b, h·k, f] and LocalInputs → [b, h·k, d]."""

    def __init__(
        self, num_features: int, width: int, hops: int, config: LocalInputsConfig | None = None, num_labels: int = 0,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        """`config` says which optional inputs are read, None: none. num_labels: classes, or numbers in a label."""
        super().__init__()
        self.tokens_per_node = hops + 1
        self.project = PaddedLinear(num_features, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.hop_embedding: nn.Parameter | None = None
        """[2, h, d]: of the node's own tokens, and of those of its local nodes."""
        if config is not None and config.hop_embedding:
            self.hop_embedding = nn.Parameter(torch.empty(2, self.tokens_per_node, width).normal_(std=0.02))
        self.distance_embedding: nn.Parameter | None = None
        """[h, d]: of direct neighbours; nodes farther away have none."""
        self.label_embedding: nn.Parameter | None = None
        """[1 + c, 1, d]: of no label, then of each class or label column; for a local node's first token alone."""
        self.histogram: PaddedLinear | None = None
        """Of the labels around a local node, for its first token."""
        if num_labels and config is not None and config.label_embeddings:
            self.label_embedding = nn.Parameter(torch.empty(1 + num_labels, 1, width).normal_(std=_LABEL_STD))
        if config is not None and config.hop_distance_embedding:
            self.distance_embedding = nn.Parameter(torch.empty(self.tokens_per_node, width).normal_(std=0.02))
        if num_labels and config is not None and config.local_label_histograms:
            self.histogram = PaddedLinear(num_labels + 1, width)

    @property
    def reads_labels(self) -> bool:
        """Whether it reads labels of local nodes, their own or those around them."""
        return self.label_embedding is not None or self.histogram is not None

    def local_inputs(self, batch: TokenBatch) -> LocalInputs:
        """The inputs of local nodes that are read."""
        labels = is_neighbor = histogram = None
        if self.label_embedding is not None:
            labels = required(batch.local_labels, "label_embeddings", "token_batches(…, local_labels=True)")
        if self.distance_embedding is not None:
            is_neighbor = required(batch.is_neighbor, "hop_distance_embedding")
        if self.histogram is not None:
            histogram = required(batch.local_label_histogram, "local_label_histograms")
        return LocalInputs(labels, is_neighbor, histogram)

    def token_bias(self, multiplicity_bk: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """[b, t] log(multiplicity) of each token's local node: -inf where there is none."""
        if multiplicity_bk is None:
            return None
        log_bk = multiplicity_bk.to(torch.promote_types(dtype, torch.float32)).log()
        return log_bk.repeat_interleave(self.tokens_per_node, dim=1)

    def forward(self, tokens_btf: Tensor, inputs: LocalInputs = LocalInputs()) -> Tensor:
        """[b, t, d]"""
        return self.join(tokens_btf, self.label_vectors(inputs) if self.reads_labels else None, inputs.is_neighbor)

    def join(self, tokens_btf: Tensor, label_vectors_bk1d: Tensor | None, is_neighbor_bk: Tensor | None) -> Tensor:
        """[b, t, d] projected tokens plus the vectors of hops, of neighbours and of labels."""
        x_btd: Tensor = self.project(self.drop(tokens_btf))
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

    def label_vectors(self, inputs: LocalInputs) -> Tensor:
        """[b, k, 1, d] vectors of the labels of local nodes and of those around them."""
        vectors = []
        if self.label_embedding is not None:
            assert inputs.labels is not None, "labels of local nodes"
            vectors.append(self._own_label_vectors(inputs.labels))
        if self.histogram is not None:
            assert inputs.histogram is not None, "the labels around local nodes"
            vectors.append(self.histogram(inputs.histogram.to(self.histogram.weight.dtype))[:, :, None])
        return vectors[0] + vectors[1] if len(vectors) > 1 else vectors[0]

    def no_label_vector(self) -> Tensor:
        """[1, d] `label_vectors` of a node without a label and without labels around it."""
        vector_1d = self.project.bias.new_zeros(1, len(self.project.bias))
        if self.label_embedding is not None:
            vector_1d = vector_1d + self.label_embedding[0]
        if self.histogram is not None:
            vector_1d = vector_1d + self.histogram.bias
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


class LabelEncoder(nn.Module):
    """The label distributions around a node [b, l] → [b, d]; l is `width`, 0 where the model does not read them."""

    def __init__(self, config: NodeLabelsConfig, num_labels: int, out_width: int, dropout: float) -> None:
        super().__init__()
        self.width = config.neighbor_label_hops * (1 + num_labels)
        self.layers = nn.Sequential(
            PaddedLinear(self.width, out_width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(out_width, out_width)
        )

    def shares(self, batch: TokenBatch) -> Tensor:
        """[b, l] what is read of a batch."""
        return label_shares(batch, self.width).to(next(self.parameters()).dtype)

    def forward(self, shares_bl: Tensor) -> Tensor:
        out: Tensor = self.layers(shares_bl)
        return out


def label_shares(batch: TokenBatch, width: int) -> Tensor:
    """[b, width] label distributions around the nodes of a batch, of as many hops as that is."""
    return required(batch.neighbor_label_histogram, "neighbor_label_hops")[:, :width].float()


def required(values: Tensor | None, setting: str, made_by: str = "prepare(store, config.preparation)") -> Tensor:
    """An input of a batch that a setting of the model asks for."""
    if values is None:
        raise ConfigError(f"model.{setting} is set, and the batch has no such input: it comes from {made_by}")
    return values
