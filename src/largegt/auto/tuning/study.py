"""The trials of a tuning on disk: OUT/study.jsonl, Optuna's journal, one line per event.

Enters: a folder, a Space, and the identity of the tuning. Leaves: a `Study` that suggests and records trials. A killed
tuning loses at most one epoch: every event is appended to the journal and flushed to disk, an incomplete last line is
cut off, and a running trial is marked as failed and queued again. A lock admits one process at a time to the folder.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from largegt.errors import ConfigError, FormatError, InputError, LargeGTError, disk_errors, first_line
from largegt.io import locks

from .output import Trial
from .space import Space

_FILE = "study.jsonl"
_MAX_ATTEMPTS = 3
_FIRST_COMPARED = 5
"""Pruning starts after so many finished trials."""
_STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


@contextmanager
def open_study(out: Path, space: Space, identity: dict[str, Any], sign: float) -> Iterator[Study]:
    """The study in `out`, new or resumed. `identity` holds the common properties of the trials and the seed; a folder
    with another identity is refused."""
    with disk_errors(out), locks.Lock(out, "tuning into"), _quiet():
        known = [item.name for item in out.iterdir()] if out.is_dir() else []
        if (out.exists() and not out.is_dir()) or (known and _FILE not in known):
            raise InputError(f"{out} exists and is not a tuning: choose another `out`")
        out.mkdir(exist_ok=True)
        _cut_incomplete_line(out / _FILE)
        try:
            study = Study(out, space, identity, sign)
        except (LargeGTError, OSError):
            raise
        except Exception as error:  # Optuna raises various errors for a damaged file
            raise FormatError(f"{out / _FILE} is no study ({first_line(error)}): choose another `out`") from error
        try:
            yield study
        except LargeGTError:
            if not known and not study.done():  # remove a new folder without results
                shutil.rmtree(out)
            raise


class Study:
    """Suggests trials and records their results."""

    def __init__(self, out: Path, space: Space, identity: dict[str, Any], sign: float) -> None:
        """Queue the recipe's settings in a new study, or the interrupted trials of an old one."""
        self.space, self.sign, self.seed = space, sign, int(identity["seed"])
        # the folder's lock already excludes other processes, and ends with its process
        backend = JournalFileBackend(str(out / _FILE), lock_obj=Lock())  # type: ignore[arg-type]
        self.optuna = optuna.create_study(
            storage=JournalStorage(backend), study_name="largegt", load_if_exists=True,
            direction="maximize" if sign > 0 else "minimize",
        )  # fmt: skip
        if not self.optuna.user_attrs:
            for name, value in identity.items():
                self.optuna.set_user_attr(name, value)
        if other := [name for name, value in identity.items() if self.optuna.user_attrs.get(name) != value]:
            raise ConfigError(
                f"{out} holds a tuning with another {other[0]}: go on with it by the very command it was started "
                "with (only `trials`, `max_time` and `final` may change), or choose another `out`"
            )
        if not self.optuna.get_trials(deepcopy=False):
            self.optuna.enqueue_trial(dict(space.start))
        for trial in self.trials():
            if trial.state == "running":
                self.retry(trial.number)

    def ask(self, num_epochs: int) -> optuna.Trial:
        """A trial to run. Its values depend only on the seed and the finished trials, so a resumed tuning runs the
        same trials."""
        seed = np.random.SeedSequence([self.seed, len(self.done())]).generate_state(1)[0]
        self.optuna.sampler = TPESampler(seed=int(seed), multivariate=True, constant_liar=False)
        self.optuna.pruner = MedianPruner(n_startup_trials=_FIRST_COMPARED, n_warmup_steps=max(1, num_epochs // 5))
        trial = self.optuna.ask(self.space.axes)
        if "folder" not in trial.user_attrs:
            trial.set_user_attr("folder", f"trials/{trial.number:04d}")
        return trial

    def tell(self, trial: optuna.Trial, score: float | None, why: str, elapsed_s: float) -> None:
        """Record the end of a trial. Without a score it was stopped, and counts as worse than others."""
        trial.set_user_attr("elapsed_s", elapsed_s)
        trial.set_user_attr("why", why)
        self.optuna.tell(trial, score, TrialState.PRUNED if score is None else None)

    def retry(self, number: int, attempts: int = 1) -> None:
        """Mark a trial as failed and queue its settings again, up to a number of attempts."""
        stored = self.optuna.get_trials(deepcopy=False)[number]
        attempts += int(stored.user_attrs.get("attempts", 0))
        is_given_up = attempts >= _MAX_ATTEMPTS
        self.optuna.tell(number, state=TrialState.PRUNED if is_given_up else TrialState.FAIL)
        if not is_given_up:
            values = {**stored.system_attrs.get("fixed_params", {}), **stored.params}
            self.optuna.enqueue_trial(values, {"folder": self._read(stored).folder, "attempts": attempts})

    def trials(self) -> list[Trial]:
        """All trials except queued ones, in order."""
        return [self._read(one) for one in self.optuna.get_trials(deepcopy=False) if one.state.name in _STATES]

    def done(self) -> list[Trial]:
        return [trial for trial in self.trials() if trial.state in ("finished", "pruned")]

    def ranked(self) -> list[Trial]:
        """Finished trials, best first; ties in order of trial number."""
        found = [trial for trial in self.trials() if trial.state == "finished" and trial.score is not None]
        return sorted(found, key=lambda trial: -self.sign * (trial.score or 0.0))

    def importances(self) -> dict[str, float]:
        """PED-ANOVA importance of each setting; empty with too few trials."""
        if len(self.ranked()) < 2 * _FIRST_COMPARED:
            return {}
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return optuna.importance.get_param_importances(self.optuna, evaluator=evaluator)
        except (RuntimeError, ValueError, ImportError):  # for example, all scores are equal
            return {}

    def _read(self, trial: FrozenTrial) -> Trial:
        """A trial from the journal. Validates values and folder, since folders are written to and removed."""
        scores, kept = [float(score) for score in trial.intermediate_values.values()], trial.user_attrs
        state, folder = _STATES[trial.state.name], str(kept.get("folder", f"trials/{trial.number:04d}"))
        if not re.fullmatch(r"trials/\d{4,9}", folder):
            raise ValueError(f"trial {trial.number} has the folder {folder!r}")
        if wrong := [name for name, value in trial.params.items() if not self.space.allows(name, value)]:
            raise ValueError(f"trial {trial.number} has {wrong[0]}={trial.params[wrong[0]]!r}")
        return Trial(
            number=trial.number,
            state=state,
            values=dict(trial.params),
            score=max(scores, key=lambda score: self.sign * score, default=None),
            epochs=len(scores),
            elapsed_s=float(kept.get("elapsed_s", 0.0)),
            folder=folder,
            why=str(kept.get("why", "its process was killed" if state in ("failed", "pruned") else "")),
        )


def _cut_incomplete_line(file: Path) -> None:
    """Remove an incomplete last line, after which appended lines would be unreadable."""
    with suppress(FileNotFoundError), open(file, "rb+") as stream:
        stream.truncate(stream.read().rfind(b"\n") + 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log line per trial and its warnings about experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
