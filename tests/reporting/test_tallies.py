"""Tallies against loops that anyone can read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from largegt.reporting import tallies


def predictions(seed: int = 0, num_nodes: int = 300, num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """(truth [n], probability [n, c]), some nodes surely right, some surely wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, num_classes, num_nodes)
    logits = rng.normal(size=(num_nodes, num_classes)) * 2
    logits[np.arange(num_nodes), truth] += 1
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    probability[:5] = np.eye(num_classes)[truth[:5]]  # exactly sure
    return truth, probability


def test_confusion_and_class_scores() -> None:
    truth, probability = predictions()
    said = probability.argmax(axis=1)
    matrix = tallies.confusion(truth, said, 5)  # class 4 is neither there nor said
    for row in range(5):
        for column in range(5):
            assert matrix[row, column] == sum(t == row and s == column for t, s in zip(truth, said, strict=True))
    for c, found in enumerate(tallies.class_scores(matrix)):
        hits = sum(t == s == c for t, s in zip(truth, said, strict=True))
        support, claimed = list(truth).count(c), list(said).count(c)
        precision, recall = hits / claimed if claimed else 0, hits / support if support else 0
        assert found["support"] == support
        assert found["precision"] == pytest.approx(precision)
        assert found["recall"] == pytest.approx(recall)
        assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if hits else 0)


def test_folding_keeps_every_node() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.integers(0, 9, (20, 20))
    names, cells = tallies.folded(matrix, [f"c{c}" for c in range(20)], 6)
    assert np.sum(cells) == matrix.sum()
    assert names[-1] == tallies.OTHERS
    kept = [int(name[1:]) for name in names[:-1]]
    sizes = matrix.sum(axis=1)
    assert min(sizes[kept]) >= max(sizes[c] for c in range(20) if c not in kept)
    rest = [c for c in range(20) if c not in kept]
    for i, row in enumerate([[c] for c in kept] + [rest]):
        for j, column in enumerate([[c] for c in kept] + [rest]):
            assert cells[i][j] == sum(int(matrix[a, b]) for a in row for b in column)


def test_few_classes_are_only_put_in_order() -> None:
    matrix = np.array([[1, 0, 0], [0, 5, 1], [2, 0, 1]])
    assert tallies.folded(matrix, ["a", "b", "c"], 6) == (["b", "c", "a"], [[5, 1, 0], [0, 1, 2], [0, 0, 1]])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_calibration_error(seed: int) -> None:
    truth, probability = predictions(seed)
    confidence, right = probability.max(axis=1), probability.argmax(axis=1) == truth
    found = tallies.calibration(confidence, right, 10)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for sure, is_right in zip(confidence, right, strict=True):
        bins.setdefault(min(9, math.floor(sure * 10)), []).append((sure, bool(is_right)))
    error = 0.0
    for members in bins.values():
        gap = sum(sure for sure, _ in members) / len(members) - sum(hit for _, hit in members) / len(members)
        error += abs(gap) * len(members) / len(truth)
    assert found["ece"] == pytest.approx(error)
    assert sum(b[2] for b in found["bins"]) == len(truth)
    for low, _, count, sure, share in found["bins"]:
        members = bins[round(low * 10)]
        assert count == len(members)
        assert sure == pytest.approx(np.mean([one for one, _ in members]))
        assert share == pytest.approx(np.mean([hit for _, hit in members]))


def test_perfectly_calibrated() -> None:
    assert tallies.calibration(np.ones(4), np.ones(4, dtype=bool))["ece"] == 0
    assert tallies.calibration(np.full(4, 0.5), np.array([1, 0, 1, 0], dtype=bool))["ece"] == 0
    assert tallies.calibration(np.ones(4), np.zeros(4, dtype=bool))["ece"] == 1


def test_degree_bins() -> None:
    rng = np.random.default_rng(0)
    degree = np.concatenate([[0] * 25, rng.integers(1, 40, 400), [1000, 2000]])
    score = rng.random(len(degree))
    found = tallies.by_degree(degree, score)
    assert [name for name, _, _ in found] == ["0", "1", "2–3", "4–7", "8–15", "16–31", "32+"]
    borders = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 10**9)]
    for (_, count, value), (low, high) in zip(found, borders, strict=True):
        members = [s for d, s in zip(degree, score, strict=True) if low <= d <= high]
        assert count == len(members)
        assert value == pytest.approx(np.mean(members))


def test_homophily_and_its_bins() -> None:
    rng = np.random.default_rng(0)
    num_nodes = 2500  # more than are read at once
    labels = rng.integers(-1, 3, num_nodes).astype(np.int32)
    neighbours = [sorted(set(rng.integers(0, num_nodes, rng.integers(0, 9)).tolist())) for _ in range(num_nodes)]
    indptr = np.cumsum([0, *(len(one) for one in neighbours)])
    indices = np.array([v for one in neighbours for v in one], dtype=np.int32)
    nodes = np.flatnonzero(labels >= 0)
    wanted = []
    for node in nodes:
        known = [v for v in neighbours[node] if labels[v] >= 0]
        wanted.append(sum(labels[v] == labels[node] for v in known) / len(known) if known else math.nan)
    share = tallies.homophily(MappedCSR(indptr, indices), labels, nodes)
    np.testing.assert_allclose(share, wanted)
    right = rng.random(len(nodes)) < 0.5
    found = tallies.by_share(share, right)
    assert sum(count for _, count, _ in found) == sum(not math.isnan(one) for one in wanted)
    for name, count, value in found:
        low, high = (float(part) for part in name.split("–"))
        members = [
            hit for one, hit in zip(wanted, right, strict=True)
            if (low - 1e-9 <= one < high - 1e-9) or (high == 1.0 and one == 1.0)
        ]  # fmt: skip
        assert count == len(members)
        assert value == pytest.approx(np.mean(members))


def test_label_scores_and_roc_auc() -> None:
    rng = np.random.default_rng(3)
    truth = (rng.random((60, 3)) < 0.4).astype(float)
    truth[::7, 1] = np.nan
    truth[:, 2] = 0
    probability = rng.integers(0, 10, (60, 3)) / 10  # with ties
    found = tallies.label_scores(truth, probability)
    for c, label in enumerate(found):
        pairs = [(t, p) for t, p in zip(truth[:, c], probability[:, c], strict=True) if not math.isnan(t)]
        hits = sum(t == 1 and p >= 0.5 for t, p in pairs)
        claimed, support = sum(p >= 0.5 for _, p in pairs), sum(t == 1 for t, _ in pairs)
        assert label["support"] == support
        assert label["precision"] == pytest.approx(hits / claimed)
        assert label["recall"] == pytest.approx(hits / support if support else 0)
        wins = [
            1.0 if p > q else 0.5 if p == q else 0.0
            for t, p in pairs if t == 1 for u, q in pairs if u == 0
        ]  # fmt: skip
        assert label["roc_auc"] == (pytest.approx(np.mean(wins)) if wins else None)


def test_values_of_a_regression() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=500)
    said = truth + rng.normal(size=500) * 0.1
    found = tallies.value_cells(truth, said)
    cells = np.array(found["cells"])
    assert cells.sum() == 500
    step = (found["high"] - found["low"]) / len(cells)
    inside = [
        (t, s) for t, s in zip(truth, said, strict=True) if found["low"] <= min(t, s) and max(t, s) < found["high"]
    ]
    counted = np.zeros_like(cells)
    for t, s in inside:
        counted[int((s - found["low"]) / step), int((t - found["low"]) / step)] += 1
    assert (cells[1:-1, 1:-1] == counted[1:-1, 1:-1]).all(), "rows are predictions, columns truths"
    tenths = tallies.by_value(truth, said)
    assert [part[0] for part in tenths] == [50] * 10
    lowest = np.sort(truth)[:50]
    assert tenths[0][1] == pytest.approx(lowest.mean())
    assert tallies.value_cells(np.ones(3), np.ones(3))["high"] > 1, "a constant has a range too"
