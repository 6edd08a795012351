"""What this machine can do, found out by doing it: a flag of the CPU or a version number is no proof.

Each ability is tried in a child process with a time limit (probes.py), when it is about to be used for the first time.
The result is kept in `hardware.json` in the cache folder, for this machine, this version of torch and the environment
that matters. A child that dies by a signal, fails, prints nonsense or does not end means "does not work". Cost: a few
seconds for the child, once; nothing for what is never used.
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
    """What a probe found."""

    works: bool | None
    """None where it could not be tried."""
    reason: str = ""
    """Why it does not work, or could not be tried."""
    speedup: float | None = None
    """Of bfloat16: how many times faster than float32 it is."""


@cache
def ability(name: AbilityName) -> Ability:
    """Whether `name` works here: as the cache says, or tried now."""
    return known(name) or probe(name)


def usable(name: AbilityName, otherwise: str) -> bool:
    """Whether to use `name`. Where it does not work, a warning says what happens `otherwise`, and why. One that could
    not be tried is to be used: the caller falls back if it fails."""
    found = ability(name)
    if found.works is False:
        _log.warning(f"{otherwise}: {found.reason}")
    return found.works is not False


def names_here() -> tuple[AbilityName, ...]:
    """The abilities that matter on this machine."""
    return (*get_args(CPUAbility), *(get_args(GPUAbility) if torch.cuda.is_available() else ()))


def known(name: AbilityName) -> Ability | None:
    """What the cache says; None where it says nothing."""
    return _parse(_entries().get(_key(name)))


def probe(name: AbilityName) -> Ability:
    """Try `name` now, whatever the cache says, and keep the result."""
    found = _tried(name)
    if found.works is not None:
        key = _key(name)
        others = [(other, entry) for other, entry in _entries().items() if other != key]
        newest = dict([*others, (key, asdict(found))][-_MOST_ENTRIES:])
        with suppress(OSError, RuntimeError, LargeGTError):  # no home folder, or a read-only one: tried again next time
            cache_folder().mkdir(parents=True, exist_ok=True)
            write_text_atomically(cache_folder() / "hardware.json", json.dumps(newest, indent=1) + "\n")
    return found


def _tried(name: AbilityName) -> Ability:
    limit_s = _LIMITS_S.get(name, _LIMIT_S)
    gpu = [str(torch.cuda.current_device())] if name in get_args(GPUAbility) else []
    try:
        with tempfile.TemporaryDirectory(prefix="largegt-probe-", ignore_cleanup_errors=True) as folder:
            # the child finds the packages that this process finds, and nothing that was compiled before
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
        return Ability(None, f"not tried, since the probe could not be started: {first_line(error)}")
    if done.returncode < 0:
        number = -done.returncode
        name_of = {one.value: one.name for one in signal.Signals}
        return Ability(False, f"the probe was stopped by {name_of.get(number, number)} ({signal.strsignal(number)})")
    if done.returncode > 0:
        return Ability(False, _last_line(done.stderr) or f"the probe ended with exit code {done.returncode}")
    with suppress(ValueError, TypeError):
        if (found := _parse({"reason": "", "speedup": None} | json.loads(_last_line(done.stdout)))) is not None:
            return found
    return Ability(False, "the probe printed no result")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:_LONGEST_REASON]


def _parse(entry: Any) -> Ability | None:
    """An ability as JSON has it; None for anything else."""
    match entry:
        case {"works": bool() | None as works, "reason": str(reason), "speedup": float() | None as speedup}:
            return Ability(works, reason[:_LONGEST_REASON], speedup)
    return None


def _entries() -> dict[str, Any]:
    """The cache; empty where there is none that can be read."""
    with suppress(OSError, ValueError, RuntimeError):
        found = json.loads((cache_folder() / "hardware.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _key(name: AbilityName) -> str:
    """The ability, and everything that its result depends on."""
    facts = [
        name, torch.__version__, platform.python_version(), platform.node(), platform.machine(), _cpu(),
        *(os.environ.get(variable, "") for variable in _ENVIRONMENT),
        *(str(shutil.which(compiler)) for compiler in _COMPILERS), _PROBES.read_text(encoding="utf-8"),
    ]  # fmt: skip
    if name in get_args(GPUAbility):
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts += [about.name, str(about.major), str(about.minor), _text(Path("/proc/driver/nvidia/version"))]
    return f"{name} {fingerprint(facts)}"


def _cpu() -> str:
    """Model and flags of the first core."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    lines = _text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.split("\t")[0].strip() in wanted) or platform.processor()


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""
