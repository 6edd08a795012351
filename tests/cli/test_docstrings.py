"""The docstrings of the names that people start from are whole, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch

import largegt as lg
from run_helpers import FULL, homophilous, one_thread  # noqa: F401

ENTRY_POINTS = {
    "ingest": lg.ingest, "prepare": lg.prepare, "train": lg.train, "evaluate": lg.evaluate, "predict": lg.predict,
    "embed": lg.embed, "explain": lg.explain, "report": lg.report, "tune": lg.tune,
    "GraphStore.open": lg.GraphStore.open, "local_nodes": lg.local_nodes, "token_batches": lg.token_batches,
    "LargeGT": lg.LargeGT, "LargeGTClassifier": lg.LargeGTClassifier,
}  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What examples may name; data/g is a store and runs/a a run of LargeGT in the current folder."""
    folder = tmp_path_factory.mktemp("examples")
    edge_index, features, labels = homophilous()
    store = lg.ingest(lg.sources.arrays(edge_index, features, labels), out=folder / "data" / "g")
    run = lg.train(store, lg.Config.from_recipe("base", [*FULL, "train.epochs=1"]), out=folder / "runs" / "a")
    arrays = {"edge_index": edge_index, "features": features, "labels": labels}
    return {"lg": lg, "np": np, "torch": torch, "store": store, "prepared": run.prepared(), "folder": folder, **arrays}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_example_runs(name: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "tune":
        pytest.importorskip("optuna")
    monkeypatch.chdir(names["folder"])
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(ENTRY_POINTS[name]) or "", dict(names), name, None, 0)
    assert parsed.examples
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(parsed, out=said.append)
    assert not result.failed, "".join(said)


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_argument_is_described(name: str) -> None:
    text = inspect.getdoc(ENTRY_POINTS[name]) or ""
    sections = re.findall(r"^(Args|Returns|Raises|Examples):$", text, flags=re.MULTILINE)
    assert sections == [part for part in ("Args", "Returns", "Raises", "Examples") if part in sections]
    assert {"Args", "Examples"} <= set(sections)
    assert name == "LargeGT" or {"Returns", "Raises"} <= set(sections)
    described = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    ([a-z][\w, ]*):", described, flags=re.MULTILINE)
    found = [one for entry in entries for one in entry.split(", ")]
    assert found == [one for one in inspect.signature(ENTRY_POINTS[name]).parameters if one != "self"]
