"""Verify: every byte of a store, a preparation or a run against its checksums.

Enters: a folder. Leaves: each damaged file with the reason, and files without a checksum. Cost: one pass over all
files, on all cores. A store is verified with its preparations, a run with its store and those preparations. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from largegt.data import store
from largegt.data.versions import PREPARED, REFS, read_ref
from largegt.errors import FormatError, InputError, LargeGTError
from largegt.io import remote
from largegt.io.array_folder import ArrayFolder, manifest_files
from largegt.io.atomic import leaves
from largegt.io.checksums import Damage, read_sealed
from largegt.io.remote import MANIFEST
from largegt.preprocessing import prepared
from largegt.preprocessing.cache_key import prepared_path
from largegt.runtime.progress import Progress
from largegt.training import run_checksums
from largegt.training.run import Run
from largegt.types import PathLike

_MOST_NAMED = 5


@dataclass
class Verified:
    """The result of a verification."""

    progress: Progress | None = None
    damaged: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Files without a checksum, and missing folders."""
    num_files: int = 0
    num_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "verified": not self.damaged,
            "damaged": [{"file": str(damage.file), "reason": damage.reason} for damage in self.damaged],
            "notes": self.notes,
            "files": self.num_files,
            "bytes": self.num_bytes,
        }

    def count(self, num_bytes: int, num_files: int = 1) -> None:
        self.num_files += num_files
        self.num_bytes += num_bytes

    def note(self, what: str, names: list[str]) -> None:
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            self.notes.append(f"{what}: {', '.join(names[:_MOST_NAMED])}{more}")

    @contextmanager
    def errors_as_damage(self, file: Path) -> Iterator[None]:
        """Record errors in this context as damage to `file`."""
        try:
            yield
        except LargeGTError as error:
            self.damaged.append(Damage(file, str(error).removeprefix(f"{file} ").partition(";")[0]))

    def read_folder(self, path: Path, kind: str) -> None:
        """Verify all versions of a folder, and of a store also its preparations. An undamaged folder is opened too."""
        named = {MANIFEST}
        for manifest in manifest_files(path):
            remote.refresh(path, str(manifest.relative_to(path)))
            version = None if manifest.name == MANIFEST else manifest.stem
            self.count(manifest.stat().st_size)
            with self.errors_as_damage(manifest):
                folder = ArrayFolder(path, kind, version, check=False)
                arrays = {entry["file"]: name for name, entry in folder.manifest["arrays"].items()}
                new = [name for file, name in arrays.items() if file not in named]
                named |= set(arrays)
                self.count(sum(int(folder.entry(name)["bytes"]) for name in new), len(new))
                bounds = store.bounds_of(folder) if kind == "store" else prepared.bounds_of(folder)
                self.damaged += folder.damages(new, self.progress, bounds)
                if not self.damaged and kind == "store":  # validates indices into other arrays
                    store.GraphStore.open(path, version).verify_numbers(self.progress)
                elif not self.damaged and kind == "prepared":
                    prepared.Prepared.open(path)
        files = {file.name for file in path.iterdir() if file.is_file() and not file.name.startswith(".")}
        self.note(f"{path} has files that no version names", sorted(files - named))
        if kind == "store":
            self._read_parts_of_store(path)

    def _read_parts_of_store(self, path: Path) -> None:
        """Verify the registered runs of a store, its stages and its preparations."""
        for ref in sorted((path / REFS).glob("*.json")):
            with self.errors_as_damage(ref):
                read_ref(ref)
            self.count(ref.stat().st_size if ref.exists() else 0)
        top = path / PREPARED
        for stage in (*(top / name for name in remote.names(top)), top):
            for folder in remote.folders(stage):
                if (folder / MANIFEST).is_file() or remote.url_of(folder) is not None:
                    self.read_folder(folder, _kind(folder))

    def read_run(self, path: Path) -> None:
        own, config, analysis = path / run_checksums.FILE, path / "config.toml", path / "analysis.json"
        with self.errors_as_damage(own):
            names = [name for name in run_checksums.noted(path) if (path / name).is_file()]
            for name in (*names, *([run_checksums.FILE] if own.is_file() else [])):
                self.count((path / name).stat().st_size)
            self.damaged += run_checksums.damages(path)
            self.note(f"{path} has files without a checksum", run_checksums.unchecked(path))
        if analysis.is_file():
            with self.errors_as_damage(analysis):
                read_sealed(analysis, "largegt report makes it again")
                self.count(analysis.stat().st_size)
        if any(damage.file in (config, own) for damage in self.damaged):
            self.notes.append(f"the store of {path} was not looked at, because {config.name} is not to be trusted")
            return
        with self.errors_as_damage(config):
            self._read_data_of(Run.open(path))

    def _read_data_of(self, run: Run) -> None:
        """Verify the store of a run, with the version that the run was trained on, and its preparations."""
        try:
            if not (run.store_path / MANIFEST).is_file():
                raise InputError(f"the store of {run.path} is no longer at {run.store_path}")
            before = len(self.damaged)
            self.read_folder(run.store_path, "store")
            if len(self.damaged) > before:
                return
            path = prepared_path(run.store(), run.config.preparation)
            if not path.exists():
                raise InputError(
                    f"the preparation of {run.path} is no longer at {path}; it is made again when it is needed"
                )
        except InputError as error:
            self.notes.append(str(error))


def verify(path: PathLike, progress: Progress | None = None) -> Verified:
    """Compare everything at `path` with its checksums."""
    path = remote.local_path(path)
    remote.refresh(path)
    if not path.exists():
        raise InputError(f"{remote.shown(path)} does not exist")
    found = Verified(progress)
    if (path / "config.toml").is_file():
        found.read_run(path)
    elif _is_folder(path):
        for stage in _stages(path) if _kind(path) == "prepared" else []:
            found.read_folder(stage, "stage")
        found.read_folder(path, _kind(path))
    else:
        raise FormatError(f"{remote.shown(path)} is neither a store, nor a preparation, nor a run of largegt")
    return found


def _is_folder(path: Path) -> bool:
    """Whether the path is a store, preparation or stage, possibly with a damaged manifest."""
    manifest = path / MANIFEST
    is_ours = _kind(path) != "store" or any(path.glob("*.npy"))
    return manifest.is_file() and (is_ours or b"largegt-" in manifest.read_bytes())


def _kind(path: Path) -> str:
    """`store`, `prepared` or `stage`, by the path alone, since the manifest may be damaged."""
    if path.parent.parent.name == "prepared":
        return "stage"
    return "prepared" if path.parent.name == "prepared" else "store"


def _stages(path: Path) -> list[Path]:
    """The stage folders of a preparation; none if its manifest is damaged, which is found later."""
    try:
        stages = ArrayFolder(path, "prepared", check=False).meta["stages"].items()
    except (LargeGTError, KeyError, AttributeError):
        return []
    folders = [path.parent / str(stage) / str(key) for stage, key in stages]
    return [folder for folder in folders if not leaves(path.parent, folder) and _is_folder(folder)]
