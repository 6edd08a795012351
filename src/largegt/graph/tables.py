"""Files on the user's disk: Parquet, CSV and TSV (plain or gzipped) as batches, `.npy` as mapped arrays.

Enters: paths. Leaves: Arrow record batches of the columns asked for, or NumPy arrays. Cost: one batch.
Whatever is wrong with a file becomes one `InputError` line that names it.
"""

from __future__ import annotations

import fnmatch
import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..errors import InputError, first_line, nearest
from ..types import Array, PathLike
from .ids import MixedIdsError

BATCH_ROWS = 1 << 20
CSV_BLOCK_BYTES = 1 << 24
_TEXT_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_DAMAGE = (
    pa.ArrowException, OSError, ValueError, EOFError, KeyError, NotImplementedError, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip


@contextmanager
def reading(path: PathLike) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault, and is said in one line."""
    try:
        yield
    except _DAMAGE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be read: {reason[:300]}") from error


def file_kind(path: PathLike) -> str:
    """`.parquet`, `.csv`, `.tsv`, `.npy` or `.npz`; a missing or unknown file is an `InputError`."""
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file} does not exist: check the path")
    if file.is_dir():
        raise InputError(f"{file} is a folder, a file is wanted here")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    last = suffixes[-1] if suffixes else ""
    kind = suffixes[-2] if last == ".gz" and len(suffixes) > 1 else last
    aliases = {".pq": ".parquet", ".tab": ".tsv"}
    kind = aliases.get(kind, kind)
    if kind not in (".parquet", ".csv", ".tsv", ".npy", ".npz") or (last == ".gz" and kind not in _TEXT_DELIMITERS):
        raise InputError(f"{file} is of no known kind: use .parquet, .csv, .csv.gz, .tsv, .tsv.gz, .npy or .npz")
    return kind


def is_table(path: PathLike) -> bool:
    return file_kind(path) in (".parquet", ".csv", ".tsv")


def expand(paths: Any) -> list[Path]:
    """One path, several, or a folder of Parquet files, as a list of files in a fixed order."""
    several = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    files: list[Path] = []
    for path in several:
        folder = Path(path)
        if not folder.is_dir():
            files.append(folder)
            continue
        inside = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".parquet", ".pq"))
        if not inside:
            raise InputError(f"{folder} holds no Parquet files")
        files += inside
    if not files:
        raise InputError("no files were given")
    return files


def load_npy(path: PathLike) -> Array:
    """A `.npy` file, memory-mapped. Pickled objects are refused."""
    if file_kind(path) != ".npy":
        raise InputError(f"{path} is not a .npy file")
    with reading(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def load_npz(path: PathLike) -> dict[str, Array]:
    """Every array of a `.npz` file, in memory."""
    file_kind(path)
    with reading(path), np.load(path, allow_pickle=False) as archive:
        if isinstance(archive, np.ndarray):
            raise ValueError("it is one array, not an .npz archive")
        return {name: archive[name] for name in archive.files}


class Table:
    """One table in one or more files with the same columns."""

    def __init__(self, paths: Any) -> None:
        self.files = expand(paths)
        self.where = str(self.files[0]) + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")
        self.kind = file_kind(self.files[0])
        if any(file_kind(file) != self.kind for file in self.files):
            raise InputError(f"{self.where}: the files are of different kinds, one kind is wanted")
        if self.kind not in (".parquet", ".csv", ".tsv"):
            raise InputError(f"{self.where} is not a table: use .parquet, .csv or .tsv")
        with reading(self.files[0]):
            self.schema = self._schema(self.files[0])
        self.columns: list[str] = list(self.schema.names)
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise InputError(f"{self.where}: column {sorted(twice)[0]!r} occurs twice")
        self._count: int | None = None

    @property
    def num_rows(self) -> int | None:
        """Rows, where the files say it without being read."""
        if self.kind != ".parquet":
            return None
        total = 0
        for file in self.files:
            with reading(file):
                total += pq.read_metadata(file).num_rows
        return total

    def count(self) -> int:
        """Rows, in any case: CSV files are read through for it, once."""
        if self._count is None:
            self._count = self.num_rows
        if self._count is None:
            first = self.columns[0]
            self._count = sum(batch.num_rows for batch in self.batches([first], {first: pa.string()}))
        return self._count

    def column(self, name: str, role: str) -> str:
        """`name`, if there is such a column; otherwise an error with the nearest one."""
        if name not in self.columns:
            raise InputError(
                f"{self.where} has no column {name!r} for the {role}{nearest(name, self.columns)}; "
                f"its columns are: {_listed(self.columns)}"
            )
        return name

    def guess(self, names: Sequence[str]) -> str | None:
        """The first column called like one of `names`, whatever its case."""
        lower = {column.lower(): column for column in reversed(self.columns)}
        return next((lower[name] for name in names if name in lower), None)

    def matching(self, patterns: Sequence[str], role: str) -> list[str]:
        """Columns by name or by glob (`f*`), in the order asked for, each once."""
        found: list[str] = []
        for pattern in patterns:
            if pattern in self.columns or not any(sign in pattern for sign in "*?["):
                hits = [self.column(pattern, role)]
            else:
                hits = fnmatch.filter(self.columns, pattern)
                if not hits:
                    raise InputError(
                        f"{self.where} has no column like {pattern!r} for the {role}; "
                        f"its columns are: {_listed(self.columns)}"
                    )
            found += [hit for hit in hits if hit not in found]
        return found

    def is_numeric(self, name: str) -> bool:
        kind = self.schema.field(name).type
        return bool(
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind) or pa.types.is_null(kind)
        )  # fmt: skip

    def is_list(self, name: str) -> bool:
        """A column of vectors."""
        kind = self.schema.field(name).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            return False
        value = kind.value_type
        return bool(pa.types.is_floating(value) or pa.types.is_integer(value) or pa.types.is_boolean(value))

    def batches(
        self, columns: Sequence[str], types: dict[str, Any] | None = None, rows: int = BATCH_ROWS, skip: int = 0
    ) -> Iterator[Any]:
        """Record batches of these columns, in the files' order, without the first `skip` rows. `types` are forced on a
        CSV's columns."""
        for file in self.files:
            batches, passed = self._batches_of(file, list(columns), types or {}, rows, skip)
            skip -= passed
            while True:
                with reading(file):
                    try:
                        batch = next(batches, None)
                    except pa.ArrowInvalid as error:
                        if "conversion error" in str(error):
                            raise MixedIdsError(f"{file} cannot be read: {first_line(error)}") from error
                        raise
                if batch is None:
                    break
                if skip:
                    passed = min(skip, batch.num_rows)
                    batch, skip = batch.slice(passed), skip - passed
                if batch.num_rows:
                    yield batch

    def read(self, columns: Sequence[str], text: bool = False) -> dict[str, Any]:
        """Whole columns as Arrow arrays. CSV columns whose later values do not fit the first are text."""
        types = {name: pa.string() for name in columns} if text else {}
        try:
            parts = list(self.batches(columns, types))
        except MixedIdsError:
            if text:
                raise
            return self.read(columns, text=True)
        self._count = sum(part.num_rows for part in parts)
        if not parts:
            return {name: pa.array([], pa.string() if text else self.schema.field(name).type) for name in columns}
        return {name: _joined([part.column(name) for part in parts]) for name in columns}

    def _schema(self, file: Path) -> Any:
        if self.kind == ".parquet":
            return pq.read_schema(file)
        with self._open_csv(file, None, {}) as reader:
            return reader.schema

    def _batches_of(
        self, file: Path, columns: list[str], types: dict[str, Any], rows: int, skip: int
    ) -> tuple[Iterator[Any], int]:
        """(batches of a file, how many of the `skip` rows they begin after): whole row groups are not even read."""
        if self.kind != ".parquet":
            return self._csv_batches(file, columns, types), 0
        with reading(file):
            metadata = pq.read_metadata(file)
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        first = passed = 0
        while first < len(sizes) and passed + sizes[first] <= skip:
            passed += sizes[first]
            first += 1
        return self._parquet_batches(file, columns, rows, list(range(first, len(sizes)))), passed

    def _parquet_batches(self, file: Path, columns: list[str], rows: int, groups: list[int]) -> Iterator[Any]:
        with pq.ParquetFile(file, buffer_size=1 << 17, pre_buffer=False) as parquet:
            missing = [name for name in columns if name not in parquet.schema_arrow.names]
            if missing:
                raise ValueError(f"it has no column {missing[0]!r}, other files of this table have")
            for batch in parquet.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
                yield batch.select(columns)

    def _csv_batches(self, file: Path, columns: list[str], types: dict[str, Any]) -> Iterator[Any]:
        with self._open_csv(file, columns, types) as reader:
            yield from reader

    def _open_csv(self, file: Path, columns: list[str] | None, types: dict[str, Any]) -> Any:
        delimiter = _TEXT_DELIMITERS[self.kind]
        skip, has_header = _sniff(file, delimiter)
        return pacsv.open_csv(
            str(file),
            read_options=pacsv.ReadOptions(
                block_size=CSV_BLOCK_BYTES,
                skip_rows=skip,
                autogenerate_column_names=not has_header,
                use_threads=True,
            ),
            parse_options=pacsv.ParseOptions(delimiter=delimiter),
            convert_options=pacsv.ConvertOptions(include_columns=columns or [], column_types=types),
        )


def float_block(batch: Any, columns: Sequence[str], where: str) -> Array:
    """float32 [rows, width] of numeric and list columns side by side; nulls become NaN."""
    blocks: list[Array] = []
    for name in columns:
        values = batch.column(name)
        kind = values.type
        if pa.types.is_decimal(kind):
            values = values.cast(pa.float64())
        if pa.types.is_null(kind) or not _is_vector(kind):
            blocks.append(_floats(values, f"{where}: column {name!r}")[:, None])
        else:
            blocks.append(_list_block(values, f"{where}: column {name!r}"))
    width = sum(block.shape[1] for block in blocks)
    out = np.empty((batch.num_rows, width), dtype=np.float32)
    at = 0
    for block in blocks:
        out[:, at : at + block.shape[1]] = block
        at += block.shape[1]
    return out


def _list_block(values: Any, where: str) -> Array:
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where} has no vector in row {row} of its block: every node needs one")
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    if lengths.size and (lengths != lengths[0]).any():
        raise InputError(f"{where} holds vectors of different lengths ({lengths.min()} to {lengths.max()})")
    width = int(lengths[0]) if lengths.size else 0
    return _floats(values.flatten(), where).reshape(len(values), width)


def _floats(values: Any, where: str) -> Array:
    try:
        return np.asarray(values.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{where} is {values.type}, numbers are wanted") from None


def _is_vector(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _joined(parts: list[Any]) -> Any:
    return pa.chunked_array(parts).combine_chunks() if len(parts) > 1 else parts[0]


def _sniff(file: Path, delimiter: str) -> tuple[int, bool]:
    """(comment lines to skip, whether the next line is a header). A line of numbers alone is no header."""
    opener: Any = gzip.open if file.suffix.lower() == ".gz" else open
    skip = 0
    with opener(file, "rt", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("#"):
                skip += 1
                continue
            fields = [field.strip().strip('"') for field in line.rstrip("\r\n").split(delimiter)]
            return skip, not all(_is_number(field) for field in fields)
    raise ValueError("the file is empty")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str], limit: int = 30) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
