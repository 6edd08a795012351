"""Folders of arrays: a store, a preparation and each of its stages on disk.

A folder holds `manifest.json` and one `.npy` file per array, named by its content: `features-3f2a….npy`. The manifest
adds what NumPy cannot say (bfloat16, the configuration, fingerprints).

Files never change. A new version is new files and a new `manifest.json`, which replaces the old one in one step; the
old one moves to `versions/<fingerprint>.json`. An `ArrayFolder` reads the version that it opened, whatever happens
beside it, and holds a shared lock on its manifest, so that nobody removes that version meanwhile. A folder at a URL is
read and written through its copy in the cache (remote.py).

A folder may come from a stranger: before an array is mapped its manifest, its name, its size and its header agree, and
nothing is unpickled. `checksums.py` says which damage is found when.
"""

from __future__ import annotations

import fcntl
import io
import math
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from largegt.errors import DiskError, FormatError, InputError, first_line
from largegt.runtime.progress import Progress, silent
from largegt.runtime.text import quoted
from largegt.types import Array, PathLike

from . import remote
from .atomic import leaves, require_space
from .checksums import (
    SMALL_BYTES,
    USED_BYTES,
    Damage,
    check_seal,
    is_checker,
    is_checksum,
    mismatch,
    outside,
    read_object,
    url_mismatch,
)
from .remote import FINGERPRINT, MANIFEST
from .remote_array import HEADER_BYTES, RemoteArray

FORMAT_VERSION = 4
VERSIONS = "versions"
ARRAY_FILE = re.compile(r"[A-Za-z_]\w*-[0-9a-f]{16}\.npy")
_DTYPE = re.compile(r"u?int(8|16|32|64)|b?float16|float(32|64)|bool")
_FREE: Mapping[str, int] = {}
_MAKE_STORE = "; a store is made with: largegt ingest edges.parquet --nodes nodes.parquet --out "


def array_file(name: str, checksum: str) -> str:
    """The file name of an array with this checksum."""
    return f"{name}-{checksum.partition(':')[2][:16]}.npy"


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """What NumPy calls the numbers of a file: those of bfloat16 are uint16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def npy_head(shape: Iterable[int], dtype: str) -> bytes:
    """The first bytes of a `.npy` file, up to its numbers."""
    stream = io.BytesIO()
    described = {"descr": stored_dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def mapped(file: Path, shape: Iterable[int], dtype: str) -> Array:
    """The numbers of a `.npy` file of ours, read-only."""
    shape = tuple(shape)
    if not math.prod(shape):
        return np.zeros(shape, stored_dtype(dtype))
    return np.memmap(file, stored_dtype(dtype), "r", HEADER_BYTES, shape)


class ArrayFolder:
    """One version of a finished folder, opened for reading; the newest when not given. Arrays are memory-mapped on
    first use."""

    def __init__(self, path: PathLike, kind: str, version: str | None = None, check: bool = True) -> None:
        self.path = remote.local_path(path)
        self.url = remote.url_of(self.path)
        remote.refresh(self.path)
        self.manifest, held = _opened(self.path, kind, version)
        self._release = weakref.finalize(self, held.close)
        self._open: dict[str, Array] = {}
        if check and self.url is None:  # an array at a URL is checked when it is fetched
            for name, entry in self.manifest["arrays"].items():
                self._refuse(name, self._fault(name, full=int(entry["bytes"]) <= SMALL_BYTES))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_release"}  # the lock stays here

    def close(self) -> None:
        """Let `clean` remove this version; arrays that are mapped stay readable."""
        self._release()

    @property
    def place(self) -> str:
        """The path or the URL, as a user knows it."""
        return self.url or str(self.path)

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer noted beside the arrays."""
        meta: dict[str, Any] = self.manifest["meta"]
        return meta

    @property
    def fingerprint(self) -> str:
        """The name of this content: the same content has the same name on any machine."""
        return str(self.manifest["fingerprint"])

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays on disk."""
        return sum(int(entry["bytes"]) for entry in self.manifest["arrays"].values())

    def __contains__(self, name: str) -> bool:
        return name in self.manifest["arrays"]

    def entry(self, name: str) -> dict[str, Any]:
        """What the manifest says of an array."""
        try:
            entry: dict[str, Any] = self.manifest["arrays"][name]
        except KeyError:
            raise FormatError(f"{self.place} has no array {name!r}; make it again with this version") from None
        return entry

    def dtype(self, name: str) -> str:
        """The dtype an array stands for: as NumPy calls it, or `bfloat16` (whose file is uint16)."""
        return str(self.entry(name)["dtype"])

    def checksum(self, name: str) -> str:
        return str(self.entry(name)["checksum"])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without opening it; of none, if there is none."""
        entry = self.manifest["arrays"].get(name)
        return () if entry is None else tuple(entry["shape"])

    def array(self, name: str) -> Array:
        """The array `name`, read-only and memory-mapped; bfloat16 comes as its uint16 bits."""
        if name not in self._open:
            entry = self.entry(name)
            self._refuse(name, self._fault(name, full=int(entry["bytes"]) <= USED_BYTES))
            self._open[name] = mapped(self.file(name), entry["shape"], entry["dtype"])
        return self._open[name]

    def file(self, name: str) -> Path:
        """The file of the array `name` on this machine; one at a URL is fetched first."""
        entry = self.entry(name)
        file: Path = self.path / entry["file"]
        if self.url is not None and not file.is_file():
            num_bytes, checksum = int(entry["bytes"]), self.checksum(name)
            require_space(file, num_bytes, f"a copy of {self._url_of(name)}")
            remote.bring(file, self._url_of(name), num_bytes, lambda copy: mismatch(copy, num_bytes, checksum))
        return file

    def ranged(self, name: str) -> Array:
        """The array `name`, to be read in ranges: as `array`, but one at a URL stays there (remote_array.py)."""
        if self.url is None:
            return self.array(name)
        return cast(Array, RemoteArray(self._url_of(name), stored_dtype(self.dtype(name)).name, self.shape(name)))

    def check(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> None:
        """`verify` before a stage works with arrays of any size: once in a process, by one process of a machine."""
        if is_checker() and self.url is None:
            self.verify(names, progress, below)

    def verify(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> None:
        """Read every byte of these arrays, or of all, and refuse the first that is damaged. `below`: arrays of whole
        numbers that are at least 0 and less than that."""
        for damage in self.damages(names, progress, below):
            raise FormatError(f"{damage}: it was damaged or changed; {self.advice}")

    def damages(
        self, names: Iterable[str] | None = None, progress: Progress | None = None, below: Mapping[str, int] = _FREE
    ) -> Iterator[Damage]:
        """Each array that is not what was written. Reads every byte."""
        show = progress or silent
        chosen = {name: self.entry(name) for name in (self.manifest["arrays"] if names is None else names)}
        total, done = sum(int(entry["bytes"]) for entry in chosen.values()), 0
        for name, entry in chosen.items():
            show("check", done, total)
            file: PathLike = self._url_of(name) if self.url is not None else self.path / entry["file"]
            try:
                if self.url is not None:
                    fault = url_mismatch(str(file), int(entry["bytes"]), entry["checksum"])
                else:
                    fault = self._fault(name, full=True)
                    if fault is None and name in below:
                        fault = outside(self.array(name), below[name], self.checksum(name))
            except DiskError as error:
                fault = str(error.__cause__)
            if fault is not None:
                yield Damage(file, fault)
            done += int(entry["bytes"])
        show("check", total, total)

    @property
    def advice(self) -> str:
        """What to do about damage."""
        return _advice(self.path, str(self.manifest["format"]).removeprefix("largegt-"))

    def require(self, kinds: Mapping[str, type], lengths: Mapping[str, int]) -> None:
        """Refuse a folder whose notes are not of these kinds, or whose arrays have not this many rows."""
        for key, kind in kinds.items():
            if not isinstance(value := self.meta.get(key), kind) or (kind is int and isinstance(value, bool)):
                raise FormatError(f"{self.path / MANIFEST} says {key}={value!r}, which cannot be; {self.advice}")
        for name, rows in lengths.items():
            if name not in self:
                raise FormatError(f"{self.path} has no array {name}, {rows} rows are expected; {self.advice}")
            if self.shape(name)[:1] != (rows,):
                found = f"has shape {list(self.shape(name))}"
                raise FormatError(f"{self.file(name)} {found}, {rows} rows are expected; {self.advice}")

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{self.entry(name)['file']}"

    def _fault(self, name: str, full: bool) -> str | None:
        """What is wrong with an array's file: by its header and its size, or by all of its bytes."""
        file, entry = self.file(name), self.entry(name)
        if leaves(self.path, file):
            return "leads out of its folder"
        head, shape = npy_head(entry["shape"], entry["dtype"]), entry["shape"]
        num_bytes = len(head) + math.prod(shape) * stored_dtype(entry["dtype"]).itemsize
        try:
            with open(file, "rb") as stream:
                begin, size = stream.read(len(head)), os.fstat(stream.fileno()).st_size
            if begin != head:
                return f"does not begin as an array of {entry['dtype']} {shape}, as its manifest says"
            if not size == num_bytes == entry["bytes"]:
                return f"has {size} bytes, {num_bytes} were written"
            return mismatch(file, num_bytes, entry["checksum"]) if full else None
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            raise DiskError(f"{file} cannot be read: {error.strerror or error}; mend that and try again") from error

    def _refuse(self, name: str, fault: str | None) -> None:
        if fault is not None:
            raise FormatError(f"{self.file(name)} {fault}: it was damaged or changed; {self.advice}")


def read_manifest(path: Path, kind: str) -> dict[str, Any]:
    """The newest manifest of the folder at `path`."""
    manifest, held = _opened(path, kind, None)
    held.close()
    return manifest


def manifest_files(path: Path) -> list[Path]:
    """The manifests of all versions of a folder, the newest first."""
    older = sorted(file for file in (path / VERSIONS).glob("*.json") if FINGERPRINT.fullmatch(file.stem))
    return [path / MANIFEST, *older]


def _opened(path: Path, kind: str, version: str | None) -> tuple[dict[str, Any], IO[bytes]]:
    """A manifest, and its file with a shared lock."""
    place = remote.shown(path)
    if not (path / MANIFEST).is_file():
        raise _missing(path, kind)
    manifest, held = _read(path / MANIFEST, path, kind)
    if version is None or manifest["fingerprint"] == version:
        return manifest, held
    held.close()
    file = f"{VERSIONS}/{version}.json"
    if FINGERPRINT.fullmatch(version):
        remote.refresh(path, file)
        if (path / file).is_file() and not leaves(path, path / file):
            return _read(path / file, path, kind)
    raise InputError(f"{place} has no version {version}: it was removed, or {place} is another {kind}")


def _missing(path: Path, kind: str) -> InputError | FormatError:
    """The error of a path without a manifest."""
    place = remote.shown(path)
    made = _MAKE_STORE + quoted(place) if kind == "store" else ""
    if place != str(path):
        return InputError(f"{place} does not exist or has no manifest.json: check the path{made}")
    if not path.exists():
        return InputError(f"{place} does not exist: check the path{made}")
    if kind == "store" and (path / "config.toml").is_file():
        return FormatError(f"{place} is a run, not a store: name the store that it was trained on, or another")
    return FormatError(f"{place} is not a largegt {kind}: it has no manifest.json{made}")


def _read(file: Path, path: Path, kind: str) -> tuple[dict[str, Any], IO[bytes]]:
    held = _held(file, path, kind)
    try:
        manifest = read_object(file, _advice(path, kind), held)
        _check_manifest(manifest, file, path, kind)
    except FormatError:
        held.close()
        raise
    return manifest, held


def _check_manifest(manifest: dict[str, Any], file: Path, path: Path, kind: str) -> None:
    place, advice = remote.shown(path), _advice(path, kind)
    if manifest.get("format") != f"largegt-{kind}":
        raise FormatError(f"{place} is not a largegt {kind} (its manifest says {manifest.get('format')!r})")
    if manifest.get("version") != FORMAT_VERSION:
        raise FormatError(
            f"{place} has format version {manifest.get('version')}, this largegt reads {FORMAT_VERSION}: "
            "upgrade largegt if yours is older, or make the folder again with this version"
        )
    check_seal(manifest, file, advice)  # of a newer format it may be another
    fingerprint = manifest.get("fingerprint")
    if not all(isinstance(manifest.get(part), dict) for part in ("arrays", "meta")) or not (
        isinstance(fingerprint, str) and FINGERPRINT.fullmatch(fingerprint)
    ):
        raise FormatError(f"{file} is incomplete; {advice}")
    for name, entry in manifest["arrays"].items():
        if not name.isidentifier():
            raise FormatError(f"{file} names an array {name!r}, which is no plain name")
        if not _is_entry(name, entry):
            raise FormatError(f"{file} does not describe its array {name!r}; {advice}")


def _is_entry(name: str, entry: Any) -> bool:
    if not isinstance(entry, dict) or not is_checksum(entry.get("checksum")):
        return False
    if entry.get("file") != array_file(name, entry["checksum"]) or not _DTYPE.fullmatch(str(entry.get("dtype"))):
        return False
    numbers = [entry.get("bytes"), *shape] if isinstance(shape := entry.get("shape"), list) else [None]
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _held(file: Path, path: Path, kind: str) -> IO[bytes]:
    """The file, open and with a shared lock until it is closed; `versions.clean` removes no manifest that has one."""
    while True:
        try:
            stream = open(file, "rb")  # noqa: SIM115 - closed with the ArrayFolder
        except OSError as error:
            raise FormatError(f"{file} cannot be read ({first_line(error)}); {_advice(path, kind)}") from error
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(stream, fcntl.LOCK_SH)
        if os.fstat(stream.fileno()).st_nlink:
            return stream
        stream.close()  # replaced and removed between opening and locking


def _advice(path: Path, kind: str) -> str:
    """What to do about a damaged folder."""
    place = remote.shown(path)
    again = f"ingest {place} again with --overwrite" if kind == "store" else f"delete {place} and make it again"
    return f"{again}, or bring a whole copy (largegt inspect {quoted(place)} --verify names all that is damaged)"
