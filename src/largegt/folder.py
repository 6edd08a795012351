"""Folders of arrays: how a GraphStore and a Prepared lie on disk.

A folder holds `manifest.json` and one `.npy` file per array. Anyone can read the arrays with
`np.load(file, mmap_mode="r", allow_pickle=False)`; the manifest adds what NumPy cannot say (bfloat16, the
configuration, fingerprints). A folder is written aside and renamed into place when whole, so a reader never sees
half of one, and a failed or interrupted writer leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .errors import DiskError, FormatError, InputError, disk_errors
from .types import Array, PathLike

FORMAT_VERSION = 1
_HASH_BLOCK_BYTES = 1 << 24


def fingerprint(value: Any) -> str:
    """16 hex digits that name a JSON-able value: equal values give equal names on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_checksum(path: PathLike) -> str:
    """BLAKE2b-128 of a file's bytes, read in blocks."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as stream:
        while block := stream.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class ArrayFolder:
    """A finished folder, opened for reading. Arrays are memory-mapped on first use."""

    def __init__(self, path: PathLike, kind: str) -> None:
        self.path = Path(path)
        self.manifest = _read_manifest(self.path, kind)
        self._open: dict[str, Array] = {}

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer noted beside the arrays."""
        meta: dict[str, Any] = self.manifest["meta"]
        return meta

    @property
    def fingerprint(self) -> str:
        """The name of this folder's content: the same content has the same name on any machine."""
        return str(self.manifest["fingerprint"])

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays on disk."""
        return sum(int(entry["bytes"]) for entry in self.manifest["arrays"].values())

    def __contains__(self, name: str) -> bool:
        return name in self.manifest["arrays"]

    def dtype(self, name: str) -> str:
        """The dtype an array stands for: as NumPy calls it, or `bfloat16` (whose file is uint16)."""
        return str(self._entry(name)["dtype"])

    def checksum(self, name: str) -> str:
        return str(self._entry(name)["checksum"])

    def array(self, name: str) -> Array:
        """The array `name`, read-only and memory-mapped; bfloat16 comes as its uint16 bits."""
        if name not in self._open:
            entry = self._entry(name)
            file = self.path / f"{name}.npy"
            try:
                array = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise FormatError(f"{file} is missing or damaged ({error}); make {self.path} again") from error
            if list(array.shape) != list(entry["shape"]):
                raise FormatError(
                    f"{file} has shape {list(array.shape)}, its manifest says {entry['shape']}; make {self.path} again"
                )
            self._open[name] = array
        return self._open[name]

    def verify(self) -> None:
        """Read every byte and compare with the manifest's checksums."""
        for name, entry in self.manifest["arrays"].items():
            file = self.path / f"{name}.npy"
            if not file.exists() or file_checksum(file) != entry["checksum"]:
                raise FormatError(
                    f"{file} does not match its checksum: it was damaged or changed; make {self.path} again"
                )

    def _entry(self, name: str) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = self.manifest["arrays"][name]
        except KeyError:
            raise FormatError(f"{self.path} has no array {name!r}; make it again with this version") from None
        return entry


class FolderWriter:
    """Writes one folder aside; `finish` renames it into place. Use it as a context manager:

        with FolderWriter("data/g", kind="store") as writer:
            writer.save("labels", labels)
            writer.finish(meta={...})

    Leaving without `finish` (an error, Ctrl-C) removes everything that was written.
    """

    def __init__(self, path: PathLike, kind: str, replace: bool = False) -> None:
        self.path = Path(path)
        self.kind = kind
        if self.path.exists() and not replace and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise InputError(f"{self.path} already exists: choose another --out, or say --overwrite to replace it")
        if self.path.exists() and replace and not _replaceable(self.path, kind):
            raise InputError(f"{self.path} is not a largegt {kind}, so it is not overwritten: choose another --out")
        self.partial = self.path.parent / f".{self.path.name}.partial-{os.getpid()}"
        self._arrays: dict[str, dict[str, Any]] = {}
        self._maps: dict[str, np.memmap[Any, Any]] = {}
        self._made_parents = _missing_parents(self.path)
        with disk_errors(self.path):
            _remove_abandoned(self.path)
            self.partial.mkdir(parents=True)

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maps.clear()
        shutil.rmtree(self.partial, ignore_errors=True)
        if not self.path.exists():
            _remove_empty(self._made_parents)
        if isinstance(error, OSError):
            with disk_errors(self.path):
                raise error

    def save(self, name: str, array: Array, dtype: str | None = None) -> None:
        """Write a whole array. `dtype` names what the bits stand for when NumPy cannot (`bfloat16`)."""
        array = np.asarray(array)
        with disk_errors(self.path):
            np.save(self.partial / f"{name}.npy", array, allow_pickle=False)
        self._note(name, array.shape, dtype or array.dtype.name)

    def create(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """A writable memory-mapped array of zeros.

        Its disk space is taken at once: a write to a mapped page on a full disk would kill the process, so the
        refusal has to come here.
        """
        file = self.partial / f"{name}.npy"
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        with disk_errors(self.path):
            array = np.lib.format.open_memmap(file, mode="w+", dtype=stored, shape=shape)
            num_bytes = file.stat().st_size
            if num_bytes:
                take_space(file, num_bytes)
        self._maps[name] = array
        self._note(name, shape, dtype)
        return array

    def link(self, name: str, source: ArrayFolder) -> None:
        """Take an array that another finished folder already has: a hard link where possible, else a copy."""
        entry = source.manifest["arrays"][name]
        target = self.partial / f"{name}.npy"
        with disk_errors(self.path):
            try:
                os.link(source.path / f"{name}.npy", target)
            except OSError:
                shutil.copyfile(source.path / f"{name}.npy", target)
        self._arrays[name] = dict(entry)

    def finish(self, meta: Mapping[str, Any], identity: Any = None) -> Path:
        """Checksum, write the manifest, rename into place.

        `identity` is what the fingerprint is made of; without it, the arrays' checksums and `meta` are.
        """
        with disk_errors(self.path):
            for array in self._maps.values():
                array.flush()
            self._maps.clear()
            for name, entry in self._arrays.items():
                file = self.partial / f"{name}.npy"
                entry["bytes"] = file.stat().st_size
                if "checksum" not in entry:
                    entry["checksum"] = file_checksum(file)
            if identity is None:
                identity = [meta, {name: entry["checksum"] for name, entry in self._arrays.items()}]
            manifest = {
                "format": f"largegt-{self.kind}",
                "version": FORMAT_VERSION,
                "fingerprint": fingerprint(identity),
                "meta": dict(meta),
                "arrays": self._arrays,
            }
            with open(self.partial / "manifest.json", "w", encoding="utf-8") as stream:
                json.dump(manifest, stream, indent=1, ensure_ascii=False)
                stream.flush()
                os.fsync(stream.fileno())
            if self.path.exists():
                _retire(self.path, self.kind)
            os.replace(self.partial, self.path)
        return self.path

    def _note(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._arrays[name] = {"shape": list(shape), "dtype": dtype}


def take_space(file: PathLike, num_bytes: int) -> None:
    """Reserve a file's disk space now, where the system can; a full disk is then refused here."""
    with open(file, "r+b") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, num_bytes)
        else:
            stream.truncate(num_bytes)


def write_text_atomically(path: PathLike, text: str) -> None:
    """Replace a small text file in one step: readers see the old one or the new one, whole."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with disk_errors(path.parent):
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _read_manifest(path: Path, kind: str) -> dict[str, Any]:
    file = path / "manifest.json"
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if not file.is_file():
        raise FormatError(
            f"{path} is not a largegt {kind}: it has no manifest.json"
            + ("; make one with: largegt ingest --out " + str(path) if kind == "store" else "")
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{file} cannot be read ({error}); make {path} again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != f"largegt-{kind}":
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise FormatError(f"{path} is not a largegt {kind} (its manifest says {found!r})")
    version = manifest.get("version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise FormatError(
            f"{path} has format version {version}, this largegt reads up to {FORMAT_VERSION}: "
            "upgrade largegt, or make the folder again with this version"
        )
    if not isinstance(manifest.get("arrays"), dict) or not isinstance(manifest.get("meta"), dict):
        raise FormatError(f"{file} is incomplete; make {path} again")
    for name in manifest["arrays"]:
        if not name.isidentifier():
            raise FormatError(f"{file} names an array {name!r}, which is no plain name")
    return manifest


def _replaceable(path: Path, kind: str) -> bool:
    try:
        _read_manifest(path, kind)
    except FormatError:
        return path.is_dir() and not any(path.iterdir())
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove what killed writers of `path` left: partial folders whose process is gone."""
    for folder in path.parent.glob(f".{path.name}.partial-*"):
        pid = folder.name.rpartition("-")[2]
        if not pid.isdigit() or int(pid) == os.getpid() or not _is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _missing_parents(path: Path) -> list[Path]:
    """The folders above `path` that do not exist yet, the innermost first."""
    return [parent for parent in path.parents if not parent.exists()]


def _remove_empty(folders: list[Path]) -> None:
    """Remove these folders as far as they are empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _retire(path: Path, kind: str) -> None:
    """Move the folder that is being replaced out of the way, then delete it."""
    old = path.parent / f".{path.name}.old-{os.getpid()}"
    try:
        os.replace(path, old)
    except OSError as error:
        raise DiskError(f"cannot replace the {kind} at {path}: {error.strerror}") from error
    shutil.rmtree(old, ignore_errors=True)
