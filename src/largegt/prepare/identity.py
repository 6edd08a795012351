"""What a preparation is of, and where it lies: settings as they come to for a store, and the names that follow.

Enters: a store and a PrepareConfig. Leaves: settled settings, the folder's path, and the name of each stage's result:
two that would be the same bytes have the same name. Cost: reading checksums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import storage
from ..config import PrepareConfig, TokensConfig
from ..errors import ConfigError, InputError
from ..folder import fingerprint
from ..graph.csr import index_dtype
from ..graph.lineage import State, earlier_state
from ..graph.store import GraphStore
from ..types import Array, Direction
from .blocks import marked_numbers

_UNSAID = (("hops", 2), ("contexts", "together"), ("degrees", False), ("weighted", False), ("edge_features", False))


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
    reads_both = config.labels.named() or config.local_nodes.near or config.positions.method == "laplacian"
    return along | ({"both"} if reads_both else set())


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
        raise InputError(f"{store.place} was never what {as_of} names: put the old store back, or train again")
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
    storage.refresh(path)
    return path.exists()


def identity_of(store: GraphStore, config: PrepareConfig, then: State | None = None) -> list[Any]:
    """What a preparation depends on."""
    tree = config.model_dump(mode="json", exclude={"labels"})
    tree |= {"local_nodes": config.local_nodes.named(), "tokens": _named(config.tokens)}
    tree |= {"labels": config.labels.named()} if config.labels.named() else {}
    return [store.fingerprint, tree, *([] if then is None else [["as of", then.fingerprint]])]


def as_told(store: GraphStore, config: PrepareConfig) -> dict[str, Any]:
    """The settings as a manifest has them: nothing of weights or features of edges where there are none, nor of
    surroundings where they were not asked for."""
    unsaid: dict[str, Any] = {} if store.weighted else {"local_nodes": {"weighted"}, "tokens": {"weighted"}}
    if not store.num_edge_features:
        unsaid["tokens"] = {*unsaid.get("tokens", ()), "edge_features"}
    if not config.local_nodes.near:
        unsaid["local_nodes"] = {*unsaid.get("local_nodes", ()), "near"}
    if not config.labels.local:
        unsaid["labels"] = {"local"}
    return config.model_dump(mode="json", exclude=unsaid)


def _named(tokens: TokensConfig) -> dict[str, Any]:
    """The settings that name token rows. What goes without saying is left out: preparations from before there was a
    choice keep their names."""
    tree = tokens.model_dump(mode="json")
    return {name: value for name, value in tree.items() if (name, value) not in _UNSAID}


def stage_fingerprints(store: GraphStore, config: PrepareConfig, then: State | None) -> dict[str, str]:
    """What each stage's result depends on, as a name."""
    which = config.local_nodes.nodes if config.local_nodes.nodes == "all" else store.folder.checksum("labels")
    structure = [store.structure_fingerprint, which]
    sampled = fingerprint([structure, config.local_nodes.relevant(), config.tokens.nodes])
    features = [store.folder.checksum("features"), store.feature_dtype]
    # as it was before directions could be apart, so that earlier rows are found
    along: Any = config.local_nodes.direction if config.tokens.contexts == "together" else directions_of(config)
    rows_of = [store.structure_fingerprint, along] if config.tokens.nodes == "all" else sampled
    known = [] if then is None else [then.fingerprint]
    scaled = known if config.tokens.standardize else []
    of_edges = []
    if config.tokens.edge_features is True:
        of_edges = [["edges", store.folder.checksum(f"{side}_edge_features")] for side in _edge_sides(store, config)]
    made = {
        "local_nodes": sampled,
        "tokens": fingerprint([rows_of, features, _named(config.tokens), *scaled, *of_edges]),
        "positions": fingerprint([structure, config.local_nodes.direction, config.positions.relevant()]),
        "label_contexts": fingerprint(
            [structure, store.folder.checksum("labels"), store.folder.checksum("split"), config.labels.hops, *known]
        ),
    }
    if config.local_nodes.near:
        made["near"] = fingerprint([sampled, "near"])
    if config.labels.local:
        labels = [store.folder.checksum("labels"), store.folder.checksum("split")]
        made["label_counts"] = fingerprint([rows_of, *labels, "counts", *known])
    return made
