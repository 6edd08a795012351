"""Predict: the user's own ids, the nodes asked for in the order asked for, and every kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays, files
from largegt.errors import InputError
from largegt.inference.predictor import predict
from largegt.training.evaluate import evaluate
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import easy_store, homophilous, left_in, one_thread, refusal, small, thirds  # noqa: F401

COLORS = np.array(["blue", "green", "red"])


def ids_of(kind: str) -> Any:
    numbers = np.random.default_rng(1).permutation(150)
    if kind == "string":
        return np.array([f'node {n}, "né"' for n in numbers])
    return numbers * 7 - 300 if kind == "integer" else None


@pytest.fixture(scope="module", params=["row", "integer", "string"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over a graph where every fifth node has no label."""
    folder = tmp_path_factory.mktemp(request.param)
    edges, features, classes = homophilous()
    labels: Any = COLORS[classes].astype(object)
    labels[::5] = None
    parts = {name: nodes[nodes % 5 != 0] for name, nodes in thirds(150).items()}
    ids = ids_of(request.param)
    if ids is not None:
        edges = ids[edges]
    store = ingest(
        arrays(edges, features, labels, parts, node_ids=ids), folder / "g", IngestConfig(undirected=True), threads=1
    )
    assert store.id_kind == request.param
    return train(store, small(), folder / "run")


@pytest.mark.slow
def test_the_users_ids_come_back(run: Run) -> None:
    kind = run.store().id_kind
    expected = list(range(150)) if kind == "row" else ids_of(kind).tolist()
    assert predict(run.path)["node"].to_pylist() == expected


def test_nodes_asked_for_come_in_that_order_repeats_and_all(run: Run) -> None:
    every = predict(run.path, all_probabilities=True).to_pylist()
    wanted = [140, 3, 3, 0, 77, 140]
    ids = [every[n]["node"] for n in wanted]
    got = predict(run.path, ids=ids, all_probabilities=True).to_pylist()
    assert [row["node"] for row in got] == ids
    for row, n in zip(got, wanted, strict=True):
        assert row["label"] == every[n]["label"]
        assert row["probability"] == pytest.approx(every[n]["probability"], abs=1e-5)


def test_ids_may_be_written_as_text_one_or_none_at_all(run: Run) -> None:
    """A newcomer writes ids="alice": it is one node, and not its letters."""
    ids = [str(value) for value in run.store().ids_of(np.array([4, 2]))]
    assert [str(value) for value in predict(run.path, ids=ids)["node"].to_pylist()] == ids
    assert [str(value) for value in predict(run.path, ids=ids[0])["node"].to_pylist()] == ids[:1]
    table = predict(run.path, ids=[])
    assert (table.num_rows, table.column_names) == (0, ["node", "label", "probability"])


def test_nodes_that_were_not_prepared_are_predicted(run: Run) -> None:
    prepared = run.prepared()
    assert len(prepared.nodes) == 120
    lone = run.store().ids_of(np.array([0, 5, 10]))
    table = predict(run.path, ids=lone)
    assert table["node"].to_pylist() == lone
    assert set(table["label"].to_pylist()) <= set(COLORS)


def test_a_prediction_does_not_depend_on_who_else_is_asked_for(run: Run) -> None:
    """Labelled nodes come from one preparation alone and from another beside unlabelled ones."""
    ids = run.store().ids_of(np.array([1, 2, 3]))
    alone = predict(run.path, ids=ids, all_probabilities=True)
    among = predict(run.path, ids=[*ids, *run.store().ids_of(np.array([0]))], all_probabilities=True).slice(0, 3)
    for name in alone.column_names[2:]:
        assert alone[name].to_numpy() == pytest.approx(among[name].to_numpy(), abs=1e-5)


def test_predictions_agree_with_evaluate(run: Run) -> None:
    store = run.store()
    for split in ("train", "valid", "test"):
        table = predict(run.path, split=split)
        nodes = store.splits[split]
        assert table["node"].to_pylist() == store.ids_of(nodes)
        truth = [store.classes[c] for c in np.asarray(store.labels)[nodes]]
        right = np.mean([said == true for said, true in zip(table["label"].to_pylist(), truth, strict=True)])
        assert right == pytest.approx(evaluate(run.path, split)["accuracy"])


def test_the_label_is_the_likeliest_class(run: Run) -> None:
    table = predict(run.path, all_probabilities=True)
    assert table.column_names == ["node", "label", "probability", *(f"probability_{name}" for name in COLORS)]
    each = np.stack([table[f"probability_{name}"].to_numpy() for name in COLORS], axis=1)
    assert each.sum(axis=1) == pytest.approx(np.ones(150), abs=1e-5)
    assert table["label"].to_pylist() == COLORS[each.argmax(axis=1)].tolist()
    assert table["probability"].to_numpy().tolist() == each.max(axis=1).tolist()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
def test_files_say_what_the_table_says(suffix: str, run: Run, tmp_path: Path) -> None:
    """In the last bits too: tests/reliability/test_streamed_predictions.py."""
    out = tmp_path / "deep" / "er" / f"p{suffix}"
    table = predict(run.path, out, all_probabilities=True)
    assert left_in(out.parent) == [out.name]
    if suffix == ".parquet":
        assert pq.read_table(out).equals(table)
        return
    columns = dict(np.load(out)) if suffix == ".npz" else pacsv.read_csv(out).to_pydict()
    assert list(columns) == table.column_names
    assert list(map(str, columns["node"])) == list(map(str, table["node"].to_pylist()))
    assert list(columns["label"]) == table["label"].to_pylist()
    assert columns["probability"] == pytest.approx(table["probability"].to_numpy(), rel=1e-6)


def test_a_file_that_is_there_is_replaced_only_when_asked(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    out.write_text("old")
    with pytest.raises(InputError, match=r"p\.csv already exists: .* --overwrite"):
        predict(run.path, out, split="test")
    assert out.read_text() == "old"
    predict(run.path, out, split="test", overwrite=True)
    assert out.read_text().startswith('"node"')


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(({"out": name}, ".parquet, .csv, .npz") for name in ("p.txt", "p", "p.parquet.gz", "p.json")),
        *(({"ids": [unknown]}, str(unknown)) for unknown in ("nobody", 10**6, -1000, "", None, 2.5)),
        ({"split": "dev"}, "train, valid, test"),
        ({"ids": [1], "split": "test"}, "not both"),
        ({"device": "banana"}, "banana"),
    ],
)
def test_what_cannot_be_predicted_is_named(asked: dict[str, Any], said: str, run: Run, tmp_path: Path) -> None:
    assert said in refusal(lambda: predict(run.path, **asked | {"out": tmp_path / asked.get("out", "p.csv")}))
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_a_label_called_like_our_own_columns(tmp_path: Path) -> None:
    """A multi-label column may be called `node`: it must not take the place of the ids."""
    edges, features, classes = homophilous()
    columns = {"id": np.arange(150) + 1000, "node": (classes == 0).astype(int), "other": (classes == 1).astype(int)}
    columns |= {f"f{c}": features[:, c] for c in range(5)}
    pacsv.write_csv(pa.table(columns), tmp_path / "nodes.csv")
    pacsv.write_csv(pa.table({"source": edges[0] + 1000, "target": edges[1] + 1000}), tmp_path / "edges.csv")
    source = files(
        tmp_path / "edges.csv",
        nodes=tmp_path / "nodes.csv",
        id_column="id",
        label_column="node,other",
        feature_columns="f*",
    )
    store = ingest(source, tmp_path / "g", IngestConfig(undirected=True), threads=1)
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    table = predict(run.path, split="test")
    assert table["node"].to_pylist() == store.ids_of(store.splits["test"])


@pytest.mark.slow
def test_node2vec_positions_are_the_same_for_nodes_predicted_later(tmp_path: Path) -> None:
    labels = homophilous()[2].astype(float)
    labels[::5] = np.nan
    store = easy_store(tmp_path / "g", labels)
    quick = ("method=node2vec", "walks_per_node=1", "walk_length=5", "context_size=3")
    config = small(*(f"prepare.positional_encoding.{setting}" for setting in quick), "train.epochs=1")
    run = train(store, config, tmp_path / "run")
    alone = predict(run.path, ids=[1, 2, 3])
    among = predict(run.path, ids=[1, 2, 3, 0]).slice(0, 3)
    assert alone["probability"].to_numpy() == pytest.approx(among["probability"].to_numpy(), abs=1e-4)
