"""The page of a tuning: how the best score rose, which settings made a difference, and every trial over each of them.

Enters: a `Tuned`. Leaves: tune.html, one file that needs no network. Cost: a few KB per setting and trial.
"""

from __future__ import annotations

from collections.abc import Sequence

from largegt.pages.charts import Axis, Line, bar_chart, legend, line_chart
from largegt.pages.markup import Cell, Html, Section, duration, figure, figures, join, number, section, table, tag
from largegt.pages.template import facts_of, write_page
from largegt.runtime.text import quoted

from .output import NUM_SHOWN, Tuned, mean_and_spread, plain, short_name
from .space import Choices, Range
from .study import Trial

_BEST, _PRUNED, _FINISHED = 1, 6, 0
_KEY = (("finished", _FINISHED), ("the best", _BEST), ("pruned: stopped early", _PRUNED))


def write_tuning_page(tuned: Tuned) -> None:
    title = f"Tuning {tuned.space.config({}).model.name} on {tuned.dataset}"
    sections = (_best(tuned), _history(tuned), _importances(tuned), _by_setting(tuned), _all(tuned))
    write_page(tuned.page, title, _head(tuned, title), sections)


def _head(tuned: Tuned, title: str) -> Html:
    first = next((trial for trial in tuned.trials if trial.state == "finished"), tuned.best)
    facts = [
        (number(tuned.best.score), f"best validation {tuned.metric}"),
        (number(first.score), "of the recipe itself" if not tuned.differences(first) else "of the first trial"),
        (str(tuned.num_done), "trials" if tuned.num_done != 1 else "trial"),
        (duration(sum(trial.elapsed_s for trial in tuned.trials)), "in all"),
    ]
    if tuned.final:
        facts.append((mean_and_spread(tuned.scores("test")), f"test {tuned.metric}, {len(tuned.final)} seeds"))
    lead = "Settings judged by the validation score of a trial's best epoch. No trial was scored on the test nodes."
    return join((tag("h1", title), tag("p", lead, class_="lead"), facts_of(facts)))


def _best(tuned: Tuned) -> Section:
    rows: list[list[Cell]] = [
        [f"trial {trial.number}", tag("div", tuned.in_words(trial), class_="wrap"), number(trial.score), trial.epochs]
        for trial in tuned.ranked[:NUM_SHOWN]
    ]
    head = ["", "what differs from the recipe (the recipe's value)", f"valid {tuned.metric}", "epochs"]
    command = f"largegt train {quoted(tuned.store)} --recipe {quoted(tuned.recipe)} --out runs/best"
    lead = "Differences of a few thousandths may be chance: train the best settings with several seeds."
    return section("best", "The best trials", lead, table("The best trials", head, rows, left=2), tag("pre", command))


def _history(tuned: Tuned) -> Section:
    scored = [trial for trial in tuned.trials if trial.score is not None]
    xs, ys = list[float](), list[float]()
    for trial in scored:
        if trial.state == "finished":
            xs.append(float(trial.number))
            ys.append(tuned.sign * max(tuned.sign * value for value in (*ys[-1:], trial.score or 0.0)))
    lines = [Line("best so far", xs, ys, _BEST), *_points(tuned, [(float(t.number), t) for t in scored])]
    title = f"Validation {tuned.metric} by trial"
    chart = line_chart(lines, Axis("trial", whole=True), Axis(f"valid {tuned.metric}"), title)
    rows = [[str(t.number), number(t.score), t.state] for t in scored]
    made = figure(chart, title, table(title, ["trial", f"valid {tuned.metric}", "state"], rows), legend(_KEY))
    return section("history", "Trial by trial", "The line is the best score so far.", figures(made))


def _importances(tuned: Tuned) -> Section | None:
    if not tuned.importances:
        return None
    bars = [(name, share, 0.0, 0, f"{100 * share:.0f} %") for name, share in tuned.importances.items()]
    title = "Share in what makes trials good"
    chart = bar_chart(bars, Axis("share"), title)
    rows = [[name, number(share)] for name, share in tuned.importances.items()]
    lead = "By PED-ANOVA: how much the values of the better trials differ from those of all. With few trials, a hint."
    made = figure(chart, title, table(title, ["setting", "share"], rows))
    return section("importances", "Settings that made a difference", lead, figures(made))


def _by_setting(tuned: Tuned) -> Section:
    made = []
    scored = [trial for trial in tuned.trials if trial.score is not None]
    for name, axis in tuned.space.axes.items():
        here = [(_place(axis, trial, name), trial) for trial in scored if name in trial.values]
        title = f"Validation {tuned.metric} by {name}"
        chart = line_chart(_points(tuned, here), _axis(name, axis), Axis(f"valid {tuned.metric}"), title)
        rows = [[str(trial.number), plain(trial.values[name]), number(trial.score)] for _, trial in here]
        made.append(figure(chart, name, table(title, ["trial", short_name(name), f"valid {tuned.metric}"], rows)))
    lead = "Each mark is a trial; the other settings vary too, so look for a trend, not for a mark."
    return section("settings", "Trials over each setting", lead, legend(_KEY), figures(*made))


def _all(tuned: Tuned) -> Section:
    names = list(tuned.space.axes)
    rows: list[list[Cell]] = []
    for trial in tuned.trials:
        values = [plain(trial.values[name]) if name in trial.values else None for name in names]
        rows.append([
            f"trial {trial.number}", trial.state, number(trial.score), trial.epochs, duration(trial.elapsed_s), *values,
            trial.why or None,
        ])  # fmt: skip
    head = ["", "state", f"valid {tuned.metric}", "epochs", "time", *map(short_name, names), "why it was stopped"]
    lead = "The same is in trials.csv; each trial's run is in its folder under trials/."
    return section("trials", "All trials", lead, table("All trials", head, rows, left=2))


def _points(tuned: Tuned, places: Sequence[tuple[float, Trial]]) -> list[Line]:
    """A mark per trial, the best drawn last."""
    ordered = sorted(places, key=lambda one: one[1].number == tuned.best.number)
    return [Line(f"trial {t.number}", [x], [t.score or 0.0], _style(tuned, t), markers=True) for x, t in ordered]


def _style(tuned: Tuned, trial: Trial) -> int:
    if trial.number == tuned.best.number:
        return _BEST
    return _FINISHED if trial.state == "finished" else _PRUNED


def _place(axis: Choices | Range, trial: Trial, name: str) -> float:
    value = trial.values[name]
    return float(axis.values.index(str(value))) if isinstance(axis, Choices) else float(value)


def _axis(name: str, axis: Choices | Range) -> Axis:
    if isinstance(axis, Choices):
        return Axis(short_name(name), names=axis.values)
    return Axis(short_name(name), log=axis.log, whole=axis.whole, low=axis.low, high=axis.high)
