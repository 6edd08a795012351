"""Samples of neighbourhoods: fresh ones every epoch (train.resample), test scores and predictions averaged over several
(train.num_eval_samples), and batches that are no larger than they may be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.models import overrides_read
from largegt.config.schema import PrepareConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.experiments.reproduce import reproduce
from largegt.inference.predictor import predict
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import sample_rows
from largegt.preprocessing.sampling.local_nodes import sample
from largegt.reporting.groups import open_runs
from largegt.reporting.settings import listing
from largegt.training.evaluate import evaluate
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import SMALL, Cli, easy_store, history, small, thirds

pytestmark = pytest.mark.slow

DRAWS = 3
FRESH = "train.resample=epoch"


@pytest.fixture(scope="module")
def run(store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(store, small(f"train.num_eval_samples={DRAWS}"), tmp_path_factory.mktemp("drawn") / "run")


@pytest.fixture(scope="module")
def by_hand(run: Run) -> np.ndarray:
    """[draws, n, classes] probabilities of the test nodes, the tokens of every draw looked up one by one."""
    prepared = run.prepared()
    model, rows = run.load_model(prepared), prepared.split_rows("test")
    (batch,) = token_batches(prepared, nodes=prepared.nodes[rows], batch_size=1000)
    assert batch.nodes.tolist() == prepared.nodes[rows].tolist()
    found = []
    for draw in range(DRAWS):
        drawn = sample(run.store(), np.asarray(prepared.nodes[rows]), prepared.config.local_nodes, draw)[0]
        at = {int(node): row for row, node in enumerate(prepared.token_nodes)}
        tokens = [[prepared.tokens[at[int(node)]] for node in local] for local in drawn]
        tokens_btd = torch.from_numpy(np.array(tokens, dtype=np.float32)).flatten(1, 2)
        assert tokens_btd.shape == batch.tokens.shape
        assert torch.equal(tokens_btd, batch.tokens) == (draw == 0)
        with torch.no_grad():
            found.append(model(replace(batch, tokens=tokens_btd)).logits.softmax(dim=1).numpy())
    return np.stack(found)


def probabilities(table: Any) -> np.ndarray:
    return np.stack([table[name].to_numpy() for name in table.column_names if name.startswith("probability_")], axis=1)


def test_the_test_score_is_of_the_averaged_predictions(run: Run, by_hand: np.ndarray) -> None:
    prepared = run.prepared()
    labels = np.asarray(prepared.labels[prepared.split_rows("test")])

    def loss(probability: np.ndarray) -> float:
        return float(-np.log(probability[np.arange(len(labels)), labels]).mean())

    mean = by_hand.mean(axis=0)
    assert run.metrics["num_eval_samples"] == DRAWS
    assert run.metrics["test"]["loss"] == pytest.approx(loss(mean), rel=1e-5)
    assert run.metrics["test"]["accuracy"] == pytest.approx((mean.argmax(axis=1) == labels).mean())
    assert run.metrics["test"]["loss"] != pytest.approx(loss(by_hand[0]), rel=1e-3), "the draws make a difference"


def test_evaluate_and_predict_do_as_the_run_says(run: Run, by_hand: np.ndarray) -> None:
    assert evaluate(run) == pytest.approx(run.metrics["test"])
    mean = by_hand.mean(axis=0)
    np.testing.assert_allclose(probabilities(predict(run, split="test", all_probabilities=True)), mean, atol=1e-5)
    one = probabilities(predict(run, split="test", all_probabilities=True, num_eval_samples=1))
    np.testing.assert_allclose(one, by_hand[0], atol=1e-5)
    assert not np.allclose(one, mean, atol=1e-3)
    assert evaluate(run, num_eval_samples=1)["loss"] != pytest.approx(run.metrics["test"]["loss"], rel=1e-3)


def test_the_command_line_too(run: Run, by_hand: np.ndarray, lg: Cli, tmp_path: Path) -> None:
    assert lg("evaluate", run.path, "--json").json == pytest.approx(run.metrics["test"])
    one = lg("evaluate", run.path, "--num-eval-samples", 1, "--json").json
    assert one == pytest.approx(evaluate(run, num_eval_samples=1))
    assert one["loss"] != pytest.approx(run.metrics["test"]["loss"], rel=1e-3)
    for given, expected in (((), by_hand.mean(axis=0)), (("--num-eval-samples", 1), by_hand[0])):
        out = tmp_path / "p.npz"
        assert lg("predict", run.path, "--split", "test", "--out", out, "--overwrite", *given).code == 0
        np.testing.assert_allclose(np.load(out)["probability"], expected.max(axis=1), atol=1e-5)


def test_validation_has_one_draw(run: Run, store: GraphStore, tmp_path: Path) -> None:
    """A run of one draw has the same epochs and the same validation score."""
    one = train(store, small(), tmp_path / "one")
    assert one.metrics["num_eval_samples"] == 1
    assert history(run.path) == history(one.path)
    assert run.metrics["valid"] == one.metrics["valid"] == run.history[run.metrics["best_epoch"] - 1]["valid"]
    assert run.metrics["test"] != one.metrics["test"]


def test_the_preparation_reaches_far_enough(run: Run, store: GraphStore, tmp_path: Path) -> None:
    assert run.prepared().config.tokens.precompute_for == "reachable"
    sampled = prepare(store, small().prepare)
    for config in (run.config, small(FRESH)):
        with pytest.raises(ConfigError, match="reachable"):
            train(sampled, config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    given = train(run.prepared(), run.config, tmp_path / "given")
    assert given.metrics["test"] == run.metrics["test"]


@pytest.mark.parametrize(
    ("name", "extra", "num_eval_samples"),
    [
        ("mlp", "train.epochs=1", 1),
        ("largegt-global", "train.epochs=1", 1),
        ("graphsage", "train.layerwise_inference=true", 1),
        ("graphsage", "train.layerwise_inference=false", 2),
        ("goat-local", "train.epochs=1", 2),
        ("linkx", "train.epochs=1", 1),
    ],
)
def test_models_that_draw_nothing_have_one(
    store: GraphStore, name: str, extra: str, num_eval_samples: int, tmp_path: Path
) -> None:
    settings = (f"model.name={name}", *overrides_read(("model.fanouts=3,3", "train.epochs=1", extra), name))
    run = train(store, small(*settings, "train.num_eval_samples=2"), tmp_path / "run")
    one = train(store, small(*settings), tmp_path / "one")
    assert run.metrics["num_eval_samples"] == num_eval_samples
    assert (run.metrics["test"]["loss"] == one.metrics["test"]["loss"]) == (num_eval_samples == 1)
    assert evaluate(run) == pytest.approx(run.metrics["test"])


def test_a_model_that_draws_nothing_takes_any_preparation(store: GraphStore, tmp_path: Path) -> None:
    sampled = prepare(store, small().prepare)
    run = train(sampled, small("model.name=mlp", "train.num_eval_samples=4", "train.epochs=1"), tmp_path / "run")
    assert run.metrics["num_eval_samples"] == 1


def test_no_test_nodes(tmp_path: Path) -> None:
    splits = thirds(150) | {"test": np.array([], dtype=np.int64)}
    run = train(
        easy_store(tmp_path / "g", splits=splits), small("train.num_eval_samples=2", "train.epochs=1"), tmp_path / "run"
    )
    assert run.metrics["test"] == {}


def test_report_and_reproduce_say_how_many(run: Run, store: GraphStore, tmp_path: Path) -> None:
    page = str(listing(open_runs([run.path])).html)
    head, row = (re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", part) for part in re.findall(r"<tr>(.*?)</tr>", page)[:2])
    assert dict(zip(head, row, strict=True))["samples"] == str(DRAWS)
    for samples, expected in ((1, False), (2, True)):
        files = reproduce("table-main", store.path, tmp_path / str(samples), runs=1, models=["mlp", "largegt-local"],
                          overrides=[*SMALL, "train.epochs=1", f"train.num_eval_samples={samples}"])  # fmt: skip
        text = next(file for file in files if file.suffix == ".md").read_text()
        assert ("averaged over 2 samples" in text) == expected


def test_every_epoch_trains_on_another_sample(store: GraphStore, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[torch.Tensor] = []
    real = TokenLoader.batches

    def watch(self: TokenLoader, rows: Any, batch_size: int, seed: int | None = None, epoch: int = 0) -> Any:
        if seed is not None:
            seen.append(self.table.local_rows_of(torch.from_numpy(np.asarray(rows)), None).clone())
        return real(self, rows, batch_size, seed, epoch)

    monkeypatch.setattr(TokenLoader, "batches", watch)
    run = train(store, small(FRESH, "train.epochs=3"), tmp_path / "run")
    prepared = run.prepared()
    rows = prepared.split_rows("train")
    assert len(seen) == 3
    for epoch, drawn in enumerate(seen):
        np.testing.assert_array_equal(drawn, sample_rows(store, prepared, rows, epoch).local_rows)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_validation_keeps_its_sample(store: GraphStore, tmp_path: Path) -> None:
    run = train(store, small(FRESH, "train.epochs=2"), tmp_path / "run")
    again = evaluate(run, "valid")
    assert again == pytest.approx(run.metrics["valid"])


def test_reachable_rows_are_those_within_two_hops(make_store: Any) -> None:
    """On a path of ten nodes with one label at its end, rows reach two steps; an isolated label reaches everyone."""
    path = [(v, v + 1) for v in range(9)]
    labels = np.full(10, -1)
    labels[0] = 1
    config = PrepareConfig(local_nodes={"k": 4}, positional_encoding={"method": "none"}).reachable()
    assert prepare(make_store(path, 10, labels=labels), config).token_nodes.tolist() == [0, 1, 2]
    labels = np.full(11, -1)
    labels[10] = 1
    alone = prepare(make_store(path, 11, labels=labels), config)
    assert alone.token_nodes.tolist() == list(range(11))


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
def test_average_is_of_probabilities(task: Any) -> None:
    head = TaskHead(task, 3 if task in ("multiclass", "multilabel") else 1, None, 0.0, 2.0, 3.0)
    logits = [torch.randn(5, head.num_outputs) for _ in range(4)]
    mean = torch.stack([head.probabilities(each) for each in logits]).mean(dim=0)
    torch.testing.assert_close(head.probabilities(head.average(logits)), mean, atol=1e-6, rtol=1e-5)


def test_no_draws_is_refused(store: GraphStore, tmp_path: Path) -> None:
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="num_eval_samples"):
        evaluate(run, num_eval_samples=0)


def test_batches_are_no_larger_than_they_may_be(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(store, small("train.epochs=2"), tmp_path / "run")
    expected, sizes = evaluate(run, "test"), []
    real = TokenLoader.batches

    def watched(self: TokenLoader, rows: Any, batch_size: int, *more: Any) -> Any:
        sizes.append((batch_size, self.bytes_per_node))
        return real(self, rows, batch_size, *more)

    monkeypatch.setattr(TokenLoader, "batches", watched)
    evaluate(run, "test")
    prepared = run.prepared()
    per_node = prepared.k * 3 * prepared.num_features * 4
    assert prepared.label_counts.shape[1] == 0
    assert sizes == [(run.config.train.eval_batch_size, per_node)]
    monkeypatch.setattr("largegt.training.evaluate._FEWEST", 2)
    for room, wanted in ((5 * per_node, 5), (per_node // 2, 2)):
        monkeypatch.setattr("largegt.training.evaluate._BATCH_BYTES", room)
        sizes.clear()
        assert evaluate(run, "test") == pytest.approx(expected, rel=1e-5)
        assert sizes == [(wanted, per_node)]


def test_what_a_node_takes(store: GraphStore) -> None:
    """Its tokens, and the labels around its local nodes."""
    config = small("model.local_label_histograms=true", "prepare.local_nodes.k=9")
    prepared = prepare(store, config.preparation)
    loader = TokenLoader(TokenTable(prepared), torch.device("cpu"))
    token, told = 3 * prepared.num_features * 4, 8 * prepared.label_counts.shape[1]
    assert told > 0
    assert loader.bytes_per_node == 9 * (token + told)
