"""Kill commands (SIGKILL, real processes) at random moments, run them again, compare with what was never killed.

    python bench/crash.py --kills 400 --seed 0            # all stages, about ten minutes on two cores
    python bench/crash.py --stages train,predict --kills 40

Per stage: an unbroken run says how long it takes and what comes out. Then each round kills the command at up to three
moments, uniform over that time, lets it finish and compares every byte that no clock has a part in. Nothing may be left
over. `beside` appends to a store while a training reads it, kills both, overwrites the store while the run is
evaluated, and compares with the same work done alone. The graph is tiny and taken in tiny steps, and every rename takes
a little longer than it would, so that kills land everywhere. Starting Python with torch takes seconds, so one process
imports everything and forks for each command.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import hashlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

CLOCK = ("train_s", "elapsed_s", "epoch_time_s", "train_time_s", "peak_gpu_bytes")
"""What a clock or the machine says: not compared."""
_PHASE_BYTES = 64
_SERVE = "--serve"
_IMPORTED = (
    "largegt.cli", "largegt.inference.predictor", "largegt.training.trainer", "largegt.experiments.reproduce",
    "largegt.reporting.page", "largegt.auto.tuning.tune", "torch.utils.tensorboard.writer",
    "pyarrow.parquet", "pyarrow.csv",
)  # fmt: skip
_TINY = {
    "data.parts.EDGE_CHUNK_ROWS": 400, "data.parts._FEATURE_CHUNK_BYTES": 3000,
    "data.nodes._CHUNK_ROWS": 70, "data.pair_runs._BUCKET_PAIRS": 300,
    "data.pair_runs._MOST_BUCKETS": 6, "data.csr._LEAST_RUN": 700, "data.csr._MOST_RUN": 2500,
    "data.csr._LEAST_PIECE": 150, "data.csr._WINDOW_EDGES": 800, "data.edge_reading._FEW_EDGES": 500,
    "preprocessing.engine.SEGMENT_NODES": 40, "preprocessing.pipeline.SEGMENT_NODES": 40,
    "inference.predictor._SEGMENT_ROWS": 64, "inference.predictor._GROUP_ROWS": 32,
    "inference.predictor._NUMBERS_AT_ONCE": 64,
}  # fmt: skip
"""Sizes that make a small graph go through everything that a large one does."""


# processes --------------------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    """Its exit code; negative for the signal that ended it."""
    out: str
    err: str
    phase: str
    """What it was doing last."""


class Zygote:
    """A process that has everything imported, and forks for each command; a new one, since what runs threads must not
    be forked. `alone` gives it mounts of its own; an OSError says that this is not allowed here."""

    def __init__(self, folder: Path, alone: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "phase").write_bytes(bytes(_PHASE_BYTES))
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        how = [str(theirs_in), str(theirs_out), str(folder / "phase"), str(int(alone))]
        command = [sys.executable, str(Path(__file__).resolve()), _SERVE, *how]
        self._process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out))
        self._streams: dict[int, Path] = {}
        self.pid = self._process.pid
        os.close(theirs_in)
        os.close(theirs_out)
        self._requests, self._answers = open(ours_out, "w"), open(ours_in)  # noqa: SIM115
        if said := self._answer()["said"]:
            self.close()
            raise OSError(said)

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._requests.close()
        self._answers.close()
        self._process.wait()

    def start(self, *arguments: Any, **how: Any) -> int:
        """Start `largegt` with these arguments; its process id. `how`: see `_child`. Commands that run side by side
        need a folder each for their output, `streams`."""
        request = {"arguments": [str(each) for each in arguments], "streams": str(self.folder), **how}
        pid = int(self._ask(request)["pid"])
        self._streams[pid] = Path(request["streams"])
        return pid

    def wait(self, pid: int | None = None) -> Ended:
        """Until the command that was started last, or this one, has ended."""
        pid = pid or list(self._streams)[-1]
        code, streams = int(self._ask({"wait": pid})["code"]), self._streams.pop(pid)
        words = [(streams / name).read_text(errors="replace") for name in ("out", "err")]
        phase = (self.folder / "phase").read_bytes().rstrip(b"\0").decode()
        return Ended(code, words[0], words[1], phase)

    def run(self, *arguments: Any, **how: Any) -> Ended:
        self.start(*arguments, **how)
        return self.wait()

    def shell(self, command: str) -> None:
        """Run this where the commands run: with `alone`, among their mounts."""
        answer = self._ask({"shell": command})
        if answer["code"]:
            raise OSError(f"{command} failed: {answer['said']}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(request), file=self._requests, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the forking process is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve(requests: IO[str], answers: IO[str], phase: Path, alone: bool) -> None:
    """The forking process: a line of JSON for each request, and one for its answer. It never returns."""
    said = ""
    try:
        warm()
        for name in _IMPORTED:
            import_module(name)
        _end_with_parent()
        import_module("torch").set_num_threads(1)  # type: ignore[attr-defined]
        if alone:
            said = _take_mounts()
        print(json.dumps({"said": said}), file=answers, flush=True)
        for line in requests:
            request = json.loads(line)
            if "wait" in request:
                answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])}
            elif "shell" in request:
                done = subprocess.run(["sh", "-c", request["shell"]], capture_output=True, text=True)
                answer = {"code": done.returncode, "said": done.stderr.strip()}
            else:
                child = os.fork()
                if not child:
                    _child(request, phase)
                answer = {"pid": child}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        os._exit(0)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _take_mounts() -> str:
    """From here on what is mounted is seen by this process and its children alone; why not, where it may not."""
    user, group = os.getuid(), os.getgid()
    flags = 0x00020000 | (0 if user == 0 else 0x10000000)  # CLONE_NEWNS, and CLONE_NEWUSER to be allowed to
    if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).unshare(flags):
        return "no mounts of its own: not allowed here"
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
    done = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True)
    return done.stderr.strip()


def _child(request: dict[str, Any], phase: Path) -> None:
    """One command, in a process of its own. `tiny`: in tiny steps; `pause_s`: for each rename; `file_bytes`: no file
    may grow larger; `folder`: to work in; `streams`: for its output; `kill_at`: see `_die_in_commit`."""
    Path(request["streams"]).mkdir(exist_ok=True)
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(Path(request["streams"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _end_with_parent()
    if "folder" in request:
        os.chdir(request["folder"])
    if "file_bytes" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], resource.RLIM_INFINITY))
    if request.get("tiny"):
        _take_tiny_steps()
    _say_phases(phase, request.get("pause_s", 0.0))
    if "kill_at" in request:
        _die_in_commit(request["kill_at"])
    from largegt.cli import main

    sys.argv = ["largegt", *request["arguments"]]
    code: Any = 0
    try:
        main()
    except SystemExit as leave:
        code = leave.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # as the interpreter ends, but for giving back a gigabyte of modules piece by piece


def _take_tiny_steps() -> None:
    for name, value in _TINY.items():
        module, _, attribute = name.rpartition(".")
        home = import_module(f"largegt.{module}")
        assert hasattr(home, attribute), f"largegt.{name} is gone: mend the list of tiny sizes"
        setattr(home, attribute, value)
    import_module("largegt.data.ingest").memory_budget = lambda memory: 30_000  # type: ignore[attr-defined]


def _say_phases(file: Path, pause_s: float) -> None:
    """Note in a file what the process does, as progress has it, and when it writes; it is read after the kill."""
    with open(file, "r+b") as stream:
        board = mmap.mmap(stream.fileno(), _PHASE_BYTES)

    def say(phase: str) -> None:
        board[:] = phase.encode()[:_PHASE_BYTES].ljust(_PHASE_BYTES, b"\0")

    def said() -> str:
        return board[:].rstrip(b"\0").decode()

    @contextmanager
    def progress(quiet: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
        yield lambda stage, done, total: say(stage.rpartition(": ")[0] or stage)

    def within(home: Any, name: str, phase: str) -> None:
        real = getattr(home, name)

        def wrapped(*args: Any, **rest: Any) -> Any:
            before = said()
            say(phase)
            try:
                return real(*args, **rest)
            finally:
                say(before)

        setattr(home, name, wrapped)

    def slowly(real: Any) -> Any:
        def replace(*args: Any, **rest: Any) -> Any:
            time.sleep(pause_s)
            result = real(*args, **rest)
            time.sleep(pause_s)
            return result

        return replace

    say("begin")
    import_module("largegt.runtime.progress").console_progress = progress  # type: ignore[attr-defined]
    loop = import_module("largegt.training.trainer")
    within(import_module("largegt.training.evaluate").Scorer, "scores", "validate")
    within(loop, "save_weights", "save weights")
    within(loop, "save_checkpoint", "save checkpoint")
    within(loop.Trainer, "finish", "final scores")
    within(loop, "write_history", "log")
    folder = import_module("largegt.io.array_writer")
    within(folder.ArrayWriter, "commit", "commit")
    within(folder.ArrayWriter, "finish", "finish the folder")
    within(import_module("largegt.inference.writers").PredictionFile, "finish", "finish the file")
    if pause_s:
        os.replace = slowly(os.replace)
        os.unlink = slowly(os.unlink)


def _die_in_commit(step: int) -> None:
    """SIGKILL before the so-manyth change of the file system after the first commit of a folder began."""
    writer: Any = import_module("largegt.io.array_writer").ArrayWriter
    place, count, began = writer._link_arrays, 0, False

    def begin(*args: Any) -> None:
        nonlocal began
        began = True
        place(*args)

    def counted(real: Any) -> Any:
        def call(*args: Any, **rest: Any) -> Any:
            nonlocal count
            count += began
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **rest)

        return call

    writer._link_arrays = begin
    for name in ("link", "mkdir", "replace", "rmdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


# what is killed ---------------------------------------------------------------------------------------------------

_MODEL = (
    "prepare.local_nodes.k=4", "prepare.positional_encoding.dim=3", "model.hidden_dim=8",
    "train.batch_size=16", "train.learning_rate=0.02",
    "model.dropout=0.2", "train.device=cpu",
)  # fmt: skip
Content = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A command in a folder: what it needs there, what it leaves, and how to go on with it."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    """Folders and files that stages before it have left."""
    content: Callable[[Path], Content]
    """What it has made, as far as no clock has a part in it; fails where something is missing."""
    resume: tuple[str, ...] = ()
    """The command that goes on where the same command refuses to."""
    makes: tuple[str, ...] = ()
    """What it leaves: nothing else may be there in the end."""
    copy: str = ""
    """A copy of the store `g`, with its runs, that it begins with."""


def _set(*items: str) -> tuple[str, ...]:
    return tuple(part for item in items for part in ("--set", item))


_NEW = ("--nodes", "in/n-new.csv", "--edges", "in/e-new.parquet")
_OTHER = ("--edges", "in/e.parquet", "--nodes", "in/other.csv", *_set("undirected=true"))


def stages() -> dict[str, Stage]:
    store = ("g",)
    train = ("train", "g", "--out", "runs/a", *_set(*_MODEL, "train.epochs=8", "train.checkpoint_every_n_epochs=2"))
    made = [
        Stage(
            "ingest",
            ("ingest", "--edges", "in/e.parquet", "--nodes", "in/n.csv", "--out", "g", *_set("undirected=true")),
            ("in",), lambda folder: _folder(folder / "g"), makes=store,
        ),
        Stage("prepare", ("prepare", "g", *_set(*_MODEL[:2])), store, lambda folder: _prepared(folder / "g")),
        Stage(
            "train", train, store, lambda folder: _run(folder / "runs" / "a"),
            resume=("train", "--resume", "--out", "runs/a"), makes=("runs",),
        ),
        Stage(
            "predict", ("predict", "runs/a", "--out", "p.parquet", "--probabilities", *()), ("g", "runs"),
            lambda folder: {"p.parquet": _digest(folder / "p.parquet")}, makes=("p.parquet",),
        ),
        Stage("append", ("append", "h", *_NEW), store, lambda folder: _versions(folder / "h"), makes=("h",), copy="h"),
        Stage(
            "overwrite", ("ingest", *_OTHER, "--out", "h", "--overwrite"), store,
            lambda folder: _versions(folder / "h"), makes=("h",), copy="h",
        ),
        Stage(
            "reproduce",
            ("reproduce", "table-main", "--dataset", "g", "--out", "r", "--runs", "1", "--models", "mlp,largegt-full",
             *_set(*_MODEL, "model.codebook.num_centroids=6", "model.codebook.dim=4", "train.epochs=3")),
            store, _reproduced, makes=("r",),
        ),
        Stage(
            "tune",
            ("tune", "g", "--out", "t", "--trials", "3", "--only", "--search", "train.learning_rate=0.01,0.02,0.03",
             *_set(*_MODEL, "train.epochs=3")),
            store, _tuned, makes=("t",),
        ),
    ]  # fmt: skip
    return {stage.name: stage for stage in made}


def write_inputs(folder: Path, num_nodes: int = 180) -> None:
    """Edges by text id and a node table, in small pieces; nodes and edges that come later, and other features."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    classes = np.arange(num_nodes) % 3
    ends = rng.integers(0, num_nodes, (2, num_nodes * 12))
    ends = ends[:, (classes[ends[0]] == classes[ends[1]]) | (rng.random(ends.shape[1]) < 0.05)]
    names = np.array([f"node-{number * 7919 % 10_007}" for number in range(num_nodes)])
    pq.write_table(pa.table({"source": names[ends[0]], "target": names[ends[1]]}), folder / "e.parquet", 300)
    features = rng.normal(size=(num_nodes, 5)) + np.eye(5)[classes]
    columns = {f"f{number}": features[:, number] for number in range(5)}
    split = np.array(["train", "train", "valid", "test"])[rng.integers(0, 4, num_nodes)]
    pacsv.write_csv(pa.table({"id": names, **columns, "label": classes, "split": split}), folder / "n.csv")
    others = {name: column + 1 for name, column in columns.items()}
    pacsv.write_csv(pa.table({"id": names, **others, "label": classes, "split": split}), folder / "other.csv")
    new = np.array([f"new-{number}" for number in range(20)])
    joined = {"source": np.repeat(new, 3), "target": names[rng.integers(0, num_nodes, 60)]}
    pq.write_table(pa.table(joined), folder / "e-new.parquet")
    later = {name: column[:20] for name, column in columns.items()}
    pacsv.write_csv(pa.table({"id": new, **later, "label": classes[:20]}), folder / "n-new.csv")


@cache
def warm() -> None:
    """Compile or load all kernels once, in this thread, so that forks have them."""
    from largegt import sources
    from largegt.config.schema import IngestConfig, PrepareConfig
    from largegt.data.ingest import ingest
    from largegt.preprocessing.pipeline import prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder / "in")
        files = sources.files(folder / "in" / "e.parquet", nodes=folder / "in" / "n.csv")
        store = ingest(files, folder / "g", IngestConfig(undirected=True), threads=1, memory=1 << 28)
        prepare(store, PrepareConfig(), threads=1, memory=1 << 28)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _folder(folder: Path) -> Content:
    """Every file of the newest version of a store or of a preparation."""
    return {file.name: _digest(file) for file in sorted(folder.iterdir()) if file.is_file()}


def _versions(store: Path) -> Content:
    """Every file of all versions, each of them sound."""
    from largegt.cli.verification import verify

    assert not verify(store).damaged, verify(store).damaged
    return _folder(store) | {"versions": _folder(store / "versions"), "refs": _folder(store / "refs")}


def _prepared(store: Path) -> Content:
    """Every file of all preparations and stages."""
    files = sorted(file for file in (store / "prepared").rglob("*") if file.is_file())
    return {file.relative_to(store).as_posix(): _digest(file) for file in files}


def _timeless(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _timeless(value) for key, value in tree.items() if key not in CLOCK}
    return tree


def _run(run: Path) -> Content:
    """What a run holds. The notes of checksums.json depend on how it came about, but must fit what is there."""
    import torch

    from largegt.training.run_checksums import damages

    assert not list(damages(run)), list(damages(run))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    checkpoint = (
        torch.load(run / "checkpoints" / "last.pt", weights_only=True) if (run / "checkpoints").exists() else {}
    )
    checkpoint.get("progress", {}).pop("elapsed_s", None)
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    kept = [number for number, name in enumerate(rows[0]) if name not in CLOCK]
    known = {file.relative_to(run).as_posix() for file in run.rglob("*") if file.is_file()}
    return {
        "files": sorted(name for name in known if not name.startswith("tensorboard/")),
        "config.toml": _digest(run / "config.toml"),
        "metrics.jsonl": [_timeless(json.loads(line)) for line in lines],
        "metrics.csv": [[row[number] for number in kept] for row in rows],
        "metrics.json": _timeless(json.loads((run / "metrics.json").read_text())),
        "weights": _digest(run / "model.safetensors") if (run / "model.safetensors").exists() else "",
        "checkpoint": _plain(checkpoint),
    }


def _plain(tree: Any) -> Any:
    """Tensors as bytes, to be compared."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    return hashlib.sha256(tree.cpu().numpy().tobytes()).hexdigest() if hasattr(tree, "cpu") else tree


def _reproduced(folder: Path) -> Content:
    out = folder / "r"
    assert (out / "report.html").read_text().rstrip().endswith("</html>")
    tables = {file.name: _digest(file) for file in sorted(out.glob("table-main.*"))}
    assert len(tables) == 3
    return tables | {run.name: _run(run) for run in sorted((out / "runs").iterdir())}


def _tuned(folder: Path) -> Content:
    """A trial that was killed has another number the second time, and nothing else."""
    import csv

    out = folder / "t"
    assert (out / "tune.html").read_text().rstrip().endswith("</html>")
    with open(out / "trials.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["state"] != "failed"]
    trials = [{key: row[key] for key in row if key not in ("trial", *CLOCK)} for row in rows]
    best = [line for line in (out / "best.toml").read_text().splitlines() if not line.startswith("about")]
    return {"trials": trials, "best.toml": best}


# kills ------------------------------------------------------------------------------------------------------------


class Field:
    """A folder in which one stage after the other is run, and killed."""

    def __init__(self, folder: Path, zygote: Zygote, pause_s: float = 0.0005) -> None:
        self.folder, self.zygote, self.pause_s = folder, zygote, pause_s
        self.known = stages()
        self.expected: dict[str, Content] = {}
        self.whole_s: dict[str, float] = {}
        write_inputs(folder / "in")

    def run(self, command: tuple[str, ...]) -> Ended:
        return self.zygote.run(*command, "--json", **self.how)

    @property
    def how(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "tiny": True, "pause_s": self.pause_s}

    def unbroken(self, name: str) -> None:
        """Run a stage without a kill, for its time and what comes out; what it left stays for later stages."""
        stage = self.known[name]
        self._clear(name)
        begin = time.perf_counter()
        ended = self.run(stage.command)
        self.whole_s[name] = time.perf_counter() - begin
        assert ended.code == 0, ended.err
        self.expected[name] = stage.content(self.folder)
        self.check_clean(name)

    def round(self, name: str, rng: random.Random, most: int = 3) -> list[str]:
        """Kill a stage at up to `most` moments, let it finish and compare; what it was doing at each kill."""
        stage, phases = self.known[name], []
        self._clear(name)
        command = stage.command
        for _ in range(rng.randint(1, most)):
            pid = self.zygote.start(*command, "--json", **self.how)
            time.sleep(rng.uniform(0.0, self.whole_s[name]))
            os.kill(pid, signal.SIGKILL)  # not waited for yet, so the id is still its own
            ended = self.zygote.wait()
            if ended.code == 0 or self._is_done(stage, ended):
                self.whole_s[name] *= 0.7  # the machine has become faster: kills must come earlier
                break
            if ended.code == -signal.SIGKILL:
                phases.append(ended.phase)
                self.whole_s[name] *= 1.05
            else:
                self._check_refusal(stage, ended)
                command = stage.resume
        else:
            self._finish(stage, command)
        found = stage.content(self.folder)
        assert found == self.expected[name], f"{name}, killed at {phases}: {_difference(self.expected[name], found)}"
        self.check_clean(name)
        return phases

    def _finish(self, stage: Stage, command: tuple[str, ...]) -> None:
        ended = self.run(command)
        if ended.code and command == stage.command and not self._is_done(stage, ended):
            self._check_refusal(stage, ended)
            ended = self.run(stage.resume)
        assert ended.code == 0 or self._is_done(stage, ended), ended.err

    def _is_done(self, stage: Stage, ended: Ended) -> bool:
        """Whether it refuses since the kill came when everything was in its place."""
        return ended.code == 2 and not stage.resume and "already exists" in ended.err

    def _check_refusal(self, stage: Stage, ended: Ended) -> None:
        """A command that does not go on by itself says in one line what does."""
        assert ended.code == 2, ended.err
        assert stage.resume, ended.err
        assert "--resume goes on with it" in ended.err, ended.err
        assert ended.err.count("\n") == 1, ended.err

    def _clear(self, name: str) -> None:
        stage = self.known[name]
        for made in (*stage.makes, *(["g/prepared"] if name == "prepare" else [])):
            for path in (self.folder / made, *self.folder.glob(f".{made}.*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if stage.copy:
            self.copy_store(stage.copy)

    def copy_store(self, name: str) -> None:
        shutil.copytree(self.folder / "g", self.folder / name, ignore=shutil.ignore_patterns("prepared"))

    def check_clean(self, name: str) -> None:
        """Nothing hidden is left anywhere: no lock, no half file, no old folder."""
        left = [str(path.relative_to(self.folder)) for path in self.folder.rglob(".*")]
        assert not left, (name, left)


class Beside:
    """A training and an evaluation of a store to which others append, or which they overwrite, meanwhile."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.whole_s = {"train": field.whole_s["train"], "append": field.whole_s["append"], "evaluate": 1.0}
        self.expected: dict[str, tuple[Content, Any]] = {}
        """By the version that was trained on: the run, and its scores."""
        for command in ((), ("append", "h", *_NEW)):
            self._begin()
            if command:
                self._succeeds(field.run(command))
            begin = time.perf_counter()
            self._succeeds(field.run(self._train))
            self.whole_s["train"] = time.perf_counter() - begin
            begin = time.perf_counter()
            scores = json.loads(self._succeeds(field.run(("evaluate", "runs/b"))).out)
            self.whole_s["evaluate"] = time.perf_counter() - begin
            self.expected[self._version] = self._run, scores

    def round(self, rng: random.Random) -> list[str]:
        """Append while it trains, kill either or none of the two, overwrite while it is evaluated; what was killed."""
        field, killed = self.field, []
        self._begin()
        pid = self._start(self._train)
        time.sleep(rng.uniform(0.0, 0.5 * self.whole_s["train"]))
        killed += self._appended(rng.uniform(0.0, 2 * self.whole_s["append"]))
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0.0, 0.2 * self.whole_s["train"]))
            os.kill(pid, signal.SIGKILL)
        ended = field.zygote.wait(pid)
        if ended.code == -signal.SIGKILL:
            killed.append("train")
            is_run = (field.folder / "runs" / "b" / "config.toml").is_file()
            ended = field.run(("train", "--resume", "--out", "runs/b") if is_run else self._train)
        self._succeeds(ended)
        run, scores = self.expected[self._version]
        assert run == self._run, _difference(run, self._run)
        pid = self._start(("evaluate", "runs/b"))
        time.sleep(rng.uniform(0.0, self.whole_s["evaluate"]))
        self._succeeds(field.run(("ingest", *_OTHER, "--out", "h", "--overwrite")))
        ended = self._succeeds(field.zygote.wait(pid))
        assert json.loads(ended.out) == scores, ended.out
        _versions(field.folder / "h")
        field.check_clean("beside")
        return killed

    @property
    def _train(self) -> tuple[str, ...]:
        return ("train", "h", "--out", "runs/b", *_set(*_MODEL, "train.epochs=8", "train.checkpoint_every_n_epochs=2"))

    @property
    def _run(self) -> Content:
        return _run(self.field.folder / "runs" / "b")

    @property
    def _version(self) -> str:
        from largegt.training.run import Run

        return Run.open(self.field.folder / "runs" / "b").store_fingerprint

    def _begin(self) -> None:
        for name in ("h", "runs/b"):
            shutil.rmtree(self.field.folder / name, ignore_errors=True)
        self.field.copy_store("h")

    def _start(self, command: tuple[str, ...]) -> int:
        streams = self.field.zygote.folder / "beside"
        return self.field.zygote.start(*command, "--json", streams=str(streams), **self.field.how)

    def _appended(self, kill_s: float) -> list[str]:
        """Append; a kill after this time, where it comes in time, and the same command again."""
        command = ("append", "h", *_NEW)
        pid = self.field.zygote.start(*command, "--json", **self.field.how)
        time.sleep(kill_s)
        os.kill(pid, signal.SIGKILL)
        ended = self.field.zygote.wait(pid)
        if ended.code == -signal.SIGKILL:
            self._succeeds(self.field.run(command))
            return ["append"]
        self._succeeds(ended)
        return []

    def _succeeds(self, ended: Ended) -> Ended:
        assert ended.code == 0, ended.err
        return ended


def _difference(expected: Any, found: Any, where: str = "") -> str:
    """The first places where two trees differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return "; ".join(
            _difference(expected.get(key), found.get(key), f"{where}/{key}")
            for key in sorted({*expected, *found})
            if expected.get(key) != found.get(key)
        )
    return f"{where}: {str(expected)[:200]} became {str(found)[:200]}"


SHARES = {
    "ingest": 70, "prepare": 60, "train": 60, "predict": 40, "append": 50, "overwrite": 40, "reproduce": 25, "tune": 15,
    "beside": 40,
}  # fmt: skip
"""Kills of each stage, of 400."""
_BEFORE = dict.fromkeys(SHARES, ("ingest",)) | {
    "predict": ("ingest", "prepare", "train"), "append": ("ingest", "train"), "overwrite": ("ingest", "train"),
    "beside": ("ingest", "train", "append"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=400, help="in all, shared out over the stages")
    parser.add_argument("--stages", default=",".join(SHARES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("crash-bench"))
    args = parser.parse_args()
    chosen = [name for name in SHARES if name in args.stages.split(",")]
    shutil.rmtree(args.out, ignore_errors=True)
    begin = time.perf_counter()
    total = 0
    with Zygote((args.out / "zygote").resolve()) as zygote:
        field = Field((args.out / "field").resolve(), zygote)
        for name in SHARES:
            if name != "beside" and (name in chosen or any(name in _BEFORE[each] for each in chosen)):
                field.unbroken(name)
            if name not in chosen:
                continue
            wanted = round(args.kills * SHARES[name] / sum(SHARES[each] for each in chosen))
            rng = random.Random(f"{args.seed} {name}")
            phases: Counter[str] = Counter()
            rounds = 0
            kill = Beside(field).round if name == "beside" else partial(field.round, name)
            while phases.total() < wanted:
                phases.update(kill(rng))
                rounds += 1
            total += phases.total()
            where = ", ".join(f"{phase} {count}" for phase, count in phases.most_common())
            print(f"{name}: {phases.total()} kills in {rounds} rounds: {where}", flush=True)
    print(f"{total} kills in {time.perf_counter() - begin:.0f} s: the same result every time, nothing left over")
    shutil.rmtree(args.out)


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        with open(int(sys.argv[2])) as asked, open(int(sys.argv[3]), "w") as answered:
            _serve(asked, answered, Path(sys.argv[4]), sys.argv[5] == "1")
    main()
