"""Step sizes, weight decay and the model that a name stands for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.models import model_config
from largegt.config.schema import Config, TrainConfig
from largegt.errors import ConfigError
from largegt.models.baselines.feature_models import MLP
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.setup import (
    build_model,
    make_accelerator,
    make_loader,
    make_optimizer,
    precision_of,
    set_learning_rate,
)
from largegt.training.trainer import train
from run_helpers import history, logged, small


def rates(config: TrainConfig, num_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    found = []
    for step in range(num_steps):
        set_learning_rate(optimizer, config, step, num_steps)
        found.append(optimizer.param_groups[0]["lr"])
    return found


def test_one_cycle_against_a_table() -> None:
    """10 steps, 2 of them warm-up: thirds up to the peak, then half a cosine down."""
    got = rates(TrainConfig(learning_rate=3.0, warmup_ratio=0.2), 10)
    fall = [3.0 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert got == pytest.approx([1.0, 2.0, *fall])
    assert max(got) == 3.0
    assert got[2] == 3.0


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("num_steps", [1, 2, 7, 100])
def test_cosine_rises_then_falls_and_is_never_idle(warmup: float, num_steps: int) -> None:
    got = rates(TrainConfig(learning_rate=1.0, warmup_ratio=warmup), num_steps)
    top = int(np.argmax(got))
    assert all(0 < rate <= 1.0 for rate in got)
    assert got[: top + 1] == sorted(got[: top + 1])
    assert got[top:] == sorted(got[top:], reverse=True)


def test_constant_is_constant() -> None:
    assert set(rates(TrainConfig(learning_rate=0.25, lr_scheduler="constant"), 5)) == {0.25}


def test_linear_warms_up_in_steps_and_ends_where_it_should() -> None:
    config = TrainConfig(learning_rate=1.0, lr_scheduler="linear", warmup_steps=3, min_learning_rate=0.1)
    found = rates(config, 10)
    assert found[:3] == pytest.approx([0.25, 0.5, 0.75])
    assert found[3:] == pytest.approx(np.linspace(1.0, 0.1, 7))


def test_the_schedule_runs_over_all_epochs(prepared: Prepared, tmp_path: Path) -> None:
    """75 training nodes in batches of 32 are 3 steps an epoch, the last one is logged."""
    train(prepared, small("train.warmup_ratio=0", "train.epochs=3"), tmp_path / "run")
    logged = [entry["learning_rate"] for entry in history(tmp_path / "run")]
    assert logged == pytest.approx([0.02 * (1 + math.cos(math.pi * step / 9)) / 2 for step in (2, 5, 8)])


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_weight_decay_falls_on_matrices_only(name: str, kind: type, prepared: Prepared) -> None:
    model = build_model(small().model, prepared)
    optimizer = make_optimizer(model, TrainConfig(optimizer=name, weight_decay=0.3), torch.device("cpu"))  # type: ignore[arg-type]
    assert type(optimizer) is kind
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for parameter_name, parameter in model.named_parameters():
        expected = 0.3 if parameter.ndim == 2 else 0.0
        assert decay[id(parameter)] == expected, parameter_name
    assert {0.3, 0.0} == set(decay.values())


@pytest.mark.parametrize("name", ["largegt-full", "largegt-local", "largegt-global", "mlp"])
def test_a_name_stands_for_a_model(name: str, prepared: Prepared) -> None:
    model = build_model(small(f"model.name={name}").model, prepared)
    assert type(model) is (MLP if name == "mlp" else LargeGT)
    if isinstance(model, LargeGT):
        assert (model.local_module is not None) == (name != "largegt-global")
        assert (model.global_module is not None) == (name != "largegt-local")
    loader = make_loader(prepared, model, TrainConfig(), torch.device("cpu"))
    batch = next(iter(loader.batches(prepared.split_rows("train"), 5)))
    assert model(batch).logits.shape == (5, 3)
    carried = batch.tokens.shape[1]
    assert carried == 3 if name in ("largegt-global", "mlp") else carried > 3


def test_whether_tokens_are_deduplicated_is_chosen_by_the_device(prepared: Prepared) -> None:
    model = build_model(model_config("largegt-local", hidden_dim=8), prepared)
    for choice, device, expected in (("auto", "cpu", True), (False, "cpu", False), (True, "cpu", True)):
        loader = make_loader(prepared, model, TrainConfig(deduplicate_tokens=choice), torch.device(device))  # type: ignore[arg-type]
        assert loader.distinct is expected


def test_accelerator_on_the_cpu() -> None:
    accelerator = make_accelerator(TrainConfig(device="cpu"))
    assert accelerator.device.type == "cpu"
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.usefixtures("bfloat16_cpu")
def test_bfloat16_on_the_cpu() -> None:
    with make_accelerator(TrainConfig(device="cpu", precision="bf16-mixed")).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


WORKS = """print('{"works": true, "speedup": 2.5}')"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_auto_is_float32_on_every_cpu(use_probe: Callable[[str], Path], prepared: Prepared, tmp_path: Path) -> None:
    """Also where bfloat16 works and is faster, and for a wide model."""
    use_probe(WORKS)
    assert precision_of(TrainConfig(), "cpu") == "32-true"
    settings = ["model.hidden_dim=128", "train.epochs=1", "train.device=cpu"]
    runs = [
        train(prepared, Config.from_recipe("base", [*settings, f"train.precision={precision}"]), tmp_path / precision)
        for precision in ("auto", "32-true")
    ]
    assert runs[0].history[0]["train"]["loss"] == runs[1].history[0]["train"]["loss"]
    assert not (tmp_path / "cache").exists(), "no probe was needed"


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_bfloat16_is_refused_where_it_does_not_work(
    precision: Any, use_probe: Callable[[str], Path], prepared: Prepared, tmp_path: Path
) -> None:
    use_probe(WORKS)
    assert precision_of(TrainConfig(precision=precision), "cpu") == precision
    use_probe(DIES)
    config = Config.from_recipe("base", ["train.device=cpu", f"train.precision={precision}"])
    with pytest.raises(ConfigError, match=rf"{precision} .* by SIGILL .* use `train\.precision=32-true`") as caught:
        train(prepared, config, tmp_path / "runs" / "a")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists(), "refused before anything is written"
    for allowed in ("auto", "32-true"):
        make_accelerator(TrainConfig(device="cpu", precision=allowed), trains=True)


def test_a_run_in_bfloat16_is_evaluated_in_float32_where_that_does_not_work(
    use_probe: Callable[[str], Path], prepared: Prepared, tmp_path: Path
) -> None:
    settings = ["model.hidden_dim=8", "train.epochs=1", "train.device=cpu"]
    run = train(prepared, Config.from_recipe("base", settings), tmp_path / "run")
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace('precision = "auto"', 'precision = "bf16-mixed"'))  # as if from a GPU
    (run.path / "checksums.json").unlink()
    use_probe(DIES)
    with logged("float32 is used instead of bfloat16: the probe was stopped by SIGILL"):
        assert evaluate(run.path) == run.metrics["test"]
