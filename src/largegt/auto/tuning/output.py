"""What a tuning leaves to read: best.toml, trials.csv, tune.md; tune.html is the page's.

Enters: a `Tuned`, after every trial. Leaves: small files, each replaced in one step.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from largegt.config.describe import to_toml
from largegt.config.schema import Config
from largegt.io.atomic import write_text_atomically
from largegt.runtime.text import markdown
from largegt.training.run import Run

from .space import Space, Value, text_of
from .study import Trial

NUM_SHOWN = 5


@dataclass(frozen=True)
class Tuned:
    """What a tuning has found."""

    path: Path
    dataset: str
    store: Path
    metric: str
    sign: float
    """-1 where a smaller score is better."""
    space: Space
    trials: list[Trial]
    ranked: list[Trial]
    """The finished ones, the best first."""
    importances: dict[str, float]
    """Share of each setting in what makes trials good; empty after few trials."""
    num_prepared: int
    """Preparations that were made on the way."""
    final: list[Run]
    """The best settings, trained with several seeds, if that was asked for."""
    stopped: str
    """Why it ended before all trials were done, where it did."""

    @property
    def best(self) -> Trial:
        return self.ranked[0]

    @property
    def config(self) -> Config:
        """The best trial's configuration."""
        return self.space.config(self.best.values)

    @property
    def recipe(self) -> Path:
        return self.path / "best.toml"

    @property
    def page(self) -> Path:
        return self.path / "tune.html"

    @property
    def num_done(self) -> int:
        return sum(trial.state in ("finished", "pruned") for trial in self.trials)

    def differences(self, trial: Trial) -> dict[str, tuple[Value, Value]]:
        """Settings in which a trial differs from the recipe: (its value, the recipe's)."""
        own = self.space.own
        return {name: (value, own[name]) for name, value in trial.values.items() if value != own[name]}

    def in_words(self, trial: Trial) -> str:
        """`learning_rate 0.003 (0.001), hidden 256 (128)`; the recipe's in brackets."""
        changed = [f"{short_name(n)} {plain(a)} ({plain(b)})" for n, (a, b) in self.differences(trial).items()]
        return ", ".join(changed) or "nothing: the recipe itself"

    def final_in_words(self) -> str:
        """`valid accuracy 0.8090 ± 0.0011, test 0.8047 ± 0.0013`."""
        valid, test = (mean_and_spread(self.scores(split)) for split in ("valid", "test"))
        return f"valid {self.metric} {valid}, test {test}"

    def as_dict(self) -> dict[str, Any]:
        """What a program wants to know."""
        best = {"trial": self.best.number, "score": self.best.score, "values": self.best.values}
        return {
            "path": str(self.path), "metric": self.metric, "trials": self.num_done, "best": best,
            "recipe": str(self.recipe), "page": str(self.page), "importances": self.importances,
            "num_prepared": self.num_prepared, "stopped": self.stopped,
            "final": {split: self.scores(split) for split in ("valid", "test")} if self.final else None,
        }  # fmt: skip

    def scores(self, split: str) -> list[float]:
        """Scores of the final runs."""
        found = (run.metrics[split].get(self.metric) for run in self.final)
        return [float(score) for score in found if score is not None]


def plain(value: Value) -> str:
    """A value with four digits at most."""
    return f"{value:.4g}" if isinstance(value, float) else text_of(value)


def short_name(name: str) -> str:
    return name.rsplit(".", 1)[1]


def mean_and_spread(scores: list[float]) -> str:
    return f"{fmean(scores):.4f}" + (f" ± {stdev(scores):.4f}" if len(scores) > 1 else "") if scores else "–"


def write_output(tuned: Tuned) -> None:
    """Every file but the page."""
    tuned.path.mkdir(parents=True, exist_ok=True)
    for name, text in (("best.toml", _recipe(tuned)), ("trials.csv", _csv(tuned)), ("tune.md", _markdown(tuned))):
        write_text_atomically(tuned.path / name, text)


def _recipe(tuned: Tuned) -> str:
    score = f"validation {tuned.metric} {tuned.best.score:.4f}"
    about = f"Trial {tuned.best.number} of {tuned.num_done} on {tuned.dataset}: {score}."
    return to_toml({"about": about, **tuned.config.model_dump(mode="json")})


def _csv(tuned: Tuned) -> str:
    names = list(tuned.space.axes)
    head = ["trial", "state", f"valid_{tuned.metric}", "epochs", "elapsed_s", *names, "why"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for trial in tuned.trials:
        score: Any = "" if trial.score is None else trial.score
        values = [text_of(trial.values[name]) if name in trial.values else "" for name in names]
        writer.writerow([trial.number, trial.state, score, trial.epochs, round(trial.elapsed_s, 3), *values, trial.why])
    return text.getvalue()


def _markdown(tuned: Tuned) -> str:
    rows = [
        [str(trial.number), f"{trial.score:.4f}", str(trial.epochs), markdown(tuned.in_words(trial))]
        for trial in tuned.ranked[:NUM_SHOWN]
    ]
    head = ["trial", f"valid {markdown(tuned.metric)}", "epochs", "what differs from the recipe (the recipe's value)"]
    lines = [head, ["---"] * len(head), *rows]
    parts = [
        f"The best of {tuned.num_done} trials on {markdown(tuned.dataset)}, by the validation score of their best "
        "epoch.",
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
    ]
    if tuned.importances:
        shares = (
            f"{markdown(name)} {100 * share:.0f} %" for name, share in list(tuned.importances.items())[:NUM_SHOWN]
        )
        parts.append(f"What made a difference (PED-ANOVA): {', '.join(shares)}.")
    if tuned.final:
        parts.append(f"The best settings, trained with {len(tuned.final)} seeds: {markdown(tuned.final_in_words())}.")
    return "\n\n".join(parts) + "\n"
