"""Stopping: SIGINT (Ctrl-C) and SIGTERM end a command in an orderly way.

Enters: a signal. Leaves: `KeyboardInterrupt` in the main thread, so that every `finally` runs and files and locks are
let go; the command line turns it into one line and exit code 130 or 143. What was promised to go on does: stages that
commit go on from their last commit, a training from the checkpoint of its last epoch. A second signal ends the process
at once, which is as safe as a kill.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def listen() -> None:
    """From now on both signals raise, once. Only the main thread may call it."""
    signal.signal(signal.SIGINT, _raise)
    signal.signal(signal.SIGTERM, _raise)


def exit_code(error: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def end_with_parent(parent: int) -> None:
    """Let this process be ended when the one that launched it is gone, even by a kill."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGTERM)


def _raise(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _leave)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
