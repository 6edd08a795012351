"""Feature precisions: float32, float16, and bfloat16 as the upper 16 bits of float32.

Enters and leaves: arrays of the same shape. Cost: one pass, a few temporary copies of the block.
NumPy has no bfloat16, so its bits are stored as uint16 and the manifest has the dtype.
"""

from __future__ import annotations

import numpy as np

from largegt.types import Array


def to_bfloat16_bits(values: Array) -> Array:
    """uint16 bits of the nearest bfloat16 (ties to even), like torch; NaN stays NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    upper = (rounded >> np.uint32(16)).astype(np.uint16)
    upper[np.isnan(single)] = 0x7FC0
    return upper


def from_bfloat16_bits(bits: Array) -> Array:
    """float32 values of bfloat16 bits; exact."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: Array, dtype: str) -> Array:
    """float32 values converted to the stored form of `dtype`."""
    if dtype == "bfloat16":
        return to_bfloat16_bits(values)
    with np.errstate(over="ignore"):  # overflow becomes inf, which the caller checks
        return np.asarray(values).astype(dtype)


def encode_degrees(degrees: Array, dtype: str) -> Array:
    """log(1 + degree) in stored form: the features of a graph without features."""
    return encode(np.log1p(degrees).astype(np.float32), dtype)


def decode(stored: Array, dtype: str) -> Array:
    """float32 values of stored features."""
    if dtype == "bfloat16":
        return from_bfloat16_bits(stored)
    return np.asarray(stored, dtype=np.float32)
