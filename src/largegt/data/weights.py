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

from typing import Any

import numpy as np

from ..errors import InputError
from ..io.array_writer import ArrayWriter
from ..types import Array
from . import weight_kernels
from .pair_runs import windows

MOST_NODES = 1 << 32
"""A neighbour and a weight share 63 bits while they are sorted."""
_WINDOW = 1 << 22


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
