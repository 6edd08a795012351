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
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np

from . import storage
from .errors import AGAIN, DiskError, FormatError, InputError, LargeGTError, disk_errors
from .integrity import (
    SMALL_BYTES,
    USED_BYTES,
    BlockDigests,
    Damage,
    file_checksum,
    is_checker,
    leaves,
    mismatch,
    npy_fault,
    read_sealed,
    sealed,
    url_mismatch,
)
from .locks import Lock, check_free
from .memory import format_bytes
from .progress import Progress, silent
from .ranged import RangedArray
from .types import Array, PathLike

FORMAT_VERSION = 3
_OLD_VERSION = 2
"""Without a checksum of the manifest itself; otherwise the same."""
_WRITE_BYTES = 1 << 30
_HEADER_BYTES = 128
_FREE: Mapping[str, int] = {}
_JOURNAL = "progress.json"
_KEEP = "-keep"
"""Ends the name of a replaced folder while others' files and folders in it are still to move to the new one."""


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
        self.manifest = _read_manifest(self.path, kind)
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


class ArrayAppender:
    """A `.npy` file that grows by rows at its end. `close` makes it a whole array; until then it has no header."""

    def __init__(self, file: Path, dtype: str, row_shape: tuple[int, ...], rows: int) -> None:
        self.file, self.dtype, self.row_shape, self.rows = file, dtype, row_shape, rows
        self.stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        self._row_bytes = self.stored.itemsize * math.prod(row_shape)
        self.digests = BlockDigests(self.num_bytes)
        with disk_errors(file.parent):
            if not rows:
                file.unlink(missing_ok=True)  # it may be a link to an array of another folder
            self._stream = open(file, "r+b" if rows else "w+b", buffering=0)  # noqa: SIM115 - closed by close
            self._stream.truncate(self.num_bytes)
            self._stream.seek(0, os.SEEK_END)

    def append(self, rows: Array) -> None:
        """Write these rows behind the last one."""
        rows = np.ascontiguousarray(rows, dtype=self.stored)
        assert rows.shape[1:] == self.row_shape, (rows.shape, self.row_shape)
        with disk_errors(self.file.parent, rows.nbytes):
            left = memoryview(rows.reshape(-1).view(np.uint8)) if rows.size else memoryview(b"")  # type: ignore[arg-type]
            while left:
                count = self._stream.write(left[:_WRITE_BYTES])
                self.digests.add(left[:count])
                left = left[count:]
        self.rows += len(rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    @property
    def num_bytes(self) -> int:
        return _HEADER_BYTES + self.rows * self._row_bytes

    def so_far(self) -> Array:
        """What was written until now, mapped."""
        return _mapped(self.file, self.stored, self.shape)

    def close(self) -> None:
        """Write the header: the file is a `.npy` array now."""
        description = {"descr": np.lib.format.dtype_to_descr(self.stored), "fortran_order": False, "shape": self.shape}
        text = repr(description).encode("latin1")
        magic = np.lib.format.magic(1, 0)
        size = _HEADER_BYTES - len(magic) - 2
        header = magic + size.to_bytes(2, "little") + text + b" " * (size - len(text) - 1) + b"\n"
        with disk_errors(self.file.parent):
            self._stream.seek(0)
            self._stream.write(header)
            self._stream.close()

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._stream.close()


class FolderWriter:
    """Writes one folder aside; `finish` renames it into place. Use it as a context manager:

        with FolderWriter("data/g", kind="store", identity=[...]) as writer:
            writer.save("labels", labels)
            features = writer.grow("features", "float32", (128,))
            for block in blocks[features.rows :]:   # none of it on the first try
                features.append(block)
                writer.commit()
            writer.close("features")
            writer.finish(meta={...})

    With an `identity` (what the content depends on), work survives: after a kill, Ctrl-C or a full disk the next writer
    of the same path and identity goes on from the last `commit`. Bad input (a `LargeGTError` other than `DiskError`)
    removes everything that was written, and so does any error without an identity. One process at a time may write a
    folder; the lock goes with the process that holds it. With `keep_others`, what others have put into the folder that
    is replaced (a run, a note) moves to the new one.
    """

    def __init__(
        self, path: PathLike, kind: str, replace: bool = False, identity: Any = None, keep_others: bool = False
    ) -> None:
        self.path = storage.local_path(path)
        self.kind, self._keep_others = kind, keep_others
        storage.refresh(self.path)
        _check_target(self.path, kind, replace)
        self.partial = self.path.parent / f".{self.path.name}.partial"
        self.resumable = identity is not None
        self._journal = {"identity": fingerprint([FORMAT_VERSION, kind, identity]), "boot": _boot()}
        self._lock = Lock(self.path)
        try:
            with disk_errors(self.path):
                _restore(self.path)
                _check_target(self.path, kind, replace)  # another process may have made it just now
                self.partial.mkdir(exist_ok=True)
                found = _read_journal(self.partial, self._journal) if self.resumable else {}
                if not found:
                    _empty(self.partial)
            storage.announce(self.partial)
        except BaseException:
            self._lock.release()
            raise
        self._arrays: dict[str, dict[str, Any]] = found.get("arrays", {})
        self._rows: dict[str, list[int]] = found.get("rows", {})
        self._growing: dict[str, ArrayAppender] = {}
        self.state: dict[str, Any] = found.get("state", {})
        """Whatever a stage must know to go on; kept by `commit`."""
        self.kept: set[str] = set()
        """Folders in the making that belong to the finished one; all others are scratch."""

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for array in self._growing.values():
            array.abandon()
        failed_for_good = isinstance(error, LargeGTError) and not isinstance(error, DiskError)
        if error is None or failed_for_good or not self.resumable:
            shutil.rmtree(self.partial, ignore_errors=True)
            self._leave_url()
        self._lock.release()
        if isinstance(error, OSError):
            with disk_errors(self.path):
                raise error

    def restart(self) -> None:
        """Forget everything that was written."""
        for array in self._growing.values():
            array.abandon()
        self._growing.clear()
        self._arrays, self._rows, self.state = {}, {}, {}
        _empty(self.partial)

    def commit(self, **state: Any) -> None:
        """What is written until now counts: a killed run goes on from here, with `state` as it is now."""
        self.state.update(state)
        rows = self._rows | {name: [array.rows, array.num_bytes] for name, array in self._growing.items()}
        journal = {**self._journal, "arrays": self._arrays, "rows": rows, "state": self.state}
        write_text_atomically(self.partial / _JOURNAL, json.dumps(journal))

    def has(self, name: str) -> bool:
        """Whether this array is whole, in this run or in the one it goes on from."""
        return name in self._arrays

    def rows(self, name: str) -> int:
        """How far a growing array has come by the last commit."""
        return self._rows.get(name, [0])[0]

    def array(self, name: str) -> Array:
        """A whole array, mapped."""
        with disk_errors(self.path):
            return np.load(self._file(name), mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]

    def save(self, name: str, array: Array, dtype: str | None = None) -> None:
        """Write a whole array. `dtype` names what the bits stand for when NumPy cannot (`bfloat16`)."""
        array = np.asarray(array)
        with disk_errors(self.path, array.nbytes):
            self._file(name).unlink(missing_ok=True)  # it may be a link to an array of another folder
            np.save(self._file(name), array, allow_pickle=False)
        self._note(name, array.shape, dtype or array.dtype.name)

    def grow(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> ArrayAppender:
        """An array to be written row by row; it stands where the last commit of an earlier run left it."""
        array = ArrayAppender(self._file(name), dtype, row_shape, self.rows(name))
        self._growing[name] = array
        return array

    def close(self, name: str) -> None:
        """The growing array `name` is whole now."""
        array = self._growing.pop(name)
        array.close()
        self._rows.pop(name, None)
        self._note(name, array.shape, array.dtype)
        self._arrays[name]["checksum"] = file_checksum(self._file(name), array.digests.known)

    def drop(self, name: str) -> None:
        """Remove an array: scratch that has served, or a result that is not wanted after all."""
        if not self._file(name).exists():
            return
        if name in self._growing:
            self._growing.pop(name).abandon()
        self._rows.pop(name, None)
        self._arrays.pop(name, None)
        self.commit()  # first the promise goes, then the file
        storage.withdraw(self._file(name))
        self._file(name).unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        """Call a whole array otherwise."""
        with disk_errors(self.path):
            self._file(new).unlink(missing_ok=True)
            os.link(self._file(name), self._file(new))
        self._arrays[new] = self._arrays[name]
        self.drop(name)

    def link(self, name: str, source: ArrayFolder) -> None:
        """Take a sound array that another finished folder already has: a hard link where possible, else a copy."""
        source.check([name])
        entry = source._entry(name)
        target = self._file(name)
        target.unlink(missing_ok=True)
        with disk_errors(self.path):
            try:
                os.link(source.file(name), target)
            except OSError:
                shutil.copyfile(source.file(name), target)
        self._arrays[name] = dict(entry)

    def finish(
        self, meta: Mapping[str, Any], identity: Any = None, progress: Progress | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Path:  # fmt: skip
        """Checksum, write the manifest, rename into place.

        `identity` is what the fingerprint is made of; without it, the arrays' checksums and `meta` are. `notes` go into
        the manifest too, and are no part of what names it.
        """
        show = progress or silent
        with disk_errors(self.path):
            total = sum(self._file(name).stat().st_size for name in self._arrays)
            done = 0
            for name, entry in self._arrays.items():
                show("checksums", done, total)
                file = self._file(name)
                entry["bytes"] = file.stat().st_size
                if "checksum" not in entry:
                    entry["checksum"] = file_checksum(file)
                    self.commit()
                sync(file)
                done += entry["bytes"]
            show("checksums", total, total)
            if identity is None:
                identity = [meta, {name: entry["checksum"] for name, entry in self._arrays.items()}]
            manifest = {
                "format": f"largegt-{self.kind}",
                "version": FORMAT_VERSION,
                "fingerprint": fingerprint(identity),
                "meta": dict(meta),
                "arrays": self._arrays,
                **(notes or {}),
            }
            for file in self.partial.iterdir():
                if file.name not in (_JOURNAL, *self.kept) and (file.suffix != ".npy" or file.stem not in self._arrays):
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
            (self.partial / "manifest.json").write_text(sealed(manifest), encoding="utf-8", newline="\n")
            sync(self.partial / "manifest.json")
            sync(self.partial)
            self._upload(show)
            old = _retire(self.path, self.kind, self._keep_others) if self.path.exists() else None
            os.replace(self.partial, self.path)
            sync(self.path.parent)
            (self.path / _JOURNAL).unlink(missing_ok=True)
            if old is not None:
                _discard(old, self.path)
        return self.path

    def _upload(self, show: Progress) -> None:
        """Put a folder that belongs to a URL there: first what it replaces stops opening, last comes the manifest."""
        if (url := storage.url_of(self.path)) is None:
            return
        if (self.path / storage.MANIFEST).is_file():
            replaced = _read_manifest(self.path, self.kind)["arrays"]
            for name in (storage.MANIFEST, *(f"{array}.npy" for array in replaced), "prepared"):
                storage.remove(f"{url}/{name}")
        there: list[str] = self.state.setdefault("uploaded", [])
        total, done = sum(entry["bytes"] for entry in self._arrays.values()), 0
        for name, entry in self._arrays.items():
            show("upload", done, total)
            target = f"{url}/{name}.npy"
            if name not in there or storage.size(target) != entry["bytes"]:
                storage.put(self._file(name), target)
                there.append(name)
                self.commit()
            done += entry["bytes"]
        show("upload", total, total)
        storage.put(self.partial / storage.MANIFEST, f"{url}/{storage.MANIFEST}")

    def _leave_url(self) -> None:
        """Remove what work in the making has left at the URL. That it cannot be removed is no reason to fail."""
        if (url := storage.url_of(self.partial)) is not None:
            with suppress(LargeGTError):
                storage.remove(url)

    def _file(self, name: str) -> Path:
        return self.partial / f"{name}.npy"

    def _note(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._arrays[name] = {"shape": list(shape), "dtype": dtype}


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


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left of files that it was replacing in this folder."""
    for file in folder.glob(".*.partial*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


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


def _remove_dead(path: Path) -> None:
    """Remove what processes that are gone have left of a small file that they were replacing."""
    with suppress(OSError):
        for file in path.parent.glob(f".{escape(path.name)}.partial-*"):
            pid = file.name.rpartition("-")[2]
            try:
                os.kill(int(pid) if pid.isdigit() else os.getpid(), 0)
            except ProcessLookupError:
                file.unlink(missing_ok=True)


_MAKE_STORE = "; a store is made with: largegt ingest edges.parquet --nodes nodes.parquet --out "


def _read_manifest(path: Path, kind: str) -> dict[str, Any]:
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


def tidy(path: Path) -> None:
    """Remove what a process has left beside and in a whole folder that was killed just after it gave it its name."""
    with suppress(LargeGTError, OSError):  # in use, or read-only: then it is another's, or harmless
        check_free(path)
        if (path / _JOURNAL).exists() and (path / "manifest.json").exists():
            (path / _JOURNAL).unlink(missing_ok=True)


def _check_target(path: Path, kind: str, replace: bool) -> None:
    """Refuse to write where something else is."""
    place = storage.shown(path)
    if path.exists() and not replace and not (path.is_dir() and not any(path.iterdir())):
        tidy(path)
        raise InputError(f"{place} already exists: choose another --out, or say --overwrite to replace it")
    if path.exists() and replace and not _replaceable(path, kind):
        raise InputError(f"{place} is not a largegt {kind}, so it is not overwritten: choose another --out")


def _replaceable(path: Path, kind: str) -> bool:
    try:
        _read_manifest(path, kind)
    except FormatError:  # damaged ones are ours too
        return path.is_dir() and (not any(path.iterdir()) or _says(path / "manifest.json", f'"largegt-{kind}"'))
    return True


def _says(file: Path, word: str) -> bool:
    try:
        with open(file, "rb") as stream:
            return word.encode() in stream.read(1 << 16)
    except OSError:
        return False


def _read_journal(folder: Path, expected: dict[str, str]) -> dict[str, Any]:
    """What an earlier run of the same work left to go on from; nothing when a file it promises is not there."""
    try:
        journal = json.loads((folder / _JOURNAL).read_text(encoding="utf-8"))
        same = all(journal[key] == value for key, value in expected.items())
        there = all((folder / f"{name}.npy").is_file() for name in journal["arrays"])
        there = there and all((folder / f"{n}.npy").stat().st_size >= size for n, (_, size) in journal["rows"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(journal) if same and there else {}


def _empty(folder: Path) -> None:
    """Remove everything in it."""
    for file in folder.iterdir():
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink()


def _boot() -> str:
    """Names this run of the system: after a power cut, what a journal promises may never have reached the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _mapped(file: Path, dtype: Any, shape: tuple[int, ...]) -> Array:
    if not math.prod(shape):
        return np.zeros(shape, dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=_HEADER_BYTES, shape=shape)


def _retire(path: Path, kind: str, keep_others: bool) -> Path:
    """Move the folder that is being replaced out of the way; where it is now."""
    old = path.parent / f".{path.name}.old-{os.getpid()}{_KEEP if keep_others else ''}"
    try:
        os.replace(path, old)
    except OSError as error:
        raise DiskError(f"cannot replace the {kind} at {path}: {error.strerror}") from error
    return old


def _discard(old: Path, path: Path) -> None:
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
    ours = {"manifest.json", _JOURNAL, "prepared", "appended", *(f"{name}.npy" for name in arrays)}
    small = (".manifest.json.partial-", f".{_JOURNAL}.partial-")
    return sorted(entry for entry in folder.iterdir() if entry.name not in ours and not entry.name.startswith(small))


def recover(path: Path) -> None:
    """After a kill between moving the old folder away and the new one in: the old one again. Just after that: the new
    one, and what others have put into the old one."""
    if any(path.parent.glob(f".{escape(path.name)}.old-*")):
        with suppress(LargeGTError, OSError), Lock(path):  # held: its process is about to give the new one its name
            _restore(path)


def _restore(path: Path) -> None:
    """After a kill between moving the old folder away and the new one in: the old one again. Else it has served."""
    for old in path.parent.glob(f".{path.name}.old-*"):
        if path.exists():
            _discard(old, path)
        else:
            os.replace(old, path)
