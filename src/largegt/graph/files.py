"""Source files: paths, folders, globs and URLs become a list of files, and a file becomes something to read from.

Enters: what the user wrote: `edges.parquet`, `edges/`, `'edges/part-*.csv'`, `s3://bucket/edges/*.parquet`,
`https://host/edges.csv.gz`. Leaves: files in a fixed order, each a `Path` or a `RemoteFile`. Cost: a listing; a file at
a URL is read by ranges, never brought here whole. fsspec does it (the `cloud` extra) and is imported when it is needed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError
from ..io.remote import file_system, local_path, talking
from ..types import PathLike
from ..urls import is_url, redacted

_KINDS = (".parquet", ".csv", ".tsv", ".npy", ".npz")
_PACKED = (".csv", ".tsv")
_ALIASES = {".pq": ".parquet", ".tab": ".tsv"}
_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL. As text it is the URL without its login."""

    url: str

    def __str__(self) -> str:
        return redacted(self.url)

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name

    def open(self) -> Any:
        """A binary stream that can seek."""
        with talking(self.url, "read"):
            fs, path = file_system(self.url)
            return fs.open(path, "rb")

    def info(self) -> dict[str, Any]:
        """What the storage says of it; `size` at least."""
        with talking(self.url, "read"):
            fs, path = file_system(self.url)
            return dict(fs.info(path))


File = Path | RemoteFile


def as_file(path: PathLike | RemoteFile) -> File:
    """One file as the user wrote it."""
    if isinstance(path, RemoteFile):
        return path
    return RemoteFile(_whole_url(path)) if is_url(path) else local_path(path)


def expand(paths: Any) -> list[File]:
    """One path or URL or several, each a file, a folder of table files or a glob, as a list of files in a fixed
    order."""
    several = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    files: list[File] = []
    for path in several:
        if isinstance(path, RemoteFile):
            files.append(path)
        elif is_url(path):
            files += _expand_url(_whole_url(path))
        else:
            files += _expand_path(local_path(path))
    if not files:
        raise InputError("no files were given")
    return files


def file_kind(path: PathLike | RemoteFile) -> str:
    """`.parquet`, `.csv`, `.tsv`, `.npy` or `.npz`; a missing or unknown file is an `InputError`."""
    file = as_file(path)
    if isinstance(file, Path):
        if not file.exists():
            raise InputError(f"{file} does not exist: check the path")
        if file.is_dir():
            raise InputError(f"{file} is a folder, a file is wanted here")
    kind = _kind_of(file.name)
    if kind is None:
        raise InputError(f"{file} is of no known kind: use .parquet, .csv, .csv.gz, .tsv, .tsv.gz, .npy or .npz")
    if isinstance(file, RemoteFile) and kind in (".npy", ".npz"):
        raise InputError(f"{file} is an array at a URL, which is read from a path only: bring it here first")
    return kind


def everywhere(file: File) -> File:
    """The same file by a name that does not depend on where a process was started."""
    return file.absolute() if isinstance(file, Path) else file


def is_packed(file: File) -> bool:
    """Whether a file can only be read from its beginning."""
    return file.name.lower().endswith(".gz")


def size_of(file: File) -> int:
    return int(file.info()["size"]) if isinstance(file, RemoteFile) else file.stat().st_size


def open_file(file: File) -> Any:
    """A binary stream of a file as it lies there."""
    return file.open() if isinstance(file, RemoteFile) else open(file, "rb")


def facts_of(file: File) -> list[Any]:
    """Names a file as it is now: where, how large, which version."""
    if isinstance(file, RemoteFile):
        info = file.info()
        version = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), "")
        return [str(file), info.get("size"), str(version)]
    facts = file.stat()
    return [str(file.resolve()), facts.st_size, facts.st_mtime_ns]


class Span(io.RawIOBase):
    """Lines of a text file: its first `head` bytes, and then the lines that begin in bytes [low, high)."""

    def __init__(self, file: File, head: int, low: int, high: int) -> None:
        self._stream = open_file(file)
        self._left = [(0, head)]
        start, stop = max(head, self._line_from(low)), self._line_from(high)
        if start < stop:
            self._left.append((start, stop))
        self._at = 0

    def _line_from(self, place: int) -> int:
        """Where the first line begins that does not begin before `place`."""
        if place == 0:
            return 0
        self._stream.seek(place - 1)
        self._stream.readline()
        return int(self._stream.tell())

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._left and self._left[0][0] >= self._left[0][1]:
            self._left.pop(0)
        if not self._left:
            return 0
        start, stop = self._left[0]
        self._stream.seek(start)
        data = self._stream.read(min(len(buffer), stop - start))
        buffer[: len(data)] = data
        self._left[0] = (start + len(data), stop if data else start)
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _kind_of(name: str) -> str | None:
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    last = suffixes[-1] if suffixes else ""
    kind = suffixes[-2] if last == ".gz" and len(suffixes) > 1 else last
    kind = _ALIASES.get(kind, kind)
    return kind if kind in _KINDS and (last != ".gz" or kind in _PACKED) else None


def _expand_path(path: Path) -> list[File]:
    if path.is_dir():
        return _tables_among([file for file in path.rglob("*") if file.is_file()], str(path))
    if path.exists() or not _GLOB & set(str(path)):
        return [path]
    anchor = Path(path.anchor or ".")
    found = sorted(file for file in anchor.glob(str(path.relative_to(path.anchor))) if file.is_file())
    if not found:
        raise InputError(f"no file is named like {path}: check the pattern")
    return list(found)


def _expand_url(url: str) -> list[File]:
    with talking(url, "read"):
        fs, path = file_system(url)
        if _GLOB & set(urlsplit(url).path):
            found = sorted(fs.glob(path))
            if not found:
                raise InputError(f"no file is named like {url}: check the pattern")
            return [RemoteFile(fs.unstrip_protocol(name)) for name in found]
        if url.startswith("http") or not fs.isdir(path):  # a web server has no folders
            return [RemoteFile(url)]
        inside = [RemoteFile(fs.unstrip_protocol(name)) for name in fs.find(path)]
    return _tables_among(inside, url)


def _tables_among(files: Sequence[File], where: str) -> list[File]:
    """The table files of a folder: Parquet if there are any, text otherwise. Names with a dot or an underscore in
    front are other programs' notes."""
    tables = [(str(file), file) for file in files if not file.name.startswith((".", "_"))]
    for kinds in ((".parquet",), _PACKED):
        found = [file for _, file in sorted(tables, key=lambda pair: pair[0]) if _kind_of(file.name) in kinds]
        if found:
            return found
    raise InputError(f"{where} holds no Parquet, CSV or TSV files")


def _whole_url(path: PathLike) -> str:
    """The URL, also where a `Path` made one slash of two."""
    scheme, _, rest = str(path).partition(":")
    return f"{scheme}://{rest.lstrip('/')}"
