"""Prediction files: tables that come one after the other → one Parquet, CSV, npz or npy file.

Enters: where to, and tables of the same columns. Leaves: the file, under its name only when it is whole; until then it
lies beside it as `.NAME.partial`, which the same command replaces when it is run again. Cost: one table at a time; an
npz has each column in one piece, so columns lie in unnamed files of the same folder until the end, as does that of an
npy, which is the last one alone.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import ConfigError, InputError, disk_errors
from .io.locks import Lock, check_free
from .io.remote import refuse_url
from .types import Array, PathLike

_SUFFIXES = (".parquet", ".csv", ".npz")


def check_prediction_file(
    out: PathLike, overwrite: bool, what: str = "predictions", suffixes: tuple[str, ...] = _SUFFIXES
) -> None:
    """Refuse a name that cannot be written, or that is taken or being written, before any work is done."""
    refuse_url(out, what)
    out = Path(out)
    if out.suffix not in suffixes:
        raise ConfigError(f"cannot write {out}: {what} end in {', '.join(suffixes)}")
    if out.is_dir():
        raise InputError(f"{out} is a folder: choose another --out")
    check_free(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: choose another --out, or say --overwrite to replace it")


class PredictionFile:
    """A file in the making: `add` tables to it. Made by `prediction_file`."""

    def __init__(self, out: Path, csv_safe: bool = False) -> None:
        self.out, self.partial = out, out.with_name(f".{out.name}.partial")
        self._csv_safe = csv_safe
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Write these rows behind those before."""
        if self._csv_safe:
            table = _without_formulas(table)
        with disk_errors(self.out):
            if self._writer is None:
                self._writer = self._made(table.schema)
            if table.num_rows or isinstance(self._writer, _NpzWriter):
                self._writer.write(table)

    def finish(self, overwrite: bool) -> None:
        """Give it its name."""
        with disk_errors(self.out):
            writer, self._writer = self._writer, None
            writer.close()
            if self.out.exists() and not overwrite:
                raise InputError(f"{self.out} has appeared meanwhile: choose another --out, or say --overwrite")
            os.replace(self.partial, self.out)

    def drop(self) -> None:
        """What is left of it after an error goes; nothing else does."""
        with suppress(OSError):  # the error that led here is the one to tell
            if isinstance(self._writer, _NpzWriter):
                self._writer.forget()
            elif self._writer is not None:
                self._writer.close()
        self.partial.unlink(missing_ok=True)

    def _made(self, schema: Any) -> Any:
        if self.out.suffix == ".parquet":
            import pyarrow.parquet as pq

            return pq.ParquetWriter(self.partial, schema, write_page_checksum=True)
        if self.out.suffix == ".csv":
            from pyarrow import csv

            return csv.CSVWriter(self.partial, schema)
        if self.out.suffix == ".npy":
            return _NpyWriter(self.partial, schema.names[-1:])
        return _NpzWriter(self.partial, schema.names)


@contextmanager
def prediction_file(out: PathLike, overwrite: bool = False, csv_safe: bool = False) -> Iterator[PredictionFile]:
    """A file to add tables to, one at least. It gets its name at the end; nothing is left of it after an error.
    `csv_safe` puts a single quote before text that a spreadsheet would run as a formula."""
    with Lock(out):
        file = PredictionFile(Path(out), csv_safe)
        try:
            yield file
            file.finish(overwrite)
        finally:
            file.drop()


class _NpzWriter:
    """Columns of an npz, each in a file of its own until all rows are there."""

    def __init__(self, file: Path, names: list[str]) -> None:
        self.file = file
        self._columns = {name: _Column(file.parent) for name in names}

    def close(self) -> None:
        try:
            with zipfile.ZipFile(self.file, "w", allowZip64=True) as archive:
                for name, column in self._columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        column.copy_to(member)
        finally:
            self.forget()

    def forget(self) -> None:
        for column in self._columns.values():
            column.stream.close()

    def write(self, table: pa.Table) -> None:
        for name, column in self._columns.items():
            column.add(_plain(table[name]))


class _NpyWriter(_NpzWriter):
    """The one column it is given, as it would lie in an npz."""

    def close(self) -> None:
        try:
            with open(self.file, "wb") as stream:
                for column in self._columns.values():
                    column.copy_to(stream)
        finally:
            self.forget()


class _Column:
    """Values of one column, part by part. Text is as wide as its part needs: the widest is known at the end only."""

    def __init__(self, folder: Path) -> None:
        self.stream: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `forget`
        self.parts: list[tuple[np.dtype[Any], int]] = []
        self.row_shape: tuple[int, ...] = ()

    def add(self, values: Array) -> None:
        self.stream.write(np.ascontiguousarray(values).tobytes())
        self.parts.append((values.dtype, values.size))
        self.row_shape = values.shape[1:]

    def copy_to(self, member: IO[bytes]) -> None:
        """As a `.npy` file."""
        dtype = np.result_type(*(kind for kind, _ in self.parts))
        num_rows = sum(count for _, count in self.parts) // math.prod(self.row_shape)
        shape = (num_rows, *self.row_shape)
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, about)
        self.stream.seek(0)
        for kind, count in self.parts:
            values = np.frombuffer(self.stream.read(kind.itemsize * count), dtype=kind)
            member.write(values.astype(dtype).tobytes())


def _without_formulas(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            safe = pc.replace_substring_regex(table.column(number), r"^([=+\-@\t\r\n＝＋－＠])", r"'\1")
            table = table.set_column(number, field, safe)
    return table


def _plain(column: Any) -> Array:
    """A column as a NumPy array that needs no pickle; lists of one length are its rows."""
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.combine_chunks().flatten().to_numpy()).reshape(-1, column.type.list_size)
    values: Array = column.to_numpy()
    return values.astype(str) if values.dtype == object else values
