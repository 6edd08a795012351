"""Label contexts: the training labels around a node, one and two hops away, without its own.

Axes: n nodes that get a row, c classes or labels, h hops.

Enters: a store, whose training nodes have labels, and the nodes that need a row. Leaves: float16 [n, h, c + 1]: per hop
the share of each class among the training nodes that a random walk of so many steps ends at, and how likely it ends at
one at all. Walks take edges both ways.

A node's own label is no part of its row, to the bit: at one hop there is no edge to itself; at two, each neighbour's
count of labels is a whole number, and the node is taken out of it before anything is divided or added. Walks of three
steps and more come back along cycles, which no such count knows: there are no more than two hops.

Cost: one pass over the edges, and one over the lists of the n nodes that reads a row of counts per neighbour. The
counts, 4·N·c bytes, lie on disk meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ..errors import ConfigError
from ..folder import FolderWriter, require_space
from ..graph.labels import num_label_columns
from ..graph.splits import SPLIT_CODES
from ..graph.store import GraphStore
from ..types import Array
from .blocks import Neighbors
from .engines.engine import Engine
from .engines.local import run_chunks

_COUNTS = "scratch_label_counts"
_LOT, _CHUNK = 1 << 15, 512


def write_label_contexts(writer: FolderWriter, store: GraphStore, nodes: Array, hops: int, engine: Engine) -> None:
    """Write `label_contexts` [n, hops, c + 1] of `nodes` (sorted), from where an earlier run stopped."""
    num_labels = num_label_columns(store.task, store.num_outputs)
    neighbors = Neighbors(*store.csr("both"), self_loops=False)
    out = writer.grow("label_contexts", "float16", (hops, num_labels + 1))
    counted = writer.grow(_COUNTS, "float32", (num_labels,))
    missing = 4 * num_labels * (store.num_nodes - counted.rows)
    require_space(writer.path, missing + 2 * hops * (num_labels + 1) * (len(nodes) - out.rows), "label contexts")
    own = TrainingLabels.of(store)

    def finish(first: int, last: int, sums: Array) -> None:
        counted.append(sums)
        writer.commit()

    if counted.rows < store.num_nodes:
        everyone = range(store.num_nodes)
        engine.sums(neighbors, everyone, None, own, num_labels, finish, "labels around", counted.rows)
    counts, known = counted.so_far(), _known_around(own, neighbors, engine)
    for start in range(out.rows, len(nodes), _LOT):
        wanted = np.asarray(nodes[start : start + _LOT], dtype=np.int64)
        rows = np.zeros((len(wanted), hops, num_labels + 1), dtype=np.float32)
        _fill(rows, wanted, neighbors, counts, known, own, engine.threads)
        out.append(rows.astype(np.float16))
        writer.commit()
    writer.close("label_contexts")
    writer.drop(_COUNTS)


def check_labels(store: GraphStore, hops: int) -> None:
    """Refuse labels that cannot be counted."""
    if hops and store.task == "regression":
        raise ConfigError("label contexts count labels, and those of regression are values: leave out label_contexts")


@dataclass(frozen=True)
class TrainingLabels:
    """Rows of the training nodes' labels as counts: a one in the column of a class, or of each label a node has."""

    labels: Array
    is_train: Array

    @classmethod
    def of(cls, store: GraphStore) -> TrainingLabels:
        return cls(store.labels, np.asarray(store.split) == SPLIT_CODES["train"])

    def __call__(self, first: int, last: int, out: Array) -> None:
        """Fill `out` [last - first, c] with the rows of a range of nodes."""
        out[:] = self.rows(np.arange(first, last), out.shape[1])

    def rows(self, nodes: Array, width: int) -> Array:
        """[n, c]; zeros for others than training nodes."""
        out = np.zeros((len(nodes), width), dtype=np.float32)
        here = np.flatnonzero(self.is_train[nodes])
        labels = np.asarray(self.labels[nodes[here]])
        if labels.ndim == 2:
            out[here] = np.nan_to_num(labels.astype(np.float32)) > 0
        else:
            out[here, labels.astype(np.int64)] = 1
        return out


def _known_around(own: TrainingLabels, neighbors: Neighbors, engine: Engine) -> Array:
    """[N] how many of a node's neighbours are training nodes."""
    known = np.empty(neighbors.num_nodes, dtype=np.int32)

    def part(first: int, last: int) -> None:
        _count_known(neighbors.indptr, neighbors.indices, own.is_train, first, last, known)

    run_chunks(part, neighbors.num_nodes, 1 << 14, engine.threads)
    return known


def _fill(
    rows: Array, nodes: Array, neighbors: Neighbors, counts: Array, known: Array, own: TrainingLabels,
    threads: int | None,
) -> None:  # fmt: skip
    width = rows.shape[2] - 1
    mine = own.rows(nodes, width)
    is_train = own.is_train[nodes]

    def part(first: int, last: int) -> None:
        chosen = slice(first, last)
        degrees = np.maximum(neighbors.degrees(nodes[chosen]), 1).astype(np.float32)
        here = known[nodes[chosen]].astype(np.float32)
        rows[chosen, 0, :width] = counts[nodes[chosen]] / np.maximum(here, 1)[:, None]
        rows[chosen, 0, width] = here / degrees
        if rows.shape[1] > 1:
            _two_hops(
                neighbors.indptr, neighbors.indices, nodes[chosen], counts, known, mine[chosen], is_train[chosen],
                rows[chosen, 1],
            )  # fmt: skip

    run_chunks(part, len(nodes), _CHUNK, threads)


@numba.njit(nogil=True, cache=True)
def _count_known(indptr: Array, indices: Array, is_train: Array, first: int, last: int, known: Array) -> None:
    for i in range(first, last):
        total = 0
        for place in range(indptr[i], indptr[i + 1]):
            total += is_train[indices[place]]
        known[i] = total


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _two_hops(
    indptr: Array, indices: Array, nodes: Array, counts: Any, known: Array, mine: Array, is_train: Array, out: Array
) -> None:
    """Shares of labels at the ends of walks of two steps that do not end where they began, and how likely those are."""
    width = mine.shape[1]
    for i in range(len(nodes)):
        begin, end = indptr[nodes[i]], indptr[nodes[i] + 1]
        row, own = out[i], mine[i]
        mass = np.float32(0)
        for place in range(begin, end):
            j = indices[place]
            others = known[j] - is_train[i]
            if others == 0:
                continue
            step = np.float32(1) / np.float32(indptr[j + 1] - indptr[j])
            around = counts[j]
            for c in range(width):
                row[c] += step * (around[c] - own[c])
            mass += step * np.float32(others)
        if mass > 0:
            for c in range(width):
                row[c] /= mass
            row[width] = mass / np.float32(end - begin)
