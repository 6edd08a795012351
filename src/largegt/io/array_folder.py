"""Folders of arrays: a store, a preparation and each of its stages on disk.

A folder holds `manifest.json` and one `.npy` file per array, named after its checksum: `features-3f2a….npy`. The
manifest adds what NumPy does not store (bfloat16, the configuration, fingerprints).

Files are immutable. A new version consists of new files and a new `manifest.json`, which replaces the old one
atomically; the old one moves to `versions/<fingerprint>.json`. An `ArrayFolder` keeps reading the version that it
opened, and holds a shared lock on its manifest, so that no process removes this version. A folder at a URL is read and
written through its copy in the cache (remote.py).

A folder may be untrusted: before an array is mapped, its name, size and header are checked against the manifest, and
nothing is unpickled. `checksums.py` documents when damage is detected.
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
)  # fmt: skip
from .remote import FINGERPRINT, MANIFEST
from .remote_array import HEADER_BYTES, RemoteArray

FORMAT_VERSION = 4
VERSIONS = "versions"
ARRAY_FILE = re.compile(r"[A-Za-z_]\w*-[0-9a-f]{16}\.npy")
_DTYPE = re.compile(r"u?int(8|16|32|64)|b?float16|float(32|64)|bool")
_NO_BOUNDS: Mapping[str, int] = {}


def array_file(name: str, checksum: str) -> str:
    """The file name of an array with this checksum."""
    return f"{name}-{checksum.partition(':')[2][:16]}.npy"


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a file: uint16 for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def npy_head(shape: Iterable[int], dtype: str) -> bytes:
    """The header of a `.npy` file."""
    stream = io.BytesIO()
    header = {"descr": stored_dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def mapped(file: Path, shape: Iterable[int], dtype: str) -> Array:
    """The array in a `.npy` file that `ArrayAppender` wrote, memory-mapped and read-only."""
    shape = tuple(shape)
    if not math.prod(shape):
        return np.zeros(shape, stored_dtype(dtype))
    return np.memmap(file, stored_dtype(dtype), "r", HEADER_BYTES, shape)


class ArrayFolder:
    """One version of a finished folder, opened for reading; by default the newest. Arrays are memory-mapped on first
    use. Without `check`, only the manifest is read."""

    def __init__(self, path: PathLike, kind: str, version: str | None = None, check: bool = True) -> None:
        self.path, self.kind = remote.local_path(path), kind
        self.url = remote.url_of(self.path)
        remote.refresh(self.path)
        self.manifest, stream = self._open_manifest(version)
        self._release = weakref.finalize(self, stream.close)
        self._open: dict[str, Array] = {}
        if check and self.url is None:  # an array at a URL is checked when it is downloaded
            for name, entry in self.manifest["arrays"].items():
                self._check_array(name, full=int(entry["bytes"]) <= SMALL_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_release"}  # the lock is not pickled

    def close(self) -> None:
        """Allow `clean` to remove this version; mapped arrays stay readable."""
        self._release()

    @property
    def place(self) -> str:
        """The URL, or the path."""
        return self.url or str(self.path)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the arrays."""
        meta: dict[str, Any] = self.manifest["meta"]
        return meta

    @property
    def fingerprint(self) -> str:
        """Hash of the content: equal content has the same fingerprint on any machine."""
        return str(self.manifest["fingerprint"])

    @property
    def num_bytes(self) -> int:
        """Size of all arrays on disk."""
        return sum(int(entry["bytes"]) for entry in self.manifest["arrays"].values())

    @property
    def advice(self) -> str:
        """What to do about damage."""
        again = f"ingest {self.place} again with `overwrite=True`"
        if self.kind != "store":
            again = f"delete {self.place} and make it again"
        return (
            f"{again}, or bring a whole copy (largegt inspect {quoted(self.place)} --verify names all that is damaged)"
        )

    # arrays

    def __contains__(self, name: str) -> bool:
        return name in self.manifest["arrays"]

    def entry(self, name: str) -> dict[str, Any]:
        """The manifest entry of an array."""
        if name not in self:
            raise FormatError(f"{self.place} has no array {name!r}; make it again with this version")
        entry: dict[str, Any] = self.manifest["arrays"][name]
        return entry

    def dtype(self, name: str) -> str:
        """The logical dtype of an array: a NumPy name, or `bfloat16` (stored as uint16)."""
        return str(self.entry(name)["dtype"])

    def checksum(self, name: str) -> str:
        return str(self.entry(name)["checksum"])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without opening it; empty if there is no such array."""
        return tuple(self.entry(name)["shape"]) if name in self else ()

    def array(self, name: str) -> Array:
        """The array `name`, read-only and memory-mapped; bfloat16 is returned as uint16 bits."""
        if name not in self._open:
            entry = self.entry(name)
            self._check_array(name, full=int(entry["bytes"]) <= USED_BYTES)
            self._open[name] = mapped(self.file(name), entry["shape"], entry["dtype"])
        return self._open[name]

    def ranged(self, name: str) -> Array:
        """The array `name` for reading in ranges: like `array`, but not downloaded from a URL (remote_array.py)."""
        if self.url is None:
            return self.array(name)
        return cast(Array, RemoteArray(self._url_of(name), stored_dtype(self.dtype(name)).name, self.shape(name)))

    def file(self, name: str) -> Path:
        """The local file of the array `name`, downloaded first if the folder is at a URL."""
        entry = self.entry(name)
        file: Path = self.path / entry["file"]
        if self.url is not None and not file.is_file():
            num_bytes, url = int(entry["bytes"]), self._url_of(name)
            require_space(file, num_bytes, f"a copy of {url}")
            remote.download(file, url, num_bytes, lambda copy: mismatch(copy, num_bytes, entry["checksum"]))
        return file

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{self.entry(name)['file']}"

    # damage

    def check(self, progress: Progress | None = None) -> None:
        """`verify` all arrays before a stage uses them: once per process, in one process per machine."""
        if is_checker() and self.url is None:
            self.verify(progress=progress)

    def verify(
        self,
        names: Iterable[str] | None = None,
        progress: Progress | None = None,
        below: Mapping[str, int] = _NO_BOUNDS,
    ) -> None:
        """Read every byte of these arrays (default: all) and raise an error for the first damaged one. `below` maps
        integer arrays to bounds: their values must be at least 0 and less than the bound."""
        for damage in self.damages(names, progress, below):
            raise FormatError(f"{damage}: it was damaged or changed; {self.advice}")

    def damages(
        self,
        names: Iterable[str] | None = None,
        progress: Progress | None = None,
        below: Mapping[str, int] = _NO_BOUNDS,
    ) -> Iterator[Damage]:
        """Yield each damaged array. Reads every byte."""
        show = progress or silent
        chosen = {name: self.entry(name) for name in (self.manifest["arrays"] if names is None else names)}
        total, done = sum(int(entry["bytes"]) for entry in chosen.values()), 0
        for name, entry in chosen.items():
            show("check", done, total)
            file: PathLike = self._url_of(name) if self.url is not None else self.path / entry["file"]
            try:
                if self.url is not None:
                    fault = url_mismatch(str(file), int(entry["bytes"]), entry["checksum"])
                elif (fault := self._fault(name, full=True)) is None and name in below:
                    fault = outside(self.array(name), below[name], self.checksum(name))
            except DiskError as error:
                fault = str(error.__cause__)
            if fault is not None:
                yield Damage(file, fault)
            done += int(entry["bytes"])
        show("check", total, total)

    def require(self, kinds: Mapping[str, type], lengths: Mapping[str, int]) -> None:
        """Refuse a folder unless its metadata has these types and its arrays have these numbers of rows."""
        for key, kind in kinds.items():
            if not isinstance(value := self.meta.get(key), kind) or (kind is int and isinstance(value, bool)):
                raise FormatError(f"{self.path / MANIFEST} says {key}={value!r}, which cannot be; {self.advice}")
        for name, rows in lengths.items():
            if name not in self:
                raise FormatError(f"{self.path} has no array {name}, {rows} rows are expected; {self.advice}")
            if self.shape(name)[:1] != (rows,):
                found = f"has shape {list(self.shape(name))}"
                raise FormatError(f"{self.file(name)} {found}, {rows} rows are expected; {self.advice}")

    def _check_array(self, name: str, full: bool) -> None:
        if (fault := self._fault(name, full)) is not None:
            raise FormatError(f"{self.file(name)} {fault}: it was damaged or changed; {self.advice}")

    def _fault(self, name: str, full: bool) -> str | None:
        """The damage of an array's file, found by header and size, or with `full` by checksum; None if sound."""
        file, entry = self.file(name), self.entry(name)
        shape, dtype, num_bytes = entry["shape"], entry["dtype"], entry["bytes"]
        if leaves(self.path, file):
            return "leads out of its folder"
        head = npy_head(shape, dtype)
        try:
            with open(file, "rb") as stream:
                found, size = stream.read(len(head)), os.fstat(stream.fileno()).st_size
            if found != head:
                return f"does not begin as an array of {dtype} {shape}, as its manifest says"
            if (expected := len(head) + math.prod(shape) * stored_dtype(dtype).itemsize) != num_bytes:
                return f"has shape {shape}, which takes {expected} bytes, and its manifest says {num_bytes}"
            if size != num_bytes:
                return f"has {size} bytes, {num_bytes} were written"
            return mismatch(file, num_bytes, entry["checksum"]) if full else None
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            raise DiskError(f"{file} cannot be read: {error.strerror or error}; mend that and try again") from error

    # the manifest

    def _open_manifest(self, version: str | None) -> tuple[dict[str, Any], IO[bytes]]:
        """The manifest of a version, and its file with a shared lock."""
        if not (self.path / MANIFEST).is_file():
            raise self._missing_error()
        manifest, stream = self._read_manifest(self.path / MANIFEST)
        if version is None or manifest["fingerprint"] == version:
            return manifest, stream
        stream.close()
        name = f"{VERSIONS}/{version}.json"
        if FINGERPRINT.fullmatch(version):
            remote.refresh(self.path, name)
            if (self.path / name).is_file() and not leaves(self.path, self.path / name):
                return self._read_manifest(self.path / name)
        raise InputError(
            f"{self.place} has no version {version}: it was removed, or {self.place} is another {self.kind}"
        )

    def _missing_error(self) -> InputError | FormatError:
        """The error for a path without a manifest."""
        place, hint = self.place, ""
        if self.kind == "store":
            hint = f"; a store is made with: `lg.ingest(lg.sources.files('edges.parquet'), out={str(place)!r})`"
        if self.url is not None:
            return InputError(f"{place} does not exist or has no manifest.json: check the path{hint}")
        if not self.path.exists():
            return InputError(f"{place} does not exist: check the path{hint}")
        if self.kind == "store" and (self.path / "config.toml").is_file():
            return FormatError(f"{place} is a run, not a store: name the store that it was trained on, or another")
        return FormatError(f"{place} is not a largegt {self.kind}: it has no manifest.json{hint}")

    def _read_manifest(self, file: Path) -> tuple[dict[str, Any], IO[bytes]]:
        """A manifest, and its file with a shared lock; `versions.clean` keeps locked versions."""
        while True:
            try:
                stream = open(file, "rb")  # noqa: SIM115 - closed with the ArrayFolder
            except OSError as error:
                raise FormatError(f"{file} cannot be read ({first_line(error)}); {self.advice}") from error
            with suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_SH)
            if os.fstat(stream.fileno()).st_nlink:
                break
            stream.close()  # replaced and removed between opening and locking
        try:
            return self._check_manifest(read_object(file, self.advice, stream), file), stream
        except FormatError:
            stream.close()
            raise

    def _check_manifest(self, manifest: dict[str, Any], file: Path) -> dict[str, Any]:
        if manifest.get("format") != f"largegt-{self.kind}":
            raise FormatError(
                f"{self.place} is not a largegt {self.kind} (its manifest says {manifest.get('format')!r})"
            )
        if manifest.get("version") != FORMAT_VERSION:
            raise FormatError(
                f"{self.place} has format version {manifest.get('version')}, this largegt reads {FORMAT_VERSION}: "
                "upgrade largegt if yours is older, or make the folder again with this version"
            )
        check_seal(manifest, file, self.advice)  # after the version: another format may be sealed differently
        fingerprint, arrays = manifest.get("fingerprint"), manifest.get("arrays")
        is_named = isinstance(fingerprint, str) and FINGERPRINT.fullmatch(fingerprint)
        if not is_named or not isinstance(arrays, dict) or not isinstance(manifest.get("meta"), dict):
            raise FormatError(f"{file} is incomplete; {self.advice}")
        for name, entry in arrays.items():
            if not name.isidentifier() or not _is_valid_entry(name, entry):
                raise FormatError(f"{file} does not describe its array {name!r}; {self.advice}")
        return manifest


def manifest_files(path: Path) -> list[Path]:
    """The manifests of all versions of a folder, newest first."""
    older = sorted(file for file in (path / VERSIONS).glob("*.json") if FINGERPRINT.fullmatch(file.stem))
    return [path / MANIFEST, *older]


def _is_valid_entry(name: str, entry: Any) -> bool:
    if not isinstance(entry, dict) or not is_checksum(entry.get("checksum")):
        return False
    if entry.get("file") != array_file(name, entry["checksum"]) or not _DTYPE.fullmatch(str(entry.get("dtype"))):
        return False
    numbers = [entry.get("bytes"), *shape] if isinstance(shape := entry.get("shape"), list) else [None]
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
