"""Run: the folder that a training writes.

config.toml         the whole configuration and the relative path of the data: enough to repeat the run
metrics.jsonl       one line per epoch; also as metrics.csv for spreadsheets and tensorboard/ for TensorBoard
metrics.json        the final scores, at the best validation epoch
model.safetensors   the weights of that epoch
checkpoints/        the state that --resume continues from
checksums.json      the checksum of each of these files (run_checksums.py)
analysis.json       results of `largegt report` for these weights, if it has run
"""

from __future__ import annotations

import logging
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from largegt.config.models import UnknownModelError
from largegt.config.overrides import build, to_toml
from largegt.config.schema import Config, TrainConfig
from largegt.data.store import GraphStore
from largegt.data.versions import earlier_state, is_branch, register
from largegt.errors import ConfigError, FormatError, InputError, LargeGTError, first_line
from largegt.io import remote
from largegt.models.base import NodeModel
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.progress import Progress
from largegt.runtime.summary import Summary
from largegt.types import PathLike

from .log import EpochEntry, FinalEntry, parse_metrics
from .metrics import TaskHead
from .run_checksums import check_file, replacing
from .setup import build_model

_log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Run(Summary):
    """A run folder, opened."""

    path: Path
    config: Config
    store_path: Path
    store_fingerprint: str

    @classmethod
    def create(cls, path: PathLike, config: Config, store: GraphStore) -> Run:
        """Create a run folder with its `config.toml`."""
        run = cls(Path(path), config, Path(store.path).resolve(), store.fingerprint)
        run.path.mkdir(parents=True, exist_ok=True)
        data = {
            "store": store.folder.url or os.path.relpath(run.store_path, run.path.resolve()),
            "fingerprint": run.store_fingerprint,
            "absolute": store.folder.url or str(run.store_path),
        }
        with replacing(run.path) as folder:
            text = to_toml({"data": data, **config.model_dump(mode="json")})
            (folder / "config.toml").write_text(text, encoding="utf-8", newline="")
        try:
            register(store, run.path)
        except (LargeGTError, OSError) as error:
            _log.warning(
                "%s is not registered in its store (%s): `largegt clean` may remove the version it was trained on",
                run.path, first_line(error),
            )  # fmt: skip
        return run

    @classmethod
    def open(cls, run: PathLike | Run) -> Run:
        """Open the run at a path; return a Run as it is."""
        if isinstance(run, Run):
            return run
        remote.refuse_url(run, "a run")
        path = Path(run)
        file = path / "config.toml"
        if not file.is_file():
            if (path / "manifest.json").is_file():
                raise InputError(
                    f"{path} is not a run but a store: train first, `lg.train({str(path)!r}, out='runs/a')`"
                )
            raise InputError(
                f"{path} is not a run: it has no config.toml; `lg.train('STORE', out={str(path)!r})` makes one"
            )
        check_file(path, file)
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
            data = tree.pop("data")
            return cls(path, build(Config, tree), _store_path(path, data), str(data["fingerprint"]))
        except UnknownModelError as error:
            raise ConfigError(f"{file}: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise FormatError(
                f"{file} is no run's configuration ({first_line(error)}): delete {path} and train again"
            ) from error

    def summary(self) -> tuple[str, dict[str, object], str]:
        what = f"{self.config.model.name} on {remote.shown(self.store_path)}"
        if not (self.path / "metrics.json").is_file():
            return what, {f"of {self.config.train.epochs} epochs": len(self.history)}, str(self.path)
        found = self.metrics
        scores = {
            f"{split} {name}": found[split][name] for split in ("valid", "test") for name in list(found[split])[1:2]
        }
        return what, {"epochs": found["epochs"], "parameters": found["num_parameters"], **scores}, str(self.path)

    def evaluate(self, split: str = "test", **options: Any) -> dict[str, float]:
        """Scores of the best weights on a split: `lg.evaluate`, which has the options."""
        from .evaluate import evaluate

        return evaluate(self, split, **options)

    def predict(self, out: PathLike | None = None, **options: Any) -> pa.Table:
        """Predictions of the nodes of its store: `lg.predict`, which has the options."""
        from largegt import predict

        return predict(self, out, **options)

    @property
    def metrics(self) -> dict[str, Any]:
        """metrics.json: the final scores."""
        file = self.path / "metrics.json"
        if not file.is_file():
            raise InputError(
                f"{self.path} has not finished: `lg.train(resume=True, out={str(self.path)!r})` goes on with it"
            )
        check_file(self.path, file)
        return parse_metrics(file, file.read_text(encoding="utf-8", errors="replace"), FinalEntry)

    @property
    def history(self) -> list[dict[str, Any]]:
        """metrics.jsonl: one entry per epoch."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        check_file(self.path, file)
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [parse_metrics(file, line, EpochEntry) for line in lines if line]

    def train_config(self, device: str | None = None) -> TrainConfig:
        """The training settings, with another device if one is given."""
        tree = self.config.train.model_dump(mode="json") | ({"device": device} if device else {})
        return build(TrainConfig, tree)

    def store(self) -> GraphStore:
        """The version of the store that the run was trained on."""
        self._require_store()
        try:
            return GraphStore.open(self.store_path, version=self.store_fingerprint)
        except InputError as error:
            raise InputError(
                f"{remote.shown(self.store_path)} no longer has the version that {self.path} was trained on "
                f"({self.store_fingerprint}): put the old store back, or train again"
            ) from error

    def newest_store(self) -> GraphStore:
        """The newest version of the store; the run's own version if that is a branch with its own labels."""
        self._require_store()
        store = GraphStore.open(self.store_path)
        if store.fingerprint != self.store_fingerprint:
            with suppress(InputError):
                if is_branch(own := self.store()):
                    return own
            if earlier_state(store, self.store_fingerprint) is None:
                raise FormatError(
                    f"{store.place} was replaced by another graph since {self.path} was trained on it: put the old "
                    "store back, or train again"
                )
            if self.config.model.name == "linkx":
                raise ConfigError(
                    f"{store.place} has grown since {self.path} was trained on it, and linkx has weights for each "
                    "node: train again"
                )
        return store

    def _require_store(self) -> None:
        remote.refresh(self.store_path)
        if not self.store_path.exists():
            raise InputError(
                f"the store of {self.path} is no longer at {remote.shown(self.store_path)}: put it back, or change "
                f"[data] store in {self.path / 'config.toml'}"
            )

    def prepared(
        self, progress: Progress | None = None, reachable: bool = False, memory: str | int | None = None,
        store: GraphStore | None = None,
    ) -> Prepared:  # fmt: skip
        """The preparation that the run was trained on, recomputed if it was deleted. `store`: prepare this version of
        the store instead. `reachable`: with token rows of all reachable nodes, for new samples."""
        config = self.config.preparation
        return prepare(
            store or self.store(), config.reachable() if reachable else config, progress=progress, memory=memory,
            version=self.store_fingerprint,
        )  # fmt: skip

    def head(self, prepared: Prepared) -> TaskHead:
        return TaskHead.for_training(prepared, self.config.train)

    def load_model(self, prepared: Prepared) -> NodeModel:
        """The model with the weights of the best epoch."""
        model = build_model(self.config.model, prepared)
        self.load_weights(model)
        return model.eval()

    def load_weights(self, model: NodeModel) -> None:
        """Load the weights of the best epoch into a model of this run."""
        from safetensors.torch import load

        file = self.path / "model.safetensors"
        if not file.is_file():
            raise InputError(f"{self.path} has no weights yet: train it to its first validation")
        check_file(self.path, file)
        try:
            model.load_state_dict(load(file.read_bytes()))  # load_file leaks some memory per file
        except Exception as error:
            raise FormatError(
                f"{file} does not fit the model of {self.path / 'config.toml'}: {first_line(error)}"
            ) from error


def _store_path(path: Path, data: dict[str, Any]) -> Path:
    """The path of a run's store: the recorded relative path, valid if run and store moved together; or the recorded
    absolute path, valid if only the run moved. A URL stays as it is."""
    if remote.is_url(data["store"]):
        return remote.local_path(data["store"], named_by=path)
    relative = Path(os.path.normpath(path.resolve() / data["store"]))
    absolute = Path(os.path.abspath(data["absolute"]))  # abspath, so that the value is never read as a URL
    return absolute if absolute.exists() and not relative.exists() else relative


def store_to_train_on(place: PathLike, out: Path, resume: bool) -> GraphStore:
    """The newest version of a store; for a resumed run, the version that the run was started on."""
    if resume and (out / "config.toml").is_file():
        with suppress(InputError):  # another store: the caller raises the error
            return GraphStore.open(place, version=Run.open(out).store_fingerprint)
    return GraphStore.open(place)


def run_to_resume(out: Path, resume: bool, is_configured: bool) -> tuple[GraphStore, Config]:
    """The store and the configuration of the run that a training without a store goes on with."""
    if not resume:
        raise InputError("which store? `lg.train('data/g', out='runs/a')`, or `resume=True` to go on with a run")
    run = Run.open(out)
    if is_configured:
        raise InputError("`resume=True` without a store goes on with the run's own settings: leave out `config`")
    return run.store(), run.config
