"""Labels: encode the user's values as numbers; `classes` maps them back.

Enters: an Arrow column, or float32 [n, c]. Leaves: int32 [n] (-1: no label), float32 [n] (NaN: no label) for
regression, or float32 [n, c] (NaN) for multi-label; the task; the user's classes. Cost: a few copies of the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.errors import ConfigError, InputError
from largegt.types import Array, Task

from .column_cells import is_text, trimmed

_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_DECIMAL = r"^[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$"


def from_text(values: Any, markers: Sequence[str]) -> Any:
    """Convert a text column to integers, floats or booleans if all cells allow it. Missing markers and empty cells
    become null."""
    if not is_text(values.type):
        return values
    text = trimmed(values, pa.array([*markers, ""], pa.large_string()))
    if text.null_count == len(text):
        return text
    if _all(pc.match_substring_regex(text, _WHOLE)):
        return text.cast(pa.int64())
    if _all(pc.match_substring_regex(text, _DECIMAL)) and _all(pc.match_substring_regex(text, "[0-9]")):
        return text.cast(pa.float64())
    lower = pc.utf8_lower(text)
    if _all(pc.or_(pc.equal(lower, "true"), pc.equal(lower, "false"))):
        return pc.equal(lower, "true")
    return text


def _all(flags: Any) -> bool:
    return bool(pc.all(flags, skip_nulls=True).as_py())


@dataclass(frozen=True)
class Encoded:
    """Encoded labels, with the task and the classes."""

    values: Array
    task: Task
    classes: list[Any]
    counts: list[int]
    """Nodes per class (positives per label for multi-label; empty for regression)."""
    num_labelled: int


def encode(values: Any, names: list[str] | None, task: str, where: str) -> Encoded:
    """Encode a column or a matrix of labels for `task` (`auto`: inferred from the values)."""
    if isinstance(values, np.ndarray):
        if task not in ("auto", "multilabel"):
            raise ConfigError(
                f"{where} has {values.shape[1]} label columns, task {task!r} takes one: "
                "use task=multilabel or name one column"
            )
        return _multilabel(values, names, where)
    values, missing = _plain(values, where)
    if missing.all():
        raise InputError(f"{where}: every label is missing (empty, null, NaN or -1), so there is nothing to learn from")
    if task == "multilabel":
        return _multilabel(_floats(values, where)[:, None], names, where)
    if task == "regression" or (task == "auto" and pa.types.is_floating(values.type)):
        numbers = _floats(values, where)
        if np.isnan(numbers).all():
            raise InputError(f"{where}: every label is missing, so there is nothing to learn from")
        return counted(numbers, "regression", [])
    distinct = pc.unique(values.filter(pa.array(~missing)))
    distinct = distinct.take(pc.sort_indices(distinct))
    if task == "binary" and len(distinct) != 2:
        raise ConfigError(f"{where} has {len(distinct)} different labels, task 'binary' takes two: use task=multiclass")
    kind: Task = "binary" if task == "binary" or (task == "auto" and len(distinct) == 2) else "multiclass"
    return counted(_codes(values, missing, distinct), kind, distinct.to_pylist())


def counted(values: Array, task: Task, classes: list[Any]) -> Encoded:
    """Encoded values with their counts."""
    counts: Any = []
    if task in ("multiclass", "binary"):
        counts = np.bincount(values[values >= 0], minlength=len(classes))
    elif task == "multilabel":
        counts = np.count_nonzero(values == 1, axis=0)
    num_labelled = int(np.count_nonzero(labelled(values, task)))
    return Encoded(values, task, classes, [int(count) for count in counts], num_labelled)


def unlabelled(num_nodes: int, task: Task, classes: list[Any]) -> Encoded:
    """Encoded labels of `num_nodes` nodes without a label."""
    if task in ("multiclass", "binary"):
        return counted(np.full(num_nodes, -1, dtype=np.int32), task, classes)
    shape = (num_nodes, len(classes)) if task == "multilabel" else (num_nodes,)
    return counted(np.full(shape, np.nan, dtype=np.float32), task, classes)


def encode_as(values: Any, names: list[str] | None, task: Task, classes: list[Any], where: str) -> Encoded:
    """Encode labels of a task with known classes; a value outside the classes is an error."""
    if task == "multilabel" and not isinstance(values, np.ndarray):
        values = _floats(_plain(values, where)[0], where)[:, None]
    if isinstance(values, np.ndarray):
        if task != "multilabel":
            raise InputError(f"{where} has {values.shape[1]} label columns, a {task} task has one: name it")
        if values.shape[1] != len(classes) or (names or classes) != classes:
            raise InputError(f"{where} has {values.shape[1]} label columns, wanted are: {', '.join(map(str, classes))}")
        has_labels = bool(np.any(~np.isnan(values) & (values != -1)))
        return _multilabel(values, names, where) if has_labels else unlabelled(len(values), task, classes)
    values, missing = _plain(values, where)
    if task == "regression":  # integers, including -1, are values too
        return counted(_floats(values, where), task, [])
    if missing.all():
        return unlabelled(len(values), task, classes)
    known = pa.array(classes) if classes else pa.array([], pa.large_string())
    try:
        codes = _codes(values.cast(known.type), missing, known)
    except pa.ArrowException:
        raise InputError(f"{where}: labels are {values.type}, the store's are {known.type}") from None
    strange = pc.unique(values.filter(pa.array((codes < 0) & ~missing))).to_pylist()
    if strange:
        shown = ", ".join(repr(value) for value in strange[:5]) + (", …" if len(strange) > 5 else "")
        raise InputError(
            f"{where}: {shown} is no class of the store, and its classes are what models predict: leave "
            "such labels empty, or ingest everything again"
        )
    return counted(codes, task, classes)


def num_label_columns(task: str, num_outputs: int) -> int:
    """Number of label columns for counts and lookups: two for binary tasks, although models have one output."""
    return 2 if task == "binary" else num_outputs


def labelled(values: Array, task: str) -> Array:
    """Boolean [n]: true for encoded values that are labels."""
    if task == "multilabel":
        return np.asarray(~np.isnan(values).all(axis=1))
    return np.asarray(~np.isnan(values) if task == "regression" else values >= 0)


def scatter(encoded: Encoded, rows: Array, num_nodes: int) -> Array:
    """Encoded values placed at `rows`; all other nodes have no label."""
    empty: Any = -1 if encoded.values.dtype.kind == "i" else np.nan
    spread = np.full((num_nodes, *encoded.values.shape[1:]), empty, dtype=encoded.values.dtype)
    spread[rows] = encoded.values
    return spread


def _plain(values: Any, where: str) -> tuple[Any, Array]:
    """(values, mask of missing values). Dictionaries are decoded; floats without fractions become integers, other
    floats float64 with null for NaN."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        infinite = np.flatnonzero(np.isinf(numbers))
        if infinite.size:
            raise InputError(f"{where}: label {numbers[infinite[0]]} in row {int(infinite[0])} is not a finite number")
        values, known = pa.array(numbers, from_pandas=True), numbers[~np.isnan(numbers)]
        if (known == np.floor(known)).all() and (np.abs(known) < 2**53).all():
            values = values.cast(pa.int64())
    elif is_text(kind):
        values = values.cast(pa.large_string())
    elif not (pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"{where}: labels must be numbers or text, found {kind}")
    if pa.types.is_signed_integer(values.type):
        missing = pc.equal(values, pa.scalar(-1, values.type)).fill_null(True)
    elif is_text(values.type):
        missing = pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True)
    else:
        missing = values.is_null()
    return values, np.asarray(missing.to_numpy(zero_copy_only=False))


def _codes(values: Any, missing: Array, classes: Any) -> Array:
    """int32 [n]: the class index of each value, -1 for a missing or unknown value."""
    places = pc.index_in(values, value_set=classes).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(missing, -1, places).astype(np.int32)


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
    classes: list[Any] = list(names) if names else list(range(numbers.shape[1]))
    encoded = counted(numbers, "multilabel", classes)
    if encoded.num_labelled == 0:
        raise InputError(f"{where}: every label is missing (empty, null, NaN or -1), so there is nothing to learn from")
    return encoded


def _floats(values: Any, where: str) -> Array:
    """float32 with NaN for missing."""
    try:
        return np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float32)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{where}: labels are {values.type}, numbers are wanted for this task") from None
