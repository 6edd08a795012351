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
    """What the model sees of b nodes; the hand-over from the graph's world to the network's."""

    nodes: Tensor
    """[b] node numbers."""
    tokens: Tensor
    """[b, h·k, d]: tokens h·j, h·j + 1, … are H, C⁰, C¹, … of local node j; local node 0 is the node itself."""
    multiplicity: Tensor | None
    """[b, k] how often each local node was drawn, 0 where there is none; None when every token stands for itself."""
    positions: Tensor
    """[b, p] positional encodings; p may be 0."""
    labels: Tensor
    """[b] classes (-1: none) or values (NaN: none), or [b, c] for multi-label."""
    neighbor_label_histogram: Tensor | None = None
    """[b, h·(c + 1)] training labels around each node, where those were prepared."""
    local_labels: Tensor | None = None
    """[b, k] or [b, k, c] what local nodes tell of their labels, as LocalLabels has it; None for models that do not
    read them."""
    is_neighbor: Tensor | None = None
    """[b, k] boolean: whether an edge joins the local node to the node."""
    local_label_histogram: Tensor | None = None
    """[b, k, c + 1] training labels around local nodes, as LocalLabelHistograms has them, where those were prepared."""

    def __len__(self) -> int:
        return len(self.nodes)

    def tensors(self) -> list[Tensor]:
        """All that is there."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def clone(self) -> TokenBatch:
        """The same batch in memory of its own."""
        return self._each(Tensor.clone)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TokenBatch:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TokenBatch:
        named = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **named)


def input_tokens(table_rhd: Tensor, local_rows_bk: Tensor) -> Tensor:
    """[b, h·k, d] tokens of Algorithm 2, computable."""
    b, k = local_rows_bk.shape
    num_rows, h, width = table_rhd.shape
    gathered = table_rhd.view(num_rows, h * width).index_select(0, local_rows_bk.reshape(-1))
    return computable(gathered.view(b, h * k, width))


def computable(tokens: Tensor) -> Tensor:
    """float16, a format to store in and not to compute in, as float32."""
    return tokens.float() if tokens.dtype == torch.float16 else tokens


def fewer_rows(local_rows_bk: Tensor, dropout: float, seed: int) -> Tensor:
    """[b, 1 + m] the node itself and m = (1 - dropout)(k - 1) of its other local nodes, one at least.

    Its local nodes are put into a random order, all copies of one node together, and the first m stay: nodes are
    left out as wholes, but for the one at the cut, and every row keeps as many. The order is a function of (seed,
    node, local node): the same on every device, in any batch.
    """
    num_others = local_rows_bk.shape[1] - 1
    if num_others < 1:
        return local_rows_bk
    own_b1, others_bk = local_rows_bk[:, :1], local_rows_bk[:, 1:]
    order_bk = _mixed(_mixed(own_b1.long() + seed) + others_bk).argsort(dim=1)
    left = max(1, round((1 - dropout) * num_others))
    return torch.cat([own_b1, others_bk.gather(1, order_bk[:, :left])], dim=1)


def _mixed(numbers: Tensor) -> Tensor:
    """Their lowest 32 bits, scattered: different numbers stay different."""
    low = 0xFFFFFFFF
    bits = numbers & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & low
    return bits ^ (bits >> 16)


def distinct_rows(local_rows_bk: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's distinct local nodes and how often each stands there: `(rows, multiplicity)`, both [b, k'].

    The node itself stays in column 0; k' is the most that any row of the batch needs, shorter rows end in
    multiplicity 0. A multiset of tokens and its distinct tokens with log(multiplicity) added to their scores give
    the same attention and the same readout.
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
