"""Ids: the user's node identifiers, integers or text.

Enters: NumPy or Arrow columns. Leaves: `Ids`, which are always either a NumPy int64 array or an Arrow large_string
array. Cost: one column at a time; 64-bit integers are not copied.

The array of ids in a store maps node numbers (its rows) to ids. `find_ids` joins ids with it, for ingest, append and
new nodes; `distinct_ids` creates it if no table lists the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.errors import InputError, first_line
from largegt.types import Array

from .duckdb_connection import connection, identifier, literal, reading, streamed

Ids = Any
CANONICAL = "0|-?[1-9][0-9]{0,18}"
"""Canonical form of an integer: parsing and formatting returns the same text."""
_CHUNK_ROWS = 1 << 17


def is_text(ids: Ids) -> bool:
    return isinstance(ids, pa.Array)


def as_ids(values: Any, where: str, first_row: int = 0) -> Ids:
    """Ids from an Arrow or NumPy column. Errors name `where`, and the row of a missing id, counted from `first_row`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        array = native(np.asarray(values))
        if array.dtype.kind in "iu" and array.dtype != np.uint64:
            return np.ascontiguousarray(array, dtype=np.int64)
        values = as_arrow(array, where)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if values.null_count or (text and pc.any(pc.equal(values, "")).as_py()):
        missing = pc.equal(values, "").fill_null(True) if text else values.is_null()
        row = first_row + int(np.argmax(missing.to_numpy(zero_copy_only=False)))
        raise InputError(f"{where}: an id is missing (row {row}, counted from 0): every row needs one")
    if pa.types.is_integer(values.type) or (pa.types.is_decimal(values.type) and values.type.scale == 0):
        try:
            return np.ascontiguousarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            raise InputError(f"{where}: an id does not fit 64 bits with sign; give such ids as text") from None
    if text:
        return values.cast(pa.large_string())
    raise InputError(f"{where}: ids must be whole numbers or text, found {values.type}")


def native(array: Array) -> Array:
    """The array in native byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_text(ids: Ids) -> Ids:
    """The ids as text."""
    return ids if is_text(ids) else pa.array(ids).cast(pa.large_string())


def as_numbers(text: Ids) -> tuple[Array, Array]:
    """(int64 numbers, mask): text in canonical integer form becomes a number; the mask is false for other text."""
    digits = pc.replace_substring_regex(text, "^-", "")
    most = pc.if_else(pc.starts_with(text, "-"), str(2**63), str(2**63 - 1))
    fits = pc.or_(pc.less(pc.binary_length(digits), 19), pc.less_equal(digits, most))
    is_number = pc.and_(pc.match_substring_regex(text, f"^({CANONICAL})$"), fits)
    numbers = pc.if_else(is_number, text, pa.scalar("0", pa.large_string())).cast(pa.int64())
    return np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False)), is_number.to_numpy(zero_copy_only=False)


def id_at(ids: Ids, row: int) -> Any:
    """One id as a Python value."""
    return ids[row].as_py() if is_text(ids) else int(ids[row])


def join_ids(parts: list[Ids]) -> Ids:
    """Concatenate the parts into one column; text if any part is text."""
    if any(is_text(part) for part in parts):
        return pa.concat_arrays([as_text(part) for part in parts])
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def text_buffers(text: Ids) -> tuple[Array, Array]:
    """(offsets that start at 0, bytes) of text ids."""
    if not len(text):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    _, places, data = text.buffers()
    offsets = np.frombuffer(places, dtype=np.int64)[text.offset : text.offset + len(text) + 1]
    content = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return offsets - offsets[0], content[int(offsets[0]) : int(offsets[-1])]


def text_over(offsets: Array, text: Array) -> Ids:
    """Text ids from arrays of offsets and bytes, without a copy."""
    buffers = pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(text))
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def id_sql(name: str, kind: str, node_kind: str) -> str:
    """SQL expression for a column of DuckDB type `kind`, converted to the type of node ids; null for invalid ids."""
    column = identifier(name)
    if node_kind == "string":
        return column if kind == "VARCHAR" else f"CAST({column} AS VARCHAR)"
    if kind == "VARCHAR":
        return f"CASE WHEN regexp_full_match({column}, '{CANONICAL}') THEN TRY_CAST({column} AS BIGINT) END"
    return f"CAST({column} AS BIGINT)"


def is_integer_sql(text: str) -> str:
    """SQL condition: the text is a canonical 64-bit integer."""
    return f"(regexp_full_match({text}, '{CANONICAL}') AND TRY_CAST({text} AS BIGINT) IS NOT NULL)"


def missing_sql(name: str, kind: str) -> str:
    """SQL condition: the id is missing."""
    column = identifier(name)
    return f"({column} IS NULL OR {column} = '')" if kind == "VARCHAR" else f"({column} IS NULL)"


def write_numbered(known: Sequence[Ids], text: bool, file: Path, memory: int, threads: int) -> None:
    """Write the ids of all columns `known` and their row numbers to a Parquet file with columns `id` and `node`."""
    kind = "INTEGER" if sum(map(len, known)) < 1 << 31 else "BIGINT"
    with _known_ids(known, text, memory, threads, file.parent) as db:
        db.execute(f"COPY (SELECT id, node::{kind} AS node FROM known) TO {literal(file)} (FORMAT parquet)")


def find_ids(
    known: Iterable[Ids], wanted: Ids, memory: int | None = None, threads: int = 1, scratch: Path | None = None
) -> Array:
    """Node numbers (int64) of the ids `wanted`: their rows in the columns `known`, -1 for an unknown id. Both are
    integers or both are text. Ids are unique in `known`, but not necessarily in `wanted`."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    if not len(wanted):
        return found
    with _known_ids(known, is_text(wanted), memory, threads, scratch) as db:
        db.register("wanted", pa.table({"id": wanted, "place": np.arange(len(wanted))}))
        for batch in db.sql("SELECT place, node FROM known JOIN wanted USING (id)").to_arrow_reader(_CHUNK_ROWS):
            found[batch.column(0).to_numpy()] = batch.column(1).to_numpy()
    return found


def first_repeat(known: Sequence[Ids], text: bool, memory: int, threads: int, scratch: Path | None = None) -> Any:
    """(row, id) of the first row with a repeated id; None if all ids are unique."""
    with _known_ids(known, text, memory, threads, scratch) as db:
        twice = db.sql("SELECT id FROM known GROUP BY id HAVING count(*) > 1").to_arrow_table()
    if not twice.num_rows:
        return None
    with _known_ids(known, text, memory, threads, scratch) as db:
        db.register("twice", twice)
        [first] = db.sql(
            "SELECT node, id FROM known SEMI JOIN twice USING (id) "
            "QUALIFY row_number() OVER (PARTITION BY id ORDER BY node) = 2 ORDER BY node LIMIT 1"
        ).fetchall()
    return first


def write_distinct(chunks: Iterable[Ids], text: bool, file: Path, scratch: Path, memory: int, threads: int) -> None:
    """Write the distinct ids, unordered, to a Parquet file with a column `id`. `scratch` must be a private folder."""
    scratch.mkdir(parents=True, exist_ok=True)
    with _known_ids(chunks, text, memory, threads, scratch) as db:
        db.execute(f"COPY (SELECT DISTINCT id FROM known) TO {literal(file)} (FORMAT parquet)")


def distinct_ids(chunks: Iterable[Ids], text: bool, scratch: Path, memory: int, threads: int) -> Iterator[Ids]:
    """The distinct ids in ascending order. If all text ids are canonical integers, they become integers."""
    file = scratch / "found.parquet"
    write_distinct(chunks, text, file, scratch, memory, threads)
    table = f"read_parquet({literal(file)})"
    with reading("the ids"), connection(memory, threads, scratch) as db:
        whole = f"coalesce(bool_and({is_integer_sql('id')}), false)"
        [[cast]] = db.sql(f"SELECT {whole} FROM {table}").fetchall() if text else [[False]]
        ids = db.sql(f"SELECT {'CAST(id AS BIGINT)' if cast else 'id'} FROM {table} ORDER BY 1")
        for batch in ids.to_arrow_reader(_CHUNK_ROWS):
            yield as_ids(batch.column(0), "the ids")
    file.unlink()


@contextmanager
def _known_ids(
    chunks: Iterable[Ids], text: bool, memory: int | None, threads: int, scratch: Path | None
) -> Iterator[Any]:
    """A connection with a table `known` (id, node), readable once; `node` is the row number over all chunks."""
    schema = pa.schema([("id", pa.large_string() if text else pa.int64()), ("node", pa.int64())])

    def batches() -> Iterator[Any]:
        row = 0
        for chunk in chunks:
            ids = as_text(chunk) if text else pa.array(chunk, pa.int64())
            for low in range(0, len(ids), _CHUNK_ROWS):
                part = ids[low : low + _CHUNK_ROWS]
                yield pa.record_batch([part, pa.array(np.arange(row, row + len(part)))], schema=schema)
                row += len(part)

    with reading("the ids"), connection(memory, threads, scratch) as db, streamed(db, "known", schema, batches()):
        yield db


def as_arrow(array: Array, where: str) -> Any:
    """Convert a NumPy array to Arrow; NaN becomes null."""
    try:
        array = array.astype(str) if array.dtype.kind == "S" else native(array)
        values = pa.array(array.tolist() if array.dtype.kind in "UO" else array, from_pandas=True)
        values.validate(full=True)  # NumPy text may contain invalid code points
        return values
    except (pa.ArrowException, ValueError, TypeError, OverflowError, SystemError) as error:
        raise InputError(f"{where} must be all numbers or all text ({first_line(error)})") from None
