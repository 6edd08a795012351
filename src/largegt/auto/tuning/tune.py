"""`largegt tune`: settings of a model, searched on one store.

Enters: a store, a recipe to start from, a Space. Leaves a folder:

best.toml     the best trial's whole configuration, a recipe
trials.csv    every trial: its settings, score, epochs, seconds
tune.md       the best five and how they differ from the recipe
tune.html     the same as charts
trials/       the trials' runs; the best one keeps its weights
final/        with `final`: runs of the best settings with several seeds, the only ones with a test score
study.jsonl   the state for resuming

A trial is a training run; its score is the validation score of its best epoch. Only `final` reads the test split.
Cost: the training runs, and a preparation per new value of a prepare.* setting, which reuses unchanged stages of
existing preparations.
"""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from largegt.config.overrides import seconds
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError, first_line
from largegt.io.checksums import fingerprint
from largegt.io.locks import remove_stale
from largegt.io.remote import refuse_url
from largegt.models.base import NodeModel
from largegt.preprocessing.auto_config import ConfigLike, config_for, recipe_and_overrides
from largegt.preprocessing.cache_key import is_prepared
from largegt.preprocessing.pipeline import prepare
from largegt.runtime.progress import Progress, silent
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.training.trainer import train
from largegt.types import PathLike

from .output import Tuned, write_output

if TYPE_CHECKING:  # Optuna is optional
    import optuna

    from .space import Space
    from .study import Study


class _WorseThanMedian(Exception):
    """Raised in the training of a trial to stop it."""


def tune(
    store: GraphStore | PathLike,
    config: ConfigLike = None,
    out: PathLike = "tune",
    trials: int = 30,
    max_time: str | None = None,
    search: Iterable[str] = (),
    *,
    overrides: Iterable[str] = (),
    only: bool = False,
    final: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    memory: str | int | None = None,
) -> Tuned:
    """Search the settings that do best on the validation nodes.

    Called again with the same `out`, it goes on where it stopped.

    Args:
        store: a store, or its path.
        config: where to start, as for `lg.train`; settings that it names are not searched.
        out: the folder of the trials.
        trials: trials in all.
        max_time: wall-clock limit of all trials together: 90s, 30m, 4h.
        search: settings to search, beside or instead of those of the model's table, such as
            `"train.learning_rate=1e-4..1e-2:log"` or `"model.hidden_dim=64,128"`.
        overrides: more settings to fix, as `"NAME=VALUE"`.
        only: search nothing but `search`.
        final: train the best settings with so many seeds at the end, beyond the time limit, and score them on test.
        seed: seed of the search.
        progress: is called as `progress(stage, done, total)`.
        memory: what a preparation may hold at once, such as `"4GiB"`.

    Returns:
        What was found: `recipe` is the path of the best settings, `best` the best trial.

    Raises:
        ConfigError: a setting is unknown, Optuna is not installed, or `out` holds another tuning.
        InputError: there is no store, or it has no training or validation nodes.

    Examples:
        >>> found = lg.tune("data/g", {"train.epochs": 1}, out="tune", trials=2, search=["model.dropout=0,0.2"])
        >>> run = lg.train("data/g", found.recipe, out="runs/best")
    """
    if find_spec("optuna") is None:
        raise ConfigError("tuning needs Optuna, which is not installed: pip install 'largegt[tune]'")
    from .space import make_space
    from .study import open_study

    refuse_url(out, "trials")
    if trials < 1 or final < 0:
        raise ConfigError(f"trials is {trials} and final {final}: at least one trial, and no fewer than 0 final runs")
    max_time_s = seconds(max_time) if max_time else math.inf
    opened = store if isinstance(store, GraphStore) else GraphStore.open(store)
    recipe, own = recipe_and_overrides(config)
    given = [*own, *overrides]
    start = config_for(opened, recipe, given)[0]
    space = make_space(start, given, search, opened.task, only)
    base = space.config({})
    for split in ("train", "valid"):
        if not len(opened.splits[split]):
            raise InputError(f"{opened.place} has no {split} nodes, without which settings cannot be compared")
    metric, sign = TaskHead(opened.task, 1, None, 0.0, 0.0, 1.0).monitor(base.train.monitor)
    identity = {
        "store": opened.fingerprint, "recipe": fingerprint(base.model_dump(mode="json")), "search": str(space.axes),
        "seed": seed,
    }  # fmt: skip
    with open_study(Path(out), space, identity, sign) as study:
        tuning = _Tuning(opened, Path(out), space, study, metric, sign, trials, progress or silent, memory)
        stopped = tuning.run(max_time_s)
        if not study.ranked():
            raise ConfigError(f"no trial finished ({stopped or 'all were pruned'}): give a longer `max_time`")
        return tuning.write(tuning.final(final), stopped)


@dataclass
class _Tuning:
    store: GraphStore
    out: Path
    space: Space
    study: Study
    metric: str
    sign: float
    trials: int
    progress: Progress
    memory: str | int | None
    num_prepared: int = 0
    """Number of preparations made during the trials."""

    def run(self, max_time_s: float) -> str:
        """Run trials one by one up to the limit of trials or time. Returns why it ended, if by time."""
        while len(self.study.done()) < self.trials:
            left_s = max_time_s - sum(trial.elapsed_s for trial in self.study.trials())
            if left_s <= 0:
                return "the time is used up"
            self._show()
            trial = self.study.ask(self.space.config({}).train.epochs)
            try:
                self._run(trial, left_s)
            except KeyboardInterrupt:  # the trial resumes later from its last checkpoint
                self.study.retry(trial.number, attempts=0)
                raise
            finally:
                _free_memory()
            if self.study.ranked():
                self.write()
        self._show()
        return ""

    def _run(self, trial: optuna.Trial, left_s: float) -> None:
        """Run one trial, and record its score or why it has none."""
        start, score, why = time.perf_counter(), None, ""
        try:
            run = self._train(trial, left_s, start)
            score = max((self._score(entry) for entry in run.history), key=lambda score: self.sign * score)
        except _WorseThanMedian:
            why = "worse than the median of the trials before"
        except (ConfigError, torch.OutOfMemoryError) as error:
            if not self.study.ranked():  # no trial has worked: the fixed settings are wrong
                self.study.retry(trial.number, attempts=0)
                raise
            why = first_line(error)
        self.study.tell(trial, score, why, time.perf_counter() - start)
        self._drop_weights()

    def _train(self, trial: optuna.Trial, left_s: float, start: float) -> Run:
        config, folder = self.space.config(trial.params), self.out / str(trial.user_attrs["folder"])
        resume = (folder / "config.toml").is_file()
        if folder.exists() and not resume:
            shutil.rmtree(folder)
        self.num_prepared += not is_prepared(self.store, config.preparation)
        prepare(self.store, config.preparation, progress=self.progress, memory=self.memory)
        reported = 0

        def report() -> None:
            nonlocal reported
            history = Run.open(folder).history
            for entry in history[reported:]:
                trial.report(self._score(entry), entry["epoch"])
            reported = len(history)

        def watch(model: NodeModel, epochs: int, elapsed_s: float) -> None:
            report()
            trial.set_user_attr("elapsed_s", time.perf_counter() - start)
            if epochs < config.train.epochs and trial.should_prune():
                raise _WorseThanMedian

        # wandb identifies runs by folder name, and trials of several studies have equal names
        config = _with_train(config, wandb_project=None)
        if math.isfinite(left_s):
            before_s = max((entry["elapsed_s"] for entry in Run.open(folder).history), default=0.0) if resume else 0.0
            rest_s = before_s + max(0.0, left_s - (time.perf_counter() - start))
            own_s = seconds(config.train.max_time) if config.train.max_time else math.inf
            config = _with_train(config, max_time=f"{min(rest_s, own_s):.3f}s")
        run = train(self.store, config, folder, resume=True, progress=self.progress, watch=watch, score_test=False)
        report()  # epochs of a run that was already finished
        return run

    def final(self, num_seeds: int) -> list[Run]:
        """Runs of the best settings with consecutive seeds, scored on test; finished ones are reused."""
        best = self.space.config(self.study.ranked()[0].values)
        runs = []
        for number in range(num_seeds):
            config = _with_train(best, seed=best.train.seed + number)
            folder = self.out / "final" / f"seed{config.train.seed}"
            is_same = (folder / "config.toml").is_file() and Run.open(folder).config == config
            if not is_same or not (folder / "metrics.json").is_file():
                self.progress(f"final: seed {config.train.seed}", number, num_seeds)
                train(self.store, config, folder, resume=is_same, overwrite=not is_same, progress=self.progress)
                _free_memory()
            remove_stale(folder)
            runs.append(Run.open(folder))
        return runs

    def write(self, final: Sequence[Run] = (), stopped: str = "") -> Tuned:
        """Write all output files with the results so far."""
        tuned = Tuned(
            self.out, self.store.name, self.store.path, self.metric, self.sign, self.space, self.study.trials(),
            self.study.ranked(), self.study.importances(), self.num_prepared, list(final), stopped,
        )  # fmt: skip
        write_output(tuned)
        return tuned

    def _score(self, entry: dict[str, Any]) -> float:
        """An epoch's score, as in training: by the loss if the metric is undefined."""
        valid: dict[str, float] = entry["valid"]
        return valid.get(self.metric, -self.sign * valid.get("loss", math.inf))

    def _drop_weights(self) -> None:
        """Remove the weights of all trials but the best, and the checkpoints of finished trials."""
        ranked = self.study.ranked()
        for trial in self.study.done():
            shutil.rmtree(self.out / trial.folder / "checkpoints", ignore_errors=True)
            if not ranked or trial.folder != ranked[0].folder:
                (self.out / trial.folder / "model.safetensors").unlink(missing_ok=True)

    def _show(self) -> None:
        ranked, done = self.study.ranked(), len(self.study.done())
        best = f", best {self.metric} {ranked[0].score:.4f}" if ranked else ""
        made = f", {self.num_prepared} prepared" if self.num_prepared else ""
        self.progress(f"tune: trial {min(done + 1, self.trials)}/{self.trials}{best}{made}", done, self.trials)


def _with_train(config: Config, **changed: Any) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=changed)})


def _free_memory() -> None:
    """Free the memory of the last trial before the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.compiler.reset()  # the compile cache has a size limit
