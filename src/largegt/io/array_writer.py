"""Write a folder of arrays (array_folder.py): array by array into `.NAME.partial`, then commit.

A commit links the arrays into the folder under names derived from their checksums and replaces `manifest.json`
atomically: readers see the old version before the commit and the new one after it. After a kill, the command resumes.
"""

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

from largegt.errors import DiskError, InputError, LargeGTError, disk_errors
from largegt.runtime.progress import Progress, silent
from largegt.types import Array, PathLike

from . import remote
from .array_folder import (
    ARRAY_FILE,
    FORMAT_VERSION,
    VERSIONS,
    ArrayFolder,
    array_file,
    mapped,
    npy_head,
    stored_dtype,
)  # fmt: skip
from .atomic import link_or_copy, refuse_links_out, replacing, sync, write_text_atomically
from .checksums import BlockDigests, file_checksum, fingerprint, sealed
from .locks import Lock, remove_stale
from .remote import MANIFEST
from .remote_array import HEADER_BYTES

_JOURNAL = "progress.json"
"""The writer's progress, saved in the partial folder."""
_WRITE_BYTES = 1 << 30


class ExistsError(InputError):
    """The target path already exists."""


class ArrayAppender:
    """A `.npy` file to which rows are appended. `close` writes the header and completes the array."""

    def __init__(self, file: Path, dtype: str, row_shape: tuple[int, ...], rows: int) -> None:
        self.file, self.dtype, self.row_shape, self.rows = file, dtype, row_shape, rows
        self.stored = stored_dtype(dtype)
        self._row_bytes = self.stored.itemsize * math.prod(row_shape)
        self._block_digests = BlockDigests(self.num_bytes)
        with disk_errors(file.parent):
            if not rows:
                file.unlink(missing_ok=True)
            self._stream = open(file, "r+b" if rows else "w+b", buffering=0)  # noqa: SIM115 - closed by close
            self._stream.truncate(self.num_bytes)
            self._stream.seek(0, os.SEEK_END)

    def append(self, rows: Array) -> None:
        """Append rows."""
        rows = np.ascontiguousarray(rows, dtype=self.stored)
        assert rows.shape[1:] == self.row_shape, (rows.shape, self.row_shape)
        left = memoryview(rows.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        with disk_errors(self.file.parent, rows.nbytes):
            while left:  # `tofile` does not report that the disk is full
                count = self._stream.write(left[:_WRITE_BYTES])
                self._block_digests.add(left[:count])
                left = left[count:]
        self.rows += len(rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.rows * self._row_bytes

    def so_far(self) -> Array:
        """The rows written so far, memory-mapped."""
        return mapped(self.file, self.shape, self.dtype)

    def close(self) -> str:
        """Write the header, which completes the `.npy` file; return the checksum."""
        with disk_errors(self.file.parent):
            self._stream.seek(0)
            self._stream.write(npy_head(self.shape, self.dtype))
            self._stream.close()
            return file_checksum(self.file, self._block_digests.known)

    def abandon(self) -> None:
        """Close the file without a header."""
        self._stream.close()


class ArrayWriter:
    """Writes one version of a folder. Use it as a context manager:

        with ArrayWriter("data/g", kind="store", identity=[...]) as writer:
            writer.save("labels", labels)
            features = writer.grow("features", "float32", (128,))
            for block in blocks[features.rows :]:   # resume after the rows of an earlier run
                features.append(block)
                writer.commit()
            writer.close("features")
            writer.finish(meta={...})

    With an `identity` (everything that the content depends on), work can be resumed: after a kill, Ctrl-C or a full
    disk, the next writer with the same path and identity continues from the last `commit`. Bad input (a `LargeGTError`
    other than `DiskError`) deletes the partial folder; without an identity, any error does. Only one process at a time
    may write a folder; with `wait`, another one waits. `replace` allows a new version of an existing folder.
    """

    def __init__(
        self, path: PathLike, kind: str, replace: bool = False, identity: Any = None, wait: bool = False
    ) -> None:
        self.path, self.kind = remote.local_path(path), kind
        if self.path.is_symlink():  # the partial folder must be on the disk of the target
            self.path = self.path.resolve()
        self.partial = _partial_folder(self.path)
        self.resumable = identity is not None
        self._work_id = {"identity": fingerprint([FORMAT_VERSION, kind, identity]), "boot": _boot_id()}
        if not wait:
            _check_target(self.path, kind, replace)
        self._lock = Lock(self.path, wait=wait)
        try:
            with disk_errors(self.path):
                _check_target(self.path, kind, replace)  # another process may have created it in between
                refuse_links_out(self.path, self.path / VERSIONS)
                journal = self._read_journal() if self.resumable else {}
                if not journal:
                    if self.partial.is_symlink():  # not created by a writer
                        self.partial.unlink()
                    shutil.rmtree(self.partial, ignore_errors=True)
                    self.partial.mkdir()
            remote.check_writable(self.partial)
        except BaseException:
            self._lock.release()
            raise
        self._arrays: dict[str, dict[str, Any]] = journal.get("arrays", {})
        self._rows: dict[str, list[int]] = journal.get("rows", {})
        self._growing: dict[str, ArrayAppender] = {}
        self.state: dict[str, Any] = journal.get("state", {})
        """What a stage needs to resume; saved by `commit`."""

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for array in self._growing.values():
            array.abandon()
        is_permanent = isinstance(error, LargeGTError) and not isinstance(error, DiskError)
        if error is None or is_permanent or not self.resumable:
            shutil.rmtree(self.partial, ignore_errors=True)
            if (url := remote.url_of(self.partial)) is not None:
                with suppress(LargeGTError):  # cleanup is optional
                    remote.remove(url)
        self._lock.release()
        if isinstance(error, OSError):
            with disk_errors(self.path):
                raise error

    # arrays

    def save(self, name: str, array: Array, dtype: str | None = None) -> None:
        """Write a whole array. `dtype` is the logical dtype if NumPy does not have it (`bfloat16`)."""
        array = np.asarray(array)
        self._rows.pop(name, None)
        self.grow(name, dtype or array.dtype.name, array.shape[1:]).append(array)
        self.close(name)

    def grow(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> ArrayAppender:
        """An array to write row by row; it starts with the rows of an earlier run's last commit."""
        array = ArrayAppender(self._file(name), dtype, row_shape, self.rows(name))
        self._growing[name] = array
        return array

    def close(self, name: str) -> None:
        """Complete the growing array `name`."""
        array = self._growing.pop(name)
        checksum = array.close()
        self._rows.pop(name, None)
        self._arrays[name] = {
            "shape": list(array.shape), "dtype": array.dtype, "checksum": checksum, "bytes": array.num_bytes,
        }  # fmt: skip

    def has(self, name: str) -> bool:
        """Whether this array is complete, written by this run or by the run that it resumes."""
        return name in self._arrays

    def rows(self, name: str) -> int:
        """Rows of a growing array at the last commit."""
        return self._rows.get(name, [0])[0]

    def array(self, name: str) -> Array:
        """A complete array, memory-mapped."""
        entry = self._arrays[name]
        with disk_errors(self.path):
            file = self.path / entry["file"] if "file" in entry else self._file(name)
            return mapped(file, entry["shape"], entry["dtype"])

    def drop(self, name: str) -> None:
        """Remove a scratch array, or a result that is not needed."""
        if not self._file(name).exists():
            return
        if name in self._growing:
            self._growing.pop(name).abandon()
        self._rows.pop(name, None)
        self._arrays.pop(name, None)
        self.commit()  # the journal must not name a deleted file
        remote.unpublish(self._file(name))
        self._file(name).unlink(missing_ok=True)

    def reuse(self, name: str, source: ArrayFolder) -> None:
        """Reuse the file of an array of another version of this folder."""
        assert source.path == self.path, (source.path, self.path)
        self._arrays[name] = dict(source.entry(name))

    def _file(self, name: str) -> Path:
        return self.partial / f"{name}.npy"

    # the journal: progress for a later run

    def commit(self, **state: Any) -> None:
        """Save progress: a killed run resumes from here, with the current `state`."""
        self.state.update(state)
        rows = self._rows | {name: [array.rows, array.num_bytes] for name, array in self._growing.items()}
        journal = {**self._work_id, "arrays": self._arrays, "rows": rows, "state": self.state}
        write_text_atomically(self.partial / _JOURNAL, json.dumps(journal))

    def _read_journal(self) -> dict[str, Any]:
        """The journal; empty if it belongs to other work or names a missing file."""
        try:
            journal: dict[str, Any] = json.loads((self.partial / _JOURNAL).read_text(encoding="utf-8"))
            sizes = {name: entry["bytes"] for name, entry in journal["arrays"].items() if "file" not in entry}
            sizes |= {name: size for name, (_, size) in journal["rows"].items()}
            is_valid = all(journal[key] == value for key, value in self._work_id.items())
            is_valid &= not any(file.is_symlink() for file in (self.partial, *self.partial.rglob("*")))
            for name, size in sizes.items():
                is_valid = is_valid and name.isidentifier() and self._file(name).stat().st_size >= size
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return journal if is_valid else {}

    # the commit

    def finish(
        self, meta: Mapping[str, Any], identity: Any = None, progress: Progress | None = None,
        notes: Mapping[str, Any] | None = None, newest: bool = True,
    ) -> str:  # fmt: skip
        """Commit the version and return its fingerprint.

        The fingerprint is a hash of `identity`, or of `meta` and the arrays' checksums by default. `notes` are also
        written to the manifest; they and the arrays that they name are not part of the fingerprint. Without `newest`,
        the version is added without replacing the newest one.
        """
        if identity is None:
            excluded = (notes or {}).get("arrays", ())
            identity = [meta, {n: entry["checksum"] for n, entry in self._arrays.items() if n not in excluded}]
        arrays = {name: {**entry, "file": array_file(name, entry["checksum"])} for name, entry in self._arrays.items()}
        manifest = {
            "format": f"largegt-{self.kind}",
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint(identity),
            "meta": dict(meta),
            "arrays": arrays,
            **({"notes": dict(notes)} if notes else {}),
        }
        with disk_errors(self.path):
            self.commit()
            self.path.mkdir(exist_ok=True)
            self._link_arrays(arrays, progress or silent)
            if newest:
                self._link_old_manifest()
            file = self.path / (MANIFEST if newest else f"{VERSIONS}/{manifest['fingerprint']}.json")
            file.parent.mkdir(exist_ok=True)
            sync(self.path)
            with replacing(file) as temporary:
                temporary.write_text(sealed(manifest), encoding="utf-8", newline="")
                sync(temporary)
                if (url := remote.url_of(file)) is not None:  # uploading the manifest is the commit
                    remote.put(temporary, url)
                shutil.rmtree(self.partial, ignore_errors=True)  # all arrays are linked
            sync(file.parent)
            sync(self.path.parent)
        return str(manifest["fingerprint"])

    def _link_arrays(self, arrays: Mapping[str, dict[str, Any]], show: Progress) -> None:
        """Link the arrays into the folder, and upload those that are not uploaded yet."""
        total, done = sum(entry["bytes"] for entry in arrays.values()), 0
        uploaded: list[str] = self.state.setdefault("uploaded", [])
        for name, entry in arrays.items():
            show("commit", done, total)
            file = self.path / entry["file"]
            if self._file(name).exists():
                sync(self._file(name))
                link_or_copy(self._file(name), file)
            if entry["file"] not in uploaded and remote.url_of(file) is not None:
                remote.upload(file)
                uploaded.append(entry["file"])
                self.commit()
            done += entry["bytes"]
        show("commit", total, total)

    def _link_old_manifest(self) -> None:
        """Link the old manifest into `versions`, where `versions.clean` finds the locks of its readers."""
        try:
            old = ArrayFolder(self.path, self.kind, check=False).fingerprint
        except LargeGTError:  # no manifest, or a damaged one
            return
        kept = self.path / VERSIONS / f"{old}.json"
        kept.parent.mkdir(exist_ok=True)
        if not kept.exists():
            link_or_copy(self.path / MANIFEST, kept)
            sync(kept.parent)
        remote.upload(kept)


def _partial_folder(path: Path) -> Path:
    return path.parent / f".{path.name}.partial"


def _check_target(path: Path, kind: str, replace: bool) -> None:
    """Refuse to overwrite existing data, except a folder of this kind with `replace`."""
    remote.refresh(path)
    place = remote.shown(path)
    names = [file.name for file in path.iterdir()] if path.is_dir() else [MANIFEST]
    is_unfinished = all(ARRAY_FILE.fullmatch(name) or name.startswith(f".{MANIFEST}.partial-") for name in names)
    if not path.exists() or is_unfinished:  # empty, or an interrupted first commit
        return
    if not replace:
        remove_stale(path)
        raise ExistsError(f"{place} already exists: choose another `out`, or say `overwrite=True` to replace it")
    try:
        with open(path / MANIFEST, "rb") as stream:
            is_ours = f'"largegt-{kind}"'.encode() in stream.read(1 << 16)  # even if the rest is damaged
    except OSError:
        is_ours = False
    if not is_ours:
        raise InputError(f"{place} is not a largegt {kind}, so it is not overwritten: choose another `out`")


def _boot_id() -> str:
    """Identifier of the system boot: a journal from before a power loss may name data that was not written."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
