"""Nothing that is read can run code: no module unpickles or evaluates, and files with a bomb inside do not go off."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import Config
from largegt.data.sources import files
from largegt.data.splits import npz_splits
from largegt.datasets.ogb import ogbn_products
from largegt.datasets.snap_patents import snap_patents
from largegt.errors import LargeGTError
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import SMALL, easy_store

ROOT = Path(__file__).parents[2]

BETWEEN_OWN_PROCESSES = {
    "src/largegt/preprocessing/ray_engine.py": "calls and results between its own processes, as Ray itself sends them",
}
"""Modules that may pickle, and why: none of them reads a file."""

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle", "pickletools",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {"read_pickle", "unsafe_load", "full_load", "HDFStore", "load_module"}
LOADS = {"np": "allow_pickle", "numpy": "allow_pickle", "torch": "weights_only"}
SAFE = {"allow_pickle": False, "weights_only": True}


def _faults(source: str) -> list[str]:
    """What in a module could run code that a file brings."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                modules = [alias.name for alias in names] + [getattr(node, "module", None) or ""]
                found += [
                    name for name in modules if set(name.split(".")) & FORBIDDEN_MODULES | {name} & FORBIDDEN_NAMES
                ]
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(name)
            case ast.Call(func=ast.Attribute(attr=name)) if name in FORBIDDEN_NAMES:
                found.append(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="load"), keywords=given) if owner in LOADS:
                found += [] if LOADS[owner] in [keyword.arg for keyword in given] else [f"{owner}.load"]
            case ast.keyword(arg=option, value=value) if option in SAFE:
                is_safe = isinstance(value, ast.Constant) and value.value is SAFE[option]
                found += [] if is_safe else [option]
    return found


def test_no_module_unpickles() -> None:
    found = {
        str(file.relative_to(ROOT)): _faults(file.read_text(encoding="utf-8"))
        for file in sorted((ROOT / "src").rglob("*.py"))
    }
    assert len(found) > 100
    guilty = {name: faults for name, faults in found.items() if faults}
    assert set(guilty) == set(BETWEEN_OWN_PROCESSES)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from ray import cloudpickle", "import joblib as j", "from pandas import read_pickle",
        "import numpy as np\nnp.load('x')", "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import torch\ntorch.load('x')", "import torch\ntorch.load('x', weights_only=False)",
        "eval('1')", "import yaml\nyaml.unsafe_load('x')", "f(allow_pickle=how)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert _faults(source)


def test_the_search_lets_the_safe_ways_pass() -> None:
    assert (
        _faults("import numpy as np, torch\nnp.load('x', allow_pickle=False)\ntorch.load('x', weights_only=True)") == []
    )


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that a bomb makes; the bomb does go off when it is unpickled."""
    mark = tmp_path / "went off"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()
    mark.unlink()
    return mark


def _refused(work: Callable[[], Any], mark: Path) -> None:
    with pytest.raises(LargeGTError):
        work()
    assert not mark.exists()


def test_bombs_in_the_users_files(tmp_path: Path, mark: Path) -> None:
    bomb = np.array([Bomb(mark)] * 4, dtype=object)
    np.save(tmp_path / "bomb.npy", bomb, allow_pickle=True)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    np.savez(tmp_path / "bomb.npz", train=bomb, valid=bomb, test=bomb)
    (tmp_path / "plain.npy").write_bytes(pickle.dumps(Bomb(mark)))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Bomb(mark)))
    for name in ("bomb.npy", "plain.npy"):
        _refused(lambda name=name: files(tmp_path / name), mark)
        for role in ("features", "labels"):
            _refused(lambda name=name, role=role: files(tmp_path / "edges.npy", **{role: tmp_path / name}), mark)
    for name in ("bomb.npz", "plain.npz"):
        _refused(lambda name=name: files(tmp_path / "edges.npy", features=tmp_path / name), mark)
        _refused(lambda name=name: npz_splits(tmp_path / name, None), mark)


def test_bombs_in_folders_of_datasets(tmp_path: Path, mark: Path) -> None:
    """What OGB's and LINKX's own tools would unpickle is named and left alone: there is no flag to read it."""
    folder = tmp_path / "ogbn_products"
    (folder / "processed").mkdir(parents=True)
    (folder / "processed" / "geometric_data_processed.pt").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(LargeGTError, match="is a pickle, which can run any code when it is opened, so it is not read"):
        ogbn_products(tmp_path)
    np.save(tmp_path / "snap-patents-splits.npy", np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    (tmp_path / "snap_patents.mat").write_bytes(pickle.dumps(Bomb(mark)))
    _refused(lambda: snap_patents(tmp_path), mark)
    assert not mark.exists()


def test_bombs_in_runs(tmp_path: Path, mark: Path) -> None:
    store = easy_store(tmp_path / "g")
    config = Config.from_recipe("default", (*SMALL, "train.epochs=1"))
    run = train(store, config, tmp_path / "run")
    (run.path / "checksums.json").unlink()
    torch.save({"model": Bomb(mark)}, run.path / "checkpoints" / "last.pt")
    _refused(lambda: train(store, config, run.path, resume=True), mark)
    (run.path / "model.safetensors").write_bytes(pickle.dumps(Bomb(mark)))
    _refused(lambda: Run.open(run.path).load_model(run.prepared()), mark)
    np.save(store.folder.file("features"), np.array([Bomb(mark)] * store.num_nodes, dtype=object), allow_pickle=True)
    _refused(lambda: run.store(), mark)
