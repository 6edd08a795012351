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
    "sources": ".graph.sources",
    "ingest": ".graph.ingest",
    "GraphStore": ".graph.store",
    "local_nodes": ".prepare.local_nodes",
    "prepare": ".prepare.prepared",
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
    "report": ".report.page",
    "reproduce": ".experiments.reproduce",
    "synthetic": ".datasets.synthetic",
    "tune": ".tuning.tune",
    "auto_config": ".auto",
    "LargeGTError": ".errors",
}

if TYPE_CHECKING:
    from .auto import auto_config
    from .config import Config, IngestConfig, ModelConfig, PrepareConfig, TrainConfig
    from .datasets.synthetic import synthetic
    from .errors import LargeGTError
    from .experiments.reproduce import reproduce
    from .graph import sources
    from .graph.ingest import ingest
    from .graph.store import GraphStore
    from .model.largegt import LargeGT
    from .predict import predict
    from .prepare.local_nodes import local_nodes
    from .prepare.prepared import Prepared, prepare
    from .report.page import report
    from .tokens.input_tokens import TokenBatch
    from .tokens.loader import token_batches
    from .training.evaluate import evaluate
    from .training.loop import train
    from .training.run import Run
    from .tuning.tune import tune

__all__ = [
    "Config", "GraphStore", "IngestConfig", "LargeGT", "LargeGTError", "ModelConfig", "PrepareConfig", "Prepared",
    "Run", "TokenBatch", "TrainConfig", "__version__", "auto_config", "evaluate", "ingest", "local_nodes", "predict",
    "prepare", "report", "reproduce", "sources", "synthetic", "token_batches", "train", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'largegt' has no attribute {name!r}")
    home = import_module(_HOMES[name], __name__)
    value = home if name == "sources" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `lg.prepare`, `lg.predict` and `lg.ingest` the functions they are documented to be: importing a
    submodule would otherwise put the module of the same name in their place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and name != "sources" and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
