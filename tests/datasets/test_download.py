"""Downloads from a server on loopback that cuts connections, changes its files and lies; zips that must not unpack."""

from __future__ import annotations

import email.utils
import hashlib
import io
import os
import shutil
import stat
import struct
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import random_graph, write_papers, write_patents, write_products

from largegt.datasets import download as module
from largegt.datasets.download import download_dataset, fetch, unpack
from largegt.datasets.registry import ingest_dataset
from largegt.errors import ConfigError, DiskError, InputError
from run_helpers import Cli

CONTENT = np.random.default_rng(0).bytes(300_000)


@dataclass
class Served:
    """One file of the server, and how the server misbehaves."""

    content: bytes = CONTENT
    etag: str | None = '"one"'
    date: float | None = 1_700_000_000.0
    ranges: bool = True
    """Whether parts are sent when they are asked for."""
    if_range: bool = True
    """Whether the condition on a part is looked at."""
    length: bool = True
    """Whether the length is told."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers are cut off, one after the other."""
    codes: list[int] = field(default_factory=list)
    """What the next requests are answered with instead."""
    then: Served | None = None
    """What the file becomes after the first request."""
    says: dict[str, str] = field(default_factory=dict)
    """Headers that are sent instead of the true ones."""
    redirect: str = ""
    """Where the request is sent instead."""


class Server:
    """Files by their path, and every request that came: (path, headers)."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers.items())))
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, path: str = "/file.bin") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def serve(self, path: str = "/file.bin", **how: Any) -> str:
        self.files[path] = Served(**how)
        return self.url(path)

    @property
    def ranges(self) -> list[str | None]:
        """What part each request asked for."""
        return [headers.get("Range") for _, headers in self.requests]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        file = self.files.get(handler.path)
        if file is None:
            return handler.send_error(404)
        if file.codes:
            return handler.send_error(file.codes.pop(0))
        if file.redirect:
            handler.send_response(302)
            handler.send_header("Location", file.redirect)
            return handler.end_headers()
        if file.then is not None:
            self.files[handler.path] = file.then
        start, size = 0, len(file.content)
        date = email.utils.formatdate(file.date, usegmt=True) if file.date is not None else None
        wanted, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
        if wanted and file.ranges and (not file.if_range or condition in (None, file.etag, date)):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= size:
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{size}")
                handler.send_header("Content-Length", "0")
                return handler.end_headers()
        part = file.content[start:]
        handler.send_response(206 if start else 200)
        if start:
            span = file.says.get("Content-Range", f"bytes {start}-{size - 1}/{size}")
            handler.send_header("Content-Range", span)
        for name, value in (("ETag", file.etag), ("Last-Modified", date)):
            if value:
                handler.send_header(name, value)
        if file.length:
            handler.send_header("Content-Length", file.says.get("Content-Length", str(len(part))))
        handler.end_headers()
        handler.wfile.write(part[: file.cuts.pop(0)] if file.cuts else part)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "TIMEOUT_S", 10.0)
    monkeypatch.setattr(module, "_PIECE_BYTES", 4096)
    started = Server()
    yield started
    started.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "file.bin"


def only(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# fetching


def test_a_file_is_fetched_once_and_shown(server: Server, out: Path) -> None:
    url = server.serve()
    shown: list[tuple[str, int, int | None]] = []
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert fetch(url, out, checksum=f"sha256:{digest}", progress=lambda *at: shown.append(at)) == out
    assert out.read_bytes() == CONTENT
    assert only(out.parent) == ["file.bin"]
    assert {stage for stage, _, _ in shown} == {"download file.bin"}
    assert shown[0][1] == 0
    assert [done for _, done, _ in shown] == sorted(done for _, done, _ in shown)
    assert shown[-1][1:] == (len(CONTENT), len(CONTENT))
    fetch(url, out, checksum=f"sha256:{digest}")
    assert len(server.requests) == 1


def test_cut_connections_are_gone_on_with_at_the_byte_where_they_ended(server: Server, out: Path) -> None:
    url = server.serve(cuts=[100_000, 50_000, 0, 1])
    fetch(url, out)
    assert out.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=150001-"]
    assert server.requests[1][1]["If-Range"] == '"one"'
    assert only(out.parent) == ["file.bin"]


def test_attempts_that_bring_something_are_not_counted(server: Server, out: Path) -> None:
    cuts = [1000] * (2 * module.ATTEMPTS)
    fetch(server.serve(cuts=cuts.copy()), out)
    assert out.read_bytes() == CONTENT
    assert len(server.requests) == len(cuts) + 1


def test_another_process_goes_on_where_the_first_was_stopped(server: Server, out: Path) -> None:
    url = server.serve()

    def stop(stage: str, done: int, total: int | None) -> None:
        if done > 120_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(url, out, progress=stop)
    assert only(out.parent) == ["file.bin.partial", "file.bin.partial.version"]
    have = (out.parent / "file.bin.partial").stat().st_size
    assert 120_000 < have < len(CONTENT)
    fetch(url, out)
    assert server.ranges == [None, f"bytes={have}-"]
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"etag": '"two"'},
        {"etag": None, "date": 1_700_000_001.0},
        {"etag": 'W/"two"', "date": 1_700_000_001.0},
    ],
)
def test_a_file_that_changes_between_attempts_starts_over(
    server: Server, out: Path, if_range: bool, change: dict[str, Any]
) -> None:
    new = CONTENT[::-1]
    before = {"etag": change["etag"] and change["etag"].replace("two", "one")}
    after = Served(content=new, if_range=if_range, **change)
    url = server.serve(**before, cuts=[100_000], then=after)
    fetch(url, out)
    assert out.read_bytes() == new
    assert server.ranges[1] == "bytes=100000-"


@pytest.mark.parametrize("size", [60_000, 100_000, 200_000, 400_000])
def test_a_file_whose_size_alone_tells_of_a_change_starts_over(server: Server, out: Path, size: int) -> None:
    new = np.random.default_rng(1).bytes(size)
    url = server.serve(etag=None, date=None, cuts=[100_000], then=Served(content=new, etag=None, date=None))
    fetch(url, out)
    assert out.read_bytes() == new


def test_a_server_without_ranges_sends_everything_again(server: Server, out: Path) -> None:
    url = server.serve(ranges=False, cuts=[100_000, 200_000])
    fetch(url, out)
    assert out.read_bytes() == CONTENT
    assert len(server.requests) == 3


def test_a_server_that_tells_nothing_of_its_file_is_believed_once(server: Server, out: Path) -> None:
    url = server.serve(length=False, etag=None, date=None)
    fetch(url, out)
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("note", [None, '"another"', ""])
def test_a_partial_file_of_another_version_is_not_gone_on_with(server: Server, out: Path, note: str | None) -> None:
    out.parent.mkdir()
    (out.parent / "file.bin.partial").write_bytes(b"something else")
    if note is not None:
        (out.parent / "file.bin.partial.version").write_text(note)
    fetch(server.serve(), out)
    assert out.read_bytes() == CONTENT


def test_a_partial_file_that_is_whole_is_not_fetched_again(server: Server, out: Path) -> None:
    out.parent.mkdir()
    (out.parent / "file.bin.partial").write_bytes(CONTENT)
    (out.parent / "file.bin.partial.version").write_text('"one"')
    fetch(server.serve(), out)
    assert out.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]
    assert only(out.parent) == ["file.bin"]


def test_busy_servers_are_asked_again_with_growing_pauses(
    server: Server, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    monkeypatch.setattr(module, "FIRST_WAIT_S", 1.0)
    fetch(server.serve(codes=[503, 500, 429]), out)
    assert out.read_bytes() == CONTENT
    assert pauses == [1, 2, 4]


def test_it_gives_up_keeps_what_it_has_and_goes_on_later(server: Server, out: Path) -> None:
    url = server.serve(cuts=[100_000] + [0] * 10)
    with pytest.raises(InputError, match=r"cut after 100000 of 300000 bytes.*97\.7 KiB are kept: run the same command"):
        fetch(url, out)
    assert len(server.requests) == 1 + module.ATTEMPTS - 1
    assert not out.exists()
    server.files["/file.bin"].cuts.clear()
    fetch(url, out)
    assert out.read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=100000-"


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        *(({"codes": [code]}, {}, f"/file.bin cannot be downloaded: the server answers {code}") for code in (404, 403)),
        *(({}, {"checksum": f"{kind}:00ff"}, rf"has {kind} .* expected 00ff: it is damaged.*nothing of it is kept")
          for kind in ("sha256", "md5")),
        ({"content": b"<!DOCTYPE html>Too large to scan for viruses"}, {"begins_with": b"PK"},
         r"gives a web page instead of file\.bin; nothing of it is kept"),
        ({}, {"max_bytes": 100_000}, r"gives 293\.0 KiB, where 97\.7 KiB are the most that it can be; nothing"),
        ({"length": False}, {"max_bytes": 100_000}, r"gives more, where 97\.7 KiB are the most"),
        ({"cuts": [100_000], "says": {"Content-Range": "bytes 100000-149999/150000"}}, {}, "gives more, where"),
        *(({"redirect": where}, {}, "cannot be downloaded")
          for where in ("ftp://127.0.0.1:9/x", "file:///etc/passwd", "data:,x", "gopher://x")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_is_kept(
    server: Server, out: Path, how: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    num_requests = 1 + len(how.get("cuts", []))
    with pytest.raises(InputError, match=message):
        fetch(server.serve(**how), out, **options)
    assert len(server.requests) == num_requests
    assert not out.parent.exists()


def test_a_server_that_is_not_there_is_named(server: Server, out: Path) -> None:
    url = server.url()
    server._server.socket.close()
    with pytest.raises(InputError, match=r"cannot be downloaded: .*refused"):
        fetch(url, out)


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_that_is_there_is_checked(server: Server, out: Path, kind: str) -> None:
    url, good = server.serve(), hashlib.new(kind, CONTENT).hexdigest()
    fetch(url, out, checksum=f"{kind}:{good.upper()}", max_bytes=len(CONTENT))
    with pytest.raises(InputError, match="remove it and run the same command again"):
        fetch(url, out, checksum=f"{kind}:00ff")
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd"])
def test_only_web_addresses_are_fetched(out: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="is no web address"):
        fetch(url, out)


def test_a_full_disk_is_noticed_before_the_download(server: Server, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.serve()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskError, match=r"downloading file\.bin needs 293\.0 KiB"):
        fetch(url, out)
    monkeypatch.undo()


@pytest.mark.parametrize("length", ["²", "-5", "1e9", "9" * 5000, "nan", "300000, 5", ""])
def test_a_length_that_is_no_number_is_not_believed(server: Server, out: Path, length: str) -> None:
    fetch(server.serve(says={"Content-Length": length}), out)
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("span", ["bytes ²-300000/300001", "bytes", "bytes x-y/z"])
def test_a_part_that_is_not_said_which_is_refused(server: Server, out: Path, span: str) -> None:
    url = server.serve(cuts=[100_000], says={"Content-Range": span})
    with pytest.raises(InputError, match="sends a part and does not say which"):
        fetch(url, out)


def test_redirects_to_the_web_are_followed(server: Server, out: Path) -> None:
    server.serve("/real")
    fetch(server.serve(redirect=server.url("/real")), out)
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["http://[", "http://a..b/x", "http://127.0.0.1/é\x1b", "http://127.0.0.1:x/"])
def test_addresses_that_cannot_be_asked_are_one_line(server: Server, out: Path, url: str) -> None:
    with pytest.raises((ConfigError, InputError)) as caught:
        fetch(url, out)
    assert str(caught.value).isprintable()


def test_two_do_not_download_the_same_file_at_once(server: Server, out: Path) -> None:
    url = server.serve()

    def second(stage: str, done: int, total: int | None) -> None:
        with pytest.raises(InputError, match=r"another process \(pid .* is downloading"):
            fetch(url, out)

    fetch(url, out, progress=second)
    assert out.read_bytes() == CONTENT


# unpacking


def zipped(file: Path, members: dict[str, bytes], **attributes: int) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in attributes.items():
                setattr(info, key, value)
            archive.writestr(info, content)
    return file


def test_a_zip_is_unpacked_without_the_folder_that_holds_everything(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip", {"top/": b"", "top/raw/x": b"1", "top/y": b"2", "__MACOSX/top/._y": b"junk"})
    shown: list[tuple[str, int, int | None]] = []
    unpack(file, tmp_path / "out", lambda *at: shown.append(at))
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"raw/x", "y"}
    assert shown[-1] == ("unpack a.zip", 2, 2)
    flat = zipped(tmp_path / "b.zip", {"raw/x": b"3", "z": b"4"})
    (tmp_path / "out" / "mine").write_text("kept")
    unpack(flat, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in ("raw/x", "y", "z", "mine")} == {
        "raw/x": b"3", "y": b"2", "z": b"4", "mine": b"kept",
    }  # fmt: skip
    assert only(tmp_path) == ["a.zip", "b.zip", "out"]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "//evil", "..\\evil", "C:evil"])
def test_names_do_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    unpack(zipped(tmp_path / "a.zip", {"good/x": b"1", name: b"2"}), tmp_path / "in" / "out")
    assert only(tmp_path) == ["a.zip", "in"]
    assert only(tmp_path / "in") == ["out"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_become_files(tmp_path: Path, kind: int) -> None:
    file = zipped(tmp_path / "a.zip", {"top/x": b"/etc"}, external_attr=(kind | 0o777) << 16, create_system=3)
    unpack(file, tmp_path / "out")
    assert not (tmp_path / "out" / "x").is_symlink()
    assert (tmp_path / "out" / "x").read_bytes() == b"/etc"


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip", {"top/x": bytes(30_000_000)})
    with pytest.raises(InputError, match=r"say that they hold 28\.6 MiB, which no dataset does"):
        unpack(file, tmp_path / "out")
    assert only(tmp_path) == ["a.zip"]


def test_what_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = zipped(tmp_path / "a.zip", {"top/x": CONTENT})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT) - 1))
    with pytest.raises(DiskError, match=r"unpacking a\.zip needs 293\.0 KiB"):
        unpack(file, tmp_path / "out")
    monkeypatch.undo()
    assert only(tmp_path) == ["a.zip"]


def test_a_zip_that_lies_about_a_size_writes_no_more_than_it_said(tmp_path: Path) -> None:
    """The directory says 10 bytes, the data would be 300,000."""
    file = zipped(tmp_path / "a.zip", {"top/x": CONTENT})
    content = bytearray(file.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = content.index(signature) + offset
        assert struct.unpack_from("<I", content, at)[0] == len(CONTENT)
        struct.pack_into("<I", content, at, 10)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.zip is damaged .*CRC"):
        unpack(file, tmp_path / "out")
    assert only(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("harm", ["flipped", "cut", "encrypted", "clashing", "not text"])
def test_damaged_zips_are_refused(tmp_path: Path, harm: str) -> None:
    clash = {"top/x/y": b"2"} if harm == "clashing" else {}
    file = zipped(tmp_path / "a.zip", {"top/x": CONTENT, "top/é": b"1"} | clash)
    content = bytearray(file.read_bytes())
    if harm == "flipped":
        content[len(content) // 4] ^= 0xFF
    elif harm == "cut":
        content = content[: len(content) // 2]
    elif harm == "encrypted":
        content[content.index(b"PK\x01\x02") + 8] |= 1
    elif harm == "not text":
        content = content.replace("é".encode(), b"\xff\xfe")
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.zip is damaged \(.*\): remove it"):
        unpack(file, tmp_path / "out")
    assert only(tmp_path) == ["a.zip"]


# datasets


def archive_of(folder: Path, top: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"{top}/{file.relative_to(folder)}")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "write", "top"),
    [("ogbn-products", write_products, "products"), ("ogbn-papers100M", write_papers, "papers100M-bin")],
)
def test_an_archive_is_fetched_unpacked_and_ingested(
    server: Server, tmp_path: Path, name: str, write: Any, top: str
) -> None:
    content = archive_of(write(tmp_path / "made", random_graph()), top)
    url = server.serve("/data.zip", content=content, cuts=[len(content) // 3])
    root = tmp_path / "root"
    folder = download_dataset(name, root, url=url)
    assert folder == root / name.replace("-", "_")
    assert only(root) == [folder.name, f"{top}.zip.sha256"]
    assert server.ranges == [None, f"bytes={len(content) // 3}-"]
    store = ingest_dataset(name, root, tmp_path / "store", threads=1)
    assert store.num_nodes == 120
    download_dataset(name, root, url=url)
    assert len(server.requests) == 2
    (folder / "raw" / "mine.txt").write_text("kept")
    first = next(folder.rglob("train.csv.gz"))
    first.unlink()
    download_dataset(name, root, url=url, keep_archive=True)
    assert first.exists()
    assert (folder / "raw" / "mine.txt").exists()
    assert len(only(root)) == 3


def test_a_single_file_is_fetched_to_its_place(server: Server, tmp_path: Path) -> None:
    made = write_patents(tmp_path / "made", random_graph(), np.arange(120.0))
    url = server.serve("/download?id=x", content=(made / "snap_patents.mat").read_bytes())
    root = tmp_path / "root"
    assert download_dataset("snap-patents", root, url=url) == root / "snap_patents"
    assert only(root / "snap_patents") == ["snap_patents.mat", "snap_patents.mat.sha256"]
    assert ingest_dataset("snap-patents", root, tmp_path / "store", threads=1).num_nodes == 120


def test_later_downloads_are_held_to_the_digest_of_the_first(server: Server, tmp_path: Path, lg: Cli) -> None:
    made = write_patents(tmp_path / "made", random_graph(), np.arange(120.0)) / "snap_patents.mat"
    url, root = server.serve("/x", content=made.read_bytes()), tmp_path / "root"
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    file = root / "snap_patents" / "snap_patents.mat"
    assert f"sha256:{digest}" in lg("datasets", "download", "snap-patents", "--root", root, "--url", url).out
    assert (root / "snap_patents" / "snap_patents.mat.sha256").read_text() == f"{digest}  snap_patents.mat\n"
    file.unlink()
    server.serve("/x", content=made.read_bytes() + b"more")
    code, _, err = lg("datasets", "download", "snap-patents", "--root", root, "--url", url)
    assert code == 2
    assert f"expected {digest}: it is damaged or another file" in err
    assert f"remove {root / 'snap_patents' / 'snap_patents.mat.sha256'}" in err
    assert not file.exists()
    (root / "snap_patents" / "snap_patents.mat.sha256").write_text("nonsense")
    with pytest.raises(InputError, match="holds no SHA-256 digest: remove it"):
        download_dataset("snap-patents", root, url=url)


def test_an_archive_is_verified_before_it_is_unpacked(server: Server, tmp_path: Path) -> None:
    content = archive_of(write_products(tmp_path / "made", random_graph()), "products")
    root = tmp_path / "root"
    root.mkdir()
    (root / "products.zip.sha256").write_text("0" * 64 + "  products.zip\n")
    with pytest.raises(InputError, match=r"expected 0{64}: it is damaged"):
        download_dataset("ogbn-products", root, url=server.serve(content=content))
    assert only(root) == ["products.zip.sha256"]


def test_what_cannot_be_fetched_is_told_how_to_get_by_hand(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        download_dataset("snap-patents", tmp_path, url=server.serve(content=b"<html>sign in</html>"))
    said = str(caught.value)
    assert "gives a web page instead of snap_patents.mat" in said
    assert f"missing {tmp_path / 'snap_patents' / 'snap_patents.mat'}" in said
    assert "LINKX" in said
    with pytest.raises(InputError, match=r"answers 404.*By hand: missing .*raw/edge\.csv\.gz"):
        download_dataset("ogbn-products", tmp_path, url=server.url("/nothing"))


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(InputError, match="root is a file, a folder for datasets is wanted"):
        download_dataset("ogbn-products", tmp_path / "root")


def test_another_archive_is_not_taken_for_the_dataset(server: Server, tmp_path: Path) -> None:
    content = zipped(tmp_path / "a.zip", {"top/raw/edge.csv.gz": b"1"}).read_bytes()
    with pytest.raises(InputError, match=r"products\.zip does not hold raw/num-node-list\.csv\.gz"):
        download_dataset("ogbn-products", tmp_path / "root", url=server.serve(content=content))
    assert os.path.exists(tmp_path / "root" / "products.zip")
