"""GraphStore: one graph on disk, memory-mapped.

Enters: a folder that `ingest` wrote, at a path or a URL. Leaves: the graph's arrays, as read-only views of files.
Cost: opening reads the manifest, the headers of the arrays and the small arrays; large arrays are paged in on access.
A stage that reads large arrays calls `check` first.

Arrays (`N` nodes, `E` distinct edges without self loops):
  out_indptr [N+1] int64, out_indices [E]     successors of each node, sorted
  in_indptr, in_indices                       predecessors; only if the graph is directed
  both_indptr, both_indices                   the undirected view; only if the graph is directed
  out_weights [E], out_strengths, out_weight_sums
                                              see weights.py; also for in and both; only if edges have weights
  out_edge_features [N, f] float32            means of edge features; also for in and both: see edge_features.py
  features [N, d]                             float32, float16 or bfloat16 (as uint16 bits)
  labels                                      [N] int32 (-1: none); multi-label: [N, c] float32 (NaN: none);
                                              regression: [N] float32 (NaN: none)
  split [N] uint8                             0 none, 1 train, 2 valid, 3 test
  node_ids                                    the user's own ids: int64 [N], or absent when they are 0..N-1
  node_id_offsets [N+1], node_id_bytes        the same for string ids, UTF-8
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa

from largegt.errors import FormatError, InputError, first_line
from largegt.io.array_folder import ArrayFolder
from largegt.io.checksums import is_checker
from largegt.runtime.progress import Progress
from largegt.runtime.summary import Summary
from largegt.runtime.text import quoted
from largegt.types import OPPOSITE, Array, Direction, PathLike, Task, sides_of

from .columns import Columns
from .ids import find_ids, id_at, text_over
from .kernels import SUM_BLOCK
from .labels import labelled
from .splits import SPLIT_CODES

KIND = "store"
WEIGHT_PARTS = ("weights", "strengths", "weight_sums")
_BLOCK_ROWS = 1 << 22
_META_TYPES = {
    "name": str,
    "num_nodes": int,
    "num_edges": int,
    "directed": bool,
    "task": str,
    "classes": list,
    "id_kind": str,
}


class GraphStore(Summary):
    """A graph on disk: `GraphStore.open("data/g")`. See the module's text for the arrays."""

    def __init__(self, folder: ArrayFolder, in_ranges: bool = False) -> None:
        self.folder = folder
        self._read = folder.ranged if in_ranges else folder.array
        self._checked: set[str] = set()

    @classmethod
    def open(cls, path: PathLike, version: str | None = None) -> GraphStore:
        """Open a store. The object reads one version, whatever is appended or overwritten later.

        Args:
            path: the folder of the store, or a URL.
            version: the fingerprint of the version to open, the newest by default.

        Returns:
            The store. Its arrays are read-only and memory-mapped.

        Raises:
            InputError: there is no store, or no such version.
            FormatError: the folder is damaged, or of a newer version of the package.

        Examples:
            >>> store = lg.GraphStore.open("data/g")
            >>> store.features.shape
            (150, 5)
            >>> sorted(store.splits)
            ['test', 'train', 'valid']
        """
        store = cls(ArrayFolder(path, KIND, version))
        store.folder.require(_META_TYPES, {})
        store.folder.require({}, store._expected_rows())
        for key, known in (("task", get_args(Task)), ("id_kind", ("row", "integer", "string"))):
            if store.folder.meta[key] not in known:
                raise FormatError(f"{store.path} says {key}={store.folder.meta[key]!r}, which is none of {list(known)}")
        if store.weighted:
            store._check_weight_statistics()
        if (width := store.num_edge_features) and any(
            store.folder.shape(f"{side}_edge_features") != (store.num_nodes, width) for side in sides_of(store.directed)
        ):
            raise FormatError(f"{store.path} has edge features of another width; {store.folder.advice}")
        if len(store.folder.shape("features")) != 2:
            raise FormatError(f"{store.folder.file('features')} is no matrix; {store.folder.advice}")
        return store

    def _expected_rows(self) -> dict[str, int]:
        """Expected number of rows of each array."""
        n, e = self.num_nodes, self.num_edges
        ids = {"integer": {"node_ids": n}, "string": {"node_id_offsets": n + 1}}.get(self.id_kind, {})
        sides = {"out": e} | ({"in": e, "both": self._num_rows("both_indices")} if self.directed else {})
        csr = {f"{side}_indptr": n + 1 for side in sides} | {f"{side}_indices": rows for side, rows in sides.items()}
        if self.weighted:
            csr |= {f"{side}_weights": rows for side, rows in sides.items()}
            csr |= {f"{side}_strengths": n for side in sides}
            csr |= {f"{side}_weight_sums": -(-rows // SUM_BLOCK) for side, rows in sides.items()}
        csr |= {f"{side}_edge_features": n for side in sides if self.num_edge_features}
        return {**csr, "features": n, "labels": n, "split": n, **ids}

    def _check_weight_statistics(self) -> None:
        """Refuse a manifest without the statistics of weights that `mean_weight` needs."""
        statistics = self.folder.meta["weights"]
        means, values = statistics.get("mean") if isinstance(statistics, dict) else None, []
        if isinstance(means, dict):
            values = [statistics.get("least"), statistics.get("largest"), *map(means.get, sides_of(self.directed))]
        if not values or not all(isinstance(number, float) and 0 < number < np.inf for number in values):
            raise FormatError(f"{self.path / 'manifest.json'} has no mean of the weights; {self.folder.advice}")

    def _num_rows(self, name: str) -> int:
        return (*self.folder.shape(name), 0)[0]

    def check(self, *directions: Direction, features: bool = False, progress: Progress | None = None) -> None:
        """Check the arrays that a stage will read: neighbours in these directions, and optionally features. Refuse
        damaged files and invalid neighbours. Each array is checked once per process."""
        if is_checker() and self.folder.url is None:  # files at a URL are checked when they are downloaded
            means = [f"{side}_edge_features" for side in sides_of(self.directed) if self.num_edge_features]
            self._verify(directions, ["labels", "split", *(["features", *means] if features else [])], progress)

    def verify_numbers(self, progress: Progress | None = None) -> None:
        """Refuse invalid neighbours, labels and ids, even if the checksums match."""
        self._verify(("out", "in", "both"), [], progress)
        _ = self.labels, self.own_ids

    def _verify(self, directions: Iterable[Direction], others: list[str], progress: Progress | None) -> None:
        prefixes = sorted({direction if self.directed else "out" for direction in directions})
        parts = ("indptr", "indices", *(WEIGHT_PARTS if self.weighted else ()))
        names = [f"{prefix}_{part}" for prefix in prefixes for part in parts]
        self.folder.verify([*others, *names], progress, bounds_of(self.folder))
        for prefix in prefixes:
            self._check_indptr(prefix)
            if self.weighted:
                self._check_weights(prefix)

    def _check_indptr(self, prefix: str) -> None:
        """`indptr` must increase from 0 to the number of neighbours."""
        if prefix in self._checked:
            return
        indptr = self.folder.array(f"{prefix}_indptr")
        rises = all(
            (np.diff(indptr[at : at + _BLOCK_ROWS + 1]) >= 0).all() for at in range(0, len(indptr), _BLOCK_ROWS)
        )
        if not rises or indptr[0] != 0 or indptr[-1] != self._num_rows(f"{prefix}_indices"):
            raise FormatError(f"{self.folder.file(f'{prefix}_indptr')} is no list of rows; {self.folder.advice}")
        self._checked.add(prefix)

    def _check_weights(self, prefix: str) -> None:
        """Weights must be positive and finite."""
        name = f"{prefix}_weights"
        if name in self._checked:
            return
        weights = self.folder.array(name)
        for at in range(0, len(weights), _BLOCK_ROWS):
            part = weights[at : at + _BLOCK_ROWS]
            if not (part.min() > 0 and part.max() < np.inf):  # also refuses NaN
                raise FormatError(f"{self.folder.file(name)} has weights that are none; {self.folder.advice}")
        self._checked.add(name)

    def in_ranges(self) -> GraphStore:
        """The same graph. At a URL, slices of edges and features are read without downloading whole arrays. For
        readers that need ranges in increasing order, not the whole array."""
        return GraphStore(self.folder, in_ranges=True)

    # properties

    def summary(self) -> tuple[str, dict[str, object], str]:
        kind = f"{self.name}: {'directed' if self.directed else 'undirected'}, {self.task}"
        sizes = {"nodes": self.num_nodes, "edges": self.num_edges, "features": self.num_features}
        return kind, {**sizes, **({"classes": len(self.classes)} if self.classes else {})}, self.place

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def place(self) -> str:
        """Path or URL, as the user wrote it."""
        return self.folder.place

    @property
    def fingerprint(self) -> str:
        return self.folder.fingerprint

    @property
    def name(self) -> str:
        """Name of the graph: set at ingest, or the name of the folder."""
        return str(self.folder.meta["name"]) or self.folder.path.resolve().name

    @property
    def num_nodes(self) -> int:
        return int(self.folder.meta["num_nodes"])

    @property
    def num_edges(self) -> int:
        """Number of distinct directed edges without self loops; an undirected edge counts twice."""
        return int(self.folder.meta["num_edges"])

    @property
    def num_features(self) -> int:
        return int(self.folder.manifest["arrays"]["features"]["shape"][1])

    @property
    def directed(self) -> bool:
        return bool(self.folder.meta["directed"])

    @property
    def task(self) -> Task:
        return cast(Task, self.folder.meta["task"])

    @property
    def classes(self) -> list[Any]:
        """The user's label values: entry c is class c. Empty for regression."""
        return list(self.folder.meta["classes"])

    @property
    def num_outputs(self) -> int:
        """Number of model outputs per node: classes, labels, or 1."""
        return len(self.classes) if self.task in ("multiclass", "multilabel") else 1

    # the arrays

    @property
    def indptr(self) -> Array:
        return self.folder.array("out_indptr")

    @property
    def indices(self) -> Array:
        return self.folder.array("out_indices")

    def csr(self, direction: Direction) -> tuple[Array, Array]:
        """`(indptr, indices)` of each node's successors (`out`), predecessors (`in`) or both (`both`)."""
        prefix = direction if self.directed else "out"
        return self._read(f"{prefix}_indptr"), self._read(f"{prefix}_indices")

    def reverse_csr(self, direction: Direction) -> tuple[Array, Array]:
        """The transpose of `csr(direction)`."""
        return self.csr(OPPOSITE[direction])

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return "weights" in self.folder.meta

    @property
    def weights(self) -> Array:
        """[E] float32: the weight of each entry of `indices`. An error if edges have no weights."""
        return self.weights_of("out")[0]

    def weights_of(self, direction: Direction) -> tuple[Array, Array, Array]:
        """(weights, strengths, sums of blocks) of `csr(direction)`: see weights.py."""
        if not self.weighted:
            raise InputError(f"{self.place} has no edge weights: ingest it again with `weight_column='COLUMN'`")
        prefix = direction if self.directed else "out"
        weights, strengths, sums = (self._read(f"{prefix}_{part}") for part in WEIGHT_PARTS)
        return weights, strengths, sums

    def mean_weight(self, direction: Direction) -> float:
        """Mean weight over the entries of `csr(direction)`."""
        return float(self.folder.meta["weights"]["mean"][direction if self.directed else "out"])

    @property
    def edge_feature_names(self) -> list[str]:
        """Names of the edge features; empty if edges have none."""
        described = self.folder.meta.get("edge_features")
        names = described.get("names") if isinstance(described, dict) else None
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def num_edge_features(self) -> int:
        return len(self.edge_feature_names)

    def edge_features(self, direction: Direction) -> Array:
        """[N, f] float32: per node, the mean features of its outgoing edges, incoming edges, or both."""
        return self._read(f"{direction if self.directed else 'out'}_edge_features")

    @property
    def features(self) -> Array:
        """[N, d] of `feature_dtype`; bfloat16 is stored as raw uint16 bits."""
        return self._read("features")

    @property
    def feature_dtype(self) -> str:
        return self.folder.dtype("features")

    @cached_property
    def columns(self) -> Columns | None:
        """Fitted encoding of the node table's columns; None if features came from an array."""
        described = self.folder.meta.get("columns")
        return None if described is None else Columns.from_json(described)

    @cached_property
    def edge_columns(self) -> Columns | None:
        """Fitted encoding of the edge table's columns, likewise."""
        described = (self.folder.meta.get("edge_features") or {}).get("columns")
        return None if described is None else Columns.from_json(described)

    @property
    def features_are_degrees(self) -> bool:
        """Whether the input had no features, so that log(1 + degree) replaces them."""
        return self.folder.meta.get("features_from") == "degree"

    @property
    def labels(self) -> Array:
        labels = self.folder.array("labels")
        if "labels" not in self._checked and self.task in ("multiclass", "binary"):
            low, high = (labels.min(), labels.max()) if labels.dtype.kind == "i" and labels.size else (-2, 0)
            if low < -1 or high >= len(self.classes):
                raise FormatError(f"{self.folder.file('labels')} has labels without a class; {self.folder.advice}")
            self._checked.add("labels")
        return labels

    @property
    def labelled(self) -> Array:
        """Boolean [N]: true for nodes with a label."""
        return labelled(self.labels, self.task)

    @property
    def split(self) -> Array:
        """uint8 [N]: 0 none, 1 train, 2 valid, 3 test."""
        return self.folder.array("split")

    @property
    def splits(self) -> dict[str, Array]:
        """Node numbers of each split: `{"train": …, "valid": …, "test": …}`."""
        split = np.asarray(self.split)
        return {name: np.flatnonzero(split == code) for name, code in SPLIT_CODES.items()}

    @property
    def structure_fingerprint(self) -> str:
        """Fingerprint of the edges only: independent of features and labels."""
        weights = self.folder.checksum("out_weights") if self.weighted else ""
        return self.folder.checksum("out_indices") + self.folder.checksum("out_indptr") + weights

    # user ids

    @property
    def id_kind(self) -> str:
        """`row` (ids are 0..N-1), `integer` or `string`."""
        return str(self.folder.meta["id_kind"])

    @cached_property
    def own_ids(self) -> Any:
        """The user's ids of all nodes, memory-mapped: int64 or an Arrow text array; None if they are 0..N-1."""
        if self.id_kind != "string":
            return self.folder.array("node_ids") if self.id_kind == "integer" else None
        ids = text_over(self.folder.array("node_id_offsets"), self.folder.array("node_id_bytes"))
        try:
            ids.validate(full=True)  # Arrow does not check offsets when it reads
        except pa.ArrowInvalid as error:
            file = self.folder.file("node_id_offsets")
            raise FormatError(f"{file} is damaged ({first_line(error)}); {self.folder.advice}") from error
        return ids

    def id_array(self, nodes: Array | None = None) -> Any:
        """The user's ids of these nodes (default: all) as an Arrow array of int64 or strings."""
        rows = np.arange(self.num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)
        if self.id_kind == "string":
            return self.own_ids if nodes is None else self.own_ids.take(pa.array(rows))
        return pa.array(rows if self.id_kind == "row" else np.asarray(self.own_ids)[rows])

    def ids_of(self, nodes: Array) -> list[Any]:
        """The user's ids of these node numbers."""
        ids: list[Any] = self.id_array(nodes).to_pylist()
        return ids

    def nodes_of(self, ids: Any) -> Array:
        """The node numbers of the user's ids; an unknown id is an `InputError`."""
        if self.id_kind == "string":
            queries: Any = pa.array([str(value) for value in ids], pa.large_string())
        else:
            queries = np.array([_as_int(value) for value in ids], dtype=np.int64)
        if self.id_kind == "row":
            nodes = np.where((queries >= 0) & (queries < self.num_nodes), queries, -1)
        else:
            nodes = find_ids([self.own_ids], queries)
        if (nodes < 0).any():
            unknown = id_at(queries, int(np.flatnonzero(nodes < 0)[0]))
            raise InputError(
                f"{self.place} has no node {unknown!r}; its ids look like "
                f"{', '.join(repr(i) for i in self.ids_of(np.arange(min(3, self.num_nodes))))}: "
                f"largegt inspect {quoted(self.place)} tells more"
            )
        return nodes

    # user labels

    def class_name(self, c: int) -> Any:
        """The user's value of class `c` (the name of label column `c` for multi-label)."""
        classes = self.folder.meta["classes"]
        if not 0 <= c < len(classes):
            raise InputError(f"{self.path} has {len(classes)} classes, number {c} is not one of them")
        return classes[c]

    def label_of(self, node: int) -> Any:
        """The user's label of a node: a class, a list of labels (multi-label) or a number; None if unlabelled."""
        if not labelled(self.labels[node : node + 1], self.task)[0]:
            return None
        if self.task == "multilabel":
            return [self.classes[c] for c in np.flatnonzero(self.labels[node] > 0.5)]
        return float(self.labels[node]) if self.task == "regression" else self.class_name(int(self.labels[node]))


def bounds_of(folder: ArrayFolder) -> dict[str, int]:
    """Exclusive upper bounds of the arrays that hold node numbers."""
    num_nodes = folder.meta.get("num_nodes")
    names = [name for name in ("out_indices", "in_indices", "both_indices") if name in folder]
    return dict.fromkeys(names, num_nodes) if isinstance(num_nodes, int) else {}


def _as_int(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise InputError(f"node id {value!r} is not a whole number, and this store's ids are") from None
    if not -(2**63) <= number < 2**63 or (isinstance(value, float) and value != number):
        raise InputError(f"node id {value!r} is not a whole number of 64 bits, and this store's ids are")
    return number
