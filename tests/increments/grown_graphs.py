"""A graph in two parts: what is there, and what comes later; as files and as sources."""

from __future__ import annotations

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

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore

WORDS = np.array(["train", "valid", "test", ""])


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
