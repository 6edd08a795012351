"""Abilities are tried in a child process: what kills or stops the child is a reason, and results are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from largegt.config.schema import TrainConfig
from largegt.hardware import abilities as hardware
from largegt.hardware import probes
from largegt.hardware.abilities import Ability
from largegt.io import remote
from largegt.runtime import cuda_streams
from largegt.training.setup import is_worth_compiling
from run_helpers import logged

UseProbe = Callable[[str], Path]

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
WORKS = """
from pathlib import Path
calls = Path(__file__).with_name("calls")
calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
print('{"works": true, "speedup": 0.5}')
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (DIES, "the probe was stopped by SIGILL (Illegal instruction)"),
        ("raise SystemExit(3)", "the probe ended with exit code 3"),
        ("raise RuntimeError('no compiler')", "RuntimeError: no compiler"),
        ("print('it works')", "the probe printed no result"),
        ("print('[1]')", "the probe printed no result"),
        ('print(\'{"works": "yes"}\')', "the probe printed no result"),
        ("", "the probe printed no result"),
    ],
)
def test_a_probe_that_fails_gives_a_reason(program: str, reason: str, use_probe: UseProbe) -> None:
    use_probe(program)
    assert hardware.ability("bfloat16_cpu") == Ability(False, reason)


def test_a_probe_that_hangs_is_stopped(use_probe: UseProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_LIMIT_S", 1)
    use_probe("import time; time.sleep(600)")
    assert hardware.ability("bfloat16_cpu") == Ability(False, "the probe did not end within 1 s")


def test_a_result_is_kept_until_torch_changes(use_probe: UseProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = use_probe(WORKS).with_name("calls")
    for _ in range(2):
        hardware.ability.cache_clear()  # as in a new process
        assert hardware.ability("bfloat16_cpu") == Ability(True, "", 0.5)
    assert calls.read_text() == "x"
    hardware.ability("compile_cpu")
    assert calls.read_text() == "xx", "another ability"
    for change in (("ONEDNN_MAX_CPU_ISA", "AVX2"), ("CXX", "/none")):
        monkeypatch.setenv(*change)
        assert hardware.cached_ability("bfloat16_cpu") is None
    monkeypatch.undo()
    use_probe(WORKS)
    assert hardware.cached_ability("bfloat16_cpu") is not None
    monkeypatch.setattr(torch, "__version__", "99.0")
    hardware.ability.cache_clear()
    assert hardware.ability("bfloat16_cpu").works
    assert calls.read_text() == "xxx"


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"a": 1}'])
def test_a_damaged_cache_is_ignored(content: bytes, use_probe: UseProbe) -> None:
    use_probe(WORKS)
    file = remote.cache_folder() / "hardware.json"
    file.parent.mkdir()
    file.write_bytes(content)
    assert hardware.ability("bfloat16_cpu").works
    assert hardware.cached_ability("bfloat16_cpu") == Ability(True, "", 0.5)
    file.write_text(json.dumps({key: {"works": "no"} for key in json.loads(file.read_text())}))
    assert hardware.cached_ability("bfloat16_cpu") is None


def test_a_cache_folder_that_takes_nothing_does_no_harm(
    use_probe: UseProbe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_probe(WORKS)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "file" / "cache"))
    assert hardware.ability("bfloat16_cpu").works
    assert hardware.cached_ability("bfloat16_cpu") is None


def test_what_could_not_be_tried_is_used_and_not_kept(use_probe: UseProbe) -> None:
    use_probe("""print('{"works": null, "reason": "the GPU is busy"}')""")
    with logged(None):
        assert hardware.usable("bfloat16_cpu", "something else is done")
    assert hardware.cached_ability("bfloat16_cpu") is None


@pytest.mark.slow
def test_the_real_probe_agrees_with_this_cpu() -> None:
    """In a process of its own: it may die."""
    found = hardware.probe("bfloat16_cpu")
    assert found.works is not None
    assert found.works == (found.reason == "")
    assert not found.works or (found.speedup is not None and found.speedup > 0)


def test_a_model_is_not_compiled_where_that_fails(use_probe: UseProbe) -> None:
    config, device = TrainConfig(compile=True), torch.device("cpu")
    use_probe("raise RuntimeError('no C++ compiler')")
    with logged(r"the model is not compiled, since that fails: RuntimeError: no C\+\+ compi"):
        assert not is_worth_compiling(config, device, 10)
    use_probe(WORKS)
    assert is_worth_compiling(config, device, 10)


def test_no_probe_is_started_where_nothing_needs_one(use_probe: UseProbe) -> None:
    calls = use_probe(WORKS).with_name("calls")
    assert not is_worth_compiling(TrainConfig(compile=False), torch.device("cpu"), 10**6)
    assert not is_worth_compiling(TrainConfig(), torch.device("cpu"), 10**6)
    assert not calls.exists()


def test_memory_that_cannot_be_pinned_is_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("memory can be pinned here")
    monkeypatch.setattr(cuda_streams, "_can_pin", True)
    with logged("since no memory is pinned"):
        assert cuda_streams.pinned_buffer((2, 3), torch.float16).shape == (2, 3)
    with logged(None):
        assert cuda_streams.pinned_buffer((4,), torch.float32).dtype == torch.float32


@pytest.mark.slow
def test_a_probe_leaves_no_core_file_and_needs_no_home(tmp_path: Path) -> None:
    script = [sys.executable, "-P", str(Path(probes.__file__)), "nonsense"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "KeyError: 'nonsense'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["triton", "compile_cuda", "cuda_graphs", "pinned_memory"])
def test_abilities_of_a_gpu(name: hardware.AbilityName) -> None:
    assert hardware.probe(name) == Ability(True)
