"""Versions: who reads one keeps it whatever is appended, overwritten, cleaned or killed beside it, and nothing is
written or removed outside."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash import Ended, Zygote, write_inputs

from largegt.cli.verification import verify
from largegt.data import sources
from largegt.data.append import append
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.versions import clean, register, registered
from largegt.inference.predictor import predict
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.locks import Lock
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.run_checksums import replacing
from largegt.training.trainer import train
from run_helpers import (  # noqa: F401
    SMALL,
    Cli,
    array_path,
    easy_store,
    final,
    history,
    left_in,
    one_thread,
    prepared_folder,
    refusal,
    small,
    stopped_at,
)

EPOCHS = 12
SET = [part for item in (*SMALL, f"train.epochs={EPOCHS}", "train.device=cpu") for part in ("--set", item)]
SET = ["--recipe", "base", *SET]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files: a graph, nodes that come later, other features."""
    folder = tmp_path_factory.mktemp("inputs") / "in"
    write_inputs(folder)
    return folder


def _ingested(inputs: Path, out: Path, nodes: str = "n.csv", overwrite: bool = False) -> GraphStore:
    return ingest(sources.files(inputs / "e.parquet", nodes=inputs / nodes), out, overwrite=overwrite, threads=1)


def _appended(inputs: Path, store: Path) -> GraphStore:
    return append(store, inputs / "n-new.csv", inputs / "e-new.parquet", threads=1)


def _overwritten(inputs: Path, store: Path) -> GraphStore:
    return _ingested(inputs, store, "other.csv", overwrite=True)


CHANGES: dict[str, Callable[[Path, Path], GraphStore]] = {"append": _appended, "overwrite": _overwritten}


def _tree(folder: Path) -> dict[str, str]:
    """Everything below a folder: files by their content, links by where they lead."""
    found = {}
    for item in sorted(folder.rglob("*")):
        what = f"link to {os.readlink(item)}" if item.is_symlink() else "folder"
        if item.is_file() and not item.is_symlink():
            what = hashlib.sha256(item.read_bytes()).hexdigest()
        found[str(item.relative_to(folder))] = what
    return found


def _same_arrays(store: GraphStore, other: GraphStore) -> None:
    for name in ("features", "labels", "split", "indptr", "indices"):
        assert np.array_equal(getattr(store, name), getattr(other, name)), name
    for side in ("out", "in", "both"):
        for ours, theirs in zip(store.csr(side), other.csr(side), strict=True):  # type: ignore[arg-type]
            assert np.array_equal(ours, theirs), side
    assert store.ids_of(np.arange(3)) == other.ids_of(np.arange(3))


# readers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store `g` and a whole run `a`."""
    folder = tmp_path_factory.mktemp("undisturbed")
    _ingested(inputs, folder / "g")
    assert zygote.run("train", folder / "g", "--out", folder / "a", *SET, "--json").code == 0
    return folder


def _training(zygote: Zygote, store: Path, run: Path) -> int:
    """A training that has finished two epochs and stands still now."""
    pid = zygote.start("train", store, "--out", run, *SET, "--json", pause_s=0.002)
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").is_file() or (run / "metrics.jsonl").read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(pid, signal.SIGSTOP)
    assert not (run / "metrics.json").exists()
    return pid


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_keeps_its_version(
    inputs: Path, undisturbed: Path, zygote: Zygote, tmp_path: Path, change: str
) -> None:
    """One that runs finishes, one that was killed resumes, and both end as if nothing had happened to the store."""
    store = tmp_path / "g"
    shutil.copytree(undisturbed / "g", store, ignore=shutil.ignore_patterns("prepared", "refs"))
    own = GraphStore.open(store).fingerprint
    killed = _training(zygote, store, tmp_path / "killed")
    os.kill(killed, signal.SIGKILL)
    assert zygote.wait().code == -signal.SIGKILL
    running = _training(zygote, store, tmp_path / "running")
    newest = CHANGES[change](inputs, store)
    assert newest.fingerprint != own
    os.kill(running, signal.SIGCONT)
    assert zygote.wait().code == 0
    assert zygote.run("train", "--resume", "--out", tmp_path / "killed", "--json").code == 0
    for run in (tmp_path / "running", tmp_path / "killed"):
        assert history(run) == history(undisturbed / "a")
        assert final(run) == final(undisturbed / "a")
        assert evaluate(run) == final(undisturbed / "a")["test"], "the scores of its own version"
    assert not verify(tmp_path / "running").damaged
    if change == "append":
        assert predict(tmp_path / "running").num_rows == newest.num_nodes == 200
    else:
        assert "was replaced by another graph" in refusal(lambda: predict(tmp_path / "running"))


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_store_reads_its_own_version(inputs: Path, tmp_path: Path, change: str) -> None:
    """Arrays that are first asked for after the change, and after a `clean`, are those of the version it opened."""
    before = _ingested(inputs, tmp_path / "copy")
    store = _ingested(inputs, tmp_path / "g")
    assert not store.folder._open, "nothing is mapped yet"
    newest = CHANGES[change](inputs, tmp_path / "g")
    _same_arrays(store, before)
    clean(tmp_path / "g")
    _same_arrays(GraphStore.open(tmp_path / "g", store.fingerprint), before)
    assert not np.array_equal(newest.features[:10], store.features[:10]) or newest.num_nodes == 200
    store.folder.close()
    clean(tmp_path / "g")
    assert "has no version" in refusal(lambda: GraphStore.open(tmp_path / "g", before.fingerprint))
    _same_arrays(GraphStore.open(tmp_path / "g"), newest)


def test_a_preparation_of_an_old_version_is_still_read(inputs: Path, tmp_path: Path) -> None:
    store = _ingested(inputs, tmp_path / "g")
    prepared = prepare(store, small().preparation, threads=1)
    tokens = prepared.file("tokens").read_bytes()
    _overwritten(inputs, tmp_path / "g")
    assert Prepared.open(prepared.path).file("tokens").read_bytes() == tokens
    assert prepared.store().fingerprint == store.fingerprint


# names ------------------------------------------------------------------------------------------------------------

NEIGHBOURS = ("g1", "g2", "g", "ab", "a-b", "axxb", "g[1", "g*x")


@pytest.mark.parametrize("name", ["g[1]", "g*", "a**b", "g?", "[g]", "{g}", "g 1", "**"])
def test_names_with_wildcards_touch_their_own_folder_only(inputs: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "stores"
    out, whole = folder / name, _ingested(inputs, tmp_path / "whole")
    for other in NEIGHBOURS:
        shutil.copytree(whole.path, folder / other)
        (folder / f".{other}.partial").mkdir()
        (folder / f".{other}.partial" / "progress.json").write_text("{}")
    before = _tree(folder)

    def others() -> dict[str, str]:
        return {item: what for item, what in _tree(folder).items() if item.split(os.sep)[0] != name}

    with stopped_at(ArrayWriter, "commit", 6):
        _ingested(inputs, out)
    assert {item for item in others() if item not in before} <= {
        item for item in others() if item.split(os.sep)[0] in (f".{name}.partial", f".{name}.lock")
    }
    _same_arrays(_ingested(inputs, out), whole)
    assert others() == before
    with stopped_at(ArrayWriter, "commit", 6):
        _overwritten(inputs, out)
    _same_arrays(GraphStore.open(out), whole)
    other_features = _overwritten(inputs, out).features
    assert np.allclose(other_features, np.asarray(whole.features) + 1, atol=1e-5)
    assert _appended(inputs, out).num_nodes == 200
    clean(out)
    assert others() == before


# clean ------------------------------------------------------------------------------------------------------------

READER = """
import sys
from largegt.data.store import GraphStore
store = GraphStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print(float(store.features.sum()), flush=True)
"""


def test_clean_keeps_what_is_needed(inputs: Path, tmp_path: Path, lg: Cli, python: Any) -> None:
    """A version with a run stays until the run is dropped, one that a process reads stays until it ends."""
    path, run = tmp_path / "g", tmp_path / "run"
    first = _ingested(inputs, path)
    total = float(np.asarray(first.features).sum())
    train(first, small("train.epochs=1"), run)
    process = python(READER, path)
    assert process.stdout.readline() == "open\n"
    first.folder.close()
    newest = _overwritten(inputs, path)
    (path / "notes.txt").write_text("mine")
    (path / "versions" / "mine.json").write_text("{}")
    (path / "prepared" / "mine").mkdir()
    (path / "prepared" / "mine" / "note").touch()
    (path / "labels-0123456789abcdef.npy").write_bytes(b"left by a kill")
    orphan = path / "prepared" / "tokens" / "0123456789abcdef"
    shutil.copytree(next((path / "prepared" / "tokens").iterdir()), orphan)
    before = _tree(path)

    said = lg("clean", path, "--dry-run", "--json").json
    assert _tree(path) == before
    assert (said["versions"], said["preparations"]) == ([], ["tokens/0123456789abcdef"])
    assert said["kept"] == {first.fingerprint: [str(run)]}
    assert lg("clean", path, "--json").json["num_files"] == said["num_files"] == 1 + len(os.listdir(orphan.parent)) * 3
    gone = {item for item in before if item not in _tree(path)}
    assert {item.split(os.sep)[0] for item in gone} == {"labels-0123456789abcdef.npy", "prepared"}
    assert not orphan.exists()
    assert evaluate(run) == final(run)["test"]

    assert "is not registered" in lg("clean", path, "--drop", tmp_path / "other").err
    before = _tree(path)
    assert lg("clean", path, "--drop", run, "--dry-run").code == 0
    assert _tree(path) == before
    assert "a process has it open" in lg("clean", path, "--drop", run).out
    assert registered(path) == {}
    assert float(process.communicate("go\n")[0]) == total, "it was open all the time"
    assert lg("clean", path, "--json").json["versions"] == [first.fingerprint]
    assert "no longer has the version" in refusal(lambda: evaluate(run))
    _same_arrays(GraphStore.open(path), newest)
    assert not verify(path).damaged
    left = {item for item in left_in(path) if not re.fullmatch(r"\w+-[0-9a-f]{16}\.npy", item)}
    assert left == {
        "manifest.json", "notes.txt", "prepared", "prepared/mine", "prepared/mine/note", "refs", "versions",
        "versions/mine.json",
    }  # fmt: skip


def test_clean_leaves_a_stage_alone_that_is_being_committed(tmp_path: Path) -> None:
    """Its arrays are in their place, and the manifest that names them is not yet."""
    store = easy_store(tmp_path / "g")
    stage = store.path / "prepared" / "tokens" / "0123456789abcdef"
    with ArrayWriter(stage, "stage") as writer:
        writer.save("values", np.arange(3))
        place = writer._link_arrays

        def cleaned(*args: Any) -> None:
            place(*args)
            clean(store.path)

        writer._link_arrays = cleaned  # type: ignore[method-assign]
        writer.finish({})
    assert ArrayFolder(stage, "stage").array("values").tolist() == [0, 1, 2]
    clean(store.path)
    assert not stage.exists()


# links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody else's folder, which looks like what a store or a run could want to write, or to remove."""
    folder = tmp_path / "outside"
    for name in ("0123456789abcdef", "tokens/0123456789abcdef"):
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").write_text("{}")
        (folder / name / "values-0123456789abcdef.npy").write_bytes(b"theirs")
    for name in ("0123456789abcdef.json", "last.pt", "labels-0123456789abcdef.npy", "progress.json", "secret"):
        (folder / name).write_text("theirs")
    return folder


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "checkpoints/last.pt", "metrics.jsonl", "config.toml"])
@pytest.mark.parametrize("verb", ["resume", "overwrite"])
def test_a_run_writes_through_no_link(copy: Path, outside: Path, lg: Cli, name: str, verb: str) -> None:
    target = outside / ("secret" if (copy / "run" / name).is_file() else "")
    place = copy / "run" / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(target)
    before = _tree(outside)
    more = ["--resume"] if verb == "resume" else [copy / "g", *SET[:-4], "--set", "train.epochs=1", "--overwrite"]
    code, _, err = lg("train", *more, "--out", copy / "run", "--json")
    assert _tree(outside) == before
    if code:
        assert re.fullmatch(r"error: .*\n", err), err
    assert code or verb == "overwrite", "what is not a file of the run's own is not resumed from"


STORE_LINKS = ("prepared", "prepared/tokens", "prepared/KEY", "prepared/.KEY.partial", "versions", "refs",
               ".partial", ".lock", "manifest.json", "versions/KEY.json", "ARRAY")  # fmt: skip


@pytest.mark.parametrize("name", STORE_LINKS)
def test_a_store_writes_through_no_link(inputs: Path, tmp_path: Path, outside: Path, lg: Cli, name: str) -> None:
    """Every verb works or says in one line why not, and nothing changes behind the link."""
    store = _ingested(inputs, tmp_path / "g")
    key = "0123456789abcdef"
    if name == "prepared/.KEY.partial":
        key = prepared_folder(prepare(store, small().preparation, threads=1).path.parents[1]).name
        shutil.rmtree(store.path / "prepared")
    beside = {".partial": tmp_path / ".g.partial", ".lock": tmp_path / ".g.lock"}
    place = beside.get(name, store.path / name.replace("KEY", key).replace("ARRAY", "labels-0123456789abcdef.npy"))
    place.parent.mkdir(exist_ok=True)
    target = outside / ("secret" if place.suffix in (".json", ".npy", ".lock") else "")
    if name == "manifest.json":
        target = outside / "manifest.json"
        shutil.move(place, target)
    place.symlink_to(target)
    before = _tree(outside)
    verbs = (
        ("prepare", store.path, *SET[:6]), ("train", store.path, "--out", tmp_path / "run", *SET[:-4]),
        ("inspect", store.path, "--verify"), ("clean", store.path),
        ("append", store.path, "--nodes", inputs / "n-new.csv", "--edges", inputs / "e-new.parquet"),
        ("ingest", inputs / "e.parquet", "--nodes", inputs / "other.csv", "--out", store.path, "--overwrite"),
        ("clean", store.path, "--drop", tmp_path / "run"), ("clean", store.path),
    )  # fmt: skip
    for verb in verbs:
        code, out, err = lg(*verb, "--json")
        assert _tree(outside) == before, verb
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in err + out, verb
        assert len(errors) == (code == 2), (verb, code, err)


@pytest.mark.parametrize("name", ["metrics.json", "config.toml", "metrics.csv"])
def test_a_predictable_temporary_name_is_no_way_out(copy: Path, outside: Path, name: str) -> None:
    """A link of the name that this process would write first."""
    (copy / "run" / f".{name}.partial-{os.getpid()}").symlink_to(outside / "secret")
    (copy / "g" / "refs" / f".{next((copy / 'g' / 'refs').iterdir()).name}.partial-{os.getpid()}").symlink_to(
        outside / "secret"
    )
    before = _tree(outside)
    config = json.loads((copy / "run" / "metrics.json").read_text())["model"]
    train(copy / "g", small("train.epochs=1", f"model.name={config}"), copy / "run", overwrite=True)
    assert _tree(outside) == before
    (copy / "run" / f".{name}.partial-{os.getpid()}").symlink_to(outside / "secret")
    with replacing(copy / "run") as folder:
        (folder / name).write_text("{}")
    assert _tree(outside) == before
    assert not (copy / "run" / name).is_symlink()


# many at once -----------------------------------------------------------------------------------------------------


def _wait_for_lines(files: list[Path], word: str) -> None:
    deadline = time.monotonic() + 60
    while not all(file.is_file() and word in file.read_text() for file in files):
        assert time.monotonic() < deadline, [file.read_text() for file in files if file.is_file()]
        time.sleep(0.02)


def test_eight_processes_share_one_preparation(inputs: Path, zygote: Zygote, tmp_path: Path) -> None:
    store = _ingested(inputs, tmp_path / "g")
    config = small(f"train.epochs={EPOCHS}").preparation
    there = prepared_folder(prepare(_ingested(inputs, tmp_path / "copy" / "g"), config, threads=1).path.parents[1])
    key = Prepared.open(there).folder.meta["stages"]["local_nodes"]
    stage = store.path / "prepared" / "local_nodes" / key
    settings = [item if item != f"train.epochs={EPOCHS}" else "train.epochs=2" for item in SET]
    with Lock(stage):  # so that all of them must wait, and for this one
        refused = zygote.run("prepare", store.path, *settings[:6], "--no-wait", "--json")
        pids = [
            zygote.start("train", store.path, "--out", tmp_path / f"run{seed}", "--seed", seed, *settings, "--json",
                         streams=str(tmp_path / f"streams{seed}"))
            for seed in range(8)
        ]  # fmt: skip
        _wait_for_lines([tmp_path / f"streams{seed}" / "err" for seed in range(8)], "waiting for it")
    ended: list[Ended] = [zygote.wait(pid) for pid in pids]
    assert refused.code == 2
    assert re.fullmatch(rf"error: another process \(pid {os.getpid()} on .*: wait for it or stop it, .*\n", refused.err)
    waiting = re.escape(f"is writing {stage}: waiting for it (--no-wait to stop instead)")
    for one in ended:
        assert one.code == 0, one.err
        waits = [line for line in one.err.splitlines() if "waiting for it" in line]
        assert re.fullmatch(rf"note: another process \(pid {os.getpid()} on .+\) {waiting}", waits[0])
        assert len({line.split(" is writing ")[1] for line in waits}) == len(waits), "one line for each stage"
    assert _tree(store.path / "prepared") == _tree(tmp_path / "copy" / "g" / "prepared"), (
        "the same bytes, nothing left over"
    )
    assert len({final(tmp_path / f"run{seed}")["valid"]["loss"] for seed in range(8)}) == 8
    assert len(registered(store.path)[store.fingerprint]) == 8


# kills ------------------------------------------------------------------------------------------------------------


def _verb(inputs: Path, change: str) -> list[Any]:
    if change == "append":
        return ["append", "g", "--nodes", inputs / "n-new.csv", "--edges", inputs / "e-new.parquet"]
    nodes, more = ("n.csv", []) if change == "ingest" else ("other.csv", ["--overwrite"])
    return ["ingest", inputs / "e.parquet", "--nodes", inputs / nodes, "--out", "g", *more]


@pytest.mark.parametrize("change", ["ingest", *CHANGES])
def test_killed_at_each_step_of_a_commit(inputs: Path, zygote: Zygote, tmp_path: Path, change: str) -> None:
    """SIGKILL before every change of the file system from the first move of an array on: the store is the old version
    or the new one, the registered run keeps its own, and the same command goes on."""
    old, folder = _ingested(inputs, tmp_path / "old"), tmp_path / "work"
    register(old, tmp_path / "run")
    shutil.copytree(old.path, tmp_path / "new")
    new = old if change == "ingest" else CHANGES[change](inputs, tmp_path / "new")
    seen, step, done = set(), 0, False
    while not done:
        step += 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if change != "ingest":
            shutil.copytree(old.path, folder / "g")
        ended = zygote.run(*_verb(inputs, change), "--json", folder=str(folder), kill_at=step)
        done = ended.code == 0
        assert done or ended.code == -signal.SIGKILL, ended.err
        if change != "ingest" or (folder / "g" / "manifest.json").exists():
            opened = GraphStore.open(folder / "g")
            opened.folder.verify()
            opened.folder.close()
            seen.add(opened.fingerprint)
        if change != "ingest":
            GraphStore.open(folder / "g", old.fingerprint).folder.verify()
        if step % 4:
            continue
        ended = zygote.run(*_verb(inputs, change), "--json", folder=str(folder))
        assert ended.code == 0 or (change == "ingest" and "already exists" in ended.err), ended.err
        again = GraphStore.open(folder / "g")
        assert again.fingerprint == new.fingerprint
        again.folder.verify()
        if change != "ingest":
            GraphStore.open(folder / "g", old.fingerprint).folder.verify()
        assert os.listdir(folder) == ["g"]
    assert step > 15
    assert seen == {old.fingerprint, new.fingerprint}
