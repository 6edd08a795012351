"""Inspect: the contents of a store, a preparation or a run folder as a dict."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from largegt.errors import FormatError, InputError
from largegt.io import remote
from largegt.types import PathLike

_BLOCK_NODES = 1 << 20

if TYPE_CHECKING:
    from largegt.data.store import GraphStore


def inspect(path: PathLike, estimate: bool = True) -> dict[str, Any]:
    """Facts about the folder at `path`. `estimate` also runs a part of a store's preparation, to estimate the cost of
    the whole."""
    path = remote.local_path(path)
    remote.refresh(path)
    if not path.exists():
        reason = " or has no manifest.json" if remote.url_of(path) else ""
        raise InputError(f"{remote.shown(path)} does not exist{reason}: check the path")
    if (path / "config.toml").is_file():
        return _run(path)
    kind = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        kind = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["format"]
    if kind == "largegt-store":
        return _store(path, estimate)
    if kind == "largegt-prepared":
        return _prepared(path)
    raise FormatError(f"{path} is neither a store, nor a preparation, nor a run of largegt")


def _store(path: Path, estimate: bool) -> dict[str, Any]:
    from largegt.data.store import GraphStore

    store = GraphStore.open(path).in_ranges()
    classes: Any = store.classes
    if store.task in ("multiclass", "binary"):
        labels = np.asarray(store.labels[store.labelled], dtype=np.int64)
        counts = np.bincount(labels, minlength=len(classes)).tolist()
        classes = dict(zip(map(str, classes), counts, strict=True))
    facts = {
        "kind": "store", "name": store.name, "nodes": store.num_nodes, "edges": store.num_edges,
        "directed": store.directed,
        **{name: store.folder.meta.get(name, 0) for name in ("self_loops_dropped", "duplicates_merged")},
    }  # fmt: skip
    if store.weighted:
        weights = store.folder.meta["weights"]
        facts |= {"least_weight": weights["least"], "mean_weight": store.mean_weight("out")}
        facts |= {"largest_weight": weights["largest"]}
    if store.num_edge_features:
        facts["edge_features"] = ", ".join(store.edge_feature_names)
    facts |= _degrees(store.csr("both")[0]) | {
        "features": store.num_features, "feature_dtype": store.feature_dtype, "ids": store.id_kind,
        "example_ids": store.ids_of(np.arange(min(3, store.num_nodes))), "task": store.task,
        "labelled": int(store.labelled.sum()), "classes": classes,
        "splits": {name: len(nodes) for name, nodes in store.splits.items()}, "bytes": store.folder.num_bytes,
        "fingerprint": store.fingerprint,
        "prepared": [folder.name for folder in remote.folders(store.path / "prepared")],
    }  # fmt: skip
    tables = {"columns": store.columns, "edge_columns": store.edge_columns}
    facts |= {name: columns.table() for name, columns in tables.items() if columns is not None}
    return facts | (_preparation(store) if estimate else {})


def _degrees(indptr: Any) -> dict[str, Any]:
    """The degrees of a CSR, read in blocks; nodes by degree in doubling bins: 0, 1, 2-3, 4-7, …"""
    num_nodes, largest = len(indptr) - 1, 0
    counts = np.zeros(65, dtype=np.int64)
    for start in range(0, num_nodes, _BLOCK_NODES):
        degrees = np.diff(indptr[start : start + _BLOCK_NODES + 1])
        largest = max(largest, int(degrees.max()))
        counts += np.bincount(np.frexp(degrees.astype(np.float64))[1], minlength=65)
    names = ["0", "1", *(f"{2**b}-{2 ** (b + 1) - 1}" for b in range(1, 64))]
    shown = counts[: np.flatnonzero(counts)[-1] + 1].tolist()
    return {
        "isolated_nodes": shown[0], "mean_degree": float(indptr[-1]) / num_nodes, "max_degree": largest,
        "degrees": dict(zip(names, shown, strict=False)),
    }  # fmt: skip


def _preparation(store: GraphStore) -> dict[str, Any]:
    """The estimated cost of preparing a local, labelled store with the default recipe, if it is not prepared yet. The
    estimate runs a part of that work."""
    from largegt.config.schema import Config
    from largegt.preprocessing.cache_key import is_prepared
    from largegt.preprocessing.estimate import estimate

    config = Config.from_recipe().preparation
    if store.folder.url or not store.labelled.any() or is_prepared(store, config):
        return {}
    return {"preparation": estimate(store, config).as_dict()}


def _prepared(path: Path) -> dict[str, Any]:
    from largegt.preprocessing.prepared import Prepared

    prepared = Prepared.open(path)
    return {
        "kind": "prepared", "store": prepared.meta["name"], "nodes": len(prepared.nodes), "k": prepared.k,
        "hops": prepared.config.tokens.num_hops, "contexts": prepared.token_names[1:],
        "token_rows": len(prepared.token_nodes), "features": prepared.num_features,
        "positions": prepared.num_positions, "bytes": prepared.num_bytes, "fingerprint": prepared.fingerprint,
        "config": prepared.config.model_dump(mode="json"),
    }  # fmt: skip


def _run(path: Path) -> dict[str, Any]:
    from largegt.training.run import Run

    run = Run.open(path)
    history, finished = run.history, (run.path / "metrics.json").is_file()
    return {
        "kind": "run", "store": remote.shown(run.store_path), "model": run.config.model.name,
        "epochs": f"{len(history)} of {run.config.train.epochs}", "finished": finished,
        **({"metrics": run.metrics} if finished else {"last_epoch": history[-1] if history else None}),
    }  # fmt: skip
