"""Run: the folder that a training leaves.

config.toml         the whole configuration and where the data is, seen from here: enough to run it again
metrics.jsonl       a line per epoch; metrics.csv the same for spreadsheets; tensorboard/ the same to look at
metrics.json        the final scores, at the epoch that was best on validation
model.safetensors   the weights of that epoch
checkpoints/        what --resume goes on from
checksums.json      what each of these is, so that a damaged one is found (checksums.py)
analysis.json       what `largegt report` found out about these weights, once it has
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import storage
from ..config import Config, TrainConfig
from ..errors import ConfigError, FormatError, InputError, first_line
from ..graph.lineage import earlier_state
from ..graph.store import GraphStore
from ..model.node_model import NodeModel
from ..prepare.making import prepare
from ..prepare.prepared import Prepared
from ..progress import Progress
from ..replacing import recover
from ..settings import build, to_toml
from ..types import PathLike
from .checksums import check_file, put_text
from .metrics import TaskHead
from .setup import build_model


@dataclass(frozen=True)
class Run:
    """A run folder, opened."""

    path: Path
    config: Config
    store_path: Path
    store_fingerprint: str

    @classmethod
    def create(cls, path: PathLike, config: Config, store: GraphStore) -> Run:
        """Write `config.toml` of a new run."""
        run = cls(Path(path), config, Path(store.path).resolve(), store.fingerprint)
        run.path.mkdir(parents=True, exist_ok=True)
        data = {
            "store": store.folder.url or os.path.relpath(run.store_path, run.path.resolve()),
            "fingerprint": run.store_fingerprint,
            "absolute": store.folder.url or str(run.store_path),
        }
        put_text(run.path, run.path / "config.toml", to_toml({"data": data, **config.model_dump(mode="json")}))
        return run

    @classmethod
    def open(cls, run: PathLike | Run) -> Run:
        """Open the run at a path; a Run stays as it is."""
        if isinstance(run, Run):
            return run
        storage.refuse_url(run, "a run")
        path = Path(run)
        file = path / "config.toml"
        if not file.is_file():
            if (path / "manifest.json").is_file():
                raise InputError(f"{path} is not a run but a store: train first, largegt train {path} --out runs/a")
            raise InputError(f"{path} is not a run: it has no config.toml; largegt train STORE --out {path} makes one")
        check_file(path, file)
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
            data = tree.pop("data")
            return cls(path, build(Config, tree), _store_of(path, data), str(data["fingerprint"]))
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise FormatError(
                f"{file} is no run's configuration ({first_line(error)}): delete {path} and train again"
            ) from error

    @property
    def metrics(self) -> dict[str, Any]:
        """metrics.json: the final scores."""
        file = self.path / "metrics.json"
        if not file.is_file():
            raise InputError(f"{self.path} has not finished: largegt train --resume --out {self.path} goes on with it")
        check_file(self.path, file)
        return _json(file, file.read_text(encoding="utf-8", errors="replace"))

    @property
    def history(self) -> list[dict[str, Any]]:
        """metrics.jsonl: one entry per epoch."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        check_file(self.path, file)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [_json(file, line) for line in lines if line]

    def train_config(self, device: str | None = None) -> TrainConfig:
        """The training's settings, on another device if one is named."""
        tree = self.config.train.model_dump(mode="json") | ({"device": device} if device else {})
        return build(TrainConfig, tree)

    def store(self) -> GraphStore:
        """The store it was trained on, or what that has become by appending to it."""
        storage.refresh(self.store_path)
        if not self.store_path.exists():
            recover(self.store_path)
        if not self.store_path.exists():
            raise InputError(
                f"the store of {self.path} is no longer at {storage.shown(self.store_path)}: put it back, or change "
                f"[data] store in {self.path / 'config.toml'}"
            )
        store = GraphStore.open(self.store_path)
        if store.fingerprint != self.store_fingerprint:
            if earlier_state(store, self.store_fingerprint) is None:
                raise FormatError(
                    f"{storage.shown(self.store_path)} has changed since {self.path} was trained on it: put the old "
                    "store back, or train again"
                )
            if self.config.model.name == "linkx":
                raise ConfigError(
                    f"{storage.shown(self.store_path)} has grown since {self.path} was trained on it, and linkx has "
                    "weights for each node: train again"
                )
        return store

    def prepared(
        self, progress: Progress | None = None, reachable: bool = False, memory: str | int | None = None
    ) -> Prepared:
        """The preparation it was trained on, made again if it was deleted; or one that other samples can be drawn
        from."""
        config = self.config.preparation
        return prepare(
            self.store(), config.reachable() if reachable else config, progress=progress, memory=memory,
            as_of=self.store_fingerprint,
        )  # fmt: skip

    def head(self, prepared: Prepared) -> TaskHead:
        return TaskHead.for_training(prepared, self.config.train)

    def load_model(self, prepared: Prepared) -> NodeModel:
        """The model with the weights of the best epoch."""
        from safetensors.torch import load

        file = self.path / "model.safetensors"
        if not file.is_file():
            raise InputError(f"{self.path} has no weights yet: train it to its first validation")
        check_file(self.path, file)
        model = build_model(self.config.model, prepared)
        try:
            model.load_state_dict(load(file.read_bytes()))  # its reader of files keeps some memory of every one
        except Exception as error:
            raise FormatError(
                f"{file} does not fit the model of {self.path / 'config.toml'}: {first_line(error)}"
            ) from error
        return model.eval()


def _store_of(path: Path, data: dict[str, Any]) -> Path:
    """Where a run's store is: where it was, seen from the run, so that both may be moved together; or where it was on
    this machine, so that a run may be moved alone. Runs from before know the second only. A URL is where it was."""
    if storage.is_url(data["store"]):
        return storage.local_path(data["store"], named_by=path)
    beside = Path(os.path.normpath(path.resolve() / data["store"]))
    before = Path(os.path.abspath(data.get("absolute", beside)))  # absolute, so that nobody takes it for a URL
    return before if before.exists() and not beside.exists() else beside


def _json(file: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{file} is damaged ({first_line(error)}); train again") from error
    if not isinstance(value, dict):
        raise FormatError(f"{file} is damaged: expected an object, found {type(value).__name__}; train again")
    return value
