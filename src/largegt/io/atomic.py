"""Atomic files: a file is written under a temporary name, and renamed when it is whole.

Enters: a path and its content. Leaves: the file, whole, or the file that was there before. Nothing is written through a
link that leads out of a folder of ours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from largegt.errors import AGAIN, DiskError, FormatError, disk_errors
from largegt.runtime.memory import format_bytes
from largegt.types import PathLike


def require_space(path: PathLike, num_bytes: int, what: str) -> None:
    """Refuse now what would fill the disk that holds `path` later."""
    path = Path(path)
    free = shutil.disk_usage(next(folder for folder in (path, *path.absolute().parents) if folder.exists())).free
    if num_bytes > free:
        raise DiskError(
            f"{what} needs {format_bytes(num_bytes)} on the disk that holds {path}, {format_bytes(free)} are free: "
            f"free some, then {AGAIN}; it goes on where it stopped"
        )


def sync(path: PathLike) -> None:
    """Wait until a file, or the names in a folder, are on the disk itself: before something else relies on them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: PathLike, durable: bool = False) -> Iterator[Path]:
    """A temporary name for a new version of the file `path`, which takes its place at the end of the block.

    Readers see the old file or the new one, whole. `durable`: also after a power cut.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with disk_errors(path.parent):
        try:
            partial.unlink(missing_ok=True)  # it could be a link to another file
            yield partial
            if durable:
                sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    with suppress(OSError):
        for file in path.parent.glob(f".{escape(path.name)}.partial-*"):  # of processes that were killed
            pid = file.name.rpartition("-")[2]
            if pid.isdigit() and not _is_running(int(pid)):
                file.unlink(missing_ok=True)


def write_text_atomically(path: PathLike, text: str, durable: bool = False) -> None:
    """Replace a small text file in one step."""
    with replacing(path, durable) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def link_or_copy(source: Path, target: Path) -> None:
    """Put a file at `target` too, in the place of what is there; a copy where the file system has no hard links."""
    with replacing(target) as partial:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
            sync(partial)


def leaves(folder: Path, file: Path) -> bool:
    """Whether a file named in `folder` is elsewhere: by `..`, by an absolute name or by a link."""
    return not file.resolve().is_relative_to(folder.resolve())


def refuse_links_out(folder: Path, *paths: Path) -> None:
    """Refuse to write to these paths of `folder` where a link leads out of it."""
    for path in paths:
        if leaves(folder, path):
            raise FormatError(
                f"{path} is a link that leads out of {folder}, and nothing is written through it: remove the link"
            )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True
