"""The page of an explanation, in the style of the report: facts, the picture, and tables.

Enters: an Explanation. Leaves: one HTML page without other files; what comes from the data can only be shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from largegt.pages.charts import signed_chart
from largegt.pages.markup import Cell, Html, Section, figure, join, percent, section, table, tag
from largegt.pages.template import facts_of, page_of

from .explanation import HOPS, Explanation, around_words, in_words, number
from .node import MOST_DRAWN
from .picture import legend_of, picture

_MOST_ROWS, _MOST_BARS = 60, 15


def page(found: Explanation) -> str:
    """The whole page."""
    title = f"Node {in_words(found.node)}: why {in_words(found.predicted)}?"
    sections = (_pieces(found), _columns(found), _neighbourhood(found), _around(found), _centroids(found))
    return page_of(title, _head(title, found), sections)


def _head(title: str, found: Explanation) -> Html:
    facts = [(in_words(found.predicted), "predicted"), (in_words(found.label), "its own label")]
    if found.probability is not None:
        facts.append((f"{found.probability:.3f}", f"probability of {in_words(found.target)}"))
    facts += [(number(found.score), found.explained), (number(found.base_score), "of inputs that say nothing")]
    lead = f"What {found.run}, a {found.model}, made of this node, over {found.draws} draws of its local nodes."
    return join((tag("h1", title), tag("p", lead, class_="lead"), facts_of(facts)))


def _pieces(found: Explanation) -> Section:
    bars = [(piece.name, piece.carried, number(piece.carried)) for piece in found.pieces]
    chart = signed_chart(bars, found.explained, "What carried the score")
    rows: list[Sequence[Cell]] = [
        [piece.name, number(piece.carried), number(piece.without)] for piece in found.pieces
    ]  # fmt: skip
    below = table("What carried the score", ["input", "carried", "score falls without it by"], rows,
                  note=f"Sum of the parts and the two scores differ by {found.gap:+.1g}.")  # fmt: skip
    lead = (
        f"Parts of the {found.explained}, by integrated gradients: they add up to the way from "
        f"{number(found.base_score)}, the score of inputs that say nothing, to {number(found.score)}. H are features, "
        "C0 and C1 those of everything one and two hops around."
    )
    return section(
        "pieces", "What carried it", lead, tag("div", figure(chart, "By kind of input", below), class_="narrow")
    )


def _columns(found: Explanation) -> Section | None:
    if not found.columns:
        return None
    bars = [(one.words, one.carried, number(one.carried)) for one in found.columns[:_MOST_BARS]]
    chart = signed_chart(bars, found.explained, "What columns carried")
    rows: list[Sequence[Cell]] = [
        [one.words, one.mostly, number(one.carried), number(one.itself), number(one.without)]
        for one in found.columns[:_MOST_ROWS]
    ]
    head = ["column", "mostly by the feature", "carried", "by its own value", "score falls without it by"]
    below = table("What columns carried", head, rows, left=2)
    lead = (
        "The columns of your tables, each with all features that it became: of the node itself, of its local nodes and "
        "of everything around them."
    )
    most = f", the {len(bars)} strongest of {len(found.columns)}" if len(bars) < len(found.columns) else ""
    body = tag("div", figure(chart, f"By column{most}", below), class_="narrow")
    return section("columns", "Which columns", lead, body)


def _neighbourhood(found: Explanation) -> Section | None:
    if not found.local_nodes:
        return None
    rows: list[Sequence[Cell]] = [
        [in_words(one.node), in_words(one.label), one.split, HOPS[one.hop], number(one.carried), number(one.told),
         number(one.without), percent(one.weight), f"{one.drawn:.2f}"]
        for one in found.local_nodes[:_MOST_ROWS]
    ]  # fmt: skip
    head = ["node", "label", "split", "where", "carried", "by the label it told", "score falls without it by",
            "attention", "times drawn"]  # fmt: skip
    left_out = len(found.local_nodes) - len(rows)
    note = f"{left_out} weaker ones are not here." if left_out else ""
    below = table("Local nodes, the strongest first", head, rows, left=4, note=note)
    drawn = min(MOST_DRAWN, len(found.local_nodes))
    lead = (
        "The node in the middle, sampled neighbours on the inner ring, nodes two hops away on the outer one; a dashed "
        "line leads to a node whose way is not in the sample. The larger a dot, the more it carried; open dots speak "
        "against. Attention is the readout's weight, which is not the same."
    )
    caption = f"{drawn} sampled nodes"
    if drawn < len(found.local_nodes):
        caption = f"The {drawn} strongest of {len(found.local_nodes)} sampled nodes"
    body = tag("div", figure(picture(found), caption, below, legend_of(found)), class_="narrow")
    return section("neighbourhood", "Which local nodes", lead, body)


def _around(found: Explanation) -> Section | None:
    if not found.labels_around:
        return None
    rows: list[Sequence[Cell]] = [
        [around_words(one), one.hop, f"{one.share:.3f}", number(one.carried)]
        for one in found.labels_around[:_MOST_ROWS]
    ]
    head = ["label", "hops", "share", "carried"]
    lead = "Shares of training labels where random walks from the node end; its own label is never among them."
    return section("labels", "Which labels around", lead, table("Training labels around it", head, rows))


def _centroids(found: Explanation) -> Section | None:
    if not found.centroids:
        return None
    rows: list[Sequence[Cell]] = [
        [str(one.number), in_words(one.mostly), f"{one.nodes:,}", percent(one.weight), percent(one.by_size),
         number(one.carried), number(one.without)]
        for one in found.centroids
    ]  # fmt: skip
    head = ["centroid", "mostly", "nodes", "attention", "by size alone", "carried", "score falls without it by"]
    lead = (
        "The model also attends to centroids of the whole graph; carried is what taking more or less than by size did."
    )
    return section("centroids", "Which centroids", lead, table("Centroids that carried most", head, rows, left=2))
