"""Progress of long work: a bar in a terminal, silence elsewhere.

A stage takes `progress: Progress | None` and calls `progress(stage, done, total)` now and then; it neither knows nor
cares who looks. `console_progress()` is the one that draws: a line per stage, named by what is before a colon; what
is behind it may change ("train: epoch 3/30, loss 0.512").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .text import printable

Progress = Callable[[str, int, "int | None"], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """Shows nothing."""


@contextmanager
def console_progress(quiet: bool = False) -> Iterator[Progress]:
    """A rich progress bar with rate and time left on standard error; `silent` when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield silent
        return
    columns = (
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=False) as bars:
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
