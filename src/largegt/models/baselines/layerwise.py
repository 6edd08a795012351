"""Layer-wise inference of message-passing models over full neighbourhoods: computes each layer once per node, where
sampled batches repeat it for every batch that contains the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from largegt.io.atomic import require_space
from largegt.models.base import NodeOutput
from largegt.preprocessing.blocks import node_array
from largegt.runtime.threads import num_threads, take_rows
from largegt.types import Array

from .message_passing import MessagePassing
from .neighbors import Block, NeighborSampler

Rows = Callable[[Array], Tensor]
"""Rows [n, d] of these nodes."""

_NODES_AT_ONCE = 1 << 20
_ROWS_PER_READ, _READERS = 1024, 32
"""Rows per read request, and the number of parallel requests to a file."""


@torch.no_grad()
def layerwise(
    model: MessagePassing, csr: tuple[Array, Array], features: Rows, nodes: Array, block_size: int = 1 << 18,
    memory: int = 1 << 30,
) -> Iterator[NodeOutput]:  # fmt: skip
    """Predictions for these distinct nodes over their full neighbourhoods, block by block in order.

    `csr` is (indptr, indices), arrays or mapped files; `features(nodes)` returns float rows. A layer is computed for
    the nodes that the next layer needs, or for all nodes if these are more than half of them.

    Cost: the edges of the needed nodes, per layer. A block has at most max(block_size, 1 + largest degree) edges and
    targets together, and no more input rows than that. The rows of a layer are stored in a temporary file if they take
    more than half of `memory` bytes; two layers exist at a time.
    """
    model.eval()
    device, dtype = next((parameter.device, parameter.dtype) for parameter in model.parameters())
    neighbors = NeighborSampler(*csr, [-1], seed=0)

    def blocks(targets: Array | range, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Block]]:
        """(targets, input rows, block), range after range of the targets."""
        for low, high in _cut(csr[0], targets, block_size):
            sample = neighbors.sample(torch.from_numpy(node_array(targets[low:high])))
            h_nd = rows(sample.nodes.numpy()).to(device)
            yield sample.nodes[: high - low], h_nd, sample.blocks[0].to(device)

    with TemporaryDirectory(prefix="largegt-") as scratch:
        rows: Rows = features
        last = model.num_layers - 1
        for number, needed in enumerate(_needed(neighbors, csr[0], nodes, last, block_size)):
            layer = _LayerRows(needed, model.width_after(number), dtype, memory // 2, Path(scratch) / f"{number}")
            for _, h_nd, block in blocks(needed, rows):
                layer.append(model.layer(number, h_nd, block))
            if isinstance(rows, _LayerRows):
                rows.file.unlink(missing_ok=True)
            rows = layer
        for targets, h_nd, block in blocks(nodes, rows):
            logits = model.layer(last, h_nd, block)
            yield NodeOutput(logits, hidden=h_nd[: len(targets)], nodes=targets.to(device))


def _needed(
    neighbors: NeighborSampler, indptr: Array, wanted: Array, hops: int, block_size: int
) -> list[Array | range]:
    """For each hidden layer, first to last: the nodes (sorted) whose rows are needed."""
    everyone, found = range(neighbors.num_nodes), list[Array | range]([wanted])
    for _ in range(hops):
        nearer = found[0]
        if 2 * len(nearer) <= len(everyone):
            marks = np.zeros(len(everyone), dtype=np.bool_)
            marks[nearer] = True
            for low, high in _cut(indptr, nearer, block_size):
                _, around = neighbors.draw(torch.from_numpy(node_array(nearer[low:high])), hop=0, epoch=0)
                marks[around.numpy()] = True
            nearer = np.flatnonzero(marks)
        found.insert(0, everyone if 2 * len(nearer) > len(everyone) else nearer)
    return found[:-1]


def _cut(indptr: Array, nodes: Array | range, block_size: int) -> Iterator[tuple[int, int]]:
    """Ranges of nodes with at most `block_size` edges and nodes together, or of a single node."""
    for start in range(0, len(nodes), _NODES_AT_ONCE):
        part = node_array(nodes[start : start + _NODES_AT_ONCE])
        ends = np.cumsum(indptr[part + 1] - indptr[part] + 1)
        low = 0
        while low < len(part):
            before = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + block_size, side="right")))
            yield start + low, start + high
            low = high


class _LayerRows:
    """A layer's rows for some nodes: in memory, or in a file if they take more than `limit` bytes."""

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
        """Append the rows of the next nodes."""
        self.array[self.filled : self.filled + len(rows)] = rows.to("cpu", self.dtype).numpy()
        self.filled += len(rows)

    def __call__(self, nodes: Array) -> Tensor:
        """The rows of these nodes."""
        at = nodes if isinstance(self.nodes, range) else np.searchsorted(self.nodes, nodes)
        out = np.empty((len(nodes), self.array.shape[1]), dtype=self.array.dtype)
        take_rows(self.array, at, out, _ROWS_PER_READ, self.readers)
        return torch.from_numpy(out)
