"""Incremental preparation: the bytes of a preparation from nothing, with rows kept where they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grown_graphs import grown
from largegt.config.overrides import build
from largegt.config.schema import IngestConfig, ResolvedPrepareConfig
from largegt.data import sources
from largegt.data.append import append
from largegt.data.ingest import ingest
from largegt.data.versions import State, earlier_states
from largegt.errors import ConfigError, InputError
from largegt.io.array_writer import ArrayWriter
from largegt.io.remote import folders
from largegt.preprocessing.features import NodeFeatures
from largegt.preprocessing.incremental import merge
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from preparation_cases import NONE, RAW, SETTINGS, K, assert_same, config
from run_helpers import stopped_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "undirected"), [*((name, False) for name in SETTINGS), ("raw", True), ("labels", True)]
)
def test_the_bytes_of_a_preparation_from_nothing(tmp_path: Path, name: str, undirected: bool) -> None:
    graph = grown(undirected=undirected, num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    prepare(graph.store(tmp_path), config(name), threads=1)
    store = append(tmp_path / "old", graph.source_of("new"), threads=1)
    prepared = prepare(store, config(name), threads=1)
    assert_same(prepared, prepare(graph.store(tmp_path, "all"), config(name), threads=1))
    expected = {"local nodes"} if SETTINGS[name]["local_nodes"]["k"] > 1 else set()
    expected |= set() if name == "normalized" else {"token rows"}
    expected |= {"label histograms"} if "neighbor_label_hops" in SETTINGS[name] else set()
    assert set(prepared.reused) == expected
    assert all(kept > made > 0 for kept, made in prepared.reused.values()), "most rows were kept, some were not"


def test_two_nights_and_nothing_piles_up(tmp_path: Path) -> None:
    graph = grown(num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    settings = config("labels")
    prepare(graph.store(tmp_path), settings, threads=1)
    append(tmp_path / "old", graph.source_of("new"), threads=1)
    more = np.array([[0, 606, 5], [606, 9, 7]])
    late = sources.arrays(more, np.ones((1, 4)), num_nodes=1)
    store = append(tmp_path / "old", late, threads=1)  # the first night nobody prepared
    prepared = prepare(store, settings, threads=1)
    from_nothing = append(graph.store(tmp_path / "x"), graph.source_of("new"), threads=1)
    from_nothing = append(from_nothing, late, threads=1)
    assert from_nothing.fingerprint == store.fingerprint
    assert_same(prepared, prepare(from_nothing, settings, threads=1))
    assert prepared.reused
    assert not prepare(from_nothing, settings, threads=1).reused
    assert [path.name for path in folders(store.path / "prepared")] == [prepared.path.name]
    for stage, key in prepared.folder.meta["stages"].items():
        assert [path.name for path in folders(store.path / "prepared" / stage)] == [key]


def test_samples_that_depend_on_the_number_of_nodes_are_drawn_anew(tmp_path: Path) -> None:
    """A dense graph, where nodes are drawn from all; and nodes without neighbours, which draw from all as well. New
    nodes that nobody knows change their samples and nothing else."""
    rng = np.random.default_rng(0)
    edges, features = rng.integers(0, 300, (2, 30_000)), rng.normal(size=(420, 3))
    settings = build(ResolvedPrepareConfig, {"local_nodes": {"k": 4}, "tokens": RAW, "positional_encoding": NONE})
    splits: dict[str, Any] = {}
    ingest(sources.arrays(edges, features[:320], np.arange(320) % 2, splits), tmp_path / "old", threads=1)
    prepare(tmp_path / "old", settings, threads=1)
    new = sources.arrays(np.array([[400], [401]]), features[320:], np.arange(320, 420) % 2)
    every = ingest(
        sources.arrays(np.hstack([edges, [[400], [401]]]), features, np.arange(420) % 2, splits),
        tmp_path / "e",
        threads=1,
    )
    prepared = prepare(append(tmp_path / "old", new, threads=1), settings, threads=1)
    assert_same(prepared, prepare(every, settings, threads=1))
    assert prepared.reused["local nodes"] == (0, 420), "all of them drew from all nodes"
    assert prepared.reused["token rows"][0] >= 300


def test_killed_on_the_way_it_goes_on(tmp_path: Path) -> None:
    graph = grown(num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    prepare(graph.store(tmp_path), config("labels"), threads=1)
    store = append(tmp_path / "old", graph.source_of("new"), threads=1)
    for call in (2, 5, 3, 6, 4):
        with stopped_at(ArrayWriter, "commit", call):
            prepare(store, config("labels"), threads=1)
    prepared = prepare(store, config("labels"), threads=1)
    assert_same(prepared, prepare(graph.store(tmp_path, "all"), config("labels"), threads=1))


def test_a_damaged_earlier_preparation_serves_nobody(tmp_path: Path) -> None:
    graph = grown(num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    before = prepare(graph.store(tmp_path), config("raw"), threads=1)
    store = append(tmp_path / "old", graph.source_of("new"), threads=1)
    file = before.file("tokens")
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    prepared = prepare(store, config("raw"), threads=1)
    assert not prepared.reused
    assert_same(prepared, prepare(graph.store(tmp_path, "all"), config("raw"), threads=1))


def test_rows_made_for_another_choice_of_rows_are_not_taken(tmp_path: Path) -> None:
    """A kill, and then another earlier preparation serves, which lacks other rows."""
    earlier, wanted = np.arange(10, 13), np.array([7, 8, 9, 10, 11, 12])

    def merged(before: list[int], writer: ArrayWriter) -> None:
        rows = np.array(before)
        merge(writer, ["x"], rows, lambda _, at: earlier[at], lambda which, scratch: scratch.save("x", wanted[which]))

    with stopped_at(ArrayWriter, "commit", 3), ArrayWriter(tmp_path / "p", "prepared", identity="p") as writer:
        writer.commit()
        merged([-1, -1, -1, 0, 1, 2], writer)  # all that is missing was made; nothing is in its place
    with ArrayWriter(tmp_path / "p", "prepared", identity="p") as writer:
        merged([-1, -1, -1, -1, 1, -1], writer)
        assert writer.array("x").tolist() == wanted.tolist()


@pytest.mark.parametrize("hops", [0, 1])
def test_degrees_that_are_features_change_with_the_neighbours(tmp_path: Path, hops: int) -> None:
    graph = grown(undirected=False, num_old=600, num_new=6, num_edges=900, num_new_edges=8)
    tokens = {**RAW, "num_hops": hops, "precompute_for": "all"}
    settings = build(
        ResolvedPrepareConfig,
        {"local_nodes": {"k": 1, "target_nodes": "all"}, "tokens": tokens, "positional_encoding": NONE},
    )
    every = np.concatenate([graph.old_edges, graph.new_edges], axis=1)
    ingest(sources.arrays(graph.old_edges, num_nodes=600), tmp_path / "old", threads=1)
    prepare(tmp_path / "old", settings, threads=1)
    store = append(tmp_path / "old", sources.arrays(graph.new_edges, num_nodes=6), threads=1)
    prepared = prepare(store, settings, threads=1)
    assert prepared.reused["token rows"][0] > 300
    full = ingest(sources.arrays(every, num_nodes=606), tmp_path / "all", threads=1)
    assert_same(prepared, prepare(full, settings, threads=1))


# as of an earlier state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
def test_as_of_a_state_degrees_that_are_features_are_scaled_as_then(
    tmp_path: Path, undirected: bool, dtype: Any
) -> None:
    graph = grown(undirected=undirected)
    settings = build(ResolvedPrepareConfig, {"local_nodes": {**K, "target_nodes": "all"}, "positional_encoding": NONE})
    old = ingest(
        sources.arrays(graph.old_edges, num_nodes=150), tmp_path / "old",
        IngestConfig(undirected=undirected, feature_dtype=dtype), threads=1,
    )  # fmt: skip
    scale = feature_scale_of(prepare(old, settings, threads=1))
    append(old, sources.arrays(graph.new_edges, num_nodes=20), threads=1)
    store = append(tmp_path / "old", sources.arrays(np.array([[0, 2], [160, 1]])), threads=1)
    assert feature_scale_of(prepare(store, settings, threads=1, version=old.fingerprint)) == scale, "to the bit"
    assert feature_scale_of(prepare(store, settings, threads=1)) != scale


def feature_scale_of(prepared: Prepared) -> list[list[float]]:
    return [prepared.array(name).tolist() for name in ("feature_shift", "feature_gain")]


@pytest.mark.parametrize("undirected", [True, False], ids=["undirected", "directed"])
def test_as_of_a_state_features_are_scaled_as_then(tmp_path: Path, undirected: bool) -> None:
    graph = grown(undirected=undirected)
    settings = build(
        ResolvedPrepareConfig, {**SETTINGS["normalized"], "tokens": {"add_degrees": True, "precompute_for": "all"}}
    )
    old = graph.store(tmp_path)
    before = prepare(old, settings, threads=1)
    scale = [np.array(before.array(name)) for name in ("feature_shift", "feature_gain")]
    append(tmp_path / "old", graph.source_of("new"), threads=1)
    store = append(tmp_path / "old", sources.arrays(np.array([[0, 2], [160, 1]])), threads=1)
    prepared = prepare(store, settings, threads=1, version=old.fingerprint)
    own = prepare(store, settings, threads=1)
    assert [np.array(prepared.array(name)).tolist() for name in ("feature_shift", "feature_gain")] == [
        part.tolist() for part in scale
    ], "to the bit, degrees too"
    assert own.fingerprint != prepared.fingerprint
    assert own.tokens.tolist() != prepared.tokens.tolist()
    rows = NodeFeatures(store, True).rows(range(store.num_nodes))
    np.testing.assert_array_equal(prepared.tokens[:, 0], (rows - scale[0]) * scale[1])
    assert prepared.version == State(old.fingerprint, 150, old.num_edges, old.directed) == earlier_states(store)[0]
    again = prepare(store, settings, threads=1, version=old.fingerprint)
    assert again.path == prepared.path


def test_as_of_a_state_new_training_nodes_tell_nothing(tmp_path: Path) -> None:
    graph = grown("string")
    graph.write(tmp_path)
    old = graph.ingested(tmp_path, "old")
    settings = config("labels")
    prepare(old, settings, threads=1)
    store = append(old, tmp_path / "nodes_new.parquet", tmp_path / "edges_new.parquet", threads=1)
    assert (np.asarray(store.split[150:]) == 1).any()
    prepared = prepare(store, settings, threads=1, version=old.fingerprint)
    assert (prepared.split_rows("train") < 150).all()
    assert len(prepared.split_rows("train"))
    graph.split[150:] = 3  # nobody
    (tmp_path / "b").mkdir()
    graph.write(tmp_path / "b")
    other = graph.ingested(tmp_path / "b", "all")
    np.testing.assert_array_equal(
        prepared.neighbor_label_histogram, prepare(other, settings, threads=1).neighbor_label_histogram
    )
    own = prepare(store, settings, threads=1)
    assert own.neighbor_label_histogram.tolist() != prepared.neighbor_label_histogram.tolist()


def test_what_cannot_be_as_of_a_state(tmp_path: Path) -> None:
    graph = grown()
    old = graph.store(tmp_path)
    store = append(old, graph.source_of("new"), threads=1)
    with pytest.raises(InputError, match="did not come from its version"):
        prepare(store, config("raw"), version="0123456789abcdef")
    settings = build(
        ResolvedPrepareConfig, {**SETTINGS["raw"], "positional_encoding": {"method": "laplacian", "dim": 2}}
    )
    with pytest.raises(ConfigError, match="laplacian encodings are unlike those of the training"):
        prepare(store, settings, version=old.fingerprint)
