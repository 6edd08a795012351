"""A disk that is full, and one that cannot be written: one line, nothing half-made that opens, and then it goes on."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from crash import Ended, Field, Zygote

LONG = "LARGEGT_LONG_TESTS" in os.environ
"""Whether to try all of it, which takes minutes."""
STAGES = ("ingest", "prepare", "train", "predict")
FULL = re.compile(r"error: (no space left on the disk that holds .+ \(.*are free\)|.+ needs .+, .+ are free): .+\n")


@pytest.fixture(scope="module", name="field")
def field_with_everything(field: Field) -> Field:
    """What the stages make, on a disk with room."""
    for name in STAGES:
        field.unbroken(name)
    return field


def _refused(ended: Ended, words: Any) -> None:
    assert ended.code == 2, (ended.code, ended.out, ended.err)
    assert re.fullmatch(words, ended.err), ended.err
    assert "Traceback" not in ended.err


def _is_there(folder: Path, name: str) -> bool:
    """Whether what a stage makes can be opened."""
    made = {"ingest": "g/manifest.json", "prepare": "g/prepared/*/manifest.json", "train": "runs/a/metrics.json",
            "predict": "p.parquet"}  # fmt: skip
    return bool(list(folder.glob(made[name])))


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("file_bytes", [600, 2000, 9000] if LONG else [2000])
def test_files_that_may_not_grow(field: Field, name: str, file_bytes: int) -> None:
    """Every system can limit the size of a process's files: writes then fail in the midst, as on a full disk."""
    stage = field.known[name]
    field._clear(name)
    ended = field.zygote.run(*stage.command, "--json", folder=str(field.folder), file_bytes=file_bytes, tiny=True)
    if ended.code:
        _refused(ended, FULL)
        assert not _is_there(field.folder, name)
        field._finish(stage, stage.command)
    else:
        assert file_bytes == 9000, "it should have needed more than that"
    assert stage.content(field.folder) == field.expected[name]
    field.check_clean(name)


@pytest.mark.parametrize("name", STAGES)
def test_a_disk_that_is_full_until_there_is_room(field: Field, mounting: Zygote, tmp_path: Path, name: str) -> None:
    """A real disk of a few kilobytes, which is made larger until the command is content."""
    (tmp_path / "disk").mkdir()
    mounting.shell(f"mount -t tmpfs -o size=4m none {tmp_path}/disk")
    try:
        for needed in field.known[name].needs:
            mounting.shell(f"cp -r {field.folder / needed} {tmp_path}/disk/")
        if name == "prepare":
            mounting.shell(f"rm -r {tmp_path}/disk/g/prepared")
        inside = Path(f"/proc/{mounting.pid}/root{tmp_path}/disk")
        used = sum(-(-file.stat().st_size // 4096) * 4096 for file in inside.rglob("*") if file.is_file())
        mounting.shell(f"mount -o remount,size={used + 8192} {tmp_path}/disk")
        command, refusals = field.known[name].command, 0
        sizes = iter((8, 24, 60, 150, 400, 4000) if LONG else (60, 4000))
        while (ended := mounting.run(*command, "--json", folder=f"{tmp_path}/disk", tiny=True)).code:
            if "--resume goes on with it" in ended.err:
                command = field.known[name].resume
                continue
            _refused(ended, FULL)
            refusals += 1
            assert not _is_there(inside, name)
            mounting.shell(f"mount -o remount,size={used + next(sizes) * 1024} {tmp_path}/disk")
        assert refusals
        found, expected = field.known[name].content(inside), dict(field.expected[name])
        found.pop("config.toml", None), expected.pop("config.toml", None)  # it says where the run was
        assert found == expected
    finally:
        mounting.shell(f"umount {tmp_path}/disk")


@pytest.mark.parametrize("name", STAGES)
def test_a_folder_that_may_not_be_written(field: Field, tmp_path: Path, name: str, read_only: Any) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    for needed in field.known[name].needs:
        shutil.copytree(field.folder / needed, folder / needed)
    if name == "prepare":
        shutil.rmtree(folder / "g" / "prepared")
    before = sorted(folder.rglob("*"))
    with read_only(folder) as zygote:
        ended = zygote.run(*field.known[name].command, "--json", folder=str(folder), tiny=True)
    where = "g/prepared" if name == "prepare" else ".*"
    _refused(
        ended, rf"error: cannot write to {where}.*: (Read-only file system|Permission denied); make it writable .*\n"
    )
    assert sorted(folder.rglob("*")) == before
