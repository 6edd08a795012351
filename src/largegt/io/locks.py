"""Locks: one process at a time writes a folder or a file.

A `Lock` is the file `.NAME.lock` beside what is written. The operating system holds it until it is released or its
process ends, however it ends. A second process gets a `HeldError` that names the first, or waits for it. Readers need
no lock: a file of ours appears whole.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from largegt.errors import DiskError, InputError, disk_errors
from largegt.types import PathLike

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_GLANCES, _GLANCE_S = 2, 0.02
"""`check_free` holds a lock for a moment: a process that meets it then tries again."""
_WAIT_S = 0.2

_log = logging.getLogger(__name__)


class HeldError(InputError):
    """Another process is writing there now."""


class Lock:
    """Held from the moment it is made; a context manager that releases it.

    `doing` is a verb for the message: `writing`, `training into`. With `wait`, a lock that is held is waited for,
    and one line says so; otherwise it is a HeldError. Missing parent folders are made, and removed again at the end if
    they are empty.
    """

    def __init__(self, path: PathLike, doing: str = "writing", wait: bool = False) -> None:
        path = Path(path)
        self.file = _lock_file(path)
        self._made = [parent for parent in path.parents if not parent.exists()]
        self._descriptor = -1
        with disk_errors(path):
            try:
                self._acquire(path, doing, wait)
                facts = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(facts).encode(), 0)
            except BaseException:  # a full disk, a signal
                self.release()
                raise

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _acquire(self, path: Path, doing: str, wait: bool) -> None:
        for attempt in count():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process has just removed the empty folder
                descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
                if (holder := _holder(descriptor, path)) is None and _is_at(descriptor, self.file):
                    self._descriptor = descriptor
                    return
                os.close(descriptor)
                if holder is None:  # it was removed while we locked it
                    continue
                said = f"another process ({holder}) is {doing} {path}"
                if attempt >= _GLANCES and not wait:
                    raise HeldError(f"{said}: wait for it or stop it, then run the same command again")
                if attempt == _GLANCES:
                    _log.warning(f"{said}: waiting for it (`wait=False` to stop instead)")
                time.sleep(_GLANCE_S if attempt < _GLANCES else _WAIT_S)

    def release(self) -> None:
        """Let the next process in. A second call does nothing."""
        if self._descriptor >= 0:
            if _is_at(self._descriptor, self.file):
                self.file.unlink(missing_ok=True)  # while it is held: who has opened it already sees that it is gone
            os.close(self._descriptor)
            self._descriptor = -1
            with suppress(OSError):  # not empty
                for parent in self._made:
                    parent.rmdir()


def check_free(path: PathLike, doing: str = "writing") -> None:
    """Refuse what another process holds now: an error before any work. The file that a killed process has left is
    removed."""
    if _lock_file(Path(path)).exists():
        Lock(path, doing).release()


def remove_stale(path: PathLike) -> None:
    """Remove the lock file of a process that was killed, where that can be done."""
    with suppress(HeldError, DiskError, OSError):
        check_free(path)


def _lock_file(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


def _holder(descriptor: int, path: Path) -> str | None:
    """Lock an open file: None, or who holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            try:
                said = json.loads(os.pread(descriptor, 4096, 0))
                return f"pid {said['pid']} on {said['host']}, since {said['since']}"
            except (OSError, ValueError, KeyError, TypeError):
                return "it has just begun"
        _log.warning(f"{path} cannot be locked ({error.strerror}): write it by one process at a time")
    return None


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
