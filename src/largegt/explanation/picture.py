"""The picture of an explanation: the node in the middle, its sampled nodes on rings by distance, edges among them.

Enters: an Explanation. Leaves: an `<svg>` with the colours of the page. The size of a dot is its node's attribution,
filled if positive and open if negative; colour and shape are its class. Cost: some hundred bytes per node and edge; the
picture has the nodes with the largest attributions only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from largegt.pages.charts import GRAY, NUM_COLORS, dot_key, legend, marker, path, shape_class
from largegt.pages.markup import Html, clipped, tag

from .explanation import HOPS, MOST_DRAWN, Explanation, LocalNode, in_words, number

_SIDE = 640.0
_MIDDLE = _SIDE / 2
_RADII = {1: 110.0, 2: 205.0, 0: 205.0}
_SMALLEST, _LARGEST = 4.0, 15.0
_NAMED, _NAMED_ON_A_PHONE = 14, 6
_NAME = 12
UNKNOWN, OTHERS = "no label", "all other classes"

Place = tuple[float, float]


def picture(found: Explanation) -> Html:
    """The neighbourhood as an SVG element of a page."""
    nodes = found.local_nodes[:MOST_DRAWN]
    places = _places(found, nodes)
    words, styles = _kinds(found)
    largest = max((abs(one.carried) for one in nodes), default=1.0) or 1.0
    rings = [
        tag("circle", cx=_MIDDLE, cy=_MIDDLE, r=radius, class_="grid")
        for radius in sorted({_RADII[one.hop] for one in nodes})
    ]
    edges = "".join(path("M", *places[a], "L", *places[b]) for a, b in found.edges)
    connected = {at for edge in found.edges for at in edge}
    loose = "".join(
        path("M", _MIDDLE, _MIDDLE, "L", *places[at]) for at, one in enumerate(nodes) if one.hop and at not in connected
    )
    dots, names = [], []
    for at, one in reversed(list(enumerate(nodes))):
        radius, style = _SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(abs(one.carried) / largest), styles[words[at]]
        shape = tag("path", d=marker(style, *places[at], radius))
        dots.append(tag("g", shape, class_=shape_class(style, one.carried < 0), data_tip=_tip(one)))
        if at < _NAMED:
            class_ = "name" if at < _NAMED_ON_A_PHONE else "name few"
            names.append(_name(in_words(one.node), places[at], radius, class_))
    middle = tag(
        "g", tag("circle", cx=_MIDDLE, cy=_MIDDLE, r=12, class_="self"),
        data_tip=f"{found.node}\npredicted: {in_words(found.predicted)}\nits own label: {in_words(found.label)}",
    )  # fmt: skip
    own = tag("text", clipped(in_words(found.node), 24), x=_MIDDLE, y=_MIDDLE + 28, class_="mid name strong")
    return tag(
        "svg", *rings, tag("path", d=edges, class_="edge"), tag("path", d=loose, class_="edge loose"), *dots, middle,
        *names, own, viewBox=f"0 0 {_SIDE:.0f} {_SIDE:.0f}", role="img", class_="chart around",
        aria_label=f"Sampled neighbourhood of node {found.node}",
    )  # fmt: skip


def legend_of(found: Explanation) -> Html:
    """The legend of colours and shapes."""
    _, styles = _kinds(found)
    return legend((name, dot_key(style)) for name, style in styles.items())


def _kinds(found: Explanation) -> tuple[list[str], dict[str, int]]:
    """The class of every node, and the style of each class: the target, the commonest ones, all others, and no label.
    The classes of a multi-label task are with and without the explained label; those of a regression are thirds."""
    nodes = found.local_nodes[:MOST_DRAWN]
    if found.task == "regression":
        words = _thirds([one.label for one in nodes])
    elif found.task == "multilabel":
        words = [f"{'has' if found.target in one.label else 'does not have'} {found.target}"
                 if one.label is not None else UNKNOWN for one in nodes]  # fmt: skip
    else:
        words = [UNKNOWN if one.label is None else in_words(one.label) for one in nodes]
    counts, target = Counter(words), in_words(found.target)
    ranked = sorted(counts.keys() - {UNKNOWN}, key=lambda word: (word != target, -counts[word], word))
    styles = [style for style in range(NUM_COLORS) if style != GRAY]
    if len(ranked) > len(styles):
        rare = set(ranked[len(styles) - 1 :])
        words, ranked = [OTHERS if word in rare else word for word in words], [*ranked[: len(styles) - 1], OTHERS]
    return words, dict(zip(ranked, styles, strict=False)) | ({UNKNOWN: GRAY} if UNKNOWN in counts else {})


def _thirds(values: Sequence[Any]) -> list[str]:
    known = [value for value in values if value is not None]
    low, high = (float(cut) for cut in np.quantile(known or [0.0], [1 / 3, 2 / 3]))
    names = (f"up to {low:.4g}", f"{low:.4g} to {high:.4g}", f"above {high:.4g}")
    return [UNKNOWN if value is None else names[int(value > low) + int(value > high)] for value in values]


def _places(found: Explanation, nodes: Sequence[LocalNode]) -> dict[int, Place]:
    """The position of each node: neighbours evenly on the first ring, sorted by label; the others on the second, close
    to the neighbours that lead to them."""
    first = sorted((at for at, one in enumerate(nodes) if one.hop == 1), key=lambda at: in_words(nodes[at].label))
    angles = {at: 2 * math.pi * (turn + 0.5) / len(first) for turn, at in enumerate(first)}
    second = [at for at, one in enumerate(nodes) if one.hop != 1]
    wanted = {}
    for turn, at in enumerate(second):
        ends = [a if b == at else b for a, b in found.edges if at in (a, b)]
        mean = sum((complex(math.cos(angles[end]), math.sin(angles[end])) for end in ends if end in angles), 0j)
        wanted[at] = math.atan2(mean.imag, mean.real) % (2 * math.pi) if mean else 2 * math.pi * turn / len(second)
    for turn, at in enumerate(sorted(second, key=lambda at: wanted[at])):
        angles[at] = 2 * math.pi * (turn + 0.25) / len(second)
    places = {-1: (_MIDDLE, _MIDDLE)}
    for at, angle in angles.items():
        radius = _RADII[nodes[at].hop]
        places[at] = (_MIDDLE + radius * math.sin(angle), _MIDDLE - radius * math.cos(angle))
    return places


def _name(name: str, place: Place, radius: float, class_: str) -> Html:
    """The node's name beside its dot, pointing away from the middle so that names do not overlap; never upside down."""
    x, y = place
    is_right = x >= _MIDDLE - 0.5
    turn = math.degrees(math.atan2(y - _MIDDLE, x - _MIDDLE)) + (0 if is_right else 180)
    return tag("text", clipped(name, _NAME), x=f"{(radius + 5) * (1 if is_right else -1):.1f}", y=4,
               transform=f"translate({x:.1f} {y:.1f}) rotate({turn:.1f})",
               class_=class_ if is_right else f"{class_} end")  # fmt: skip


def _tip(one: LocalNode) -> str:
    return (
        f"{one.node}\nlabel: {in_words(one.label)} ({one.split})\n{HOPS[one.hop]}\ncarried {number(one.carried)}\n"
        f"score falls by {number(one.without)} without it\nattention {100 * one.weight:.1f} %"
    )
