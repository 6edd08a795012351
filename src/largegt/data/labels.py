"""Labels: from the user's values to numbers, and back by `classes`.

Enters: an Arrow column, or float32 [n, c]. Leaves: int32 [n] (-1: none), float32 [n] (NaN) for regression, or
float32 [n, c] (NaN) for multi-label; the task; the classes as the user wrote them. Cost: what leaves, and a block of
rows; a column is gone through several times, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, InputError
from ..types import Array, Task
from .column_cells import is_text

_BLOCK_ROWS = 1 << 21


_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_DECIMAL = r"^[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$"


def from_text(values: Any, markers: Sequence[str]) -> Any:
    """A column of text as what it holds: whole numbers, fractions, true and false, or text. Missing markers are null,
    and so are empty cells."""
    text = without_markers(values, markers)
    if not is_text(text.type) or text.null_count == len(text):
        return text
    if _all(pc.match_substring_regex(text, _WHOLE)):
        return text.cast(pa.int64())
    if _all(pc.match_substring_regex(text, _DECIMAL)) and _all(pc.match_substring_regex(text, "[0-9]")):
        return text.cast(pa.float64())
    lower = pc.utf8_lower(text)
    if _all(pc.or_(pc.equal(lower, "true"), pc.equal(lower, "false"))):
        return pc.equal(lower, "true")
    return text


def without_markers(values: Any, markers: Sequence[str]) -> Any:
    """A column of text without blanks around it, null where a cell is empty or a missing marker; others as they are."""
    if not is_text(values.type):
        return values
    text = pc.utf8_trim_whitespace(values)
    missing = pc.is_in(text, value_set=pa.array([*markers, ""], text.type))
    return pc.if_else(missing, pa.scalar(None, text.type), text)


def _all(flags: Any) -> bool:
    return bool(pc.all(flags, skip_nulls=True).as_py())


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
    column = _Column(values, where)
    if all(missing.all() for _, missing in column.blocks()):
        raise InputError(f"{where}: every label is missing (empty, null, NaN or -1), so there is nothing to learn from")
    if task == "multilabel":
        return _multilabel(_floats(column)[:, None], names, where)
    if task == "regression" or (task == "auto" and column.has_fractions):
        return _regression(column)
    return _classes(column, task)


def unlabelled(num_nodes: int, task: Task, classes: list[Any]) -> Encoded:
    """So many nodes without a label, in the form that a task's labels have."""
    counts = [] if task == "regression" else [0] * len(classes)
    if task in ("multiclass", "binary"):
        return Encoded(np.full(num_nodes, -1, dtype=np.int32), task, classes, counts, 0)
    shape = (num_nodes, len(classes)) if task == "multilabel" else (num_nodes,)
    return Encoded(np.full(shape, np.nan, dtype=np.float32), task, classes, counts, 0)


def encode_as(values: Any, names: list[str] | None, task: Task, classes: list[Any], where: str) -> Encoded:
    """Encode more labels of a task whose classes are known; a value that is none of them is refused."""
    if task == "multilabel" and not isinstance(values, np.ndarray):
        values = _floats(_Column(values, where))[:, None]
    if isinstance(values, np.ndarray):
        if task != "multilabel":
            raise InputError(f"{where} has {values.shape[1]} label columns, a {task} task has one: name it")
        if values.shape[1] != len(classes) or (names or classes) != classes:
            raise InputError(f"{where} has {values.shape[1]} label columns, wanted are: {', '.join(map(str, classes))}")
        known = bool(np.any(~np.isnan(values) & (values != -1)))
        return _multilabel(values, names, where) if known else unlabelled(len(values), task, classes)
    column = _Column(values, where)
    if task == "regression":  # a few whole numbers, -1 among them, are values too
        numbers = _floats(column)
        return Encoded(numbers, task, [], [], int(np.count_nonzero(~np.isnan(numbers))))
    if all(missing.all() for _, missing in column.blocks()):
        return unlabelled(len(column), task, classes)
    return _known_classes(column, task, classes)


def num_label_columns(task: str, num_outputs: int) -> int:
    """Columns that labels are counted or looked up in: two for binary, where a model has one output."""
    return 2 if task == "binary" else num_outputs


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


class _Column:
    """One label per row, in plain form: without dictionaries, floats that are all whole as whole numbers."""

    def __init__(self, values: Any, where: str) -> None:
        self.where = where
        self._values = values
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        self._from_floats = pa.types.is_decimal(kind) or pa.types.is_floating(kind)
        known = (
            pa.types.is_null,
            pa.types.is_integer,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_boolean,
        )
        if not (self._from_floats or any(is_kind(kind) for is_kind in known)):
            raise InputError(f"{where}: labels must be numbers or text, found {kind}")
        self.has_fractions = self._from_floats and not self._all_whole()

    def __len__(self) -> int:
        return len(self._values)

    def blocks(self) -> Iterator[tuple[Any, Array]]:
        """(values, which are missing), block by block."""
        for values in self._plain_blocks():
            if self._from_floats and not self.has_fractions:
                values = values.cast(pa.int64())
            if pa.types.is_signed_integer(values.type):
                missing = pc.equal(values, pa.scalar(-1, values.type)).fill_null(True)
            elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                values = values.cast(pa.large_string())
                missing = pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True)
            else:
                missing = values.is_null()
            yield values, np.asarray(missing.to_numpy(zero_copy_only=False))

    def _plain_blocks(self) -> Iterator[Any]:
        """Slices without dictionaries; floats have 64 bits, and null for NaN."""
        for start in range(0, len(self._values), _BLOCK_ROWS):
            values = self._values.slice(start, _BLOCK_ROWS)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if self._from_floats:
                values = pa.array(values.cast(pa.float64()).to_numpy(zero_copy_only=False), from_pandas=True)
            yield values

    def _all_whole(self) -> bool:
        """Whether every float is a whole number; infinite ones are refused."""
        whole, row = True, 0
        for values in self._plain_blocks():
            numbers = values.to_numpy(zero_copy_only=False)
            infinite = np.flatnonzero(np.isinf(numbers))
            if infinite.size:
                raise InputError(
                    f"{self.where}: label {numbers[infinite[0]]} in row {row + int(infinite[0])} is not a finite number"
                )
            known = numbers[~np.isnan(numbers)]
            whole = whole and bool((known == np.floor(known)).all() and (np.abs(known) < 2**53).all())
            row += len(numbers)
        return whole


def _classes(column: _Column, task: str) -> Encoded:
    distinct: Any = None
    for values, missing in column.blocks():
        found = pc.unique(values.filter(pa.array(~missing)))
        distinct = found if distinct is None else pc.unique(pa.concat_arrays([distinct, found]))
    distinct = distinct.take(pc.sort_indices(distinct))
    if task == "binary" and len(distinct) != 2:
        raise ConfigError(
            f"{column.where} has {len(distinct)} different labels, task 'binary' takes two: use task=multiclass"
        )
    codes = np.empty(len(column), dtype=np.int32)
    counts = np.zeros(len(distinct), dtype=np.int64)
    row = 0
    for values, missing in column.blocks():
        places = pc.index_in(values, value_set=distinct).fill_null(-1).to_numpy(zero_copy_only=False)
        block = codes[row : row + len(places)]
        block[:] = np.where(missing, -1, places)
        counts += np.bincount(block[block >= 0], minlength=len(distinct))
        row += len(places)
    kind: Task = "binary" if task == "binary" or (task == "auto" and len(distinct) == 2) else "multiclass"
    return Encoded(codes, kind, distinct.to_pylist(), [int(count) for count in counts], int(counts.sum()))


def _known_classes(column: _Column, task: Task, classes: list[Any]) -> Encoded:
    known = pa.array(classes) if classes else pa.array([], pa.large_string())
    codes = np.empty(len(column), dtype=np.int32)
    row = 0
    for values, missing in column.blocks():
        try:
            alike = values.cast(known.type)
        except pa.ArrowException:
            raise InputError(f"{column.where}: labels are {values.type}, the store's are {known.type}") from None
        places = pc.index_in(alike, value_set=known).fill_null(-1).to_numpy(zero_copy_only=False)
        strange = pc.unique(values.filter(pa.array((places < 0) & ~missing))).to_pylist()
        if strange:
            shown = ", ".join(repr(value) for value in strange[:5]) + (", …" if len(strange) > 5 else "")
            raise InputError(
                f"{column.where}: {shown} is no class of the store, and its classes are what models predict: leave "
                "such labels empty, or ingest everything again"
            )
        codes[row : row + len(places)] = np.where(missing, -1, places)
        row += len(places)
    counts = np.bincount(codes[codes >= 0], minlength=len(classes))
    return Encoded(codes, task, classes, [int(count) for count in counts], int(counts.sum()))


def _regression(column: _Column) -> Encoded:
    numbers = _floats(column)
    labelled = len(numbers) - int(np.count_nonzero(np.isnan(numbers)))
    if labelled == 0:
        raise InputError(f"{column.where}: every label is missing, so there is nothing to learn from")
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


def _floats(column: _Column) -> Array:
    """float32 with NaN for missing."""
    numbers = np.empty(len(column), dtype=np.float32)
    row = 0
    for values, _ in column.blocks():
        try:
            numbers[row : row + len(values)] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InputError(f"{column.where}: labels are {values.type}, numbers are wanted for this task") from None
        row += len(values)
    return numbers
