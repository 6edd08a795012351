"""Verbs that train and score: demo, train, tune, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from largegt.errors import AGAIN, InputError
from largegt.runtime.text import quoted

from . import show
from .app import goes_on
from .options import ConfigOptions, check_engine, launch_ranks, verb
from .show import Result


@verb()
def demo(*, out: Path = Path("largegt-demo"), seed: int = 0, epochs: int | None = None) -> Result:
    """Train LargeGT on the graph that ships with the package: about three minutes on two cores.

    A look of half a minute, with lower scores:  largegt demo --epochs 1

    Args:
        out: Folder for the store, the runs and the page.
        seed: Seed of the training.
        epochs: Epochs of each model, for a shorter look; the recipes' own if not given.
    """
    from .demo import demo as run_demo

    show.note_first_run()
    with show.progress() as progress:
        scores, metrics, page = run_demo(out, seed, progress, epochs)
    rows = [(name, f"{score['valid']:.4f}", f"{score['test']:.4f}") for name, score in scores.items()]
    return Result({"scores": scores, "metrics": metrics, "page": str(page)}, [
        show.Table("Accuracy on wordnet31-lite", ("", "valid", "test"), rows), "",
        f"LargeGT trained {metrics['epochs']} epochs in {metrics['train_time_s']:.0f} s; kept epoch "
        f"{metrics['best_epoch']}.",
        f"Look at the learning curves: {page}",
        f"Predictions of the test nodes: {out / 'predictions.parquet'}",
        "Your own graph next: largegt ingest --help",
    ])  # fmt: skip


@verb()
def train(
    store: Path | None = None, *, out: Path = Path("runs/run"), configuration: ConfigOptions,
    seed: int | None = None, epochs: int | None = None, max_time: str | None = None, device: str | None = None,
    resume: bool = False, overwrite: bool = False, devices: int = 1, engine: str = "local",
    address: str | None = None, memory: str | None = None, no_wait: bool = False, trust_remote: bool = False,
) -> Result | None:  # fmt: skip
    """Train a model; prepares the store first where that is missing.

    Example:  largegt train data/g --out runs/a --set train.epochs=20 --set model.hidden_dim=256

    A killed run goes on with:  largegt train --resume --out runs/a

    On two GPUs:  largegt train data/g --out runs/a --devices 2, or on more machines by torchrun -m largegt train …

    Another model by its own recipe:  largegt train data/g --model graphsage --out runs/sage

    `largegt config --models` lists all models. They look two hops far at most, so that they compare;
    as its authors have it:  --model gat --original

    Args:
        store: The store, a path or URL; not needed with --resume.
        out: The run's folder.
        seed: Short for train.seed.
        epochs: Short for train.epochs.
        max_time: Short for train.max_time: 90s, 30m, 4h.
        device: Short for train.device: auto, cpu or cuda.
        resume: Go on with the run in --out where it stopped.
        engine: Who starts --devices processes: local (this machine) or ray (a cluster).
    """
    from largegt.training.launch import resume_advice
    from largegt.training.trainer import check_out
    from largegt.training.trainer import train as run_train

    given = {"train.seed": seed, "train.epochs": epochs, "train.max_time": max_time, "train.device": device}
    overrides = [f"{name}={value}" for name, value in given.items() if value is not None]
    check_engine(engine)
    if store is None:
        data, config = _run_to_resume(out, resume, bool(overrides) or any(vars(configuration).values()))
    else:
        from largegt.training.run import store_to_train_on

        data = store_to_train_on(store, out, resume)
        config = configuration.config(data, overrides, devices)
    check_out(out, config, data, resume, overwrite)

    def advice() -> str:
        return resume_advice(out, devices) if (out / "config.toml").is_file() else AGAIN

    with goes_on(advice):
        is_silent = launch_ranks(devices if engine == "local" else 1, advice)
    if not is_silent:
        show.note_stale(data, config.preparation)
        show.note_few_steps(data, config)
        show.note_first_run()
        show.note_training(data, config, out)
    if engine == "ray":
        from largegt.training.ray_train import train_on_ray

        finished = train_on_ray(data, config, out, devices, address, resume, overwrite, memory)
    else:
        with show.progress(is_silent) as progress, goes_on(advice):
            finished = run_train(data, config, out, resume, overwrite, progress, memory, wait=not no_wait)
    if is_silent:
        return None
    where = finished.path
    next_step = f"The run is in {where}. Next: largegt predict {quoted(where)} --out predictions.parquet"
    return Result(finished.metrics, [*show.metrics(finished.metrics), "", next_step])


def _run_to_resume(out: Path, resume: bool, is_configured: bool) -> tuple[Any, Any]:
    """The store and the configuration of the run that --resume without a store goes on with."""
    from largegt.training.run import Run

    if not resume:
        raise InputError("which store? largegt train data/g --out runs/a, or --resume to go on with a run")
    run = Run.open(out)
    if is_configured:
        raise InputError(
            "--resume without a store goes on with the run's own settings: leave out --set, --recipe and --model"
        )
    return run.store(), run.config


@verb()
def tune(
    store: Path, *, out: Path = Path("tune"), trials: int = 30, max_time: str | None = None,
    configuration: ConfigOptions, search: list[str] | None = None, only: bool = False, final: int = 0, seed: int = 0,
    memory: str | None = None,
) -> Result:  # fmt: skip
    """Search the settings that do best on the validation nodes of a store.

    Example:  largegt tune data/g --trials 30 --max-time 1h --out tune

    Then:  largegt train data/g --recipe tune/best.toml --out runs/best

    The first trial is the recipe itself, so the result is never below it; the others are drawn where trials so far did
    well (TPE). A trial that is worse than the median after the same epochs is stopped. Every trial trains for the
    recipe's epochs: --set train.epochs=10 makes it shorter. The test nodes are not scored, but by --final 4.

    What is searched depends on the model: step size, weight decay, dropout, widths, depth, K and so on. --set fixes a
    setting, --search says its values, and --only leaves all others alone:

    * a range:  --search train.learning_rate=1e-4..1e-2:log

    * a choice:  --search model.hidden_dim=64,128 --search 'model.fanouts=[20,10],[10,5]'

    The folder gets best.toml (a recipe), trials.csv, tune.md and tune.html. If it is killed, the same command goes on
    where it stopped; with more --trials or a longer --max-time it goes further. It needs Optuna:
    pip install 'largegt\\[tune]'

    Args:
        store: The store: a folder or a URL.
        out: Folder for the trials and what they show.
        trials: Trials in all, those that are in --out already included.
        max_time: Wall-clock limit of all trials together: 90s, 30m, 4h. --final is beyond it.
        search: Search this setting over these values. Repeat as needed.
        only: Search nothing but what --search names.
        final: Train the best settings with so many seeds and score them on test.
        seed: Seed of the search; --set train.seed=… is that of the training.
    """
    from largegt.auto.tuning.tune import tune as run_tune

    configuration.check()
    asked = {name: value for name, value in vars(configuration).items() if name != "settings"}
    with show.progress() as progress, goes_on():
        found = run_tune(
            store, out, trials, max_time, search=search or [], only=only, final=final, seed=seed, progress=progress,
            memory=memory, overrides=configuration.settings or [], **asked,
        )  # fmt: skip
    best = [(trial.number, f"{trial.score:.4f}", trial.epochs, found.in_words(trial)) for trial in found.ranked[:5]]
    differs = "differs from the recipe (its value)"
    heads = ("trial", f"valid {found.metric}", "epochs", differs)
    blocks: list[show.Block] = [
        show.Table(f"The best of {found.num_done} trials on {found.dataset}", heads, best, left=(differs,))
    ]
    if found.importances:
        shares = [f"{name} {share:.0%}" for name, share in list(found.importances.items())[:5]]
        blocks.append(f"What made a difference: {', '.join(shares)}")
    if found.num_prepared:
        blocks.append(f"Preparations made on the way: {found.num_prepared}, in {found.store / 'prepared'}")
    if found.stopped:
        blocks.append(f"Ended early: {found.stopped}; a longer --max-time goes on.")
    if found.final:
        blocks += ["", f"The best settings with {len(found.final)} seeds: {found.final_in_words()}"]
    next_step = f"Next: largegt train {quoted(found.store)} --recipe {quoted(found.recipe)} --out runs/best"
    return Result(found.as_dict(), [*blocks, "", f"Look at all trials: {found.page}", next_step])


@verb()
def evaluate(
    run: Path, *, split: str = "test", num_eval_samples: int | None = None, device: str | None = None, devices: int = 1,
    trust_remote: bool = False,
) -> Result | None:  # fmt: skip
    """Score a run's best weights on a split.

    Example:  largegt evaluate runs/a --split test

    Args:
        run: The run's folder.
        split: train, valid or test.
    """
    from largegt.training.evaluate import evaluate as run_evaluate

    is_silent = launch_ranks(devices, lambda: AGAIN)
    with show.progress(is_silent) as progress:
        scores = run_evaluate(run, split, progress, device, num_eval_samples)
    if is_silent:
        return None
    rows = [(name, f"{score:.4f}") for name, score in scores.items()]
    return Result(scores, [show.Table(f"{run}, {split}", ("metric", "value"), rows)])
