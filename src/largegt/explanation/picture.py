"""The picture of an explanation: the node in the middle, its sampled nodes on rings by distance, edges among them.

Enters: an Explanation. Leaves: an `<svg>` that takes its colours from the page, or a file of its own. A dot is as large
as what its node carried; full where it speaks for the score, open where it speaks against it; its colour and shape say
its class. Cost: some hundred bytes per node and edge; the strongest nodes alone are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from largegt.pages.charts import NUM_COLORS, dot
from largegt.pages.colors import COLORS, INK, MUTED
from largegt.pages.markup import Html, clipped, f1, join, tag

from .explanation import HOPS, Explanation, LocalNode, in_words, number
from .node import MOST_DRAWN

SIDE = 640.0
_MIDDLE = SIDE / 2
_RADII = {1: 110.0, 2: 205.0, 0: 205.0}
_SMALLEST, _LARGEST = 4.0, 15.0
_NAMED, _NAMED_ON_A_PHONE = 14, 6
_NAME = 12
UNKNOWN = "no label"
_GRAY = 6


@dataclass(frozen=True)
class Kind:
    """What dots of one colour and shape have in common."""

    name: str
    style: int


def picture(found: Explanation) -> Html:
    """The neighbourhood, to be put into a page."""
    nodes = found.local_nodes[:MOST_DRAWN]
    places = _places(found, nodes)
    kinds, kind_of = kinds_of(found, nodes)
    largest = max((abs(one.carried) for one in nodes), default=1.0) or 1.0
    rings = [
        tag("circle", cx=f1(_MIDDLE), cy=f1(_MIDDLE), r=f1(radius), class_="grid")
        for radius in sorted({_RADII[one.hop] for one in nodes})
    ]
    lines = "".join(f"M{_at(places, a)}L{_at(places, b)}" for a, b in found.edges)
    joined = {at for edge in found.edges for at in edge}
    loose = "".join(
        f"M{f1(_MIDDLE)} {f1(_MIDDLE)}L{_at(places, at)}"
        for at in range(len(nodes))
        if nodes[at].hop and at not in joined
    )
    dots, names = [], []
    for at, one in reversed(list(enumerate(nodes))):
        x, y = places[at]
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(abs(one.carried) / largest)
        kind = kinds[kind_of[at]]
        shape = tag("path", d=dot(kind.style, x, y, radius))
        way = "full" if one.carried >= 0 else "open"
        dots.append(tag("g", shape, class_=f"c{kind.style % NUM_COLORS} {way}", data_tip=_tip(one)))
        if at < _NAMED:
            names.append(_name(in_words(one.node), x, y, radius, "name few" if at >= _NAMED_ON_A_PHONE else "name"))
    middle = tag(
        "g", tag("circle", cx=f1(_MIDDLE), cy=f1(_MIDDLE), r=12, class_="self"),
        data_tip=f"{found.node}\npredicted: {in_words(found.predicted)}\nits own label: {in_words(found.label)}",
    )  # fmt: skip
    own = tag("text", clipped(in_words(found.node), 24), x=f1(_MIDDLE), y=f1(_MIDDLE + 28), class_="mid name strong")
    return tag(
        "svg", *rings, tag("path", d=lines, class_="edge"), tag("path", d=loose, class_="edge loose"), join(dots),
        middle, join(names), own, viewBox=f"0 0 {f1(SIDE)} {f1(SIDE)}", role="img", class_="chart around",
        aria_label=f"Sampled neighbourhood of node {found.node}",
    )  # fmt: skip


def legend_of(found: Explanation) -> Html:
    """What colours and shapes, full and open mean."""
    kinds, _ = kinds_of(found, found.local_nodes[:MOST_DRAWN])
    items = [
        tag("li", tag("svg", tag("path", d=dot(kind.style, 7, 7, 4.5)), viewBox="0 0 14 14", aria_hidden="true",
                      class_=f"key dot c{kind.style % NUM_COLORS} full"), kind.name)
        for kind in kinds
    ]  # fmt: skip
    return tag("ul", *items, class_="legend")


def standalone(found: Explanation) -> str:
    """The picture as a file that browsers and editors of SVG open."""
    colors = "".join(f".c{at}{{--c:{color}}}" for at, color in enumerate(COLORS))
    style = (
        f"{colors} text{{font:12.5px system-ui,sans-serif;fill:{INK}}} .mid{{text-anchor:middle}} "
        ".end{text-anchor:end} .strong{font-weight:700} .grid{fill:none;stroke:#e6e9ee} "
        f".edge{{fill:none;stroke:{MUTED};stroke-opacity:.45}} .loose{{stroke-dasharray:3 4}} .self{{fill:{INK}}} "
        ".full>path{fill:var(--c);stroke:var(--c);stroke-width:1.6} "
        ".open>path{fill:#fff;stroke:var(--c);stroke-width:1.8}"
    )
    drawn = str(picture(found))
    first, rest = drawn.split(">", 1)
    page = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'{first} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{page}{rest}\n'


def kinds_of(found: Explanation, nodes: Sequence[LocalNode]) -> tuple[list[Kind], list[int]]:
    """The kinds that dots come in, and that of every node. Classes: the commonest, and all others; of multi-label
    nodes, whether they have the label explained; of values, thirds."""
    if found.task == "regression":
        words = _thirds([one.label for one in nodes])
    elif found.task == "multilabel":
        words = [
            UNKNOWN if one.label is None else f"has {found.target}" if found.target in one.label else
            f"does not have {found.target}" for one in nodes
        ]  # fmt: skip
    else:
        words = [UNKNOWN if one.label is None else in_words(one.label) for one in nodes]
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    unknown = counts.pop(UNKNOWN, 0)
    target = in_words(found.target)
    ranked = sorted(counts, key=lambda word: (word != target, -counts[word], word))
    styles = [style for style in range(NUM_COLORS) if style != _GRAY]
    shown = ranked if len(ranked) <= len(styles) else ranked[: len(styles) - 1]
    kinds = [Kind(word, style) for word, style in zip(shown, styles, strict=False)]
    place = {word: at for at, word in enumerate(shown)}
    if len(shown) < len(ranked):
        place |= dict.fromkeys(ranked[len(shown) :], len(kinds))
        kinds.append(Kind("all other classes", styles[-1]))
    if unknown:
        place[UNKNOWN] = len(kinds)
        kinds.append(Kind(UNKNOWN, _GRAY))
    return kinds, [place[word] for word in words]


def _thirds(values: Sequence[Any]) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return [UNKNOWN] * len(values)
    low, high = (float(cut) for cut in np.quantile(known, [1 / 3, 2 / 3]))
    names = (f"up to {low:.4g}", f"{low:.4g} to {high:.4g}", f"above {high:.4g}")
    return [UNKNOWN if value is None else names[int(value > low) + int(value > high)] for value in values]


def _places(found: Explanation, nodes: Sequence[LocalNode]) -> dict[int, tuple[float, float]]:
    """Where each node lies: neighbours evenly on the first ring, by their label; the others on the second, near those
    that lead to them."""
    angles: dict[int, float] = {}
    first = sorted((at for at, one in enumerate(nodes) if one.hop == 1), key=lambda at: in_words(nodes[at].label))
    for turn, at in enumerate(first):
        angles[at] = 2 * math.pi * (turn + 0.5) / len(first)
    leads: dict[int, list[float]] = {}
    for a, b in found.edges:
        for one, other in ((a, b), (b, a)):
            if one in angles and 0 <= other < len(nodes) and nodes[other].hop != 1:
                leads.setdefault(other, []).append(angles[one])
    second = [at for at, one in enumerate(nodes) if one.hop != 1]
    wanted = {at: _mean_angle(leads[at]) if at in leads else 2 * math.pi * turn / len(second)
              for turn, at in enumerate(second)}  # fmt: skip
    for turn, at in enumerate(sorted(second, key=lambda at: wanted[at])):
        angles[at] = 2 * math.pi * (turn + 0.25) / len(second)
    places = {-1: (_MIDDLE, _MIDDLE)}
    for at, angle in angles.items():
        radius = _RADII[nodes[at].hop]
        places[at] = (_MIDDLE + radius * math.sin(angle), _MIDDLE - radius * math.cos(angle))
    return places


def _mean_angle(angles: Sequence[float]) -> float:
    return math.atan2(sum(map(math.sin, angles)), sum(map(math.cos, angles))) % (2 * math.pi)


def _name(name: str, x: float, y: float, radius: float, class_: str) -> Html:
    """Behind the dot, in the direction from the middle, so that no two names meet; never upside down."""
    right = x >= _MIDDLE - 0.5
    turn = math.degrees(math.atan2(y - _MIDDLE, x - _MIDDLE)) + (0 if right else 180)
    return tag("text", clipped(name, _NAME), x=f1((radius + 5) * (1 if right else -1)), y=4,
               transform=f"translate({f1(x)} {f1(y)}) rotate({f1(turn)})",
               class_=class_ if right else f"{class_} end")  # fmt: skip


def _tip(one: LocalNode) -> str:
    return (
        f"{one.node}\nlabel: {in_words(one.label)} ({one.split})\n{HOPS[one.hop]}\ncarried {number(one.carried)}\n"
        f"score falls by {number(one.without)} without it\nattention {100 * one.weight:.1f} %"
    )


def _at(places: dict[int, tuple[float, float]], at: int) -> str:
    x, y = places[at]
    return f"{f1(x)} {f1(y)}"
