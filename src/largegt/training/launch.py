"""Launch: one command → the same command in several processes of this machine, which train together.

The processes find each other as those of torchrun do, which launches jobs on several machines. The first one has the
terminal, the others are silent. If one dies, the rest are ended within seconds, and the error says which, why, and how
to go on. (torchrun names the rank that it sees first, which may be one that only lost another.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from largegt.runtime.distributed import LOST_RANK_CODE, LostRank
from largegt.runtime.text import printable
from largegt.runtime.threads import num_threads

_POLL_S = 0.02
_GRACE_S = 5.0
"""The others of a dead rank miss it at once and leave by themselves; who has not by then is ended."""


def launch(devices: int, arguments: Sequence[str], advice: Callable[[], str]) -> int:
    """Run `largegt` with these arguments on so many ranks. `advice` says what to do after one of them died."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "largegt", *arguments]
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryDirectory(prefix="largegt-") as folder, ExitStack() as at_end:
        at_end.callback(_end, processes)  # after a kill of this process they end by themselves (`end_with_parent`)
        errors = [Path(folder) / f"rank{rank}" for rank in range(devices)]
        for rank in range(devices):
            environment = os.environ | _environment(rank, devices, store.port)
            with open(errors[rank], "wb") as stream:
                quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": stream} if rank else {}
                processes.append(subprocess.Popen(command, env=environment, **quiet))
        failed = _first_to_fail(processes)
        if failed is None:
            return 0
        code = processes[failed].returncode
        if processes[0].returncode == 2:  # it has said what was wrong
            return 2
        words = errors[failed].read_text(encoding="utf-8", errors="replace").strip() if failed else ""
        if code == 2:
            raise LostRank(f"rank {failed}: {words.splitlines()[-1].removeprefix('error: ')}")
        if words:
            sys.stderr.write(printable(words, keep="\n") + "\n")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise LostRank(f"rank {failed} died ({how}): {advice()}")


def resume_advice(out: Path, devices: int) -> str:
    """How far a training came, and the command that goes on with it."""
    ranks = f", devices={devices}" if devices > 1 else ""
    command = f"`lg.train(resume=True, out={str(out)!r}{ranks})`"
    file = out / "checkpoints" / "last.pt"
    if not file.is_file():
        return f"there is no checkpoint yet; begin again with: {command}"
    try:
        epoch = torch.load(file, map_location="cpu", weights_only=True, mmap=True)["progress"]["epoch"]
    except Exception:  # resuming says what is wrong with it
        return f"go on with: {command}"
    return f"the last checkpoint is epoch {epoch}; go on with: {command}"


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets, and cores for each."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, num_threads(None) // size))
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": threads, "LARGEGT_LAUNCHED": str(os.getpid()),
    }  # fmt: skip


def _first_to_fail(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all to end well, or for one that did not: its number. Those that only lost another are passed over as
    long as there may be another."""
    blamed: int | None = None
    deadline = float("inf")
    while True:
        running = [process for process in processes if process.poll() is None]
        failed = [number for number, process in enumerate(processes) if process.returncode]
        causes = [number for number in failed if processes[number].returncode != LOST_RANK_CODE]
        if blamed is None and causes:
            blamed = min(causes, key=lambda number: processes[number].returncode)  # a signal before what it led to
        if not running or time.monotonic() > deadline:
            return blamed if blamed is not None else next(reversed(failed), None)
        if failed and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE_S
        time.sleep(_POLL_S)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
