"""The interface of all models: a batch in, a `NodeOutput` out, and for some a codebook update after the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from largegt.data.labels import num_label_columns

if TYPE_CHECKING:
    from largegt.preprocessing.prepared import Prepared


@dataclass(frozen=True)
class DataShape:
    """The data sizes that determine a model's shapes."""

    num_features: int
    num_outputs: int
    """Classes or labels; 1 for binary and regression."""
    num_nodes: int = 0
    num_positions: int = 0
    hops: int = 2
    """Context features per token row, beside the node's own features."""
    num_labels: int = 0
    """Width of a label distribution."""

    @classmethod
    def of(cls, prepared: Prepared) -> DataShape:
        return cls(
            prepared.num_features, prepared.meta["num_outputs"], prepared.num_trained_nodes, prepared.num_positions,
            prepared.hops, num_label_columns(prepared.meta["task"], prepared.meta["num_outputs"]),
        )  # fmt: skip


@dataclass(frozen=True)
class NodeOutput:
    """The output of a model for b nodes."""

    logits: Tensor
    """[b, outputs]"""
    hidden: Tensor
    """[b, hidden]: H_out, the node representation that the head reads."""
    nodes: Tensor
    """[b] node numbers."""
    codebook_input: Tensor | None = None
    """[b, w] the input of `update_codebook`; None without a GlobalModule."""

    def without_nodes(self) -> NodeOutput:
        """The output for an empty batch."""
        codebook_input = None if self.codebook_input is None else self.codebook_input[:0]
        return NodeOutput(self.logits[:0], self.hidden[:0], self.nodes[:0], codebook_input)


class NodeModel(nn.Module):
    """Base class of LargeGT and the baselines. A baseline is constructed from a DataShape and a ModelConfig."""

    num_local_nodes: int | None = None
    """Local nodes per node that a batch must hold; None: all sampled ones."""
    reads: str = "tokens"
    """The kind of batch: tokens, or for models with a neighbour sampler: sample (neighbours by layer), neighborhoods
    (neighbours by distance), adjacency (all neighbours)."""
    fanouts: tuple[int, ...] = ()
    """Neighbours to sample per hop, for models with a neighbour sampler."""
    takes_padding = False
    """Whether tokens may be zero-padded to a feature width that suits a GPU."""
    reads_labels = False
    """Whether batches must hold the labels of local nodes."""
    local_node_dropout: float = 0.0
    """Fraction of the local nodes that a training batch drops."""
    compiled_sizes: frozenset[int] = frozenset()
    """Batch sizes that run on compiled kernels."""

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: Any) -> Self:
        """A model whose shapes fit a Prepared."""
        make: Any = cls  # the constructor of a baseline takes these two
        model: Self = make(DataShape.of(prepared), config)
        return model

    def forward(self, batch: Any) -> NodeOutput:
        """`batch` is a TokenBatch, or another kind according to `reads`."""
        raise NotImplementedError

    def compile_for(self, batch_sizes: set[int]) -> None:
        """Compile the model for batches of these sizes; does nothing for models without compiled kernels."""

    def update_codebook(self, output: NodeOutput) -> None:
        """Take one step of EMA k-means after an optimizer step; does nothing for models without a codebook."""
