"""Launch: runs one command in several processes of this machine, which train together.

The processes connect through the environment variables of torchrun, which launches jobs on several machines. Only rank
0 writes to the terminal. If a rank dies, the others end within seconds, and the error names the rank, the cause and the
command to resume. (torchrun names the first rank that exits, which may only have lost its connection to another.)
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
"""The other ranks detect a dead rank at once and exit; after this time the launcher terminates them."""


def launch(devices: int, arguments: Sequence[str], advice: Callable[[], str]) -> int:
    """Run `largegt` with these arguments on `devices` ranks. `advice` gives the end of the error when a rank dies."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "largegt", *arguments]
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryDirectory(prefix="largegt-") as folder, ExitStack() as at_end:
        at_end.callback(_terminate, processes)  # if this process is killed, they exit themselves (`end_with_parent`)
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
        if processes[0].returncode == 2:  # rank 0 has printed the error
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
    except Exception:  # --resume reports the damage
        return f"go on with: {command}"
    return f"the last checkpoint is epoch {epoch}; go on with: {command}"


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The environment variables of torchrun, and a share of the cores."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, num_threads(None) // size))
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": threads, "LARGEGT_LAUNCHED": str(os.getpid()),
    }  # fmt: skip


def _first_to_fail(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all processes succeed (None) or one fails (its rank). A process that only lost its connection to
    another is returned only if no other process fails."""
    first: int | None = None
    deadline = float("inf")
    while True:
        running = [process for process in processes if process.poll() is None]
        failed = [number for number, process in enumerate(processes) if process.returncode]
        causes = [number for number in failed if processes[number].returncode != LOST_RANK_CODE]
        if first is None and causes:
            first = min(causes, key=lambda number: processes[number].returncode)  # a signal before other failures
        if not running or time.monotonic() > deadline:
            return first if first is not None else next(reversed(failed), None)
        if failed and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE_S
        time.sleep(_POLL_S)


def _terminate(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
