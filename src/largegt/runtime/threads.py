"""Thread pools over ranges, for numba kernels that release the GIL.

Numba's `parallel=True` is not an option: its OpenMP layer kills forked data loaders and its workqueue layer aborts
under concurrent callers. A thread pool has neither problem and supports progress and Ctrl-C.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from largegt.types import Array

from .progress import Progress, silent


def num_threads(threads: int | None) -> int:
    """`threads`, or the number of cores that this process may use."""
    if threads:
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_ranges(task: Callable[[int, int], Any], bounds: Iterable[int], threads: int | None = None) -> Iterator[Any]:
    """`task(low, high)` for each pair of neighbouring bounds, on a thread pool; results in order. The first error
    cancels the tasks that have not started."""
    ranges = [(low, high) for low, high in pairwise(int(bound) for bound in bounds) if low < high]
    workers = min(num_threads(threads), len(ranges))
    if workers <= 1:
        for low, high in ranges:
            yield task(low, high)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda pair: task(*pair), ranges)


def run_chunks(
    work: Callable[[int, int], None], total: int, chunk: int, threads: int | None = None,
    progress: Progress | None = None, stage: str = "",
) -> None:  # fmt: skip
    """Call `work(start, stop)` over `range(total)` in chunks; small chunks balance the load of hubs. The first error
    cancels the rest."""
    show = progress or silent
    show(stage, 0, total)
    for number, _ in enumerate(run_ranges(work, [*range(0, total, chunk), total], threads), start=1):
        show(stage, min(total, number * chunk), total)


def take_rows(source: Array, at: Array, out: Array, rows_per_task: int, threads: int) -> None:
    """out[i] = source[at[i]] on several threads, without bounds checks."""

    def take(low: int, high: int) -> None:  # releases the GIL; mode="clip" is the fastest
        np.take(source, at[low:high], axis=0, out=out[low:high], mode="clip")

    for _ in run_ranges(take, [*range(0, len(at), rows_per_task), len(at)], threads):
        pass


def run_ahead(
    task: Callable[[Any], Any], items: Iterable[Any], threads: int | None = None, at_once: bool = False
) -> Generator[Any, None, None]:
    """`task(item)` for each item, results in order. At most one result per thread is buffered, so a slow consumer does
    not fill the memory. With `at_once` the consumer's thread starts each task: for tasks that only launch GPU work."""
    workers = num_threads(threads)
    with ThreadPoolExecutor(workers) as pool:
        begin: Callable[[Any], Any] = task if at_once else lambda item: pool.submit(task, item)
        end: Callable[[Any], Any] = (lambda made: made) if at_once else Future.result
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(begin(item))
                if len(waiting) > workers:
                    yield end(waiting.popleft())
            while waiting:
                yield end(waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
