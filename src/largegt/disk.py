"""Files that are whole or not there: room for them, writing them in one step, seeing them to the disk."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

from .errors import AGAIN, DiskError, disk_errors
from .memory import format_bytes
from .types import PathLike


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


def write_text_atomically(path: PathLike, text: str, durable: bool = False) -> None:
    """Replace a small text file in one step: readers see the old one or the new one, whole. `durable`: also after a
    power cut."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with disk_errors(path.parent):
        try:
            partial.write_text(text, encoding="utf-8")
            if durable:
                sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    _remove_dead(path)


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left of files that it was replacing in this folder."""
    for file in folder.glob(".*.partial*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    """Remove what processes that are gone have left of a small file that they were replacing."""
    with suppress(OSError):
        for file in path.parent.glob(f".{escape(path.name)}.partial-*"):
            pid = file.name.rpartition("-")[2]
            try:
                os.kill(int(pid) if pid.isdigit() else os.getpid(), 0)
            except ProcessLookupError:
                file.unlink(missing_ok=True)
