"""Source files: paths, folders, globs and URLs become a list of files, and a file becomes something to read from.

Enters: what the user wrote: `edges.parquet`, `edges/`, `'edges/part-*.csv'`, `s3://bucket/edges/*.parquet`,
`https://host/edges.csv.gz`. Leaves: files in a fixed order, each a `Path` or a `RemoteFile`. Cost: a listing; a file at
a URL is read by ranges, never brought here whole. fsspec does it (the `cloud` extra) and is imported when it is needed.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from largegt.errors import InputError
from largegt.io.remote import file_system, local_path, storage_errors
from largegt.io.urls import is_url, redacted
from largegt.types import PathLike

PARQUET, JSON, ARROW, TEXT = ".parquet", ".jsonl", ".arrow", (".csv", ".tsv")
_KINDS = (PARQUET, *TEXT, JSON, ARROW, ".npy", ".npz")
_PACKED = (*TEXT, JSON)
_ALIASES = {".pq": PARQUET, ".tab": ".tsv", ".ndjson": JSON, ".feather": ARROW, ".ipc": ARROW}
_PACKERS = (".gz", ".zst")
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
        with storage_errors(self.url, "read"):
            fs, path = file_system(self.url)
            return fs.open(path, "rb")

    def info(self) -> dict[str, Any]:
        """What the storage says of it; `size` at least."""
        with storage_errors(self.url, "read"):
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
        raise InputError(
            f"{file} is of no known kind: use .parquet, .csv, .tsv, .jsonl (also .gz, .zst), .arrow, .npy or .npz"
        )
    if isinstance(file, RemoteFile) and kind in (".npy", ".npz", ARROW):
        raise InputError(f"{file} is a {kind} file at a URL, which is read from a path only: bring it here first")
    return kind


def everywhere(file: File) -> File:
    """The same file by a name that does not depend on where a process was started."""
    return file.absolute() if isinstance(file, Path) else file


def is_packed(file: File) -> str:
    """The ending of a compressed file, which can only be read from its beginning; an empty text for another."""
    return next((ending for ending in _PACKERS if file.name.lower().endswith(ending)), "")


def place_of(file: File) -> str:
    """What DuckDB calls a whole file: a path in which nothing is a wildcard, or a name for `span_file_system`."""
    if isinstance(file, RemoteFile):
        return Span.name_of(file)
    return re.sub(r"([*?\[])", r"[\1]", str(file))


def size_of(file: File) -> int:
    return int(file.info()["size"]) if isinstance(file, RemoteFile) else file.stat().st_size


def open_file(file: File) -> Any:
    """A binary stream of a file as it lies there."""
    return file.open() if isinstance(file, RemoteFile) else open(file, "rb")


def open_plain(file: File) -> Any:
    """A binary stream of a file's content."""
    packer = {"": None, ".gz": "gzip", ".zst": "zstd"}[is_packed(file)]
    if packer is None:
        return open_file(file)
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(open_file(file), "r"), packer))


def facts_of(file: File) -> list[Any]:
    """Names a file as it is now: where, how large, which version."""
    if isinstance(file, RemoteFile):
        info = file.info()
        version = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), "")
        return [str(file), info.get("size"), str(version)]
    facts = file.stat()
    return [str(file.resolve()), facts.st_size, facts.st_mtime_ns]


class Span(io.RawIOBase):
    """A file at a URL, or lines of a text file as a file of their own: its first `head` bytes, and then the lines that
    begin in bytes [low, high)."""

    def __init__(self, file: File, head: int = 0, low: int = 0, high: int | None = None) -> None:
        self._stream, self._head, self._at = open_file(file), head, 0
        self._lock, self._own = threading.Lock(), threading.local()
        self._start = max(head, self._line_from(low))
        self.size = size_of(file) if high is None else head + max(0, self._line_from(high) - self._start)

    @staticmethod
    def name_of(file: File, *numbers: int) -> str:
        """What `span_file_system` calls it: `numbers` are head, low and high, or none for the whole file."""
        return f"span://{'-'.join(map(str, numbers))}/{file if isinstance(file, Path) else file.url}"

    @classmethod
    def named(cls, name: str) -> Span:
        numbers, _, place = name.removeprefix("span://").partition("/")
        return cls(RemoteFile(place) if is_url(place) else Path(place), *map(int, filter(None, numbers.split("-"))))

    def _line_from(self, place: int) -> int:
        """Where the first line begins that does not begin before `place`."""
        if place == 0:
            return 0
        self._stream.seek(place - 1)
        self._stream.readline()
        return int(self._stream.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        self._own.at = self._at
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        """As many bytes as there are, from where this thread has just set the position: DuckDB's threads share a file,
        and each sets the position and reads."""
        with self._lock:
            at = self._own.__dict__.pop("at", self._at)
            end = self.size if size < 0 else min(self.size, at + size)
            found = self._between(at, min(end, self._head))
            found += self._between(max(at, self._head), end)
            self._at = at + len(found)
        return found

    def _between(self, low: int, high: int) -> bytes:
        found = b""
        place = low if low < self._head else self._start + low - self._head
        if self._stream.tell() != place:  # some web servers give a file from its beginning only
            self._stream.seek(place)
        while low + len(found) < high and (more := self._stream.read(high - low - len(found))):
            found += more
        return found

    def close(self) -> None:
        self._stream.close()
        super().close()


def span_file_system() -> Any:
    """Opens the names that `Span.name_of` gives."""
    from fsspec import AbstractFileSystem

    class SpanFileSystem(AbstractFileSystem):  # type: ignore[misc]
        protocol = "span"

        def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
            return Span.named(path)

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            with Span.named(path) as span:
                return {"name": path, "size": span.size, "type": "file"}

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

        def modified(self, path: str) -> Any:
            return datetime.fromtimestamp(0, UTC)

    return SpanFileSystem()


def _kind_of(name: str) -> str | None:
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    last = suffixes[-1] if suffixes else ""
    kind = suffixes[-2] if last in _PACKERS and len(suffixes) > 1 else last
    kind = _ALIASES.get(kind, kind)
    return kind if kind in _KINDS and (last not in _PACKERS or kind in _PACKED) else None


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
    with storage_errors(url, "read"):
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
    """The table files of a folder: Parquet if there are any, else CSV and TSV, else others. Names with a dot or an
    underscore in front are other programs' notes."""
    tables = [(str(file), file) for file in files if not file.name.startswith((".", "_"))]
    for kinds in ((PARQUET,), TEXT, (JSON,), (ARROW,)):
        found = [file for _, file in sorted(tables, key=lambda pair: pair[0]) if _kind_of(file.name) in kinds]
        if found:
            return found
    raise InputError(f"{where} holds no Parquet, CSV, TSV, JSON lines or Arrow files")


def _whole_url(path: PathLike) -> str:
    """The URL, also where a `Path` made one slash of two."""
    scheme, _, rest = str(path).partition(":")
    return f"{scheme}://{rest.lstrip('/')}"
