"""Every recipe in the package, run from edges to predictions on a tiny graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from largegt.config import Config, recipe_names
from largegt.predict import predict
from largegt.training.evaluate import evaluate
from largegt.training.loop import train
from run_helpers import easy_store, one_thread  # noqa: F401

SHRINK = (
    "prepare.local_nodes.k=4", "prepare.positions.dim=4", "prepare.positions.walk_length=6",
    "prepare.positions.context=3", "prepare.positions.walks_per_node=1", "model.hidden=8",
    "model.codebook.centroids=8", "model.codebook.width=4", "train.epochs=1", "train.batch_size=40",
)  # fmt: skip
"""Only what makes a recipe big."""


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_runs_end_to_end(name: str, tmp_path: Path) -> None:
    config = Config.from_recipe(name)
    widths = [f"model.{key}head_width=4" for key, part in (("", config.model), ("codebook.", config.model.codebook))
              if part.head_width is not None]  # fmt: skip
    store = easy_store(tmp_path / "g")
    run = train(store, Config.from_recipe(name, [*SHRINK, *widths]), tmp_path / "run")
    assert run.metrics["epochs"] == 1
    assert np.isfinite(run.history[0]["train"]["loss"])
    assert evaluate(run.path) == run.metrics["test"]
    assert predict(run.path).num_rows == store.num_nodes
