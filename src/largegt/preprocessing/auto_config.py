"""`--recipe auto`: settings for a new graph from its size, density, features and labels.

Enters: a store, and whether a GPU will train. Leaves: settings on top of the default recipe, each with its reason.
Cost: the features of 1,000 nodes and 16 local nodes for at most 20,000 training nodes. The rules are few and coarse:
docs/accuracy.md has the experiments behind them, and `largegt tune` improves on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from largegt.config.models import overrides_read
from largegt.config.overrides import as_overrides, leaves
from largegt.config.recipes import AUTO, recipe_for
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.types import Array, PathLike

from .sampling.local_nodes import local_nodes

_SAMPLED, _LOCAL, _FEATURE_ROWS = 20_000, 16, 1000
_FEW, _MANY = 10_000, 100_000
"""Training nodes: below the first a model overfits soon, above the second it hardly does."""
_INFORMATIVE, _ONE_HOP_RATIO, _DENSE, _SPARSE = 0.02, 1.3, 20.0, 0.5
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 2400, 10, 40
_TINY, _TINY_STEPS, _TINY_EPOCHS, _SMALLEST_BATCH = 1000, 4, 60, 8
"""Below so many training nodes, batches of 256 give too few steps: then steps per epoch, epochs, smallest batch."""
_SCARCE, _MOST_OTHERS = 50, 1_000_000
"""Consistency training needs fewer labels per class than this, and at most so many nodes without a training label."""


@dataclass(frozen=True)
class Facts:
    """Measurements of a graph that the rules use."""

    num_train: int
    mean_degree: float
    """Edges in both directions count."""
    label_information: float | None = None
    """The share of the label entropy that the label of a local node explains, over samples of both hops. None: no
    classes."""
    label_information_one_hop: float | None = None
    """The same over samples of direct neighbours."""
    num_classes: int = 0
    """Among training nodes; 0: no classes."""
    num_others: int = 0
    """Nodes without a training label."""
    zeros: float = 0.0
    """Share of zeros in the features, over nodes with any non-zero feature."""

    @classmethod
    def of(cls, store: GraphStore) -> Facts:
        train = store.splits["train"]
        ends = store.num_edges * (2 if store.directed else 1)
        facts = cls(len(train), ends / max(1, store.num_nodes), zeros=share_of_zeros(store, train))
        if store.task not in ("multiclass", "binary") or not len(train):
            return facts
        return replace(
            facts, num_classes=len(np.unique(np.asarray(store.labels[train]))), num_others=store.num_nodes - len(train),
            label_information=label_information(store, train),
            label_information_one_hop=label_information(store, train, 1.0),
        )  # fmt: skip

    @property
    def is_scarce(self) -> bool:
        """Whether there are few labels per class and enough nodes without a training label."""
        return self.num_train < _SCARCE * self.num_classes and self.num_train <= self.num_others <= _MOST_OTHERS


@dataclass(frozen=True)
class Choice:
    """A setting and the reason for it."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def auto_config(
    store: GraphStore | PathLike, overrides: Iterable[str] = (), gpu: bool | None = None, processes: int | None = None
) -> tuple[Config, list[Choice]]:
    """A whole configuration for this store, and what was chosen for it; overrides are the last word. `gpu` says whether
    one will train; by itself, whether there is one. `processes` are those that will train together; by itself, those
    that this one was started among."""
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    if gpu is None:
        import torch

        gpu = torch.cuda.is_available()
    given = list(overrides)
    named = {override.partition("=")[0].strip() for override in given}
    if processes is None:
        from largegt.runtime.distributed import launched_world_size

        processes = launched_world_size()
    model = [override for override in given if override.partition("=")[0].strip() == "model.name"]
    name = Config.from_recipe("default", model).model.name
    if not name.startswith("largegt"):
        raise ConfigError(f"recipe auto is for LargeGT, and {name} has a recipe of its own")
    made = [choice for choice in choose(Facts.of(store), gpu, processes == 1) if choice.name not in named]
    read = overrides_read(map(str, made), name)
    made = [choice for choice in made if str(choice) in read]
    return Config.from_recipe("default", [*map(str, made), *given]), made


ConfigLike = PathLike | Mapping[str, Any] | Config | None
"""A configuration in any of its forms: a recipe's name or file, `auto`, settings by name, a Config; None: `default`."""


def config_for(
    store: GraphStore, config: ConfigLike = None, overrides: Iterable[str] = (), processes: int | None = None
) -> tuple[Config, list[Choice]]:
    """The whole configuration, with overrides on top, and what `auto` chose of it."""
    recipe, own = recipe_and_overrides(config)
    if recipe == AUTO:
        return auto_config(store, [*own, *overrides], processes=processes)
    return Config.from_recipe(recipe, [*own, *overrides]), []


def recipe_and_overrides(config: ConfigLike) -> tuple[PathLike | Config, list[str]]:
    """A configuration as a recipe and what is set on top. Settings by name, in nested tables or dotted, are on top of
    the recipe that they name as `recipe`, or of the own recipe of the model that they name."""
    if config is None:
        return "default", []
    if isinstance(config, str | Path | Config):
        return config, []
    if not isinstance(config, Mapping):
        raise ConfigError(f"a configuration cannot be {config!r}: give a recipe, a .toml file, a dict or a Config")
    settings = {str(name): value for name, value in config.items() if name != "recipe"}
    model = dict(leaves(settings)).get("model.name")
    recipe = config.get("recipe") or (recipe_for(str(model)) if model else None)
    return recipe_and_overrides(recipe)[0], as_overrides(settings)


def choose(facts: Facts, gpu: bool, alone: bool = True) -> list[Choice]:
    """The rules. `alone`: one process will train."""
    few, many = facts.num_train < _FEW, facts.num_train >= _MANY
    nodes = f"{facts.num_train:,} training nodes"
    batch = 256 if few else 1024 if many else 512
    epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, round(_STEPS * batch / max(1, facts.num_train))))
    if facts.num_train < _TINY:
        batch, epochs = small_batch(facts.num_train), _TINY_EPOCHS
    one_hop, both_hops = facts.label_information_one_hop or 0.0, facts.label_information or 0.0
    prefers_one_hop = one_hop >= _INFORMATIVE and one_hop >= _ONE_HOP_RATIO * both_hops
    hop1_fraction = 0.75 if prefers_one_hop or facts.mean_degree >= _DENSE else 0.5
    wide = gpu and not few
    device = "on a GPU" if gpu else "on a CPU"
    found = [
        Choice("prepare.local_nodes.hop1_fraction", f"{hop1_fraction}", _of_neighbors(facts)),
        Choice("model.hidden_dim", "256" if wide else "128", f"{device}, {nodes}"),
        Choice("model.num_layers", "2" if wide else "1", f"{device}, {nodes}"),
        Choice("model.dropout", "0.4" if few else "0.1" if many else "0.2", nodes),
        Choice("train.batch_size", f"{batch}", nodes),
        Choice("train.epochs", f"{epochs}", f"{nodes}, {epochs * -(-facts.num_train // batch):,} steps"),
    ]
    is_informative = both_hops >= _INFORMATIVE
    if facts.label_information is not None:
        reason = f"labels around a node tell {100 * facts.label_information:.0f}% of its own, {nodes}"
        found.append(Choice("model.label_embeddings", "true" if is_informative and not few else "false", reason))
    can_drop = facts.zeros >= _SPARSE and is_informative
    if can_drop:
        reason = f"{100 * facts.zeros:.0f}% of the features are 0, and what is around a node tells of it"
        found.append(Choice("model.input_dropout", "0.5", reason))
    if facts.is_scarce and can_drop and alone:  # input dropout makes the two views differ enough
        reason = f"{facts.num_train / facts.num_classes:.0f} labels a class, {facts.num_others:,} nodes without one"
        found.append(Choice("train.consistency_weight", "1", reason))
        found.append(Choice("prepare.local_nodes.target_nodes", "all", "nodes without a label take part"))
    return found


def small_batch(num_train: int) -> int:
    """The batch size for few training nodes."""
    return max(_SMALLEST_BATCH, -(-num_train // _TINY_STEPS))


def _of_neighbors(facts: Facts) -> str:
    words = f"{facts.mean_degree:.1f} neighbours a node"
    if facts.label_information is None or facts.label_information_one_hop is None:
        return words
    one_hop, both_hops = 100 * facts.label_information_one_hop, 100 * facts.label_information
    return f"{words}, whose labels tell {one_hop:.0f}% of its own, those of both hops {both_hops:.0f}%"


def label_information(store: GraphStore, train: Array, hop1_fraction: float | None = None) -> float:
    """I(Y; Y') / H(Y) for the label Y of a training node and the label Y' of a training node among its local nodes: 1
    if Y' determines Y, 0 if they are independent or there are no such pairs."""
    sampled = train[:: max(1, -(-len(train) // _SAMPLED))]
    neighbors = local_nodes(store, sampled, _LOCAL, hop1_fraction=hop1_fraction)[:, 1:]
    is_train = np.zeros(store.num_nodes, dtype=np.bool_)
    is_train[train] = True
    pairs = is_train[neighbors] & (neighbors != sampled[:, None])
    labels = np.asarray(store.labels).astype(np.int64)
    own, other = np.broadcast_to(labels[sampled][:, None], neighbors.shape)[pairs], labels[neighbors[pairs]]
    num_classes = int(labels.max()) + 1
    counts = np.bincount(own * num_classes + other, minlength=num_classes**2).reshape(num_classes, num_classes)
    if not counts.any():
        return 0.0
    joint = counts / counts.sum()
    p_own, p_other = joint.sum(axis=1), joint.sum(axis=0)
    positive = joint > 0
    information = (joint[positive] * np.log(joint[positive] / np.outer(p_own, p_other)[positive])).sum()
    entropy = -(p_own[p_own > 0] * np.log(p_own[p_own > 0])).sum()
    return float(information / entropy) if entropy > 0 else 0.0


def share_of_zeros(store: GraphStore, train: Array) -> float:
    """The share of zeros in the features of a sample of training nodes, without nodes whose features are all zero."""
    sampled = train[:: max(1, -(-len(train) // _FEATURE_ROWS))]
    is_nonzero = np.asarray(store.features[sampled]) != 0
    is_nonzero = is_nonzero[is_nonzero.any(axis=1)]
    return float(1 - is_nonzero.mean()) if is_nonzero.size else 0.0
