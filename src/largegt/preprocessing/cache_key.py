"""Cache keys: what a preparation and each of its stages depend on.

Enters: a store and a PrepareConfig. Leaves: resolved settings, the folder's path, and the key of each stage: two that
would be the same bytes have the same key. Cost: reading checksums.
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

from .blocks import marked_numbers

_VERSIONS = {
    "nodes": 1, "local_nodes": 2, "tokens": 3, "positions": 2, "neighbor_label_histogram": 2, "label_counts": 1,
}  # fmt: skip
"""Of each stage's arithmetic: raise one when its result changes for the same inputs."""


def resolve_config(store: GraphStore, config: PrepareConfig) -> ResolvedPrepareConfig:
    """What a configuration comes to for this store: without directions or hops none are separate, and
    without weights, hops or samples nothing to weigh."""
    if not isinstance(config, ResolvedPrepareConfig):
        config = ResolvedPrepareConfig(**dict(config))
    sampled, tokens = config.local_nodes, config.tokens
    has_weights, has_features = store.weighted, store.num_edge_features > 0
    for name, choice, is_there, missing in (
        ("local_nodes.use_edge_weights", sampled.use_edge_weights, has_weights,
         "weights: ingest it with `weight_column='COLUMN'`"),
        ("tokens.use_edge_weights", tokens.use_edge_weights, has_weights,
         "weights: ingest it with `weight_column='COLUMN'`"),
        ("tokens.use_edge_features", tokens.use_edge_features, has_features,
         "features: ingest it with `edge_feature_columns='COLUMNS'`"),
    ):  # fmt: skip
        if choice is True and not is_there:
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
    """The directions of the contexts, of resolved settings."""
    return ("out", "in") if config.tokens.separate_directions else (config.local_nodes.direction,)


def directions_read(config: ResolvedPrepareConfig) -> set[Direction]:
    """The directions whose neighbours a preparation reads, of resolved settings."""
    along: set[Direction] = {config.local_nodes.direction, *directions_of(config)}
    if along & {"in", "out"}:
        along |= {"in", "out"}  # degrees of the other side
    reads_labels = bool(config.neighbor_label_hops) or config.local_label_histograms
    return along | ({"both"} if reads_labels or config.positional_encoding.method == "laplacian" else set())


def nodes_to_prepare(store: GraphStore, config: ResolvedPrepareConfig) -> Array:
    """The nodes that get a row: the labelled ones, or all."""
    if config.local_nodes.target_nodes == "all":
        return np.arange(store.num_nodes, dtype=np.dtype(index_dtype(store.num_nodes)))
    nodes = marked_numbers(store.labelled, np.dtype(index_dtype(store.num_nodes)))
    if not len(nodes):
        raise InputError(
            f"{store.place} has no labelled node to prepare: give labels to ingest, or prepare all nodes "
            "with `prepare.local_nodes.target_nodes=all`"
        )
    return nodes


def state_as_of(store: GraphStore, config: ResolvedPrepareConfig, as_of: str | None) -> State | None:
    """The earlier state of this name; None for the store as it is."""
    if as_of is None or as_of == store.fingerprint:
        return None
    state = earlier_state(store, as_of)
    if state is None:
        raise InputError(f"{store.place} did not come from its version {as_of} by append: train again")
    if state.directed != store.directed:
        raise InputError(f"{store.place} has {'' if store.directed else 'no '}directions since it grew: train again")
    method = config.positional_encoding.method
    if method in ("node2vec", "laplacian"):
        raise ConfigError(
            f"{store.place} has grown, and its {method} encodings are unlike those of the training: train again, with "
            "`prepare.positional_encoding.method=random_projection` where a store is to grow"
        )
    return state


def prepared_path(store: GraphStore, config: PrepareConfig, as_of: str | None = None) -> Path:
    """Where this configuration's preparation of this store lies, or will lie."""
    resolved = resolve_config(store, config)
    return (
        Path(store.path) / "prepared" / fingerprint(identity_of(store, resolved, state_as_of(store, resolved, as_of)))
    )


def is_prepared(store: GraphStore, config: PrepareConfig) -> bool:
    """Whether there is a preparation of this store by this configuration."""
    path = prepared_path(store, config)
    remote.refresh(path)
    return (path / remote.MANIFEST).is_file()


def identity_of(store: GraphStore, config: ResolvedPrepareConfig, then: State | None = None) -> list[Any]:
    """What a preparation depends on."""
    return [store.fingerprint, config.model_dump(mode="json"), stage_keys(store, config, then)]


def stage_keys(store: GraphStore, config: ResolvedPrepareConfig, then: State | None) -> dict[str, str]:
    """The key of each stage that a preparation has, in the order of their making: what its result depends on."""
    sum_of, tokens, direction = store.folder.checksum, config.tokens, config.local_nodes.direction
    which = config.local_nodes.target_nodes if config.local_nodes.target_nodes == "all" else sum_of("labels")
    structure = [store.structure_fingerprint, which]
    sampled = [structure, config.local_nodes.relevant(), tokens.precompute_for]
    used = {"all": [], "reachable": [which, direction], "sampled": sampled}[tokens.precompute_for]
    rows_of = [store.structure_fingerprint, directions_of(config), used]
    known = [] if then is None else [then.fingerprint]
    features = [sum_of("features"), store.feature_dtype, known if tokens.normalize != "none" else []]
    if tokens.use_edge_features is True:  # those of the contexts, and those that set the scale
        sides = sorted({*directions_of(config), direction}) if store.directed else ["out"]
        features += [sum_of(f"{side}_edge_features") for side in sides]
    labels = [sum_of("labels"), sum_of("split"), *known]
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
