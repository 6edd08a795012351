"""The workbench: a graph that someone holds in Python, as a store that is prepared once and labelled many times.

Enters: a SciPy adjacency, an `edge_index`, a PyG `Data` or a store, and features. Leaves: `Workbench.labelled(…)`, a
store of that graph with these labels and this split, whose preparation is taken from the graph's own as far as labels
do not enter it. The arrays of all of them are hard links to the same files.

A workbench lies in a temporary folder that goes with its last user, or in `work_dir`, where it stays. Nothing is
written beside a store of the user's. Cost: the graph is read once for its name and once for the store; a labelled
store is a few links, the labels and the split.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import xxhash

from . import storage
from .config import PrepareConfig
from .errors import InputError, disk_errors
from .folder_writer import FolderWriter
from .graph import sources
from .graph.ingest import ingest
from .graph.labels import Encoded, labelled, no_labels
from .graph.sources import as_numpy
from .graph.store import KIND, GraphStore
from .locks import HeldError
from .prepare.identity import prepared_path
from .prepare.making import prepare
from .prepare.prepared import Prepared
from .progress import Progress
from .types import Array, PathLike

_T = TypeVar("_T")
_LOOK_AGAIN_S = 0.1
_OF_LABELS = ("labels", "split")


@dataclass(frozen=True)
class GraphInput:
    """A graph as it was given, read as far as its name goes."""

    name: str
    """Tells graphs with other edges or features apart."""
    num_nodes: int
    make: Callable[[Path, Progress | None], GraphStore]
    """Writes it as a store without labels."""

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

    def make(out: Path, progress: Progress | None) -> GraphStore:
        bare = relabelled(store, out, no_labels(store.num_nodes), np.zeros(store.num_nodes, np.uint8))
        if store.folder.url is None:
            _lend(store.path / "prepared", out / "prepared")
        return bare

    return GraphInput(store.fingerprint, store.num_nodes, make)


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


def relabelled(store: GraphStore, out: Path, encoded: Encoded, split: Array) -> GraphStore:
    """The same graph and features with other labels and another split, as a store in `out`."""
    with FolderWriter(out, KIND) as writer:
        for name in store.folder.manifest["arrays"]:
            if name not in _OF_LABELS:
                writer.link(name, store.folder)
        writer.save("labels", encoded.values)
        writer.save("split", split.astype(np.uint8))
        told = {
            "task": encoded.task, "classes": encoded.classes, "label_counts": encoded.counts,
            "num_labelled": encoded.num_labelled, "split_from": "given" if encoded.num_labelled else "none",
        }  # fmt: skip
        writer.finish(store.folder.meta | told)
    return GraphStore.open(out)


class Workbench:
    """One graph in a folder, with its preparations. `Workbench.of(…)` finds the one that there is."""

    def __init__(self, given: GraphInput, folder: Folder, progress: Progress | None = None) -> None:
        self.folder = folder
        path = folder.path / f"graph-{given.name}"
        self.graph = _made_once(path, lambda: GraphStore.open(path) if path.exists() else given.make(path, progress))

    @classmethod
    def of(cls, given: GraphInput, work_dir: PathLike | None = None, progress: Progress | None = None) -> Workbench:
        """In `work_dir`, or in a temporary folder: the same one while somebody holds it, and the one used last."""
        global _last
        if work_dir is not None:
            storage.refuse_url(work_dir, "a work folder")
            return cls(given, Folder(Path(work_dir).absolute()), progress)
        bench = _benches.get(given.name)
        if bench is None or not bench.graph.path.exists():
            bench = _benches[given.name] = cls(given, Folder.temporary(), progress)
        _last = bench
        return bench

    def labelled(self, out: Path, encoded: Encoded, split: Array) -> GraphStore:
        """The graph with these labels, as a store in `out`."""
        return relabelled(self.graph, out, encoded, split)

    def prepared(self, store: GraphStore, config: PrepareConfig, progress: Progress | None = None) -> Prepared:
        """`prepare` of a labelled store: what labels do not enter is computed for the graph, once."""
        shared = config.model_copy(update={"labels": PrepareConfig().labels})
        if config.local_nodes.nodes == "all":
            path = prepared_path(self.graph, shared)
            _made_once(path, lambda: prepare(self.graph, shared, progress=progress))
            _lend(path.parent, store.path / "prepared", only=path.name)
        return prepare(store, config, progress=progress)

    def new_folder(self, keep: bool) -> Folder:
        """A folder beside the graph for what is made of it, on the same disk; removed with its holder unless kept."""
        fits = self.folder.path / "fits"
        with disk_errors(fits):
            fits.mkdir(parents=True, exist_ok=True)
            return Folder(Path(tempfile.mkdtemp(prefix="fit-", dir=fits)), goes=not keep)


class Folder:
    """A folder that goes with this object, or stays."""

    def __init__(self, path: Path, goes: bool = False) -> None:
        self.path = path
        if goes:
            weakref.finalize(self, _remove, path, os.getpid())

    @classmethod
    def temporary(cls) -> Folder:
        with disk_errors(tempfile.gettempdir()):
            return cls(Path(tempfile.mkdtemp(prefix="largegt-")), goes=True)


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has a copy of the object, and not the folder
        shutil.rmtree(path, ignore_errors=True)


_benches: weakref.WeakValueDictionary[str, Workbench] = weakref.WeakValueDictionary()
_last: Workbench | None = None
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


def _lend(lender: Path, borrower: Path, only: str | None = None) -> None:
    """Let a store see another one's preparations beside its own: `prepare` takes from them what fits."""
    if not lender.is_dir():
        return
    with disk_errors(borrower):
        borrower.mkdir(exist_ok=True)
        for path in storage.folders(lender):
            if only in (None, path.name):
                with suppress(FileExistsError):
                    (borrower / path.name).symlink_to(os.path.relpath(path.resolve(), borrower.resolve()))


def _made_once(path: Path, make: Callable[[], _T]) -> _T:
    """`make()` opens what is at `path`, or writes it: where another process is at it, wait and open that."""
    while True:
        was_there = path.exists()
        try:
            return make()
        except HeldError:
            time.sleep(_LOOK_AGAIN_S)
        except InputError:
            if was_there or not path.exists():  # else another one has been faster
                raise
