"""Source files: globs, folders, URLs, and tables in parts."""

from __future__ import annotations

import gzip
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bucket_helpers import files
from largegt.data import sources
from largegt.data.files import RemoteFile, expand
from largegt.data.ingest import ingest
from largegt.data.table_reading import Table
from largegt.errors import InputError
from largegt.runtime.workers import Threads
from run_helpers import all_bytes

ENDS = (np.random.default_rng(0).random((2, 2000)) ** 2 * 300).astype(np.int64)


def csv_lines(low: int, high: int, end: str = "\n") -> str:
    return "".join(f"n{u},n{v}{end}" for u, v in ENDS[:, low:high].T)


def parquet(file: Any, low: int, high: int) -> None:
    names = [pa.array([f"n{end}" for end in row[low:high]]) for row in ENDS]
    pq.write_table(pa.table({"u": names[0], "v": names[1]}), file, row_group_size=150)


def text_files(folder: Path) -> list[Path]:
    """Comments, header and none, ends of line of every kind, packed, empty lines, no end at the end."""
    texts = {
        "a.csv": "# one\n# two\nu,v\n" + csv_lines(0, 600),
        "b.csv": "u,v\r\n" + csv_lines(600, 900, "\r\n").rstrip(),
        "c.csv": "u,v\n" + csv_lines(900, 950, "\n\n") + csv_lines(950, 1400),
        "d.csv": "u,v\n" + csv_lines(1400, 1401).rstrip(),
        "e.csv": "v,u\n" + csv_lines(1401, 1500),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    (folder / "f.csv.gz").write_bytes(gzip.compress(("u,v\n" + csv_lines(1500, 2000)).encode()))
    return [*(folder / name for name in texts), folder / "f.csv.gz"]


def parquet_files(folder: Path) -> list[Path]:
    for name, low, high in (("a", 0, 700), ("b", 700, 700), ("c", 700, 710), ("d", 710, 2000)):
        parquet(folder / f"{name}.parquet", low, high)
    return [folder / f"{name}.parquet" for name in "abcd"]


def rows_of(table: Table) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for batch in table.batches(["u", "v"]):
        found += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("make", [text_files, parquet_files])
def test_parts_of_a_table_are_the_table(tmp_path: Path, make: Any) -> None:
    table = Table(make(tmp_path))
    expected = rows_of(table)
    assert len(expected) == 2000
    for count in (1, 2, 3, 7, 60, 400):
        parts = [pickle.loads(pickle.dumps(part)) for part in table.parts(count)]
        assert [row for part in parts for row in rows_of(part)] == expected
        assert len(parts) <= count
        if make is parquet_files:
            firsts = np.cumsum([0, *(part.num_rows for part in parts)])
            assert [part.first_row for part in parts] == firsts[:-1].tolist()
            assert firsts[-1] == 2000
    largest = max(len(rows_of(part)) for part in table.parts(4))
    assert largest < 1000


def test_globs_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("e/part-2.csv", "e/part-10.csv", "e/_SUCCESS", "e/.part-1.csv.crc", "e/more/part-3.csv.gz", "e/x.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert [str(file) for file in expand("e/part-*.csv")] == ["e/part-10.csv", "e/part-2.csv"]
    assert [str(file) for file in expand(str(tmp_path / "e" / "*-2.csv"))] == [str(tmp_path / "e" / "part-2.csv")]
    assert [str(file) for file in expand("e")] == ["e/more/part-3.csv.gz", "e/part-10.csv", "e/part-2.csv"]
    assert expand(f"file://{tmp_path}/e/part-2.csv") == [tmp_path / "e" / "part-2.csv"]
    Path("e/odd[1].csv").touch()
    assert expand("e/odd[1].csv") == [Path("e/odd[1].csv")]  # a file of this name comes first
    with pytest.raises(InputError, match=r"no file is named like e/none-\*.csv: check the pattern"):
        expand("e/none-*.csv")
    with pytest.raises(InputError, match="holds no Parquet, CSV, TSV, JSON lines or Arrow files"):
        expand(Path("e/more").rename("e/less").joinpath("part-3.csv.gz").rename("y") and "e/less")


@pytest.fixture
def bucket(server: str) -> Iterator[Any]:
    """The files of an empty bucket, s3://graphs."""
    yield files()
    for name in files().find(server):
        files().rm_file(name)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["s3://graphs/edges/*", "s3://graphs/edges", Path("s3://graphs/edges")])
@pytest.mark.parametrize("make", [text_files, parquet_files])
def test_files_at_urls(tmp_path: Path, bucket: Any, make: Any, place: Any) -> None:
    (tmp_path / "in").mkdir()
    for file in make(tmp_path / "in"):
        bucket.pipe_file(f"graphs/edges/{file.name}", file.read_bytes())
    ingest(sources.files(tmp_path / "in"), tmp_path / "here" / "g")
    given = sources.files(place)
    assert given.identity != sources.files(tmp_path / "in").identity
    for name, means in (("a", {"threads": 2}), ("b", {"engine": Threads(1 << 20, 2, 5)})):
        ingest(given, tmp_path / name / "g", **means)
        assert all_bytes(tmp_path / name / "g") == all_bytes(tmp_path / "here" / "g")


def test_what_urls_refuse(bucket: Any) -> None:
    bucket.pipe_file("graphs/texts/a.txt", b"1 2")
    for place, message in (
        ("s3://graphs/edges/*.parquet", r"no file is named like s3://graphs/edges/\*.parquet"),
        ("s3://graphs/texts", "holds no Parquet, CSV, TSV, JSON lines or Arrow files"),
        ("s3://graphs/none.parquet", "s3://graphs/none.parquet cannot be read"),
        ("s3://graphs/x.npy", "is a .npy file at a URL, which is read from a path only"),
    ):
        with pytest.raises(InputError, match=message):
            sources.files(place)
    bucket.pipe_file("graphs/edges/half.parquet", b"PAR1 and no more")
    with pytest.raises(InputError, match=r"half\.parquet cannot be read"):
        sources.files("s3://graphs/edges/half.parquet")


def test_a_changed_file_is_another_input(bucket: Any) -> None:
    bucket.pipe_file("graphs/edges/a.csv", b"u,v\n1,2\n")
    before = sources.files("s3://graphs/edges/a.csv").identity
    assert sources.files("s3://graphs/edges/a.csv").identity == before
    bucket.pipe_file("graphs/edges/a.csv", b"u,v\n1,2\n2,3\n")
    assert sources.files("s3://graphs/edges/a.csv").identity != before


class Ranges(BaseHTTPRequestHandler):
    """Serves one file, by ranges."""

    content = b""
    sent = 0

    def do_HEAD(self) -> None:
        self._answer(self.content, 200)

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        low, high = (asked or "bytes=0-").removeprefix("bytes=").split("-")
        part = self.content[int(low) : int(high) + 1 if high else None]
        self._answer(part, 206 if asked else 200, f"bytes {low}-{int(low) + len(part) - 1}/{len(self.content)}")
        self.wfile.write(part)
        Ranges.sent += len(part)

    def _answer(self, part: bytes, code: int, where: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if code == 206:
            self.send_header("Content-Range", where)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
def test_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    parquet(tmp_path / "e.parquet", 0, 2000)
    monkeypatch.setattr(Ranges, "content", (tmp_path / "e.parquet").read_bytes())
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/data/e.parquet?version=3"
        assert expand(url) == [RemoteFile(url)]
        ingest(sources.files(url), tmp_path / "far" / "g")
        server.shutdown()
    ingest(sources.files(tmp_path / "e.parquet"), tmp_path / "here" / "g")
    assert all_bytes(tmp_path / "far" / "g") == all_bytes(tmp_path / "here" / "g")
    assert Ranges.sent > 0


def test_whole_numbers_of_both_signs_in_json_lines(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text('{"u": -1, "v": 9223372036854775807}\n{"u": 3, "v": -2}\n')
    store = ingest(sources.files(tmp_path / "e.jsonl"), tmp_path / "g")
    assert store.ids_of(np.arange(4)) == [-2, -1, 3, 9223372036854775807]
    (tmp_path / "e.jsonl").write_text('{"u": -1, "v": 9223372036854775808}\n')
    with pytest.raises(InputError, match="9223372036854775808"):
        ingest(sources.files(tmp_path / "e.jsonl"), tmp_path / "h")


@pytest.mark.slow
def test_row_groups_of_vectors_are_short(tmp_path: Path) -> None:
    """One group at a time is in memory."""
    rows = 9000
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 1000, dtype=np.float32)), 1000)
    pq.write_table(pa.table({"id": np.arange(rows), "v": vectors}), tmp_path / "n.parquet")
    Table(tmp_path / "n.parquet").stage(tmp_path / "staged.parquet", ["id"], ["v"], 1 << 28, 1)
    assert pq.read_metadata(tmp_path / "staged.parquet").num_row_groups > 1


def test_one_source_makes_several_stores(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n1,2\n2,3\n")
    (tmp_path / "n.csv").write_text("id,x\n1,2\n2,3\n3,1\n")
    source = sources.files(tmp_path / "e.csv", nodes=tmp_path / "n.csv")
    first, again = (ingest(source, tmp_path / name) for name in ("g", "h"))
    assert first.fingerprint == again.fingerprint
