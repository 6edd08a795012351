"""Workers of an ingest: threads of this process, or tasks of a cluster.

Enters: tasks, each a function and its arguments. Leaves: their results, in order. Cost: the memory of each running
task, and about two buffered results per worker.

A task writes a file under a temporary name and renames it: a killed task leaves no partial file under the final name,
and a task that runs twice leaves the same bytes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from largegt.errors import disk_errors
from largegt.runtime.threads import run_ahead


class Workers(Protocol):
    """Runs tasks of at most `memory` bytes each."""

    memory: int

    @property
    def num_workers(self) -> int:
        """Tasks that run at the same time."""

    @property
    def num_shards(self) -> int | None:
        """The number of parts to read the input in, if set by the user."""

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order; each may use `memory` bytes."""


class Threads:
    """Threads of this process, which share its memory."""

    def __init__(self, memory: int, threads: int, shards: int | None = None) -> None:
        self.memory, self.num_workers, self.num_shards = memory, threads, shards

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        return run_ahead(lambda call: task(*call), calls, self.num_workers)


def new_token() -> str:
    """A random name for the files of one run, so that leftover tasks of an earlier run cannot overwrite them."""
    return uuid.uuid4().hex[:12]


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it on success. It is unique, because two attempts of a task may run at
    the same time on two machines."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with disk_errors(path.parent):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
