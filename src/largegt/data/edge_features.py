"""Edge features, stored as means over the edges of each node.

Enters: columns of the edge table, or an array with one row per edge. Leaves, for each direction of a store:
  out_edge_features [N, f] float32    means over the outgoing edges of a node; zeros if there are none
  in_edge_features, both_edge_features  means over incoming edges and over all edges; only if the graph is directed
An edge that occurs several times counts each time; self loops and edges with unknown ids are ignored. An undirected
graph has only `out_edge_features`, over all edges of a node.
Cost: one more sequential pass over the edges, with 16·(f + 1) bytes of memory per node. If this exceeds half of the
memory, there is one pass per range of nodes that fits. Sums are float64 in input order, so the means do not depend on
the memory. A killed ingest resumes at its range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.errors import InputError
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.progress import Progress
from largegt.types import Array, sides_of

from .edge_reading import found_edges
from .nodes import NodeIds
from .parts import Edges


def write_edge_features(
    writer: ArrayWriter, edges: Edges, nodes: NodeIds, directed: bool, memory: int, report: Progress
) -> dict[str, Any]:
    """Write the means, resuming where an earlier run stopped; return their manifest entry."""
    sides, names = sides_of(directed), list(edges.feature_names)
    if all(writer.has(f"{side}_edge_features") for side in sides):
        return {"names": names}
    means = [writer.grow(f"{side}_edge_features", "float32", (len(names),)) for side in sides]
    most = max(1, memory // (2 * 16 * (len(names) + 1)))
    for low in range(means[0].rows, nodes.num_nodes, most):
        sums = np.zeros((2, min(most, nodes.num_nodes - low), len(names)))
        counts, row = np.zeros((2, sums.shape[1])), 0
        for found in found_edges(edges, nodes, features=True):
            assert found.features is not None
            _refuse_missing(found.features, row, edges.where, names)
            add_features(found.sources, found.targets, found.features, low, sums, counts)
            row += len(found.features)
            report("read edge features", low * (edges.total or row) // nodes.num_nodes + row, edges.total)
        parts = [*zip(sums, counts, strict=True), (sums[0] + sums[1], counts[0] + counts[1])]
        for array, (total, count) in zip(means, parts if directed else parts[2:], strict=True):
            array.append(total / np.maximum(count, 1)[:, None])
        writer.commit()
    for side in sides:
        writer.close(f"{side}_edge_features")
    writer.commit()
    return {"names": names}


def _refuse_missing(block: Array, first_row: int, where: str, names: list[str]) -> None:
    """Refuse NaN and infinite numbers in an array; encoded table columns are always finite."""
    good = np.isfinite(block)
    if not good.all():
        row, column = (int(at) for at in np.argwhere(~good)[0])
        value = "missing or NaN" if np.isnan(block[row, column]) else "infinite or too large for float32"
        raise InputError(
            f"{where}: {names[column]!r} of the edge in row {first_row + row}, counted from 0, is {value}: replace it"
        )


@njit(nogil=True, cache=True)
def add_features(sources: Any, targets: Any, block: Any, low: Any, sums: Any, counts: Any) -> None:
    """Add each edge's features to sums[0] of its source and sums[1] of its target, and 1 to the counts. Row 0 is node
    `low`; nodes outside the rows, ends of -1 and self loops are ignored."""
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
