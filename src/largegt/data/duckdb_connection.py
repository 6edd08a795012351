"""DuckDB connections: short-lived, with a memory limit and minimal access.

Enters: a memory limit, a number of threads, a folder for spilling. Leaves: a connection that is closed at the end of a
`with` block. Cost: about 10 ms to open; at most the memory limit.

Each statement uses a new connection, because a damaged file can make a DuckDB instance unusable; only files persist
between statements. DuckDB never computes sums and means of floats here, because the order of its additions depends on
the number of threads.
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
"""Minimum memory limit: less fails on tables of a million rows. Memory per thread."""
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "preserve_insertion_order": "true",
    "TimeZone": "UTC",
}
_ERROR_KIND = re.compile(r"^(?:[A-Z][A-Za-z]+ )+(?:Error|Exception): ")


@contextmanager
def connection(memory: int | None = None, threads: int = 1, scratch: Path | None = None) -> Iterator[Any]:
    """A connection to an empty in-memory database. Data beyond `memory` spills to the folder `scratch`."""
    limit = max(LEAST_MEMORY, available_bytes() // 4 if memory is None else memory)
    config: dict[str, Any] = {"memory_limit": f"{limit >> 20}MiB"}
    config["threads"] = max(1, min(threads, limit // _THREAD_MEMORY))
    config["temp_directory"] = "" if scratch is None else str(scratch)
    db = duckdb.connect(config=config)
    try:
        for name, value in _SETTINGS.items():
            db.execute(f"SET {name} = {literal(value)}")
        yield db
    finally:
        db.close()


def lock(connected: Any) -> None:
    """Lock the settings of this connection before it runs SQL from a user."""
    connected.execute("SET lock_configuration = true")


@contextmanager
def streamed(connected: Any, name: str, schema: Any, batches: Iterator[Any]) -> Iterator[None]:
    """Register record batches as the table `name`, readable once. Errors of the iterator are raised unchanged."""
    errors: list[BaseException] = []

    def with_errors_kept() -> Iterator[Any]:
        try:
            yield from batches
        except BaseException as error:
            errors.append(error)
            raise

    connected.register(name, pa.RecordBatchReader.from_batches(schema, with_errors_kept()))
    try:
        yield
    except Exception:
        if errors:
            raise errors[0] from None
        raise


@contextmanager
def reading(where: Any) -> Iterator[None]:
    """Turn any error while `where` is read into a one-line error that names it. Libraries raise many kinds of errors
    for damaged files."""
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
    """The message of an error in one line; for a CSV error, with its cause and line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    cause = next((line for line in lines[1:] if not line.startswith(("Original Line", "Possible", "*", "file"))), "")
    text = _ERROR_KIND.sub("", lines[-1] if "Traceback" in lines[0] else lines[0])
    if "state machine" in text:
        return "lines end in \\n here and in \\r\\n there, or a quote is never closed"
    return f"{text.replace('CSV Error on Line:', 'line')}: {cause}" if "CSV Error" in lines[0] and cause else text


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: Any) -> str:
    """A quoted SQL string."""
    return "'" + str(text).replace("'", "''") + "'"
