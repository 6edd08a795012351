"""Downloads: a dataset's files from its authors' server, resumed, checked, unpacked.

Enters: a dataset's name, the root folder. Leaves: the files where the loaders look for them. Cost: a megabyte of
memory; disk for the archive and what is in it, which is asked for before it is written.

A download grows in `NAME.partial`, with what the server said of the file in `NAME.partial.json`. After a cut
connection, Ctrl-C or a restart the same call goes on at the byte where it stopped, if the server still has the same
file (ETag, date and size); otherwise it starts over. `NAME` is there when it is whole, not larger than the dataset
can be, and has the digest that is expected: the one that its authors publish, or the one of the first download, which
`NAME.sha256` keeps. Zips are unpacked aside and moved into place; names that lead out of the folder, links and sizes
that cannot be true are refused before anything is written.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import stat
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import TypeAdapter

from ..errors import ConfigError, InputError, disk_errors, first_line
from ..io.atomic import require_space, write_text_atomically
from ..io.locks import HeldError, Lock
from ..memory import format_bytes
from ..progress import Progress, silent
from ..types import PathLike
from .registry import dataset

ATTEMPTS = 6
"""Tries in a row that bring nothing, before a download is given up."""
FIRST_WAIT_S = 1.0
"""Pause after the first failure; it doubles with each that follows."""
TIMEOUT_S = 60.0
"""Silence after which a connection counts as cut."""
_LONGEST_WAIT_S = 60.0
_PIECE_BYTES = 1 << 20
_MOST_EXPANSION = 20
"""A zip whose content is this many times its size is no dataset of ours: theirs are of compressed files."""
_MOST_MEMBERS = 1000
_ENCRYPTED = 1
_CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""Of members of which one is a file where another has a folder."""
_MAC_FOLDER = "__MACOSX"
_WORTH_RETRYING = (408, 425, 429, 500, 502, 503, 504)


def download_dataset(
    name: str,
    root: PathLike,
    progress: Progress | None = None,
    *,
    url: str | None = None,
    keep_archive: bool = False,
) -> Path:
    """Fetch and unpack a dataset below `root`, unless it is there; the folder that holds its files.

    `url` is a mirror of the dataset's own address. The archive is removed when it is unpacked, unless `keep_archive`.
    """
    known = dataset(name)
    folder, missing = known.find(root), known.missing(root)
    if not missing:
        return folder
    if Path(root).exists() and not Path(root).is_dir():
        raise InputError(f"{root} is a file, a folder for datasets is wanted: choose another --root")
    target = known.target(root)
    expected = known.checksum or noted_digest(target)
    try:
        fetch(
            url or known.url, target, checksum=expected, begins_with=known.begins_with, progress=progress,
            max_bytes=known.max_bytes,
        )  # fmt: skip
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
        still = known.missing(root)
        if still:
            raise InputError(
                f"{target} does not hold {', '.join(still)}: it is not the archive of {known.name}; remove it"
            )
        if not keep_archive:
            target.unlink()
    return folder


def noted_digest(file: Path) -> str | None:
    """`sha256:…` of the first download of `file`, which later ones must equal; None before the first."""
    note = _digest_file(file)
    if not note.is_file():
        return None
    found = re.match(r"[0-9a-f]{64}\b", note.read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise InputError(f"{note} holds no SHA-256 digest: remove it and run the same command again")
    return f"sha256:{found[0]}"


def _digest_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


# fetching -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Remote:
    """What a server says of a file."""

    url: str
    etag: str | None
    date: str | None
    size: int | None

    def is_same(self, other: _Remote) -> bool:
        """Whether both speak of the same file; nobody can tell where a server says nothing of it."""
        same_size = self.size == other.size or None in (self.size, other.size)
        told = self.etag or self.date or self.size is not None
        return bool(told) and (self.url, self.etag, self.date) == (other.url, other.etag, other.date) and same_size


class _CutError(Exception):
    """The connection ended, or the server could not answer now: worth another try."""


def fetch(
    url: str,
    file: PathLike,
    *,
    checksum: str | None = None,
    begins_with: bytes = b"",
    progress: Progress | None = None,
    max_bytes: int | None = None,
) -> Path:
    """Download `url` to `file`, going on where an earlier try stopped; nothing is done when `file` is there.

    `checksum` is `sha256:…` or `md5:…`; `begins_with` is how a file of this kind begins; nothing larger than
    `max_bytes` is kept.
    """
    file = Path(file)
    if not _is_web(url):
        raise ConfigError(f"{url!r} is no web address: it must begin with http:// or https://")
    if file.exists():
        _check(file, url, checksum, begins_with)
        return file
    show = progress or silent
    with disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        with _Partial(file) as partial:
            if file.exists():  # another process was done just before we began
                return file
            _fetch_all(url, partial, show, max_bytes or sys.maxsize)
            _check(partial.path, url, checksum, begins_with, remove=partial.discard)
            partial.finish()
    return file


def _is_web(url: str) -> bool:
    try:
        return urllib.parse.urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web addresses, and from https only to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not _is_web(newurl) or (req.type == "https" and not newurl.lower().startswith("https:")):
            raise InputError(f"{req.full_url} cannot be downloaded: the server redirects to {newurl!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Partial:
    """The growing file, held by one process at a time, with what its server said of it."""

    def __init__(self, file: Path) -> None:
        self.file, self.path = file, file.with_name(file.name + ".partial")
        self._facts = file.with_name(file.name + ".partial.json")
        self._lock = Lock(file, "downloading")
        try:
            self.stream: IO[bytes] = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by __exit__
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.size and self.path.exists():
            self.discard()
        self.stream.close()
        self._lock.release()

    def write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            left = left[self.stream.write(left) :]

    @property
    def size(self) -> int:
        return os.fstat(self.stream.fileno()).st_size

    def remote(self) -> _Remote | None:
        """What the server said when this began."""
        try:
            return TypeAdapter(_Remote).validate_json(self._facts.read_bytes(), strict=True)
        except (OSError, ValueError):
            return None

    def begin(self, remote: _Remote) -> None:
        """Start over, with this file of the server."""
        self.stream.truncate(0)
        write_text_atomically(self._facts, json.dumps(asdict(remote)))

    def discard(self) -> None:
        self.stream.truncate(0)
        self._facts.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def finish(self) -> None:
        os.fsync(self.stream.fileno())
        os.replace(self.path, self.file)
        self._facts.unlink(missing_ok=True)


def _fetch_all(url: str, partial: _Partial, show: Progress, max_bytes: int) -> None:
    """Try until the partial file is whole; tries that bring something do not count."""
    failures = 0
    while True:
        before = partial.size
        try:
            _fetch_some(url, partial, show, max_bytes)
            return
        except _CutError as error:
            failures = 1 if partial.size > before else failures + 1
            if failures >= ATTEMPTS:
                raise InputError(
                    f"{url} cannot be downloaded: {error} ({ATTEMPTS} tries). "
                    f"{format_bytes(partial.size)} are kept: run the same command again to go on"
                ) from None
            time.sleep(min(_LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)))


def _fetch_some(url: str, partial: _Partial, show: Progress, max_bytes: int) -> None:
    """One connection: from where the partial file ends, or from the beginning, to the end of the file."""
    known = partial.remote()
    if known is None or known.url != url or not partial.size:
        known = None
    have = partial.size if known else 0
    if known and known.size == have:
        return
    with _answer(url, have, known) as answer:
        remote, start = _remote_of(url, answer)
        if start and (start != have or known is None or not known.is_same(remote)):
            partial.begin(remote)
            raise _CutError("the file has changed on the server")
        if not start:
            have = 0
            partial.begin(remote)
        most = max_bytes if remote.size is None else remote.size
        if most > max_bytes:
            raise _too_large(url, partial, remote.size, max_bytes)
        if remote.size is not None:
            require_space(partial.file, remote.size - have, f"downloading {partial.file.name}")
        stage = f"download {partial.file.name}"
        show(stage, have, remote.size)
        for piece in _pieces(answer):
            have += len(piece)
            if have > most:
                raise _too_large(url, partial, None, most)
            partial.write(piece)
            show(stage, have, remote.size)
    if remote.size is not None and have < remote.size:
        raise _CutError(f"the connection was cut after {have} of {remote.size} bytes")


def _too_large(url: str, partial: _Partial, size: int | None, most: int) -> InputError:
    """Nothing of a file that is not the one that was promised is kept."""
    partial.discard()
    found = "more" if size is None else format_bytes(size)
    return InputError(f"{url} gives {found}, where {format_bytes(most)} are the most that it can be; nothing is kept")


@contextmanager
def _answer(url: str, have: int, known: _Remote | None) -> Iterator[Any]:
    """The server's answer to a request for everything behind the first `have` bytes."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "largegt"})
    if known is not None:
        request.add_header("Range", f"bytes={have}-")
        same = known.etag if known.etag and not known.etag.startswith("W/") else known.date
        if same:
            request.add_header("If-Range", same)
    try:
        answer = urllib.request.build_opener(_WebRedirects).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            answer = None  # the file is shorter than our part of it: another file
        elif error.code in _WORTH_RETRYING:
            raise _CutError(f"the server answers {error.code} {error.reason}") from None
        else:
            raise InputError(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _CutError(first_line(reason) if isinstance(reason, BaseException) else str(reason)) from None
    except ValueError as error:  # an address that no request can be made of
        raise InputError(f"{url!r} cannot be downloaded: {first_line(error)}") from None
    if answer is None:
        with _answer(url, 0, None) as whole:
            yield whole
        return
    with answer:
        yield answer


def _remote_of(url: str, answer: Any) -> tuple[_Remote, int]:
    """(what the server says of the whole file, at which byte the answer begins)."""
    start, size = 0, answer.headers.get("Content-Length")
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        span, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        begin = _count(span.partition("-")[0])
        if begin is None:
            raise InputError(f"{url} cannot be downloaded: the server sends a part and does not say which")
        start = begin
    total = _count(size)
    return _Remote(url, answer.headers.get("ETag"), answer.headers.get("Last-Modified"), total), start


def _count(text: str | None) -> int | None:
    """A number of bytes in a header; None where it is anything else."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def _pieces(answer: Any) -> Iterator[bytes]:
    """The body; what goes wrong while it is read is the connection's fault."""
    while True:
        try:
            piece = answer.read(_PIECE_BYTES)
        except http.client.IncompleteRead as error:
            piece = error.partial
            if not piece:
                raise _CutError("the connection was cut") from None
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(first_line(error)) from None
        if not piece:
            return
        yield piece


def _check(file: Path, url: str, checksum: str | None, begins_with: bytes, remove: Any = None) -> None:
    """Compare a file with what is known of it; with `remove`, it goes when it is another."""
    with open(file, "rb") as stream:
        begin = stream.read(max(len(begins_with), 64))
        wrong = ""
        if not begin.startswith(begins_with):
            found = "a web page" if begin.lstrip()[:1] == b"<" else "something else"
            wrong = f"{url} gives {found} instead of {file.name.removesuffix('.partial')}"
        elif checksum is not None:
            kind, _, expected = checksum.partition(":")
            if (found := _digest(file, kind)) != expected.lower():
                wrong = f"{file} has {kind} {found}, expected {expected}: it is damaged or another file"
    if wrong and remove is not None:
        remove()
        raise InputError(f"{wrong}; nothing of it is kept")
    if wrong:
        raise InputError(f"{wrong}; remove it and run the same command again")


def _digest(file: Path, kind: str) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


# unpacking ------------------------------------------------------------------------------------------------------


def unpack(archive: PathLike, out: PathLike, progress: Progress | None = None) -> Path:
    """Unpack a zip into the folder `out`, without the one folder that everything in it lies in, if there is one.

    It is unpacked aside: `out` never holds half a file. Files that `out` has already under the same name are replaced.
    """
    archive, out = Path(archive), Path(out)
    aside = out.parent / f".{out.name}.unpacking"
    with disk_errors(out), Lock(out, "unpacking into"):
        try:
            _unpack(archive, out, aside, progress or silent)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, *_CLASHES) as error:
            raise InputError(
                f"{archive} is damaged ({first_line(error)}): remove it and run the same command again"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return out


def _unpack(archive: Path, out: Path, aside: Path, show: Progress) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = _safe_members(opened, archive)
        total = sum(info.file_size for info, _ in members)
        require_space(out, total, f"unpacking {archive.name}")
        shutil.rmtree(aside, ignore_errors=True)
        done = 0
        for info, path in members:
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            with opened.open(info) as stream, open(aside / path, "xb") as copy:
                while piece := stream.read(_PIECE_BYTES):
                    copy.write(piece)
                    done += len(piece)
                    show(f"unpack {archive.name}", done, total)
                copy.flush()
                os.fsync(copy.fileno())
        for _, path in members:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside / path, out / path)


def _safe_members(opened: zipfile.ZipFile, archive: Path) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The files of a zip and where they go, below the folder they share; an error when one must not be written."""
    members: dict[PurePosixPath, zipfile.ZipInfo] = {}
    for info in opened.infolist():
        path = PurePosixPath(info.filename)
        kind = stat.S_IFMT(info.external_attr >> 16)
        outside = path.is_absolute() or ".." in path.parts or any(sign in info.filename for sign in "\\:\0")
        if outside or not path.parts:
            raise InputError(f"{archive} is not unpacked: {info.filename!r} in it leads out of its folder")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InputError(f"{archive} is not unpacked: {info.filename!r} in it is a link or a device, not a file")
        if info.flag_bits & _ENCRYPTED:
            raise InputError(f"{archive} is not unpacked: {info.filename!r} in it is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{archive} is not unpacked: {info.filename!r} in it is compressed by an unknown method")
        if path in members:
            raise InputError(f"{archive} is not unpacked: {info.filename!r} is in it twice")
        if not info.is_dir() and path.parts[0] != _MAC_FOLDER:
            members[path] = info
    total, packed = sum(info.file_size for info in members.values()), archive.stat().st_size
    if len(members) > _MOST_MEMBERS:
        raise InputError(f"{archive} is not unpacked: it holds {len(members):,} files, which no dataset does")
    if total > _MOST_EXPANSION * packed:
        raise InputError(
            f"{archive} is not unpacked: {format_bytes(packed)} say that they hold {format_bytes(total)}, "
            "which no dataset does"
        )
    shared = {path.parts[0] for path in members}
    inside = len(shared) == 1 and all(len(path.parts) > 1 for path in members)
    return [(info, path.relative_to(path.parts[0]) if inside else path) for path, info in members.items()]
