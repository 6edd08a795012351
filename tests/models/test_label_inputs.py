"""What the model reads of labels and distances: which token gets which vector, what no node reads, what it is for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import largegt as lg
from largegt.config.models import LargeGTConfig, LargeGTLocalConfig, model_config, overrides_read
from largegt.errors import ConfigError
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import token_batches
from largegt.models.input_encoder import InputEncoder, LocalInputs
from largegt.models.largegt.model import LargeGT
from largegt.models.padding import PaddedLinear
from largegt.preprocessing.estimate import estimate
from largegt.preprocessing.label_features import LabelScale
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model
from model_batches import EmbeddedModule, make_batch
from run_helpers import check_resumed, easy_store, homophilous, one_thread, small, thirds  # noqa: F401
from training_steps import recorded_step, weights_that_matter

TASKS = ["multiclass", "binary", "multilabel", "regression"]
ON = "model.label_embeddings=true"
BOTH = ("model.hop_distance_embedding=true", "model.local_label_histograms=true")
INPUTS = {
    "tokens": (ON,),
    "histogram": ("model.neighbor_label_hops=2",),
    "local histograms": BOTH,
    "everything": (ON, "model.neighbor_label_hops=2", *BOTH),
}


def labels_of(task: str, num_nodes: int = 150) -> Any:
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


def logits_of(model: Any, prepared: lg.Prepared, **how: Any) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    model.eval()
    with torch.no_grad():
        for batch in token_batches(prepared, local_labels=model.reads_labels, **{"batch_size": 40, **how}):
            found.update(zip(batch.nodes.tolist(), model(batch).logits, strict=True))
    return found


# the vectors ------------------------------------------------------------------------------------------------------

NAN = torch.nan
LABELS = {
    "classes": torch.tensor([[-1, 3, 0], [-1, -1, 1]]),
    "columns": torch.tensor([[[NAN] * 3, [1.0, 0, 1], [0, NAN, 1]], [[NAN] * 3, [0, 0, 0], [1, 1, 1]]]),
    "values": torch.tensor([[NAN, 1.5, 0.0], [NAN, NAN, -2.0]]),
}


@pytest.mark.parametrize("hop_embedding", [False, True])
@pytest.mark.parametrize("histograms", [False, True])
@pytest.mark.parametrize("kind", ["classes", "columns", "values", None])
def test_what_is_added_to_which_token(kind: str | None, histograms: bool, hop_embedding: bool) -> None:
    torch.manual_seed(0)
    num_labels = {"classes": 4, "columns": 3, "values": 1, None: 4}[kind]
    config = LargeGTLocalConfig(
        hop_embedding=hop_embedding, label_embeddings=kind is not None, hop_distance_embedding=histograms,
        local_label_histograms=histograms,
    )  # fmt: skip
    module = InputEncoder(5, 8, 2, config, num_labels).double()
    tokens = torch.randn(2, 9, 5, dtype=torch.float64)
    is_neighbor = torch.tensor([[False, True, False], [False, True, True]])
    histograms_bkc = torch.rand(2, 3, num_labels + 1, dtype=torch.float64)
    labels = None if kind is None else LABELS[kind]
    inputs = LocalInputs(labels, *((is_neighbor, histograms_bkc) if histograms else (None, None)))
    embedded = module(tokens, inputs)
    for b in range(2):
        for t in range(9):
            expected = module.project(tokens[b, t])
            if hop_embedding:
                expected = expected + module.hop_embedding[0 if t < 3 else 1, t % 3]
            if histograms and is_neighbor[b, t // 3]:
                expected = expected + module.distance_embedding[t % 3]
            if histograms and t % 3 == 0:
                expected = expected + module.histogram(histograms_bkc[b, t // 3])
            if labels is not None and t % 3 == 0:
                expected = expected + label_vector(module, labels[b, t // 3], kind == "classes")
            torch.testing.assert_close(embedded[b, t], expected)
    if histograms and kind != "columns":
        no_label = None if labels is None else labels[:1, :1]
        nothing = module.label_vectors(LocalInputs(no_label, None, torch.zeros(1, 1, num_labels + 1).double()))
        torch.testing.assert_close(module.no_label_vector(), nothing[0, 0])


def label_vector(module: InputEncoder, label: Tensor, is_class: bool) -> Tensor:
    """The vector of one label: of its class, or the sum of the columns that are known; another one for none."""
    none, rest = module.label_embedding[0, 0], module.label_embedding[1:, 0]
    if is_class:
        return none if label < 0 else rest[label]
    known = [(value, column) for value, column in zip(label.view(-1).tolist(), rest, strict=True) if value == value]
    return sum(value * column for value, column in known) if known else none


def test_off_is_the_model_without() -> None:
    torch.manual_seed(0)
    plain = LargeGT(5, 3, 50, 3, LargeGTConfig(hidden_dim=8))
    assert not plain.reads_labels
    assert not any(word in name for name in plain.state_dict() for word in ("label", "distance", "histogram"))
    batch = make_batch()
    labelled = TokenBatch(batch.nodes, batch.tokens, None, batch.positions, batch.labels, (), torch.zeros(6, 4).long())
    plain = plain.double().eval()
    assert torch.equal(plain(batch).logits, plain(labelled).logits)
    with pytest.raises(ConfigError, match=r"largegt-global does not read model\.label_embeddings"):
        model_config("largegt-global", label_embeddings=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("label_embeddings", "local_labels=True"),
        ("local_label_histograms", "model.local_label_histograms is set"),
    ],
)  # fmt: skip
def test_a_batch_without_an_input_is_refused(setting: str, message: str) -> None:
    model = LargeGT(5, 3, 50, 3, LargeGTConfig(hidden_dim=8, **{setting: True})).double()
    with pytest.raises(ConfigError, match=message):
        model(make_batch())


def test_a_preparation_without_histograms_is_refused(tmp_path: Path) -> None:
    prepared = lg.prepare(easy_store(tmp_path / "g"), small().preparation)
    with pytest.raises(ConfigError, match=r"prepare with `model\.neighbor_label_hops=1`"):
        lg.train(prepared, small("model.neighbor_label_hops=1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# from a store to logits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["pinned", "mmap"])
def test_batches_carry_the_histograms_of_their_nodes(store: lg.GraphStore, table: Any) -> None:
    config = small("model.neighbor_label_hops=2").preparation
    prepared, without = lg.prepare(store, config), lg.prepare(store, small().preparation)
    width = {"multiclass": 3, "binary": 2, "multilabel": 2, "regression": 1}[store.task]
    assert prepared.neighbor_label_histogram.shape == (len(prepared.nodes), 2, width + 1)
    for batch in token_batches(prepared, "train", batch_size=30, seed=1, table=table):
        rows = prepared.rows_of(batch.nodes.numpy())
        assert np.array_equal(
            batch.neighbor_label_histogram.numpy(), prepared.neighbor_label_histogram[rows].reshape(len(rows), -1)
        )
    assert next(token_batches(without)).neighbor_label_histogram is None
    assert without.path != prepared.path
    more = estimate(store, config).disk_bytes - estimate(store, small().preparation).disk_bytes
    assert more == prepared.neighbor_label_histogram.nbytes, "the estimate counts them"


def test_the_model_reads_histograms_and_fewer_hops_are_the_first(tmp_path: Path) -> None:
    prepared = lg.prepare(easy_store(tmp_path / "g"), small("model.neighbor_label_hops=2").preparation)
    batch = next(token_batches(prepared, "valid", batch_size=20))
    for hops in (1, 2):
        torch.manual_seed(0)
        model = LargeGT.for_prepared(prepared, LargeGTConfig(hidden_dim=8, neighbor_label_hops=hops)).eval()
        before = model(batch).logits
        for column in range(8):
            changed = batch.neighbor_label_histogram.clone()  # type: ignore[union-attr]
            changed[:, column] += 0.5
            after = model(TokenBatch(**{**vars(batch), "neighbor_label_histogram": changed})).logits
            assert torch.equal(after, before) == (column >= 4 * hops)


def test_the_gradient_reaches_every_label(store: lg.GraphStore) -> None:
    prepared = lg.prepare(store, small().prepare)
    model = LargeGT.for_prepared(prepared, small(ON).model)
    table = model.inputs.label_embedding
    assert len(table) == 1 + {"multiclass": 3, "binary": 2, "multilabel": 2, "regression": 1}[store.task]
    for batch in token_batches(prepared, local_labels=True, batch_size=200):
        model(batch).logits.square().sum().backward()
    assert (table.grad.abs().sum(dim=(1, 2)) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "num_layers"), [((ON,), 1), ((ON,), 2), (BOTH, 2), (BOTH[:1], 2), (BOTH[1:], 2)])
def test_merged_tokens_give_the_same_logits(store: lg.GraphStore, settings: tuple[str, ...], num_layers: int) -> None:
    config = small(*settings, "prepare.local_nodes.k=40", f"model.num_layers={num_layers}")
    prepared = lg.prepare(store, config.preparation)
    torch.manual_seed(0)
    model = LargeGT.for_prepared(prepared, config.model)
    tables = [table for name in ("label_embedding", "distance_embedding")
              if (table := getattr(model.inputs, name)) is not None]  # fmt: skip
    for table in tables:
        torch.nn.init.normal_(table)
    plain, merged = logits_of(model, prepared), logits_of(model, prepared, distinct=True)
    for node, logits in plain.items():
        torch.testing.assert_close(merged[node], logits, atol=1e-5, rtol=1e-4)
    for table in tables:
        table.data.zero_()
    if tables:
        silent = logits_of(model, prepared)
        assert any(not torch.allclose(silent[node], logits, atol=1e-3) for node, logits in plain.items())


# a node's own label -----------------------------------------------------------------------------------------------

TRAIN = np.array([node for node in sorted(thirds(150)["train"]) if node % 5 != 4])
ROW = 21
"""Of the batch of training nodes: the node whose label is of its own choice."""
CASES = pytest.mark.parametrize(("task", "which"), [(task, which) for task in TASKS for which in INPUTS])


def labels_with(task: str, nodes: Any, own: int) -> Any:
    labels = labels_of(task)
    labels[nodes] = {"multilabel": [own, 1 - own], "regression": 5.0 + 1e4 * own}.get(task, own)
    return labels


def both(
    folder: Path, task: str, settings: tuple[str, ...], nodes: Any = TRAIN[ROW], distinct: bool = False
) -> tuple[Any, list[TokenBatch]]:
    """A model, and the batch of all training nodes with the one label of these nodes and with the other."""
    config = small("prepare.local_nodes.k=8", *settings)
    batches = []
    for own in (0, 1):
        store = easy_store(folder / f"g{own}", labels_with(task, nodes, own), task=task)
        assert store.splits["train"].tolist() == TRAIN.tolist()
        prepared = lg.prepare(store, config.preparation)
        torch.manual_seed(0)
        model = build_model(config.model, prepared)
        if model.reads_labels:
            torch.nn.init.normal_(model.inputs.label_embedding)
        batches += token_batches(prepared, "train", batch_size=150, local_labels=model.reads_labels, distinct=distinct)
    return model, batches


def logits(model: Any, batch: TokenBatch) -> Tensor:
    torch.manual_seed(1)  # the same dropout
    return model(batch).logits.detach()


def label_inputs(batch: TokenBatch) -> list[Tensor]:
    """What a batch holds of labels, but the targets."""
    every = (batch.neighbor_label_histogram, batch.local_labels, batch.local_label_histogram)
    return [torch.nan_to_num(tensor, -1.0) for tensor in every if tensor is not None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["evaluation", "training with layer norm"])
@CASES
def test_a_nodes_logits_do_not_depend_on_its_own_label(tmp_path: Path, task: str, which: str, mode: str) -> None:
    """Equal bits, while those of other nodes differ. Evaluation has batch norm: its statistics are fixed then."""
    norm = "batch" if mode == "evaluation" else "layer"
    model, (before, after) = both(tmp_path, task, (*INPUTS[which], f"model.norm={norm}"))
    model.train(mode != "evaluation")
    assert not torch.equal(before.labels[ROW], after.labels[ROW])
    for one, other in zip(label_inputs(before), label_inputs(after), strict=True):
        assert torch.equal(one[ROW], other[ROW])
        assert not torch.equal(one, other)
    one, other = logits(model, before), logits(model, after)
    assert torch.equal(one[ROW], other[ROW])
    assert not torch.equal(one, other)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("name", ["largegt-full", "largegt-local", "largegt-global"])
def test_every_form_and_merged_tokens_hide_it_too(tmp_path: Path, name: str, distinct: bool) -> None:
    inputs = overrides_read(INPUTS["everything"], name)
    model, batches = both(tmp_path, "multiclass", (*inputs, f"model.name={name}"), distinct=distinct)
    one, other = (logits(model.eval(), batch) for batch in batches)
    assert torch.equal(one[ROW], other[ROW])
    assert not torch.equal(one, other)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("which", INPUTS)
def test_labels_of_valid_and_test_nodes_are_no_inputs(tmp_path: Path, which: str, distinct: bool) -> None:
    others = np.setdiff1d(np.flatnonzero(labels_of("multiclass") >= 0), TRAIN)
    model, batches = both(tmp_path, "multiclass", INPUTS[which], others, distinct)
    one, other = (logits(model.eval(), batch) for batch in batches)
    assert torch.equal(one, other)


@pytest.mark.slow
@CASES
def test_batch_norm_carries_it_through_other_nodes_of_a_training_batch(tmp_path: Path, task: str, which: str) -> None:
    """The label is an input of other nodes, and these are in the statistics of the batch: the docs say so."""
    model, (before, after) = both(tmp_path, task, (*INPUTS[which], "model.norm=batch"))
    model.train()
    assert (logits(model, before) - logits(model, after))[ROW].abs().max() > 1e-6


def test_all_nodes_of_a_half_read_the_scale_of_the_other() -> None:
    """One scale for a whole half: it does not depend on which node of the half reads."""
    values = np.random.default_rng(0).normal(size=20).astype(np.float32)
    is_train = np.arange(20) % 4 != 3
    scale = LabelScale.fit(values, is_train)
    assert (scale.half[~is_train] == 0).all()
    assert abs(int((scale.half[is_train] == 0).sum()) - int((scale.half == 1).sum())) <= 1
    for half in (0, 1):
        others = values[is_train & (scale.half != half)].astype(np.float64)
        assert (scale.mean[half], scale.std[half]) == (others.mean(), others.std())


@pytest.mark.parametrize("num_train", [0, 1, 2])
def test_few_values_have_a_finite_scale(num_train: int) -> None:
    values = np.full(5, 7e5, dtype=np.float32)
    found = LabelScale.fit(values, np.arange(5) < num_train).standardized(values)
    assert np.isfinite(found).all()
    if num_train == 2:
        assert (found == 0).all()


# models that read label distributions beside LargeGT ----------------------------------------------------------------

FEATURE_MODELS = pytest.mark.parametrize("name", ["mlp", "sgc", "sign", "nagphormer"])


@FEATURE_MODELS
def test_the_shapes_of_other_models(store: lg.GraphStore, name: str) -> None:
    """Each part that reads label distributions is so much wider, and needs a preparation that has them."""
    prepared = lg.prepare(store, small("model.neighbor_label_hops=2", f"model.name={name}").preparation)
    batch = next(token_batches(prepared, "train", batch_size=20))
    num_labels = {"multiclass": 3, "binary": 2, "multilabel": 2, "regression": 1}[store.task]
    num_outputs = prepared.meta["num_outputs"]
    num_parts = prepared.hops + 1 if name == "sign" else 1
    for hops in (1, 2):
        config = small(f"model.neighbor_label_hops={hops}", f"model.name={name}").model
        model = build_model(config, prepared)
        assert model(batch).logits.shape == (20, num_outputs)
        widths = [part.weight.shape[1] for part in model.modules() if isinstance(part, PaddedLinear)]
        own = hops * (num_labels + 1) + (0 if name == "nagphormer" else prepared.num_features)
        assert widths.count(own) >= num_parts
    without = dataclasses.replace(batch, neighbor_label_histogram=None)
    with pytest.raises(ConfigError, match=r"model\.neighbor_label_hops is set, and the batch has no such input"):
        model(without)
    plain = build_model(small(f"model.name={name}").model, prepared).eval()
    assert torch.equal(plain(batch).logits, plain(without).logits), "it reads none when none are asked for"


@FEATURE_MODELS
def test_gradients_of_label_distributions_in_other_models(tmp_path: Path, name: str) -> None:
    """Every number of the distributions has one, those of the hops that the model reads; the rest have none."""
    prepared = lg.prepare(
        easy_store(tmp_path / "g"), small("model.neighbor_label_hops=2", f"model.name={name}").preparation
    )
    batch = next(token_batches(prepared, "valid", batch_size=20))
    for hops in (1, 2):
        torch.manual_seed(0)
        model = build_model(small(f"model.neighbor_label_hops={hops}", f"model.name={name}").model, prepared)
        histogram = batch.neighbor_label_histogram.clone().float().requires_grad_()
        model(dataclasses.replace(batch, neighbor_label_histogram=histogram)).logits.square().sum().backward()
        is_read = histogram.grad.abs().sum(dim=0) > 0
        assert is_read.tolist() == [True] * (4 * hops) + [False] * (4 * (2 - hops))
        assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("mode", ["evaluation", "training"])
@pytest.mark.parametrize("task", TASKS)
@FEATURE_MODELS
def test_other_models_do_not_read_a_nodes_own_label(tmp_path: Path, name: str, task: str, mode: str) -> None:
    """Equal bits for the node, while those of other nodes differ."""
    model, (before, after) = both(tmp_path, task, (*INPUTS["histogram"], f"model.name={name}"))
    model.train(mode == "training")
    assert not torch.equal(before.labels[ROW], after.labels[ROW])
    one, other = logits(model, before), logits(model, after)
    assert torch.equal(one[ROW], other[ROW])
    assert not torch.equal(one, other)


@FEATURE_MODELS
def test_other_models_do_not_read_labels_of_valid_and_test_nodes(tmp_path: Path, name: str) -> None:
    others = np.setdiff1d(np.flatnonzero(labels_of("multiclass") >= 0), TRAIN)
    model, batches = both(tmp_path, "multiclass", (*INPUTS["histogram"], f"model.name={name}"), others)
    one, other = (logits(model.eval(), batch) for batch in batches)
    assert torch.equal(one, other)


@FEATURE_MODELS
def test_other_models_learn_from_label_distributions(tmp_path: Path, name: str) -> None:
    """Features are the same for all nodes, and most neighbours of a node share its class."""
    edges, _, classes = homophilous()
    source = lg.sources.arrays(edges, np.ones((150, 2), dtype=np.float32), classes, thirds(150))
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    settings = [f"model.name={name}", "train.epochs=30", "train.learning_rate=0.05",
                "prepare.positional_encoding.method=none"]  # fmt: skip
    run = lg.train(store, small(*settings, "model.neighbor_label_hops=2"), tmp_path / "run")
    assert run.metrics["test"]["accuracy"] > 0.8
    assert lg.evaluate(run) == pytest.approx(run.metrics["test"], rel=1e-5)
    assert lg.predict(run).num_rows == 150


# training and prediction ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_neighbours_labels_are_worth_reading(tmp_path: Path) -> None:
    """Every node has the same features, and a neighbour's class is mostly the node's own: only labels help."""
    edges, _, classes = homophilous(300)
    source = lg.sources.arrays(edges, np.ones((300, 2), dtype=np.float32), classes, thirds(300))
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    settings = ["model.name=largegt-local", "model.hidden_dim=16", "model.local_node_dropout=0.2",
                "prepare.local_nodes.k=8", "prepare.local_nodes.hop1_fraction=1", "train.batch_size=16",
                "train.epochs=20", "train.learning_rate=5e-3"]  # fmt: skip
    without = lg.train(store, small(*settings), tmp_path / "without").metrics
    informed = lg.train(store, small(*settings, ON), tmp_path / "informed").metrics
    assert without["test"]["accuracy"] < 0.5
    assert informed["test"]["accuracy"] > 0.8


@pytest.mark.slow
def test_a_label_two_hops_behind_a_neighbour_is_found(tmp_path: Path) -> None:
    """A task that nothing else can tell: a node is what the one training node around its neighbour's neighbour is, and
    a path's middle nodes have no label. Features say nothing."""
    rng = np.random.default_rng(0)
    num = 1200  # paths a - m - b: a and b have the same label
    first, middle, last = np.arange(0, num, 3), np.arange(1, num, 3), np.arange(2, num, 3)
    labels = np.full(num, -1)
    labels[first] = labels[last] = rng.integers(0, 2, len(first))
    edges = np.concatenate([np.stack([first, middle]), np.stack([middle, last])], axis=1)
    where = rng.permutation(len(first))
    splits = {"train": np.sort(np.concatenate([first, last[where[:250]]])), "valid": np.sort(last[where[250:320]]),
              "test": np.sort(last[where[320:]])}  # fmt: skip
    source = lg.sources.arrays(edges, rng.normal(size=(num, 4)).astype(np.float32), labels, splits)
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    config = small(
        "model.name=largegt-local", "model.local_label_histograms=true", "prepare.local_nodes.k=8", "train.epochs=20",
        "train.learning_rate=1e-2", "model.dropout=0",
    )  # fmt: skip
    assert lg.train(store, config, tmp_path / "run").metrics["test"]["accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("which", INPUTS)
def test_training_scoring_predicting_and_embedding(store: lg.GraphStore, which: str, tmp_path: Path) -> None:
    """Every task from end to end: fresh samples, several samples per node, nodes without a label."""
    config = small(*INPUTS[which], "model.local_node_dropout=0.3", "model.input_dropout=0.2", "train.resample=epoch",
                   "train.epochs=2")  # fmt: skip
    run = lg.train(store, config, tmp_path / "run")
    stages = {"tokens": "local_nodes", "histogram": "neighbor_label_histogram"}
    assert stages.get(which, "label_counts") in run.prepared().folder.meta["stages"]
    assert lg.evaluate(run) == pytest.approx(run.metrics["test"], rel=1e-5)
    assert lg.evaluate(run, num_eval_samples=3)["loss"] != pytest.approx(run.metrics["test"]["loss"])
    everyone, some = lg.predict(run, all_probabilities=True), lg.predict(run, split="test", all_probabilities=True)
    assert everyone.num_rows == 150
    at = np.searchsorted(everyone["node"].to_numpy(), some["node"].to_numpy())
    for name in some.column_names:
        if name.startswith(("probability", "value")):
            np.testing.assert_allclose(everyone[name].to_numpy()[at], some[name].to_numpy(), atol=1e-5)
    for layer in ("output", "local"):
        assert lg.embed(run, layer=layer).num_rows == 150
    assert np.isfinite(lg.explain(run, 7).score)
    config = lg.Config.from_recipe(run.path / "config.toml", ["prepare.local_nodes.target_nodes=all"])
    prepared = lg.prepare(store, config.preparation)
    by_hand = logits_of(run.load_model(prepared), prepared)
    wanted = run.head(prepared).probabilities(torch.stack([by_hand[node] for node in range(150)])).numpy()
    columns = [name for name in everyone.column_names if name.startswith(("probability_", "value"))]
    found = np.stack([everyone[name].to_numpy() for name in columns], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_only_training_steps_leave_nodes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int]] = []
    real = InputEncoder.forward

    def watch(self: InputEncoder, tokens: Tensor, *others: Any) -> Tensor:
        seen.append((self.training, tokens.shape[1] // 3))
        return real(self, tokens, *others)

    monkeypatch.setattr(InputEncoder, "forward", watch)
    settings = (
        "model.local_node_dropout=0.5",
        "prepare.local_nodes.k=9",
        "train.deduplicate_tokens=false",
        "train.epochs=1",
    )
    lg.train(easy_store(tmp_path / "g"), small(*settings), tmp_path / "run")
    assert {k for training, k in seen if training} == {5}
    assert {k for training, k in seen if not training} == {9}


def test_features_that_are_dropped() -> None:
    torch.manual_seed(0)
    module = EmbeddedModule(50, input_dropout=0.5).train()
    tokens = torch.ones(64, 6, 50)
    assert 0.4 < float((module.inputs.drop(tokens) == 0).float().mean()) < 0.6
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    assert torch.equal(module(tokens), module(tokens))


@pytest.mark.slow
def test_resumed_equals_unbroken(tmp_path: Path) -> None:
    config = small(ON, "model.local_node_dropout=0.4", "train.epochs=4")
    check_resumed(easy_store(tmp_path / "g"), config, tmp_path, TaskHead, "loss", 8)


# on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("more", [(), BOTH])
def test_a_recorded_step_is_a_step(store: lg.GraphStore, compiles: bool, more: tuple[str, ...]) -> None:
    """The same weights after many steps on the CPU and on the GPU, recorded, with nodes left out. A codebook would
    start from random numbers of its device."""
    prepared = lg.prepare(store, small("prepare.local_nodes.k=9", *more).preparation)
    found = []
    for device in ("cpu", "cuda"):
        config = small(
            ON, "model.name=largegt-local", "model.local_node_dropout=0.3", "model.dropout=0",
            "model.encoder_dropout=0", "train.batch_size=10", "train.precision=32-true", f"train.device={device}",
            "train.deduplicate_tokens=false", "train.learning_rate=1e-3", *more,
        )  # fmt: skip
        sizes = {10} if compiles and device == "cuda" else set()
        step, model, loader = recorded_step(prepared, config, device == "cuda", sizes)
        for epoch in range(3):
            for batch in loader.batches(prepared.split_rows("train"), 10, 0, epoch):
                step([batch])
        assert (step._graph is not None) == (device == "cuda")
        found.append([float(step.losses.finish().sum()), *weights_that_matter(model)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=5e-4)
