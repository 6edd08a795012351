"""Token rows [H, C⁰, C¹] against dense algebra."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.precision import decode
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.context import ContextFeatures, context_names
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.features import NodeFeatures, feature_scale
from oracles import context as oracle
from oracles.graphs import SIX_NODES

DIRECTIONS = ["out", "in", "both"]
WAYS = [*DIRECTIONS, "apart"]


def rows_of(
    store: Any, nodes: Any = None, direction: Any = "both", normalize: Any = "none", threads: int = 1,
    memory: int = 1 << 30, hops: int = 2, degrees: bool = False,
) -> Any:  # fmt: skip
    """`direction` apart: out and in."""
    nodes = np.arange(store.num_nodes) if nodes is None else np.asarray(nodes)
    features = NodeFeatures(store, degrees)
    shift, gain = feature_scale(features, normalize, Engine(memory, threads))
    directions = ("out", "in") if direction == "apart" else (direction,)
    with ArrayWriter(store.path / "rows", "test") as writer:
        ContextFeatures(features, nodes, shift, gain, directions, Engine(memory, threads)).write(
            writer, "float32", hops
        )
        left = [file.stem for file in writer.partial.glob("*.npy")]
        assert left == ["tokens"], "scratch that has served is gone"
        return np.array(writer.array("tokens"))


def test_hand_drawn_graph(make_store: Any) -> None:
    """3-2-1-0-4 and 5 alone, one feature: C⁰ of node 4 is H[4]/2 + H[0]/√6."""
    features = np.array([[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]], dtype=np.float32)
    rows = rows_of(make_store(SIX_NODES, 6, features))
    assert rows[:, 0, 0].tolist() == features[:, 0].tolist()
    assert rows[4, 1, 0] == pytest.approx(16 / 2 + 1 / 6**0.5)
    assert rows[0, 1, 0] == pytest.approx(1 / 3 + 2 / 3 + 16 / 6**0.5)
    assert rows[5].ravel().tolist() == [32.0, 32.0, 32.0]


@pytest.mark.parametrize("normalize", ["none", "per_feature"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("hops", [0, 1, 2, 3, 5])
def test_any_number_of_hops(
    make_store: Any, random_edges: Any, hops: int, direction: Any, normalize: Any
) -> None:  # fmt: skip
    """Row h of a node is its row of Ãʰ H, dense and in float64."""
    edges = random_edges(40, 120)
    features = np.random.default_rng(1).normal(3.0, 2.0, size=(40, 5)).astype(np.float32)
    store = make_store(edges, 40, features, undirected=False)
    a = oracle.normalized(oracle.adjacency(edges, 40, direction))
    power = oracle.token_rows(edges, features, direction, normalize == "per_feature")[:, 0]
    found = rows_of(store, None, direction, normalize, hops=hops)
    assert found.shape == (40, hops + 1, 5)
    for hop in range(hops + 1):
        np.testing.assert_allclose(found[:, hop], power, rtol=2e-5, atol=2e-5)
        power = a @ power


def test_directions_apart_on_a_hand_drawn_graph(make_store: Any) -> None:
    """0 → 1 → 2, one feature. Along the edges 0 sees 1 and then 2; against them it sees itself alone."""
    store = make_store([(0, 1), (1, 2)], 3, np.array([[1.0], [10.0], [100.0]], dtype=np.float32), undirected=False)
    h, out1, in1, out2, in2 = rows_of(store, direction="apart")[0, :, 0]
    # D of A + I: out 2, 2, 1; in 1, 2, 2
    assert h == 1
    assert out1 == pytest.approx(1 / 2**0.5 + 10 / 4**0.5)
    assert in1 == pytest.approx(1 / 2**0.5)
    assert out2 == pytest.approx(out1 / 2**0.5 + (10 / 4**0.5 + 100 / 4**0.5) / 4**0.5)
    assert in2 == pytest.approx(1 / 2)


@pytest.mark.parametrize("degrees", [False, True])
@pytest.mark.parametrize("normalize", ["none", "per_feature"])
@pytest.mark.parametrize("hops", [0, 1, 2, 4])
def test_directions_apart(
    make_store: Any, random_edges: Any, hops: int, normalize: Any, degrees: bool
) -> None:  # fmt: skip
    edges = random_edges(40, 120)
    features = np.random.default_rng(1).normal(3.0, 2.0, size=(40, 5)).astype(np.float32)
    store = make_store(edges, 40, features, undirected=False)
    entered = oracle.with_degrees(edges, features, directed=True) if degrees else features
    expected = oracle.token_rows(edges, entered, "apart", normalize == "per_feature", hops)
    found = rows_of(store, None, "apart", normalize, hops=hops, degrees=degrees)
    assert found.shape == expected.shape == (40, 1 + 2 * hops, 7 if degrees else 5)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    for side, direction in enumerate(("out", "in")):
        alone = rows_of(store, None, direction, normalize, hops=hops, degrees=degrees)
        assert found[:, 1 + side :: 2].tobytes() == alone[:, 1:].tobytes(), "to the bit as each by itself"


def test_names_of_contexts() -> None:
    assert context_names(("both",), 3) == ["C0", "C1", "C2"]
    assert context_names(("out", "in"), 2) == ["out 1 hop", "in 1 hop", "out 2 hops", "in 2 hops"]
    assert context_names(("in",), 0) == context_names(("out", "in"), 0) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalize", ["none", "per_feature"])
@pytest.mark.parametrize(("undirected", "direction"), [(True, "both"), *((False, way) for way in WAYS)])
def test_degrees_are_features_like_others(
    make_store: Any, random_edges: Any, undirected: bool, direction: Any, normalize: Any, dtype: str
) -> None:
    """Repeated edges and self loops count once and not at all; contexts of the degrees come with them."""
    edges = random_edges(40, 120)
    store = make_store(edges, 40, width=3, undirected=undirected, feature_dtype=dtype)
    entered = oracle.with_degrees(edges, decode(store.features, dtype), directed=not undirected)
    expected = oracle.token_rows(edges, entered, direction, normalize == "per_feature")
    found = rows_of(store, None, direction, normalize, degrees=True)
    assert found.shape[2] == (4 if undirected else 5)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_degrees_by_hand(make_store: Any) -> None:
    """As in the file: log 1 + what leads away, then log 1 + what leads here."""
    store = make_store([(0, 1), (0, 2), (0, 2), (2, 2), (1, 2)], 4, undirected=False)
    found = rows_of(store, degrees=True)[:, 0, 4:]
    np.testing.assert_allclose(found, np.log([[3, 1], [2, 2], [1, 3], [1, 1]]), rtol=1e-6)
    around = rows_of(make_store(SIX_NODES, 6), degrees=True)[:, 0, 4:]
    np.testing.assert_allclose(around[:, 0], np.log([3, 3, 3, 2, 2, 1]), rtol=1e-6)


def test_whole_features_are_divided_by_one_number(make_store: Any, random_edges: Any) -> None:
    """Zeros stay zeros, the mean square is one, and degrees are brought to mean 0 and variance 1 as ever."""
    edges = random_edges(40, 120)
    store = make_store(edges, 40, width=3)
    own = decode(store.features, store.feature_dtype).astype(np.float64)
    found = rows_of(store, None, "both", "global", degrees=True)[:, 0]
    np.testing.assert_allclose(found[:, :3], own / np.sqrt((own**2).mean()), rtol=1e-5)
    np.testing.assert_array_equal(found[:, 3:], rows_of(store, None, "both", True, degrees=True)[:, 0, 3:])
    np.testing.assert_array_equal(rows_of(store, None, "both", "global")[:, 0], found[:, :3])
    empty = np.zeros((2, 3), dtype=np.float32)
    empty_store = make_store([(0, 1)], 2, features=empty)
    np.testing.assert_array_equal(rows_of(empty_store, None, "both", "global")[:, 0], empty)


def _words(rng: Any, nodes: int = 40, width: int = 30) -> Any:
    return (rng.random((nodes, width)) < 0.15).astype(np.float32)


def _counts(rng: Any) -> Any:
    return _words(rng) * rng.integers(1, 10, size=(40, 30)).astype(np.float32)


def _words_of_some(rng: Any) -> Any:
    return np.concatenate([_words(rng, 10), np.zeros((30, 30), dtype=np.float32)])


def _numbers_of_some(rng: Any) -> Any:
    """Most values are zero, but only since most nodes have no features."""
    return np.concatenate([rng.normal(size=(6, 30)), np.zeros((34, 30))]).astype(np.float32)


def _words_and_a_salary(rng: Any) -> Any:
    return np.concatenate([_words(rng), 30_000 + 5_000 * rng.normal(size=(40, 1))], axis=1).astype(np.float32)


@pytest.mark.parametrize("chunk", [7, 1 << 14])
@pytest.mark.parametrize(
    ("make", "comes_to"),
    [
        (_words, "global"), (_counts, "global"), (_words_of_some, "global"),
        (_numbers_of_some, True), (_words_and_a_salary, True),
        (lambda rng: rng.normal(size=(40, 5)), True), (lambda rng: np.zeros((40, 5)), True),
        (lambda rng: (rng.random((40, 5)) < 0.4) * 1.0, True),
    ],
)  # fmt: skip
def test_auto_is_whole_for_words(
    make_store: Any, random_edges: Any, monkeypatch: pytest.MonkeyPatch, make: Any, comes_to: Any, chunk: int
) -> None:
    monkeypatch.setattr(sys.modules[feature_scale.__module__], "_CHUNK_ROWS", chunk)
    features = make(np.random.default_rng(0)).astype(np.float32)
    store = make_store(random_edges(40, 120), 40, features=features)
    found, expected = (rows_of(store, None, "both", how, degrees=True, threads=2) for how in ("auto", comes_to))
    np.testing.assert_array_equal(found, expected)


def test_degrees_that_are_all_the_same_are_zero_when_standardized(make_store: Any) -> None:
    ring = [(i, (i + 1) % 7) for i in range(7)]
    for undirected in (False, True):
        found = rows_of(make_store(ring, 7, undirected=undirected), normalize="per_feature", degrees=True)
        assert np.abs(found[:, :, 4:]).max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("hops", [0, 1, 3, 4])
@pytest.mark.parametrize("memory", [1 << 30, 300])
@pytest.mark.parametrize("nodes", [[7], [0, 3, 39], list(range(0, 40, 2))])
def test_some_nodes_have_the_same_hops_as_among_all(
    make_store: Any, random_edges: Any, hops: int, memory: int, nodes: Any
) -> None:
    store = make_store(random_edges(40, 30), 40, undirected=False)
    every = rows_of(store, None, "out", hops=4)
    found = rows_of(store, nodes, "out", memory=memory, hops=hops)
    np.testing.assert_array_equal(found, every[nodes][:, : hops + 1])
    every = rows_of(store, None, "apart", hops=4, degrees=True)
    found = rows_of(store, nodes, "apart", memory=memory, hops=hops, degrees=True)
    np.testing.assert_array_equal(found, every[nodes][:, : 2 * hops + 1])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_undirected_graph_is_the_same_in_every_direction(make_store: Any, random_edges: Any, direction: Any) -> None:
    edges = random_edges(40, 60)
    store = make_store(edges, 40)
    expected = oracle.token_rows(edges, np.asarray(store.features), "both", False)
    np.testing.assert_allclose(rows_of(store, None, direction), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("direction", WAYS)
@pytest.mark.parametrize("nodes", [[7], [0, 3, 39], [38, 39], list(range(0, 40, 2))])
def test_some_nodes_get_the_rows_they_have_among_all(
    make_store: Any, random_edges: Any, direction: Any, nodes: Any
) -> None:
    store = make_store(random_edges(40, 50), 40, undirected=False)
    np.testing.assert_array_equal(rows_of(store, nodes, direction), rows_of(store, None, direction)[nodes])


@pytest.mark.parametrize(("way", "degrees"), [("both", False), ("apart", True)])
def test_threads_give_the_same_bytes(make_store: Any, random_edges: Any, way: Any, degrees: bool) -> None:
    store = make_store(random_edges(20_000, 60_000), 20_000, width=3, undirected=False)

    def rows(nodes: Any = None, threads: int = 1) -> Any:
        return rows_of(store, nodes, way, True, threads, degrees=degrees)

    one = rows()
    some = np.arange(0, 20_000, 3)
    for threads in (2, 5):
        assert rows(None, threads).tobytes() == one.tobytes()
        assert rows(some, threads).tobytes() == one[some].tobytes()


def test_standardizing_gives_mean_zero_and_variance_one(make_store: Any) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 4)) * [1.0, 1e-3, 5.0, 0.0] + [0.0, 0.5, 2000.0, 7.0]
    store = make_store([(0, 1)], 500, features.astype(np.float32))
    shift, gain = feature_scale(NodeFeatures(store), "per_feature", Engine(1 << 26))
    scaled = (np.asarray(store.features, dtype=np.float64) - shift) * gain
    np.testing.assert_allclose(scaled[:, :3].mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(scaled[:, :3].std(axis=0), 1, atol=1e-3)
    assert np.abs(scaled[:, 3]).max() == 0, "a constant feature becomes 0, not noise"


def test_standardizing_a_small_scale_feature(make_store: Any) -> None:
    """Features of order 1e-9 vary as much as any others."""
    features = (np.random.default_rng(0).normal(size=(50, 1)) * 1e-9).astype(np.float32)
    shift, gain = feature_scale(NodeFeatures(make_store([(0, 1)], 50, features)), "per_feature", Engine(1 << 26))
    assert ((features - shift) * gain).std() == pytest.approx(1.0, rel=1e-3)


def test_without_standardizing_features_are_as_given(make_store: Any) -> None:
    store = make_store([(0, 1)], 5)
    shift, gain = feature_scale(NodeFeatures(store), "none", Engine(1 << 26))
    assert not shift.any()
    assert (gain == 1).all()
    assert np.array_equal(rows_of(store)[:, 0], store.features)


@pytest.mark.slow
def test_features_of_a_category_or_text_column_share_a_gain(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"n{i},{rng.normal() * 1e6:.1f},{'x' if i else 'rare'},some words {rng.integers(9)} here" for i in range(200)
    ]
    (tmp_path / "n.csv").write_text("id,amount,city,note\n" + "\n".join(rows))
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 1) % 200}\n" for i in range(200)))
    given = sources.files(tmp_path / "e.csv", nodes=tmp_path / "n.csv")
    store = ingest(given, tmp_path / "g", IngestConfig(column_kinds=("note=text",)))
    shift, gain = feature_scale(NodeFeatures(store, False), "per_feature", Engine(1 << 30, 1))
    scaled = (np.asarray(store.features, dtype=np.float64) - shift) * gain
    assert store.columns is not None
    for column, span in store.columns.spans:
        assert np.unique(gain[span]).size == 1, column.name
        np.testing.assert_allclose(scaled[:, span].var(axis=0).sum(), 1.0, rtol=1e-4)
        np.testing.assert_allclose(scaled[:, span].mean(axis=0), 0.0, atol=1e-4)
