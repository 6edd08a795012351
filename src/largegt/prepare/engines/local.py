"""The local engine: a kernel over small chunks of nodes on all cores, so that hubs do not leave threads idle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from ...progress import Progress, silent
from ...threads import run_ranges


def run_chunks(
    work: Callable[[int, int], None],
    total: int,
    chunk: int,
    threads: int | None = None,
    progress: Progress | None = None,
    stage: str = "",
) -> None:
    """Call `work(start, stop)` over `range(total)` in chunks. The first error stops the rest."""
    show = progress or silent
    show(stage, 0, total)
    bounds = chain(range(0, total, chunk), [total])
    for number, _ in enumerate(run_ranges(work, bounds, threads), start=1):
        show(stage, min(total, number * chunk), total)
