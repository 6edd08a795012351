"""What a tuning searches: a table of settings per model, and what `--search` says in the same words.

Enters: a recipe with its overrides, and texts such as `train.learning_rate=1e-4..1e-2:log` (a range) or
`model.hidden=64,128` (a choice). Leaves: a `Space`, in which every value on its own is one that Config takes, and the
point to start from: the recipe's own values.

A choice is kept as the text that `--set` would take (`none`, `true`, `[20,10]`), so that a trial is overrides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from largegt.config.schema import Config
from largegt.errors import ConfigError
from largegt.types import PathLike, Task

Value = str | int | float

_EVERY = {
    "train.learning_rate": "1e-4..2e-2:log",
    "train.weight_decay": "1e-5..1e-1:log",
    "train.label_smoothing": "0,0.1,0.2",
}
_WIDTH = {"model.hidden": "64,128,256"}
_LAYERS = {"model.num_layers": "1,2,3"}
_BLOCKS = {"model.dropout": "0..0.6", "model.norm": "layer,batch,none"}
_ENCODER = _LAYERS | {"model.encoder_ffn": "0,1,2,4", "model.encoder_dropout": "0..0.4"}
_LOCAL = _ENCODER | {
    "prepare.local_nodes.k": "16,32,50,100",
    "prepare.local_nodes.hop1_share": "none,0.25,0.5,0.75,1",
    "prepare.tokens.degrees": "false,true",
    "prepare.tokens.standardize": "false,true,whole",
    "train.resample": "never,epoch",
    "model.label_contexts": "0,1,2",
    "model.label_tokens": "false,true",
    "model.label_surroundings": "false,true",
    "model.distances": "false,true",
    "model.input_dropout": "0..0.5",
    "model.node_dropout": "0,0.1,0.3",
}
_CODEBOOK = {"model.codebook.centroids": "256,1024,4096"}
_HOPS = {"prepare.tokens.hops": "1,2,3"}
_INPUT = {"model.input_dropout": "0..0.5"}
_FANOUTS = {"model.fanouts": "[10,5],[20,10],[30,20],[10,5,5],[15,10,5],[20,15,10]"}
_MESSAGES = _WIDTH | _BLOCKS | _INPUT | _FANOUTS

SPACES: dict[str, dict[str, str]] = {
    "largegt-full": _EVERY | _WIDTH | _BLOCKS | _LOCAL | _CODEBOOK,
    "largegt-local": _EVERY | _WIDTH | _BLOCKS | _LOCAL,
    "largegt-global": _EVERY | _WIDTH | _BLOCKS | _CODEBOOK,
    "mlp": _EVERY | _WIDTH | _BLOCKS | _LAYERS,
    "sgc": _EVERY | _INPUT | _HOPS,
    "sign": _EVERY | _WIDTH | _BLOCKS | _LAYERS | _HOPS,
    "linkx": _EVERY | _WIDTH | _BLOCKS | _LAYERS,
    "graphsage": _EVERY | _MESSAGES,
    "gat": _EVERY | _MESSAGES,
    "gt-sparse": _EVERY | _MESSAGES,
    "nagphormer": _EVERY | _WIDTH | _ENCODER | _HOPS,
    "goat-local": _EVERY | _WIDTH | _BLOCKS | _FANOUTS,
    "goat-global": _EVERY | _WIDTH | _BLOCKS | _CODEBOOK,
    "goat-full": _EVERY | _WIDTH | _BLOCKS | _FANOUTS | _CODEBOOK,
}
"""What is searched when nothing is said: the settings that a model reads and that are worth a trial."""


@dataclass(frozen=True)
class Choices:
    """One of these, each as `--set` takes it."""

    values: tuple[str, ...]

    def nearest(self, value: Any) -> Value:
        """The value itself, or of numbers the closest; the first where there is none."""
        text = text_of(value)
        if text in self.values:
            return text
        numbers = [float(one) for one in self.values if _is_number(one)]
        if not _is_number(text) or not numbers:
            return self.values[0]
        return min((one for one in self.values if _is_number(one)), key=lambda one: abs(float(one) - float(text)))

    def __str__(self) -> str:
        return ",".join(self.values)


@dataclass(frozen=True)
class Range:
    """A number from low to high."""

    low: float
    high: float
    log: bool
    whole: bool

    def nearest(self, value: Any) -> Value:
        """The value itself where it lies inside, otherwise the end that is closer; low where it is no number."""
        number = min(max(float(value), self.low), self.high) if isinstance(value, int | float) else self.low
        return round(number) if self.whole else number

    def __str__(self) -> str:
        return f"{text_of(self.low)}..{text_of(self.high)}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """What is searched, by the setting's full name, around a recipe."""

    recipe: PathLike | Config
    overrides: tuple[str, ...]
    axes: dict[str, Choices | Range]
    own: dict[str, Value]
    """The recipe's own values."""
    start: dict[str, Value]
    """The same, brought into what `--search` allows: the first trial."""

    def config(self, values: Mapping[str, Value]) -> Config:
        """The whole configuration of one trial."""
        return Config.from_recipe(self.recipe, [*self.overrides, *(f"{name}={values[name]}" for name in values)])

    def allows(self, name: str, value: Any) -> bool:
        """Whether a trial may have this value."""
        axis = self.axes.get(name)
        if isinstance(axis, Choices):
            return value in axis.values
        return axis is not None and type(value) in (int, float) and axis.low <= value <= axis.high

    def __str__(self) -> str:
        return " ".join(f"{name}={axis}" for name, axis in self.axes.items())


def make_space(
    recipe: PathLike | Config, overrides: Iterable[str] = (), search: Iterable[str] = (), task: Task = "multiclass",
    only: bool = False,
) -> Space:  # fmt: skip
    """The table's settings for the recipe's model, widened to hold the recipe's own values, and `search` on top, as it
    stands. What an override fixes is not searched; with `only`, nothing but `search` is."""
    overrides = tuple(overrides)
    empty = Space(recipe, overrides, {}, {}, {})
    base = empty.config({})
    fixed = {override.partition("=")[0].strip() for override in overrides}
    table = {} if only else {name: text for name, text in SPACES[base.model.name].items() if name not in fixed}
    if task == "regression":  # it has no classes
        table.pop("train.label_smoothing", None)
    given = dict(_split(item) for item in search)
    axes: dict[str, Choices | Range] = {}
    for name, text in table.items():
        if name not in given and (axis := _of_table(empty, base, name, text)) is not None:
            axes[name] = axis
    axes |= {name: _of_user(empty, name, text) for name, text in given.items()}
    if not axes:
        raise ConfigError("there is nothing to search: give --search NAME=VALUES, e.g. model.hidden=64,128")
    values = {name: value_of(base, name) for name in axes}
    own = {name: _plain(axis, values[name]) for name, axis in axes.items()}
    return replace(empty, axes=axes, own=own, start={name: axis.nearest(values[name]) for name, axis in axes.items()})


def value_of(config: Config, name: str) -> Any:
    """The value of a setting by its full name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def text_of(value: Any) -> str:
    """A value as `--set` takes it."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return f"[{','.join(map(text_of, value))}]" if isinstance(value, list | tuple) else str(value)


def _plain(axis: Choices | Range, value: Any) -> Value:
    """A value as a trial has it."""
    return value if isinstance(axis, Range) and isinstance(value, int | float) else text_of(value)


# reading -----------------------------------------------------------------------------------------------------------


def _split(item: str) -> tuple[str, str]:
    name, equals, text = (part.strip() for part in item.partition("="))
    if not equals or not name or not text:
        raise ConfigError(
            f"--search {item!r} is not of the form NAME=VALUES: write train.learning_rate=1e-4..1e-2:log or "
            "model.hidden=64,128"
        )
    return name, text


def _of_table(space: Space, base: Config, name: str, text: str) -> Choices | Range | None:
    """The table's entry with the recipe's value in it, and without values that do not fit the recipe."""
    value = value_of(base, name)
    axis = _parse(name, text)
    if isinstance(axis, Range):
        if axis.log and not value:  # zero has no logarithm: the powers of ten beside it
            powers = range(math.ceil(math.log10(axis.low)), math.floor(math.log10(axis.high)) + 1)
            return Choices((text_of(value), *(text_of(10.0**power) for power in powers)))
        return replace(axis, low=min(axis.low, value), high=max(axis.high, value))
    same_length = [one for one in axis.values if not isinstance(value, tuple) or one.count(",") == len(value) - 1]
    values = dict.fromkeys([text_of(value), *_fitting(space, name, same_length)])
    ordered = sorted(values, key=lambda one: float(one) if _is_number(one) else -math.inf)
    return Choices(tuple(ordered)) if len(ordered) > 1 else None


def _fitting(space: Space, name: str, values: Iterable[str]) -> list[str]:
    found = []
    for value in values:
        try:
            found.append(text_of(value_of(space.config({name: value}), name)))
        except ConfigError:
            continue
    return found


def _of_user(space: Space, name: str, text: str) -> Choices | Range:
    """What `--search` says, every value of it tried on Config, whose errors name the setting that was meant."""
    first = re.split(r"\.\.|,", text)[0] if not text.startswith("[") else text.partition("]")[0] + "]"
    space.config({name: first})  # an unknown name is said before anything about its values
    axis = _parse(name, text)
    if isinstance(axis, Choices):
        return Choices(tuple(dict.fromkeys(text_of(value_of(space.config({name: v}), name)) for v in axis.values)))
    for end in (axis.low, axis.high):
        space.config({name: round(end) if axis.whole else end})
    return axis


def _parse(name: str, text: str) -> Choices | Range:
    if ".." not in text:
        return Choices(tuple(part.strip() for part in re.findall(r"\[[^\]]*\]|[^,\[\]]+", text) if part.strip()))
    ends, _, scale = text.partition(":")
    low, _, high = (part.strip() for part in ends.partition(".."))
    kinds = _kinds(name)
    if not {int, float} & kinds:
        raise ConfigError(f"--search {name}={text}: it is no number, so list its values: {name}=this,that")
    if not _is_number(low) or not _is_number(high) or scale not in ("", "log"):
        raise ConfigError(f"--search {name}={text} is no range: write {name}=LOW..HIGH or {name}=LOW..HIGH:log")
    found = Range(float(low), float(high), scale == "log", float not in kinds)
    if not found.low < found.high:
        raise ConfigError(f"--search {name}={text}: {low} is not below {high}")
    if found.log and found.low <= 0:
        raise ConfigError(f"--search {name}={text}: a logarithmic range begins above 0")
    return found


def _kinds(name: str) -> set[Any]:
    """The types that a setting's values may have."""
    annotation: Any = Config
    for part in name.split("."):
        annotation = annotation.model_fields[part].annotation
    return {annotation, *get_args(annotation)}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
