"""InputEncoder: embeds the tokens of local nodes (Algorithm 2) and their optional inputs, for any token-based model.

Axes: b batch, k local nodes, h = hops + 1, t = h·k tokens, f input features, d model width, c classes or label columns,
l width of the label distributions around a node.

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
"""About the scale of a projected token. With 0.02, as for hop embeddings, labels take many steps to have an effect."""


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
        """`config` sets the optional inputs, None: none. `num_labels`: classes, or columns of a label."""
        super().__init__()
        self.tokens_per_node = hops + 1
        self.project = PaddedLinear(num_features, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.hop_embedding: nn.Parameter | None = None
        """[2, h, d]: for the node's own tokens, and for those of its local nodes."""
        if config is not None and config.hop_embedding:
            self.hop_embedding = nn.Parameter(torch.empty(2, self.tokens_per_node, width).normal_(std=0.02))
        self.distance_embedding: nn.Parameter | None = None
        """[h, d]: for direct neighbours; more distant nodes have none."""
        self.label_embedding: nn.Parameter | None = None
        """[1 + c, 1, d]: for no label, then per class or label column; added only to a local node's first token."""
        self.histogram: PaddedLinear | None = None
        """For the label distribution around a local node; added to its first token."""
        if num_labels and config is not None and config.label_embeddings:
            self.label_embedding = nn.Parameter(torch.empty(1 + num_labels, 1, width).normal_(std=_LABEL_STD))
        if config is not None and config.hop_distance_embedding:
            self.distance_embedding = nn.Parameter(torch.empty(self.tokens_per_node, width).normal_(std=0.02))
        if num_labels and config is not None and config.local_label_histograms:
            self.histogram = PaddedLinear(num_labels + 1, width)

    @property
    def reads_labels(self) -> bool:
        """Whether the model reads labels of local nodes or label distributions around them."""
        return self.label_embedding is not None or self.histogram is not None

    def local_inputs(self, batch: TokenBatch) -> LocalInputs:
        """The inputs of local nodes that the model reads."""
        labels = is_neighbor = histogram = None
        if self.label_embedding is not None:
            labels = required(batch.local_labels, "label_embeddings", "token_batches(…, local_labels=True)")
        if self.distance_embedding is not None:
            is_neighbor = required(batch.is_neighbor, "hop_distance_embedding")
        if self.histogram is not None:
            histogram = required(batch.local_label_histogram, "local_label_histograms")
        return LocalInputs(labels, is_neighbor, histogram)

    def token_bias(self, multiplicity_bk: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """[b, t] log(multiplicity) of each token's local node: -inf for padding."""
        if multiplicity_bk is None:
            return None
        log_bk = multiplicity_bk.to(torch.promote_types(dtype, torch.float32)).log()
        return log_bk.repeat_interleave(self.tokens_per_node, dim=1)

    def forward(self, tokens_btf: Tensor, inputs: LocalInputs = LocalInputs()) -> Tensor:
        """[b, t, d]"""
        return self.join(tokens_btf, self.label_vectors(inputs) if self.reads_labels else None, inputs.is_neighbor)

    def join(self, tokens_btf: Tensor, label_vectors_bk1d: Tensor | None, is_neighbor_bk: Tensor | None) -> Tensor:
        """[b, t, d] projected tokens plus hop, distance and label embeddings."""
        x_btd: Tensor = self.project(self.drop(tokens_btf))
        k = x_btd.shape[1] // self.tokens_per_node
        if self.hop_embedding is not None:
            x_btd = x_btd + self.hop_vectors(k)
        x_bkhd = x_btd.view(len(x_btd), k, self.tokens_per_node, x_btd.shape[2])
        if self.distance_embedding is not None:
            assert is_neighbor_bk is not None, "is_neighbor is missing"
            is_neighbor_bk11 = is_neighbor_bk[:, :, None, None].to(x_bkhd.dtype)
            x_bkhd = torch.addcmul(x_bkhd, is_neighbor_bk11, self.distance_embedding.to(x_bkhd.dtype))
        if label_vectors_bk1d is not None:
            x_bkhd[:, :, :1] += label_vectors_bk1d
        return x_bkhd.view(x_btd.shape)

    def hop_vectors(self, k: int) -> Tensor:
        """[h·k, d]: a learned vector for each hop; the node itself and its local nodes have separate sets."""
        assert self.hop_embedding is not None
        own, others = self.hop_embedding.unbind(0)
        return torch.cat([own, others.repeat(k - 1, 1)])

    def label_vectors(self, inputs: LocalInputs) -> Tensor:
        """[b, k, 1, d] embeddings of the labels of local nodes and of the label distributions around them."""
        vectors = []
        if self.label_embedding is not None:
            assert inputs.labels is not None, "labels of local nodes are missing"
            vectors.append(self._embed_labels(inputs.labels))
        if self.histogram is not None:
            assert inputs.histogram is not None, "label distributions around local nodes are missing"
            vectors.append(self.histogram(inputs.histogram.to(self.histogram.weight.dtype))[:, :, None])
        return vectors[0] + vectors[1] if len(vectors) > 1 else vectors[0]

    def no_label_vector(self) -> Tensor:
        """[1, d] `label_vectors` of a local node without a label and with no labels around it."""
        vector_1d = self.project.bias.new_zeros(1, len(self.project.bias))
        if self.label_embedding is not None:
            vector_1d = vector_1d + self.label_embedding[0]
        if self.histogram is not None:
            vector_1d = vector_1d + self.histogram.bias
        return vector_1d

    def _embed_labels(self, labels: Tensor) -> Tensor:
        """[b, k, 1, d] label embeddings: the vector of the class, or the sum of column vectors times their values."""
        assert self.label_embedding is not None
        if not labels.is_floating_point():
            return nn.functional.embedding(labels + 1, self.label_embedding.flatten(1))[:, :, None]
        values_bk1c = labels.view(*labels.shape[:2], 1, -1)
        none_1d, columns_cd = self.label_embedding[0], self.label_embedding[1:, 0]
        vectors_bk1d = values_bk1c.nan_to_num(0.0).to(columns_cd.dtype) @ columns_cd
        return torch.where(values_bk1c.isnan().all(dim=3, keepdim=True), none_1d, vectors_bk1d)


class LabelEncoder(nn.Module):
    """Label distributions around a node [b, l] → [b, d]; l is `width`."""

    def __init__(self, config: NodeLabelsConfig, num_labels: int, out_width: int, dropout: float) -> None:
        super().__init__()
        self.width = config.label_width(num_labels)
        self.layers = nn.Sequential(
            PaddedLinear(self.width, out_width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(out_width, out_width)
        )

    def shares(self, batch: TokenBatch) -> Tensor:
        """[b, l] the label distributions of a batch that the model reads."""
        return label_shares(batch, self.width).to(next(self.parameters()).dtype)

    def forward(self, shares_bl: Tensor) -> Tensor:
        out: Tensor = self.layers(shares_bl)
        return out


def label_shares(batch: TokenBatch, width: int) -> Tensor:
    """[b, width] label distributions around the nodes of a batch, for as many hops as fit the width."""
    return required(batch.neighbor_label_histogram, "neighbor_label_hops")[:, :width].float()


def required(values: Tensor | None, setting: str, made_by: str = "prepare(store, config.preparation)") -> Tensor:
    """An input of a batch that a setting of the model needs; raises if the batch does not have it."""
    if values is None:
        raise ConfigError(f"model.{setting} is set, and the batch has no such input: it comes from {made_by}")
    return values
