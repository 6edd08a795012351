"""Every baseline under the same roof: it learns, is scored once, resumes, predicts, and answers the same twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from largegt.config.models import overrides_read
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.inference.predictor import predict
from largegt.models.baselines.loader import NeighborLoader
from largegt.preprocessing.pipeline import prepare
from largegt.training.evaluate import evaluate
from largegt.training.run_checksums import replacing
from largegt.training.setup import build_model, make_loader
from largegt.training.trainer import train
from run_helpers import easy_store, final, history, one_thread, small  # noqa: F401

pytestmark = pytest.mark.slow

MODELS = (
    "mlp", "sgc", "sign", "linkx", "graphsage", "gat", "gt-sparse", "nagphormer", "goat-local", "goat-global",
    "goat-full",
)  # fmt: skip
EVERY_MODEL = (*MODELS, "largegt-full", "largegt-local", "largegt-global")
NO_DROPOUT = ("model.dropout=0", "model.encoder_dropout=0", "model.attention_dropout=0")
PLAIN = ("model.residual=false", "model.hop_embedding=false", "model.ffn_ratio=0")
GRAPH_MODELS = ("graphsage", "gat", "gt-sparse", "goat-local", "goat-full", "linkx")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return easy_store(tmp_path_factory.mktemp("baselines") / "g")


def config_of(name: str, *overrides: str) -> Config:
    """The overrides where the model has such settings."""
    return small(f"model.name={name}", *overrides_read(("model.fanouts=3,2", *overrides), name))


@pytest.mark.parametrize("name", MODELS)
def test_it_learns_and_predicts(store: GraphStore, name: str, tmp_path: Path) -> None:
    run = train(store, config_of(name, "train.epochs=12"), tmp_path / "run")
    metrics = run.metrics
    assert metrics["model"] == name
    assert metrics["test"]["accuracy"] > (0.45 if name in ("linkx", "goat-global") else 0.6), "a third is chance"
    assert evaluate(run.path) == metrics["test"]
    table = predict(run.path, all_probabilities=True)
    assert table.num_rows == store.num_nodes
    in_test = predict(run.path, split="test")
    found = dict(zip(table["node"].to_pylist(), table["label"].to_pylist(), strict=True))
    assert in_test["label"].to_pylist() == [found[node] for node in in_test["node"].to_pylist()]
    right = np.mean([store.classes[store.labels[node]] == found[node] for node in in_test["node"].to_pylist()])
    assert right == pytest.approx(metrics["test"]["accuracy"])


def model_and_batch(store: GraphStore, name: str, *overrides: str) -> tuple[Any, Any, Any]:
    """(a model without dropout, a training batch of many nodes, one of a single node)."""
    config = config_of(name, *NO_DROPOUT, *overrides)
    prepared = prepare(store, config.preparation)
    torch.manual_seed(0)
    model: Any = build_model(config.model, prepared)
    loader = make_loader(prepared, model, config.train, torch.device("cpu"))
    rows = prepared.split_rows("train")
    return model, next(iter(loader.batches(rows, 60, 0))), next(iter(loader.batches(rows[:1], 60, 0)))


@pytest.mark.parametrize("settings", [("model.norm=layer",), ("model.norm=batch", "model.num_layers=2", *PLAIN)])
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_every_weight_learns_also_from_a_single_node(store: GraphStore, name: str, settings: tuple[str, ...]) -> None:
    model, batch, single = model_and_batch(store, name, *settings)
    model.train()
    for _ in range(2):  # what a codebook knows only after a step has a gradient too
        model.zero_grad()
        output = model(batch)
        F.cross_entropy(output.logits, batch.labels).backward()
        model.update_codebook(output)
    assert output.logits.shape == (60, 3)
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 1e-12, parameter_name
    output = model(single)
    F.cross_entropy(output.logits, single.labels).backward()
    model.update_codebook(output)
    assert torch.isfinite(model(single).logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.usefixtures("bfloat16_cpu")
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_mixed_precision_is_close_and_keeps_a_codebook_in_float32(store: GraphStore, name: str) -> None:
    model, batch, _ = model_and_batch(store, name, "model.norm=layer")
    exact = model.train()(batch).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        F.cross_entropy(output.logits.float(), batch.labels).backward()
        model.update_codebook(output)
        again = model(batch).logits
    torch.testing.assert_close(output.logits.float(), exact, atol=0.1, rtol=0.1)
    assert torch.isfinite(again.float()).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
    if getattr(model, "global_module", None) is not None:
        assert model.global_module.codebook.centroids.dtype == torch.float32


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_dropout_and_state_are_for_training_alone(store: GraphStore, name: str) -> None:
    dropout = ("model.dropout=0.5", "model.encoder_dropout=0.5", "model.input_dropout=0.5")
    model, batch, _ = model_and_batch(store, name, *dropout)
    model.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(model(batch).logits, model(batch).logits)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.train()
    assert not torch.equal(model(batch).logits, model(batch).logits)


@pytest.mark.parametrize("name", [name for name in (*MODELS, "largegt-full") if name not in ("sgc", "nagphormer")])
def test_it_trains_without_a_norm(store: GraphStore, name: str, tmp_path: Path) -> None:
    run = train(store, config_of(name, "model.norm=none", "train.epochs=1"), tmp_path / "run")
    batch_norms = [m for m in run.load_model(run.prepared()).modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert not batch_norms
    assert np.isfinite(run.history[0]["train"]["loss"])


@pytest.mark.parametrize("name", MODELS)
def test_the_same_run_twice_and_after_an_interruption(store: GraphStore, name: str, tmp_path: Path) -> None:
    config = config_of(name, "model.dropout=0.2")

    def stop(stage: str, done: int, total: int | None) -> None:
        if "epoch 3/" in stage:
            raise KeyboardInterrupt

    train(store, config, tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        train(store, config, tmp_path / "other", progress=stop)
    train(store, config, tmp_path / "other", resume=True)
    assert history(tmp_path / "one") == history(tmp_path / "other")
    assert final(tmp_path / "one") == final(tmp_path / "other")


@pytest.mark.parametrize("name", ["graphsage", "gat", "gt-sparse"])
def test_scores_over_all_neighbors_and_over_samples_of_all_of_them_agree(
    store: GraphStore, name: str, tmp_path: Path
) -> None:
    run = train(store, config_of(name, "model.fanouts=-1,-1", "train.eval_batch_size=16"), tmp_path / "run")
    full = evaluate(run.path)
    layerwise = (run.path / "config.toml").read_text()
    sampled = layerwise.replace("layerwise_inference = true", "layerwise_inference = false")
    assert sampled != layerwise
    with replacing(run.path) as folder:
        (folder / "config.toml").write_text(sampled)
    assert evaluate(run.path) == pytest.approx(full, abs=1e-6)


@pytest.mark.parametrize("name", ["goat-local", "goat-full"])
def test_draws_are_averaged(store: GraphStore, name: str, tmp_path: Path) -> None:
    run = train(store, config_of(name), tmp_path / "run")
    one, many = (predict(run.path, all_probabilities=True, num_eval_samples=draws) for draws in (1, 8))
    name = one.column_names[-1]
    assert not np.allclose(one[name], many[name])
    assert np.corrcoef(one[name], many[name])[0, 1] > 0.8


@pytest.mark.parametrize("name", GRAPH_MODELS)
def test_batches_hold_the_features_of_their_nodes(store: GraphStore, name: str) -> None:
    config = config_of(name, "prepare.tokens.normalize=none")
    prepared = prepare(store, config.preparation)
    model = build_model(config.model, prepared)
    loader = make_loader(prepared, model, config.train, torch.device("cpu"))
    assert isinstance(loader, NeighborLoader)
    rows = prepared.split_rows("train")
    batches = list(loader.batches(rows, 20, seed=3, epoch=1))
    assert sorted(int(v) for batch in batches for v in batch.nodes) == sorted(prepared.nodes[rows])
    for batch in batches:
        own = batch.features[batch.member[:, 0]] if hasattr(batch, "member") else batch.features[: len(batch)]
        assert torch.equal(own, torch.from_numpy(np.array(store.features[batch.nodes.numpy()])))
        assert batch.labels.tolist() == store.labels[batch.nodes.numpy()].tolist()
    again = list(loader.batches(rows, 20, seed=3, epoch=1))
    assert all(torch.equal(a.features, b.features) for a, b in zip(batches, again, strict=True))
    if name != "linkx":
        other = next(iter(loader.batches(rows, 150, seed=3, epoch=2)))
        assert not torch.equal(other.features, next(iter(loader.batches(rows, 150, seed=3, epoch=1))).features)


def test_a_preparation_without_all_features_is_refused(store: GraphStore, tmp_path: Path) -> None:
    prepared = prepare(store, small().prepare)
    with pytest.raises(ConfigError, match="graphsage"):
        train(prepared, config_of("graphsage"), tmp_path / "run")
