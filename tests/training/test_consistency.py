"""Consistency: what two views of a node are, what is made smaller, and that no label of theirs is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.errors import ConfigError
from largegt.loader.loader import TokenLoader
from largegt.preprocessing.prepared import Prepared, sample_rows
from largegt.runtime.distributed import Ranks
from largegt.training.batches import EpochBatches, check_consistency
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_loader
from run_helpers import check_resumed, homophilous, small

pytestmark = pytest.mark.slow

FRESH = ("train.resample=epoch", "model.dropout=0.2")
WITH = ("train.consistency_weight=1", "train.consistency_batch_size=20")
CPU = torch.device("cpu")


def few_labels(path: Path, labels: Any = None, train: int = 36) -> lg.GraphStore:
    """150 nodes, of which few are trained on."""
    edges, features, own = homophilous()
    order = np.random.default_rng(0).permutation(150)
    splits = {"train": order[:train], "valid": order[train:90], "test": order[max(train, 90) :]}
    return lg.ingest(lg.sources.arrays(edges, features, own if labels is None else labels, splits), path)


@pytest.fixture
def store(tmp_path: Path) -> lg.GraphStore:
    return few_labels(tmp_path / "g")


def views_of(store: lg.GraphStore, *settings: str) -> tuple[EpochBatches, Prepared]:
    config = small(*WITH, *settings)
    prepared = lg.prepare(store, config.preparation)
    loader = make_loader(prepared, build_model(config.model, prepared), config.train, CPU)
    assert isinstance(loader, TokenLoader)
    return EpochBatches(loader, prepared, config.train, store if config.train.resample == "epoch" else None), prepared


# the views --------------------------------------------------------------------------------------------------------


def test_a_step_reads_training_nodes_then_others_twice(store: lg.GraphStore) -> None:
    two, prepared = views_of(store, *FRESH)
    train_nodes = set(prepared.nodes[prepared.split_rows("train")].tolist())
    for epoch in range(3):
        seen: list[int] = []
        for first, second in two.of(epoch):
            assert torch.equal(first.nodes, second.nodes)
            own, others = first.nodes[:-20].tolist(), first.nodes[-20:].tolist()
            seen += own
            assert not train_nodes & set(others)
            assert len(set(others)) == 20
        assert sorted(seen) == sorted(train_nodes)
    two.close()


def test_views_are_samples_of_their_own(store: lg.GraphStore) -> None:
    """The first as without consistency: draw e in epoch e. The second's are drawn for nobody else."""
    two, prepared = views_of(store, *FRESH)
    rows_of_tokens = {tuple(row): number for number, row in enumerate(prepared.tokens[:, 0].tolist())}
    for epoch in (0, 2):
        for views in two.of(epoch):
            rows = prepared.rows_of(views[0].nodes.numpy())
            for view, draw in zip(views, (epoch, 3 + epoch), strict=True):
                tokens = view.tokens.view(len(view), 4, 3, -1)[:, :, 0]
                found = [[rows_of_tokens[tuple(token)] for token in node] for node in tokens.tolist()]
                np.testing.assert_array_equal(found, sample_rows(store, prepared, rows, draw).local_rows)
    two.close()


def test_without_fresh_samples_both_views_have_the_prepared_one(store: lg.GraphStore) -> None:
    two, _ = views_of(store)
    for first, second in two.of(1):
        assert torch.equal(first.tokens, second.tokens)


def test_the_others_are_chosen_anew_and_always_the_same_way(store: lg.GraphStore) -> None:
    two, again = views_of(store)[0], views_of(store)[0]
    chosen = [[first.nodes.tolist() for first, _ in each.of(epoch)] for epoch in (0, 1) for each in (two, again)]
    assert chosen[0] == chosen[1]
    assert chosen[2] == chosen[3]
    assert chosen[0] != chosen[2]


def test_the_weight_grows_over_the_first_quarter(store: lg.GraphStore) -> None:
    two, _ = views_of(store, "train.consistency_weight=2")
    weights = [two.weight(step, 40) for step in range(40)]
    assert weights[:10] == pytest.approx(np.arange(1, 11) / 5)
    assert weights[10:] == [2.0] * 30


# what is made smaller ---------------------------------------------------------------------------------------------


def head_of(task: Any, outputs: int) -> TaskHead:
    return TaskHead(task, outputs, None, 0.0, 3.0, 2.0)


def test_disagreement_of_classes() -> None:
    p, q = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]), np.array([[0.5, 0.4, 0.1], [0.1, 0.8, 0.1]])
    sure = ((p + q) / 2) ** 2
    sure /= sure.sum(axis=1, keepdims=True)
    expected = (((p - sure) ** 2).sum(axis=1) + ((q - sure) ** 2).sum(axis=1)) / 2
    logits = [torch.from_numpy(np.log(each)) for each in (p, q)]
    np.testing.assert_allclose(head_of("multiclass", 3).disagreement(logits), expected, rtol=1e-5)


def test_nodes_that_nothing_is_sure_of_are_left_alone() -> None:
    """What counts is the mean of the views: the second node's first view alone would be sure enough."""
    p, q = torch.tensor([[0.9, 0.1], [0.75, 0.25], [0.2, 0.8]]), torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.3, 0.7]])
    head, logits = head_of("multiclass", 2), [p.log().requires_grad_(), q.log().requires_grad_()]
    every, found = head.disagreement(logits), head.disagreement(logits, 0.7)
    torch.testing.assert_close(found, every * torch.tensor([1.0, 0.0, 1.0]))
    found.sum().backward()
    assert all(each.grad is not None and not each.grad[1].any() and each.grad[0].any() for each in logits)


@pytest.mark.parametrize("confidence", [0.0, 0.7])
def test_disagreement_of_one_label_is_that_of_two_classes(confidence: float) -> None:
    logits = [torch.tensor([[0.3], [-1.2]]), torch.tensor([[1.0], [-0.9]])]
    both = [torch.cat([torch.zeros(2, 1), each], dim=1) for each in logits]
    expected = head_of("multiclass", 2).disagreement(both, confidence)
    assert (expected > 0).tolist() == [not confidence, True]
    torch.testing.assert_close(head_of("binary", 1).disagreement(logits, confidence), expected)
    torch.testing.assert_close(head_of("multilabel", 1).disagreement(logits, confidence), expected)
    flat = [each.T for each in logits]  # as two labels of one node: each on its own
    torch.testing.assert_close(head_of("multilabel", 2).disagreement(flat, confidence), expected.mean()[None])


def test_disagreement_of_values_is_their_variance() -> None:
    found = head_of("regression", 1).disagreement([torch.tensor([[1.0], [4.0]]), torch.tensor([[3.0], [4.0]])])
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]))


def test_views_move_towards_what_they_say_together() -> None:
    """Which stands still: no gradient passes through it, so a sure view that is right moves little."""
    first, second = torch.tensor([[2.0, 0.0]], requires_grad=True), torch.tensor([[0.5, 0.0]], requires_grad=True)
    head_of("multiclass", 2).disagreement([first, second]).sum().backward()
    assert second.grad is not None
    assert first.grad is not None
    assert second.grad[0, 0] < 0, "it grows surer"
    assert abs(float(first.grad[0, 0])) < abs(float(second.grad[0, 0]))


# training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [FRESH, ("model.name=largegt-full",), ("model.local_node_dropout=0.5", *FRESH)])
def test_no_label_but_those_of_training_nodes_is_read(
    store: lg.GraphStore, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Other labels of the other nodes: the same weights after every epoch, to the bit."""
    labels = np.array(store.labels)
    others = np.setdiff1d(np.arange(150), store.splits["train"])
    labels[others] = (labels[others] + 1) % 3
    seen: list[list[torch.Tensor]] = []
    for number, graph in enumerate((store, few_labels(tmp_path / "other", labels))):
        seen.append([])
        lg.train(
            graph, small(*WITH, *settings), tmp_path / f"run{number}",
            watch=lambda model, *_: seen[-1].extend(part.detach().clone() for part in model.state_dict().values()),
        )  # fmt: skip
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_views_come_to_agree(store: lg.GraphStore, tmp_path: Path) -> None:
    """What draws say of the nodes that it did not train on differs less than without it."""
    apart = {}
    for weight in (0, 20):
        settings = (*FRESH, f"train.consistency_weight={weight}", "train.epochs=20", "train.monitor=loss")
        run = lg.train(store, small(*settings), tmp_path / f"run{weight}")
        model, prepared = run.load_model(run.prepared()).eval(), run.prepared()
        rows = prepared.split_rows("test")
        loader: Any = make_loader(prepared, model, run.config.train, CPU)
        logits = []
        for draw in (20, 21):
            drawn = sample_rows(store, prepared, rows, draw)
            table = loader.table.with_local_rows(rows, *drawn)
            of_draw = TokenLoader(table, CPU)
            with torch.no_grad():
                logits.append(torch.cat([model(batch).logits for batch in of_draw.batches(rows, 64)]))
        p, q = (each.softmax(dim=1) for each in logits)
        apart[weight] = float((p - q).square().sum(dim=1).mean())
    assert apart[20] < 0.7 * apart[0]


def test_only_the_confident_teach(store: lg.GraphStore, tmp_path: Path) -> None:
    """Where nobody is sure, consistency changes nothing: weights are those of a training whose views weigh nothing."""
    weights = {}
    for name, weight, confidence in (("sure", 50, 0.99), ("all", 50, 0), ("nothing", 1e-30, 0)):
        more = (f"train.consistency_weight={weight}", f"train.consistency_threshold={confidence}", "train.epochs=1")
        run = lg.train(store, small(*FRESH, *WITH, *more), tmp_path / name)
        weights[name] = torch.cat([part.flatten() for part in run.load_model(run.prepared()).parameters()])
    assert torch.equal(weights["sure"], weights["nothing"])
    assert not torch.equal(weights["all"], weights["nothing"])


def test_resumed_equals_unbroken(store: lg.GraphStore, tmp_path: Path) -> None:
    config = small(*WITH, *FRESH, "train.epochs=4")
    check_resumed(store, config, tmp_path, TaskHead, "disagreement", 6)


def test_the_training_loss_is_that_of_training_nodes(store: lg.GraphStore, tmp_path: Path) -> None:
    """However much the other one weighs: with a step size of next to nothing it stays at log(3) or so."""
    still = ("train.learning_rate=1e-9", "train.epochs=1", *FRESH)
    losses = []
    for weight in (1, 1000):
        run = lg.train(store, small(*still, f"train.consistency_weight={weight}"), tmp_path / f"{weight}")
        losses.append(run.history[0]["train"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# refusals ---------------------------------------------------------------------------------------------------------


def test_refusals(store: lg.GraphStore, tmp_path: Path) -> None:
    every = few_labels(tmp_path / "every", train=150)
    with pytest.raises(ConfigError, match=r"all that are prepared have one.*target_nodes=all"):
        lg.train(every, small(*WITH), tmp_path / "run")
    for name in ("graphsage", "gat", "gt-sparse", "linkx", "goat-local", "goat-global", "goat-full"):
        with pytest.raises(ConfigError, match=f"token rows, which {name} does not"):
            lg.train(store, small(*WITH, f"model.name={name}"), tmp_path / "run2")
    with pytest.raises(ConfigError, match="one process"):
        check_consistency(small(*WITH), Ranks(0, 2))
    assert not list(tmp_path.glob("run*")), "nothing is begun"


@pytest.mark.parametrize("name", ["mlp", "sign", "nagphormer"])
def test_baselines_that_read_token_rows_train_with_it(store: lg.GraphStore, tmp_path: Path, name: str) -> None:
    run = lg.train(store, small(*WITH, f"model.name={name}"), tmp_path / "run")
    assert len(run.history) == 3
