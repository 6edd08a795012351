"""Programs in bench/ and examples/ name what the package has, and each program in bench/ runs at its smallest size."""

from __future__ import annotations

import ast
import os
import runpy
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import largegt
from largegt.datasets.synthetic import generate
from run_helpers import one_thread  # noqa: F401

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
PROGRAMS = sorted([*BENCH.rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "docs").rglob("*.py")])

RUN_ELSEWHERE = {"column_kinds", "company_tables", "ingest_speed", "crash", "flip"}
"""By tests/test_company_tables.py and tests/reliability/."""
LEFT_OUT = {"killed"}
"""Ten commands, one after another; tests/reliability/test_kills.py kills the same ones."""
SMALL = (
    "prepare.local_nodes.k=4", "prepare.positional_encoding.method=random_projection",
    "prepare.positional_encoding.dim=4", "model.name=largegt-full", "model.hidden_dim=16", "model.num_heads=2",
    "model.codebook.num_centroids=8", "model.codebook.dim=4", "train.batch_size=32",
)  # fmt: skip
SMALLEST = {
    "accuracy": "--data {data} --contestants mlp --runs 1 --set train.epochs=1 --out {out}",
    "append": "--like ogbn-products --scale 0.0002 --share 0.05 --predict 5 --out {out}/new",
    "baselines": "--data {data} --models sgc --runs 1 --set train.epochs=1 --out {out}",
    "baselines_throughput": "--epochs 2 --set model.hidden_dim=16 --out {out}",
    "cluster": "--data {data} --nodes 200 --machines 1 --out {out}",
    "context": "--like ogbn-products --scale 0.0002 --memory-limit 1GiB --repeat 1 --out {out}/new",
    "ddp": "--ranks 1 --epochs 2 --set model.hidden_dim=16 --set prepare.local_nodes.k=4 --out {out}",
    "demo_seeds": "--seeds 1 --set {small} train.epochs=1 --out {out}",
    "from_disk": "--like ogbn-products --scales 0.0002 --memory-limit 1GiB --k 4 --train-set {small} --out {out}",
    "fuzz": "--cases 4 --only recipe,override --workers 1",
    "local_nodes": "--nodes 2000 --picture {out}/picture.png",
    "minesweeper_board": "--data {data} --around 1 --splits 1 --epochs 5",
    "neighbors": "--scale 0.0002 --batch-size 64 --batches 2",
    "positions": "--scale 0.0001 --out {out}/new",
    "precision": "--seeds 2 --epochs 1 --set {small} --out {out}",
    "predict": "--run {run} --batch-size 128",
    "predict_stream": "--nodes 2000 --out {out}",
    "replay": "--store {out}/store --set {small} train.epochs=1 --ways recorded",
    "resample": "--scale 0.0002 --epochs 2 --set {small} --out {out}/new",
    "soak": "--minutes 0 --nodes 100 --stretches 3 --warm-up 0 --limit 1TiB --out {out}",
    "synthetic_files": "--like ogbn-products --scale 0.0002 --out {out}/new",
    "table": "--scale 0.0002 --k 4 --steps 2 --rounds 1 --set {small} --out {out}/new",
    "train_step": "--epochs 2 --no-compile --steps 1 --parts --plain --workers 0 --tables mmap --predict 50 "
    "--set {small} --out {out}",
    "weights": "--nodes 300 --edges 2000 --k 4 --kinds",
}  # fmt: skip


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_program_imports_is_there(file: Path) -> None:
    """Also inside functions, which no other test may reach."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in (alias.name for alias in node.names if alias.name.startswith("largegt")):
                import_module(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "largegt":
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")


@dataclass(frozen=True)
class Inputs:
    """What the programs share."""

    store: Path
    run: Path
    data: Path
    """A square board of labelled nodes, as bench/baselines.py and bench/cluster.py read graphs."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("bench")
    made = Inputs(folder / "store", folder / "run", folder / "data")
    store = generate("ogbn-products", made.store, 0.0003)
    config = largegt.Config.from_recipe("ogbn-products-largegt-full", [*SMALL, "train.epochs=1", "train.device=cpu"])
    largegt.train(store, config, made.run)
    made.data.mkdir()
    rng = np.random.default_rng(0)
    labels, part = np.arange(32 * 32) % 2, rng.integers(0, 3, 32 * 32)
    np.save(made.data / "edge_index.npy", rng.integers(0, len(labels), (2, 4000)))
    np.save(made.data / "x.npy", rng.normal(size=(len(labels), 7)))
    np.save(made.data / "y.npy", labels)
    masks: dict[str, Any] = {f"{name}_masks": [part == n] for n, name in enumerate(("train", "val", "test"))}
    np.savez(made.data / "splits.npz", **masks)
    return made


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")  # it has no wheels for every torch
@pytest.mark.parametrize("program", sorted({file.stem for file in BENCH.glob("*.py")} - RUN_ELSEWHERE - LEFT_OUT))
def test_a_program_runs(program: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its smallest size, on two cores at most and no GPU; a program without one in the table fails."""
    if program == "cluster":
        pytest.importorskip("ray", reason="bench/cluster.py starts a cluster of Ray")
    (tmp_path / "store").symlink_to(inputs.store)
    words = SMALLEST[program].format(out=tmp_path, run=inputs.run, data=inputs.data, small=" ".join(SMALL)).split()
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *words])
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(BENCH / f"{program}.py"), run_name="__main__")
    except SystemExit as end:
        assert not end.code  # noqa: PT017
