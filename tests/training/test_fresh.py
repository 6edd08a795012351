"""Fresh neighbourhoods every epoch, and predictions averaged over several draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.errors import ConfigError
from largegt.preprocessing.prepared import sample_rows
from largegt.training.metrics import TaskHead
from run_helpers import easy_store, small, stopped_at

FRESH = "train.resample=epoch"


def lines(run: lg.Run) -> list[dict[str, Any]]:
    """metrics.jsonl without the timings."""
    text = (run.path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.endswith("_s")} for line in text]


@pytest.fixture
def store(tmp_path: Path) -> lg.GraphStore:
    return easy_store(tmp_path / "g")


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


def test_resumed_equals_unbroken(store: lg.GraphStore, tmp_path: Path) -> None:
    whole = lg.train(store, small(FRESH, "train.epochs=4"), tmp_path / "whole")
    with stopped_at(TaskHead, "loss", 8, KeyboardInterrupt):
        lg.train(store, small(FRESH, "train.epochs=4"), tmp_path / "broken")
    resumed = lg.train(store, small(FRESH, "train.epochs=4"), tmp_path / "broken", resume=True)
    assert lines(resumed) == lines(whole)
    assert resumed.metrics["test"] == whole.metrics["test"]


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


def test_draws_average_probabilities(store: lg.GraphStore, tmp_path: Path) -> None:
    run = lg.train(store, small("train.epochs=2"), tmp_path / "run")

    def of(draws: int) -> np.ndarray:
        table = lg.predict(run, split="test", all_probabilities=True, draws=draws)
        return np.stack([table[name].to_numpy() for name in table.column_names if name.startswith("probability_")], 1)

    one, two, three = of(1), of(2), of(3)
    np.testing.assert_allclose(three.sum(axis=1), 1.0, atol=1e-5)
    assert not np.allclose(one, two)
    second, third = 2 * two - one, 3 * three - 2 * two  # each draw's own probabilities
    for each in (second, third):
        np.testing.assert_allclose(each.sum(axis=1), 1.0, atol=1e-4)
        assert each.min() > -1e-4
    assert not np.allclose(second, third)
    truth = lg.GraphStore.open(store.path).labels[store.splits["test"]]
    accuracy = float((three.argmax(axis=1) == truth).mean())
    assert lg.evaluate(run, draws=3)["accuracy"] == pytest.approx(accuracy)


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
