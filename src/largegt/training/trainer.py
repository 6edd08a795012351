"""The training loop, for every model.

Enters: a Prepared (or a store, prepared as the recipe sets) and a Config. Leaves: a run folder. The loop reads the
train and valid splits; the test split is read once, at the end, with the weights of the best validation epoch.

Several ranks run the same code. Each trains on its part of every batch and scores its part of the validation nodes;
only rank 0 writes files.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from largegt.config.overrides import seconds
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError, disk_errors
from largegt.io.atomic import refuse_links_out
from largegt.io.locks import Lock
from largegt.io.remote import refuse_url
from largegt.loader.loader import shuffled
from largegt.loader.table import check_place
from largegt.models.base import NodeModel
from largegt.models.largegt.model import BatchNorm
from largegt.preprocessing.auto_config import ConfigLike, config_for
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import get_distributed, is_first_process
from largegt.runtime.progress import Progress, silent
from largegt.types import Array, PathLike

from .batches import EpochBatches, check_consistency
from .checkpoint import TrainingProgress, TrainingState, load_checkpoint, require_room, save_checkpoint
from .evaluate import Scorer, nodes_at_once
from .log import RunLog, check_wandb, write_history
from .metrics import TaskHead
from .nan_check import about_steps, likely_cause
from .run import Run, run_to_resume, store_to_train_on
from .run_checksums import FILE as CHECKSUMS
from .run_checksums import replacing
from .setup import (
    Accelerator,
    AnyLoader,
    build_model,
    is_worth_compiling,
    make_accelerator,
    make_loader,
    num_samples,
    set_learning_rate,
)
from .step import TrainingStep

_log = logging.getLogger(__name__)

_OUT_OF_TIME = "the time is used up"
_STEPS_BEFORE = 8
"""A step that corrupts the weights may itself have a finite loss, and so may the next step."""
Watch = Callable[[NodeModel, int, float], None]


def train(
    data: Prepared | GraphStore | PathLike | None = None,
    config: ConfigLike = None,
    out: PathLike = "runs/run",
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    memory: str | int | None = None,
    watch: Watch | None = None,
    score_test: bool = True,
    wait: bool = True,
) -> Run:
    """Train a model, and prepare the store first where that is missing.

    Processes that torchrun has started train together: all of them call this, and the first one writes.

    Args:
        data: a store, its path, or a preparation. None with `resume`: the store of the run.
        config: the name of a recipe (`lg.recipe_names()`), "auto", the path of a TOML file, a Config, or a dict of
            settings such as `{"model.name": "mlp", "train": {"epochs": 3}}`, on top of the recipe that it names as
            "recipe", of the recipe of its model, or of "default". By default the recipe "default".
        out: the folder of the run.
        resume: go on with the run in `out` where it stopped.
        overwrite: replace a run that is there.
        progress: is called as `progress(stage, done, total)`.
        memory: what the preparation may hold at once, such as `"4GiB"`.
        watch: is called as `watch(model, epochs, seconds)` after every epoch; its time does not count.
        score_test: score the best weights on the test nodes at the end.
        wait: wait for a preparation that another process is making, or refuse.

    Returns:
        The run: its `metrics` are the final scores, at the epoch that was best on the validation nodes.

    Raises:
        ConfigError: a setting is unknown, out of range or does not fit the data, or a loss is not finite.
        InputError: there is no store, it has no training nodes, or `out` is there already.

    Examples:
        >>> run = lg.train("data/g", {"train.epochs": 2}, out="runs/b")
        >>> run.metrics["epochs"]
        2
        >>> run = lg.train("data/g", {"model.name": "mlp", "train.epochs": 1}, out="runs/mlp")
        >>> run.config.model.name
        'mlp'
    """
    refuse_url(out, "a run")
    out = Path(out)
    if data is None:
        data, config = run_to_resume(out, resume, config is not None)
    if isinstance(data, Prepared):
        store = data.store()
    else:
        store = data if isinstance(data, GraphStore) else store_to_train_on(data, out, resume)
    config = config_for(store, config)[0]
    if isinstance(data, Prepared):
        config = config.model_copy(update={"prepare": data.config.settings})
        data.check_model(config.model.spec)
        data.check_inputs(config.model)
        if config.preparation.tokens != data.config.for_model(config.model.spec).tokens:  # fresh samples will be drawn
            data.check_resampling()
    with Lock(out, "training into") if is_first_process() else nullcontext(), disk_errors(out):
        check_out(out, config, store, resume, overwrite)
        ranks = get_distributed(config.train.device)
        check_consistency(config, ranks)
        accelerator = make_accelerator(config.train, ranks, trains=True)
        check_place(config.train.token_table, accelerator.device)
        show = progress if progress and ranks.is_first else silent
        with ranks.rank_zero_first():
            prepared = data
            if not isinstance(prepared, Prepared):
                prepared = prepare(store, config.preparation, progress=show, memory=memory, wait=wait)
        if not len(prepared.split_rows("train")):
            raise InputError(f"{store.place} has no training nodes: give labels and a split to ingest")
        check_consistency(config, ranks, prepared)
        head = TaskHead.for_training(prepared, config.train)
        head.monitor(config.train.monitor)  # refuses what is no metric
        with ranks.rank_zero_first():
            run = _open_run(out, config, store, overwrite) if ranks.is_first else Run.open(out)
        trainer = Trainer(run, store, prepared, head, accelerator)
        trainer.fit(show, watch)
        trainer.finish(score_test)
        return run


class Trainer:
    """One training: `fit` trains to the last epoch, `finish` scores the best weights."""

    def __init__(
        self, run: Run, store: GraphStore, prepared: Prepared, head: TaskHead, accelerator: Accelerator
    ) -> None:
        """Start a new training, or resume from the run's checkpoint."""
        self.run, self.config = run, run.config.train
        self.device, self.ranks = accelerator.device, accelerator.ranks
        self.monitor, self.sign = head.monitor(self.config.monitor)
        torch.manual_seed(self.config.seed)
        self.model = build_model(run.config.model, prepared)
        self.state, self.progress = TrainingState.make(self.model, self.config, accelerator), TrainingProgress()
        checkpoint = run.path / "checkpoints" / "last.pt"
        if checkpoint.exists():
            self.progress = load_checkpoint(checkpoint, self.state, self.device)
        loader = make_loader(prepared, self.model, self.config, self.device, run.config.train.token_table, store)
        loader = replace(loader, ranks=self.ranks)
        self.scorer = Scorer(self.model, head, self.config, accelerator, loader, prepared, store)
        self.train_rows = prepared.split_rows("train")
        self.valid_rows = self.ranks.batches_of(prepared.split_rows("valid"), self.config.eval_batch_size)
        resamples = self.config.resample == "epoch" and self.model.num_local_nodes is None
        self.batches = EpochBatches(loader, prepared, self.config, store if resamples else None)
        self.steps_per_epoch = loader.num_batches(len(self.train_rows), self.config.batch_size)
        self.num_steps = self.config.epochs * self.steps_per_epoch
        self._compile()
        record, others = bool(self.model.compiled_sizes), self.batches.num_others
        self.step = TrainingStep(accelerator, self.state, head, self.config, record, others)
        self.max_time_s = seconds(self.config.max_time) if self.config.max_time else math.inf
        if self.progress.stopped == _OUT_OF_TIME and self.progress.elapsed_s < self.max_time_s:
            self.progress.stopped = ""
        self.show: Progress = silent
        self.history = [entry for entry in run.history if entry["epoch"] <= self.progress.epoch]
        self.log: RunLog | None = None
        if self.ranks.is_first:
            if self.progress.epoch < self.config.epochs:
                require_room(run.path, self.state)
            self.log = RunLog(run.path, run.config, self.progress.epoch)

    def _compile(self) -> None:
        """Compile the model if the training is long enough; batch norm over ranks is not compiled."""
        if self.ranks.size > 1 and any(isinstance(module, BatchNorm) for module in self.model.modules()):
            return
        if is_worth_compiling(self.config, self.device, self.num_steps):
            sizes = {size + self.batches.num_others for size in self.ranks.shares(self.config.batch_size)}
            self.model.compile_for({*sizes, nodes_at_once(self.scorer.loader, self.config)})

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights to score and save: their moving average if `ema_decay` is set."""
        return self.state.average.in_place() if self.state.average else nullcontext()

    # epochs

    def fit(self, show: Progress = silent, watch: Watch | None = None) -> None:
        """Train until the last epoch, the end of the time or the end of patience."""
        progress, self.show = self.progress, show
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            while progress.epoch < self.config.epochs and not progress.stopped:
                self._epoch()
                if watch is not None and self.ranks.is_first:
                    with self.averaged():
                        watch(self.model, progress.epoch, progress.elapsed_s)
                self.ranks.barrier()  # for the first one to have written
        finally:
            if self.log is not None:
                self.log.close()
            self.batches.close()

    def _epoch(self) -> None:
        """Train on every batch once, validate, and save."""
        progress, start = self.progress, time.perf_counter()
        losses = self._train_epoch(start)
        sizes = np.diff(np.minimum(np.arange(len(losses) + 1) * self.config.batch_size, len(self.train_rows)))
        train_loss = float(np.average(losses, weights=sizes))
        train_s = time.perf_counter() - start
        with self.averaged():
            valid = self._validate(train_loss)
        progress.epoch += 1
        progress.elapsed_s += time.perf_counter() - start
        self._update_best(valid)
        entry = {
            "epoch": progress.epoch, "train": {"loss": train_loss}, "valid": valid,
            "learning_rate": float(self.state.optimizer.param_groups[0]["lr"]), "train_s": train_s,
            "elapsed_s": progress.elapsed_s, **about_steps(losses),
        }  # fmt: skip
        self._save(entry)

    def _train_epoch(self, start: float) -> Array:
        """Train on every batch once; returns the loss of each step."""
        config, progress, step = self.config, self.progress, self.step
        epoch, num_rows, done = progress.epoch, len(self.train_rows), 0
        own_seed = np.random.SeedSequence([config.seed, epoch, self.ranks.rank])  # ranks differ in dropout
        torch.manual_seed(int(own_seed.generate_state(1, np.uint64)[0] >> 1))
        self.model.train()
        step.losses.restart()
        for number, batches in enumerate(self.batches.of(epoch), start=epoch * self.steps_per_epoch):
            set_learning_rate(self.state.optimizer, config, number, self.num_steps)
            if config.consistency_weight:
                step.agreement.fill_(self.batches.weight(number, self.num_steps))
            before, done = done, min(num_rows, done + config.batch_size)
            if step(batches, done - before):
                break
            self.show(self._progress_line(), epoch * num_rows + done, config.epochs * num_rows)
            elapsed_s = progress.elapsed_s + time.perf_counter() - start
            if config.max_time and self.ranks.broadcast_object(elapsed_s > self.max_time_s):
                progress.stopped = _OUT_OF_TIME
                break
        losses = step.losses.finish()
        if len(bad := np.flatnonzero(~np.isfinite(losses))):
            raise self._step_error(int(bad[0]))
        return losses

    def _validate(self, train_loss: float) -> dict[str, float]:
        valid = self.scorer.scores(self.valid_rows)
        if not math.isfinite(train_loss + valid.get("loss", 0.0)):
            what = "the validation loss" if math.isfinite(train_loss) else "the training loss"
            raise self._not_a_number(what, self.scorer.loader, self.valid_rows, self.valid_rows[:0])
        if valid and self.monitor not in valid:
            if self.ranks.is_first:
                _log.warning(
                    f"{self.monitor} is undefined on the validation nodes, which are all of one class: the loss picks "
                    "the best epoch"
                )
            self.monitor, self.sign = "loss", -1.0
        return valid

    def _update_best(self, valid: dict[str, float]) -> None:
        """Record whether this epoch is the best so far, and whether `patience` ends the training."""
        progress, best = self.progress, self.progress.best_valid.get(self.monitor)
        if not valid:  # without validation nodes the last epoch counts as the best
            progress.best_epoch = progress.epoch
        elif best is None or self.sign * valid[self.monitor] > self.sign * best:
            progress.best_valid, progress.best_epoch, progress.stale_epochs = valid, progress.epoch, 0
        else:
            progress.stale_epochs += 1
            if self.config.patience is not None and progress.stale_epochs >= self.config.patience:
                progress.stopped = f"no better {self.monitor} in {self.config.patience} epochs"

    def _save(self, entry: dict[str, Any]) -> None:
        """Replace weights, log and checkpoint together, so that they always belong to the same epoch."""
        progress, run = self.progress, self.run
        self.history.append(entry)
        if self.log is None:
            return
        self.log.add(entry)
        is_best = progress.best_epoch == progress.epoch
        is_last = bool(progress.stopped) or progress.epoch == self.config.epochs
        with replacing(run.path) as folder:
            if is_best:
                with self.averaged():
                    save_weights(folder / "model.safetensors", self.model)
            write_history(folder, self.history)
            if is_best or is_last or progress.epoch % self.config.checkpoint_every_n_epochs == 0:
                save_checkpoint(folder / "checkpoints" / "last.pt", self.state, progress)

    def _progress_line(self) -> str:
        """`train: epoch 3/30, loss 0.512, best accuracy 0.8073`: the last epoch's loss and the best score so far."""
        parts = [f"train: epoch {self.progress.epoch + 1}/{self.config.epochs}"]
        if self.history:
            parts.append(f"loss {self.history[-1]['train']['loss']:.3f}")
        if (best := self.progress.best_valid.get(self.monitor)) is not None:
            parts.append(f"best {self.monitor} {best:.4f}")
        return ", ".join(parts)

    # errors

    def _step_error(self, number: int) -> ConfigError:
        """The error for step `number` (counted from 0), whose loss is not finite."""
        size, epoch = self.config.batch_size, self.progress.epoch
        order, start = shuffled(self.train_rows, self.config.seed, epoch), number * size
        rows, before = order[start : start + size], order[max(0, start - _STEPS_BEFORE * size) : start]
        return self._not_a_number(f"the loss of step {number + 1}", self.batches.loader_for(epoch), rows, before)

    def _not_a_number(self, what: str, loader: AnyLoader, rows: Array, before: Array) -> ConfigError:
        """The error that says what became no number, the likely cause, what is kept, and what to do. `rows` are those
        that showed it, those of the steps just `before` may have caused it."""
        config, progress, scorer = self.config, self.progress, self.scorer
        shown, earlier = (loader.batches(some, config.batch_size) for some in (rows, before))
        cause = likely_cause(config, scorer.accelerator.precision, scorer.prepared, shown, earlier)
        kept = "no epoch was finished: start anew with `overwrite=True`"
        if progress.epoch:
            kept = (
                f"{self.run.path} keeps its last checkpoint and its best weights, of epoch {progress.best_epoch}, "
                "which evaluate and predict take; start anew with `overwrite=True`, or into another `out`"
            )
        return ConfigError(f"{what} in epoch {progress.epoch + 1} is not a finite number: {cause}; {kept}")

    # the end

    def finish(self, score_test: bool = True) -> None:
        """Load the best weights, score them on the test split if `score_test`, and write the final scores."""
        config, progress, history, scorer = self.config, self.progress, self.history, self.scorer
        self.run.load_weights(self.model)
        num_eval_samples, test = num_samples(self.model, config, config.num_eval_samples), dict[str, float]()
        if score_test:
            rows = scorer.prepared.split_rows("test")
            test = scorer.scores(self.ranks.batches_of(rows, config.eval_batch_size), num_eval_samples)
        final = {
            "model": self.run.config.model.name,
            "dataset": scorer.prepared.meta["name"],
            "seed": config.seed,
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "best_epoch": progress.best_epoch,
            "epochs": progress.epoch,
            "stopped": progress.stopped,
            "epoch_time_s": float(np.median([entry["train_s"] for entry in history])) if history else 0.0,
            "train_time_s": progress.elapsed_s,
            "peak_gpu_bytes": torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0,
            "num_eval_samples": num_eval_samples,
            "devices": self.ranks.size,
            "valid": progress.best_valid,
            "test": test,
        }
        if self.log is not None:
            with replacing(self.run.path, self.log.events()) as folder:
                (folder / "metrics.json").write_text(json.dumps(final, indent=1) + "\n", encoding="utf-8")
        self.ranks.barrier()


def save_weights(path: Path, model: nn.Module) -> None:
    from safetensors.torch import save_model

    with disk_errors(path.parent, sum(tensor.nbytes for tensor in model.state_dict().values())):
        save_model(model, str(path))


# the run folder


def check_out(out: Path, config: Config, store: GraphStore, resume: bool, overwrite: bool) -> None:
    """Refuse a run folder that this training must not change, before any work is done."""
    refuse_url(out, "a run")
    if resume and overwrite:
        raise ConfigError("`resume=True` goes on with a run and `overwrite=True` starts anew: give one of them")
    if config.train.wandb_project:
        check_wandb()
    if not out.exists() or (out.is_dir() and all(_is_partial(item.name) for item in out.iterdir())):
        return
    if not (out / "config.toml").is_file():
        raise InputError(f"{out} exists and is not a run: choose another `out`")
    if not resume and not overwrite:
        raise InputError(f"{out} already holds a run: `resume=True` goes on with it, `overwrite=True` starts anew")
    run = Run.open(out)
    if resume and run.store_fingerprint != store.fingerprint:
        raise ConfigError(f"{out} was trained on another store than {store.place}: see {out / 'config.toml'}")
    if resume and _comparable(run.config) != _comparable(config):
        raise ConfigError(
            f"{out} was started with other settings than these: go on with its own, "
            f"`lg.train(resume=True, out={str(out)!r})`, or start anew with `overwrite=True`"
        )


def _comparable(config: Config) -> Config:
    """The settings that must not change on resume: all but the time limit and the place of the token table."""
    train = config.train.model_copy(update={"max_time": None, "token_table": "auto"})
    return config.model_copy(update={"prepare": config.preparation, "train": train})


def _is_partial(name: str) -> bool:
    """Whether a process that was killed before its first complete file has left this one."""
    return name == CHECKSUMS or (name.startswith(".") and ".partial" in name)


def _open_run(out: Path, config: Config, store: GraphStore, overwrite: bool) -> Run:
    """Create the run folder or reuse an existing one. An overwritten run is moved away first, so that a kill never
    leaves half of a run."""
    old = out.parent / f".{out.name}.old"
    if overwrite and out.exists():
        out.replace(old)
    shutil.rmtree(old, ignore_errors=True)
    refuse_links_out(out, out / "checkpoints", out / "tensorboard", out / "wandb")
    for file in out.glob(".*.partial*"):  # left by a killed process
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    return Run.create(out, config, store)
