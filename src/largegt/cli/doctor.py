"""Doctor: can this machine run largegt, and what are its problems?

Leaves a `Diagnosis`: facts by section, and problems, each with a remedy. Nothing here raises: a failing probe is a
problem itself. Cost: the imports of torch and numba (2 s); the self-check runs all stages on a tiny graph (5 s, or 20 s
with numba compilation on first use); hardware abilities are tested once (15 s, 50 s with a GPU).
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from largegt import __version__
from largegt.errors import first_line
from largegt.runtime.memory import available_bytes, format_bytes
from largegt.runtime.progress import Progress, silent

EXTRAS = {
    "tune": ("optuna", "largegt tune"),
    "plots": ("matplotlib", "figures of largegt reproduce as PDF and PNG"),
    "sklearn": ("scikit-learn", "LargeGTClassifier, LargeGTRegressor"),
    "pyg": ("torch-geometric", "graphs from and to PyTorch Geometric"),
    "ray": ("ray", "--engine ray"),
    "redis": ("redis", "prepare --neighbor-store redis://…"),
    "cloud": ("s3fs", "stores in a bucket"),
    "wandb": ("wandb", "train.wandb_project"),
}
"""The package of each extra and its use."""
_MODULES = {"scikit-learn": "sklearn", "torch-geometric": "torch_geometric"}
_NEEDED = ("torch", "numpy", "numba", "scipy", "pyarrow", "pydantic", "typer", "rich", "safetensors", "xxhash",
           "tensorboard")  # fmt: skip
_LITTLE_MEMORY, _LITTLE_DISK = 1 << 30, 1 << 30
_SIZES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_CGROUP = Path("/sys/fs/cgroup")
_NEEDS_COMPILER = "a C compiler and the Python headers are needed for it; without them training is slower"
_SLOWER = "nothing needs to be done: training works without, more slowly"
_WITHOUT = {
    "triton": _NEEDS_COMPILER, "compile_cuda": _NEEDS_COMPILER, "cuda_graphs": _SLOWER, "pinned_memory": _SLOWER,
}  # fmt: skip
"""The remedy for a missing ability that training uses by default."""
_NO_CACHE = "set NUMBA_CACHE_DIR to a folder that you may write to"


@dataclass(frozen=True)
class Problem:
    """A problem and its remedy."""

    what: str
    do: str
    stops: bool = False
    """Whether nothing works before it is fixed; other problems cost speed, space or a feature."""

    def __str__(self) -> str:
        return f"{self.what}: {self.do}"


@dataclass
class Diagnosis:
    """Facts by section, and problems."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def works(self) -> bool:
        return not any(problem.stops for problem in self.problems)

    def add(self, what: str, do: str, stops: bool = False) -> None:
        self.problems.append(Problem(what, do, stops))

    def as_dict(self) -> dict[str, Any]:
        return {"works": self.works, **self.facts, "problems": [asdict(problem) for problem in self.problems]}

    def rows(self) -> list[tuple[str, str]]:
        """The facts as table rows, one or more per section; the first row of a section has its title."""
        found: list[tuple[str, str]] = []
        for section, named in self.facts.items():
            nested = {name: value for name, value in named.items() if isinstance(value, dict)}
            lines = [_words({name: value for name, value in named.items() if name not in nested})]
            if section == "extras":
                lines = [f"{name} {text}" for name, text in named.items()]
            lines += [f"{name.replace('_', ' ')} {_words(value)}" for name, value in nested.items()]
            title = section.removesuffix("_s").replace("_", " ") + (", s" if section.endswith("_s") else "")
            shown = [line for line in lines if line] or ["none"]
            found += zip([title, *[""] * len(shown)], shown, strict=False)
        return found


def _words(named: dict[str, Any]) -> str:
    words = []
    for name, value in named.items():
        shown = ("no", "yes")[value] if isinstance(value, bool) else value
        if name.endswith("_bytes") and value is not None:
            name, shown = name.removesuffix("_bytes"), format_bytes(value)
        if value is not None:
            words.append(str(shown) if name in ("folder", "name") else f"{name.replace('_', ' ')} {shown}")
    return ", ".join(words)


def diagnose(quick: bool = False, progress: Progress = silent) -> Diagnosis:
    """Run all probes and the self-check; `quick` skips the self-check and the tests of hardware abilities."""
    found = Diagnosis()
    probes: list[tuple[str, Callable[[Diagnosis], dict[str, Any]]]] = [
        ("versions", _versions),
        ("cpu", _cpu),
        ("memory", _memory),
        ("disk", _disk),
        ("gpu", _gpus),
        ("numba_cache", _cache),
        ("abilities", lambda found: _abilities(found, quick, progress)),
        ("extras", _extras),
    ]
    for section, probe in probes:
        try:
            found.facts[section] = probe(found)
        except Exception as error:  # a broken library must not hide other problems
            found.add(f"the {section.replace('_', ' ')} cannot be looked at", first_line(error))
    if not quick and found.works:
        found.facts["self_check_s"] = _self_check(found, progress)
    return found


def _versions(diagnosis: Diagnosis) -> dict[str, Any]:
    """The versions of all required packages; a missing, unsuitable or broken package is a problem."""
    system = f"{platform.system()} {platform.machine()}"
    found: dict[str, Any] = {"largegt": __version__, "python": platform.python_version(), "system": system}
    wanted = _requirements()
    for name in _NEEDED:
        version = found[name] = _version(name)
        if version is None:
            diagnosis.add(f"{name} is not installed", f"pip install '{wanted.get(name, name)}'", stops=True)
        elif name in wanted and not wanted[name].specifier.contains(version, prereleases=True):
            needed = f"{name} is {version}, and {wanted[name].specifier} is needed"
            diagnosis.add(needed, f"pip install '{wanted[name]}'", stops=True)
        elif name in ("torch", "numba", "pyarrow"):  # their native libraries may not load
            try:
                import_module(name)
            except Exception as error:
                do = f"install it anew, pip install --force-reinstall '{name}=={version}'"
                diagnosis.add(f"{name} cannot be loaded ({first_line(error)})", do, stops=True)
    return found


def _version(package: str) -> str | None:
    """The version of a package that is installed and importable, else None."""
    with suppress(metadata.PackageNotFoundError, ValueError):
        if util.find_spec(_MODULES.get(package, package)) is not None:
            return metadata.version(package)
    return None


def _requirements() -> dict[str, Any]:
    """The requirements in our package metadata, by name; empty when run from a source folder."""
    with suppress(metadata.PackageNotFoundError, ImportError):
        from packaging.requirements import Requirement

        every = [Requirement(line) for line in metadata.requires("largegt") or [] if "extra ==" not in line]
        return {one.name: one for one in every}
    return {}


def _cpu(diagnosis: Diagnosis) -> dict[str, Any]:
    from largegt.runtime.threads import num_threads  # imports NumPy, which may be missing

    cores, allowed = num_threads(None), cpu_limit()
    found: dict[str, Any] = {"cores": os.cpu_count(), "cores_of_process": cores, "cores_of_container": allowed}
    found |= {name: os.environ[name] for name in _SIZES if name in os.environ}
    found["torch_threads"] = threads = import_module("torch").get_num_threads()
    if allowed is not None and allowed < cores:
        few = max(1, round(allowed))
        do = f"export OMP_NUM_THREADS={few}, and give prepare --threads {few}: more threads only wait for each other"
        diagnosis.add(f"this container may use {allowed:g} of {cores} cores", do)
    if cores > 1 and threads == 1 and allowed is None:
        set_by = next((name for name in _SIZES[:2] if os.environ.get(name) == "1"), None)
        do = f"unset {set_by}, or set it to {cores}" if set_by else f"export OMP_NUM_THREADS={cores}"
        diagnosis.add(f"torch computes with 1 of {cores} cores", do)
    return found


def cpu_limit(cgroup: Path = _CGROUP) -> float | None:
    """The CPU quota of this container in cores; None without a quota."""
    try:
        if (new := cgroup / "cpu.max").is_file():
            quota, period = new.read_text(encoding="ascii").split()
        else:
            quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if quota.strip() not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def _memory(diagnosis: Diagnosis) -> dict[str, Any]:
    free = available_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if free < _LITTLE_MEMORY:
        do = "end other programs; --memory-limit 512MiB keeps ingest and prepare within that"
        diagnosis.add(f"only {format_bytes(free)} of memory are free", do)
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or `max`
        limit = None
    return {"total_bytes": total, "free_bytes": free, "container_bytes": limit}


def _disk(diagnosis: Diagnosis) -> dict[str, Any]:
    try:
        places = {"here": Path.cwd(), "temporary": Path(tempfile.gettempdir())}
    except OSError as error:
        diagnosis.add(f"no folder for temporary files ({first_line(error)})", "set TMPDIR", stops=True)
        return {}
    found = {}
    for name, place in places.items():
        free = shutil.disk_usage(place).free
        found[name] = {"folder": str(place), "free_bytes": free}
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            do = "go to another folder, or give --out one" if name == "here" else "set TMPDIR to another folder"
            diagnosis.add(f"cannot write to {place} ({error.strerror})", do, stops=name != "here")
        if free < _LITTLE_DISK:
            do = "free some, or work on another disk; largegt prepare --dry-run says what a store needs"
            diagnosis.add(f"only {format_bytes(free)} are free in {place}", do)
    return found


def _gpus(diagnosis: Diagnosis) -> dict[str, Any]:
    """All GPUs, each tested with a computation, which alone reveals an unsuitable driver."""
    torch = import_module("torch")
    if not torch.cuda.is_available():
        if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
            built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
            do = "install a torch for CUDA that fits its driver (nvidia-smi tells); until then a CPU does the work"
            diagnosis.add(f"there is an NVIDIA GPU, but torch {torch.__version__} {built}", do)
        return {"cuda": None}
    found: dict[str, Any] = {"cuda": torch.version.cuda}
    for number in range(torch.cuda.device_count()):
        about, name = torch.cuda.get_device_properties(number), f"cuda:{number}"
        reason = why_not_computing(name)
        if reason:
            do = "install a torch that fits its driver, or leave it out with CUDA_VISIBLE_DEVICES="
            diagnosis.add(f"{name} does not compute ({reason})", do, stops=True)
        found[name] = {
            "name": about.name, "memory_bytes": about.total_memory,
            "compute_capability": f"{about.major}.{about.minor}", "bf16": about.major >= 8, "computes": not reason,
            **({} if reason else {"free_bytes": torch.cuda.mem_get_info(number)[0]}),
        }  # fmt: skip
    return found


def why_not_computing(device: str) -> str:
    """Why a matrix product fails on a device; empty if it works."""
    torch = import_module("torch")
    try:
        ones = torch.ones(64, 64, device=device)
        return "" if bool(((ones @ ones) == 64).all()) else "a product of matrices came out wrong"
    except Exception as error:
        return first_line(error)


def _abilities(diagnosis: Diagnosis, quick: bool, progress: Progress) -> dict[str, Any]:
    """Hardware abilities (hardware/abilities.py). Untested and failed ones are tested now, except with `quick` or after
    a problem that stops everything."""
    from largegt.hardware import abilities

    found: dict[str, Any] = {}
    names = abilities.relevant_abilities()
    for number, name in enumerate(names):
        progress(f"try {name}", number, len(names))
        known = abilities.cached_ability(name)
        if not quick and diagnosis.works and (known is None or not known.works):
            known = abilities.probe(name)
        if known is None or known.works is None:
            found[name] = {"tried": False, "reason": known.reason if known else "not tried yet"}
            continue
        found[name] = {"works": known.works, "reason": known.reason or None}
        if known.speedup is not None:
            found[name] |= {"faster_than_float32": known.speedup > 1, "speedup": known.speedup}
        if not known.works and name in _WITHOUT:
            diagnosis.add(f"{name} does not work ({known.reason})", _WITHOUT[name])
    return found


def kernel_folder() -> Path | None:
    """The numba cache folder of the preparation kernels; None if compilation is disabled. Raises if no folder is
    writable."""
    from largegt.preprocessing import kernels

    stats = getattr(kernels.start_stream, "stats", None)
    return Path(stats.cache_path) if stats is not None else None


def is_compiled(folder: Path) -> bool:
    return any(folder.glob("kernels.*.nbi"))


def _cache(diagnosis: Diagnosis) -> dict[str, Any]:
    try:
        folder = kernel_folder()
    except Exception as error:
        diagnosis.add(f"numba can keep nothing that it compiles ({first_line(error)})", _NO_CACHE, stops=True)
        return {"folder": None}
    if folder is None:
        diagnosis.add("numba compiles nothing, and all is slow", "unset NUMBA_DISABLE_JIT")
        return {"folder": None}
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured and not folder.absolute().is_relative_to(Path(configured).absolute()):
        diagnosis.add(f"NUMBA_CACHE_DIR={configured} cannot be written to; {folder} is used", _NO_CACHE)
    return {"folder": str(folder), "compiled": is_compiled(folder)}


def _extras(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        package: _version(package) or f"not installed, for {use}: pip install 'largegt[{extra}]'"
        for extra, (package, use) in EXTRAS.items()
    }


def _self_check(diagnosis: Diagnosis, progress: Progress) -> dict[str, Any]:
    """Ingest, prepare, train an epoch and predict on a graph of 300 nodes; returns the seconds of each stage."""
    elapsed_s: dict[str, float] = {}
    step = "ingest"
    try:
        import numpy as np

        from largegt import Config, ingest, predict, prepare, sources, train

        rng = np.random.default_rng(0)
        labels = rng.integers(3, size=300)
        features = (rng.normal(size=(300, 8)) + labels[:, None]).astype(np.float32)
        source = sources.arrays(rng.integers(300, size=(2, 3000)), features, labels)
        small = [
            "prepare.local_nodes.k=8",
            "model.hidden_dim=16",
            "train.epochs=1",
            "train.batch_size=64",
            "train.num_eval_samples=1",
        ]
        config = Config.from_recipe("default", small)
        with tempfile.TemporaryDirectory(prefix="largegt-doctor-") as folder:
            steps: dict[str, Callable[[Any], Any]] = {
                "ingest": lambda _: ingest(source, Path(folder, "graph")),
                "prepare": lambda store: prepare(store, config.preparation),
                "train": lambda prepared: train(prepared, config, Path(folder, "run")),
                "predict": lambda run: (run, predict(run, Path(folder, "predictions.parquet"))),
            }
            result: Any = None
            for number, (step, work) in enumerate(steps.items()):
                progress(f"self-check: {step}", number, len(steps))
                start = time.perf_counter()
                result = work(result)
                elapsed_s[step] = round(time.perf_counter() - start, 2)
            progress("self-check: done", len(steps), len(steps))
            step, (run, table) = "the result", result
            assert table.num_rows == len(labels), "nodes are missing"
            assert run.metrics["valid"]["loss"] < 10, "it learned nothing"
    except Exception as error:
        do = "mend what is named above first; if nothing is, this is a bug: report it with `largegt doctor --json`"
        what = f"the self-check failed at {step} ({type(error).__name__}: {first_line(error)})"
        diagnosis.add(what, do, stops=True)
    return elapsed_s
