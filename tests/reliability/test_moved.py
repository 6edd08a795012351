"""A store, its preparations and its runs may be moved, copied and read from where nothing can be written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from largegt.data.store import GraphStore
from largegt.errors import InputError
from largegt.inference.predictor import predict
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import easy_store, final, left_in, one_thread, prepared_folder, small  # noqa: F401


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/g and runs/a: a store, its preparation and a run."""
    folder = tmp_path_factory.mktemp("home")
    train(easy_store(folder / "data" / "g").path, small("train.epochs=2"), folder / "runs" / "a")
    return folder


def _works(folder: Path, home: Path) -> None:
    """Everything there opens, and gives what it gave where it was made."""
    GraphStore.open(folder / "data" / "g").folder.verify()
    Prepared.open(prepared_folder(folder / "data" / "g")).verify()
    assert evaluate(folder / "runs" / "a") == final(home / "runs" / "a")["test"]
    assert predict(folder / "runs" / "a").equals(predict(home / "runs" / "a"))
    assert Run.open(folder / "runs" / "a").store_path.resolve() == (folder / "data" / "g").resolve()


@pytest.mark.parametrize("way", ["copied", "moved", "run alone", "link"])
def test_it_works_where_it_is_now(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    expected = final(home / "runs" / "a")["test"]
    if way == "run alone":  # it finds its store where it was
        shutil.copytree(home / "runs" / "a", tmp_path / "elsewhere" / "b")
        assert evaluate(tmp_path / "elsewhere" / "b") == expected
        return
    if way == "link":
        (tmp_path / "linked").symlink_to(home / "runs" / "a")
        monkeypatch.chdir(tmp_path)
        assert evaluate("linked") == expected
        return
    shutil.copytree(home, tmp_path / "now")
    if way == "moved":
        (tmp_path / "now").rename(tmp_path / "later")
    folder = tmp_path / ("now" if way == "copied" else "later")
    _works(folder, home)
    shutil.rmtree(folder / "data" / "g" / "prepared")  # made again where it is now
    assert evaluate(folder / "runs" / "a") == expected


def test_a_store_that_is_gone_is_named(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "copy")
    shutil.copytree(tmp_path / "copy" / "runs" / "a", tmp_path / "alone" / "a")
    config = tmp_path / "alone" / "a" / "config.toml"
    config.write_text(config.read_text().replace(str(home), str(tmp_path / "nowhere")))
    (tmp_path / "alone" / "a" / "checksums.json").unlink()
    with pytest.raises(InputError, match=r"the store of .*alone/a is no longer at .*: put it back, or change \[data\]"):
        evaluate(tmp_path / "alone" / "a")
    text = config.read_text().splitlines()
    place = next(number for number, line in enumerate(text) if line.startswith("store ="))
    text[place] = f'store = "{home / "data" / "g"}"'
    config.write_text("\n".join(text) + "\n")
    assert evaluate(tmp_path / "alone" / "a") == final(home / "runs" / "a")["test"]


def test_a_moved_run_is_gone_on_with(home: Path, tmp_path: Path) -> None:
    """Where it is now is what its configuration says from then on."""
    shutil.copytree(home, tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "second")
    run = tmp_path / "second" / "runs" / "a"
    (run / "metrics.json").unlink()
    train(tmp_path / "second" / "data" / "g", Run.open(run).config, run, resume=True)
    assert final(run) == final(home / "runs" / "a")
    assert str(tmp_path / "first") not in (run / "config.toml").read_text()


def test_read_only_media(home: Path, tmp_path: Path, read_only: Any) -> None:
    """Reading writes nothing: inspect, evaluate, predict and report work where nothing can be written."""
    media = tmp_path / "media"
    shutil.copytree(home, media)
    before = left_in(media)
    with read_only(media) as zygote:
        for command in (
            ("inspect", media / "data" / "g", "--verify"), ("inspect", media / "runs" / "a"),
            ("evaluate", media / "runs" / "a"), ("predict", media / "runs" / "a", "--out", tmp_path / "p.csv"),
            ("report", media / "runs" / "a", "--out", tmp_path / "r.html"),
        ):  # fmt: skip
            ended = zygote.run(*command, "--json")
            assert ended.code == 0, (command, ended.err)
    assert left_in(media) == before
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + GraphStore.open(home / "data" / "g").num_nodes
