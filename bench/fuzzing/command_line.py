"""Fuzzing the command line, in this process: a command that works, with arguments dropped, repeated, renamed, filled
with odd words, or made to contradict each other.

It must end with code 0, or with code 2 and a text on standard error; with --json, what it prints must be JSON.
Left out, because they leave this process or take minutes when they are accepted: --devices, --engine ray, downloads,
the demo, and long trainings (each gets a second)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typer

from largegt import cli
from largegt.config.overrides import setting_names
from largegt.config.schema import Config

from .cases import ACCEPTED, REFUSED, RIGHT, Wrong, fault_of_message
from .folders import SMALL, small_store
from .mutations import odd_text

_FORBIDDEN = ("--devices", "ray", "--engine", "--address", "download")


class CommandTarget:
    """See the module's text."""

    def __init__(self, folder: Path) -> None:
        from largegt.training.trainer import train

        torch.set_num_threads(1)
        self._here = folder / "cli"
        self._whole = folder / "whole"
        store = small_store(self._whole / "store")
        train(store, Config.from_recipe("default", SMALL), self._whole / "run")
        (self._whole / "edges.csv").write_text("source,target\na,b\nb,c\nc,a\n")
        (self._whole / "nodes.csv").write_text("id,f,label\na,1,x\nb,2,y\nc,3,x\n")
        self._group: Any = typer.main.get_command(cli.app)
        self._settings = setting_names(Config)

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        self._restore()
        arguments = self._base(rng)
        for step in steps:
            arguments = [one.replace("\0", "") for one in self._changed(arguments, step)]  # no shell passes a NUL
        if any(word in argument for argument in arguments for word in _FORBIDDEN):
            arguments = [*arguments, "--no-such-option"]
        code, out, err = call(arguments)
        return judge(arguments, code, out, err)

    def _restore(self) -> None:
        """Every case finds the same files."""
        os.chdir(self._whole.parent)
        shutil.rmtree(self._here, ignore_errors=True)
        shutil.copytree(self._whole, self._here, symlinks=True)
        config = self._here / "run" / "config.toml"
        config.write_text(config.read_text().replace(str(self._whole), str(self._here)))
        os.chdir(self._here)

    def _base(self, rng: random.Random) -> list[str]:
        light = [
            ["inspect", "store"], ["inspect", "run", "--json"], ["inspect", "store", "--verify"], ["config"],
            ["config", "train", "--json"], ["config", "--recipes"], ["datasets"], ["datasets", "--json"],
            ["--version"],
            ["datasets", "ingest", "ogbn-products", "--root", "nowhere", "--out", "new"], ["--help"],
            ["ingest", "--edges", "edges.csv", "--nodes", "nodes.csv", "--out", "new"],
            ["ingest", "--edges", "edges.csv", "--out", "new", "--json", "--set", "undirected=true"],
            ["prepare", "store", "--dry-run"], ["prepare", "store", *_each("--set", SMALL)],
            ["redis-load", "store", "redis://localhost:1/g"], ["train", "store", "--out", "run"],
            ["train", "--resume", "--out", "nowhere"], ["evaluate", "nowhere"],
            ["predict", "nowhere", "--out", "p.csv"],
            ["report", "nowhere"], ["reproduce", "table-main", "--dataset", "nowhere"],
            ["tune", "store", "--search", "nothing=1"], ["generate", "--like", "nothing", "--out", "new"],
        ]  # fmt: skip
        heavy = [
            ["train", "store", "--out", "new", "--max-time", "1s", "--json", *_each("--set", SMALL)],
            ["evaluate", "run", "--device", "cpu", "--json"],
            ["predict", "run", "--out", "p.parquet", "--device", "cpu"],
            ["predict", "run", "--out", "p.csv", "--node", "n3", "--json"], ["report", "run", "--no-analysis"],
            ["generate", "--like", "ogbn-products", "--scale", "0.00001", "--out", "new"],
        ]  # fmt: skip
        return list(rng.choice(light if rng.random() < 0.97 else heavy))

    def _changed(self, arguments: list[str], rng: random.Random) -> list[str]:
        at = rng.randrange(len(arguments) + 1)
        before, after = arguments[:at], arguments[at:]
        kind = rng.randrange(9)
        if kind == 0:
            return before + after[1:]
        if kind == 1 and after:
            return before + after[:1] + after
        if kind == 2:
            return [*before, odd_text(rng), *after[1:]]
        if kind == 3:
            return [*before, odd_text(rng), *after]
        if kind == 4:
            return [*arguments, "--set", f"{rng.choice(self._settings)}={odd_text(rng)}"]
        if kind == 5 and after:
            place = rng.randrange(len(after[0]) + 1)
            return [*before, after[0][:place] + rng.choice("xX-= \u00e9") + after[0][place + 1 :], *after[1:]]
        option = rng.choice(self._options(arguments))
        name = rng.choice(option.opts)
        if getattr(option, "is_flag", False):
            return [*arguments, name]
        known = (
            "store",
            "run",
            "nowhere",
            "edges.csv",
            "new",
            "1",
            "0",
            "test",
            "cpu",
            "auto",
            "default",
            "gat",
            "mlp",
        )
        return [*arguments, name, rng.choice(known) if rng.random() < 0.5 else odd_text(rng)]

    def _options(self, arguments: list[str]) -> list[Any]:
        """The options of the command that is called; of another one where there is none."""
        command = self._group.commands.get(arguments[0] if arguments else "", self._group.commands["train"])
        return [one for one in command.params if one.opts[0].startswith("-")] or self._group.commands["train"].params[
            1:
        ]


def _each(name: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (name, value)]


def call(arguments: list[str]) -> tuple[Any, str, str]:
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["largegt", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as leave:
        code = leave.code
    finally:
        sys.argv = before
    return code or 0, out.getvalue(), err.getvalue()


def judge(arguments: list[str], code: Any, out: str, err: str) -> str:
    if "Traceback" in out + err:
        raise Wrong(f"a traceback was printed: {arguments}")
    if code == 0:
        if "--json" not in arguments or "--help" in arguments or "--version" in arguments:
            return ACCEPTED
        json.loads(out)
        return RIGHT
    if code != 2:
        raise Wrong(f"it ended with code {code}: {arguments}: {err[-500:]}")
    lines = err.strip().splitlines()
    said = lines[-1] if lines and lines[-1].startswith("error: ") else "".join(lines) or out  # no command: the help
    if said.startswith("error: ") and (fault := fault_of_message(said)):
        raise Wrong(f"the message {fault}: {said[:300]!r}")
    if len(said) < 10:
        raise Wrong(f"it ended with code 2 and said nothing: {arguments}")
    return REFUSED
