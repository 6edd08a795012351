"""The public names, the ten lines of the package's own text, and the demo."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import largegt as lg
from largegt.config.schema import Config
from largegt.data.sources import arrays
from largegt.datasets.demo import demo_source
from run_helpers import SMALL, homophilous, left_in, one_thread  # noqa: F401


@pytest.mark.parametrize("name", lg.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(lg, name) is not None
    assert name in dir(lg)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        lg.nonsense  # noqa: B018


def test_no_module_is_named_like_a_public_function() -> None:
    functions = [name for name in lg.__all__ if isinstance(getattr(lg, name), FunctionType)]
    assert "predict" in functions
    assert [name for name in functions if importlib.util.find_spec(f"largegt.{name}") is not None] == []


@pytest.mark.slow
def test_functions_stay_functions_in_a_fresh_process_whatever_comes_first() -> None:
    code = """
import largegt.preprocessing.prepared, largegt.reporting.page, largegt.data.ingest, largegt.training.trainer
import largegt as lg
from largegt import predict, prepare, report, ingest, train, evaluate
names = (lg.predict, lg.prepare, lg.report, lg.ingest, lg.train, lg.evaluate, predict, prepare)
print([type(x).__name__ for x in names])
"""
    env = os.environ | {"PYTHONPATH": str(Path(lg.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str(["function"] * 8), done.stderr


def test_importing_is_cheap() -> None:
    code = "import sys, largegt; print([m for m in ('torch', 'numpy', 'pyarrow', 'pydantic') if m in sys.modules])"
    env = os.environ | {"PYTHONPATH": str(Path(lg.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.slow
def test_the_ten_lines_of_the_package_text_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The docstring itself is run; only the recipe is made small."""
    monkeypatch.chdir(tmp_path)
    real = Config.from_recipe.__func__  # type: ignore[attr-defined]
    small = classmethod(lambda cls, recipe="default", overrides=(): real(cls, recipe, [*overrides, *SMALL]))
    monkeypatch.setattr(Config, "from_recipe", small)
    text = lg.__doc__ or ""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) >= 5
    edge_index, features, labels = homophilous()
    names: dict[str, Any] = {"edge_index": edge_index, "features": features, "labels": labels}
    exec("\n".join(lines), names)
    assert 0 <= names["scores"]["accuracy"] <= 1
    assert pq.read_table(tmp_path / "predictions.parquet").num_rows == 150
    assert names["run"].metrics["test"] == names["scores"]


@pytest.mark.slow
def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    """`lg.LargeGT` is a plain nn.Module: the loop of the design, which casts no labels."""
    import torch
    from torch.nn import functional as F

    edges, features, labels = homophilous()
    store = lg.ingest(lg.sources.arrays(edges, features, labels), out=tmp_path / "g")
    prepared = lg.prepare(store, Config.from_recipe("base", SMALL).prepare)
    torch.manual_seed(0)
    model = lg.LargeGT.for_prepared(prepared, lg.LargeGTConfig(hidden_dim=8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(5):
        for batch in lg.token_batches(prepared, split="train", batch_size=25, seed=0, epoch=epoch):
            out = model(batch)
            loss = F.cross_entropy(out.logits, batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.update_codebook(out)
            losses.append(loss.item())
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


def test_public_functions_are_documented() -> None:
    for name in lg.__all__:
        value = getattr(lg, name)
        if name != "__version__":
            assert inspect.getdoc(value), name


# the demo


def test_the_graph_in_the_package() -> None:
    source = demo_source()
    folder = resources.files("largegt") / "datasets"
    assert "WordNet" in (folder / "WORDNET-LICENSE.txt").read_text(encoding="utf-8")
    with (folder / "wordnet31-lite.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as data:
        assert data["edge_index"].shape == (2, 184_083)
        assert data["features"].shape == (117_791, 48)
        assert len(data["label_names"]) == 45
        assert len(np.unique(data["labels"])) == 45
        assert [int((data["split"] == code).sum()) for code in (1, 2, 3)] == [58_895, 29_448, 29_448]
        assert data["edge_index"].min() >= 0
        assert data["edge_index"].max() < 117_791
    assert source.features is not None
    assert source.features.num_rows == 117_791
    assert source.name == "wordnet31-lite"


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo over the first 2,000 synsets and for one epoch: the same path through the code."""
    home = importlib.import_module("largegt.cli.demo")
    with (resources.files("largegt") / "datasets" / "wordnet31-lite.npz").open("rb") as stream:
        data = dict(np.load(stream, allow_pickle=False))
    keep = (data["edge_index"] < 2000).all(axis=0)
    splits = {name: data["split"][:2000] == code for code, name in enumerate(("train", "valid", "test"), start=1)}
    source = arrays(
        data["edge_index"][:, keep], data["features"][:2000].astype(np.float32) * 0.25,
        data["label_names"][data["labels"][:2000]], splits, name="wordnet31-lite",
    )  # fmt: skip
    real = Config.from_recipe.__func__  # type: ignore[attr-defined]
    shrink = ["prepare.local_nodes.k=4", "model.hidden_dim=16", "train.epochs=1"]
    small = classmethod(lambda cls, recipe="default", overrides=(): real(cls, recipe, [*overrides, *shrink]))
    monkeypatch.setattr(home, "demo_source", lambda: source)
    monkeypatch.setattr(Config, "from_recipe", small)


def test_the_demo(
    small_demo: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from largegt import cli

    out = tmp_path / "demo"
    for arguments in (["--json"], []):  # the second time over what the first left
        monkeypatch.setattr(sys, "argv", ["largegt", "demo", "--out", str(out), "--seed", "1", *arguments])
        with pytest.raises(SystemExit) as leave:
            cli.main()
        assert not leave.value.code
        printed = capsys.readouterr().out
        if arguments:
            result = json.loads(printed)
            assert list(result["scores"]) == ["majority class", "mlp", "largegt-full"]
            for scores in result["scores"].values():
                assert 0 <= scores["valid"] <= 1
                assert 0 <= scores["test"] <= 1
            assert result["metrics"]["seed"] == 1
        else:
            assert "majority class" in printed
            assert "report.html" in printed
    assert {item.name for item in out.iterdir()} == {"graph", "runs", "predictions.parquet", "report.html"}
    assert {item.name for item in (out / "runs").iterdir()} == {"mlp", "largegt-full"}
    labels = pq.read_table(out / "predictions.parquet")["label"].to_pylist()
    assert all("." in label for label in labels)
    assert "majority class" in (out / "report.html").read_text()
    assert not [name for name in left_in(tmp_path) if "partial" in name or ".old" in name]
