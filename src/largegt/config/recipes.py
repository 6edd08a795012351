"""Recipes: settings in TOML, by name from the package's files or by path; a recipe can extend another one."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from copy import deepcopy
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from typing import Any

from largegt.errors import ConfigError, first_line, nearest
from largegt.types import PathLike

from .models import model_names, settings_read
from .overrides import merged

AUTO = "auto"
"""The recipe that is generated for a store (auto/choose.py)."""
_OWN = "your own graph"


def recipe_names() -> list[str]:
    """The recipes included in the package."""
    return list(recipe_about())


def recipe_about() -> dict[str, str]:
    """Each included recipe with its one-line description."""
    return {name: about for recipes in recipes_by_dataset().values() for name, about in recipes.items()}


def recipes_by_dataset() -> dict[str, dict[str, str]]:
    """The included recipes by group: recipes for the user's own graphs first, then those for each dataset."""
    return {
        dataset: {name: tree["about"] for name, tree in recipes.items() if not name.startswith("_")}
        for dataset, recipes in _included().items()
    }


@cache
def _included() -> dict[str, dict[str, Any]]:
    """The recipes of the package: one file per dataset, one table per recipe. A name with a leading underscore is not a
    recipe, but a base that others extend."""
    files = [
        file for file in (resources.files("largegt") / "config" / "recipes").iterdir() if file.name.endswith(".toml")
    ]
    files.sort(key=lambda file: (file.name != "own.toml", file.name))
    names = [_OWN if file.name == "own.toml" else file.name.removesuffix(".toml") for file in files]
    return {name: tomllib.loads(file.read_text(encoding="utf-8")) for name, file in zip(names, files, strict=True)}


def recipe_for(model: str, original: bool = False) -> str:
    """The recipe for training a model when none is given: the recipe with the model's name, limited to two hops or in
    the authors' original form. LargeGT uses `default`, a registered model `base`."""
    known, models = recipe_names(), model_names()
    if model not in models:
        form = model.lower().removesuffix("-original")
        is_form = form in models and form != model.lower()
        hint = f" (did you mean `recipe={form}-original`?)" if is_form else nearest(form, models)
        raise ConfigError(f"no model {model!r}{hint}; there are: {', '.join(models)}")
    if not original:
        return model if model in known else "default" if model.startswith("largegt") else "base"
    if f"{model}-original" not in known:
        others = [name for name in models if f"{name}-original" in known]
        raise ConfigError(f"{model} has no other original form: leave out `original`, which {', '.join(others)} have")
    return f"{model}-original"


def read_recipe(recipe: PathLike) -> dict[str, Any]:
    """A recipe as a plain tree, by name or from a file; its values override those of the recipe that it `extends`."""
    chain, trees = [_find_recipe(str(recipe), Path())], list[dict[str, Any]]()
    while True:
        last = chain[-1]
        tree = _load_recipe(last)
        base = tree.pop("extends", None)
        tree.pop("about", None)
        tree.pop("data", None)  # a run's config.toml is a recipe too
        trees.append(tree)
        if base is None:
            return reduce(on_top, reversed(trees))
        try:
            if not isinstance(base, str):
                raise ConfigError("give one name of a recipe or one .toml file")
            chain.append(_find_recipe(base, last.parent if isinstance(last, Path) else Path()))
        except ConfigError as error:
            raise ConfigError(f"recipe {last} extends {base!r}: {error}") from None
        if len({_identity(one) for one in chain}) < len(chain):
            raise ConfigError(f"recipes extend each other in a circle: {' → '.join(map(str, chain))}")


def on_top(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A recipe with `changes`. If they set another model, only those model settings of the recipe remain that the other
    model also reads."""
    model, other = tree.get("model"), changes.get("model")
    if (
        isinstance(model, dict)
        and isinstance(other, dict)
        and other.get("name", model.get("name")) != model.get("name")
    ):
        tree = {**tree, "model": settings_read(model, str(other["name"]))}
    return merged(tree, changes)


def _find_recipe(recipe: str, folder: Path) -> str | Path:
    """The name of an included recipe, or a file. `folder`: where relative paths start."""
    file, known = folder / recipe, recipe_names()
    if any(recipe in recipes for recipes in _included().values()):
        return recipe
    with suppress(OSError, ValueError):  # a name that no file can have
        if file.is_file():
            return file
    if file.suffix == ".toml":
        raise ConfigError(f"recipe file {file} does not exist")
    if recipe == AUTO:
        raise ConfigError("recipe auto looks at a store first: `lg.train('data/g', 'auto')`")
    raise ConfigError(
        f"no recipe {recipe!r}{nearest(recipe, [AUTO, *known])}; `lg.recipe_names()` lists all {len(known)}, "
        "or give a .toml file"
    )


def _load_recipe(recipe: str | Path) -> dict[str, Any]:
    """The tree of one recipe, without the recipes that it extends."""
    if isinstance(recipe, str):
        return next(deepcopy(recipes[recipe]) for recipes in _included().values() if recipe in recipes)
    try:
        return tomllib.loads(recipe.read_bytes().decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"recipe {recipe} is not valid TOML: {first_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"recipe {recipe} cannot be read: {error.strerror}") from error


def _identity(recipe: str | Path) -> str | Path:
    return recipe.resolve() if isinstance(recipe, Path) else recipe
