"""StoreCache: an in-memory graph as a store that is prepared once and labelled many times.

Enters: a SciPy adjacency, an `edge_index`, a PyG `Data` or a store, and features. Leaves: `StoreCache.labelled(…)`, a
version of that store with given labels and split. Versions share the graph's arrays and the preparation stages that do
not read labels.

The store is in a temporary folder that is removed with its last user, or in `work_dir`, where it stays. For a user's
own store, labelled versions are written into that store, and released with their users. Cost: one pass over the graph
for its digest and one for the store; a labelled version is the labels, the split and a manifest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse
import xxhash

from largegt.config.schema import PrepareConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.labels import Encoded
from largegt.data.sources import Source, as_numpy
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


def read_graph(graph: Any, features: Any = None, edge_weights: bool = False) -> tuple[str, GraphStore | Source]:
    """A digest of the edges and features, and the graph as a store or a source of one.

    `graph` is a sparse matrix whose entry (i, j) is an edge from i to j, an `edge_index` [2, E], a PyG `Data`, a
    GraphStore or the path of one; the last two have their features already. With `edge_weights`, the values of a matrix
    (unless all are 1) or the edge_weight of a Data, where it has one, are weights; a store has its own in any case.
    """
    if graph is None:
        raise InputError("no graph was given: graph= takes a sparse adjacency, an edge_index, a PyG Data or a store")
    if isinstance(graph, GraphStore | str | Path):
        store = graph if isinstance(graph, GraphStore) else GraphStore.open(graph)
        if features is not None:
            raise InputError(f"{store.place} has its own features: leave out features=")
        return store.fingerprint, store
    num_nodes, weights = None, None
    sources.refuse_hetero(graph)
    if scipy.sparse.issparse(graph):
        edges, weights = _entries(graph)
        num_nodes = int(graph.shape[0])
        if not edge_weights or (weights == 1).all():
            weights = None
    elif hasattr(graph, "num_nodes"):  # a Data or a similar object; sources.pyg validates it
        sources.pyg(graph, edge_weights=False, edge_features=False)
        edges, num_nodes = as_numpy(graph.edge_index), graph.num_nodes
        weights = getattr(graph, "edge_weight", None) if edge_weights else None
        if (own := getattr(graph, "x", None)) is not None:
            if features is not None:
                raise InputError("features were given twice: leave out features=, or the x of the Data")
            features = own
    elif edge_weights:
        raise InputError(
            "edge_weights=True, and an edge_index has no weights: give a sparse matrix, or a Data with edge_weight"
        )
    else:
        edges = as_numpy(graph)
    return _named(edges, features, num_nodes, None if weights is None else as_numpy(weights))


def _entries(matrix: Any) -> tuple[Array, Array]:
    """(edge_index, values) of a sparse matrix without explicit zeros."""
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"graph= has shape {list(matrix.shape)}, an adjacency is square: a row and a column per node")
    found = matrix.tocoo()
    is_edge = found.data != 0
    return np.stack([found.row[is_edge], found.col[is_edge]]).astype(np.int64), found.data[is_edge]


def _named(edges: Array, features: Any, num_nodes: int | None, weights: Array | None) -> tuple[str, Source]:
    """The digest of these arrays, and their Source."""
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise InputError(
            f"graph= is neither a sparse matrix nor an edge_index [2, E] of whole numbers: it is {edges.dtype} "
            f"{list(edges.shape)}"
        )
    arrays = [edges] if weights is None else [edges, weights]
    if scipy.sparse.issparse(features):
        features = features.tocsr()
        arrays += [features.indptr, features.indices, features.data]
    elif features is not None:
        features = as_numpy(features)
        arrays.append(features)
    if features is not None and features.ndim != 2:
        raise InputError(f"features= has shape {list(features.shape)}, expected [N, d]: a row per node")
    if num_nodes is None:
        num_nodes = int(edges.max(initial=-1)) + 1 if features is None else int(features.shape[0])
    width = 0 if features is None else features.shape[1]
    digest = xxhash.xxh3_128(f"{num_nodes} {width} {weights is not None}".encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16], sources.arrays(edges, features, num_nodes=num_nodes, weights=weights)


class StoreCache:
    """One graph as a store, with its preparations. `StoreCache.of(…)` reuses an existing one."""

    def __init__(self, name: str, given: GraphStore | Source, work_dir: Path | None, progress: Progress | None) -> None:
        own = given.path if isinstance(given, GraphStore) else None
        self.is_kept = work_dir is not None
        self._shared: dict[str, ArrayFolder] = {}
        """Stages that do not read labels, held open so that the next labels can reuse them."""
        with disk_errors(tempfile.gettempdir()):
            self.folder = work_dir or Path(tempfile.mkdtemp(prefix="largegt-"))
        folder = None if self.is_kept else self.folder
        weakref.finalize(self, _clean_up, os.getpid(), folder, own, shared=self._shared)
        if isinstance(given, GraphStore):
            self.graph = given
            return
        path = self.folder / f"graph-{name}"
        with Lock(path.with_name(f"{path.name}.cache"), wait=True):  # another process may be writing it
            self.graph = GraphStore.open(path) if path.exists() else ingest(given, path, progress=progress)

    @classmethod
    def of(
        cls, graph: Any, features: Any = None, edge_weights: bool = False, work_dir: PathLike | None = None,
        progress: Progress | None = None,
    ) -> StoreCache:  # fmt: skip
        """A cache in `work_dir`, or in a temporary folder that is reused while it has users and after its last use."""
        global _last
        name, given = read_graph(graph, features, edge_weights)
        if work_dir is not None:
            remote.refuse_url(work_dir, "a work folder")
            return cls(name, given, Path(work_dir).absolute(), progress)
        cache = _caches.get(name)
        if cache is None or not cache.graph.path.exists():
            cache = _caches[name] = cls(name, given, None, progress)
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

    def run_folder(self, owner: object) -> Path:
        """A folder for a run on this graph; removed with its owner unless there is a work folder."""
        fits = self.folder / "fits"
        with disk_errors(fits):
            fits.mkdir(parents=True, exist_ok=True)
            run = Path(tempfile.mkdtemp(prefix="fit-", dir=fits)) / "run"
        if not self.is_kept:
            weakref.finalize(owner, _clean_up, os.getpid(), run.parent, self.graph.path, run)
        return run


def _clean_up(
    owner: int, folder: Path | None, store: Path | None, run: Path | None = None,
    shared: Mapping[str, ArrayFolder] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Remove a temporary folder and unused versions of the store."""
    if os.getpid() != owner:  # a forked child has a copy of the object, but does not own the folder
        return
    for stage in shared.values():
        stage.close()
    if store is not None and store.exists():
        with suppress(LargeGTError, OSError):
            if run is not None:
                release(store, run)
            clean(store)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


_caches: weakref.WeakValueDictionary[str, StoreCache] = weakref.WeakValueDictionary()
_last: StoreCache | None = None
"""Keeps the cache alive between the fits of a cross-validation."""
