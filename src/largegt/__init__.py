"""largegt: graph transformers for one very large graph.

    import largegt as lg

    store    = lg.ingest(lg.sources.arrays(edge_index, features, labels), out="data/g")
    run      = lg.train(store, lg.Config.from_recipe("default"), out="runs/a")
    scores   = lg.evaluate("runs/a", split="test")
    lg.predict("runs/a", out="predictions.parquet")

Names are loaded when first used: importing this package is cheap and has no side effects.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "sources": ".data.sources",
    "ingest": ".data.ingest",
    "append": ".data.append",
    "clean": ".data.versions",
    "GraphStore": ".data.store",
    "local_nodes": ".prepare.local_nodes",
    "prepare": ".prepare.pipeline",
    "Prepared": ".prepare.prepared",
    "PrepareConfig": ".config",
    "IngestConfig": ".config",
    "ModelConfig": ".config",
    "TrainConfig": ".config",
    "Config": ".config",
    "TokenBatch": ".tokens.input_tokens",
    "token_batches": ".tokens.loader",
    "LargeGT": ".model.largegt",
    "Run": ".training.run",
    "train": ".training.loop",
    "evaluate": ".training.evaluate",
    "predict": ".predict",
    "predict_new": ".new_nodes",
    "embed": ".embed",
    "nearest_nodes": ".embed",
    "explain": ".explain.node",
    "report": ".report.page",
    "reproduce": ".experiments.reproduce",
    "synthetic": ".datasets.synthetic",
    "tune": ".tuning.tune",
    "auto_config": ".auto",
    "LargeGTClassifier": ".estimators",
    "LargeGTRegressor": ".estimators",
    "pyg": ".pyg",
    "from_pyg": ".pyg",
    "to_pyg": ".pyg",
    "LargeGTError": ".errors",
}
_MODULES = ("sources", "pyg")

if TYPE_CHECKING:
    from . import pyg
    from .auto import auto_config
    from .config import Config, IngestConfig, ModelConfig, PrepareConfig, TrainConfig
    from .data import sources
    from .data.append import append
    from .data.ingest import ingest
    from .data.store import GraphStore
    from .data.versions import clean
    from .datasets.synthetic import synthetic
    from .embed import embed, nearest_nodes
    from .errors import LargeGTError
    from .estimators import LargeGTClassifier as LargeGTClassifier
    from .estimators import LargeGTRegressor as LargeGTRegressor
    from .experiments.reproduce import reproduce
    from .explain.node import explain
    from .model.largegt import LargeGT
    from .new_nodes import predict_new
    from .predict import predict
    from .prepare.local_nodes import local_nodes
    from .prepare.pipeline import prepare
    from .prepare.prepared import Prepared
    from .pyg import from_pyg, to_pyg
    from .report.page import report
    from .tokens.input_tokens import TokenBatch
    from .tokens.loader import token_batches
    from .training.evaluate import evaluate
    from .training.loop import train
    from .training.run import Run
    from .tuning.tune import tune

__all__ = [
    "Config", "GraphStore", "IngestConfig", "LargeGT", "LargeGTError", "ModelConfig", "PrepareConfig", "Prepared",
    "Run", "TokenBatch", "TrainConfig", "__version__", "append", "auto_config", "clean", "embed", "evaluate", "explain",
    "from_pyg", "ingest", "local_nodes", "nearest_nodes", "predict", "predict_new", "prepare", "pyg", "report",
    "reproduce", "sources", "synthetic", "to_pyg", "token_batches", "train", "tune",
]  # fmt: skip
_OF_EXTRAS = ("LargeGTClassifier", "LargeGTRegressor")  # a star must not ask for what is not installed


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'largegt' has no attribute {name!r}")
    home = import_module(_HOMES[name], __name__)
    value = home if name in _MODULES else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_OF_EXTRAS))


class _Package(ModuleType):
    """Keeps `lg.prepare`, `lg.predict` and `lg.ingest` the functions they are documented to be: importing a
    submodule would otherwise put the module of the same name in their place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and name not in _MODULES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
