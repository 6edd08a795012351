"""InputTokens (the paper's Algorithm 2): local nodes → tokens, by one gather.

Axes: b nodes of a batch, k local nodes, h = hops + 1 (the paper has 3), t = h·k tokens, d features, p positional width,
r rows of the token table.

Enters: the token table [r, h, d] and local rows [b, k]. Leaves: a TokenBatch. Cost: one gather of b·k·h·d numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """The model's input for b nodes."""

    nodes: Tensor
    """[b] node numbers."""
    tokens: Tensor
    """[b, h·k, d]: tokens h·j, h·j + 1, … are H, C⁰, C¹, … of local node j; local node 0 is the node itself."""
    multiplicity: Tensor | None
    """[b, k] how often each local node was sampled, 0 for padding; None without deduplication."""
    positions: Tensor
    """[b, p] positional encodings; p may be 0."""
    labels: Tensor
    """[b] classes (-1 if unlabelled) or values (NaN if unlabelled), or [b, c] for multi-label."""
    neighbor_label_histogram: Tensor | None = None
    """[b, h·(c + 1)] training label distribution around each node, if prepared."""
    local_labels: Tensor | None = None
    """[b, k] or [b, k, c] training labels of local nodes, as in LocalLabels; None for models that do not read them."""
    is_neighbor: Tensor | None = None
    """[b, k] boolean: whether an edge joins the local node to the node."""
    local_label_histogram: Tensor | None = None
    """[b, k, c + 1] training label distributions around local nodes, as in LocalLabelHistograms, if prepared."""

    def __len__(self) -> int:
        return len(self.nodes)

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def clone(self) -> TokenBatch:
        """A copy of the batch."""
        return self._each(Tensor.clone)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TokenBatch:
        """The batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TokenBatch:
        named = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **named)


def input_tokens(table_rhd: Tensor, local_rows_bk: Tensor) -> Tensor:
    """[b, h·k, d] tokens of Algorithm 2; float16 becomes float32."""
    b, k = local_rows_bk.shape
    num_rows, h, width = table_rhd.shape
    gathered = table_rhd.view(num_rows, h * width).index_select(0, local_rows_bk.reshape(-1))
    return to_compute_dtype(gathered.view(b, h * k, width))


def to_compute_dtype(tokens: Tensor) -> Tensor:
    """Cast float16, a storage format, to float32."""
    return tokens.float() if tokens.dtype == torch.float16 else tokens


def drop_local_nodes(local_rows_bk: Tensor, dropout: float, seed: int) -> Tensor:
    """[b, 1 + m] the node itself and m = (1 - dropout)(k - 1) of its other local nodes, at least one.

    Local nodes are sorted in a random order with all copies of a node together, and the first m stay. All copies of a
    node are dropped together, except at the cut, and every row keeps the same number. The order is a function of (seed,
    node, local node): the same on every device and in any batch.
    """
    num_others = local_rows_bk.shape[1] - 1
    if num_others < 1:
        return local_rows_bk
    own_b1, others_bk = local_rows_bk[:, :1], local_rows_bk[:, 1:]
    order_bk = _hash32(_hash32(own_b1.long() + seed) + others_bk).argsort(dim=1)
    left = max(1, round((1 - dropout) * num_others))
    return torch.cat([own_b1, others_bk.gather(1, order_bk[:, :left])], dim=1)


def _hash32(numbers: Tensor) -> Tensor:
    """A bijective 32-bit hash of the lowest 32 bits."""
    low = 0xFFFFFFFF
    bits = numbers & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & low
    return bits ^ (bits >> 16)


def distinct_rows(local_rows_bk: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct local nodes of each row and their counts: `(rows, multiplicity)`, both [b, k'].

    The node itself stays in column 0. k' is the largest number of distinct nodes in the batch; shorter rows are padded
    with multiplicity 0. Distinct tokens with log(multiplicity) added to their scores give the same attention and
    readout as the repeated tokens.
    """
    b, k = local_rows_bk.shape
    others, _ = local_rows_bk[:, 1:].sort(dim=1)
    first = torch.ones_like(others, dtype=torch.bool)
    first[:, 1:] = others[:, 1:] != others[:, :-1]
    place = first.cumsum(dim=1)
    rows = local_rows_bk[:, :1].repeat(1, k)
    rows.scatter_(1, place, others)
    multiplicity = torch.zeros(b, k, dtype=torch.int32, device=others.device)
    multiplicity[:, 0] = 1
    multiplicity.scatter_add_(1, place, torch.ones_like(place, dtype=torch.int32))
    longest = int(place[:, -1].max()) + 1
    return rows[:, :longest], multiplicity[:, :longest]
