"""Fuzzing folders of ours: stores and preparations (`manifest`), and runs (`checkpoint`), with damage in one file.

A manifest or an array is changed, then everything that later stages read is read. Damage in an array's bytes must be
found by `verify`; a run whose weights were changed must not load unless they are the same weights."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from largegt.cli.inspection import inspect
from largegt.cli.verification import verify
from largegt.config.schema import Config, IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.versions import clean, earlier_states, register
from largegt.errors import FormatError, LargeGTError
from largegt.io.checksums import sealed
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.checkpoint import TrainingState, load_checkpoint
from largegt.training.run import Run
from largegt.training.setup import build_model, make_accelerator
from largegt.training.trainer import train

from .cases import ACCEPTED, RIGHT, Wrong
from .mutations import damaged, disturb, odd_value

SMALL = (
    "prepare.local_nodes.k=3", "prepare.positional_encoding.dim=2", "model.hidden_dim=8",
    "train.epochs=1", "train.batch_size=8",
    "train.device=cpu", "train.precision=32-true",
)  # fmt: skip


def small_store(folder: Path, words: bool = True, shift: float = 0.0, overwrite: bool = False) -> GraphStore:
    """A store of 20 nodes, with text ids or without ids of their own."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 20, (2, 80))
    features, labels = rng.normal(size=(20, 3)).astype(np.float32) + shift, np.arange(20) % 3
    names = np.array([f"n{row}" for row in range(20)])
    source = sources.arrays(names[ends] if words else ends, features, labels, node_ids=names if words else None)
    return ingest(source, folder, IngestConfig(), overwrite, threads=1, memory=1 << 28)


class ManifestTarget:
    """Stores, older versions of them, preparations and stages with a damaged manifest or array."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "manifest"
        self._whole = folder / "whole"
        store = small_store(self._whole / "words")
        small_store(self._whole / "rows", words=False)
        prepared = prepare(store, Config.from_recipe("default", SMALL).preparation, threads=1)
        register(store, folder / "run")
        small_store(self._whole / "words", shift=1.0, overwrite=True)
        self._version, self._prepared = store.fingerprint, prepared.path.relative_to(store.path)
        self._parts = [Path(), Path(), self._prepared]
        self._parts += [stage.path.relative_to(store.path) for stage in prepared.stages.values()]

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        name = rng.choice(("words", "words", "words", "rows"))
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole / name, self._folder)
        original = {file: file.read_bytes() for file in self._folder.rglob("*") if file.is_file()}
        part = self._folder / (rng.choice(self._parts) if name == "words" else "")
        for step in steps:
            _harm(part, step)
        changed = {file for file, data in original.items() if not _has(file, data)}
        facts: dict[str, Any] = {}
        attempts: list[Callable[[], Any]] = [
            lambda: facts.update(inspect(self._folder)),
            lambda: _read_store(GraphStore.open(self._folder)),
            lambda: clean(self._folder, dry_run=True),
            lambda: _refuse_damaged(self._folder),
        ]
        if name == "words":
            attempts += [
                lambda: _read_store(GraphStore.open(self._folder, self._version)),
                lambda: _read_prepared(self._folder / self._prepared),
            ]
        errors = []
        for attempt in attempts:
            try:
                attempt()
            except LargeGTError as error:
                errors.append(error)
        json.dumps(facts, default=str)
        if not changed:
            if errors:
                raise Wrong(f"refused a folder that is whole: {errors[0]}")
            return RIGHT
        if any(file.suffix == ".npy" for file in changed) and not errors:
            raise Wrong(f"damage was not found: in {sorted(file.name for file in changed)}")
        if errors:
            raise errors[0]
        return ACCEPTED


class CheckpointTarget:
    """Runs with damage in their checkpoint, weights, metrics or configuration."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._folder = folder / "checkpoint"
        store = small_store(folder / "store")
        self._config = Config.from_recipe("default", SMALL)
        self._prepared = prepare(store, self._config.preparation, threads=1)
        self._whole = train(self._prepared, self._config, folder / "run").path
        self._weights = Run.open(self._whole).load_model(self._prepared).state_dict()
        self._files = ["checkpoints/last.pt", "model.safetensors", "metrics.json", "metrics.jsonl", "config.toml"]

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder, ignore=shutil.ignore_patterns("tensorboard"))
        original = {name: (self._folder / name).read_bytes() for name in self._files}
        for step in steps:
            self._harm(step)
        changed = [name for name, data in original.items() if not _has(self._folder / name, data)]
        errors = []
        for attempt in (self._read_run, self._read_weights, self._resume):
            try:
                attempt()
            except LargeGTError as error:
                errors.append(error)
        if errors and not changed:
            raise Wrong(f"refused a run that is whole: {errors[0]}")
        if errors:
            raise errors[0]
        return ACCEPTED if changed else RIGHT

    def _harm(self, rng: random.Random) -> None:
        file = self._folder / rng.choice(self._files)
        if file.suffix == ".json" and file.exists() and rng.random() < 0.5:
            harm_json(file, rng)
        elif rng.random() < 0.1:
            file.unlink(missing_ok=True)
        elif file.suffix == ".pt" and rng.random() < 0.4:
            torch.save(_other_checkpoint(file, rng), file)
        elif file.exists():
            file.write_bytes(damaged(file.read_bytes(), rng))

    def _read_run(self) -> None:
        run = Run.open(self._folder)
        inspect(self._folder)
        run.history  # noqa: B018 - reading is what is tried
        run.metrics  # noqa: B018

    def _read_weights(self) -> None:
        """Weights that load are finite, and the ones that were saved."""
        model = Run.open(self._folder).load_model(self._prepared)
        for name, tensor in model.state_dict().items():
            if not torch.equal(tensor, self._weights[name]):
                raise Wrong(f"damaged weights were loaded: {name}")

    def _resume(self) -> None:
        file = self._folder / "checkpoints" / "last.pt"
        if not file.exists():
            return
        model = build_model(self._config.model, self._prepared)
        config = self._config.train
        progress = load_checkpoint(
            file, TrainingState.make(model, config, make_accelerator(config)), torch.device("cpu")
        )
        if not isinstance(progress.epoch, int) or progress.epoch < 0:
            raise Wrong(f"an impossible number of epochs was resumed from: {progress.epoch!r}")


def _refuse_damaged(folder: Path) -> None:
    for damage in verify(folder).damaged:
        raise FormatError(str(damage))


def _has(file: Path, data: bytes) -> bool:
    return file.is_file() and file.read_bytes() == data


def _harm(folder: Path, rng: random.Random) -> None:
    """Damage one file of a folder of arrays."""
    arrays = sorted(file for file in folder.glob("*.npy"))
    if rng.random() < 0.6 or not arrays:
        others = [*folder.glob("versions/*.json"), *folder.glob("refs/*.json")]
        harm_json(rng.choice([folder / "manifest.json", *sorted(others)]), rng)
        return
    file = rng.choice(arrays)
    kind = rng.randrange(4)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        try:
            array = np.load(file, allow_pickle=False)
        except Exception:
            return
        other = [
            array.astype("f8"),
            array[:-1],
            np.concatenate([array, array[:1]]),
            array.reshape(-1),
            array[..., None],
        ]
        np.save(file, rng.choice(other))
    else:
        file.write_bytes(damaged(file.read_bytes(), rng))


def harm_json(file: Path, rng: random.Random) -> None:
    if not file.is_file():
        return
    if rng.random() < 0.3:
        file.write_bytes(damaged(file.read_bytes(), rng))
        return
    try:
        tree = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return
    if rng.random() < 0.05:
        tree = odd_value(rng)
    else:
        disturb(tree, rng)
    text = json.dumps(tree, indent=1)
    if isinstance(tree, dict) and rng.random() < 0.7:  # as a stranger would write it
        with contextlib.suppress(UnicodeEncodeError):
            text = sealed({name: value for name, value in tree.items() if name != "checksum"})
    file.write_text(text, encoding="utf-8", errors="surrogateescape")


def _other_checkpoint(file: Path, rng: random.Random) -> Any:
    try:
        state = torch.load(file, weights_only=True)
    except Exception:
        return odd_value(rng)
    if isinstance(state, dict):
        disturb(state, rng)
    return state


def _read_store(store: GraphStore) -> None:
    """What later stages read of a store."""
    rows = np.arange(store.num_nodes)
    ids = store.ids_of(rows[:5])
    store.nodes_of(ids)
    store.splits, store.labelled, store.classes, store.num_outputs, store.num_features, store.name  # noqa: B018
    for direction in ("out", "in", "both"):
        store.csr(direction)  # type: ignore[arg-type]
    store.structure_fingerprint, store.feature_dtype, store.features  # noqa: B018
    earlier_states(store)


def _read_prepared(folder: Path) -> None:
    prepared = Prepared.open(folder)
    for part in ("nodes", "local_rows", "tokens", "positions", "token_nodes", "k", "hops", "num_features", "meta"):
        getattr(prepared, part)
    prepared.version  # noqa: B018
    prepared.rows_of(np.arange(5))
    prepared.split_rows("train")
