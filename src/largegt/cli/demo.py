"""The demo: the whole walk on the graph that ships with the package, from edges to a page to look at.

Leaves in its folder: `graph/` (the store), `runs/` (one run folder per model), `predictions.parquet`, `report.html`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from largegt.types import PathLike


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    scores: dict[str, dict[str, float]]
    """Accuracy on valid and test: of the majority class, the MLP and LargeGT."""
    metrics: dict[str, Any]
    """metrics.json of the LargeGT run."""
    folder: Path
    page: Path


def demo(
    out: PathLike = "largegt-demo", seed: int = 0, progress: Progress | None = None, epochs: int | None = None
) -> DemoResult:
    """Ingest, prepare, train an MLP and LargeGT, predict, report. Running it again replaces what it left. `epochs` are
    those of each model, instead of what its recipe says."""
    folder = Path(out)
    seeded = [f"train.seed={seed}", *([] if epochs is None else [f"train.epochs={epochs}"])]
    store = ingest(
        demo_source(),
        folder / "graph",
        IngestConfig(undirected=True, feature_dtype="float16"),
        overwrite=True,
        progress=progress,
    )
    config = Config.from_recipe("demo", seeded)
    prepared = prepare(store, config.preparation, progress=progress)
    runs = [
        train(store, Config.from_recipe("demo-mlp", seeded), folder / "runs" / "mlp", overwrite=True,
              progress=progress),
        train(prepared, config, folder / "runs" / config.model.name, overwrite=True, progress=progress),
    ]  # fmt: skip
    predict(runs[-1].path, folder / "predictions.parquet", split="test", progress=progress, overwrite=True)
    majority = majority_scores(prepared)
    scores = {"majority class": majority} | {
        run.path.name: {split: run.metrics[split]["accuracy"] for split in ("valid", "test")} for run in runs
    }
    page = report(
        [run.path for run in runs],
        folder / "report.html",
        title=f"largegt demo: {store.name}",
        baselines={"majority class": majority},
        progress=progress,
    )
    return DemoResult(scores, runs[-1].metrics, folder, page)
