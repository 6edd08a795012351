"""Cache keys: what a preparation and each of its stages depend on.

Enters: a store and a PrepareConfig. Leaves: settled settings, the folder's path, and the key of each stage: two that
would be the same bytes have the same key. Cost: reading checksums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..config import PrepareConfig
from ..data.pair_runs import index_dtype
from ..data.store import GraphStore
from ..data.versions import State, earlier_state
from ..errors import ConfigError, InputError
from ..io import remote
from ..io.checksums import fingerprint
from ..types import Array, Direction
from .blocks import marked_numbers

_VERSIONS = {
    "nodes": 1, "local_nodes": 2, "tokens": 2, "positions": 1, "label_contexts": 1, "label_counts": 1,
}  # fmt: skip
"""Of each stage's arithmetic: raise one when its result changes for the same inputs."""


def settled(store: GraphStore, config: PrepareConfig) -> PrepareConfig:
    """What a configuration comes to for this store: without directions or hops there is nothing to keep apart, and
    without weights, hops or samples nothing to weigh."""
    wanted = {
        "local_nodes.weighted": (config.local_nodes.weighted, store.weighted, "weights", "--weight COLUMN"),
        "tokens.weighted": (config.tokens.weighted, store.weighted, "weights", "--weight COLUMN"),
        "tokens.edge_features": (
            config.tokens.edge_features, store.num_edge_features > 0, "features", "--edge-features COLUMNS"
        ),
    }  # fmt: skip
    for name, (choice, is_there, what, option) in wanted.items():
        if choice is True and not is_there:
            raise ConfigError(
                f"prepare.{name}=true, and the edges of {store.place} have no {what}: ingest it with {option}, or "
                "leave the setting out"
            )
    tokens: dict[str, Any] = {
        "weighted": store.weighted and config.tokens.weighted is not False and config.tokens.hops > 0,
        "edge_features": store.num_edge_features > 0 and config.tokens.edge_features is not False
        and config.tokens.hops > 0,
    }  # fmt: skip
    if config.tokens.contexts == "apart" and not (store.directed and config.tokens.hops):
        tokens["contexts"] = "together"
    sampled: dict[str, Any] = {
        "weighted": store.weighted and config.local_nodes.weighted is not False and config.local_nodes.k > 1,
        "near": config.local_nodes.near or config.labels.local,
    }  # fmt: skip
    update = {
        "local_nodes": config.local_nodes.model_copy(update=sampled),
        "tokens": config.tokens.model_copy(update=tokens),
    }
    return config.model_copy(update=update)


def directions_of(config: PrepareConfig) -> tuple[Direction, ...]:
    """The directions of the contexts, of settled settings."""
    return ("out", "in") if config.tokens.contexts == "apart" else (config.local_nodes.direction,)


def directions_read(config: PrepareConfig) -> set[Direction]:
    """The directions whose neighbours a preparation reads, of settled settings."""
    along: set[Direction] = {config.local_nodes.direction, *directions_of(config)}
    if along & {"in", "out"}:
        along |= {"in", "out"}  # degrees of the other side
    reads_labels = bool(config.labels.hops) or config.labels.local
    return along | ({"both"} if reads_labels or config.positions.method == "laplacian" else set())


def _edge_sides(store: GraphStore, config: PrepareConfig) -> list[str]:
    """The directions whose edge features are read: those of contexts, and the one that sets the scale."""
    along = {*directions_of(config), config.local_nodes.direction}
    return sorted(along) if store.directed else ["out"]


def nodes_to_prepare(store: GraphStore, config: PrepareConfig) -> Array:
    """The nodes that get a row: the labelled ones, or all."""
    if config.local_nodes.nodes == "all":
        return np.arange(store.num_nodes, dtype=np.dtype(index_dtype(store.num_nodes)))
    nodes = marked_numbers(store.labelled, np.dtype(index_dtype(store.num_nodes)))
    if not len(nodes):
        raise InputError(
            f"{store.place} has no labelled node to prepare: give labels to ingest, or prepare all nodes "
            "with --set prepare.local_nodes.nodes=all"
        )
    return nodes


def state_as_of(store: GraphStore, config: PrepareConfig, as_of: str | None) -> State | None:
    """The earlier state of this name; None for the store as it is."""
    if as_of is None or as_of == store.fingerprint:
        return None
    state = earlier_state(store, as_of)
    if state is None:
        raise InputError(f"{store.place} did not come from its version {as_of} by append: train again")
    if state.directed != store.directed:
        raise InputError(f"{store.place} has {'' if store.directed else 'no '}directions since it grew: train again")
    if config.positions.method in ("node2vec", "laplacian"):
        raise ConfigError(
            f"{store.place} has grown, and its {config.positions.method} encodings are unlike those of the training: "
            "train again, with --set prepare.positions.method=projection where a store is to grow"
        )
    return state


def prepared_path(store: GraphStore, config: PrepareConfig, as_of: str | None = None) -> Path:
    """Where this configuration's preparation of this store lies, or will lie."""
    config = settled(store, config)
    return Path(store.path) / "prepared" / fingerprint(identity_of(store, config, state_as_of(store, config, as_of)))


def is_prepared(store: GraphStore, config: PrepareConfig, as_of: str | None = None) -> bool:
    """Whether there is a preparation of this store by this configuration."""
    path = prepared_path(store, config, as_of)
    remote.refresh(path)
    return (path / remote.MANIFEST).is_file()


def identity_of(store: GraphStore, config: PrepareConfig, then: State | None = None) -> list[Any]:
    """What a preparation depends on."""
    return [store.fingerprint, config.model_dump(mode="json"), stage_keys(store, config, then)]


def stage_keys(store: GraphStore, config: PrepareConfig, then: State | None) -> dict[str, str]:
    """The key of each stage that a preparation has: what its result depends on."""
    which = config.local_nodes.nodes if config.local_nodes.nodes == "all" else store.folder.checksum("labels")
    structure = [store.structure_fingerprint, which]
    sampled = [structure, config.local_nodes.relevant(), config.tokens.nodes]
    features = [store.folder.checksum("features"), store.feature_dtype]
    used = {"all": [], "reachable": [which, config.local_nodes.direction], "sampled": sampled}[config.tokens.nodes]
    rows_of = [store.structure_fingerprint, directions_of(config), used]
    known = [] if then is None else [then.fingerprint]
    scaled = known if config.tokens.standardize else []
    of_edges = []
    if config.tokens.edge_features is True:
        of_edges = [["edges", store.folder.checksum(f"{side}_edge_features")] for side in _edge_sides(store, config)]
    labels = [store.folder.checksum("labels"), store.folder.checksum("split"), *known]
    depends: dict[str, Any] = {
        "nodes": [store.num_nodes, which, labels],
        "local_nodes": sampled,
        "tokens": [rows_of, features, config.tokens.model_dump(mode="json"), scaled, of_edges],
        "positions": [structure, config.local_nodes.direction, config.positions.relevant()],
    }
    if config.labels.hops:
        depends["label_contexts"] = [structure, labels, config.labels.hops]
    if config.labels.local:
        depends["label_counts"] = [rows_of, labels]
    return {stage: fingerprint([stage, _VERSIONS[stage], inputs]) for stage, inputs in depends.items()}
