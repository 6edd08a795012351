"""The runs of an experiment: trained once, reused later, resumed after a kill.

Enters: a dataset (the paper's, or a store's folder), models, forms, seeds. Leaves: finished run folders under OUT/runs/
with names such as `graphsage-original-seed2` and `largegt-full-k50-seed0`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from largegt.config.models import overrides_read
from largegt.config.recipes import recipe_names
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.io.locks import remove_stale
from largegt.runtime.progress import Progress, silent
from largegt.training.run import Run
from largegt.training.trainer import Watch, train
from largegt.types import PathLike

from .paper import DATASETS, DELTA_MODELS, OUR_MODELS


@dataclass(frozen=True)
class Experiment:
    """The models to compare, their data and settings."""

    store: GraphStore
    out: Path
    dataset: str
    """The paper's name for the data, or the store's own."""
    family: str
    """The paper's dataset whose recipes are used; empty for the general recipes."""
    runs: int
    models: tuple[str, ...]
    overrides: tuple[str, ...]
    progress: Progress = silent

    @classmethod
    def make(
        cls, dataset: PathLike, out: PathLike, runs: int, models: Iterable[str] | None, overrides: Iterable[str],
        like: str | None = None, progress: Progress | None = None,
    ) -> Experiment:  # fmt: skip
        """Check all arguments and configurations before training."""
        if runs < 1:
            raise ConfigError(f"runs is {runs}: it must be at least 1")
        store = open_dataset(dataset)
        name = str(dataset) if str(dataset) in DATASETS else store.name
        family = like or next((known for known in DATASETS if name.startswith(known)), "")
        if family and family not in DATASETS:
            raise ConfigError(f"like={family} is none of the paper's datasets: {', '.join(DATASETS)}")
        chosen = tuple(models or default_models(family))
        experiment = cls(store, Path(out), name, family, runs, chosen, tuple(overrides), progress or silent)
        for model in chosen:
            experiment.config(model)
        return experiment

    def config(self, model: str, original: bool = False, seed: int = 0, extra: Iterable[str] = ()) -> Config:
        """The configuration of one run: the model's recipe for this data, and the overrides."""
        found = recipe_of(self.family, model, original)
        if found is None:
            form, of = "original form" if original else "recipe", f" for {self.family}" if self.family else ""
            raise ConfigError(f"{model} has no {form}{of}")
        return Config.from_recipe(
            found[0], [*found[1], *overrides_read(self.overrides, model), *extra, f"train.seed={seed}"]
        )

    def run(
        self, model: str, seed: int, original: bool = False, extra: Iterable[str] = (), label: str = "",
        watch: Watch | None = None,
    ) -> Run:  # fmt: skip
        """The finished run, trained or resumed if necessary."""
        name = "-".join(part for part in (model, "original" if original else "", label, f"seed{seed}") if part)
        path, config = self.out / "runs" / name, self.config(model, original, seed, extra)
        is_started = (path / "config.toml").is_file() and Run.open(path).config == config
        if is_started and (path / "metrics.json").is_file():
            remove_stale(path)
            return Run.open(path)

        def show(stage: str, done: int, total: int | None) -> None:
            self.progress(f"{name}: {stage}", done, total)

        return train(self.store, config, path, resume=is_started, overwrite=not is_started, progress=show, watch=watch)

    def seeds(self, model: str, original: bool = False, extra: Iterable[str] = (), label: str = "") -> list[Run]:
        """A run per seed."""
        return [self.run(model, seed, original, extra, label) for seed in range(self.runs)]


def open_dataset(dataset: PathLike) -> GraphStore:
    """The store at a path, or the store of a paper's dataset in data/NAME."""
    path = Path(dataset)
    if str(dataset) in DATASETS and not path.exists():
        path = Path("data") / str(dataset)
        if not path.exists():
            raise InputError(
                f"{dataset} is not at {path}: largegt datasets download {dataset}, then "
                f"largegt datasets ingest {dataset} --out {path}"
            )
    return GraphStore.open(path)


def default_models(family: str) -> list[str]:
    """The paper's models that have a recipe."""
    return [model for model in (*DELTA_MODELS, *OUR_MODELS) if recipe_of(family, model)]


def recipe_of(family: str, model: str, original: bool = False) -> tuple[str, list[str]] | None:
    """The recipe of a model for a dataset, and overrides of it; None if there is none."""
    known, prefix = recipe_names(), f"{family.lower()}-" if family else ""
    name = f"{prefix}{model}{'-original' if original else ''}"
    if name in known:
        return name, []
    if original:
        return None
    if model not in (*DELTA_MODELS, *OUR_MODELS, *known) and not model.startswith("largegt"):
        return "base", [f"model.name={model}"]  # a registered one
    if not model.startswith("largegt"):
        return None
    if not family:
        return "default", [f"model.name={model}"]
    full = f"{prefix}largegt-full"
    return (full, [f"model.name={model}"]) if full in known and model == "largegt-global" else None
