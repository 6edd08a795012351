"""Files of the user's: Parquet, CSV and TSV (plain or gzipped) as batches, `.npy` as mapped arrays.

Enters: paths and URLs (see files.py). Leaves: Arrow record batches of the columns asked for, or NumPy arrays. Cost: one
batch. Whatever is wrong with a file becomes one `InputError` line that names it.
"""

from __future__ import annotations

import copy
import fnmatch
import gzip
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ..errors import InputError, LargeGTError, first_line, nearest
from ..types import Array, PathLike
from .claims import check_npz, check_parquet
from .files import File, RemoteFile, Span, everywhere, expand, file_kind, is_packed, open_file, size_of
from .ids import Ids, MixedIdsError, as_ids

BATCH_ROWS = 1 << 20
CSV_BLOCK_BYTES = 1 << 24
_NO_NUMBER = pa.array(pacsv.ConvertOptions().null_values)
"""What stands for a missing number in a CSV: an empty cell, NA, null and so on."""
_MARK = "\xef\xbb\xbf"
"""The three bytes that some programs put before UTF-8 text."""
_TEXT_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@contextmanager
def reading(path: PathLike | RemoteFile) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault, and is said in one line. Libraries answer to damaged bytes with
    errors of every kind."""
    try:
        yield
    except LargeGTError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be read: {first_line(error)[:300]}; is it whole, and what its name says?"
        ) from error


def is_table(path: PathLike) -> bool:
    return file_kind(path) in (".parquet", ".csv", ".tsv")


def load_npy(path: PathLike) -> Array:
    """A `.npy` file, memory-mapped. Pickled objects are refused."""
    if file_kind(path) != ".npy":
        raise InputError(f"{path} is not a .npy file")
    with reading(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def load_npz(path: PathLike) -> dict[str, Array]:
    """Every array of a `.npz` file, in memory."""
    file_kind(path)
    with reading(path):
        check_npz(path)
    with reading(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@dataclass(frozen=True)
class FilePart:
    """A file, or of a Parquet file the row groups [low, high), of a text file the lines that begin in these bytes."""

    file: File
    low: int = 0
    high: int | None = None


class Table:
    """One table in one or more files with the same columns."""

    def __init__(self, paths: Any) -> None:
        self.files = expand(paths)
        self._pieces = [FilePart(file) for file in self.files]
        self._groups: dict[File, list[int]] = {}
        self.first_row = 0
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
        return sum(sum(self._group_rows(piece.file)[piece.low : piece.high]) for piece in self._pieces)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(size_of(file) for file in self.files)

    def parts(self, count: int) -> list[Table]:
        """The same rows as about `count` tables, one after the other, of about the same size. A row group and a packed
        file stay whole."""
        atoms = list(self._atoms(count))
        total = max(1, sum(weight for _, weight in atoms))
        found: list[list[FilePart]] = [[] for _ in range(count)]
        before = 0
        for piece, weight in atoms:
            pieces = found[min(count - 1, (before + weight // 2) * count // total)]
            if pieces and pieces[-1].file == piece.file:
                pieces[-1] = replace(pieces[-1], high=piece.high)
            else:
                pieces.append(piece)
            before += weight
        tables, row = [], 0
        for pieces in found:
            if pieces:
                tables.append(self._part(pieces, row))
                row += tables[-1].num_rows or 0
        return tables

    def _part(self, pieces: list[FilePart], first_row: int) -> Table:
        part = copy.copy(self)
        part._groups = {everywhere(p.file): self._groups[p.file] for p in pieces if p.file in self._groups}
        part._pieces = [replace(piece, file=everywhere(piece.file)) for piece in pieces]
        part.files, part._count, part.first_row = [piece.file for piece in part._pieces], None, first_row
        if self.kind != ".parquet" and pieces[0].low:
            part.where = f"{pieces[0].file}, after byte {pieces[0].low},"
        return part

    def _atoms(self, count: int) -> Iterator[tuple[FilePart, int]]:
        """What `parts` are made of, and how large each is."""
        if self.kind == ".parquet":
            for file in self.files:
                for group, rows in enumerate(self._group_rows(file)):
                    yield FilePart(file, group, group + 1), rows
            return
        step = max(1, -(-self.num_bytes // count))
        for file in self.files:
            size = size_of(file)
            if is_packed(file):
                yield FilePart(file), size
                continue
            for low in range(0, size, step):
                yield FilePart(file, low, min(size, low + step)), min(size, low + step) - low

    def _group_rows(self, file: File) -> list[int]:
        """Rows of each row group of a Parquet file."""
        if file not in self._groups:
            with reading(file), _opened(file) as stream:
                found = pq.read_metadata(stream)
                check_parquet(found, size_of(file))
                self._groups[file] = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
        return self._groups[file]

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

    def guess(self, names: Sequence[str], taken: Sequence[str] = ()) -> str | None:
        """The first column called like one of `names`, whatever its case; none of those `taken` for something else."""
        lower = {column.lower(): column for column in reversed(self.columns) if column not in taken}
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
        CSV's columns; there, whole numbers that are not written plainly (007, 0x1F) are a `MixedIdsError`."""
        types = dict(types or {})
        numbers = [name for name in columns if name not in types and self._is_text_in_disguise(name)]
        types |= {name: pa.string() for name in numbers}
        numbers = [name for name in numbers if pa.types.is_integer(self.schema.field(name).type)]
        for piece in self._pieces:
            file = piece.file
            batches, passed = self._batches_of(piece, list(columns), types, rows, skip)
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
                for name in numbers:
                    at = batch.schema.get_field_index(name)
                    batch = batch.set_column(at, name, plain_numbers(batch.column(at), f"{file}: column {name!r}"))
                if skip:
                    passed = min(skip, batch.num_rows)
                    batch, skip = batch.slice(passed), skip - passed
                if batch.num_rows:
                    yield batch

    def read(self, columns: Sequence[str], ids: Sequence[str] = ()) -> dict[str, Any]:
        """Whole columns as Arrow arrays; those in `ids` as ids are read. A CSV column whose later values do not fit the
        first is one of fractions if that is all, or text."""
        types = self.id_types(ids, text=False)
        try:
            return self._read(columns, types)
        except MixedIdsError:
            found: dict[str, Any] = {}
            for name in columns:
                found |= self._read_alone(name, types, is_id=name in ids)
            return found

    def _read_alone(self, name: str, types: dict[str, Any], is_id: bool) -> dict[str, Any]:
        try:
            return self._read([name], types)
        except MixedIdsError as error:
            is_number = self.is_numeric(name) and not is_id and not isinstance(error, OddNumberError)
        try:
            return self._read([name], {name: pa.float64() if is_number else pa.string()})
        except MixedIdsError:
            return self._read([name], {name: pa.string()})

    def _read(self, columns: Sequence[str], types: dict[str, Any]) -> dict[str, Any]:
        parts = list(self.batches(columns, types))
        self._count = sum(part.num_rows for part in parts)
        if not parts:
            return {name: pa.array([], types.get(name, self.schema.field(name).type)) for name in columns}
        return {name: _joined([part.column(name) for part in parts]) for name in columns}

    def id_types(self, columns: Sequence[str], text: bool) -> dict[str, Any]:
        """What to force on these columns to read ids from them: in a CSV, what looks like neither whole numbers nor
        words (a date, a number of more than 64 bits) is text; with `text`, everything."""
        if self.kind == ".parquet":
            return {}
        return {name: pa.string() for name in columns if text or not pa.types.is_integer(self.schema.field(name).type)}

    def ids(self, name: str, values: Any, first_row: int = 0) -> Ids:
        """Ids out of values of a column that begin at `first_row`. In a CSV, fractions are refused: 1 and 1.0 would be
        two ids."""
        where = f"{self.where}: column {name!r}"
        if self.kind != ".parquet" and pa.types.is_floating(self.schema.field(name).type):
            values = pc.if_else(pc.is_in(values, value_set=_NO_NUMBER), pa.scalar(None, values.type), values)
            odd = pc.match_substring_regex(values, r"^[-+]?([0-9]+\.|\.[0-9])")
            if pc.any(odd).as_py():
                found = values.filter(odd)[0].as_py()
                raise InputError(f"{where}: id {found!r} is a fraction: write ids as whole numbers or as text")
        return as_ids(values, where, first_row)

    def _is_text_in_disguise(self, name: str) -> bool:
        """Whether a CSV's column is to be read as text first: whole numbers, to see how they are written, and times,
        which nothing here wants as such."""
        kind = self.schema.field(name).type
        return self.kind != ".parquet" and bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))

    def _schema(self, file: File) -> Any:
        if self.kind == ".parquet":
            with _opened(file) as stream:
                return pq.read_schema(stream)
        with self._open_csv(FilePart(file), None, {}) as reader:
            return reader.schema

    def _batches_of(
        self, piece: FilePart, columns: list[str], types: dict[str, Any], rows: int, skip: int
    ) -> tuple[Iterator[Any], int]:
        """(batches of a file, how many of the `skip` rows they begin after): whole row groups are not even read."""
        if self.kind != ".parquet":
            return self._csv_batches(piece, columns, types), 0
        sizes = self._group_rows(piece.file)
        first, last, passed = piece.low, len(sizes) if piece.high is None else piece.high, 0
        while first < last and passed + sizes[first] <= skip:
            passed += sizes[first]
            first += 1
        return self._parquet_batches(piece.file, columns, rows, list(range(first, last))), passed

    def _parquet_batches(self, file: File, columns: list[str], rows: int, groups: list[int]) -> Iterator[Any]:
        far = isinstance(file, RemoteFile)  # there, few large requests are better than many small ones
        options: dict[str, Any] = {"pre_buffer": True} if far else {"pre_buffer": False, "buffer_size": 1 << 17}
        with _opened(file) as stream, pq.ParquetFile(stream, **options) as parquet:
            missing = [name for name in columns if name not in parquet.schema_arrow.names]
            if missing:
                raise ValueError(f"it has no column {missing[0]!r}, other files of this table have")
            for batch in parquet.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
                for column in batch.columns:  # Arrow takes text that is no UTF-8 and places beyond the end as they come
                    column.validate(full=True)
                    if pa.types.is_dictionary(column.type):
                        column.dictionary.validate(full=True)
                yield batch.select(columns)

    def _csv_batches(self, piece: FilePart, columns: list[str], types: dict[str, Any]) -> Iterator[Any]:
        with self._open_csv(piece, columns, types) as reader:
            yield from reader

    def _open_csv(self, piece: FilePart, columns: list[str] | None, types: dict[str, Any]) -> Any:
        file, delimiter = piece.file, _TEXT_DELIMITERS[self.kind]
        skip, has_header, head = _sniff(file, delimiter)
        if piece.high is not None:
            source: Any = pa.PythonFile(Span(file, head, piece.low, piece.high), "r")
        elif isinstance(file, RemoteFile):
            source = pa.PythonFile(file.open(), "r")
            source = pa.CompressedInputStream(source, "gzip") if is_packed(file) else source
        else:
            source = str(file)
        return pacsv.open_csv(
            source,
            read_options=pacsv.ReadOptions(
                block_size=CSV_BLOCK_BYTES,
                skip_rows=skip,
                autogenerate_column_names=not has_header,
                use_threads=piece.high is None,
            ),
            parse_options=pacsv.ParseOptions(delimiter=delimiter),
            convert_options=pacsv.ConvertOptions(include_columns=columns or [], column_types=types),
        )


class OddNumberError(MixedIdsError):
    """A number that is not written as one writes numbers, so that it would not come back as it was."""


def plain_numbers(text: Any, where: str) -> Any:
    """int64 of text as a CSV has it; empty cells are null. Text that would not be the same again when the number is
    written (007, 0x1F, -0) is an `OddNumberError`, other text a `MixedIdsError`."""
    try:
        numbers = text.cast(pa.int64())
    except pa.ArrowInvalid:  # there are empty cells or blanks, or it is no number
        text = pc.utf8_trim_whitespace(text)
        text = pc.if_else(pc.is_in(text, value_set=_NO_NUMBER), pa.scalar(None, text.type), text)
        try:
            numbers = text.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise MixedIdsError(f"{where}: {first_line(error)}") from None
    for sign, longest in (("0", 1), ("-0", 0)):
        odd = pc.starts_with(text, sign)
        if pc.any(odd).as_py():
            found = text.filter(odd)
            found = found.filter(pc.greater(pc.binary_length(found), longest))
            if len(found):
                raise OddNumberError(f"{where}: {found[0].as_py()!r} is not written as a plain whole number")
    return numbers


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


def _sniff(file: File, delimiter: str) -> tuple[int, bool, int]:
    """(comment lines to skip, whether the next line is a header, bytes of all these). A line of numbers alone is no
    header."""
    skip = head = 0
    with open_file(file) as stream, gzip.open(stream) if is_packed(file) else nullcontext(stream) as plain:
        for line in io.TextIOWrapper(plain, encoding="latin-1", newline=""):  # a character for each byte
            text = line if head else line.removeprefix(_MARK)
            if not text.startswith("#"):
                fields = [field.strip().strip('"') for field in text.rstrip("\r\n").split(delimiter)]
                has_header = not all(_is_number(field) for field in fields)
                return skip, has_header, head + len(line) if has_header else head
            skip += 1
            head += len(line)
    raise ValueError("the file is empty")


@contextmanager
def _opened(file: File) -> Iterator[Any]:
    """What Arrow reads a file from."""
    if isinstance(file, Path):
        yield file
        return
    with file.open() as stream:
        yield stream


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str], limit: int = 30) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
