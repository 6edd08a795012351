"""Sections of the page that say how to get the runs again: settings that differ, folders, commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from largegt.io.remote import shown
from largegt.pages.markup import Cell, Html, Section, clipped, duration, join, section, table, tag
from largegt.runtime.text import quoted

from .groups import Dataset, Opened, differing

_MAX_VALUE = 28


def differences(datasets: Sequence[Dataset], runs: Sequence[Opened]) -> Section:
    """Settings that are not the same in every run, a column per group."""
    if len(runs) == 1:
        return section("settings", "Settings", "One run, so there is nothing to compare; it is listed below.")
    names = differing(runs)
    if not names:
        return section("settings", "Settings that differ", "All runs have the same settings.")
    several = len(datasets) > 1
    groups = [
        (f"{group.name} on {dataset.name}" if several else group.name, group.runs)
        for dataset in datasets
        for group in dataset.groups
    ]
    rows: list[list[Cell]] = [
        [tag("code", name), *(_values([run.settings.get(name) for run in members]) for _, members in groups)]
        for name in names
    ]
    shown = table("Settings that differ between runs", ["setting", *(name for name, _ in groups)], rows)
    lead = "Everything else is the same in all runs. A column holds the runs that differ in nothing but their seeds."
    return section("settings", "Settings that differ", lead, shown)


def listing(runs: Sequence[Opened]) -> Section:
    """Every run: its folder, its numbers, the command that makes it again, its whole configuration."""
    head = ["run", "model", "dataset", "seed", "best epoch", "epochs", "draws", "training", "parameters", "ended"]
    rows: list[list[Cell]] = []
    for run in runs:
        m = run.metrics
        rows.append([
            run.name, run.model, str(m["dataset"]), m["seed"], m["best_epoch"], m.get("epochs", len(run.history)),
            m.get("draws", 1), duration(m["train_time_s"]), f"{m['num_parameters']:,}",
            m.get("stopped") or "all epochs done",
        ])  # fmt: skip
    body = [table("All runs", head, rows, left=3), *(_details(run) for run in runs)]
    lead = (
        "A run's config.toml is a recipe: the commands train it again, with the same seed, into a folder beside it. "
        "Draws: samples of local nodes or neighbours that its test predictions are averaged over."
    )
    return section("runs", "Runs", lead, *body)


def command(run: Opened) -> str:
    """The command that trains it again."""
    folder, store = run.run.path, quoted(shown(run.run.store_path))
    return f"largegt train {store} --recipe {quoted(folder / 'config.toml')} --out {quoted(f'{folder}-again')}"


def _details(run: Opened) -> Html:
    text = (run.run.path / "config.toml").read_text(encoding="utf-8", errors="replace")
    scores = [
        [f"{split} {name}", f"{value:.6g}"] for split in ("valid", "test") for name, value in run.metrics[split].items()
    ]
    return tag(
        "details", tag("summary", run.name), tag("p", "Folder: ", tag("code", run.run.path)),
        tag("pre", command(run)), table(f"Scores of {run.name}", ["metric", "value"], scores), tag("pre", text),
    )  # fmt: skip


def _values(values: Sequence[Any]) -> Html:
    """The values of a group's runs, each once."""
    texts = dict.fromkeys(clipped("–" if value is None else str(value), _MAX_VALUE) for value in values)
    return join(texts, ", ")
