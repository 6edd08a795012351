"""Sections of the page that need a look at the weights: classes, calibration, degree, homophily, codebook, attention.

Enters: the analysis of the best run of every model (see analysis.py), or the reason why there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from largegt.pages.charts import Axis, Dots, Line, bar_chart, cell_chart, dot_chart, legend, line_chart
from largegt.pages.markup import Cell, Html, Section, figure, figures, join, number, percent, section, short, table, tag

from .groups import Dataset, Group, Opened
from .node_map import MAX_POINTS, map_chart, point_legend

_MAX_CLASS_ROWS = 15


@dataclass(frozen=True)
class Look:
    """What is known of one model's best run."""

    dataset: str
    group: Group
    run: Opened
    found: dict[str, Any] | None
    """Its analysis; None where there could be none."""
    why_not: str
    codebook: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.group.model


def predictions(datasets: Sequence[Dataset], looks: Sequence[Look]) -> Section:
    """What the models get right and wrong."""
    body: list[Html] = []
    for dataset in datasets:
        known = [look for look in looks if look.dataset == dataset.name and look.found is not None]
        if len(datasets) > 1:
            body.append(tag("h3", dataset.name))
        if known:
            body.append(_sampled(known))
            task = _of(known[0])["task"]
            body += (_regression if task == "regression" else _classification)(known, task)
    missing = [look for look in looks if look.found is None]
    if missing:
        items = (tag("li", look.run.name, ": ", look.why_not) for look in missing)
        body.append(tag("div", "Not looked into:", tag("ul", *items), class_="say"))
    lead = "Of each model, the run that was best on validation. Predictions of its best weights."
    return section("predictions", "What they get right and wrong", lead, *body)


def _sampled(looks: Sequence[Look]) -> Html:
    found = _of(looks[0])
    of = "all" if found["num_nodes"] == found["num_split"] else f"{found['num_nodes']:,} drawn at random from"
    runs = ", ".join(f"{look.name}: {look.run.name}" for look in looks)
    return tag("p", f"On {of} {found['num_split']:,} {found['split']} nodes. {runs}.", class_="note")


def _named(looks: Sequence[Look]) -> Html:
    return legend([(look.name, look.group.style) for look in looks])


def _of(look: Look) -> dict[str, Any]:
    assert look.found is not None
    return look.found


# classes and labels ----------------------------------------------------------------------------------------------


def _classification(looks: Sequence[Look], task: str) -> list[Html]:
    named = _named(looks)
    made = [_reliability(looks, task), _by_degree(looks, "share right", "Accuracy by degree")]
    if any(_of(look).get("by_homophily") for look in looks):
        made.append(_by_homophily(looks))
    made.append(_per_class(looks, task))
    if task != "multilabel":
        made += [_confusion(look) for look in looks]
    return [named, figures(*made)]


def _reliability(looks: Sequence[Look], task: str) -> Html:
    lines, errors = [], []
    rows: list[list[Cell]] = [
        [f"{look.name}, all", "ECE", f"{_of(look)['num_nodes']:,}", None, number(_of(look)["calibration"]["ece"])]
        for look in looks
    ]
    for look in looks:
        found = _of(look)["calibration"]
        errors.append(f"{look.name} {number(found['ece'])}")
        bins = found["bins"]
        lines.append(Line(look.name, [b[3] for b in bins], [b[4] for b in bins], look.group.style, markers=True))
        rows += [[look.name, f"{b[0]:.2f}–{b[1]:.2f}", f"{b[2]:,}", number(b[3]), number(b[4])] for b in bins]
    x, y = ("confidence", "share right") if task != "multilabel" else ("probability", "share that has the label")
    chart = line_chart(
        lines, Axis(x, low=0.0, high=1.0), Axis(y, low=0.0, high=1.0), f"Calibration: {y} by {x}", diagonal=True
    )
    below = table(f"Calibration: {y} by {x}", ["model", x, "count", f"mean {x}", y], rows, left=2)
    note = tag("p", f"On the dashed line, yes. Calibration error (ECE): {', '.join(errors)}.", class_="note")
    return figure(join((chart, note)), "Are they as sure as they should be?", below)


def _by_degree(looks: Sequence[Look], what: str, title: str) -> Html:
    return _by_bins(looks, "by_degree", "number of neighbours", what, title)


def _by_homophily(looks: Sequence[Look]) -> Html:
    x = "neighbours with the same label, share"
    return _by_bins(looks, "by_homophily", x, "share right", "Accuracy by local homophily")


def _by_bins(looks: Sequence[Look], key: str, x: str, what: str, title: str) -> Html:
    order = {name: low for look in looks for name, _, _ in _of(look)[key] for low in [_first(name)]}
    names = sorted(order, key=lambda name: order[name])
    lines, rows = [], []
    for look in looks:
        bins = _of(look)[key]
        xs = [float(names.index(name)) for name, _, _ in bins]
        lines.append(Line(look.name, xs, [value for _, _, value in bins], look.group.style, markers=True))
        rows += [[look.name, name, f"{count:,}", number(value)] for name, count, value in bins]
    chart = line_chart(lines, Axis(x, names=tuple(names)), Axis(what), title)
    note = ""
    if key == "by_homophily" and (aside := _of(looks[0])["no_neighbours"]):
        note = f"{aside:,} nodes have no labelled neighbour and are not here."
    return figure(chart, title, table(title, ["model", x, "nodes", what], rows, left=2, note=note))


def _first(name: str) -> float:
    """Where a bin begins, from its name."""
    text = name.split("–")[0].rstrip("+")
    factor = {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    return float(text.rstrip("kM")) * factor


def _per_class(looks: Sequence[Look], task: str) -> Html:
    what = "label" if task == "multilabel" else "class"
    by_model = [{one["name"]: one for one in _of(look)["per_class"]} for look in looks]
    names = list(by_model[0])
    total = _of(looks[0])["num_classes"]
    styles = [look.group.style for look in looks]
    dots = [
        Dots(name, styles, [(f"{look.name}, F1", found.get(name, {}).get("f1"), 0.0)
                            for look, found in zip(looks, by_model, strict=True)])
        for name in names[:_MAX_CLASS_ROWS]
    ]  # fmt: skip
    chart = dot_chart(dots, Axis("F1", low=0.0, high=1.0), f"F1 by {what}")
    columns = [f"{look.name} {part}" for look in looks for part in _parts(task)]
    rows = [
        [name, f"{by_model[0][name]['support']:,}",
         *(number(found.get(name, {}).get(part), 3) for found in by_model for part in _parts(task))]
        for name in names
    ]  # fmt: skip
    note = f"The {len(names)} with most nodes of {total}." if len(names) < total else ""
    below = table(f"Scores by {what}", [what, "nodes", *columns], rows, note=note)
    most = f", the {len(dots)} with most nodes" if len(dots) < total else ""
    return figure(chart, f"F1 by {what}{most}", below)


def _parts(task: str) -> tuple[str, ...]:
    return ("precision", "recall", "f1", "roc_auc") if task == "multilabel" else ("precision", "recall", "f1")


def _confusion(look: Look) -> Html:
    names, cells = _of(look)["confusion"]["classes"], _of(look)["confusion"]["cells"]
    shade = [[value / max(1, sum(line)) for value in line] for line in cells]
    chart = cell_chart(
        cells, [f"{at + 1} {name}" for at, name in enumerate(names)], names, "true class", "predicted class",
        f"Confusion matrix of {look.name}", shade,
    )  # fmt: skip
    rows = [[f"{at + 1} {name}", *(f"{value:,}" for value in line)] for at, (name, line) in
            enumerate(zip(names, cells, strict=True))]  # fmt: skip
    below = table(f"Nodes by true (row) and predicted (column) class, {look.name}",
                  ["true class", *(str(at + 1) for at in range(len(names)))], rows)  # fmt: skip
    return figure(chart, f"{look.name}: which classes are taken for which, in % of the row", below)


# regression ------------------------------------------------------------------------------------------------------


def _regression(looks: Sequence[Look], task: str) -> list[Html]:
    named = _named(looks)
    error = _by_degree(looks, "mean absolute error", "Error by degree")
    lines = [
        Line(look.name, [part[1] for part in _of(look)["by_value"]], [part[3] for part in _of(look)["by_value"]],
             look.group.style, markers=True)
        for look in looks
    ]  # fmt: skip
    chart = line_chart(lines, Axis("true value"), Axis("mean absolute error", low=0.0), "Error by true value")
    rows = [[look.name, *(short(value) for value in part)] for look in looks for part in _of(look)["by_value"]]
    below = table("Each tenth of the nodes by true value",
                  ["model", "nodes", "mean true value", "mean predicted", "mean absolute error"], rows)  # fmt: skip
    return [named, figures(error, figure(chart, "Error by true value", below)), figures(*map(_values, looks))]


def _values(look: Look) -> Html:
    found = _of(look)["values"]
    low, high, cells = found["low"], found["high"], found["cells"]
    most = max(max(line) for line in cells)
    shade = [[math.sqrt(value / most) for value in line] for line in cells]
    edges = [low + (high - low) * at / len(cells) for at in range(len(cells) + 1)]
    names = [f"{short(float(f'{a:.3g}'))} to {short(float(f'{b:.3g}'))}" for a, b in pairwise(edges)]
    axes = Axis("true value", low=low, high=high), Axis("predicted value", low=low, high=high)
    chart = cell_chart(cells, names, names, "predicted", "true", f"Predicted and true values of {look.name}", shade,
                       numbers=False, edges=axes)  # fmt: skip
    rows = [[short(part[1]), short(part[2]), short(part[3])] for part in _of(look)["by_value"]]
    below = table(f"Each tenth of the nodes by true value, {look.name}",
                  ["mean true value", "mean predicted", "mean absolute error"], rows, left=0)  # fmt: skip
    return figure(chart, f"{look.name}: predicted against true values; the darker, the more nodes", below)


# codebook --------------------------------------------------------------------------------------------------------


def codebook(looks: Sequence[Look]) -> Section | None:
    """How many centroids live, and their sizes; None where no model has a codebook."""
    known = [(look, look.codebook) for look in looks if look.codebook]
    if not known:
        return None
    lines, rows = [], []
    for look, use in known:
        sizes = [size for size in use["sizes"] if size > 0]
        name = label(looks, look)
        places = _log_places(len(sizes))
        lines.append(Line(name, [at + 1 for at in places], [sizes[at] for at in places], look.group.style))
        largest, middle, smallest = (sizes[0], sizes[len(sizes) // 2], sizes[-1]) if sizes else (None,) * 3
        rows.append([
            name, f"{use['live']:,}", f"{use['centroids']:,}", percent(use["live"] / use["centroids"]),
            number(use["effective"], 1), short(largest), short(middle), short(smallest),
        ])  # fmt: skip
    chart = line_chart(
        lines, Axis("centroid, largest first", log=True), Axis("nodes assigned", log=True), "Nodes per centroid, sorted"
    )
    head = ["model", "live", "centroids", "live, %", "as many as", "largest", "median", "smallest live"]
    below = table("Codebook use at the best epoch", head, rows)
    words = "; ".join(f"{row[0]}: {row[1]} of {row[2]} live" for row in rows)
    lead = (
        "A model with a GlobalModule attends to centroids of the whole graph. A centroid lives when nodes are assigned "
        "to it. “As many as” is how many centroids of equal size would spread the nodes as evenly."
    )
    named = legend([(label(looks, look), look.group.style) for look, _ in known])
    return section("codebook", "Codebook use", lead, figures(figure(chart, words, below, named)))


def _log_places(count: int, most: int = 100) -> list[int]:
    """Places 0 … count-1, evenly on a logarithmic axis."""
    if count <= most:
        return list(range(count))
    return sorted({round(count ** (step / (most - 1))) - 1 for step in range(most)})


# attention -------------------------------------------------------------------------------------------------------


def attention(looks: Sequence[Look]) -> Section | None:
    """Where the readout of a LocalModule looks; None where no model has one that was looked into."""
    known = [(look, use) for look in looks if look.found and (use := look.found.get("attention"))]
    if not known:
        return None
    made = []
    for look, use in known:
        name = label(looks, look)
        bars, rows = [], []
        for kind, shares, counts in zip(use["kinds"], use["share"], use["tokens_per_node"], strict=True):
            for hop, share, count in zip(use["hops"], shares, counts, strict=True):
                if not count:
                    continue
                each = share / count * (use["tokens"] - 1)
                words = f"{hop} {kind}"
                bars.append((words, share, 0.0, look.group.style, percent(share)))
                rows.append([words, percent(share), number(count, 2), number(each, 2)])
        chart = bar_chart(bars, Axis("share of the weight"), f"Readout weight by hop and by whose token, {name}")
        top = use["top"]
        note = (
            f"Mean over {use['num_nodes']:,} nodes, {use['tokens']} tokens each. The weight is spread as over "
            f"{use['effective_tokens']:.1f} equal tokens; the heaviest has {percent(top['1'])}, the heaviest five "
            f"{percent(top['5'])}, the heaviest twenty {percent(top['20'])}."
        )
        head = ["token", "share of the weight", "tokens per node", "weight of one against an even share"]
        made.append(figure(chart, f"{name}: where the weight goes", table("Readout weight", head, rows, note=note)))
    lead = (
        "The readout adds to a node's first token a weighted mean of its other tokens: features H and contexts C0, C1 "
        "and so on (out and in by hop, where directions are apart) of the node itself, of neighbours among its local "
        "nodes, and of local nodes farther away. Here are the weights."
    )
    return section("attention", "Where the local module looks", lead, figures(*made))


# the map ---------------------------------------------------------------------------------------------------------


def node_maps(looks: Sequence[Look]) -> Section | None:
    """Test nodes by their vectors, in two dimensions; None where no LargeGT was looked into."""
    known = [(look, found) for look in looks if look.found and (found := look.found.get("map"))]
    if not known:
        return None
    made = []
    for look, found in known:
        name = label(looks, look)
        groups = found["groups"]
        most = MAX_POINTS // len(known)
        chart = map_chart(found, most, f"Test nodes by their vectors, {name}")
        sizes = [found["group"].count(at) for at in range(len(groups))]
        middles = [
            [short(sum(v for v, g in zip(found[axis], found["group"], strict=True) if g == at) / max(1, sizes[at]))
             for axis in "xy"] for at in range(len(groups))
        ]  # fmt: skip
        rows = [[group, f"{size:,}", *middle] for group, size, middle in zip(groups, sizes, middles, strict=True)]
        first, second = found["share"]
        note = f"Of the differences between vectors, {percent(first)} lie along x and {percent(second)} along y."
        below = table(f"Where they lie, {name}", ["true label", "nodes", "mean x", "mean y"], rows, note=note)
        caption = f"{name}: {min(most, len(found['x'])):,} nodes, {percent(first + second)} of the differences"
        made.append(figure(chart, caption, below, point_legend(groups)))
    lead = (
        "What the prediction head reads of a node is a vector. Here are test nodes in the plane in which their vectors "
        "differ most (two principal components), by their true label; a hover tells which node it is."
    )
    return section("map", "The nodes as the model sees them", lead, figures(*made))


def label(looks: Sequence[Look], look: Look) -> str:
    """The model's name, with the dataset's where there are several."""
    several = len({other.dataset for other in looks}) > 1
    return f"{look.name} on {look.dataset}" if several else look.name
