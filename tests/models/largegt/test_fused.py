"""Compiled models: the same numbers, for the sizes asked for, and a way back when compiling fails."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from largegt.config.models import model_config
from largegt.loader.batch import TokenBatch
from largegt.models.largegt.fused import Fused
from largegt.models.largegt.model import LargeGT

_real_compile = torch.compile


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile as it is, up to the generation of kernels, which takes long and needs a C++ compiler."""

    def compile_(function: Any, **settings: Any) -> Any:
        return _real_compile(function, backend="aot_eager", **settings)

    monkeypatch.setattr(torch, "compile", compile_)


def batch_of(size: int, seed: int, width: int = 5, task: str | None = None) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    labels = {
        None: None,
        "multiclass": torch.randint(-1, 3, (size, 4), generator=generator),
        "multilabel": torch.randint(0, 2, (size, 4, 3), generator=generator).float(),
        "regression": torch.randn(size, 4, generator=generator),
    }[task]
    return TokenBatch(
        nodes=torch.randperm(100, generator=generator)[:size],
        tokens=torch.randn(size, 12, width, generator=generator),
        multiplicity=None,
        positions=torch.randn(size, 4, generator=generator),
        labels=torch.zeros(size, dtype=torch.long),
        local_labels=labels,
    )


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("name", ["largegt-full", "largegt-local"])
@pytest.mark.parametrize("task", [None, "multiclass", "multilabel", "regression"])
def test_a_compiled_model_is_the_same_model(traced: None, task: Any, head_dim: int, name: Any) -> None:
    """Also where it reads labels of local nodes, whatever the task."""
    torch.manual_seed(0)
    codebook = {"codebook": {"num_centroids": 20, "dim": 8}} if name == "largegt-full" else {}
    config = model_config(name, hidden_dim=16, head_dim=head_dim, dropout=0.0, encoder_dropout=0.0,
                          label_embeddings=task is not None, **codebook)  # fmt: skip
    plain = LargeGT(5, 1 if task == "regression" else 3, 100, 4, config, task=task or "multiclass")
    fused = copy.deepcopy(plain)
    fused.compile_for({8})
    for step, size in enumerate((8, 8, 5, 8)):
        outputs = []
        for model in (plain, fused):
            torch.manual_seed(step)
            output = model(batch_of(size, step, task=task))
            model.zero_grad()
            output.logits.square().sum().backward()
            model.update_codebook(output)
            outputs.append(output)
        torch.testing.assert_close(outputs[0].logits, outputs[1].logits)
        for a, b in zip(plain.parameters(), fused.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        for a, b in zip(plain.buffers(), fused.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_only_the_sizes_asked_for_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def compile_(function: Any, **settings: Any) -> Any:
        def compiled(x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return function(x)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    double = Fused(lambda x: 2 * x, {3})
    for size in (3, 2, 3, 4):
        assert torch.equal(double(torch.ones(size)), torch.full((size,), 2.0))
    assert seen == [3, 3]


def test_when_compiling_fails_the_plain_function_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, **settings: broken)
    double = Fused(lambda x: 2 * x, {3})
    with pytest.warns(UserWarning, match="not compiled, since that failed: no compiler here"):
        assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))


def test_an_error_of_a_compiled_function_that_has_worked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **settings: function)
    inverse = Fused(torch.linalg.inv, {2})
    inverse(torch.eye(2))
    with pytest.raises(RuntimeError):
        inverse(torch.zeros(2, 2))
