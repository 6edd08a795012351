"""Sizes as people write them, and how much a stage may hold."""

from __future__ import annotations

import pytest

from largegt import memory
from largegt.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("1.5 gib", 3 << 29), ("500MB", 500_000_000), ("2g", 2_000_000_000), ("300Mi", 300 << 20),
     ("1024", 1024), (2048, 2048), ("7kb", 7000), ("1TiB", 1 << 40), ("12B", 12)],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "4 apples", "-1GiB", "GiB", "1e9", "4GiBs", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size: write 4GiB"):
        memory.parse_bytes(text)


def test_sizes_are_shown_as_they_are_read() -> None:
    assert memory.format_bytes(10) == "10 B"
    assert memory.format_bytes(1536) == "1.5 KiB"
    assert memory.format_bytes(3 << 30) == "3.0 GiB"
    assert memory.format_bytes(3000 << 30) == "3000.0 GiB"


def test_the_budget_is_what_is_left_of_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "held_bytes", lambda: 100 << 20)
    assert memory.memory_budget("1GiB") == (1 << 30) - (100 << 20)
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 << 30)
    assert memory.memory_budget(None) == 4 << 30
    with pytest.raises(ConfigError, match="at least 256"):
        memory.memory_budget("10MB")


def test_this_process_holds_something_and_less_than_there_is() -> None:
    assert memory.held_bytes() > 10 << 20
    assert memory.available_bytes() > 0
