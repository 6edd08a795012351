"""Verify: every byte of a store, a preparation or a run against its checksums.

Enters: a folder. Leaves: each damaged file and how that shows, and what could not be compared. Cost: one reading of
everything, on all cores. A store is verified with its preparations, a run with its store and those. Nothing is written,
and nothing that is missing is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import storage
from .errors import FormatError, InputError, LargeGTError
from .folder import ArrayFolder
from .integrity import Damage, read_sealed
from .progress import Progress
from .types import PathLike

_MOST_NAMED = 5


@dataclass
class Verified:
    """What a verification found."""

    damaged: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What has no checksum to be compared with, or was not there."""
    num_files: int = 0
    num_bytes: int = 0

    def count(self, num_bytes: int, num_files: int = 1) -> None:
        self.num_files += num_files
        self.num_bytes += num_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "verified": not self.damaged,
            "damaged": [{"file": str(damage.file), "reason": damage.reason} for damage in self.damaged],
            "notes": self.notes,
            "files": self.num_files,
            "bytes": self.num_bytes,
        }


def verify(path: PathLike, progress: Progress | None = None) -> Verified:
    """Compare everything at `path` with its checksums."""
    path = storage.local_path(path)
    storage.refresh(path)
    if not path.exists():
        raise InputError(f"{storage.shown(path)} does not exist")
    found = Verified()
    if (path / "config.toml").is_file():
        _run(path, found, progress)
    elif _is_folder(path):
        _folder(path, _kind(path), found, progress)
    else:
        raise FormatError(f"{storage.shown(path)} is neither a store, nor a preparation, nor a run of largegt")
    return found


def _is_folder(path: Path) -> bool:
    """Whether it is one of ours, even if its manifest is damaged."""
    manifest = path / "manifest.json"
    return manifest.is_file() and (b"largegt-" in manifest.read_bytes() or any(path.glob("*.npy")))


def _kind(path: Path) -> str:
    """`store` or `prepared`, also where the manifest is too damaged to be read."""
    raw = (path / "manifest.json").read_bytes()
    return "prepared" if b"largegt-prepared" in raw or path.parent.name == "prepared" else "store"


def _folder(path: Path, kind: str, found: Verified, progress: Progress | None) -> None:
    manifest = path / "manifest.json"
    before = len(found.damaged)
    found.count(manifest.stat().st_size)
    try:
        folder = ArrayFolder(path, kind, check=False)
    except FormatError as error:
        found.damaged.append(Damage(manifest, _reason(error, manifest)))
    else:
        if not folder.seals_manifest:
            found.notes.append(f"{manifest} is of an earlier version and has no checksum of its own")
        found.count(folder.num_bytes, len(folder.manifest["arrays"]))
        found.damaged += folder.damages(None, progress, _bounds(folder, kind))
        if len(found.damaged) == before:
            _sound(manifest, found, lambda: _opened(path, kind, progress))
        if extra := sorted(file.name for file in path.iterdir() if file.is_file() and not _is_ours(file, folder)):
            found.notes.append(f"{path} has files that are not ours: {_named(extra)}")
    if kind == "store":
        for preparation in storage.folders(path / "prepared"):
            if (preparation / "manifest.json").is_file():
                _folder(preparation, "prepared", found, progress)
        for increment in storage.folders(path / "appended"):
            _folder(increment, "increment", found, progress)


def _bounds(folder: ArrayFolder, kind: str) -> dict[str, int]:
    if kind == "increment":
        return {}
    if kind == "store":
        from .graph.store import bounds_of
    else:
        from .prepare.prepared import bounds_of
    return bounds_of(folder)


def _opened(path: Path, kind: str, progress: Progress | None) -> None:
    """Open it as its readers do; numbers that point into other arrays are looked at."""
    if kind == "store":
        from .graph.store import GraphStore

        store = GraphStore.open(path)
        store.verify_numbers(progress)
    elif kind == "prepared":
        from .prepare.prepared import Prepared

        Prepared.open(path).verify(progress)


def _is_ours(file: Path, folder: ArrayFolder) -> bool:
    return file.name == "manifest.json" or (file.suffix == ".npy" and file.stem in folder) or file.name.startswith(".")


def _run(path: Path, found: Verified, progress: Progress | None) -> None:
    from .training import checksums
    from .training.run import Run

    own = path / checksums.FILE
    if not own.is_file():
        found.notes.append(
            f"{path} has no {checksums.FILE}: it is of an earlier version, so only its data was compared"
        )
    else:
        try:
            names = [name for name in checksums.noted(path) if (path / name).is_file()]
            for name in (*names, checksums.FILE):
                found.count((path / name).stat().st_size)
            found.damaged += checksums.damages(path)
            if others := checksums.unchecked(path):
                found.notes.append(f"{path} has files without a checksum: {_named(others)}")
        except FormatError as error:
            found.damaged.append(Damage(own, _reason(error, own)))
    analysis = path / "analysis.json"
    if analysis.is_file():
        _sound(analysis, found, lambda: _sealed(analysis, found))
    config = path / "config.toml"
    if any(damage.file in (config, own) for damage in found.damaged):
        found.notes.append(f"the store of {path} was not looked at, because {config.name} is not to be trusted")
        return
    if own.is_file() and checksums.is_moved(path):
        found.notes.append(f"{config} names another place of its store than was written")
    _sound(config, found, lambda: _data_of(Run.open(path), found, progress))


def _data_of(run: Any, found: Verified, progress: Progress | None) -> None:
    """The store of a run, which must be the one it was trained on, and its preparations."""
    from .prepare.identity import prepared_path

    try:
        manifest = run.store_path / "manifest.json"
        if not manifest.is_file():
            raise InputError(f"the store of {run.path} is no longer at {run.store_path}")
        before = len(found.damaged)
        _folder(run.store_path, "store", found, progress)
        if len(found.damaged) > before:
            return
        path = prepared_path(run.store(), run.config.preparation, run.store_fingerprint)
        if not path.exists():
            raise InputError(
                f"the preparation of {run.path} is no longer at {path}; it is made again when it is needed"
            )
    except InputError as error:
        found.notes.append(str(error))


def _sealed(file: Path, found: Verified) -> None:
    _, fault = read_sealed(file, "largegt report makes it again")
    found.count(file.stat().st_size)
    if fault is not None and "missing" in fault:
        found.notes.append(f"{file} has no checksum")
    elif fault is not None:
        raise FormatError(f"{file} {fault}")


def _sound(file: Path, found: Verified, work: Callable[[], None]) -> None:
    """Count an error of `work` as damage to this file."""
    try:
        work()
    except LargeGTError as error:
        found.damaged.append(Damage(file, _reason(error, file)))


def _reason(error: LargeGTError, file: Path) -> str:
    return str(error).removeprefix(f"{file} ").partition(";")[0]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
