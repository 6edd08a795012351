"""Progress of long work: bars in a terminal, plain lines elsewhere.

A stage takes `progress: Progress | None` and calls `progress(stage, done, total)` now and then; it neither knows nor
cares who looks. `console_progress()` is the one that shows it, named by what is before a colon; what is behind it may
change ("train: epoch 3/30, loss 0.512").
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .text import printable

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, "int | None"], None]
_NARROW = 120
"""Columns of a terminal below which there is no bar."""
_EVERY_S, _SHORT_S = 30.0, 1.0


def silent(stage: str, done: int, total: int | None) -> None:
    """Shows nothing."""


@contextmanager
def console_progress(quiet: bool = False) -> Iterator[Progress]:
    """Shows stages on standard error: in a terminal as progress bars with the time left, elsewhere as plain lines."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield silent
    elif console.is_terminal:
        with _bars(console) as show:
            yield show
    else:
        lines = _Lines()
        try:
            yield lines
        finally:
            lines.end()


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    """A bar per stage with rate and time left; in a narrow terminal its share and the time left. Long names wrap."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.table import Column

    name_column = TextColumn("{task.description}", markup=False, table_column=Column(min_width=28, overflow="fold"))
    others: tuple[ProgressColumn, ...] = (TaskProgressColumn(),)
    if console.width >= _NARROW:
        others = BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    with Bars(name_column, *others, TimeRemainingColumn(), console=console, transient=False) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int | None) -> None:
            stage = printable(stage)
            name = stage.split(":")[0]
            if name not in tasks:
                tasks[name] = bars.add_task(stage, total=total, rate="")
            task = bars.tasks[bars.task_ids.index(tasks[name])]
            rate = f"{task.speed:,.0f}/s" if task.speed else ""
            bars.update(tasks[name], description=stage, completed=done, total=total, rate=rate)

        yield show


@dataclass
class _Stage:
    """A stage that has begun and not ended."""

    name: str
    begun: float
    last: float
    """When it was heard of last."""
    text: str = ""
    """As it was printed last; empty where it was not."""
    printed: float = 0.0


class _Lines:
    """Prints a line when a stage has begun and when it ends, whenever what is behind its colon changes, and every 30 s.
    Nothing is printed of a stage that takes less than a second."""

    def __init__(self) -> None:
        self.open: dict[str, _Stage] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        name, now = stage.split(":")[0], time.monotonic()
        here = self.open.setdefault(name, _Stage(stage, now, now))
        here.name, here.last = stage, now
        if total is not None and done >= total:
            self._end(self.open.pop(name))
        elif now - here.begun >= _SHORT_S and stage != here.text:
            self._print(here, stage)
        elif here.text and now - here.printed >= _EVERY_S:
            share = f", {done / total:.0%}" if total else ""
            self._print(here, f"{stage}{share}, {now - here.begun:.0f} s")

    def end(self) -> None:
        """Nothing more comes."""
        for here in self.open.values():
            self._end(here)

    def _print(self, here: _Stage, line: str) -> None:
        here.text, here.printed = here.name, here.last
        with suppress(OSError):  # standard error is closed or full: the work goes on without
            sys.stderr.write(f"{printable(line)}\n")
            sys.stderr.flush()

    def _end(self, here: _Stage) -> None:
        if (elapsed_s := here.last - here.begun) >= _SHORT_S:
            self._print(here, f"{here.name}, done in {elapsed_s:.0f} s")
