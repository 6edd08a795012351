"""Atomic writes: a file is written under a temporary name and renamed when complete.

Enters: a path and its content. Leaves: the complete new file, or the old file. Links that lead out of a folder are
not followed for writing.
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
    """Raise an error before a write that does not fit on the disk of `path`."""
    path = Path(path)
    free = shutil.disk_usage(next(folder for folder in (path, *path.absolute().parents) if folder.exists())).free
    if num_bytes > free:
        raise DiskError(
            f"{what} needs {format_bytes(num_bytes)} on the disk that holds {path}, {format_bytes(free)} are free: "
            f"free some, then {AGAIN}; it goes on where it stopped"
        )


def sync(path: PathLike) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: PathLike, durable: bool = False) -> Iterator[Path]:
    """Context manager of a temporary path, which replaces the file `path` at the end of the block.

    Readers see the complete old file or the complete new one. `durable`: also after a power loss.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with disk_errors(path.parent):
        try:
            partial.unlink(missing_ok=True)  # it may be a link to another file
            yield partial
            if durable:
                sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    with suppress(OSError):
        for file in path.parent.glob(f".{escape(path.name)}.partial-*"):  # left by killed processes
            pid = file.name.rpartition("-")[2]
            if pid.isdigit() and not _is_running(int(pid)):
                file.unlink(missing_ok=True)


def write_text_atomically(path: PathLike, text: str, durable: bool = False) -> None:
    """Replace a small text file atomically."""
    with replacing(path, durable) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file to `target`, replacing an existing file; copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        with replacing(target) as partial:
            try:
                os.link(source, partial)
            except OSError:
                shutil.copyfile(source, partial)
                sync(partial)


def leaves(folder: Path, file: Path) -> bool:
    """Whether the path `file` leads out of `folder`: by `..`, an absolute path or a link."""
    return not file.resolve().is_relative_to(folder.resolve())


def refuse_links_out(folder: Path, *paths: Path) -> None:
    """Refuse to write to these paths in `folder` if a link leads out of it."""
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
    except OSError:  # a process of another user
        pass
    return True
