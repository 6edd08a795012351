"""Resume: a run that was killed, or failed at the worst moment, ends like one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError, LargeGTError
from largegt.preprocessing.prepared import Prepared
from largegt.training import trainer
from largegt.training.evaluate import Scorer, evaluate
from largegt.training.log import RunLog
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.training.setup import Accelerator
from largegt.training.trainer import train
from run_helpers import easy_store, final, history, left_in, small, small_settings, stopped_at

pytestmark = pytest.mark.slow

# dropout, batch norm, the codebook and a schedule: everything that has a state
STATEFUL = ("train.epochs=7", "model.norm=batch", "model.dropout=0.2", "train.patience=6")


@pytest.fixture(
    scope="module",
    params=[
        ("train.checkpoint_every_n_epochs=1",), ("train.checkpoint_every_n_epochs=3",),
        ("train.checkpoint_every_n_epochs=1", "train.ema_decay=0.8", "train.resample=epoch"),
    ],
    ids=["often", "seldom", "averaged and resampled"],
)  # fmt: skip
def alone(request: pytest.FixtureRequest, store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nothing happened to."""
    return train(store, small(*STATEFUL, *request.param), tmp_path_factory.mktemp("alone") / "run")


def same(one: Path, other: Path) -> None:
    assert history(one) == history(other)
    assert final(one) == final(other)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        (TaskHead, "loss", 2),  # in the first epoch: no checkpoint yet
        (TaskHead, "loss", 14),  # in the middle of an epoch
        (Scorer, "scores", 5),  # before validation
        (trainer, "save_weights", 2),  # before the best weights
        (RunLog, "add", 5),  # between weights and log
        (trainer, "save_checkpoint", 2),  # between log and checkpoint
        (trainer.Trainer, "finish", 1),  # after the last epoch
    ],
)
def test_a_run_that_failed_there_and_was_resumed_equals_one_left_alone(
    where: Any, name: str, call: int, alone: Run, store: GraphStore, tmp_path: Path
) -> None:
    with stopped_at(where, name, call):
        train(store, alone.config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.json").exists()
    torch.manual_seed(99)
    train(store, alone.config, tmp_path / "run", resume=True)
    same(tmp_path / "run", alone.path)
    assert not [name for name in left_in(tmp_path / "run") if "partial" in name]


def test_a_run_killed_twice(store: GraphStore, alone: Run, tmp_path: Path) -> None:
    for epochs in (3, 2):
        with stopped_at(RunLog, "add", epochs + 1):
            train(store, alone.config, tmp_path / "run", resume=True)
    train(store, alone.config, tmp_path / "run", resume=True)
    same(tmp_path / "run", alone.path)


def test_a_run_in_float16_that_was_resumed_equals_one_left_alone(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 on the CPU, which no setting asks for. Gradients overflow until their scale has shrunk, and those
    steps are skipped: a resumed run that begins with the first scale would skip them again."""

    def in_float16(*_: Any, **__: Any) -> Accelerator:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
        return Accelerator(torch.device("cpu"), "16-mixed", scaler)

    monkeypatch.setattr(trainer, "make_accelerator", in_float16)
    config = small("train.epochs=4")
    alone = train(prepared, config, tmp_path / "alone")
    with stopped_at(Scorer, "scores", 3):
        train(prepared, config, tmp_path / "run")
    train(prepared, config, tmp_path / "run", resume=True)
    same(tmp_path / "run", alone.path)


def test_a_run_really_killed_and_resumed_equals_one_left_alone(
    store: GraphStore, prepared: Prepared, tmp_path: Path
) -> None:
    longer = (*STATEFUL, "train.epochs=40", "train.patience=none", "train.checkpoint_every_n_epochs=1")
    overrides = [*small_settings("largegt-full"), *longer]
    alone = train(prepared, small(*longer), tmp_path / "alone")
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(trainer.__file__).parents[2]),
    }
    command = [sys.executable, "-m", "largegt", "train"]
    arguments = [str(store.path), "--recipe", "base", *(part for item in overrides for part in ("--set", item))]
    out = ["--out", str(tmp_path / "run")]
    log = tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen([*command, *arguments, *out], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 1):
        assert process.poll() is None, process.stderr.read().decode()  # type: ignore[union-attr]
        assert time.monotonic() < deadline, "no epoch in two minutes"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "metrics.json").exists(), "it was too quick to be killed: give it more epochs"
    done = subprocess.run([*command, "--resume", *out], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "run", alone.path)


def test_resuming_a_finished_run_changes_nothing(prepared: Prepared, tmp_path: Path) -> None:
    run = train(prepared, small(), tmp_path / "run")
    kept = ("config.toml", "metrics.json", "metrics.jsonl", "metrics.csv", "model.safetensors")
    before = [(run.path / name).read_bytes() for name in kept]
    for _ in range(2):
        train(prepared, small(), tmp_path / "run", resume=True)
        assert [(run.path / name).read_bytes() for name in kept] == before
    assert evaluate(run.path) == run.metrics["test"]


def test_resume_where_nothing_is_starts(prepared: Prepared, tmp_path: Path) -> None:
    train(prepared, small("train.epochs=1"), tmp_path / "run", resume=True)
    assert len(history(tmp_path / "run")) == 1


@pytest.mark.parametrize("change", ["train.epochs=9", "model.hidden_dim=10", "prepare.local_nodes.k=5", "train.seed=1"])
def test_resume_with_other_settings_is_refused(change: str, store: GraphStore, tmp_path: Path) -> None:
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    before = (run.path / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match="other settings"):
        train(store, small("train.epochs=1", change), tmp_path / "run", resume=True)
    assert (run.path / "config.toml").read_bytes() == before


def test_resume_on_another_store_is_refused(prepared: Prepared, tmp_path: Path) -> None:
    train(prepared, small("train.epochs=1"), tmp_path / "run")
    other = easy_store(tmp_path / "other", labels=np.arange(150) // 50)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(LargeGTError):
        train(other, small("train.epochs=1"), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_tensorboard_shows_each_epoch_once_after_a_resume(prepared: Prepared, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with stopped_at(trainer, "save_checkpoint", 1):
        train(prepared, small(), tmp_path / "run")
    time.sleep(1.1)  # event files are named by the second
    train(prepared, small(), tmp_path / "run", resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == [1, 2, 3]


def test_resume_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        Run.open(tmp_path / "run")
