"""User tables, read through DuckDB: files, frames, SQL queries and database tables.

Enters: `edges.parquet`, a folder, a glob, URLs, `SELECT … FROM 'tx/*.parquet'`, or a pandas, polars or Arrow frame.
Leaves: Arrow record batches of the requested columns, in a fixed order. Cost: one batch, and DuckDB's memory limit. An
error in a file becomes a one-line `InputError` that names the file.

Cells of CSV, TSV and SQLite are text; an empty cell is null. All rows decide the type of a column (columns.py,
labels.py, `Table.has_integers`), not a sample. `stage` copies a table once into a scratch Parquet file, and all later
passes read the copy: the user's files are read once, so later changes to them have no effect.
"""

from __future__ import annotations

import copy
import csv
import fnmatch
import io
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from largegt.errors import InputError, nearest
from largegt.runtime.memory import available_bytes, format_bytes
from largegt.runtime.workers import written_atomically
from largegt.types import Array, PathLike

from .duckdb_connection import connection, identifier, literal, lock, reading, streamed
from .files import (
    ARROW,
    JSON,
    PARQUET,
    TEXT,
    File,
    RemoteFile,
    Span,
    everywhere,
    expand,
    facts_of,
    file_kind,
    is_packed,
    open_plain,
    place_of,
    size_of,
    span_file_system,
)  # fmt: skip
from .ids import is_integer_sql
from .limits import check_npz, check_parquet

BATCH_ROWS = 1 << 18
MOST_COLUMNS = 20_000
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_QUERY = re.compile(r"\s*(select|with|from)\s", re.IGNORECASE)
_BYTE_ORDER_MARK = "\ufeff"
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_VECTOR_ROWS, _CELL_BYTES = 2048, 16
"""DuckDB's buffer for each column while it reads."""
_MOST_GROUP_ROWS, _GROUP_BYTES = 122_880, 1 << 25
"""Largest row group, in rows and in bytes of vectors."""
_SQLITE_ROWS = 1 << 14
_MANY_COLUMNS, _SHORT_TABLE = 256, 1 << 24
"""A table with at least this many columns and at most this many bytes is wide and short."""


def load_npy(path: PathLike) -> Array:
    """A `.npy` file, memory-mapped. Pickled objects are refused."""
    if file_kind(path) != ".npy":
        raise InputError(f"{path} is not a .npy file")
    with reading(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def load_npz(path: PathLike) -> dict[str, Array]:
    """All arrays of a `.npz` file, in memory."""
    file_kind(path)
    with reading(path):
        check_npz(path)
    with reading(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def is_query(what: Any) -> bool:
    return isinstance(what, str) and _QUERY.match(what) is not None


def is_frame(what: Any) -> bool:
    """A pandas, polars or Arrow table."""
    return hasattr(what, "columns") or hasattr(what, "column_names")


def is_table(what: Any, database: str | None = None) -> bool:
    """Whether `what` is read as a table rather than as an array."""
    what = _unwrap(what)
    return is_frame(what) or is_query(what) or database is not None or file_kind(expand(what)[0]) in _TABLE_KINDS


def _unwrap(what: Any) -> Any:
    """The element of a list of length one; any other value is returned as it is."""
    return what[0] if isinstance(what, list | tuple) and len(what) == 1 else what


_TABLE_KINDS = (*TEXT, PARQUET, JSON, ARROW)


@dataclass(frozen=True)
class FilePart:
    """A whole file, rows [low, high) of a Parquet file, or lines of a text file that start in bytes [low, high)."""

    file: File
    low: int = 0
    high: int | None = None


class Table:
    """One table: files with the same columns, a frame, or a query.

    `database` is a DuckDB or SQLite file, or a `postgres://` address; `what` is then a query or a table name.
    """

    def __init__(self, what: Any, database: str | None = None) -> None:
        self.first_row, self._threads = 0, 1
        self.memory = available_bytes() // 4
        self._staged: Path | None = None
        self._schema: Any = None
        self.staged_bytes = 0
        """Uncompressed size of the staged columns."""
        self._count: int | None = None
        self._integers: dict[str, bool] = {}
        self._positions: dict[str, int] = {}
        """Position of each packed column in the list column."""
        self._reader, self.where = _make_reader(what, database)
        with reading(self.where):
            self.types = self._reader.types()
        self.columns = list(self.types)
        lower = [name.lower() for name in self.columns]
        if len(set(lower)) < len(lower):
            twice = next(name for at, name in enumerate(self.columns) if lower[at] in lower[:at])
            raise InputError(f"{self.where}: column {twice!r} occurs twice, upper and lower case count as the same")
        if not self.columns:
            raise InputError(f"{self.where} has no columns")

    @property
    def identity(self) -> Any:
        """Identifies the current version of the table; None if changes cannot be detected."""
        return self._reader.identity()

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None if unknown without reading the table."""
        return self._count if self._count is not None else self._reader.num_rows()

    @property
    def num_bytes(self) -> int:
        """Total size of the files; 0 without files."""
        return self._reader.num_bytes()

    def count(self) -> int:
        """Number of rows; reads the table once if needed."""
        if (known := self.num_rows) is None:
            [[known]] = self.query("count(*)")
            self._count = int(known)
        return int(known)

    @property
    def is_in_files(self) -> bool:
        return isinstance(self._reader, _Files)

    @property
    def is_local_parquet(self) -> bool:
        """Whether the table can be read repeatedly in place."""
        return isinstance(self._reader, _Parquet) and all(isinstance(piece.file, Path) for piece in self._reader.pieces)

    # reading

    def limit(self, memory: int, threads: int) -> None:
        """Set what reading may use, of the user's own table."""
        self.memory, self._threads, self._staged = memory, threads, None

    def stage(self, file: Path, keys: Sequence[str], features: Sequence[str], memory: int, threads: int) -> None:
        """Copy these columns into the Parquet file `file`, unless it exists, and read them from there."""
        self.limit(memory, threads)
        columns = list(dict.fromkeys([*keys, *features]))
        self._positions = self._list_positions([name for name in features if name not in keys])
        if not file.exists():
            shown = [identifier(name) for name in columns if name not in self._positions]
            need = (len(columns) + len(shown)) * _VECTOR_ROWS * _CELL_BYTES * 4
            if len(columns) > MOST_COLUMNS or need > available_bytes():
                raise InputError(
                    f"{self.where} has {len(columns)} columns, which take about {format_bytes(need)} to read: give "
                    "numbers as a .npy file or as one column of lists, or name fewer columns"
                )
            file.parent.mkdir(parents=True, exist_ok=True)
            if self._positions:
                shown.append(f"[{', '.join(map(identifier, self._positions))}] AS {identifier(self._list_name)}")
            self.write(file, lambda rows: f"SELECT {', '.join(shown)} FROM {rows}", max(memory, need), columns=columns)
        self._integers = {}
        self._use_staged(file)

    def _list_positions(self, names: Sequence[str]) -> dict[str, int]:
        """Positions of columns that are packed into one list column: those of the most common type, in a wide and
        short table. DuckDB and Arrow take 0.2 ms per column even for few rows."""
        if len(names) < _MANY_COLUMNS or not 0 < self.num_bytes <= _SHORT_TABLE:
            return {}
        [(kind, _)] = Counter(self.types[name] for name in names).most_common(1)
        return {name: place for place, name in enumerate(name for name in names if self.types[name] == kind)}

    @property
    def _list_name(self) -> str:
        """Name of the list column: that of its first packed column."""
        return next(iter(self._positions))

    def sql(self, name: str) -> str:
        """SQL expression of a staged column."""
        if name in self._positions:
            return f"{identifier(self._list_name)}[{self._positions[name] + 1}]"
        return identifier(name)

    def write(
        self, file: Path, query: Callable[[str], str], memory: int, in_order: bool = True, columns: Sequence[str] = ()
    ) -> None:
        """Write the result of a query over this table to the Parquet file `file`. `query` maps the table's SQL name to
        the query. Many `columns`, or lists in them, make row groups short, because one row group fits in memory."""
        with (
            written_atomically(file) as temp,
            reading(self.where),
            self._connected(memory, file.parent) as (db, rows),
        ):
            if not in_order:
                db.execute("SET preserve_insertion_order = false")
            lists = "+".join(f"len({identifier(name)})" for name in columns if self.is_in_files and self.is_list(name))
            [[list_length]] = db.sql(f"SELECT max({lists}) FROM (FROM {rows} LIMIT 1)").fetchall() if lists else [[0]]
            size = _GROUP_BYTES // (8 * (len(columns) + (list_length or 0)) + 1)
            size = min(_MOST_GROUP_ROWS, max(_VECTOR_ROWS, size))
            db.execute(
                f"COPY ({query(rows)}) TO {literal(temp)} (FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {size})"
            )

    def keep_last(self, keys: Sequence[str]) -> None:
        """Keep only the last of the staged rows with equal `keys`."""
        assert self._staged is not None
        file = self._staged.with_suffix(".last.parquet")
        if not file.exists():
            named = ", ".join(identifier(key) for key in keys)
            shown = ", ".join(identifier(name) for name in self._schema.names)
            self.write(file, lambda rows: (
                f"SELECT {shown} FROM (SELECT *, row_number() OVER () AS row FROM {rows}) "
                f"QUALIFY row_number() OVER (PARTITION BY {named} ORDER BY row DESC) = 1 ORDER BY row"
            ), self.memory)  # fmt: skip
        self._use_staged(file)

    def _use_staged(self, file: Path) -> None:
        metadata = pq.read_metadata(file)
        self._staged, self._schema, self._count = file, metadata.schema.to_arrow_schema(), metadata.num_rows
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        self.staged_bytes = sum(group.total_byte_size for group in groups)

    def arrow_type(self, name: str) -> Any:
        """Arrow type of a staged column."""
        if name in self._positions:
            return self._schema.field(self._list_name).type.value_type
        return self._schema.field(name).type

    def query(self, expressions: str) -> list[Any]:
        """The result rows of SQL expressions over the table."""
        with reading(self.where), self._connected() as (db, table):
            return list(db.sql(f"SELECT {expressions} FROM {table}").fetchall())

    def most_frequent(
        self, expressions: Iterable[tuple[str, str]], rows: Array, most: int
    ) -> Iterator[tuple[str, ...]]:
        """For each (SQL expression, condition): the most frequent values over these rows of the staged table, in
        descending order of frequency. Values that occur once are omitted."""
        assert self._staged is not None
        with reading(self.where), self._connected() as (db, _):
            db.register("wanted", pa.table({"row": rows}))
            for values, condition in expressions:
                found = db.sql(
                    f"SELECT value FROM (SELECT {values} AS value FROM read_parquet({literal(self._staged)}, "
                    f"file_row_number = true) WHERE file_row_number IN (SELECT row FROM wanted) AND {condition}) "
                    f"GROUP BY value HAVING count(*) > 1 ORDER BY count(*) DESC, value LIMIT {most}"
                ).fetchall()
                yield tuple(value for (value,) in found)

    def batches(self, columns: Sequence[str], rows: int = BATCH_ROWS, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns in row order, after the first `skip` rows."""
        if self._staged is not None:
            with reading(self.where):
                yield from self._staged_batches(columns, rows, skip)
            return
        shown = ", ".join(map(identifier, columns))
        with reading(self.where), self._connected() as (db, table):
            yield from db.sql(f"SELECT {shown} FROM {table} OFFSET {skip}").to_arrow_reader(rows)

    def _staged_batches(self, columns: Sequence[str], rows: int, skip: int) -> Iterator[pa.RecordBatch]:
        """Read one row group at a time: for a whole file, Arrow holds far more than one batch."""
        stored = list(dict.fromkeys(self._list_name if name in self._positions else name for name in columns))
        with pq.ParquetFile(self._staged, memory_map=True) as file:
            for group in range(file.num_row_groups):
                if skip >= (size := file.metadata.row_group(group).num_rows):
                    skip -= size
                    continue
                for batch in file.iter_batches(rows, [group], stored, use_threads=False):
                    if batch.num_rows > skip:
                        yield self._unpack(batch.slice(skip), columns)
                    skip = max(0, skip - batch.num_rows)

    def _unpack(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Unpack these columns of a staged batch from the list column."""
        places = {name: self._positions[name] for name in columns if name in self._positions}
        if not places:
            return batch.select(columns)
        rows = np.arange(batch.num_rows) * len(self._positions)
        cells = batch.column(self._list_name).flatten().take(pa.array(np.add.outer([*places.values()], rows).ravel()))
        parts = {name: cells.slice(at * len(rows), len(rows)) for at, name in enumerate(places)}
        arrays = [parts[name] if name in parts else batch.column(name) for name in columns]
        return pa.record_batch(arrays, names=list(columns))

    def read(self, columns: Sequence[str]) -> dict[str, Any]:
        """Whole columns as Arrow arrays."""
        names = list(dict.fromkeys(columns))
        parts = list(self.batches(names))
        self._count = sum(part.num_rows for part in parts)
        if not parts:
            return {name: pa.array([], pa.string()) for name in names}
        return {name: pa.chunked_array([part.column(name) for part in parts]).combine_chunks() for name in names}

    def has_integers(self, name: str) -> bool:
        """Whether a column has an integer type, or text in which every cell is an integer in canonical form."""
        if self.types[name] != "VARCHAR":
            return _is_integer(self.types[name])
        if name not in self._integers:
            [[found]] = self.query(f"coalesce(bool_and({is_integer_sql(self.sql(name))}), false)")
            self._integers[name] = bool(found)
        return self._integers[name]

    def has_id_types(self, names: Sequence[str]) -> bool:
        """Whether all columns have text or integer types."""
        return all(self.types[name] == "VARCHAR" or _is_integer(self.types[name]) for name in names)

    def _connected(self, memory: int | None = None, scratch: Path | None = None) -> Any:
        if self._staged is not None:
            return _connect_parquet(self._staged, memory or self.memory, self._threads)
        return self._reader.connected(memory or self.memory, self._threads, scratch)

    # parts for cluster workers

    def parts(self, count: int) -> list[Table]:
        """The table in order, as at most `count` consecutive tables of similar size."""
        staged = None if self._staged is None else _Parquet(PARQUET, (FilePart(self._staged),))
        tables, row = [], 0
        for reader, rows in (staged or self._reader).parts(count):
            part = copy.copy(self)
            part._reader, part.first_row, part._count, part._staged = reader, row, rows, None
            tables.append(part)
            row += rows or 0
        return tables or [self]

    # columns by name

    def column(self, name: str, role: str) -> str:
        """`name`, if the column exists; otherwise raise an error that suggests the nearest name."""
        if name not in self.types:
            raise InputError(
                f"{self.where} has no column {name!r} for the {role}{nearest(name, self.columns)}; "
                f"its columns are: {listed(self.columns)}"
            )
        return name

    def guess(self, names: Sequence[str], excluded: Sequence[str] = ()) -> str | None:
        """The first column whose name is one of `names`, ignoring case, and is not in `excluded`."""
        lower = {column.lower(): column for column in reversed(self.columns) if column not in excluded}
        return next((lower[name] for name in names if name in lower), None)

    def matching(self, patterns: Sequence[str], role: str) -> list[str]:
        """Columns that match the names or globs (`f*`), in the order of `patterns`, without duplicates."""
        found: list[str] = []
        for pattern in patterns:
            if pattern in self.types or not any(sign in pattern for sign in "*?["):
                hits = [self.column(pattern, role)]
            else:
                hits = fnmatch.filter(self.columns, pattern)
                if not hits:
                    raise InputError(
                        f"{self.where} has no column like {pattern!r} for the {role}; "
                        f"its columns are: {listed(self.columns)}"
                    )
            found += [hit for hit in hits if hit not in found]
        return found

    def is_list(self, name: str) -> bool:
        """Whether the column holds vectors."""
        return self.types[name].endswith("]")


def _is_integer(kind: str) -> bool:
    return kind.removeprefix("U") in ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT")


# readers: one for each kind of input


class _Reader:
    """Opens a connection in which a SQL expression names the table."""

    def connected(self, memory: int | None, threads: int, scratch: Path | None) -> Any:
        """Context manager of (connection, SQL expression after FROM)."""
        raise NotImplementedError

    def types(self) -> dict[str, str]:
        with self.connected(None, 1, None) as (db, table):
            return {row[0]: str(row[1]) for row in db.sql(f"DESCRIBE SELECT * FROM {table}").fetchall()}

    def identity(self) -> Any:
        return None

    def num_rows(self) -> int | None:
        return None

    def num_bytes(self) -> int:
        return 0

    def parts(self, count: int) -> list[tuple[Any, int | None]]:
        return []


@dataclass(frozen=True)
class _Files(_Reader):
    """Files of one kind, or parts of them."""

    kind: str
    pieces: tuple[FilePart, ...]

    def identity(self) -> Any:
        return [facts_of(piece.file) for piece in self.pieces]

    def num_bytes(self) -> int:
        return sum(size_of(piece.file) for piece in self.pieces)

    @contextmanager
    def connected(self, memory: int | None, threads: int, scratch: Path | None) -> Iterator[tuple[Any, str]]:
        with connection(memory, threads, scratch) as db:
            if self.kind in TEXT or any(isinstance(piece.file, RemoteFile) for piece in self.pieces):
                db.register_filesystem(span_file_system())
            yield db, self._table(db)

    def _table(self, db: Any) -> str:
        raise NotImplementedError


_ROW_GROUPS_SQL = (
    "SELECT row_group_id, min(row_group_num_rows), sum(num_values) FROM parquet_metadata({file}) GROUP BY 1 ORDER BY 1"
)


class _Parquet(_Files):
    def _table(self, db: Any) -> str:
        whole = all(piece.high is None for piece in self.pieces)
        if whole:
            return _read("read_parquet", [piece.file for piece in self.pieces])
        parts = [
            f"SELECT * EXCLUDE (file_row_number) FROM {_read('read_parquet', [piece.file], file_row_number='true')} "
            f"WHERE file_row_number >= {piece.low} AND file_row_number < {piece.high}"
            for piece in self.pieces
        ]
        return f"({' UNION ALL '.join(parts)})"

    def types(self) -> dict[str, str]:
        assert self._row_groups is not None  # check the row groups before reading anything else
        return super().types()

    def num_rows(self) -> int | None:
        return sum(sum(rows) for rows in self._row_groups)

    @cached_property
    def _row_groups(self) -> list[list[int]]:
        """Row count of each row group, for each file."""
        found = []
        with self.connected(None, 1, None) as (db, _):
            for piece in self.pieces:
                if piece.high is not None:
                    found.append([piece.high - piece.low])
                    continue
                with reading(piece.file):
                    rows = db.sql(_ROW_GROUPS_SQL.format(file=literal(place_of(piece.file)))).fetchall()
                    check_parquet([(int(rows), int(values)) for _, rows, values in rows], size_of(piece.file))
                    found.append([int(count) for _, count, _ in rows])
        return found

    def parts(self, count: int) -> list[tuple[Any, int | None]]:
        parts = []
        for piece, groups in zip(self.pieces, self._row_groups, strict=True):
            row = piece.low
            for rows in groups:
                parts.append((FilePart(everywhere(piece.file), row, row + rows), rows))
                row += rows
        return [
            (_Parquet(PARQUET, tuple(pieces)), sum(int(piece.high or 0) - piece.low for piece in pieces))
            for pieces in _balanced(parts, count)
        ]


class _Text(_Files):
    """CSV and TSV with a fixed dialect and text cells: DuckDB's type detection uses only a sample."""

    def types(self) -> dict[str, str]:
        return dict.fromkeys(_header(self.pieces[0].file, self.kind).names, "VARCHAR")

    def _table(self, db: Any) -> str:
        first = _header(self.pieces[0].file, self.kind)
        groups: list[tuple[_Header, list[str]]] = []
        for piece in self.pieces:
            head = _header(piece.file, self.kind)
            if missing := sorted(set(first.names) - set(head.names), key=first.names.index):
                raise ValueError(f"{piece.file} has no column {missing[0]!r}, other files of this table have")
            if head.has_mixed_newlines and not is_packed(piece.file):
                high = size_of(piece.file) if piece.high is None else piece.high
                place = Span.name_of(piece.file, 0, max(piece.low, head.num_bytes), high)
                head = replace(head, skip=0)
            elif piece.high is not None:
                place = Span.name_of(piece.file, head.num_bytes, piece.low, piece.high)
            else:
                place = place_of(piece.file)
            if groups and groups[-1][0] == head:
                groups[-1][1].append(place)
            else:
                groups.append((head, [place]))
        if len(groups) == 1:
            return _read_csv(*groups[0])
        shown = ", ".join(identifier(name) for name in first.names)
        return f"({' UNION ALL '.join(f'SELECT {shown} FROM {_read_csv(*group)}' for group in groups)})"

    def parts(self, count: int) -> list[tuple[Any, int | None]]:
        step = max(1, -(-self.num_bytes() // count))
        parts = []
        for piece in self.pieces:
            size = size_of(piece.file)
            if is_packed(piece.file):
                parts.append((FilePart(everywhere(piece.file)), size))
                continue
            for low in range(0, size, step):
                high = min(size, low + step)
                parts.append((FilePart(everywhere(piece.file), low, high), high - low))
        return [(_Text(self.kind, tuple(pieces)), None) for pieces in _balanced(parts, count)]


class _JsonLines(_Files):
    """JSON lines. Text stays text: DuckDB would convert text that looks like a date."""

    def _table(self, db: Any) -> str:
        files = [piece.file for piece in self.pieces]
        options = {"format": "'newline_delimited'", "convert_strings_to_integers": "false"}
        guessed = _read("read_json", files, **options, sample_size="-1")
        kinds = {name: str(kind) for name, kind, *_ in db.sql(f"DESCRIBE SELECT * FROM {guessed}").fetchall()}
        kinds = {name: _JSON_TYPES.get(kind, kind) for name, kind in kinds.items()}
        columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in kinds.items())
        return _read("read_json", files, **options, columns=f"{{{columns}}}")


_JSON_TYPES = {
    **dict.fromkeys(("DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "UUID", "JSON"), "VARCHAR"),
    "HUGEINT": "BIGINT",  # DuckDB's type for signed integers, which Parquet does not have
}


class _Arrow(_Files):
    """Arrow files (Feather), read batch by batch."""

    def _table(self, db: Any) -> str:
        db.register("arrow_files", self._dataset)
        return "arrow_files"

    @cached_property
    def _dataset(self) -> Any:
        """The files as a dataset, validated: DuckDB would follow invalid offsets of a damaged file."""
        files = pyarrow.dataset.dataset([str(piece.file) for piece in self.pieces], format="ipc")
        for batch in files.to_batches():
            batch.validate(full=True)
        return files


_READERS = {PARQUET: _Parquet, JSON: _JsonLines, ARROW: _Arrow, **dict.fromkeys(TEXT, _Text)}


@dataclass(frozen=True)
class _Frame(_Reader):
    """A pandas, polars or Arrow table in memory."""

    frame: Any

    @contextmanager
    def connected(self, memory: int | None, threads: int, scratch: Path | None) -> Iterator[tuple[Any, str]]:
        with connection(memory, threads, scratch) as db:
            db.register("frame", self.frame)
            yield db, "frame"

    def num_rows(self) -> int | None:
        return int(self.frame.shape[0])


@dataclass(frozen=True)
class _Query(_Reader):
    """A SQL query over files or a database."""

    text: str
    database: str | None

    @contextmanager
    def connected(self, memory: int | None, threads: int, scratch: Path | None) -> Iterator[tuple[Any, str]]:
        with connection(memory, threads, scratch) as db:
            if self.database is not None:
                _attach(db, self.database)
            lock(db)
            statements = db.extract_statements(self.text)
            if len(statements) != 1 or statements[0].type.name != "SELECT":
                raise ValueError("one SELECT statement is wanted")
            yield db, f"({statements[0].query.strip().rstrip(';')})"


@dataclass(frozen=True)
class _Sqlite(_Reader):
    """A query over a SQLite file, through Python's `sqlite3`; every cell is text."""

    text: str
    database: str

    @contextmanager
    def connected(self, memory: int | None, threads: int, scratch: Path | None) -> Iterator[tuple[Any, str]]:
        database = sqlite3.connect(f"file:{Path(self.database).absolute()}?mode=ro", uri=True, check_same_thread=False)
        database.text_factory = str
        try:
            cursor = database.execute(self.text)
            names = [column[0] for column in cursor.description]
            schema = pa.schema([(name, pa.string()) for name in names])
            with (
                connection(memory, threads, scratch) as db,
                streamed(db, "sqlite", schema, _sqlite_batches(cursor, schema)),
            ):
                yield db, "sqlite"
        finally:
            database.close()


def _sqlite_batches(cursor: Any, schema: Any) -> Iterator[pa.RecordBatch]:
    while rows := cursor.fetchmany(_SQLITE_ROWS):
        columns = [pa.array([_sqlite_text(cell) for cell in column], pa.string()) for column in zip(*rows, strict=True)]
        yield pa.record_batch(columns, schema=schema)


def _sqlite_text(cell: Any) -> str | None:
    if cell is None or cell == "":
        return None
    if isinstance(cell, bytes):
        raise ValueError("a cell holds bytes, not text: leave its column out")
    return str(cell)


def _attach(db: Any, database: str) -> None:
    """Attach a database read-only, so that queries can use its table names."""
    if database.startswith(("postgres://", "postgresql://")):
        try:
            db.execute("LOAD postgres")
        except Exception as error:
            raise ValueError("DuckDB's extension for Postgres is not installed: INSTALL postgres in DuckDB") from error
        db.execute(f"ATTACH {literal(database)} AS db (TYPE postgres, READ_ONLY)")
    elif not Path(database).is_file():
        raise InputError(f"{database} does not exist: check the path of the database")
    else:
        db.execute(f"ATTACH {literal(Path(database).absolute())} AS db (READ_ONLY)")
    db.execute("USE db")


@contextmanager
def _connect_parquet(file: Path, memory: int | None, threads: int) -> Iterator[tuple[Any, str]]:
    with connection(memory, threads, file.parent) as db:
        yield db, f"read_parquet({literal(file)})"


def _make_reader(what: Any, database: str | None) -> tuple[_Reader, str]:
    """(the reader, the table's name in messages)."""
    what = _unwrap(what)
    if is_frame(what):
        return _Frame(what), "the frame"
    if is_query(what) or database is not None:
        text = str(what)
        text = text if is_query(text) else f"SELECT * FROM {identifier(text)}"
        where = f"the query {' '.join(text.split())[:60]!r}"
        return (_Sqlite(text, database) if database and _is_sqlite(database) else _Query(text, database)), where
    files = expand(what)
    kinds = {file_kind(file) for file in files}
    where = str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    if len(kinds) > 1:
        raise InputError(f"{where}: the files are of different kinds, one kind is wanted")
    kind = kinds.pop()
    if kind not in _READERS:
        raise InputError(f"{where} is not a table: use .parquet, .csv, .tsv, .jsonl or .arrow")
    return _READERS[kind](kind, tuple(FilePart(file) for file in files)), where


def _is_sqlite(database: str) -> bool:
    try:
        with open(database, "rb") as stream:
            return stream.read(15) == b"SQLite format 3"
    except OSError:
        return False


# text files


@dataclass(frozen=True)
class _Header:
    """Header of a text file: number of lines before the data, column names, size in bytes, dialect."""

    skip: int
    names: tuple[str, ...]
    num_bytes: int
    delimiter: str
    compression: str
    has_mixed_newlines: bool
    """Header and data have different line endings, which DuckDB cannot read."""


def _header(file: File, kind: str) -> _Header:
    """Read the comments and the header of a file. A first line of numbers is data: columns are then f0, f1, …"""
    skipped: list[str] = []
    with open_plain(file) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
        for line in lines:
            text = line if skipped else line.removeprefix(_BYTE_ORDER_MARK)
            if not text.startswith("#") and text.strip():
                break
            skipped.append(line)
        else:
            raise ValueError("the file is empty")
        data_line = next(lines, line)
    delimiter = _DELIMITERS[kind]
    if kind == ".csv" and "," not in text:
        delimiter = next((sign for sign in ";\t" if sign in text), ",")
    fields = [field.strip() for field in next(csv.reader([text], delimiter=delimiter))]
    names = tuple(f"f{at}" for at in range(len(fields)))
    if all(_is_number(field) for field in fields):
        data_line = line
    else:
        if _NOT_UTF8.search(text):
            raise ValueError("its header is not UTF-8 text")
        names = tuple(field or f"column{at}" for at, field in enumerate(fields))
        skipped.append(line)
    num_bytes = len("".join(skipped).encode("utf-8", "surrogateescape"))
    mixed = any(one.endswith("\r\n") != data_line.endswith("\r\n") for one in skipped)
    compression = {".gz": "gzip", ".zst": "zstd"}.get(is_packed(file), "none")
    return _Header(len(skipped), names, num_bytes, delimiter, compression, mixed)


def _read_csv(head: _Header, places: Sequence[str]) -> str:
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in head.names)
    return _call(
        "read_csv", places, columns=f"{{{columns}}}", auto_detect="false", header="false", skip=str(head.skip),
        delim=literal(head.delimiter), quote="'\"'", escape="'\"'", strict_mode="true",
        compression=literal(head.compression), max_line_size=str(max(1 << 21, 8 * head.num_bytes)),
    )  # fmt: skip


def _read(function: str, files: Sequence[File], **options: str) -> str:
    places = [place_of(file) for file in files]
    if any("=" in part for place in places for part in Path(place).parts[:-1]):
        options["hive_partitioning"] = "true"
    return _call(function, places, **options)


def _call(function: str, places: Sequence[str], **options: str) -> str:
    listed = ", ".join(literal(place) for place in places)
    return f"{function}([{listed}]{''.join(f', {name}={value}' for name, value in options.items())})"


def _balanced(sized_pieces: Sequence[tuple[FilePart, int]], count: int) -> Iterator[list[FilePart]]:
    """Group the pieces into at most `count` lists of similar size; join adjacent pieces of a file."""
    total = max(1, sum(size for _, size in sized_pieces))
    lists: list[list[FilePart]] = [[] for _ in range(count)]
    before = 0
    for piece, size in sized_pieces:
        pieces = lists[min(count - 1, (before + size // 2) * count // total)]
        if pieces and pieces[-1].file == piece.file:
            pieces[-1] = replace(pieces[-1], high=piece.high)
        else:
            pieces.append(piece)
        before += size
    yield from filter(None, lists)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listed(names: Sequence[str], limit: int = 30) -> str:
    """The first `limit` names, and the total number if there are more."""
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
