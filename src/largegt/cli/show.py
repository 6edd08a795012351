"""How results are shown: tables, bars, JSON."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from ..text import printable, quoted

_MANY_STEPS = 100


def shown_progress(quiet: bool) -> Any:
    from ..progress import console_progress

    return console_progress(quiet)


def say(*lines: object) -> None:
    """Print these lines, nothing in which can steer the terminal."""
    for line in lines:
        print(printable(line))


def say_stderr(line: object) -> None:
    """The same on standard error. Where that is closed or full, the work goes on without."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str))  # in ASCII: control characters are escaped, any terminal shows it


def print_table(title: str, columns: Any, rows: Any, left: tuple[str, ...] = ()) -> None:
    """A table under its title. The first column and those named in `left` are aligned left, numbers right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(printable(title), style="bold"))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_header=any(columns), pad_edge=False)
    for number, column in enumerate(columns):
        at_left = number == 0 or column in left
        name = Text(printable(column))
        table.add_column(name, justify="left" if at_left else "right", overflow="fold")  # a path is whole
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def print_bars(title: str, counts: dict[str, int], most: int = 20) -> None:
    """A horizontal bar chart of counts; only the largest of many classes."""
    shown = list(counts.items())
    if len(shown) > most:
        shown = sorted(shown, key=lambda item: -item[1])[:most]
        title = f"{title}, the {most} largest of {len(counts)}"
    longest = max((count for _, count in shown), default=0) or 1
    rows = [(name, f"{count:,}", "█" * round(30 * count / longest)) for name, count in shown]
    print_table(title, (" ", "nodes", "  "), rows, left=("  ",))


def print_columns(title: str, columns: list[dict[str, Any]], most: int = 60) -> None:
    """What became of each column of a table, and what to look at."""
    rows = [
        (one["column"], one["kind"], one["used_as"], plain(one["missing"]),
         "–" if one["distinct"] is None else plain(one["distinct"]))
        for one in columns[:most]
    ]  # fmt: skip
    if len(columns) > most:
        rows.append((f"… {len(columns) - most} more", "", "largegt inspect --json shows all", "", ""))
    print_table(title, ("column", "kind", "used as", "missing", "distinct"), rows, left=("kind", "used as"))
    for one in columns:
        for note in one["notes"]:
            say(f"note: {one['column']}: {note}")


def print_metrics(metrics: dict[str, Any]) -> None:
    names = list(metrics["valid"] or metrics["test"])
    rows = [
        (name, *(f"{metrics[split][name]:.4f}" if name in metrics[split] else "–" for split in ("valid", "test")))
        for name in names
    ]
    title = f"{metrics['model']} on {metrics['dataset']}, best epoch {metrics['best_epoch']} of {metrics['epochs']}"
    print_table(title, ("", "valid", "test"), rows)
    if metrics["stopped"]:
        say(f"Stopped early: {metrics['stopped']}.")


def print_tuned(found: Any) -> None:
    """The best trials, what made a difference, the final runs, and what to do next."""
    shown = [(trial.number, f"{trial.score:.4f}", trial.epochs, found.in_words(trial)) for trial in found.ranked[:5]]
    differs = "differs from the recipe (its value)"
    columns = ("trial", f"valid {found.metric}", "epochs", differs)
    print_table(f"The best of {found.num_done} trials on {found.dataset}", columns, shown, left=(differs,))
    if found.importances:
        shares = [f"{name} {share:.0%}" for name, share in list(found.importances.items())[:5]]
        say(f"What made a difference: {', '.join(shares)}")
    if found.num_prepared:
        say(f"Preparations made on the way: {found.num_prepared}, in {found.store / 'prepared'}")
    if found.stopped:
        say(f"Ended early: {found.stopped}; a longer --budget goes on.")
    if found.final:
        say("", f"The best settings with {len(found.final)} seeds: {found.final_in_words()}")
    say("", f"Look at all trials: {found.page}")
    say(f"Next: largegt train {quoted(found.store)} --recipe {quoted(found.recipe)} --out runs/best")


def print_estimate(found: dict[str, Any], title: str) -> None:
    """What a preparation will take, stage by stage."""
    from ..memory import format_bytes

    if found["already_prepared"]:
        say("It is prepared already; this is what it would take again.")
    rows = [
        (
            stage["name"], format_bytes(stage["disk_bytes"]), format_bytes(stage["scratch_bytes"]),
            format_bytes(stage["memory_bytes"]), duration(stage["elapsed_s"]),
        )
        for stage in found["stages"]
    ]  # fmt: skip
    total = ("all", format_bytes(found["disk_bytes"]), f"peak {format_bytes(found['peak_disk_bytes'])}",
             format_bytes(found["memory_bytes"]), duration(found["elapsed_s"]))  # fmt: skip
    print_table(
        f"{title}: {found['num_nodes']:,} nodes, about {found['token_rows']:,} token rows",
        ("stage", "on disk", "scratch", "memory", "rough time"), [*rows, total],
    )  # fmt: skip
    free = found["free_disk_bytes"]
    if found["peak_disk_bytes"] > free:
        say(f"This does not fit: {format_bytes(free)} are free on that disk.")


def say_stale(store: Any, config: Any, quiet: bool) -> None:
    """Tell which settings differ from an earlier preparation before running a new one."""
    from ..prepare.cache_key import is_prepared
    from ..prepare.prepared import stale_note

    if not quiet and not is_prepared(store, config) and (note := stale_note(store, config)):
        say_stderr(f"note: {note}; preparing what changed")


def say_few_steps(store: Any, config: Any, quiet: bool) -> None:
    """Of a training whose batches hold all there is: it ends before it has learned much."""
    num_nodes, train = len(store.splits["train"]), config.train
    if not quiet and 0 < num_nodes <= train.batch_size and 10 <= train.epochs < _MANY_STEPS:
        from ..auto import small_batch

        advice = f"--set train.batch_size={small_batch(num_nodes)}"
        if config.model.name.startswith("largegt"):
            advice = f"--recipe auto, or {advice}"
        steps = f"{num_nodes:,} training nodes are one batch, so there are {train.epochs} steps in all, which is few"
        say_stderr(f"note: {steps}: {advice}")


def say_reused(reused: dict[str, tuple[int, int]], quiet: bool) -> None:
    """Of a store that has grown: what its preparation kept of an earlier one."""
    for name, (kept, made) in {} if quiet else reused.items():
        say_stderr(f"{name}: {made:,} rows computed, {kept:,} kept from an earlier preparation")


def say_first_run(quiet: bool) -> None:
    """To somebody who waits at a terminal: why the first run on a machine begins slowly."""
    if quiet or not sys.stderr.isatty():
        return
    from ..doctor import is_compiled, kernel_folder

    folder = kernel_folder()
    if folder is not None and not is_compiled(folder):
        say_stderr(f"note: the first run compiles its kernels, once, some 15 s; they are kept in {folder}")


def say_training(store: Any, config: Any, out: Any, quiet: bool) -> None:
    """The same: what begins, where its result will lie, how to stop it. The bar tells the time left."""
    if quiet or not sys.stderr.isatty():
        return
    what = f"{config.model.name} on {store.name}, {len(store.splits['train']):,} training nodes"
    most, budget = config.train.epochs, config.train.budget
    how_long = f"{most} epoch{'s' if most > 1 else ''} at most" + (f" or {budget}" if budget else "")
    say_stderr(f"Training {what}, {how_long}. The run will be in {out}; Ctrl-C stops it, --resume goes on.")


def duration(elapsed_s: float) -> str:
    if elapsed_s < 90:
        return f"{elapsed_s:.0f} s" if elapsed_s >= 1 else "under 1 s"
    return f"{elapsed_s / 60:.0f} min" if elapsed_s < 5400 else f"{elapsed_s / 3600:.1f} h"


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


def short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
