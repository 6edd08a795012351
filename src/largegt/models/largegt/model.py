"""LargeGT: LocalModule ‖ GlobalModule → FFN → Norm → residual → head (the paper's Eqns 3 to 6).

Axes: b batch, k local nodes, t tokens, f input features, p positional width, d model width, h heads of the codebook's
attention, c centroids, l width of the label distributions.

    H_local  = LocalModule(X)             Eqn 3, local_module.py; X are the tokens of Eqns 1 and 2, in a TokenBatch
    H_global = GlobalModule(H_in)         Eqn 4, global_module.py
    Ĥ        = FFN(H_local ‖ H_global)    Eqn 5
    H_out    = H_in + Norm(Ĥ)             Eqn 6

`embed` computes the encoder's input and the attention to the codebook, `encode` the rest; explanations take gradients
in between. Beyond the paper, Eqn 5 can also join an encoding of the label distributions around a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from largegt.config.models import (
    AnyLargeGTConfig,
    CodebookModelConfig,
    LargeGTConfig,
    LargeGTLocalConfig,
)
from largegt.data.labels import num_label_columns
from largegt.loader.batch import TokenBatch
from largegt.models.base import NodeModel, NodeOutput
from largegt.models.input_encoder import InputEncoder, LabelEncoder, LocalInputs
from largegt.models.padding import PaddedLinear
from largegt.runtime.distributed import ALONE, Ranks
from largegt.types import Task

from .fused import Fused
from .fused_readout import kernels_work
from .global_module import GlobalModule
from .local_module import LocalModule, normal_init

if TYPE_CHECKING:
    from largegt.preprocessing.prepared import Prepared


class Embedded(NamedTuple):
    """The output of `embed` for b nodes; fields are None if the model has no such part."""

    tokens: Tensor | None
    """[b, t, d] embedded tokens."""
    token_bias: Tensor | None
    """[b, t] log(multiplicity), added to the scores of tokens; None without deduplication."""
    centroid_weights: Tensor | None
    """[h, b, c] attention to the codebook."""
    label_shares: Tensor | None
    """[b, l] label distributions around the nodes."""
    features: Tensor | None
    """[b, f] H_in, for the residual of Eqn 6."""


class LargeGT(NodeModel):
    """LargeGT as a plain `nn.Module`. `LargeGT.for_prepared(prepared, config)` takes the sizes from a preparation.

    Args:
        num_features: columns of a token row.
        num_outputs: classes or labels; 1 for a binary task and a regression.
        num_nodes: nodes of the graph, each of which the codebook assigns to a centroid.
        num_positions: columns of a positional encoding.
        config: the settings, `lg.model_config("largegt-full", …)`, or those of largegt-local or largegt-global.
        hops: contexts in a token row beside the features.
        task: what labels are, for a model that reads those of local nodes.

    Examples:
        >>> model = lg.LargeGT.for_prepared(prepared, lg.model_config("largegt-full", hidden_dim=16))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> for batch in lg.token_batches(prepared, split="train", batch_size=32, seed=0):
        ...     output = model(batch)
        ...     loss = torch.nn.functional.cross_entropy(output.logits, batch.labels)
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     model.update_codebook(output)
    """

    takes_padding = True

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        num_nodes: int,
        num_positions: int = 0,
        config: AnyLargeGTConfig | None = None,
        hops: int = 2,
        task: Task = "multiclass",
    ) -> None:
        super().__init__()
        config = config or LargeGTConfig()
        self.hidden_dim = config.hidden_dim
        self.inputs: InputEncoder | None = None
        self.local_module: LocalModule | None = None
        self.global_module: GlobalModule | None = None
        width, num_labels = config.hidden_dim, num_label_columns(task, num_outputs)
        if isinstance(config, LargeGTLocalConfig):
            self.inputs = InputEncoder(num_features, width, hops, config, num_labels, config.input_dropout)
            self.local_module = LocalModule(config)
            if config.init == "normal":
                nn.ModuleList([self.inputs, self.local_module]).apply(normal_init)
            self.reads_labels, self.local_node_dropout = config.label_embeddings, config.local_node_dropout
        else:
            self.num_local_nodes = 1
        if isinstance(config, CodebookModelConfig):
            self.global_module = GlobalModule(num_features, num_positions, num_nodes, config)
        self.labels: LabelEncoder | None = None
        if config.neighbor_label_hops:
            self.labels = LabelEncoder(config, num_labels, width, config.dropout)
        self.input = PaddedLinear(num_features, width) if config.residual else None
        joined = width * sum(part is not None for part in (self.local_module, self.global_module, self.labels))
        self.ffn = nn.Sequential(
            nn.Linear(joined, width), make_norm(config.norm, width), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(width, width),
        )  # fmt: skip
        self.norm = make_norm(config.norm, width)
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(config.dropout), PaddedLinear(width, num_outputs))
        self._fused: Fused | None = None

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: AnyLargeGTConfig | None = None) -> LargeGT:
        """A model whose shapes fit a Prepared."""
        meta = prepared.meta
        if config is not None:
            prepared.check_inputs(config)
        return cls(
            prepared.num_features, meta["num_outputs"], prepared.num_trained_nodes, prepared.num_positions, config,
            prepared.hops, meta["task"],
        )  # fmt: skip

    def forward(self, batch: TokenBatch) -> NodeOutput:
        compute: Callable[..., Any] = self._compute
        if self._fused is not None and batch.multiplicity is None:
            compute = self._fused
        logits, h_bd, joined = compute(*self._inputs(batch))
        return NodeOutput(logits=logits, hidden=h_bd, nodes=batch.nodes, codebook_input=joined)

    def embed(self, batch: TokenBatch) -> Embedded:
        """The input of `encode` for a batch."""
        return self._embed(*self._inputs(batch))[0]

    def encode(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Logits [b, outputs] and H_out [b, d]."""
        parts: list[Tensor] = []
        if self.local_module is not None:
            assert embedded.tokens is not None
            parts.append(self.local_module(embedded.tokens, embedded.token_bias))  # Eqn 3
        if self.global_module is not None:
            assert embedded.centroid_weights is not None
            parts.append(self.global_module.read(embedded.centroid_weights))  # Eqn 4
        if self.labels is not None:
            parts.append(self.labels(embedded.label_shares))
        h_bd = self.norm(self.ffn(torch.cat(parts, dim=1)))  # Eqn 5
        if self.input is not None:
            h_bd = self.input(embedded.features) + h_bd  # Eqn 6
        return self.head(h_bd), h_bd

    def _inputs(self, batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor | None, LocalInputs, Tensor | None]:
        inputs = LocalInputs() if self.inputs is None else self.inputs.local_inputs(batch)
        label_shares = None if self.labels is None else self.labels.shares(batch)
        return batch.tokens, batch.positions, batch.multiplicity, inputs, label_shares

    def _compute(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, H_out and the codebook's input, from the result of `_inputs`."""
        embedded, joined = self._embed(*inputs)
        return *self.encode(embedded), joined

    def _embed(
        self, tokens_btf: Tensor, positions_bp: Tensor, multiplicity_bk: Tensor | None, inputs: LocalInputs,
        label_shares_bl: Tensor | None,
    ) -> tuple[Embedded, Tensor | None]:  # fmt: skip
        features_bf, x_btd, bias_bt, weights_hbc, joined = tokens_btf[:, 0], None, None, None, None
        if self.inputs is not None:
            x_btd = self.inputs(tokens_btf, inputs)
            bias_bt = self.inputs.token_bias(multiplicity_bk, tokens_btf.dtype)
        if self.global_module is not None:
            weights_hbc, joined = self.global_module.attend(features_bf, positions_bp)
        own_bf = None if self.input is None else features_bf
        return Embedded(x_btd, bias_bt, weights_hbc, label_shares_bl, own_bf), joined

    def compile_for(self, batch_sizes: set[int]) -> None:
        """Use `torch.compile` for batches of these sizes without deduplication; other batches run uncompiled."""
        kernels_work()  # tested now, since tracing cannot do it
        self.compiled_sizes = frozenset(batch_sizes)
        self._fused = Fused(self._compute, batch_sizes)
        if self.global_module is not None:
            self.global_module.codebook.compile_for(batch_sizes)

    def update_codebook(self, output: NodeOutput) -> None:
        """Take one step of EMA k-means; does nothing without a GlobalModule."""
        if self.global_module is not None and output.codebook_input is not None:
            self.global_module.codebook.update(output.codebook_input, output.nodes)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the rows of all ranks. Normalises a training batch of one row by the running statistics instead
    of raising an error."""

    ranks: Ranks = ALONE

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.ranks.size > 1:
            return self._over_ranks(input)
        if self.training and len(input) == 1:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)

    def _over_ranks(self, input: Tensor) -> Tensor:
        """Batch norm with statistics summed over ranks; the sums have gradients."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        x_nd = input.float()
        counted_nd = x_nd[:0] if self.ranks.has_empty_batch else x_nd
        number = x_nd.new_full((1,), len(counted_nd))
        total = self.ranks.all_reduce(torch.cat([counted_nd.sum(dim=0), number]))
        count = total[-1:]
        mean_d = total[:-1] / count
        variance_d = self.ranks.all_reduce((counted_nd - mean_d).square().sum(dim=0)) / count
        is_many = count > 1
        mean_d = torch.where(is_many, mean_d, self.running_mean)
        variance_d = torch.where(is_many, variance_d, self.running_var)
        with torch.no_grad():
            momentum = self.momentum * is_many
            self.running_mean.lerp_(mean_d, momentum)
            self.running_var.lerp_(variance_d * count / (count - 1).clamp(min=1), momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(is_many[0])
        y_nd = (x_nd - mean_d) * torch.rsqrt(variance_d + self.eps) * self.weight + self.bias
        return y_nd.to(input.dtype)


def make_norm(kind: str, width: int) -> nn.Module:
    """`layer` or `batch` norm of this width; `none` is the identity."""
    if kind == "none":
        return nn.Identity()
    return nn.LayerNorm(width) if kind == "layer" else BatchNorm(width)
