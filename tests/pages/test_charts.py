"""Ticks of charts, and what is drawn of a line."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from largegt.pages.charts import Axis, Line, line_chart, log_ticks, nothing, ticks


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.4856, 0.741), (-3, 1200), (1e-6, 2e-6), (5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 12
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    if len(found) > 1:
        gaps = {round((b - a) / (found[1] - found[0]), 6) for a, b in pairwise(found)}
        assert gaps == {1.0}


def test_ticks_of_epochs_are_whole() -> None:
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert log_ticks(1, 1e6) == [10.0**power for power in range(7)]
    assert log_ticks(3, 40) == [5, 10, 20]


def test_a_chart_draws_finite_values_only_and_names_its_lines() -> None:
    lines = [Line("a<b", [1, 2, 3], [0.5, math.nan, 0.7], 0), Line("none", [1], [math.inf], 1)]
    drawn = line_chart(lines, Axis("epoch"), Axis("accuracy"), "T", is_named=True)
    words = [part.text for part in ElementTree.fromstring(drawn).iter() if part.text]
    assert "a<b" in words
    assert "none" not in words
    assert "nan" not in drawn


def test_a_chart_without_values_says_so() -> None:
    assert line_chart([], Axis("epoch"), Axis("accuracy"), "T") == nothing("T")
