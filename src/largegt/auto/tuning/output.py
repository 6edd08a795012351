"""Output of a tuning: best.toml, trials.csv, tune.md, and tune.html with the best score by trial, the importance of
settings, and every trial by setting.

Enters: a `Tuned`, after every trial. Leaves: small files, each replaced atomically. Cost: a few KB per setting and
trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from largegt.config.overrides import to_toml
from largegt.config.schema import Config
from largegt.io.atomic import write_text_atomically
from largegt.pages.charts import Axis, Bar, Line, dot_key, legend, line_chart
from largegt.pages.figures import bar_figure, figure, figures
from largegt.pages.markup import NONE, Html, Section, duration, mean_and_spread, mean_of, number, percent, section, tag
from largegt.pages.tables import Cell, PageTable
from largegt.pages.template import page_of, write_file
from largegt.runtime.text import markdown, quoted
from largegt.training.run import Run

if TYPE_CHECKING:  # Optuna is optional
    from .space import Space, Value

NUM_SHOWN = 5
_BEST, _PRUNED, _FINISHED = 1, 6, 0
_KEY = (("finished", _FINISHED), ("the best", _BEST), ("pruned: stopped early", _PRUNED))


@dataclass(frozen=True)
class Trial:
    """The state and the result of one trial."""

    number: int
    state: str
    """finished, pruned (stopped early as worse than the median, or not trainable), failed or running."""
    values: dict[str, Value]
    score: float | None
    """The best validation score of its epochs."""
    epochs: int
    elapsed_s: float
    folder: str
    why: str
    """Why it was stopped, if it was."""


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning."""

    path: Path
    dataset: str
    store: Path
    metric: str
    sign: float
    """-1 if smaller scores are better."""
    space: Space
    trials: list[Trial]
    ranked: list[Trial]
    """Finished trials, best first."""
    importances: dict[str, float]
    """PED-ANOVA importance of each setting; empty after few trials."""
    num_prepared: int
    """Number of preparations made during the trials."""
    final: list[Run]
    """Runs of the best settings with several seeds, if requested."""
    stopped: str
    """Why it ended before all trials were done, if it did."""

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
        """Settings in which a trial differs from the recipe: (the trial's value, the recipe's value)."""
        own = self.space.own
        return {name: (value, own[name]) for name, value in trial.values.items() if value != own[name]}

    def in_words(self, trial: Trial) -> str:
        """`learning_rate 0.003 (0.001), hidden 256 (128)`; the recipe's in brackets."""
        changed = [f"{_short(name)} {_plain(a)} ({_plain(b)})" for name, (a, b) in self.differences(trial).items()]
        return ", ".join(changed) or "nothing: the recipe itself"

    def final_in_words(self) -> str:
        """`valid accuracy 0.8090 ± 0.0011, test 0.8047 ± 0.0013`."""
        valid, test = (mean_and_spread(*mean_of(self.scores(split))) for split in ("valid", "test"))
        return f"valid {self.metric} {valid}, test {test}"

    def scores(self, split: str) -> list[float]:
        """Scores of the final runs."""
        found = (run.metrics[split].get(self.metric) for run in self.final)
        return [float(score) for score in found if score is not None]

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        best = {"trial": self.best.number, "score": self.best.score, "values": self.best.values}
        return {
            "path": str(self.path), "metric": self.metric, "trials": self.num_done, "best": best,
            "recipe": str(self.recipe), "page": str(self.page), "importances": self.importances,
            "num_prepared": self.num_prepared, "stopped": self.stopped,
            "final": {split: self.scores(split) for split in ("valid", "test")} if self.final else None,
        }  # fmt: skip


def write_output(tuned: Tuned) -> None:
    """Write all files."""
    about = (
        f"Trial {tuned.best.number} of {tuned.num_done} on {tuned.dataset}: validation {tuned.metric} "
        f"{tuned.best.score:.4f}."
    )
    recipe = to_toml({"about": about, **tuned.config.model_dump(mode="json")})
    csv = _trials(tuned, lambda value: "" if value is None else str(value)).csv()
    for name, text in (("best.toml", recipe), ("trials.csv", csv), ("tune.md", notes(tuned))):
        write_text_atomically(tuned.path / name, text)
    write_file(tuned.page, page(tuned))


def notes(tuned: Tuned) -> str:
    """The best trials in Markdown."""
    caption = f"The best of {tuned.num_done} trials on {tuned.dataset}, by the validation score of their best epoch."
    parts = [_best(tuned, caption).markdown()]
    if tuned.importances:
        shares = (f"{markdown(name)} {percent(share)}" for name, share in list(tuned.importances.items())[:NUM_SHOWN])
        parts.append(f"What made a difference (PED-ANOVA): {', '.join(shares)}.\n")
    if tuned.final:
        parts.append(f"The best settings, trained with {len(tuned.final)} seeds: {markdown(tuned.final_in_words())}.\n")
    return "\n".join(parts)


def _best(tuned: Tuned, caption: str) -> PageTable:
    rows: list[list[Cell]] = [
        [trial.number, tuned.in_words(trial), number(trial.score), trial.epochs] for trial in tuned.ranked[:NUM_SHOWN]
    ]
    head = ["trial", "what differs from the recipe (the recipe's value)", f"valid {tuned.metric}", "epochs"]
    return PageTable(caption, head, rows, left=2)


def _trials(tuned: Tuned, text: Callable[[float | str | None], str]) -> PageTable:
    """All trials; `text` formats values and scores."""
    names = list(tuned.space.axes)
    rows: list[list[Cell]] = [
        [trial.number, trial.state, text(trial.score), trial.epochs, f"{trial.elapsed_s:.3f}",
         *(text(trial.values.get(name)) for name in names), trial.why]
        for trial in tuned.trials
    ]  # fmt: skip
    head = ["trial", "state", f"valid_{tuned.metric}", "epochs", "elapsed_s", *names, "why"]
    return PageTable("All trials", head, rows, left=2)


def _plain(value: float | str | None) -> str:
    """A value with at most four digits."""
    return f"{value:.4g}" if isinstance(value, float) else NONE if value is None else str(value)


def _short(name: str) -> str:
    return name.rsplit(".", 1)[1]


# the page --------------------------------------------------------------------------------------------------------


def page(tuned: Tuned) -> str:
    """The HTML page of a tuning."""
    first = next((trial for trial in tuned.trials if trial.state == "finished"), tuned.best)
    facts = [
        (number(tuned.best.score), f"best validation {tuned.metric}"),
        (number(first.score), "of the recipe itself" if not tuned.differences(first) else "of the first trial"),
        (str(tuned.num_done), "trials" if tuned.num_done != 1 else "trial"),
        (duration(sum(trial.elapsed_s for trial in tuned.trials)), "in all"),
    ]
    if tuned.final:
        facts.append(
            (mean_and_spread(*mean_of(tuned.scores("test"))), f"test {tuned.metric}, {len(tuned.final)} seeds")
        )
    command = f"largegt train {quoted(tuned.store)} --recipe {quoted(tuned.recipe)} --out runs/best"
    chance = "Differences of a few thousandths may be chance: train the best settings with several seeds."
    sections = (
        section("best", "The best trials", chance, _best(tuned, "The best trials").html(), tag("pre", command)),
        _history(tuned), _importances(tuned), _by_setting(tuned),
        section("trials", "All trials", "The same is in trials.csv; each trial's run is in its folder under trials/.",
                _trials(tuned, _plain).html()),
    )  # fmt: skip
    title = f"Tuning {tuned.space.config({}).model.name} on {tuned.dataset}"
    lead = "Settings judged by the validation score of a trial's best epoch. No trial was scored on the test nodes."
    return page_of(title, lead, facts, sections)


def _history(tuned: Tuned) -> Section:
    xs, ys = list[float](), list[float]()
    for trial in tuned.trials:
        if trial.state == "finished" and trial.score is not None:
            xs.append(trial.number)
            ys.append(tuned.sign * max(tuned.sign * value for value in (*ys[-1:], trial.score)))
    x, best = Axis("trial", whole=True), Line("best so far", xs, ys, _BEST)
    made = _figure(tuned, f"Validation {tuned.metric} by trial", x, lines=[best])
    return section("history", "Trial by trial", "The line is the best score so far.", _key(), figures([made]))


def _importances(tuned: Tuned) -> Section | None:
    if not tuned.importances:
        return None
    bars = [Bar(name, share, percent(share)) for name, share in tuned.importances.items()]
    lead = "By PED-ANOVA: how much the values of the better trials differ from those of all. With few trials, a hint."
    made = bar_figure("Share in what makes trials good", bars, "share")
    return section("importances", "Settings that made a difference", lead, figures([made]))


def _by_setting(tuned: Tuned) -> Section:
    made = []
    for name, axis in tuned.space.axes.items():
        of: Any = axis
        x = Axis(_short(name), names=tuple(of.choices)) if hasattr(of, "choices") else Axis(
            _short(name), of.log, isinstance(of.low, int), of.low, of.high
        )  # fmt: skip
        made.append(_figure(tuned, name, x, name))
    lead = "Each mark is a trial; the other settings vary too, so look for a trend, not for a mark."
    return section("settings", "Trials over each setting", lead, _key(), figures(made))


def _figure(tuned: Tuned, title: str, x: Axis, name: str = "", lines: Sequence[Line] = ()) -> Html:
    """A mark per trial by the value of a setting or by trial number, with the best trial on top."""
    marks, rows, best = list(lines), list[list[Cell]](), tuned.best.number
    for trial in sorted(tuned.trials, key=lambda one: one.number == best):
        if trial.score is not None and (not name or name in trial.values):
            value: Any = trial.values[name] if name else trial.number
            style = _BEST if trial.number == best else _FINISHED if trial.state == "finished" else _PRUNED
            place = float(x.names.index(value) if x.names else value)
            marks.append(Line(f"trial {trial.number}", [place], [trial.score], style))
            rows.append([f"trial {trial.number}", _plain(value), number(trial.score), trial.state])
    y = Axis(f"valid {tuned.metric}")
    return figure(title, line_chart(marks, x, y, title), PageTable(title, ["", x.label, y.label, "state"], rows))


def _key() -> Html:
    return legend((name, dot_key(style)) for name, style in _KEY)
