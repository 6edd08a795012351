"""checksums.json of a run: what its files are, so that a damaged one is found before it is used.

A training may be killed at any moment: while files take their places, each has a note of what it was and one of what it
is about to be, and either is sound. `analysis.json`, which a report may write beside a training, carries its own
checksum. Runs without a checksums.json are read as they are. Cost: a hash of each file, and two small files per write.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from largegt.errors import DiskError, FormatError, disk_errors
from largegt.io.atomic import leaves, sync, write_text_atomically
from largegt.io.checksums import Damage, bytes_checksum, file_checksum, mismatch, read_sealed, sealed

FILE = "checksums.json"
_FORMAT, _VERSION = "largegt-run", 2
_ATTEMPTS = 5
_PLACE = re.compile(rb"^(store|absolute) = .*$", re.MULTILINE)
"""Where the store lies is the user's to change in config.toml, and its fingerprint is checked anyway."""


Note = dict[str, Any]
"""The size and the checksum of a file, as `_Note` has them."""
Notes = dict[str, list[Note]]
"""What each file is, by its name: one note, or several while it is replaced."""


class _Note(BaseModel, strict=True):
    bytes: int
    checksum: str


_NOTES = TypeAdapter(dict[str, list[_Note]])


@contextmanager
def replacing(run: Path, others: Iterable[Path] = ()) -> Iterator[Path]:
    """A folder for new files of the run, each under the name that it is to have. At the end they take their places
    together: a kill at any moment leaves each file old or new, and the checkpoint is the last to be new. `others` are
    noted as they are."""
    with disk_errors(run), _temporary(run) as folder:
        yield folder
        new = sorted((file for file in folder.rglob("*") if file.is_file()), reverse=True)
        files = {run / file.relative_to(folder): file for file in new}
        for file in new:
            sync(file)
        before = noted(run)
        contents = files | {path: path for path in others}
        after = {_name(run, path): [_note(path, content)] for path, content in contents.items()}
        _write(run, before | {name: [*before.get(name, []), *note] for name, note in after.items()}, durable=True)
        for path, file in files.items():
            path.parent.mkdir(exist_ok=True)
            os.replace(file, path)
        _write(run, before | after)


@contextmanager
def _temporary(run: Path) -> Iterator[Path]:
    """A folder in the run that is gone at the end, also where a signal comes while it is removed."""
    folder = run / f".{uuid.uuid4().hex[:8]}.partial"
    try:
        folder.mkdir()
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def check_file(run: Path, path: Path) -> None:
    """Refuse a file of the run that is not what was written."""
    try:
        fault = _fault_of(run, path)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror or error}; mend that and try again") from error
    if fault is not None:
        advice = "bring a whole copy, or train again with --overwrite"
        if path.name == "config.toml":
            advice = f"put it back, or delete {run / FILE} if you changed it on purpose"
        raise FormatError(f"{path} {fault}: it was damaged or changed; {advice}")


def damages(run: Path) -> Iterator[Damage]:
    """Each file of the run that is there and is not what was written. Reads every byte."""
    for name in noted(run):
        path = run / name
        try:
            fault = _fault_of(run, path) if path.exists() else None
        except OSError as error:
            fault = f"cannot be read ({error.strerror or error})"
        if fault is not None:
            yield Damage(path, fault)


def unchecked(run: Path) -> list[str]:
    """Files in the run that nothing was noted of."""
    known = {*noted(run), FILE, "analysis.json"}
    names = (_name(run, file) for file in sorted(run.rglob("*")) if file.is_file())
    return [name for name in names if name not in known]


def noted(run: Path) -> Notes:
    """What is noted of each file of the run, by its name."""
    file = run / FILE
    if not file.is_file():
        return {}
    advice = f"delete {file} to go on without it"
    tree = read_sealed(file, advice)
    files: Notes = tree.get("files", {})
    with suppress(ValidationError):
        _NOTES.validate_python(files)
        stays = not any(Path(name).is_absolute() or ".." in Path(name).parts for name in files)
        if stays and (tree.get("format"), tree.get("version")) == (_FORMAT, _VERSION):
            return files
    raise FormatError(f"{file} is of another version of largegt; {advice}")


def _fault_of(run: Path, path: Path) -> str | None:
    """What is wrong with a file. A training may write between our two looks, so we look again when it did."""
    fault = None
    for _ in range(_ATTEMPTS):
        notes = noted(run)
        if not (known := notes.get(_name(run, path))):
            return None
        if leaves(run, path):
            return "leads out of its run"
        faults = [_fault(path, note) for note in reversed(known)]
        if None in faults:
            return None
        fault = faults[0]
        if noted(run) == notes:
            break
    return fault


def _fault(path: Path, note: Note) -> str | None:
    if path.name != "config.toml":
        return mismatch(path, note["bytes"], note["checksum"])
    try:
        return None if _note(path, path) == note else "does not match its checksum"
    except FileNotFoundError:
        return "is missing"


def _note(path: Path, content: Path) -> Note:
    """What `path` is, whose content lies at `content`."""
    if path.name == "config.toml":
        text = _PLACE.sub(rb"\1 =", content.read_bytes(), count=2)
        return {"bytes": len(text), "checksum": bytes_checksum(text)}
    return {"bytes": content.stat().st_size, "checksum": file_checksum(content)}


def _name(run: Path, path: Path) -> str:
    return path.relative_to(run).as_posix()


def _write(run: Path, notes: Notes, durable: bool = False) -> None:
    write_text_atomically(run / FILE, sealed({"format": _FORMAT, "version": _VERSION, "files": notes}), durable)
