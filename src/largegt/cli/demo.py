"""The demo: all stages on the graph that ships with the package, from edges to a report.

Leaves in its folder: `graph/` (the store), `runs/` (one run folder per model), `predictions.parquet`, `report.html`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from largegt.config.schema import Config, IngestConfig
from largegt.data.ingest import ingest
from largegt.datasets.demo import demo_source
from largegt.inference.predictor import predict
from largegt.preprocessing.pipeline import prepare
from largegt.reporting.page import report
from largegt.runtime.progress import Progress
from largegt.training.evaluate import majority_scores
from largegt.training.trainer import train


def demo(
    folder: Path, seed: int = 0, progress: Progress | None = None, epochs: int | None = None
) -> tuple[dict[str, dict[str, float]], dict[str, Any], Path]:
    """Ingest, prepare, train an MLP and LargeGT, predict, report. Replaces the results of an earlier demo. `epochs`
    overrides the recipe of each model.

    Returns: accuracy on valid and test of the majority class, the MLP and LargeGT; the metrics of LargeGT; the page.
    """
    seeded = [f"train.seed={seed}", *([] if epochs is None else [f"train.epochs={epochs}"])]
    settings = IngestConfig(undirected=True, feature_dtype="float16")
    store = ingest(demo_source(), folder / "graph", settings, overwrite=True, progress=progress)
    config, mlp = (Config.from_recipe(recipe, seeded) for recipe in ("demo", "demo-mlp"))
    prepared = prepare(store, config.preparation, progress=progress)
    runs = [
        train(store, mlp, folder / "runs" / "mlp", overwrite=True, progress=progress),
        train(prepared, config, folder / "runs" / config.model.name, overwrite=True, progress=progress),
    ]
    predict(runs[-1], folder / "predictions.parquet", split="test", progress=progress, overwrite=True)
    majority = {"majority class": majority_scores(prepared)}
    scores = {run.path.name: {split: run.metrics[split]["accuracy"] for split in ("valid", "test")} for run in runs}
    title = f"largegt demo: {store.name}"
    paths = [run.path for run in runs]
    page = report(paths, folder / "report.html", title=title, baselines=majority, progress=progress)
    return majority | scores, runs[-1].metrics, page
