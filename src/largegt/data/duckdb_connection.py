"""DuckDB connections: short-lived, bounded in memory, and without access to anything that a query does not need.

Enters: a memory limit, a number of threads, a folder for what does not fit. Leaves: a connection that is closed at the
end of a `with` block. Cost: opening one takes about 10 ms; it holds at most the memory limit.

Each statement has a connection of its own: a damaged file can make a DuckDB instance unusable, and nothing is kept
between statements but files of ours. Sums and means of floats are never computed here, because DuckDB adds in another
order with another number of threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from largegt.errors import InputError, LargeGTError, first_line, full_disk
from largegt.runtime.memory import available_bytes

LEAST_MEMORY, _THREAD_MEMORY = 128 << 20, 96 << 20
"""Least memory limit that DuckDB works with here: less fails on tables of a million rows. And what a thread needs."""
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "preserve_insertion_order": "true",
    "TimeZone": "UTC",
}
_LOCATION = re.compile(r"^(?:[A-Z][A-Za-z]+ )+(?:Error|Exception): ")


@contextmanager
def connection(memory: int | None = None, threads: int = 1, scratch: Path | None = None) -> Iterator[Any]:
    """A connection to an empty database in memory. `scratch` is where it puts what exceeds `memory`."""
    limit = max(LEAST_MEMORY, available_bytes() // 4 if memory is None else memory)
    config: dict[str, Any] = {"memory_limit": f"{limit >> 20}MiB"}
    config["threads"] = max(1, min(threads, limit // _THREAD_MEMORY))
    config["temp_directory"] = "" if scratch is None else str(scratch)
    found = duckdb.connect(config=config)
    try:
        for name, value in _SETTINGS.items():
            found.execute(f"SET {name} = {literal(value)}")
        yield found
    finally:
        found.close()


def lock(connected: Any) -> None:
    """Refuse further changes of settings on this connection: for SQL that a user wrote."""
    connected.execute("SET lock_configuration = true")


@contextmanager
def streamed(connected: Any, name: str, schema: Any, batches: Iterator[Any]) -> Iterator[None]:
    """Make record batches readable as the table `name`, once. An error in them is raised as it is."""
    errors: list[BaseException] = []

    def kept() -> Iterator[Any]:
        try:
            yield from batches
        except BaseException as error:
            errors.append(error)
            raise

    connected.register(name, pa.RecordBatchReader.from_batches(schema, kept()))
    try:
        yield
    except Exception:
        if errors:
            raise errors[0] from None
        raise


@contextmanager
def reading(where: Any) -> Iterator[None]:
    """Turn whatever goes wrong while `where` is read into one line that names it. Libraries answer to damaged bytes
    with errors of every kind."""
    try:
        yield
    except LargeGTError:
        raise
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(f"reading {where} needs more memory: {first_line(error)}") from error
    except Exception as error:
        if code := full_disk(str(error)):  # `disk_errors` names the folder that is written to
            raise OSError(code, os.strerror(code)) from error
        raise InputError(
            f"{where} cannot be read: {explained(error)[:300]}; is it whole, and what its name says?"
        ) from error


def explained(error: Exception) -> str:
    """The message of an error in one line; of a CSV error, also its cause and the line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    cause = next((line for line in lines[1:] if not line.startswith(("Original Line", "Possible", "*", "file"))), "")
    text = _LOCATION.sub("", lines[-1] if "Traceback" in lines[0] else lines[0])
    if "state machine" in text:
        return "lines end in \\n here and in \\r\\n there, or a quote is never closed"
    return f"{text.replace('CSV Error on Line:', 'line')}: {cause}" if "CSV Error" in lines[0] and cause else text


def identifier(name: str) -> str:
    """A column name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: Any) -> str:
    """A text as SQL writes it."""
    return "'" + str(text).replace("'", "''") + "'"
