"""checksums.json of a run: the size and checksum of each file, so that a damaged file is detected before it is used.

A training may be killed at any moment: while files are replaced, each has the checksums of its old and its new content,
and either is valid. `analysis.json`, which a report may write during a training, holds its own checksum. Runs without a
checksums.json are read without checks. Cost: a hash of each file, and two small files per write.
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
_STORE_PATH_LINE = re.compile(rb"^(store|absolute) = .*$", re.MULTILINE)
"""Lines of config.toml without a checksum: users may change the store's path, and its fingerprint is checked."""


Note = dict[str, Any]
"""The size and the checksum of a file, with the fields of `_Note`."""
Notes = dict[str, list[Note]]
"""The notes of each file, by its name: one note, or several while the file is replaced."""


class _Note(BaseModel, strict=True):
    bytes: int
    checksum: str


_NOTES = TypeAdapter(dict[str, list[_Note]])


@contextmanager
def replacing(run: Path, others: Iterable[Path] = ()) -> Iterator[Path]:
    """A folder for new files of the run, each under its final name. At the end they replace the old files together: a
    kill at any moment leaves each file old or new, and the checkpoint is replaced last. `others` are existing files
    that get a new checksum."""
    with disk_errors(run), _temporary(run) as folder:
        yield folder
        new = sorted((file for file in folder.rglob("*") if file.is_file()), reverse=True)
        files = {run / file.relative_to(folder): file for file in new}
        for file in new:
            sync(file)
        before = noted(run)
        contents = files | {path: path for path in others}
        after = {_name(run, path): [_note(path, content)] for path, content in contents.items()}
        _write_notes(run, before | {name: [*before.get(name, []), *note] for name, note in after.items()}, durable=True)
        for path, file in files.items():
            path.parent.mkdir(exist_ok=True)
            os.replace(file, path)
        _write_notes(run, before | after)


@contextmanager
def _temporary(run: Path) -> Iterator[Path]:
    """A temporary folder in the run, removed at the end even if a signal interrupts the removal."""
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
    """Refuse a file of the run that does not match its checksum."""
    try:
        fault = _fault_of(run, path)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror or error}; mend that and try again") from error
    if fault is not None:
        advice = "bring a whole copy, or train again with `overwrite=True`"
        if path.name == "config.toml":
            advice = f"put it back, or delete {run / FILE} if you changed it on purpose"
        raise FormatError(f"{path} {fault}: it was damaged or changed; {advice}")


def damages(run: Path) -> Iterator[Damage]:
    """The existing files of the run that do not match their checksums. Reads every byte."""
    for name in noted(run):
        path = run / name
        try:
            fault = _fault_of(run, path) if path.exists() else None
        except OSError as error:
            fault = f"cannot be read ({error.strerror or error})"
        if fault is not None:
            yield Damage(path, fault)


def unchecked(run: Path) -> list[str]:
    """Files in the run without a checksum."""
    known = {*noted(run), FILE, "analysis.json"}
    names = (_name(run, file) for file in sorted(run.rglob("*")) if file.is_file())
    return [name for name in names if name not in known]


def noted(run: Path) -> Notes:
    """The notes of each file of the run, by its name."""
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
    """What is wrong with a file, or None. Tries again if a training has changed the checksums in between."""
    fault = None
    for _ in range(_ATTEMPTS):
        notes = noted(run)
        if not (known := notes.get(_name(run, path))):
            return None
        if leaves(run, path):
            return "leads out of its run"
        faults = [_mismatch(path, note) for note in reversed(known)]
        if None in faults:
            return None
        fault = faults[0]
        if noted(run) == notes:
            break
    return fault


def _mismatch(path: Path, note: Note) -> str | None:
    if path.name != "config.toml":
        return mismatch(path, note["bytes"], note["checksum"])
    try:
        return None if _note(path, path) == note else "does not match its checksum"
    except FileNotFoundError:
        return "is missing"


def _note(path: Path, content: Path) -> Note:
    """The size and checksum of the file `path`, whose content is read from `content`."""
    if path.name == "config.toml":
        text = _STORE_PATH_LINE.sub(rb"\1 =", content.read_bytes(), count=2)
        return {"bytes": len(text), "checksum": bytes_checksum(text)}
    return {"bytes": content.stat().st_size, "checksum": file_checksum(content)}


def _name(run: Path, path: Path) -> str:
    return path.relative_to(run).as_posix()


def _write_notes(run: Path, notes: Notes, durable: bool = False) -> None:
    write_text_atomically(run / FILE, sealed({"format": _FORMAT, "version": _VERSION, "files": notes}), durable)
