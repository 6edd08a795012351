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
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
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
    _remove_dead(path)


def write_text_atomically(path: PathLike, text: str, durable: bool = False) -> None:
    """Replace a small text file in one step."""
    with replacing(path, durable) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        with replacing(target, durable=True) as partial:
            shutil.copyfile(source, partial)


def remove_partial(folder: Path) -> None:
    """Remove temporary files that a killed process left in this folder."""
    for file in folder.glob(".*.partial*"):
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)


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


def _remove_dead(path: Path) -> None:
    """Remove temporary files of this name that belong to processes that ended."""
    with suppress(OSError):
        for file in path.parent.glob(f".{escape(path.name)}.partial-*"):
            pid = file.name.rpartition("-")[2]
            try:
                os.kill(int(pid) if pid.isdigit() else os.getpid(), 0)
            except ProcessLookupError:
                file.unlink(missing_ok=True)
