"""What every model here is: a batch in, a `NodeOutput` out, and perhaps a codebook to move after the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from largegt.data.labels import num_label_columns

if TYPE_CHECKING:
    from largegt.preprocessing.prepared import Prepared


@dataclass(frozen=True)
class DataShape:
    """The sizes of the data that a model's shape depends on."""

    num_features: int
    num_outputs: int
    """Classes or labels; 1 for binary and regression."""
    num_nodes: int = 0
    num_positions: int = 0
    hops: int = 2
    """Contexts that a token row has beside the features."""
    num_labels: int = 0
    """Numbers in a label distribution."""

    @classmethod
    def of(cls, prepared: Prepared) -> DataShape:
        return cls(
            prepared.num_features, prepared.meta["num_outputs"], prepared.num_trained_nodes, prepared.num_positions,
            prepared.hops, num_label_columns(prepared.meta["task"], prepared.meta["num_outputs"]),
        )  # fmt: skip


@dataclass(frozen=True)
class NodeOutput:
    """What a model predicts for b nodes."""

    logits: Tensor
    """[b, outputs]"""
    hidden: Tensor
    """[b, hidden]: H_out, the node representation that the head reads."""
    nodes: Tensor
    """[b] node numbers."""
    codebook_input: Tensor | None = None
    """[b, w] what `update_codebook` learns from; None without a GlobalModule."""

    def without_nodes(self) -> NodeOutput:
        """The same of no nodes."""
        codebook_input = None if self.codebook_input is None else self.codebook_input[:0]
        return NodeOutput(self.logits[:0], self.hidden[:0], self.nodes[:0], codebook_input)


class NodeModel(nn.Module):
    """Base of LargeGT and the baselines. A baseline is made of a DataShape and a ModelConfig."""

    num_local_nodes: int | None = None
    """How many local nodes a batch must carry; None: all that were sampled."""
    reads: str = "tokens"
    """What its batches hold: tokens, or for models that draw neighbours themselves a sample by layers, neighborhoods
    by distance, or adjacency, all neighbours."""
    fanouts: tuple[int, ...] = ()
    """Neighbours to draw per hop, where it draws."""
    takes_padding = False
    """Whether tokens may be wider than the features, with zeros behind them: widths that suit a GPU."""
    reads_labels = False
    """Whether batches must carry the labels of local nodes."""
    local_node_dropout: float = 0.0
    """Share of the local nodes that a batch leaves out in training."""
    compiled_sizes: frozenset[int] = frozenset()
    """Batches of these sizes are computed by fused kernels."""

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: Any) -> Self:
        """A model whose shapes fit a Prepared."""
        make: Any = cls  # a baseline is made of these two
        model: Self = make(DataShape.of(prepared), config)
        return model

    def forward(self, batch: Any) -> NodeOutput:
        """`batch` is a TokenBatch, or what `reads` names."""
        raise NotImplementedError

    def compile_for(self, batch_sizes: set[int]) -> None:
        """Compute batches of these sizes with fused kernels; models that have none ready do nothing."""

    def update_codebook(self, output: NodeOutput) -> None:
        """Move the codebook by one step of EMA k-means after an optimizer step; models without one do nothing."""
