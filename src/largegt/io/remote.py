"""Stores and preparations at URLs (s3://, gs://, az://; see urls.py).

Enters: a path or a URL. Leaves: a local folder. A URL has a copy in the cache ($LARGEGT_CACHE, by default
~/.cache/largegt); each file of the copy corresponds to a file at the URL. A whole file is downloaded on first use.
Output is written to the copy and uploaded when complete, the manifest last, so that an incomplete folder never opens.
Cost: the disk space of the downloaded files; the cache may be deleted when no process runs. Parts of an array are read
by ranges, without the cache (remote_array.py).

A `file://` URL is the path that it names; other paths are unchanged.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from largegt.errors import ConfigError, DiskError, FormatError, InputError, LargeGTError, first_line
from largegt.types import PathLike

from . import urls
from .atomic import replacing, write_text_atomically
from .urls import is_url as is_url

PART_BYTES = 1 << 23
"""Largest range of one request; longer ranges are split into concurrent requests."""
PARTS_AT_ONCE = 8
MANIFEST = "manifest.json"
_PREPARED = re.compile(r"(.+)(/prepared/[0-9a-f]{16})")
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_published: dict[str, int] = {}


# paths and URLs


def cache_folder() -> Path:
    """The folder with the copies of URLs."""
    return Path(os.path.realpath(os.environ.get("LARGEGT_CACHE") or Path.home() / ".cache" / "largegt"))


def local_path(place: PathLike, named_by: PathLike | None = None) -> Path:
    """The local folder of `place`, which need not exist. `named_by` is the folder that refers to `place`; without it,
    the user gave `place`, and its URL becomes trusted."""
    parts = urls.parts(place)
    if parts is None:
        return Path(place)
    scheme, name = parts[0], parts[1].rstrip("/")
    if not is_url(place):
        return Path("/" + parts[1])
    url = f"{scheme}://{name}"
    if (fault := urls.fault(url)) is not None:
        raise ConfigError(fault)
    if "/" not in name:  # partial folders need a parent folder
        raise ConfigError(f"{url} is a whole bucket: give a name in it, such as {url}/g")
    if inside := _PREPARED.fullmatch(url):  # part of the store's copy
        return local_path(inside[1], named_by).joinpath(*inside[2].split("/"))
    if named_by is None:
        urls.remember(url)
    elif not urls.is_trusted(url):
        raise InputError(
            f"{named_by} names the store {url}, which was never given on this machine: if you trust this URL, run the "
            f"same command with `LARGEGT_TRUST_REMOTE=1`, or first `lg.GraphStore.open({url!r})`"
        )
    home = cache_folder() / hashlib.sha256(url.encode()).hexdigest()[:16]
    note = home / "url"
    if not note.exists():
        with _cache_errors(home):
            home.mkdir(parents=True, exist_ok=True)
            write_text_atomically(note, url)
    return home / url.rsplit("/", 1)[1]


def url_of(path: PathLike) -> str | None:
    """The URL of a path in the cache; None for any other path."""
    root, whole = cache_folder(), Path(os.path.realpath(path))
    if not whole.is_relative_to(root):
        return None
    key, *inside = whole.relative_to(root).parts
    try:
        url = (root / key / "url").read_text(encoding="utf-8")
    except OSError:
        return None
    return "/".join([url.rpartition("/")[0], *inside]) if inside else None


def shown(path: PathLike) -> str:
    """The path for messages: its URL if it has one."""
    return url_of(path) or str(path)


def refuse_url(place: PathLike, what: str) -> None:
    """Refuse a URL for data that is written and read in small steps."""
    if is_url(place):
        raise ConfigError(f"{what} cannot lie at a URL, and {place} is one: give a path")


# reading


def refresh(path: Path, name: str = MANIFEST) -> None:
    """Update a small file of a cached folder, by default its manifest, and remove arrays that the manifest no longer
    names. If the manifest is not at the URL, remove the cached folder. Paths outside the cache are unchanged."""
    if (url := url_of(path)) is None:
        return
    content, file = _content(f"{url}/{name}"), path / name
    if content == (file.read_bytes() if file.is_file() else None):
        return
    with _locked_copy(path), _cache_errors(path):
        if content is None:
            shutil.rmtree(path, ignore_errors=True) if name == MANIFEST else file.unlink(missing_ok=True)
            return
        for old in (*path.glob("*.npy"), *path.glob(".*.npy.part")):
            if name == MANIFEST and old.name.removeprefix(".").removesuffix(".part").encode() not in content:
                old.unlink()
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial:
            partial.write_bytes(content)


def download(file: Path, url: str, num_bytes: int, fault_of: Callable[[Path], str | None]) -> None:
    """Download a file into the cache and check it. One process downloads while others wait. An interrupted download is
    resumed."""
    with _locked_copy(file), _cache_errors(file.parent):
        if file.is_file():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.part")
        with open(partial, "ab") as stream:
            while (done := stream.tell()) < num_bytes:
                stream.writelines(read(url, done, min(num_bytes, done + PART_BYTES * PARTS_AT_ONCE)))
        if (fault := fault_of(partial)) is not None:
            partial.unlink()
            raise FormatError(f"{url} {fault}: it was damaged or changed; make it again")
        os.replace(partial, file)


def read(url: str, start: int, stop: int) -> list[bytes]:
    """The bytes of a range, split into parts."""
    return read_ranges(url, [(low, min(stop, low + PART_BYTES)) for low in range(start, stop, PART_BYTES)])


def read_ranges(url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of several nonempty ranges, read concurrently."""
    if not ranges:
        return []
    with _open_storage(url, "read") as (fs, path):
        starts, stops = [list(ends) for ends in zip(*ranges, strict=True)]
        parts: list[bytes] = fs.cat_ranges([path] * len(ranges), starts, stops, on_error="raise")
    for (start, stop), part in zip(ranges, parts, strict=True):
        if len(part) != stop - start:
            raise FormatError(f"{url} ends before byte {stop}: it was damaged or changed; make it again")
    return parts


def size(url: str) -> int | None:
    """Size of the file at a URL in bytes; None if there is no file."""
    with _open_storage(url, "read") as (fs, path), suppress(FileNotFoundError):
        return int(fs.info(path)["size"])
    return None


def names(path: Path) -> list[str]:
    """Sorted names in a folder; empty if there is no folder."""
    if (url := url_of(path)) is None:
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    found: list[str] = []
    with _open_storage(url, "read") as (fs, inside), suppress(FileNotFoundError):
        found = fs.ls(inside, detail=False)
    return sorted({str(name).rstrip("/").rsplit("/", 1)[1] for name in found})


def folders(path: Path) -> list[Path]:
    """Sorted folders in `path` whose names are fingerprints."""
    return [path / name for name in names(path) if FINGERPRINT.fullmatch(name)]


def _content(url: str) -> bytes | None:
    """The content of a small file; None if the bucket exists but not the file."""
    with _open_storage(url, "read") as (fs, path):
        try:
            return bytes(fs.cat_file(path))
        except FileNotFoundError as error:
            response = getattr(error.__cause__, "response", {})
            if response.get("Error", {}).get("Code") == "NoSuchBucket":
                raise
            return None


# writing


def check_writable(folder: Path) -> None:
    """Test that the URL of a folder is writable, before long work; nothing for paths outside the cache."""
    if (url := url_of(folder)) is not None:
        with _open_storage(f"{url}/writer", "written") as (fs, path):
            fs.pipe_file(path, f"{platform.node()} {os.getpid()}\n".encode())


def upload(file: Path) -> None:
    """Upload a file of the cache to its URL; nothing for other paths."""
    if (url := url_of(file)) is not None:
        put(file, url)


def put(file: Path, url: str) -> None:
    """Upload a file to a URL, replacing an existing file."""
    with _open_storage(url, "written") as (fs, path):
        fs.put_file(str(file), path)
    if (uploaded := size(url)) != (num_bytes := file.stat().st_size):
        raise DiskError(f"{url} has {uploaded} of {num_bytes} bytes: run the same command again")


def publish(file: Path) -> str | None:
    """The URL at which other machines can read a cached file; an incomplete file is uploaded first."""
    url = url_of(file)
    if url is not None and file.parent.name.endswith(".partial"):
        num_bytes = file.stat().st_size
        if _published.get(url) != num_bytes:
            put(file, url)
            _published[url] = num_bytes
    return url


def unpublish(file: Path) -> None:
    """Remove the copy that `publish` uploaded."""
    if (url := url_of(file)) in _published:
        remove(url)


def remove(url: str) -> None:
    """Remove the file or the whole folder at a URL, if it exists."""
    for other in [other for other in _published if other == url or other.startswith(f"{url}/")]:
        del _published[other]
    with _open_storage(url, "written") as (fs, path), suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def remove_file(file: Path, dry_run: bool = False) -> int:
    """Remove a file, also at its URL; return its size in bytes."""
    url = url_of(file)
    num_bytes = (size(url) if url is not None else file.lstat().st_size) or 0
    if not dry_run:
        if url is not None:
            remove(url)
        file.unlink(missing_ok=True)
    return num_bytes


def remove_folder(path: Path) -> None:
    """Remove a finished folder, also at its URL: first the manifest, so that it no longer opens, then the rest."""
    if (url := url_of(path)) is not None:
        remove(f"{url}/{MANIFEST}")
        remove(url)
    if path.is_symlink():
        path.unlink()
        return
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


# fsspec


@contextmanager
def storage_errors(url: str, done: str) -> Iterator[None]:
    """Turn any error of the storage into a one-line error. Earlier work is kept, so that the command can resume."""
    try:
        yield
    except LargeGTError:
        raise
    except Exception as error:
        has_status = getattr(error.__cause__, "status", 404) != 404  # fsspec reports any web error as a missing file
        reason = error.__cause__ if has_status and error.__cause__ else error
        missing = isinstance(reason, FileNotFoundError)
        kind = InputError if missing and done == "read" else DiskError
        advice = "" if missing else _advice(reason)
        raise kind(f"{url} cannot be {done}: {first_line(reason).rstrip('.')}{advice}") from error


def _advice(error: BaseException) -> str:
    names = ("status", "status_code", "code")  # of aiohttp, Azure, gcsfs
    status = next((getattr(error, name) for name in names if hasattr(error, name)), None)
    if isinstance(error, PermissionError) or "redential" in str(error) or status in (401, 403):
        return ": see that your credentials are set (for s3://: AWS_ACCESS_KEY_ID, AWS_PROFILE or a role) and suffice"
    return ": see that the bucket, the network and AWS_ENDPOINT_URL are right, then run the same command again"


@contextmanager
def _open_storage(url: str, done: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, with an empty listing cache, and the path in it; one-line errors."""
    with storage_errors(url, done):
        fs, path = file_system(url)
        fs.invalidate_cache()
        yield fs, path


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, with cached connections, and the path in it."""
    if (fault := urls.fault(url, urls.TABLES)) is not None:
        raise ConfigError(fault)
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url)
    except ImportError as error:
        raise ConfigError(
            f"{url} needs another package ({first_line(error)}): pip install 'largegt[cloud]' for s3://, gcsfs for "
            "gs://, adlfs for az:// and abfs://"
        ) from None
    return fs, str(path)


@contextmanager
def _locked_copy(path: Path) -> Iterator[None]:
    """Lock the cached copy that contains `path` against other processes, waiting if it is locked."""
    root = cache_folder()
    home = root / Path(os.path.realpath(path)).relative_to(root).parts[0]
    with _cache_errors(home), open(home / "lock", "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _cache_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"the cache cannot keep {path}: {error.strerror or error}: free some space, or set LARGEGT_CACHE to "
            "another folder"
        ) from error
