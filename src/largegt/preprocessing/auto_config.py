"""`--recipe auto`: settings for a graph one has just met, from its size, density, features, labels and what they tell.

Enters: a store, and whether a GPU will train. Leaves: settings on top of the default recipe, each with its reason.
Cost: features of a thousand nodes, and a sample of 16 local nodes for 20,000 training nodes at most. Rules are few and
coarse: docs/accuracy.md has what they were made from, and `largegt tune` goes on from there.
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
_TELLING, _NEARER, _DENSE, _SPARSE = 0.02, 1.3, 20.0, 0.5
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 2400, 10, 40
_TINY, _TINY_STEPS, _TINY_EPOCHS, _SMALLEST_BATCH = 1000, 4, 60, 8
"""Training nodes of which whole batches would be too few steps; then steps an epoch, and epochs."""
_SCARCE, _MOST_OTHERS = 50, 1_000_000
"""Labels a class below which nodes without one are to teach, and how many of those are prepared for it at most."""


@dataclass(frozen=True)
class Facts:
    """What the rules look at."""

    num_train: int
    mean_degree: float
    """Neighbours of a node, whatever the direction."""
    told: float | None = None
    """How much the label of a local node tells of a node's own, 0 nothing to 1 all: `label_information` over samples
    of both hops. None: no classes."""
    label_information_near: float | None = None
    """The same of direct neighbours."""
    num_classes: int = 0
    """Among training nodes; 0: no classes."""
    num_others: int = 0
    """Nodes without a training label."""
    zeros: float = 0.0
    """Share of zeros in the features of nodes that have any."""

    @classmethod
    def of(cls, store: GraphStore) -> Facts:
        train = store.splits["train"]
        ends = store.num_edges * (2 if store.directed else 1)
        facts = cls(len(train), ends / max(1, store.num_nodes), zeros=share_of_zeros(store, train))
        if store.task not in ("multiclass", "binary") or not len(train):
            return facts
        return replace(
            facts, told=label_information(store, train), label_information_near=label_information(store, train, 1.0),
            num_classes=len(np.unique(np.asarray(store.labels[train]))), num_others=store.num_nodes - len(train),
        )  # fmt: skip

    @property
    def is_scarce(self) -> bool:
        """Whether labels are few, and there are nodes without one to make up for it."""
        return self.num_train < _SCARCE * self.num_classes and self.num_train <= self.num_others <= _MOST_OTHERS


@dataclass(frozen=True)
class Choice:
    """A setting and why it is so."""

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
    near = facts.label_information_near or 0.0
    nearer = near >= _TELLING and near >= _NEARER * (facts.told or 0.0)
    share = 0.75 if nearer or facts.mean_degree >= _DENSE else 0.5
    wide = gpu and not few
    device = "on a GPU" if gpu else "on a CPU"
    found = [
        Choice("prepare.local_nodes.hop1_fraction", f"{share}", _of_neighbors(facts)),
        Choice("model.hidden_dim", "256" if wide else "128", f"{device}, {nodes}"),
        Choice("model.num_layers", "2" if wide else "1", f"{device}, {nodes}"),
        Choice("model.dropout", "0.4" if few else "0.1" if many else "0.2", nodes),
        Choice("train.batch_size", f"{batch}", nodes),
        Choice("train.epochs", f"{epochs}", f"{nodes}, {epochs * -(-facts.num_train // batch):,} steps"),
    ]
    tells = (facts.told or 0.0) >= _TELLING
    if facts.told is not None:
        reason = f"labels around a node tell {100 * facts.told:.0f}% of its own, {nodes}"
        found.append(Choice("model.label_embeddings", "true" if tells and not few else "false", reason))
    can_drop = facts.zeros >= _SPARSE and tells
    if can_drop:
        reason = f"{100 * facts.zeros:.0f}% of the features are 0, and what is around a node tells of it"
        found.append(Choice("model.input_dropout", "0.5", reason))
    if facts.is_scarce and can_drop and alone:  # views differ enough where words are dropped
        reason = f"{facts.num_train / facts.num_classes:.0f} labels a class, {facts.num_others:,} nodes without one"
        found.append(Choice("train.consistency_weight", "1", reason))
        found.append(Choice("prepare.local_nodes.target_nodes", "all", "nodes without a label take part"))
    return found


def small_batch(num_train: int) -> int:
    """Nodes a step where there are few of them."""
    return max(_SMALLEST_BATCH, -(-num_train // _TINY_STEPS))


def _of_neighbors(facts: Facts) -> str:
    words = f"{facts.mean_degree:.1f} neighbours a node"
    if facts.told is None or facts.label_information_near is None:
        return words
    near, both = 100 * facts.label_information_near, 100 * facts.told
    return f"{words}, whose labels tell {near:.0f}% of its own, those of both hops {both:.0f}%"


def label_information(store: GraphStore, train: Array, hop1_fraction: float | None = None) -> float:
    """I(Y; Y') / H(Y) for the label Y of a training node and Y' of a training node among its local nodes: 1 where they
    are always the same or one follows from the other, 0 where they are independent, or there are none."""
    some = train[:: max(1, -(-len(train) // _SAMPLED))]
    near = local_nodes(store, some, _LOCAL, hop1_fraction=hop1_fraction)[:, 1:]
    is_train = np.zeros(store.num_nodes, dtype=np.bool_)
    is_train[train] = True
    pairs = is_train[near] & (near != some[:, None])
    labels = np.asarray(store.labels).astype(np.int64)
    own, other = np.broadcast_to(labels[some][:, None], near.shape)[pairs], labels[near[pairs]]
    num_classes = int(labels.max()) + 1
    together = np.bincount(own * num_classes + other, minlength=num_classes**2).reshape(num_classes, num_classes)
    if not together.any():
        return 0.0
    joint = together / together.sum()
    by_own, by_other = joint.sum(axis=1), joint.sum(axis=0)
    there = joint > 0
    information = (joint[there] * np.log(joint[there] / np.outer(by_own, by_other)[there])).sum()
    entropy = -(by_own[by_own > 0] * np.log(by_own[by_own > 0])).sum()
    return float(information / entropy) if entropy > 0 else 0.0


def share_of_zeros(store: GraphStore, train: Array) -> float:
    """Of the features of some training nodes, leaving out nodes that have none at all."""
    some = train[:: max(1, -(-len(train) // _FEATURE_ROWS))]
    is_there = np.asarray(store.features[some]) != 0
    is_there = is_there[is_there.any(axis=1)]
    return float(1 - is_there.mean()) if is_there.size else 0.0
