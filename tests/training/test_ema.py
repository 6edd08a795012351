"""The average of the weights: what it is, that it alone is scored and kept, and that training does not notice it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from largegt.config.models import overrides_read
from largegt.data.store import GraphStore
from largegt.errors import FormatError
from largegt.preprocessing.prepared import Prepared
from largegt.training.checkpoint import Progress, State, load_checkpoint, save_checkpoint
from largegt.training.ema import WeightAverage
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.step import TrainingStep
from largegt.training.trainer import train
from run_helpers import history, small

pytestmark = pytest.mark.slow

# batch norm, the codebook, dropout and a schedule: all that has a state beside the average
AVERAGED = ("train.ema_decay=0.8", "model.norm=batch", "model.dropout=0.2", "train.epochs=6")

Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def alone(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happened to."""
    return train(prepared, small(*AVERAGED), tmp_path_factory.mktemp("alone") / "run")


def oracle(weights: list[Weights], decay: float) -> Weights:
    """The average over the weights before the first step and after every one, in float64."""
    average = {name: value.astype(np.float64) for name, value in weights[0].items()}
    for t, now in enumerate(weights[1:]):
        d = min(decay, (1 + t) / (10 + t))
        average = {name: d * average[name] + (1 - d) * now[name] for name in average}
    return average


def weights_of(model: nn.Module) -> Weights:
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def close(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.999])
def test_against_numpy(decay: float) -> None:
    """30 steps: the smallest decay holds from the fourth step on, the largest never comes into play."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    average = WeightAverage(model, decay)
    weights = [weights_of(model)]
    for _ in range(30):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update()
        weights.append(weights_of(model))
    with average.in_place():
        close(weights_of(model), oracle(weights, decay))
    again = weights_of(model)
    assert all(np.array_equal(again[name], weights[-1][name]) for name in again), "its own weights, to the bit"


def test_weights_come_back_after_an_error_and_buffers_never_leave() -> None:
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, 0.9)
    before = weights_of(model)
    with torch.no_grad():
        model.weight.fill_(5.0)
    average.update()
    model(torch.randn(8, 2) + 3.0)
    running = model.running_mean.clone()  # type: ignore[union-attr]
    with average.in_place():
        assert before["weight"][0] < float(model.weight.detach()[0]) < 5.0
        assert torch.equal(model.running_mean, running)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), average.in_place():
        raise KeyboardInterrupt
    assert model.weight.tolist() == [5.0, 5.0]


def test_what_is_scored_kept_and_watched_is_the_average(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step's weights are written down; the rest is the oracle's."""
    weights: list[Weights] = []
    watched: list[Weights] = []
    real = TrainingStep.__call__

    def spy(self: TrainingStep, *args: Any) -> None:
        model = self.state.model
        if not weights:
            weights.append(weights_of(model))
        assert all(np.array_equal(now, weights[-1][name]) for name, now in weights_of(model).items()), "raw weights"
        real(self, *args)
        weights.append(weights_of(model))

    monkeypatch.setattr(TrainingStep, "__call__", spy)
    run = train(prepared, small(*AVERAGED), tmp_path / "run", watch=lambda model, *_: watched.append(weights_of(model)))
    steps = (len(weights) - 1) // 6
    assert steps * 6 == len(weights) - 1 > 6
    averages = [oracle(weights[: 1 + steps * epoch], 0.8) for epoch in range(1, 7)]
    for found, expected in zip(watched, averages, strict=True):
        close(found, expected)
    saved = load_file(run.path / "model.safetensors")
    best = run.metrics["best_epoch"]
    close({name: saved[name] for name in weights[0]}, averages[best - 1])
    raw = weights[steps * best]
    assert not all(np.allclose(saved[name], raw[name], atol=1e-4) for name in raw)
    assert evaluate(run, "valid") == pytest.approx(run.history[best - 1]["valid"], rel=1e-5)
    assert evaluate(run, "test") == pytest.approx(run.metrics["test"], rel=1e-5)


def test_training_does_not_notice(prepared: Prepared, alone: Run, tmp_path: Path) -> None:
    """The same losses and steps, to the bit, as without; only what is scored differs."""
    plain = train(prepared, small(*AVERAGED, "train.ema_decay=0"), tmp_path / "run")
    for with_it, without in zip(history(alone.path), history(plain.path), strict=True):
        assert with_it["train"] == without["train"]
        assert with_it["learning_rate"] == without["learning_rate"]
        assert with_it["valid"]["loss"] != without["valid"]["loss"]
    ends = [torch.load(run.path / "checkpoints" / "last.pt", weights_only=True) for run in (alone, plain)]
    assert all(torch.equal(ends[0]["model"][name], value) for name, value in ends[1]["model"].items())
    assert ("average" in ends[0], "average" in ends[1]) == (True, False)


def test_a_checkpoint_without_the_average_is_refused(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", enabled=False)
    save_checkpoint(tmp_path / "c.pt", State(model, optimizer, scaler), Progress())
    with pytest.raises(FormatError, match="cannot be resumed"):
        load_checkpoint(
            tmp_path / "c.pt", State(model, optimizer, scaler, WeightAverage(model, 0.9)), torch.device("cpu")
        )


@pytest.mark.parametrize("name", ["mlp", "graphsage", "goat-full"])
def test_baselines_have_it_too(store: GraphStore, name: str, tmp_path: Path) -> None:
    settings = ("train.ema_decay=0.9", "model.fanouts=3,3", "train.epochs=8")
    run = train(store, small(f"model.name={name}", *overrides_read(settings, name)), tmp_path / "run")
    assert run.metrics["test"]["accuracy"] > 0.5
    assert evaluate(run, "valid") == pytest.approx(run.metrics["valid"], rel=1e-5)
