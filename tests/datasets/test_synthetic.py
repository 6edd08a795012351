"""Synthetic graphs: the same values however they are read, the dataset's counts and character, little memory."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.datasets.registry import dataset
from largegt.datasets.synthetic import SyntheticEdges, SyntheticFeatures, SyntheticGraph, ingest_config, synthetic
from largegt.errors import ConfigError
from run_helpers import Cli

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from synthetic_files import FILES, write_files

SMALL = {"ogbn-products": 0.01, "snap-patents": 0.02, "ogbn-papers100M": 0.0005}
NAMES = sorted(SMALL)


def all_edges(graph: SyntheticGraph, rows: int = 1 << 20, skip: int = 0) -> np.ndarray:
    chunks = list(SyntheticEdges(graph, rows).chunks(skip))
    return np.concatenate([np.stack([chunk.sources, chunk.targets]) for chunk in chunks], axis=1)


def all_rows(graph: SyntheticGraph, rows: int | None = None, skip: int = 0) -> np.ndarray:
    return np.concatenate(list(SyntheticFeatures(graph, rows).chunks(skip)))


# every value is a function of (seed, its number) alone


@pytest.mark.slow
@pytest.mark.parametrize("like", NAMES)
def test_the_same_seed_gives_the_same_graph_and_another_seed_another(like: str) -> None:
    scale = SMALL[like] / 10
    one, again, other = (SyntheticGraph(like, scale, seed) for seed in (3, 3, 4))
    assert np.array_equal(all_edges(one), all_edges(again))
    assert np.array_equal(all_rows(one), all_rows(again))
    for left, right in zip(one.labels_and_splits(), again.labels_and_splits(), strict=True):
        assert np.array_equal(left, right)
    assert (all_edges(one) == all_edges(other)).mean() < 0.1
    assert (all_rows(one) == all_rows(other)).mean() < 0.01
    assert one.identity == again.identity != other.identity


def test_chunks_and_skips_do_not_change_a_value() -> None:
    graph = SyntheticGraph("ogbn-products", 0.002)
    edges, rows = all_edges(graph), all_rows(graph)
    assert edges.shape == (2, graph.num_edges)
    assert rows.shape == (graph.num_nodes, 100)
    assert np.array_equal(all_edges(graph, rows=997), edges)
    assert np.array_equal(all_rows(graph, rows=113), rows)
    for skip in (1, 5000, graph.num_edges - 1):
        assert np.array_equal(all_edges(graph, rows=1000, skip=skip), edges[:, skip:])
    for skip in (1, 777, graph.num_nodes - 1):
        assert np.array_equal(all_rows(graph, rows=100, skip=skip), rows[skip:])
    assert list(SyntheticEdges(graph).chunks(graph.num_edges)) == []
    assert list(SyntheticFeatures(graph).chunks(graph.num_nodes)) == []


def test_the_streams_say_what_ingest_asks() -> None:
    source = synthetic("snap-patents", 0.0005, seed=2)
    assert source.features is not None
    assert source.edges.total == round(13_975_788 * 0.0005)
    assert (source.features.width, source.features.num_rows) == (269, source.num_nodes)
    assert source.identity == source.edges.identity == source.features.identity
    assert all(word in source.identity for word in ("snap-patents", "0.0005", "seed 2"))
    assert next(source.edges.chunks()).sources.dtype == np.int64


@pytest.mark.parametrize("scale", [0.00002, 0.0001, 0.003])
def test_node_numbers_are_a_permutation_of_the_ranks(scale: float) -> None:
    graph = SyntheticGraph("ogbn-products", scale)
    layout, ranks = graph.layout, np.arange(graph.num_nodes)
    nodes = ranks * layout.step % layout.size
    assert np.array_equal(np.sort(nodes), ranks)
    assert np.array_equal(nodes * layout.back % layout.size, ranks)


def test_a_class_is_its_communitys_but_for_strays() -> None:
    graph = SyntheticGraph("ogbn-products", 0.005)
    layout = graph.layout
    ranks = np.arange(graph.num_nodes) * layout.back % layout.size
    community = np.searchsorted(layout.community_start, ranks, side="right") - 1
    strays = graph.classes() != layout.community_class[community]
    assert 0.5 * graph.character.strays < strays.mean() < graph.character.strays
    assert np.array_equal(
        layout.community_class[community], np.searchsorted(layout.class_start, ranks, side="right") - 1
    )


# the dataset's counts


@pytest.mark.parametrize("like", NAMES)
@pytest.mark.parametrize("scale", [1e-7, 0.0001, 0.003])
def test_counts_follow_the_scale_and_splits_are_exact(like: str, scale: float) -> None:
    shape, source = dataset(like), synthetic(like, scale)
    assert source.num_nodes is not None
    assert source.labels is not None
    assert source.splits is not None
    labels, codes = source.labels.values.to_numpy(), source.splits.codes
    assert codes is not None
    assert (labels.dtype.itemsize, codes.dtype) == (2 if like == "ogbn-papers100M" else 1, np.uint8)
    assert len(labels) == len(codes) == source.num_nodes
    assert source.edges.total == max(1, round(shape.num_edges * scale))
    sizes = np.bincount(codes, minlength=4)
    assert (sizes[1:] >= 1).all()
    if scale > 1e-4:
        assert source.num_nodes == round(shape.num_nodes * scale)
        assert sizes[1:3].tolist() == [round(size * scale) for size in shape.split_sizes[:2]]
        assert abs(sizes[3] - shape.split_sizes[2] * scale) < 2  # the rest, where every node has a label
    assert np.array_equal(labels >= 0, codes > 0)
    assert labels.max() < shape.num_classes
    assert (sizes[0] == 0) == (like != "ogbn-papers100M")


def test_full_size_is_the_dataset() -> None:
    graph = SyntheticGraph("ogbn-products")
    assert (graph.num_nodes, graph.num_edges) == (2_449_029, 61_859_140)
    assert graph.split_sizes == (196_615, 39_323, 2_213_091)
    sizes = np.diff(graph.layout.community_start)
    assert 500 < np.median(sizes) < 8192
    assert len(sizes) > 300
    assert len(np.unique(graph.layout.community_class)) == 47


def test_classes_are_uneven_but_for_the_patents() -> None:
    products, patents = (SyntheticGraph(like, 0.01).classes() for like in ("ogbn-products", "snap-patents"))
    assert np.bincount(products).max() > 10 * np.bincount(products).min() > 0
    assert np.bincount(patents).max() < 1.05 * np.bincount(patents).min()


# the dataset's character


@pytest.mark.parametrize("like", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_homophily_is_the_datasets(like: str, seed: int) -> None:
    graph = SyntheticGraph(like, SMALL[like], seed)
    sources_, targets = all_edges(graph)
    classes = graph.classes()
    assert (classes[sources_] == classes[targets]).mean() == pytest.approx(graph.character.homophily, abs=0.03)
    assert not (sources_ == targets).any()


def test_patents_cite_the_class_before_theirs() -> None:
    graph = SyntheticGraph("snap-patents", 0.01)
    classes = graph.classes().astype(int)
    sources_, targets = all_edges(graph)
    step = (classes[targets] - classes[sources_])[classes[sources_] > 0]
    assert (step == -1).mean() > 2 * (step == 0).mean()


@pytest.mark.parametrize("like", NAMES)
def test_degrees_have_a_tail(like: str) -> None:
    graph = SyntheticGraph(like, SMALL[like])
    sources_, targets = all_edges(graph)
    into = np.bincount(targets, minlength=graph.num_nodes)
    degree = into + np.bincount(sources_, minlength=graph.num_nodes)
    assert into.max() > 15 * into.mean()
    assert np.quantile(degree, 0.99) > 2 * degree.mean()
    assert np.median(degree) < degree.mean()
    assert (degree == 0).mean() < 0.05
    # a node's number does not tell its degree
    assert abs(np.corrcoef(np.arange(graph.num_nodes), degree)[0, 1]) < 0.05


def test_neighbours_are_far_apart_in_number() -> None:
    graph = SyntheticGraph("ogbn-products", 0.005)
    sources_, targets = all_edges(graph)
    assert np.abs(sources_ - targets).mean() == pytest.approx(graph.num_nodes / 3, rel=0.1)


@pytest.mark.parametrize(("like", "scale"), [("ogbn-products", 0.01), ("snap-patents", 0.01)])
def test_features_tell_some_of_the_class_and_neighbours_more(like: str, scale: float) -> None:
    graph = SyntheticGraph(like, scale)
    features, classes = all_rows(graph), graph.classes()
    pairs = all_edges(graph)
    square = (graph.num_nodes, graph.num_nodes)
    adjacency = scipy.sparse.csr_matrix((np.ones(pairs.shape[1], np.float32), pairs), shape=square)
    around = [way @ features / np.maximum(1, np.asarray(way.sum(axis=1))) for way in (adjacency, adjacency.T.tocsr())]
    half = np.arange(graph.num_nodes) % 2 == 0

    def score(rows: np.ndarray) -> float:
        """Nearest class mean, columns brought to one scale: means of one half, right answers in the other."""
        rows = rows / rows.std(axis=0)
        means = np.stack([rows[half & (classes == c)].mean(axis=0) for c in range(graph.dataset.num_classes)])
        nearest = (rows[~half] @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)
        return float((nearest == classes[~half]).mean())

    chance = float(np.square(np.bincount(classes) / len(classes)).sum())
    alone, together = score(features), score(np.hstack([features, *around]))
    assert chance + 0.05 < alone < 0.75
    assert alone + 0.02 < together < 0.98
    assert features.dtype == np.float32
    assert abs(features.mean()) < 0.1
    assert features.std() == pytest.approx(1.0, abs=0.1)


# cost


def test_streams_hold_one_chunk() -> None:
    graph = SyntheticGraph("ogbn-papers100M")  # 111 million nodes, 1.6 billion edges, never whole
    edges, rows = SyntheticEdges(graph, 1 << 16), SyntheticFeatures(graph, 1 << 12)
    tracemalloc.start()
    try:
        for skip in (0, 10**9):
            stream = edges.chunks(skip)
            for _ in range(3):
                chunk = next(stream)
                assert chunk.sources.max() < graph.num_nodes
        blocks = rows.chunks(10**8)
        assert all(next(blocks).shape == (1 << 12, 128) for _ in range(3))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10e6


# files, stores and the command line


def test_ingest_config_is_the_datasets_with_overrides() -> None:
    config = ingest_config("ogbn-products", feature_dtype="float16")
    assert (config.undirected, config.name, config.feature_dtype) == (True, "ogbn-products-like", "float16")
    assert not ingest_config("snap-patents").undirected
    with pytest.raises(ConfigError, match="feature_dtype"):
        ingest_config("ogbn-products", feature_dtyp="float16")


def test_a_store_and_the_files_ingested_are_the_same(tmp_path: Path) -> None:
    source, folder = synthetic("ogbn-products", 0.001), tmp_path / "f"
    store = ingest(source, tmp_path / "g", ingest_config("ogbn-products"))
    assert store.num_nodes == source.num_nodes
    assert (store.name, store.directed) == ("ogbn-products-like", False)
    write_files(source, folder)
    files = {option: folder / name for option, name in FILES.items()}
    again = sources.files(**files)
    other = ingest(again, tmp_path / "h", ingest_config("ogbn-products"))
    for name in ("indptr", "indices", "features", "labels"):
        assert np.array_equal(getattr(store, name), getattr(other, name)), name
    for name in ("train", "valid", "test"):
        assert np.array_equal(store.splits[name], other.splits[name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--like", "ogbn-product"], ["did you mean 'ogbn-products'"]),
        (["--like", "snap-patents", "--scale", "0"], ["scale is 0", "at most 10"]),
        (["--like", "snap-patents", "--scale", "11"], ["scale is 11"]),
        (["--like", "snap-patents", "--scale", "nan"], ["scale is nan"]),
        (["--like", "snap-patents", "--seed", "-1"], ["--seed", "greater than or equal to 0"]),
        (["--like", "snap-patents", "--set", "feature_dtyp=float16"], ["feature_dtype"]),
    ],
)
def test_the_verb_refuses_in_one_line(options: list[str], words: list[str], lg: Cli, tmp_path: Path) -> None:
    code, out, err = lg("generate", "--out", tmp_path / "s", *options)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert all(word in err for word in words), err
    assert not list(tmp_path.iterdir())
