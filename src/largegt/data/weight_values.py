"""Weights as users give them: a column or an array becomes float32, and what cannot be a weight is refused by its row.

Enters: values in NumPy or Arrow form. Leaves: float32, positive and finite. Cost: a column at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..types import Array


def as_weights(values: Any, where: str, first_row: int = 0) -> Array:
    """float32 weights out of an Arrow or NumPy column that begins at `first_row`; what is no positive finite number is
    refused by its row."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = _numbers(values, where, first_row)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{where} holds {array.dtype}, weights must be numbers")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        weights = np.ascontiguousarray(array, dtype=np.float32)
    good = (weights > 0) & np.isfinite(weights)
    if not good.all():
        row = int(np.argmin(good))
        value = array[row]
        what = "missing" if value != value else f"{value:g}"
        if value == value and np.isfinite(value) and value > 0:
            what += ", beyond what float32 can hold"
        raise InputError(
            f"{where}: the weight in row {first_row + row}, counted from 0, is {what}: weights are positive finite "
            "numbers; mend it, or leave such edges out"
        )
    return weights


def _numbers(values: Any, where: str, first_row: int) -> Array:
    """float64 of an Arrow column; text of a CSV is read, empty cells are NaN."""
    kind = values.type
    try:
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{where} is {kind}, weights must be numbers") from None
    return np.array([_number(text, where, first_row + at) for at, text in enumerate(values.to_pylist())])


def _number(text: str | None, where: str, row: int) -> float:
    try:
        return float(text.replace("_", "no number")) if text else float("nan")
    except ValueError:
        raise InputError(
            f"{where}: the weight in row {row}, counted from 0, is {text!r}: weights are positive finite numbers"
        ) from None
