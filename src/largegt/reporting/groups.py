"""Runs, put in order: which belong together, what tells them apart, which is best.

Enters: run folders. Leaves: datasets → groups of runs that differ in nothing but the seed → runs, with means and
standard deviations over the seeds. A group is named by its model, and by the settings in which it differs from the
other groups of that model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from largegt.errors import InputError
from largegt.training.log import flatten
from largegt.training.run import Run
from largegt.types import PathLike

K = "prepare.local_nodes.k"
SMALLER_IS_BETTER = ("rmse", "mae", "loss")
_NO_MATTER = (
    "train.seed", "prepare.local_nodes.seed", "prepare.positions.seed", "train.device", "train.wandb",
    "train.checkpoint_every", "tokens.table",
)  # fmt: skip
"""Settings in which runs of one group may differ: the seeds, and those that change no result."""


@dataclass(frozen=True)
class Opened:
    """A finished run and what its files say."""

    run: Run
    name: str
    metrics: dict[str, Any]
    history: list[dict[str, Any]]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its full name; preparation as the model takes it."""
        config = self.run.config
        return flatten(config.model_copy(update={"prepare": config.preparation}).model_dump(mode="json"))

    @property
    def model(self) -> str:
        return str(self.metrics["model"])

    @property
    def k(self) -> int:
        return int(self.settings[K])

    def score(self, split: str, metric: str) -> float | None:
        value = self.metrics[split].get(metric)
        return None if value is None else float(value)


@dataclass(frozen=True)
class Group:
    """Runs alike but for their seeds."""

    name: str
    style: int
    runs: tuple[Opened, ...]

    @property
    def model(self) -> str:
        return self.runs[0].model

    def mean(self, of: Callable[[Opened], float | None]) -> tuple[float | None, float]:
        """Mean and standard deviation (0 of one) over the runs that have this number, a finite one."""
        values = [value for run in self.runs if (value := of(run)) is not None and math.isfinite(value)]
        return (fmean(values) if values else None), (stdev(values) if len(values) > 1 else 0.0)

    def score(self, split: str, metric: str) -> tuple[float | None, float]:
        return self.mean(lambda run: run.score(split, metric))


@dataclass(frozen=True)
class Dataset:
    """All runs on one store."""

    name: str
    metric: str
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Opened]:
        return [run for group in self.groups for run in group.runs]

    @property
    def sign(self) -> int:
        return -1 if self.metric in SMALLER_IS_BETTER else 1

    def best_of_each_model(self) -> list[tuple[Group, Opened]]:
        """The run of each model that was best on validation (on test, where there was none)."""
        best: dict[str, tuple[float, Group, Opened]] = {}
        for group in self.groups:
            for run in group.runs:
                score = run.score("valid", self.metric)
                score = run.score("test", self.metric) if score is None else score
                value = self.sign * score if score is not None else float("-inf")
                if group.model not in best or value > best[group.model][0]:
                    best[group.model] = value, group, run
        return [(group, run) for _, group, run in best.values()]


def open_runs(paths: Iterable[PathLike]) -> list[Opened]:
    """Open them all; the same folder given twice counts once."""
    runs = {Path(os.path.abspath(path)): Run.open(path) for path in paths}
    names = short_names(list(runs))
    return [Opened(run, names[place], run.metrics, run.history) for place, run in runs.items()]


def datasets_of(runs: Sequence[Opened]) -> list[Dataset]:
    """The runs by store, and there by what they have in common."""
    stores: dict[tuple[str, str], list[Opened]] = {}
    for run in runs:
        stores.setdefault((str(run.metrics["dataset"]), run.run.store_fingerprint), []).append(run)
    names = [name for name, _ in stores]
    styles: dict[str, int] = {}
    found = []
    for (name, fingerprint), members in stores.items():
        shown = name if names.count(name) == 1 else f"{name} ({fingerprint[:6]})"
        groups = []
        models = list(dict.fromkeys(run.model for run in members))
        ordered = sorted(_alike(members).items(), key=lambda item: (models.index(item[1][0].model), item[1][0].k))
        for label, alike in ordered:
            groups.append(Group(label, styles.setdefault(label, len(styles)), tuple(alike)))
        found.append(Dataset(shown, main_metric(members), tuple(groups)))
    return found


def main_metric(runs: Sequence[Opened]) -> str:
    """The metric the runs were stopped by where they name one, otherwise the first that is not the loss."""
    scores = [run.metrics["test"] or run.metrics["valid"] for run in runs]
    if not any(scores):
        raise InputError("these runs have no validation or test nodes, so there is nothing to report")
    known = next(found for found in scores if found)
    monitors = {run.run.config.train.monitor for run in runs}
    for name in (*(monitors if len(monitors) == 1 else ()), "accuracy", "roc_auc", "rmse"):
        if name in known:
            return str(name)
    return str(next(iter(known)))


def ranks(values: Mapping[str, float | None], sign: int) -> dict[str, int]:
    """1 for the best of each name, and so on; equal values share a rank."""
    known = {name: sign * value for name, value in values.items() if value is not None}
    return {name: 1 + sum(other > value for other in known.values()) for name, value in known.items()}


def differing(runs: Sequence[Opened], but: Sequence[str] = ()) -> list[str]:
    """Settings that are not the same in all of these runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if name not in but and len({repr(run.settings.get(name)) for run in runs}) > 1]


def sensitivity(dataset: Dataset) -> list[list[Group]]:
    """Groups that differ in K alone, by rising K; only where there are several K."""
    families: dict[str, list[Group]] = {}
    for group in dataset.groups:
        families.setdefault(_key(group.runs[0], (*_NO_MATTER, K)), []).append(group)
    found = [sorted(family, key=k_of) for family in families.values()]
    return [family for family in found if len({k_of(group) for group in family}) > 1]


def k_of(group: Group) -> int:
    return group.runs[0].k


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """The last part of each path, with as much before it as tells it from the others."""
    found = {}
    for path in paths:
        parts = path.parts
        others = [other.parts for other in paths if other != path]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), len(parts)
        )
        found[path] = "/".join(parts[-length:])
    return found


def _alike(runs: Sequence[Opened]) -> dict[str, list[Opened]]:
    by_key: dict[str, list[Opened]] = {}
    for run in runs:
        by_key.setdefault(_key(run, _NO_MATTER), []).append(run)
    named: dict[str, list[Opened]] = {}
    for alike in by_key.values():
        model = alike[0].model
        others = [run for run in runs if run.model == model]
        changed = differing(others, but=_NO_MATTER)
        words = [f"{name.rsplit('.', 1)[1]}={_plain(alike[0].settings.get(name))}" for name in changed]
        label = f"{model} ({', '.join(words[:3])}{', …' if len(words) > 3 else ''})" if words else model
        unique, number = label, 1
        while unique in named:
            number += 1
            unique = f"{label} #{number}"
        named[unique] = alike
    return named


def _key(run: Opened, but: Sequence[str]) -> str:
    return repr([(name, value) for name, value in sorted(run.settings.items()) if name not in but])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
