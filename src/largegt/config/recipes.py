"""Recipes: settings in TOML, by name from the package's files or by path, each on top of the one that it extends."""

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
"""The recipe that is made for a store when it is asked for (auto/choose.py)."""
_OWN = "your own graph"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return list(recipe_about())


def recipe_about() -> dict[str, str]:
    """Each included recipe and the line it says of itself."""
    return {name: about for recipes in recipes_by_dataset().values() for name, about in recipes.items()}


def recipes_by_dataset() -> dict[str, dict[str, str]]:
    """The same in groups: recipes for a graph of one's own first, then those for each dataset."""
    return {
        dataset: {name: tree["about"] for name, tree in recipes.items() if not name.startswith("_")}
        for dataset, recipes in _included().items()
    }


@cache
def _included() -> dict[str, dict[str, Any]]:
    """The recipes of the package: a file for each dataset, a table for each recipe. A name with an underscore is no
    recipe but a beginning that others extend."""
    files = [
        file for file in (resources.files("largegt") / "config" / "recipes").iterdir() if file.name.endswith(".toml")
    ]
    files.sort(key=lambda file: (file.name != "own.toml", file.name))
    names = [_OWN if file.name == "own.toml" else file.name.removesuffix(".toml") for file in files]
    return {name: tomllib.loads(file.read_text(encoding="utf-8")) for name, file in zip(names, files, strict=True)}


def recipe_for(model: str, original: bool = False) -> str:
    """The recipe to train a model by when none is named: its own, in the form of two hops or in its authors' original
    one. LargeGT has the default recipe, a registered model `base`."""
    known, models = recipe_names(), model_names()
    if model not in models:
        form = model.lower().removesuffix("-original")
        is_form = form in models and form != model.lower()
        hint = f" (did you mean --model {form} --original?)" if is_form else nearest(form, models)
        raise ConfigError(f"no model {model!r}{hint}; there are: {', '.join(models)}")
    if not original:
        return model if model in known else "default" if model.startswith("largegt") else "base"
    if f"{model}-original" not in known:
        others = [name for name in models if f"{name}-original" in known]
        raise ConfigError(f"{model} has no other original form: leave out --original, which {', '.join(others)} have")
    return f"{model}-original"


def read_recipe(recipe: PathLike) -> dict[str, Any]:
    """A recipe as a plain tree, from its name or from a file: its values on top of those of the recipe it `extends`."""
    chain, trees = [_find_recipe(str(recipe), Path())], list[dict[str, Any]]()
    while True:
        here = chain[-1]
        tree = _load_recipe(here)
        base = tree.pop("extends", None)
        tree.pop("about", None)
        tree.pop("data", None)  # a run's config.toml is a recipe too
        trees.append(tree)
        if base is None:
            return reduce(on_top, reversed(trees))
        try:
            if not isinstance(base, str):
                raise ConfigError("give one name of a recipe or one .toml file")
            chain.append(_find_recipe(base, here.parent if isinstance(here, Path) else Path()))
        except ConfigError as error:
            raise ConfigError(f"recipe {here} extends {base!r}: {error}") from None
        if len({_identity(one) for one in chain}) < len(chain):
            raise ConfigError(f"recipes extend each other in a circle: {' → '.join(map(str, chain))}")


def on_top(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` on top of a recipe. Where they name another model, only what that model reads is kept of the settings
    of the recipe's model."""
    model, other = tree.get("model"), changes.get("model")
    if (
        isinstance(model, dict)
        and isinstance(other, dict)
        and other.get("name", model.get("name")) != model.get("name")
    ):
        tree = {**tree, "model": settings_read(model, str(other["name"]))}
    return merged(tree, changes)


def _find_recipe(recipe: str, folder: Path) -> str | Path:
    """The name of an included recipe, or a file; one that another recipe names lies beside it."""
    file, known = folder / recipe, recipe_names()
    if any(recipe in recipes for recipes in _included().values()):
        return recipe
    with suppress(OSError, ValueError):  # a name that no file can have
        if file.is_file():
            return file
    if file.suffix == ".toml":
        raise ConfigError(f"recipe file {file} does not exist")
    if recipe == AUTO:
        raise ConfigError("recipe auto looks at a store first: lg.auto_config(store), or train data/g --recipe auto")
    raise ConfigError(
        f"no recipe {recipe!r}{nearest(recipe, [AUTO, *known])}; largegt config --recipes lists all {len(known)}, "
        "or give a .toml file"
    )


def _load_recipe(recipe: str | Path) -> dict[str, Any]:
    """The tree of one recipe alone."""
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
