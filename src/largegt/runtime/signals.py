"""Stopping: SIGINT (Ctrl-C) and SIGTERM end a command in an orderly way.

Enters: a signal. Leaves: `KeyboardInterrupt` in the main thread, so that every `finally` runs and files and locks are
let go; the command line turns it into one line and exit code 130 or 143. What was promised to go on does: stages that
commit go on from their last commit, a training from the checkpoint of its last epoch. A second signal ends the process
at once, which is as safe as a kill; also inside native code (a compiler, a call that allocates for minutes), where the
first one waits and no Python handler runs: there it must be the same signal again, and the system's own action ends it.
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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)
        _take_once(number)


def exit_code(error: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def end_with_parent(parent: int) -> None:
    """Let this process be ended when the one that launched it is gone, even by a kill."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGTERM)


def _take_once(number: int) -> None:
    """Let CPython's own handler, which notes a signal until Python code runs, be called once (SA_RESETHAND, by glibc's
    sysv_signal): then the system's default action is back, and needs neither the GIL nor another thread."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "sysv_signal"):
        libc.signal.restype = ctypes.c_void_p
        libc.sysv_signal(number, ctypes.c_void_p(libc.signal(number, None)))


def _raise(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # the first process of a container has no default action
        signal.signal(each, _leave if os.getpid() == 1 else signal.SIG_DFL)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
