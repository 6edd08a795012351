"""largegt doctor: a healthy machine, missing and broken parts, JSON for programs. Processes are real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import largegt
from largegt.cli import doctor
from largegt.cli.doctor import EXTRAS, Diagnosis, Problem, cpu_limit, diagnose
from largegt.preprocessing import kernels
from run_helpers import Cli

pytestmark = pytest.mark.slow

PACKAGE = Path(largegt.__file__).parent


def called(*words: str, source: Path = PACKAGE.parent, **variables: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(source)} | variables
    command = [sys.executable, "-m", "largegt", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_healthy_machine_can_work(lg: Cli) -> None:
    result = lg("doctor", "--json")
    found = result.json
    assert result.code == 0
    assert result.err == ""
    assert found["works"] is True
    assert found["versions"]["largegt"] == largegt.__version__
    assert found["cpu"]["cores"] == os.cpu_count()
    assert 0 < found["memory"]["free_bytes"] <= found["memory"]["total_bytes"]
    assert found["disk"]["here"]["folder"] == str(Path.cwd())
    assert set(found["extras"]) == {package for package, _ in EXTRAS.values()}
    assert list(found["self_check_s"]) == ["ingest", "prepare", "train", "predict"]
    assert found["numba_cache"]["compiled"] is True
    assert not [problem for problem in found["problems"] if problem["stops"]]


def test_quick_runs_nothing_and_tells_people(lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", None)  # a call of it would raise
    result = lg("doctor", "--quick")
    assert result.code == 0
    assert result.out.splitlines()[-1] == "This machine can do the work."
    for word in ("torch", "memory", "temporary", "numba cache", "optuna"):
        assert word in result.out


def test_a_missing_extra_is_said_with_what_brings_it(lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # what Python itself does for a name that must not be imported
    found = lg("doctor", "--quick", "--json").json
    assert "pip install 'largegt[tune]'" in found["extras"]["optuna"]
    assert found["works"] is True
    assert found["extras"]["redis"][0].isdigit()


def test_a_missing_dependency_stops(lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = lg("doctor")
    assert result.code == 1
    assert "stops: safetensors is not installed: pip install 'safetensors" in result.out.replace("\n", " ")
    assert "self check, s" not in result.out, "there is no use in trying"


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_doctor_itself_needs_none_of_what_it_looks_for(name: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; sys.argv = ['largegt', 'doctor', '--json']\n"
    code += "from largegt.cli import main; main()"
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    stops = [problem["what"] for problem in json.loads(done.stdout)["problems"] if problem["stops"]]
    assert f"{name} is not installed" in stops


def test_a_dependency_that_is_too_old_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: "0.4" if package == "numba" else real(package))
    stops = [problem for problem in diagnose(quick=True).problems if problem.stops]
    assert [str(problem)[:15] for problem in stops] == ["numba is 0.4, a"]
    assert "pip install 'numba>=" in stops[0].do


def test_a_cache_folder_that_cannot_be_written_is_a_note_where_there_is_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = called("doctor", "--quick", "--json", NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache"))
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    (problem,) = [one for one in found["problems"] if "NUMBA_CACHE_DIR" in one["what"]]
    assert problem["stops"] is False
    assert found["numba_cache"]["folder"] in problem["what"]


def test_a_cache_folder_may_be_named_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "kept")
    monkeypatch.setattr(doctor, "kernel_folder", lambda: Path("kept/prepare_0"))  # as numba itself joins them
    found = diagnose(quick=True)
    assert found.facts["numba_cache"] == {"folder": "kept/prepare_0", "compiled": False}
    assert not [problem for problem in found.problems if "NUMBA_CACHE_DIR" in problem.what]


def test_a_numba_that_is_switched_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "start_stream", kernels.start_stream.py_func)  # what NUMBA_DISABLE_JIT=1 leaves
    found = diagnose(quick=True)
    assert "unset NUMBA_DISABLE_JIT" in [problem.do for problem in found.problems]
    assert found.works


def test_no_cache_folder_at_all_stops_and_every_verb_says_so(tmp_path: Path) -> None:
    """A package whose own folders take nothing, and no home: as for a user without one in a container."""
    copy = tmp_path / "source" / "largegt"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    for folder in [copy, *(item for item in copy.rglob("*") if item.is_dir())]:
        (folder / "__pycache__").touch()  # no folder can be made there, not even by root
    (tmp_path / "home").touch()
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home"), "NUMBA_CACHE_DIR": ""}
    done = called("doctor", source=copy.parent, **home)
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert "stops: numba can keep nothing that it compiles" in said
    assert "set NUMBA_CACHE_DIR to a folder that you may write to" in said
    done = called("generate", "--like", "ogbn-products", "--out", str(tmp_path / "g"), source=copy.parent, **home)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: numba finds no folder for what it compiles: set NUMBA_CACHE_DIR to one that you may write to"
    ]


def test_a_walk_that_fails_is_a_problem_not_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk burns\nand more")

    monkeypatch.setattr("largegt.training.trainer.train", fail)
    monkeypatch.setitem(largegt.__dict__, "train", fail)
    found = diagnose()
    assert not found.works
    assert "self-check failed at train (OSError: the disk burns)" in found.problems[-1].what
    assert list(found.facts["self_check_s"]) == ["ingest", "prepare"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "what\n"}, None),
        ({}, None),
    ],
)
def test_the_containers_share_of_cores(files: dict[str, str], cores: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == cores


def test_few_cores_of_many_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cpu_limit", lambda: 2.0)
    monkeypatch.setattr("largegt.runtime.threads.num_threads", lambda _: 64)
    (problem,) = [one for one in diagnose(quick=True).problems if "container" in one.what]
    assert str(problem).startswith("this container may use 2 of 64 cores: export OMP_NUM_THREADS=2")


def test_little_room_and_a_folder_that_takes_nothing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(doctor, "_LITTLE_DISK", 1 << 60)
    monkeypatch.chdir("/proc")  # a file system that takes no files
    whats = [problem.what for problem in diagnose(quick=True).problems]
    assert "only 1.0 MiB of memory are free" in whats
    assert any(what.startswith("cannot write to /proc") for what in whats)
    assert any("free in /tmp" in what or "are free in" in what for what in whats)


def test_facts_in_words() -> None:
    found = Diagnosis({
        "memory": {"total_bytes": 1 << 30, "container_bytes": None},
        "gpu": {"cuda": "12.8", "cuda:0": {"name": "A", "memory_bytes": 2 << 30, "bf16": True}},
        "numba_cache": {},
        "extras": {"ray": "2.0", "redis": "not here"},
    })  # fmt: skip
    assert found.rows() == [
        ("memory", "total 1.0 GiB"), ("gpu", "cuda 12.8"), ("", "cuda:0 A, memory 2.0 GiB, bf16 yes"),
        ("numba cache", "none"), ("extras", "ray 2.0"), ("", "redis not here"),
    ]  # fmt: skip
    assert found.works
    found.problems.append(Problem("a", "b", stops=True))
    assert found.as_dict()["problems"] == [{"what": "a", "do": "b", "stops": True}]
    assert not found.works


# what the hardware can do

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
BY_SIGNAL = "the probe was stopped by SIGILL (Illegal instruction)"


def test_bfloat16_that_kills_its_process_is_shown(
    lg: Cli, use_probe: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda *_: {})
    use_probe(DIES)
    result = lg("doctor", "--json")
    assert result.code == 0
    assert result.json["abilities"]["bfloat16_cpu"] == {"works": False, "reason": BY_SIGNAL}
    shown = " ".join(lg("doctor", "--quick").out.split())  # as kept by the call before
    assert f"bfloat16 cpu works no, reason {BY_SIGNAL}" in shown
    assert "This machine can do the work." in shown


def test_abilities_are_shown_and_what_failed_is_tried_again(
    use_probe: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda *_: {})
    file = use_probe("""import sys
from collections.abc import Callable
from pathlib import Path
if sys.argv[1] == "bfloat16_cpu" and not Path(__file__).with_name("again").exists():
    raise OSError("not yet")
print('{"works": true, "speedup": 1.5}')""")
    untried = diagnose(quick=True).facts["abilities"]["bfloat16_cpu"]
    assert untried == {"tried": False, "reason": "not tried yet"}
    assert diagnose().facts["abilities"]["bfloat16_cpu"] == {"works": False, "reason": "OSError: not yet"}
    file.with_name("again").touch()
    found = diagnose()
    assert found.facts["abilities"]["bfloat16_cpu"] == {
        "works": True, "reason": None, "faster_than_float32": True, "speedup": 1.5
    }  # fmt: skip
    assert ("abilities", "bfloat16 cpu works yes, faster than float32 yes, speedup 1.5") in found.rows()


# GPUs


def test_a_gpu_that_torch_cannot_use_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch can use it")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = diagnose(quick=True)
    (problem,) = [one for one in found.problems if "NVIDIA" in one.what]
    assert torch.__version__ in problem.what
    assert "CUDA" in problem.do
    assert found.works


def test_a_device_that_does_not_compute_is_found_out() -> None:
    assert doctor.why_not_computing("cpu") == ""
    assert doctor.why_not_computing("cuda:99")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_computes() -> None:
    found = diagnose()
    assert found.works, found.problems
    assert found.facts["gpu"]["cuda:0"]["computes"]
    assert found.facts["gpu"]["cuda:0"]["memory_bytes"] > 0
    assert all(about["works"] for about in found.facts["abilities"].values())
