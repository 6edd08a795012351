"""Run: the folder that a training leaves.

config.toml         the whole configuration and where the data was: enough to run it again
metrics.jsonl       a line per epoch; metrics.csv the same for spreadsheets; tensorboard/ the same to look at
metrics.json        the final scores, at the epoch that was best on validation
model.safetensors   the weights of that epoch
checkpoints/        what --resume goes on from
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Config, build, to_toml
from ..errors import FormatError, InputError
from ..folder import write_text_atomically
from ..graph.store import GraphStore
from ..model.node_model import NodeModel
from ..prepare.prepared import Prepared, prepare
from ..progress import Progress
from ..types import PathLike
from .metrics import TaskHead
from .setup import build_model


@dataclass(frozen=True)
class Run:
    """A run folder, opened."""

    path: Path
    config: Config
    store_path: Path

    @classmethod
    def create(cls, path: PathLike, config: Config, store_path: PathLike) -> Run:
        """Write `config.toml` of a new run."""
        run = cls(Path(path), config, Path(store_path).resolve())
        run.path.mkdir(parents=True, exist_ok=True)
        tree = {"data": {"store": str(run.store_path)}, **config.model_dump(mode="json")}
        write_text_atomically(run.path / "config.toml", to_toml(tree))
        return run

    @classmethod
    def open(cls, path: PathLike) -> Run:
        """Open the run at `path`."""
        path = Path(path)
        file = path / "config.toml"
        if not file.is_file():
            raise InputError(f"{path} is not a run: it has no config.toml; largegt train STORE --out {path} makes one")
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
            store_path = tree.pop("data")["store"]
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise FormatError(f"{file} is damaged ({error}); train again") from error
        return cls(path, build(Config, tree), Path(store_path))

    @property
    def metrics(self) -> dict[str, Any]:
        """metrics.json: the final scores."""
        file = self.path / "metrics.json"
        if not file.is_file():
            raise InputError(f"{self.path} has not finished: largegt train --resume --out {self.path} goes on with it")
        metrics: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """metrics.jsonl: one entry per epoch."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]

    def store(self) -> GraphStore:
        """The store it was trained on."""
        if not self.store_path.exists():
            raise InputError(
                f"the store of {self.path} is no longer at {self.store_path}: put it back, or change "
                f"[data] store in {self.path / 'config.toml'}"
            )
        return GraphStore.open(self.store_path)

    def prepared(self, progress: Progress | None = None) -> Prepared:
        """The preparation it was trained on; made again if it was deleted."""
        return prepare(self.store(), self.config.prepare, progress=progress)

    def head(self, prepared: Prepared) -> TaskHead:
        return TaskHead.for_training(prepared, self.config.train)

    def load_model(self, prepared: Prepared) -> NodeModel:
        """The model with the weights of the best epoch."""
        from safetensors.torch import load_model

        file = self.path / "model.safetensors"
        if not file.is_file():
            raise InputError(f"{self.path} has no weights yet: train it to its first validation")
        model = build_model(self.config.model, prepared)
        try:
            load_model(model, str(file))
        except Exception as error:
            raise FormatError(
                f"{file} does not fit the model of {self.path / 'config.toml'}: {str(error).splitlines()[0]}"
            ) from error
        return model.eval()
