"""The training loop: one page, for every model.

Enters: a Prepared (or a store, prepared as the recipe says) and a Config. Leaves: a run folder. The loop reads the
train and valid splits; the test split is read by `evaluate` alone, once, with the weights that were best on valid.

Several ranks run this same page. Each trains on its part of every batch and scores its part of the validation nodes;
what one of them decides from, all have; the first alone writes.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..config import Config, TableConfig, TrainConfig
from ..data.store import GraphStore
from ..errors import ConfigError, InputError, disk_errors
from ..io.atomic import refuse_links_out, remove_partial
from ..io.locks import Lock, check_free
from ..io.remote import refuse_url
from ..model.node_model import NodeModel
from ..prepare.pipeline import prepare
from ..prepare.prepared import Prepared
from ..progress import Progress as Show
from ..progress import silent
from ..ranks import Ranks, is_first_here
from ..settings import seconds
from ..text import quoted
from ..tokens.loader import shuffled
from ..tokens.table import check_place
from ..types import Array, PathLike
from .accelerator import Accelerator, check_precision, make_accelerator
from .checkpoint import Progress, load_checkpoint, require_room, save_checkpoint
from .checksums import FILE as CHECKSUMS
from .checksums import put, put_text
from .consistency import check_model, check_nodes
from .evaluate import evaluate_prepared, nodes_at_once, score_rows
from .log import RunLog, check_wandb
from .metrics import TaskHead
from .numerics import about_steps, likely_cause
from .run import Run, store_to_train_on
from .setup import (
    Loader,
    build_model,
    is_worth_compiling,
    make_loader,
    make_optimizer,
    num_draws,
    set_learning_rate,
)
from .step import TrainingStep
from .views import views_for
from .weight_average import WeightAverage

_OUT_OF_TIME = "the budget is used up"
_STEPS_BEFORE = 8
"""A step that spoils weights may have a loss itself, and so may the next."""
Watch = Callable[[NodeModel, int, float], None]


def train(
    data: Prepared | GraphStore | PathLike,
    config: Config | None = None,
    out: PathLike = "runs/run",
    resume: bool = False,
    overwrite: bool = False,
    progress: Show | None = None,
    memory: str | int | None = None,
    watch: Watch | None = None,
    score_test: bool = True,
    wait: bool = True,
) -> Run:
    """Train as `config` says into the run folder `out`; with `resume`, go on with what is there. `memory` is for the
    preparation, where that is missing. `watch(model, epochs, seconds)` is called after every epoch; its time does not
    count. Without `score_test` nothing reads the test split, and its scores stay empty. A preparation that
    another process is making is waited for; without `wait` it is an error. Processes that were started
    together, by torchrun or in its manner, train together: all of them call this, the first one writes."""
    out = Path(out)
    config = config or Config()
    if isinstance(data, Prepared):
        config = config.model_copy(update={"prepare": data.config})
        store = data.store()
        data.check_serves(config.model.name)
        data.check_told(config.model)
        if config.preparation != data.config.for_model(config.model.name):  # fresh samples will be drawn
            data.check_reachable()
    else:
        store = data if isinstance(data, GraphStore) else store_to_train_on(data, out, resume)
    check_out(out, config, store, resume, overwrite)
    check_precision(config.train)
    ranks = Ranks.here(config.train.device)
    check_model(config, ranks)
    with Lock(out, "training into") if ranks.is_first else nullcontext():
        if ranks.is_first:
            check_out(out, config, store, resume, overwrite, held=True)  # another process may have begun it just now
        return _train_into(data, store, config, out, overwrite, progress, memory, watch, score_test, ranks, wait)


def _train_into(
    data: Prepared | GraphStore | PathLike, store: GraphStore, config: Config, out: Path, overwrite: bool,
    progress: Show | None, memory: str | int | None, watch: Watch | None, score_test: bool, ranks: Ranks, wait: bool,
) -> Run:  # fmt: skip
    """Prepare what is missing, make the run folder or go on in it."""
    show = progress if progress and ranks.is_first else silent
    accelerator = make_accelerator(config.train, ranks)
    check_place(config.tokens.table, accelerator.device)
    with ranks.in_turn():
        prepared = (
            data
            if isinstance(data, Prepared)
            else prepare(store, config.preparation, progress=show, memory=memory, wait=wait)
        )
    if not len(prepared.split_rows("train")):
        raise InputError(f"{store.place} has no training nodes: give labels and a split to ingest")
    check_nodes(config, prepared)
    head = TaskHead.for_training(prepared, config.train)
    monitor, sign = head.monitor(config.train.monitor)
    with disk_errors(out):
        if ranks.is_first:
            _tidy(out, overwrite)
        with ranks.in_turn():
            run = Run.create(out, config, store) if ranks.is_first else Run.open(out)
        return _train(accelerator, run, store, prepared, head, monitor, sign, show, watch, score_test, ranks)


def _train(
    accelerator: Accelerator, run: Run, store: GraphStore, prepared: Prepared, head: TaskHead, monitor: str,
    sign: float, show: Show, watch: Watch | None, score_test: bool, ranks: Ranks,
) -> Run:  # fmt: skip
    config = run.config.train
    torch.manual_seed(config.seed)
    model = build_model(run.config.model, prepared)
    device = accelerator.device
    network = accelerator.distribute(model)
    optimizer = make_optimizer(model, config, device)
    average = WeightAverage(model, config.weight_average) if config.weight_average else None
    checkpoint = run.path / "checkpoints" / "last.pt"
    state = Progress()
    if checkpoint.exists():
        state = load_checkpoint(checkpoint, model, optimizer, device, average, accelerator.scaler)
    loader = replace(make_loader(prepared, model, config, device, run.config.tokens.table, store), ranks=ranks)
    train_rows = prepared.split_rows("train")
    valid_rows = ranks.batches_of(prepared.split_rows("valid"), config.eval_batch_size)
    views = views_for(loader, prepared, model, config, lambda: store)
    steps_per_epoch = loader.num_batches(len(train_rows), config.batch_size)
    num_steps = config.epochs * steps_per_epoch
    is_compiled = is_worth_compiling(config, device, num_steps)
    if is_compiled and (ranks.size == 1 or run.config.model.norm != "batch"):  # sums over ranks are not compiled
        sizes = {size + views.num_others for size in ranks.shares(config.batch_size)}
        model.compile_for({*sizes, nodes_at_once(loader, config)})
    step = TrainingStep(
        accelerator, network, optimizer, head, config, bool(model.compiled_sizes), average, views.num_others
    )  # fmt: skip
    budget_s = seconds(config.budget) if config.budget else math.inf
    if state.stopped == _OUT_OF_TIME and state.elapsed_s < budget_s:
        state.stopped = ""
    if ranks.is_first and state.epoch < config.epochs:
        require_room(run.path, model, average)
    log = RunLog(run.path, run.config, run.history, state.epoch, writes=ranks.is_first)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        while state.epoch < config.epochs and not state.stopped:
            epoch_start = time.perf_counter()
            epoch = state.epoch
            torch.manual_seed(_mixed_seed(config.seed, epoch, ranks.rank))
            model.train()
            step.restart()
            for number, batches in enumerate(views.batches(epoch), start=epoch * steps_per_epoch):
                set_learning_rate(optimizer, config, number, num_steps)
                if weight := views.weight(number, num_steps):
                    step.agreement.fill_(weight)
                step(batches, min(config.batch_size, len(train_rows) - step.num_nodes))
                if step.losses.look():
                    break
                done = epoch * len(train_rows) + step.num_nodes
                show(_so_far(log, state, config, monitor), done, config.epochs * len(train_rows))
                if config.budget and ranks.first_says(state.elapsed_s + time.perf_counter() - epoch_start > budget_s):
                    state.stopped = _OUT_OF_TIME
                    break
            if step.losses.finish():
                bad = step.losses.first_bad or 0
                order, start = shuffled(train_rows, config.seed, epoch), bad * config.batch_size
                rows = order[start : start + config.batch_size]
                before = order[max(0, start - _STEPS_BEFORE * config.batch_size) : start]
                what = f"the loss of step {bad + 1}"
                raise _not_a_number(what, run, prepared, state, views.loader_of(epoch), rows, accelerator, before)
            train_loss = float(ranks.sum_(step.loss_sum)) / step.num_nodes
            train_s = time.perf_counter() - epoch_start
            with average.in_place() if average else nullcontext():  # what is scored is what is kept and watched
                valid = score_rows(model, [loader], valid_rows, config, head, accelerator)
                if not math.isfinite(train_loss + valid.get("loss", 0.0)):
                    what = "the validation loss" if math.isfinite(train_loss) else "the training loss"
                    raise _not_a_number(what, run, prepared, state, loader, valid_rows, accelerator)
                if valid and monitor not in valid:
                    if ranks.is_first:
                        warnings.warn(f"{monitor} is undefined on the validation nodes, which are all of one class: "
                                      "the loss picks the best epoch", stacklevel=2)  # fmt: skip
                    monitor, sign = "loss", -1.0
                state.epoch += 1
                state.elapsed_s += time.perf_counter() - epoch_start
                _judge(state, valid, monitor, sign, config)
                if state.best_epoch == state.epoch and ranks.is_first:
                    save_weights(run.path / "model.safetensors", model)
                log.add({
                    "epoch": state.epoch, "train": {"loss": train_loss}, "valid": valid,
                    "learning_rate": float(optimizer.param_groups[0]["lr"]), "train_s": train_s,
                    "elapsed_s": state.elapsed_s, **about_steps(step.losses.of_all_ranks()),
                })  # fmt: skip
                if watch is not None and ranks.is_first:
                    watch(model, state.epoch, state.elapsed_s)
            is_due = state.epoch % config.checkpoint_every == 0 or state.stopped or state.epoch == config.epochs
            if ranks.is_first and (is_due or state.best_epoch == state.epoch):  # weights and state never disagree
                save_checkpoint(checkpoint, model, optimizer, state, average, accelerator.scaler)
            ranks.wait()  # for the first one to have written
    finally:
        log.close()
        views.close()
    _finish(accelerator, run, prepared, loader, head, state, log.history, score_test, ranks)
    return run


def _judge(state: Progress, valid: dict[str, float], monitor: str, sign: float, config: TrainConfig) -> None:
    """Is this epoch the best so far, and is it time to stop?"""
    if not valid:  # nothing to validate on: the last weights are the best we know
        state.best_epoch = state.epoch
    elif state.best_score is None or sign * valid[monitor] > sign * state.best_score:
        state.best_score, state.best_epoch, state.stale_epochs = valid[monitor], state.epoch, 0
    else:
        state.stale_epochs += 1
        if config.patience is not None and state.stale_epochs >= config.patience:
            state.stopped = f"no better {monitor} in {config.patience} epochs"


def _not_a_number(
    what: str, run: Run, prepared: Prepared, state: Progress, loader: Loader, rows: Array,
    accelerator: Accelerator, before: Array | None = None,
) -> ConfigError:  # fmt: skip
    """The error that says what became no number, the likely cause, what is kept, and what to do. `rows` are those that
    showed it, those of the steps just `before` may have caused it."""
    config = run.config.train
    shown, earlier = (
        loader.batches(some, config.batch_size) for some in (rows, rows[:0] if before is None else before)
    )
    cause = likely_cause(config, accelerator.precision, prepared, shown, earlier)
    kept = "no epoch was finished: start anew with --overwrite"
    if state.epoch:
        kept = (
            f"{run.path} keeps its last checkpoint and its best weights, of epoch {state.best_epoch}, which evaluate "
            "and predict take; start anew with --overwrite, or into another --out"
        )
    return ConfigError(f"{what} in epoch {state.epoch + 1} is not a finite number: {cause}; {kept}")


def _finish(
    accelerator: Accelerator, run: Run, prepared: Prepared, loader: Loader, head: TaskHead, state: Progress,
    history: list[dict[str, Any]], score_test: bool, ranks: Ranks,
) -> None:  # fmt: skip
    """Score the best weights on valid, as while training, and where wanted, for the first time, on test; write them."""
    best = run.load_model(prepared)
    draws = num_draws(best, run.config.train, run.config.train.draws)
    final = {
        "model": run.config.model.name,
        "dataset": prepared.meta["name"],
        "seed": run.config.train.seed,
        "num_parameters": sum(parameter.numel() for parameter in best.parameters()),
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "stopped": state.stopped,
        "epoch_time_s": float(np.median([entry["train_s"] for entry in history])) if history else 0.0,
        "train_time_s": state.elapsed_s,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(loader.device) if loader.device.type == "cuda" else 0,
        "draws": draws,
        "devices": ranks.size,
        "valid": evaluate_prepared(accelerator, best, run.config.train, prepared, "valid", head, loader),
        "test": {},
    }
    if score_test:
        final["test"] = evaluate_prepared(accelerator, best, run.config.train, prepared, "test", head, loader, draws)
    if ranks.is_first:
        put_text(run.path, run.path / "metrics.json", json.dumps(final, indent=1) + "\n")
    ranks.wait()


# the parts ------------------------------------------------------------------------------------------------------


def save_weights(path: Path, model: nn.Module) -> None:
    from safetensors.torch import save_model

    aside = path.with_name(f".{path.name}.partial")  # a folder: safetensors writes to a name of its own choice first
    with disk_errors(path, sum(tensor.nbytes for tensor in model.state_dict().values())):
        try:
            aside.mkdir(exist_ok=True)
            save_model(model, str(aside / path.name))
            put(path.parent, aside / path.name, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _mixed_seed(seed: int, epoch: int, rank: int) -> int:
    """A seed for torch that neighbouring (seed, epoch, rank) do not share; ranks drop out other numbers."""
    parts = [seed, epoch, rank] if rank else [seed, epoch]
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def _so_far(log: RunLog, state: Progress, config: TrainConfig, monitor: str) -> str:
    """`train: epoch 3/30, loss 0.512, best accuracy 0.8073`: the loss of the last epoch, the best score of all."""
    parts = [f"train: epoch {state.epoch + 1}/{config.epochs}"]
    if log.history:
        parts.append(f"loss {log.history[-1]['train']['loss']:.3f}")
    if state.best_score is not None:
        parts.append(f"best {monitor} {state.best_score:.4f}")
    return ", ".join(parts)


def _but_for_budget(config: Config) -> Config:
    """A run may go on with another budget or token table; every other setting would make it another run."""
    train = config.train.model_copy(update={"budget": None})
    return config.model_copy(update={"prepare": config.preparation, "train": train, "tokens": TableConfig()})


def _tidy(out: Path, overwrite: bool) -> None:
    """Remove what a killed process left, and with `overwrite` the run that is there: moved away first, so that a kill
    leaves no half of one."""
    if overwrite and out.exists():
        out.replace(out.parent / f".{out.name}.old")
    shutil.rmtree(out.parent / f".{out.name}.old", ignore_errors=True)
    refuse_links_out(out, out / "checkpoints", out / "tensorboard", out / "wandb")
    for folder in (out, out / "checkpoints"):
        remove_partial(folder)


def _is_partial(name: str) -> bool:
    """Of a file that a process was killed at before it had its name, or of the notes that go before it."""
    return name == CHECKSUMS or (name.startswith(".") and ".partial" in name)


def check_out(out: Path, config: Config, store: GraphStore, resume: bool, overwrite: bool, held: bool = False) -> None:
    """Refuse a run folder that this training must not touch, before any work is done. `held`: its lock is ours."""
    refuse_url(out, "a run")
    if not held and is_first_here():
        check_free(out, "training into")
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite starts anew: give one of them")
    if config.train.wandb:
        check_wandb()
    if not out.exists() or (out.is_dir() and all(_is_partial(item.name) for item in out.iterdir())):
        return
    if not (out / "config.toml").is_file():
        raise InputError(f"{out} exists and is not a run: choose another --out")
    if not resume and not overwrite:
        raise InputError(f"{out} already holds a run: --resume goes on with it, --overwrite starts anew")
    run = Run.open(out)
    if resume and run.store_fingerprint != store.fingerprint:
        raise ConfigError(f"{out} was trained on another store than {store.place}: see {out / 'config.toml'}")
    if resume and _but_for_budget(run.config) != _but_for_budget(config):
        raise ConfigError(
            f"{out} was started with other settings than these: go on with its own, --recipe "
            f"{quoted(out / 'config.toml')}, or start anew with --overwrite"
        )
