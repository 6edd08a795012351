"""Messages of the library name Python arguments, in backticks; on the command line they name what one types there.

`overwrite=True` is --overwrite, `out` is --out, a setting `train.device=cpu` is --set train.device=cpu, and
`lg.train('data/g', out='runs/a')` is largegt train data/g --out runs/a. What is not of these forms stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from largegt.runtime.text import quoted

_TYPED = {
    "memory": "--memory-limit", "ids": "--node", "config": "--set, --recipe and --model", "wait=False": "--no-wait",
    "LARGEGT_TRUST_REMOTE=1": "--trust-remote", "lg.recipe_names()": "largegt config --recipes",
}  # fmt: skip
_VERBS = {"GraphStore.open": "inspect"}
_OTHER_RECIPES = ("train", "tune", "prepare")
"""Verbs whose second argument is a recipe."""


def as_typed(message: str) -> str:
    """A message of the library as the command line says it."""
    return re.sub(r"`([^`]+)`", lambda code: _typed(code[1]) or code[0], message)


def _typed(code: str) -> str:
    if code in _TYPED:
        return _TYPED[code]
    if re.fullmatch(r"(train|model|prepare|ingest)\.[\w.]+=.*", code):
        return f"--set {code}"
    if code.startswith("lg."):
        return _command(code)
    if found := re.fullmatch(r"([a-z_]+)(?:=(.*))?", code):
        return _option(found[1], None if found[2] is None else found[2].strip("'\""))
    return ""


def _option(name: str, value: object) -> str:
    flag = _TYPED.get(name, f"--{name.replace('_', '-')}")
    return flag if value is None or str(value) == "True" else f"{flag} {quoted(value)}"


def _command(code: str) -> str:
    """A call of one of the package's functions as a command; empty where it is none."""
    try:
        call = ast.parse(code, mode="eval").body
        assert isinstance(call, ast.Call)
        verb = ast.unparse(call.func).removeprefix("lg.")
        return " ".join(["largegt", _VERBS.get(verb, verb), *_words(verb, call)])
    except (SyntaxError, ValueError, AssertionError):  # names may hold anything
        return ""


def _words(verb: str, call: ast.Call) -> Iterator[str]:
    for place, argument in enumerate(call.args):
        if isinstance(argument, ast.Call):  # the files of a source
            yield from _words("", argument)
            continue
        value: Any = ast.literal_eval(argument)
        if place == 1 and verb in _OTHER_RECIPES:
            yield _option("recipe", value)
        elif value is not ...:
            yield from map(quoted, value if isinstance(value, list) else [value])
    for keyword in call.keywords:
        yield _option(str(keyword.arg), ast.literal_eval(keyword.value))
