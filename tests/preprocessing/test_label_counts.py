"""Which local nodes are neighbours, and the labels around them. What batches make of the counts is checked against
plain loops in loader/test_labels_of_local_nodes.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from largegt.config.schema import (
    LocalNodesConfig,
    PositionalEncodingConfig,
    ResolvedPrepareConfig,
    TokensConfig,
)
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.estimate import estimate
from largegt.preprocessing.label_features import TrainingLabels, write_label_counts
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared, sample_rows
from run_helpers import small

NUM = 60


def store_of(path: Path, directed: bool = False) -> GraphStore:
    rng = np.random.default_rng(0)
    edges, labels = rng.integers(0, NUM - 2, size=(2, 110)), rng.integers(0, 4, NUM)
    splits = {"train": np.arange(0, NUM, 2), "valid": np.arange(1, NUM, 4), "test": np.arange(3, NUM, 4)}
    source = lg.sources.arrays(edges, np.ones((NUM, 2), dtype=np.float32), labels, splits)
    return lg.ingest(source, path, lg.IngestConfig(undirected=not directed))


def config_of(k: int = 9, rows: Any = "sampled", hops: int = 0, **local_nodes: Any) -> ResolvedPrepareConfig:
    return ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=k, **local_nodes), tokens=TokensConfig(precompute_for=rows),
        neighbor_label_hops=hops, local_label_histograms=True,
        positional_encoding=PositionalEncodingConfig(method="none"),
    )  # fmt: skip


def around(store: GraphStore) -> list[set[int]]:
    """The neighbours of each node, whatever the direction, edge by edge."""
    found: list[set[int]] = [set() for _ in range(store.num_nodes)]
    indptr, indices = store.csr("out")
    for i in range(store.num_nodes):
        for j in indices[indptr[i] : indptr[i + 1]].tolist():
            if i != j:
                found[i].add(j)
                found[j].add(i)
    return found


def unpacked(prepared: Prepared) -> np.ndarray:
    return np.unpackbits(np.asarray(prepared.is_neighbor), axis=1, count=prepared.k, bitorder="little").astype(bool)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"k": 1}, {"k": 25, "rows": "all"}, {"direction": "out"}, {"target_nodes": "all"}]
)
def test_which_local_nodes_are_neighbours(tmp_path: Path, settings: dict[str, Any], directed: bool) -> None:
    store = store_of(tmp_path / "g", directed=directed)
    prepared = prepare(store, config_of(**settings))
    is_neighbor, lists = unpacked(prepared), around(store)
    assert prepared.is_neighbor.shape == (len(prepared.nodes), -(-prepared.k // 8))
    local = prepared.token_nodes[prepared.local_rows]
    for n, node in enumerate(prepared.nodes.tolist()):
        assert is_neighbor[n].tolist() == [other in lists[node] for other in local[n].tolist()]
    assert not is_neighbor[:, 0].any(), "itself"
    if prepared.k > 1:
        assert 0.1 < is_neighbor.mean() < 0.9
        assert (is_neighbor[prepared.nodes >= NUM - 2] == 0).all(), "without neighbours, any nodes are local"


def test_other_samples_have_it_too(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g")
    prepared = prepare(store, config_of(rows="reachable"))
    lists, every = around(store), np.arange(len(prepared.nodes))
    same = sample_rows(store, prepared, every, 0)
    assert np.array_equal(same.is_neighbor, unpacked(prepared))
    drawn = sample_rows(store, prepared, every, 3)
    assert not np.array_equal(drawn.local_rows, same.local_rows)
    for n, node in enumerate(prepared.nodes.tolist()):
        local = prepared.token_nodes[drawn.local_rows[n]]
        assert drawn.is_neighbor[n].tolist() == [other in lists[node] for other in local.tolist()]


def test_a_hub_has_room_for_its_counts(tmp_path: Path) -> None:
    size = (1 << 15) + 10
    edges = np.stack([np.zeros(size - 1, dtype=np.int64), np.arange(1, size)])
    labels = np.zeros(size, dtype=np.int64)
    labels[:2] = 1
    splits = {"train": np.arange(1, size), "valid": np.array([0]), "test": np.array([], dtype=np.int64)}
    source = lg.sources.arrays(edges, np.ones((size, 1), dtype=np.float32), labels, splits)
    store = lg.ingest(source, tmp_path / "g", lg.IngestConfig(undirected=True))
    with ArrayWriter(tmp_path / "p", "prepared") as writer:
        write_label_counts(writer, store, np.array([0, 5]), Engine(1 << 20), TrainingLabels.from_store(store))
        writer.finish({})
    found = ArrayFolder(tmp_path / "p", "prepared").array("label_counts")
    assert found.dtype == np.int32
    assert found.tolist() == [[size - 2, 1, size - 1, size - 1], [0, 0, 0, 1]]


def test_any_memory_and_threads_give_the_same_bytes(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g")
    found = []
    for number, (memory, threads) in enumerate([(1 << 30, 1), (1 << 12, 2)]):
        other = store_of(tmp_path / f"g{number}")
        assert other.fingerprint == store.fingerprint
        prepared = prepare(other, config_of(k=12), engine=Engine(memory, threads))
        found.append([np.asarray(array).tobytes() for array in (prepared.is_neighbor, prepared.label_counts)])
    assert found[0] == found[1]


def test_only_what_is_new_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "g")
    plain = prepare(
        store,
        config_of().model_copy(
            update={"local_nodes": LocalNodesConfig(k=9), "neighbor_label_hops": 0, "local_label_histograms": False}
        ),
    )
    sampled = plain.file("local_rows")
    more = prepare(store, config_of())
    assert more.file("local_rows") == sampled, "not sampled again"
    assert plain.path != more.path
    counts = more.file("label_counts")
    other = prepare(store, config_of(hops=2))
    assert other.file("label_counts") == counts


def test_label_counts_are_a_stage_where_asked_for(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g")
    prepared = prepare(store, ResolvedPrepareConfig(neighbor_label_hops=1))
    assert "label_counts" not in prepared.stages
    assert prepared.label_counts.shape == (len(prepared.token_nodes), 0)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    setting = "model.local_label_histograms=true"
    prepared = prepare(store_of(tmp_path / "g"), small().preparation)
    with pytest.raises(ConfigError, match=f"prepare with `{setting}`"):
        lg.train(prepared, small(setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=f"prepare with `{setting}`"):
        lg.LargeGT.for_prepared(prepared, small(setting).model)
    with pytest.raises(ConfigError, match=r"nagphormer does not read model\.local_label_histograms"):
        small(setting, "model.name=nagphormer")


def test_the_estimate_counts_them(tmp_path: Path) -> None:
    store = store_of(tmp_path / "g")
    config = config_of(rows="all")
    plain = config.model_copy(
        update={"local_nodes": LocalNodesConfig(k=9), "neighbor_label_hops": 0, "local_label_histograms": False}
    )
    more = estimate(store, config)
    prepared = prepare(store, config)
    assert more.disk_bytes - estimate(store, plain).disk_bytes == prepared.label_counts.nbytes
    assert more.stages[0].disk_bytes == sum(
        prepared.array(name).nbytes for name in ("local_rows", "is_neighbor", "token_nodes")
    )
    assert "label counts" in {stage.name for stage in more.stages}
