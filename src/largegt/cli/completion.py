"""Shell completion: names of recipes, models, settings and datasets.

Enters: the incomplete word. Leaves: names with this prefix, with a line of help each. Cost: reading the settings
(0.2 s), without importing torch or numba.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import typer

Offers = list[tuple[str, str]]


def _with_prefix(prefix: str, items: Iterable[tuple[str, str]]) -> Offers:
    return [(name, about) for name, about in items if name.startswith(prefix)]


def recipes(incomplete: str) -> Offers:
    """Recipes of the package, and .toml files of the working directory."""
    from largegt.config.recipes import AUTO, recipe_about

    found = sorted(str(file) for file in Path().glob(f"{_literal(incomplete)}*.toml"))
    files = [(name, "a file of yours") for name in found if name.isprintable()]
    return _with_prefix(incomplete, [*recipe_about().items(), (AUTO, "chosen for the graph"), *files])


def _literal(text: str) -> str:
    """The text, unless it has wildcards or points outside the working directory."""
    return text if text and not set(text) & set("*?[") and not text.startswith(("/", "..", "-")) else ""


def models(incomplete: str) -> Offers:
    from largegt.config.models import model_specs

    return _with_prefix(incomplete, [(spec.name, spec.about) for spec in model_specs()])


def datasets(incomplete: str) -> Offers:
    from largegt.datasets.registry import DATASETS

    return _with_prefix(incomplete, [(one.name, one.description) for one in DATASETS.values()])


def settings(context: typer.Context, incomplete: str) -> Offers:
    """`name=default` of each setting of the verb; for a complete name, the values of a setting with few of them."""
    from largegt.config.overrides import describe_settings, text_of
    from largegt.config.schema import IngestConfig, describe_config

    is_ingest = context.info_name in ("ingest", "generate")
    prefix = "ingest." if is_ingest and incomplete.startswith("ingest.") else ""
    wanted, equals, _ = incomplete.partition("=")
    every = describe_settings(IngestConfig, prefix) if is_ingest else describe_config()
    chosen = [one for one in every if (one.name == wanted if equals else one.name.startswith(wanted))]
    if len(chosen) != 1:
        return [(f"{one.name}={text_of(one.default)}", one.help) for one in chosen]
    one = chosen[0]
    values = _words_of(one.kind) or [text_of(one.default)]
    return _with_prefix(incomplete, [(f"{one.name}={value}", one.help) for value in values])


def _words_of(kind: Any) -> list[str]:
    """The values of a setting of this type that are words: choices, true, false; none for numbers and free text."""
    if kind is bool:
        return ["true", "false"]
    return [kind] if isinstance(kind, str) else [word for each in get_args(kind) for word in _words_of(each)]
