"""largegt: graph transformers for one very large graph.

    import largegt as lg

    store    = lg.ingest(lg.sources.arrays(edge_index, features, labels), out="data/g")
    run      = lg.train(store, out="runs/a")
    scores   = lg.evaluate("runs/a", split="test")
    lg.predict("runs/a", out="predictions.parquet")

Names are imported on first use, so importing this package is cheap and has no side effects.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "sources": ".data.sources",
    "ingest": ".data.ingest",
    "append": ".data.append",
    "clean": ".data.versions",
    "GraphStore": ".data.store",
    "local_nodes": ".preprocessing.sampling.local_nodes",
    "prepare": ".preprocessing.pipeline",
    "Prepared": ".preprocessing.prepared",
    "PrepareConfig": ".config.schema",
    "IngestConfig": ".config.schema",
    "ModelConfig": ".config.models",
    "LargeGTConfig": ".config.models",
    "model_config": ".config.models",
    "register_model": ".config.models",
    "register_metric": ".training.metrics",
    "NodeModel": ".models.base",
    "NodeOutput": ".models.base",
    "TrainConfig": ".config.schema",
    "Config": ".config.schema",
    "TokenBatch": ".loader.batch",
    "token_batches": ".loader.loader",
    "LargeGT": ".models.largegt.model",
    "Run": ".training.run",
    "train": ".training.trainer",
    "evaluate": ".training.evaluate",
    "predict": ".inference.predictor",
    "predict_new": ".inference.new_nodes",
    "embed": ".inference.embed",
    "nearest_nodes": ".inference.embed",
    "explain": ".explanation.node",
    "report": ".reporting.page",
    "reproduce": ".experiments.reproduce",
    "synthetic": ".datasets.synthetic",
    "generate": ".datasets.synthetic",
    "tune": ".auto.tuning.tune",
    "auto_config": ".preprocessing.auto_config",
    "LargeGTClassifier": ".integrations.sklearn",
    "LargeGTRegressor": ".integrations.sklearn",
    "pyg": ".integrations.pyg",
    "from_pyg": ".integrations.pyg",
    "to_pyg": ".integrations.pyg",
    "LargeGTError": ".errors",
    "InputError": ".errors",
    "ConfigError": ".errors",
    "FormatError": ".errors",
    "recipe_names": ".config.recipes",
}
_MODULES = ("sources", "pyg")

if TYPE_CHECKING:
    from .auto.tuning.tune import tune
    from .config.models import LargeGTConfig, ModelConfig, model_config, register_model
    from .config.recipes import recipe_names
    from .config.schema import Config, IngestConfig, PrepareConfig, TrainConfig
    from .data import sources
    from .data.append import append
    from .data.ingest import ingest
    from .data.store import GraphStore
    from .data.versions import clean
    from .datasets.synthetic import generate, synthetic
    from .errors import ConfigError, FormatError, InputError, LargeGTError
    from .experiments.reproduce import reproduce
    from .explanation.node import explain
    from .inference.embed import embed, nearest_nodes
    from .inference.new_nodes import predict_new
    from .inference.predictor import predict
    from .integrations import pyg
    from .integrations.pyg import from_pyg, to_pyg
    from .integrations.sklearn import LargeGTClassifier as LargeGTClassifier
    from .integrations.sklearn import LargeGTRegressor as LargeGTRegressor
    from .loader.batch import TokenBatch
    from .loader.loader import token_batches
    from .models.base import NodeModel, NodeOutput
    from .models.largegt.model import LargeGT
    from .preprocessing.auto_config import auto_config
    from .preprocessing.pipeline import prepare
    from .preprocessing.prepared import Prepared
    from .preprocessing.sampling.local_nodes import local_nodes
    from .reporting.page import report
    from .training.evaluate import evaluate
    from .training.metrics import register_metric
    from .training.run import Run
    from .training.trainer import train

__all__ = [
    "Config", "ConfigError", "FormatError", "GraphStore", "IngestConfig", "InputError", "LargeGT", "LargeGTConfig",
    "LargeGTError", "ModelConfig", "NodeModel", "NodeOutput", "PrepareConfig", "Prepared", "Run", "TokenBatch",
    "TrainConfig", "__version__", "append", "auto_config", "clean", "embed", "evaluate", "explain", "from_pyg",
    "generate", "ingest", "local_nodes", "model_config", "nearest_nodes", "predict", "predict_new", "prepare", "pyg",
    "recipe_names", "register_metric", "register_model", "report", "reproduce", "sources", "synthetic", "to_pyg",
    "token_batches", "train", "tune",
]  # fmt: skip
_OF_EXTRAS = ("LargeGTClassifier", "LargeGTRegressor")  # `import *` must work without the extras


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'largegt' has no attribute {name!r}")
    home = import_module(_HOMES[name], __name__)
    value = home if name in _MODULES else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_OF_EXTRAS))
