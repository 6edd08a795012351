"""Tasks that die with their worker, once each, for workers of a cluster to import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from largegt.runtime import workers


@dataclass(frozen=True)
class Dying:
    """`task`, whose first worker dies just before it renames what it wrote, and the second when it is done."""

    task: Callable[..., Any]
    marks: Path

    def __call__(self, *call: Any) -> Any:
        first, second = self.marks / "first", self.marks / "second"
        if _made(first):
            workers.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
            self.task(*call)
            os.kill(os.getpid(), signal.SIGKILL)  # it renames nothing
        result = self.task(*call)
        if _made(second):
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def _made(mark: Path) -> bool:
    """Whether this process is the one that made the file."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
