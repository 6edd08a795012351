"""Numbers as pages show them."""

from __future__ import annotations

import math

import pytest

from largegt.pages.markup import NONE, duration, mean_and_spread, mean_of, number, percent, short, tag


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1234567, "1,234,567"),
        (0.123456, "0.1235"),
        (23456.7, "23,457"),
        (1e-5, "1e-05"),
        (2.5e9, "2.5e+09"),
    ],
)
def test_short_has_four_digits_at_most(value: float, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize("form", [number, short, percent, duration])
def test_what_is_no_number_is_a_dash(form: object) -> None:
    assert callable(form)
    assert {form(None), form(math.nan), form(math.inf)} == {NONE}


def test_a_mean_has_a_spread_from_two_values_on() -> None:
    assert mean_and_spread(*mean_of([0.5])) == "0.5000"
    assert mean_and_spread(*mean_of([0.5, 0.7])) == "0.6000 ± 0.1414"
    assert mean_and_spread(*mean_of([])) == NONE


def test_durations_are_in_the_unit_that_a_person_would_use() -> None:
    assert [duration(seconds) for seconds in (0.25, 90, 600, 9000)] == ["250 ms", "90.0 s", "10.0 min", "2.5 h"]


def test_attributes_are_escaped() -> None:
    assert tag("a", "x<y", href='"', class_="c") == '<a href="&quot;" class="c">x&lt;y</a>'
