"""Locks: one process at a time writes a folder or a file.

Enters: the path that is to be written, and a word for what is done to it. Leaves: a `Lock`, the file `.NAME.lock`
beside it, held until it is released or its process ends, however it ends: what a killed process held is free at once,
and the next one takes the file over. Who comes second is told at once who holds it. Nothing ever waits. Readers need
no lock: what is written appears whole.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
import warnings
from contextlib import suppress
from pathlib import Path

from .errors import InputError, disk_errors
from .types import PathLike

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_ATTEMPTS, _GLANCE_S = 3, 0.02
"""`check_free` holds a lock for a moment: who meets it then looks again."""


class HeldError(InputError):
    """Another process writes there now."""


class Lock:
    """Held from the moment it is made; a context manager that releases it.

    `doing` is a verb for the message: `writing`, `training into`. Folders above `path` that are missing are made, and
    removed again at the end as far as they are empty.
    """

    def __init__(self, path: PathLike, doing: str = "writing") -> None:
        path = Path(path)
        self.file = path.parent / f".{path.name}.lock"
        self._made = [parent for parent in path.parents if not parent.exists()]
        with disk_errors(path):
            self._descriptor = self._taken(path, doing)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _taken(self, path: Path, doing: str) -> int:
        while True:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                refuse_held(descriptor, path, doing)
                if _is_at(descriptor, self.file):  # else its holder removed it while we looked
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(_ourselves()).encode(), 0)
                    return descriptor
            except OSError:  # it is ours, and cannot be written: no space is left
                self._descriptor = descriptor
                self.release()
                raise
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self) -> None:
        """Let the next one in. A second call does nothing."""
        if self._descriptor < 0:
            return
        if _is_at(self._descriptor, self.file):
            self.file.unlink(missing_ok=True)  # while it is held: who has opened it already sees that it is gone
        os.close(self._descriptor)
        self._descriptor = -1
        for parent in self._made:
            try:
                parent.rmdir()
            except OSError:
                return


def check_free(path: PathLike, doing: str = "writing") -> None:
    """Refuse what another process holds now, without taking it: to say so before any work. The file that a killed
    process has left is removed."""
    path = Path(path)
    file = path.parent / f".{path.name}.lock"
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return
    try:
        refuse_held(descriptor, path, doing)
        if _is_at(descriptor, file):
            with suppress(OSError):  # where nothing can be written, nothing is to be removed
                file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def remove_stale(path: PathLike) -> None:
    """Remove the lock that a process has left which was killed when all was in its place."""
    with suppress(HeldError):
        check_free(path)


def refuse_held(descriptor: int, path: Path, doing: str) -> None:
    """Take the lock of an open file, or say who holds it."""
    for attempt in reversed(range(_ATTEMPTS)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _HELD:  # a file system that knows no locks
                warnings.warn(
                    f"{path} cannot be locked ({error.strerror}): write it by one process at a time", stacklevel=4
                )
                return
        if attempt:
            time.sleep(_GLANCE_S)
    raise HeldError(
        f"another process ({_holder(descriptor)}) is {doing} {path}: wait for it or stop it, then run the same "
        "command again"
    )


def _ourselves() -> dict[str, str | int]:
    return {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _holder(descriptor: int) -> str:
    """`pid 4711 on host, since 2030-01-31 12:00:00`, as far as it has said so."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {said['pid']} on {said['host']}, since {said['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has just begun"


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
