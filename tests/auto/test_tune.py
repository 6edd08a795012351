"""Tuning: the recipe first, the test split never, and on where it stopped."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import largegt
from largegt.auto.tuning import tune as module
from largegt.auto.tuning.output import Tuned
from largegt.auto.tuning.tune import tune
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, FormatError, InputError
from largegt.io.locks import Lock
from largegt.preprocessing.prepared import Prepared
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import SMALL, Cli, Killed, easy_store, homophilous, left_in, one_thread, thirds  # noqa: F401

pytestmark = pytest.mark.slow

BASE = [*(item for item in SMALL if not item.startswith("train.learning")), "train.epochs=2"]
SEARCH = ["train.learning_rate=1e-3..1e-1:log", "model.dropout=0..0.5", "prepare.local_nodes.k=3,4"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return easy_store(tmp_path_factory.mktemp("tuning") / "g")


def small_tune(store: GraphStore, out: Path, trials: int = 3, **more: Any) -> Tuned:
    settings: dict[str, Any] = {"overrides": BASE, "search": SEARCH, "only": True}
    return tune(store, out, trials, **(settings | more))


def rows_of(out: Path) -> list[dict[str, str]]:
    with open(out / "trials.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def what_came(found: Tuned) -> list[Any]:
    """Values and scores of the trials that ended by themselves."""
    return [(t.values, t.score, t.epochs) for t in found.trials if t.state in ("finished", "pruned")]


def killer(at: str, once_after: int, error: type[BaseException]) -> Any:
    """A progress that raises when a stage that contains `at` is shown, after so many trials were begun."""
    begun = 0

    def show(stage: str, done: int, total: int | None) -> None:
        nonlocal begun
        begun += stage.startswith("tune:")
        if begun > once_after and at in stage:
            raise error

    return show


def test_the_first_trial_is_the_recipe_and_the_best_is_kept(store: GraphStore, tmp_path: Path) -> None:
    found = small_tune(store, tmp_path / "t", trials=4)
    base = Config.from_recipe("default", BASE)
    assert Run.open(tmp_path / "t" / "trials" / "0000").config == base
    rows = rows_of(tmp_path / "t")
    assert [row["state"] for row in rows] == ["finished"] * 4
    assert float(rows[0]["train.learning_rate"]) == base.train.learning_rate
    scores = [float(row["valid_accuracy"]) for row in rows]
    for number, score in enumerate(scores):
        run = Run.open(tmp_path / "t" / "trials" / f"{number:04d}")
        assert score == max(entry["valid"]["accuracy"] for entry in run.history) == run.metrics["valid"]["accuracy"]
        assert (run.path / "model.safetensors").exists() == (number == found.best.number)
        assert not (run.path / "checkpoints").exists()
    assert found.best.score == max(scores)
    assert found.best.number == scores.index(max(scores)), "of equals the first"
    assert len({row["train.learning_rate"] for row in rows}) == 4
    assert found.differences(found.trials[0]) == {}
    assert [str(trial.number) for trial in found.ranked] == [
        line.split(" | ")[0].removeprefix("| ") for line in (tmp_path / "t" / "tune.md").read_text().splitlines()[4:]
    ]
    page = found.page.read_text()
    assert page.count("<svg") >= 1 + len(SEARCH)
    assert "http" not in page.replace("http-equiv", "")
    assert {row["prepare.local_nodes.k"] for row in rows} == {"3", "4"}


def test_the_best_recipe_trains_to_the_same_score(store: GraphStore, tmp_path: Path) -> None:
    found = small_tune(store, tmp_path / "t")
    config = Config.from_recipe(found.recipe)
    assert config == found.config
    run = train(store, config, tmp_path / "again")
    assert run.metrics["valid"]["accuracy"] == found.best.score


def test_the_test_split_is_not_read_before_the_end(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Prepared.split_rows

    def spy(self: Prepared, split: Any) -> Any:
        asked.append(split)
        return real(self, split)

    monkeypatch.setattr(Prepared, "split_rows", spy)
    small_tune(store, tmp_path / "t")
    assert set(asked) == {"train", "valid"}
    assert all(Run.open(run).metrics["test"] == {} for run in (tmp_path / "t" / "trials").iterdir())
    assert not (tmp_path / "t" / "final").exists()
    found = small_tune(store, tmp_path / "t", final=2)
    assert asked.count("test") == 2, "once for each seed"
    assert [run.config.train.seed for run in found.final] == [0, 1]
    assert len(found.scores("test")) == 2
    assert "2 seeds" in (tmp_path / "t" / "tune.md").read_text()
    small_tune(store, tmp_path / "t", final=2)
    assert asked.count("test") == 2, "what is there is not made again"


def test_other_test_labels_change_nothing(tmp_path: Path) -> None:
    _, _, labels = homophilous()
    other = labels.copy()
    test = thirds(len(labels))["test"]
    other[test] = (other[test] + 1) % 3
    found = [
        small_tune(easy_store(tmp_path / name, labels=given), tmp_path / f"t-{name}")
        for name, given in (("a", labels), ("b", other))
    ]
    assert what_came(found[0]) == what_came(found[1])


def test_the_seed_decides_what_is_tried(store: GraphStore, tmp_path: Path) -> None:
    tried = {
        name: [trial.values for trial in small_tune(store, tmp_path / name, seed=seed).trials]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert tried["a"] == tried["b"]
    assert tried["a"][0] == tried["c"][0]
    assert tried["a"][1:] != tried["c"][1:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_stopped_tuning_goes_on_as_if_it_had_not_been(
    store: GraphStore, tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_tune(store, tmp_path / "whole", trials=4)
    with pytest.raises(error):
        small_tune(store, tmp_path / "t", trials=4, progress=killer("epoch 2/2", 1, error))
    begun = json.loads((tmp_path / "t" / "trials" / "0001" / "metrics.jsonl").read_text())
    with open(tmp_path / "t" / "study.jsonl", "ab") as stream:
        stream.write(b'{"op_code": 5, "wor')  # a torn line
    resumed: list[tuple[str, int]] = []
    real = module.train

    def spy(data: Any, config: Any, out: Any, **more: Any) -> Run:
        resumed.append((Path(out).name, len(Run.open(out).history) if Path(out).exists() else 0))
        return real(data, config, out, **more)

    monkeypatch.setattr(module, "train", spy)
    again = small_tune(store, tmp_path / "t", trials=4)
    assert resumed == [("0001", 1), ("0003", 0), ("0004", 0)], "from its checkpoint; what had finished is not repeated"
    assert what_came(again) == what_came(whole)
    assert [trial.state for trial in again.trials] == ["finished", "failed", "finished", "finished", "finished"]
    kept = Run.open(tmp_path / "t" / "trials" / "0001").history[0]
    assert kept["elapsed_s"] == begun["elapsed_s"]
    small_tune(store, tmp_path / "t", trials=4)
    assert len(resumed) == 3, "nothing is left to do"
    more = small_tune(store, tmp_path / "t", trials=5)
    assert [name for name, _ in resumed[3:]] == ["0005"]
    assert what_came(more)[:4] == what_came(whole)


def test_settings_that_end_the_process_every_time_are_given_up(store: GraphStore, tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(Killed):
            small_tune(store, tmp_path / "t", progress=killer("epoch 1/2", 0, Killed))
    found = small_tune(store, tmp_path / "t", trials=2)
    assert [trial.state for trial in found.trials] == ["failed", "failed", "pruned", "finished"]
    assert found.trials[2].why == "its process was killed"


def test_a_training_that_ended_before_its_trial_did_counts(store: GraphStore, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        small_tune(store, tmp_path / "t", trials=1, progress=killer("epoch 1/2", 0, Killed))
    train(store, Config.from_recipe("default", BASE), tmp_path / "t" / "trials" / "0000", resume=True)
    found = small_tune(store, tmp_path / "t", trials=1)
    assert (found.best.epochs, found.best.score) == (2, small_tune(store, tmp_path / "u", trials=1).best.score)


def test_a_pruned_trial_leaves_nothing_behind(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda self: self.number == 1)
    before = threading.active_count()
    found = small_tune(store, tmp_path / "t", overrides=[*BASE, "train.resample=epoch"])
    assert [(trial.state, trial.epochs) for trial in found.trials] == [("finished", 2), ("pruned", 1), ("finished", 2)]
    assert "median" in found.trials[1].why
    assert threading.active_count() == before
    left = left_in(tmp_path / "t" / "trials" / "0001")
    assert not [name for name in left if "checkpoint" in name or "safetensors" in name or "partial" in name]
    assert len(found.ranked) == 2


def test_the_median_prunes(store: GraphStore, tmp_path: Path) -> None:
    """Step sizes that learn, and one that cannot."""
    search = ["train.learning_rate=0.02,0.03,1e-9"]
    overrides = [*BASE, "train.learning_rate=0.02", "train.epochs=4"]
    found = small_tune(store, tmp_path / "t", trials=12, search=search, overrides=overrides)
    for trial in found.trials:
        if trial.state == "pruned":
            assert trial.epochs < 4
            others = [o for o in found.trials if o.number < trial.number and o.state == "finished"]
            assert len(others) >= 5
            at = [Run.open(tmp_path / "t" / o.folder).history[trial.epochs - 1]["valid"]["accuracy"] for o in others]
            assert trial.score is not None
            assert trial.score < np.median(at)
    assert any(trial.state == "pruned" for trial in found.trials)


def test_a_trial_that_cannot_be_trained_is_no_end(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.train

    def fail(data: Any, config: Any, out: Any, **more: Any) -> Run:
        if Path(out).name == broken:
            raise ConfigError("the loss became nan")
        return real(data, config, out, **more)

    monkeypatch.setattr(module, "train", fail)
    broken = "0001"
    found = small_tune(store, tmp_path / "t")
    assert [(trial.state, trial.why) for trial in found.trials][1] == ("pruned", "the loss became nan")
    assert len(found.ranked) == 2
    broken = "0000"
    with pytest.raises(ConfigError, match="the loss became nan"):
        small_tune(store, tmp_path / "u")
    assert not (tmp_path / "u").exists(), "the recipe itself does not work: nothing is left behind"


def test_max_time_is_for_all_trials(store: GraphStore, tmp_path: Path) -> None:
    found = small_tune(store, tmp_path / "t", max_time="0.001s")
    assert found.stopped == "the time is used up"
    assert [(trial.state, trial.epochs) for trial in found.trials] == [("finished", 1)], "the trial is cut, and counts"
    assert found.config.train.max_time is None, "the rest of the time is not part of the recipe"
    assert len(small_tune(store, tmp_path / "t", max_time="0.001s").trials) == 1
    assert len(small_tune(store, tmp_path / "t", max_time="1h").trials) == 3


def test_preparations_are_counted_and_shared(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    found = small_tune(store, tmp_path / "t", trials=5)
    assert {trial.values["prepare.local_nodes.k"] for trial in found.trials} == {"3", "4"}
    assert found.num_prepared == 2
    assert small_tune(store, tmp_path / "u", trials=5).num_prepared == 0


def test_smaller_errors_are_better(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).normal(size=150)
    store = easy_store(tmp_path / "g", labels=labels, task="regression")
    found = small_tune(store, tmp_path / "t", trials=4)
    assert found.metric == "rmse"
    assert found.best.score == min(float(row["valid_rmse"]) for row in rows_of(tmp_path / "t"))


def test_a_baseline_by_its_whole_table(store: GraphStore, tmp_path: Path) -> None:
    found = tune(store, tmp_path / "t", 11, model="mlp", overrides=["train.epochs=1"], search=["model.hidden_dim=4,8"])
    assert {"train.learning_rate", "model.norm", "model.num_layers", "model.hidden_dim"} <= set(found.trials[0].values)
    assert found.config.model.name == "mlp"
    assert set(found.importances) <= set(found.space.axes)
    assert sum(found.importances.values()) == pytest.approx(1.0)
    assert "Settings that made a difference" in found.page.read_text()


def test_another_tuning_in_the_same_folder_is_refused(store: GraphStore, tmp_path: Path) -> None:
    small_tune(store, tmp_path / "t", trials=1)
    for more, name in (
        ({"overrides": [*BASE, "train.epochs=3"]}, "recipe"),
        ({"search": SEARCH[:2]}, "search"),
        ({"seed": 5}, "seed"),
    ):
        with pytest.raises(ConfigError, match=f"another {name}"):
            small_tune(store, tmp_path / "t", trials=1, **more)
    with pytest.raises(ConfigError, match="another store"):
        small_tune(easy_store(tmp_path / "h", name="other"), tmp_path / "t", trials=1)
    with Lock(tmp_path / "t"), pytest.raises(InputError, match=r"another process .* is tuning into"):
        small_tune(store, tmp_path / "t", trials=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(InputError, match="not a tuning"):
        small_tune(store, tmp_path / "mine", trials=1)
    assert left_in(tmp_path / "mine") == ["notes.txt"]


@pytest.mark.parametrize(
    "change",
    [
        ('"folder":"trials/0001"', '"folder":"../outside"'), ('"folder":"trials/0001"', '"folder":["x"]'),
        ('"intermediate_value":0', '"intermediate_value":"x","y":0'), ('"op_code":4', '"op_code":"x"'),
        ('"elapsed_s":', '"elapsed_s":"x","y":'), ('"param_name":"model.dropout"', '"param_name":"model.norm"'),
        ("{", "["),
    ],
)  # fmt: skip
def test_a_study_of_the_wrong_kind_is_refused(
    studied: Path, store: GraphStore, tmp_path: Path, change: tuple[str, str]
) -> None:
    """A study file names folders that are written to and removed: one from a stranger leads nowhere else."""
    out, outside = tmp_path / "t", tmp_path / "outside" / "checkpoints"
    shutil.copytree(studied, out)
    outside.mkdir(parents=True)
    text = (out / "study.jsonl").read_text()
    assert change[0] in text, text
    (out / "study.jsonl").write_text(text.replace(*change))
    with pytest.raises(FormatError, match=r"study\.jsonl is no study \(.*\): choose another --out"):
        small_tune(store, out, 3)
    assert outside.is_dir()


@pytest.fixture(scope="module")
def studied(store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tuning with two trials."""
    return small_tune(store, tmp_path_factory.mktemp("studied") / "t", 2).path


def test_what_is_wrong_is_said_before_anything_is_trained(store: GraphStore, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"trials": 0}, "trials is 0"),
        ({"max_time": "soon"}, "duration"),
        ({"model": "grafsage"}, "no model"),
        ({"search": ["model.hiden=3"]}, "model.hidden_dim"),
        ({"overrides": ["train.monitor=accurcy"]}, "accuracy"),
    ]
    for more, words in wrong:
        with pytest.raises(ConfigError, match=words):
            small_tune(store, tmp_path / "t", **more)
    splits = {"train": np.arange(100), "valid": np.arange(0), "test": np.arange(100, 150)}
    with pytest.raises(InputError, match="no valid nodes"):
        small_tune(easy_store(tmp_path / "g", splits=splits), tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_without_optuna_it_says_what_to_install(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lg: Cli
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'largegt\[tune\]'"):
        small_tune(store, tmp_path / "t")
    code, out, err = lg("tune", store.path, "--out", tmp_path / "t")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'largegt[tune]'" in err
    assert not (tmp_path / "t").exists()


# the command line

OPTIONS = [part for item in BASE for part in ("--set", item)] + ["--only"]


def test_the_verb(store: GraphStore, tmp_path: Path, lg: Cli) -> None:
    searched = ("--search", "model.dropout=0,0.5", "--search", "train.learning_rate=1e-3..1e-1:log")
    given = ("tune", store.path, "--out", tmp_path / "t", "--trials", 2, *OPTIONS, *searched)
    code, out, err = lg(*given)
    assert code == 0, err
    assert "The best of 2 trials" in out
    assert "valid accuracy" in out
    assert f"--recipe {tmp_path / 't' / 'best.toml'}" in out
    assert ", test " not in out
    result = lg(*given, "--final", 1, "--json").json
    assert result["trials"] == 2
    assert result["metric"] == "accuracy"
    assert set(result["best"]["values"]) == {"model.dropout", "train.learning_rate"}
    assert len(result["final"]["test"]) == 1
    code, out, err = lg("train", store.path, "--recipe", result["recipe"], "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["valid"]["accuracy"] == result["best"]["score"]


def test_the_verb_refuses_in_one_line(store: GraphStore, tmp_path: Path, lg: Cli) -> None:
    for arguments, words in (
        (("--search", "model.hiden=3,4"), "did you mean 'model.hidden_dim'"),
        (("--search", "model.hidden_dim"), "NAME=VALUES"),
        (("--max-time", "soon"), "duration"),
        (("--original",), "--original goes with --model"),
        (("--only",), "nothing to search"),
    ):
        code, out, err = lg("tune", store.path, "--out", tmp_path / "t", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert words in err
    assert not (tmp_path / "t").exists()


def test_help_teaches(lg: Cli) -> None:
    code, out, _ = lg("tune", "--help")
    assert code == 0
    plain = " ".join(out.split())
    for words in ("--search train.learning_rate=1e-4..1e-2:log", "--recipe tune/best.toml", "'largegt[tune]'"):
        assert words in plain


def test_it_is_a_public_name() -> None:
    assert largegt.tune is tune
