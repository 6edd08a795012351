"""One folder in the place of another: the old one moves aside, the new one gets its name, then the old one goes.

A process that is killed in between leaves enough to tell which of the two it is.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

from .disk import sync
from .errors import DiskError, LargeGTError
from .locks import Lock, check_free

JOURNAL = "progress.json"
"""What a writer has done so far, in its folder."""
_KEEP = "-keep"
"""Ends the name of a replaced folder while others' files and folders in it are still to move to the new one."""


def tidy(path: Path) -> None:
    """Remove what a process has left beside and in a whole folder that was killed just after it gave it its name."""
    with suppress(LargeGTError, OSError):  # in use, or read-only: then it is another's, or harmless
        check_free(path)
        if (path / JOURNAL).exists() and (path / "manifest.json").exists():
            (path / JOURNAL).unlink(missing_ok=True)


def retire(path: Path, kind: str, keep_others: bool) -> Path:
    """Move the folder that is being replaced out of the way; where it is now."""
    old = path.parent / f".{path.name}.old-{os.getpid()}{_KEEP if keep_others else ''}"
    try:
        os.replace(path, old)
    except OSError as error:
        raise DiskError(f"cannot replace the {kind} at {path}: {error.strerror}") from error
    return old


def discard(old: Path, path: Path) -> None:
    """Remove a folder that another has replaced at `path`, after what others have put into it has moved there."""
    if old.name.endswith(_KEEP):
        try:
            others = _others(old)
        except (ValueError, KeyError, FileNotFoundError):
            return  # damaged since: nobody can say what in it is another's
        for entry in others:
            taken = os.path.lexists(path / entry.name)  # by an array that is new
            os.replace(entry, path / (f"{entry.name}.before" if taken else entry.name))
        sync(path)
        empty = old.with_name(old.name.removesuffix(_KEEP))  # from here on nothing in it is anyone's
        shutil.rmtree(empty, ignore_errors=True)
        os.replace(old, empty)
        old = empty
    shutil.rmtree(old, ignore_errors=True)


def _others(folder: Path) -> list[Path]:
    """What lies in a folder of ours, and is neither of its arrays nor made from them."""
    arrays = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["arrays"]
    ours = {"manifest.json", JOURNAL, "prepared", "appended", *(f"{name}.npy" for name in arrays)}
    small = (".manifest.json.partial-", f".{JOURNAL}.partial-")
    return sorted(entry for entry in folder.iterdir() if entry.name not in ours and not entry.name.startswith(small))


def recover(path: Path) -> None:
    """After a kill between moving the old folder away and the new one in: the old one again. Just after that: the new
    one, and what others have put into the old one."""
    if any(path.parent.glob(f".{escape(path.name)}.old-*")):
        with suppress(LargeGTError, OSError), Lock(path):  # held: its process is about to give the new one its name
            restore(path)


def restore(path: Path) -> None:
    """After a kill between moving the old folder away and the new one in: the old one again. Else it has served."""
    for old in path.parent.glob(f".{path.name}.old-*"):
        if path.exists():
            discard(old, path)
        else:
            os.replace(old, path)
