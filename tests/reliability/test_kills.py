"""SIGKILL at random moments: the same command goes on to the same bytes. bench/crash.py does hundreds of these."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from crash import Field, Zygote, stages

from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import write_text_atomically
from largegt.training.trainer import train
from run_helpers import array_path, easy_store, final, left_in, one_thread, small, stopped_at  # noqa: F401

KILLS = {"ingest": 3, "prepare": 3, "train": 2, "predict": 2}


@pytest.mark.parametrize("name", KILLS)
def test_killed_and_gone_on_with(field: Field, name: str) -> None:
    """The stages come in order: each needs what those before have left."""
    field.unbroken(name)
    rng, kills, rounds = random.Random(name), 0, 0
    while kills < KILLS[name]:
        kills += len(field.round(name, rng))
        rounds += 1
        assert rounds < 20, "it is never alive when it is to be killed"


def test_the_harness_sees_what_differs(zygote: Zygote, tmp_path: Path) -> None:
    """A byte that is not the same, and a file that is left over, are found."""
    field = Field(tmp_path / "f", zygote)
    field.unbroken("ingest")
    content = stages()["ingest"].content(field.folder)
    assert content == field.expected["ingest"]
    file = array_path(field.folder / "g", "labels")
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    assert stages()["ingest"].content(field.folder) != content
    (field.folder / ".g.partial").mkdir()
    with pytest.raises(AssertionError, match=r"\.g\.partial"):
        field.check_clean("ingest")


# moments that a random kill seldom meets ---------------------------------------------------------------------------


def _write(path: Path, values: list[int], replace: bool = False) -> None:
    with ArrayWriter(path, "store", replace=replace, identity=values) as writer:
        writer.save("values", np.array(values))
        writer.finish({})


def test_everything_is_on_the_disk_before_a_version_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut keeps what was flushed: arrays, the old manifest's second name, the names of both, and only then the
    new manifest."""
    _write(tmp_path / "g", [1])
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append(re.sub(r"partial-\d+$", "partial", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        real_sync(descriptor)

    def replace(source: str, target: str) -> None:
        if Path(target).name == "manifest.json":
            done.append("committed")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    _write(tmp_path / "g", [2], replace=True)
    assert done == [
        "values.npy", "versions", "g", ".manifest.json.partial", "committed", "g", tmp_path.name
    ]  # fmt: skip


def test_a_run_killed_while_it_is_overwritten_is_overwritten_again(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    train(store, small("train.epochs=1"), tmp_path / "run")
    with stopped_at(shutil, "rmtree", 1):
        train(store, small("train.epochs=1"), tmp_path / "run", overwrite=True)
    train(store, small("train.epochs=1"), tmp_path / "run", overwrite=True)
    with stopped_at(os, "replace", 1):  # of the first file of a new run: its name is not there yet
        train(store, small("train.epochs=1"), tmp_path / "new")
    train(store, small("train.epochs=1"), tmp_path / "new")
    assert final(tmp_path / "new") == final(tmp_path / "run")
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_half_of_a_small_file_is_removed_when_its_process_is_gone(tmp_path: Path) -> None:
    """The next who writes the file removes it; that of a process that is at it now is left alone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        (tmp_path / f".note [1].partial-{pid}").write_text("ha")
    (tmp_path / f".note [2].partial-{gone.pid}").write_text("another's")
    write_text_atomically(tmp_path / "note [1]", "half")
    assert left_in(tmp_path) == [f".note [1].partial-{os.getppid()}", f".note [2].partial-{gone.pid}", "note [1]"]
