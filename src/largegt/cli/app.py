"""The application: its verbs are in the other modules; here is how a command starts, fails and is stopped."""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from largegt import __version__
from largegt.errors import AGAIN, DiskError, InputError, LargeGTError, machine_refusal
from largegt.runtime.memory import check_address_space
from largegt.runtime.signals import end_with_parent, exit_code, install_handlers
from largegt.runtime.text import printable

from .show import say, say_stderr

_how_to_go_on: list[Callable[[], str]] = []
"""What the verb that runs now says of going on, once it has something to go on from."""


_ORDER = (
    "demo", "generate", "ingest", "append", "clean", "inspect", "prepare", "redis-load", "train", "tune", "evaluate",
    "predict", "embed", "explain", "report", "reproduce", "datasets", "doctor", "config",
)  # fmt: skip
"""Of the verbs in --help: the order they are needed in."""


_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])
"""Typer's class for a command that is put wrongly: it is in one library or another, by Typer's version."""


class _Verbs(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="largegt",
    cls=_Verbs,
    help="Train a graph transformer on one very large graph and predict labels for its nodes.\n\n"
    "The walk: [bold]ingest[/] (your files → a store) → [bold]train[/] (it prepares what is missing) → "
    "[bold]evaluate[/], [bold]predict[/], [bold]report[/]. Begin with [bold]largegt demo[/]; "
    "[bold]largegt doctor[/] says whether this machine can do it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        say(f"largegt {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs shows question marks
    install_handlers()
    if "LARGEGT_LAUNCHED" in os.environ:
        end_with_parent(int(os.environ["LARGEGT_LAUNCHED"]))
    try:
        check_address_space()
        _check_words(sys.argv[1:])
        try:
            code = app(
                prog_name="largegt", standalone_mode=False
            )  # the name that is typed, also for `python -m largegt`
        except _UsageError as error:
            code = _misread(error)
        _flush()
    except LargeGTError as error:
        say_stderr(f"error: {error}")
        _leave_ranks(error)
        code = 2
    except Exception as error:
        _leave_ranks(error)
        if not (reason := machine_refusal(error, *sys.argv[1:2])):
            raise
        say_stderr(f"error: {reason}")
        code = 2
    raise SystemExit(code)


@contextmanager
def running() -> Iterator[None]:
    """Within, a verb does its work: what is logged and a library's warning are a line each, once, and a signal ends it
    with a line and the code that shells expect."""
    _how_to_go_on.clear()
    notes = _Notes()
    logging.getLogger("largegt").addHandler(notes)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say_stderr(f"warning: {' '.join(str(message).split())}")
            yield
    except KeyboardInterrupt as error:
        raise SystemExit(_stopped(error)) from None
    finally:
        logging.getLogger("largegt").removeHandler(notes)


class _Notes(logging.Handler):
    """Prints a message that is logged as one line on standard error, the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"note: {' '.join(record.getMessage().split())}"
        if line not in self.printed:
            self.printed.add(line)
            say_stderr(line)


def _check_words(words: list[str]) -> None:
    """Refuse a word of the command that is no text before any work is done: it could not be written down later."""
    for word in words:
        if any("\ud800" <= c <= "\udfff" for c in word):
            raise InputError(f"{word} is not valid UTF-8: rename it, or go to its folder by another name")


def _flush() -> None:
    """Write out what was printed, so that a full disk behind standard output is an error like any other."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # what cannot be written is not tried again when the interpreter ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
        raise SystemExit(1) from None  # whoever read it has enough


def _misread(error: Any) -> int:
    """Say in one line what is wrong with the command, and how it is put right; the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # no word at all: the help is the answer
        say(error.ctx.get_help())
        return 2
    said = str(LargeGTError(error.format_message().strip().rstrip(".")))
    verb = error.ctx.command_path if error.ctx is not None else "largegt"
    text = inspect.cleandoc((error.ctx and error.ctx.command.help) or "")
    example = re.search(rf"^[^\n]*:  ({verb} .*)$", text, flags=re.MULTILINE)
    shown = f"for example {example[1]}; " if example and said.startswith(("Missing", "No such")) else ""
    say_stderr(f"error: {verb}: {said[:1].lower()}{said[1:]}; {shown}see {verb} --help")
    return 2


@contextmanager
def goes_on(how: Callable[[], str] | None = None) -> Iterator[None]:
    """Within, work is done that the same command goes on with, or the one that `how` names: it is told after a signal
    and after a full disk."""
    _how_to_go_on.append(how or (lambda: f"{AGAIN}, it goes on where it stopped"))
    try:
        yield
    except DiskError as error:
        if how is None:
            raise
        raise DiskError(str(error).replace(f", then {AGAIN}", f"; {how()}")) from error


def _stopped(error: KeyboardInterrupt) -> int:
    """Say how to go on; the exit code. A rank leaves at once, and silently where another process speaks for it."""
    code = exit_code(error)
    is_launched = "LARGEGT_LAUNCHED" in os.environ
    if not is_launched:
        say_stderr(f"stopped: {_how_to_go_on[-1]() if _how_to_go_on else AGAIN}")
    ranks = sys.modules.get("largegt.runtime.distributed")
    if is_launched or (ranks is not None and ranks.is_joined()):
        _leave_at_once(code)
    return code


def _leave_ranks(error: Exception) -> None:
    """A rank that fails leaves at once: an orderly end would wait for the others, which wait for it. That it only
    misses another one is said in a line, but by the first one only if nobody launched them all and will say it."""
    ranks = sys.modules.get("largegt.runtime.distributed")
    if ranks is None or not ranks.is_joined():
        return
    code = 2 if isinstance(error, LargeGTError) else 1
    if ranks.is_lost_rank(error):
        code = ranks.LOST_RANK_CODE
        if "LARGEGT_LAUNCHED" not in os.environ or not ranks.is_first_process():
            reason = str(error).strip().partition("\n")[0][:150]
            say_stderr(f"error: this rank misses another one ({reason} …); go on with --resume")
    elif code == 1:
        sys.stderr.write(printable("".join(traceback.format_exception(error)), keep="\n"))
    _leave_at_once(code)


def _leave_at_once(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
