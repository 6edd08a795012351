"""Bad input: whatever a user gives is taken rightly or refused in a line; never a traceback, a hang or a wrong result.

Properties over generated input, every fault that was found once, and some hundred cases of the fuzz harness, whose
thousands are run by hand: python bench/fuzz.py --cases 50000.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from largegt.config.overrides import parse_overrides
from largegt.config.schema import Config, IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError, LargeGTError, machine_refusal
from run_helpers import Cli

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from fuzzing.cases import BUG, Target, fault_of_message, run_case
from fuzzing.pool import Limits, fuzz, shrunk
from fuzzing.targets import TARGETS

few = settings(
    max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
WORDS = st.text(st.sampled_from("0019xXeE.-+ab:é🦜,\"'NnUuLl_/"), min_size=1, max_size=6)


@contextlib.contextmanager
def refused_well() -> Iterator[None]:
    """Inside, all may go well, or an error says in one readable line what is wrong."""
    said = "a line of text"
    with contextlib.suppress(LargeGTError):
        try:
            yield
        except LargeGTError as error:
            said = str(error)
            raise
    assert not fault_of_message(said), said


def store_of(folder: Path, edges: Any, **parts: Any) -> GraphStore:
    return ingest(sources.files(edges, **parts), folder / "store", IngestConfig(), threads=1, overwrite=True)


def all_ids(store: GraphStore) -> list[Any]:
    return store.ids_of(np.arange(store.num_nodes))


def write_csv(file: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def ring(ids: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(one, ids[at - 1]) for at, one in enumerate(ids)]


# properties -------------------------------------------------------------------------------------------------------


@few
@given(st.lists(WORDS, min_size=3, max_size=6, unique=True))
def test_ids_of_a_csv_come_back_as_they_were_written(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        edges = write_csv(folder / "edges.csv", ["source", "target"], ring(ids))
        nodes = write_csv(folder / "nodes.csv", ["id", "f"], [(one, 1) for one in ids])
        if any(_is_fraction(one) for one in ids) and all(_is_number(one) for one in ids):
            with pytest.raises(InputError, match="fraction"):
                store_of(folder, edges, nodes=nodes)
            return
        store = store_of(folder, edges, nodes=nodes)
        assert [str(one) for one in all_ids(store)] == ids
        assert store.num_edges == len(ids)


def _is_fraction(text: str) -> bool:
    return _is_number(text) and "." in text


def _is_number(text: str) -> bool:
    """What a CSV reader takes for a number or for nothing."""
    try:
        return "_" not in text and math.isfinite(float(text) + 1)
    except ValueError:
        return text in pacsv.ConvertOptions().null_values


@few
@given(st.lists(st.integers(-(2**70), 2**70), min_size=2, max_size=5, unique=True), st.sampled_from(["i", "u"]))
def test_ids_of_an_array_are_exact_or_refused(numbers: list[int], kind: str) -> None:
    for dtype in (f"<{kind}8", f">{kind}8", "O"):
        with tempfile.TemporaryDirectory() as scratch, refused_well():
            try:
                edges = np.array(ring(numbers), dtype=dtype).T
            except OverflowError:
                continue
            store = ingest(sources.arrays(edges), Path(scratch) / "store", threads=1)
            assert sorted(all_ids(store)) == sorted(numbers)


@few
@given(st.sampled_from([".csv", ".tsv", ".csv.gz", ".parquet", ".npy", ".npz"]), st.binary(max_size=60), st.booleans())
def test_any_bytes_as_a_file(suffix: str, data: bytes, has_magic: bool) -> None:
    magic = {".parquet": b"PAR1", ".npy": b"\x93NUMPY\x01\x00", ".npz": b"PK\x03\x04", ".csv.gz": b"\x1f\x8b\x08"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = folder / f"edges{suffix}"
        file.write_bytes(magic.get(suffix, b"") * has_magic + data)
        np.save(folder / "e.npy", np.array([[0, 1], [1, 2]]))
        for edges, more in ((file, {}), (folder / "e.npy", {"features": file}), (folder / "e.npy", {"labels": file})):
            with refused_well():
                store_of(folder, edges, **more)


@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        ("ingest", 90),
        ("manifest", 60),
        ("recipe", 100),
        ("override", 250),
        ("cli", 25),
        ("checkpoint", 20),
        ("hostile", 40),
    ],
)
def test_some_cases_of_the_fuzz_harness(kind: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    target = TARGETS[kind](tmp_path)
    wrong = [one for number in range(cases) if (one := run_case(target, kind, 77, number)).verdict == BUG]
    assert not wrong, "\n".join(f"{kind}:{one.number} {one.signature}\n{one.detail}" for one in wrong[:3])


# the harness finds what it is made to find ------------------------------------------------------------------------


def _faulty(fault: str) -> type[Target]:
    class Faulty:
        def __init__(self, folder: Path) -> None:
            pass

        def run(self, rng: Random, steps: Sequence[Random]) -> str:
            if fault == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "hang":
                time.sleep(60)
            elif fault == "memory":
                np.ones(1 << 28, dtype=np.uint8)
            elif fault == "bug" and len(steps) == 1:
                raise KeyError("x")
            elif fault == "silent":
                raise InputError("")
            return "right"

    return Faulty


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("crash", "died with code -9"),
        ("hang", "no answer in time"),
        ("memory", "memory"),
        ("silent", "says nothing"),
    ],
)
def test_the_harness_finds_and_survives(fault: str, signature: str) -> None:
    limits = Limits(case_s=0.5 if fault == "hang" else 120, growth_bytes=1 << 26)
    outcomes = list(fuzz("none", _faulty(fault), 0, range(2), 1, limits))
    assert [outcome.number for outcome in outcomes] == [0, 1]
    assert [outcome.verdict for outcome in outcomes] == [BUG, BUG]
    assert signature in outcomes[0].signature


def test_the_harness_shrinks_a_case() -> None:
    signature = "KeyError in outside the package"
    assert len(shrunk("none", _faulty("bug"), 0, 0, [0], signature, Limits())) == 1
    assert len(shrunk("none", _faulty("silent"), 0, 0, [0, 1, 2], "message says nothing: InputError", Limits())) == 0


# faults that were found, each kept --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        ["007", "7", "70"], ["0x1F", "0x20", "31"], ["2020-01-01", "2020-01-02", "2020-01-03"], ["-0", "0", "1"],
        ["10:20:00", "10:30:00", "1"], ["9223372036854775808", "18446744073709551615", "3"], ["+1", "+2", "+3"],
        ["NA", "null", "nan"], ["true", "false", "1"],
    ],
)  # fmt: skip
def test_ids_that_look_like_something_else_stay_text(tmp_path: Path, ids: list[str]) -> None:
    edges = write_csv(tmp_path / "edges.csv", ["source", "target"], ring(ids))
    assert sorted(map(str, all_ids(store_of(tmp_path, edges)))) == sorted(ids)
    nodes = write_csv(tmp_path / "nodes.tsv.csv", ["id", "f"], [(one, 1) for one in ids])
    labels = write_csv(tmp_path / "labels.csv", ["id", "label"], [(one, at + 0.5) for at, one in enumerate(ids)])
    splits = write_csv(tmp_path / "splits.csv", ["id", "split"], [(one, "train") for one in ids])
    store = store_of(tmp_path, edges, nodes=nodes, labels=labels, splits=splits)
    assert all_ids(store) == ids
    assert store.task == "regression", "fractions are not text because the ids are"
    assert np.asarray(store.labels).tolist() == [0.5, 1.5, 2.5]
    assert store.nodes_of(ids[::-1]).tolist() == [2, 1, 0]


def test_padded_ids_are_not_taken_for_numbers_elsewhere(tmp_path: Path) -> None:
    edges = write_csv(tmp_path / "edges.csv", ["source", "target"], [("007", "8"), ("8", "9")])
    pq.write_table(pa.table({"id": [7, 8, 9], "f": [1.0, 2.0, 3.0]}), tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match="'007' is not among the 3 ids"):
        store_of(tmp_path, edges, nodes=tmp_path / "nodes.parquet")


def test_padded_classes_keep_their_zeros(tmp_path: Path) -> None:
    edges = write_csv(tmp_path / "edges.csv", ["source", "target"], ring([0, 1, 2]))
    nodes = write_csv(tmp_path / "nodes.csv", ["id", "f", "label"], [(0, 1, "01"), (1, 1, "02"), (2, 1, "10")])
    assert store_of(tmp_path, edges, nodes=nodes).classes == ["01", "02", "10"]


@pytest.mark.parametrize("head", ["\ufeff", "\ufeff# a comment\n", "# a comment\n"])
@pytest.mark.parametrize("names", ["source,target\n", ""])
def test_a_mark_and_a_comment_before_a_table(tmp_path: Path, head: str, names: str) -> None:
    (tmp_path / "edges.csv").write_text(f"{head}{names}0,1\r\n1,2\r\n", encoding="utf-8")
    store = store_of(tmp_path, tmp_path / "edges.csv")
    assert (store.num_nodes, store.num_edges) == (3, 2)


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_text_that_is_no_utf8_is_refused(tmp_path: Path, is_dictionary: bool) -> None:
    places = pa.py_buffer(np.array([0, 1, 3], dtype=np.int32))
    text: Any = pa.Array.from_buffers(pa.string(), 2, [None, places, pa.py_buffer(b"a\xff\xfe")])
    text = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), text) if is_dictionary else text
    pq.write_table(pa.table({"source": text, "target": text}), tmp_path / "edges.parquet")
    with pytest.raises(InputError, match=r"UTF-?8|unicode"):
        store_of(tmp_path, tmp_path / "edges.parquet")


def test_letters_beyond_unicode_are_refused(tmp_path: Path) -> None:
    names = np.array([["a", "b"], ["b", "c"]], dtype="<U1")
    names.view("<u4")[0, 0] = 0x110001
    for given_parts in ({"edge_index": names}, {"edge_index": np.array([[0], [1]]), "labels": names[0]}):
        with pytest.raises(InputError, match="must be all numbers or all text"):
            ingest(sources.arrays(**given_parts), tmp_path / "store", threads=1)


def test_arrays_in_another_byte_order(tmp_path: Path) -> None:
    labels = np.array([2, 0, 1], dtype=">i4")
    store = ingest(sources.arrays(np.array([[0, 1], [1, 2]], dtype=">i8"), labels=labels), tmp_path / "a", threads=1)
    assert [store.classes[code] for code in np.asarray(store.labels)] == [2, 0, 1]
    with pytest.raises(InputError, match="64 bits"):
        ingest(sources.arrays(np.array([[2**63, 1], [1, 2]], dtype=">u8")), tmp_path / "b", threads=1)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epochs=true", "true is not a value"),
        ("model.fanouts=[true, 5]", "true is not a value"),
        ("train.epochs=1\nseed = 3", "cannot be '1\\\\nseed = 3'"),
        ("train.epochs=" + "[" * 5000, "cannot be"),
        ("train.epochs=1" + "0" * 5000, "cannot be"),
        ("train.epochs=9223372036854775808", "64 bits"),
        ("model.hidden_dim=1000000", "less than or equal"),
        ("train.wandb_project=\udcff", "no text"),
        ("train.max_time=" + "9" * 400 + "h", "longer than anything"),
    ],
)
def test_overrides_that_were_taken_or_broke(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        Config.from_recipe("default", ["model.name=gat", override])
    assert not fault_of_message(str(raised.value))


def test_recipes_that_broke(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for text in ("a = " + "[" * 5000, "a = 1" + "0" * 5000, "a = \x00"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="is not valid TOML"):
            Config.from_recipe(file)
    for name in ("x" * 300, "a\\u0000b"):
        file.write_text(f'extends = "{name}"')
        with pytest.raises(ConfigError, match="no recipe"):
            Config.from_recipe(file)
    odd = parse_overrides(Config, ['train.wandb_project="a\\u007fb\\n\\"c"'])
    file.write_text(odd.to_toml(), encoding="utf-8")
    assert Config.from_recipe(file) == odd


def test_a_message_is_one_readable_line_of_moderate_length() -> None:
    assert str(InputError("a\nb\x1b[31mc\ud800…é")) == "a\\nb\\x1b[31mc\\ud800…é"
    assert 1000 < len(str(InputError("x" * 10**6))) < 1300


def test_what_the_machine_refuses_is_said_in_a_line() -> None:
    assert "not enough memory" in machine_refusal(MemoryError("Unable to allocate 4.00 GiB"))
    for verb, has_batches in {"ingest": False, "prepare": False, "predict": False, "train": True, "tune": True}.items():
        advice = machine_refusal(MemoryError(), verb)
        assert ("train.batch_size" in advice, "`memory`" in advice) == (has_batches, not has_batches), advice
    assert "name too long" in machine_refusal(OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000))
    assert machine_refusal(FileNotFoundError(errno.ENOENT, "No such file", "x")) == "", "that would be a bug of ours"
    assert machine_refusal(KeyError("x")) == ""


def test_the_command_line_takes_odd_words(lg: Cli, tmp_path: Path) -> None:
    for words in (
        ["inspect", "x" * 5000],
        ["inspect", "a\nb"],
        ["config", "\u202e"],
        ["train", "--recipe", "y" * 5000],
    ):
        result = lg(*words)
        assert result.code == 2
        assert result.err.startswith(("error: ", "Usage")), result.err
        assert "Traceback" not in result.err
