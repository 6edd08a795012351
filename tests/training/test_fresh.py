"""Fresh neighbourhoods every epoch, and predictions averaged over several draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.errors import ConfigError
from largegt.preprocessing.prepared import sample_rows
from largegt.training.metrics import TaskHead
from run_helpers import small

FRESH = "train.resample=epoch"


def test_every_epoch_trains_on_another_sample(store: lg.GraphStore, tmp_path: Path, monkeypatch: Any) -> None:
    from largegt.loader.loader import TokenLoader

    seen: list[torch.Tensor] = []
    real = TokenLoader.batches

    def watch(self: TokenLoader, rows: Any, batch_size: int, seed: int | None = None, epoch: int = 0) -> Any:
        if seed is not None:
            seen.append(self.table.local_rows_of(torch.from_numpy(np.asarray(rows)), None).clone())
        return real(self, rows, batch_size, seed, epoch)

    monkeypatch.setattr(TokenLoader, "batches", watch)
    run = lg.train(store, small(FRESH, "train.epochs=3"), tmp_path / "run")
    prepared = run.prepared()
    rows = prepared.split_rows("train")
    assert len(seen) == 3
    for epoch, drawn in enumerate(seen):
        np.testing.assert_array_equal(drawn, sample_rows(store, prepared, rows, epoch).local_rows)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_validation_keeps_its_sample(store: lg.GraphStore, tmp_path: Path) -> None:
    run = lg.train(store, small(FRESH, "train.epochs=2"), tmp_path / "run")
    again = lg.evaluate(run, "valid")
    assert again == pytest.approx(run.metrics["valid"])


def test_a_prepared_with_sampled_rows_only_cannot_be_resampled(store: lg.GraphStore, tmp_path: Path) -> None:
    prepared = lg.prepare(store, small().prepare)
    with pytest.raises(ConfigError, match="reachable"):
        lg.train(prepared, small(FRESH), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_reachable_rows_are_those_within_two_hops(make_store: Any) -> None:
    """On a path of ten nodes with one label at its end, rows reach two steps; an isolated label reaches everyone."""
    path = [(v, v + 1) for v in range(9)]
    labels = np.full(10, -1)
    labels[0] = 1
    config = lg.PrepareConfig(local_nodes={"k": 4}, positions={"method": "none"}).reachable()
    assert lg.prepare(make_store(path, 10, labels=labels), config).token_nodes.tolist() == [0, 1, 2]
    labels = np.full(11, -1)
    labels[10] = 1
    alone = lg.prepare(make_store(path, 11, labels=labels), config)
    assert alone.token_nodes.tolist() == list(range(11))


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_average_is_of_probabilities(task: Any) -> None:
    head = TaskHead(task, 3 if task in ("multiclass", "multilabel") else 1, None, 0.0, 2.0, 3.0)
    logits = [torch.randn(5, head.num_outputs) for _ in range(4)]
    mean = torch.stack([head.probabilities(each) for each in logits]).mean(dim=0)
    torch.testing.assert_close(head.probabilities(head.average(logits)), mean, atol=1e-6, rtol=1e-5)


def test_no_draws_is_refused(store: lg.GraphStore, tmp_path: Path) -> None:
    run = lg.train(store, small("train.epochs=1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="draws"):
        lg.evaluate(run, draws=0)
