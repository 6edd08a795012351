"""Training labels around nodes, the node's own left out.

Axes: n nodes that get a row, t nodes of the token table, c classes or labels, h hops.

Enters: a store, whose training nodes have labels, and the nodes that need a row. Walks take edges both ways. Leaves:

- label_counts [t, c + 2], for models that read labels around local nodes: how often each label stands among a node's
  neighbours in the training split (of a regression: sums of values in the scale of either half), how many such
  neighbours there are, and how many in all;
- neighbor_label_histogram float16 [n, h, c + 1]: per hop the share of each class among the training nodes that a random
  walk of so many steps ends at, and how likely it ends at one at all.

Cost: one pass over the edges; for neighbor_label_histogram one more over the lists of the n nodes that reads a row of
counts per neighbour. Their counts lie on disk meanwhile.

A node's row does not depend on its own label, not in a single bit: at one hop there is no edge to itself; at two, each
neighbour's count of labels is a whole number, and the node is taken out of it before anything is divided. Walks of
three steps come back along cycles, which no such count knows: there are no more than two hops. Values of a regression
are standardised (LabelScale) and rounded to steps of 1/32, so that they are whole numbers too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from largegt.data.labels import num_label_columns
from largegt.data.splits import SPLIT_CODES
from largegt.data.store import GraphStore
from largegt.data.versions import State, labels_as_of
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.types import Array, Task

from .blocks import Neighbors, NeighborSums, degrees_of, selection
from .engine import Engine

_COUNTS = "scratch_label_counts"
_RANGE = 1 << 20
STEPS, _MOST_STEPS = 32, 256
"""Steps in a standard deviation of a regression's values, and the most steps from the mean that one counts for."""


def write_neighbor_label_histogram(
    writer: ArrayWriter, store: GraphStore, nodes: Array, hops: int, engine: Engine, own: TrainingLabels
) -> None:
    """Write `neighbor_label_histogram` [n, hops, c + 1] of `nodes` (sorted), from where an earlier run stopped. `own`
    are the labels that count."""
    width = num_label_columns(store.task, store.num_outputs) + 1
    out = writer.grow("neighbor_label_histogram", "float16", (hops, width))
    require_space(writer.path, 2 * hops * width * (len(nodes) - out.rows), "label histograms")
    if not writer.has(_COUNTS):
        write_label_counts(writer, store, range(store.num_nodes), engine, own, _COUNTS)
    task = _Rows(Neighbors(*store.csr("both"), self_loops=False), writer.array(_COUNTS), own, hops)
    for rows in engine.rows(task, nodes, hops * width, out.rows):
        out.append(rows)
        writer.commit()
    writer.close("neighbor_label_histogram")
    writer.drop(_COUNTS)


def write_label_counts(
    writer: ArrayWriter, store: GraphStore, nodes: Array | range, engine: Engine, own: TrainingLabels,
    name: str = "label_counts",
) -> None:  # fmt: skip
    """Write `label_counts` of `nodes` (sorted), from where an earlier run stopped."""
    width = num_count_columns(store.task, store.num_outputs)
    neighbors = Neighbors(*store.csr("both"), self_loops=False)
    dtype = counts_dtype(neighbors, own.scale is not None)
    out = writer.grow(name, dtype.name, (width + 1,))
    require_space(writer.path, dtype.itemsize * (width + 1) * (len(nodes) - out.rows), "counts of labels")

    def finish(first: int, last: int, sums: Array) -> None:
        out.append(np.column_stack([sums, degrees_of(neighbors.indptr, nodes[first:last])]).astype(dtype))
        writer.commit()

    wanted = NeighborSums(neighbors, nodes, own, width, range(store.num_nodes))
    engine.sums(wanted, finish, name.replace("_", " "), out.rows)
    writer.close(name)


def counts_dtype(neighbors: Neighbors, are_values: bool) -> np.dtype[Any]:
    """The narrowest that holds the counts: values count for many steps each."""
    starts = range(0, neighbors.num_nodes, _RANGE)
    largest = max((int(np.diff(neighbors.indptr[low : low + _RANGE + 1]).max()) for low in starts), default=0)
    return np.dtype("int32" if are_values or largest >= 1 << 15 else "int16")


def num_count_columns(task: Task, num_outputs: int) -> int:
    """Columns that training nodes are counted in: one per label, or the two scales of a regression's values; and one
    for the nodes themselves."""
    return 1 + (2 if task == "regression" else num_label_columns(task, num_outputs))


@dataclass(frozen=True)
class LabelScale:
    """Mean and standard deviation that a node reads the values of other nodes in: a regression's labels as inputs.

    Training nodes belong to two halves, alternately in the order of their numbers. A node of one half reads values in
    the scale of the other half, so the scale does not contain its own value, and is the same for all nodes of its half.
    (Leaving out each node alone would reveal its value: the scale of all others tells what is missing from it.) Nodes
    outside the training split read as half 0 does.
    """

    half: Array
    """uint8 [n]"""
    mean: tuple[float, float]
    """By the half of the node that reads."""
    std: tuple[float, float]

    @classmethod
    def fit(cls, labels: Array, is_train: Array) -> LabelScale:
        half = np.cumsum(is_train, dtype=np.uint8) & np.uint8(1)
        half[~is_train] = 0
        others = [np.asarray(labels[is_train & (half != reader)], dtype=np.float64) for reader in (0, 1)]
        mean, std = (
            [float(moment(values)) if len(values) else 0.0 for values in others] for moment in (np.mean, np.std)
        )
        return cls(half, (mean[0], mean[1]), (std[0] or 1.0, std[1] or 1.0))

    def standardized(self, values: Array) -> Array:
        """float64 [n, 2] as nodes of either half read them."""
        return (np.asarray(values, dtype=np.float64)[:, None] - self.mean) / self.std


@dataclass(frozen=True)
class TrainingLabels:
    """Rows of the training nodes' labels as counts: a one in the column of a class, or of each label a node has; a
    value as a whole number of steps from the mean, in the scale of either half."""

    labels: Array
    is_train: Array
    scale: LabelScale | None = None
    """Of the values of a regression; none: the labels are classes."""

    @classmethod
    def of(cls, store: GraphStore, then: State | None = None) -> TrainingLabels:
        """Those of the store, or as of an earlier version of it."""
        labels, split = labels_as_of(store, then)
        return cls.among(labels, np.asarray(split) == SPLIT_CODES["train"], store.task)

    @classmethod
    def among(cls, labels: Array, is_train: Array, task: Task) -> TrainingLabels:
        """Those of `labels` that are of the training split."""
        return cls(labels, is_train, LabelScale.fit(labels, is_train) if task == "regression" else None)

    def __call__(self, first: int, last: int, out: Array) -> None:
        """Fill `out` [last - first, c + 1] with the rows of a range of nodes."""
        out[:] = self.rows(np.arange(first, last), out.shape[1])

    def rows(self, nodes: Array, width: int) -> Array:
        """[n, c + 1]: what each node counts for, and whether it is a training node; zeros for others."""
        out = np.zeros((len(nodes), width), dtype=np.float32)
        here = np.flatnonzero(self.is_train[nodes])
        labels = np.asarray(self.labels[nodes[here]])
        if self.scale is not None:
            out[here, :-1] = np.clip(np.rint(self.scale.standardized(labels) * STEPS), -_MOST_STEPS, _MOST_STEPS)
        elif labels.ndim == 2:
            out[here, :-1] = np.nan_to_num(labels.astype(np.float32)) > 0
        else:
            out[here, labels.astype(np.int64)] = 1
        out[here, -1] = 1
        return out


@dataclass(frozen=True)
class _Rows:
    """The label histograms of some nodes, from the counts around every node. The counts are read from front to back,
    in blocks of `memory` bytes; a row's neighbours are added in rising order, so the bits do not depend on it."""

    neighbors: Neighbors
    counts: Array
    own: TrainingLabels
    hops: int

    def __call__(self, nodes: Array, memory: int | None) -> Array:
        """float16 [n, hops, c + 1]."""
        nodes = np.asarray(nodes, dtype=np.int64)
        counts = self.counts[selection(nodes)].astype(np.float32)
        sums = [counts[:, :-1], *([self._two_steps(nodes, memory)] if self.hops > 1 else [])]
        rows = np.stack(sums, axis=1)
        mass = rows[:, :, -1:].copy()
        rows[:, :, :-1] /= np.where(mass > 0, mass, np.float32(1))
        rows[:, :, -1:] = mass / np.maximum(counts[:, None, -1:], 1)
        if self.own.scale is not None:
            half = self.own.scale.half[nodes]
            rows = np.stack([rows[np.arange(len(nodes)), :, half] / STEPS, rows[:, :, -1]], axis=2)
        return rows.astype(np.float16)

    def _two_steps(self, nodes: Array, memory: int | None) -> Array:
        """float32 [n, c + 1] labels at the ends of two-step walks that do not come back, and how likely they are."""
        neighbors, width = self.neighbors.around(nodes), self.counts.shape[1] - 1
        own, sums = self.own.rows(nodes, width), np.zeros((len(nodes), width), dtype=np.float32)
        cursor = neighbors.indptr[nodes]
        block = neighbors.num_nodes if memory is None else max(1, memory // (4 * self.counts.shape[1] + 8))
        for low in range(0, neighbors.num_nodes, block):
            counts = self.counts[low : low + block]
            _add_walks(neighbors.indptr, neighbors.indices, nodes, cursor, low, counts, own, sums)
        return sums


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_walks(
    indptr: Array, indices: Array, nodes: Array, cursor: Array, low: int, counts: Any, mine: Array, out: Array
) -> None:
    """Add walks of two steps that do not end where they began, over the neighbours that `counts` has rows of, from
    node `low` on: to out[n] their labels, and to its last place how likely they are. mine[n] is what nodes[n] counts
    for. cursor[n] is where in `indices` to begin, and is left where to go on."""
    width, high = mine.shape[1], low + len(counts)
    for n in range(len(nodes)):
        place, end = cursor[n], indptr[nodes[n] + 1]
        row, own = out[n], mine[n]
        while place < end and indices[place] < high:
            around = counts[indices[place] - low]
            place += 1
            if around[width - 1] == own[width - 1]:
                continue
            step = np.float32(1) / around[width]
            for c in range(width):
                row[c] += step * (np.float32(around[c]) - own[c])
        cursor[n] = place
