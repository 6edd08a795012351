"""append: the bytes of an ingest of everything, and the old store until the new one is whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grown_graphs import grown

from largegt.cli.verification import verify
from largegt.config.schema import IngestConfig, LocalNodesConfig, PrepareConfig
from largegt.data import sources
from largegt.data.append import _Append, append
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.versions import State, clean, earlier_states, touched_since
from largegt.errors import InputError, LargeGTError
from largegt.io.array_writer import ArrayWriter
from largegt.io.locks import Lock
from largegt.preprocessing.pipeline import prepare
from run_helpers import Killed, left_in, lg, stopped_at  # noqa: F401

OLD_ID = int(grown("integer").ids[3])


def arrays_of(folder: Path) -> dict[str, bytes]:
    """The bytes of the arrays of the newest version, but for its lineage."""
    arrays = json.loads((folder / "manifest.json").read_text())["arrays"]
    return {
        name: (folder / entry["file"]).read_bytes() for name, entry in arrays.items() if not name.startswith("touched_")
    }


def assert_same(store: GraphStore, full: GraphStore) -> None:
    """Every byte of every array, and the manifest but for its lineage."""
    assert arrays_of(store.path) == arrays_of(full.path)
    ours, theirs = (json.loads((each.path / "manifest.json").read_text()) for each in (store, full))
    for tree in (ours, theirs):
        for name in tree.pop("notes", {}).get("arrays", []):
            del tree["arrays"][name]
        tree.pop("checksum")
    assert json.dumps(ours) == json.dumps(theirs), "in the same order"


@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
@pytest.mark.parametrize("ids", ["row", "integer", "string"])
def test_the_bytes_of_an_ingest_of_everything(tmp_path: Path, ids: str, undirected: bool) -> None:
    graph = grown(ids, undirected)
    graph.write(tmp_path)
    graph.ingested(tmp_path, "old")
    full = graph.ingested(tmp_path, "all")
    store = append(tmp_path / "old", tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet", threads=1)
    assert store.id_kind == ids
    assert store.num_nodes == 170
    assert_same(store, full)
    assert store.fingerprint == full.fingerprint
    assert not [name for name in left_in(tmp_path) if "partial" in name or "lock" in name or ".old-" in name]
    assert not verify(store.path).damaged


def test_text_files_small_memory_and_several_nights(tmp_path: Path) -> None:
    graph = grown("string", False, num_new=40)
    graph.write(tmp_path, "csv")
    graph.ingested(tmp_path, "old", "csv")
    full = graph.ingested(tmp_path, "all", "csv")
    half = graph.num_old + 20
    for night, (low, high) in enumerate([(graph.num_old, half), (half, len(graph.ids))]):
        ends = graph.new_edges.max(axis=0)
        mine = (ends < half) if night == 0 else (ends >= half)
        pq.write_table(graph.nodes(low, high), tmp_path / f"n{night}.parquet")
        pq.write_table(graph.edges(graph.new_edges[:, mine]), tmp_path / f"e{night}.parquet")
        append(tmp_path / "old", tmp_path / f"n{night}.parquet", tmp_path / f"e{night}.parquet", memory="300MiB")
    store = GraphStore.open(tmp_path / "old")
    assert_same(store, full)
    assert [state.num_nodes for state in earlier_states(store)] == [150, 170]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_features_keep_their_precision_and_arrays_will_do(tmp_path: Path, dtype: str) -> None:
    graph = grown()
    full = graph.store(tmp_path, "all", feature_dtype=dtype)
    graph.store(tmp_path, feature_dtype=dtype)
    np.save(tmp_path / "x.npy", graph.features[150:])
    np.save(tmp_path / "e.npy", graph.new_edges)
    np.save(tmp_path / "y.npy", graph.labels[150:])
    store = append(tmp_path / "old", None, tmp_path / "e.npy", features=tmp_path / "x.npy", labels=tmp_path / "y.npy")
    assert_same(store, full)


def test_degrees_as_features_are_counted_anew(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    every = np.concatenate([graph.old_edges, graph.new_edges], axis=1)
    full = ingest(sources.arrays(every, num_nodes=170), tmp_path / "all", threads=1)
    ingest(sources.arrays(graph.old_edges, num_nodes=150), tmp_path / "old", threads=1)
    assert_same(append(tmp_path / "old", sources.arrays(graph.new_edges, num_nodes=20)), full)
    with pytest.raises(InputError, match="none but degrees"):
        append(tmp_path / "old", sources.arrays(graph.new_edges, np.ones((20, 2))))


@pytest.mark.parametrize("way", ["becomes directed", "becomes symmetric", "stays symmetric"])
def test_directions_come_and_go(tmp_path: Path, way: str) -> None:
    pair, other = np.array([[0, 1, 2], [1, 2, 3]]), np.array([[3, 4], [4, 0]])
    old = np.concatenate([pair, pair[::-1]], axis=1) if way != "becomes symmetric" else pair
    new = {"becomes directed": other, "becomes symmetric": pair[::-1]}.get(way, np.hstack([other, other[::-1], pair]))
    ingest(sources.arrays(old, np.eye(5)), tmp_path / "old", threads=1)
    full = ingest(sources.arrays(np.concatenate([old, new], axis=1), np.eye(5)), tmp_path / "all", threads=1)
    store = append(tmp_path / "old", sources.arrays(new))
    assert store.directed == (way == "becomes directed")
    assert_same(store, full)


def test_nodes_alone_and_edges_alone(tmp_path: Path) -> None:
    graph = grown("integer")
    graph.write(tmp_path)
    graph.ingested(tmp_path, "old")
    before = arrays_of(tmp_path / "old")
    store = append(tmp_path / "old", tmp_path / "nodes_new.parquet")
    assert store.num_nodes == 170
    assert not len(touched_since(store, earlier_states(store)[0]))
    assert arrays_of(store.path)["out_indices"] == before["out_indices"]
    pq.write_table(graph.edges(graph.new_edges), tmp_path / "more.parquet")
    assert_same(append(tmp_path / "old", edges=tmp_path / "more.parquet"), graph.ingested(tmp_path, "all"))


def test_elsewhere_leaves_the_old_store(tmp_path: Path) -> None:
    graph = grown()
    old = graph.store(tmp_path)
    before = {name: (tmp_path / "old" / name).read_bytes() for name in os.listdir(tmp_path / "old")}
    store = append(old, graph.source_of("new"), out=tmp_path / "new")
    assert store.num_nodes == 170
    assert GraphStore.open(tmp_path / "old").fingerprint == old.fingerprint
    assert before == {name: (tmp_path / "old" / name).read_bytes() for name in os.listdir(tmp_path / "old")}
    with pytest.raises(InputError, match="already exists"):
        append(old, graph.source_of("new"), out=tmp_path / "new")


def test_which_nodes_were_touched(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    first = graph.store(tmp_path)
    lists = [np.split(first.csr(side)[1], first.csr(side)[0][1:-1]) for side in ("out", "in")]
    append(first, graph.source_of("new"))
    store = append(tmp_path / "old", sources.arrays(np.array([[0, 160, 3], [160, 1, 4]])))
    state = earlier_states(store)[0]
    assert state == State(first.fingerprint, 150, first.num_edges, True)
    expected = [
        node
        for node in range(150)
        if any(
            store.csr(side)[1][store.csr(side)[0][node] : store.csr(side)[0][node + 1]].tolist()
            != before[node].tolist()
            for side, before in zip(("out", "in"), lists, strict=True)
        )
    ]
    assert touched_since(store, state).tolist() == expected
    assert expected


# labels and splits


def test_labels_are_by_the_stores_classes(tmp_path: Path) -> None:
    colors = pa.array(["red", "green", None, "red"])
    source = sources.arrays(np.array([[0, 1], [1, 2]]), np.eye(4), np.array(colors.to_pylist(), dtype=object))
    ingest(source, tmp_path / "g", threads=1)
    new = {"id": [4, 5, 6], **{f"f{c}": [0.0] * 3 for c in range(4)}}
    pq.write_table(pa.table({**new, "label": ["green", "blue", "violet"]}), tmp_path / "n.parquet")
    with pytest.raises(InputError, match=r"'blue', 'violet' is no class of the store"):
        append(tmp_path / "g", tmp_path / "n.parquet")
    pq.write_table(pa.table({**new, "label": ["green", None, ""]}), tmp_path / "n.parquet")
    store = append(tmp_path / "g", tmp_path / "n.parquet")
    assert [store.label_of(node) for node in range(7)] == ["red", "green", None, "red", "green", None, None]
    assert store.folder.meta["num_labelled"] == 4
    assert store.folder.meta["label_counts"] == [2, 2]
    assert store.split[4:].tolist() == [0, 0, 0], "without a split they are in none"


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_values_and_several_labels(tmp_path: Path, task: str) -> None:
    rng = np.random.default_rng(0)
    labels: Any = rng.normal(size=8) if task == "regression" else rng.integers(0, 2, (8, 3)).astype(np.float32)
    edges = np.array([[0, 1], [1, 2]])
    full = ingest(sources.arrays(edges, np.eye(8), labels, {}), tmp_path / "all", threads=1)
    ingest(sources.arrays(edges, np.eye(8)[:5], labels[:5], {}), tmp_path / "old", threads=1)
    store = append(tmp_path / "old", sources.arrays(edges, np.eye(8)[5:], labels[5:]))
    assert arrays_of(store.path)["labels"] == arrays_of(full.path)["labels"]
    assert store.folder.meta["label_counts"] == full.folder.meta["label_counts"]


# what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n, e: (n.set_column(0, "id", pa.array([*n["id"].to_pylist()[1:], OLD_ID])), e), "already.* --update"),
        (lambda n, e: (pa.concat_tables([n, n]), e), "occurs twice"),
        (lambda n, e: (n, pa.table({"src": [OLD_ID], "dst": [999_999]})), "999999 is neither in .* nor among the 20"),
        (lambda n, e: (n.drop_columns(["f2"]), e), "has no column 'f2' for the features"),
        (lambda n, e: (n.set_column(1, "f0", pa.array([None] * 20, pa.float32())), e), "'f0' has no number in row 0"),
        (lambda n, e: (n.set_column(0, "id", pa.array([f"x{i}" for i in range(20)])), e), "is text, and the ids of"),
        (lambda n, e: (n.set_column(5, "label", pa.array([7] * 20)), e), "7 is no class of the store"),
    ],
    ids=["known id", "id twice", "unknown end", "no column", "no number", "text", "class"],
)  # fmt: skip
def test_refusals_are_one_line_and_leave_the_store(tmp_path: Path, change: Any, message: str) -> None:
    graph = grown("integer")
    graph.write(tmp_path)
    before = graph.ingested(tmp_path, "old", missing_values="refuse").fingerprint
    nodes, edges = change(graph.nodes(150), graph.edges(graph.new_edges))
    pq.write_table(nodes, tmp_path / "n.parquet")
    pq.write_table(edges, tmp_path / "e.parquet")
    with pytest.raises(LargeGTError, match=message) as caught:
        append(tmp_path / "old", tmp_path / "n.parquet", tmp_path / "e.parquet")
    assert "\n" not in str(caught.value)
    assert GraphStore.open(tmp_path / "old").fingerprint == before
    assert not [name for name in left_in(tmp_path) if "partial" in name]


def test_other_refusals(tmp_path: Path) -> None:
    graph = grown()
    graph.store(tmp_path)
    with pytest.raises(InputError, match=r"has 3 features, and .* has 4"):
        append(tmp_path / "old", sources.arrays(graph.new_edges, np.ones((20, 3))))
    with pytest.raises(InputError, match="has no features, and nodes of"):
        append(tmp_path / "old", sources.arrays(graph.new_edges, num_nodes=20))
    with pytest.raises(InputError, match="nothing to add"):
        append(tmp_path / "old")
    with pytest.raises(LargeGTError, match="cannot lie at a URL"):
        append("s3://bucket/g", tmp_path / "n.parquet")


# kills and locks


@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
def test_killed_anywhere_the_old_store_is_there_and_the_same_command_goes_on(
    tmp_path: Path, undirected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("append._WINDOW_EDGES", "append._CHUNK_ROWS"):
        monkeypatch.setattr(f"largegt.data.{name}", 60)
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 800)
    graph = grown("string", undirected)
    graph.write(tmp_path)
    before = graph.ingested(tmp_path, "old").fingerprint
    arguments: Any = (tmp_path / "old", tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet")
    for call in (1, 4, 9, 14, 5):  # each goes on from the one before
        with stopped_at(ArrayWriter, "commit", call):
            append(*arguments, threads=1)
        assert GraphStore.open(tmp_path / "old").fingerprint == before
    with stopped_at(ArrayWriter, "finish", 1):
        append(*arguments, threads=1)
    assert GraphStore.open(tmp_path / "old").fingerprint == before
    assert_same(append(*arguments, threads=1), graph.ingested(tmp_path, "all"))


@pytest.mark.parametrize("ids", ["integer", "string"])
def test_killed_when_the_new_ids_were_written_they_come_once(tmp_path: Path, ids: str) -> None:
    """The last rows of an array count, and it is not yet closed."""
    graph = grown(ids)
    graph.write(tmp_path)
    graph.ingested(tmp_path, "old")
    arguments: Any = (tmp_path / "old", tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet")
    for call in (1, 2)[: 2 if ids == "string" else 1]:  # of the offsets; of those that were left, of the text
        with stopped_at(ArrayWriter, "close", call):
            append(*arguments, threads=1)
    assert_same(append(*arguments, threads=1), graph.ingested(tmp_path, "all"))


def test_killed_when_all_edges_were_dropped_they_count_once(tmp_path: Path) -> None:
    graph = grown()
    ingest(graph.source_of("old"), tmp_path / "old", IngestConfig(undirected=True, unknown_ids="drop"), threads=1)
    np.save(tmp_path / "e.npy", np.array([[3, 4], [4000, 5000]]))
    with stopped_at(_Append, "_write_features", 1):
        append(tmp_path / "old", None, tmp_path / "e.npy", threads=1)
    store = append(tmp_path / "old", None, tmp_path / "e.npy", threads=1)
    assert store.folder.meta["unknown_edges_dropped"] == 2


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    graph = grown()
    graph.store(tmp_path)
    with Lock(tmp_path / "old"), pytest.raises(InputError, match=r"another process .* is writing"):
        append(tmp_path / "old", graph.source_of("new"))


def test_preparations_of_the_old_version_stay(tmp_path: Path) -> None:
    graph = grown()
    store = graph.store(tmp_path)
    config = PrepareConfig(local_nodes=LocalNodesConfig(k=4))
    prepared = prepare(store, config)
    before = left_in(prepared.path.parent)
    append(store, graph.source_of("new"))
    assert left_in(prepared.path.parent) == before


def others_in(folder: Path) -> dict[str, int]:
    """A run, a note, a link and an array that are nobody's but the user's; and which file each is."""
    (folder / "runs" / "a").mkdir(parents=True)
    (folder / "runs" / "a" / "metrics.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    np.save(folder / "mine.npy", np.arange(3))
    (folder / "there").symlink_to("nowhere")
    return {name: (folder / name).lstat().st_ino for name in ("runs", "runs/a/metrics.json", "notes.txt", "mine.npy",
                                                              "there")}  # fmt: skip


def test_what_others_put_into_the_folder_stays(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    store = graph.store(tmp_path)
    others = others_in(store.path)
    full = graph.store(tmp_path, "all")
    assert append(store, graph.source_of("new"), threads=1).fingerprint == full.fingerprint
    assert {name: (store.path / name).lstat().st_ino for name in others} == others
    grown_store = GraphStore.open(store.path)
    ours = {"manifest.json", *(entry["file"] for entry in grown_store.folder.manifest["arrays"].values())}
    store.folder.close()
    clean(store.path)
    assert set(os.listdir(store.path)) == ours | {"runs", "notes.txt", "mine.npy", "there"}
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    graph.store(tmp_path / "b")
    elsewhere = append(tmp_path / "b" / "old", graph.source_of("new"), out=tmp_path / "new", threads=1)
    assert set(os.listdir(elsewhere.path)) == ours


def test_the_same_files_again_change_nothing(tmp_path: Path) -> None:
    graph = grown("string")
    graph.write(tmp_path)
    graph.ingested(tmp_path, "old")
    new: Any = (tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet")
    for out in (tmp_path / "g", None):  # elsewhere, then in place
        first = append(tmp_path / "old", *new, out=out)
        before = (first.path / "manifest.json").read_bytes()
        with pytest.warns(UserWarning, match="has these files already") as said:
            again = append(tmp_path / "old", *new, out=out)
        assert "\n" not in str(said[0].message)
        assert (again.path, again.fingerprint) == (first.path, first.fingerprint)
        assert (first.path / "manifest.json").read_bytes() == before
    pq.write_table(graph.edges(np.array([[0], [5]])), tmp_path / "more.parquet")
    append(tmp_path / "old", edges=tmp_path / "more.parquet")
    with pytest.raises(InputError, match="already"):
        append(tmp_path / "old", *new)


def test_the_verb(tmp_path: Path, lg: Any) -> None:  # noqa: F811
    graph = grown("string")
    graph.write(tmp_path)
    graph.ingested(tmp_path, "old")
    full = graph.ingested(tmp_path, "all")
    new = ("--nodes", tmp_path / "nodes_new.parquet", "--edges", tmp_path / "edges_new.parquet")
    found = lg("append", tmp_path / "old", *new, "--out", tmp_path / "g", "--json").json
    assert found["new_nodes"] == 20
    assert found["nodes"] == 170
    assert found["edges"] == full.num_edges
    assert_same(GraphStore.open(tmp_path / "g"), full)
    code, out, _ = lg("append", tmp_path / "old", *new)
    assert code == 0
    assert "170" in out
    code, again, err = lg("append", tmp_path / "old", *new)
    assert code == 0
    assert "has these files already" in err
    assert err.count("\n") == 1
    assert again != out, "nothing is new now"
    found = lg("append", tmp_path / "old", *new, "--json").json
    assert (found["nodes"], found["new_nodes"], found["new_edges"]) == (170, 0, 0)
    os.utime(tmp_path / "nodes_new.parquet", ns=(0, 0))  # another file, for all we know
    code, _, err = lg("append", tmp_path / "old", *new)
    assert code == 2
    assert "already" in err
    assert err.count("\n") == 1


def test_a_config_of_unknown_ids_holds(tmp_path: Path) -> None:
    graph = grown()
    config = IngestConfig(undirected=True, unknown_ids="drop")
    ingest(graph.source_of("old"), tmp_path / "old", config, threads=1)
    edges = np.concatenate([graph.new_edges, [[3], [4000]]], axis=1)
    store = append(tmp_path / "old", sources.arrays(edges, graph.features[150:], num_nodes=20))
    assert store.folder.meta["unknown_edges_dropped"] == 1
