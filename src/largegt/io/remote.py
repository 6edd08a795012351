"""Stores and preparations at URLs (s3://, gs://, az://; see urls.py), beside those on paths.

Enters: a path or a URL. Leaves: a local folder either way. A URL has a copy in the cache ($LARGEGT_CACHE, else
~/.cache/largegt): every file in it has its place at the URL. A file that a process needs whole is fetched when it is
first asked for; what a process makes is written to the copy and uploaded when it is whole, the manifest last, so that
half of a folder never opens. Cost: the copy takes the disk of the files that were asked for; delete it whenever nothing
runs. A process that needs only parts of an array reads them by ranges (remote_array.py), past the cache.

A `file://` URL is the path it names, and every other path is left alone.
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
"""What one request asks for at most; longer ranges are several, under way at once."""
PARTS_AT_ONCE = 8
MANIFEST = "manifest.json"
_PREPARED = re.compile(r"(.+)(/prepared/[0-9a-f]{16})")
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_published: dict[str, int] = {}


# paths and URLs


def cache_folder() -> Path:
    """Where the copies of URLs are."""
    return Path(os.path.realpath(os.environ.get("LARGEGT_CACHE") or Path.home() / ".cache" / "largegt"))


def local_path(place: PathLike, named_by: PathLike | None = None) -> Path:
    """The folder that stands for `place` on this machine. It need not exist. `named_by` is the folder that `place` was
    read from; without it the user gave `place`, and a URL is trusted from then on."""
    found = urls.parts(place)
    if found is None:
        return Path(place)
    scheme, name = found[0], found[1].rstrip("/")
    if not is_url(place):
        return Path("/" + found[1])
    url = f"{scheme}://{name}"
    if (fault := urls.fault(url)) is not None:
        raise ConfigError(fault)
    if "/" not in name:  # partial folders are beside it
        raise ConfigError(f"{url} is a whole bucket: give a name in it, such as {url}/g")
    if inside := _PREPARED.fullmatch(url):  # it is in its store's copy
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
        with _disk(home):
            home.mkdir(parents=True, exist_ok=True)
            write_text_atomically(note, url)
    return home / url.rsplit("/", 1)[1]


def url_of(path: PathLike) -> str | None:
    """Where a path of the cache belongs; None for any other path."""
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
    """What a user calls this path: its URL where it has one."""
    return url_of(path) or str(path)


def refuse_url(place: PathLike, what: str) -> None:
    """Refuse a URL for something that is written and read in small steps."""
    if is_url(place):
        raise ConfigError(f"{what} cannot lie at a URL, and {place} is one: give a path")


# reading


def refresh(path: Path, name: str = MANIFEST) -> None:
    """Bring a small file of a cached folder up to date, its manifest by default, and remove arrays that it no longer
    names; a folder that is no longer at the URL is removed. Other paths are left alone."""
    if (url := url_of(path)) is None:
        return
    now, file = _content(f"{url}/{name}"), path / name
    if now == (file.read_bytes() if file.is_file() else None):
        return
    with _alone(path), _disk(path):
        if now is None:
            shutil.rmtree(path, ignore_errors=True) if name == MANIFEST else file.unlink(missing_ok=True)
            return
        for old in (*path.glob("*.npy"), *path.glob(".*.npy.part")):
            if name == MANIFEST and old.name.removeprefix(".").removesuffix(".part").encode() not in now:
                old.unlink()
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial:
            partial.write_bytes(now)


def bring(file: Path, url: str, num_bytes: int, fault_of: Callable[[Path], str | None]) -> None:
    """Have a cached file here, whole and checked. Of several processes one does it and the others wait. What an
    interrupted one has brought is kept."""
    with _alone(file), _disk(file.parent):
        if file.is_file():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.part")
        with open(aside, "ab") as stream:
            while (done := stream.tell()) < num_bytes:
                stream.writelines(read(url, done, min(num_bytes, done + PART_BYTES * PARTS_AT_ONCE)))
        if (fault := fault_of(aside)) is not None:
            aside.unlink()
            raise FormatError(f"{url} {fault}: it was damaged or changed; make it again")
        os.replace(aside, file)


def read(url: str, start: int, stop: int) -> list[bytes]:
    """The bytes of a range, in parts."""
    return read_ranges(url, [(low, min(stop, low + PART_BYTES)) for low in range(start, stop, PART_BYTES)])


def read_ranges(url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of several ranges, none of them empty, asked for at once."""
    if not ranges:
        return []
    with _storage(url, "read") as (fs, path):
        starts, stops = [list(ends) for ends in zip(*ranges, strict=True)]
        parts: list[bytes] = fs.cat_ranges([path] * len(ranges), starts, stops, on_error="raise")
    for (start, stop), part in zip(ranges, parts, strict=True):
        if len(part) != stop - start:
            raise FormatError(f"{url} ends before byte {stop}: it was damaged or changed; make it again")
    return parts


def size(url: str) -> int | None:
    """Bytes of the file at a URL; None without one."""
    with _storage(url, "read") as (fs, path), suppress(FileNotFoundError):
        return int(fs.info(path)["size"])
    return None


def names(path: Path) -> list[str]:
    """The names in a folder, sorted; none where there is no folder."""
    if (url := url_of(path)) is None:
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    found: list[str] = []
    with _storage(url, "read") as (fs, inside), suppress(FileNotFoundError):
        found = fs.ls(inside, detail=False)
    return sorted({str(name).rstrip("/").rsplit("/", 1)[1] for name in found})


def folders(path: Path) -> list[Path]:
    """The folders in `path` that are named by a fingerprint, sorted."""
    return [path / name for name in names(path) if FINGERPRINT.fullmatch(name)]


def _content(url: str) -> bytes | None:
    """The whole of a small file; None where there is none, though there is a bucket."""
    with _storage(url, "read") as (fs, path):
        try:
            return bytes(fs.cat_file(path))
        except FileNotFoundError as error:
            response = getattr(error.__cause__, "response", {})
            if response.get("Error", {}).get("Code") == "NoSuchBucket":
                raise
            return None


# writing


def announce(folder: Path) -> None:
    """Before long work whose result goes to a URL: see that something can be written there."""
    if (url := url_of(folder)) is not None:
        with _storage(f"{url}/writer", "written") as (fs, path):
            fs.pipe_file(path, f"{platform.node()} {os.getpid()}\n".encode())


def upload(file: Path) -> None:
    """Put a file of the cache where it belongs; nothing for other paths."""
    if (url := url_of(file)) is not None:
        put(file, url)


def put(file: Path, url: str) -> None:
    """Put a file at a URL, in the place of what is there."""
    with _storage(url, "written") as (fs, path):
        fs.put_file(str(file), path)
    if (there := size(url)) != (here := file.stat().st_size):
        raise DiskError(f"{url} has {there} of {here} bytes: run the same command again")


def publish(file: Path) -> str | None:
    """The URL at which other machines can read a cached file: one that is still being written is uploaded first."""
    url = url_of(file)
    if url is not None and file.parent.name.endswith(".partial"):
        num_bytes = file.stat().st_size
        if _published.get(url) != num_bytes:
            put(file, url)
            _published[url] = num_bytes
    return url


def withdraw(file: Path) -> None:
    """Remove what `publish` put to a URL."""
    if (url := url_of(file)) in _published:
        remove(url)


def remove(url: str) -> None:
    """Remove a file, or a folder with everything in it; nothing where there is none."""
    for known in [known for known in _published if known == url or known.startswith(f"{url}/")]:
        del _published[known]
    with _storage(url, "written") as (fs, path), suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def remove_file(file: Path, dry_run: bool = False) -> int:
    """Remove a file, also where it belongs; its bytes."""
    url = url_of(file)
    num_bytes = (size(url) if url is not None else file.lstat().st_size) or 0
    if not dry_run:
        if url is not None:
            remove(url)
        file.unlink(missing_ok=True)
    return num_bytes


def remove_folder(path: Path) -> None:
    """Remove a finished folder of ours, also where it belongs: first that it opens, then the rest."""
    if (url := url_of(path)) is not None:
        remove(f"{url}/{MANIFEST}")
        remove(url)
    if path.is_symlink():
        path.unlink()
        return
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


# how fsspec is met


@contextmanager
def talking(url: str, done: str) -> Iterator[None]:
    """Turn whatever a storage refuses into one line. Work that was done before it stays, so that it can go on."""
    try:
        yield
    except LargeGTError:
        raise
    except Exception as error:
        answered = getattr(error.__cause__, "status", 404) != 404  # fsspec calls any refusal of a web server missing
        reason = error.__cause__ if answered and error.__cause__ else error
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
def _storage(url: str, done: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, which looks anew, and the path in it; refusals become one line."""
    with talking(url, done):
        fs, path = file_system(url)
        fs.invalidate_cache()
        yield fs, path


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, which keeps its connections, and the path in it."""
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
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process changes the copy that holds `path`, and keep others waiting."""
    root = cache_folder()
    home = root / Path(os.path.realpath(path)).relative_to(root).parts[0]
    with _disk(home), open(home / "lock", "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"the cache cannot keep {path}: {error.strerror or error}: free some space, or set LARGEGT_CACHE to "
            "another folder"
        ) from error
