"""Sizes as people write them, and how much a stage may hold."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import largegt
from largegt.config.schema import Config
from largegt.datasets.synthetic import generate
from largegt.errors import ConfigError
from largegt.preprocessing.cache_key import resolve_config
from largegt.preprocessing.estimate import estimate, min_memory
from largegt.preprocessing.pipeline import prepare
from largegt.runtime import memory

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("1.5 gib", 3 << 29), ("500MB", 500_000_000), ("2g", 2_000_000_000), ("300Mi", 300 << 20),
     ("1024", 1024), (2048, 2048), ("7kb", 7000), ("1TiB", 1 << 40), ("12B", 12)],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "4 apples", "-1GiB", "GiB", "1e9", "4GiBs", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size: write 4GiB"):
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
    with pytest.raises(ConfigError, match=r"memory is 1GiB: it must be at least 1\.5 GiB"):
        memory.memory_budget("1GiB", least=3 << 29)


def test_this_process_holds_something_and_less_than_there_is() -> None:
    assert memory.held_bytes() > 10 << 20
    assert memory.available_bytes() > 0


LARGEGT = [sys.executable, "-m", "largegt"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(largegt.__file__).parents[1])}


def peak_of(*command: str) -> int:
    """The most anonymous memory of a command, sampled."""
    process = subprocess.Popen([*LARGEGT, *command, "--json"], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    peak = 0
    while process.poll() is None:
        peak = max(peak, 1024 * memory._kernel_numbers(f"/proc/{process.pid}/status").get("RssAnon", 0))
        time.sleep(0.001)
    assert process.returncode == 0
    return peak


def test_prepare_keeps_its_limit_and_the_dry_run_says_what_it_holds(tmp_path: Path) -> None:
    store = tmp_path / "s"
    generate("snap-patents", store, 0.03)
    command = ("prepare", str(store), "--memory-limit", "256MiB")
    assert peak_of(*command) < 1.1 * (256 << 20), "with kernels to compile, where the cache is empty"
    shutil.rmtree(store / "prepared")
    dry = subprocess.run([*LARGEGT, *command, "--dry-run", "--json"], capture_output=True, env=ENVIRONMENT, check=True)
    assert peak_of(*command) == pytest.approx(json.loads(dry.stdout)["memory_bytes"], rel=0.1)


def test_less_than_a_preparation_can_keep_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = generate("snap-patents", tmp_path / "s", 0.001)
    config = resolve_config(store, Config.from_recipe("default").preparation)
    rows = store.num_nodes
    few = min_memory(store, config, rows)
    monkeypatch.setattr(type(store), "num_nodes", 100_000_000)
    many = min_memory(store, config, 100_000_000)
    assert many - few == pytest.approx(9 * 100_000_000, rel=0.01)
    some = min_memory(store, config, rows)
    assert some > many, "the nodes of each hop are held where they are not all"
    for refused in (estimate, prepare):
        with pytest.raises(ConfigError, match=f"it must be at least {memory.format_bytes(some)}"):
            refused(store, config, memory="256MiB")


def test_an_address_space_that_libraries_do_not_start_in_is_refused_at_once() -> None:
    limit = 600_000 << 10
    done = subprocess.run(
        [*LARGEGT, "doctor"], capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: the address space of this process is limited to 585.9 MiB (ulimit -v)")
    assert done.stderr.count("\n") == 1
