"""Folders of arrays: how a GraphStore and a Prepared lie on disk.

A folder holds `manifest.json` and one `.npy` file per array. Anyone can read the arrays with
`np.load(file, mmap_mode="r", allow_pickle=False)`; the manifest adds what NumPy cannot say (bfloat16, the
configuration, fingerprints). A folder is written aside and renamed into place when whole, so a reader never sees
half of one. What an interrupted writer has done lies in `.NAME.partial` beside it until the same command goes on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .errors import DiskError, FormatError, InputError, LargeGTError, disk_errors
from .memory import format_bytes
from .progress import Progress, silent
from .threads import run_ranges
from .types import Array, PathLike

FORMAT_VERSION = 2
_HASH_BLOCK_BYTES = 1 << 26
_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 30
_HEADER_BYTES = 128
_JOURNAL, _LOCK = "progress.json", "lock"


def fingerprint(value: Any) -> str:
    """16 hex digits that name a JSON-able value: equal values give equal names on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_checksum(path: PathLike) -> str:
    """BLAKE2b-128 of the BLAKE2b-128 digests of a file's blocks of 64 MiB, which are read on all cores."""
    size = os.path.getsize(path)
    bounds = [*range(0, size, _HASH_BLOCK_BYTES), size]
    digest = hashlib.blake2b(digest_size=16)
    for part in run_ranges(lambda low, high: _digest_of(path, low, high), bounds):
        digest.update(part)
    return digest.hexdigest()


def _digest_of(path: PathLike, low: int, high: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as stream:
        stream.seek(low)
        while low < high:
            piece = stream.read(min(_READ_BYTES, high - low))
            if not piece:
                break
            digest.update(piece)
            low += len(piece)
    return digest.digest()


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


class ArrayAppender:
    """A `.npy` file that grows by rows at its end. `close` makes it a whole array; until then it has no header."""

    def __init__(self, file: Path, dtype: str, row_shape: tuple[int, ...], rows: int) -> None:
        self.file, self.dtype, self.row_shape, self.rows = file, dtype, row_shape, rows
        self.stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        self._row_bytes = self.stored.itemsize * math.prod(row_shape)
        with disk_errors(file.parent):
            self._stream = open(file, "r+b" if rows else "w+b", buffering=0)  # noqa: SIM115 - closed by close
            self._stream.truncate(self.num_bytes)
            self._stream.seek(0, os.SEEK_END)

    def append(self, rows: Array) -> None:
        """Write these rows behind the last one."""
        rows = np.ascontiguousarray(rows, dtype=self.stored)
        assert rows.shape[1:] == self.row_shape, (rows.shape, self.row_shape)
        with disk_errors(self.file.parent):
            left = memoryview(rows.reshape(-1).view(np.uint8)) if rows.size else memoryview(b"")  # type: ignore[arg-type]
            while left:
                left = left[self._stream.write(left[:_WRITE_BYTES]) :]
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
    folder; the lock goes with the process that holds it.
    """

    def __init__(self, path: PathLike, kind: str, replace: bool = False, identity: Any = None) -> None:
        self.path = Path(path)
        self.kind = kind
        if self.path.exists() and not replace and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise InputError(f"{self.path} already exists: choose another --out, or say --overwrite to replace it")
        if self.path.exists() and replace and not _replaceable(self.path, kind):
            raise InputError(f"{self.path} is not a largegt {kind}, so it is not overwritten: choose another --out")
        self.partial = self.path.parent / f".{self.path.name}.partial"
        self.resumable = identity is not None
        self._journal = {"identity": fingerprint([FORMAT_VERSION, kind, identity]), "boot": _boot()}
        self._made_parents = _missing_parents(self.path)
        with disk_errors(self.path):
            self._lock = _locked(self.partial)
            for old in self.path.parent.glob(f".{self.path.name}.old-*"):
                shutil.rmtree(old, ignore_errors=True)
            found = _read_journal(self.partial, self._journal) if self.resumable else {}
            if not found:
                _empty(self.partial)
        self._arrays: dict[str, dict[str, Any]] = found.get("arrays", {})
        self._rows: dict[str, list[int]] = found.get("rows", {})
        self._growing: dict[str, ArrayAppender] = {}
        self.state: dict[str, Any] = found.get("state", {})
        """Whatever a stage must know to go on; kept by `commit`."""

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
            if not self.path.exists():
                _remove_empty(self._made_parents)
        os.close(self._lock)
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
        with disk_errors(self.path):
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

    def drop(self, name: str) -> None:
        """Remove an array: scratch that has served, or a result that is not wanted after all."""
        if not self._file(name).exists():
            return
        if name in self._growing:
            self._growing.pop(name).abandon()
        self._rows.pop(name, None)
        self._arrays.pop(name, None)
        self.commit()  # first the promise goes, then the file
        self._file(name).unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        """Call a whole array otherwise."""
        with disk_errors(self.path):
            self._file(new).unlink(missing_ok=True)
            os.link(self._file(name), self._file(new))
        self._arrays[new] = self._arrays[name]
        self.drop(name)

    def link(self, name: str, source: ArrayFolder) -> None:
        """Take an array that another finished folder already has: a hard link where possible, else a copy."""
        entry = source.manifest["arrays"][name]
        target = self._file(name)
        target.unlink(missing_ok=True)
        with disk_errors(self.path):
            try:
                os.link(source.path / f"{name}.npy", target)
            except OSError:
                shutil.copyfile(source.path / f"{name}.npy", target)
        self._arrays[name] = dict(entry)

    def finish(self, meta: Mapping[str, Any], identity: Any = None, progress: Progress | None = None) -> Path:
        """Checksum, write the manifest, rename into place.

        `identity` is what the fingerprint is made of; without it, the arrays' checksums and `meta` are.
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
            }
            for file in self.partial.iterdir():
                if file.name not in (_JOURNAL, _LOCK) and (file.suffix != ".npy" or file.stem not in self._arrays):
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
            with open(self.partial / "manifest.json", "w", encoding="utf-8") as stream:
                json.dump(manifest, stream, indent=1, ensure_ascii=False)
                stream.flush()
                os.fsync(stream.fileno())
            if self.path.exists():
                _retire(self.path, self.kind)
            os.replace(self.partial, self.path)
            for name in (_JOURNAL, _LOCK):
                (self.path / name).unlink(missing_ok=True)
        return self.path

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
            "free some, then run the same command again; it goes on where it stopped"
        )


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
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{path} has format version {version}, this largegt reads {FORMAT_VERSION}: "
            "upgrade largegt if yours is older, or make the folder again with this version"
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


def _locked(folder: Path) -> int:
    """Make `folder` and hold its lock until the process ends or closes it; refuse when another process does."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            raise InputError(
                f"another process ({owner or 'unknown'}) is writing {folder.parent / folder.name[1:-8]}: "
                "wait for it or stop it, then run the same command again"
            ) from None
        try:
            if os.fstat(lock).st_ino == (folder / _LOCK).stat().st_ino:
                os.truncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)  # its folder was finished and renamed while we waited for the lock


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
    """Remove everything but the lock."""
    for file in folder.iterdir():
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        elif file.name != _LOCK:
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
