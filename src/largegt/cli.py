"""The command line: one verb per stage. Heavy imports are inside the verbs, so `--help` answers at once."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import __version__
from .errors import AGAIN, ConfigError, DiskError, LargeGTError, machine_refusal, nearest
from .stopping import end_with_parent, exit_code, listen

_how_to_go_on: list[Callable[[], str]] = []
"""What the verb that runs now says of going on, once it has something to go on from."""


class _Verbs(TyperGroup):
    """Verbs that a signal ends with one line and the code that shells expect."""

    def invoke(self, ctx: Any) -> Any:
        _how_to_go_on.clear()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise SystemExit(_stopped(error)) from None


app = typer.Typer(
    name="largegt",
    cls=_Verbs,
    help="Train a graph transformer on one very large graph and predict labels for its nodes.\n\n"
    "The walk: [bold]ingest[/] (your files → a store) → [bold]train[/] (it prepares what is missing) → "
    "[bold]evaluate[/], [bold]predict[/], [bold]report[/]. Begin with [bold]largegt demo[/].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, e.g. train.epochs=5. Repeat as needed."),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        help="A recipe of `largegt settings --recipes`, a .toml file, or auto; the model's own when not given."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A model, by its own recipe; with --recipe only short for model.name."),
]
Original = Annotated[
    bool, typer.Option("--original", help="With --model: the model as its authors have it, not held to two hops.")
]
Threads = Annotated[int | None, typer.Option(help="Threads to use; all cores when not given.")]


def _checked_memory(memory: str | None) -> str | None:
    """Refuse a wrong size before any work."""
    from .memory import memory_budget

    memory_budget(memory)
    return memory


Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory to use, e.g. 4GiB; half of what is free when not given. The result is the same.",
        callback=_checked_memory,
    ),
]
Draws = Annotated[
    int | None,
    typer.Option(
        help="Average predictions over this many samples of local nodes; the run's train.draws if not given.", min=1
    ),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Devices = Annotated[
    int,
    typer.Option(help="Processes of this machine to share the work, a GPU each or some cores.", min=1),
]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(f"largegt {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the store, the runs and the page.")] = Path("largegt-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train LargeGT on the graph that ships with the package: about three minutes on two cores."""
    from .demo import demo as run_demo

    with _progress(as_json) as progress:
        result = run_demo(out, seed, progress)
    if as_json:
        _print_json({"scores": result.scores, "metrics": result.metrics, "page": str(result.page)})
        return
    rows = [(name, f"{s['valid']:.4f}", f"{s['test']:.4f}") for name, s in result.scores.items()]
    _print_table("Accuracy on wordnet31-lite", ("", "valid", "test"), rows)
    m = result.metrics
    print(f"\nLargeGT trained {m['epochs']} epochs in {m['train_time_s']:.0f} s; kept epoch {m['best_epoch']}.")
    print(f"Look at the learning curves: {result.page}")
    print(f"Predictions of the test nodes: {result.folder / 'predictions.parquet'}")
    print("Your own graph next: largegt ingest --help")


@app.command()
def synthesize(
    like: Annotated[str, typer.Option(help="The dataset to imitate: ogbn-products, snap-patents or ogbn-papers100M.")],
    out: Annotated[Path, typer.Option(help="The store's folder; with --files, the folder for the files.")],
    scale: Annotated[
        float, typer.Option(help="How large, in units of the dataset: 0.01 is a hundredth of its nodes and edges.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed is another graph of the same kind.")] = 0,
    files: Annotated[
        bool, typer.Option("--files", help="Write Parquet and .npy files instead, and print how to ingest them.")
    ] = False,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make a graph with the size and the character of a known dataset, to try a machine or a setting on.

    Example:  largegt synthesize --like ogbn-products --scale 0.01 --out data/s

    Nodes, edges, degrees, homophily, feature width, classes and split sizes are the dataset's (counts times --scale),
    the contents are random. Communities carry the classes: features alone tell some of a node's class, its neighbours
    more, so scores mean something, though they are not the dataset's. Edges and features are made as they are
    written: memory grows by a few bytes per node. The same --like, --scale and --seed give the same graph.

    A store goes on as any other:  largegt train data/s --out runs/s

    --files tries ingest itself; --set takes its settings, e.g. --set feature_dtype=float16.
    """
    from .config import IngestConfig, parse_overrides
    from .datasets.synthetic import ingest_config, synthetic, write_files
    from .datasets.synthetic import synthesize as make_store

    changed = parse_overrides(IngestConfig, [_without_prefix(item, "ingest.") for item in settings or []])
    config = ingest_config(like, **changed.model_dump(exclude_unset=True))
    if files and memory is not None:
        raise ConfigError(
            "--memory is for ingest: leave it out with --files and give it to the command that is printed"
        )
    with _progress(as_json) as progress:
        if files:
            command = write_files(synthetic(like, scale, seed), out, config, overwrite=overwrite, progress=progress)
        else:
            make_store(like, out, scale, seed, config, overwrite=overwrite, progress=progress, memory=memory)
    if not files:
        _show_folder(out, as_json, verify=False)
    elif as_json:
        _print_json({"path": str(out), "command": command})
    else:
        print(f"The files are in {out}. Next: {command}")


@app.command()
def ingest(
    out: Annotated[Path, typer.Option(help="The store: a folder or a URL.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[EDGES]...", help="Edges: .parquet, .csv or .tsv (also .gz), .npy; folders, globs, URLs of them."
        ),
    ] = None,
    edges: Annotated[list[Path] | None, typer.Option(help="The same as EDGES.")] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="Node table: an id column, and features, labels, split as columns.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Features apart: .npy [N, d], .npz (SciPy CSR), or a table in node order.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels apart: .npy, or a table with or without an id column.")
    ] = None,
    splits: Annotated[
        Path | None, typer.Option(help="Splits apart: .npz with train, valid, test; or a table of id and split.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Edge column that an edge leaves. Guessed when not given.")] = None,
    target: Annotated[str | None, typer.Option(help="Edge column that an edge enters.")] = None,
    id: Annotated[str | None, typer.Option(help="Node column with the ids, numbers or strings.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Label column; several, separated by commas, make a multi-label task.")
    ] = None,
    feature_columns: Annotated[
        str | None, typer.Option(help="Feature columns, separated by commas, wildcards allowed: f*,age.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Node column that says train, valid or test.")] = None,
    num_nodes: Annotated[
        int | None, typer.Option(help="Number of nodes when ids are 0..N-1 and nothing says N.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    settings: Settings = None,
    memory: Memory = None,
    engine: Annotated[str, typer.Option(help="Who does the work: local (this process) or ray (a cluster).")] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the cluster's address; auto finds one, else one starts here.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="With --engine ray: parts to read the edges in; four per core.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn your files into a store.

    From tables:  largegt ingest --edges edges.parquet --nodes nodes.csv.gz --label topic --out data/g

    From arrays:  largegt ingest --edges edge_index.npy --features x.npy --labels y.npy --out data/g

    From a bucket, on a Ray cluster:  largegt ingest 's3://bucket/edges/*.parquet' --out /shared/g --engine ray

    Ids may be numbers or strings; predictions come back with the same ids. Nodes without a label are kept and can be
    predicted. Without a split, labelled nodes are split at random. Settings: undirected=true, task, split,
    split_seed, stratify, feature_dtype, unknown_ids, fill_missing (see `largegt settings`).

    Files may be larger than memory. If it is killed or the disk is full, the same command goes on where it stopped.
    With --engine ray, --memory is what each task may hold, 1 GiB if not given. The result is the same on any engine.
    """
    from .config import IngestConfig, parse_overrides
    from .graph import sources
    from .graph.ingest import ingest as run_ingest

    edges = [*(files or []), *(edges or [])]
    if not edges:
        raise ConfigError("which edges? name their files: largegt ingest edges.parquet --out data/g")
    config = parse_overrides(IngestConfig, [_without_prefix(item, "ingest.") for item in settings or []])
    given = sources.files(
        edges if len(edges) > 1 else edges[0], nodes=nodes, features=features, labels=labels, splits=splits,
        source=source, target=target, id=id, label=label, feature_columns=feature_columns, split=split,
        num_nodes=num_nodes,
    )  # fmt: skip
    with _progress(as_json) as progress, _goes_on(), redirect_stdout(sys.stderr):  # where Ray says what it has to say
        means: dict[str, Any] = {"memory": memory}
        if (engine, address, shards) != ("local", None, None):
            means = {"engine": _engine(engine, address, shards, None, None, memory, progress)}
        store = run_ingest(given, out, config, overwrite=overwrite, progress=progress, **means)
    if not as_json:
        print("\n".join(given.notes))
    _show_folder(store.place, as_json, verify=False)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A store, a preparation or a run; the first two may be URLs.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare the checksums.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a folder holds: sizes, degrees, labels, splits, scores.

    --verify reads everything first: a store and its preparations, or a run, its store and those. Each damaged file is
    named, and then the exit code is 1.
    """
    _show_folder(path, as_json, verify)


@app.command()
def prepare(
    store: Annotated[Path, typer.Argument(help="The store: a folder or a URL.")],
    recipe: Recipe = None,
    settings: Settings = None,
    model: Model = None,
    original: Original = False,
    threads: Threads = None,
    memory: Memory = None,
    engine: Annotated[str, typer.Option(help="Who does the work: local (this process) or ray (a cluster).")] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the cluster's address; auto finds one, else one starts here.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="With --engine ray: parts to hold the graph in; one per four cores.", min=1)
    ] = None,
    neighbors: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Sample from lists in Redis, redis://host:port/name; see redis-load."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take: disk, memory, rough time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sample local nodes, compute context features and positional encodings; what is there already is kept.

    Example:  largegt prepare data/g --set prepare.local_nodes.k=100 --set prepare.positions.method=node2vec

    With --model, what that model needs, which may be less:  largegt prepare data/g --model graphsage

    On a Ray cluster that sees the store:  largegt prepare s3://bucket/g --engine ray --address auto

    The graph may be larger than memory. If it is killed or the disk is full, the same command goes on where it stopped.
    With --engine ray, --memory is what each task may hold, 1 GiB if not given. The result is the same on any engine.
    """
    from .graph.store import GraphStore
    from .prepare.prepared import prepare as run_prepare

    opened = GraphStore.open(store)
    config = _config(opened, recipe, model, original, settings or [], as_json).preparation
    if dry_run:
        from .prepare.estimate import estimate

        found = estimate(opened, config, memory, threads)
        _print_json(found.as_dict()) if as_json else _print_estimate(found.as_dict(), f"To prepare {opened.place}")
        return
    _say_stale(opened, config, as_json)
    with _progress(as_json) as progress, redirect_stdout(sys.stderr), _goes_on():  # where Ray says what it has to say
        worker = _engine(engine, address, shards, neighbors, threads, memory, progress)
        prepared = run_prepare(opened, config, engine=worker)
    _show_folder(prepared.place, as_json, verify=False)


def _check_engine(name: str) -> None:
    if name not in ("local", "ray"):
        raise ConfigError(f"engine {name!r} is not one of local, ray{nearest(name, ('local', 'ray'))}")


def _engine(
    name: str, address: str | None, shards: int | None, neighbors: str | None, threads: int | None,
    memory: str | None, progress: Any,
) -> Any:  # fmt: skip
    """The engine that `prepare` was told to use."""
    from .memory import memory_budget, parse_bytes
    from .prepare.engines.engine import Engine

    _check_engine(name)
    if name == "local":
        if address is not None or shards is not None:
            raise ConfigError("--address and --shards are for --engine ray")
        return Engine(memory_budget(memory), threads, progress, neighbors)
    if threads is not None:
        raise ConfigError("--threads is for --engine local: a cluster runs one task per core")
    from .prepare.engines.ray import TASK_BYTES, RayEngine

    return RayEngine(address, shards, parse_bytes(memory) if memory else TASK_BYTES, progress, neighbors)


@app.command("redis-load")
def redis_load(
    store: Annotated[Path, typer.Argument(help="The store: a folder or a URL.")],
    url: Annotated[str, typer.Argument(help="Where to: redis://host:port/name, with a name of your choice.")],
    direction: Annotated[
        str, typer.Option(help="The prepare.local_nodes.direction to be sampled along: both, out or in.")
    ] = "both",
    as_json: AsJson = False,
) -> None:
    """Put a store's neighbour lists into Redis, for prepare --neighbors to sample from.

    Example:  largegt redis-load data/g redis://localhost:6379/g

    Then:  largegt prepare data/g --neighbors redis://localhost:6379/g
    """
    from typing import get_args

    from .graph.store import GraphStore
    from .prepare.redis_lists import load_lists
    from .types import Direction

    if direction not in get_args(Direction):
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(get_args(Direction))}")
    opened = GraphStore.open(store)
    with _progress(as_json) as progress:
        lists = load_lists(opened, url, direction, progress)  # type: ignore[arg-type]
    if as_json:
        _print_json({"url": url, "num_nodes": lists.num_nodes, "direction": direction})
    else:
        next_step = f"largegt prepare {opened.place} --neighbors {url}"
        print(f"The lists of {lists.num_nodes:,} nodes are there. Next: {next_step}")


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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there.")] = False,
    devices: Devices = 1,
    engine: Annotated[
        str, typer.Option(help="Who starts --devices processes: local (this machine) or ray (a cluster).")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the cluster's address; auto finds one, else one starts here.")
    ] = None,
    memory: Memory = None,
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
    from .errors import InputError
    from .graph.store import GraphStore
    from .ranks import check_devices, is_first_here
    from .training.launch import launch, resume_advice
    from .training.loop import check_out
    from .training.loop import train as run_train
    from .training.run import Run

    given = {"train.seed": seed, "train.epochs": epochs, "train.budget": budget}
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
        data = GraphStore.open(store)
        config = _config(data, recipe, model, original, overrides, as_json)
    check_out(out, config, data, resume, overwrite)
    _check_engine(engine)

    def how() -> str:
        return resume_advice(out, devices) if (out / "config.toml").is_file() else AGAIN

    if engine == "local" and check_devices(devices):
        with _goes_on(how):
            raise SystemExit(launch(devices, sys.argv[1:], how))
    quiet = as_json or not is_first_here()
    _say_stale(data, config.preparation, quiet)
    if engine == "ray":
        from .training.ray_train import train_on_ray

        finished = train_on_ray(data, config, out, devices, address, resume, overwrite, memory)
    else:
        with _progress(quiet) as progress, _goes_on(how):
            finished = run_train(data, config, out, resume, overwrite, progress, memory)
    if not is_first_here():
        return
    if as_json:
        _print_json(finished.metrics)
    else:
        _print_metrics(finished.metrics)
        print(f"\nThe run is in {finished.path}. Next: largegt predict {finished.path} --out predictions.parquet")


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
    from .tuning.tune import tune as run_tune

    _check_original(recipe, model, original)
    with _progress(as_json) as progress, _goes_on():
        found = run_tune(
            store, out, trials, budget, model, recipe, settings or [], search or [], only=only, original=original,
            final=final, seed=seed, progress=progress, memory=memory,
        )  # fmt: skip
    if as_json:
        _print_json(found.as_dict())
    else:
        _print_tuned(found)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    as_json: AsJson = False,
) -> None:
    """Score a run's best weights on a split."""
    from .ranks import check_devices, is_first_here
    from .training.evaluate import evaluate as run_evaluate
    from .training.launch import launch

    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: "run the same command again"))
    with _progress(as_json or not is_first_here()) as progress:
        scores = run_evaluate(run, split, progress, device, draws)
    if not is_first_here():
        return
    if as_json:
        _print_json(scores)
    else:
        _print_table(f"{run}, {split}", ("metric", "value"), [(name, f"{v:.4f}") for name, v in scores.items()])


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Option(help="Where to: .parquet, .csv or .npz.")] = Path("predictions.parquet"),
    node: Annotated[list[str] | None, typer.Option(help="Predict this node (your own id). Repeat as needed.")] = None,
    split: Annotated[str | None, typer.Option(help="Predict the nodes of this split.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column of probabilities for every class.")
    ] = False,
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict every node of the store, or some, with your own ids in the result."""
    from .predict import predict_to_file
    from .prediction_files import check_prediction_file
    from .ranks import check_devices, is_first_here
    from .training.launch import launch

    check_prediction_file(out, overwrite)
    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: f"{out} was not written; run the same command again"))
    with _progress(as_json or not is_first_here()) as progress:
        written = predict_to_file(run, out, node, split, probabilities, device, progress, draws, memory, overwrite)
    if not is_first_here():
        return
    if as_json:
        _print_json({"out": str(out), "rows": written.num_rows, "columns": written.columns})
        return
    shown = written.columns[:6]
    rows = [[_short(row[name]) for name in shown] for row in written.first.to_pylist()]
    _print_table(f"{written.num_rows:,} predictions in {out}", shown, rows)


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Option(help="Where to: .parquet, .npy or .npz.")] = Path("embeddings.parquet"),
    part: Annotated[str, typer.Option(help="joined (what the head reads), local or global.")] = "joined",
    node: Annotated[list[str] | None, typer.Option(help="Embed this node (your own id). Repeat as needed.")] = None,
    split: Annotated[str | None, typer.Option(help="Embed this split; with --nearest, look there.")] = None,
    nearest: Annotated[
        str | None, typer.Option(metavar="ID", help="Write nothing: show the nodes nearest to this one.")
    ] = None,
    top: Annotated[int, typer.Option(help="With --nearest: so many.", min=1)] = 10,
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a vector per node: what LargeGT makes of it before it predicts. Or show which nodes lie nearest to one."""
    from .embed import check_embedding_file, embed_to_file, nearest_nodes
    from .ranks import check_devices, is_first_here
    from .training.launch import launch

    if nearest is not None:
        if node or devices > 1:
            raise ConfigError("--nearest looks for one node in one process: leave out --node and --devices")
        with _progress(as_json) as progress:
            found = nearest_nodes(run, nearest, top, split, part, device, progress, draws, memory).to_pylist()
        if as_json:
            _print_json({"node": nearest, "part": part, "nearest": found})
            return
        rows = [(one["node"], _plain(one["label"]), f"{one['similarity']:.4f}") for one in found]
        _print_table(f"Nearest to {nearest} ({part})", ("node", "label", "similarity"), rows, left=("label",))
        return
    check_embedding_file(out, overwrite)
    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: f"{out} was not written; run the same command again"))
    with _progress(as_json or not is_first_here()) as progress:
        written = embed_to_file(run, out, node, split, part, device, progress, draws, memory, overwrite)
    if not is_first_here():
        return
    width = written.first.schema.field("embedding").type.list_size
    if as_json:
        _print_json({"out": str(out), "rows": written.num_rows, "width": width, "part": part})
    else:
        print(f"{written.num_rows:,} vectors of {width} numbers ({part}) in {out}")


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    node: Annotated[str, typer.Option(help="The node (your own id).")],
    out: Annotated[Path | None, typer.Option(help="Also write a .html page, a .svg picture or .json.")] = None,
    label: Annotated[str | None, typer.Option(help="The class or label to explain; else what is predicted.")] = None,
    top: Annotated[int, typer.Option(help="Rows of each table.", min=1)] = 15,
    draws: Draws = None,
    device: Device = None,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which sampled nodes, contexts, labels and centroids carried what a LargeGT says of a node."""
    from .explain.files import check_explanation_file, write_explanation
    from .explain.node import explain as run_explain

    if out is not None:
        check_explanation_file(out, overwrite)
    with _progress(as_json) as progress:
        found = run_explain(run, node, label, device, progress, draws, memory)
    if out is not None:
        write_explanation(found, out)
    if as_json:
        _print_json(found.as_dict())
        return
    print(found.text(top), end="")
    if out is not None:
        print(f"\nWritten to {out}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its title.")] = "largegt report",
    analysis: Annotated[
        bool, typer.Option(help="Predict test nodes with the best run of every model, to show where it errs.")
    ] = True,
    max_nodes: Annotated[int, typer.Option(help="Test nodes to look at, at most.", min=1)] = 20_000,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of runs: scores, learning curves, time and memory, where a model errs and why.

    Example:  largegt report runs/* --out report.html

    The page needs no network, reads well on a phone, in the dark and on paper, and shows numbers on a hover. What it
    finds out about a run is kept there in analysis.json.
    """
    from .report.page import report as run_report

    with _progress(as_json) as progress:
        page = run_report(runs, out, title, look_into=analysis, max_nodes=max_nodes, device=device, progress=progress)
    if as_json:
        _print_json({"page": str(page), "runs": len(runs)})
    else:
        print(f"{page} shows {len(runs)} run{'s' if len(runs) > 1 else ''}")


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(help="table-datasets, table-main, table-extended, fig-epoch-time, fig-k, fig-curves, or all."),
    ] = "all",
    dataset: Annotated[
        str, typer.Option(help="A dataset of the paper (its store is looked for in data/NAME), or a store's folder.")
    ] = "ogbn-products",
    out: Annotated[Path, typer.Option(help="Where tables, figures, runs and the page go.")] = Path("reproduce"),
    runs: Annotated[int, typer.Option(help="Runs of each model, with seeds 0, 1, …; the paper has 4.", min=1)] = 4,
    budget: Annotated[str | None, typer.Option(help="Wall-clock limit of each run: 90s, 30m, 4h.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Models to compare, with commas; the paper's when not given.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Use the paper's settings for this dataset of its, on a store of your own.")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make the paper's tables and figures, on its datasets or on a graph of your own.

    Example:  largegt reproduce table-main --dataset ogbn-products --budget 4h

    Example:  largegt reproduce all --dataset data/g --runs 2 --models graphsage,largegt-full --set train.epochs=10

    Each is written as CSV, Markdown and LaTeX, figures also as SVG, PDF and PNG, and report.html shows all of them.
    What is finished is not trained again: the same command goes on where it stopped.
    """
    from .experiments.reproduce import reproduce as run_reproduce

    chosen = [name.strip() for name in models.split(",") if name.strip()] if models else None
    with _progress(as_json) as progress, _goes_on():
        files = run_reproduce(what, dataset, out, runs, budget, chosen, settings or [], like, progress)
    if as_json:
        _print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        if file.suffix == ".md":
            print(file.read_text(encoding="utf-8"))
    print(f"{len(files)} files in {out}: {', '.join(file.name for file in files)}")


datasets_app = typer.Typer(help="The paper's datasets: list, download, ingest.", no_args_is_help=False)
app.add_typer(datasets_app, name="datasets")
Root = Annotated[Path, typer.Option(help="The folder that datasets lie in, as their authors ship them.")]


@datasets_app.callback(invoke_without_command=True)
def datasets(context: typer.Context, root: Root = Path("datasets"), as_json: AsJson = False) -> None:
    """List the paper's datasets, and which of them are in --root.

    Download one:  largegt datasets download ogbn-products

    Make a store of it:  largegt datasets ingest ogbn-products --out data/ogbn-products
    """
    from .datasets.registry import listing

    if context.invoked_subcommand is not None:
        return
    rows = listing(root)
    if as_json:
        _print_json(rows)
        return
    shown = [
        (row["name"], _millions(row["nodes"]), _millions(row["edges"]), f"{row['features']} / {row['classes']}",
         row["download"], row["folder"] if row["complete"] else "not here")
        for row in rows
    ]  # fmt: skip
    columns = ("name", "nodes", "edges", "features / classes", "download", "where")
    _print_table("Datasets", columns, shown, left=("where",))


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f}M"


@datasets_app.command()
def download(
    name: Annotated[str, typer.Argument(help="ogbn-products, snap-patents or ogbn-papers100M.")],
    root: Root = Path("datasets"),
    url: Annotated[str | None, typer.Option(help="A mirror to fetch it from.")] = None,
    keep_archive: Annotated[bool, typer.Option("--keep-archive", help="Keep the archive once it is unpacked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, check it and unpack it. An interrupted download goes on where it stopped."""
    from .datasets.download import download_dataset

    with _progress(as_json) as progress, _goes_on():
        folder = download_dataset(name, root, progress, url=url, keep_archive=keep_archive)
    if as_json:
        _print_json({"folder": str(folder)})
    else:
        print(f"{name} is in {folder}. Next: largegt datasets ingest {name} --root {root} --out data/{name}")


@datasets_app.command(name="ingest")
def ingest_named(
    name: Annotated[str, typer.Argument(help="ogbn-products, snap-patents or ogbn-papers100M.")],
    out: Annotated[Path, typer.Option(help="The store: a folder or a URL.")],
    root: Root = Path("datasets"),
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make a store of a dataset that lies in --root, with the split its authors give."""
    from .config import IngestConfig, parse_overrides
    from .datasets.registry import ingest_config, ingest_dataset

    changed = parse_overrides(IngestConfig, [_without_prefix(item, "ingest.") for item in settings or []])
    config = ingest_config(name, **changed.model_dump(exclude_unset=True))
    with _progress(as_json) as progress, _goes_on():
        ingest_dataset(name, root, out, config, overwrite=overwrite, progress=progress, memory=memory)
    _show_folder(out, as_json, verify=False)


@app.command()
def settings(
    section: Annotated[
        str | None, typer.Argument(help="Only names that begin so: train, model, prepare, ingest.")
    ] = None,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the recipes that come with the package.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every setting with its default and what it means.

    --recipes lists what --recipe of train and prepare takes. A recipe of your own is a .toml file; with a line such as
    extends = "gat" at its top it says only what differs.
    """
    from .config import Config, IngestConfig, describe_settings, recipe_about, recipes_by_dataset

    if recipes and as_json:
        _print_json(recipe_about())
        return
    if recipes:
        for dataset, about in recipes_by_dataset().items():
            _print_table(f"Recipes for {dataset}", ("name", "what it is"), list(about.items()), left=("what it is",))
        return
    every = [*describe_settings(IngestConfig, "ingest."), *describe_settings(Config)]
    chosen = [item for item in every if item[0].startswith(section or "")]
    if not chosen:
        raise ConfigError(f"no setting begins with {section!r}{nearest(section or '', [name for name, _, _ in every])}")
    if as_json:
        _print_json({name: {"default": default, "help": text} for name, default, text in chosen})
    else:
        _print_table(
            "Settings",
            ("name", "default", "meaning"),
            [(n, _plain(d), text) for n, d, text in chosen],
            left=("meaning",),
        )


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs shows question marks
    listen()
    if "LARGEGT_LAUNCHED" in os.environ:
        end_with_parent(int(os.environ["LARGEGT_LAUNCHED"]))
    try:
        app()
    except LargeGTError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave_ranks(error)
        raise SystemExit(2) from None
    except Exception as error:
        _leave_ranks(error)
        if not (reason := machine_refusal(error)):
            raise
        print(f"error: {reason}", file=sys.stderr)
        raise SystemExit(2) from None


@contextmanager
def _goes_on(how: Callable[[], str] | None = None) -> Iterator[None]:
    """Within, work is done that the same command goes on with, or the one that `how` names: it is told after a signal
    and after a full disk."""
    _how_to_go_on.append(how or (lambda: f"{AGAIN}, it goes on where it stopped"))
    try:
        yield
    except DiskError as error:
        if how is None:
            raise
        raise DiskError(str(error).replace(f", then {AGAIN}", f"; {how()}")) from error


def _stopped(error: KeyboardInterrupt) -> int:
    """Say how to go on; the exit code. A rank leaves at once, and silently where another process speaks for it."""
    code = exit_code(error)
    is_launched = "LARGEGT_LAUNCHED" in os.environ
    if not is_launched:
        print(f"stopped: {_how_to_go_on[-1]() if _how_to_go_on else AGAIN}", file=sys.stderr)
    ranks = sys.modules.get("largegt.ranks")
    if is_launched or (ranks is not None and ranks.is_joined()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _leave_ranks(error: Exception) -> None:
    """A rank that fails leaves at once: an orderly end would wait for the others, which wait for it. That it only
    misses another one is said in a line, but by the first one only if nobody launched them all and will say it."""
    ranks = sys.modules.get("largegt.ranks")
    if ranks is None or not ranks.is_joined():
        return
    code = 2 if isinstance(error, LargeGTError) else 1
    if ranks.is_lost_rank(error):
        code = ranks.LOST_RANK_CODE
        if "LARGEGT_LAUNCHED" not in os.environ or not ranks.is_first_here():
            reason = str(error).strip().partition("\n")[0][:150]
            print(f"error: this rank misses another one ({reason} …); go on with --resume", file=sys.stderr)
    elif code == 1:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check_original(recipe: str | None, model: str | None, original: bool) -> None:
    if original and (recipe or not model):
        raise ConfigError("--original goes with --model and without --recipe: --model gat --original")


def _config(
    store: Any, recipe: str | None, model: str | None, original: bool, overrides: list[str], as_json: bool
) -> Any:
    """The recipe that was named, or the model's own, with overrides on top; `model` is the last word on model.name.
    What auto chooses is said."""
    from .auto import config_for
    from .config import recipe_for

    _check_original(recipe, model, original)
    own = recipe_for(model, original) if model else "default"
    config, chosen = config_for(store, recipe or own, [*overrides, *([f"model.name={model}"] if model else [])])
    if chosen and not as_json and "LARGEGT_LAUNCHED" not in os.environ:
        for choice in chosen:
            print(f"auto: {choice!s:<38} {choice.reason}", file=sys.stderr)
    return config


# how results are shown ------------------------------------------------------------------------------------------


def _progress(quiet: bool) -> Any:
    from .progress import console_progress

    return console_progress(quiet)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, default=str, ensure_ascii=False))


def _print_table(title: str, columns: Any, rows: Any, left: tuple[str, ...] = ()) -> None:
    """A table under its title. The first column and those named in `left` are aligned left, numbers right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_header=any(columns), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(Text(str(column)), justify="left" if number == 0 or column in left else "right")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def _print_metrics(metrics: dict[str, Any]) -> None:
    names = list(metrics["valid"] or metrics["test"])
    rows = [
        (name, *(f"{metrics[split][name]:.4f}" if name in metrics[split] else "–" for split in ("valid", "test")))
        for name in names
    ]
    title = f"{metrics['model']} on {metrics['dataset']}, best epoch {metrics['best_epoch']} of {metrics['epochs']}"
    _print_table(title, ("", "valid", "test"), rows)
    if metrics["stopped"]:
        print(f"Stopped early: {metrics['stopped']}.")


def _print_tuned(found: Any) -> None:
    """The best trials, what made a difference, the final runs, and what to do next."""
    shown = [(trial.number, f"{trial.score:.4f}", trial.epochs, found.in_words(trial)) for trial in found.ranked[:5]]
    differs = "differs from the recipe (its value)"
    columns = ("trial", f"valid {found.metric}", "epochs", differs)
    _print_table(f"The best of {found.num_done} trials on {found.dataset}", columns, shown, left=(differs,))
    if found.importances:
        shares = [f"{name} {share:.0%}" for name, share in list(found.importances.items())[:5]]
        print(f"What made a difference: {', '.join(shares)}")
    if found.num_prepared:
        print(f"Preparations made on the way: {found.num_prepared}, in {found.store / 'prepared'}")
    if found.stopped:
        print(f"Ended early: {found.stopped}; a longer --budget goes on.")
    if found.final:
        print(f"\nThe best settings with {len(found.final)} seeds: {found.final_in_words()}")
    print(f"\nLook at all trials: {found.page}")
    print(f"Next: largegt train {found.store} --recipe {found.recipe} --out runs/best")


def _show_folder(path: Path | str, as_json: bool, verify: bool) -> None:
    from .inspection import inspect as run_inspect
    from .storage import is_url, local_path, shown

    path = shown(local_path(path)) if is_url(path) else path
    found = _verified(path, as_json) if verify else {}
    facts = run_inspect(path) | found
    if as_json:
        _print_json(facts | {"path": str(path)})
        return
    rows = [
        (name.replace("_", " "), _plain(value))
        for name, value in facts.items()
        if not isinstance(value, dict) and name != "kind" and value != []
    ]
    _print_table(f"{facts['kind']} {path}", ("", ""), rows)
    for name in ("splits", "classes", "degrees"):
        if isinstance(facts.get(name), dict):
            _print_bars(name, facts[name])
    if "preparation" in facts:
        _print_estimate(facts["preparation"], "To prepare it as the default recipe says")
    if "metrics" in facts:
        _print_metrics(facts["metrics"])


def _verified(path: Path | str, as_json: bool) -> dict[str, Any]:
    """Compare everything with its checksums; damage is said, and ends the command."""
    from .verification import verify

    with _progress(as_json) as progress:
        found = verify(path, progress)
    if found.damaged:
        if as_json:
            _print_json({"path": str(path), **found.as_dict()})
        for damage in [] if as_json else found.damaged:
            print(f"damaged: {damage}")
        for note in [] if as_json else found.notes:
            print(f"note: {note}")
        raise typer.Exit(1)
    return {"verified": True, "verified_bytes": found.num_bytes, "notes": found.notes}


def _print_estimate(found: dict[str, Any], title: str) -> None:
    """What a preparation will take, stage by stage."""
    from .memory import format_bytes

    if found["already_prepared"]:
        print("It is prepared already; this is what it would take again.")
    rows = [
        (
            stage["name"], format_bytes(stage["disk_bytes"]), format_bytes(stage["scratch_bytes"]),
            format_bytes(stage["memory_bytes"]), _duration(stage["elapsed_s"]),
        )
        for stage in found["stages"]
    ]  # fmt: skip
    total = ("all", format_bytes(found["disk_bytes"]), f"peak {format_bytes(found['peak_disk_bytes'])}",
             format_bytes(found["memory_bytes"]), _duration(found["elapsed_s"]))  # fmt: skip
    _print_table(
        f"{title}: {found['num_nodes']:,} nodes, about {found['token_rows']:,} token rows",
        ("stage", "on disk", "scratch", "memory", "rough time"), [*rows, total],
    )  # fmt: skip
    free = found["free_disk_bytes"]
    if found["peak_disk_bytes"] > free:
        print(f"This does not fit: {format_bytes(free)} are free on that disk.")


def _duration(elapsed_s: float) -> str:
    if elapsed_s < 90:
        return f"{elapsed_s:.0f} s" if elapsed_s >= 1 else "under 1 s"
    return f"{elapsed_s / 60:.0f} min" if elapsed_s < 5400 else f"{elapsed_s / 3600:.1f} h"


def _print_bars(title: str, counts: dict[str, int], most: int = 20) -> None:
    """A horizontal bar chart of counts; only the largest of many classes."""
    shown = list(counts.items())
    if len(shown) > most:
        shown = sorted(shown, key=lambda item: -item[1])[:most]
        title = f"{title}, the {most} largest of {len(counts)}"
    longest = max((count for _, count in shown), default=0) or 1
    rows = [(name, f"{count:,}", "█" * round(30 * count / longest)) for name, count in shown]
    _print_table(title, (" ", "nodes", "  "), rows, left=("  ",))


def _say_stale(store: Any, config: Any, quiet: bool) -> None:
    """Tell which settings differ from an earlier preparation before running a new one."""
    from .prepare.prepared import is_prepared, stale_note

    if not quiet and not is_prepared(store, config) and (note := stale_note(store, config)):
        print(f"note: {note}; preparing what changed", file=sys.stderr)


def _without_prefix(item: str, prefix: str) -> str:
    return item[len(prefix) :] if item.startswith(prefix) else item


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return "none" if value is None else str(value)


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
