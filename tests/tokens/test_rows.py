"""Rows computed beforehand give the same predictions as tokens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config import LabelContextsConfig, LocalNodesConfig, ModelConfig, PositionsConfig, PrepareConfig
from largegt.model.largegt import LargeGT
from largegt.prepare.pipeline import prepare
from largegt.prepare.prepared import Prepared
from largegt.tokens import rows as rows_module
from largegt.tokens.loader import TokenLoader
from largegt.tokens.local_labels import LocalLabels
from largegt.tokens.rows import is_worth_reusing, with_rows
from largegt.tokens.table import TokenTable

CPU = torch.device("cpu")


@pytest.fixture
def prepared(make_store: Any, random_edges: Any) -> Prepared:
    store = make_store(random_edges(60, 90), 60, labels=np.arange(60) % 3)
    return prepare(store, PrepareConfig(
        local_nodes=LocalNodesConfig(k=6), positions=PositionsConfig(dim=4), labels=LabelContextsConfig(local=True)
    ))  # fmt: skip


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("head_width", [4, 8])
@pytest.mark.parametrize("hop_embeddings", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("told", [(), ("distances",), ("label_surroundings", "label_tokens")])
def test_the_same_logits(
    prepared: Prepared, distinct: bool, head_width: int, hop_embeddings: bool, num_layers: int, told: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        hidden=8,
        head_width=head_width,
        hop_embeddings=hop_embeddings,
        num_layers=num_layers,
        **dict.fromkeys(told, True),
    )
    model = LargeGT.for_prepared(prepared, config).eval()
    labels = LocalLabels.of_training_nodes(prepared)
    loader = TokenLoader(TokenTable(prepared, CPU), CPU, distinct=distinct, local_labels=labels)
    reusing = with_rows(loader, model, nullcontext())
    assert [len(row) for row in reusing.rows] == ([60] if told else [60, 60])
    every = np.arange(60)
    with torch.no_grad():
        for plain, batch in zip(loader.batches(every, 25), reusing.batches(every, 25), strict=True):
            assert batch.tokens.shape[1] == 3
            torch.testing.assert_close(model(batch).logits, model(plain).logits)


def test_models_without_rows_and_rows_without_room_leave_the_loader_alone(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TokenLoader(TokenTable(prepared, CPU), CPU)
    alone = LargeGT.for_prepared(prepared, ModelConfig(hidden=8, name="largegt-global"))
    assert with_rows(loader, alone, nullcontext()) is loader
    monkeypatch.setattr(rows_module, "available_bytes", lambda: 1000)
    model = LargeGT.for_prepared(prepared, ModelConfig(hidden=8))
    assert with_rows(loader, model, nullcontext()) is loader


def test_a_few_nodes_are_not_worth_a_pass_over_the_table(prepared: Prepared) -> None:
    loader = TokenLoader(TokenTable(prepared, CPU), CPU)
    assert is_worth_reusing(loader, 60)
    assert not is_worth_reusing(loader, 20)
