"""SIGINT and SIGTERM end a command with one line that says how to go on, and the code that shells expect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from crash import Ended, Field, Stage

from run_helpers import left_in

LIMIT_S = 120


@pytest.fixture(scope="module", name="field")
def field_with_a_store(field: Field) -> Field:
    field.unbroken("ingest")
    return field


def stopped(field: Field, command: tuple[str, ...], phases: set[str], number: int) -> Ended:
    """The command, sent a signal while it is in one of these phases."""
    zygote, board = field.zygote, field.zygote.folder / "phase"
    board.write_bytes(bytes(64))
    pid = zygote.start(*command, "--json", folder=str(field.folder), tiny=True, pause_s=0.01)
    deadline = time.monotonic() + LIMIT_S
    while (phase := board.read_bytes().rstrip(b"\0").decode()) not in phases:
        assert time.monotonic() < deadline, f"never in {phases}, last in {phase}"
        time.sleep(0.001)
    os.kill(pid, number)
    return zygote.wait()


def check_words(ended: Ended, number: int, how: str) -> None:
    assert ended.code == 128 + number, ended.err
    assert re.fullmatch(f"stopped: {how}\n", ended.err), ended.err
    assert ended.out == ""


AGAIN = "run the same command again, it goes on where it stopped"
CASES = [
    ("ingest", {"write features", "sort edges"}, signal.SIGINT, AGAIN),
    ("prepare", {"commit"}, signal.SIGTERM, AGAIN),
    ("train", {"train"}, signal.SIGINT, "there is no checkpoint yet; begin again with: .* --resume --out runs/a"),
    *([
        ("train", {"save checkpoint"}, signal.SIGTERM, "there is no checkpoint yet; begin again .*"),
        ("tune", {"train"}, signal.SIGTERM, AGAIN),
    ] if "LARGEGT_LONG_TESTS" in os.environ else []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "phases", "number", "how"), CASES)
def test_stopped_and_gone_on_with(field: Field, name: str, phases: set[str], number: int, how: str) -> None:
    stage: Stage = field.known[name]
    if name == "ingest":
        (field.folder / "g").rename(field.folder / "kept")
    elif name not in field.expected:
        field.unbroken(name)
        field._clear(name)
    check_words(stopped(field, stage.command, phases, number), number, how)
    assert not list(field.folder.rglob(".*.lock"))
    field._finish(stage, stage.command)
    assert stage.content(field.folder) == field.expected[name]
    field.check_clean(name)
    if name != "ingest":
        field._clear(name)


def test_a_training_says_from_which_epoch_it_will_go_on(field: Field) -> None:
    command = (*field.known["train"].command, "--set", "train.epochs=400", "--set", "train.checkpoint_every_n_epochs=1")
    field._clear("train")
    pid = field.zygote.start(*command, "--json", folder=str(field.folder))
    file, deadline = field.folder / "runs" / "a" / "checkpoints" / "last.pt", time.monotonic() + LIMIT_S
    while not file.exists():
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.001)
    os.kill(pid, signal.SIGTERM)
    how = r"the last checkpoint is epoch (\d+); go on with: largegt train --resume --out runs/a"
    ended = field.zygote.wait()
    check_words(ended, signal.SIGTERM, how)
    lines = (field.folder / "runs" / "a" / "metrics.jsonl").read_text().splitlines()
    told = re.search(how, ended.err)
    assert told is not None
    assert int(told[1]) in (len(lines), len(lines) - 1)  # the signal may have come between the log and the checkpoint
    assert not [name for name in left_in(field.folder / "runs") if "partial" in name or "lock" in name]
    field._clear("train")


def test_a_second_signal_ends_it_at_once(python: Any) -> None:
    """Even where cleaning up takes its time."""
    script = """
import os, signal, time
from largegt.runtime.signals import install_handlers
install_handlers()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("cleaning up", flush=True)
    time.sleep(60)
"""
    process = python(script)
    assert process.stdout.readline() == "cleaning up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_native_code(python: Any, number: int) -> None:
    """The first one waits for Python code to run. A call by PyDLL keeps the GIL, so no other thread runs either."""
    script = """
import ctypes
from largegt.runtime.signals import install_handlers
install_handlers()
lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
lock(mutex)
print("in native code", flush=True)
lock(mutex)
"""
    process = python(script)
    assert process.stdout.readline() == "in native code\n"
    while _state(process.pid) != "S":
        time.sleep(0.01)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(number)
    assert process.wait(timeout=30) == -number


def test_a_launched_process_ends_with_its_parent(python: Any) -> None:
    child = (
        "import os, time; from largegt.runtime.signals import end_with_parent; "
        "end_with_parent(int(os.environ['PARENT'])); "
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    parent = (
        "import os, subprocess, sys; os.environ['PARENT'] = str(os.getpid()); "
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    process = python(parent)
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while _is_alive(pid):
        assert time.monotonic() < deadline, "it outlives its parent"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return _state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state(pid: int) -> str:
    """R running, S asleep, Z gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
