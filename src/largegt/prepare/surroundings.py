"""Surroundings: what a node can be told of its local nodes beside their tokens.

Axes: n nodes that get a row, k local nodes, t nodes that have token rows, c classes or labels.

Enters: a store, and the local nodes of a preparation. Leaves:
  near [n, ⌈k/8⌉]         a bit per local node, the lowest first: whether an edge joins it to the node, whichever way
  label_counts [t, c + 2]  whole numbers: how often each label stands among a node's neighbours that are in the training
                           split, how many such neighbours there are, and how many neighbours in all. For a regression
                           c = 2: the sum of their values in the scale of either half (LabelScale)

The counts are of *all* training nodes around. A node that is told those around its neighbour is one of them, and its
own label must not be in what it is told: `near` says where it has to be taken out, and because counts are whole numbers
that leaves nothing of it (tokens/local_contexts.py), as long as float32 holds them: up to 2²⁴ neighbours, and 2¹⁶ for
the values of a regression, which count for up to 256 steps each. Labels of nodes farther away than a neighbour's
neighbours would come back along cycles, so there are none of them.

Cost: a search in the node's list per local node, and one pass over the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.store import GraphStore
from ..io.array_writer import ArrayWriter
from ..io.atomic import require_space
from ..types import Array
from .blocks import Neighbors
from .engines.engine import Engine
from .engines.local import run_chunks
from .features import as_range
from .kernels import in_rows
from .label_contexts import TrainingLabels, num_count_columns

_CHUNK = 512
_RANGE = 1 << 20


def is_near(neighbors: Neighbors, nodes: Array, local_nk: Array, threads: int | None = None) -> Array:
    """Boolean [n, k]: which local nodes are neighbours. `neighbors` are those of the undirected view."""
    found = np.empty(local_nk.shape, dtype=np.bool_)
    nodes = np.asarray(nodes, dtype=np.int64)

    def part(first: int, last: int) -> None:
        some = np.ascontiguousarray(local_nk[first:last])
        rows = np.repeat(nodes[first:last], some.shape[1])
        found[first:last] = in_rows(neighbors.indptr, neighbors.indices, rows, some.reshape(-1)).reshape(some.shape)

    run_chunks(part, len(nodes), _CHUNK, threads)
    return found


def packed(near_nk: Array) -> Array:
    """uint8 [n, ⌈k/8⌉]."""
    return np.packbits(near_nk, axis=1, bitorder="little")


def write_near(
    writer: ArrayWriter, store: GraphStore, nodes: Array, local_rows: Array, token_nodes: Array, engine: Engine
) -> None:
    """Write `near` of `nodes` whose local nodes are these."""
    k = local_rows.shape[1]
    width = -(-k // 8)
    out = writer.grow("near", "uint8", (width,))
    require_space(writer.path, width * (len(nodes) - out.rows), "distances of local nodes")
    task = _Near(Neighbors(*store.csr("both"), self_loops=False), nodes, local_rows, token_nodes)
    for rows in engine.lots(task, nodes, 2 * k, out.rows):
        out.append(rows)
        writer.commit()
    writer.close("near")


@dataclass(frozen=True)
class _Near:
    """Rows of `near` for some of the nodes."""

    neighbors: Neighbors
    nodes: Array
    local_rows: Array
    token_nodes: Array

    def __call__(self, nodes: Array, threads: int | None, memory: int | None) -> Array:
        nodes = np.asarray(nodes, dtype=np.int64)
        rows_nk = np.asarray(self.local_rows[as_range(np.searchsorted(self.nodes, nodes))])
        used, which = np.unique(rows_nk, return_inverse=True)
        local_nk = np.asarray(self.token_nodes[used])[which].reshape(rows_nk.shape)
        return packed(is_near(self.neighbors.around(nodes), nodes, local_nk, threads))


def write_label_counts(
    writer: ArrayWriter, store: GraphStore, nodes: Array, engine: Engine, own: TrainingLabels | None = None
) -> None:
    """Write `label_counts` of `nodes` (sorted), from where an earlier run stopped. `own` are the labels that count,
    when not all of the training split."""
    own = own or TrainingLabels.of(store)
    num_counts = num_count_columns(store.task, store.num_outputs)
    neighbors = Neighbors(*store.csr("both"), self_loops=False)
    dtype = counts_dtype(neighbors, own.scale is not None)
    out = writer.grow("label_counts", dtype.name, (num_counts + 1,))
    require_space(writer.path, dtype.itemsize * (num_counts + 1) * (len(nodes) - out.rows), "labels around local nodes")

    def finish(first: int, last: int, sums: Array) -> None:
        counts = np.empty((last - first, num_counts + 1), dtype=dtype)
        counts[:, :-1] = sums
        counts[:, -1] = neighbors.degrees(nodes[first:last])
        out.append(counts)
        writer.commit()

    if out.rows < len(nodes):
        engine.sums(neighbors, nodes, None, own, num_counts, finish, "labels around local nodes", out.rows)
    writer.close("label_counts")


def counts_dtype(neighbors: Neighbors, are_values: bool) -> np.dtype[Any]:
    """The narrowest that holds the counts: values count for many steps each."""
    starts = range(0, neighbors.num_nodes, _RANGE)
    largest = max((int(np.diff(neighbors.indptr[low : low + _RANGE + 1]).max()) for low in starts), default=0)
    return np.dtype("int32" if are_values or largest >= 1 << 15 else "int16")
