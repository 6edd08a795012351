"""Ids: what text stands for a whole number, joins of ids with nodes, repeats, and distinct ids in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from largegt.data.ids import as_numbers, distinct_ids, find_ids, first_repeat
from largegt.data.nodes import Means, NodeIds

MEMORY = 1 << 28


def text(cells: list[str]) -> Any:
    return pa.array(cells, pa.large_string())


def test_text_that_stands_for_a_whole_number() -> None:
    cells = ["0", "-0", "007", "+1", "1.0", " 1", "", "x", str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1)]
    numbers, meant = as_numbers(text(cells))
    expected = [str(int(cell)) == cell and -(2**63) <= int(cell) < 2**63 if cell.strip("+-").isdigit() else False
                for cell in cells]  # fmt: skip
    assert meant.tolist() == expected
    assert [str(number) for number, is_one in zip(numbers, meant, strict=True) if is_one] == [
        cell for cell, is_one in zip(cells, expected, strict=True) if is_one
    ]


@pytest.mark.parametrize("is_text", [False, True])
def test_lookups_equal_a_dictionary(is_text: bool) -> None:
    rng = np.random.default_rng(0)
    known, wanted = rng.permutation(5000)[:3000] * 7 - 900, rng.integers(-1000, 36_000, 4000)
    places = {int(one): row for row, one in enumerate(known)}
    expected = [places.get(int(one), -1) for one in wanted]
    columns: list[Any] = [known[:10], known[10:10], known[10:]]
    if is_text:
        columns, wanted = [text([str(one) for one in part]) for part in columns], text([str(one) for one in wanted])
    assert find_ids(columns, wanted, MEMORY, 2).tolist() == expected
    assert find_ids(columns, wanted[:0], MEMORY, 1).tolist() == []


def test_the_first_repeat() -> None:
    assert first_repeat([np.array([5, 3]), np.array([9, 3, 5])], False, MEMORY, 1) == (3, 3)
    assert first_repeat([text(["a", "b"]), text(["B"])], True, MEMORY, 1) is None


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["b", "a", "b", "é", "10", "9"], ["10", "9", "a", "b", "é"]),
        (["10", "9", "-3", "9"], [-3, 9, 10]),
        (["10", "9", "-3", str(2**63)], ["-3", "10", "9", str(2**63)]),
        (["1", "01"], ["01", "1"]),
    ],
)
def test_distinct_ids_are_sorted_and_numbers_iff_all_are(tmp_path: Path, cells: list[str], expected: list[Any]) -> None:
    chunks = [text(cells[:2]), text(cells[2:])]
    found = [one for chunk in distinct_ids(chunks, True, tmp_path, MEMORY, 2) for one in chunk.tolist()]
    assert sorted(found, key=lambda one: one.encode() if isinstance(one, str) else one) == found == expected


@pytest.mark.parametrize("ids", [[7, 3, -4, 12], [2**62, -(2**62), 0, 5]])
@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_numbers_are_found_by_a_table_and_by_a_join(ids: list[int], memory: int) -> None:
    nodes = NodeIds(4, "ids", Means(memory, 1), "integer")
    nodes.known = [np.array(ids[:2]), np.array(ids[2:])]
    assert (nodes.by_number is None) == (memory == 0 or 2**62 in ids)
    wanted = np.array([*ids, 4, 2**63 - 1, -(2**63), *ids])
    assert nodes.find(wanted).tolist() == [0, 1, 2, 3, -1, -1, -1, 0, 1, 2, 3]
