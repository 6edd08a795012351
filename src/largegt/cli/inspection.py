"""Inspect: what a store, a preparation or a run folder holds, as a plain tree for people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from largegt.errors import FormatError, InputError
from largegt.io import remote
from largegt.runtime.text import quoted
from largegt.types import PathLike

_BLOCK_NODES = 1 << 20

if TYPE_CHECKING:
    from largegt.data.store import GraphStore
    from largegt.preprocessing.prepared import Prepared
    from largegt.training.run import Run


def inspect(path: PathLike, verify: bool = False, estimate: bool = True) -> dict[str, Any]:
    """Facts about the folder at `path`. `verify` reads every byte and compares checksums first (verification.py).
    `estimate` also tries some of a store's preparation, to say what the whole takes."""
    if verify:
        from largegt.cli.verification import verify as verified

        for damage in verified(path).damaged:
            raise FormatError(
                f"{damage}: it was damaged or changed; largegt inspect {quoted(path)} --verify names all such files"
            )
    path = remote.local_path(path)
    remote.refresh(path)
    if not path.exists():
        raise InputError(
            f"{remote.shown(path)} does not exist"
            + (" or has no manifest.json" if remote.url_of(path) else "")
            + ": check the path"
        )
    if (path / "config.toml").is_file():
        from largegt.training.run import Run

        facts = _run(Run.open(path))
    elif _kind(path) == "largegt-store":
        from largegt.data.store import GraphStore

        store = GraphStore.open(path).in_ranges()
        facts = _store(store) | (_preparation(store) if estimate else {})
    else:
        from largegt.preprocessing.prepared import Prepared

        facts = _prepared(Prepared.open(path))
    return facts | ({"verified": True} if verify else {})


class _Degrees:
    """Facts about the rows of a CSR, read in blocks."""

    def __init__(self, indptr: Any) -> None:
        num_nodes = len(indptr) - 1
        self.mean = float(indptr[-1]) / num_nodes
        self.largest = 0
        counts = np.zeros(65, dtype=np.int64)
        for start in range(0, num_nodes, _BLOCK_NODES):
            degrees = np.diff(indptr[start : start + _BLOCK_NODES + 1])
            self.largest = max(self.largest, int(degrees.max()))
            counts += np.bincount(np.frexp(degrees.astype(np.float64))[1], minlength=65)
        names = ["0", "1", *(f"{2**b}-{2 ** (b + 1) - 1}" for b in range(1, 64))]
        last = int(np.flatnonzero(counts)[-1])
        self.histogram = {name: int(count) for name, count in zip(names[: last + 1], counts, strict=False)}
        """Nodes by degree, in doubling bins: `{"0": …, "1": …, "2-3": …, "4-7": …}`."""


def _store(store: GraphStore) -> dict[str, Any]:
    degrees = _Degrees(store.csr("both")[0])
    labels = store.labels[store.labelled]
    by_class = None
    if store.task in ("multiclass", "binary"):
        counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=len(store.classes))
        by_class = {str(name): int(count) for name, count in zip(store.classes, counts, strict=True)}
    prepared = [folder.name for folder in remote.folders(store.path / "prepared")]
    return {
        "kind": "store",
        "name": store.name,
        "nodes": store.num_nodes,
        "edges": store.num_edges,
        "directed": store.directed,
        "self_loops_dropped": store.folder.meta.get("self_loops_dropped", 0),
        "duplicates_merged": store.folder.meta.get("duplicates_merged", 0),
        **_weights(store),
        **({"edge_features": ", ".join(store.edge_feature_names)} if store.num_edge_features else {}),
        "isolated_nodes": degrees.histogram.get("0", 0),
        "mean_degree": degrees.mean,
        "max_degree": degrees.largest,
        "degrees": degrees.histogram,
        "features": store.num_features,
        "feature_dtype": store.feature_dtype,
        "ids": store.id_kind,
        "example_ids": store.ids_of(np.arange(min(3, store.num_nodes))),
        "task": store.task,
        "labelled": int(store.labelled.sum()),
        "classes": by_class if by_class is not None else store.classes,
        "splits": {name: len(nodes) for name, nodes in store.splits.items()},
        "bytes": store.folder.num_bytes,
        "fingerprint": store.fingerprint,
        "prepared": prepared,
        **_columns(store),
    }


def _columns(store: GraphStore) -> dict[str, Any]:
    """What became of each column of the tables of nodes and edges."""
    found = {"columns": store.columns, "edge_columns": store.edge_columns}
    return {name: columns.table() for name, columns in found.items() if columns is not None}


def _weights(store: GraphStore) -> dict[str, Any]:
    """The range and the mean of edge weights, where there are any."""
    if not store.weighted:
        return {}
    facts = store.folder.meta["weights"]
    return {"least_weight": facts["least"], "mean_weight": store.mean_weight("out"), "largest_weight": facts["largest"]}


def _preparation(store: GraphStore) -> dict[str, Any]:
    """What preparing it by the default recipe would take, for a store that can be and is not yet. To know it, some of
    that work is tried, for which the graph must be on this machine."""
    from largegt.config.schema import Config
    from largegt.preprocessing.cache_key import is_prepared
    from largegt.preprocessing.estimate import estimate

    config = Config.from_recipe().preparation
    if store.folder.url or not store.labelled.any() or is_prepared(store, config):
        return {}
    return {"preparation": estimate(store, config).as_dict()}


def _prepared(prepared: Prepared) -> dict[str, Any]:
    return {
        "kind": "prepared",
        "store": prepared.meta["name"],
        "nodes": len(prepared.nodes),
        "k": prepared.k,
        "hops": prepared.config.tokens.hops,
        "contexts": prepared.token_names[1:],
        "token_rows": len(prepared.token_nodes),
        "features": prepared.num_features,
        "positions": prepared.num_positions,
        "bytes": prepared.num_bytes,
        "fingerprint": prepared.fingerprint,
        "config": prepared.config.model_dump(mode="json"),
    }


def _run(run: Run) -> dict[str, Any]:
    finished = (run.path / "metrics.json").is_file()
    history = run.history
    return {
        "kind": "run",
        "store": remote.shown(run.store_path),
        "model": run.config.model.name,
        "epochs": f"{len(history)} of {run.config.train.epochs}",
        "finished": finished,
        **({"metrics": run.metrics} if finished else {"last_epoch": history[-1] if history else None}),
    }


def _kind(path: Path) -> str:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        kind = str(manifest["format"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FormatError(f"{path} is neither a store, nor a preparation, nor a run of largegt") from None
    if kind not in ("largegt-store", "largegt-prepared"):
        raise FormatError(f"{path} is neither a store, nor a preparation, nor a run of largegt")
    return kind
