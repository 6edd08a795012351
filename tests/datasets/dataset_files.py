"""Small datasets in exactly the layouts that their authors ship, and the arrays they were made from."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from largegt.data.store import GraphStore

CODES = {"train": 1, "valid": 2, "test": 3}


@dataclass
class Made:
    """What a fixture was made from."""

    edges: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    """-1: none."""
    splits: dict[str, np.ndarray]

    @property
    def num_nodes(self) -> int:
        return len(self.labels)


def random_graph(num_nodes: int = 120, num_edges: int = 700, width: int = 5, classes: int = 4, seed: int = 0) -> Made:
    """With self loops and repeated edges; the last two nodes have no edge."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_nodes)
    half, most = num_nodes // 2, 3 * num_nodes // 4
    labels = np.arange(num_nodes) % classes
    features = rng.normal(size=(num_nodes, width)).astype(np.float32)
    features[:, : min(width, classes)] += np.eye(classes, min(width, classes), dtype=np.float32)[labels]
    return Made(
        edges=rng.integers(0, num_nodes - 2, (2, num_edges)),
        features=features,
        labels=labels,
        splits={"train": order[:half], "valid": order[half:most], "test": order[most:]},
    )


def _csv(file: Path, rows: Any, form: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        np.savetxt(stream, np.atleast_1d(rows), delimiter=",", fmt=form)


def write_products(folder: Path, made: Made) -> Path:
    """OGB's folder of ogbn-products."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "RELEASE_v1.txt").write_text("")
    (folder / "processed").mkdir(exist_ok=True)
    _csv(folder / "raw" / "edge.csv.gz", made.edges.T, "%d")
    _csv(folder / "raw" / "num-node-list.csv.gz", [made.num_nodes], "%d")
    _csv(folder / "raw" / "num-edge-list.csv.gz", [made.edges.shape[1]], "%d")
    _csv(folder / "raw" / "node-feat.csv.gz", made.features, "%.9g")
    _csv(folder / "raw" / "node-label.csv.gz", made.labels, "%d")
    for name, nodes in made.splits.items():
        _csv(folder / "split" / "sales_ranking" / f"{name}.csv.gz", nodes, "%d")
    return folder


def write_papers(folder: Path, made: Made, compressed: bool = True, fortran: bool = False, dtype: Any = None) -> Path:
    """OGB's folder of ogbn-papers100M; of deflated or stored arrays."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "RELEASE_v1.txt").write_text("")
    save = np.savez_compressed if compressed else np.savez
    labels = np.where(made.labels < 0, np.nan, made.labels).astype(np.float32)[:, None]
    save(
        folder / "raw" / "data.npz",
        edge_index=np.asfortranarray(made.edges) if fortran else made.edges,
        num_nodes_list=np.array([made.num_nodes]),
        num_edges_list=np.array([made.edges.shape[1]]),
        node_feat=made.features.astype(dtype or made.features.dtype),
        node_year=np.full((made.num_nodes, 1), 2019),
    )
    save(folder / "raw" / "node-label.npz", node_label=labels)
    for name, nodes in made.splits.items():
        _csv(folder / "split" / "time" / f"{name}.csv.gz", nodes, "%d")
    return folder


def write_patents(folder: Path, made: Made, granted: np.ndarray, **changes: Any) -> Path:
    """`snap_patents.mat` of LINKX."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "edge_index": made.edges,
        "node_feat": scipy.sparse.csc_matrix(made.features.astype(np.float64)),
        "years": granted,
        "num_nodes": made.num_nodes,
    } | changes
    scipy.io.savemat(folder / "snap_patents.mat", {key: value for key, value in variables.items() if value is not None})
    return folder


def check_store(store: GraphStore, made: Made, undirected: bool, atol: float = 0.0) -> None:
    """The store holds what the arrays say, by way of Python sets."""
    pairs = {(int(a), int(b)) for a, b in made.edges.T if a != b}
    pairs |= {(b, a) for a, b in pairs} if undirected else set()
    indptr, indices = store.csr("out")
    assert store.num_nodes == made.num_nodes
    found = {(i, int(j)) for i in range(store.num_nodes) for j in indices[indptr[i] : indptr[i + 1]]}
    assert found == pairs
    assert store.directed is not undirected
    np.testing.assert_allclose(np.asarray(store.features, dtype=np.float32), made.features, rtol=0, atol=atol)
    assert np.array_equal(store.labels, made.labels)
    split = np.zeros(made.num_nodes, dtype=np.uint8)
    for name, nodes in made.splits.items():
        split[nodes] = CODES[name]
    split[made.labels < 0] = 0
    for name, code in CODES.items():
        assert np.array_equal(np.sort(store.splits[name]), np.flatnonzero(split == code)), name
