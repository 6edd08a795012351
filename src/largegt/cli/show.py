"""How results are shown: lines, tables, bars, JSON; and notes on standard error, which --json leaves out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from largegt.runtime.text import clipped, printable

from .flags import as_typed

_MANY_STEPS = 100
_LONG_NAME = 80
_MOST_BARS, _MOST_COLUMNS = 20, 60


is_json = False
"""Whether the verb that runs was given --json."""


@dataclass(frozen=True)
class TextTable:
    """Rows under a title. The first column and those named in `left` are aligned left, numbers right."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    left: tuple[str, ...] = ()


Block = str | TextTable
"""A line, or a table."""


@dataclass(frozen=True)
class Result:
    """What a verb has found: `value` is shown with --json, the blocks without it."""

    value: Any
    blocks: Sequence[Block]
    exit_code: int = 0

    def show(self) -> None:
        if is_json:
            print(json.dumps(self.value, indent=1, default=str))  # ASCII: control characters are escaped
            return
        for block in self.blocks:
            if isinstance(block, TextTable):
                _print_table(block)
            else:
                say(block)


def _print_table(table: TextTable) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    console.print(Text(printable(table.title), style="bold"))
    shown = RichTable(box=box.SIMPLE_HEAD, header_style="bold", show_header=any(table.columns), pad_edge=False)
    for number, column in enumerate(table.columns):
        at_left = number == 0 or column in table.left
        shown.add_column(Text(printable(column)), justify="left" if at_left else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    console.print(shown)


def progress(quiet: bool = False) -> Any:
    from largegt.runtime.progress import console_progress

    return console_progress(quiet or is_json)


def say(line: object) -> None:
    """Print a line, nothing in which can steer the terminal."""
    print(printable(line))


def say_stderr(line: object) -> None:
    """The same on standard error, with flags where the library names arguments. Where that is closed or full, the work
    goes on without."""
    with suppress(OSError):
        print(printable(as_typed(str(line))), file=sys.stderr, flush=True)


# what a folder holds


def folder(
    path: Path | str, estimate: bool = True, found: dict[str, Any] | None = None, before: Sequence[str] = ()
) -> Result:
    """What a store, a preparation or a run holds, and what was `found` in it besides; lines to print `before`."""
    from largegt.io.remote import is_url, local_path, shown

    from .inspection import inspect

    path = shown(local_path(path)) if is_url(path) else path
    named = inspect(path, estimate=estimate) | (found or {})
    single = {
        name: value for name, value in named.items()
        if not isinstance(value, dict) and name not in ("kind", "columns", "edge_columns") and value != []
    }  # fmt: skip
    blocks: list[Block] = [*before, facts(f"{named['kind']} {path}", single)]
    for name, title in (("columns", "columns of the nodes"), ("edge_columns", "columns of the edges")):
        if named.get(name):
            blocks += columns(title, named[name])
    blocks += [
        bars(name, named[name]) for name in ("splits", "classes", "degrees") if isinstance(named.get(name), dict)
    ]
    if "preparation" in named:
        blocks += preparation(named["preparation"], "To prepare it as the default recipe says")
    if "metrics" in named:
        blocks += metrics(named["metrics"])
    return Result(named | {"path": str(path)}, blocks)


def facts(title: str, named: dict[str, Any]) -> TextTable:
    """One row for each fact."""
    return TextTable(title, ("", ""), [(name.replace("_", " "), plain(value)) for name, value in named.items()])


def bars(title: str, counts: dict[str, int]) -> TextTable:
    """A horizontal bar chart of counts; only the largest of many classes."""
    shown = list(counts.items())
    if len(shown) > _MOST_BARS:
        shown = sorted(shown, key=lambda item: -item[1])[:_MOST_BARS]
        title = f"{title}, the {_MOST_BARS} largest of {len(counts)}"
    longest = max((count for _, count in shown), default=0) or 1
    rows = [(name, f"{count:,}", "█" * round(30 * count / longest)) for name, count in shown]
    return TextTable(title, (" ", "nodes", "  "), rows, left=("  ",))


def columns(title: str, found: list[dict[str, Any]]) -> list[Block]:
    """What became of each column of a table, and what to look at; long names are cut, JSON has them whole."""
    rows = [
        (clipped(one["column"], _LONG_NAME), one["kind"], clipped(one["used_as"], _LONG_NAME), f"{one['missing']:,}",
         "" if one["distinct"] is None else f"{one['distinct']:,}")
        for one in found[:_MOST_COLUMNS]
    ]  # fmt: skip
    if len(found) > _MOST_COLUMNS:
        rows.append((f"… {len(found) - _MOST_COLUMNS} more", "", "largegt inspect --json shows all", "", ""))
    table = TextTable(title, ("column", "kind", "used as", "missing", "distinct"), rows, left=("kind", "used as"))
    notes = [f"note: {clipped(one['column'], _LONG_NAME)}: {note}" for one in found for note in one["notes"]]
    more = [f"… {len(notes) - _MOST_COLUMNS} more notes: largegt inspect --json shows all"]
    return [table, *notes[:_MOST_COLUMNS], *(more if len(notes) > _MOST_COLUMNS else [])]


def metrics(found: dict[str, Any]) -> list[Block]:
    rows = [
        (name, *(f"{found[split][name]:.4f}" if name in found[split] else "–" for split in ("valid", "test")))
        for name in found["valid"] or found["test"]
    ]
    title = f"{found['model']} on {found['dataset']}, best epoch {found['best_epoch']} of {found['epochs']}"
    return [
        TextTable(title, ("", "valid", "test"), rows),
        *([f"Stopped early: {found['stopped']}."] if found["stopped"] else []),
    ]


def preparation(found: dict[str, Any], title: str) -> list[Block]:
    """What a preparation will take, stage by stage."""
    from largegt.pages.markup import duration
    from largegt.runtime.memory import format_bytes

    rows = [
        (one["name"], *(format_bytes(one[f"{what}_bytes"]) for what in ("disk", "scratch", "memory")),
         duration(one["elapsed_s"]))
        for one in found["stages"]
    ]  # fmt: skip
    total = ("all", format_bytes(found["disk_bytes"]), f"peak {format_bytes(found['peak_disk_bytes'])}",
             format_bytes(found["memory_bytes"]), duration(found["elapsed_s"]))  # fmt: skip
    title = f"{title}: {found['num_nodes']:,} nodes, about {found['token_rows']:,} token rows"
    blocks: list[Block] = [TextTable(title, ("stage", "on disk", "scratch", "memory", "rough time"), [*rows, total])]
    if found["already_prepared"]:
        blocks.insert(0, "It is prepared already; this is what it would take again.")
    if found["peak_disk_bytes"] > found["free_disk_bytes"]:
        blocks.append(f"This does not fit: {format_bytes(found['free_disk_bytes'])} are free on that disk.")
    return blocks


# notes on standard error


def _note(line: str) -> None:
    if not is_json:
        say_stderr(line)


def note_stale(store: Any, config: Any) -> None:
    """Which settings differ from an earlier preparation, before a new one is made."""
    from largegt.preprocessing.cache_key import is_prepared
    from largegt.preprocessing.prepared import stale_note

    if not is_prepared(store, config) and (note := stale_note(store, config)):
        _note(f"note: {note}; preparing what changed")


def note_few_steps(store: Any, config: Any) -> None:
    """That a training whose batches hold all there is ends before it has learned much."""
    from largegt.preprocessing.auto_config import small_batch

    num_nodes, train = len(store.splits["train"]), config.train
    if 0 < num_nodes <= train.batch_size and 10 <= train.epochs < _MANY_STEPS:
        auto = "--recipe auto, or " if config.model.name.startswith("largegt") else ""
        _note(
            f"note: {num_nodes:,} training nodes are one batch, so there are {train.epochs} steps in all, which is "
            f"few: {auto}--set train.batch_size={small_batch(num_nodes)}"
        )


def note_reused(reused: dict[str, tuple[int, int]]) -> None:
    """Of a store that has grown: what its preparation kept of an earlier one."""
    for name, (kept, made) in reused.items():
        _note(f"{name}: {made:,} rows computed, {kept:,} kept from an earlier preparation")


def note_first_run() -> None:
    """At a terminal: why the first run on a machine begins slowly."""
    if is_json or not sys.stderr.isatty():
        return
    from .doctor import is_compiled, kernel_folder

    kept_in = kernel_folder()
    if kept_in is not None and not is_compiled(kept_in):
        _note(f"note: the first run compiles its kernels, once, some 15 s; they are kept in {kept_in}")


def note_training(store: Any, config: Any, out: Any) -> None:
    """At a terminal: what begins, where its result will be, how to stop it. The progress bar shows the time left."""
    most, max_time = config.train.epochs, config.train.max_time
    how_long = f"{most} epoch{'s' if most > 1 else ''} at most" + (f" or {max_time}" if max_time else "")
    if sys.stderr.isatty():
        _note(
            f"Training {config.model.name} on {store.name}, {len(store.splits['train']):,} training nodes, {how_long}. "
            f"The run will be in {out}; Ctrl-C stops it, --resume goes on."
        )


# values in words


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return "none" if value is None else str(value)
