"""Label contexts against walks written out, and that a node never sees its own label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from largegt.data.labels import num_label_columns
from largegt.data.store import GraphStore
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.label_features import TrainingLabels, write_neighbor_label_histogram
from oracles import label_scale

GRAPHS = {
    "random": np.random.default_rng(0).integers(0, 60, size=(2, 150)),
    "star": np.stack([np.zeros(59, dtype=int), np.arange(1, 60)]),
    "pairs": np.stack([np.arange(0, 60, 2), np.arange(1, 60, 2)]),
    "clique and path": np.array([[i, j] for i in range(6) for j in range(i)] + [[i, i + 1] for i in range(6, 59)]).T,
}


def store_of(edges: np.ndarray, labels: np.ndarray, path: Path, directed: bool = False) -> GraphStore:
    splits = {"train": np.arange(0, 60, 2), "valid": np.arange(1, 60, 4), "test": np.arange(3, 60, 4)}
    source = lg.sources.arrays(edges, np.ones((60, 2), dtype=np.float32), labels, splits)
    return lg.ingest(source, path, lg.IngestConfig(undirected=not directed))


def written(store: GraphStore, nodes: np.ndarray, hops: int, path: Path, **engine: Any) -> np.ndarray:
    with ArrayWriter(path, "prepared") as writer:
        write_neighbor_label_histogram(
            writer, store, nodes, hops, Engine(**{"memory": 1 << 20} | engine), TrainingLabels.from_store(store)
        )
        writer.finish({})
    return np.array(ArrayFolder(path, "prepared").array("neighbor_label_histogram"))


def walked(store: GraphStore, node: int, hops: int) -> np.ndarray:
    """One walk after the other, in plain loops."""
    indptr, indices = store.csr("both")
    around = [indices[indptr[i] : indptr[i + 1]].tolist() for i in range(store.num_nodes)]
    train, labels = store.splits["train"].tolist(), np.asarray(store.labels)
    width = num_label_columns(store.task, store.num_outputs)
    rows = np.zeros((hops, width + 1))
    for hop in range(hops):
        ends = [(j, 1 / len(around[node])) for j in around[node]]
        if hop:
            ends = [(k, p / len(around[j])) for j, p in ends for k in around[j]]
        for end, p in ends:
            if end in train and end != node:
                rows[hop, width] += p
                if store.task == "regression":
                    rows[hop, 0] += p * label_scale.steps(node, end, train, labels) / 32
                elif labels.ndim == 2:
                    rows[hop, :width] += p * labels[end]
                else:
                    rows[hop, int(labels[end])] += p
        if rows[hop, width]:
            rows[hop, :width] /= rows[hop, width]
    return rows


def labels_of(task: str) -> np.ndarray:
    rng = np.random.default_rng(2)
    if task == "regression":  # a value far out counts as eight standard deviations
        labels = rng.normal(100, 10, size=60)
        labels[4] = 1e5
        labels[:4:2] -= 1e5
        return labels
    return rng.integers(2, size=(60, 4)) if task == "multilabel" else rng.integers(2 + (task != "binary"), size=60)


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize(
    ("graph", "task", "directed"),
    [
        *((graph, "multiclass", directed) for graph in GRAPHS for directed in (False, True)),
        *(("random", task, False) for task in ("binary", "multilabel", "regression")),
    ],
)
def test_against_walks(graph: str, task: str, directed: bool, hops: int, tmp_path: Path) -> None:
    store = store_of(GRAPHS[graph], labels_of(task), tmp_path / "g", directed)
    assert store.task == task
    nodes = np.array([0, 1, 5, 6, 7, 30, 58, 59])
    found = written(store, nodes, hops, tmp_path / "p")
    assert found.dtype == np.float16
    for node, row in zip(nodes, found, strict=True):
        assert np.allclose(row, walked(store, node, hops), atol=2e-3), node


@pytest.mark.slow
def test_a_nodes_own_value_is_no_part_of_its_row(tmp_path: Path) -> None:
    labels = labels_of("regression")
    before = written(store_of(GRAPHS["random"], labels, tmp_path / "g"), np.arange(60), 2, tmp_path / "p")
    for node in range(0, 60, 2):
        changed = labels.copy()
        changed[node] += 1e5
        store = store_of(GRAPHS["random"], changed, tmp_path / f"g{node}")
        after = written(store, np.arange(60), 2, tmp_path / f"p{node}")
        assert np.array_equal(after[node], before[node])
        assert not np.array_equal(after, before)


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_nodes_own_label_is_no_part_of_its_row(graph: str, tmp_path: Path) -> None:
    """Bits are the same; and it is part of its neighbours' rows, if it is a training node."""
    labels = np.random.default_rng(1).integers(3, size=60)
    before = written(store_of(GRAPHS[graph], labels, tmp_path / "g"), np.arange(60), 2, tmp_path / "p")
    seen = 0
    for node in range(60):
        changed = labels.copy()
        changed[node] = (labels[node] + 1) % 3
        store = store_of(GRAPHS[graph], changed, tmp_path / f"g{node}")
        after = written(store, np.arange(60), 2, tmp_path / f"p{node}")
        assert np.array_equal(after[node], before[node])
        others = np.arange(60) != node
        if node % 2:
            assert np.array_equal(after, before), "labels of other splits are not read"
        else:
            seen += int(not np.array_equal(after[others], before[others]))
    assert seen > 15


class InBlocks(Engine):
    """Gives a task room for a few rows of counts at a time, as a cluster does."""

    def rows(self, task: Any, nodes: np.ndarray, width: int, start: int) -> Iterator[np.ndarray]:
        for low in range(start, len(nodes), 11):
            yield task(nodes[low : low + 11], self.memory)


@pytest.mark.parametrize("graph", GRAPHS)
def test_counts_in_blocks_give_the_same_bits(graph: str, tmp_path: Path) -> None:
    store = store_of(GRAPHS[graph], np.arange(60) % 3, tmp_path / "g")
    expected = written(store, np.arange(60), 2, tmp_path / "p")
    for number, memory in enumerate((1, 150, 1 << 20)):
        with ArrayWriter(tmp_path / f"b{number}", "prepared") as writer:
            write_neighbor_label_histogram(
                writer, store, np.arange(60), 2, InBlocks(memory), TrainingLabels.from_store(store)
            )
            assert writer.array("neighbor_label_histogram").tobytes() == expected.tobytes()


def test_the_same_bytes_for_any_memory_threads_and_after_a_stop(tmp_path: Path, monkeypatch: Any) -> None:
    from largegt.preprocessing import engine as module

    monkeypatch.setattr(module, "SEGMENT_NODES", 7)
    store = store_of(GRAPHS["random"], np.arange(60) % 3, tmp_path / "g")
    expected = written(store, np.arange(60), 2, tmp_path / "p")
    assert np.array_equal(written(store, np.arange(60), 2, tmp_path / "q", memory=2000, threads=3), expected)

    commits = 0
    commit = ArrayWriter.commit

    def counted(self: ArrayWriter, **state: Any) -> None:
        nonlocal commits
        commit(self, **state)
        commits += 1
        if commits == stop:
            raise KeyboardInterrupt

    for stop in (1, 4, 7):
        path, commits = tmp_path / f"stopped{stop}", 0
        with monkeypatch.context() as patch:
            patch.setattr(ArrayWriter, "commit", counted)
            with pytest.raises(KeyboardInterrupt):
                written(store, np.arange(60), 2, path, memory=2000)
        assert np.array_equal(written(store, np.arange(60), 2, path), expected)
