"""Counts of correct predictions: by class, by confidence, by degree, by neighbourhood.

Axes: n nodes, c classes or labels. Enters: NumPy arrays of truths and predictions. Leaves: plain lists and dicts, ready
for JSON. Cost: O(n) and the matrices; homophily reads the neighbours of n nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from largegt.preprocessing.sampling.neighbor_lists import NeighborLists
from largegt.training.metrics import roc_auc
from largegt.types import Array

CONFIDENCE_BINS = 15
_SHARE_BINS = 10
_CELLS = 24
_FEWEST = 20
_NODES_AT_ONCE = 1024
OTHERS = "all others"

Bin = tuple[str, int, float]
"""The bin's name, its number of nodes, their mean score."""


def confusion(truth_n: Array, predicted_n: Array, num_classes: int) -> Array:
    """[c, c] nodes by true class (row) and predicted class (column)."""
    pairs = truth_n.astype(np.int64) * num_classes + predicted_n.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_scores(confusion_cc: Array) -> list[dict[str, float]]:
    """Support, precision, recall and F1 of each class; 0 where undefined."""
    each = zip(confusion_cc.diagonal(), confusion_cc.sum(axis=1), confusion_cc.sum(axis=0), strict=True)
    return [_score(int(hits), int(support), int(predicted)) for hits, support, predicted in each]


def label_scores(truth_nc: Array, probability_nc: Array) -> list[dict[str, Any]]:
    """The same for each label of a multi-label task, and its ROC-AUC, None unless some nodes have the label and some do
    not. NaN labels are unknown."""
    found = []
    for truth_n, probability_n in zip(truth_nc.T, probability_nc.T, strict=True):
        known = ~np.isnan(truth_n)
        true, probability = truth_n[known] > 0.5, probability_n[known]
        predicted = probability >= 0.5
        is_mixed = true.any() and not true.all()
        area = float(roc_auc(torch.from_numpy(probability), torch.from_numpy(true))) if is_mixed else None
        found.append(_score(int((true & predicted).sum()), int(true.sum()), int(predicted.sum())) | {"roc_auc": area})
    return found


def _score(hits: int, support: int, predicted: int) -> dict[str, Any]:
    return {
        "support": support, "precision": hits / max(1, predicted), "recall": hits / max(1, support),
        "f1": 2 * hits / max(1, support + predicted),
    }  # fmt: skip


def folded(confusion_cc: Array, names: list[str], most: int) -> tuple[list[str], list[list[int]]]:
    """The confusion matrix of the `most` largest classes, largest first; the last one merges all other classes."""
    order = np.argsort(-confusion_cc.sum(axis=1), kind="stable")
    num = min(most, len(order))
    place = np.full(len(order), num - 1)
    place[order[:num]] = np.arange(num)
    small = np.zeros((num, num), dtype=np.int64)
    np.add.at(small, (place[:, None], place[None, :]), confusion_cc)
    kept = [names[c] for c in order[:num]]
    return [*kept[:-1], OTHERS] if num < len(order) else kept, small.tolist()


def calibration(confidence_n: Array, right_n: Array, num_bins: int = CONFIDENCE_BINS) -> dict[str, Any]:
    """Expected calibration error, and (low, high, nodes, mean confidence, accuracy) of every bin with nodes."""
    bin_n = np.minimum((confidence_n * num_bins).astype(np.int64), num_bins - 1)
    count, confidence, right = (
        np.bincount(bin_n, weights, num_bins) for weights in (None, confidence_n, right_n.astype(float))
    )
    bins = [
        [b / num_bins, (b + 1) / num_bins, int(count[b]), confidence[b] / count[b], right[b] / count[b]]
        for b in np.flatnonzero(count).tolist()
    ]
    return {"ece": float(np.abs(confidence - right).sum() / max(1, len(bin_n))), "bins": bins}


def by_degree(degree_n: Array, score_n: Array) -> list[Bin]:
    """Mean score of nodes of degree 0, 1, 2 to 3, 4 to 7, and so on; the highest bins are merged if they have few
    nodes."""
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
    """Mean score of nodes whose share lies in [0, 0.1), [0.1, 0.2), … [0.9, 1]; ignores nodes without a share (NaN)."""
    known = ~np.isnan(share_n)
    bin_n = np.minimum(np.floor(share_n[known] * _SHARE_BINS + 1e-9).astype(np.int64), _SHARE_BINS - 1)
    names = [f"{b / _SHARE_BINS:.1f}–{(b + 1) / _SHARE_BINS:.1f}" for b in range(_SHARE_BINS)]
    return _by_bin(bin_n, score_n[known], names)


def homophily(lists: NeighborLists, labels: Array, nodes_n: Array) -> Array:
    """[n] the share of each node's labelled neighbours with its label; NaN without labelled neighbours."""
    share_n = np.full(len(nodes_n), np.nan)
    for low in range(0, len(nodes_n), _NODES_AT_ONCE):
        nodes = nodes_n[low : low + _NODES_AT_ONCE]
        indptr, indices = lists.neighbors(nodes)
        row, neighbor_label = np.repeat(np.arange(len(nodes)), np.diff(indptr)), np.asarray(labels[indices])
        known = np.bincount(row[neighbor_label >= 0], minlength=len(nodes))
        same = np.bincount(row[neighbor_label == np.asarray(labels[nodes])[row]], minlength=len(nodes))
        np.divide(same, known, out=share_n[low : low + len(nodes)], where=known > 0)
    return share_n


def value_cells(truth_n: Array, predicted_n: Array) -> dict[str, Any]:
    """Regression: nodes by true value (across) and predicted value (up), in square cells over one range; values outside
    the middle 99 % count at the border."""
    low, high = (float(value) for value in np.quantile(np.concatenate([truth_n, predicted_n]), [0.005, 0.995]))
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _CELLS + 1)
    cells = np.histogram2d(predicted_n.clip(low, high), truth_n.clip(low, high), [edges, edges])[0]
    return {"low": low, "high": high, "cells": cells.astype(np.int64).tolist()}


def by_value(truth_n: Array, predicted_n: Array, parts: int = 10) -> list[list[float]]:
    """Regression: (nodes, mean truth, mean prediction, mean absolute error) of each decile of the true value."""
    order = np.argsort(truth_n, kind="stable")
    columns_3n = np.stack([truth_n, predicted_n, np.abs(predicted_n - truth_n)])
    return [
        [len(part), *columns_3n[:, part].mean(axis=1).tolist()]
        for part in np.array_split(order, min(parts, len(order)))
    ]


def _by_bin(bin_n: Array, score_n: Array, names: list[str]) -> list[Bin]:
    count, total = np.bincount(bin_n), np.bincount(bin_n, score_n.astype(float))
    return [(names[b], int(count[b]), float(total[b] / count[b])) for b in np.flatnonzero(count).tolist()]


def _short(value: int) -> str:
    return str(value) if value < 10_000 else f"{value / 1000:.0f}k" if value < 10**6 else f"{value / 10**6:.0f}M"
