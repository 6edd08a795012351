"""Sections of the page from the analysis of weights: classes, calibration, degree, homophily, columns, codebook,
attention, the map.

Enters: the analysis of the best run of every model (see analysis.py), or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from largegt.explanation.explanation import column_words
from largegt.pages.charts import Axis, Bar, Dot, Line, confusion_chart, density_chart, line_chart, line_legend
from largegt.pages.figures import bar_figure, dot_figure, figure, figures, line_figure
from largegt.pages.markup import Html, Section, join, note, number, percent, section, short, tag
from largegt.pages.tables import Cell, PageTable

from .groups import DatasetRuns, Group, Opened
from .node_map import MAX_POINTS, map_chart, point_legend
from .results import headed

_MAX_CLASS_ROWS = 15
_MOST_BARS = 15


@dataclass(frozen=True)
class Look:
    """The analysis of one model's best run."""

    dataset: str
    label: str
    """The model's name, with the dataset's if there are several."""
    group: Group
    run: Opened
    codebook: dict[str, Any] | None
    found: dict[str, Any] | None
    """The result of `analyse`; None if that failed."""
    why_not: str = ""

    @property
    def name(self) -> str:
        return self.group.model

    @property
    def style(self) -> int:
        return self.group.style


Known = Sequence[tuple[Look, dict[str, Any]]]
"""Looks, each with its analysis or one part of the analysis."""


def _known(looks: Sequence[Look], key: str) -> Known:
    """The looks whose analysis has this part, each with the part."""
    return [(look, part) for look in looks if look.found and (part := look.found.get(key))]


def predictions(datasets: Sequence[DatasetRuns], looks: Sequence[Look]) -> Section:
    """Correct and wrong predictions of the models."""
    parts = (_of_dataset([(one, one.found) for one in looks if one.dataset == dataset.name and one.found is not None])
             for dataset in datasets)  # fmt: skip
    body = headed(datasets, parts)
    if missing := [tag("li", look.run.name, ": ", look.why_not) for look in looks if look.found is None]:
        body.append(tag("div", "Not looked into:", tag("ul", *missing), class_="say"))
    lead = "Of each model, the run that was best on validation. Predictions of its best weights."
    return section("predictions", "What they get right and wrong", lead, *body)


def _of_dataset(known: Known) -> Html:
    if not known:
        return Html()
    first = known[0][1]
    of = "all" if first["num_nodes"] == first["num_split"] else f"{first['num_nodes']:,} drawn at random from"
    runs = ", ".join(f"{look.name}: {look.run.name}" for look, _ in known)
    made = _regression(known) if first["task"] == "regression" else _classification(known, first["task"])
    return join((
        note(f"On {of} {first['num_split']:,} {first['split']} nodes. {runs}."),
        line_legend((look.name, look.style) for look, _ in known), figures(made),
    ))  # fmt: skip


# classes and labels ----------------------------------------------------------------------------------------------


def _classification(known: Known, task: str) -> list[Html]:
    made = [_reliability(known, task), _by_bins("Accuracy by degree", known, "by_degree", "share right")]
    if any(found.get("by_homophily") for _, found in known):
        made.append(_by_bins("Accuracy by local homophily", known, "by_homophily", "share right"))
    made.append(_per_class(known, task))
    return [*made, *(_confusion(*one) for one in known if task != "multilabel")]


def _reliability(known: Known, task: str) -> Html:
    x, y = ("confidence", "share right") if task != "multilabel" else ("probability", "share that has the label")
    title, lines = f"Are they as sure as they should be? {y.capitalize()} by {x}", []
    rows: list[list[Cell]] = []
    for look, found in known:
        bins = found["calibration"]["bins"]
        lines.append(Line(look.name, [b[3] for b in bins], [b[4] for b in bins], look.style))
        rows += [[look.name, f"{b[0]:.2f}–{b[1]:.2f}", f"{b[2]:,}", number(b[3]), number(b[4])] for b in bins]
    errors = ", ".join(f"{look.name} {number(found['calibration']['ece'])}" for look, found in known)
    chart = line_chart(lines, Axis(x, low=0.0, high=1.0), Axis(y, low=0.0, high=1.0), title, diagonal=True)
    said = note(f"On the dashed line, yes. Calibration error (ECE): {errors}.")
    return figure(title, join((chart, said)), PageTable(title, ["model", x, "count", f"mean {x}", y], rows, left=2))


_BINS = {"by_degree": "number of neighbours", "by_homophily": "neighbours with the same label, share"}


def _by_bins(title: str, known: Known, key: str, what: str) -> Html:
    """A line per model over bins, each (name, nodes, value)."""
    counts = {name: f"{count:,}" for _, found in known for name, count, _ in found[key]}
    names = sorted(counts, key=_first)
    lines = [
        Line(look.name, [names.index(name) for name, _, _ in found[key]], [value for *_, value in found[key]],
             look.style)
        for look, found in known
    ]  # fmt: skip
    num_left_out = known[0][1]["no_neighbours"] if key == "by_homophily" else 0
    more = {"nodes": [counts[name] for name in names]}
    made = line_figure(title, lines, Axis(_BINS[key], names=tuple(names)), Axis(what), more=more)
    remark = note(f"{num_left_out:,} nodes have no labelled neighbour and are not here." if num_left_out else "")
    return tag("div", made, remark)


def _first(name: str) -> float:
    """The lower bound of a bin, from its name."""
    text = name.split("–")[0].rstrip("+")
    return float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)


def _per_class(known: Known, task: str) -> Html:
    what = "label" if task == "multilabel" else "class"
    parts = ("precision", "recall", "f1", *(("roc_auc",) if task == "multilabel" else ()))
    by_model = [{one["name"]: one for one in found["per_class"]} for _, found in known]
    first, total = by_model[0], known[0][1]["num_classes"]
    dots = [
        (name, [Dot(f"{look.name}, F1", scores.get(name, {}).get("f1"), 0.0, look.style)
                for (look, _), scores in zip(known, by_model, strict=True)])
        for name in list(first)[:_MAX_CLASS_ROWS]
    ]  # fmt: skip
    rows = [
        [name, f"{first[name]['support']:,}",
         *(number(scores.get(name, {}).get(part), 3) for scores in by_model for part in parts)]
        for name in first
    ]  # fmt: skip
    head = [what, "nodes", *(f"{look.name} {part}" for look, _ in known for part in parts)]
    remark = f"The {len(first)} with most nodes of {total}." if len(first) < total else ""
    most = f", the {len(dots)} with most nodes" if len(dots) < total else ""
    table = PageTable(f"Scores by {what}", head, rows, note=remark)
    return dot_figure(f"F1 by {what}{most}", dots, Axis("F1", low=0.0, high=1.0), table)


def _confusion(look: Look, found: dict[str, Any]) -> Html:
    names, cells = found["confusion"]["classes"], found["confusion"]["cells"]
    rows = [
        [f"{at + 1} {name}", *(f"{value:,}" for value in line)]
        for at, (name, line) in enumerate(zip(names, cells, strict=True))
    ]
    head = ["true class", *(str(at + 1) for at in range(len(names)))]
    table = PageTable(f"Nodes by true (row) and predicted (column) class, {look.name}", head, rows)
    title = f"{look.name}: which classes are taken for which, in % of the row"
    return figure(title, confusion_chart(cells, names, title), table)


# regression ------------------------------------------------------------------------------------------------------


def _regression(known: Known) -> list[Html]:
    error = "mean absolute error"
    lines = [
        Line(look.name, [part[1] for part in found["by_value"]], [part[3] for part in found["by_value"]], look.style)
        for look, found in known
    ]  # fmt: skip
    x, y = Axis("true value"), Axis(error, low=0.0)
    made = [
        _by_bins("Error by degree", known, "by_degree", error),
        line_figure("Error by true value", lines, x, y, _tenths(known)),
    ]
    for look, found in known:
        values, title = found["values"], f"{look.name}: predicted against true values; the darker, the more nodes"
        x, y = (Axis(f"{what} value", low=values["low"], high=values["high"]) for what in ("true", "predicted"))
        made.append(figure(title, density_chart(values["cells"], x, y, title), _tenths([(look, found)])))
    return made


def _tenths(known: Known) -> PageTable:
    head = ["model", "nodes", "mean true value", "mean predicted", "mean absolute error"]
    rows = [[look.name, *map(short, part)] for look, found in known for part in found["by_value"]]
    return PageTable("Each tenth of the nodes by true value", head, rows)


# what a model uses -----------------------------------------------------------------------------------------------


def column_use(looks: Sequence[Look]) -> Section | None:
    """The mean attribution of each column; None without any such analysis."""
    made = []
    for look, found in _known(looks, "columns"):
        bars = [Bar(column_words(one["column"], one["table"]), one["carried"], short(one["carried"]), look.style)
                for one in found["listed"]]  # fmt: skip
        remark = f"Mean over {found['num_nodes']:,} nodes."
        if len(bars) < found["num_columns"]:
            remark += f" The {len(bars)} strongest of {found['num_columns']:,} columns."
        label = "carried, mean absolute value"
        table = PageTable(
            "What columns carried", ["column", label], [[bar.name, bar.words] for bar in bars], note=remark
        )
        made.append(bar_figure(f"{look.label}: which columns mattered", bars[:_MOST_BARS], label, table))
    lead = (
        "For each of some test nodes, how much of the score of the predicted class (or of the value) a column carried, "
        "with all features that it became, of the node and of its local nodes: by integrated gradients, the mean of "
        "the absolute value. largegt explain tells it of one node, and which way."
    )
    return section("column-use", "Which columns mattered", lead, figures(made)) if made else None


def codebook(looks: Sequence[Look]) -> Section | None:
    """The number of live centroids and their sizes; None if no model has a codebook."""
    lines, rows = [], []
    for look in looks:
        if not (use := look.codebook):
            continue
        sizes = [size for size in use["sizes"] if size > 0] or [0]
        lines.append(Line(look.label, range(1, len(sizes) + 1), sizes, look.style))
        rows.append([
            look.label, f"{use['live']:,}", f"{use['centroids']:,}", percent(use["live"] / use["centroids"]),
            number(use["effective"], 1), *map(short, (sizes[0], sizes[len(sizes) // 2], sizes[-1])),
        ])  # fmt: skip
    if not rows:
        return None
    head = ["model", "live", "centroids", "live, %", "as many as", "largest", "median", "smallest live"]
    x, y = Axis("centroid, largest first", log=True), Axis("nodes assigned", log=True)
    title = "; ".join(f"{row[0]}: {row[1]} of {row[2]} live" for row in rows)
    made = line_figure(title, lines, x, y, PageTable("Codebook use at the best epoch", head, rows))
    lead = (
        "A model with a GlobalModule attends to centroids of the whole graph. A centroid lives when nodes are assigned "
        "to it. “As many as” is how many centroids of equal size would spread the nodes as evenly."
    )
    key = line_legend((line.name, line.style) for line in lines)
    return section("codebook", "Codebook use", lead, key, figures([made]))


def attention(looks: Sequence[Look]) -> Section | None:
    """Readout weights of LocalModules; None without any such analysis."""
    made = []
    for look, use in _known(looks, "attention"):
        bars, rows = [], []
        for kind, shares, counts in zip(use["kinds"], use["share"], use["tokens_per_node"], strict=True):
            for hop, share, count in zip(use["hops"], shares, counts, strict=True):
                if count:
                    bars.append(Bar(f"{hop} {kind}", share, percent(share), look.style))
                    each = share / count * (use["tokens"] - 1)
                    rows.append([f"{hop} {kind}", percent(share), number(count, 2), number(each, 2)])
        one, five, twenty = (percent(use["top"][most]) for most in ("1", "5", "20"))
        remark = (
            f"Mean over {use['num_nodes']:,} nodes, {use['tokens']} tokens each. The weight is spread as over "
            f"{use['effective_tokens']:.1f} equal tokens; the heaviest has {one}, the heaviest five {five}, the "
            f"heaviest twenty {twenty}."
        )
        head = ["token", "share of the weight", "tokens per node", "weight of one against an even share"]
        table = PageTable("Readout weight", head, rows, note=remark)
        made.append(bar_figure(f"{look.label}: where the weight goes", bars, "share of the weight", table))
    lead = (
        "The readout adds to a node's first token a weighted mean of its other tokens: features H and contexts C0, C1 "
        "and so on (out and in by hop, where directions are separate) of the node itself, of neighbours among its "
        "local nodes, and of local nodes farther away. Here are the weights."
    )
    return section("attention", "Where the local module looks", lead, figures(made)) if made else None


def node_maps(looks: Sequence[Look]) -> Section | None:
    """Embeddings of test nodes in two dimensions; None without any such analysis."""
    known, made = _known(looks, "map"), []
    for look, found in known:
        groups, xs, ys = found["groups"], found["x"], found["y"]
        most = MAX_POINTS // len(known)
        rows = []
        for at, name in enumerate(groups):
            members = [member for member, group in enumerate(found["group"]) if group == at]
            means = (short(sum(axis[member] for member in members) / max(1, len(members))) for axis in (xs, ys))
            rows.append([name, f"{len(members):,}", *means])
        first, second = found["share"]
        remark = f"Of the differences between vectors, {percent(first)} lie along x and {percent(second)} along y."
        table = PageTable(
            f"Where they lie, {look.label}", ["true label", "nodes", "mean x", "mean y"], rows, note=remark
        )
        title = f"{look.label}: {min(most, len(xs)):,} nodes, {percent(first + second)} of the differences"
        made.append(figure(title, map_chart(found, most, title), table, point_legend(groups)))
    lead = (
        "What the prediction head reads of a node is a vector. Here are test nodes in the plane in which their vectors "
        "differ most (two principal components), by their true label; a hover tells which node it is."
    )
    return section("map", "The nodes as the model sees them", lead, figures(made)) if made else None
