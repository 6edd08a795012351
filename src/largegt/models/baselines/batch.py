"""Batches of the models with a neighbour sampler.

Axes: b batch, u nodes of a sample, f features, p positional width, m members of a neighbourhood, e neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .neighbors import Block


class Movable:
    """Base of frozen dataclasses whose fields are tensors, `Movable`s, tuples of these, or numbers."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """A copy on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(moved, value))
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor | Movable) else value

        return replace(self, **{name: moved(value) for name, value in vars(self).items()})  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True)
class GraphBatch(Movable):
    """The inputs of b nodes that these models share."""

    multiplicity: ClassVar[None] = None
    """As in a TokenBatch without deduplication."""
    nodes: Tensor
    """[b] node numbers."""
    features: Tensor
    """[u, f] features of the distinct nodes in the sample."""
    positions: Tensor
    """[b, p] positional encodings; p may be 0."""
    labels: Tensor
    """[b] classes (-1: none) or values (NaN: none), or [b, c] for multi-label."""

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, kw_only=True)
class NeighborBatch(GraphBatch):
    """A sample by layers, for message passing; the b targets are the first rows of `features`."""

    blocks: tuple[Block, ...]
    """One per layer, the outermost hop first."""


@dataclass(frozen=True, kw_only=True)
class NeighborhoodBatch(GraphBatch):
    """A sample by distance, for GOAT."""

    member: Tensor
    """[b, m] rows of `features`; the target in column 0."""
    distance: Tensor
    """[b, m] hops from the target, 0 for itself; -1 for padding."""


@dataclass(frozen=True, kw_only=True)
class AdjacencyBatch(GraphBatch):
    """All neighbours of each node, for LINKX; `features` are those of the b nodes."""

    neighbors_indptr: Tensor
    """[b+1] int64: the neighbours of node i are neighbors[indptr[i] : indptr[i + 1]]."""
    neighbors: Tensor
    """[e] int64: node numbers."""
