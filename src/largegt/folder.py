"""Folders of arrays: how a GraphStore and a Prepared lie on disk.

A folder holds `manifest.json` and one `.npy` file per array. Anyone can read the arrays with
`np.load(file, mmap_mode="r", allow_pickle=False)`; the manifest adds what NumPy cannot say (bfloat16, the
configuration, fingerprints). A folder is written aside and renamed into place when whole, so a reader never sees
half of one. What an interrupted writer has done lies in `.NAME.partial` beside it until the same command goes on.
A folder at a URL is read and written through its twin in the cache (storage.py).

A folder may come from a stranger: before an array is mapped its manifest, its name, its size and its header agree, and
nothing is unpickled. `integrity.py` says which damage is found when.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from . import storage
from .disk import require_space
from .errors import DiskError, FormatError, InputError
from .integrity import (
    SMALL_BYTES,
    USED_BYTES,
    Damage,
    is_checker,
    leaves,
    mismatch,
    npy_fault,
    read_sealed,
    url_mismatch,
)
from .progress import Progress, silent
from .ranged import RangedArray
from .replacing import recover
from .types import Array, PathLike

FORMAT_VERSION = 3
_OLD_VERSION = 2
"""Without a checksum of the manifest itself; otherwise the same."""
_FREE: Mapping[str, int] = {}
_MAKE_STORE = "; a store is made with: largegt ingest edges.parquet --nodes nodes.parquet --out "


def fingerprint(value: Any) -> str:
    """16 hex digits that name a JSON-able value: equal values give equal names on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ArrayFolder:
    """A finished folder, opened for reading. Arrays are memory-mapped on first use."""

    def __init__(self, path: PathLike, kind: str, check: bool = True) -> None:
        self.path = storage.local_path(path)
        self.url = storage.url_of(self.path)
        storage.refresh(self.path)
        self.manifest = read_manifest(self.path, kind)
        self._open: dict[str, Array] = {}
        if check and self.url is None:  # what lies at a URL is checked when it is brought
            for name, entry in self.manifest["arrays"].items():
                self._refuse(name, self._fault(name, full=int(entry["bytes"]) <= SMALL_BYTES))

    @property
    def place(self) -> str:
        """Where it lies, as a user says it: a path or a URL."""
        return self.url or str(self.path)

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
            self._refuse(name, self._fault(name, full=int(entry["bytes"]) <= USED_BYTES))
            self._open[name] = np.load(self.file(name), mmap_mode="r", allow_pickle=False)
        return self._open[name]

    def file(self, name: str) -> Path:
        """Where the array `name` lies on this machine; one at a URL is brought here first."""
        file = self.path / f"{name}.npy"
        if self.url is not None and not file.is_file():
            num_bytes, checksum = int(self._entry(name)["bytes"]), self.checksum(name)
            require_space(file, num_bytes, f"a copy of {self.url}/{name}.npy")
            storage.bring(file, f"{self.url}/{name}.npy", num_bytes, lambda copy: mismatch(copy, num_bytes, checksum))
        return file

    def ranged(self, name: str) -> Array:
        """The array `name`, to be read in ranges: as `array`, but one at a URL stays there (ranged.py)."""
        if self.url is None:
            return self.array(name)
        entry = self._entry(name)
        stored = "uint16" if entry["dtype"] == "bfloat16" else entry["dtype"]
        return cast(Array, RangedArray(f"{self.url}/{name}.npy", stored, tuple(entry["shape"])))

    @property
    def seals_manifest(self) -> bool:
        """Whether the manifest carries its own checksum; those from before do not."""
        return int(self.manifest["version"]) != _OLD_VERSION

    def check(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> None:
        """Before a stage works with arrays of any size: read every byte of them, and refuse what is damaged. Once in
        a process, by one process of a machine. `below`: arrays of whole numbers that are less than that."""
        if is_checker() and self.url is None:
            self.verify(names, progress, below)

    def verify(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> None:
        """Read every byte of these arrays, or of all, and refuse the first that is damaged."""
        for damage in self.damages(names, progress, below):
            raise FormatError(f"{damage}: it was damaged or changed; {self.advice}")

    def damages(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> Iterator[Damage]:
        """Each array that is not what was written. Reads every byte."""
        show = progress or silent
        chosen = {name: self._entry(name) for name in (self.manifest["arrays"] if names is None else names)}
        total, done = sum(int(entry["bytes"]) for entry in chosen.values()), 0
        for name, entry in chosen.items():
            show("check", done, total)
            if self.url is not None:
                file = f"{self.url}/{name}.npy"
                if (fault := url_mismatch(file, int(entry["bytes"]), entry["checksum"])) is not None:
                    yield Damage(file, fault)
            else:
                try:
                    fault = self._fault(name, full=True, below=below.get(name))
                except DiskError as error:
                    fault = str(error.__cause__)
                if fault is not None:
                    yield Damage(self.file(name), fault)
            done += int(entry["bytes"])
        show("check", total, total)

    @property
    def advice(self) -> str:
        """What to do about damage."""
        return _advice(self.path, str(self.manifest["format"]).removeprefix("largegt-"))

    def _fault(self, name: str, full: bool, below: int | None = None) -> str | None:
        """What is wrong with an array's file: by its header and its size, or by all of its bytes."""
        file, entry = self.file(name), self._entry(name)
        if leaves(self.path, file):
            return "leads out of its folder"
        try:
            fault = npy_fault(file, entry["shape"], entry["dtype"])
            return mismatch(file, entry["bytes"], entry["checksum"], below) if fault is None and full else fault
        except OSError as error:
            raise DiskError(f"{file} cannot be read: {error.strerror or error}; mend that and try again") from error

    def _refuse(self, name: str, fault: str | None) -> None:
        if fault is not None:
            raise FormatError(f"{self.file(name)} {fault}: it was damaged or changed; {self.advice}")

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without opening it; of none, if there is none."""
        entry = self.manifest["arrays"].get(name)
        return () if entry is None else tuple(entry["shape"])

    def require(self, kinds: Mapping[str, type], lengths: Mapping[str, int]) -> None:
        """Refuse a folder whose notes are not of these kinds, or whose arrays have not this many rows."""
        for key, kind in kinds.items():
            if not isinstance(value := self.meta.get(key), kind) or (kind is int and isinstance(value, bool)):
                raise FormatError(f"{self.path / 'manifest.json'} says {key}={value!r}, which cannot be; {self.advice}")
        for name, rows in lengths.items():
            if self.shape(name)[:1] != (rows,):
                found = f"has shape {list(self.shape(name))}" if name in self else "is missing"
                raise FormatError(f"{self.file(name)} {found}, {rows} rows are expected; {self.advice}")

    def _entry(self, name: str) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = self.manifest["arrays"][name]
        except KeyError:
            raise FormatError(f"{self.place} has no array {name!r}; make it again with this version") from None
        return entry


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    file = path / "manifest.json"
    place = storage.shown(path)
    if kind == "store" or not path.exists():
        recover(path)
    if not path.exists():
        missing = f"{place} does not exist" + (" or has no manifest.json" if place != str(path) else "")
        raise InputError(f"{missing}: check the path" + (_MAKE_STORE + place if kind == "store" else ""))
    if not file.is_file():
        if kind == "store" and (path / "config.toml").is_file():
            raise FormatError(f"{place} is a run, not a store: name the store that it was trained on, or another")
        made = _MAKE_STORE + place if kind == "store" else ""
        raise FormatError(f"{place} is not a largegt {kind}: it has no manifest.json{made}")
    manifest, fault = read_sealed(file, _advice(path, kind))
    if manifest.get("format") != f"largegt-{kind}":
        raise FormatError(f"{place} is not a largegt {kind} (its manifest says {manifest.get('format')!r})")
    version = manifest.get("version")
    if version not in (_OLD_VERSION, FORMAT_VERSION):
        raise FormatError(
            f"{place} has format version {version}, this largegt reads {FORMAT_VERSION}: "
            "upgrade largegt if yours is older, or make the folder again with this version"
        )
    if fault is not None and not (version == _OLD_VERSION and "missing" in fault):
        raise FormatError(f"{file} {fault}; {_advice(path, kind)}")
    if not all(isinstance(manifest.get(part), dict) for part in ("arrays", "meta")) or "fingerprint" not in manifest:
        raise FormatError(f"{file} is incomplete; {_advice(path, kind)}")
    for name, entry in manifest["arrays"].items():
        if not name.isidentifier():
            raise FormatError(f"{file} names an array {name!r}, which is no plain name")
        if not _is_description(entry):
            raise FormatError(f"{file} does not describe its array {name!r}; {_advice(path, kind)}")
    return manifest


def _is_description(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("dtype", "checksum")):
        return False
    numbers = [entry.get("bytes"), *shape] if isinstance(shape := entry.get("shape"), list) else [None]
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _advice(path: Path, kind: str) -> str:
    """What to do about a damaged folder."""
    place = storage.shown(path)
    again = f"ingest {place} again with --overwrite" if kind == "store" else f"delete {place} and make it again"
    return f"{again}, or bring a whole copy (largegt inspect {place} --verify names all that is damaged)"
