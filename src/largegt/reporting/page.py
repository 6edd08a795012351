"""Report: run folders → one HTML page that needs no network and no other file.

Enters: run folders; for what the weights get right and wrong, also their stores. Leaves: a page that works on a phone,
in the dark and on paper. Every string from a run is escaped, and the page's policy lets no request leave it.
Cost: the page is some 10 KB per run; looking into weights is a prediction per model, kept in the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from largegt.errors import InputError, LargeGTError, first_line
from largegt.pages.markup import Html, Section, duration, join, tag
from largegt.pages.template import facts_of, write_page
from largegt.runtime.progress import Progress
from largegt.types import PathLike

from . import columns, insight, results, settings
from .analysis import FILE, MAX_NODES, analyse, codebook_use
from .groups import Dataset, Group, Opened, datasets_of, open_runs
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
    """Write the page. `first` are sections to put before its own. `baselines` adds rows that have no run, such as the
    majority class. `look_into`: predict up to `max_nodes` test nodes with the best run of every model, to show where it
    errs; without the store the page says so.
    """
    opened = open_runs(runs)
    if not opened:
        raise InputError("no run folders given: largegt report runs/*")
    datasets = datasets_of(opened)
    looks = [
        _look(dataset, group, run, look_into, max_nodes, device, progress)
        for dataset in datasets
        for group, run in dataset.best_of_each_model()
    ]
    sections = [
        *first,
        results.scores(datasets, baselines or {}),
        results.curves(datasets),
        results.cost(datasets),
        results.local_nodes(datasets),
        columns.tables(datasets),
        insight.predictions(datasets, looks),
        columns.use(looks),
        insight.codebook(looks),
        insight.attention(looks),
        insight.node_maps(looks),
        settings.differences(datasets, opened),
        settings.listing(opened),
    ]
    return write_page(out, title, _head(title, datasets, opened), sections)


def _look(
    dataset: Dataset,
    group: Group,
    run: Opened,
    look_into: bool,
    max_nodes: int,
    device: str | None,
    progress: Progress | None,
) -> insight.Look:
    """The analysis of one run, or why there is none: a page without it is better than no page."""
    found, why_not = None, "it was not asked for"
    codebook = None
    try:
        codebook = codebook_use(run.run)
        if look_into:
            found = analyse(run.run, max_nodes, progress, device)
    except (LargeGTError, OSError) as error:
        why_not = first_line(error)
    look = insight.Look(dataset.name, group, run, found, why_not, codebook)
    try:  # it may come from an analysis.json that a stranger wrote
        insight.predictions([dataset], [look]), insight.attention([look]), insight.node_maps([look])
        columns.use([look])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why_not = f"{run.run.path / FILE} is damaged ({first_line(error)}): remove it"
        return insight.Look(dataset.name, group, run, None, why_not, codebook)
    return look


def _head(title: str, datasets: Sequence[Dataset], runs: Sequence[Opened]) -> Html:
    groups = sum(len(dataset.groups) for dataset in datasets)
    names = ", ".join(dataset.name for dataset in datasets)
    total = sum(float(run.metrics["train_time_s"]) for run in runs)
    facts = [
        (str(len(runs)), "run" if len(runs) == 1 else "runs"),
        (str(groups), "model or setting" if groups == 1 else "models and settings"),
        (duration(total), "of training in all"),
    ]
    lead = tag("p", f"Node prediction on {names}.", class_="lead")
    return join((tag("h1", title), lead, facts_of(facts)))
