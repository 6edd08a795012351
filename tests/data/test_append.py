"""append: the bytes of an ingest of everything, and the old store until the new one is whole. What only an update does
is in test_update.py; what holds for both, with and without, is here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grown_graphs import CHANGED, arrays_of, assert_same, grown, unfinished
from largegt.config.schema import IngestConfig, LocalNodesConfig, PrepareConfig
from largegt.data import sources
from largegt.data.append import _Append, append
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.versions import State, clean, earlier_states, last_changes, touched_since
from largegt.errors import InputError, LargeGTError
from largegt.io.array_writer import ArrayWriter
from largegt.io.locks import Lock
from largegt.preprocessing.pipeline import prepare
from run_helpers import left_in, lg, logged, stopped_at  # noqa: F401

pytestmark = pytest.mark.slow

OLD_ID = int(grown("integer").ids[3])
DIRECTIONS = pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])


def new_files(folder: Path) -> Any:
    return folder / "nodes_new.parquet", folder / "edges_new.parquet"


@DIRECTIONS
@pytest.mark.parametrize("ids", ["row", "integer", "string"])
def test_the_bytes_of_an_ingest_of_everything(tmp_path: Path, ids: str, undirected: bool) -> None:
    graph = grown(ids, undirected)
    graph.begin(tmp_path)
    store = append(tmp_path / "old", *new_files(tmp_path), threads=1)
    assert (store.id_kind, store.num_nodes) == (ids, 170)
    assert_same(store, graph.ingested(tmp_path, "all"))


def test_text_files_small_memory_and_several_nights(tmp_path: Path) -> None:
    graph = grown("string", False, num_new=40)
    graph.begin(tmp_path, "csv")
    half = graph.num_old + 20
    for night, (low, high) in enumerate([(graph.num_old, half), (half, len(graph.ids))]):
        ends = graph.new_edges.max(axis=0)
        mine = (ends < half) if night == 0 else (ends >= half)
        pq.write_table(graph.nodes(low, high), tmp_path / f"n{night}.parquet")
        pq.write_table(graph.edges(graph.new_edges[:, mine]), tmp_path / f"e{night}.parquet")
        append(tmp_path / "old", tmp_path / f"n{night}.parquet", tmp_path / f"e{night}.parquet", memory="300MiB")
    store = GraphStore.open(tmp_path / "old")
    assert_same(store, graph.ingested(tmp_path, "all", "csv"))
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
    graph.begin(tmp_path)
    before = arrays_of(tmp_path / "old")
    store = append(tmp_path / "old", tmp_path / "nodes_new.parquet")
    assert store.num_nodes == 170
    assert not len(touched_since(store, earlier_states(store)[0]))
    assert arrays_of(store.path)["out_indices"] == before["out_indices"]
    assert_same(append(tmp_path / "old", edges=tmp_path / "edges_new.parquet"), graph.ingested(tmp_path, "all"))


def test_which_nodes_were_touched(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    first = graph.store(tmp_path)
    append(first, graph.source_of("new"))
    store = append(tmp_path / "old", sources.arrays(np.array([[0, 160, 3], [160, 1, 4]])))
    state = earlier_states(store)[0]
    assert state == State(first.fingerprint, 150, first.num_edges, True)
    before, after = lists_of(first), lists_of(store)
    expected = [node for node in range(150) if before[node] != after[node]]
    assert touched_since(store, state).tolist() == expected
    assert expected


def lists_of(store: GraphStore) -> list[Any]:
    """(those that a node leads to, those that lead to it) of every node."""
    sides = [np.split(indices, indptr[1:-1]) for indptr, indices in (store.csr("out"), store.csr("in"))]
    return [(out.tolist(), back.tolist()) for out, back in zip(*sides, strict=True)]


# labels and columns


def test_labels_are_by_the_stores_classes(tmp_path: Path) -> None:
    colors = np.array(["red", "green", None, "red"], dtype=object)
    ingest(sources.arrays(np.array([[0, 1], [1, 2]]), np.eye(4), colors), tmp_path / "g", threads=1)
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
    """Of new nodes and of known ones, whose empty cells change nothing."""
    names = ["y"] if task == "regression" else ["a", "b", "c"]
    values: Any = np.random.default_rng(0).normal(size=(8, 1)) if task == "regression" else np.eye(8)[:, :3]
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [1, 2, 3]]))

    def table(name: str, rows: Any, cells: Any) -> Path:
        labels = {name: pa.array([row[c] for row in cells], pa.float64()) for c, name in enumerate(names)}
        pq.write_table(pa.table({"id": rows, "x": np.asarray(rows) / 2, **labels}), tmp_path / name)
        return tmp_path / name

    def made(name: str, nodes: Path) -> GraphStore:
        return ingest(sources.files(tmp_path / "e.npy", nodes=nodes, label_column=names), tmp_path / name, threads=1)

    made("old", table("n.parquet", range(5), values[:5]))
    known = [[-1.0], [None]] if task == "regression" else [[None, 1, 0], [1, None, None]]
    new = table("u.parquet", [4, 5, 6, 2, 7], [known[0], values[5], values[6], known[1], values[7]])
    store = append(tmp_path / "old", new, update=True)
    for row, cells in zip((4, 2), known, strict=True):
        values[row] = [old if cell is None else cell for old, cell in zip(values[row], cells, strict=True)]
    full = made("all", table("a.parquet", range(8), values))
    assert arrays_of(store.path)["labels"] == arrays_of(full.path)["labels"]
    assert store.folder.meta["label_counts"] == full.folder.meta["label_counts"]


@pytest.mark.parametrize("apart", [False, True], ids=["in the table", "in a table apart"])
def test_features_that_are_called_like_labels_are_found_by_name(tmp_path: Path, apart: bool) -> None:
    rng, names = np.random.default_rng(0), ("age", "class", "fold")
    topic = np.where(np.arange(12) % 2, "a", "b")
    columns = {name: rng.random(12).astype(np.float32) for name in names}
    pq.write_table(pa.table({"id": np.arange(12), **columns, "topic": topic}), tmp_path / "n.parquet")
    ends = {"source": np.arange(12), "target": np.roll(np.arange(12), 1)}
    pq.write_table(pa.table(ends), tmp_path / "e.parquet")
    source = sources.files(
        tmp_path / "e.parquet", nodes=tmp_path / "n.parquet", label_column="topic", feature_columns=",".join(names)
    )
    store = ingest(source, tmp_path / "g")
    new = {name: np.arange(3, dtype=np.float32) + 10 * at for at, name in enumerate(names)}
    mixed = {name: new[name] for name in ("fold", "class", "age")}
    pq.write_table(pa.table({"id": np.arange(20, 23), **({} if apart else mixed)}), tmp_path / "more.parquet")
    pq.write_table(pa.table(mixed), tmp_path / "x.parquet")
    store = append(store, tmp_path / "more.parquet", features=tmp_path / "x.parquet" if apart else None)
    np.testing.assert_array_equal(store.features[12:], np.stack(list(new.values()), axis=1))
    assert (store.labels[12:] == -1).all()


# what is refused


@pytest.mark.parametrize(
    ("update", "change", "message"),
    [
        (False, lambda n, e: (n.set_column(0, "id", pa.array([*n["id"].to_pylist()[1:], OLD_ID])), e),
         r"already.*lg\.append\(\.\.\., update=True\)"),
        (False, lambda n, e: (pa.concat_tables([n, n]), e), "occurs twice"),
        (False, lambda n, e: (n, pa.table({"src": [OLD_ID], "dst": [999_999]})),
         "999999 is neither in .* nor among the 20"),
        (False, lambda n, e: (n.drop_columns(["f2"]), e), "has no column 'f2' for the features"),
        (False, lambda n, e: (n.set_column(1, "f0", pa.array([None] * 20, pa.float32())), e),
         "'f0' has no number in row 0"),
        (False, lambda n, e: (n.set_column(0, "id", pa.array([f"x{i}" for i in range(20)])), e),
         "is text, and the ids of"),
        (False, lambda n, e: (n.set_column(5, "label", pa.array([7] * 20)), e), "7 is no class of the store"),
        (True, lambda n, e: (pa.table({"id": [OLD_ID], "label": [7]}), e), "7 is no class of the store"),
        (True, lambda n, e: (pa.table({"id": [OLD_ID], "f0": [1.0], "label": [1]}), e),
         "has no column 'f1', 'f2', 'f3': features are updated from all"),
        (True, lambda n, e: (n.select(["id", "label"]), e),
         "has no features, and nodes of .* give the columns f0, f1, f2, f3"),
        (True, lambda n, e: (pa.table({"id": [OLD_ID, OLD_ID], "label": [1, 1]}), e), "occurs twice"),
    ],
    ids=["known id", "id twice", "unknown end", "no column", "no number", "text", "class", "update: class",
         "update: some features", "update: a new node without", "update: twice"],
)  # fmt: skip
def test_refusals_are_one_line_and_leave_the_store(tmp_path: Path, update: bool, change: Any, message: str) -> None:
    graph = grown("integer")
    before = graph.begin(tmp_path, missing_values="refuse").fingerprint
    nodes, edges = change(graph.nodes(150), graph.edges(graph.new_edges))
    pq.write_table(nodes, tmp_path / "n.parquet")
    pq.write_table(edges, tmp_path / "e.parquet")
    with pytest.raises(LargeGTError, match=message) as caught:
        append(tmp_path / "old", tmp_path / "n.parquet", tmp_path / "e.parquet", update=update)
    assert "\n" not in str(caught.value)
    assert GraphStore.open(tmp_path / "old").fingerprint == before
    assert not unfinished(tmp_path)


@pytest.mark.parametrize(
    ("given", "update", "message"),
    [
        ((lambda g: sources.arrays(g.new_edges, np.ones((20, 3)))), False, "has 3 features, and .* has 4"),
        ((lambda g: sources.arrays(g.new_edges, num_nodes=20)), False, "has no features, and nodes of"),
        ((lambda g: None), False, "nothing to add"),
        ((lambda g: None), True, "nothing to add"),
        ((lambda g: sources.arrays(np.zeros((2, 0), int), np.ones((20, 4)))), True, "rows without ids"),
    ],
)
def test_sources_that_are_refused(tmp_path: Path, given: Any, update: bool, message: str) -> None:
    graph = grown()
    graph.store(tmp_path)
    with pytest.raises(InputError, match=message):
        append(tmp_path / "old", given(graph), update=update)


def test_one_writer_at_a_time_and_no_url(tmp_path: Path) -> None:
    graph = grown()
    graph.store(tmp_path)
    with Lock(tmp_path / "old"), pytest.raises(InputError, match=r"another process .* is writing"):
        append(tmp_path / "old", graph.source_of("new"))
    with pytest.raises(LargeGTError, match="cannot lie at a URL"):
        append("s3://bucket/g", tmp_path / "n.parquet")


# kills


@DIRECTIONS
@pytest.mark.parametrize("update", [False, True], ids=["append", "update"])
def test_killed_anywhere_the_old_store_is_there_and_the_same_command_goes_on(
    tmp_path: Path, undirected: bool, update: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("append._WINDOW_EDGES", 60), ("append._CHUNK_ROWS", 60), ("parts._FEATURE_CHUNK_BYTES", 200)):
        monkeypatch.setattr(f"largegt.data.{name}", value)
    graph = grown("string", undirected)
    before = graph.begin(tmp_path).fingerprint
    arguments: Any = (tmp_path / "old", *new_files(tmp_path))
    if update:
        graph.change()
        graph.written(tmp_path / "nodes_new.parquet", np.concatenate([CHANGED, np.arange(150, 170)]))
    for method, call in (*(("commit", call) for call in (1, 4, 9, 14, 5, 2, 2)), ("finish", 1)):
        with stopped_at(ArrayWriter, method, call):  # each goes on from the one before
            append(*arguments, update=update, threads=1)
        assert GraphStore.open(tmp_path / "old").fingerprint == before
    assert_same(append(*arguments, update=update, threads=1), graph.now(tmp_path))


@pytest.mark.parametrize("ids", ["integer", "string"])
def test_killed_when_the_new_ids_were_written_they_come_once(tmp_path: Path, ids: str) -> None:
    """The last rows of an array count, and it is not yet closed."""
    graph = grown(ids)
    graph.begin(tmp_path)
    for call in (1, 2)[: 2 if ids == "string" else 1]:  # of the offsets; of those that were left, of the text
        with stopped_at(ArrayWriter, "close", call):
            append(tmp_path / "old", *new_files(tmp_path), threads=1)
    assert_same(append(tmp_path / "old", *new_files(tmp_path), threads=1), graph.ingested(tmp_path, "all"))


def test_killed_when_all_edges_were_dropped_they_count_once(tmp_path: Path) -> None:
    """Of an append, the store's way with unknown ids holds."""
    config = IngestConfig(undirected=True, unknown_ids="drop")
    ingest(grown().source_of("old"), tmp_path / "old", config, threads=1)
    np.save(tmp_path / "e.npy", np.array([[3, 4], [4000, 5000]]))
    with stopped_at(_Append, "_write_features", 1):
        append(tmp_path / "old", None, tmp_path / "e.npy", threads=1)
    store = append(tmp_path / "old", None, tmp_path / "e.npy", threads=1)
    assert store.folder.meta["unknown_edges_dropped"] == 2


# what stays


def test_what_others_put_into_the_folder_and_preparations_stay(tmp_path: Path) -> None:
    graph = grown(undirected=False)
    store = graph.store(tmp_path)
    prepared = prepare(store, PrepareConfig(local_nodes=LocalNodesConfig(k=4))).path.parent
    before = left_in(prepared)
    (store.path / "runs" / "a").mkdir(parents=True)
    (store.path / "runs" / "a" / "metrics.json").write_text("{}")
    (store.path / "notes.txt").write_text("mine")
    np.save(store.path / "mine.npy", np.arange(3))
    (store.path / "there").symlink_to("nowhere")
    names = ("runs", "runs/a/metrics.json", "notes.txt", "mine.npy", "there")
    others = {name: (store.path / name).lstat().st_ino for name in names}
    full = graph.store(tmp_path, "all")
    assert append(store, graph.source_of("new"), threads=1).fingerprint == full.fingerprint
    assert {name: (store.path / name).lstat().st_ino for name in names} == others
    assert left_in(prepared) == before
    newest = GraphStore.open(store.path).folder.manifest["arrays"]
    ours = {"manifest.json", *(entry["file"] for entry in newest.values())}
    store.folder.close()
    clean(store.path)
    assert set(os.listdir(store.path)) - {"prepared"} == ours | {"runs", "notes.txt", "mine.npy", "there"}
    assert not unfinished(tmp_path)


def test_elsewhere_leaves_the_old_store(tmp_path: Path) -> None:
    graph = grown()
    old = graph.store(tmp_path)
    before = {name: (tmp_path / "old" / name).read_bytes() for name in os.listdir(tmp_path / "old")}
    store = append(old, graph.source_of("new"), out=tmp_path / "new")
    assert store.num_nodes == 170
    ours = {"manifest.json", *(entry["file"] for entry in store.folder.manifest["arrays"].values())}
    assert set(os.listdir(store.path)) == ours
    assert before == {name: (tmp_path / "old" / name).read_bytes() for name in os.listdir(tmp_path / "old")}
    with pytest.raises(InputError, match="already exists"):
        append(old, graph.source_of("new"), out=tmp_path / "new")


@pytest.mark.parametrize("update", [False, True], ids=["append", "update"])
def test_the_same_files_again_change_nothing(tmp_path: Path, update: bool) -> None:
    graph = grown("string")
    graph.begin(tmp_path)
    files: Any = new_files(tmp_path)
    if update:
        graph.change()
        files = (graph.written(tmp_path / "n.parquet"),)
    for out in (None,) if update else (tmp_path / "g", None):  # elsewhere, then in place
        first = append(tmp_path / "old", *files, out=out, update=update)
        before = (first.path / "manifest.json").read_bytes()
        with logged("has these files already") as said:
            again = append(tmp_path / "old", *files, out=out, update=update)
        assert "\n" not in said[0]
        assert (again.path, again.fingerprint) == (first.path, first.fingerprint)
        assert (first.path / "manifest.json").read_bytes() == before
    assert not unfinished(tmp_path)


def test_the_same_nodes_in_other_files(tmp_path: Path) -> None:
    """They are there already, unless it is an update, which they do not change."""
    graph = grown("string")
    first = graph.begin(tmp_path)
    same = graph.written(tmp_path / "same.parquet")
    with pytest.raises(InputError, match="already"):
        append(tmp_path / "old", same)
    with logged("has all of this already: nothing changes"):
        store = append(tmp_path / "old", same, update=True)
    assert (store.fingerprint, earlier_states(store)) == (first.fingerprint, [])
    assert last_changes(store) == dict.fromkeys(last_changes(store), 0)


@pytest.mark.parametrize("update", [False, True], ids=["append", "update"])
def test_the_verb(tmp_path: Path, lg: Any, update: bool) -> None:  # noqa: F811
    graph = grown("string")
    old = graph.begin(tmp_path)
    rows = [*(CHANGED if update else []), *range(150, 170)]
    if update:
        graph.change(split=False)
    graph.written(tmp_path / "nodes_new.parquet", rows)
    full = graph.now(tmp_path)
    new = ("--nodes", tmp_path / "nodes_new.parquet", "--edges", tmp_path / "edges_new.parquet")
    flag = ["--update"] if update else []
    if update:
        code, _, err = lg("append", tmp_path / "old", *new)
        assert (code, err.count("\n")) == (2, 1)
        assert "--update" in err
    found = lg("append", tmp_path / "old", *flag, *new, "--out", tmp_path / "g", "--json").json
    counts = {"nodes": 170, "new_nodes": 20, "edges": full.num_edges, "new_edges": full.num_edges - old.num_edges}
    counts |= {"labels_changed": 5, "features_changed": 5} if update else {}
    assert {name: found[name] for name in counts} == counts
    assert_same(GraphStore.open(tmp_path / "g"), full)
    first = lg("append", tmp_path / "old", *flag, *new)
    assert first.code == 0
    assert ("features changed" if update else "170") in first.out
    code, out, err = lg("append", tmp_path / "old", *flag, *new)
    assert (code, err.count("\n")) == (0, 1)
    assert "has these files already" in err
    assert out != first.out, "nothing is new now"
    found = lg("append", tmp_path / "old", *flag, *new, "--json").json
    assert (found["nodes"], found["new_nodes"], found["new_edges"]) == (170, 0, 0)
    os.utime(tmp_path / "nodes_new.parquet", ns=(0, 0))  # another file, for all we know
    code, _, err = lg("append", tmp_path / "old", *new)
    assert (code, err.count("\n")) == (2, 1)
    assert "already" in err
