"""Labels: from the user's values to numbers, and back by `classes`.

Enters: an Arrow column, or float32 [n, c]. Leaves: int32 [n] (-1: none), float32 [n] (NaN) for regression, or
float32 [n, c] (NaN) for multi-label; the task; the classes as the user wrote them. Cost: O(n c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, InputError
from ..types import Array, Task


@dataclass(frozen=True)
class Encoded:
    """Labels as numbers, with what they stand for."""

    values: Array
    task: Task
    classes: list[Any]
    counts: list[int]
    """Nodes per class (positives per label for multi-label; empty for regression)."""
    num_labelled: int


def no_labels(num_nodes: int) -> Encoded:
    """A graph without labels: nothing can be trained on it, but it can be looked at and predicted for."""
    return Encoded(np.full(num_nodes, -1, dtype=np.int32), "multiclass", [], [], 0)


def encode(values: Any, names: list[str] | None, task: str, where: str) -> Encoded:
    """Encode a column or a matrix of labels as `task` (`auto`: as it looks)."""
    if isinstance(values, np.ndarray):
        if task not in ("auto", "multilabel"):
            raise ConfigError(
                f"{where} has {values.shape[1]} label columns, task {task!r} takes one: "
                "use task=multilabel or name one column"
            )
        return _multilabel(values, names, where)
    values, missing = _plain(values, where)
    if len(values) == 0 or missing.all():
        raise InputError(f"{where}: every label is missing (empty, null, NaN or -1), so there is nothing to learn from")
    if task == "multilabel":
        return _multilabel(_floats(values, where)[:, None], names, where)
    if task == "regression" or (task == "auto" and _has_fractions(values)):
        return _regression(values, where)
    return _classes(values, missing, task, where)


def labelled(values: Array, task: str) -> Array:
    """Boolean [n]: which encoded values are labels."""
    if task == "multilabel":
        return np.asarray(~np.isnan(values).all(axis=1))
    return np.asarray(~np.isnan(values) if task == "regression" else values >= 0)


def scatter(encoded: Encoded, rows: Array, num_nodes: int) -> Array:
    """The encoded values at their nodes' rows; every other node has no label."""
    empty: Any = -1 if encoded.values.dtype.kind == "i" else np.nan
    spread = np.full((num_nodes, *encoded.values.shape[1:]), empty, dtype=encoded.values.dtype)
    spread[rows] = encoded.values
    return spread


def _plain(values: Any, where: str) -> tuple[Any, Array]:
    """The column without dictionaries, whole-number floats as integers, and where its values are missing."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_null(kind):
        return values, np.ones(len(values), dtype=bool)
    if pa.types.is_decimal(kind) or kind == pa.float16() or kind == pa.float32():
        values = values.cast(pa.float64())
    if pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
        if np.isinf(numbers).any():
            raise InputError(
                f"{where}: label {numbers[np.isinf(numbers)][0]} in row "
                f"{int(np.flatnonzero(np.isinf(numbers))[0])} is not a finite number"
            )
        values = pa.array(numbers, from_pandas=True)
        known = numbers[~np.isnan(numbers)]
        if (known == np.floor(known)).all() and (np.abs(known) < 2**53).all():
            values = values.cast(pa.int64())
    if pa.types.is_integer(values.type):
        minus_one = pc.equal(values, pa.scalar(-1, values.type) if _is_signed(values.type) else 2**63)
        missing = minus_one.fill_null(True)
    elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_string())
        missing = pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True)
    elif pa.types.is_boolean(values.type) or pa.types.is_floating(values.type):
        missing = values.is_null()
    else:
        raise InputError(f"{where}: labels must be numbers or text, found {kind}")
    return values, np.asarray(missing.to_numpy(zero_copy_only=False))


def _classes(values: Any, missing: Array, task: str, where: str) -> Encoded:
    known = values.filter(pa.array(~missing))
    distinct = pc.unique(known)
    distinct = distinct.take(pc.sort_indices(distinct))
    if task == "binary" and len(distinct) != 2:
        raise ConfigError(f"{where} has {len(distinct)} different labels, task 'binary' takes two: use task=multiclass")
    codes = pc.index_in(values, value_set=distinct).fill_null(-1).to_numpy(zero_copy_only=False)
    codes = np.where(missing, -1, codes).astype(np.int32)
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    found: Task = "binary" if task == "binary" or (task == "auto" and len(distinct) == 2) else "multiclass"
    return Encoded(codes, found, distinct.to_pylist(), [int(count) for count in counts], int(counts.sum()))


def _regression(values: Any, where: str) -> Encoded:
    numbers = _floats(values, where)
    labelled = int((~np.isnan(numbers)).sum())
    if labelled == 0:
        raise InputError(f"{where}: every label is missing, so there is nothing to learn from")
    return Encoded(numbers, "regression", [], [], labelled)


def _multilabel(matrix: Array, names: list[str] | None, where: str) -> Encoded:
    numbers = matrix.astype(np.float32)
    numbers[numbers == -1] = np.nan
    wrong = ~(np.isnan(numbers) | (numbers == 0) | (numbers == 1))
    if wrong.any():
        row, column = (int(at) for at in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: label column {names[column] if names else column} is {numbers[row, column]:g} "
            f"in row {row}; several labels per node must each be 0, 1 or missing"
        )
    labelled = int((~np.isnan(numbers).all(axis=1)).sum()) if numbers.size else 0
    if labelled == 0:
        raise InputError(f"{where}: every label is missing (empty, null, NaN or -1), so there is nothing to learn from")
    counts = [int(count) for count in np.nansum(numbers, axis=0)]
    classes: list[Any] = list(names) if names else list(range(numbers.shape[1]))
    return Encoded(numbers, "multilabel", classes, counts, labelled)


def _has_fractions(values: Any) -> bool:
    return bool(pa.types.is_floating(values.type))


def _is_signed(kind: Any) -> bool:
    return bool(pa.types.is_signed_integer(kind))


def _floats(values: Any, where: str) -> Array:
    """float32 with NaN for missing."""
    try:
        return np.array(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float32)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{where}: labels are {values.type}, numbers are wanted for this task") from None
