"""append --update: labels, split and features of known nodes; the bytes of an ingest of the updated tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grown_graphs import CHANGED, arrays_of, assert_same, fitted_as, grown
from largegt.cli.verification import verify
from largegt.data import sources
from largegt.data.append import append
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.versions import earlier_states, labels_as_of, last_changes, touched_since
from largegt.errors import InputError
from largegt.inference.predictor import predict
from largegt.io.array_writer import ArrayWriter
from largegt.io.remote import remove_folder
from largegt.preprocessing.pipeline import prepare
from largegt.training.trainer import train
from preparation_cases import SETTINGS, config
from preparation_cases import assert_same as assert_same_preparation
from run_helpers import small, stopped_at

pytestmark = pytest.mark.slow

FEATURES = ["f0", "f1", "f2", "f3"]


# the store


@pytest.mark.slow
@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
@pytest.mark.parametrize("ids", ["row", "integer", "string"])
def test_the_bytes_of_an_ingest_of_the_updated_tables(tmp_path: Path, ids: str, undirected: bool) -> None:
    """Known and new nodes in one table, in no order but that of the new ones, and new edges."""
    graph = grown(ids, undirected)
    old = graph.begin(tmp_path)
    graph.change()
    full = graph.now(tmp_path)
    rows = np.insert(np.arange(150, 170), [0, 3, 3, 9, 15, 20], CHANGED)
    store = append(
        tmp_path / "old", graph.written(tmp_path / "n.parquet", rows), tmp_path / "edges_new.parquet", update=True,
        threads=1,
    )  # fmt: skip
    assert_same(store, full)
    state = earlier_states(store)[0]
    assert state.fingerprint == old.fingerprint
    expected = sorted(CHANGED[:-1].tolist())
    assert [touched_since(store, state, what).tolist() for what in ("features", "labels")] == [expected, expected]
    assert last_changes(store) == {
        "new_nodes": 20,
        "new_edges": store.num_edges - old.num_edges,
        "old_nodes_with_new_neighbours": len(touched_since(store, state)),
        "labels_changed": 5,
        "splits_changed": len(touched_since(store, state, "split")),
        "features_changed": 5,
    }


def test_columns_of_every_kind_are_encoded_as_they_were_fitted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes: dict[str, Any] = {
        "id": [f"n{number}" for number in range(60)],
        "city": [("Bern", "Rome", "Oslo", None)[number % 4] for number in range(60)],
        "since": [f"20{10 + number % 9}-03-{1 + number % 28:02}" for number in range(60)],
        "size": [None if number % 7 == 0 else float(number) for number in range(60)],
        "text": [f"the quick fox {number} jumps over {number * 7} lazy dogs" for number in range(60)],
        "label": [("a", "b")[number % 2] for number in range(60)],
    }
    ends = rng.integers(0, 60, (2, 200))
    pq.write_table(pa.table({"source": [f"n{n}" for n in ends[0]], "target": [f"n{n}" for n in ends[1]]}),
                   tmp_path / "e.parquet")  # fmt: skip
    pq.write_table(pa.table(nodes), tmp_path / "n.parquet")
    old = ingest(sources.files(tmp_path / "e.parquet", nodes=tmp_path / "n.parquet"), tmp_path / "g", threads=1)
    for row, values in {5: ("Lima", "2031-12-01", 1e9), 8: (None, None, None), 9: ("Oslo", "2011-01-01", -1.5)}.items():
        for name, value in zip(("city", "since", "size"), values, strict=True):
            nodes[name][row] = value
    pq.write_table(pa.table(nodes).take(pa.array([9, 5, 8])), tmp_path / "changed.parquet")
    pq.write_table(pa.table(nodes), tmp_path / "n.parquet")
    with fitted_as(old):
        source = sources.files(tmp_path / "e.parquet", nodes=tmp_path / "n.parquet")
        full = ingest(source, tmp_path / "all", threads=1)
    store = append(tmp_path / "g", tmp_path / "changed.parquet", update=True, threads=1)
    assert_same(store, full)
    assert last_changes(store)["features_changed"] == 3
    assert last_changes(store)["labels_changed"] == 0


def test_a_column_that_the_table_lacks_keeps_its_values(tmp_path: Path) -> None:
    graph = grown("string")
    before = arrays_of(graph.begin(tmp_path).path)
    graph.change()
    labels = append(tmp_path / "old", graph.written(tmp_path / "l.parquet", columns=["id", "label"]), update=True)
    after = arrays_of(labels.path)
    assert [name for name in before if before[name] != after[name]] == ["labels"]
    assert {**last_changes(labels), "labels_changed": 0} == dict.fromkeys(last_changes(labels), 0)
    assert labels.labels[:150].tolist() == graph.labels[:150].tolist()
    features = append(
        tmp_path / "old", graph.written(tmp_path / "f.parquet", columns=["id", "f3", "f2", "f0", "f1"]), update=True
    )
    assert [name for name in after if after[name] != arrays_of(features.path)[name]] == ["features"]
    np.testing.assert_array_equal(features.features, graph.features[:150])
    split = append(tmp_path / "old", graph.written(tmp_path / "s.parquet", columns=["split", "id"]), update=True)
    assert_same(split, graph.now(tmp_path, "old"))


def test_an_empty_cell_leaves_the_label_and_the_split(tmp_path: Path) -> None:
    colors = ["red", "green", None, "red", "green"]
    table = pa.table(
        {"id": range(5), "x": np.arange(5.0), "label": colors, "split": ["train", "valid", "", "test", ""]}
    )
    pq.write_table(table, tmp_path / "n.parquet")
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    ingest(sources.files(tmp_path / "e.npy", nodes=tmp_path / "n.parquet"), tmp_path / "g", threads=1)
    update = {
        "id": [3, 2, 1, 0, 4],
        "label": ["green", "red", "", None, None],
        "split": ["", None, "train", "", "test"],
    }
    pq.write_table(pa.table(update), tmp_path / "u.parquet")
    store = append(tmp_path / "g", tmp_path / "u.parquet", update=True)
    assert [store.label_of(node) for node in range(5)] == ["red", "green", "red", "green", "green"]
    assert store.split.tolist() == [1, 1, 0, 3, 3], "the first label of a node brings no split"
    assert store.folder.meta["label_counts"] == [3, 2]
    assert store.folder.meta["num_labelled"] == 5
    assert store.features[:, 0].tolist() == list(range(5))
    assert {what: last_changes(store)[f"{what}_changed"] for what in ("labels", "splits", "features")} == {
        "labels": 2, "splits": 2, "features": 0,
    }  # fmt: skip


def test_labels_in_a_file_of_their_own(tmp_path: Path) -> None:
    graph = grown("string")
    graph.begin(tmp_path)
    graph.change()
    store = append(tmp_path / "old", labels=graph.written(tmp_path / "l.parquet", columns=["id", "label"]), update=True)
    assert store.labels.tolist() == graph.labels[:150].tolist()
    pq.write_table(pa.table({"id": ["nobody"], "label": [1]}), tmp_path / "l.parquet")
    with pytest.raises(InputError, match=r"'nobody' is neither in .* nor among the new nodes"):
        append(tmp_path / "old", labels=tmp_path / "l.parquet", update=True)


def test_arrays_that_stay_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = grown("string", undirected=False)
    graph.begin(tmp_path)
    graph.change()
    grows: list[str] = []
    original = ArrayWriter.grow
    monkeypatch.setattr(
        ArrayWriter, "grow", lambda self, name, *rest: grows.append(name) or original(self, name, *rest)
    )
    append(tmp_path / "old", graph.written(tmp_path / "l.parquet", columns=["id", "label"]), update=True)
    assert not [name for name in grows if name.startswith(("features", "out", "in", "both", "node_id"))]


def test_features_that_came_from_an_array(tmp_path: Path) -> None:
    graph = grown()
    graph.store(tmp_path)
    graph.change(labels=False, split=False)
    store = append(tmp_path / "old", graph.written(tmp_path / "u.parquet", columns=["id", *FEATURES]),
                   update=True)  # fmt: skip
    assert_same(store, graph.store(tmp_path / "b"))


def test_killed_where_arrays_are_kept(tmp_path: Path) -> None:
    graph = grown("string")
    old = graph.begin(tmp_path)
    graph.change(features=False)
    file = graph.written(tmp_path / "l.parquet", columns=["id", "label", "split"])
    for method, call in (("commit", 1), ("commit", 2), ("finish", 1), ("_link_arrays", 1), ("_link_old_manifest", 1)):
        with stopped_at(ArrayWriter, method, call):
            append(tmp_path / "old", file, update=True, threads=1)
        assert GraphStore.open(tmp_path / "old").fingerprint == old.fingerprint
        assert not verify(old.path).damaged
    store = append(tmp_path / "old", file, update=True, threads=1)
    assert_same(store, graph.now(tmp_path, "old"))


# preparations and runs


@pytest.mark.parametrize("what", ["features", "labels", "both"])
@pytest.mark.parametrize(
    ("name", "undirected"), [*((name, False) for name in SETTINGS), ("raw", True), ("labels", True)]
)
def test_a_preparation_of_an_updated_store_is_one_from_nothing(
    tmp_path: Path, name: str, undirected: bool, what: str
) -> None:
    """Row by row the same as of an ingest of the updated tables; rows that do not change are kept."""
    graph = grown(undirected=undirected, num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    prepare(graph.store(tmp_path), config(name), threads=1)
    append(tmp_path / "old", graph.source_of("new"), threads=1)  # the night in between, nobody prepared
    graph.split[600:] = 3
    graph.change(features=what != "labels", labels=what != "features", split=what == "both")
    columns = ["id", *FEATURES, "label", "split"]
    store = append(tmp_path / "old", graph.written(tmp_path / "n.parquet", columns=columns), update=True, threads=1)
    prepared = prepare(store, config(name), threads=1)
    full = graph.store(tmp_path, "all")
    assert full.fingerprint == store.fingerprint
    assert_same_preparation(prepared, prepare(full, config(name), threads=1))
    if "token rows" in prepared.reused:
        kept, made = prepared.reused["token rows"]
        assert kept > made > 0
    if what != "features":
        assert "label histograms" not in prepared.reused, "made whole, since labels changed"


@pytest.mark.parametrize("what", ["features", "labels", "both"])
def test_a_run_keeps_its_labels_and_reads_the_new_features(tmp_path: Path, what: str) -> None:
    graph = grown("string", num_old=300)
    graph.split[graph.split == 3] = 0
    old = graph.begin(tmp_path)
    settings = small("train.epochs=2", "model.neighbor_label_hops=2", "model.local_label_histograms=true",
                     "prepare.local_nodes.target_nodes=all")  # fmt: skip
    run = train(old, settings, tmp_path / "run")
    before = predict(run)
    graph.change(features=what != "labels", labels=what != "features", split=what != "features")
    store = append(tmp_path / "old", graph.written(tmp_path / "n.parquet"), update=True, threads=1)
    labels, split = labels_as_of(store, earlier_states(store)[0])
    assert labels.tolist() == old.labels.tolist()
    assert split.tolist() == old.split.tolist()
    after = predict(run)
    assert after["node"].equals(before["node"])
    same = np.array(after["probability"]) == np.array(before["probability"])
    assert same.all() == (what == "labels"), "labels are those of the training"
    assert same[CHANGED[:-1]].any() == (what == "labels")
    remove_folder(store.path / "prepared")
    assert predict(run).equals(after), "made from nothing"
    assert run.store().fingerprint == old.fingerprint


def test_two_updates_and_an_append(tmp_path: Path) -> None:
    """The lineage of each step is kept, and counts for preparations of the first version."""
    graph = grown("string", num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    old = graph.begin(tmp_path)
    prepare(old, config("labels"), threads=1)
    graph.change(labels=False, split=False)
    append(tmp_path / "old", graph.written(tmp_path / "a.parquet", columns=["id", *FEATURES]), update=True)
    append(tmp_path / "old", tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet")
    graph.labels[[4, 602]] = (graph.labels[[4, 602]] + 1) % 3
    graph.split[[4, 602]] = 0
    store = append(
        tmp_path / "old", graph.written(tmp_path / "b.parquet", [602, 4], ["id", "label", "split"]), update=True
    )
    first = earlier_states(store)[0]
    assert touched_since(store, first, "features").tolist() == sorted(CHANGED[:-1].tolist())
    assert touched_since(store, first, "labels").tolist() == [4]
    assert touched_since(store, earlier_states(store)[2], "labels").tolist() == [4, 602]
    assert not len(touched_since(store, earlier_states(store)[1], "features"))
    full = graph.now(tmp_path)
    assert_same(store, full)
    assert_same_preparation(prepare(store, config("labels"), threads=1), prepare(full, config("labels"), threads=1))
