"""What the shell offers after a TAB: names of recipes, models, settings and datasets.

Enters: what was typed so far. Leaves: names that go on so, with a line on each where there is one. Cost: reading the
settings (0.2 s); neither torch nor numba is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import typer

Offers = list[tuple[str, str]]


def _beginning(incomplete: str, every: Iterable[tuple[str, str]]) -> Offers:
    return [(name, about) for name, about in every if name.startswith(incomplete)]


def recipes(incomplete: str) -> Offers:
    """Recipes that come with the package, and .toml files here."""
    from largegt.config.recipes import AUTO, recipe_about

    found = sorted(str(file) for file in Path().glob(f"{_literal(incomplete)}*.toml"))
    files = [(name, "a file of yours") for name in found if name.isprintable()]
    return _beginning(incomplete, [*recipe_about().items(), (AUTO, "chosen for the graph"), *files])


def _literal(text: str) -> str:
    """Nothing in it is a wildcard, and the folder above is not looked into."""
    return text if text and not set(text) & set("*?[") and not text.startswith(("/", "..", "-")) else ""


def models(incomplete: str) -> Offers:
    from largegt.types import MODEL_NAMES

    return _beginning(incomplete, [(name, "") for name in MODEL_NAMES])


def datasets(incomplete: str) -> Offers:
    from largegt.datasets.registry import DATASETS

    return _beginning(incomplete, [(one.name, one.description) for one in DATASETS.values()])


def settings(context: typer.Context, incomplete: str) -> Offers:
    """`name=default` of each setting that the verb takes; the values of one whose name is whole, where it has few."""
    from largegt.config.describe import describe_settings
    from largegt.config.schema import Config, IngestConfig

    cls: Any = IngestConfig if context.info_name in ("ingest", "generate") else Config
    prefix = "ingest." if cls is IngestConfig and incomplete.startswith("ingest.") else ""
    wanted, equals, _ = incomplete.partition("=")
    every = [(prefix + name, default, about) for name, default, about in describe_settings(cls)]
    chosen = [one for one in every if (one[0] == wanted if equals else one[0].startswith(wanted))]
    if len(chosen) != 1:
        return [(f"{name}={_written(default)}", about) for name, default, about in chosen]
    name, default, about = chosen[0]
    *tables, leaf = name.removeprefix(prefix).split(".")
    for table in tables:
        cls = type(cls.model_fields[table].default)
    values = _words_of(cls.model_fields[leaf].annotation) or [_written(default)]
    return _beginning(incomplete, [(f"{name}={value}", about) for value in values])


def _words_of(kind: Any) -> list[str]:
    """The values of a setting of this type that are words: choices, true and false; none for a number or free text."""
    if kind is bool:
        return ["true", "false"]
    return [kind] if isinstance(kind, str) else [word for each in get_args(kind) for word in _words_of(each)]


def _written(value: Any) -> str:
    """A value as --set reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
