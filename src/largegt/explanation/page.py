"""An explanation as text, and as a page in the style of the report with facts, the picture and tables.

Enters: an Explanation. Leaves: text, or one self-contained HTML page; text from the data is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from largegt.pages.charts import Bar
from largegt.pages.figures import bar_figure, figure
from largegt.pages.markup import Html, Section, percent, section, tag
from largegt.pages.tables import PageTable
from largegt.pages.template import page_of
from largegt.runtime.text import printable

from .explanation import HOPS, MOST_DRAWN, Contribution, Explanation, InputColumn, column_words, in_words, number
from .picture import legend_of, picture

_MOST_ROWS, _MOST_BARS = 60, 15


def text(found: Explanation, top: int) -> str:
    """The prediction and the score, then the `top` largest rows of every table."""
    answer = found.predicted if found.task != "regression" else number(found.predicted)
    chance = "" if found.probability is None else f", probability of {found.target}: {found.probability:.3f}"
    missing = f", but for {found.gap:+.1g} that the integral misses" if abs(found.gap) >= 5e-4 else ""
    parts = [
        f"{found.run} says of node {found.node}: {in_words(answer)}{chance} (its own label: {in_words(found.label)})",
        f"{found.explained}: {number(found.score)}; of inputs that say nothing: {number(found.base_score)}. The pieces "
        f"below add up to the difference{missing}. Mean of {_samples(found)}.",
    ]
    tables = (_pieces(found), _columns(found), _local_nodes(found), _labels(found), _centroids(found))
    return "\n\n".join([*map(printable, parts), *(one.text(top) for one in tables if one.rows)]) + "\n"


def _samples(found: Explanation) -> str:
    count = found.num_eval_samples
    return f"{count} sample{'s' if count > 1 else ''} of local nodes"


def page(found: Explanation) -> str:
    """The whole page."""
    facts = [(in_words(found.predicted), "predicted"), (in_words(found.label), "its own label")]
    if found.probability is not None:
        facts.append((f"{found.probability:.3f}", f"probability of {in_words(found.target)}"))
    facts += [(number(found.score), found.explained), (number(found.base_score), "of inputs that say nothing")]
    lead = f"What {found.run}, a {found.model}, made of this node: the mean over {found.num_eval_samples} samples."
    return page_of(f"Node {in_words(found.node)}: why {in_words(found.predicted)}?", lead, facts, _sections(found))


def _sections(found: Explanation) -> Iterable[Section]:
    table = replace(_pieces(found), note=f"Sum of the parts and the two scores differ by {found.gap:+.1g}.")
    lead = (
        f"Parts of the {found.explained}, by integrated gradients: they add up to the way from "
        f"{number(found.base_score)}, the score of inputs that say nothing, to {number(found.score)}. H are features, "
        "C0 and C1 those of everything one and two hops around."
    )
    yield section("pieces", "What carried it", lead, _bars(found, "By kind of input", found.pieces, table))
    if found.columns:
        lead = (
            "The columns of your tables, each with all features that it became: of the node itself, of its local nodes "
            "and of everything around them."
        )
        yield section("columns", "Which columns", lead, _bars(found, "By column", found.columns, _columns(found)))
    if found.local_nodes:
        lead = (
            "The node in the middle, sampled neighbours on the inner ring, nodes two hops away on the outer one; a "
            "dashed line leads to a node whose way is not in the sample. The larger a dot, the more it carried; open "
            "dots speak against. Attention is the readout's weight, which is not the same."
        )
        num, drawn = len(found.local_nodes), min(MOST_DRAWN, len(found.local_nodes))
        title = f"{num} sampled nodes" if drawn == num else f"The {drawn} strongest of {num} sampled nodes"
        made = figure(title, picture(found), _first(_local_nodes(found)), legend_of(found))
        yield section("neighbourhood", "Which local nodes", lead, tag("div", made, class_="narrow"))
    if found.labels_around:
        lead = "Shares of training labels where random walks from the node end; its own label is never among them."
        yield section("labels", "Which labels around", lead, _first(_labels(found)).html())
    if found.centroids:
        lead = (
            "The model also attends to centroids of the whole graph; carried is what taking more or less than by size "
            "did."
        )
        yield section("centroids", "Which centroids", lead, _centroids(found).html())


def _bars(found: Explanation, title: str, parts: Sequence[Contribution | InputColumn], table: PageTable) -> Html:
    """A bar for each of the largest attributions, in the order of the table's rows."""
    bars = [Bar(str(row[0]), part.carried, number(part.carried))
            for part, row in zip(parts[:_MOST_BARS], table.rows, strict=False)]  # fmt: skip
    most = f", the {len(bars)} strongest of {len(parts)}" if len(bars) < len(parts) else ""
    return tag("div", bar_figure(f"{title}{most}", bars, found.explained, _first(table)), class_="narrow")


def _first(table: PageTable) -> PageTable:
    """The rows that a page shows."""
    left_out = len(table.rows) - _MOST_ROWS
    if left_out <= 0:
        return table
    return replace(table, rows=table.rows[:_MOST_ROWS], note=f"{left_out} weaker ones are not here.")


# the tables ------------------------------------------------------------------------------------------------------


def _pieces(found: Explanation) -> PageTable:
    rows = [[piece.name, number(piece.carried), number(piece.without)] for piece in found.pieces]
    return PageTable("What carried it", ["input", "carried", "falls without"], rows)


def _columns(found: Explanation) -> PageTable:
    rows = [
        [column_words(one.column, one.table), "" if one.mostly == one.column else one.mostly, number(one.carried),
         number(one.itself), number(one.without)]
        for one in found.columns
    ]  # fmt: skip
    return PageTable("Columns", ["column", "mostly", "carried", "own value", "falls without"], rows, left=2)


def _local_nodes(found: Explanation) -> PageTable:
    rows = [
        [in_words(one.node), in_words(one.label), one.split, HOPS[one.hop], number(one.carried), number(one.from_label),
         number(one.without), percent(one.weight), f"{one.drawn:.2f}"]
        for one in found.local_nodes
    ]  # fmt: skip
    head = ["node", "label", "split", "where", "carried", "by its label", "falls without", "attention", "times drawn"]
    return PageTable("Local nodes", head, rows, left=4)


def _labels(found: Explanation) -> PageTable:
    rows = [
        ["any label at all" if one.label is None else in_words(one.label), str(one.hop), f"{one.share:.3f}",
         number(one.carried)]
        for one in found.labels_around
    ]  # fmt: skip
    return PageTable("Training labels around", ["label", "hops", "share", "carried"], rows)


def _centroids(found: Explanation) -> PageTable:
    rows = [
        [str(one.number), in_words(one.mostly), f"{one.nodes:,}", percent(one.weight), percent(one.by_size),
         number(one.carried), number(one.without)]
        for one in found.centroids
    ]  # fmt: skip
    head = ["centroid", "mostly", "nodes", "attention", "by size", "carried", "falls without"]
    return PageTable("Centroids of the whole graph", head, rows, left=2)
