"""Options that several verbs take, and what they come to: a configuration, an engine."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from ..errors import ConfigError, nearest
from . import completion
from .show import say_stderr

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Override a setting, e.g. train.epochs=5. Repeat as needed.",
        autocompletion=completion.settings,
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        help="A recipe of `largegt settings --recipes`, a .toml file, or auto; the model's own when not given.",
        autocompletion=completion.recipes,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A model, by its own recipe; with --recipe only short for model.name.",
        autocompletion=completion.models,
    ),
]
Original = Annotated[
    bool, typer.Option("--original", help="With --model: the model as its authors have it, not held to two hops.")
]
Threads = Annotated[int | None, typer.Option(help="Threads to use; all cores when not given.")]


def _checked_memory(memory: str | None) -> str | None:
    """Refuse a wrong size before any work."""
    from ..memory import memory_budget

    memory_budget(memory)
    return memory


Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory to use, e.g. 4GiB; half of what is free when not given. The result is the same.",
        callback=_checked_memory,
    ),
]
EngineName = Annotated[str, typer.Option(help="Who does the work: local (this process) or ray (a cluster).")]
Address = Annotated[
    str | None, typer.Option(help="With --engine ray: the cluster's address; auto finds one, else one starts here.")
]
Draws = Annotated[
    int | None,
    typer.Option(
        help="Average predictions over this many samples of local nodes; the run's train.draws if not given.", min=1
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Stop where another process is making the same preparation, do not wait.")
]


def _trust_remote(is_given: bool) -> bool:
    """Trust every URL from here on, also in processes that this one starts."""
    if is_given:
        os.environ["LARGEGT_TRUST_REMOTE"] = "1"
    return is_given


TrustRemote = Annotated[
    bool,
    typer.Option(
        "--trust-remote",
        help="Open the URL that a run names as its store, or the text model that a store names, even if it was never "
        "given on this machine.",
        callback=_trust_remote,
    ),
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")]
Devices = Annotated[
    int,
    typer.Option(help="Processes of this machine to share the work, a GPU each or some cores.", min=1),
]


def check_engine(name: str) -> None:
    if name not in ("local", "ray"):
        raise ConfigError(f"engine {name!r} is not one of local, ray{nearest(name, ('local', 'ray'))}")


def engine_for(
    name: str, address: str | None, shards: int | None, neighbors: str | None, threads: int | None,
    memory: str | None, progress: Any,
) -> Any:  # fmt: skip
    """The engine that `prepare` was told to use."""
    from ..memory import memory_budget, parse_bytes
    from ..prepare.engines.engine import Engine

    check_engine(name)
    if name == "local":
        if address is not None or shards is not None:
            raise ConfigError("--address and --shards are for --engine ray")
        return Engine(memory_budget(memory), threads, progress, neighbors)
    if threads is not None:
        raise ConfigError("--threads is for --engine local: a cluster runs one task per core")
    from ..prepare.engines.ray import TASK_BYTES, RayEngine

    return RayEngine(address, shards, parse_bytes(memory) if memory else TASK_BYTES, progress, neighbors)


def check_original(recipe: str | None, model: str | None, original: bool) -> None:
    if original and (recipe or not model):
        raise ConfigError("--original goes with --model and without --recipe: --model gat --original")


def config_from(
    store: Any, recipe: str | None, model: str | None, original: bool, overrides: list[str], as_json: bool,
    devices: int = 1,
) -> Any:  # fmt: skip
    """The recipe that was named, or the model's own, with overrides on top; `model` is the last word on model.name.
    What auto chooses, for so many devices, is said."""
    from ..auto import config_for
    from ..recipe import recipe_for

    check_original(recipe, model, original)
    own = recipe_for(model, original) if model else "default"
    given = [*overrides, *([f"model.name={model}"] if model else [])]
    config, chosen = config_for(store, recipe or own, given, devices if devices > 1 else None)
    if chosen and not as_json and "LARGEGT_LAUNCHED" not in os.environ:
        for choice in chosen:
            say_stderr(f"auto: {choice!s:<38} {choice.reason}")
    return config


def without_prefix(item: str, prefix: str) -> str:
    return item[len(prefix) :] if item.startswith(prefix) else item
