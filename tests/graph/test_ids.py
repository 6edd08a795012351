"""Ids on disk against a dictionary and `sorted(set())`; how much memory they take."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.errors import InputError
from largegt.graph import id_file, id_kernels, id_sorting
from largegt.graph.id_file import IdFile
from largegt.graph.ids import MixedIdsError, is_text
from largegt.graph.sorted_ids import sorted_unique

MEMORY = [1, 600, 1 << 16]
"""A batch for each id; a few ids; everything at once."""
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["", "0", "7", "007", "é", "a\0", "a", "z" * 3000, "z" * 3001]))
INTEGERS = st.one_of(st.integers(-5, 20), st.integers(-(2**63), 2**63 - 1))
SOME_IDS = st.one_of(st.lists(TEXTS, max_size=40), st.lists(INTEGERS, max_size=40))


def as_column(values: list[Any], text: bool) -> Any:
    return pa.array(values, pa.large_string()) if text else np.array(values, dtype=np.int64)


def cut(column: Any, size: int) -> Iterator[Any]:
    """The column in chunks, which are slices of it."""
    for start in range(0, max(1, len(column)), size):
        yield column[start : start + size]


def together(chunks: Any) -> list[Any]:
    return [value for chunk in chunks for value in (chunk.to_pylist() if is_text(chunk) else chunk.tolist())]


def as_asked(value: Any, text: bool) -> Any:
    """What an id stands for where ids are text, or where they are whole numbers: text of one, as it is written, is that
    number."""
    if text:
        return str(value)
    is_number = not isinstance(value, str) or re.fullmatch("0|-?[1-9][0-9]{0,17}", value, re.ASCII)
    return int(value) if is_number else None


@pytest.fixture(params=[64, 2], ids=["hash64", "hash2"])
def hash_bits(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """With two bits of hash almost every text collides with others."""
    monkeypatch.setattr(id_sorting, "HASH_MASK", (1 << request.param) - 1)
    return int(request.param)


@pytest.mark.parametrize("memory", MEMORY)
@settings(max_examples=40, deadline=None)
@given(values=SOME_IDS, asked=SOME_IDS, size=st.integers(1, 50), threads=st.integers(1, 2))
def test_find_equals_a_dictionary(memory: int, values: list[Any], asked: list[Any], size: int, threads: int) -> None:
    check_find(memory, values, asked, size, threads)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(TEXTS, max_size=40), asked=SOME_IDS, memory=st.sampled_from(MEMORY))
def test_find_with_colliding_hashes(values: list[Any], asked: list[Any], memory: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_sorting, "HASH_MASK", 3)
        check_find(memory, values, asked, 7, 1)


def check_find(memory: int, values: list[Any], asked: list[Any], size: int, threads: int) -> None:
    values = list(dict.fromkeys(values))
    text = bool(values) and isinstance(values[0], str)
    ids = as_column(values, text)
    wanted_text = bool(asked) and isinstance(asked[0], str)
    wanted = as_column(asked + (values if wanted_text == text else []), wanted_text)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ids"
        file = IdFile.build(folder, cut(ids, size), memory, threads, "nodes.csv")
        found = file.find(wanted)
        assert (file.num_nodes, file.kind) == (len(values), "string" if text else "integer")
        assert found.dtype == np.int64
        oracle = {value: number for number, value in enumerate(values)}
        assert found.tolist() == [oracle.get(as_asked(value, text), -1) for value in together([wanted])]
        again = IdFile.open(folder, "nodes.csv", threads)
        assert again is not None
        np.testing.assert_array_equal(again.find(wanted), found)
        again.remove()
        assert not folder.exists()


@pytest.mark.parametrize("memory", MEMORY)
@settings(max_examples=40, deadline=None)
@given(values=SOME_IDS.filter(lambda values: len(set(values)) < len(values)), size=st.integers(1, 50))
def test_the_first_repeated_id_is_refused(memory: int, values: list[Any], size: int) -> None:
    check_refused(memory, values, size)


@settings(max_examples=20, deadline=None)
@given(
    values=st.lists(TEXTS, max_size=40).filter(lambda values: len(set(values)) < len(values)),
    memory=st.sampled_from(MEMORY),
)
def test_the_first_repeated_id_is_refused_with_colliding_hashes(values: list[Any], memory: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_sorting, "HASH_MASK", 3)
        check_refused(memory, values, 7)


def check_refused(memory: int, values: list[Any], size: int) -> None:
    ids = as_column(values, isinstance(values[0], str))
    row = next(row for row, value in enumerate(values) if value in values[:row])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ids"
        with pytest.raises(InputError) as raised:
            IdFile.build(folder, cut(ids, size), memory, 1, "nodes.csv")
        said = f"nodes.csv: id {values[row]!r} occurs twice (again in row {row}): each node may have one row only"
        assert str(raised.value) == str(InputError(said))  # a very long one is shortened
        assert not folder.exists()


@pytest.mark.parametrize("memory", MEMORY)
@settings(max_examples=40, deadline=None)
@given(values=SOME_IDS, size=st.integers(1, 50), threads=st.integers(1, 2), rows=st.integers(1, 9))
def test_sorted_unique_equals_a_sorted_set(memory: int, values: list[Any], size: int, threads: int, rows: int) -> None:
    check_sorted(memory, values, size, threads, rows)


@settings(max_examples=30, deadline=None)
@given(values=st.lists(TEXTS, max_size=40), memory=st.sampled_from(MEMORY))
def test_sorted_unique_with_colliding_hashes(values: list[Any], memory: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_sorting, "HASH_MASK", 3)
        check_sorted(memory, values, 7, 2, 5)


def check_sorted(memory: int, values: list[Any], size: int, threads: int, rows: int) -> None:
    text = bool(values) and isinstance(values[0], str)
    ids = as_column(values, text)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "sorted"
        found = sorted_unique(cut(ids, size), folder, memory, threads)
        oracle = sorted(set(values), key=lambda value: value.encode() if text else value)
        assert together(found.chunks(rows)) == oracle
        assert together(found.chunks()) == oracle
        assert (found.total, found.kind) == (len(oracle), "string" if text else "integer")
        assert found.text_bytes == sum(len(value.encode()) for value in oracle if text)
        assert found.are_rows == (len(oracle) > 0 and oracle == list(range(len(oracle))))
        found.remove()
        assert not folder.exists()


def test_repeats_do_not_pile_up_on_disk(tmp_path: Path) -> None:
    """200 000 ids go by, a thousand different ones: the files stay those of a few thousand."""
    rng = np.random.default_rng(0)
    largest = 0

    def stream() -> Iterator[Any]:
        nonlocal largest
        for _ in range(200):
            yield pa.array([f"n{i}" for i in rng.permutation(1000)], pa.large_string())
            largest = max(largest, sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()))

    found = sorted_unique(stream(), tmp_path, 40_000)
    assert together(found.chunks()) == sorted(f"n{i}" for i in range(1000))
    assert largest < 6 * 1000 * (16 + 4)


def test_nothing_at_all(tmp_path: Path) -> None:
    file = IdFile.build(tmp_path / "ids", [], 1 << 16, 1, "ids")
    assert file.find(np.array([0, 5])).tolist() == [-1, -1]
    assert file.find(pa.array(["0", ""], pa.large_string())).tolist() == [-1, -1]
    assert sorted_unique([], tmp_path / "sorted", 1 << 16).total == 0
    empty = [pa.array([], pa.large_string())] * 2
    assert IdFile.build(tmp_path / "ids", empty, 1 << 16, 1, "ids").kind == "string"
    assert sorted_unique(empty, tmp_path / "sorted", 1 << 16).kind == "string"


def test_mixed_ids_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    mixed = [np.arange(100), pa.array(["a"], pa.large_string())]
    with pytest.raises(MixedIdsError):
        sorted_unique(iter(mixed), tmp_path / "sorted", 100)
    with pytest.raises(MixedIdsError):
        IdFile.build(tmp_path / "ids", iter(mixed[::-1]), 100, 1, "ids")
    assert list(tmp_path.iterdir()) == []


def test_same_bytes_for_any_memory_and_threads(tmp_path: Path, hash_bits: int) -> None:
    size = 40_000 if hash_bits == 64 else 400
    rng = np.random.default_rng(0)
    columns = [rng.permutation(size) ** 3 - 99, pa.array([f"n{i}" for i in rng.permutation(size)], pa.large_string())]
    for which, ids in enumerate(columns):
        written = []
        for memory, threads in [(1 << 30, 1), (1 << 30, 2), (1 << 18 if hash_bits == 64 else 999, 3)]:
            folder = tmp_path / f"{which}-{memory}-{threads}"
            IdFile.build(folder / "ids", cut(ids, 5000), memory, threads, "ids")
            sorted_unique(cut(ids, 5000), folder / "sorted", memory, threads)
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            written.append({str(file.relative_to(folder)): file.read_bytes() for file in files})
        assert written[0] == written[1] == written[2]
        assert len(written[0]) == (8 - 1 if which else 4)


@pytest.mark.parametrize("name", ["key", "number32", "offsets", "text", "whole.json"])
def test_a_file_that_is_not_whole_is_not_opened(tmp_path: Path, name: str) -> None:
    ids = pa.array(["a", "b", "c"], pa.large_string())
    IdFile.build(tmp_path, [ids], 1 << 16, 1, "ids")
    assert IdFile.open(tmp_path, "ids", 1) is not None
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1])
    assert IdFile.open(tmp_path, "ids", 1) is None
    (tmp_path / name).unlink()
    assert IdFile.open(tmp_path, "ids", 1) is None
    assert IdFile.build(tmp_path, [ids], 1 << 16, 1, "ids").find(ids).tolist() == [0, 1, 2]


def test_more_ids_than_32_bits_can_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_file, "_MOST_SMALL", 2)
    ids = pa.array(["a", "b", "c"], pa.large_string())
    IdFile.build(tmp_path, [ids], 1 << 16, 1, "ids")
    assert (tmp_path / "number").stat().st_size == 3 * 8
    again = IdFile.open(tmp_path, "ids", 1)
    assert again is not None
    assert again.find(ids).tolist() == [0, 1, 2]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    IdFile.build(tmp_path, [np.arange(5)], 1 << 16, 1, "ids").remove()
    sorted_unique([np.arange(5)], tmp_path, 1 << 16).remove()
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_an_os_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda *_, **__: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    for ids in (np.arange(5), pa.array(["a", "b"], pa.large_string())):
        with pytest.raises(OSError, match="No space") as raised:
            IdFile.build(tmp_path / "ids", [ids], 1 << 16, 1, "ids")
        assert raised.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            sorted_unique([ids], tmp_path / "sorted", 1 << 16)
        assert list(tmp_path.iterdir()) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=200), st.sampled_from([0, 3, 60]), st.integers(1, 2))
def test_sort_by_key_is_a_stable_sort(values: list[int], shift: int, times: int) -> None:
    keys = np.repeat(np.array(values, dtype=np.uint64) >> np.uint64(shift), 6 * times)
    order = np.argsort(keys, kind="stable")
    found, positions = id_sorting.sort_by_key(keys, np.arange(len(keys)), 2)
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_array_equal(found, keys[order])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", ["uniform", "small", "one far away", "all the same"])
def test_sort_by_key_of_many(shape: str, threads: int) -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 50_000, dtype=np.uint64)
    if shape == "small":
        keys %= np.uint64(1000)
    if shape == "one far away":
        keys %= np.uint64(10_000)
        keys[77] = 2**64 - 1
    if shape == "all the same":
        keys[:] = keys[0]
    order = np.argsort(keys, kind="stable")
    found, positions = id_sorting.sort_by_key(keys, np.arange(len(keys)), threads)
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_array_equal(found, keys[order])


@given(st.integers(-(2**63), 2**63 - 1))
def test_unmix(value: int) -> None:
    key = id_sorting.integer_keys(np.array([value]), 1)[0]
    assert id_kernels.unmix(int(key)) == value


WATCHED = """
import sys, threading
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from largegt.graph.id_file import IdFile
from largegt.graph.sorted_ids import sorted_unique

def texts(numbers):
    mixed = pa.array(numbers * 0x1E3779B97F4A7C15 & 0x7FFFFFFFFFFFFFF).cast(pa.large_string())
    return pc.binary_join_element_wise(mixed, mixed, pa.scalar("-", pa.large_string()))

def stream(count, times=1):
    for start in range(0, count * times, 1 << 15):
        yield texts(np.arange(start, min(start + (1 << 15), count * times)) % count)

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def work(count):
    ordered = sorted_unique(stream(count, 2), folder / "sorted", memory)
    assert ordered.total == count
    file = IdFile.build(folder / "ids", ordered.chunks(1 << 15), memory, 1, "ids")
    for chunk in stream(min(count, 1 << 16)):
        assert (file.find(chunk) >= 0).all()
    ordered.remove(), file.remove()

folder, memory, peak = Path(sys.argv[1]), 32 << 20, 0
work(50_000)
before, done = anonymous(), threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
work(1_200_000)
done.set()
watcher.join()
print(peak - before, memory)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """1.2 million ids of 37 bytes: 55 MB, and in memory four times that at once."""
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    rise, memory = (int(word) for word in ran.stdout.split())
    assert rise <= memory
