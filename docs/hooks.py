"""What the site writes by itself, so that it cannot go stale: the command line, the settings, the API's headings.

Enters: the package as it is (its Typer application, its settings and recipes, its public names). Leaves: the pages
cli.md and settings.md, which are in no folder, and `::: lg.NAME` of the API pages as what mkdocstrings understands.
Cost: importing the command line, which imports nothing heavy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from mkdocs.structure.files import File

import largegt
from largegt.cli import app
from largegt.cli.app import _ORDER
from largegt.config.overrides import describe_settings
from largegt.config.recipes import recipes_by_dataset
from largegt.config.schema import Config, IngestConfig, describe_config

_SHOWN = {"sources": ("arrays", "files", "pyg"), "pyg": ("Loader", "LargeGTTransform", "model_for", "token_batch")}
"""Of the modules among the public names: what is for users, in this order."""

_TYPES = {"Path": "PATH", "str": "TEXT", "int": "NUMBER", "float": "NUMBER"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    for name, text in (("cli.md", cli_page()), ("settings.md", settings_page())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`::: lg.train` is documented from where it lives, under the name that users know."""
    if not page.file.src_uri.startswith("api/"):
        return markdown
    return re.sub(r"^::: lg\.(\w+)$", lambda found: _documented(found[1]), markdown, flags=re.MULTILINE)


def _documented(name: str) -> str:
    home = f"largegt{largegt._HOMES[name]}"
    lines = [f'heading: "lg.{name}"', f'toc_label: "{name}"']
    if name in _SHOWN:
        lines.append(f"members: [{', '.join(_SHOWN[name])}]")
    path = home if name in _SHOWN else f"{home}.{name}"
    return "\n".join([f"::: {path}", "    options:", *(f"      {line}" for line in lines)])


# the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every verb with what its --help says."""
    verbs = {_name(command): command.callback for command in app.registered_commands}
    groups: dict[str, Any] = {str(group.name): group.typer_instance for group in app.registered_groups}
    parts = [
        "# Command line",
        "Each stage is one command. All commands have `--help`, and `--json` prints the result for programs. Exit "
        "codes: 0 success, 2 an error with one line on standard error, 1 damage found by `inspect --verify`, 130 and "
        "143 after a signal. `largegt --version` prints the version. This page is generated from the commands.",
        "| command | description |\n|---|---|\n" + "\n".join(_row(name, verbs, groups) for name in _ORDER),
    ]
    for name in _ORDER:
        if name in verbs:
            parts += _verb(f"largegt {name}", verbs[name])
            continue
        group = groups[name]
        parts += _verb(f"largegt {name}", group.registered_callback.callback)
        for command in group.registered_commands:
            parts += _verb(f"largegt {name} {_name(command)}", command.callback)
    return "\n\n".join(parts) + "\n"


def _name(command: Any) -> str:
    return str(command.name or command.callback.__name__)


def _row(name: str, verbs: dict[str, Any], groups: dict[str, Any]) -> str:
    function = verbs[name] if name in verbs else groups[name].registered_callback.callback
    first = (inspect.getdoc(function) or "").partition("\n")[0]
    return f"| [`{name}`](#largegt-{name}) | {_markup(first)} |"


def _verb(name: str, function: Any) -> Iterator[str]:
    hints = get_type_hints(function, include_extras=True)
    parameters = [(p, *_unwrapped(hints[p.name])) for p in inspect.signature(function).parameters.values()]
    parameters = [(p, kind, info) for p, kind, info in parameters if info is not None]
    arguments = [one for one in parameters if type(one[2]).__name__ == "ArgumentInfo"]
    options = [one for one in parameters if type(one[2]).__name__ == "OptionInfo"]
    yield f"## {name}"
    yield from _help(inspect.getdoc(function) or "")
    usage = " ".join([name, *(_argument(*one) for one in arguments), *(_required(*one) for one in options)])
    yield f"```text\n{' '.join(usage.split())} [OPTIONS]\n```"
    yield "\n".join(_definition(_argument(*one), "", one[2].help) for one in arguments)
    yield "\n".join(_definition(_names(p, kind, info), _default(p), info.help) for p, kind, info in options)


def _unwrapped(hint: Any) -> tuple[Any, Any]:
    """The plain type, and Typer's description of the parameter; none for what Typer passes by itself."""
    metadata = getattr(hint, "__metadata__", None)
    return (hint.__origin__, metadata[0]) if metadata else (hint, None)


def _argument(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    shown = info.metavar or parameter.name.upper()
    shown += "..." if _plain_type(kind)[1] and "..." not in shown else ""
    return shown if parameter.default is inspect.Parameter.empty or shown.startswith("[") else f"[{shown}]"


def _required(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    return _names(parameter, kind, info) if parameter.default is inspect.Parameter.empty else ""


def _names(parameter: inspect.Parameter, kind: Any, info: Any) -> str:
    """`--split TEXT`, `--overwrite`, `--analysis / --no-analysis`."""
    long = f"--{parameter.name.replace('_', '-')}"
    plain, _ = _plain_type(kind)
    own = [info.default] if isinstance(info.default, str) else []  # where Typer keeps the first name until it is asked
    own += info.param_decls or ()
    if plain is bool:
        return " / ".join(own) if own else f"{long} / --no-{long[2:]}"
    metavar = info.metavar or _TYPES.get(getattr(plain, "__name__", ""), "VALUE")
    return f"{', '.join(own or [long])} {metavar}"


def _plain_type(kind: Any) -> tuple[Any, bool]:
    """The type without None and list, and whether it was a list."""
    inner = [one for one in get_args(kind) if one is not type(None)] if type(None) in get_args(kind) else [kind]
    several = getattr(inner[0], "__origin__", None) is list
    return (get_args(inner[0])[0] if several else inner[0]), several


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    return "" if value is None or isinstance(value, bool) else f"default `{value}`"


def _definition(term: str, note: str, text: str | None) -> str:
    return f"`{term}`{f' · {note}' if note else ''}\n\n:   {_markup(text or '')}\n"


def _help(text: str) -> Iterator[str]:
    """A docstring's paragraphs; `Example:  largegt …` becomes a block of its own."""
    for paragraph in text.split("\n\n"):
        said, gap, command = " ".join(paragraph.split("\n")).partition(":  ")
        if not gap:
            yield _markup(said)
        elif said.startswith("* "):
            yield f"{_markup(said)}: `{command}`"
        else:
            command, _, after = command.partition(", or ")
            yield f"{_markup(said)}:"
            yield f"```sh\n{command}\n```"
            if after:
                yield f"Or {_markup(after)}."


def _markup(text: str) -> str:
    """Rich's markup as Markdown's; what Markdown would take for markup of its own is escaped."""
    kept = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(kept), 2):
        plain = kept[at].replace("\\[", "[")
        bold = re.sub(r"\[bold\](.*?)\[/\]", r"**\1**", plain)
        words = re.sub(r"(?<![\w`])(--[a-z][\w-]*(?: [\w.]+=[\w.]*\w)?)", r"`\1`", bold)
        kept[at] = re.sub(r"(?<=\w)\*(?=[,.\s])", r"\\*", words)
    return "".join(kept)


# settings --------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting with its default, what the default recipe has instead, and every recipe."""
    usual = Config.from_recipe("default", []).model_dump(mode="json")
    every = [*describe_settings(IngestConfig, "ingest."), *describe_config()]
    parts = [
        "# Settings and recipes",
        "Set a value with `--set train.epochs=5` on the command line, with "
        '`lg.Config.from_recipe("default", ["train.epochs=5"])` in Python, or in your own recipe, a TOML file. '
        "`none` clears an optional setting. `largegt config` prints the same list. This page is generated from the "
        "settings.",
        "Without `--recipe` and `--model`, `largegt train` uses the recipe `default`. If its value differs from the "
        "setting's default, this page shows both. Settings of `ingest` belong to `largegt ingest` "
        "(`--set undirected=true`).",
    ]
    section = ""
    for name, default, text, _ in every:
        table = name.rpartition(".")[0]
        if table != section:
            section = table
            parts.append(f"## {table}")
        chosen = _at(usual, name, _plain(default))
        differs = chosen != _plain(default)
        note = f"`{_shown(default)}`" + (f" · recipe default: `{_shown(chosen)}`" if differs else "")
        parts.append(f"`{name}` = {note}\n\n:   {text}\n")
    parts += [
        "## Recipes",
        "`largegt train data/g --recipe NAME`. `auto` measures the graph and chooses settings for it "
        "([details](accuracy.md#how-auto-chooses-settings)). Your own file may extend a recipe "
        '(`extends = "gat"`) and contain only the differences.',
    ]
    for dataset, recipes in recipes_by_dataset().items():
        title = "For your own graph" if dataset == "your own graph" else f"For {dataset}"
        parts.append(f"### {title}")
        parts += [f"`{name}`\n\n:   {about}\n" for name, about in recipes.items()]
    return "\n\n".join(parts) + "\n"


def _at(tree: dict[str, Any], name: str, default: Any) -> Any:
    """The value of a setting in a tree; `default` where it is not there, a setting of another model or of ingest."""
    table, _, rest = name.partition(".")
    if table not in tree:
        return default
    return _at(tree[table], rest, default) if rest else tree[table]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_shown(one) for one in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value) if value != "" else '""'
