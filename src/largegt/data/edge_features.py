"""Edge features: numbers that come with edges, as a mean over the edges at each node.

Enters: columns of the edges' table, or an array with a row per edge. Leaves, for each direction of a store:
  out_edge_features [N, f] float32    the mean over the edges that leave a node; zeros where none does
  in_edge_features, both_edge_features  over those that enter it, and over all at it; only when the graph is directed
An edge that occurs several times counts each time; self loops and edges whose end is no node are left out. What is not
directed has `out_edge_features` alone, over all edges at a node.
Cost: the edges are read once more, from front to back, with 16·(f + 1) bytes of memory per node; where that is more
than half of the memory, once for each range of nodes that fits. Sums are float64 and in the order of the input, so the
means are the same bits for any memory. A killed ingest goes on with the range it was at.
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
    """Write the means, from where an earlier run stopped; what the manifest says of them."""
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
    """Refuse NaN and infinite numbers of an array; columns of a table have none any more."""
    good = np.isfinite(block)
    if not good.all():
        row, column = (int(at) for at in np.argwhere(~good)[0])
        value = "missing or NaN" if np.isnan(block[row, column]) else "infinite or too large for float32"
        raise InputError(
            f"{where}: {names[column]!r} of the edge in row {first_row + row}, counted from 0, is {value}: replace it"
        )


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
