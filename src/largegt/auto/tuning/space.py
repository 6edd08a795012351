"""The search space of a tuning: a table of settings per model, and `--search` in the same syntax.

Enters: a recipe with its overrides, and texts such as `train.learning_rate=1e-4..1e-2:log` (a range) or
`model.hidden_dim=64,128` (a choice). Leaves: a `Space` of Optuna distributions, in which Config accepts every single
value, and the starting point: the recipe's own values.

A choice is a text in the syntax of `--set` (`none`, `true`, `[20,10]`), so a trial is a list of overrides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from largegt.config.models import ModelSpec
from largegt.config.overrides import setting_names, text_of
from largegt.config.schema import Config
from largegt.errors import ConfigError
from largegt.types import PathLike, Task

Value = str | int | float

_COMMON = {
    "train.learning_rate": "1e-4..2e-2:log",
    "train.weight_decay": "1e-5..1e-1:log",
    "train.label_smoothing": "0,0.1,0.2",
    "model.hidden_dim": "64,128,256",
    "model.dropout": "0..0.6",
    "model.norm": "layer,batch,none",
    "model.num_layers": "1,2,3",
    "model.ffn_ratio": "0,1,2,4",
    "model.encoder_dropout": "0..0.4",
    "model.neighbor_label_hops": "0,1,2",
    "model.label_embeddings": "false,true",
    "model.local_label_histograms": "false,true",
    "model.hop_distance_embedding": "false,true",
    "model.local_node_dropout": "0,0.1,0.3",
    "model.input_dropout": "0..0.5",
    "model.codebook.num_centroids": "256,1024,4096",
    "model.fanouts": "[10,5],[20,10],[30,20],[10,5,5],[15,10,5],[20,15,10]",
}
_OF_LOCAL_NODES = {
    "prepare.local_nodes.k": "16,32,50,100",
    "prepare.local_nodes.hop1_fraction": "none,0.25,0.5,0.75,1",
    "prepare.tokens.add_degrees": "false,true",
    "prepare.tokens.normalize": "none,per_feature,global",
    "train.resample": "never,epoch",
}


def search_space(spec: ModelSpec) -> dict[str, str]:
    """The default search space: the settings of a model that are worth a trial."""
    own = {f"model.{name}" for name in setting_names(spec.settings)}
    space = {name: text for name, text in _COMMON.items() if name in own or not name.startswith("model.")}
    if "local_nodes" in spec.inputs:
        space |= _OF_LOCAL_NODES
    elif "contexts" in spec.inputs:
        space["prepare.tokens.num_hops"] = "1,2,3"
    return {**space, **spec.search}


Number = IntDistribution | FloatDistribution


@dataclass(frozen=True)
class Space:
    """Distributions by the full name of a setting, around a recipe."""

    recipe: PathLike | Config
    overrides: tuple[str, ...]
    axes: dict[str, BaseDistribution]
    own: dict[str, Value]
    """The recipe's own values."""
    start: dict[str, Value]
    """The first trial: the recipe's values, moved into the search space."""

    def config(self, values: Mapping[str, Value]) -> Config:
        """The whole configuration of one trial."""
        return Config.from_recipe(self.recipe, [*self.overrides, *(f"{name}={values[name]}" for name in values)])

    def allows(self, name: str, value: Any) -> bool:
        """Whether a trial may have this value."""
        axis = self.axes.get(name)
        if isinstance(axis, CategoricalDistribution):
            return value in axis.choices
        return isinstance(axis, Number) and type(value) in (int, float) and axis.low <= value <= axis.high


def make_space(
    recipe: PathLike | Config, overrides: Iterable[str] = (), search: Iterable[str] = (), task: Task = "multiclass",
    only: bool = False,
) -> Space:  # fmt: skip
    """The search space of the recipe's model, widened to include the recipe's values, with `search` on top. Settings
    fixed by an override are not searched; with `only`, `search` is the whole space."""
    overrides = tuple(overrides)
    empty = Space(recipe, overrides, {}, {}, {})
    base = empty.config({})
    given = dict(_split(item) for item in search)
    left_out = {override.partition("=")[0].strip() for override in overrides} | given.keys()
    if task == "regression":  # it has no classes
        left_out.add("train.label_smoothing")
    table = {} if only else {name: text for name, text in search_space(base.model.spec).items() if name not in left_out}
    widened = {name: _of_table(empty, base, name, text) for name, text in table.items()}
    axes = {name: axis for name, axis in widened.items() if axis is not None}
    axes |= {name: _of_user(empty, name, text) for name, text in given.items()}
    if not axes:
        raise ConfigError("there is nothing to search: give `search`, e.g. model.hidden_dim=64,128")
    values = {name: value_of(base, name) for name in axes}
    own = {name: values[name] if isinstance(axis, Number) and isinstance(values[name], int | float) else
           text_of(values[name]) for name, axis in axes.items()}  # fmt: skip
    return replace(empty, axes=axes, own=own, start={name: _nearest(axis, values[name]) for name, axis in axes.items()})


def value_of(config: Config, name: str) -> Any:
    """The value of a setting by its full name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _nearest(axis: BaseDistribution, value: Any) -> Value:
    """The value if the axis has it, otherwise the closest number, or the first choice."""
    if isinstance(axis, Number):
        number = min(max(float(value), axis.low), axis.high) if isinstance(value, int | float) else axis.low
        return round(number) if isinstance(axis, IntDistribution) else number
    assert isinstance(axis, CategoricalDistribution)
    text, choices = text_of(value), [str(one) for one in axis.choices]
    numbers = [one for one in choices if _is_number(one)] if _is_number(text) and text not in choices else []
    if numbers:
        return min(numbers, key=lambda one: abs(float(one) - float(text)))
    return text if text in choices else choices[0]


# reading -----------------------------------------------------------------------------------------------------------


def _split(item: str) -> tuple[str, str]:
    name, equals, text = (part.strip() for part in item.partition("="))
    if not equals or not name or not text:
        raise ConfigError(
            f"search {item!r} is not of the form NAME=VALUES: write train.learning_rate=1e-4..1e-2:log or "
            "model.hidden_dim=64,128"
        )
    return name, text


def _of_table(space: Space, base: Config, name: str, text: str) -> BaseDistribution | None:
    """The table's entry, with the recipe's value and without values that do not fit the recipe."""
    value, axis = value_of(base, name), _parse(base, name, text)
    if isinstance(axis, Number):
        if axis.log and not value:  # zero has no logarithm: offer powers of ten instead
            powers = range(math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high)) + 1)
            return CategoricalDistribution([text_of(value), *(text_of(10.0**power) for power in powers)])
        return type(axis)(min(axis.low, value), max(axis.high, value), log=axis.log)
    values = [text_of(value)]
    for one in axis.choices:
        if isinstance(value, tuple) and str(one).count(",") != len(value) - 1:
            continue
        with suppress(ConfigError):  # the value does not fit the recipe
            values.append(text_of(value_of(space.config({name: str(one)}), name)))
    ordered = sorted(dict.fromkeys(values), key=lambda one: float(one) if _is_number(one) else -math.inf)
    return CategoricalDistribution(ordered) if len(ordered) > 1 else None


def _of_user(space: Space, name: str, text: str) -> BaseDistribution:
    """An entry of `--search`, with every value validated by Config."""
    first = re.split(r"\.\.|,", text)[0] if not text.startswith("[") else text.partition("]")[0] + "]"
    base = space.config({name: first})  # report an unknown name before invalid values
    axis = _parse(base, name, text)
    if isinstance(axis, CategoricalDistribution):
        values = [text_of(value_of(space.config({name: str(one)}), name)) for one in axis.choices]
        return CategoricalDistribution(list(dict.fromkeys(values)))
    for end in (axis.low, axis.high):
        space.config({name: end})
    return axis


def _parse(config: Config, name: str, text: str) -> CategoricalDistribution | Number:
    if ".." not in text:
        parts = [part.strip() for part in re.findall(r"\[[^\]]*\]|[^,\[\]]+", text) if part.strip()]
        return CategoricalDistribution(parts)
    ends, _, scale = text.partition(":")
    low, _, high = (part.strip() for part in ends.partition(".."))
    kinds = _kinds(config, name)
    if not {int, float} & kinds:
        raise ConfigError(f"search {name}={text}: it is no number, so list its values: {name}=this,that")
    if not _is_number(low) or not _is_number(high) or scale not in ("", "log"):
        raise ConfigError(f"search {name}={text} is no range: write {name}=LOW..HIGH or {name}=LOW..HIGH:log")
    if not float(low) < float(high):
        raise ConfigError(f"search {name}={text}: {low} is not below {high}")
    if scale == "log" and float(low) <= 0:
        raise ConfigError(f"search {name}={text}: a logarithmic range begins above 0")
    if float in kinds:
        return FloatDistribution(float(low), float(high), log=scale == "log")
    return IntDistribution(round(float(low)), round(float(high)), log=scale == "log")


def _kinds(config: Config, name: str) -> set[Any]:
    """The types that a setting's values may have."""
    table, _, field = name.rpartition(".")
    annotation = type(value_of(config, table)).model_fields[field].annotation
    return {annotation, *get_args(annotation)}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
