"""Cache keys: what a preparation and each of its stages depend on.

Enters: a store and a PrepareConfig. Leaves: resolved settings, the folder's path, and the key of each stage; equal keys
mean the same bytes. Cost: reading checksums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from largegt.config.schema import PrepareConfig, ResolvedPrepareConfig
from largegt.data.pair_runs import index_dtype
from largegt.data.store import GraphStore
from largegt.data.versions import State, earlier_state
from largegt.errors import ConfigError, InputError
from largegt.io import remote
from largegt.io.checksums import fingerprint
from largegt.types import Array, Direction

from .blocks import marked_nodes

_VERSIONS = {
    "nodes": 1, "local_nodes": 2, "tokens": 3, "positions": 2, "neighbor_label_histogram": 2, "label_counts": 1,
}  # fmt: skip
"""The version of each stage's arithmetic: increase it when the result changes for the same inputs."""


def resolve_config(store: GraphStore, config: PrepareConfig) -> ResolvedPrepareConfig:
    """Resolve `auto` settings for this store, and disable settings without effect: separate directions of an undirected
    graph or without hops, and edge weights without weights, hops or samples."""
    if not isinstance(config, ResolvedPrepareConfig):
        config = ResolvedPrepareConfig(**dict(config))
    sampled, tokens = config.local_nodes, config.tokens
    has_weights, has_features = store.weighted, store.num_edge_features > 0
    for name, choice, exists, missing in (
        ("local_nodes.use_edge_weights", sampled.use_edge_weights, has_weights,
         "weights: ingest it with `weight_column='COLUMN'`"),
        ("tokens.use_edge_weights", tokens.use_edge_weights, has_weights,
         "weights: ingest it with `weight_column='COLUMN'`"),
        ("tokens.use_edge_features", tokens.use_edge_features, has_features,
         "features: ingest it with `edge_feature_columns='COLUMNS'`"),
    ):  # fmt: skip
        if choice is True and not exists:
            raise ConfigError(
                f"prepare.{name}=true, and the edges of {store.place} have no {missing}, or leave the setting out"
            )
    return config.model_copy(update={
        "local_nodes": sampled.model_copy(update={
            "use_edge_weights": has_weights and sampled.use_edge_weights is not False and sampled.k > 1,
        }),
        "tokens": tokens.model_copy(update={
            "use_edge_weights": has_weights and tokens.use_edge_weights is not False and tokens.num_hops > 0,
            "use_edge_features": has_features and tokens.use_edge_features is not False and tokens.num_hops > 0,
            "separate_directions": tokens.separate_directions and store.directed and tokens.num_hops > 0,
        }),
    })  # fmt: skip


def directions_of(config: ResolvedPrepareConfig) -> tuple[Direction, ...]:
    """The directions of the contexts; `config` is resolved."""
    return ("out", "in") if config.tokens.separate_directions else (config.local_nodes.direction,)


def directions_read(config: ResolvedPrepareConfig) -> set[Direction]:
    """The directions whose neighbours a preparation reads; `config` is resolved."""
    directions: set[Direction] = {config.local_nodes.direction, *directions_of(config)}
    if directions & {"in", "out"}:
        directions |= {"in", "out"}  # degrees of both sides
    reads_labels = bool(config.neighbor_label_hops) or config.local_label_histograms
    return directions | ({"both"} if reads_labels or config.positional_encoding.method == "laplacian" else set())


def nodes_to_prepare(store: GraphStore, config: ResolvedPrepareConfig) -> Array:
    """The prepared nodes: the labelled ones, or all."""
    if config.local_nodes.target_nodes == "all":
        return np.arange(store.num_nodes, dtype=np.dtype(index_dtype(store.num_nodes)))
    nodes = marked_nodes(store.labelled, np.dtype(index_dtype(store.num_nodes)))
    if not len(nodes):
        raise InputError(
            f"{store.place} has no labelled node to prepare: give labels to ingest, or prepare all nodes "
            "with `prepare.local_nodes.target_nodes=all`"
        )
    return nodes


def resolve_version(store: GraphStore, config: ResolvedPrepareConfig, version: str | None) -> State | None:
    """The earlier state with this fingerprint; None for the current one."""
    if version is None or version == store.fingerprint:
        return None
    state = earlier_state(store, version)
    if state is None:
        raise InputError(f"{store.place} did not come from its version {version} by append: train again")
    if state.directed != store.directed:
        raise InputError(f"{store.place} has {'' if store.directed else 'no '}directions since the append: train again")
    method = config.positional_encoding.method
    if method in ("node2vec", "laplacian"):
        raise ConfigError(
            f"{store.place} has grown, and its {method} encodings are unlike those of the training: train again, with "
            "`prepare.positional_encoding.method=random_projection` where a store is to grow"
        )
    return state


def prepared_path(store: GraphStore, config: PrepareConfig, version: str | None = None) -> Path:
    """The folder of this store's preparation with this configuration."""
    resolved = resolve_config(store, config)
    inputs = cache_key_inputs(store, resolved, resolve_version(store, resolved, version))
    return Path(store.path) / "prepared" / fingerprint(inputs)


def is_prepared(store: GraphStore, config: PrepareConfig) -> bool:
    """Whether this store has a preparation with this configuration."""
    path = prepared_path(store, config)
    remote.refresh(path)
    return (path / remote.MANIFEST).is_file()


def cache_key_inputs(store: GraphStore, config: ResolvedPrepareConfig, version: State | None = None) -> list[Any]:
    """Everything that a preparation depends on."""
    return [store.fingerprint, config.model_dump(mode="json"), stage_keys(store, config, version)]


def stage_keys(store: GraphStore, config: ResolvedPrepareConfig, version: State | None) -> dict[str, str]:
    """The key of each stage of a preparation, in order: a fingerprint of all its inputs."""
    checksum, tokens, direction = store.folder.checksum, config.tokens, config.local_nodes.direction
    which = config.local_nodes.target_nodes if config.local_nodes.target_nodes == "all" else checksum("labels")
    structure = [store.structure_fingerprint, which]
    sampled = [structure, config.local_nodes.relevant(), tokens.precompute_for]
    used = {"all": [], "reachable": [which, direction], "sampled": sampled}[tokens.precompute_for]
    rows_of = [store.structure_fingerprint, directions_of(config), used]
    scale_version = [] if version is None else [version.fingerprint]
    features = [checksum("features"), store.feature_dtype, scale_version if tokens.normalize != "none" else []]
    if tokens.use_edge_features is True:  # the directions of the contexts and of the scale
        sides = sorted({*directions_of(config), direction}) if store.directed else ["out"]
        features += [checksum(f"{side}_edge_features") for side in sides]
    labels = [checksum("labels"), checksum("split"), *scale_version]
    depends: dict[str, Any] = {
        "nodes": [store.num_nodes, which, labels],
        "local_nodes": sampled,
        "tokens": [rows_of, features, tokens.model_dump(mode="json")],
        "positions": [structure, direction, config.positional_encoding.relevant()],
    }
    if config.neighbor_label_hops:
        depends["neighbor_label_histogram"] = [structure, labels, config.neighbor_label_hops]
    if config.local_label_histograms:
        depends["label_counts"] = [rows_of, labels]
    return {stage: fingerprint([stage, _VERSIONS[stage], inputs]) for stage, inputs in depends.items()}
