"""Sections of the page from run folders alone: scores, learning curves, cost, sensitivity to K."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from largegt.pages.charts import GRAY, Axis, Bar, Dot, Line, dot_key, legend, line_legend
from largegt.pages.figures import bar_figure, dot_figure, figures, line_figure
from largegt.pages.markup import Html, Section, duration, join, mean_and_spread, note, number, section, tag
from largegt.pages.tables import Cell, PageTable, Ranked, ranks
from largegt.runtime.memory import format_bytes

from .groups import DatasetRuns, Group, Opened, sensitivity

Baselines = Mapping[str, Mapping[str, float]]
_SPLITS = ("test", "valid")


def scores(datasets: Sequence[DatasetRuns], baselines: Baselines) -> Section:
    """Test and validation scores of every group, best three marked."""
    lead = (
        "Each score is at the epoch that was best on validation; the test nodes were read once, for it. Runs that "
        "differ in their seed alone are one row: mean ± standard deviation over the seeds."
    )
    parts = (_scores_of(one, {} if at else baselines) for at, one in enumerate(datasets))
    return section("scores", "Scores", lead, *headed(datasets, parts))


def curves(datasets: Sequence[DatasetRuns]) -> Section:
    """Training loss and validation score over epochs and over minutes."""
    lead = "A line per run, runs of a group in the same style. The ring marks the epoch that was kept."
    return section("curves", "Learning curves", lead, *headed(datasets, map(_curves_of, datasets)))


def cost(datasets: Sequence[DatasetRuns]) -> Section:
    """Epoch time and GPU memory."""
    lead = "What an epoch of training takes, without validation."
    return section("cost", "Time and memory", lead, *headed(datasets, map(_cost_of, datasets)))


def local_nodes(datasets: Sequence[DatasetRuns]) -> Section | None:
    """Score and epoch time against K; None unless a model was run with several K."""
    parts = [_k_of(one) for one in datasets]
    lead = "The same model with another number K of local nodes, everything else alike."
    return section("k", "Number of local nodes", lead, *headed(datasets, parts)) if any(parts) else None


def headed(datasets: Sequence[DatasetRuns], parts: Iterable[Html]) -> list[Html]:
    """The non-empty parts, each under the name of its dataset if there are several."""
    return [
        join((tag("h3", dataset.name), part)) if len(datasets) > 1 else part
        for dataset, part in zip(datasets, parts, strict=True)
        if part
    ]


# scores ----------------------------------------------------------------------------------------------------------


def _scores_of(dataset: DatasetRuns, baselines: Baselines) -> Html:
    metric, groups = dataset.metric, {group.name: group for group in dataset.groups}
    scores: dict[str, dict[str, tuple[float | None, float]]] = {
        f"{name} (no model)": {split: (found.get(split), 0.0) for split in _SPLITS} for name, found in baselines.items()
    } | {name: {split: group.score(split, metric) for split in _SPLITS} for name, group in groups.items()}
    rank = {split: dict(zip(scores, ranks([of[split][0] for of in scores.values()], dataset.sign), strict=True))
            for split in _SPLITS}  # fmt: skip
    others = [name for name in dict.fromkeys(n for run in dataset.runs for n in run.metrics["test"]) if name != metric]
    rows: list[list[Cell]] = []
    for name, of in scores.items():
        cells = [Ranked(mean_and_spread(*of[split]), rank[split][name]) for split in _SPLITS]
        if group := groups.get(name):
            more = (mean_and_spread(*group.score("test", other)) for other in others)
            rows.append([name, *cells, *more, len(group.runs)])
        else:
            rows.append([name, *cells, *(None for _ in others), None])
    head = ["model", f"test {metric}", f"valid {metric}", *(f"test {name}" for name in others), "runs"]
    better = "smaller is better" if dataset.sign < 0 else "larger is better"
    dots = [
        (name, [Dot(split, *scores[name][split], group.style, is_open=split == "valid") for split in _SPLITS])
        for name, group in groups.items()
    ]
    title = f"Test and validation {metric}, with one standard deviation over seeds"
    key = legend([("test", dot_key(GRAY)), ("valid", dot_key(GRAY, is_open=True))])
    return join((
        tag("p", _in_words(dataset), class_="say"),
        PageTable(f"Scores on {dataset.name}; {better}, 1 is best", head, rows).html(),
        figures([dot_figure(title, dots, Axis(f"{metric} ({better})"), legend=key)]),
    ))  # fmt: skip


def _in_words(dataset: DatasetRuns) -> str:
    """The result in one sentence: the group with the best validation score, and its test score."""
    metric = dataset.metric
    known = [(dataset.sign * value, group) for group in dataset.groups
             if (value := group.score("valid", metric)[0]) is not None]  # fmt: skip
    if not known:
        return f"Nothing was validated on {dataset.name}, so no model is called best."
    best = max(known, key=lambda one: one[0])[1]
    text = f"Best on validation: {best.name}, valid {metric} {number(best.score('valid', metric)[0])}"
    test = best.score("test", metric)
    return text + ("." if test[0] is None else f", test {mean_and_spread(*test)}.")


# learning curves -------------------------------------------------------------------------------------------------


def _curves_of(dataset: DatasetRuns) -> Html:
    epochs, minutes = Axis("epoch", whole=True), Axis("minutes of training", low=0.0)
    made = []
    for split, name, x in dict.fromkeys((
        ("valid", dataset.metric, epochs), ("valid", dataset.metric, minutes), ("train", "loss", epochs),
        ("train", "loss", minutes), ("valid", "loss", epochs),
    )):  # fmt: skip
        lines = [_curve(group, run, split, name, x) for group in dataset.groups for run in group.runs]
        if any(line.xs for line in lines):
            what = f"{'validation' if split == 'valid' else 'training'} {name}"
            made.append(line_figure(f"{what.capitalize()} by {x.label}", lines, x, Axis(what)))
    if not made:
        return note("These runs have no history of epochs.")
    return join((line_legend((group.name, group.style) for group in dataset.groups), figures(made)))


def _curve(group: Group, run: Opened, split: str, name: str, x: Axis) -> Line:
    """One metric over epochs or minutes, where it is finite."""
    known = [one for one in run.history if math.isfinite(one.get(split, {}).get(name, math.nan))]
    xs = [one["epoch"] if x.whole else one["elapsed_s"] / 60 for one in known]
    best = [at for at, one in enumerate(known) if split == "valid" and one["epoch"] == run.metrics["best_epoch"]]
    return Line(run.name, xs, [float(one[split][name]) for one in known], group.style, rings=best)


# time, memory, K -------------------------------------------------------------------------------------------------


def _cost_of(dataset: DatasetRuns) -> Html:
    def bars(name: str, unit: float, words: Callable[[float], str]) -> list[Bar]:
        found = [(group, *group.mean(lambda run: float(run.metrics[name]) / unit)) for group in dataset.groups]
        return [Bar(group.name, mean, words(mean), group.style, spread) for group, mean, spread in found
                if mean is not None]  # fmt: skip

    title, times, totals = (
        "Time of an epoch, median of the run",
        *(bars(name, 1.0, duration) for name in ("epoch_time_s", "train_time_s")),
    )
    rows = [
        [group.name, number(time.value, 3), number(time.error, 3), total.words,
         f"{group.runs[0].metrics['num_parameters']:,}"]
        for group, time, total in zip(dataset.groups, times, totals, strict=True)
    ]  # fmt: skip
    table = PageTable(title, ["model", "epoch, s", "±", "whole training", "parameters"], rows)
    made = [bar_figure(title, times, "seconds", table)]
    memory = bars("peak_gpu_bytes", 2**30, lambda gib: format_bytes(gib * 2**30) if gib else "none: on a CPU")
    if any(bar.value for bar in memory):
        return figures([*made, bar_figure("Peak GPU memory", memory, "GiB")])
    return join((figures(made), note("All of these ran on a CPU, so there is no GPU memory to show.")))


def _k_of(dataset: DatasetRuns) -> Html:
    metric, families = dataset.metric, sensitivity(dataset)
    if not families:
        return Html()
    models = [family[0].model for family in families]
    names = [model if models.count(model) == 1 else family[0].name
             for model, family in zip(models, families, strict=True)]  # fmt: skip
    x = Axis("K, local nodes", at=tuple(sorted({float(group.k) for family in families for group in family})))
    made = []
    for what, of in (
        (f"test {metric}", lambda run: run.score("test", metric)),
        (f"valid {metric}", lambda run: run.score("valid", metric)),
        ("epoch time, s", lambda run: float(run.metrics["epoch_time_s"])),
    ):
        lines = []
        for name, family in zip(names, families, strict=True):
            found = [(group.k, *group.mean(of)) for group in family]
            known = [(k, mean, spread) for k, mean, spread in found if mean is not None]
            ks, means, spreads = zip(*known, strict=True) if known else ((), (), ())
            lines.append(Line(name, ks, means, family[0].style, spreads))
        if any(line.xs for line in lines):
            y = Axis(what, low=0.0 if what.startswith("epoch") else None)
            made.append(line_figure(f"{what.capitalize()} by K", lines, x, y))
    styles = ((name, family[0].style) for name, family in zip(names, families, strict=True))
    return join((line_legend(styles), figures(made)))
