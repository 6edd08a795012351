"""Source files: expand paths, folders, globs and URLs to lists of files, and open files.

Enters: `edges.parquet`, `edges/`, `'edges/part-*.csv'`, `s3://bucket/edges/*.parquet`, `https://host/edges.csv.gz`.
Leaves: files in a fixed order, each a `Path` or a `RemoteFile`. Cost: a listing; a file at a URL is read by ranges, not
downloaded. This uses fsspec (the `cloud` extra), imported on demand.
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
_COMPRESSIBLE = (*TEXT, JSON)
_ALIASES = {".pq": PARQUET, ".tab": ".tsv", ".ndjson": JSON, ".feather": ARROW, ".ipc": ARROW}
_COMPRESSIONS = (".gz", ".zst")
_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL. `str` gives the URL without its login."""

    url: str

    def __str__(self) -> str:
        return redacted(self.url)

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name

    def open(self) -> Any:
        """A seekable binary stream."""
        with storage_errors(self.url, "read"):
            fs, path = file_system(self.url)
            return fs.open(path, "rb")

    def info(self) -> dict[str, Any]:
        """Metadata from the storage; at least `size`."""
        with storage_errors(self.url, "read"):
            fs, path = file_system(self.url)
            return dict(fs.info(path))


File = Path | RemoteFile


def as_file(path: PathLike | RemoteFile) -> File:
    """A path or URL from the user as one file."""
    if isinstance(path, RemoteFile):
        return path
    return RemoteFile(_with_two_slashes(path)) if is_url(path) else local_path(path)


def expand(paths: Any) -> list[File]:
    """Expand one or several paths or URLs (a file, a folder of table files or a glob) to files in a fixed order."""
    several = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    files: list[File] = []
    for path in several:
        if isinstance(path, RemoteFile):
            files.append(path)
        elif is_url(path):
            files += _expand_url(_with_two_slashes(path))
        else:
            files += _expand_path(local_path(path))
    if not files:
        raise InputError("no files were given")
    return files


def file_kind(path: PathLike | RemoteFile) -> str:
    """The canonical file extension, such as `.parquet` or `.csv`; a missing or unknown file is an `InputError`."""
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
    """The file with an absolute path, which is valid in other processes."""
    return file.absolute() if isinstance(file, Path) else file


def is_packed(file: File) -> str:
    """The extension of a compressed file, which is only readable sequentially; empty for other files."""
    return next((ending for ending in _COMPRESSIONS if file.name.lower().endswith(ending)), "")


def place_of(file: File) -> str:
    """DuckDB's name of a whole file: a path with escaped wildcards, or a name for `span_file_system`."""
    if isinstance(file, RemoteFile):
        return Span.name_of(file)
    return re.sub(r"([*?\[])", r"[\1]", str(file))


def size_of(file: File) -> int:
    return int(file.info()["size"]) if isinstance(file, RemoteFile) else file.stat().st_size


def open_file(file: File) -> Any:
    """A binary stream of the raw file."""
    return file.open() if isinstance(file, RemoteFile) else open(file, "rb")


def open_plain(file: File) -> Any:
    """A binary stream of the decompressed content."""
    packer = {"": None, ".gz": "gzip", ".zst": "zstd"}[is_packed(file)]
    if packer is None:
        return open_file(file)
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(open_file(file), "r"), packer))


def facts_of(file: File) -> list[Any]:
    """Identifies the current version of a file: path, size, and modification time or version."""
    if isinstance(file, RemoteFile):
        info = file.info()
        version = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), "")
        return [str(file), info.get("size"), str(version)]
    facts = file.stat()
    return [str(file.resolve()), facts.st_size, facts.st_mtime_ns]


class Span(io.RawIOBase):
    """A file at a URL, or part of a text file as a file-like object: its first `head` bytes, and the lines that start
    in bytes [low, high)."""

    def __init__(self, file: File, head: int = 0, low: int = 0, high: int | None = None) -> None:
        self._stream, self._head, self._at = open_file(file), head, 0
        self._lock, self._own = threading.Lock(), threading.local()
        self._start = max(head, self._line_from(low))
        self.size = size_of(file) if high is None else head + max(0, self._line_from(high) - self._start)

    @staticmethod
    def name_of(file: File, *numbers: int) -> str:
        """The name in `span_file_system`: `numbers` are head, low and high, or empty for the whole file."""
        return f"span://{'-'.join(map(str, numbers))}/{file if isinstance(file, Path) else file.url}"

    @classmethod
    def named(cls, name: str) -> Span:
        numbers, _, place = name.removeprefix("span://").partition("/")
        return cls(RemoteFile(place) if is_url(place) else Path(place), *map(int, filter(None, numbers.split("-"))))

    def _line_from(self, place: int) -> int:
        """The start of the first line that starts at or after byte `place`."""
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
        """Read from the position that this thread has set last: DuckDB's threads share a file, and each thread seeks
        and then reads."""
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
        if self._stream.tell() != place:  # some web servers only send a file from its start
            self._stream.seek(place)
        while low + len(found) < high and (more := self._stream.read(high - low - len(found))):
            found += more
        return found

    def close(self) -> None:
        self._stream.close()
        super().close()


def span_file_system() -> Any:
    """fsspec file system that opens names from `Span.name_of`."""
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
    kind = suffixes[-2] if last in _COMPRESSIONS and len(suffixes) > 1 else last
    kind = _ALIASES.get(kind, kind)
    return kind if kind in _KINDS and (last not in _COMPRESSIONS or kind in _COMPRESSIBLE) else None


def _expand_path(path: Path) -> list[File]:
    if path.is_dir():
        return _select_tables([file for file in path.rglob("*") if file.is_file()], str(path))
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
    return _select_tables(inside, url)


def _select_tables(files: Sequence[File], where: str) -> list[File]:
    """The table files of a folder: Parquet if there are any, else CSV and TSV, else others. Names that start with a dot
    or an underscore are metadata of other programs, and are ignored."""
    tables = [(str(file), file) for file in files if not file.name.startswith((".", "_"))]
    for kinds in ((PARQUET,), TEXT, (JSON,), (ARROW,)):
        found = [file for _, file in sorted(tables, key=lambda pair: pair[0]) if _kind_of(file.name) in kinds]
        if found:
            return found
    raise InputError(f"{where} holds no Parquet, CSV, TSV, JSON lines or Arrow files")


def _with_two_slashes(path: PathLike) -> str:
    """The URL with two slashes after the scheme: `Path` turns them into one."""
    scheme, _, rest = str(path).partition(":")
    return f"{scheme}://{rest.lstrip('/')}"
