"""The loop: it learns, it repeats itself, it stops when told, it never looks at the test nodes."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, FormatError, InputError, LargeGTError
from largegt.inference.predictor import predict
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import Scorer, evaluate, majority_scores
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import (
    easy_store,
    final,
    history,
    homophilous,
    left_in,
    refusal,
    small,
    thirds,
)

pytestmark = pytest.mark.slow

MODELS = ("largegt-full", "largegt-local", "largegt-global", "mlp")


@pytest.fixture(scope="module")
def done(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of eight epochs that other tests look at and do not change."""
    return train(prepared, small("train.epochs=8"), tmp_path_factory.mktemp("done") / "run")


@pytest.fixture
def copy(done: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done.path, tmp_path / "run"))


# it learns, and the same way every time


def test_loss_falls_and_accuracy_beats_the_majority(done: Run, prepared: Prepared) -> None:
    losses = [entry["train"]["loss"] for entry in done.history]
    assert losses[-1] < 0.7 * losses[0]
    common = majority_scores(prepared)
    assert done.metrics["valid"]["accuracy"] > common["valid"] + 0.2
    assert done.metrics["test"]["accuracy"] > common["test"] + 0.2


def test_majority_scores_are_those_of_the_commonest_training_class(tmp_path: Path) -> None:
    labels = np.array([0] * 5 + [1] * 145)
    splits = {"train": np.arange(60), "valid": np.arange(60, 100), "test": np.r_[0:0, 100:150]}
    got = majority_scores(prepare(easy_store(tmp_path / "g", labels, splits), small().prepare))
    assert got == {"valid": 1.0, "test": 1.0}


def test_the_same_seed_gives_the_same_metrics_and_weights(prepared: Prepared, tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        torch.manual_seed(number)  # the state of torch before does not matter
        train(prepared, small("model.dropout=0.2"), tmp_path / name)
    assert history(tmp_path / "a") == history(tmp_path / "b")
    assert final(tmp_path / "a") == final(tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_another_seed_gives_another_run(prepared: Prepared, tmp_path: Path) -> None:
    train(prepared, small(), tmp_path / "a")
    train(prepared, small("train.seed=1"), tmp_path / "b")
    assert history(tmp_path / "a") != history(tmp_path / "b")


def test_deduplicated_tokens_change_nothing_but_the_work(prepared: Prepared, tmp_path: Path) -> None:
    """Without dropout it is the same computation; batches hold the same nodes in another order."""
    for choice in ("true", "false"):
        train(prepared, small("model.name=largegt-local", "model.dropout=0", "model.encoder_dropout=0",
                              f"train.deduplicate_tokens={choice}"), tmp_path / choice)  # fmt: skip
    for one, other in zip(history(tmp_path / "true"), history(tmp_path / "false"), strict=True):
        assert one["train"]["loss"] == pytest.approx(other["train"]["loss"], rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_every_model_with_every_norm_and_a_last_batch_of_one(
    name: str, norm: str, prepared: Prepared, tmp_path: Path
) -> None:
    assert len(prepared.split_rows("train")) % 37 == 1
    run = train(prepared, small(f"model.name={name}", f"model.norm={norm}", "train.batch_size=37",
                                "train.eval_batch_size=36", "train.epochs=2"), tmp_path / "run")  # fmt: skip
    assert run.metrics["model"] == name
    assert all(math.isfinite(entry["train"]["loss"]) for entry in run.history)
    assert evaluate(run.path) == run.metrics["test"]


def test_without_positions_every_model_still_trains(store: GraphStore, tmp_path: Path) -> None:
    run = train(store, small("prepare.positional_encoding.method=none", "train.epochs=1"), tmp_path / "run")
    assert run.prepared().num_positions == 0


@pytest.mark.usefixtures("bfloat16_cpu")
def test_mixed_precision_on_the_cpu(prepared: Prepared, tmp_path: Path) -> None:
    run = train(prepared, small("train.precision=bf16-mixed", "train.epochs=1"), tmp_path / "run")
    assert math.isfinite(run.history[0]["train"]["loss"])
    assert run.metrics["valid"]["accuracy"] == evaluate(run.path, "valid")["accuracy"]
    exact = train(prepared, small("train.epochs=1"), tmp_path / "exact")
    assert run.history[0]["train"]["loss"] != exact.history[0]["train"]["loss"]


def test_label_smoothing_raises_the_floor_of_the_loss(prepared: Prepared, tmp_path: Path) -> None:
    plain = train(prepared, small("train.epochs=8"), tmp_path / "plain")
    smooth = train(prepared, small("train.epochs=8", "train.label_smoothing=0.3"), tmp_path / "smooth")
    assert smooth.history[-1]["train"]["loss"] > plain.history[-1]["train"]["loss"]


# when it stops


def test_patience_stops_after_so_many_epochs_without_a_better_score(prepared: Prepared, tmp_path: Path) -> None:
    run = train(prepared, small("train.epochs=40", "train.patience=2", "train.learning_rate=0.05"), tmp_path / "run")
    metrics = run.metrics
    scores = [entry["valid"]["accuracy"] for entry in run.history]
    assert metrics["epochs"] < 40
    assert len(scores) == metrics["epochs"] == metrics["best_epoch"] + 2
    assert "accuracy" in metrics["stopped"]
    assert metrics["best_epoch"] == 1 + int(np.argmax(scores))
    assert metrics["valid"]["accuracy"] == max(scores)


def test_max_time_ends_cleanly_with_the_best_kept(prepared: Prepared, tmp_path: Path) -> None:
    run = train(
        prepared, small("train.epochs=100000", "train.max_time=1s", "train.lr_scheduler=constant"), tmp_path / "run"
    )
    metrics = run.metrics
    scores = [entry["valid"]["accuracy"] for entry in run.history]
    assert 1 <= metrics["epochs"] < 100000
    assert metrics["stopped"] == "the time is used up"
    assert metrics["valid"]["accuracy"] == max(scores)
    assert metrics["best_epoch"] == 1 + int(np.argmax(scores))
    assert evaluate(run.path) == metrics["test"]
    again = train(prepared, run.config, run.path, resume=True)
    assert again.metrics["epochs"] == metrics["epochs"]


def test_a_loss_that_is_no_number_is_a_one_line_error(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.learning_rate") as caught:
        train(prepared, small("train.learning_rate=1e30", "train.lr_scheduler=constant"), tmp_path / "run")
    assert "\n" not in str(caught.value)


# the best epoch


@pytest.mark.parametrize("monitor", ["accuracy", "loss", "macro_f1"])
def test_the_monitor_picks_the_best_epoch(monitor: str, prepared: Prepared, tmp_path: Path) -> None:
    run = train(
        prepared, small("train.epochs=8", f"train.monitor={monitor}", "train.learning_rate=0.1"), tmp_path / "run"
    )
    scores = [entry["valid"][monitor] for entry in run.history]
    best = np.argmin(scores) if monitor == "loss" else np.argmax(scores)
    assert run.metrics["best_epoch"] == 1 + int(best)
    assert run.metrics["valid"] == pytest.approx(run.history[int(best)]["valid"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.monitor=acuracy", "monitor.*accuracy"), ("train.monitor=rmse", "monitor.*multiclass"),
        ("train.monitor=", "monitor.*accuracy"), ("train.max_time=soon", "max_time.*duration"),
        ("train.max_time=-5s", "max_time.*duration"), ("train.max_time=1d", "max_time.*duration"),
        ("train.wandb_project=project", "wandb"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_before_anything_is_written(
    setting: str, told: str, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=told):
        train(prepared, small(setting), tmp_path / "run")
    assert left_in(tmp_path) == []


def test_the_weights_kept_are_those_of_the_best_epoch(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are copied at every validation; the file must hold the copy of best_epoch, not of another."""
    seen: list[dict[str, torch.Tensor]] = []
    real = Scorer.scores

    def watch(self: Scorer, *args: Any) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return real(self, *args) | {"accuracy": [0.1, 0.2, 0.9, 0.3, 0.4][len(seen) - 1]}

    monkeypatch.setattr(Scorer, "scores", watch)
    run = train(prepared, small("train.epochs=5"), tmp_path / "run", score_test=False)
    best = run.metrics["best_epoch"]
    assert (best, len(seen)) == (3, 5)
    kept = run.load_model(prepared).state_dict()
    assert all(torch.equal(kept[name], seen[best - 1][name]) for name in kept)
    assert any(not torch.equal(kept[name], seen[-1][name]) for name in kept)


def test_a_run_without_validation_nodes_keeps_the_last_weights(tmp_path: Path) -> None:
    parts = thirds(150)
    store = easy_store(tmp_path / "g", splits={"train": parts["train"], "test": parts["test"]})
    run = train(store, small("train.epochs=3", "train.patience=1"), tmp_path / "run")
    assert run.metrics["best_epoch"] == 3
    assert run.metrics["valid"] == {}
    assert run.metrics["test"]["accuracy"] == evaluate(run.path)["accuracy"]


def test_a_run_without_test_nodes(tmp_path: Path) -> None:
    parts = thirds(150)
    store = easy_store(tmp_path / "g", splits={"train": parts["train"], "valid": parts["valid"]})
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    assert run.metrics["test"] == {}


def test_no_training_nodes_is_a_clear_error(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", splits={"valid": np.arange(5)})
    with pytest.raises(InputError, match="no training nodes"):
        train(store, small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# no leak


def test_the_labels_of_test_nodes_change_nothing_but_the_test_scores(tmp_path: Path) -> None:
    labels = homophilous()[2]
    flipped = labels.copy()
    test = thirds(len(labels))["test"]
    flipped[test] = (labels[test] + 1) % 3
    runs = []
    for name, values in (("a", labels), ("b", flipped)):
        store = easy_store(tmp_path / f"g{name}", values)
        runs.append(train(store, small("train.class_weights=balanced"), tmp_path / name))
    assert history(runs[0].path) == history(runs[1].path)
    one, other = final(runs[0].path), final(runs[1].path)
    assert one.pop("test") != other.pop("test")
    one.pop("dataset"), other.pop("dataset")
    assert one == other
    assert (runs[0].path / "model.safetensors").read_bytes() == (runs[1].path / "model.safetensors").read_bytes()


def test_the_test_split_is_asked_for_only_after_the_last_epoch(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    real = Prepared.split_rows

    def watch(self: Prepared, split: str) -> np.ndarray:
        file = tmp_path / "run" / "metrics.jsonl"
        asked.append((split, len(file.read_text().splitlines()) if file.exists() else 0))
        return real(self, split)

    monkeypatch.setattr(Prepared, "split_rows", watch)
    train(prepared, small("train.epochs=3"), tmp_path / "run")
    assert {split for split, _ in asked} == {"train", "valid", "test"}
    assert [epochs for split, epochs in asked if split == "test"] == [3]


def test_no_test_label_enters_a_batch_before_the_end(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from largegt.training.metrics import TaskHead

    seen: list[int] = []
    real = TaskHead.loss_terms

    def watch(self: TaskHead, logits: torch.Tensor, labels: torch.Tensor) -> Any:
        seen.append(len(labels))
        return real(self, logits, labels)

    monkeypatch.setattr(TaskHead, "loss_terms", watch)
    train(prepared, small("train.epochs=2"), tmp_path / "run")
    sizes = {name: len(prepared.split_rows(name)) for name in ("train", "valid", "test")}
    assert sum(seen) == 2 * (sizes["train"] + sizes["valid"]) + sizes["test"]


# class weights


def test_balanced_class_weights_find_the_rare_class(tmp_path: Path) -> None:
    rare_nodes = np.random.default_rng(0).random(150) < 0.12
    labels = np.where(rare_nodes, 2, np.arange(150) % 2)
    prepared = prepare(easy_store(tmp_path / "g", labels), small().prepare)
    found = {}
    for choice in ("none", "balanced"):
        run = train(prepared, small(f"train.class_weights={choice}", "train.epochs=4"), tmp_path / choice)
        found[choice] = sum(label == 2 for label in predict(run.path, split="train")["label"].to_pylist())
    assert found["balanced"] > found["none"]


def test_balanced_weights_with_a_class_that_training_never_sees(tmp_path: Path) -> None:
    """A class found in valid alone has weight 0: its loss must not turn the validation loss into NaN."""
    parts = thirds(150)
    labels = np.arange(150) % 2
    labels[parts["valid"]] = 2
    store = easy_store(tmp_path / "g", labels, parts, task="multiclass")
    run = train(store, small("train.class_weights=balanced", "train.epochs=2"), tmp_path / "run")
    assert all(math.isfinite(entry["valid"]["loss"]) for entry in run.history)


# the folder


def test_the_run_folder_holds_what_the_design_says(done: Run) -> None:
    names = {item.name for item in done.path.iterdir()}
    assert names == {
        "config.toml", "metrics.jsonl", "metrics.csv", "metrics.json", "model.safetensors", "checkpoints",
        "checksums.json", "tensorboard",
    }  # fmt: skip
    assert {
        "model", "dataset", "seed", "num_parameters", "best_epoch", "epoch_time_s", "peak_gpu_bytes", "valid", "test",
    } <= set(done.metrics)  # fmt: skip
    assert done.metrics["dataset"] == "g"
    assert done.metrics["num_parameters"] == sum(p.numel() for p in done.load_model(done.prepared()).parameters())
    assert list((done.path / "tensorboard").glob("events.out.tfevents.*"))


def test_tensorboard_events_hold_the_curve(done: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(done.path / "tensorboard"))
    events.Reload()
    points = events.Scalars("valid/accuracy")
    assert [point.step for point in points] == list(range(1, 9))
    assert [point.value for point in points] == pytest.approx([e["valid"]["accuracy"] for e in done.history])


def test_metrics_csv_says_the_same_as_metrics_jsonl(done: Run) -> None:
    with open(done.path / "metrics.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["epoch"]) for row in rows] == list(range(1, 9))
    for row, entry in zip(rows, done.history, strict=True):
        assert float(row["valid.accuracy"]) == entry["valid"]["accuracy"]
        assert float(row["train.loss"]) == entry["train"]["loss"]


def test_metrics_are_json_that_any_program_reads(done: Run) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads((done.path / "metrics.json").read_text(), parse_constant=refuse)
    for line in (done.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_the_config_in_the_folder_is_enough_to_run_it_again(done: Run, tmp_path: Path) -> None:
    opened = Run.open(done.path)
    train(opened.store(), opened.config, tmp_path / "again")
    assert history(tmp_path / "again") == history(done.path)
    assert final(tmp_path / "again") == final(done.path)


def test_the_config_in_the_folder_is_a_recipe(done: Run) -> None:
    """`largegt train data/g --recipe runs/a/config.toml --out runs/b` is what a newcomer tries first."""
    assert Config.from_recipe(done.path / "config.toml") == done.config


def test_train_takes_a_path_a_store_or_a_prepared(store: GraphStore, prepared: Prepared, tmp_path: Path) -> None:
    for name, data in (("path", store.path), ("text", str(store.path)), ("store", store), ("prepared", prepared)):
        train(data, small("train.epochs=1"), tmp_path / name)
    assert (
        final(tmp_path / "path")
        == final(tmp_path / "text")
        == final(tmp_path / "store")
        == final(tmp_path / "prepared")
    )
    assert Run.open(tmp_path / "prepared").config.prepare == prepared.config.settings


def test_evaluate_and_predict_take_the_run_that_train_returned(done: Run) -> None:
    assert evaluate(done) == done.metrics["test"]  # type: ignore[arg-type]
    assert predict(done, split="test").num_rows  # type: ignore[arg-type]


def test_evaluate_is_what_the_loop_said(done: Run) -> None:
    assert evaluate(done.path, "valid") == pytest.approx(done.history[done.metrics["best_epoch"] - 1]["valid"])
    assert evaluate(str(done.path)) == done.metrics["test"]
    assert done.history[done.metrics["best_epoch"] - 1]["valid"] == done.metrics["valid"]


def test_evaluate_refuses_an_unknown_split_and_device(done: Run) -> None:
    with pytest.raises(InputError, match="train, valid, test"):
        evaluate(done.path, "dev")
    with pytest.raises(ConfigError, match="banana"):
        evaluate(done.path, device="banana")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_device_that_is_not_there(done: Run, prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no usable GPU"):
        evaluate(done.path, device="cuda")
    with pytest.raises(ConfigError, match="no usable GPU"):
        train(prepared, small("train.device=cuda"), tmp_path / "run")
    assert left_in(tmp_path) == []


# what is there already


def test_an_existing_run_is_neither_replaced_nor_continued_unasked(copy: Path, done: Run, prepared: Prepared) -> None:
    before = {file: (copy / file).read_bytes() for file in ("config.toml", "metrics.json", "model.safetensors")}
    with pytest.raises(InputError, match="--resume"):
        train(prepared, done.config, copy)
    assert before == {file: (copy / file).read_bytes() for file in before}


def test_a_folder_of_something_else_is_never_touched(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match="not a run"):
            train(prepared, small(), tmp_path, **options)  # type: ignore[arg-type]
    assert left_in(tmp_path) == ["thesis.txt"]


def test_overwrite_spares_a_config_toml_that_is_not_ours(prepared: Prepared, tmp_path: Path) -> None:
    """Many tools call their settings config.toml: a folder that has one is not yet a run of ours."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "config.toml").write_text('baseURL = "https://example.org"\n')
    (site / "thesis.txt").write_text("years of work")
    with pytest.raises(LargeGTError):
        train(prepared, small(), site, overwrite=True)
    assert left_in(site) == ["config.toml", "thesis.txt"]


def test_overwrite_starts_anew(copy: Path, prepared: Prepared) -> None:
    train(prepared, small("train.epochs=2", "train.seed=5"), copy, overwrite=True)
    assert len(history(copy)) == 2
    assert len(list((copy / "tensorboard").iterdir())) == 1


def test_resume_and_overwrite_together_are_refused(copy: Path, done: Run, prepared: Prepared) -> None:
    before = (copy / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(LargeGTError):
        train(prepared, done.config, copy, resume=True, overwrite=True)
    assert (copy / "model.safetensors").stat().st_mtime_ns == before


# what is broken


def test_a_store_that_moved_is_a_clear_error(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    train(store, small("train.epochs=1"), tmp_path / "run")
    (tmp_path / "g").rename(tmp_path / "elsewhere")
    for work in (evaluate, lambda path: Run.open(path).prepared()):
        with pytest.raises(InputError, match="no longer at") as caught:
            work(tmp_path / "run")
        assert "config.toml" in str(caught.value)
    text = (tmp_path / "run/config.toml").read_text().replace(str(tmp_path / "g"), str(tmp_path / "elsewhere"))
    (tmp_path / "run/config.toml").write_text(text)
    assert evaluate(tmp_path / "run")["accuracy"] >= 0


def test_a_store_that_changed_under_the_run_is_noticed(tmp_path: Path) -> None:
    """The same path, other content: scores of such a run would mean nothing."""
    store = easy_store(tmp_path / "g")
    train(store, small("train.epochs=1"), tmp_path / "run")
    shutil.rmtree(tmp_path / "g")
    easy_store(tmp_path / "g", labels=(np.arange(150) // 7) % 3)
    with pytest.raises(LargeGTError, match=r"changed|other"):
        evaluate(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("config.toml", text) for text in (
            b"[train\n", b"", b"\xff\xfe", b"data = 3\n", b"[data]\n", b"[data]\nstore = 5\n",
            b"[data]\nstore = 'x'\n[train]\nepoch = 3\n",
        )),
        *((name, text) for name in ("metrics.json", "metrics.jsonl") for text in (b"{", b"[1, 2", b"\x00")),
        *((name, text) for name in ("model.safetensors", "checkpoints/last.pt") for text in (b"", b"nonsense", None)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noted", [True, False])
def test_damaged_files_are_named(
    name: str, content: bytes | None, noted: bool, copy: Path, prepared: Prepared, done: Run
) -> None:
    """By their checksums, or by their readers."""
    file = copy / name
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    if not noted:
        (copy / "checksums.json").unlink()

    def read() -> None:
        run = Run.open(copy)
        assert run.metrics
        assert run.history
        evaluate(run)
        train(prepared, done.config, copy, resume=True)

    assert file.name in refusal(read)


def test_weights_of_another_shape(copy: Path) -> None:
    file = copy / "config.toml"
    file.write_text(file.read_text().replace("hidden_dim = 8", "hidden_dim = 12"))
    (copy / "checksums.json").unlink()
    with pytest.raises(FormatError, match="does not fit"):
        evaluate(copy)


def test_no_weights_yet(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        evaluate(copy)


def test_nothing_pickled_is_run_from_a_checkpoint(copy: Path, prepared: Prepared, done: Run, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"model": Trap()}, copy / "checkpoints" / "last.pt")
    with pytest.raises(FormatError):
        train(prepared, done.config, copy, resume=True)
    assert not (tmp_path / "sprung").exists()


def test_no_run_at_all(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="is not a run"):
            evaluate(path)
