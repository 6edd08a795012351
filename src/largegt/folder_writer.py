"""Writing a folder of arrays (folder.py): aside, array by array, going on after a kill; then it gets its name."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from . import storage
from .disk import sync, write_text_atomically
from .errors import DiskError, FormatError, InputError, LargeGTError, disk_errors
from .folder import FORMAT_VERSION, ArrayFolder, fingerprint, read_manifest
from .integrity import BlockDigests, file_checksum, sealed
from .locks import Lock
from .progress import Progress, silent
from .replacing import JOURNAL, discard, restore, retire, tidy
from .types import Array, PathLike

_WRITE_BYTES = 1 << 30
_HEADER_BYTES = 128


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
                restore(self.path)
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
        write_text_atomically(self.partial / JOURNAL, json.dumps(journal))

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
                if file.name not in (JOURNAL, *self.kept) and (file.suffix != ".npy" or file.stem not in self._arrays):
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
            (self.partial / "manifest.json").write_text(sealed(manifest), encoding="utf-8", newline="\n")
            sync(self.partial / "manifest.json")
            sync(self.partial)
            self._upload(show)
            old = retire(self.path, self.kind, self._keep_others) if self.path.exists() else None
            os.replace(self.partial, self.path)
            sync(self.path.parent)
            (self.path / JOURNAL).unlink(missing_ok=True)
            if old is not None:
                discard(old, self.path)
        return self.path

    def _upload(self, show: Progress) -> None:
        """Put a folder that belongs to a URL there: first what it replaces stops opening, last comes the manifest."""
        if (url := storage.url_of(self.path)) is None:
            return
        if (self.path / storage.MANIFEST).is_file():
            replaced = read_manifest(self.path, self.kind)["arrays"]
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
        read_manifest(path, kind)
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
        journal = json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
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
