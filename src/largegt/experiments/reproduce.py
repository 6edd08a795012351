"""`largegt reproduce`: one function per table and figure of the paper.

Enters: an Experiment. Leaves: files in its folder, and the runs behind them. Finished runs are reused, interrupted runs
are resumed. Test scores are those of the epoch with the best validation score, computed once. `fig_curves` is the one
exception: it plots the test score of every epoch; no choice depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from largegt.config.models import model_spec
from largegt.errors import ConfigError, nearest
from largegt.io.atomic import write_text_atomically
from largegt.models.base import NodeModel
from largegt.pages.charts import Axis, Dot, Line
from largegt.pages.markup import mean_of, number
from largegt.pages.tables import Cell, PageTable, Ranked, ranks
from largegt.runtime.progress import Progress
from largegt.training.evaluate import Scorer
from largegt.training.log import Entry, parse_metrics
from largegt.training.run import Run
from largegt.training.setup import make_accelerator, make_loader
from largegt.types import PathLike

from .figures import Panel, save_figure
from .page import curve_lines, page
from .paper import DATASETS, DELTA_MODELS, EPOCH_SECONDS, K_VALUES, ORIGINALS, TEST_ACCURACY
from .plan import Experiment, recipe_of

Runs = Sequence[Run]


def reproduce(
    what: str = "all",
    dataset: PathLike = "ogbn-products",
    out: PathLike = "reproduce",
    runs: int = 4,
    max_time: str | None = None,
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
    given = [*overrides, *([f"train.max_time={max_time}"] if max_time else [])]
    experiment = Experiment.make(dataset, out, runs, models, given, like, progress)
    chosen = EXPERIMENTS.values() if what == "all" else [EXPERIMENTS[what]]
    files = [file for make in chosen for file in make(experiment)]
    if (experiment.out / "runs").is_dir():
        files.append(page(experiment.out, f"{experiment.dataset}: the paper's tables and figures", progress))
    return files


def table_datasets(experiment: Experiment) -> list[Path]:
    """Table 1: the datasets."""
    store = experiment.store
    rows: list[list[str | int]] = [
        [store.name, store.num_nodes, store.num_edges, store.num_features, len(store.classes) or 1, store.task]
    ]
    if experiment.dataset in DATASETS:
        rows.append([f"{experiment.dataset} in the paper", *DATASETS[experiment.dataset]])
    head = ["Dataset", "Nodes", "Edges", "Node features", "Classes", "Label"]
    cells = [[f"{value:,}" if isinstance(value, int) else value for value in row] for row in rows]
    return PageTable("The data.", head, cells).write(experiment.out / "table-datasets")


def table_main(experiment: Experiment) -> list[Path]:
    """Table 2: test accuracy of every model, mean and standard deviation over the runs, the best three marked."""
    found = {model: experiment.seeds(model) for model in experiment.models}
    metric = _metric(next(iter(found.values())))
    best = ranks([fmean(_scores(runs, metric)) for runs in found.values()], -1 if metric == "rmse" else 1)
    paper = TEST_ACCURACY.get(experiment.dataset)
    rows: list[list[Cell]] = []
    for (model, runs), rank in zip(found.items(), best, strict=True):
        row: list[Cell] = [_title(model), Ranked(_spread(runs, metric), rank), _spread(runs, metric, "valid")]
        if paper is not None:
            row.append(f"{paper[model][0]:.2f}±{paper[model][1]:.2f}" if model in paper else None)
        rows.append(row)
    head = ["Model", f"Test {metric}", f"Valid {metric}", *(["the paper"] if paper else [])]
    made = _made_of(experiment, chain(*found.values()))
    caption = f"{experiment.dataset}: test {metric} at the best validation epoch, {made}."
    return PageTable(caption, head, rows).write(experiment.out / "table-main")


def table_extended(experiment: Experiment) -> list[Path]:
    """Table 3: the original and the 2-hop forms, score and seconds per epoch."""
    name = experiment.dataset
    delta = {model: experiment.seeds(model) for model in experiment.models}
    original = {model: experiment.seeds(model, original=True) for model in experiment.models
                if recipe_of(experiment.family, model, original=True)}  # fmt: skip
    metric = _metric(next(iter(delta.values())))
    rows: list[list[Cell]] = []
    for model, runs in delta.items():
        row: list[Cell] = [model_spec(model).title]
        for form in (original.get(model), runs):
            row += [_spread(form, metric), f"{_epoch_s(form):.3g} s"] if form else [None, None]
        if name in ORIGINALS:
            accuracy, seconds = ORIGINALS[name].get(model, (None, None))
            row.append(None if accuracy is None else f"{accuracy:.2f}, {seconds:g} s")
            has_delta = model in TEST_ACCURACY[name]
            row.append(f"{TEST_ACCURACY[name][model][0]:.2f}, {EPOCH_SECONDS[name][model]:g} s" if has_delta else None)
        rows.append(row)
    head = ["Model", f"Original: test {metric}", "epoch", f"-δ: test {metric}", "epoch",
            *(["the paper, original", "the paper, -δ"] if name in ORIGINALS else [])]  # fmt: skip
    made = _made_of(experiment, chain(*delta.values(), *original.values()))
    caption = f"{name}: models as their authors set them and held to 2 hops (-δ), {made}."
    return PageTable(caption, head, rows).write(experiment.out / "table-extended")


def fig_epoch_time(experiment: Experiment) -> list[Path]:
    """Figure 2: seconds per training epoch of each model, with the paper's values."""
    paper = EPOCH_SECONDS.get(experiment.dataset, {})
    dots = []
    for model in experiment.models:
        ours, theirs = _epoch_s([experiment.run(model, 0)]), paper.get(model)
        dots.append((_title(model), [Dot("here", ours, 0.0, 0), Dot("the paper", theirs, 0.0, 1, is_open=True)]))
    table = PageTable(f"{experiment.dataset}: seconds of a training epoch.", ["Model", "Seconds"],
                  [[name, f"{here.value:.4g}"] for name, (here, _) in dots])  # fmt: skip
    file, x = experiment.out / "fig-epoch-time", "seconds of an epoch" + (" (open: the paper, V100)" if paper else "")
    return [
        *table.write(file),
        *save_figure(file, experiment.dataset, [Panel(Axis(x, log=True), Axis(""), rows=dots)]),
    ]


def fig_k(experiment: Experiment) -> list[Path]:
    """Figure 3: score and seconds per epoch of LargeGT-full with K from 20 to 200."""
    model = "largegt-full"
    found = {k: experiment.seeds(model, extra=[f"prepare.local_nodes.k={k}"], label=f"k{k}") for k in K_VALUES}
    metric = _metric(found[K_VALUES[0]])
    title = f"{experiment.dataset}: {model_spec(model).title} by K"
    rows = [[str(k), _spread(runs, metric), f"{_epoch_s(runs):.4g}"] for k, runs in found.items()]
    caption = f"{title}, {_made_of(experiment, chain(*found.values()))}."
    table = PageTable(caption, ["K", f"Test {metric}", "Seconds of an epoch"], rows)
    x, places = Axis("K, local nodes per node", names=tuple(map(str, found))), range(len(found))
    means = [mean_of(_scores(runs, metric)) for runs in found.values()]
    lines = [
        Line(f"test {metric}", places, [each or 0.0 for each, _ in means], 0, [spread for _, spread in means]),
        Line("seconds of an epoch", places, [_epoch_s(runs) for runs in found.values()], 1),
    ]
    file = experiment.out / "fig-k"
    return [*table.write(file), *save_figure(file, title, [Panel(x, Axis(line.name), [line]) for line in lines])]


def fig_curves(experiment: Experiment) -> list[Path]:
    """Figure 4: validation and test score over minutes of training. Only this figure scores the test split in every
    epoch."""
    rows, metric = list[list[str]](), ""
    for model in experiment.models:
        run, tested = _watched(experiment, model)
        metric = _metric([run])
        rows += [
            [_title(model), f"{one['elapsed_s'] / 60:.4f}", f"{one['valid'][metric]:.6f}", f"{test[metric]:.6f}"]
            for one in run.history
            if (test := tested.get(one["epoch"])) and metric in one["valid"]
        ]
    head, file = ["Model", "Minutes", f"Valid {metric}", f"Test {metric}"], experiment.out / "fig-curves"
    x = Axis("minutes of training", low=0.0)
    panels = [Panel(x, Axis(head[at].lower()), curve_lines(rows, at)) for at in (2, 3)]
    table = PageTable(f"{experiment.dataset}: scores while training.", head, rows)
    return [*table.write(file), *save_figure(file, experiment.dataset, panels)]


EXPERIMENTS: dict[str, Callable[[Experiment], list[Path]]] = {
    "table-datasets": table_datasets, "table-main": table_main, "table-extended": table_extended,
    "fig-epoch-time": fig_epoch_time, "fig-k": fig_k, "fig-curves": fig_curves,
}  # fmt: skip


class _CurveEntry(Entry):
    epoch: int


def _watched(experiment: Experiment, model: str) -> tuple[Run, dict[int, dict[str, float]]]:
    """A run with a test score after every epoch, and these scores by epoch. Nothing else reads their file."""
    file = experiment.out / "curves" / f"{model}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = experiment.out / "runs" / f"{model}-watched-seed0"
    if not folder.exists():
        file.unlink(missing_ok=True)
    config, scorers = experiment.config(model), list[Scorer]()

    def read() -> dict[int, dict[str, Any]]:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        return {entry["epoch"]: entry for entry in (parse_metrics(file, line, _CurveEntry) for line in lines)}

    def watch(trained: NodeModel, epoch: int, seconds: float) -> None:
        if not scorers:
            run, accelerator = Run.open(folder), make_accelerator(config.train)
            prepared, place = run.prepared(), config.train.token_table
            loader = make_loader(prepared, trained, config.train, accelerator.device, place, experiment.store)
            scorers.append(
                Scorer(trained, run.head(prepared), config.train, accelerator, loader, prepared, experiment.store)
            )
        scorer = replace(scorers[0], model=trained)
        before = [entry for number, entry in read().items() if number < epoch]
        entries = [*before, {"epoch": epoch, **scorer.scores(scorer.prepared.split_rows("test"))}]
        write_text_atomically(file, "".join(json.dumps(entry) + "\n" for entry in entries))

    return experiment.run(model, 0, label="watched", watch=watch), read()


def _scores(runs: Runs, metric: str, split: str = "test") -> list[float]:
    """The final scores of these runs."""
    return [float(run.metrics[split][metric]) for run in runs]


def _metric(runs: Runs) -> str:
    """The main metric of the task."""
    found: dict[str, float] = runs[0].metrics["test"]
    return next(name for name in ("accuracy", "roc_auc", "rmse", *found) if name in found)


def _spread(runs: Runs, metric: str, split: str = "test") -> str:
    """`79.81±0.25`; no ± for a single run."""
    factor, digits = (1.0, 4) if metric == "rmse" else (100.0, 2)
    scores = _scores(runs, metric, split)
    mean, deviation = mean_of([factor * score for score in scores])
    return number(mean, digits) + (f"±{number(deviation, digits)}" if len(scores) > 1 else "")


def _title(model: str) -> str:
    return model_spec(model).title + ("-δ" if model in DELTA_MODELS else "")


def _epoch_s(runs: Runs) -> float:
    return fmean(float(run.metrics["epoch_time_s"]) for run in runs)


def _made_of(experiment: Experiment, runs: Iterable[Run]) -> str:
    """`4 runs`, with the number of samples if test predictions are averages over several."""
    count = "one run" if experiment.runs == 1 else f"{experiment.runs} runs"
    samples = {int(run.metrics.get("num_eval_samples", 1)) for run in runs} - {1}
    several = " and ".join(map(str, sorted(samples)))
    return (
        f"{count}, test predictions averaged over {several} samples of local nodes or neighbours" if samples else count
    )
