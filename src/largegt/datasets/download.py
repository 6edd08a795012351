"""Download a dataset's files from its authors' server, with resume, checksum and unpacking.

A download is written to `NAME.partial`, next to a note of the server's version of the file. After a lost connection or
a kill, the same call resumes if the server still has that version (ETag or date). `NAME` appears when the file is
complete and has the expected digest: the published one, or that of the first download, saved in `NAME.sha256`.
Cost: one megabyte of memory; disk space for the archive and its content.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from largegt.errors import ConfigError, InputError, disk_errors, first_line
from largegt.io.atomic import require_space, sync, write_text_atomically
from largegt.io.locks import HeldError, Lock
from largegt.runtime.memory import format_bytes
from largegt.runtime.progress import Progress, silent
from largegt.types import PathLike

from .registry import dataset

ATTEMPTS = 6
"""Consecutive attempts without new bytes before a download fails."""
FIRST_WAIT_S = 1.0
"""Pause after the first failure; doubles with each further failure."""
TIMEOUT_S = 60.0
"""Time without data after which a connection counts as lost."""
_LONGEST_WAIT_S = 60.0
_PIECE_BYTES = 1 << 20
_MAX_EXPANSION = 20
"""Maximum ratio of unpacked size to zip size: datasets contain files that are already compressed."""
_NAME_CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""Errors if one member is a file and another has a folder of the same name."""
_RETRY_STATUSES = (408, 416, 425, 429, 500, 502, 503, 504)


def download_dataset(
    name: str, root: PathLike, progress: Progress | None = None, *, url: str | None = None, keep_archive: bool = False
) -> Path:
    """Download and unpack a dataset below `root`, unless it exists; return the folder with its files.

    `url` replaces the address of the dataset with a mirror. The archive is deleted after unpacking unless
    `keep_archive`.
    """
    known = dataset(name)
    folder, missing = known.find(root), known.missing(root)
    if not missing:
        return folder
    if Path(root).exists() and not Path(root).is_dir():
        raise InputError(f"{root} is a file, a folder for datasets is wanted: choose another `root`")
    target = known.target(root)
    expected = known.checksum or noted_digest(target)
    try:
        fetch(url or known.url, target, expected, known.begins_with, progress, known.max_bytes)
    except HeldError:
        raise
    except InputError as error:
        if expected and expected != known.checksum:
            error = InputError(f"{error}; if its authors have replaced it, remove {_digest_file(target)}")
        raise InputError(f"{error}. By hand: {known.how_to_get(folder, missing)}") from None
    if expected is None:
        write_text_atomically(_digest_file(target), f"{_digest(target, 'sha256')}  {target.name}\n")
    if known.is_zip:
        unpack(target, folder, progress)
        if still := known.missing(root):
            raise InputError(
                f"{target} does not hold {', '.join(still)}: it is not the archive of {known.name}; remove it"
            )
        if not keep_archive:
            target.unlink()
    return folder


def noted_digest(file: Path) -> str | None:
    """`sha256:…` of the first download of `file`, which later downloads must match; None before the first."""
    note = _digest_file(file)
    if not note.is_file():
        return None
    found = re.match(r"[0-9a-f]{64}\b", note.read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise InputError(f"{note} holds no SHA-256 digest: remove it and run the same command again")
    return f"sha256:{found[0]}"


def _digest_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


# download


class _CutError(Exception):
    """The connection was lost, or the server is temporarily unavailable: try again."""


def fetch(
    url: str, file: PathLike, checksum: str | None = None, begins_with: bytes = b"", progress: Progress | None = None,
    max_bytes: int = sys.maxsize,
) -> Path:  # fmt: skip
    """Download `url` to `file`, resuming an earlier attempt; an existing `file` is only checked.

    `checksum` is `sha256:…` or `md5:…`; `begins_with` are the expected first bytes.
    """
    file = Path(file)
    if not _is_web(url):
        raise ConfigError(f"{url!r} is no web address: it must begin with http:// or https://")
    if file.exists():
        if fault := _fault(file, url, checksum, begins_with):
            raise InputError(f"{fault}; remove it and run the same command again")
        return file
    with disk_errors(file.parent), Lock(file, "downloading"):
        if not file.exists():  # else another process has just finished
            download = _Download(url, file, progress or silent, max_bytes)
            download.run()
            if fault := _fault(download.partial, url, checksum, begins_with):
                download.discard()
                raise InputError(f"{fault}; nothing of it is kept")
            sync(download.partial)
            os.replace(download.partial, file)
            download.discard()
    return file


def _is_web(url: str) -> bool:
    try:
        return urllib.parse.urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


@contextmanager
def _connection(url: str) -> Iterator[None]:
    """Turn network errors into `_CutError`, except HTTP errors, and invalid addresses into `InputError`."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(first_line(error)) from None
    except ValueError as error:
        raise InputError(f"{url!r} cannot be downloaded: {first_line(error)}") from None


class _Download:
    """A resumable download: each request asks for the missing end of the file."""

    def __init__(self, url: str, file: Path, show: Progress, max_bytes: int) -> None:
        self.url, self.file, self.show, self.max_bytes = url, file, show, max_bytes
        self.partial = file.with_name(f"{file.name}.partial")
        self._note = file.with_name(f"{file.name}.partial.version")

    @property
    def num_bytes(self) -> int:
        """Size of the partial file."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    def discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def run(self) -> None:
        """Retry until the file is complete; attempts that receive bytes reset the count of failures."""
        failures = 0
        while True:
            before = self.num_bytes
            try:
                return self._fetch_rest()
            except _CutError as error:
                failures = 1 if self.num_bytes > before else failures + 1
                if failures >= ATTEMPTS:
                    raise InputError(
                        f"{self.url} cannot be downloaded: {error} ({ATTEMPTS} tries). "
                        f"{format_bytes(self.num_bytes)} are kept: run the same command again to go on"
                    ) from None
            time.sleep(min(_LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)))

    def _fetch_rest(self) -> None:
        """Download the rest of the file, or the whole file, over one connection."""
        version = self._note.read_text(encoding="utf-8") if self._note.is_file() else ""
        have = self.num_bytes if version else 0
        rest = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
        try:
            with _connection(self.url):
                headers = {"Accept-Encoding": "identity", "User-Agent": "largegt", **rest}
                request = urllib.request.Request(self.url, headers=headers)
                answer = urllib.request.build_opener(_WebRedirects).open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return
                self.discard()  # the server has another, shorter file
            reason = f"the server answers {error.code} {error.reason}"
            if error.code in _RETRY_STATUSES:
                raise _CutError(reason) from None
            raise InputError(f"{self.url} cannot be downloaded: {reason}") from None
        with answer:
            self._write(answer, have, version)

    def _write(self, answer: Any, have: int, version: str) -> None:
        """Append a response to the first `have` bytes, or replace them if it is the whole file."""
        start, size = self._extent(answer)
        if start and (start != have or _version_of(answer) != version):
            self.discard()
            raise _CutError("the file has changed on the server")
        if size is not None and size > self.max_bytes:
            raise self._too_large(format_bytes(size), self.max_bytes)
        require_space(self.file, (size or start) - start, f"downloading {self.file.name}")
        if not start:
            self.partial.unlink(missing_ok=True)
            write_text_atomically(self._note, _version_of(answer))
        stage, most = f"download {self.file.name}", self.max_bytes if size is None else size
        with open(self.partial, "ab") as stream:
            while True:
                self.show(stage, start, size)
                with _connection(self.url):
                    piece = answer.read(_PIECE_BYTES)
                if not piece:
                    break
                start += len(piece)
                if start > most:
                    raise self._too_large("more", most)
                stream.write(piece)
        if size is not None and start < size:
            raise _CutError(f"the connection was cut after {start} of {size} bytes")

    def _extent(self, answer: Any) -> tuple[int, int | None]:
        """(first byte of the response, size of the whole file or None)."""
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            length = answer.headers.get("Content-Length", "").strip()
            return 0, int(length) if re.fullmatch("[0-9]{1,18}", length) else None
        span = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})", answer.headers.get("Content-Range", ""))
        if span is None:
            raise InputError(f"{self.url} cannot be downloaded: the server sends a part and does not say which")
        return int(span[1]), int(span[2])

    def _too_large(self, found: str, most: int) -> InputError:
        self.discard()
        return InputError(
            f"{self.url} gives {found}, where {format_bytes(most)} are the most that it can be; nothing is kept"
        )


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web addresses, and from https only to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not _is_web(newurl) or (req.type == "https" and not newurl.lower().startswith("https:")):
            raise InputError(f"{req.full_url} cannot be downloaded: the server redirects to {newurl!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _version_of(answer: Any) -> str:
    """The version of a file on the server: its ETag or date; empty: a download cannot be resumed. HTTP ranges do not
    allow weak ETags."""
    etag: str = answer.headers.get("ETag") or "W/"
    return str(answer.headers.get("Last-Modified", "")) if etag.startswith("W/") else etag


def _fault(file: Path, url: str, checksum: str | None, begins_with: bytes) -> str | None:
    """How a file differs from its expected first bytes and checksum; None if it matches."""
    with open(file, "rb") as stream:
        begin = stream.read(64)
    if not begin.startswith(begins_with):
        found = "a web page" if begin.lstrip()[:1] == b"<" else "something else"
        return f"{url} gives {found} instead of {file.name.removesuffix('.partial')}"
    kind, _, expected = (checksum or "").partition(":")
    if kind and (digest := _digest(file, kind)) != expected.lower():
        return f"{file} has {kind} {digest}, expected {expected}: it is damaged or another file"
    return None


def _digest(file: Path, kind: str) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


# unpacking


def unpack(archive: PathLike, out: PathLike, progress: Progress | None = None) -> Path:
    """Unpack a zip into the folder `out`, without the top-level folder if it has only one.

    Files are unpacked to a temporary folder first, so that `out` has only complete files. Existing files are replaced.
    zipfile writes no files outside the folder, no links, and at most the declared size of a member.
    """
    archive, out = Path(archive), Path(out)
    with disk_errors(out), Lock(out, "unpacking into"):
        temporary = out.parent / f".{out.name}.unpacking"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            with zipfile.ZipFile(archive) as opened:
                _extract(opened, archive, temporary, progress or silent)
            entries = list(temporary.iterdir())
            top = entries[0] if len(entries) == 1 and entries[0].is_dir() else temporary
            for file in [file for file in top.rglob("*") if file.is_file()]:
                sync(file)
                target = out / file.relative_to(top)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, *_NAME_CLASHES) as error:
            raise InputError(
                f"{archive} is damaged ({first_line(error)}): remove it and run the same command again"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return out


def _extract(opened: zipfile.ZipFile, archive: Path, out: Path, show: Progress) -> None:
    members = [info for info in opened.infolist() if not info.filename.startswith("__MACOSX/")]
    total, packed, done = sum(info.file_size for info in members), archive.stat().st_size, 0
    if total > _MAX_EXPANSION * packed:
        raise InputError(
            f"{archive} is not unpacked: {format_bytes(packed)} say that they hold {format_bytes(total)}, "
            "which no dataset does"
        )
    require_space(out, total, f"unpacking {archive.name}")
    for info in members:
        opened.extract(info, out)
        done += info.file_size
        show(f"unpack {archive.name}", done, total)
