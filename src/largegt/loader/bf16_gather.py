"""Gather float32 rows and round them to bfloat16 in one pass: half the bytes to write and to transfer."""

from __future__ import annotations

import numba
import numpy as np

from largegt.runtime.threads import run_ranges
from largegt.types import Array


def gather_bf16(source: Array, at: Array, out: Array, rows_per_task: int, threads: int) -> None:
    """out[i] = source[at[i]] as bfloat16 bits (uint16), rounded to nearest even, on several threads. Row numbers must
    be in range and values finite; neither is checked."""
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
