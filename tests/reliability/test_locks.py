"""One process at a time: who comes second is told who holds it, and a killed holder holds nothing."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt.io.locks as home
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import DiskError, InputError
from largegt.io.array_writer import ArrayWriter
from largegt.io.locks import HeldError, Lock, check_free
from largegt.preprocessing.cache_key import prepared_path
from largegt.preprocessing.pipeline import prepare
from largegt.training.trainer import train
from run_helpers import Cli, array_path, easy_store, left_in, logged, small

HOLD = """
import sys, time
from largegt.io.locks import Lock
with Lock(sys.argv[1], "painting"):
    print("held", flush=True)
    time.sleep(600)
"""
SET = [part for item in ("prepare.local_nodes.k=3", "train.epochs=1", "model.hidden_dim=8") for part in ("--set", item)]


@pytest.fixture
def holder(python: Any) -> Any:
    """`holder(path)`: a process that holds a path until it is ended."""

    def hold(path: Path) -> Any:
        process = python(HOLD, path)
        assert process.stdout.readline() == "held\n"
        return process

    return hold


def test_the_second_is_told_who_was_first(tmp_path: Path, holder: Any) -> None:
    process = holder(tmp_path / "new" / "g")
    begin = time.monotonic()
    with pytest.raises(HeldError) as refused:
        Lock(tmp_path / "new" / "g", "writing")
    assert time.monotonic() - begin < 5
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    said = rf"another process \(pid {process.pid} on .+, since {when}\) is writing .*new/g: wait for it or stop it, .*"
    assert re.fullmatch(said, str(refused.value))
    with pytest.raises(HeldError):
        check_free(tmp_path / "new" / "g")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_held_is_free(tmp_path: Path, holder: Any, number: int) -> None:
    process = holder(tmp_path / "g")
    process.send_signal(number)
    process.wait()
    assert (tmp_path / ".g.lock").exists() is (number == signal.SIGKILL or process.returncode < 0)
    check_free(tmp_path / "g")
    with Lock(tmp_path / "g"):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".g.lock").read_text()
    assert left_in(tmp_path) == []


def test_a_lock_leaves_no_trace(tmp_path: Path) -> None:
    with Lock(tmp_path / "a" / "b" / "g") as lock:
        assert left_in(tmp_path) == ["a", "a/b", "a/b/.g.lock"]
        lock.release()
        assert left_in(tmp_path) == []
    with Lock(tmp_path / "a" / "g"):
        (tmp_path / "a" / "kept").touch()
    assert left_in(tmp_path) == ["a", "a/kept"]


def test_a_lock_that_was_removed_while_it_was_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder removes the file between our opening and our locking it: then it locks nothing."""
    real, opened = os.open, []

    def open_late(path: Any, *rest: Any) -> int:
        descriptor = real(path, *rest)
        if str(path).endswith(".g.lock") and not opened:
            os.unlink(path)
            opened.append(path)
        return descriptor

    monkeypatch.setattr(os, "open", open_late)
    with Lock(tmp_path / "g"):
        assert opened
        with pytest.raises(HeldError):
            Lock(tmp_path / "g")


def test_many_at_once_and_never_two_inside(tmp_path: Path, python: Any) -> None:
    """Four processes take and release the lock as fast as they can. Each adds one to a number, not atomically."""
    work = """
import sys, time
from pathlib import Path
from largegt.io.locks import HeldError, Lock
number, done = Path(sys.argv[1]), 0
while done < 25:
    try:
        with Lock(number):
            now = int(number.read_text())
            time.sleep(0.0005)
            number.write_text(str(now + 1))
            done += 1
    except HeldError:
        pass
"""
    (tmp_path / "number").write_text("0")
    processes = [python(work, tmp_path / "number") for _ in range(4)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    assert (tmp_path / "number").read_text() == "100"


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(home.fcntl, "flock", refuse)
    with logged("cannot be locked .* one process at a time"), Lock(tmp_path / "g"):
        pass


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return easy_store(tmp_path_factory.mktemp("locks") / "g").path


def test_every_verb_that_writes_is_refused(store: Path, tmp_path: Path, lg: Cli) -> None:
    """A second ingest, prepare, train, tune or predict into the same place ends at once, and changes nothing."""
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2]]))
    run = train(store, small("train.epochs=1"), tmp_path / "made")
    config = Config.from_recipe("default", ["prepare.local_nodes.k=3"])
    prepared = prepared_path(GraphStore.open(store), config.preparation)
    verbs = {
        tmp_path / "new": ["ingest", "--edges", tmp_path / "e.npy", "--out", tmp_path / "new"],
        prepared: ["prepare", store, "--set", "prepare.local_nodes.k=3", "--no-wait"],
        run.path: ["train", "--resume", "--out", run.path],
        tmp_path / "run": ["train", store, "--out", tmp_path / "run", *SET],
        tmp_path / "tune": ["tune", store, "--out", tmp_path / "tune", *SET],
        tmp_path / "p.csv": ["predict", run.path, "--out", tmp_path / "p.csv"],
    }
    for path, arguments in verbs.items():
        before = left_in(tmp_path)
        with Lock(path):
            code, _, err = lg(*arguments, "--json")
        assert code == 2, arguments
        assert re.fullmatch(rf"error: another process \(pid {os.getpid()} on .*\n", err), err
        assert left_in(tmp_path) == before


def test_a_folder_that_appears_while_the_lock_is_taken_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Lock.__init__

    def late(lock: Lock, *args: Any, **rest: Any) -> None:
        real(lock, *args, **rest)
        monkeypatch.undo()
        lock.release()
        with ArrayWriter(tmp_path / "f", "store") as first:
            first.save("a", np.arange(3))
            first.finish({"who": "first"})
        real(lock, *args, **rest)

    monkeypatch.setattr(Lock, "__init__", late)
    with pytest.raises(InputError, match="already exists"):
        ArrayWriter(tmp_path / "f", "store")
    assert left_in(tmp_path) == ["f", f"f/{array_path(tmp_path / 'f', 'a').name}", "f/manifest.json"]


def test_a_folder_that_another_process_commits_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arrays are in place and its manifest is not yet: that is no damage."""
    graph, config, real, committed = easy_store(tmp_path / "g"), small().preparation, ArrayWriter._link_arrays, []

    def place(writer: ArrayWriter, *args: Any) -> None:
        real(writer, *args)
        before = left_in(tmp_path)
        with pytest.raises(HeldError):
            prepare(graph, config, wait=False)
        assert left_in(tmp_path) == before
        committed.append(writer.path)

    monkeypatch.setattr(ArrayWriter, "_link_arrays", place)
    prepare(graph, config)
    assert len(committed) == 5, "four stages, and the folder that names them"


def test_a_full_disk_leaves_no_lock(tmp_path: Path) -> None:
    """A file that may not grow fails as one on a full disk does: it is made, and then nothing can be written to it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(DiskError, match="no space left"):
            Lock(tmp_path / "a" / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_in(tmp_path) == []
