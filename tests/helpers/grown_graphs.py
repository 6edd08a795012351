"""A graph in two parts: what is there, and what comes later; as files and as sources; and stores that are the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from largegt.cli.verification import verify
from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from run_helpers import left_in

WORDS = np.array(["train", "valid", "test", ""])
CHANGED = np.array([7, 3, 140, 12, 99, 0])
"""Nodes that are updated, in no order."""


@dataclass
class Grown:
    """`num_old` nodes and their edges, and then the rest. The last new node has no edges."""

    num_old: int
    ids: Any
    features: Any
    labels: Any
    split: Any
    old_edges: Any
    new_edges: Any
    undirected: bool

    @property
    def num_new(self) -> int:
        return len(self.ids) - self.num_old

    def nodes(self, low: int, high: int | None = None, labels: bool = True) -> Any:
        part = slice(low, high)
        columns = {"id": self.ids[part], **{f"f{c}": self.features[part, c] for c in range(self.features.shape[1])}}
        if labels:
            columns |= {"label": self.labels[part], "split": WORDS[self.split[part]]}
        return pa.table(columns)

    def edges(self, edges: Any) -> Any:
        return pa.table({"src": self.ids[edges[0]], "dst": self.ids[edges[1]]})

    def write(self, folder: Path, kind: str = "parquet", labels: bool = True) -> None:
        """nodes_old, nodes_new, nodes_all and the same for edges."""
        folder.mkdir(parents=True, exist_ok=True)
        every = np.concatenate([self.old_edges, self.new_edges], axis=1)
        tables = {
            "nodes_old": self.nodes(0, self.num_old),
            "nodes_new": self.nodes(self.num_old, labels=labels),
            "nodes_all": self.nodes(0),
            "edges_old": self.edges(self.old_edges),
            "edges_new": self.edges(self.new_edges),
            "edges_all": self.edges(every),
        }
        put: Callable[..., None] = pq.write_table if kind == "parquet" else pacsv.write_csv
        for name, table in tables.items():
            put(table, folder / f"{name}.{kind}")

    def ingested(self, folder: Path, part: str, kind: str = "parquet", **settings: Any) -> GraphStore:
        """The store of the files of one part (old, all), which lie in the folder. That of all files has the columns
        that were fitted on the old ones, where the store of these is there."""
        source = sources.files(folder / f"edges_{part}.{kind}", nodes=folder / f"nodes_{part}.{kind}")
        config = IngestConfig(undirected=self.undirected, **settings)
        if part != "all" or not (folder / "old").exists():
            return ingest(source, folder / part, config, threads=1)
        with fitted_as(GraphStore.open(folder / "old")):
            return ingest(source, folder / part, config, threads=1)

    def begin(self, folder: Path, kind: str = "parquet", **settings: Any) -> GraphStore:
        """All files are in the folder, and the store of the old ones at `old`."""
        self.write(folder, kind)
        return self.ingested(folder, "old", kind, **settings)

    def now(self, folder: Path, part: str = "all") -> GraphStore:
        """The store of the tables as they are now, with the fitted columns of the one at `old`."""
        self.write(folder / "now")
        with fitted_as(GraphStore.open(folder / "old")):
            return self.ingested(folder / "now", part)

    def change(self, features: bool = True, labels: bool = True, split: bool = True) -> None:
        """Give the nodes CHANGED other values: all but the last of them."""
        rows = CHANGED[:-1]
        if features:
            self.features[rows] += 1
        if labels:
            self.labels[rows] = (self.labels[rows] + 1) % 3
        if split:
            self.split[rows] = (self.split[rows] + 1) % 3

    def written(self, file: Path, rows: Any = CHANGED, columns: Any = None) -> Path:
        """These rows of the table of nodes, in this order."""
        table = self.nodes(0).take(pa.array(np.asarray(rows)))
        pq.write_table(table if columns is None else table.select(columns), file)
        return file

    def source_of(self, part: str) -> Any:
        """The same in memory, for ids that are rows: `old`, `new` or `all`."""
        low, high = {"old": (0, self.num_old), "new": (self.num_old, None), "all": (0, None)}[part]
        every = np.concatenate([self.old_edges, self.new_edges], axis=1)
        edges = {"old": self.old_edges, "new": self.new_edges, "all": every}[part]
        split = {name: np.flatnonzero(self.split[low:high] == code) for code, name in enumerate(WORDS[:3])}
        if part == "new":  # a split by numbers is not for new nodes
            return sources.arrays(edges, self.features[low:high], self.labels[low:high], num_nodes=self.num_new)
        if part == "all":
            split = {name: nodes[nodes < self.num_old] for name, nodes in split.items()}
        return sources.arrays(edges, self.features[low:high], self.labels[low:high], split)

    def store(self, folder: Path, part: str = "old", **settings: Any) -> GraphStore:
        config = IngestConfig(undirected=self.undirected, **settings)
        return ingest(self.source_of(part), folder / part, config, threads=1)


@contextmanager
def fitted_as(store: GraphStore) -> Iterator[None]:
    """An ingest in this block has the fitted columns of the store."""
    assert store.columns is not None
    with patch("largegt.data.parts.fit_columns", return_value=store.columns):
        yield


def arrays_of(folder: Path) -> dict[str, bytes]:
    """The bytes of the arrays of the newest version, but for its lineage."""
    manifest = json.loads((folder / "manifest.json").read_text())
    lineage = manifest.get("notes", {}).get("arrays", [])
    return {name: (folder / entry["file"]).read_bytes()
            for name, entry in manifest["arrays"].items() if name not in lineage}  # fmt: skip


def assert_same(store: GraphStore, full: GraphStore) -> None:
    """Every byte of every array, and the manifest but for its lineage; nothing is damaged or left over."""
    assert arrays_of(store.path) == arrays_of(full.path)
    ours, theirs = (json.loads((each.path / "manifest.json").read_text()) for each in (store, full))
    for tree in (ours, theirs):
        for name in tree.pop("notes", {}).get("arrays", []):
            del tree["arrays"][name]
        tree.pop("checksum")
    assert json.dumps(ours) == json.dumps(theirs), "in the same order"
    assert store.fingerprint == full.fingerprint
    assert not verify(store.path).damaged
    assert not unfinished(store.path.parent)


def unfinished(folder: Path) -> list[str]:
    """What only a process at work has there."""
    words = ("partial", "lock", "scratch", ".old-")
    return [name for name in left_in(folder) if any(word in name for word in words)]


def grown(
    ids: str = "row", undirected: bool = True, num_old: int = 150, num_new: int = 20, num_edges: int = 500,
    num_new_edges: int = 60, seed: int = 0, to_old: bool = False,
) -> Grown:  # fmt: skip
    """With repeated edges, self loops, edges among new nodes and among old ones. `to_old`: new edges only lead from new
    nodes to old ones."""
    rng = np.random.default_rng(seed)
    total = num_old + num_new
    numbers = rng.permutation(total)
    names = {
        "row": np.arange(total),
        "integer": numbers * 13 - 100,
        "string": np.array([f"n-{number * 7919 % 10_007} é" for number in numbers]),
    }[ids]
    labels = np.arange(total) % 3
    features = rng.normal(size=(total, 4)).astype(np.float32)
    features[:, :3] += 1.5 * np.eye(3, dtype=np.float32)[labels]
    old = rng.integers(0, num_old - 1, (2, num_edges))
    new = rng.integers(0, max(total - 1, num_old), (2, num_new_edges))
    if to_old:
        new = np.stack([rng.integers(num_old, total - 1, num_new_edges), rng.integers(0, num_old, num_new_edges)])
    elif num_new:
        new[0, ::2] = rng.integers(num_old, total - 1, len(new[0, ::2]))
        new = np.concatenate([new, old[:, :5], new[:, :5], [[num_old], [num_old]]], axis=1)
    return Grown(num_old, names, features, labels, rng.integers(0, 4, total), old, new, undirected)
