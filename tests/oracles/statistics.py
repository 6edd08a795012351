"""Chi-square tests of uniformity, for single draws and for draws without replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2, chi2_contingency


def uniformity_p(counts: Sequence[int], per_round: int = 1) -> float:
    """p that every cell is equally likely, given how often each was drawn in rounds of `per_round` distinct draws.

    Draws without replacement vary less than independent ones, by (n - m) / (n - 1); the statistic is divided by that.
    """
    counts_n = np.asarray(counts, dtype=np.float64)
    n = len(counts_n)
    assert per_round < n
    expected = counts_n.sum() / n
    statistic = ((counts_n - expected) ** 2).sum() / expected * (n - 1) / (n - per_round)
    return float(chi2.sf(statistic, n - 1))


def independence_p(first: Sequence[int], second: Sequence[int], size: int) -> float:
    """p that two equally long series of whole numbers below `size` have nothing to do with each other."""
    table = np.zeros((size, size))
    np.add.at(table, (np.asarray(first), np.asarray(second)), 1)
    return float(chi2_contingency(table, correction=False)[1])


def fit_p(counts: Sequence[float], chances: Sequence[float]) -> float:
    """p that independent rounds with these chances came out so; outcomes that are expected less than five times count
    as one."""
    counts_n, chances_n = np.asarray(counts, dtype=np.float64), np.asarray(chances, dtype=np.float64)
    assert abs(chances_n.sum() - 1) < 1e-9
    expected_n = chances_n * counts_n.sum()
    assert not counts_n[chances_n == 0].any(), "what cannot be has come"
    rare = expected_n < 5
    if chances_n[rare].any():
        counts_n = np.append(counts_n[~rare], counts_n[rare].sum())
        expected_n = np.append(expected_n[~rare], expected_n[rare].sum())
    else:
        counts_n, expected_n = counts_n[~rare], expected_n[~rare]
    return float(chi2.sf(((counts_n - expected_n) ** 2 / expected_n).sum(), len(counts_n) - 1))
