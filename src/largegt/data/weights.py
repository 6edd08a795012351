"""Edge weights: positive numbers, stored parallel to the lists of neighbours.

Enters: a column of the edge table, or an array with one number per edge. Leaves, for each direction of a store:
  out_weights [E] float32          the weight of each entry of out_indices
  out_strengths [N] float64        the sum of a node's weights
  out_weight_sums [E / 64] float64   sums of blocks of entries, for fast sampling from long lists
Cost: a chunk; 8 more bytes of scratch per edge during the sort; one pass over the weights for the sums.
The weights of duplicate edges are added, and so are those of inverse edges in the undirected view.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from largegt.errors import InputError
from largegt.io.array_writer import ArrayWriter
from largegt.types import MISSING_MARKERS, Array, sides_of

from . import kernels
from .column_cells import Cells
from .pair_runs import windows

MOST_NODES = 1 << 32
"""A neighbour and a weight share 63 bits during the sort."""
_WINDOW = 1 << 22


def as_weights(values: Any, where: str, first_row: int = 0) -> Array:
    """float32 weights of an Arrow or NumPy column that starts at `first_row`. A cell that is not a positive number is
    an error."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        cells = Cells(values, pa.array([], pa.large_string()))
        values, (numbers, _) = cells.array, cells.numbers  # invalid cells are 0
    else:
        values = numbers = np.asarray(values)
        if numbers.dtype.kind not in "fiub":
            raise InputError(f"{where} holds {numbers.dtype}, weights must be numbers")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        weights = np.ascontiguousarray(numbers, dtype=np.float32)
    good = (weights > 0) & np.isfinite(weights)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(
            f"{where}: the weight in row {first_row + row}, counted from 0, is {_as_text(values[row])}: weights are "
            "positive numbers that float32 can hold; mend it, or leave such edges out"
        )
    return weights


def _as_text(value: Any) -> str:
    """A value as text for an error message."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value.item()
    if value in (None, "", *MISSING_MARKERS) or value != value:
        return "missing"
    return repr(value) if isinstance(value, str) else str(value)


def refuse_overflow(sums: Array) -> None:
    """Refuse sums of weights that float32 cannot hold."""
    if len(sums) and not np.isfinite(sums.max()):
        raise InputError(
            "the weights of an edge that occurs several times add up to more than float32 can hold: divide all weights"
        )


def in_memory(indptr: Array, weights: Array) -> tuple[Array, Array, Array]:
    """(weights, strengths, sums of blocks) of a CSR in memory."""
    return weights, _strengths(indptr, weights, 0, len(indptr) - 1), _block_sums(weights)


def write_sums(writer: ArrayWriter, directed: bool) -> dict[str, Any]:
    """Write `SIDE_strengths` and `SIDE_weight_sums` of every side, resuming where an earlier run stopped. Return the
    manifest entry of the weights: their range, and their mean per direction."""
    means = {}
    for side in sides_of(directed):
        indptr, weights = writer.array(f"{side}_indptr"), writer.array(f"{side}_weights")
        if not writer.has(f"{side}_strengths"):
            strengths = writer.grow(f"{side}_strengths", "float64")
            for low, high in windows(indptr, strengths.rows, _WINDOW):
                strengths.append(_strengths(indptr, weights, low, high))
            writer.close(f"{side}_strengths")
            writer.commit()
        if not writer.has(f"{side}_weight_sums"):
            growing = writer.grow(f"{side}_weight_sums", "float64")
            for low in range(growing.rows * kernels.SUM_BLOCK, len(weights), _WINDOW):
                growing.append(_block_sums(weights[low : low + _WINDOW]))
            writer.close(f"{side}_weight_sums")
            writer.commit()
        sums = writer.array(f"{side}_weight_sums")
        total = _strengths(np.array([0, len(sums)]), sums, 0, 1)[0]  # in a fixed order, for reproducible bits
        means[side] = float(total) / len(weights)
    given = writer.array("out_weights")
    return {"least": float(given.min()), "largest": float(given.max()), "mean": means}


def _strengths(indptr: Array, weights: Array, low: int, high: int) -> Array:
    """The sum of the weights of each row from `low` to `high`."""
    strengths = np.empty(high - low)
    kernels.sum_rows(indptr, weights[int(indptr[low]) : int(indptr[high])], low, strengths)
    return strengths


def _block_sums(weights: Array) -> Array:
    starts = np.append(np.arange(0, len(weights), kernels.SUM_BLOCK), len(weights))
    return _strengths(starts, weights, 0, len(starts) - 1)
