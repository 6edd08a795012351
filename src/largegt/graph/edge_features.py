"""Edge features: numbers that come with edges, as a mean over the edges at each node.

Enters: columns of the edges' table, or an array with a row per edge. Leaves, for each direction of a store:
  out_edge_features [N, f] float32    the mean over the edges that leave a node; zeros where none does
  in_edge_features, both_edge_features  over those that enter it, and over all at it; only when the graph is directed
An edge that occurs several times counts each time, with its own features; self loops and edges whose end is no node are
left out, as everywhere. What is not directed has `out_edge_features` alone, over all edges at a node.

Cost: the edges are read once more, from front to back, with 16·(f + 1) bytes of memory per node; where that is more
than half of the memory, once for each range of nodes that fits. Sums are float64 and in the order of the input, so the
means are the same bits for any memory. A killed ingest goes on with the range it was at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from ..config import IngestConfig
from ..errors import InputError
from ..io.array_writer import ArrayWriter
from ..progress import Progress
from ..types import Array, sides_of
from .edge_reading import found_edges
from .ids import Ids
from .nodes import NodeIds
from .parts import Edges, TableEdges, feature_names
from .tables import float_block


class TableEdgeFeatures:
    """The features of edges in columns of their table."""

    has_values = True

    def __init__(self, edges: TableEdges, columns: list[str]) -> None:
        self._edges, self._columns = edges, columns
        self.where, self.total = edges.where, edges.total
        first = next(edges.batches(True, 0, columns), None)  # whatever its ids are
        self.names: list[str] | None = feature_names(first[2] if first else None, columns, self.where)
        self.width = len(self.names)

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        return self._edges.chunks(text, skip)

    def valued_chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids, Array]]:
        for sources, targets, batch, _ in self._edges.batches(text, skip, self._columns):
            block = float_block(batch, self._columns, self.where)
            if block.shape[1] != self.width:
                raise InputError(f"{self.where}: vectors have different lengths in different rows")
            yield sources, targets, block


class ArrayEdgeFeatures:
    """The features of edges in an array, a row per edge."""

    has_values = True
    names: list[str] | None = None

    def __init__(self, edges: Edges, matrix: Array, where: str) -> None:
        matrix = matrix[:, None] if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or not matrix.shape[1]:
            raise InputError(f"{where} has shape {list(matrix.shape)}, expected [E, f]: a row per edge")
        if matrix.dtype.kind not in "fiub":
            raise InputError(f"{where} holds {matrix.dtype}, features must be numbers")
        if edges.total is not None and len(matrix) != edges.total:
            raise InputError(f"{where} has {len(matrix)} rows, but there are {edges.total} edges: one each")
        self._edges, self._matrix = edges, matrix
        self.where, self.total, self.width = where, edges.total, int(matrix.shape[1])

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        return self._edges.chunks(text, skip)

    def valued_chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids, Array]]:
        row = skip
        for sources, targets in self._edges.chunks(text, skip):
            with np.errstate(over="ignore"):
                block = np.ascontiguousarray(self._matrix[row : row + len(sources)], dtype=np.float32)
            yield sources, targets, block
            row += len(sources)


EdgeFeatures = TableEdgeFeatures | ArrayEdgeFeatures


def write_edge_features(
    writer: ArrayWriter, features: EdgeFeatures, nodes: NodeIds, directed: bool, text: bool, config: IngestConfig,
    memory: int, report: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Write the means, from where an earlier run stopped; what the manifest says of them."""
    sides = sides_of(directed)
    names = features.names or [f"edge feature {column}" for column in range(features.width)]
    if all(writer.has(f"{side}_edge_features") for side in sides):
        return {"names": names}
    means = [writer.grow(f"{side}_edge_features", "float32", (features.width,)) for side in sides]
    most = max(1, memory // (2 * 16 * (features.width + 1)))
    for low in range(means[0].rows, nodes.num_nodes, most):
        sums = np.zeros((2, min(most, nodes.num_nodes - low), features.width))
        counts = np.zeros((2, sums.shape[1]))
        row = 0
        for found in found_edges(features, nodes, text, 0, memory // 4):
            assert found.values is not None
            block = _finite(found.values, row, features, names, config)
            add_features(found.sources, found.targets, block, low, sums, counts)
            row += len(block)
            report("read edge features", low * (features.total or row) // nodes.num_nodes + row, features.total)
        every, of_every = sums[0] + sums[1], counts[0] + counts[1]
        parts = ((sums[0], counts[0]), (sums[1], counts[1]), (every, of_every)) if directed else ((every, of_every),)
        for array, (total, count) in zip(means, parts, strict=True):
            array.append(total / np.maximum(count, 1)[:, None])
        writer.commit()
    for side in sides:
        writer.close(f"{side}_edge_features")
    writer.commit()
    return {"names": names}


def _finite(block: Array, first_row: int, features: EdgeFeatures, names: list[str], config: IngestConfig) -> Array:
    """The block, with missing values filled or refused."""
    good = np.isfinite(block)
    if good.all():
        return block
    if config.fill_missing is None:
        row, column = (int(at) for at in np.argwhere(~good)[0])
        value = "missing or NaN" if np.isnan(block[row, column]) else "infinite or too large for float32"
        raise InputError(
            f"{features.where}: {names[column]!r} of the edge in row {first_row + row}, counted from 0, is {value}; "
            "mend it, or fill such values with fill_missing=0"
        )
    return np.where(good, block, np.float32(config.fill_missing))


@njit(nogil=True, cache=True)
def add_features(sources: Any, targets: Any, block: Any, low: Any, sums: Any, counts: Any) -> None:
    """Add each edge's features to sums[0] of its source and sums[1] of its target, where these are among the rows from
    node `low` on, and one to their counts. Ends of -1 and self loops are left out."""
    num_rows, width = sums.shape[1], sums.shape[2]
    for e in range(len(sources)):
        if sources[e] < 0 or targets[e] < 0 or sources[e] == targets[e]:
            continue
        for side in range(2):
            row = (sources[e] if side == 0 else targets[e]) - low
            if 0 <= row < num_rows:
                counts[side, row] += 1.0
                for c in range(width):
                    sums[side, row, c] += np.float64(block[e, c])
