"""Hardware abilities, found by trying them: CPU flags and version numbers are not reliable.

A child process with a time limit tries each ability before its first use (probes.py). `hardware.json` in the cache
folder keeps the result for this machine, torch version and environment. A child that crashes, fails, times out or
prints no result means "does not work". Cost: a few seconds per ability, once, and only for abilities in use.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from largegt.errors import LargeGTError, first_line
from largegt.io.atomic import write_text_atomically
from largegt.io.checksums import fingerprint
from largegt.io.remote import cache_folder

_log = logging.getLogger(__name__)

CPUAbility = Literal["bfloat16_cpu", "compile_cpu"]
GPUAbility = Literal["triton", "compile_cuda", "cuda_graphs", "pinned_memory"]
AbilityName = CPUAbility | GPUAbility

_PROBES = Path(__file__).with_name("probes.py")
_LIMITS_S = {"compile_cpu": 180, "compile_cuda": 180}
_LIMIT_S = 60
_LONGEST_REASON = 300
_MOST_ENTRIES = 64
_ENVIRONMENT = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CC", "CXX", "CUDA_HOME", "LD_LIBRARY_PATH",
)  # fmt: skip
_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")


@dataclass(frozen=True)
class Ability:
    """The result of a probe."""

    works: bool | None
    """None if it could not be tried."""
    reason: str = ""
    """Why it does not work or could not be tried."""
    speedup: float | None = None
    """For bfloat16: the speedup over float32."""


@cache
def ability(name: AbilityName) -> Ability:
    """Whether `name` works here: the cached result, or a new probe."""
    return cached_ability(name) or probe(name)


def usable(name: AbilityName, otherwise: str) -> bool:
    """Whether to use `name`. If it does not work, a warning states the fallback (`otherwise`) and the reason. If it
    could not be tried, the answer is True: the caller falls back when it fails."""
    found = ability(name)
    if found.works is False:
        _log.warning(f"{otherwise}: {found.reason}")
    return found.works is not False


def relevant_abilities() -> tuple[AbilityName, ...]:
    """The abilities to probe on this machine."""
    return (*get_args(CPUAbility), *(get_args(GPUAbility) if torch.cuda.is_available() else ()))


def cached_ability(name: AbilityName) -> Ability | None:
    """The cached result; None if there is none."""
    return _parse_ability(_read_cache().get(_key(name)))


def probe(name: AbilityName) -> Ability:
    """Try `name` now and cache the result."""
    found = _run_probe(name)
    if found.works is not None:
        key = _key(name)
        others = [(other, entry) for other, entry in _read_cache().items() if other != key]
        newest = dict([*others, (key, asdict(found))][-_MOST_ENTRIES:])
        with suppress(OSError, RuntimeError, LargeGTError):  # no writable home folder: probe again next time
            cache_folder().mkdir(parents=True, exist_ok=True)
            write_text_atomically(cache_folder() / "hardware.json", json.dumps(newest, indent=1) + "\n")
    return found


def _run_probe(name: AbilityName) -> Ability:
    limit_s = _LIMITS_S.get(name, _LIMIT_S)
    gpu = [str(torch.cuda.current_device())] if name in get_args(GPUAbility) else []
    try:
        with tempfile.TemporaryDirectory(prefix="largegt-probe-", ignore_cleanup_errors=True) as folder:
            # the child has the same import path as this process and an empty compiler cache
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TRITON_CACHE_DIR": folder,
                "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1",
            }  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-P", str(_PROBES), name, *gpu], env=environment, cwd=folder, timeout=limit_s,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ability(False, f"the probe did not end within {limit_s} s")
    except (OSError, ValueError) as error:
        return Ability(None, f"not tried, because the probe could not be started: {first_line(error)}")
    if done.returncode < 0:
        number = -done.returncode
        name_of = {one.value: one.name for one in signal.Signals}
        return Ability(False, f"the probe was stopped by {name_of.get(number, number)} ({signal.strsignal(number)})")
    if done.returncode > 0:
        return Ability(False, _last_line(done.stderr) or f"the probe ended with exit code {done.returncode}")
    with suppress(ValueError, TypeError):
        if (found := _parse_ability({"reason": "", "speedup": None} | json.loads(_last_line(done.stdout)))) is not None:
            return found
    return Ability(False, "the probe printed no result")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:_LONGEST_REASON]


def _parse_ability(entry: Any) -> Ability | None:
    """An ability from JSON; None if the entry is invalid."""
    match entry:
        case {"works": bool() | None as works, "reason": str(reason), "speedup": float() | None as speedup}:
            return Ability(works, reason[:_LONGEST_REASON], speedup)
    return None


def _read_cache() -> dict[str, Any]:
    """The cache; empty if it cannot be read."""
    with suppress(OSError, ValueError, RuntimeError):
        found = json.loads((cache_folder() / "hardware.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _key(name: AbilityName) -> str:
    """Cache key: the ability and everything that its result depends on."""
    facts = [
        name, torch.__version__, platform.python_version(), platform.node(), platform.machine(), _cpu(),
        *(os.environ.get(variable, "") for variable in _ENVIRONMENT),
        *(str(shutil.which(compiler)) for compiler in _COMPILERS), _PROBES.read_text(encoding="utf-8"),
    ]  # fmt: skip
    if name in get_args(GPUAbility):
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts += [about.name, str(about.major), str(about.minor), _read_text(Path("/proc/driver/nvidia/version"))]
    return f"{name} {fingerprint(facts)}"


def _cpu() -> str:
    """Model and flags of the first core."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    lines = _read_text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.split("\t")[0].strip() in wanted) or platform.processor()


def _read_text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""
