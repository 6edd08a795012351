"""ingest against sets and SciPy, and every bad input as one line that leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from graph_helpers import SIX_EDGES, edge_sets, left_behind, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.config.schema import IngestConfig
from largegt.data import csr, pair_runs, sources
from largegt.data.ingest import ingest
from largegt.data.precision import from_bfloat16_bits, to_bfloat16_bits
from largegt.errors import ConfigError, DiskError, InputError
from run_helpers import all_bytes


def test_six_node_graph(tmp_path: Path, six: Any) -> None:
    store = ingest(sources.arrays(six, num_nodes=6), tmp_path / "g")
    assert rows(store, "out") == {0: [1], 1: [2], 2: [0, 3], 3: [2], 4: [3], 5: []}
    assert rows(store, "in") == {0: [2], 1: [0], 2: [1, 3], 3: [2, 4], 4: [], 5: []}
    assert rows(store, "both") == {0: [1, 2], 1: [0, 2], 2: [0, 1, 3], 3: [2, 4], 4: [3], 5: []}
    assert store.directed
    assert (store.num_nodes, store.num_edges, store.id_kind) == (6, 6, "row")
    assert store.folder.meta["self_loops_dropped"] == 1
    assert store.folder.meta["duplicates_merged"] == 1
    assert store.indptr.dtype == np.int64
    assert store.indices.dtype == np.int32
    assert store.name == "g"
    assert left_behind(tmp_path, "g") == []
    assert not [file for file in os.listdir(tmp_path / "g") if file.startswith("scratch")]
    store.folder.verify()


def test_features_from_degree_when_there_are_none(tmp_path: Path, six: Any) -> None:
    store = ingest(sources.arrays(six, num_nodes=6), tmp_path / "g")
    out, back = [1, 1, 2, 1, 1, 0], [1, 1, 2, 2, 0, 0]
    np.testing.assert_allclose(store.features, np.log1p(np.array([out, back]).T), rtol=1e-6)
    assert store.folder.meta["features_from"] == "degree"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, max_size=60),
        )
    ),
    st.booleans(),
)
def test_random_graphs_equal_sets(threads: int, graph: tuple[int, list[tuple[int, int]]], undirected: bool) -> None:
    num_nodes, pairs = graph
    edges = np.array(pairs).T
    if (edges[0] == edges[1]).all():
        return
    with tempfile.TemporaryDirectory() as folder:
        config = IngestConfig(undirected=undirected)
        store = ingest(sources.arrays(edges, num_nodes=num_nodes), f"{folder}/g", config, threads=threads)
        wanted = edge_sets(np.hstack([edges, edges[::-1]]) if undirected else edges, num_nodes)
        assert store.directed == (wanted["out"] != wanted["in"])
        for direction in ("out", "in", "both"):
            assert rows(store, direction) == wanted[direction]
        assert store.num_edges == sum(map(len, wanted["out"].values()))


@pytest.mark.slow
def test_larger_graph_equals_scipy_and_hubs_may_be_pieces_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    num_nodes = 3000
    edges = (rng.random((2, 60_000)) ** 3 * num_nodes).astype(np.int64)  # hubs, so that rows of every size occur
    source = sources.arrays(edges, num_nodes=num_nodes)
    one = ingest(source, tmp_path / "one" / "g", threads=1)
    monkeypatch.setattr(pair_runs, "_BUCKET_PAIRS", 1000)
    for name, value in (("_LEAST_RUN", 5000), ("_MOST_RUN", 5000), ("_WINDOW_EDGES", 1000), ("_LEAST_PIECE", 200)):
        monkeypatch.setattr(csr, name, value)
    monkeypatch.setattr("largegt.data.ingest.memory_budget", lambda _: 1000)
    ingest(source, tmp_path / "pieces" / "g", threads=2)
    assert all_bytes(tmp_path / "one" / "g") == all_bytes(tmp_path / "pieces" / "g")
    kept = edges[:, edges[0] != edges[1]]
    matrix = scipy.sparse.csr_matrix((np.ones(kept.shape[1]), (kept[0], kept[1])), (num_nodes, num_nodes))
    for direction, expected in (
        ("out", matrix),
        ("in", matrix.T.tocsr()),
        ("both", (matrix + matrix.T).tocsr()),
    ):
        expected.sum_duplicates()
        expected.sort_indices()
        indptr, indices = one.csr(direction)  # type: ignore[arg-type]
        np.testing.assert_array_equal(indptr, expected.indptr)
        np.testing.assert_array_equal(indices, expected.indices)


@pytest.mark.slow
def test_int64_indices_give_the_same_graph(tmp_path: Path, six: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (csr, pair_runs):
        monkeypatch.setattr(module, "index_dtype", lambda num_nodes: "int64")
    store = ingest(sources.arrays(six, num_nodes=6), tmp_path / "g")
    assert store.indices.dtype == np.int64
    assert rows(store, "both") == edge_sets(six, 6)["both"]


def test_symmetric_edges_are_stored_once(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    symmetric = ingest(sources.arrays(edges), tmp_path / "a")
    assert not symmetric.directed
    assert "in_indices" not in symmetric.folder
    assert "both_indices" not in symmetric.folder
    made = ingest(sources.arrays(edges[:, ::2]), tmp_path / "b", IngestConfig(undirected=True))
    assert rows(made, "in") == rows(symmetric, "out") == {0: [1], 1: [0, 2], 2: [1]}
    cycle = ingest(sources.arrays([[0, 1, 2], [1, 2, 0]]), tmp_path / "c")
    assert cycle.directed  # every node has in-degree = out-degree, and yet no edge has its inverse


def test_progress_and_overwrite(tmp_path: Path, six: Any) -> None:
    seen: list[tuple[str, int, int | None]] = []
    ingest(sources.arrays(six, num_nodes=6), tmp_path / "g", progress=lambda *step: seen.append(step))
    assert ("read edges", 8, 8) in seen
    with pytest.raises(InputError, match="already exists"):
        ingest(sources.arrays(six, num_nodes=6), tmp_path / "g")
    again = ingest(sources.arrays(six, num_nodes=9), tmp_path / "g", overwrite=True)
    assert again.num_nodes == 9
    assert left_behind(tmp_path, "g") == []


# labels


def test_string_labels_with_missing_ones(tmp_path: Path, six: Any) -> None:
    labels = np.array(["pear", "apple", "", None, "fig", "apple"], dtype=object)
    store = ingest(sources.arrays(six, labels=labels), tmp_path / "g")
    assert store.classes == ["apple", "fig", "pear"]
    assert store.labels.tolist() == [2, 0, -1, -1, 1, 0]
    assert store.folder.meta["label_counts"] == [2, 1, 1]
    assert (store.split[2:4] == 0).all()
    assert store.task == "multiclass"
    assert store.num_outputs == 3


@pytest.mark.parametrize(
    ("labels", "task", "classes", "stored"),
    [
        ([5, 7, -1, 5, 9, 7], "multiclass", [5, 7, 9], [0, 1, -1, 0, 2, 1]),
        ([1.0, 2.0, np.nan, 3.0, 1.0, 1.0], "multiclass", [1, 2, 3], [0, 1, -1, 2, 0, 0]),
        ([True, False, True, True, False, False], "binary", [False, True], [1, 0, 1, 1, 0, 0]),
        ([3, 3, 3, -1, 8, 8], "binary", [3, 8], [0, 0, 0, -1, 1, 1]),
    ],
)
def test_labels_as_they_look(
    tmp_path: Path, six: Any, labels: list[Any], task: str, classes: list[Any], stored: list[int]
) -> None:
    store = ingest(sources.arrays(six, labels=np.array(labels)), tmp_path / "g")
    assert (store.task, store.classes, store.labels.tolist()) == (task, classes, stored)
    assert store.num_outputs == (1 if task == "binary" else len(classes))


def test_regression_and_multilabel(tmp_path: Path, six: Any) -> None:
    fractions = ingest(sources.arrays(six, labels=np.array([0.5, np.nan, 2, 3, -1, 1])), tmp_path / "a")
    assert fractions.task == "regression"
    assert fractions.labelled.tolist() == [
        True,
        False,
        True,
        True,
        True,
        True,
    ]  # here -1 is a value like any other
    whole = ingest(sources.arrays(six, labels=np.arange(6)), tmp_path / "b", IngestConfig(task="regression"))
    assert whole.labels.dtype == np.float32
    assert whole.labels.tolist() == [0, 1, 2, 3, 4, 5]
    several = np.array([[1, 0, 1], [0, 0, 0], [-1, -1, -1], [1, 1, -1], [0, 1, 0], [1, 0, 0]])
    multi = ingest(sources.arrays(six, labels=several), tmp_path / "c")
    assert (multi.task, multi.num_outputs, multi.classes) == ("multilabel", 3, [0, 1, 2])
    assert multi.labelled.tolist() == [True, True, False, True, True, True]
    assert np.isnan(multi.labels[3, 2])
    assert multi.folder.meta["label_counts"] == [3, 2, 1]


def test_without_labels_nothing_is_split(tmp_path: Path, six: Any) -> None:
    store = ingest(sources.arrays(six), tmp_path / "g")
    assert (store.task, store.classes) == ("multiclass", [])
    assert not store.labelled.any()
    assert not store.split.any()


# precision


def test_bfloat16_rounds_like_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = np.concatenate([
        rng.standard_normal(10_000).astype(np.float32) * 10.0 ** rng.integers(-30, 30, 10_000),
        [0.0, -0.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3.4e38],
    ]).astype(np.float32)  # fmt: skip
    theirs = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16_bits(to_bfloat16_bits(values)), theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stored_precision(tmp_path: Path, six: Any, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    store = ingest(sources.arrays(six, x), tmp_path / "g", IngestConfig(feature_dtype=dtype))
    assert store.feature_dtype == dtype
    if dtype == "bfloat16":
        assert store.features.dtype == np.uint16
        np.testing.assert_allclose(from_bfloat16_bits(store.features), x, rtol=2**-8)
    else:
        np.testing.assert_array_equal(store.features, x.astype(dtype))


# bad input: one line, nothing left

X = np.ones((6, 2), dtype=np.float32)


def _with(value: float) -> Any:
    x = X.copy()
    x[4, 1] = value
    return x


@pytest.mark.parametrize(
    ("make", "config", "message"),
    [
        (
            lambda: sources.arrays([[0, 9], [1, 2]], X),
            {},
            r"node id 9 is out of range: features gives 6 nodes",
        ),
        (lambda: sources.arrays([[0, -1], [1, 2]], X), {}, r"node id -1 is out of range"),
        (
            lambda: sources.arrays(SIX_EDGES, _with(np.nan)),
            {},
            r"column 1 of node 4 is missing or NaN.*_values=mean",
        ),
        (lambda: sources.arrays(SIX_EDGES, _with(np.inf)), {}, r"column 1 of node 4 is infinite"),
        (lambda: sources.arrays(SIX_EDGES, _with(-np.inf)), {}, r"column 1 of node 4 is infinite"),
        (lambda: sources.arrays(SIX_EDGES, X, [0.5, 1, 2, np.inf, 3, 4]), {}, r"row 3 is not a finite number"),
        (
            lambda: sources.arrays(SIX_EDGES, _with(1e6)),
            {"feature_dtype": "float16"},
            r"node 4 is 1e\+06, too large for float16; use feature_dtype=float32",
        ),
        (lambda: sources.arrays(SIX_EDGES, X, np.full(6, -1)), {}, r"every label is missing"),
        (lambda: sources.arrays(SIX_EDGES, X, [None] * 6), {}, r"every label is missing"),
        (lambda: sources.arrays(SIX_EDGES, X, np.full((6, 2), -1)), {}, r"every label is missing"),
        (lambda: sources.arrays(SIX_EDGES, X, np.full((6, 2), 3)), {}, r"must each be 0, 1 or missing"),
        (lambda: sources.arrays(SIX_EDGES, X, np.arange(5)), {}, r"features has 6 nodes, but labels has 5"),
        (lambda: sources.arrays(SIX_EDGES, X, num_nodes=7), {}, r"features has 6 nodes, but num_nodes has 7"),
        (lambda: sources.arrays(np.zeros((2, 0), int), X), {}, r"no edges at all"),
        (lambda: sources.arrays(np.zeros((2, 0), int)), {}, r"no edges at all"),
        (lambda: sources.arrays([[1, 2], [1, 2]], X), {}, r"no usable edges: of 2, 2 are self loops"),
        (lambda: sources.arrays(SIX_EDGES, X[:0]), {}, r"no nodes"),
        (lambda: sources.arrays(SIX_EDGES, X, node_ids=[1, 2, 3, 4, 5, 2]), {}, r"id 2 occurs twice"),
        (lambda: sources.arrays([["a"], ["b"]], node_ids=["a", "b", "b"]), {}, r"id 'b' occurs twice"),
        (lambda: sources.arrays([["a"], ["q"]], node_ids=["a", "b"]), {}, r"'q' is not among the 2 ids"),
        (lambda: sources.arrays(SIX_EDGES, X, ["a"] * 6), {"task": "regression"}, r"numbers are wanted"),
        (
            lambda: sources.arrays(SIX_EDGES, X, np.arange(6), {"train": [0], "test": [0]}),
            {},
            r"node 0 is in two splits",
        ),
        (lambda: sources.arrays(SIX_EDGES, X, np.arange(6), {"train": [77]}), {}, r"names node 77"),
        (lambda: sources.arrays(SIX_EDGES, X, np.arange(6), {"trian": [1]}), {}, r"'trian' is not one of"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, make: Any, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        ingest(make(), tmp_path / "g", IngestConfig(**config))
    assert "\n" not in str(error.value)
    assert left_behind(tmp_path) == []


def test_config_that_does_not_fit_the_labels(tmp_path: Path, six: Any) -> None:
    with pytest.raises(ConfigError, match="3 different labels, task 'binary' takes two"):
        ingest(sources.arrays(six, labels=[0, 1, 2, 0, 1, 2]), tmp_path / "g", IngestConfig(task="binary"))
    with pytest.raises(ConfigError, match="2 label columns"):
        ingest(sources.arrays(six, labels=np.eye(6)[:, :2]), tmp_path / "g", IngestConfig(task="multiclass"))
    assert left_behind(tmp_path) == []


def test_missing_values_filled_and_unknown_edges_dropped(tmp_path: Path) -> None:
    config = IngestConfig(missing_values="mean", unknown_ids="drop")
    edges = np.array([[0, 9, 1], [1, 2, -5]])
    store = ingest(sources.arrays(edges, _with(np.nan)), tmp_path / "g", config)
    others = np.delete(_with(np.nan)[:, 1], 4)
    assert store.features[4].tolist() == [1, np.float32(others.mean())]
    assert store.num_edges == 1
    assert store.folder.meta["unknown_edges_dropped"] == 2


def test_interrupt_leaves_nothing(tmp_path: Path, six: Any) -> None:
    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "write features":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(sources.arrays(six, X), tmp_path / "g", progress=stop)
    assert left_behind(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs, which this machine does not give")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a traceback may hold mapped files of it


FULL = {
    "features": (20_000, "writing the features needs 7.6 MiB on the disk"),
    "pairs": (400_000, "no space left on the disk"),
    "ids": (50_000, "no space left on the disk"),
}


def _words(edges: Any) -> Any:
    return (edges * 1_000_003 + np.arange(edges.shape[1])).astype(str)


@pytest.mark.slow
@pytest.mark.parametrize("what", FULL)
def test_full_disk(tmp_path: Path, small_disk: Path, what: str) -> None:
    """Nothing stays of arrays, which have no identity; an ingest of files goes on once there is room."""
    num_edges, message = FULL[what]
    edges: Any = np.random.default_rng(0).integers(0, 5000, (2, num_edges))
    features = {} if what == "ids" else {"features": np.ones((5000, 400), np.float32)}
    if what == "ids":
        edges = (edges * 1_000_003 + np.arange(num_edges)).astype(str)
        (small_disk / "other").write_bytes(bytes(3 << 19))
    with pytest.raises(DiskError, match=message):
        ingest(sources.arrays(edges, **features), small_disk / "g")
    assert left_behind(small_disk, "other") == []
    np.save(tmp_path / "e.npy", edges)
    for name, array in features.items():
        np.save(tmp_path / "x.npy", array)
        features = {name: tmp_path / "x.npy"}
    with pytest.raises(DiskError, match=message):
        ingest(sources.files(tmp_path / "e.npy", **features), small_disk / "g")
    assert left_behind(small_disk, "other") == [".g.partial"]
    assert (small_disk / ".g.partial" / "progress.json").exists() == (what != "ids")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    stages: list[str] = []
    source = sources.files(tmp_path / "e.npy", **features)
    ingest(source, small_disk / "g", progress=lambda stage, *_: stages.append(stage))
    assert what != "features" or "read edges" not in stages
    assert left_behind(small_disk, "other") == ["g"]
    ingest(sources.files(tmp_path / "e.npy", **features), tmp_path / "elsewhere" / "g")
    assert all_bytes(small_disk / "g") == all_bytes(tmp_path / "elsewhere" / "g")
