"""Registration of verbs, and the options that several verbs share.

A verb is a function. Its positional parameters are arguments, its keyword-only parameters are options, and the `Args:`
of its docstring are their help. A parameter whose type is a dataclass stands for all its fields. `_COMMON` has the help
of options that mean the same in every verb, `_DETAILS` their other arguments for Typer.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from largegt.errors import ConfigError, nearest

from . import completion, show
from .app import app, running

Verb = TypeVar("Verb", bound=Callable[..., show.Result | None])


def _checked_memory(memory: str | None) -> str | None:
    """Refuse an invalid size before any work."""
    from largegt.runtime.memory import memory_budget

    memory_budget(memory)
    return memory


def _trust_remote(is_given: bool) -> bool:
    """Trust every URL in this process and its children."""
    if is_given:
        os.environ["LARGEGT_TRUST_REMOTE"] = "1"
    return is_given


_COMMON = {
    "as_json": "Print the result as JSON on standard output, nothing else.",
    "settings": "Override a setting, e.g. train.epochs=5. Repeat as needed.",
    "overwrite": "Replace what is there.",
    "threads": "Threads to use; all cores when not given.",
    "memory": "Memory to use, e.g. 4GiB; half of what is free when not given. The result is the same.",
    "device": "auto, cpu or cuda.",
    "devices": "Processes of this machine to share the work, a GPU each or some cores.",
    "num_eval_samples": "Average predictions over this many samples of local nodes. "
    "Default: the run's train.num_eval_samples.",
    "address": "With --engine ray: the cluster's address; auto finds one, else one starts here.",
    "no_wait": "Stop where another process is making the same preparation, do not wait.",
    "trust_remote": "Open the URL that a run names as its store, or the text model that a store names, even if it was "
    "never given on this machine.",
}
_DETAILS: dict[str, dict[str, Any]] = {
    "settings": {"names": ["--set"], "metavar": "NAME=VALUE", "autocompletion": completion.settings},
    "kinds": {"names": ["--kind"], "metavar": "COLUMN=KIND"},
    "memory": {"names": ["--memory-limit"], "callback": _checked_memory},
    "trust_remote": {"callback": _trust_remote},
    "recipe": {"autocompletion": completion.recipes},
    "model": {"metavar": "NAME", "autocompletion": completion.models},
    **{name: {"autocompletion": completion.datasets} for name in ("like", "dataset", "name")},
    **{name: {"min": 1} for name in ("devices", "num_eval_samples", "shards", "top_k", "trials", "max_nodes")},
    **{name: {"min": 0} for name in ("seed", "final")},
    "num_runs": {"names": ["--runs"], "min": 1},
    "edge_files": {"metavar": "[EDGES]..."},
    "text_model": {"metavar": "FOLDER"},
    "neighbor_store": {"metavar": "URL"},
    "drop": {"metavar": "RUN"},
    "search": {"metavar": "NAME=VALUES"},
    "nearest": {"metavar": "ID"},
}


def verb(name: str | None = None, group: typer.Typer = app, is_callback: bool = False) -> Callable[[Verb], Verb]:
    """Register a function as a verb of the command line, or as the callback of a group of verbs. Adds --json, and shows
    the result as JSON or as text."""

    def register(function: Verb) -> Verb:
        add = group.callback(invoke_without_command=True) if is_callback else group.command(name)
        add(_for_typer(function))
        return function

    return register


def _for_typer(function: Callable[..., show.Result | None]) -> Callable[..., None]:
    """The function with Typer annotations, and a dataclass parameter replaced by its fields."""
    hints: dict[str, Any] = get_type_hints(function)
    groups = {name: hints[name] for name in inspect.signature(function).parameters if is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for parameter in _described(function):
        kind = groups.get(parameter.name)
        parameters += [parameter] if kind is None else _described(kind)
    json_flag = Annotated[bool, typer.Option("--json", help=_COMMON["as_json"])]
    parameters.append(_keyword("as_json", False, json_flag))

    def call(as_json: bool, **given: Any) -> None:
        show.is_json = as_json
        for name, cls in groups.items():
            given[name] = cls(**{field.name: given.pop(field.name) for field in fields(cls)})
        with running():
            result = function(**given)
            if result is not None:
                result.show()
                raise typer.Exit(result.exit_code)

    text, _ = _split_docstring(function)
    call.__name__, call.__module__, call.__doc__ = function.__name__, function.__module__, text
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _described(thing: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a function, or the fields of a dataclass, annotated for Typer with the help of the docstring,
    for a dataclass also of its base classes."""
    helps: dict[str, str] = {}
    for each in reversed(getattr(thing, "__mro__", (thing,))):
        helps |= _split_docstring(each)[1]
    hints = get_type_hints(thing)
    for name, parameter in inspect.signature(thing).parameters.items():
        kind = hints[name]
        if kind is not typer.Context and not is_dataclass(kind):
            details: dict[str, Any] = {"help": helps.get(name) or _COMMON[name], **_DETAILS.get(name, {})}
            names = details.pop("names", [])
            if kind is bool and parameter.default is False and not names:
                names = [f"--{name.replace('_', '-')}"]  # no --no-… flag
            is_argument = inspect.isfunction(thing) and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            kind = Annotated[kind, typer.Argument(**details) if is_argument else typer.Option(*names, **details)]
        yield _keyword(name, parameter.default, kind)


def _split_docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """The text before `Args:`, and the description of each argument."""
    text, _, described = (inspect.getdoc(thing) or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", described, flags=re.MULTILINE)
    return text.rstrip(), {name: " ".join(words.split()) for name, words in entries}


@dataclass
class ConfigOptions:
    """The configuration of train, tune and prepare.

    Args:
        recipe: A recipe of `largegt config --recipes`, a .toml file, or auto; the model's own when not given.
        model: A model, by its own recipe; with --recipe only short for model.name.
        original: With --model: the model as its authors have it, not held to two hops.
    """

    recipe: str | None = None
    settings: list[str] | None = None
    model: str | None = None
    original: bool = False

    def recipe_and_overrides(self) -> tuple[str, list[str]]:
        """The recipe that is named, or the model's own; what is set on top, where --model is the last word."""
        from largegt.config.recipes import recipe_for

        if self.original and (self.recipe or not self.model):
            raise ConfigError("--original goes with --model and without --recipe: --model gat --original")
        own = recipe_for(self.model, self.original) if self.model else "default"
        return self.recipe or own, [*(self.settings or []), *([f"model.name={self.model}"] if self.model else [])]

    def config(self, store: Any, overrides: Iterable[str] = (), devices: int = 1) -> Any:
        """The whole configuration, with `overrides` on top. Prints what `auto` chooses for so many devices."""
        from largegt.preprocessing.auto_config import config_for

        recipe, given = self.recipe_and_overrides()
        config, chosen = config_for(store, recipe, [*given, *overrides], devices if devices > 1 else None)
        if not show.is_json and "LARGEGT_LAUNCHED" not in os.environ:
            for choice in chosen:
                show.say_stderr(f"auto: {choice!s:<38} {choice.reason}")
        return config


@dataclass
class EngineOptions:
    """Where ingest and prepare do their work.

    Args:
        engine: Who does the work: local (this process) or ray (a cluster).
        shards: With --engine ray: parts to read the edges in (ingest; four per core), or to hold the graph in (prepare;
            one per four cores).
    """

    memory: str | None = None
    engine: str = "local"
    address: str | None = None
    shards: int | None = None

    @property
    def is_local(self) -> bool:
        check_engine(self.engine)
        return self.engine == "local"

    def make(self, progress: Any, threads: int | None = None, neighbor_store: str | None = None) -> Any:
        """The engine to prepare with."""
        from largegt.preprocessing.engine import Engine
        from largegt.runtime.memory import memory_budget, parse_bytes

        if self.is_local:
            if self.address is not None or self.shards is not None:
                raise ConfigError("--address and --shards are for --engine ray")
            return Engine(memory_budget(self.memory), threads, progress, neighbor_store)
        if threads is not None:
            raise ConfigError("--threads is for --engine local: a cluster runs one task per core")
        from largegt.preprocessing.ray_engine import TASK_BYTES, RayEngine

        task_bytes = parse_bytes(self.memory) if self.memory else TASK_BYTES
        return RayEngine(self.address, self.shards, task_bytes, progress, neighbor_store)


def check_engine(name: str) -> None:
    if name not in ("local", "ray"):
        raise ConfigError(f"engine {name!r} is not one of local, ray{nearest(name, ('local', 'ray'))}")


@dataclass
class ColumnNames:
    """ColumnNames of new nodes and edges: predict, append, ingest.

    Args:
        source_column: Edge column that an edge leaves. Guessed when not given.
        target_column: Edge column that an edge enters.
        id_column: Node column with the ids, numbers or strings.
        feature_columns: Feature columns, separated by commas, wildcards allowed: f*,age. New nodes have those that the
            store was made from if not given.
    """

    source_column: str | None = None
    target_column: str | None = None
    id_column: str | None = None
    feature_columns: str | None = None


@dataclass
class NodeFiles(ColumnNames):
    """Tables and files of nodes: append, ingest.

    Args:
        nodes: Node table, or SQL: columns for the id, the label, the split, and features of any kind.
        features: File of features: .npy [N, d], .npz (SciPy CSR), or a table in node order.
        labels: File of labels: .npy, or a table with or without an id column.
        splits: File of splits: .npz with train, valid, test; or a table of id and split.
        label_column: Label column; several, separated by commas, make a multi-label task.
        split_column: Node column with train, valid or test.
    """

    nodes: str | None = None
    features: str | None = None
    labels: str | None = None
    splits: str | None = None
    label_column: str | None = None
    split_column: str | None = None


@dataclass
class Files(NodeFiles):
    """A whole graph in files: ingest. Fields are arguments of `sources.files`.

    Args:
        database: DuckDB or SQLite file, or postgres://…; --edges and --nodes name its tables, or are SQL.
        split_by: Split by this column of dates or numbers: oldest nodes train, newest test.
        split_group: Split at random; nodes with the same value of this column are in the same part.
        weight_column: Edge column with weights, positive numbers; for .npy edges, a .npy file of them.
        edge_feature_columns: Edge columns of any kind, separated by commas, wildcards allowed; for .npy edges, a .npy.
        num_nodes: Number of nodes when ids are 0..N-1 and nothing says N.
    """

    database: str | None = None
    split_by: str | None = None
    split_group: str | None = None
    weight_column: str | None = None
    edge_feature_columns: str | None = None
    num_nodes: int | None = None


def ingest_overrides(settings: list[str] | None) -> Any:
    """An IngestConfig from --set, whose names may start with `ingest.`."""
    from largegt.config.overrides import parse_overrides
    from largegt.config.schema import IngestConfig

    return parse_overrides(IngestConfig, [item.removeprefix("ingest.") for item in settings or []])


def launch_ranks(devices: int, advice: Callable[[], str]) -> bool:
    """With --devices, run this command in as many processes instead, and end. Whether this is one of them that shows
    nothing: any but the first."""
    from largegt.runtime.distributed import check_devices, is_first_process
    from largegt.training.launch import launch

    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], advice))
    return not is_first_process()
