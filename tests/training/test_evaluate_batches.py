"""Wide features are scored in smaller batches, with the same result."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import largegt as lg
from largegt.loader.loader import TokenLoader
from largegt.loader.table import TokenTable
from run_helpers import easy_store, small


def test_batches_are_no_larger_than_they_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lg.train(easy_store(tmp_path / "g"), small("train.epochs=2"), tmp_path / "run")
    expected, sizes = lg.evaluate(run, "test"), []
    real = TokenLoader.batches

    def watched(self: TokenLoader, rows: Any, batch_size: int, *more: Any) -> Any:
        sizes.append((batch_size, self.bytes_per_node))
        return real(self, rows, batch_size, *more)

    monkeypatch.setattr(TokenLoader, "batches", watched)
    evaluate = import_module("largegt.training.evaluate")
    lg.evaluate(run, "test")
    prepared = run.prepared()
    per_node = prepared.k * 3 * prepared.num_features * 4
    assert prepared.label_counts.shape[1] == 0
    assert sizes == [(run.config.train.eval_batch_size, per_node)]
    monkeypatch.setattr(evaluate, "_FEWEST", 2)
    for room, wanted in ((5 * per_node, 5), (per_node // 2, 2)):
        monkeypatch.setattr(evaluate, "_BATCH_BYTES", room)
        sizes.clear()
        assert lg.evaluate(run, "test") == pytest.approx(expected, rel=1e-5)
        assert sizes == [(wanted, per_node)]


def test_what_a_node_takes(tmp_path: Path) -> None:
    """Its tokens, and the labels around its local nodes."""
    config = small("model.label_surroundings=true", "prepare.local_nodes.k=9")
    prepared = lg.prepare(easy_store(tmp_path / "g"), config.preparation)
    loader = TokenLoader(TokenTable(prepared), torch.device("cpu"))
    token, told = 3 * prepared.num_features * 4, 8 * prepared.label_counts.shape[1]
    assert told > 0
    assert loader.bytes_per_node == 9 * (token + told)
