"""Cells of a table: parse an Arrow column of any type as numbers, booleans, dates, text or vectors.

Enters: an Arrow array of text (as in CSV files) or typed values (as in Parquet files). Leaves: NumPy arrays and masks
of the parsed rows. Text and typed cells with the same content give the same bits; cells are parsed independently.
Cost: a few copies of the column's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.types import Array

from . import column_kernels as kernels

BLANKS = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
"""Whitespace that is trimmed from both ends of a cell."""
MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -719162 * MICROS_PER_DAY, 2932897 * MICROS_PER_DAY
_UNITS = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
_TRUE, _FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
_FEW_ROWS = 256
_WORDS = pa.array([*_TRUE, *_FALSE], pa.large_string())


def type_group(kind: Any) -> str:
    """`text`, `number`, `boolean`, `date`, `vector`, `empty`, or `other` for unsupported types."""
    if isinstance(kind, pa.BaseExtensionType):
        return type_group(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return type_group(kind.value_type)
    if pa.types.is_null(kind):
        return "empty"
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    return "vector" if _is_list(kind) and type_group(kind.value_type) in ("number", "empty") else "other"


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def trimmed(text: Any, markers: Any) -> Any:
    """Text without surrounding whitespace; null for a missing marker."""
    cells = pc.utf8_trim_whitespace(text.cast(pa.large_string()))
    return pc.if_else(pc.is_in(cells, value_set=markers), pa.scalar(None, pa.large_string()), cells)


def plain(array: Any) -> Any:
    """The array as a single chunk, without extension types and dictionaries."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


class Cells:
    """The rows of one column, parsed independently."""

    def __init__(self, array: Any, markers: Any) -> None:
        self.array = plain(array)
        self.group = type_group(self.array.type)
        self._markers = markers

    def __len__(self) -> int:
        return len(self.array)

    def parts(self, rows: int) -> Iterator[Cells]:
        """Text cells, parsed together, in parts of `rows` rows."""
        (offsets, data, valid), (values, read) = self.buffers, self.numbers
        for low in range(0, len(self), rows):
            part, some = object.__new__(Cells), slice(low, low + rows)
            part.array = part.text = self.text.slice(low, rows)
            part.group, part._markers = self.group, self._markers
            part.text_valid = part.filled = valid[some]
            part.buffers, part.numbers = (offsets[low : low + rows + 1], data, valid[some]), (values[some], read[some])
            yield part

    @cached_property
    def text(self) -> Any:
        """Trimmed text, null for a missing cell; typed values as canonical text."""
        if self.group != "text":
            return _canonical(self.array)
        return trimmed(self.array, self._markers)

    @cached_property
    def filled(self) -> Array:
        """Boolean [n]: the cell has a value, valid or not."""
        if self.group == "text":
            return self.text_valid
        return ~np.asarray(pc.is_null(self.array, nan_is_null=True).to_numpy(zero_copy_only=False))

    @cached_property
    def buffers(self) -> tuple[Array, Array, Array]:
        """(offsets, bytes, valid) of the text, for the kernels."""
        _, offsets, data = self.text.buffers()
        if not len(self) or offsets is None:
            return _frozen(np.zeros(len(self) + 1, np.int64)), _frozen(np.zeros(1, np.uint8)), self.text_valid
        places = np.frombuffer(offsets, np.int64)[self.text.offset : self.text.offset + len(self) + 1]
        has_bytes = data is not None and data.size > 0
        return places, np.frombuffer(data, np.uint8) if has_bytes else _frozen(np.zeros(1, np.uint8)), self.text_valid

    @cached_property
    def text_valid(self) -> Array:
        return np.asarray(self.text.is_valid().to_numpy(zero_copy_only=False))

    @cached_property
    def numbers(self) -> tuple[Array, Array]:
        """float64 [n], and a mask of numbers that are finite as float32."""
        if self.group == "boolean":
            values, read = _zeroed(self.array.cast(pa.uint8())).astype(np.float64), self.filled
        elif self.group == "number" and not pa.types.is_decimal(self.array.type):
            values = _zeroed(self.array).astype(np.float64)
            read = self.filled
        elif self.group in ("number", "text"):
            values, read = self._text_numbers()
        else:
            return np.zeros(len(self)), np.zeros(len(self), dtype=bool)
        with np.errstate(over="ignore"):
            read = read & np.isfinite(values.astype(np.float32))
        return np.where(read, values, 0.0) + 0.0, read  # + 0.0: no negative zeros

    def _text_numbers(self) -> tuple[Array, Array]:
        states, values = np.empty(len(self), np.uint8), np.empty(len(self))
        kernels.read_numbers(*self.buffers, states, values)
        long = np.flatnonzero(states == kernels.LONG)
        if long.size:
            cells = self.text.take(pa.array(long)).to_pylist()
            values[long] = [float(cell.replace(",", "")) for cell in cells]
        return values, states != kernels.NOT_A_NUMBER

    @cached_property
    def booleans(self) -> tuple[Array, Array]:
        """float64 [n] (0 or 1), and a mask of boolean cells."""
        if self.group in ("boolean", "number"):
            values, read = self.numbers
            return values, read & ((values == 0) | (values == 1))
        if self.group != "text":
            return np.zeros(len(self)), np.zeros(len(self), dtype=bool)
        found = pc.index_in(pc.ascii_lower(self.text), value_set=_WORDS)
        places = np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False))
        read = (places >= 0) & self.text_valid
        return (read & (places < len(_TRUE))).astype(np.float64), read

    @cached_property
    def dates(self) -> tuple[Array, Array]:
        """int64 [n], microseconds since 1970 in UTC, and a mask of dates in the years 1 to 9999."""
        good, micros = np.zeros(len(self), dtype=bool), np.zeros(len(self), dtype=np.int64)
        if self.group == "text":
            kernels.read_dates(*self.buffers, good, micros)
        elif self.group == "date":
            kind = self.array.type
            days = pa.types.is_date32(kind)
            whole = _zeroed(self.array.cast(pa.int32() if days else pa.int64())).astype(np.int64)
            times, over = (MICROS_PER_DAY, 1) if days else _UNITS["ms" if pa.types.is_date64(kind) else kind.unit]
            good = self.filled & (whole >= _YEAR_1 // times * over) & (whole < _YEAR_10000 // times * over)
            micros = np.where(good, whole, 0) // over * times
        good = good & (micros >= _YEAR_1) & (micros < _YEAR_10000)
        return np.where(good, micros, 0), good

    def vectors(self) -> tuple[Array, Array]:
        """(lengths [n], -1 for null; concatenated values as float64 [sum of lengths], NaN for missing values)."""
        if self.group != "vector":
            return np.full(len(self), -1), np.zeros(0)
        lengths = pc.list_value_length(self.array).fill_null(-1).to_numpy(zero_copy_only=False)
        values, read = Cells(pc.list_flatten(self.array), self._markers).numbers
        return np.asarray(lengths, dtype=np.int64), np.where(read, values, np.nan)


def cells_of(arrays: Sequence[Any], markers: Any) -> Iterator[Cells]:
    """The cells of each column. Short text columns are parsed together, because each call has a fixed cost."""
    short = [0 < len(array) <= _FEW_ROWS and pa.types.is_string(array.type) for array in arrays]
    parts: Iterator[Cells] = iter(())
    if any(short):
        whole = pa.chunked_array(list(compress(arrays, short))).cast(pa.large_string())
        parts = Cells(whole, markers).parts(len(arrays[0]))
    return (next(parts) if is_short else Cells(array, markers) for array, is_short in zip(arrays, short, strict=True))


def _frozen(array: Array) -> Array:
    """A read-only array, like Arrow buffers, so that numba compiles only one version of a kernel."""
    array.setflags(write=False)
    return array


def _zeroed(array: Any) -> Array:
    """The values, with 0 for null."""
    filled = array if array.null_count == 0 else array.fill_null(0)
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _canonical(array: Any) -> Any:
    """Typed values as text: `5` for 5 and 5.0, `true`, `2024-02-29`; null for NaN."""
    kind = array.type
    if type_group(kind) in ("empty", "vector", "other"):
        return pa.nulls(len(array), pa.large_string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        return array.cast(pa.large_string())
    if pa.types.is_decimal(kind):
        values, cells = array.unique(), array
        words = [None if value is None else format(value.normalize() + Decimal(0), "f") for value in values.to_pylist()]
    else:
        cells = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)
        values = cells.unique()
        words = [_float_text(value) for value in values.to_numpy(zero_copy_only=False)]
        words = [word if value.is_valid else None for word, value in zip(words, values, strict=True)]
    return pa.array(words, pa.large_string()).take(pc.index_in(cells, value_set=values))


def _float_text(value: Any) -> str:
    """`5` for 5.0, else the shortest text that parses to the same number."""
    return str(int(value)) if np.isfinite(value) and value == int(value) and abs(value) < 1e15 else str(value)
