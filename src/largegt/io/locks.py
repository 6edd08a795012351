"""Locks: one process at a time writes a folder or a file.

A `Lock` is a file `.NAME.lock` next to the target. The operating system releases it when the process ends, even after
a crash. A second process gets a `HeldError` that names the first, or waits. Readers need no lock, because files appear
complete.
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

_HELD_ERRNOS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_RETRIES, _RETRY_S = 2, 0.02
"""Retries before a lock counts as held, because `check_free` holds a lock for a moment."""
_WAIT_S = 0.2

_log = logging.getLogger(__name__)


class HeldError(InputError):
    """Another process is writing the target."""


class Lock:
    """An acquired lock; a context manager that releases it.

    `doing` is a verb for the message: `writing`, `training into`. If another process holds the lock, `wait` logs one
    line and waits; otherwise a HeldError is raised. Missing parent folders are created, and removed at the end if they
    are empty.
    """

    def __init__(self, path: PathLike, doing: str = "writing", wait: bool = False) -> None:
        path = Path(path)
        self.file = _lock_file(path)
        self._created = [parent for parent in path.parents if not parent.exists()]
        self._descriptor = -1
        with disk_errors(path):
            try:
                self._acquire(path, doing, wait)
                holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)
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
                if holder is None:  # the lock file was removed in between
                    continue
                said = f"another process ({holder}) is {doing} {path}"
                if attempt >= _RETRIES and not wait:
                    raise HeldError(f"{said}: wait for it or stop it, then run the same command again")
                if attempt == _RETRIES:
                    _log.warning(f"{said}: waiting for it (`wait=False` to stop instead)")
                time.sleep(_RETRY_S if attempt < _RETRIES else _WAIT_S)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._descriptor >= 0:
            if _is_at(self._descriptor, self.file):
                self.file.unlink(missing_ok=True)  # before the release: `_is_at` then fails in a waiting process
            os.close(self._descriptor)
            self._descriptor = -1
            with suppress(OSError):  # not empty
                for parent in self._created:
                    parent.rmdir()


def check_free(path: PathLike, doing: str = "writing") -> None:
    """Raise a HeldError before any work if another process holds the lock. Remove the lock file of a killed process."""
    if _lock_file(Path(path)).exists():
        Lock(path, doing).release()


def remove_stale(path: PathLike) -> None:
    """Remove the lock file of a killed process, if possible."""
    with suppress(HeldError, DiskError, OSError):
        check_free(path)


def _lock_file(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


def _holder(descriptor: int, path: Path) -> str | None:
    """Lock an open file; a description of the process that holds the lock, or None if locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_ERRNOS:
            try:
                holder = json.loads(os.pread(descriptor, 4096, 0))
                return f"pid {holder['pid']} on {holder['host']}, since {holder['since']}"
            except (OSError, ValueError, KeyError, TypeError):
                return "it has just begun"
        _log.warning(f"{path} cannot be locked ({error.strerror}): write it by one process at a time")
    return None


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
