"""Rows of a few nodes: run the stages of a preparation on the subgraph that they depend on.

Enters: an ExtendedGraph and some of its nodes. Leaves: their token rows, positional encodings and label histograms, the
same bits as in a preparation of the whole graph. Cost: memory for the lists of nodes up to some hops away; features are
read as they are summed.

A subgraph keeps the order of the nodes, so neighbours come in the same order and their sums are the same bits. Nodes at
the boundary have no lists, because no result depends on them.
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

from .blocks import Neighbors, as_index
from .cache_key import directions_of
from .context import ContextFeatures
from .engine import Engine
from .extended_graph import ExtendedGraph
from .features import NodeFeatures
from .label_features import TrainingLabels, write_label_counts, write_neighbor_label_histogram
from .positional_encoding import RandomSigns, write_projection
from .sampling.neighbor_lists import index_type


class TooLargeError(ConfigError):
    """The subgraph that some nodes depend on exceeds the memory limit."""


class Subgraph(GraphStore):
    """The subgraph of all nodes within some hops of the given ones. `numbers` are their node numbers in the whole
    graph, sorted."""

    def __init__(
        self, graph: ExtendedGraph, nodes: Array, directions: Sequence[Direction], hops: int, memory: int
    ) -> None:
        super().__init__(graph.store.folder)
        self.graph = graph
        inner, parts = {}, [np.asarray(nodes, dtype=np.int64)]
        for side in directions:
            inner[side], boundary = parts[0][:0], parts[0]
            for _ in range(hops):
                inner[side] = boundary
                boundary = np.union1d(boundary, self._lists(side, boundary, memory)[1])
            parts.append(boundary)
        self.numbers: Array = np.unique(np.concatenate(parts))
        self._csr = {side: self._expand(inner[side], *self._lists(side, inner[side], memory)) for side in directions}

    def _lists(self, side: Direction, nodes: Array, memory: int) -> tuple[Array, Array]:
        lists = self.graph.lists(side)
        num_bytes = 16 * int(lists.degrees(nodes).sum())
        if num_bytes > memory:
            raise TooLargeError(
                f"what new nodes are next to takes {format_bytes(num_bytes)} to look at, more than the memory given: "
                "use a larger `memory`, or `lg.append(...)`"
            )
        return lists.neighbors(nodes)

    def _expand(self, nodes: Array, indptr: Array, indices: Array) -> tuple[Array, Array]:
        """Lists of some nodes as a CSR over all nodes, with the node numbers of the subgraph."""
        counts = np.zeros(self.num_nodes, dtype=np.int64)
        counts[self.places(nodes)] = np.diff(indptr)
        return frozen(offsets(counts)), self.places(indices)

    def places(self, nodes: Array) -> Array:
        """The numbers of these nodes in the subgraph, as a read-only array like those the kernels are compiled for."""
        return frozen(np.searchsorted(self.numbers, nodes).astype(index_type(self.num_nodes)))

    @property
    def num_nodes(self) -> int:
        return len(self.numbers)

    def csr(self, direction: Direction) -> tuple[Array, Array]:
        return self._csr[direction]

    def reverse_csr(self, direction: Direction) -> tuple[Array, Array]:
        """The reverse degrees in the whole graph, without the lists."""
        degrees = self.graph.lists(direction).reverse.degrees(self.numbers)
        return frozen(offsets(degrees)), frozen(np.zeros(0, dtype=index_type(self.num_nodes)))

    def ids_of(self, nodes: Array) -> list[Any]:
        store, num_old = self.graph.store, self.graph.num_old
        return [store.ids_of(np.array([n]))[0] if n < num_old else int(n) for n in self.numbers[nodes]]


class _SubgraphFeatures(NodeFeatures):
    """Features of the nodes of a subgraph."""

    def __init__(self, subgraph: Subgraph, degrees: bool) -> None:
        self.store, self.num_nodes = subgraph, subgraph.num_nodes
        self._cutout, self._with_degrees = subgraph, degrees
        self.width = self.rows(range(1)).shape[1]

    def rows(self, nodes: Array | range) -> Array:
        return self._cutout.graph.feature_rows(self._cutout.numbers[as_index(nodes)], self._with_degrees)


@contextmanager
def scratch_folder() -> Iterator[ArrayWriter]:
    """A temporary folder for the arrays of a stage."""
    with TemporaryDirectory(prefix="largegt-") as folder, ArrayWriter(Path(folder) / "rows", "scratch") as writer:
        yield writer


def _rows_of(
    graph: ExtendedGraph, nodes: Array, reach: tuple[Sequence[Direction], int], memory: int, name: str,
    write: Callable[[ArrayWriter, Subgraph, Array], None],
) -> Array:  # fmt: skip
    """The array `name` that `write(writer, subgraph, places)` writes for a subgraph with these directions and hops. If
    the subgraph does not fit, the nodes are split."""
    try:
        subgraph = Subgraph(graph, nodes, *reach, memory // 2)
    except TooLargeError:
        if len(nodes) < 2:
            raise
        return np.concatenate([_rows_of(graph, half, reach, memory, name, write) for half in np.array_split(nodes, 2)])
    with scratch_folder() as writer:
        write(writer, subgraph, subgraph.places(nodes))
        return np.array(writer.array(name))


def token_rows(
    graph: ExtendedGraph, nodes: Array, shift: Array, gain: Array, config: ResolvedPrepareConfig, engine: Engine
) -> Array:
    """[n, 1 + contexts, d] token rows of `nodes` (sorted)."""
    tokens, directions = config.tokens, directions_of(config)

    def write(writer: ArrayWriter, subgraph: Subgraph, places: Array) -> None:
        features = _SubgraphFeatures(subgraph, tokens.add_degrees)
        ContextFeatures(features, places, shift, gain, directions, engine).write(writer, tokens.dtype, tokens.num_hops)

    return _rows_of(graph, nodes, (directions, tokens.num_hops), engine.memory, "tokens", write)


def projected_positions(graph: ExtendedGraph, nodes: Array, config: ResolvedPrepareConfig, engine: Engine) -> Array:
    """[n, p] random projection encodings of `nodes` (sorted)."""
    direction, settings = config.local_nodes.direction, config.positional_encoding

    def write(writer: ArrayWriter, subgraph: Subgraph, places: Array) -> None:
        neighbors = Neighbors(*subgraph.csr(direction), self_loops=False)
        write_projection(writer, neighbors, places, settings, engine, RandomSigns(settings.seed, subgraph.numbers))

    return _rows_of(graph, nodes, ((direction,), len(settings.projection_weights)), engine.memory, "positions", write)


def neighbor_label_histogram(
    graph: ExtendedGraph, nodes: Array, hops: int, labels: TrainingLabels, engine: Engine
) -> Array:
    """[n, hops, c + 1] label distributions around `nodes` (sorted). `labels` cover the store's nodes; new ones
    have none."""

    def write(writer: ArrayWriter, subgraph: Subgraph, places: Array) -> None:
        write_neighbor_label_histogram(writer, subgraph, places, hops, engine, _labels_in(subgraph, labels))

    return _rows_of(graph, nodes, (("both",), hops), engine.memory, "neighbor_label_histogram", write)


def label_counts(graph: ExtendedGraph, nodes: Array, labels: TrainingLabels, engine: Engine) -> Array:
    """[n, c + 2] label counts around `nodes` (sorted); `labels` as above."""

    def write(writer: ArrayWriter, subgraph: Subgraph, places: Array) -> None:
        write_label_counts(writer, subgraph, places, engine, _labels_in(subgraph, labels))

    return _rows_of(graph, nodes, (("both",), 1), engine.memory, "label_counts", write)


def _labels_in(subgraph: Subgraph, labels: TrainingLabels) -> TrainingLabels:
    """The training labels of the nodes of a subgraph."""
    num_old = subgraph.graph.num_old
    known = np.minimum(subgraph.numbers, num_old - 1)
    is_train = labels.is_train[known] & (subgraph.numbers < num_old)
    scale = labels.scale and replace(labels.scale, half=np.where(is_train, labels.scale.half[known], np.uint8(0)))
    return TrainingLabels(np.asarray(labels.labels[known]), is_train, scale)


def mean_positions(graph: ExtendedGraph, nodes: Array, direction: Direction, rows_of: Any, positions: Array) -> Array:
    """[n, p] mean encodings over the neighbours of `nodes` (sorted); zero if none has one. `rows_of` maps nodes to rows
    of `positions`, -1 for none."""
    indptr, indices = graph.lists(direction).neighbors(nodes)
    places = np.where(indices < graph.num_old, rows_of(np.minimum(indices, graph.num_old - 1)), -1)
    owner = np.repeat(np.arange(len(nodes)), np.diff(indptr))[places >= 0]
    sums = np.zeros((len(nodes), positions.shape[1]), dtype=np.float64)
    np.add.at(sums, owner, positions[places[places >= 0]])
    counts = np.bincount(owner, minlength=len(nodes))
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
