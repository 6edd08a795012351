"""Rows of a few nodes: cut out what they depend on, and run the stages of a preparation on that.

Enters: an Extended graph and some of its nodes. Leaves: their token rows, positional encodings and label histograms,
the same bits as in a preparation of the whole graph. Cost: the lists of the nodes up to some hops away, in memory;
features are read as they are summed.

A cutout numbers its nodes in the order they have in the graph, so a node's neighbours come in the same order, and sums
over them are the same. Nodes at its rim have no lists: nothing that is asked for depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from largegt.config.schema import ResolvedPrepareConfig
from largegt.data.kernels import frozen
from largegt.data.pair_runs import offsets
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.memory import format_bytes
from largegt.types import Array, Direction

from .blocks import Neighbors, selection
from .cache_key import directions_of
from .context import ContextFeatures
from .engine import Engine
from .extended_graph import Extended
from .features import NodeFeatures
from .label_features import TrainingLabels, write_label_counts, write_neighbor_label_histogram
from .positional_encoding import Signs, write_projection
from .sampling.neighbor_lists import index_type


class TooLargeError(ConfigError):
    """The part of the graph that some nodes depend on does not fit the memory given."""


class Cutout(GraphStore):
    """The nodes within some hops of given ones, as a graph. `numbers` are theirs in the whole graph, sorted."""

    def __init__(self, graph: Extended, nodes: Array, directions: Sequence[Direction], hops: int, memory: int) -> None:
        super().__init__(graph.store.folder)
        self.graph = graph
        inner, parts = {}, [np.asarray(nodes, dtype=np.int64)]
        for side in directions:
            inner[side], rim = parts[0][:0], parts[0]
            for _ in range(hops):
                inner[side] = rim
                rim = np.union1d(rim, self._lists(side, rim, memory)[1])
            parts.append(rim)
        self.numbers: Array = np.unique(np.concatenate(parts))
        self._csr = {side: self._spread(inner[side], *self._lists(side, inner[side], memory)) for side in directions}

    def _lists(self, side: Direction, nodes: Array, memory: int) -> tuple[Array, Array]:
        lists = self.graph.lists(side)
        num_bytes = 16 * int(lists.degrees(nodes).sum())
        if num_bytes > memory:
            raise TooLargeError(
                f"what new nodes are next to takes {format_bytes(num_bytes)} to look at, more than the memory given: "
                "use a larger `memory`, or `lg.append(...)`"
            )
        return lists.neighbors(nodes)

    def _spread(self, nodes: Array, indptr: Array, indices: Array) -> tuple[Array, Array]:
        """Lists of some nodes as rows of all, by the numbers that nodes have here."""
        counts = np.zeros(self.num_nodes, dtype=np.int64)
        counts[self.places(nodes)] = np.diff(indptr)
        return frozen(offsets(counts)), self.places(indices)

    def places(self, nodes: Array) -> Array:
        """What these nodes of the graph are here; as mapped files have them, for which kernels are compiled."""
        return frozen(np.searchsorted(self.numbers, nodes).astype(index_type(self.num_nodes)))

    @property
    def num_nodes(self) -> int:
        return len(self.numbers)

    def csr(self, direction: Direction) -> tuple[Array, Array]:
        return self._csr[direction]

    def reverse_csr(self, direction: Direction) -> tuple[Array, Array]:
        """How many nodes lead to each, in the whole graph; which ones is not known here."""
        degrees = self.graph.lists(direction).reverse.degrees(self.numbers)
        return frozen(offsets(degrees)), frozen(np.zeros(0, dtype=index_type(self.num_nodes)))

    def ids_of(self, nodes: Array) -> list[Any]:
        store, num_old = self.graph.store, self.graph.num_old
        return [store.ids_of(np.array([n]))[0] if n < num_old else int(n) for n in self.numbers[nodes]]


class _Features(NodeFeatures):
    """Features of a cutout's nodes."""

    def __init__(self, cutout: Cutout, degrees: bool) -> None:
        self.store, self.num_nodes = cutout, cutout.num_nodes
        self._cutout, self._with_degrees = cutout, degrees
        self.width = self.rows(range(1)).shape[1]

    def rows(self, nodes: Array | range) -> Array:
        return self._cutout.graph.feature_rows(self._cutout.numbers[selection(nodes)], self._with_degrees)


@contextmanager
def scratch_folder() -> Iterator[ArrayWriter]:
    """A folder for the arrays of a stage, gone at the end."""
    with TemporaryDirectory(prefix="largegt-") as folder, ArrayWriter(Path(folder) / "rows", "scratch") as writer:
        yield writer


def _rows(
    graph: Extended, nodes: Array, reach: tuple[Sequence[Direction], int], memory: int, name: str,
    write: Callable[[ArrayWriter, Cutout, Array], None],
) -> Array:  # fmt: skip
    """The array `name` that `write(writer, cutout, places)` makes of a cutout with these directions and hops; for some
    nodes at a time where what they all depend on does not fit."""
    try:
        cutout = Cutout(graph, nodes, *reach, memory // 2)
    except TooLargeError:
        if len(nodes) < 2:
            raise
        return np.concatenate([_rows(graph, half, reach, memory, name, write) for half in np.array_split(nodes, 2)])
    with scratch_folder() as writer:
        write(writer, cutout, cutout.places(nodes))
        return np.array(writer.array(name))


def token_rows(
    graph: Extended, nodes: Array, shift: Array, gain: Array, config: ResolvedPrepareConfig, engine: Engine
) -> Array:
    """[n, 1 + contexts, d] token rows of `nodes` (sorted)."""
    tokens, directions = config.tokens, directions_of(config)

    def write(writer: ArrayWriter, cutout: Cutout, places: Array) -> None:
        features = _Features(cutout, tokens.add_degrees)
        ContextFeatures(features, places, shift, gain, directions, engine).write(writer, tokens.dtype, tokens.num_hops)

    return _rows(graph, nodes, (directions, tokens.num_hops), engine.memory, "tokens", write)


def projected_positions(graph: Extended, nodes: Array, config: ResolvedPrepareConfig, engine: Engine) -> Array:
    """[n, p] encodings of `nodes` (sorted) by projection."""
    direction, settings = config.local_nodes.direction, config.positional_encoding

    def write(writer: ArrayWriter, cutout: Cutout, places: Array) -> None:
        neighbors = Neighbors(*cutout.csr(direction), self_loops=False)
        write_projection(writer, neighbors, places, settings, engine, Signs(settings.seed, cutout.numbers))

    return _rows(graph, nodes, ((direction,), len(settings.projection_weights)), engine.memory, "positions", write)


def neighbor_label_histogram(graph: Extended, nodes: Array, hops: int, own: TrainingLabels, engine: Engine) -> Array:
    """[n, hops, c + 1] labels around `nodes` (sorted). `own` are the training labels of the store's nodes; new ones
    have none."""

    def write(writer: ArrayWriter, cutout: Cutout, places: Array) -> None:
        write_neighbor_label_histogram(writer, cutout, places, hops, engine, _labels_in(cutout, own))

    return _rows(graph, nodes, (("both",), hops), engine.memory, "neighbor_label_histogram", write)


def label_counts(graph: Extended, nodes: Array, own: TrainingLabels, engine: Engine) -> Array:
    """[n, c + 2] counts of labels around `nodes` (sorted); `own` as above."""

    def write(writer: ArrayWriter, cutout: Cutout, places: Array) -> None:
        write_label_counts(writer, cutout, places, engine, _labels_in(cutout, own))

    return _rows(graph, nodes, (("both",), 1), engine.memory, "label_counts", write)


def _labels_in(cutout: Cutout, own: TrainingLabels) -> TrainingLabels:
    """The training labels of a cutout's nodes."""
    num_old = cutout.graph.num_old
    known = np.minimum(cutout.numbers, num_old - 1)
    is_train = own.is_train[known] & (cutout.numbers < num_old)
    scale = own.scale and replace(own.scale, half=np.where(is_train, own.scale.half[known], np.uint8(0)))
    return TrainingLabels(np.asarray(own.labels[known]), is_train, scale)


def mean_positions(graph: Extended, nodes: Array, direction: Direction, rows_of: Any, positions: Array) -> Array:
    """[n, p] means of the encodings that neighbours of `nodes` (sorted) have; zero where none has one. `rows_of` says
    which rows of `positions` nodes have, -1 for none."""
    indptr, indices = graph.lists(direction).neighbors(nodes)
    places = np.where(indices < graph.num_old, rows_of(np.minimum(indices, graph.num_old - 1)), -1)
    owner = np.repeat(np.arange(len(nodes)), np.diff(indptr))[places >= 0]
    sums = np.zeros((len(nodes), positions.shape[1]), dtype=np.float64)
    np.add.at(sums, owner, positions[places[places >= 0]])
    counts = np.bincount(owner, minlength=len(nodes))
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
