"""A flipped byte or a cut-off file in a store, a preparation or a run is found and named before it is used."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from largegt.cli.verification import verify
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import FormatError
from largegt.inference.predictor import predict
from largegt.io import checksums
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.checksums import BlockDigests, file_checksum
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.run_checksums import replacing
from largegt.training.trainer import train
from run_helpers import FULL, array_path, easy_store, logged, one_thread, prepared_folder, stage_array, stopped_at  # noqa: F401

RUN_FILES = ("model.safetensors", "config.toml")
_BENCH = Path(__file__).parents[2] / "bench" / "flip.py"


def _flip_harness() -> Any:
    spec = importlib.util.spec_from_file_location("flip", _BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flip"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of any size are treated as large ones are: their bytes are not looked at on opening or on first use."""
    monkeypatch.setattr("largegt.io.array_folder.SMALL_BYTES", 0)
    monkeypatch.setattr("largegt.io.array_folder.USED_BYTES", 0)


def _flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def test_no_damage_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("largegt.io.array_folder.SMALL_BYTES", 4096)  # a larger one is then found on use
    flip = _flip_harness()
    folders = flip.make_folders(tmp_path, num_nodes=200, width=8)
    report = flip.harness(folders, cases=4 * len(folders.parts()), seed=1)
    assert report.missed == []
    assert report.num_cases == 4 * len(folders.parts()) > 100
    assert {who for _, _, who in report.found} == {"open", "use", "verify"}


def _prepared_anew(copy: Path) -> None:
    shutil.rmtree(copy / "g" / "prepared")
    try:
        prepare(GraphStore.open(copy / "g"), Config.from_recipe("default", FULL).preparation)
    finally:
        assert not (copy / "g" / "prepared").exists()


def _trained_anew(copy: Path) -> None:
    train(Prepared.open(prepared_folder(copy / "g")), Config.from_recipe("default", FULL), copy / "again")


def _resumed(copy: Path) -> None:
    config = Config.from_recipe("default", (*FULL, "train.epochs=3"))
    train(GraphStore.open(copy / "g"), config, copy / "run", resume=True)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize(
    ("file", "at", "work", "advice"),
    [
        *(
            (f"g/{name}-*.npy", -1, _prepared_anew, ".*ingest .* again")
            for name in ("features", "out_indices", "labels")
        ),
        *((f"g/prepared/*/*/{name}-*.npy", -1, _trained_anew, "") for name in ("tokens", "local_rows", "positions")),
        *((f"run/{name}", 1000, lambda copy: evaluate(copy / "run", split="valid"), "") for name in RUN_FILES),
        *((f"run/{name}", 1000, lambda copy: predict(copy / "run"), "") for name in RUN_FILES),
        ("run/checkpoints/last.pt", 5000, _resumed, ": .* train again with `overwrite=True`"),
        ("run/metrics.jsonl", 20, lambda copy: Run.open(copy / "run").history, ""),
        ("run/metrics.json", 20, lambda copy: Run.open(copy / "run").metrics, ""),
    ],
)
def test_nothing_begins_with_a_damaged_file(
    copy: Path, file: str, at: int, work: Callable[[Path], Any], advice: str
) -> None:
    (found,) = copy.glob(file)
    _flip(found, at)
    with pytest.raises(FormatError, match=rf"{re.escape(found.name)} does not match its checksum{advice}"):
        work(copy)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("name", ["tokens", "labels"])
def test_a_damaged_preparation_is_made_again_from_its_store(original: Path, copy: Path, name: str) -> None:
    """The damaged stage; what is whole stays."""
    path, file = prepared_folder(copy / "g"), stage_array(copy / "g", name)
    other = stage_array(copy / "g", "local_rows")
    before = other.stat().st_ino
    _flip(file)
    with logged(rf"is made again: .*{name}-\w+\.npy does not match its checksum"):
        again = prepare(GraphStore.open(copy / "g"), Config.from_recipe("default", FULL).preparation)
    assert again.path == path
    assert other.stat().st_ino == before
    for file in (original / "g" / "prepared").rglob("*.*"):
        assert file.read_bytes() == (copy / "g" / file.relative_to(original / "g")).read_bytes()


@pytest.mark.usefixtures("as_if_large")
def test_a_damaged_stage_is_not_taken_over(original: Path, copy: Path) -> None:
    """Another preparation of the same samples has the same stage, unless that is damaged."""
    _flip(stage_array(copy / "g", "local_rows"))
    other = Config.from_recipe("default", (*FULL, "prepare.positional_encoding.dim=2")).preparation
    with logged(r"local_nodes/\w+ is made again: .*local_rows-\w+\.npy does not match"):
        prepare(GraphStore.open(copy / "g"), other)
    assert stage_array(copy / "g", "local_rows").read_bytes() == stage_array(original / "g", "local_rows").read_bytes()


def test_metrics_that_were_changed_are_not_shown(copy: Path) -> None:
    run = Run.open(copy / "run")
    file = run.path / "metrics.json"
    file.write_text(file.read_text().replace('"accuracy": 0.', '"accuracy": 1.'))
    with pytest.raises(FormatError, match=r"metrics\.json"):
        _ = run.metrics


def test_the_place_of_the_store_may_be_changed_and_nothing_else(copy: Path) -> None:
    shutil.move(copy / "g", copy / "moved")
    config = copy / "run" / "config.toml"
    lines = [
        f'store = "{copy / "moved"}"' if line.startswith("store =") else line for line in config.read_text().split("\n")
    ]
    config.write_text("\n".join(lines))
    assert Run.open(copy / "run").store().num_nodes == 150
    found = verify(copy / "run")
    assert found.damaged == []
    config.write_text(config.read_text().replace("hidden_dim = 8", "hidden_dim = 9"))
    with pytest.raises(FormatError, match=r"delete .*checksums\.json if you changed it on purpose"):
        Run.open(copy / "run")


def test_verify_names_each_damaged_file(copy: Path, lg: Any) -> None:
    assert lg("inspect", str(copy / "run"), "--verify").code == 0
    wrong = [
        array_path(copy / "g", "features"), stage_array(copy / "g", "labels"),
        stage_array(copy / "g", "tokens"), copy / "run" / "metrics.csv",
    ]  # fmt: skip
    for file in wrong:
        _flip(file)
    said = lg("inspect", str(copy / "run"), "--verify")
    assert said.code == 1
    assert sorted(line.split()[1] for line in said.out.splitlines() if line.startswith("damaged:")) == sorted(
        map(str, wrong)
    )
    said = lg("inspect", str(copy / "g"), "--verify", "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert found["verified"] is False
    assert {one["file"] for one in found["damaged"]} == {str(file) for file in wrong[:3]}


def test_a_run_without_checksums_is_read_and_verified(copy: Path) -> None:
    (copy / "run" / "checksums.json").unlink()
    found = verify(copy / "run")
    assert found.damaged == []
    assert any("files without a checksum: checkpoints/last.pt" in note for note in found.notes)
    assert evaluate(copy / "run", split="valid")


def test_an_old_version_is_verified_and_its_damage_is_found(copy: Path) -> None:
    """The run's version stays in the store when another graph replaces it; so do its checksums."""
    mine = array_path(copy / "g", "features")
    easy_store(copy / "g", seed=1, overwrite=True)
    assert verify(copy / "run").damaged == []
    _flip(mine)
    assert [damage.file for damage in verify(copy / "g").damaged] == [mine]
    assert GraphStore.open(copy / "g").num_nodes == 150  # the newest is whole
    with pytest.raises(FormatError, match=rf"{mine.name} does not match its checksum"):
        evaluate(copy / "run", split="valid")


def test_a_checksum_taken_while_writing_is_the_one_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 1000)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (1500, 3), dtype=np.uint8)
    hashed: list[Path] = []
    monkeypatch.setattr(
        "largegt.io.array_writer.file_checksum", lambda path, known: hashed.append(path) or file_checksum(path, known)
    )
    for number, cuts in enumerate(([], [1], [290, 291], [400, 1000, 1499])):
        with ArrayWriter(tmp_path / str(number), "store", identity="rows") as writer:
            array = writer.grow("rows", "uint8", (3,))
            for part in np.split(rows, cuts):
                array.append(part)
            writer.close("rows")
            hashed.clear()
            writer.finish({})
        assert hashed == []  # nothing is read again at the end
    sums = {ArrayFolder(tmp_path / str(number), "store").checksum("rows") for number in range(4)}
    assert sums == {file_checksum(array_path(tmp_path / "0", "rows"))}
    assert len({(tmp_path / str(number) / "manifest.json").read_bytes() for number in range(4)}) == 1


def test_digests_of_whole_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 10)
    digests = BlockDigests(at=13)
    digests.add(memoryview(b"x" * 30))
    assert sorted(digests.known) == [2, 3]


def test_one_process_of_a_machine_reads_large_arrays(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("largegt.io.array_folder.SMALL_BYTES", 0)
    _flip(array_path(copy / "g", "features"))
    for name, value in (("LOCAL_RANK", "1"), ("LARGEGT_CHECK", "open")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            GraphStore.open(copy / "g").check(features=True)
    with pytest.raises(FormatError, match=r"features-\w+\.npy"):
        GraphStore.open(copy / "g").check(features=True)


@pytest.mark.parametrize("call", [2, 3])
def test_a_killed_write_leaves_a_run_that_is_sound(copy: Path, call: int) -> None:
    """Before a file takes its place, and just after: what it was and what it is about to be are both right."""
    run = copy / "run"
    with stopped_at(os, "replace", call), replacing(run) as folder:
        (folder / "model.safetensors").write_bytes(b"new weights")
    assert (run / "model.safetensors").read_bytes().startswith(b"new weights") == (call == 3)
    assert verify(run).damaged == []
    (run / "model.safetensors").write_bytes(b"old weights")
    assert [damage.file.name for damage in verify(run).damaged] == ["model.safetensors"]


def test_a_history_cut_off_after_an_epoch_is_not_the_one_of_that_epoch(copy: Path) -> None:
    """It would be what the file was before, byte by byte."""
    for name in ("metrics.jsonl", "metrics.csv"):
        file = copy / "run" / name
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert sorted(damage.file.name for damage in verify(copy / "run").damaged) == ["metrics.csv", "metrics.jsonl"]
    with pytest.raises(FormatError, match=r"metrics\.jsonl"):
        _ = Run.open(copy / "run").history


def test_a_preparation_whose_manifest_was_cut_off_is_named(copy: Path) -> None:
    file = prepared_folder(copy / "g") / "manifest.json"
    file.write_bytes(file.read_bytes()[:5])
    assert [damage.file for damage in verify(file.parent).damaged] == [file]
