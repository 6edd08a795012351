"""Edge weights: positive numbers that come with edges, and lie beside each list of neighbours.

Enters: a column of the edges' table, or an array with a number per edge. Leaves: float32 chunks beside those of the
edges, and on disk for each direction (see store.py):
  out_weights [E] float32          the weight of each entry of out_indices
  out_strengths [N] float64        the sum of a node's weights
  out_weight_sums [E / 64] float64   sums of blocks of entries, so that a draw from a long list need not pass them all
Cost: a chunk; 8 bytes more of scratch per edge while they are sorted; the sums are one pass over the weights.

An edge that comes twice has the sum of its weights, and so has a pair of inverse edges in the undirected view.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..io.array_writer import ArrayWriter
from ..types import Array
from . import weight_kernels
from .ids import Ids
from .pair_runs import windows
from .parts import Edges, parts_of
from .tables import load_npy
from .weight_values import as_weights

MOST_NODES = 1 << 32
"""A neighbour and a weight share 63 bits while they are sorted."""
_WINDOW = 1 << 22


class WeightedEdges:
    """A stream of edges with an array of weights, one for each edge in the stream's order."""

    has_values = True

    def __init__(self, edges: Edges, weights: Array, where: str, first_row: int = 0, file: str | None = None) -> None:
        """`file` is the `.npy` file that the weights are a view of, from `first_row` on: it travels instead of them."""
        if weights.ndim != 1:
            raise InputError(f"{where} has shape {list(weights.shape)}, expected [E]: a number per edge")
        if edges.total is not None and len(weights) != edges.total:
            raise InputError(f"{where} has {len(weights)} numbers, but there are {edges.total} edges: one each")
        self._edges, self._weights, self._where, self._first_row, self._file = edges, weights, where, first_row, file
        self.where, self.total = edges.where, edges.total

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        return self._edges.chunks(text, skip)

    def valued_chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids, Array]]:
        row = skip
        for sources, targets in self._edges.chunks(text, skip):
            part = self._weights[row : row + len(sources)]
            yield sources, targets, as_weights(part, self._where, self._first_row + row)
            row += len(sources)

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        found: list[Edges] = []
        row = 0
        for part in parts_of(self._edges, count, chunk_rows):
            size = int(part.total or 0)
            own = self._weights[row : row + size]
            found.append(WeightedEdges(part, own, self._where, self._first_row + row, self._file))
            row += size
        return found

    def __reduce__(self) -> Any:
        if self._file is None:
            return WeightedEdges, (self._edges, self._weights, self._where, self._first_row)
        return _from_file, (self._edges, str(Path(self._file).absolute()), self._where, self._first_row)


def _from_file(edges: Edges, file: str, where: str, first_row: int) -> WeightedEdges:
    weights = load_npy(file)[first_row : first_row + int(edges.total or 0)]
    return WeightedEdges(edges, weights, where, first_row, file)


def bits_of(weights: Array) -> Array:
    """The weights' bits as whole numbers, which are ordered alike."""
    return np.ascontiguousarray(weights, dtype=np.float32).view(np.int32)


def narrowed(weights: Array) -> Array:
    """Sums of weights in float32."""
    with np.errstate(over="ignore"):
        found = weights.astype(np.float32)
    if len(found) and not np.isfinite(found.max()):
        raise InputError(
            "the weights of an edge that occurs several times add up to more than float32 can hold: divide all weights"
        )
    return found


def in_memory(indptr: Array, weights: Array) -> tuple[Array, Array, Array]:
    """(weights, strengths, sums of blocks) of lists that are at hand."""
    strengths = np.empty(len(indptr) - 1)
    weight_kernels.sum_rows(indptr, weights, 0, strengths)
    sums = np.empty(-(-len(weights) // weight_kernels.SUM_BLOCK))
    weight_kernels.sum_blocks(weights, sums)
    return weights, strengths, sums


def write_sums(writer: ArrayWriter, side: str) -> None:
    """Write `SIDE_strengths` and `SIDE_weight_sums`, from where an earlier run stopped."""
    indptr, weights = writer.array(f"{side}_indptr"), writer.array(f"{side}_weights")
    if not writer.has(f"{side}_strengths"):
        strengths = writer.grow(f"{side}_strengths", "float64")
        for low, high in windows(indptr, strengths.rows, _WINDOW):
            rows = np.empty(high - low)
            weight_kernels.sum_rows(indptr, weights[int(indptr[low]) : int(indptr[high])], low, rows)
            strengths.append(rows)
        writer.close(f"{side}_strengths")
        writer.commit()
    if not writer.has(f"{side}_weight_sums"):
        block_sums = writer.grow(f"{side}_weight_sums", "float64")
        for low in range(block_sums.rows * weight_kernels.SUM_BLOCK, len(weights), _WINDOW):
            part = weights[low : low + _WINDOW]
            sums = np.empty(-(-len(part) // weight_kernels.SUM_BLOCK))
            weight_kernels.sum_blocks(part, sums)
            block_sums.append(sums)
        writer.close(f"{side}_weight_sums")
        writer.commit()


def facts_of(writer: ArrayWriter, directed: bool) -> dict[str, Any]:
    """What the manifest says of the weights: their range, and their mean in each view."""
    weights = writer.array("out_weights")
    parts = [weights[low : low + _WINDOW] for low in range(0, len(weights), _WINDOW)]
    means = {
        side: _total(writer.array(f"{side}_weight_sums")) / len(writer.array(f"{side}_weights"))
        for side in ("out", *(("in", "both") if directed else ()))
    }
    return {
        "least": float(min(part.min() for part in parts)),
        "largest": float(max(part.max() for part in parts)),
        "mean": means,
    }


def _total(sums: Array) -> float:
    """In order, so that it is always the same bits."""
    total = 0.0
    for low in range(0, len(sums), _WINDOW):
        total = float(np.add.accumulate(np.append(total, sums[low : low + _WINDOW]))[-1])
    return total
