"""Progress: bars that keep the time left in a terminal of 80 columns, plain lines where there is none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from largegt.runtime import progress
from largegt.runtime.progress import console_progress

STAGES = (
    "local nodes",
    "positions, node2vec",
    "train: epoch 3/30, loss 0.512, best accuracy 0.8073",
    "graphsage-original-seed0: train: epoch 12/100, loss 0.512, best accuracy 0.8073",
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The time, to be set."""
    now = {"s": 100.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: now["s"])
    return now


@pytest.mark.parametrize("width", ["80", "150"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_terminal_shows_the_whole_stage_and_the_time_left(
    stage: str, width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("COLUMNS", width), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with console_progress() as show:
        for done in (10, 20, 2_449_029):
            show(stage, done, 2_449_030)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    last = shown[shown.rindex("\r") + 1 :] if "\r" in shown else shown
    assert all(len(line) <= int(width) for line in last.splitlines())
    assert all(word in last for word in stage.split())
    assert "…" not in last
    assert re.search(r"\d:\d\d:\d\d|-:--:--", last)
    assert (re.search("[━╸]", last) is not None) == (width == "150")


def lines_of(calls: list[tuple[float, str, int, int | None]], clock: Any, capsys: Any) -> list[str]:
    with console_progress() as show:
        for at, stage, done, total in calls:
            clock["s"] = at
            show(stage, done, total)
    return capsys.readouterr().err.splitlines()


def test_without_a_terminal_a_stage_is_a_line_at_its_begin_and_its_end(clock: Any, capsys: Any) -> None:
    calls = [
        (0.0, "read edges", 0, 10), (1.0, "read edges", 5, 10), (2.0, "read edges", 6, 10),
        (12.0, "read edges", 10, 10), (12.0, "check", 0, 2), (12.5, "check", 1, 2), (12.9, "check", 2, 2),  # short
        (14.0, "commit", 1, 1), (15.0, "write features", 0, 10), (55.0, "write features", 10, 10),
    ]  # fmt: skip
    assert lines_of(calls, clock, capsys) == [
        "read edges", "read edges, done in 12 s", "write features, done in 40 s",
    ]  # fmt: skip


def test_without_a_terminal_an_epoch_is_a_line(clock: Any, capsys: Any) -> None:
    calls = [
        (0.0, "train: epoch 1/3", 1, 30), (2.0, "train: epoch 1/3", 5, 30), (4.0, "train: epoch 1/3", 10, 30),
        (5.0, "train: epoch 2/3, loss 0.512", 11, 30), (6.0, "train: epoch 3/3, loss 0.402", 29, 30),
        (9.0, "train: epoch 3/3, loss 0.402", 30, 30), (10.0, "train: epoch 1/3", 1, 30),  # another training
        (12.0, "train: epoch 1/3", 2, 30),
    ]  # fmt: skip
    assert lines_of(calls, clock, capsys) == [
        "train: epoch 1/3", "train: epoch 2/3, loss 0.512", "train: epoch 3/3, loss 0.402",
        "train: epoch 3/3, loss 0.402, done in 9 s", "train: epoch 1/3", "train: epoch 1/3, done in 2 s",
    ]  # fmt: skip


def test_without_a_terminal_a_long_stage_is_a_line_every_half_minute(clock: Any, capsys: Any) -> None:
    calls = [(float(at), "local nodes", at, 100) for at in range(0, 71, 5)]
    calls += [(71.0, "positions, laplacian", 3, None), (75.0, "positions, laplacian", 4, None)]
    calls += [(130.0, "positions, laplacian", 9, None)]
    assert lines_of(calls, clock, capsys) == [
        "local nodes", "local nodes, 35%, 35 s", "local nodes, 65%, 65 s",
        "positions, laplacian", "positions, laplacian, 59 s",
        "local nodes, done in 70 s", "positions, laplacian, done in 59 s",
    ]  # fmt: skip


def test_quiet_is_silent(clock: Any, capsys: Any) -> None:
    with console_progress(quiet=True) as show:
        show("read edges", 0, 10)
    assert capsys.readouterr().err == ""
