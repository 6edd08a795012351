"""The map: test nodes at the first two principal components of a LargeGT's embeddings, by true label.

Axes: n nodes, d width of a vector.

Enters: vectors [n, d] and labels. Leaves: coordinates, explained variance, groups and ids, ready for JSON, and a chart
of them. Cost: O(n·d²) time; some 25 bytes of the page per node.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from largegt.data.store import GraphStore
from largegt.pages.charts import NUM_COLORS, WIDTH, legend, nothing, svg
from largegt.pages.markup import Html, clipped, tag
from largegt.types import Array

from .tallies import OTHERS

MAX_POINTS = 2000
_MOST_GROUPS = NUM_COLORS - 1
"""The last of so many is gray."""
_HEIGHT, _EDGE = 400.0, 12.0
_LONGEST_ID = 24
_SHAPES = (("M7 7", "h0"), ("M7 4", "l3 3-3 3-3-3z"), ("M7 7", "h0"), ("M7 4", "l3.4 6h-6.8z"),
           ("M7 10", "l-3.4-6h6.8z"))  # fmt: skip
"""Start of the path in a legend key; path after a point's coordinates. The first and third are zero-length lines with
round and square ends."""


def node_map(store: GraphStore, nodes: Array, vectors_nd: Array) -> dict[str, Any]:
    """The coordinates and the label group of each node."""
    places_n2, shares = _principal_plane(vectors_nd)
    groups, group_n = _groups(store, nodes)
    return {
        "x": np.round(places_n2[:, 0], 4).tolist(),
        "y": np.round(places_n2[:, 1], 4).tolist(),
        "share": shares,
        "ids": [clipped(str(each), _LONGEST_ID) for each in store.ids_of(nodes)],
        "groups": groups,
        "group": group_n.tolist(),
    }


def _principal_plane(vectors_nd: Array) -> tuple[Array, list[float]]:
    """[n, 2] coordinates along the first two principal components, and their shares of the variance. The largest entry
    of a component is positive, so that results are reproducible."""
    centred_nd = vectors_nd.astype(np.float64) - vectors_nd.mean(axis=0, dtype=np.float64)
    _, lengths, directions = np.linalg.svd(centred_nd, full_matrices=False)
    plane_2d, shares_2 = np.zeros((2, vectors_nd.shape[1])), np.zeros(2)
    plane_2d[: len(lengths)] = directions[:2]
    shares_2[: len(lengths)] = lengths[:2] ** 2 / ((lengths**2).sum() or 1.0)
    largest_2 = plane_2d[[0, 1], np.abs(plane_2d).argmax(axis=1)]
    return centred_nd @ (plane_2d.T * np.where(largest_2 < 0, -1.0, 1.0)), shares_2.tolist()


def map_chart(found: dict[str, Any], most: int, title: str) -> Html:
    """A scatter plot: one colour and shape per group, ids on hover."""
    xs, ys, group_n = (np.array(found[key]) for key in ("x", "y", "group"))
    if not len(xs):
        return nothing(title)
    shown = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), most)).round().astype(int))
    # one scale for both axes preserves distances in the plane
    scale = min((WIDTH - 2 * _EDGE) / (np.ptp(xs) or 1.0), (_HEIGHT - 2 * _EDGE) / (np.ptp(ys) or 1.0))
    left = WIDTH / 2 + (xs - (xs.max() + xs.min()) / 2) * scale
    top = _HEIGHT / 2 - (ys - (ys.max() + ys.min()) / 2) * scale
    parts = [tag("path", d=f"M0 0H{WIDTH:.0f}V{_HEIGHT:.0f}H0z", class_="grid")]
    for at, name in reversed(list(enumerate(found["groups"]))):  # the smaller groups and the rest below
        if members := shown[group_n[shown] == at].tolist():
            d = "".join(f"M{left[i]:.1f} {top[i]:.1f}{_SHAPES[at % len(_SHAPES)][1]}" for i in members)
            ids = "|".join(found["ids"][i].replace("|", "/") for i in members)
            parts.append(tag("path", d=d, class_=_class(at), data_n=name, data_ids=ids))
    return svg(title, _HEIGHT, *parts, data_map=1)


def point_legend(names: list[str]) -> Html:
    """The colour and shape of each group."""
    return legend(
        (name, tag("svg", tag("path", d="".join(_SHAPES[at % len(_SHAPES)]), class_=_class(at)), viewBox="0 0 14 14",
                   class_="key dot", aria_hidden="true"))
        for at, name in enumerate(names)
    )  # fmt: skip


def _class(at: int) -> str:
    return f"c{at % NUM_COLORS} points p{at % len(_SHAPES)}"


def _groups(store: GraphStore, nodes: Array) -> tuple[list[str], Array]:
    """Names of the groups, and each node's group: its class, with rare classes merged; the commonest of its labels in a
    multi-label task; its quintile in a regression."""
    labels = np.asarray(store.labels[nodes])
    if store.task == "regression":
        cuts = np.unique(np.quantile(labels, np.linspace(0, 1, 6)))
        names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(cuts)] or [f"{cuts[0]:.4g}"]
        return names, np.searchsorted(cuts[1:-1], labels)
    names = [str(name) for name in store.classes]
    if store.task == "multilabel":
        has = np.nan_to_num(labels) > 0.5
        common = np.argsort(-has.sum(axis=0), kind="stable")
        labels = np.where(has.any(axis=1), common[has[:, common].argmax(axis=1)], len(names))
        names = [*names, "none of them"]
    counts = np.bincount(labels, minlength=len(names))
    order = [int(at) for at in np.argsort(-counts, kind="stable") if counts[at]]
    kept = order if len(order) <= _MOST_GROUPS else order[: _MOST_GROUPS - 1]
    place = np.full(len(names), len(kept))
    place[kept] = np.arange(len(kept))
    rest = [OTHERS] if len(kept) < len(order) else []
    return [*(names[at] for at in kept), *rest], place[labels]
