"""Rows of float32 gathered and rounded to bfloat16 in one pass: half the bytes to write, and half on the bus."""

from __future__ import annotations

import numba
import numpy as np

from largegt.runtime.threads import run_ranges
from largegt.types import Array


def take_rounded(source: Array, at: Array, out: Array, rows_per_task: int, threads: int) -> None:
    """out[i] = source[at[i]] as bits of bfloat16 (uint16), to the nearest, by several threads. Rows must be there, and
    numbers finite: none is checked."""
    bits, rounded = source.view(np.uint32).reshape(len(source), -1), out.reshape(len(out), -1)

    def take(low: int, high: int) -> None:
        _take(bits, at, rounded, low, high)

    for _ in run_ranges(take, [*range(0, len(at), rows_per_task), len(at)], threads):
        pass


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _take(bits: Array, at: Array, out: Array, low: int, high: int) -> None:
    half, one, sixteen = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
    for i in range(low, high):
        row, rounded = bits[at[i]], out[i]
        for j in range(len(row)):
            number = row[j]
            rounded[j] = np.uint16((number + half + ((number >> sixteen) & one)) >> sixteen)
