"""Counts of what a model got right: by class, by confidence, by degree, by neighbourhood.

Axes: n nodes, c classes or labels. Enters: NumPy arrays of truths and predictions. Leaves: plain lists and dicts, ready
for JSON. Cost: O(n) and what the matrices take; homophily reads the neighbours of n nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from largegt.types import Array

CONFIDENCE_BINS = 15
_SHARE_BINS = 10
_CELLS = 24
_FEWEST = 20
_NODES_AT_ONCE = 1024
OTHERS = "all others"

Bin = tuple[str, int, float]
"""What the nodes have in common, how many they are, their mean score."""


def confusion(truth_n: Array, predicted_n: Array, num_classes: int) -> Array:
    """[c, c] nodes by true class (row) and predicted class (column)."""
    pairs = truth_n.astype(np.int64) * num_classes + predicted_n.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_scores(confusion_cc: Array) -> list[dict[str, float]]:
    """Of each class its nodes, precision, recall and F1; 0 where nothing was there to be found."""
    hits, support, said = confusion_cc.diagonal(), confusion_cc.sum(axis=1), confusion_cc.sum(axis=0)
    return [
        {"support": int(n), "precision": _ratio(hit, s), "recall": _ratio(hit, n), "f1": _ratio(2 * hit, n + s)}
        for hit, n, s in zip(hits.tolist(), support.tolist(), said.tolist(), strict=True)
    ]


def folded(confusion_cc: Array, names: list[str], most: int) -> tuple[list[str], list[list[int]]]:
    """The same for the `most` classes with most nodes, in that order, and the rest as one."""
    order = np.argsort(-confusion_cc.sum(axis=1), kind="stable")
    if len(order) <= most:
        return [names[c] for c in order], confusion_cc[np.ix_(order, order)].tolist()
    place = np.full(len(order), most - 1)
    place[order[: most - 1]] = np.arange(most - 1)
    small = np.zeros((most, most), dtype=np.int64)
    np.add.at(small, (place[:, None], place[None, :]), confusion_cc)
    return [*(names[c] for c in order[: most - 1]), OTHERS], small.tolist()


def calibration(confidence_n: Array, right_n: Array, num_bins: int = CONFIDENCE_BINS) -> dict[str, Any]:
    """Expected calibration error, and (low, high, nodes, mean confidence, share right) of every bin that has nodes."""
    bin_n = np.minimum((confidence_n * num_bins).astype(np.int64), num_bins - 1)
    count, sure, right = (
        np.bincount(bin_n, weights, num_bins) for weights in (None, confidence_n, right_n.astype(float))
    )
    bins = [
        [b / num_bins, (b + 1) / num_bins, int(count[b]), sure[b] / count[b], right[b] / count[b]]
        for b in np.flatnonzero(count).tolist()
    ]
    return {"ece": float(np.abs(sure - right).sum() / max(1, len(bin_n))), "bins": bins}


def by_degree(degree_n: Array, score_n: Array) -> list[Bin]:
    """Mean score of nodes of degree 0, 1, 2 to 3, 4 to 7, and so on; the highest degrees together, where they are
    few."""
    bin_n = np.where(degree_n > 0, np.floor(np.log2(np.maximum(degree_n, 1))).astype(np.int64) + 1, 0)
    count_b = np.bincount(bin_n)
    last = len(count_b) - 1
    while last > 0 and count_b[last:].sum() < _FEWEST:
        last -= 1
    names = ["0", "1", *(f"{_short(2**b)}–{_short(2 ** (b + 1) - 1)}" for b in range(1, 64))]
    if last < len(count_b) - 1:
        names[last] = f"{names[last].split('–')[0]}+"
    return _by_bin(np.minimum(bin_n, last), score_n, names)


def by_share(share_n: Array, score_n: Array) -> list[Bin]:
    """Mean score of nodes whose share lies in [0, 0.1), [0.1, 0.2), … [0.9, 1]; those without a share (NaN) aside."""
    known = ~np.isnan(share_n)
    bin_n = np.minimum(np.floor(share_n[known] * _SHARE_BINS + 1e-9).astype(np.int64), _SHARE_BINS - 1)
    names = [f"{b / _SHARE_BINS:.1f}–{(b + 1) / _SHARE_BINS:.1f}" for b in range(_SHARE_BINS)]
    return _by_bin(bin_n, score_n[known], names)


def homophily(indptr: Array, indices: Array, labels: Array, nodes_n: Array) -> Array:
    """[n] share of each node's labelled neighbours that have its label; NaN for a node that has none."""
    share_n = np.full(len(nodes_n), np.nan)
    for low in range(0, len(nodes_n), _NODES_AT_ONCE):
        nodes = np.asarray(nodes_n[low : low + _NODES_AT_ONCE], dtype=np.int64)
        start, count = np.asarray(indptr[nodes]), np.asarray(indptr[nodes + 1]) - np.asarray(indptr[nodes])
        owner = np.repeat(np.arange(len(nodes)), count)
        place = np.arange(count.sum()) + np.repeat(start - (count.cumsum() - count), count)
        theirs = np.asarray(labels[np.asarray(indices[place])])
        mine = np.asarray(labels[nodes])[owner]
        known = np.bincount(owner[theirs >= 0], minlength=len(nodes))
        same = np.bincount(owner[theirs == mine], minlength=len(nodes))
        np.divide(same, known, out=share_n[low : low + len(nodes)], where=known > 0)
    return share_n


def label_scores(truth_nc: Array, probability_nc: Array, names: list[str]) -> list[dict[str, Any]]:
    """Of each label of a multi-label task: how often it is there, precision, recall, F1 and ROC-AUC."""
    found = []
    for c, name in enumerate(names):
        known = ~np.isnan(truth_nc[:, c])
        true, probability = truth_nc[known, c] > 0.5, probability_nc[known, c]
        said = probability >= 0.5
        hits = int((true & said).sum())
        found.append({
            "name": name, "support": int(true.sum()), "precision": _ratio(hits, int(said.sum())),
            "recall": _ratio(hits, int(true.sum())), "f1": _ratio(2 * hits, int(true.sum() + said.sum())),
            "roc_auc": roc_auc(true, probability),
        })  # fmt: skip
    return found


def roc_auc(true_n: Array, score_n: Array) -> float | None:
    """How often a positive scores higher than a negative, ties counting half; None without one of each."""
    positives, negatives = int(true_n.sum()), int((~true_n).sum())
    if not positives or not negatives:
        return None
    _, place, count = np.unique(score_n, return_inverse=True, return_counts=True)
    rank_n = (count.cumsum() - (count - 1) / 2)[place]
    return float((rank_n[true_n].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def value_cells(truth_n: Array, predicted_n: Array) -> dict[str, Any]:
    """Regression: nodes by true value (across) and predicted value (up), in square cells of one range; what lies
    outside the middle 99 % is counted at the border."""
    both = np.concatenate([truth_n, predicted_n])
    low, high = (float(value) for value in np.quantile(both, [0.005, 0.995]))
    if not high > low:
        low, high = low - 0.5, high + 0.5
    at = [
        np.clip((values - low) / (high - low) * _CELLS, 0, _CELLS - 1).astype(np.int64)
        for values in (predicted_n, truth_n)
    ]
    cells = np.bincount(at[0] * _CELLS + at[1], minlength=_CELLS**2).reshape(_CELLS, _CELLS)
    return {"low": low, "high": high, "cells": cells.tolist()}


def by_value(truth_n: Array, predicted_n: Array, parts: int = 10) -> list[list[float]]:
    """Regression: (nodes, mean truth, mean prediction, mean absolute error) of each tenth by true value."""
    order = np.argsort(truth_n, kind="stable")
    return [
        [len(part), float(truth_n[part].mean()), float(predicted_n[part].mean()),
         float(np.abs(predicted_n - truth_n)[part].mean())]
        for part in np.array_split(order, min(parts, len(order)))
    ]  # fmt: skip


def _by_bin(bin_n: Array, score_n: Array, names: list[str]) -> list[Bin]:
    count, total = np.bincount(bin_n), np.bincount(bin_n, score_n.astype(float))
    return [(names[b], int(count[b]), float(total[b] / count[b])) for b in np.flatnonzero(count).tolist()]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _short(value: int) -> str:
    return str(value) if value < 10_000 else f"{value / 1000:.0f}k" if value < 10**6 else f"{value / 10**6:.0f}M"
