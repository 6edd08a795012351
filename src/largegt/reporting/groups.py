"""Groups of runs: which runs are repetitions, how groups differ, which run is best.

Enters: run folders. Leaves: datasets → groups of runs that differ only in the seed → runs, with means and standard
deviations over the seeds. The name of a group is its model and the settings in which it differs from the other groups
of that model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from largegt.errors import InputError
from largegt.pages.markup import mean_of
from largegt.training.log import flatten
from largegt.training.metrics import larger_is_better
from largegt.training.run import Run
from largegt.types import PathLike

T = TypeVar("T")
K = "prepare.local_nodes.k"
_IGNORED = (
    "train.seed", "prepare.local_nodes.seed", "prepare.positional_encoding.seed", "train.device", "train.wandb_project",
    "train.checkpoint_every_n_epochs", "train.token_table",
)  # fmt: skip
"""Settings in which runs of one group may differ: the seeds, and settings without an effect on scores."""


@dataclass(frozen=True)
class Opened:
    """A finished run and the contents of its files."""

    run: Run
    name: str
    metrics: dict[str, Any]
    history: list[dict[str, Any]]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its full name, with the preparation that the model needs."""
        config = self.run.config
        return flatten(config.model_copy(update={"prepare": config.preparation}).model_dump(mode="json"))

    @property
    def model(self) -> str:
        return str(self.metrics["model"])

    def score(self, split: str, metric: str) -> float | None:
        value = self.metrics[split].get(metric)
        return None if value is None else float(value)

    def key(self, ignored: Sequence[str]) -> str:
        """All settings but the ignored ones, to compare runs by."""
        return repr([(name, value) for name, value in sorted(self.settings.items()) if name not in ignored])


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    name: str
    style: int
    runs: tuple[Opened, ...]

    @property
    def model(self) -> str:
        return self.runs[0].model

    @property
    def k(self) -> int:
        return int(self.runs[0].settings[K])

    def mean(self, of: Callable[[Opened], float | None]) -> tuple[float | None, float]:
        """Mean and standard deviation (0 for one run) over the runs in which this number is finite."""
        return mean_of([value for run in self.runs if (value := of(run)) is not None and math.isfinite(value)])

    def score(self, split: str, metric: str) -> tuple[float | None, float]:
        return self.mean(lambda run: run.score(split, metric))


@dataclass(frozen=True)
class DatasetRuns:
    """All runs on one store."""

    name: str
    metric: str
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Opened]:
        return [run for group in self.groups for run in group.runs]

    @property
    def sign(self) -> int:
        return 1 if larger_is_better(self.metric) else -1

    def best_of_each_model(self) -> list[tuple[Group, Opened]]:
        """The run of each model with the best validation score (test score, if there is no validation)."""

        def score(pair: tuple[Group, Opened]) -> float:
            scores = (pair[1].score(split, self.metric) for split in ("valid", "test"))
            return next((self.sign * score for score in scores if score is not None), -math.inf)

        pairs = [(group, run) for group in self.groups for run in group.runs]
        return [max(members, key=score) for members in _group_by(pairs, lambda pair: pair[0].model).values()]


def open_runs(paths: Iterable[PathLike]) -> list[Opened]:
    """Open all runs, each folder once."""
    runs = {Path(os.path.abspath(path)): Run.open(path) for path in paths}
    return [Opened(run, _short_name(path, runs), run.metrics, run.history) for path, run in runs.items()]


def _short_name(path: Path, others: Iterable[Path]) -> str:
    """The shortest end of the path that no other path has."""
    ends = ["/".join(path.parts[at:]) for at in range(len(path.parts) - 1, 0, -1)]
    unique = (end for end in ends if not any(str(other).endswith(f"/{end}") for other in others if other != path))
    return next(unique, str(path))


def datasets_of(runs: Sequence[Opened]) -> list[DatasetRuns]:
    """The runs by store, and within a store by settings."""
    stores = _group_by(runs, lambda run: (str(run.metrics["dataset"]), run.run.store_fingerprint))
    names = [name for name, _ in stores]
    styles: dict[str, int] = {}
    found = []
    for (name, fingerprint), members in stores.items():
        shown = name if names.count(name) == 1 else f"{name} ({fingerprint[:6]})"
        models = list(dict.fromkeys(run.model for run in members))
        groups = [Group(label, 0, tuple(repeats)) for label, repeats in _repeats(members).items()]
        groups.sort(key=lambda group: (models.index(group.model), group.k))
        styled = tuple(Group(one.name, styles.setdefault(one.name, len(styles)), one.runs) for one in groups)
        found.append(DatasetRuns(shown, _main_metric(members), styled))
    return found


def _main_metric(runs: Sequence[Opened]) -> str:
    """The metric that the runs monitor, or the first usual one that they have."""
    known = next((scores for run in runs if (scores := run.metrics["test"] or run.metrics["valid"])), None)
    if known is None:
        raise InputError("these runs have no validation or test nodes, so there is nothing to report")
    monitors = {run.run.config.train.monitor for run in runs}
    wanted = (*(monitors if len(monitors) == 1 else ()), "accuracy", "roc_auc", "rmse", *known)
    return next(str(name) for name in wanted if name in known)


def differing(runs: Sequence[Opened], ignored: Sequence[str] = ()) -> list[str]:
    """Settings that are not the same in all of these runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if name not in ignored and len({repr(run.settings.get(name)) for run in runs}) > 1]


def sensitivity(dataset: DatasetRuns) -> list[list[Group]]:
    """Families of groups that differ only in K, by rising K."""
    families = _group_by(dataset.groups, lambda group: group.runs[0].key((*_IGNORED, K)))
    return [sorted(family, key=lambda one: one.k) for family in families.values() if len({g.k for g in family}) > 1]


def _repeats(runs: Sequence[Opened]) -> dict[str, list[Opened]]:
    """Runs with the same settings (but the ignored ones), by a unique name."""
    by_key = _group_by(runs, lambda run: run.key(_IGNORED))
    named: dict[str, list[Opened]] = {}
    for repeats in by_key.values():
        model, settings = repeats[0].model, repeats[0].settings
        changed = differing([run for run in runs if run.model == model], _IGNORED)
        words = [f"{name.rsplit('.', 1)[1]}={_plain(settings.get(name))}" for name in changed]
        label = f"{model} ({', '.join(words[:3])}{', …' if len(words) > 3 else ''})" if words else model
        names = (label, *(f"{label} #{number}" for number in range(2, 2 + len(by_key))))
        named[next(name for name in names if name not in named)] = repeats
    return named


def _group_by(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The items of each key, in their order."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
