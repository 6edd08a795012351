"""Prediction files: writes a sequence of tables to one Parquet, CSV, npz or npy file.

The file gets its name only when it is complete; until then it is `.NAME.partial` in the same folder, which the next run
of the command replaces. Cost: one table at a time. An npz stores each column as one array, and an npy only the last
column: their rows are collected in an unnamed temporary file of the same folder until the end.
"""

from __future__ import annotations

import mmap
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

from largegt.errors import ConfigError, InputError, disk_errors
from largegt.io.locks import Lock, check_free
from largegt.io.remote import refuse_url
from largegt.types import Array, PathLike

SUFFIXES = (".parquet", ".csv", ".npz")


def check_prediction_file(
    out: PathLike, overwrite: bool, what: str = "predictions", suffixes: tuple[str, ...] = SUFFIXES
) -> None:
    """Refuse a file that cannot be written, exists already or is being written, before any work is done."""
    refuse_url(out, what)
    out = Path(out)
    if out.suffix not in suffixes:
        raise ConfigError(f"cannot write {out}: {what} end in {', '.join(suffixes)}")
    if out.is_dir():
        raise InputError(f"{out} is a folder: choose another `out`")
    check_free(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: choose another `out`, or say `overwrite=True` to replace it")


@contextmanager
def prediction_file(out: PathLike, overwrite: bool = False, csv_safe: bool = False) -> Iterator[PredictionFile]:
    """A file to add at least one table to. It gets its name at the end; after an error it is removed. `csv_safe` puts
    a single quote before text that a spreadsheet would run as a formula."""
    with Lock(out):
        file = PredictionFile(Path(out), csv_safe)
        try:
            yield file
            file.finish(overwrite)
        finally:
            file.drop()


class PredictionFile:
    """An unfinished prediction file: `add` tables to it. Created by `prediction_file`."""

    def __init__(self, out: Path, csv_safe: bool = False) -> None:
        self.out, self.partial = out, out.with_name(f".{out.name}.partial")
        self._csv_safe = csv_safe
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Append the rows of a table."""
        if self._csv_safe:
            table = _without_formulas(table)
        with disk_errors(self.out):
            if self._writer is None:
                self._writer = self._make_writer(table.schema)
            if table.num_rows:
                self._writer.write(table)

    def finish(self, overwrite: bool) -> None:
        """Close the file and give it its name."""
        with disk_errors(self.out):
            writer, self._writer = self._writer, None
            writer.close()
            if self.out.exists() and not overwrite:
                raise InputError(f"{self.out} has appeared meanwhile: choose another `out`, or say `overwrite=True`")
            os.replace(self.partial, self.out)

    def drop(self) -> None:
        """Remove the partial file after an error; does nothing after `finish`."""
        with suppress(OSError):  # the original error is the one to report
            if isinstance(self._writer, _NumPyWriter):
                self._writer.discard()
            elif self._writer is not None:
                self._writer.close()
        self.partial.unlink(missing_ok=True)

    def _make_writer(self, schema: Any) -> Any:
        if self.out.suffix == ".parquet":
            import pyarrow.parquet as pq

            return pq.ParquetWriter(self.partial, schema, write_page_checksum=True)
        if self.out.suffix == ".csv":
            from pyarrow import csv

            return csv.CSVWriter(self.partial, schema)
        return _NumPyWriter(self.partial, schema, is_archive=self.out.suffix == ".npz")


class _NumPyWriter:
    """Writes an npz, or the last column as an npy. Collects Arrow batches until the end, when text widths are known."""

    def __init__(self, file: Path, schema: Any, is_archive: bool) -> None:
        self.file, self.schema, self.is_archive = file, schema, is_archive
        self._rows: IO[bytes] = TemporaryFile(dir=file.parent)  # noqa: SIM115 - closed by `discard`
        self._stream = pa.ipc.new_stream(self._rows, schema)

    def write(self, table: pa.Table) -> None:
        self._stream.write_table(table)

    def discard(self) -> None:
        self._rows.close()

    def close(self) -> None:
        try:
            self._stream.close()
            self._rows.flush()
            mapped = mmap.mmap(self._rows.fileno(), 0, access=mmap.ACCESS_READ)
            batches = [self.schema.empty_table(), *pa.ipc.open_stream(pa.py_buffer(mapped))]
            names = self.schema.names
            if not self.is_archive:
                with open(self.file, "wb") as stream:
                    _write_column(batches, names[-1], stream)
                return
            with zipfile.ZipFile(self.file, "w", allowZip64=True) as archive:
                for name in names:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        _write_column(batches, name, member)
        finally:
            self.discard()


def _write_column(batches: list[Any], name: str, stream: Any) -> None:
    """A column of all batches as a `.npy` file, one batch in memory at a time."""
    kinds = [(part.dtype, part.shape) for part in (_as_numpy(batch.column(name)) for batch in batches)]
    dtype = np.result_type(*(kind for kind, _ in kinds))
    shape = (sum(shape[0] for _, shape in kinds), *kinds[0][1][1:])
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, about)
    for batch in batches:
        stream.write(np.ascontiguousarray(_as_numpy(batch.column(name)), dtype=dtype).tobytes())


def _without_formulas(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            safe = pc.replace_substring_regex(table.column(number), r"^([=+\-@\t\r\n＝＋－＠])", r"'\1")
            table = table.set_column(number, field, safe)
    return table


def _as_numpy(column: Any) -> Array:
    """A column as a NumPy array that needs no pickle; fixed-size lists become its rows."""
    if pa.types.is_fixed_size_list(column.type):
        flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return np.asarray(flat.flatten().to_numpy()).reshape(-1, column.type.list_size)
    values: Array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return values.astype(str) if values.dtype == object else values
