"""What a command prints: names from data cannot steer the terminal, hints can be pasted, and standard output may be
full or gone."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from largegt.cli import show
from largegt.config.schema import Config
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.runtime.progress import console_progress
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import HOSTILE_COLUMN, SMALL, Cli, homophilous, one_thread, table_store, thirds  # noqa: F401

STEERING = "\x1b[31m\x9b32m\x00\u202e\u2066[red]x[/red]"
SHOWN = r"\x1b[31m\x9b32m\x00\u202e\u2066[red]x[/red]"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose ids, classes, graph name and folder try to steer a terminal; ids are formulas, too."""
    folder = tmp_path_factory.mktemp("steering")
    edges, features, classes = homophilous()
    ids = np.array([f"={number}{STEERING}" for number in range(150)])
    names = np.array([f"@class {number} {STEERING}" for number in range(3)])
    source = arrays(ids[edges], features, names[classes], thirds(150), node_ids=ids, name=f"g {STEERING}")
    store = ingest(source, folder / "g $(id)\x1b[1m", threads=1)
    return train(store, Config.from_recipe("default", [*SMALL, "train.epochs=1"]), folder / "-run\x1b[1m")


def _is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.slow
def test_no_name_steers_the_terminal(run: Run, lg: Cli, tmp_path: Path) -> None:
    node = f"=7{STEERING}"
    for command in (
        ("inspect", run.store_path), ("inspect", run.path), ("evaluate", run.path),
        ("predict", run.path, "--out", tmp_path / "p\x1b.parquet"),
        ("explain", run.path, "--node", node), ("embed", run.path, "--nearest", node),
        ("report", run.path, "--out", tmp_path / "r\x1b.html", "--no-analysis"),
        ("predict", run.path, "--out", tmp_path / "q.parquet", "--node", f"none {STEERING}"),
    ):  # fmt: skip
        code, out, err = lg(*command)
        assert code == (2 if "--node" in command and command[0] == "predict" else 0), err
        assert _is_plain(out), command
        assert _is_plain(err), command
        if command[0] in ("explain", "embed"):
            assert f"=7{SHOWN}" in out


def test_the_table_of_columns_is_safe_and_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 letters of width: names that steer are escapes, rich's markup is text, a count that was not made is empty,
    usual names are on one line, and long ones are cut."""
    monkeypatch.setenv("COLUMNS", "80")
    plain = {"kind": "category", "used_as": "hashed categories, 64 wide", "missing": 1_234_567, "notes": []}
    columns = [
        {**plain, "column": "transaction_count", "distinct": None},
        {**plain, "column": STEERING, "distinct": 7, "notes": [f"looks like {STEERING}"]},
        {**plain, "column": "x" * 1000, "distinct": 123_456_789},
        *({**plain, "column": f"c{number}", "distinct": 1, "notes": ["a note"]} for number in range(100)),
    ]
    show.Result(None, show.columns("columns", columns)).show()
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    assert f"note: {SHOWN}: looks like {SHOWN}" in lines
    table = lines[: next(at for at, line in enumerate(lines) if line.startswith("note"))]
    assert max(map(len, table)) <= 80
    [row] = [line.split() for line in table if "transaction_count" in line]
    assert row[:2] == ["transaction_count", "category"]
    assert row[-1] == "1,234,567"
    assert "[red]" in "".join(table)
    assert sum("xx" in line for line in table) <= 6
    assert any("43 more" in line for line in table)
    assert lines[-1].startswith("… 41 more notes")


def test_a_column_whose_values_were_not_counted_is_inspected(lg: Cli, tmp_path: Path) -> None:
    table_store(tmp_path / "g")
    done = lg("inspect", tmp_path / "g")
    assert done.code == 0, done.err
    assert "since" in done.out
    assert HOSTILE_COLUMN not in done.out


def test_json_escapes_what_steers_a_terminal(run: Run, lg: Cli) -> None:
    result = lg("inspect", run.store_path, "--json")
    assert _is_plain(result.out)
    assert result.json["name"] == f"g {STEERING}"


def test_stages_and_warnings_do_not_steer_the_terminal(
    run: Run, lg: Cli, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as terminal:
        for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("COLUMNS", "200")):
            terminal.setenv(name, value)
        with console_progress() as show:
            show(f"train: {STEERING}", 1, 2)
    shown = capsys.readouterr().err
    assert SHOWN in shown
    assert not set("\x9b\x00\u202e") & set(shown)
    # a preparation that is damaged is made again, with a warning that names its folder
    [file] = (run.store_path / "prepared").glob("local_nodes/*/local_rows-*.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    monkeypatch.setenv("LARGEGT_CHECK", "all")
    code, _, err = lg("evaluate", run.path)
    assert code == 0
    assert err.startswith("warning: ")
    assert _is_plain(err)


def test_hints_can_be_pasted_into_a_shell(run: Run, lg: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = lg("train", run.store_path, "--out", "./-my runs/it's", *_set("train.epochs=1", *SMALL)).out
    command = shlex.split(out.rpartition("Next: ")[2])
    assert command == ["largegt", "predict", "./-my runs/it's", "--out", "predictions.parquet"]
    err = lg("predict", tmp_path / "no run").err
    assert f"--out {shlex.quote(str(tmp_path / 'no run'))}" in err


def _set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_formulas_are_written_as_they_are_or_made_text(run: Run, lg: Cli, tmp_path: Path) -> None:
    def rows(*options: Any) -> list[dict[str, str]]:
        assert lg("predict", run.path, "--out", tmp_path / "p.csv", "--overwrite", *options).code == 0
        return list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text(encoding="utf-8"))))

    plain, safe = rows(), rows("--csv-safe")
    assert plain[0]["node"].startswith("=0")
    assert [row["node"] for row in safe] == [f"'{row['node']}" for row in plain]
    assert [row["label"] for row in safe] == [f"'{row['label']}" for row in plain]
    assert [row["probability"] for row in safe] == [row["probability"] for row in plain]
    code, _, err = lg("predict", run.path, "--out", tmp_path / "p.parquet", "--csv-safe")
    assert (code, "--csv-safe is for .csv files" in err) == (2, True)


# standard output that cannot be written, words that are no text, no threads ---------------------------------------


def _largegt(*words: Any, stdout: Any, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "largegt", *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False, **more)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("verb", ["--version", "--help", "config", "config --json", "datasets", "inspect", "predict"])
def test_a_full_disk_behind_standard_output_is_one_line(run: Run, tmp_path: Path, verb: str) -> None:
    words: list[Any] = verb.split()
    if verb in ("inspect", "predict"):
        words += [run.path, *(["--out", tmp_path / "p.csv"] if verb == "predict" else [])]
    with open("/dev/full", "wb") as full:
        done = _largegt(*words, stdout=full)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: cannot write the output: No space left on device; free some space or send it elsewhere\n"
    )
    if verb == "predict":
        assert (tmp_path / "p.csv").exists()


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_silently() -> None:
    read, write = os.pipe()
    os.close(read)
    done = _largegt("config", "--json", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_words_and_folders_that_are_not_utf8_are_one_line(run: Run, tmp_path: Path) -> None:
    done = _largegt("inspect", os.fsencode(tmp_path) + b"/g\xff", stdout=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.endswith(b"g\\udcff is not valid UTF-8: rename it, or go to its folder by another name\n")
    folder = os.fsencode(tmp_path) + b"/here\xff"
    shutil.copytree(run.store_path, Path(os.fsdecode(folder)) / "g")
    words = ["train", "g", "--out", "run", *_set(*SMALL, "train.epochs=1")]
    done = _largegt(*words, stdout=subprocess.DEVNULL, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error: ")
    assert b"is not valid UTF-8" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_no_threads_left_is_one_line(run: Run, lg: Cli, tmp_path: Path) -> None:
    """Threads whose stacks do not fit into the address space are refused by the system, as beyond `ulimit -u`."""
    before, stack = resource.getrlimit(resource.RLIMIT_AS), threading.stack_size(1 << 33)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 31), before[1]))
    try:
        code, out, err = lg("train", run.store_path, "--out", tmp_path / "run", *_set(*SMALL))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        threading.stack_size(stack)
    assert (code, out) == (2, "")
    assert err == (
        "error: the system refuses another thread or process: end other programs, or raise the limit (ulimit -u)\n"
    )


# files of a run that a stranger wrote ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ['"x"', "[]", "null", "true", "{}", "1" + "0" * 400, '{"a": 1}', "[" * 50_000])
@pytest.mark.parametrize(
    ("file", "key"),
    [("metrics.json", "valid"), ("metrics.json", "epochs"), ("metrics.jsonl", "epoch"), ("metrics.jsonl", "train_s")],
)
def test_metrics_of_the_wrong_type_are_one_line(
    run: Run, lg: Cli, tmp_path: Path, file: str, key: str, value: str
) -> None:
    if (key, value) == ("valid", "{}"):
        value = '{"accuracy": [0.5]}'
    elif (key, value) == ("valid", '{"a": 1}'):
        value = '{"a": {"b": 1}}'
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.toml", "metrics.json", "metrics.jsonl"):
        (folder / name).write_bytes((run.path / name).read_bytes())
    entry = json.loads((folder / file).read_text())
    text = json.dumps(entry | {key: "HERE"}).replace('"HERE"', value)
    (folder / file).write_text(text + "\n")
    for words in (("inspect", folder), ("report", folder, "--out", tmp_path / "r.html", "--no-analysis")):
        code, out, err = lg(*words)
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert file in err
