"""SIGINT (Ctrl-C) and SIGTERM stop a command cleanly.

Enters: a signal. Leaves: `KeyboardInterrupt` in the main thread, so that every `finally` block runs and files and locks
are released; the command line prints one line and exits with code 130 or 143. Stages resume from their last commit,
training from the checkpoint of its last epoch. A second signal ends the process at once, which is as safe as a kill.
Inside native code (a compiler, a long allocation) no Python handler runs and the first signal waits: a second signal of
the same kind ends the process by the system's default action.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def install_handlers() -> None:
    """Let the first of both signals raise. Call it in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)
        _reset_after_first(number)


def exit_code(error: KeyboardInterrupt) -> int:
    """128 plus the signal number, as in shells."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def end_with_parent(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before prctl
            os.kill(os.getpid(), signal.SIGTERM)


def _reset_after_first(number: int) -> None:
    """Call CPython's handler only for the first signal (SA_RESETHAND, by glibc's sysv_signal). The system's default
    action handles the second one; it needs neither the GIL nor another thread."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "sysv_signal"):
        libc.signal.restype = ctypes.c_void_p
        libc.sysv_signal(number, ctypes.c_void_p(libc.signal(number, None)))


def _raise(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # the first process of a container has no default action
        signal.signal(each, _exit_now if os.getpid() == 1 else signal.SIG_DFL)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _exit_now(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
