"""Small graphs, small configurations and readers of run folders, for the tests of training, predict, report and cli."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from largegt import cli
from largegt.config.models import overrides_read
from largegt.config.schema import Config, IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays, files
from largegt.data.store import GraphStore
from largegt.errors import LargeGTError
from largegt.training.trainer import train

_QUICK = (
    "prepare.local_nodes.k=4", "prepare.positional_encoding.dim=3", "train.epochs=3", "train.batch_size=32",
    "train.learning_rate=0.02",
)  # fmt: skip
_NARROW = ("model.hidden_dim=8", "model.codebook.num_centroids=6", "model.codebook.dim=4")


def small_settings(model: str) -> tuple[str, ...]:
    """Overrides that make any recipe of this model quick."""
    return tuple(overrides_read((*_QUICK, *_NARROW), model))


SMALL = small_settings("largegt-local")
"""Overrides that make a recipe of a model with a hidden width quick."""
FULL = (*small_settings("largegt-full"), "model.name=largegt-full")
"""The same for the whole model, which reads everything that is prepared."""

HOSTILE_COLUMN = "<i>[red]in\x1b[31mcome"
"""The name of a column that means something to a browser, to rich and to a terminal."""

TIMINGS = ("train_s", "elapsed_s", "epoch_time_s", "train_time_s", "peak_gpu_bytes")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two cores are shared: small tensors gain nothing from threads. Import it where torch is used."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def homophilous(num_nodes: int = 150, num_classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(edges [2, e], features, classes): neighbours mostly share a class, and features say a little of it."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_nodes) % num_classes
    ends = rng.integers(0, num_nodes, (2, num_nodes * 12))
    keep = (labels[ends[0]] == labels[ends[1]]) | (rng.random(ends.shape[1]) < 0.05)
    features = rng.normal(size=(num_nodes, 5)).astype(np.float32)
    features[:, :num_classes] += 1.5 * np.eye(num_classes, dtype=np.float32)[labels]
    return ends[:, keep & (ends[0] != ends[1])], features, labels


def thirds(num_nodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A split: half train, a quarter valid, a quarter test."""
    order = np.random.default_rng(seed).permutation(num_nodes)
    half, most = num_nodes // 2, 3 * num_nodes // 4
    return {"train": order[:half], "valid": order[half:most], "test": order[most:]}


def easy_store(
    path: Path, labels: Any = None, splits: Any = "thirds", seed: int = 0, overwrite: bool = False, **settings: Any
) -> GraphStore:
    """A store of the homophilous graph; other labels and splits on request."""
    edges, features, classes = homophilous(seed=seed)
    labels = classes if labels is None else labels
    given = thirds(len(classes)) if isinstance(splits, str) else splits
    source = arrays(edges, features, labels, given)
    return ingest(source, path, IngestConfig(undirected=True, **settings), overwrite, threads=1)


def table_store(path: Path, edge_columns: bool = False) -> GraphStore:
    """A store of the homophilous graph whose nodes come from a table: city says the class, the other columns do not;
    one name and one note are hostile."""
    edges, _, classes = homophilous()
    rng, num_nodes = np.random.default_rng(0), len(classes)
    path.parent.mkdir(parents=True, exist_ok=True)
    days = np.datetime64("2024-01-01") + rng.integers(0, 500, num_nodes)
    nodes = pa.table({
        "id": [f"n{at}" for at in range(num_nodes)],
        "city": np.array(["Bonn", "Rome", "Oslo"])[classes],
        "age": rng.integers(18, 90, num_nodes),
        HOSTILE_COLUMN: rng.normal(size=num_nodes),
        "since": pa.array(days, pa.date32()),
        "nothing": pa.nulls(num_nodes, pa.string()),
        "label": np.array(["blue", "green", "red"])[classes],
    })  # fmt: skip
    ends = {name: [f"n{at}" for at in side] for name, side in zip(("source", "target"), edges, strict=True)}
    amounts = {"amount": rng.random(edges.shape[1]), "way": rng.choice(["cash", "card"], edges.shape[1])}
    pq.write_table(nodes, path.parent / "nodes.parquet")
    pq.write_table(pa.table(ends | (amounts if edge_columns else {})), path.parent / "edges.parquet")
    given = files(path.parent / "edges.parquet", nodes=path.parent / "nodes.parquet",
                  edge_feature_columns="amount,way" if edge_columns else None)  # fmt: skip
    return ingest(given, path, IngestConfig(undirected=True), threads=1)


def small(*overrides: str, recipe: str = "base") -> Config:
    """A quick configuration of the recipe's model, or of the one that `overrides` name."""
    names = [one.partition("=")[2] for one in overrides if one.startswith("model.name=")]
    name = names[-1] if names else Config.from_recipe(recipe).model.name
    return Config.from_recipe(recipe, [*small_settings(name), *overrides])


def timeless(tree: Any) -> Any:
    """The same without what a clock says."""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if key not in TIMINGS}
    return [timeless(item) for item in tree] if isinstance(tree, list) else tree


def history(run: Path) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


def final(run: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = timeless(json.loads((run / "metrics.json").read_text()))
    return metrics


def all_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def array_path(folder: Path, name: str) -> Path:
    """The file of an array in a store, a preparation or a stage with one version."""
    (found,) = folder.glob(f"{name}-*.npy")
    return found


def prepared_folder(store: Path) -> Path:
    """The only preparation of a store."""
    (found,) = (store / "prepared").glob("*/manifest.json")
    return found.parent


def stage_array(store: Path, name: str) -> Path:
    """The file of an array in a stage of the only preparation."""
    (found,) = (store / "prepared").glob(f"*/*/{name}-*.npy")
    return found


def refusal(call: Callable[[], Any]) -> str:
    """What an error says that a user can mend: one line."""
    with pytest.raises(LargeGTError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left_in(folder: Path) -> list[str]:
    """Everything below a folder, hidden things too."""
    return sorted(str(item.relative_to(folder)) for item in folder.rglob("*"))


# the command line in this process


@dataclass
class Result:
    code: int
    out: str
    err: str

    def __iter__(self) -> Iterator[Any]:
        """`code, out, err = lg("datasets")`."""
        return iter((self.code, self.out, self.err))

    @property
    def json(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Cli = Callable[..., Result]


@pytest.fixture
def lg(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`lg("inspect", path)`: the command line in this process."""

    def call(*arguments: Any) -> Result:
        monkeypatch.setattr(sys, "argv", ["largegt", *(str(argument) for argument in arguments)])
        monkeypatch.setenv("LARGEGT_TRUST_REMOTE", "")  # --trust-remote sets it for the whole process
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as leave:
            code = leave.code
        out, err = capsys.readouterr()
        return Result(0 if code is None else code, out, err)

    return call


class Killed(BaseException):
    """Stands for a kill: not even `except Exception` sees it."""


@contextmanager
def stopped_at(where: Any, name: str, call: int, error: type[BaseException] = Killed) -> Iterator[None]:
    """Inside, the so-manyth call of `where.name` raises `error`, which must come out."""
    real, calls = getattr(where, name), 0

    def fail(*args: Any, **rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return real(*args, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, fail)
        with pytest.raises(error):
            yield


def check_resumed(store: GraphStore, config: Config, folder: Path, where: Any, name: str, call: int) -> None:
    """A training that was interrupted at the so-manyth call of `where.name` and resumed equals one that was not."""
    train(store, config, folder / "whole")
    with stopped_at(where, name, call, KeyboardInterrupt):
        train(store, config, folder / "broken")
    train(store, config, folder / "broken", resume=True)
    assert history(folder / "broken") == history(folder / "whole")
    assert final(folder / "broken") == final(folder / "whole")
