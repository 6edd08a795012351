"""Fuzzing recipes (TOML files) and overrides (`--set`, `--search`, durations, sizes).

What is accepted must say the same when it is written out and read again, and a setting must have the value it was
given: a number stays that number, and nothing else changes."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from largegt.auto.tuning.space import make_space
from largegt.config.overrides import Setting, describe_settings, parse_overrides, seconds, setting_names, to_toml
from largegt.config.recipes import read_recipe, recipe_names
from largegt.config.schema import Config, IngestConfig
from largegt.errors import ConfigError, LargeGTError
from largegt.runtime.memory import parse_bytes

from .cases import ACCEPTED, RIGHT, Wrong
from .mutations import damaged, disturb, odd_text, odd_value


class RecipeTarget:
    """A recipe of the package or a run's whole configuration, with a fault or some, as a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "recipe"
        self._texts = [f'extends = "{name}"\n{to_toml(read_recipe(name))}'.encode() for name in recipe_names()]
        self._texts += [Config().to_toml().encode()] * 5

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        data = rng.choice(self._texts)
        for step in steps:
            data = damaged(data, step) if step.random() < 0.4 else _disturbed(data, step)
        file = self._folder / "mine.toml"
        file.write_bytes(data)
        config = Config.from_recipe(file)
        _check_same(config, file.with_name("again.toml"))
        given = read_recipe(file)
        _check_given(given, config.model_dump(mode="json"), "")
        return RIGHT


class OverrideTarget:
    """Overrides on top of a recipe, or of ingest's defaults; values to search; durations and sizes."""

    def __init__(self, folder: Path) -> None:
        self._known = {cls: describe_settings(cls) for cls in (Config, IngestConfig)}

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        kind = rng.randrange(10)
        if kind == 0:
            return _small_words(rng, steps)
        if kind == 1:
            return _search(rng, steps)
        cls: Any = IngestConfig if kind == 2 else Config
        names = setting_names(cls)
        valid = [_valid(rng, self._known[cls]) for _ in range(rng.randrange(3))]
        overrides = [*valid, *(_odd_override(names, step) for step in steps)]
        config = parse_overrides(cls, overrides) if cls is IngestConfig else Config.from_recipe("base", overrides)
        wanted: dict[str, str] = {}
        for override in overrides:
            name, _, text = override.partition("=")
            wanted[".".join(part.strip() for part in name.split("."))] = text.strip()
        tree = config.model_dump(mode="json")
        for name, text in wanted.items():
            value: Any = tree
            for part in name.split("."):
                value = value[part] if isinstance(value, dict) else {}
            if isinstance(value, dict):  # a table, or a name that a later override replaced
                return ACCEPTED
            _check_value(name, _read(text), value)
        if cls is IngestConfig:
            return RIGHT
        untouched = Config.from_recipe("base").model_dump(mode="json")
        for name in names:
            before, after = untouched, tree
            for part in name.split("."):
                before, after = before[part], after[part]
            if before != after and not any(name == one or name.startswith(f"{one}.") for one in wanted):
                raise Wrong(f"an override changed another setting: {overrides} changed {name}")
        return RIGHT


def _disturbed(data: bytes, rng: random.Random) -> bytes:
    try:
        tree = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return damaged(data, rng)
    disturb(tree, rng)
    try:
        return to_toml(tree).encode("utf-8", "surrogateescape")
    except (TypeError, ValueError):
        return damaged(data, rng)


def _check_same(config: Config, file: Path) -> None:
    file.write_text(config.to_toml(), encoding="utf-8")
    again = Config.from_recipe(file)
    if again != config:
        raise Wrong(f"a configuration is another one when it is written and read: {config.to_toml()}")


def _check_given(given: Any, found: Any, name: str) -> None:
    """Every value of the file is in the configuration."""
    for key, value in given.items():
        if isinstance(value, dict):
            _check_given(value, found[key], f"{name}{key}.")
        else:
            _check_value(f"{name}{key}", value, found[key])


def _check_value(name: str, given: Any, found: Any) -> None:
    if not _is_same(given, found):
        raise Wrong(f"a setting has another value than it was given: {name} is {found!r}, not {given!r}")


def _is_same(given: Any, found: Any) -> bool:
    """A number stays that number, a flag a flag, a word a word; words for flags and for nothing are known."""
    if isinstance(found, list):
        if given == "":
            return not found
        parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
        return len(parts) == len(found) and all(map(_is_same, parts, found))
    if isinstance(given, str) and not isinstance(found, str):
        text = given.strip().lower()
        if isinstance(found, bool):
            return text in (("true", "yes", "on", "1", "t", "y") if found else ("false", "no", "off", "0", "f", "n"))
        return text == "none" if found is None else _number(text) == float(found)
    if isinstance(found, bool):
        return given in (int(found), found)
    if isinstance(given, bool):
        return False
    if isinstance(found, float) and isinstance(given, int):
        return float(given) == found
    return str(given) == found if isinstance(found, str) else bool(given == found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _read(text: str) -> Any:
    """As the help says: a value is read as TOML, a bare word is a string."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tree["value"] if set(tree) == {"value"} else text


def _valid(rng: random.Random, known: list[Setting]) -> str:
    """A setting at its default, written as one would."""
    name, default, *_ = rng.choice(known)
    if isinstance(default, bool):
        return f"{name}={'true' if default else 'false'}"
    if isinstance(default, tuple):
        return f"{name}={','.join(map(str, default))}"
    return f"{name}={'none' if default is None else default}"


def _odd_override(names: list[str], rng: random.Random) -> str:
    kind = rng.randrange(8)
    name = rng.choice(names)
    if kind < 4:
        value = odd_value(rng)
        return f"{name}={value if isinstance(value, str) else _toml(value)}"
    if kind == 4:
        at = rng.randrange(len(name))
        return f"{name[:at]}{rng.choice(('', '_', 'x', '.', ' ', '-'))}{name[at + 1 :]}={rng.randrange(9)}"
    if kind == 5:
        return f"{name}.{odd_text(rng)}={odd_text(rng)}"
    if kind == 6:
        return f"{name.rpartition('.')[0] or name}={odd_text(rng)}"
    return odd_text(rng)


def _toml(value: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        return to_toml({"value": value}).partition("=")[2].strip()
    return str(value)


def _small_words(rng: random.Random, steps: Sequence[random.Random]) -> str:
    """Durations and sizes, against plain arithmetic."""
    hours, minutes, size = rng.randrange(9), rng.randrange(99), rng.randrange(1, 2000)
    if not steps:
        unit, factor = rng.choice((("", 1), ("k", 1000), ("KiB", 1024), ("MB", 10**6), ("GiB", 2**30), (" gib", 2**30)))
        if (
            seconds(f"{hours}h{minutes}m") != hours * 3600 + minutes * 60
            or parse_bytes(f"{size}{unit}") != size * factor
        ):
            raise Wrong("a duration or a size: it has another value")
        return RIGHT
    text = "".join(odd_text(step) if step.random() < 0.5 else rng.choice("0123456789.hmsKGiB ") for step in steps)
    text = rng.choice((text, f"{text}h", f"{text}GiB", f"1{text}"))
    for read in (seconds, parse_bytes):
        with contextlib.suppress(ConfigError):
            if not 0 <= read(text) < math.inf:
                raise Wrong(f"a duration or a size is no amount: {text!r}")
    read(text)
    return ACCEPTED


def _search(rng: random.Random, steps: Sequence[random.Random]) -> str:
    """What `--search` of tune takes."""
    searched = [
        "train.learning_rate=1e-4..1e-2:log",
        "model.hidden_dim=64,128",
        "prepare.positional_encoding.projection_weights=[0,1],[0,1,1]",
    ]
    chosen = [rng.choice(searched)]
    for step in steps:
        text = step.choice(searched)
        at = step.randrange(len(text))
        chosen.append(step.choice((
            text[:at] + odd_text(step) + text[at + 1 :], f"{text.partition('=')[0]}={odd_text(step)}", text,
            f"train.learning_rate={odd_text(step)}..{odd_text(step)}", odd_text(step),
        )))  # fmt: skip
    try:
        make_space("default", search=chosen, only=rng.random() < 0.5)
    except LargeGTError:
        if not steps:
            raise Wrong(f"refused a search that is right: {chosen}") from None
        raise
    return ACCEPTED
