"""Label distributions around nodes, without the node's own label.

Axes: n nodes that get a row, t nodes of the token table, c classes or labels, h hops.

Enters: a store with training labels, and the nodes that need a row. Walks follow edges in both directions. Leaves:

- label_counts [t, c + 2], for models that read label distributions around local nodes: the count of each label among a
  node's neighbours in the training split (regression: sums of values in the scale of either half), the number of such
  neighbours, and the degree;
- neighbor_label_histogram float16 [n, h, c + 1]: per hop, the fraction of each class among the training nodes where
  random walks of this length end, and the probability of ending at a training node.

Cost: one pass over the edges; for neighbor_label_histogram one more over the lists of the n nodes, which reads a row of
counts per neighbour. The counts are a temporary file.

A row is bitwise independent of the node's own label. At one hop there is no edge to itself. At two hops, each
neighbour's label counts are integers, and the node is subtracted before any division. Walks of three steps return along
cycles, which counts cannot exclude, so two hops are the maximum. Regression values are standardised (LabelScale) and
rounded to steps of 1/32, so that their sums are integers too.
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

from .blocks import Neighbors, NeighborSums, as_index, degrees_of
from .engine import Engine

_COUNTS = "scratch_label_counts"
_RANGE = 1 << 20
STEPS, _MAX_STEPS = 32, 256
"""Steps per standard deviation of a regression's values, and the clipping limit in steps."""


def write_neighbor_label_histogram(
    writer: ArrayWriter, store: GraphStore, nodes: Array, hops: int, engine: Engine, training_labels: TrainingLabels
) -> None:
    """Write `neighbor_label_histogram` [n, hops, c + 1] of `nodes` (sorted), resuming after an interrupted run."""
    width = num_label_columns(store.task, store.num_outputs) + 1
    out = writer.grow("neighbor_label_histogram", "float16", (hops, width))
    require_space(writer.path, 2 * hops * width * (len(nodes) - out.rows), "label histograms")
    if not writer.has(_COUNTS):
        write_label_counts(writer, store, range(store.num_nodes), engine, training_labels, _COUNTS)
    task = _HistogramRows(Neighbors(*store.csr("both"), self_loops=False), writer.array(_COUNTS), training_labels, hops)
    for rows in engine.rows(task, nodes, hops * width, out.rows):
        out.append(rows)
        writer.commit()
    writer.close("neighbor_label_histogram")
    writer.drop(_COUNTS)


def write_label_counts(
    writer: ArrayWriter, store: GraphStore, nodes: Array | range, engine: Engine, training_labels: TrainingLabels,
    name: str = "label_counts",
) -> None:  # fmt: skip
    """Write `label_counts` of `nodes` (sorted), resuming after an interrupted run."""
    width = num_count_columns(store.task, store.num_outputs)
    neighbors = Neighbors(*store.csr("both"), self_loops=False)
    dtype = counts_dtype(neighbors, training_labels.scale is not None)
    out = writer.grow(name, dtype.name, (width + 1,))
    require_space(writer.path, dtype.itemsize * (width + 1) * (len(nodes) - out.rows), "label counts")

    def finish(first: int, last: int, sums: Array) -> None:
        out.append(np.column_stack([sums, degrees_of(neighbors.indptr, nodes[first:last])]).astype(dtype))
        writer.commit()

    wanted = NeighborSums(neighbors, nodes, training_labels, width, range(store.num_nodes))
    engine.sums(wanted, finish, name.replace("_", " "), out.rows)
    writer.close(name)


def counts_dtype(neighbors: Neighbors, is_regression: bool) -> np.dtype[Any]:
    """The smallest dtype for the counts; a regression value counts for many steps."""
    starts = range(0, neighbors.num_nodes, _RANGE)
    largest = max((int(np.diff(neighbors.indptr[low : low + _RANGE + 1]).max()) for low in starts), default=0)
    return np.dtype("int32" if is_regression or largest >= 1 << 15 else "int16")


def num_count_columns(task: Task, num_outputs: int) -> int:
    """The number of count columns: one per label, or two for the scales of a regression, and one for the number of
    training nodes."""
    return 1 + (2 if task == "regression" else num_label_columns(task, num_outputs))


@dataclass(frozen=True)
class LabelScale:
    """Mean and standard deviation that standardise regression labels as inputs of a node.

    Training nodes alternate between two halves in the order of their numbers. A node of one half reads values in the
    scale of the other half. The scale does not contain the node's own value and is the same for its whole half.
    (Leave-one-out scales would reveal the missing value.) Nodes outside the training split belong to half 0.
    """

    half: Array
    """uint8 [n]"""
    mean: tuple[float, float]
    """Indexed by the half of the reading node."""
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
        """float64 [n, 2] values in the scale of either half."""
        return (np.asarray(values, dtype=np.float64)[:, None] - self.mean) / self.std


@dataclass(frozen=True)
class TrainingLabels:
    """Training labels as count rows: one-hot classes, multi-hot labels, or regression values as integer steps from the
    mean in the scale of either half."""

    labels: Array
    is_train: Array
    scale: LabelScale | None = None
    """The scale of regression values; None for classes."""

    @classmethod
    def from_store(cls, store: GraphStore, version: State | None = None) -> TrainingLabels:
        """The training labels of the store, or of an earlier version."""
        labels, split = labels_as_of(store, version)
        return cls.from_split(labels, np.asarray(split) == SPLIT_CODES["train"], store.task)

    @classmethod
    def from_split(cls, labels: Array, is_train: Array, task: Task) -> TrainingLabels:
        """The labels of the training split."""
        return cls(labels, is_train, LabelScale.fit(labels, is_train) if task == "regression" else None)

    def __call__(self, first: int, last: int, out: Array) -> None:
        """Fill `out` [last - first, c + 1] with the rows of nodes first:last."""
        out[:] = self.rows(np.arange(first, last), out.shape[1])

    def rows(self, nodes: Array, width: int) -> Array:
        """[n, c + 1] the count row of each node, and whether it is a training node; zeros for others."""
        out = np.zeros((len(nodes), width), dtype=np.float32)
        train_rows = np.flatnonzero(self.is_train[nodes])
        labels = np.asarray(self.labels[nodes[train_rows]])
        if self.scale is not None:
            out[train_rows, :-1] = np.clip(np.rint(self.scale.standardized(labels) * STEPS), -_MAX_STEPS, _MAX_STEPS)
        elif labels.ndim == 2:
            out[train_rows, :-1] = np.nan_to_num(labels.astype(np.float32)) > 0
        else:
            out[train_rows, labels.astype(np.int64)] = 1
        out[train_rows, -1] = 1
        return out


@dataclass(frozen=True)
class _HistogramRows:
    """Computes label histograms from the counts around every node. Counts are read in order, in blocks of `memory`
    bytes. Neighbours are added in ascending order, so the bits do not depend on `memory`."""

    neighbors: Neighbors
    counts: Array
    training_labels: TrainingLabels
    hops: int

    def __call__(self, nodes: Array, memory: int | None) -> Array:
        """float16 [n, hops, c + 1]."""
        nodes = np.asarray(nodes, dtype=np.int64)
        counts = self.counts[as_index(nodes)].astype(np.float32)
        sums = [counts[:, :-1], *([self._two_steps(nodes, memory)] if self.hops > 1 else [])]
        rows = np.stack(sums, axis=1)
        mass = rows[:, :, -1:].copy()
        rows[:, :, :-1] /= np.where(mass > 0, mass, np.float32(1))
        rows[:, :, -1:] = mass / np.maximum(counts[:, None, -1:], 1)
        if self.training_labels.scale is not None:
            half = self.training_labels.scale.half[nodes]
            rows = np.stack([rows[np.arange(len(nodes)), :, half] / STEPS, rows[:, :, -1]], axis=2)
        return rows.astype(np.float16)

    def _two_steps(self, nodes: Array, memory: int | None) -> Array:
        """float32 [n, c + 1] label distribution at the ends of two-step walks that do not return, and their
        probability."""
        neighbors, width = self.neighbors.load_rows(nodes), self.counts.shape[1] - 1
        own, sums = self.training_labels.rows(nodes, width), np.zeros((len(nodes), width), dtype=np.float32)
        cursor = neighbors.indptr[nodes]
        block = neighbors.num_nodes if memory is None else max(1, memory // (4 * self.counts.shape[1] + 8))
        for low in range(0, neighbors.num_nodes, block):
            counts = self.counts[low : low + block]
            _add_walks(neighbors.indptr, neighbors.indices, nodes, cursor, low, counts, own, sums)
        return sums


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_walks(
    indptr: Array, indices: Array, nodes: Array, cursor: Array, low: int, counts: Any, own: Array, out: Array
) -> None:
    """Add two-step walks that do not return, over the neighbours with rows in `counts`, which start at node `low`:
    labels to out[n, :-1] and the probability to out[n, -1]. own[n] is the count row of nodes[n]. cursor[n] is the next
    position in `indices` and is updated."""
    width, high = own.shape[1], low + len(counts)
    for n in range(len(nodes)):
        place, end = cursor[n], indptr[nodes[n] + 1]
        row, own_row = out[n], own[n]
        while place < end and indices[place] < high:
            around = counts[indices[place] - low]
            place += 1
            if around[width - 1] == own_row[width - 1]:
                continue
            step = np.float32(1) / around[width]
            for c in range(width):
                row[c] += step * (np.float32(around[c]) - own_row[c])
        cursor[n] = place
