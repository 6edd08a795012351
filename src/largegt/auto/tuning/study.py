"""The trials of a tuning on disk: OUT/study.jsonl, Optuna's journal, one line per event.

Enters: a folder, a Space, and what the trials have in common. Leaves: a `Journal` that suggests, records and remembers.
A killed tuning loses at most the epoch it was in: the journal is appended to and flushed to the disk, a torn last line
is cut off, and a trial that was running is marked as failed and queued again. One process at a time holds the folder.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from largegt.errors import ConfigError, FormatError, InputError, LargeGTError, disk_errors, first_line
from largegt.io.locks import Lock

from .space import Choices, Space, Value

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_FILE = "study.jsonl"
_MAX_ATTEMPTS = 3
_FIRST_COMPARED = 5
"""So many trials run to their end before any is stopped for being worse than the median."""


@dataclass(frozen=True)
class Trial:
    """What is known of one trial."""

    number: int
    state: str
    """finished, pruned (stopped early: worse than the median, or it could not be trained), failed or running."""
    values: dict[str, Value]
    score: float | None
    """The best validation score of its epochs."""
    epochs: int
    elapsed_s: float
    folder: str
    why: str
    """Why it was stopped, where it was."""


def check_optuna() -> None:
    """Refuse early where Optuna is not installed."""
    if find_spec("optuna") is None:
        raise ConfigError("tuning needs Optuna, which is not installed: pip install 'largegt[tune]'")


@contextmanager
def open_journal(out: Path, space: Space, identity: dict[str, Any], sign: float, seed: int) -> Iterator[Journal]:
    """The journal in `out`, new or gone on with. `identity` is what every trial has in common: a folder of another
    tuning is refused."""
    import optuna

    with disk_errors(out), Lock(out, "tuning into"), _quiet():
        known = [item.name for item in out.iterdir()] if out.is_dir() else []
        if (out.exists() and not out.is_dir()) or (known and _FILE not in known):
            raise InputError(f"{out} exists and is not a tuning: choose another --out")
        out.mkdir(exist_ok=True)
        _cut_torn_line(out / _FILE)
        try:
            study = optuna.create_study(
                storage=_storage(out / _FILE), study_name="largegt", load_if_exists=True,
                direction="maximize" if sign > 0 else "minimize",
            )  # fmt: skip
            journal = Journal(study, space, sign, seed)
            journal.begin(out, identity)
        except (LargeGTError, OSError):
            raise
        except Exception as error:  # whatever Optuna makes of a file that it did not write
            raise FormatError(f"{out / _FILE} is no study ({first_line(error)}): choose another --out") from error
        try:
            yield journal
        except LargeGTError:
            if not known and not journal.done():  # it never worked: leave nothing behind
                shutil.rmtree(out)
            raise


class Journal:
    """Suggests trials and keeps what came of them."""

    def __init__(self, study: optuna.Study, space: Space, sign: float, seed: int) -> None:
        self.study, self.space, self.sign, self.seed = study, space, sign, seed
        self.distributions = {name: _distribution(axis) for name, axis in space.axes.items()}

    def begin(self, out: Path, identity: dict[str, Any]) -> None:
        """Queue the recipe's own settings in a new journal; in an old one, what was running when it was killed."""
        if not self.study.user_attrs:
            for name, value in identity.items():
                self.study.set_user_attr(name, value)
        for name, value in identity.items():
            if self.study.user_attrs.get(name) != value:
                raise ConfigError(
                    f"{out} holds a tuning with another {name}: go on with it by the very command it was started "
                    "with (only --trials, --budget and --final may change), or choose another --out"
                )
        if not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(dict(self.space.start))
        for trial in self.trials():
            if trial.state == "running":
                self._retry(trial)

    def ask(self, num_epochs: int) -> optuna.Trial:
        """A trial to run. What it suggests depends on the seed and on the finished trials alone, so that a tuning that
        was killed goes on as if it had not been."""
        from optuna.pruners import MedianPruner
        from optuna.samplers import TPESampler

        seed = np.random.SeedSequence([self.seed, len(self.done())]).generate_state(1)[0]
        self.study.sampler = TPESampler(seed=int(seed), multivariate=True, constant_liar=False)
        self.study.pruner = MedianPruner(n_startup_trials=_FIRST_COMPARED, n_warmup_steps=max(1, num_epochs // 5))
        trial = self.study.ask(self.distributions)
        if "folder" not in trial.user_attrs:
            trial.set_user_attr("folder", f"trials/{trial.number:04d}")
        return trial

    def finish(self, trial: optuna.Trial, score: float, elapsed_s: float) -> None:
        trial.set_user_attr("elapsed_s", elapsed_s)
        self.study.tell(trial, score)

    def prune(self, trial: optuna.Trial, why: str, elapsed_s: float) -> None:
        """It ends here, and counts as a trial that is worse than others."""
        from optuna.trial import TrialState

        trial.set_user_attr("elapsed_s", elapsed_s)
        trial.set_user_attr("why", why)
        self.study.tell(trial, state=TrialState.PRUNED)

    def interrupted(self, number: int) -> None:
        """It was stopped by the user and comes again, from its last checkpoint."""
        self._retry(next(trial for trial in self.trials() if trial.number == number), attempts=0)

    def trials(self) -> list[Trial]:
        """All of them, but for those that wait, in order."""
        names = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
        return [
            self._read(trial, names[trial.state.name])
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.name in names
        ]

    def done(self) -> list[Trial]:
        return [trial for trial in self.trials() if trial.state in ("finished", "pruned")]

    def ranked(self) -> list[Trial]:
        """Finished trials, the best first; of equals the earlier."""
        found = [trial for trial in self.trials() if trial.state == "finished" and trial.score is not None]
        return sorted(found, key=lambda trial: -self.sign * (trial.score or 0.0))

    def importances(self) -> dict[str, float]:
        """Share of each setting in what makes trials good, by PED-ANOVA; empty where there are too few trials."""
        import optuna

        if len(self.ranked()) < 2 * _FIRST_COMPARED:
            return {}
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        except (RuntimeError, ValueError, ImportError):  # every trial scored the same, say
            return {}

    def _retry(self, trial: Trial, attempts: int = 1) -> None:
        """Mark a trial as failed and queue its settings again, unless they end the process every time."""
        from optuna.trial import TrialState

        stored = self.study.get_trials(deepcopy=False)[trial.number]
        attempts += int(stored.user_attrs.get("attempts", 0))
        if attempts >= _MAX_ATTEMPTS:
            self.study.tell(trial.number, state=TrialState.PRUNED)
            return
        self.study.tell(trial.number, state=TrialState.FAIL)
        values = {**stored.system_attrs.get("fixed_params", {}), **stored.params}
        self.study.enqueue_trial(values, user_attrs={"folder": trial.folder, "attempts": attempts})

    def _read(self, trial: optuna.trial.FrozenTrial, state: str) -> Trial:
        """What the file says of a trial. It may come from a stranger: folders of trials are written to and removed."""
        scores = [float(score) for score in trial.intermediate_values.values()]
        best = (max if self.sign > 0 else min)(scores) if scores else None
        kept, epochs = trial.user_attrs, len(scores)
        folder = str(kept.get("folder", f"trials/{trial.number:04d}"))
        if not re.fullmatch(r"trials/\d{4,9}", folder):
            raise ValueError(f"trial {trial.number} has the folder {folder!r}")
        if wrong := [name for name, value in trial.params.items() if not self.space.allows(name, value)]:
            raise ValueError(f"trial {trial.number} has {wrong[0]}={trial.params[wrong[0]]!r}")
        elapsed_s = float(kept.get("elapsed_s", 0.0))
        why = str(kept.get("why", "its process was killed" if state in ("failed", "pruned") else ""))
        return Trial(trial.number, state, dict(trial.params), best, epochs, elapsed_s, folder, why)


# the file ----------------------------------------------------------------------------------------------------------


def _distribution(axis: Any) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Choices):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(round(axis.low), round(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _storage(file: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    class HeldAlready:
        """The folder's own lock keeps others out, and goes with its process."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None: ...

    return JournalStorage(JournalFileBackend(str(file), lock_obj=HeldAlready()))  # type: ignore[arg-type]


def _cut_torn_line(file: Path) -> None:
    """A kill or a power cut in the midst of a line: what was appended behind it could not be read."""
    if not file.is_file():
        return
    with open(file, "rb+") as stream:
        text = stream.read()
        if text and not text.endswith(b"\n"):
            stream.truncate(text.rfind(b"\n") + 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna logs every trial, and warns of each part that it calls experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
