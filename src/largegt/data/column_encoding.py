"""Fitted columns of a table and their transform to features.

Enters: fitted columns (from columns.py or JSON) and batches of table rows. Leaves: float32 [rows, width], always
finite, independent of the batches. Cost: the output and a few copies of one column's rows; time linear in the cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, Strict, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from largegt.errors import ConfigError, FormatError, InputError, first_line
from largegt.io.checksums import is_checksum
from largegt.types import MISSING_MARKERS, Array

from . import column_kernels as kernels
from .column_cells import MICROS_PER_DAY, Cells, cells_of
from .text_model import embeddings, named_text_model

Kind = Literal["number", "log", "boolean", "category", "date", "text", "vector", "ignored"]
KINDS: tuple[str, ...] = get_args(Kind)
MAX_WIDTH = 1 << 20
_MAX_DIMS = 1 << 16
_MINUTES = 24 * 60


@dataclass(frozen=True)
class ColumnOptions:
    """Options for encoding columns."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds that the user sets, by column name."""
    missing_values: Literal["mean", "refuse"] = "mean"
    missing_markers: tuple[str, ...] = ("", *MISSING_MARKERS)
    max_categories: int = 64
    hash_buckets: int = 64
    text_dims: int = 256
    text_model: str | None = None

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in (*KINDS, "ignore"):
                choices = ", ".join((*KINDS[:-1], "ignore"))
                raise ConfigError(f"kind {kind!r} of column {shown(name)} is unknown: choose one of {choices}")


def shown(cell: object) -> str:
    """User text in quotes, truncated to 40 characters."""
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:39] + "…")


Text = Annotated[str, Strict()]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Mean = Annotated[float, Field(ge=-3.4e38, le=3.4e38)]


@pydantic_dataclass(frozen=True, config={"extra": "forbid"})
class Column:
    """One fitted column, with all parameters of its transform. pydantic refuses invalid values."""

    name: Text
    kind: Kind
    missing: Count = 0
    """Rows of the fitted table without a value; if there are any, a 0/1 feature indicates missing values."""
    distinct: Count | None = None
    """Distinct values in the fitted table; None if not counted."""
    reason: Text = ""
    """Why the column is ignored."""
    notes: tuple[Text, ...] = ()
    means: tuple[Mean, ...] = ()
    """Means over training rows: of a number, and for `log` also of its absolute value; of the year and the age in days
    of a date; of each element of a vector."""
    categories: tuple[Text, ...] = ()
    words: tuple[Text, ...] = ()
    """The most frequent words of training rows: one feature each; other words are hashed."""
    dims: Annotated[int, Field(strict=True, ge=0, le=_MAX_DIMS)] = 0
    """Number of buckets of a hashed category, of features of a text, or of elements of a vector."""
    newest: Annotated[int, Field(strict=True, gt=-(1 << 58), lt=1 << 58)] = 0
    """The newest date, in microseconds since 1970."""
    has_time: Annotated[bool, Strict()] = False
    """Whether dates have a time of day."""
    model: Text = ""
    """Folder of the sentence-transformers model for text; if empty, words are hashed."""
    model_checksum: Text = ""
    """Checksum of the files in that folder."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        kind = self.kind
        num_means = {"number": 1, "log": 2, "date": 2, "vector": self.dims}.get(kind, 0)
        is_whole = self.dims > 0 or kind not in ("text", "vector")
        if len(self.means) != num_means or not is_whole or (kind == "log" and self.means[1] <= 0):
            raise ValueError(f"{len(self.means)} means and {self.dims} dims of a {kind}")
        for values, most in ((self.categories, _MAX_DIMS), (self.words, self.dims if kind == "text" else 0)):
            if len(values) > most or len(set(values)) < len(values):
                raise ValueError("categories or words are too many, or are there twice")
        if self.model and not (kind == "text" and "\0" not in self.model and is_checksum(self.model_checksum)):
            raise ValueError("its text model is wrong")
        return self

    @cached_property
    def width(self) -> int:
        """Number of output features."""
        if self.kind == "ignored":
            return 0
        plain = {"number": 1, "log": 1, "boolean": 1, "date": 8 if self.has_time else 6}.get(self.kind, self.dims)
        if self.kind == "category" and not self.dims:
            plain = len(self.categories) + 1
        return plain + self.has_indicator

    @property
    def has_indicator(self) -> bool:
        """Whether the last feature indicates missing values."""
        return self.missing > 0 and self.kind not in ("vector", "ignored")

    @property
    def names(self) -> list[str]:
        """The names of the output features."""
        name, last = self.name, "=(missing)" if self.kind == "category" else " is missing"
        if self.kind == "date":
            cycles = ("month", "weekday", "hour") if self.has_time else ("month", "weekday")
            parts = [".year", *(f".{cycle}_{wave}" for cycle in cycles for wave in ("sin", "cos")), ".age_days"]
        elif self.kind == "category" and not self.dims:
            parts = [*(f"={value}" for value in self.categories), "=(other)"]
        elif self.kind in ("category", "text", "vector"):
            form = {"category": "#{}", "text": "~#{}", "vector": "[{}]"}[self.kind]
            words = [f"~{word}" for word in self.words]
            parts = [*words, *(form.format(place) for place in range(len(words), self.dims))]
        else:
            parts = [""] if self.width else []
        return [name + part for part in (*parts, *([last] if self.has_indicator else []))]

    @property
    def used_as(self) -> str:
        """Short description of the encoding."""
        forms = {
            "number": "number", "log": "number on a log scale", "boolean": "0 or 1",
            "date": "year, cycles and age", "vector": "numbers",
            "category": "hashed categories" if self.dims else "one-hot",
            "text": "sentence embedding" if self.model else "words",
        }  # fmt: skip
        return f"{forms[self.kind]}, {self.width} wide" if self.width else f"ignored: {self.reason}"


def _encode_number(column: Column, cells: Cells, out: Array) -> Array:
    values, read = cells.numbers
    out[:, 0] = np.where(read, values, column.means[0])
    return ~read


def _encode_log(column: Column, cells: Cells, out: Array) -> Array:
    values, read = cells.numbers
    mean, size = column.means
    kernels.take_logarithms(np.where(read, values, mean), size, out[:, 0])
    return ~read


def _encode_boolean(column: Column, cells: Cells, out: Array) -> Array:
    values, read = cells.booleans
    out[:, 0] = np.where(read, values, 0.5)
    return ~read


def _encode_category(column: Column, cells: Cells, out: Array) -> Array:
    valid, rows = cells.text_valid, np.arange(len(cells))
    if column.dims:
        hashes = np.empty(len(cells), np.uint64)
        kernels.hash_cells(*cells.buffers, hashes)
        places = (hashes % np.uint64(column.dims)).astype(np.int64)
    else:
        known = pa.array(column.categories, pa.large_string())
        places = pc.index_in(cells.text, value_set=known).fill_null(len(known)).to_numpy(zero_copy_only=False)
    out[rows[valid], places[valid]] = 1.0
    return ~valid


def _encode_text(column: Column, cells: Cells, out: Array) -> Array:
    features = out[:, : column.dims]
    if not column.model:
        kernels.hash_words(*cells.buffers, *_word_hashes(column.words), features)
    elif (rows := np.flatnonzero(cells.text_valid)).size:
        model = named_text_model(column.model, column.model_checksum)
        found = embeddings(model, cells.text.take(pa.array(rows)).to_pylist())
        if found.shape[1] != column.dims:
            raise InputError(
                f"{column.model} makes {found.shape[1]} features, the store has {column.dims}: ingest again"
            )
        features[rows] = np.nan_to_num(found, posinf=0.0, neginf=0.0)
    return ~cells.text_valid


def _word_hashes(words: tuple[str, ...]) -> tuple[Array, Array]:
    """(sorted uint64 hashes of words; the index of each word)."""
    hashes = np.empty(len(words), np.uint64)
    kernels.hash_cells(*Cells(pa.array(words, pa.large_string()), pa.array([], pa.large_string())).buffers, hashes)
    places = np.argsort(hashes)
    return hashes[places], places


def _encode_vector(column: Column, cells: Cells, out: Array) -> Array:
    lengths, values = cells.vectors()
    wrong = np.flatnonzero(lengths != column.dims)
    if wrong.size:
        raise _WrongVectorError(int(wrong[0]), int(lengths[wrong[0]]))
    table = values.reshape(-1, column.dims)
    empty = np.isnan(table)
    out[:] = np.where(empty, np.array(column.means), table)
    return np.asarray(empty.any(axis=1))


class _WrongVectorError(Exception):
    """(row of the batch, length; -1: null)."""


def _waves(steps: int) -> Array:
    """float64 [steps, 2]: sine and cosine of a cycle. A table avoids vectorized calls, whose bits can differ."""
    turns = [2 * math.pi * step / steps for step in range(steps)]
    return np.array([(math.sin(turn), math.cos(turn)) for turn in turns])


_WAVES = {steps: _waves(steps) for steps in (7, 12, _MINUTES)}


def years_and_days(micros: Array) -> Array:
    """float64 [n, 2]: calendar year, and days since 1970 with fractions."""
    years = micros.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return np.stack([years.astype(np.float64), micros / MICROS_PER_DAY], axis=1)


def _encode_date(column: Column, cells: Cells, out: Array) -> Array:
    micros, read = cells.dates
    day = micros // MICROS_PER_DAY
    months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64) % 12
    cycles = [(12, months), (7, (day + 3) % 7)]  # 1970 began on a Thursday, weeks on Monday
    if column.has_time:
        cycles.append((_MINUTES, (micros - day * MICROS_PER_DAY) // 60_000_000))
    out[:, 0] = np.where(read, years_and_days(micros)[:, 0], column.means[0])
    for place, (steps, step) in enumerate(cycles):
        out[:, 1 + 2 * place : 3 + 2 * place] = np.where(read[:, None], _WAVES[steps][step], 0.0)
    out[:, 1 + 2 * len(cycles)] = np.where(read, (column.newest - micros) / MICROS_PER_DAY, column.means[1])
    return ~read


_ENCODERS = {
    "number": _encode_number, "log": _encode_log, "boolean": _encode_boolean, "category": _encode_category,
    "text": _encode_text, "vector": _encode_vector, "date": _encode_date,
}  # fmt: skip


@pydantic_dataclass(frozen=True, config={"extra": "forbid"})
class Columns:
    """The fitted transform of a table, in column order."""

    columns: list[Column]
    missing_values: Literal["mean", "refuse"] = "mean"
    missing_markers: tuple[Text, ...] = MISSING_MARKERS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("two columns have one name")
        if self.width > MAX_WIDTH:
            raise ValueError(f"{self.width} features, at most {MAX_WIDTH} are possible")
        return self

    @cached_property
    def width(self) -> int:
        """Number of output features."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> list[str]:
        """The names of the output features."""
        return [name for column in self.columns for name in column.names]

    @cached_property
    def spans(self) -> list[tuple[Column, slice]]:
        """Every used column, with the slice of its features."""
        ends = np.cumsum([column.width for column in self.columns], dtype=np.int64).tolist()
        spans = [(column, slice(end - column.width, end)) for column, end in zip(self.columns, ends, strict=True)]
        return [(column, span) for column, span in spans if column.width]

    @property
    def input_columns(self) -> list[str]:
        """The table columns that `transform` reads."""
        return [column.name for column, _ in self.spans]

    def transform(self, batch: pa.RecordBatch, where: str, first_row: int = 0) -> Array:
        """float32 [rows, width] of a batch. `where` and `first_row` locate the batch in error messages."""
        out = np.zeros((batch.num_rows, self.width), dtype=np.float32)
        markers = pa.array(self.missing_markers, pa.large_string())
        places = {name: place for place, name in enumerate(batch.schema.names)}
        for column, _ in self.spans:
            if column.name not in places:
                raise InputError(f"{where} has no column {shown(column.name)}, which the features need: add it")
        every = cells_of([batch.column(places[column.name]) for column, _ in self.spans], markers)
        for (column, span), cells in zip(self.spans, every, strict=True):
            missing = _encode(column, cells, out[:, span], (where, first_row))
            if self.missing_values == "refuse":
                refuse_missing(column, missing, where, first_row)
        return out

    def table(self) -> list[dict[str, Any]]:
        """One row per column, for display."""
        return [
            {
                "column": column.name, "kind": column.kind, "used_as": column.used_as, "missing": column.missing,
                "distinct": column.distinct, "notes": list(column.notes),
            }
            for column in self.columns
        ]  # fmt: skip

    def to_json(self) -> Any:
        """JSON-compatible values, without defaults."""
        return _COLUMNS.dump_python(self, mode="json", exclude_defaults=True)

    @classmethod
    def from_json(cls, data: Any) -> Columns:
        """Inverse of `to_json`; invalid data is a FormatError."""
        try:
            return _COLUMNS.validate_python(data)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise FormatError(
                f"the fitted columns cannot be read: {where} {wrong['msg']}; ingest the tables again"
            ) from None


_COLUMNS = TypeAdapter(Columns)


def _encode(column: Column, cells: Cells, out: Array, at: tuple[str, int]) -> Array:
    """Fill `out` [rows, width], initially zeros; return a mask [rows] of missing cells. `at` is the table and the first
    row of the batch."""
    where = f"{at[0]}, column {shown(column.name)}"
    try:
        missing = np.asarray(_ENCODERS[column.kind](column, cells, out))
    except _WrongVectorError as wrong:
        row, length = wrong.args
        raise wrong_vector(where, at[1] + row, length, column.dims) from None
    except (pa.ArrowException, UnicodeError) as error:
        raise InputError(f"{where} cannot be read: {first_line(error)}") from error
    if column.has_indicator:
        out[:, -1] = missing
    return missing


def wrong_vector(where: str, row: int, length: int, expected: int) -> InputError:
    """The error for a null vector (length -1) or a vector of a different length."""
    got = "no vector" if length < 0 else f"a vector of {length} numbers"
    return InputError(f"{where}: row {row} has {got}, expected {expected} numbers in every row: mend or ignore it")


def refuse_missing(column: Column, missing: Array, where: str, first_row: int) -> None:
    """Raise an error for the first missing cell of a column whose kind cannot represent missing values."""
    if column.kind in ("number", "log", "boolean", "date", "vector") and missing.any():
        row = first_row + int(np.flatnonzero(missing)[0])
        raise InputError(
            f"{where}: column {shown(column.name)} has no {column.kind} in row {row}, and missing_values is refuse: "
            "fill the cell, or use missing_values=mean"
        )
