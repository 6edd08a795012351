"""Doctor: can this machine do the work, and what is in the way?

Enters: nothing; the machine itself is looked at. Leaves: a `Diagnosis`, facts by section and problems, each with what
to do. Cost: the imports of torch and numba (2 s); the self-check, a whole walk on a tiny graph, takes 5 s more, and 20
where numba compiles for the first time. What the hardware can do is tried once (15 s, 50 with a GPU) and kept; what
did not work is tried again. Nothing here raises: what cannot be found out is a problem itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from . import __version__
from .errors import first_line
from .memory import available_bytes, format_bytes
from .progress import Progress, silent

EXTRAS = {
    "tune": ("optuna", "largegt tune"),
    "sklearn": ("scikit-learn", "LargeGTClassifier, LargeGTRegressor"),
    "pyg": ("torch-geometric", "graphs from and to PyTorch Geometric"),
    "ray": ("ray", "--engine ray"),
    "redis": ("redis", "prepare --neighbors redis://…"),
    "cloud": ("s3fs", "stores in a bucket"),
    "wandb": ("wandb", "train.wandb"),
}
"""Of each extra, the package that it brings and what for."""
_MODULES = {"scikit-learn": "sklearn", "torch-geometric": "torch_geometric"}
_NEEDED = ("torch", "numpy", "numba", "scipy", "pyarrow", "pydantic", "typer", "rich", "safetensors", "xxhash",
           "matplotlib", "tensorboard")  # fmt: skip
_LITTLE_MEMORY, _LITTLE_DISK = 1 << 30, 1 << 30
_SIZES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_CGROUP = Path("/sys/fs/cgroup")
_NEEDS_COMPILER = "a C compiler and the Python headers are needed for it; without them training is slower"
_SLOWER = "nothing needs to be done: training works without, more slowly"
_WITHOUT = {
    "triton": _NEEDS_COMPILER, "compile_cuda": _NEEDS_COMPILER, "cuda_graphs": _SLOWER, "pinned_memory": _SLOWER,
}  # fmt: skip
"""What to do where an ability is missing that training would use by itself."""
_NO_CACHE = "set NUMBA_CACHE_DIR to a folder that you may write to"


@dataclass(frozen=True)
class Problem:
    """What is in the way, and what to do about it."""

    what: str
    do: str
    stops: bool = False
    """Nothing works before it is mended; other problems cost speed, room or a feature."""

    def __str__(self) -> str:
        return f"{self.what}: {self.do}"


@dataclass
class Diagnosis:
    """What was found, section by section."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def works(self) -> bool:
        return not any(problem.stops for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        return {"works": self.works, **self.facts, "problems": [asdict(problem) for problem in self.problems]}

    def rows(self) -> list[tuple[str, str]]:
        """The facts for people, a line or a few for each section, which is named in its first."""
        found: list[tuple[str, str]] = []
        for section, named in self.facts.items():
            single = {name: value for name, value in named.items() if not isinstance(value, dict)}
            texts = [f"{name} {text}" for name, text in single.items()] if section == "extras" else [_words(single)]
            texts += [
                f"{name.replace('_', ' ')} {_words(value)}" for name, value in named.items() if isinstance(value, dict)
            ]
            first, *others = [text for text in texts if text] or ["none"]
            title = section.removesuffix("_s").replace("_", " ") + (", s" if section.endswith("_s") else "")
            found += [(title, first), *(("", text) for text in others)]
        return found


def diagnose(quick: bool = False, progress: Progress = silent) -> Diagnosis:
    """Look at everything; `quick` leaves out the self-check, and tries no ability of the hardware."""
    found = Diagnosis()
    looks: dict[str, Callable[[list[Problem]], dict[str, Any]]] = {
        "versions": _versions, "cpu": _cpu, "memory": _memory, "disk": _disk, "gpu": _gpus, "numba_cache": _cache,
        "abilities": lambda problems: _abilities(problems, quick or not found.works, progress),
    }  # fmt: skip
    for section, look in looks.items():
        try:
            found.facts[section] = look(found.problems)
        except Exception as error:  # a library that is broken in whatever way must not hide the rest
            found.problems.append(Problem(f"the {section.replace('_', ' ')} cannot be looked at", first_line(error)))
    found.facts["extras"] = _extras()
    if not quick and found.works:
        found.facts["self_check_s"] = _self_check(found.problems, progress)
    return found


# the machine -----------------------------------------------------------------------------------------------------


def _versions(problems: list[Problem]) -> dict[str, Any]:
    """Every package that is needed; one that is missing, too old or cannot be loaded is a problem."""
    found: dict[str, Any] = {"largegt": __version__, "python": platform.python_version(), "system": _system()}
    wanted = _requirements()
    for name in _NEEDED:
        version = found[name] = _version(name)
        if version is None:
            problems.append(Problem(f"{name} is not installed", f"pip install '{wanted.get(name, name)}'", stops=True))
        elif name in wanted and not wanted[name].specifier.contains(version, prereleases=True):
            do = f"pip install '{wanted[name]}'"
            problems.append(Problem(f"{name} is {version}, and {wanted[name].specifier} is needed", do, stops=True))
        elif name in ("torch", "numba", "pyarrow"):  # those with libraries of their own, which may not load here
            try:
                import_module(name)
            except Exception as error:
                do = f"install it anew, pip install --force-reinstall '{name}=={version}'"
                problems.append(Problem(f"{name} cannot be loaded ({first_line(error)})", do, stops=True))
    return found


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _version(package: str) -> str | None:
    """The version of what is installed and can be imported."""
    try:
        there = util.find_spec(_MODULES.get(package, package)) is not None
        return metadata.version(package) if there else None
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _requirements() -> dict[str, Any]:
    """What our own metadata asks for, by name; nothing where we run from a source folder."""
    try:
        from packaging.requirements import Requirement

        every = [Requirement(line) for line in metadata.requires("largegt") or [] if "extra ==" not in line]
    except (metadata.PackageNotFoundError, ImportError):
        return {}
    return {one.name: one for one in every}


def _cpu(problems: list[Problem]) -> dict[str, Any]:
    from .threads import num_threads  # which wants NumPy, and that may be what is missing

    cores, allowed = num_threads(None), cpu_limit()
    found: dict[str, Any] = {"cores": os.cpu_count(), "cores_of_process": cores, "cores_of_container": allowed}
    if allowed is not None and allowed < cores:
        few = max(1, round(allowed))
        do = f"export OMP_NUM_THREADS={few}, and give prepare --threads {few}: more threads only wait for each other"
        problems.append(Problem(f"this container may use {allowed:g} of {cores} cores", do))
    found |= {name: os.environ[name] for name in _SIZES if name in os.environ}
    torch = import_module("torch")
    found["torch_threads"] = torch.get_num_threads()
    if cores > 1 and torch.get_num_threads() == 1 and allowed is None:
        set_by = next((name for name in _SIZES[:2] if os.environ.get(name) == "1"), None)
        do = f"unset {set_by}, or set it to {cores}" if set_by else f"export OMP_NUM_THREADS={cores}"
        problems.append(Problem(f"torch computes with 1 of {cores} cores", do))
    return found


def cpu_limit(cgroup: Path = _CGROUP) -> float | None:
    """Cores that this container may use, by its quota; None where there is none."""
    try:
        if (new := cgroup / "cpu.max").is_file():
            quota, period = new.read_text(encoding="ascii").split()
        else:
            quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if quota.strip() not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def _memory(problems: list[Problem]) -> dict[str, Any]:
    free = available_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if free < _LITTLE_MEMORY:
        do = "end other programs; --memory 512MiB keeps ingest and prepare within that"
        problems.append(Problem(f"only {format_bytes(free)} of memory are free", do))
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or `max`
        limit = None
    return {"total_bytes": total, "free_bytes": free, "container_bytes": limit}


def _disk(problems: list[Problem]) -> dict[str, Any]:
    found = {}
    try:
        places = {"here": Path.cwd(), "temporary": Path(tempfile.gettempdir())}
    except OSError as error:
        problems.append(Problem(f"no folder for temporary files ({first_line(error)})", "set TMPDIR", stops=True))
        return {}
    for name, place in places.items():
        free = shutil.disk_usage(place).free
        found[name] = {"folder": str(place), "free_bytes": free}
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            do = "go to another folder, or give --out one" if name == "here" else "set TMPDIR to another folder"
            problems.append(Problem(f"cannot write to {place} ({error.strerror})", do, stops=name != "here"))
        if free < _LITTLE_DISK:
            do = "free some, or work on another disk; largegt prepare --dry-run says what a store needs"
            problems.append(Problem(f"only {format_bytes(free)} are free in {place}", do))
    return found


def _gpus(problems: list[Problem]) -> dict[str, Any]:
    """Every GPU, and whether it really computes: a driver that does not fit shows only then."""
    torch = import_module("torch")
    if not torch.cuda.is_available():
        if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
            built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
            do = "install a torch for CUDA that fits its driver (nvidia-smi tells); until then a CPU does the work"
            problems.append(Problem(f"there is an NVIDIA GPU, but torch {torch.__version__} {built}", do))
        return {"cuda": None}
    found: dict[str, Any] = {"cuda": torch.version.cuda}
    for number in range(torch.cuda.device_count()):
        about, name = torch.cuda.get_device_properties(number), f"cuda:{number}"
        found[name] = {
            "name": about.name, "memory_bytes": about.total_memory,
            "compute_capability": f"{about.major}.{about.minor}", "bf16": about.major >= 8,
            "computes": (computes := _computes(name, problems)),
        }  # fmt: skip
        if not computes:
            continue
        found[name]["free_bytes"] = torch.cuda.mem_get_info(number)[0]
    return found


def _computes(device: str, problems: list[Problem]) -> bool:
    torch = import_module("torch")
    try:
        ones = torch.ones(64, 64, device=device)
        right = bool(((ones @ ones) == 64).all())
        reason = "a product of matrices came out wrong"
    except Exception as error:
        right, reason = False, first_line(error)
    if not right:
        do = "install a torch that fits its driver, or leave it out with CUDA_VISIBLE_DEVICES="
        problems.append(Problem(f"{device} does not compute ({reason})", do, stops=True))
    return right


def _abilities(problems: list[Problem], only_known: bool, progress: Progress) -> dict[str, Any]:
    """What the hardware can do, by trying it (runtime/hardware.py); `only_known`: as far as it was tried before."""
    from .runtime import hardware

    found: dict[str, Any] = {}
    names = hardware.names_here()
    for number, name in enumerate(names):
        progress(f"try {name}", number, len(names))
        known = hardware.known(name)
        if not only_known and (known is None or not known.works):
            known = hardware.probe(name)
        if known is None or known.works is None:
            found[name] = {"tried": False, "reason": known.reason if known else "not tried yet"}
            continue
        found[name] = {"works": known.works, "reason": known.reason or None}
        if known.speedup is not None:
            found[name] |= {"faster_than_float32": known.speedup > 1, "speedup": known.speedup}
        if not known.works and name in _WITHOUT:
            problems.append(Problem(f"{name} does not work ({known.reason})", _WITHOUT[name]))
    return found


# what numba compiled ---------------------------------------------------------------------------------------------


def kernel_folder() -> Path | None:
    """Where numba keeps what it compiled of the preparation; None where it is told not to compile, and an error where
    it can keep it nowhere."""
    from .prepare import kernels

    stats = getattr(kernels.start_stream, "stats", None)
    return Path(stats.cache_path) if stats is not None else None


def is_compiled(folder: Path) -> bool:
    return any(folder.glob("kernels.*.nbi"))


def _cache(problems: list[Problem]) -> dict[str, Any]:
    try:
        folder = kernel_folder()
    except Exception as error:
        problems.append(
            Problem(f"numba can keep nothing that it compiles ({first_line(error)})", _NO_CACHE, stops=True)
        )
        return {"folder": None}
    if folder is None:
        problems.append(Problem("numba compiles nothing, and all is slow", "unset NUMBA_DISABLE_JIT"))
        return {"folder": None}
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked and not folder.absolute().is_relative_to(Path(asked).absolute()):
        problems.append(Problem(f"NUMBA_CACHE_DIR={asked} cannot be written to; {folder} is used", _NO_CACHE))
    return {"folder": str(folder), "compiled": is_compiled(folder)}


# extras, and the walk --------------------------------------------------------------------------------------------


def _extras() -> dict[str, Any]:
    return {
        package: _version(package) or f"not installed, for {use}: pip install 'largegt[{extra}]'"
        for extra, (package, use) in EXTRAS.items()
    }


def _self_check(problems: list[Problem], progress: Progress) -> dict[str, Any]:
    """Ingest, prepare, train an epoch and predict, on a graph of 300 nodes, as a command would do it; seconds each."""
    elapsed_s: dict[str, Any] = {}
    steps = ("ingest", "prepare", "train", "predict")

    @contextmanager
    def step(name: str) -> Iterator[None]:
        progress(f"self-check: {name}", steps.index(name), len(steps))
        begun = time.perf_counter()
        yield
        elapsed_s[name] = round(time.perf_counter() - begun, 2)

    try:
        import numpy as np

        from . import Config, ingest, predict, prepare, sources, train

        rng = np.random.default_rng(0)
        labels = rng.integers(3, size=300)
        edge_index = rng.integers(300, size=(2, 3000))
        features = (rng.normal(size=(300, 8)) + labels[:, None]).astype(np.float32)
        small = ["prepare.local_nodes.k=8", "model.hidden=16", "train.epochs=1", "train.batch_size=64", "train.draws=1"]
        config = Config.from_recipe("default", small)
        with tempfile.TemporaryDirectory(prefix="largegt-doctor-") as folder:
            with step("ingest"):
                store = ingest(sources.arrays(edge_index, features, labels), Path(folder, "graph"))
            with step("prepare"):
                prepared = prepare(store, config.preparation)
            with step("train"):
                run = train(prepared, config, Path(folder, "run"))
            with step("predict"):
                table = predict(run.path, Path(folder, "predictions.parquet"))
            assert table.num_rows == len(labels), "nodes are missing"
            assert run.metrics["valid"]["loss"] < 10, "it learned nothing"
    except Exception as error:
        failed = next((name for name in steps if name not in elapsed_s), "the result")
        do = "mend what is named above first; if nothing is, this is a bug: report it with `largegt doctor --json`"
        what = f"the self-check failed at {failed} ({type(error).__name__}: {first_line(error)})"
        problems.append(Problem(what, do, stops=True))
    progress("self-check: done", len(steps), len(steps))
    return elapsed_s


# in words --------------------------------------------------------------------------------------------------------


def _words(named: dict[str, Any]) -> str:
    return ", ".join(_part(name, value) for name, value in named.items() if value is not None)


def _part(name: str, value: Any) -> str:
    if name in ("folder", "name"):
        return str(value)
    if name.endswith("_bytes"):
        name, value = name.removesuffix("_bytes"), format_bytes(value)
    elif isinstance(value, bool):
        value = "yes" if value else "no"
    return f"{name.replace('_', ' ')} {value}"
