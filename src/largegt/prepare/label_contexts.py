"""Label contexts: the training labels around a node, one and two hops away, without its own.

Axes: n nodes that get a row, c classes or labels, h hops.

Enters: a store, whose training nodes have labels, and the nodes that need a row. Leaves: float16 [n, h, c + 1]: per hop
the share of each class among the training nodes that a random walk of so many steps ends at, and how likely it ends at
one at all. Walks take edges both ways.

A node's row does not depend on its own label, not in a single bit: at one hop there is no edge to itself; at two, each
neighbour's count of labels is a whole number, and the node is taken out of it before anything is divided or added.
Walks of three steps and more come back along cycles, which no such count knows: there are no more than two hops. Values
of a regression are standardised (LabelScale) and rounded to steps of 1/32, so that they are whole numbers too; a row
holds their mean. float32 holds whole numbers up to 2²⁴: the counts of so many neighbours, and of 2¹⁶ for values, of 256
steps at most.

For models that read labels around local nodes too: label_counts [t, c + 2], of the nodes behind the token table. How
often each label stands among a node's neighbours in the training split, how many such neighbours there are, and how
many in all; of a regression c = 2, sums of values in the scale of either half. A node counts around each of its
neighbours; who reads these counts takes it out (tokens/local_contexts.py), which leaves nothing of it, as they are
whole numbers.

Cost: one pass over the edges, and one over the lists of the n nodes that reads a row of counts per neighbour. The
counts, 4·N·(c + 1) bytes, lie on disk meanwhile. Both passes are the engine's; a task of the second reads all counts,
and a byte per node is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ..data.labels import num_label_columns
from ..data.splits import SPLIT_CODES
from ..data.store import GraphStore
from ..data.versions import State, labels_as_of
from ..io.array_writer import ArrayWriter
from ..io.atomic import require_space
from ..types import Array, Task
from .blocks import Neighbors, NeighborSums
from .engines.engine import Engine
from .features import as_range

_COUNTS = "scratch_label_counts"
_RANGE = 1 << 20
STEPS, _MOST_STEPS = 32, 256
"""Steps in a standard deviation of a regression's values, and the most steps from the mean that one counts for."""


def write_label_contexts(
    writer: ArrayWriter, store: GraphStore, nodes: Array, hops: int, engine: Engine, own: TrainingLabels | None = None
) -> None:
    """Write `label_contexts` [n, hops, c + 1] of `nodes` (sorted), from where an earlier run stopped. `own` are the
    labels that count, when not all of the training split."""
    num_labels = num_label_columns(store.task, store.num_outputs)
    neighbors = Neighbors(*store.csr("both"), self_loops=False)
    out = writer.grow("label_contexts", "float16", (hops, num_labels + 1))
    own = own or TrainingLabels.of(store)
    num_counts = num_count_columns(store.task, store.num_outputs)
    counted = writer.grow(_COUNTS, "float32", (num_counts,))
    missing = 4 * num_counts * (store.num_nodes - counted.rows)
    require_space(writer.path, missing + 2 * hops * (num_labels + 1) * (len(nodes) - out.rows), "label contexts")

    def finish(first: int, last: int, sums: Array) -> None:
        counted.append(sums)
        writer.commit()

    if counted.rows < store.num_nodes:
        everyone = NeighborSums(neighbors, range(store.num_nodes), own, num_counts)
        engine.sums(everyone, finish, "labels around", counted.rows)
    task = _Rows(neighbors, counted.so_far(), own, hops)
    for rows in engine.rows(task, nodes, hops * (num_labels + 1), out.rows):
        out.append(rows)
        writer.commit()
    writer.close("label_contexts")
    writer.drop(_COUNTS)


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
        engine.sums(NeighborSums(neighbors, nodes, own, num_counts), finish, "labels around local nodes", out.rows)
    writer.close("label_counts")


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
        known = [values if len(values) else np.zeros(1) for values in others]
        mean, std = ([float(moment(values)) for values in known] for moment in (np.mean, np.std))
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
        """Fill `out` [last - first, c + 1] with the rows of a range of nodes, and whether each is a training node."""
        out[:, :-1] = self.rows(np.arange(first, last), out.shape[1] - 1)
        out[:, -1] = self.is_train[first:last]

    def rows(self, nodes: Array, width: int) -> Array:
        """[n, c]; zeros for others than training nodes."""
        out = np.zeros((len(nodes), width), dtype=np.float32)
        here = np.flatnonzero(self.is_train[nodes])
        labels = np.asarray(self.labels[nodes[here]])
        if self.scale is not None:
            out[here] = np.clip(np.rint(self.scale.standardized(labels) * STEPS), -_MOST_STEPS, _MOST_STEPS)
        elif labels.ndim == 2:
            out[here] = np.nan_to_num(labels.astype(np.float32)) > 0
        else:
            out[here, labels.astype(np.int64)] = 1
        return out


@dataclass(frozen=True)
class _Rows:
    """The label contexts of some nodes, from the counts around every node. The counts are read from front to back, in
    blocks of `memory` bytes; a row's neighbours are added in rising order, so the bits do not depend on it."""

    neighbors: Neighbors
    counts: Array
    own: TrainingLabels
    hops: int

    def __call__(self, nodes: Array, memory: int | None) -> Array:
        """float16 [n, hops, c + 1]."""
        nodes, neighbors = np.asarray(nodes, dtype=np.int64), self.neighbors.around(nodes)
        rows = np.zeros((len(nodes), self.hops, self.counts.shape[1]), dtype=np.float32)
        counts, degrees = self.counts[as_range(nodes)], neighbors.degrees(nodes).astype(np.float32)
        rows[:, 0, :-1] = counts[:, :-1] / np.maximum(counts[:, -1:], 1)
        rows[:, 0, -1] = counts[:, -1] / np.maximum(degrees, 1)
        if self.hops > 1:
            self._add_second_hop(rows[:, 1], nodes, neighbors, memory)
        if self.own.scale is not None:
            half = self.own.scale.half[nodes]
            rows = np.stack([rows[np.arange(len(nodes)), :, half] / STEPS, rows[:, :, -1]], axis=2)
        return rows.astype(np.float16)

    def _add_second_hop(self, rows: Array, nodes: Array, neighbors: Neighbors, memory: int | None) -> None:
        mine = np.empty((len(nodes), self.counts.shape[1]), dtype=np.float32)
        mine[:, :-1], mine[:, -1] = self.own.rows(nodes, mine.shape[1] - 1), self.own.is_train[nodes]
        cursor, num_nodes = neighbors.indptr[nodes], neighbors.num_nodes
        block = num_nodes if memory is None else max(1, memory // (4 * self.counts.shape[1] + 8))
        for low in range(0, num_nodes, block):
            high = min(num_nodes, low + block)
            _add_walks(
                neighbors.indptr, neighbors.indices, nodes, cursor, low, self.counts[low:high],
                self.neighbors.indptr[low : high + 1], mine, rows,
            )  # fmt: skip
        _shares(rows, neighbors.degrees(nodes))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_walks(
    indptr: Array, indices: Array, nodes: Array, cursor: Array, low: int, counts: Any, starts: Array, mine: Array,
    out: Array,
) -> None:  # fmt: skip
    """Add walks of two steps that do not end where they began, over the neighbours that `counts` has rows of, from
    node `low` on: to out[n] their labels, and to its last place how likely they are. mine[n] is what nodes[n] counts
    for. cursor[n] is where in `indices` to begin, and is left where to go on. Row r of `counts` has a list from
    starts[r] to starts[r + 1]."""
    width, high = mine.shape[1], low + len(counts)
    for n in range(len(nodes)):
        place, end = cursor[n], indptr[nodes[n] + 1]
        row, own = out[n], mine[n]
        while place < end and indices[place] < high:
            j = indices[place]
            place += 1
            around = counts[j - low]
            if around[width - 1] == own[width - 1]:
                continue
            step = np.float32(1) / np.float32(starts[j - low + 1] - starts[j - low])
            for c in range(width):
                row[c] += step * (around[c] - own[c])
        cursor[n] = place


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _shares(rows: Array, degrees: Array) -> None:
    """Sums over walks as shares of labels, and the likelihood of all."""
    width = rows.shape[1] - 1
    for n in range(len(rows)):
        mass = rows[n, width]
        if mass > 0:
            for c in range(width):
                rows[n, c] /= mass
            rows[n, width] = mass / np.float32(degrees[n])
