"""StoreCache: a graph that someone holds in Python, as a store that is prepared once and labelled many times.

Enters: a SciPy adjacency, an `edge_index`, a PyG `Data` or a store, and features. Leaves: `StoreCache.labelled(…)`, a
version of that store with these labels and this split: it shares the graph's arrays, and stages of a preparation that
labels do not enter.

The store is in a temporary folder that is removed with its last user, or in `work_dir`, where it stays. A store of the
user's gets the labelled versions itself; they are released with their users. Cost: the graph is read once for its name
and once for the store; a labelled version is the labels, the split and a manifest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import xxhash

from largegt.config.schema import PrepareConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.labels import Encoded, labelled
from largegt.data.sources import as_numpy
from largegt.data.store import KIND, GraphStore
from largegt.data.versions import clean, release
from largegt.errors import InputError, LargeGTError, disk_errors
from largegt.io import remote
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.locks import Lock
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.progress import Progress
from largegt.types import Array, PathLike

_OF_LABELS = ("labels", "split")
_WITHOUT_LABELS = ("local_nodes", "tokens", "positions")


@dataclass(frozen=True)
class GraphInput:
    """A graph as it was given, read as far as its name goes."""

    name: str
    """Tells graphs with other edges or features apart."""
    num_nodes: int
    make: Callable[[Path, Progress | None], GraphStore]
    """Writes it as a store without labels, or opens the store that it is."""
    is_store: bool = False

    @classmethod
    def of(cls, graph: Any, features: Any = None, edge_weights: bool = False) -> GraphInput:
        """`graph` is a sparse matrix whose entry (i, j) is an edge from i to j, an `edge_index` [2, E], a PyG `Data`, a
        GraphStore or the path of one; the last two have their features already. With `edge_weights`, the values of a
        matrix (unless all are 1) or the edge_weight of a Data, where it has one, are the weights of its edges; those
        of a store are its own in any case."""
        if graph is None:
            raise InputError(
                "no graph was given: graph= takes a sparse adjacency, an edge_index, a PyG Data or a store"
            )
        if isinstance(graph, GraphStore | str | Path):
            return _of_store(graph if isinstance(graph, GraphStore) else GraphStore.open(graph), features)
        own, num_nodes, weights = None, None, None
        if scipy.sparse.issparse(graph):
            edges, num_nodes, weights = _entries(graph)
            if not edge_weights or (weights == 1).all():
                weights = None
        elif hasattr(graph, "num_nodes"):  # a Data, or what looks like one; sources.pyg says what is amiss
            own, num_nodes = getattr(graph, "x", None), graph.num_nodes
            sources.pyg(graph, edge_weights=False, edge_features=False)
            edges = as_numpy(graph.edge_index)
            weights = getattr(graph, "edge_weight", None) if edge_weights else None
        elif edge_weights:
            raise InputError(
                "edge_weights=True, and an edge_index has no weights: give a sparse matrix, or a Data with edge_weight"
            )
        else:
            edges = as_numpy(graph)
        if own is not None and features is not None:
            raise InputError("features were given twice: leave out features=, or the x of the Data")
        return _of_arrays(edges, own if features is None else features, num_nodes, weights)


def _of_store(store: GraphStore, features: Any) -> GraphInput:
    if features is not None:
        raise InputError(f"{store.place} has its own features: leave out features=")

    return GraphInput(store.fingerprint, store.num_nodes, lambda *_: store, is_store=True)


def _of_arrays(edges: Array, features: Any, num_nodes: int | None, weights: Any = None) -> GraphInput:
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise InputError(
            f"graph= is neither a sparse matrix nor an edge_index [2, E] of whole numbers: it is {edges.dtype} "
            f"{list(edges.shape)}"
        )
    is_sparse = scipy.sparse.issparse(features)
    matrix: Any = features if features is None or is_sparse else as_numpy(features)
    if matrix is not None and matrix.ndim != 2:
        raise InputError(f"features= has shape {list(matrix.shape)}, expected [N, d]: a row per node")
    if num_nodes is None:
        num_nodes = int(edges.max(initial=-1)) + 1 if matrix is None else int(matrix.shape[0])
    parts = [] if matrix is None else [matrix]
    if is_sparse:
        rows = matrix.tocsr()
        parts = [rows.indptr, rows.indices, rows.data, np.array(rows.shape)]
    weights = None if weights is None else as_numpy(weights)
    name = _named([edges, *parts, np.array([num_nodes]), *([] if weights is None else [weights])])

    def make(out: Path, progress: Progress | None) -> GraphStore:
        return ingest(sources.arrays(edges, matrix, num_nodes=num_nodes, weights=weights), out, progress=progress)

    return GraphInput(name, num_nodes, make)


def _entries(matrix: Any) -> tuple[Array, int, Array]:
    """(edge_index, nodes, values) of a sparse matrix; a stored zero is no edge."""
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"graph= has shape {list(matrix.shape)}, an adjacency is square: a row and a column per node")
    found = matrix.tocoo()
    is_edge = found.data != 0
    edges = np.stack([found.row[is_edge], found.col[is_edge]]).astype(np.int64)
    return edges, int(matrix.shape[0]), found.data[is_edge]


def _named(arrays: list[Any]) -> str:
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


class StoreCache:
    """One graph as a store, with its preparations. `StoreCache.of(…)` finds the one that there is."""

    def __init__(self, given: GraphInput, folder: Folder, progress: Progress | None = None) -> None:
        self.folder = folder
        self._shared: dict[str, ArrayFolder] = {}
        """Stages that labels do not enter, open so that they stay for the next labels."""
        path = folder.path / f"graph-{given.name}"
        if given.is_store:
            self.graph = given.make(path, progress)
        else:
            with Lock(path.with_name(f"{path.name}.cache"), wait=True):  # another process may be making it
                self.graph = GraphStore.open(path) if path.exists() else given.make(path, progress)
        if given.is_store:
            weakref.finalize(self, _tidy, self.graph.path, self._shared)

    @classmethod
    def of(cls, given: GraphInput, work_dir: PathLike | None = None, progress: Progress | None = None) -> StoreCache:
        """In `work_dir`, or in a temporary folder: the same one while somebody holds it, and the one used last."""
        global _last
        if work_dir is not None:
            remote.refuse_url(work_dir, "a work folder")
            return cls(given, Folder(Path(work_dir).absolute()), progress)
        cache = _caches.get(given.name)
        if cache is None or not cache.graph.path.exists():
            cache = _caches[given.name] = cls(given, Folder.temporary(), progress)
        _last = cache
        return cache

    def labelled(self, encoded: Encoded, split: Array) -> GraphStore:
        """A version of the graph's store with these labels."""
        graph = self.graph
        facts = {
            "task": encoded.task, "classes": encoded.classes, "label_counts": encoded.counts,
            "num_labelled": encoded.num_labelled, "split_from": "given" if encoded.num_labelled else "none",
        }  # fmt: skip
        with ArrayWriter(graph.path, KIND, replace=True, wait=True) as writer:
            for name in graph.folder.manifest["arrays"]:
                if name not in _OF_LABELS:
                    writer.reuse(name, graph.folder)
            writer.save("labels", encoded.values)
            writer.save("split", split.astype(np.uint8))
            version = writer.finish(graph.folder.meta | facts, notes={"branch": True}, newest=False)
        return GraphStore.open(graph.path, version)

    def prepared(self, store: GraphStore, config: PrepareConfig, progress: Progress | None = None) -> Prepared:
        """`prepare` of a labelled version."""
        prepared = prepare(store, config, progress=progress)
        self._shared |= {str(stage.path): stage for name, stage in prepared.stages.items() if name in _WITHOUT_LABELS}
        return prepared

    def new_folder(self, keep: bool) -> Folder:
        """A folder for what is made of the graph; removed with its holder unless kept."""
        fits = self.folder.path / "fits"
        with disk_errors(fits):
            fits.mkdir(parents=True, exist_ok=True)
            return Folder(Path(tempfile.mkdtemp(prefix="fit-", dir=fits)), None if keep else self.graph.path)


class Folder:
    """A folder that stays, or is removed with this object: alone, or with a run in it that is registered in `store`."""

    def __init__(self, path: Path, store: Path | None = None, is_temporary: bool = False) -> None:
        self.path = path
        if store is not None or is_temporary:
            weakref.finalize(self, _remove, path, store, os.getpid())

    @classmethod
    def temporary(cls) -> Folder:
        with disk_errors(tempfile.gettempdir()):
            return cls(Path(tempfile.mkdtemp(prefix="largegt-")), is_temporary=True)


def _remove(path: Path, store: Path | None, owner: int) -> None:
    if os.getpid() != owner:  # a forked child has a copy of the object, and not the folder
        return
    if store is not None and store.exists():
        with suppress(LargeGTError, OSError):
            release(store, path / "run")
            clean(store)
    shutil.rmtree(path, ignore_errors=True)


def _tidy(store: Path, shared: dict[str, ArrayFolder]) -> None:
    """Leave a user's store as it was found."""
    for stage in shared.values():
        stage.close()
    with suppress(LargeGTError, OSError):
        clean(store)


_caches: weakref.WeakValueDictionary[str, StoreCache] = weakref.WeakValueDictionary()
_last: StoreCache | None = None
"""Between two fits of a cross-validation nobody else holds it."""


def encoded_labels(values: Array, task: Any, classes: list[Any]) -> Encoded:
    """Labels that are numbers already: classes from 0 (-1: none), values or 0/1 rows (NaN: none)."""
    there = labelled(values, task)
    counts: list[int] = []
    if task == "multilabel":
        counts = [int(count) for count in np.nansum(values, axis=0)]
    elif task != "regression":
        counts = [int(count) for count in np.bincount(values[there], minlength=len(classes))]
    return Encoded(values, task, classes, counts, int(there.sum()))
