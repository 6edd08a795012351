"""Who does the work of an ingest: threads of this process, or the tasks of a cluster.

Enters: tasks, each a function and its arguments. Leaves: their results, in order, whoever made them. Cost: a task holds
what its stage gives it; about two results for each worker wait to be taken.

A task that leaves a file writes it under a name of its own and renames it: one that is killed leaves nothing under the
name that counts, and one that runs twice leaves the same bytes.
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
    """Runs tasks. `memory` is what one may hold."""

    memory: int

    @property
    def num_workers(self) -> int:
        """Tasks that run at the same time."""

    @property
    def num_shards(self) -> int | None:
        """In how many parts the user wants the input to be read."""

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        """`task(*call)` for each call, results in order. `memory` is what each may hold."""


class Threads:
    """Threads of this process, which share its memory."""

    def __init__(self, memory: int, threads: int, shards: int | None = None) -> None:
        self.memory, self.num_workers, self.num_shards = memory, threads, shards

    def run(self, task: Callable[..., Any], calls: Iterable[tuple[Any, ...]], memory: int = 0) -> Iterator[Any]:
        return run_ahead(lambda call: task(*call), calls, self.num_workers)


def new_token() -> str:
    """Names what one run of this program makes, so that a task of an earlier one that is still alive harms nothing."""
    return uuid.uuid4().hex[:12]


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name beside the file `path`, which is renamed to it when all went well. Two tries of one task may write at the
    same time, on two machines."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with disk_errors(path.parent):
            yield aside
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
