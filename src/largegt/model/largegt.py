"""LargeGT: LocalModule ‖ GlobalModule → FFN → Norm → residual → head (the paper's Eqns 1 to 6).

Axes: b batch, t tokens, f input features, d model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..errors import ConfigError
from ..tokens.input_tokens import TokenBatch
from .global_module import GlobalModule
from .local_module import LocalModule
from .node_model import NodeModel, NodeOutput

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared


class LargeGT(NodeModel):
    """A plain `nn.Module`: `output = model(batch)`, and after the optimizer's step `model.update_codebook(output)`.

    num_features, num_positions and num_nodes are those of the Prepared; num_outputs is the number of classes or
    labels, 1 for binary and regression.
    """

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        num_nodes: int,
        num_positions: int = 0,
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__()
        config = config or ModelConfig()
        if config.name not in ("largegt-full", "largegt-local", "largegt-global"):
            raise ConfigError(f"model.name={config.name} is not a LargeGT: choose largegt-full, -local or -global")
        self.local_module: LocalModule | None = None
        self.global_module: GlobalModule | None = None
        width = config.hidden
        if config.name != "largegt-global":
            self.local_module = LocalModule(num_features, config)
        else:
            self.num_local_nodes = 1
        if config.name != "largegt-local":
            self.global_module = GlobalModule(num_features, num_positions, num_nodes, config)
        self.input = nn.Linear(num_features, width) if config.residual else None
        joined = 2 * width if config.name == "largegt-full" else width
        self.ffn = nn.Sequential(
            nn.Linear(joined, width), make_norm(config.norm, width), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(width, width),
        )  # fmt: skip
        self.norm = make_norm(config.norm, width)
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(width, num_outputs))

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig | None = None) -> LargeGT:
        """A model whose shapes fit a Prepared."""
        meta = prepared.meta
        return cls(prepared.num_features, meta["num_outputs"], meta["num_nodes"], prepared.num_positions, config)

    def forward(self, batch: TokenBatch) -> NodeOutput:
        features_bf = batch.tokens[:, 0]
        parts: list[Tensor] = []
        joined = None
        if self.local_module is not None:
            parts.append(self.local_module(batch.tokens, batch.multiplicity))
        if self.global_module is not None:
            global_bd, joined = self.global_module(features_bf, batch.positions)
            parts.append(global_bd)
        h_bd = self.norm(self.ffn(torch.cat(parts, dim=1)))
        if self.input is not None:
            h_bd = self.input(features_bf) + h_bd
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=joined)

    def update_codebook(self, output: NodeOutput) -> None:
        """Move the codebook by one step of EMA k-means; nothing to do without a GlobalModule."""
        if self.global_module is not None and output.codebook_input is not None:
            self.global_module.codebook.update(output.codebook_input, output.nodes)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that takes a training batch of one by its running statistics instead of failing."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and len(input) == 1:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)


def make_norm(kind: str, width: int) -> nn.Module:
    """`layer` or `batch` norm of this width."""
    return nn.LayerNorm(width) if kind == "layer" else BatchNorm(width)
