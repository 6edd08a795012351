"""Label tokens: what local nodes tell of their labels, from the batch to the scores; and node dropout in training."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_batches import make_batch
from torch.nn import functional as F

import largegt as lg
from largegt.config.schema import ModelConfig
from largegt.errors import ConfigError
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader, token_batches
from largegt.models.largegt.local_module import LocalModule, LocalNodeInputs
from largegt.models.largegt.model import LargeGT
from largegt.training.checkpoint import State
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_accelerator, make_loader
from largegt.training.step import TrainingStep
from run_helpers import check_resumed, easy_store, homophilous, one_thread, small, thirds  # noqa: F401

TASKS = ["multiclass", "binary", "multilabel", "regression"]
ON = "model.label_tokens=true"


def labels_of(task: str, num_nodes: int = 150) -> np.ndarray:
    """Labels that neighbours share more often than not, of four nodes in five."""
    classes = np.arange(num_nodes) % 3
    known = np.arange(num_nodes) % 5 != 4
    if task == "multiclass":
        return np.where(known, classes, -1)
    if task == "binary":
        return np.where(known, classes == 0, -1)
    if task == "regression":
        return np.where(known, 10.0 * classes + 0.5, np.nan).astype(np.float32)
    table = np.stack([classes == 0, classes > 1], axis=1).astype(np.float32)
    table[::7, 1] = np.nan
    table[~known] = np.nan
    return table


@pytest.fixture(params=TASKS)
def store(request: Any, tmp_path: Path) -> lg.GraphStore:
    return easy_store(tmp_path / "g", labels_of(request.param), task=request.param)


def logits_of(model: Any, prepared: lg.Prepared, **how: Any) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    model.eval()
    with torch.no_grad():
        for batch in token_batches(prepared, local_labels=True, **{"batch_size": 40, **how}):
            found.update(zip(batch.nodes.tolist(), model(batch).logits, strict=True))
    return found


# the vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hop_embeddings", [False, True])
@pytest.mark.parametrize("kind", ["classes", "columns", "values"])
def test_a_vector_per_label_on_the_first_token_of_a_node(kind: str, hop_embeddings: bool) -> None:
    torch.manual_seed(0)
    c = {"classes": 4, "columns": 3, "values": 1}[kind]
    module = LocalModule(
        5, ModelConfig(hidden=8, hop_embeddings=hop_embeddings, label_tokens=True), num_labels=c
    ).double()
    tokens = torch.randn(2, 9, 5, dtype=torch.float64)
    nan = torch.nan
    labels = {
        "classes": torch.tensor([[-1, 3, 0], [-1, -1, 1]]),
        "columns": torch.tensor([[[nan] * 3, [1.0, 0, 1], [0, nan, 1]], [[nan] * 3, [0, 0, 0], [1, 1, 1]]]),
        "values": torch.tensor([[nan, 1.5, 0.0], [nan, nan, -2.0]]),
    }[kind]
    embedded = module.embed(tokens, LocalNodeInputs(labels))
    none, rest = module.label_embedding[0, 0], module.label_embedding[1:, 0]
    for b in range(2):
        for t in range(9):
            expected = module.project(tokens[b, t])
            if hop_embeddings:
                expected = expected + module.hop_embedding[0 if t < 3 else 1, t % 3]
            if t % 3 == 0:
                label = labels[b, t // 3]
                if kind == "classes":
                    expected = expected + (none if label < 0 else rest[label])
                elif label.isnan().all():
                    expected = expected + none
                else:
                    parts = zip(label.view(-1).tolist(), rest, strict=True)
                    expected = expected + sum(value * column for value, column in parts if value == value)
            torch.testing.assert_close(embedded[b, t], expected)


def test_off_is_the_model_without() -> None:
    torch.manual_seed(0)
    plain = LargeGT(5, 3, 50, 3, ModelConfig(hidden=8))
    assert not plain.reads_labels
    assert not any("label" in name for name in plain.state_dict())
    batch = make_batch()
    told = TokenBatch(batch.nodes, batch.tokens, None, batch.positions, batch.labels, (), torch.zeros(6, 4).long())
    plain = plain.double().eval()
    assert torch.equal(plain(batch).logits, plain(told).logits)
    alone = LargeGT(5, 3, 50, 3, ModelConfig(name="largegt-global", hidden=8, label_tokens=True, node_dropout=0.5))
    assert not alone.reads_labels
    assert alone.node_dropout == 0


def test_a_batch_that_does_not_say_is_refused() -> None:
    model = LargeGT(5, 3, 50, 3, ModelConfig(hidden=8, label_tokens=True)).double()
    with pytest.raises(ConfigError, match="local_labels=True"):
        model(make_batch())


# from a store to logits -------------------------------------------------------------------------------------------


def test_the_gradient_reaches_every_label(store: lg.GraphStore) -> None:
    prepared = lg.prepare(store, small().prepare)
    model = LargeGT.for_prepared(prepared, small(ON).model)
    table = model.local_module.label_embedding
    assert len(table) == 1 + {"multiclass": 3, "binary": 2, "multilabel": 2, "regression": 1}[store.task]
    for batch in token_batches(prepared, local_labels=True, batch_size=200):
        model(batch).logits.square().sum().backward()
    assert (table.grad.abs().sum(dim=(1, 2)) > 0).all()


@pytest.mark.parametrize("num_layers", [1, 2])
def test_merged_tokens_give_the_same_logits(store: lg.GraphStore, num_layers: int) -> None:
    prepared = lg.prepare(store, small("prepare.local_nodes.k=40").prepare)
    torch.manual_seed(0)
    model = LargeGT.for_prepared(prepared, small(ON, f"model.num_layers={num_layers}").model)
    torch.nn.init.normal_(model.local_module.label_embedding)
    plain, merged = logits_of(model, prepared), logits_of(model, prepared, distinct=True)
    for node, logits in plain.items():
        torch.testing.assert_close(merged[node], logits, atol=1e-5, rtol=1e-5)
    model.local_module.label_embedding.data.zero_()
    silent = logits_of(model, prepared)
    assert any(not torch.allclose(silent[node], logits, atol=1e-3) for node, logits in plain.items())


@pytest.mark.parametrize("distinct", [False, True])
def test_nothing_leaks(tmp_path: Path, distinct: bool) -> None:
    """The label of a training node moves logits of others and not its own; those of valid and test move nothing."""
    labels = labels_of("multiclass")
    before = easy_store(tmp_path / "before", labels)
    config = small(ON, "prepare.local_nodes.nodes=all", "prepare.local_nodes.k=8")
    model = LargeGT.for_prepared(lg.prepare(before, config.prepare), config.model)
    torch.nn.init.normal_(model.local_module.label_embedding)

    def logits(name: str, labels: np.ndarray) -> dict[int, torch.Tensor]:
        store = easy_store(tmp_path / name, labels)
        assert np.array_equal(store.split, before.split)
        return logits_of(model, lg.prepare(store, config.prepare), distinct=distinct)

    first = logits("first", labels)
    for node in before.splits["train"][:3].tolist():
        other = labels.copy()
        other[node] = (labels[node] + 1) % 3
        after = logits(f"train-{node}", other)
        changed = [v for v, found in first.items() if not torch.equal(found, after[v])]
        assert changed
        assert node not in changed
    other = labels.copy()
    for split in ("valid", "test"):
        other[before.splits[split]] = (labels[before.splits[split]] + 1) % 3
    after = logits("rest", other)
    assert all(torch.equal(found, after[v]) for v, found in first.items())


def test_a_compiled_model_is_the_same_model(monkeypatch: pytest.MonkeyPatch, store: lg.GraphStore) -> None:
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: real(function, backend="aot_eager", **how))
    prepared = lg.prepare(store, small().prepare)
    torch.manual_seed(0)
    plain = LargeGT.for_prepared(prepared, small(ON, "model.dropout=0", "model.encoder_dropout=0").model)
    fused = copy.deepcopy(plain)
    fused.compile_for({30})
    for batch in list(token_batches(prepared, local_labels=True, batch_size=30, seed=0))[:2]:
        found = []
        for model in (plain, fused):
            model.zero_grad()
            logits = model(batch).logits
            logits.square().sum().backward()
            found.append([logits, model.local_module.label_embedding.grad])
        assert fused._fused is not None
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)


# training and prediction ------------------------------------------------------------------------------------------


def test_neighbours_labels_are_worth_reading(tmp_path: Path) -> None:
    """Every node has the same features, and a neighbour's class is mostly the node's own: only labels help."""
    edges, _, classes = homophilous(300)
    source = lg.sources.arrays(edges, np.ones((300, 2), dtype=np.float32), classes, thirds(300))
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    settings = ["model.name=largegt-local", "model.hidden=16", "model.node_dropout=0.2", "prepare.local_nodes.k=8",
                "prepare.local_nodes.hop1_share=1", "train.batch_size=16", "train.epochs=20",
                "train.learning_rate=5e-3"]  # fmt: skip
    without = lg.train(store, small(*settings), tmp_path / "without").metrics
    told = lg.train(store, small(*settings, ON), tmp_path / "told").metrics
    assert without["test"]["accuracy"] < 0.5
    assert told["test"]["accuracy"] > 0.8


def test_training_scoring_and_predicting(store: lg.GraphStore, tmp_path: Path) -> None:
    """Every task from end to end: fresh samples, several draws, nodes without a label."""
    config = small(ON, "model.node_dropout=0.3", "train.resample=epoch", "train.epochs=2")
    run = lg.train(store, config, tmp_path / "run")
    assert lg.evaluate(run) == pytest.approx(run.metrics["test"])
    assert lg.evaluate(run, draws=3)["loss"] != pytest.approx(run.metrics["test"]["loss"])
    everyone, some = lg.predict(run, all_probabilities=True), lg.predict(run, split="test", all_probabilities=True)
    assert everyone.num_rows == 150
    at = np.searchsorted(everyone["node"].to_numpy(), some["node"].to_numpy())
    for name in some.column_names:
        if name.startswith(("probability", "value")):
            np.testing.assert_allclose(everyone[name].to_numpy()[at], some[name].to_numpy(), atol=1e-5)
    prepared = lg.prepare(store, lg.Config.from_recipe(run.path / "config.toml",
                                                       ["prepare.local_nodes.nodes=all"]).preparation)  # fmt: skip
    by_hand = logits_of(run.load_model(prepared), prepared)
    logits = torch.stack([by_hand[node] for node in range(150)])
    wanted = run.head(prepared).probabilities(logits).numpy()
    columns = [name for name in everyone.column_names if name.startswith(("probability_", "value"))]
    found = np.stack([everyone[name].to_numpy() for name in columns], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_only_training_steps_leave_nodes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int]] = []
    real = LocalModule.encode

    def watch(self: LocalModule, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        seen.append((self.training, tokens.shape[1] // 3))
        return real(self, tokens, *others)

    monkeypatch.setattr(LocalModule, "encode", watch)
    settings = ("model.node_dropout=0.5", "prepare.local_nodes.k=9", "train.distinct=no", "train.epochs=1")
    lg.train(easy_store(tmp_path / "g"), small(*settings), tmp_path / "run")
    assert {k for training, k in seen if training} == {5}
    assert {k for training, k in seen if not training} == {9}


def test_resumed_equals_unbroken(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    config = small(ON, "model.node_dropout=0.4", "train.epochs=4")
    check_resumed(store, config, tmp_path, TaskHead, "loss", 8)


def test_a_user_s_own_loop(tmp_path: Path) -> None:
    prepared = lg.prepare(easy_store(tmp_path / "g"), small().prepare)
    model = LargeGT.for_prepared(prepared, small(ON).model)
    for batch in token_batches(prepared, "train", batch_size=16, seed=0, local_labels=True, node_dropout=0.5):
        F.cross_entropy(model(batch).logits, batch.labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("more", [(), ("model.label_surroundings=true", "model.distances=true")])
def test_a_recorded_step_is_a_step(store: lg.GraphStore, compiles: bool, more: tuple[str, ...]) -> None:
    """The same weights after many steps on the CPU and on the GPU, recorded, with nodes left out. A codebook would
    start from random numbers of its device."""
    prepared = lg.prepare(store, small("prepare.local_nodes.k=9", *more).preparation)
    found = []
    for device in ("cpu", "cuda"):
        config = small(
            ON, "model.name=largegt-local", "model.node_dropout=0.3", "model.dropout=0", "model.encoder_dropout=0",
            "train.batch_size=10", "train.precision=32-true", f"train.device={device}", "train.distinct=no",
            "train.learning_rate=1e-3", *more,
        )  # fmt: skip
        torch.manual_seed(0)
        accelerator = make_accelerator(config.train)
        model = build_model(config.model, prepared)
        state = State.make(model, config.train, accelerator)
        if compiles and device == "cuda":
            model.compile_for({10})
        head = TaskHead.for_training(prepared, config.train)
        step = TrainingStep(accelerator, state, head, config.train, device == "cuda")
        loader = make_loader(prepared, model, config.train, accelerator.device)
        assert isinstance(loader, TokenLoader)
        for epoch in range(3):
            for batch in loader.batches(prepared.split_rows("train"), 10, 0, epoch):
                step([batch])
        assert (step._graph is not None) == (device == "cuda")
        found.append(
            [float(step.losses.finish().sum()), *map(_that_matter, *zip(*model.named_parameters(), strict=True))]
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=5e-4)


def _that_matter(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Without the bias of keys: no softmax changes with it, so its gradient is rounding, which Adam makes large."""
    values = parameter.detach().cpu()
    return torch.cat([*values.chunk(3)[::2]]) if name.endswith("qkv.bias") else values
