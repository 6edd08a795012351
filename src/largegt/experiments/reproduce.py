"""`largegt reproduce`: one function per table and figure of the paper.

Enters: an Experiment. Leaves: files in its folder, and the runs they are made of. What is there already is not trained
again; a killed one goes on. Test scores are those of the epoch that was best on validation, read once. The one
exception is `fig_curves`, which draws the test score of every epoch, and decides nothing by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean, stdev

from largegt.errors import ConfigError, nearest
from largegt.io.atomic import write_text_atomically
from largegt.models.base import NodeModel
from largegt.runtime.progress import Progress
from largegt.training.evaluate import Scorer
from largegt.training.run import Run
from largegt.training.setup import make_accelerator, make_loader
from largegt.types import PathLike

from . import figures
from .output import Cell, Table, places, spread
from .page import page
from .paper import DATASETS, EPOCH_SECONDS, K_VALUES, ORIGINALS, OUR_MODELS, TEST_ACCURACY, TITLES
from .plan import Experiment, has_original, main_metric, read_lines, scores


def reproduce(
    what: str = "all",
    dataset: PathLike = "ogbn-products",
    out: PathLike = "reproduce",
    runs: int = 4,
    budget: str | None = None,
    models: Iterable[str] | None = None,
    overrides: Iterable[str] = (),
    like: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Make one of `EXPERIMENTS`, or `all`, on a dataset of the paper or a store; the files that were written, the page
    of all that is there so far (`report.html`) last."""
    if what != "all" and what not in EXPERIMENTS:
        raise ConfigError(
            f"no experiment {what!r}{nearest(what, EXPERIMENTS)}; there are: {', '.join(EXPERIMENTS)}, all"
        )
    experiment = Experiment.make(dataset, out, runs, budget, models, overrides, like, progress)
    chosen = EXPERIMENTS.values() if what == "all" else [EXPERIMENTS[what]]
    files = [file for make in chosen for file in make(experiment)]
    if (experiment.out / "runs").is_dir():
        files.append(page(experiment.out, f"{experiment.dataset}: the paper's tables and figures", progress))
    return files


def table_main(experiment: Experiment) -> list[Path]:
    """Table 2: test accuracy of every model, mean and deviation over the runs, the best three marked."""
    found = {model: experiment.seeds(model) for model in experiment.models}
    metric, better = _metric(found)
    test = {model: scores(runs, metric) for model, runs in found.items()}
    ranks = places([mean(values) for values in test.values()], better)
    theirs = TEST_ACCURACY.get(experiment.dataset, {})
    rows = []
    for rank, (model, values) in zip(ranks, test.items(), strict=True):
        row = [Cell(_title(model)), Cell(spread(values, *_scale(metric)), rank),
               Cell(spread(scores(found[model], metric, "valid"), *_scale(metric)))]  # fmt: skip
        rows.append((*row, *_reported(theirs, model)))
    columns = ("Model", f"Test {metric}", f"Valid {metric}", *(["the paper"] if theirs else []))
    made = _made_of(experiment, chain(*found.values()))
    caption = f"{experiment.dataset}: test {metric} at the best validation epoch, {made}."
    return Table("table-main", caption, columns, tuple(rows)).write(experiment.out)


def table_extended(experiment: Experiment) -> list[Path]:
    """Table 3: the original forms beside the 2-hop ones, score and seconds of an epoch."""
    theirs, their_seconds = ORIGINALS.get(experiment.dataset, {}), EPOCH_SECONDS.get(experiment.dataset, {})
    delta = {model: experiment.seeds(model) for model in experiment.models}
    original = {model: experiment.seeds(model, True) for model in experiment.models if has_original(experiment, model)}
    metric, _ = _metric(delta)
    rows = []
    for model, runs in delta.items():
        cells = [Cell(TITLES[model])]
        for form in (original.get(model), runs):
            cells += [
                Cell(spread(scores(form, metric), *_scale(metric)) if form else "–"),
                Cell(f"{_epoch_s(form):.3g} s" if form else "–"),
            ]
        if theirs:
            accuracy, seconds = theirs.get(model, (None, None))
            cells.append(Cell("–" if accuracy is None else f"{accuracy:.2f}, {seconds:g} s"))
            reported = TEST_ACCURACY[experiment.dataset].get(model)
            cells.append(Cell("–" if reported is None else f"{reported[0]:.2f}, {their_seconds[model]:g} s"))
        rows.append(tuple(cells))
    columns = ("Model", f"Original: test {metric}", "epoch", f"-δ: test {metric}", "epoch",
               *(["the paper, original", "the paper, -δ"] if theirs else []))  # fmt: skip
    made = _made_of(experiment, chain(*delta.values(), *original.values()))
    caption = f"{experiment.dataset}: models as their authors set them and held to 2 hops (-δ), {made}."
    return Table("table-extended", caption, columns, tuple(rows)).write(experiment.out)


def fig_epoch_time(experiment: Experiment) -> list[Path]:
    """Figure 2: seconds of a training epoch per model."""
    seconds = {_title(model): _epoch_s([experiment.run(model, 0)]) for model in experiment.models}
    theirs = {_title(model): value for model, value in EPOCH_SECONDS.get(experiment.dataset, {}).items()}
    table = Table(
        "fig-epoch-time", f"{experiment.dataset}: seconds of a training epoch.", ("Model", "Seconds"),
        tuple((Cell(name), Cell(f"{value:.4g}")) for name, value in seconds.items()),
    )  # fmt: skip
    picture = figures.bars(seconds, theirs, experiment.dataset, experiment.out / "fig-epoch-time")
    return [*table.write(experiment.out), *picture]


def fig_k(experiment: Experiment) -> list[Path]:
    """Figure 3: LargeGT-full with K from 20 to 200, score and seconds of an epoch."""
    model = "largegt-full"
    points, rows, metric, made = [], [], "", ""
    for k in K_VALUES:
        runs = experiment.seeds(model, extra=[f"prepare.local_nodes.k={k}"], label=f"k{k}")
        metric, made = main_metric(runs[0]), _made_of(experiment, runs)
        values = scores(runs, metric)
        deviation = stdev(values) if len(values) > 1 else 0.0
        points.append((k, mean(values), deviation, _epoch_s(runs)))
        rows.append((Cell(str(k)), Cell(spread(values, *_scale(metric))), Cell(f"{points[-1][3]:.4g}")))
    title = f"{experiment.dataset}: {TITLES[model]} by K"
    table = Table("fig-k", f"{title}, {made}.", ("K", f"Test {metric}", "Seconds of an epoch"), tuple(rows))
    return [*table.write(experiment.out), *figures.by_k(points, metric, title, experiment.out / "fig-k")]


def fig_curves(experiment: Experiment) -> list[Path]:
    """Figure 4: validation and test score over minutes of training. The test split is scored every epoch here, for the
    picture alone."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    rows: list[tuple[Cell, ...]] = []
    metric = ""
    for model in experiment.models:
        run, tested = _watched(experiment, model)
        metric = main_metric(run)
        lines[_title(model)] = [
            (entry["elapsed_s"] / 60, entry["valid"][metric], tested[entry["epoch"]][metric])
            for entry in run.history
            if entry["epoch"] in tested and metric in entry["valid"]
        ]
        rows += [
            tuple(Cell(text) for text in (_title(model), f"{minutes:.4f}", f"{valid:.6f}", f"{test:.6f}"))
            for minutes, valid, test in lines[_title(model)]
        ]
    columns = ("Model", "Minutes", f"Valid {metric}", f"Test {metric}")
    table = Table("fig-curves", f"{experiment.dataset}: scores while training.", columns, tuple(rows))
    return [
        *table.write(experiment.out),
        *figures.curves(lines, metric, experiment.dataset, experiment.out / "fig-curves"),
    ]


def table_datasets(experiment: Experiment) -> list[Path]:
    """Table 1: what the data is."""
    store = experiment.store
    rows: list[tuple[str | int, ...]] = [
        (store.name, store.num_nodes, store.num_edges, store.num_features, len(store.classes) or 1, store.task)
    ]
    if experiment.dataset in DATASETS:
        rows.append((f"{experiment.dataset} in the paper", *DATASETS[experiment.dataset]))
    columns = ("Dataset", "Nodes", "Edges", "Node features", "Classes", "Label")
    cells = [tuple(Cell(f"{value:,}" if isinstance(value, int) else str(value)) for value in row) for row in rows]
    return Table("table-datasets", "The data.", columns, tuple(cells)).write(experiment.out)


EXPERIMENTS: dict[str, Callable[[Experiment], list[Path]]] = {
    "table-datasets": table_datasets, "table-main": table_main, "table-extended": table_extended,
    "fig-epoch-time": fig_epoch_time, "fig-k": fig_k, "fig-curves": fig_curves,
}  # fmt: skip


def _watched(experiment: Experiment, model: str) -> tuple[Run, dict[int, dict[str, float]]]:
    """A run whose test split was scored after every epoch, and those scores by epoch; they lie beside the run, in a
    file that nothing else reads."""
    file = experiment.out / "curves" / f"{model}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = experiment.out / "runs" / f"{model}-watched-seed0"
    if not folder.exists():
        file.unlink(missing_ok=True)
    config = experiment.config(model)
    accelerator = make_accelerator(config.train)
    kept: list[Callable[[NodeModel], dict[str, float]]] = []

    def watch(trained: NodeModel, epoch: int, seconds: float) -> None:
        if not kept:
            run = Run.open(folder)
            prepared = run.prepared()
            loader = make_loader(
                prepared, trained, config.train, accelerator.device, config.tokens.table, experiment.store
            )
            rows, head = prepared.split_rows("test"), run.head(prepared)
            scorer = Scorer(trained, head, config.train, accelerator, loader, prepared, experiment.store)
            kept.append(lambda m: replace(scorer, model=m).scores(rows))
        before = [entry for entry in read_lines(file) if entry["epoch"] < epoch]
        entries = [*before, {"epoch": epoch, **kept[0](trained)}]
        write_text_atomically(file, "".join(json.dumps(entry) + "\n" for entry in entries))

    run = experiment.run(model, 0, label="watched", watch=watch)
    return run, {entry["epoch"]: entry for entry in read_lines(file)}


def _metric(found: dict[str, list[Run]]) -> tuple[str, bool]:
    """What the runs are judged by, and whether more of it is better."""
    metric = main_metric(next(iter(found.values()))[0])
    return metric, metric != "rmse"


def _scale(metric: str) -> tuple[float, int]:
    return (1.0, 4) if metric == "rmse" else (100.0, 2)


def _title(model: str) -> str:
    is_ours_or_plain = model in OUR_MODELS or model in ("mlp", "largegt-global")
    return TITLES[model] if is_ours_or_plain else f"{TITLES[model]}-δ"


def _reported(theirs: dict[str, tuple[float, float]], model: str) -> list[Cell]:
    if not theirs:
        return []
    return [Cell(f"{theirs[model][0]:.2f}±{theirs[model][1]:.2f}" if model in theirs else "–")]


def _epoch_s(runs: list[Run]) -> float:
    return mean(float(run.metrics["epoch_time_s"]) for run in runs)


def _made_of(experiment: Experiment, runs: Iterable[Run]) -> str:
    """`4 runs`, and where test predictions were averaged over several draws, over how many."""
    count = "one run" if experiment.runs == 1 else f"{experiment.runs} runs"
    draws = {int(run.metrics.get("draws", 1)) for run in runs} - {1}
    several = " and ".join(map(str, sorted(draws)))
    return f"{count}, test predictions averaged over {several} draws where a model draws" if draws else count
