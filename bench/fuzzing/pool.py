"""Workers: forked processes that run cases, with a limit on memory and on the time of a case.

A worker that dies (a crash, the memory limit) or does not come back in time is reported with its case and replaced;
the others go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from largegt.runtime import memory

from .cases import BUG, Outcome, Target, run_case

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Limits:
    """What a case may take."""

    case_s: float = 60.0
    start_s: float = 600.0
    """For making a target: it compiles, and may train a small model."""
    memory_bytes: int = 3 << 30
    """Address space beyond what a worker has when it starts."""
    growth_bytes: int = 1 << 29
    """How far the memory of a worker may rise in one case."""


def fuzz(
    kind: str, make: type[Target], seed: int, numbers: Sequence[int], workers: int, limits: Limits,
    steps: Sequence[int] | None = None,
) -> Iterator[Outcome]:  # fmt: skip
    """The outcomes of these cases, as they come; with `steps`, of these steps of them."""
    shares = [list(numbers[part::workers]) for part in range(workers)]
    running = [_Worker(kind, make, seed, share, limits, steps) for share in shares if share]
    try:
        while running:
            wait([worker.pipe for worker in running], timeout=0.5)
            for worker in list(running):
                yield from worker.news()
                if worker.is_over:
                    running.remove(worker)
                    worker.end()
                    if worker.left:
                        running.append(_Worker(kind, make, seed, worker.left, limits, steps))
    finally:
        for worker in running:
            worker.end()


class _Worker:
    """One process and what the parent knows of it."""

    def __init__(
        self, kind: str, make: type[Target], seed: int, numbers: list[int], limits: Limits, steps: Sequence[int] | None
    ) -> None:
        self.left, self.limits = numbers, limits
        self.is_over = False
        self._deadline = time.monotonic() + limits.start_s
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_work, args=(theirs, kind, make, seed, list(numbers), limits, self._folder, steps), daemon=True
        )
        self._process.start()
        theirs.close()

    def news(self) -> Iterator[Outcome]:
        """What came in since the last time; a death or a hang is an outcome too."""
        try:
            while self.pipe.poll():
                outcome = self.pipe.recv()
                self._deadline = time.monotonic() + self.limits.case_s
                if outcome is not None:
                    self.left = self.left[1:]
                    yield outcome
        except (EOFError, OSError):
            self._process.join(5)
            self.is_over = True
            if self.left:
                yield self._lost(f"the worker died with code {self._process.exitcode}")
            return
        if time.monotonic() > self._deadline:
            self.is_over = True
            yield self._lost("no answer in time")

    def _lost(self, reason: str) -> Outcome:
        number, self.left = self.left[0], self.left[1:]
        return Outcome(number, BUG, reason)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _work(
    pipe: Connection, kind: str, make: type[Target], seed: int, numbers: list[int], limits: Limits, folder: Path,
    steps: Sequence[int] | None,
) -> None:  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        os.chdir(folder)  # a case that writes to an odd path writes here
        memory.available_bytes = lambda: 1 << 30  # stages take half of what is free, whatever the machine has
        target = make(folder)
        limit = _address_space() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        pipe.send(None)
        for number in numbers:
            before = _peak_from_now_on()
            outcome = run_case(target, kind, seed, number, steps)
            growth = _peak_bytes() - before
            if growth > limits.growth_bytes and outcome.verdict != BUG:
                outcome = Outcome(number, BUG, "memory", f"the case took {growth >> 20} MiB ({outcome.verdict})")
            pipe.send(outcome)
    sys.stdout.flush()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _peak_from_now_on() -> int:
    """What the peak is when it is forgotten first: a worker begins with that of its parent, below which a case would
    not be seen."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def shrunk(
    kind: str, make: Any, seed: int, number: int, steps: Sequence[int], signature: str, limits: Limits
) -> list[int]:
    """The fewest steps of a case, as far as leaving out one after the other goes, that give the same bug."""
    left = list(steps)
    for step in list(left):
        fewer = [other for other in left if other != step]
        outcome = next(iter(fuzz(kind, make, seed, [number], 1, limits, fewer)))
        if outcome.signature == signature:
            left = fewer
    return left
