"""What GraphSAGE, GAT and GT-sparse share: their batch, the walk through their layers, and sums over neighbours.

Axes: b batch, u nodes of a sample, p positional width, n inputs of a layer, t its targets, e edges, d width, h heads,
g targets of a group, m edges of a target.

Enters: a NeighborBatch. Leaves: a NodeOutput. A layer's projections are linear, so all of them wait until the
neighbours are summed: a product for each target, not for each of the many more inputs. (GraphSAGE and GAT project first
where that is less work: wide inputs of whole graphs, see `is_less_projected`.) What is left per edge is one sum
(`neighbor_mean`, which makes no row per edge), or for attention two small dense products over neighbours that lie side
by side (`over_neighbors`). Cost: O(e·h·d) time; memory O(t·d), or O(e·d + e·h) with attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..io.atomic import require_space
from ..model.largegt import make_norm
from ..model.node_model import NodeModel, NodeOutput
from ..prepare.blocks import numbers
from ..progress import Progress, silent
from ..threads import num_threads, take_rows
from ..types import Array, PathLike
from .batch import DrawnBatch
from .neighbors import Block, NeighborSampler

if TYPE_CHECKING:
    from ..prepare.prepared import Prepared

Rows = Callable[[Array], Tensor]
"""Rows [n, d] of these nodes."""

_NODES_AT_ONCE = 1 << 20
_ROWS_PER_READ, _READERS = 1024, 32
"""A file has so many requests in hand at once."""


@dataclass(frozen=True)
class NeighborBatch(DrawnBatch):
    """What a message-passing model sees of b nodes."""

    nodes: Tensor
    """[b] node numbers."""
    features: Tensor
    """[u, d] of all nodes in the sample, the b targets first."""
    blocks: tuple[Block, ...]
    """One per layer, the outermost hop first."""
    positions: Tensor
    """[b, p] positional encodings; p may be 0."""
    labels: Tensor
    """[b] classes (-1: none) or values (NaN: none), or [b, c] for multi-label."""


class MessagePassing(NodeModel):
    """Layers called as `layer(inputs, block) → targets`, with norm, activation and dropout between them; the last one
    gives logits."""

    num_local_nodes = 1
    reads = "sample"

    def __init__(
        self,
        layers: Iterable[nn.Module],
        widths: list[int],
        activation: Callable[[Tensor], Tensor],
        config: ModelConfig,
    ) -> None:
        """`widths` are those of the layers' outputs."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(make_norm(config.norm, width) for width in widths[:-1])
        self.activation, self.fanouts = activation, config.fanouts
        self.input_dropout, self.dropout = config.input_dropout, config.dropout
        self._widths = widths

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @classmethod
    def for_prepared(cls, prepared: Prepared, config: ModelConfig) -> Self:
        """A model whose shapes fit a Prepared."""
        make: Callable[..., Self] = cls  # a subclass, which takes no layers
        return make(prepared.num_features, prepared.meta["num_outputs"], config)

    def width_after(self, number: int) -> int:
        """Width of what layer `number` gives."""
        return self._widths[number]

    def layer(self, number: int, h_nd: Tensor, block: Block) -> Tensor:
        """What layer `number` gives for a block's targets: the next layer's input, or logits."""
        h_td: Tensor = self.layers[number](h_nd, block)
        if number == self.num_layers - 1:
            return h_td
        return F.dropout(self.activation(self.norms[number](h_td)), self.dropout, self.training)

    def forward(self, batch: NeighborBatch) -> NodeOutput:
        assert len(batch.blocks) == self.num_layers, (len(batch.blocks), self.num_layers)
        h_nd = F.dropout(batch.features, self.input_dropout, self.training)
        for number, block in enumerate(batch.blocks[:-1]):
            h_nd = self.layer(number, h_nd, block)
        logits = self.layer(self.num_layers - 1, h_nd, batch.blocks[-1])
        return NodeOutput(logits=logits, hidden=h_nd[: len(batch)], nodes=batch.nodes, codebook_input=None)


def layer_widths(num_features: int, hidden: int, num_outputs: int, config: ModelConfig) -> list[int]:
    """Widths before, between and after as many layers as there are hops."""
    return [num_features, *[hidden] * (len(config.fanouts) - 1), num_outputs]


def layers_of_heads(
    make: Callable[[int, int, bool, ModelConfig], nn.Module], num_features: int, num_outputs: int, config: ModelConfig
) -> tuple[list[nn.Module], list[int]]:
    """`make(width_in, head_width, average, config)` for each layer, and the widths of their outputs: heads side by
    side, and averaged into logits by the last one."""
    head_width = config.head_width or max(1, config.hidden // config.heads)
    widths = layer_widths(num_features, config.heads * head_width, num_outputs, config)
    layers = [make(width, head_width, False, config) for width in widths[:-2]]
    return [*layers, make(widths[-2], num_outputs, True, config)], widths[1:]


def neighbor_mean(h_nd: Tensor, block: Block) -> Tensor:
    """[t, d] the mean over each target's neighbours; 0 where it has none.

    Of the ways to sum without a row per edge this is the fastest forward and backward: 53 ms for 20,000 targets of 10
    neighbours, width 256, on two cores; a CSR product takes 73 ms, a row per edge and index_add 250 ms.
    """
    sum_td = F.embedding_bag(block.source, h_nd, block.indptr, mode="sum", include_last_offset=True)
    return sum_td / block.indptr.diff().clamp(min=1).to(sum_td.dtype)[:, None]


def is_less_projected(block: Block, width_in: int, width_out: int) -> bool:
    """Whether to project each input and sum at the narrower width, and not to sum and then project each target. A
    product takes about a quarter of the time that gathering and summing a number takes (measured on one core)."""
    more_products = (block.num_inputs - block.num_targets) * width_in * width_out
    return more_products < 4 * len(block.source) * (width_in - width_out)


def over_neighbors(block: Block, compute: Callable[[Tensor | slice, Tensor, Tensor], Tensor]) -> Tensor:
    """[t, …]: `compute(rows, place_gm, here_gm)` of groups of targets, put together in the targets' order.

    `rows` are a group's targets and `place_gm` the inputs at the other ends of their edges; where a target has fewer
    than m, `here_gm` is False and the place is input 0. Targets with about as many edges each (a sample of a dense
    graph) are one group. Otherwise those with more than m/2 and up to m edges, m a power of two, go together: padding
    at most doubles the edges, however long the longest list is. Dense products over such groups are 5 to 10 times as
    fast as softmax and sums by segment.
    """
    count_t = block.indptr.diff()
    longest = int(count_t.max())
    if len(count_t) * longest <= 2 * len(block.source):
        return compute(slice(None), *_side_by_side(block, slice(None), longest))
    sorted_t, order_t = count_t.sort()
    sizes = [0, *(1 << power for power in range((longest - 1).bit_length() + 1))]
    ends = torch.searchsorted(sorted_t, torch.tensor(sizes, device=sorted_t.device), right=True).tolist()
    pieces = [
        compute(order_t[low:high], *_side_by_side(block, order_t[low:high], min(size, longest)))
        for size, (low, high) in zip(sizes, pairwise([0, *ends]), strict=True)
        if low < high
    ]
    return torch.cat(pieces).index_select(0, order_t.argsort())


def _side_by_side(block: Block, rows: Tensor | slice, most: int) -> tuple[Tensor, Tensor]:
    """(place_gm, here_gm) of these targets; m is 1 where they have no edges."""
    first_g, count_g = block.indptr[:-1][rows], block.indptr.diff()[rows]
    number_m = torch.arange(max(1, most), device=first_g.device)
    here_gm = number_m < count_g[:, None]
    edge_gm = torch.where(here_gm, first_g[:, None] + number_m, len(block.source))
    return F.pad(block.source, (0, 1))[edge_gm], here_gm


def edge_weights(score_ghm: Tensor, here_gm: Tensor, dropout: float) -> Tensor:
    """Softmax over the neighbours that are there: [g, h, m], all 0 for a target without any."""
    here_g1m = here_gm[:, None]
    lowest = torch.finfo(score_ghm.dtype).min  # not -inf, of which a target without neighbours would make NaN
    weight_ghm = score_ghm.masked_fill(~here_g1m, lowest).softmax(dim=-1) * here_g1m
    return F.dropout(weight_ghm, dropout) if dropout else weight_ghm


def gather(h_nd: Tensor, place_gm: Tensor) -> Tensor:
    """[g, m, d] rows of the inputs."""
    return h_nd.index_select(0, place_gm.reshape(-1)).view(*place_gm.shape, -1)


# full neighbourhoods ---------------------------------------------------------------------------------------------


@torch.no_grad()
def layerwise(
    model: MessagePassing,
    csr: tuple[Array, Array],
    features: Rows,
    nodes: Array | None = None,
    block_size: int = 1 << 18,
    memory: int = 1 << 30,
    folder: PathLike | None = None,
    progress: Progress | None = None,
) -> Iterator[NodeOutput]:
    """What the model says of these distinct nodes (of all, without them) over their full neighbourhoods, block after
    block in their order. Every node takes each layer once, where a sample would repeat it for each node it serves.

    `csr` is (indptr, indices), arrays or mapped files; `features(nodes)` gives float rows. A layer is computed for the
    nodes that the next one needs: for those within reach of `nodes`, or for all where that is over half of them.

    Cost: the edges of the needed nodes, per layer. A block has at most max(block_size, 1 + largest degree) edges and
    targets together, and no more input rows than that: a hub is never cut. Rows of a layer that take over half of
    `memory` bytes lie in a file of a temporary folder in `folder`; there are two layers at a time.
    """
    show = progress or silent
    model.eval()
    device, dtype = next((parameter.device, parameter.dtype) for parameter in model.parameters())
    neighbors = NeighborSampler(*csr, [-1], seed=0)
    wanted = range(neighbors.num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)

    def blocks(number: int, targets: Array | range, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Block]]:
        """(targets, input rows, block), range after range of the targets."""
        for low, high in _cut(csr[0], targets, block_size):
            sample = neighbors.sample(numbers(targets[low:high]))
            h_nd = rows(sample.nodes.numpy()).to(device)
            yield sample.nodes[: high - low], h_nd, sample.blocks[0].to(device)
            show(f"layer {number + 1} of {model.num_layers}", high, len(targets))

    with TemporaryDirectory(prefix="largegt-", dir=folder) as scratch:
        rows: Rows = features
        last = model.num_layers - 1
        for number, needed in enumerate(_needed(neighbors, csr[0], wanted, last, block_size)):
            layer = _LayerRows(needed, model.width_after(number), dtype, memory // 2, Path(scratch) / f"{number}")
            for _, h_nd, block in blocks(number, needed, rows):
                layer.append(model.layer(number, h_nd, block))
            if isinstance(rows, _LayerRows):
                rows.drop()
            rows = layer
        for targets, h_nd, block in blocks(last, wanted, rows):
            logits = model.layer(last, h_nd, block)
            yield NodeOutput(logits, hidden=h_nd[: len(targets)], nodes=targets.to(device), codebook_input=None)


def _needed(
    neighbors: NeighborSampler, indptr: Array, wanted: Array | range, hops: int, block_size: int
) -> list[Array | range]:
    """The nodes, rising, whose rows of each hidden layer are needed, the first layer first. Found with a byte per
    node."""
    everyone, found = range(neighbors.num_nodes), [wanted]
    for _ in range(hops):
        nearer = found[0]
        if 2 * len(nearer) <= len(everyone):
            marks = np.zeros(len(everyone), dtype=np.bool_)
            marks[nearer] = True
            for low, high in _cut(indptr, nearer, block_size):
                _, around = neighbors.draw(torch.from_numpy(numbers(nearer[low:high])), hop=0, epoch=0)
                marks[around.numpy()] = True
            nearer = np.flatnonzero(marks)
        found.insert(0, everyone if 2 * len(nearer) > len(everyone) else nearer)
    return found[:-1]


def _cut(indptr: Array, nodes: Array | range, block_size: int) -> Iterator[tuple[int, int]]:
    """Ranges of nodes whose edges and themselves are at most `block_size`, or one node alone."""
    for start in range(0, len(nodes), _NODES_AT_ONCE):
        here = numbers(nodes[start : start + _NODES_AT_ONCE])
        end_of = np.cumsum(indptr[here + 1] - indptr[here] + 1)
        low = 0
        while low < len(here):
            before = end_of[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(end_of, before + block_size, side="right")))
            yield start + low, start + high
            low = high


class _LayerRows:
    """A layer's rows for some nodes, which come in order: in memory, or in a file if they take over `limit` bytes."""

    def __init__(self, nodes: Array | range, width: int, dtype: torch.dtype, limit: int, file: Path) -> None:
        self.nodes, self.file, self.filled = nodes, file, 0
        self.dtype = dtype if dtype == torch.float64 else torch.float32
        stored, shape = np.dtype(str(self.dtype).removeprefix("torch.")), (len(nodes), width)
        num_bytes = stored.itemsize * len(nodes) * width
        self.array: Array
        if num_bytes <= limit:
            self.array, self.readers = np.empty(shape, dtype=stored), num_threads(None)
        else:
            require_space(file.parent, num_bytes, "a layer of the network")
            self.array, self.readers = np.memmap(file, dtype=stored, mode="w+", shape=shape), _READERS

    def append(self, rows: Tensor) -> None:
        """The rows of the next nodes."""
        self.array[self.filled : self.filled + len(rows)] = rows.to("cpu", self.dtype).numpy()
        self.filled += len(rows)

    def __call__(self, nodes: Array) -> Tensor:
        """The rows of these nodes."""
        at = nodes if isinstance(self.nodes, range) else np.searchsorted(self.nodes, nodes)
        out = np.empty((len(at), self.array.shape[1]), dtype=self.array.dtype)
        take_rows(self.array, at, out, _ROWS_PER_READ, self.readers)
        return torch.from_numpy(out)

    def drop(self) -> None:
        """No more is read."""
        self.file.unlink(missing_ok=True)
