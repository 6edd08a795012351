"""Verbs that train and score: train, tune, evaluate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import AGAIN
from ..text import quoted
from .app import app, goes_on
from .options import (
    Address,
    AsJson,
    Device,
    Devices,
    Draws,
    Memory,
    Model,
    NoWait,
    Original,
    Recipe,
    Settings,
    TrustRemote,
    check_engine,
    check_original,
    config_from,
)
from .show import (
    print_json,
    print_metrics,
    print_table,
    print_tuned,
    say,
    say_few_steps,
    say_first_run,
    say_stale,
    say_training,
    shown_progress,
)


@app.command()
def train(
    store: Annotated[Path | None, typer.Argument(help="The store, a path or URL; not needed with --resume.")] = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/run"),
    recipe: Recipe = None,
    settings: Settings = None,
    model: Model = None,
    original: Original = False,
    seed: Annotated[int | None, typer.Option(help="Short for train.seed.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for train.epochs.")] = None,
    budget: Annotated[str | None, typer.Option(help="Short for train.budget: 90s, 30m, 4h.")] = None,
    device: Annotated[str | None, typer.Option(help="Short for train.device: auto, cpu or cuda.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there.")] = False,
    devices: Devices = 1,
    engine: Annotated[
        str, typer.Option(help="Who starts --devices processes: local (this machine) or ray (a cluster).")
    ] = "local",
    address: Address = None,
    memory: Memory = None,
    no_wait: NoWait = False,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Train a model; prepares the store first where that is missing.

    Example:  largegt train data/g --out runs/a --set train.epochs=20 --set model.hidden=256

    A killed run goes on with:  largegt train --resume --out runs/a

    On two GPUs:  largegt train data/g --out runs/a --devices 2, or on more machines by torchrun -m largegt train …

    --model NAME trains one of these, each by the recipe of its name (LargeGT by the default one):

    * [bold]largegt-local[/] (K local nodes), [bold]largegt-global[/] (a codebook), [bold]largegt-full[/] (both)

    * [bold]mlp[/]: the node's own features, nothing of the graph

    * [bold]sgc[/], [bold]sign[/], [bold]nagphormer[/]: features averaged over hops; linear, MLP, Transformer

    * [bold]graphsage[/], [bold]gat[/], [bold]gt-sparse[/]: messages from sampled neighbours, layer by layer

    * [bold]goat-local[/] (a sampled neighbourhood), [bold]goat-global[/] (a codebook), [bold]goat-full[/] (both)

    * [bold]linkx[/]: a learned vector for each neighbour, and the features

    All look two hops far at most, so that they compare. As its authors have it:  --model gat --original
    """
    from ..errors import InputError
    from ..ranks import check_devices, is_first_here
    from ..training.launch import launch, resume_advice
    from ..training.loop import check_out
    from ..training.loop import train as run_train
    from ..training.run import Run, store_to_train_on

    given = {"train.seed": seed, "train.epochs": epochs, "train.budget": budget, "train.device": device}
    overrides = [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    if resume and store is None:
        run = Run.open(out)
        if overrides or recipe or model or original:
            raise InputError(
                "--resume without a store goes on with the run's own settings: leave out --set, --recipe and --model"
            )
        data, config = run.store(), run.config
    elif store is None:
        raise InputError("which store? largegt train data/g --out runs/a, or --resume to go on with a run")
    else:
        data = store_to_train_on(store, out, resume)
        config = config_from(data, recipe, model, original, overrides, as_json, devices)
    check_out(out, config, data, resume, overwrite)
    check_engine(engine)

    def how() -> str:
        return resume_advice(out, devices) if (out / "config.toml").is_file() else AGAIN

    if engine == "local" and check_devices(devices):
        with goes_on(how):
            raise SystemExit(launch(devices, sys.argv[1:], how))
    quiet = as_json or not is_first_here()
    say_stale(data, config.preparation, quiet)
    say_few_steps(data, config, quiet)
    say_first_run(quiet)
    say_training(data, config, out, quiet)
    if engine == "ray":
        from ..training.ray_train import train_on_ray

        finished = train_on_ray(data, config, out, devices, address, resume, overwrite, memory)
    else:
        with shown_progress(quiet) as progress, goes_on(how):
            finished = run_train(data, config, out, resume, overwrite, progress, memory, wait=not no_wait)
    if not is_first_here():
        return
    if as_json:
        print_json(finished.metrics)
    else:
        print_metrics(finished.metrics)
        say(
            "",
            f"The run is in {finished.path}. Next: largegt predict {quoted(finished.path)} --out predictions.parquet",
        )


@app.command()
def tune(
    store: Annotated[Path, typer.Argument(help="The store: a folder or a URL.")],
    out: Annotated[Path, typer.Option(help="Folder for the trials and what they show.")] = Path("tune"),
    trials: Annotated[int, typer.Option(help="Trials in all, those that are in --out already included.", min=1)] = 30,
    budget: Annotated[
        str | None, typer.Option(help="Wall-clock limit of all trials together: 90s, 30m, 4h. --final is beyond it.")
    ] = None,
    recipe: Recipe = None,
    settings: Settings = None,
    model: Model = None,
    original: Original = False,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Search this setting over these values. Repeat as needed."),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Search nothing but what --search names.")] = False,
    final: Annotated[
        int, typer.Option(help="Train the best settings with so many seeds and score them on test.", min=0)
    ] = 0,
    seed: Annotated[
        int, typer.Option(help="Seed of the search; --set train.seed=… is that of the training.", min=0)
    ] = 0,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Search the settings that do best on the validation nodes of a store.

    Example:  largegt tune data/g --trials 30 --budget 1h --out tune

    Then:  largegt train data/g --recipe tune/best.toml --out runs/best

    The first trial is the recipe itself, so the result is never below it; the others are drawn where trials so far did
    well (TPE). A trial that is worse than the median after the same epochs is stopped. Every trial trains for the
    recipe's epochs: --set train.epochs=10 makes it shorter. The test nodes are not scored, but by --final 4.

    What is searched depends on the model: step size, weight decay, dropout, widths, depth, K and so on. --set fixes a
    setting, --search says its values, and --only leaves all others alone:

    * a range:  --search train.learning_rate=1e-4..1e-2:log

    * a choice:  --search model.hidden=64,128 --search 'model.fanouts=[20,10],[10,5]'

    The folder gets best.toml (a recipe), trials.csv, tune.md and tune.html. If it is killed, the same command goes on
    where it stopped; with more --trials or a longer --budget it goes further. It needs Optuna:
    pip install 'largegt\\[tune]'
    """
    from ..tuning.tune import tune as run_tune

    check_original(recipe, model, original)
    with shown_progress(as_json) as progress, goes_on():
        found = run_tune(
            store, out, trials, budget, model, recipe, settings or [], search or [], only=only, original=original,
            final=final, seed=seed, progress=progress, memory=memory,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        print_tuned(found)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's best weights on a split.

    Example:  largegt evaluate runs/a --split test
    """
    from ..ranks import check_devices, is_first_here
    from ..training.evaluate import evaluate as run_evaluate
    from ..training.launch import launch

    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: "run the same command again"))
    with shown_progress(as_json or not is_first_here()) as progress:
        scores = run_evaluate(run, split, progress, device, draws)
    if not is_first_here():
        return
    if as_json:
        print_json(scores)
    else:
        print_table(f"{run}, {split}", ("metric", "value"), [(name, f"{v:.4f}") for name, v in scores.items()])
