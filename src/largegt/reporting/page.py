"""Report: run folders → one HTML page that needs no network and no other file.

Enters: run folders; for an analysis of errors, also their stores. Leaves: a page that works on a phone, in dark mode
and on paper. Every string from a run is escaped, and the page's content security policy blocks all requests.
Cost: some 10 KB of page per run; an analysis predicts once per model and is cached in the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from largegt.errors import InputError, LargeGTError, first_line
from largegt.pages.markup import Section, duration
from largegt.pages.template import page_of, write_file
from largegt.runtime.progress import Progress
from largegt.training.run import Run
from largegt.types import PathLike

from . import insight, results, settings
from .analysis import FILE, MAX_NODES, analyse, codebook_use
from .groups import DatasetRuns, datasets_of, open_runs
from .results import Baselines


def report(
    runs: Iterable[PathLike],
    out: PathLike = "report.html",
    title: str = "largegt report",
    baselines: Baselines | None = None,
    look_into: bool = True,
    max_nodes: int = MAX_NODES,
    device: str | None = None,
    progress: Progress | None = None,
    first: Sequence[Section] = (),
) -> Path:
    """Write one page that compares runs: scores, learning curves, cost and settings.

    Args:
        runs: runs or their folders.
        out: the HTML file; one that is there is replaced.
        title: the title of the page.
        baselines: scores without a run by dataset and name, such as those of the majority class.
        look_into: predict up to `max_nodes` test nodes with the best run of every model, to show where it errs; without
            the store the page says so.
        max_nodes: the most nodes to predict.
        device: auto, cpu or cuda; that of the run by default.
        progress: is called as `progress(stage, done, total)`.
        first: sections before the page's own.

    Returns:
        The path of the page.

    Raises:
        InputError: no run is given, or one has not finished.

    Examples:
        >>> lg.report(["runs/a"], out="report.html").name
        'report.html'
    """
    opened = open_runs(runs)
    if not opened:
        raise InputError("no run folders given: `lg.report(['runs/a', 'runs/b'])`")
    datasets = datasets_of(opened)

    def look_at(run: Run) -> dict[str, Any] | None:
        return analyse(run, max_nodes, progress, device) if look_into else None

    looks = [look for dataset in datasets for look in _looks(dataset, len(datasets) > 1, look_at)]
    sections = [
        *first,
        results.scores(datasets, baselines or {}),
        results.curves(datasets),
        results.cost(datasets),
        results.local_nodes(datasets),
        settings.columns(datasets),
        insight.predictions(datasets, looks),
        insight.column_use(looks),
        insight.codebook(looks),
        insight.attention(looks),
        insight.node_maps(looks),
        settings.differences(datasets, opened),
        settings.listing(opened),
    ]
    groups = sum(len(dataset.groups) for dataset in datasets)
    facts = [
        (str(len(opened)), "run" if len(opened) == 1 else "runs"),
        (str(groups), "model or setting" if groups == 1 else "models and settings"),
        (duration(sum(float(run.metrics["train_time_s"]) for run in opened)), "of training in all"),
    ]
    lead = f"Node prediction on {', '.join(dataset.name for dataset in datasets)}."
    return write_file(out, page_of(title, lead, facts, sections))


def _looks(
    dataset: DatasetRuns, is_one_of_several: bool, look_at: Callable[[Run], dict[str, Any] | None]
) -> Iterable[insight.Look]:
    """The analysis of each model's best run, or the reason why there is none."""
    for group, run in dataset.best_of_each_model():
        label = f"{group.model} on {dataset.name}" if is_one_of_several else group.model
        look = insight.Look(dataset.name, label, group, run, None, None, "it was not asked for")
        try:
            look = replace(look, codebook=codebook_use(run.run))
            look = replace(look, found=look_at(run.run))
        except (LargeGTError, OSError) as error:
            look = replace(look, why_not=first_line(error))
        try:  # analysis.json may be damaged or hostile
            insight.predictions([dataset], [look])
            for made in (insight.attention, insight.node_maps, insight.column_use):
                made([look])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            why_not = f"{run.run.path / FILE} is damaged ({first_line(error)}): remove it"
            look = replace(look, found=None, why_not=why_not)
        yield look
