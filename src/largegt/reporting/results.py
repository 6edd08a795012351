"""Sections of the page that the run folders alone can fill: scores, learning curves, cost, sensitivity to K."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from largegt.pages.charts import Axis, Dots, Line, bar_chart, dot_chart, legend, line_chart
from largegt.pages.markup import (
    Cell,
    Html,
    Section,
    duration,
    figure,
    figures,
    join,
    number,
    rank_mark,
    section,
    table,
    tag,
)
from largegt.runtime.memory import format_bytes

from .groups import Dataset, Group, Opened, k_of, ranks, sensitivity

Baselines = Mapping[str, Mapping[str, float]]
_MAX_TABLE_ROWS = 25
_MAX_TABLE_RUNS = 12
_TIME_STEPS = 10


def scores(datasets: Sequence[Dataset], baselines: Baselines) -> Section:
    """Test and validation scores of every group, best three marked."""
    body = [
        join((_heading(datasets, one), _scores_of(one, baselines if number == 0 else {})))
        for number, one in enumerate(datasets)
    ]
    lead = (
        "Each score is at the epoch that was best on validation; the test nodes were read once, for it. Runs that "
        "differ in their seed alone are one row: mean ± standard deviation over the seeds."
    )
    return section("scores", "Scores", lead, *body)


def curves(datasets: Sequence[Dataset]) -> Section:
    """Training loss and validation score over epochs and over minutes."""
    body = [join((_heading(datasets, one), _curves_of(one))) for one in datasets]
    lead = "A line per run, runs of a group in the same style. The ring marks the epoch that was kept."
    return section("curves", "Learning curves", lead, *body)


def cost(datasets: Sequence[Dataset]) -> Section:
    """Epoch time and GPU memory."""
    body = [join((_heading(datasets, one), _cost_of(one))) for one in datasets]
    return section("cost", "Time and memory", "What an epoch of training takes, without validation.", *body)


def local_nodes(datasets: Sequence[Dataset]) -> Section | None:
    """Score and epoch time against K; None where no model was run with several K."""
    parts = [
        join((_heading(datasets, one), _k_of(one, families))) for one in datasets if (families := sensitivity(one))
    ]
    lead = "The same model with another number K of local nodes, everything else alike."
    return section("k", "Number of local nodes", lead, *parts) if parts else None


# scores ----------------------------------------------------------------------------------------------------------


def _scores_of(dataset: Dataset, baselines: Baselines) -> Html:
    metric = dataset.metric
    rows: dict[str, dict[str, tuple[float | None, float]]] = {
        f"{name} (no model)": {split: (found.get(split), 0.0) for split in ("valid", "test")}
        for name, found in baselines.items()
    } | {group.name: {split: group.score(split, metric) for split in ("valid", "test")} for group in dataset.groups}
    groups = {group.name: group for group in dataset.groups}
    places = {
        split: ranks({name: row[split][0] for name, row in rows.items()}, dataset.sign) for split in ("test", "valid")
    }
    others = _other_metrics(dataset)
    head = ["model", f"test {metric}", f"valid {metric}", *(f"test {name}" for name in others), "runs"]
    body: list[list[Cell]] = []
    for name, row in rows.items():
        group = groups.get(name)
        body.append([
            name, *(_ranked(row[split], places[split].get(name)) for split in ("test", "valid")),
            *(_mean(group.score("test", other)) if group else None for other in others),
            len(group.runs) if group else None,
        ])  # fmt: skip
    dots = [
        Dots(name, groups[name].style, [
            ("test", *row["test"]), ("valid", *row["valid"]),
        ])
        for name, row in rows.items() if name in groups
    ]  # fmt: skip
    better = "smaller is better" if dataset.sign < 0 else "larger is better"
    chart = dot_chart(dots, Axis(f"{metric} ({better})"), f"Test and validation {metric} by model on {dataset.name}")
    shown = table(f"Scores on {dataset.name}; {better}, 1 is best", head, body)
    return join((
        tag("p", _in_words(dataset, rows), class_="say"), shown,
        figures(figure(
            chart, f"Test and validation {metric}, with one standard deviation over seeds",
            _dot_table(rows, metric), legend([], ("test", "valid")),
        )),
    ))  # fmt: skip


def _in_words(dataset: Dataset, rows: Mapping[str, Mapping[str, tuple[float | None, float]]]) -> str:
    """The result in one sentence: chosen on validation, told on test."""
    known = {group.name: dataset.sign * value for group in dataset.groups
             if (value := rows[group.name]["valid"][0]) is not None}  # fmt: skip
    if not known:
        return f"Nothing was validated on {dataset.name}, so no model is called best."
    best = max(known, key=lambda name: known[name])
    test, spread = rows[best]["test"]
    said = f"Best on validation: {best}, valid {dataset.metric} {number(rows[best]['valid'][0])}"
    return said + ("." if test is None else f", test {number(test)}{f' ± {number(spread)}' if spread else ''}.")


def _dot_table(rows: Mapping[str, Mapping[str, tuple[float | None, float]]], metric: str) -> Html:
    body = [
        [name, number(row["test"][0]), number(row["test"][1]), number(row["valid"][0]), number(row["valid"][1])]
        for name, row in rows.items()
    ]
    return table(f"The dots: {metric}", ["model", "test", "± (test)", "valid", "± (valid)"], body)


def _other_metrics(dataset: Dataset) -> list[str]:
    names = dict.fromkeys(name for run in dataset.runs for name in run.metrics["test"])
    return [name for name in names if name != dataset.metric]


def _ranked(score: tuple[float | None, float], rank: int | None) -> Cell:
    return None if score[0] is None else join((rank_mark(rank), _mean(score)))


def _mean(score: tuple[float | None, float]) -> str:
    return number(score[0]) + (f" ± {number(score[1])}" if score[1] else "")


# learning curves -------------------------------------------------------------------------------------------------


def _curves_of(dataset: Dataset) -> Html:
    metric = dataset.metric
    made = []
    for split, name in (("valid", metric), ("train", "loss"), ("valid", "loss")):
        if split == "valid" and name == "loss" == metric:
            continue
        what = f"{'validation' if split == 'valid' else 'training'} {name}"
        for over in ("epoch", "minutes") if (split, name) != ("valid", "loss") else ("epoch",):
            lines = [line for group in dataset.groups for run in group.runs
                     if (line := _curve(group, run, split, name, over))]  # fmt: skip
            if not lines:
                continue
            x = Axis("epoch", whole=True) if over == "epoch" else Axis("minutes of training", low=0.0)
            title = f"{what.capitalize()} by {'epoch' if over == 'epoch' else 'minutes of training'}"
            chart = line_chart(lines, x, Axis(what), f"{title} on {dataset.name}")
            below = (_by_epoch if over == "epoch" else _by_minutes)(dataset, split, name, title)
            made.append(figure(chart, title, below))
    if not made:
        return tag("p", "These runs have no history of epochs.", class_="note")
    return join((legend([(group.name, group.style) for group in dataset.groups]), figures(*made)))


def _points(run: Opened, split: str, name: str) -> list[tuple[int, float, float]]:
    """(epoch, minutes, value) where the value is known."""
    return [
        (int(entry["epoch"]), float(entry["elapsed_s"]) / 60, float(entry[split][name]))
        for entry in run.history
        if name in entry.get(split, {}) and math.isfinite(entry[split][name])
    ]


def _curve(group: Group, run: Opened, split: str, name: str, over: str) -> Line | None:
    points = _points(run, split, name)
    if not points:
        return None
    kept = [at for at, point in enumerate(points) if point[0] == run.metrics["best_epoch"]]
    xs = [point[0] if over == "epoch" else point[1] for point in points]
    return Line(run.name, xs, [point[2] for point in points], group.style, rings=kept if split == "valid" else [])


def _columns(dataset: Dataset) -> list[tuple[str, list[Opened]]]:
    """The columns of a curve's table: runs, or groups where runs are many."""
    if len(dataset.runs) <= _MAX_TABLE_RUNS:
        return [(run.name, [run]) for run in dataset.runs]
    return [(f"{group.name}, mean", list(group.runs)) for group in dataset.groups]


def _by_epoch(dataset: Dataset, split: str, name: str, title: str) -> Html:
    columns = _columns(dataset)
    values = [[{e: v for e, _, v in _points(run, split, name)} for run in runs] for _, runs in columns]
    epochs = sorted({epoch for column in values for run in column for epoch in run})
    every = math.ceil(len(epochs) / _MAX_TABLE_ROWS)
    shown = epochs[::every] + ([epochs[-1]] if (len(epochs) - 1) % every else [])
    rows: list[list[Cell]] = [
        [epoch, *(_mean_of([run.get(epoch) for run in column]) for column in values)] for epoch in shown
    ]
    note = f"Every {every} epochs." if every > 1 else ""
    return table(title, ["epoch", *(label for label, _ in columns)], rows, left=0, note=note)


def _by_minutes(dataset: Dataset, split: str, name: str, title: str) -> Html:
    columns = _columns(dataset)
    points = [[_points(run, split, name) for run in runs] for _, runs in columns]
    longest = max(point[1] for column in points for run in column for point in run)
    rows: list[list[Cell]] = []
    for step in range(1, _TIME_STEPS + 1):
        until = longest * step / _TIME_STEPS
        last = [[_last(run, until) for run in column] for column in points]
        rows.append([number(until, 3 if longest < 10 else 1), *(_mean_of(column) for column in last)])
    note = "The last value by then."
    return table(title, ["minutes", *(label for label, _ in columns)], rows, left=0, note=note)


def _last(points: list[tuple[int, float, float]], until: float) -> float | None:
    return next((value for _, minutes, value in reversed(points) if minutes <= until * (1 + 1e-9)), None)


def _mean_of(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(sum(known) / len(known) if known else None)


# time, memory, K -------------------------------------------------------------------------------------------------


def _cost_of(dataset: Dataset) -> Html:
    def numbers(of: Callable[[dict[str, Any]], float]) -> list[tuple[Group, float, float]]:
        found = [(group, *group.mean(lambda run: of(run.metrics))) for group in dataset.groups]
        return [(group, mean, spread) for group, mean, spread in found if mean is not None]

    times = numbers(lambda m: float(m["epoch_time_s"]))
    memory = numbers(lambda m: float(m["peak_gpu_bytes"]) / 2**30)
    total = {group.name: mean for group, mean, _ in numbers(lambda m: float(m["train_time_s"]))}
    parameters = {group.name: group.runs[0].metrics["num_parameters"] for group in dataset.groups}
    time_chart = bar_chart(
        [(group.name, mean, spread, group.style, duration(mean)) for group, mean, spread in times],
        Axis("seconds"), f"Epoch time by model on {dataset.name}",
    )  # fmt: skip
    time_table = table(
        "Training time", ["model", "epoch, s", "±", "whole training", "parameters"],
        [[group.name, number(mean, 3), number(spread, 3), duration(total.get(group.name)),
          f"{parameters[group.name]:,}"] for group, mean, spread in times],
    )  # fmt: skip
    made = [figure(time_chart, "Time of an epoch (median of the run)", time_table)]
    if any(mean > 0 for _, mean, _ in memory):
        chart = bar_chart(
            [(g.name, mean, spread, g.style, format_bytes(mean * 2**30) if mean else "none: on a CPU")
             for g, mean, spread in memory],
            Axis("GiB"), f"Peak GPU memory by model on {dataset.name}",
        )  # fmt: skip
        rows = [[group.name, number(mean, 3), number(spread, 3)] for group, mean, spread in memory]
        made.append(figure(chart, "Peak GPU memory", table("Peak GPU memory", ["model", "GiB", "±"], rows)))
        return figures(*made)
    return join(
        (figures(*made), tag("p", "All of these ran on a CPU, so there is no GPU memory to show.", class_="note"))
    )


def _k_of(dataset: Dataset, families: list[list[Group]]) -> Html:
    metric = dataset.metric
    names = [(family[0].model if _single(families, family) else family[0].name) for family in families]
    made = []
    for what, of in (
        (f"test {metric}", lambda run: run.score("test", metric)),
        (f"valid {metric}", lambda run: run.score("valid", metric)),
        ("epoch time, s", lambda run: float(run.metrics["epoch_time_s"])),
    ):
        lines: list[Line] = []
        rows: list[list[Cell]] = []
        for name, family in zip(names, families, strict=True):
            found = [(k_of(group), *group.mean(of), len(group.runs)) for group in family]
            known = [(k, mean, spread, runs) for k, mean, spread, runs in found if mean is not None]
            rows += [[name, k, number(mean), number(spread), runs] for k, mean, spread, runs in known]
            lines.append(Line(name, [k for k, *_ in known], [mean for _, mean, _, _ in known], family[0].style,
                              errors=[spread for _, _, spread, _ in known], markers=True))  # fmt: skip
        if not rows:
            continue
        ks = tuple(float(k) for k in sorted({k_of(group) for family in families for group in family}))
        y = Axis(what, low=0.0) if what.startswith("epoch") else Axis(what)
        chart = line_chart(lines, Axis("K, local nodes", at=ks), y, f"{what} by K on {dataset.name}")
        below = table(f"{what} by K", ["model", "K", "mean", "±", "runs"], rows)
        made.append(figure(chart, f"{what.capitalize()} by K", below))
    styles = [(name, family[0].style) for name, family in zip(names, families, strict=True)]
    return join((legend(styles), figures(*made)))


def _single(families: list[list[Group]], family: list[Group]) -> bool:
    return sum(other[0].model == family[0].model for other in families) == 1


def _heading(datasets: Sequence[Dataset], dataset: Dataset) -> Html:
    return tag("h3", dataset.name) if len(datasets) > 1 else Html()
