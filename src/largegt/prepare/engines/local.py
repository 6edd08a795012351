"""The local engine: numba kernels without the GIL, driven by a pool of threads over small chunks.

Why not numba's own `parallel=True`: its OpenMP layer kills forked data loaders and its workqueue layer aborts under
concurrent callers. A thread pool has neither trap, balances hubs by small chunks, and gives progress and Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ...progress import Progress, silent


def num_threads(threads: int | None) -> int:
    """The number asked for, or the cores this process may use."""
    return threads or len(os.sched_getaffinity(0))


def run_chunks(
    work: Callable[[int, int], None],
    total: int,
    chunk: int,
    threads: int | None = None,
    progress: Progress | None = None,
    stage: str = "",
) -> None:
    """Call `work(start, stop)` over `range(total)` in chunks, on all cores. The first error stops the rest."""
    show = progress or silent
    show(stage, 0, total)
    pieces = iter(range(0, total, chunk))
    done = 0
    with ThreadPoolExecutor(num_threads(threads)) as pool:
        running: dict[Future[None], int] = {}
        try:
            while True:
                while len(running) < 2 * num_threads(threads) and (start := next(pieces, None)) is not None:
                    stop = min(start + chunk, total)
                    running[pool.submit(work, start, stop)] = stop - start
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    done += running.pop(future)
                show(stage, done, total)
        except BaseException:
            for future in running:
                future.cancel()
            raise
