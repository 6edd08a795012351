"""One training step: what it keeps, and that nothing is recorded on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp import GradScaler

from largegt.loader.loader import token_batches
from largegt.preprocessing.pipeline import prepare
from largegt.training.checkpoint import TrainingProgress, TrainingState, load_checkpoint, save_checkpoint
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_accelerator, set_learning_rate
from largegt.training.step import TrainingStep
from run_helpers import easy_store, small


def test_losses_are_kept_and_weights_move(tmp_path: Path) -> None:
    config = small("train.batch_size=40", "model.dropout=0", "model.encoder_dropout=0")
    prepared = prepare(easy_store(tmp_path / "g"), config.prepare)
    accelerator = make_accelerator(config.train)
    torch.manual_seed(0)
    model = build_model(config.model, prepared)
    state, head = TrainingState.make(model, config.train, accelerator), TaskHead.for_training(prepared, config.train)
    step = TrainingStep(accelerator, state, head, config.train, record=True)
    set_learning_rate(state.optimizer, config.train, 0, 10)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    expected = []
    for batch in token_batches(prepared, split="train", batch_size=40):
        with torch.no_grad():
            expected.append(float(head.loss(model(batch).logits, batch.labels)))
        step([batch])
    assert step.losses.finish().tolist() == pytest.approx(expected, rel=1e-4)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.8 * len(moved)


OFF, CPU = GradScaler("cpu", enabled=False), torch.device("cpu")


def test_a_checkpoint_does_not_say_how_an_optimizer_runs(tmp_path: Path) -> None:
    """Written where the optimizer was fused and its step size a tensor, read where neither is so."""
    model: Any = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    there = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25), fused=True)
    there.step()
    save_checkpoint(tmp_path / "c.pt", TrainingState(model, there, OFF), TrainingProgress(epoch=3))
    here = torch.optim.AdamW(model.parameters(), lr=0.125)
    assert load_checkpoint(tmp_path / "c.pt", TrainingState(model, here, OFF), CPU).epoch == 3
    assert here.param_groups[0]["lr"] == 0.125
    assert not here.param_groups[0]["fused"]
    assert torch.equal(here.state[model.weight]["exp_avg"], there.state[model.weight]["exp_avg"])


def test_a_checkpoint_keeps_the_scale_of_gradients(tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    there, here = (GradScaler("cpu", init_scale=1024.0, growth_interval=5) for _ in range(2))
    for factor in (1.0, torch.inf, 1.0):
        optimizer.zero_grad()
        there.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        there.step(optimizer)
        there.update()
    assert (there.state_dict()["scale"], there.state_dict()["_growth_tracker"]) == (512.0, 1)
    save_checkpoint(tmp_path / "c.pt", TrainingState(model, optimizer, there), TrainingProgress())
    load_checkpoint(tmp_path / "c.pt", TrainingState(model, optimizer, here), CPU)
    assert here.state_dict() == there.state_dict()
    load_checkpoint(tmp_path / "c.pt", TrainingState(model, optimizer, OFF), CPU)
    save_checkpoint(tmp_path / "c.pt", TrainingState(model, optimizer, OFF), TrainingProgress())
    load_checkpoint(tmp_path / "c.pt", TrainingState(model, optimizer, here), CPU)  # it starts with the scale it has
    assert here.state_dict() == there.state_dict()
