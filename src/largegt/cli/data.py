"""Verbs from files to tokens: ingest, append, inspect, prepare, redis-load."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..text import quoted
from .app import app, goes_on
from .options import (
    Address,
    AsJson,
    EngineName,
    Memory,
    Model,
    NoWait,
    Original,
    Recipe,
    Settings,
    Threads,
    TrustRemote,
    config_from,
    engine_for,
    without_prefix,
)
from .show import (
    plain,
    print_bars,
    print_columns,
    print_estimate,
    print_json,
    print_metrics,
    print_table,
    say,
    say_first_run,
    say_reused,
    say_stale,
    shown_progress,
)


@app.command()
def ingest(
    out: Annotated[Path, typer.Option(help="The store: a folder or a URL.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EDGES]...",
            help="Edges: .parquet, .csv, .tsv, .jsonl (also .gz, .zst), .arrow, .npy; folders, globs, URLs of them; or "
            "SQL: \"SELECT payer AS source, payee AS target FROM 'tx/*.parquet'\".",
        ),
    ] = None,
    edges: Annotated[list[str] | None, typer.Option(help="The same as EDGES.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Node table, or SQL: columns for the id, the label, the split, and features of any kind."),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="File of features: .npy [N, d], .npz (SciPy CSR), or a table in node order.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="File of labels: .npy, or a table with or without an id column.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="File of splits: .npz with train, valid, test; or a table of id and split.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="DuckDB or SQLite file, or postgres://…; --edges and --nodes name its tables, or are SQL."),
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
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="COLUMN=KIND",
            help="Set a column's kind: number, boolean, category, date, text, vector or ignore. Inferred if not set.",
        ),
    ] = None,
    missing_markers: Annotated[
        str | None,
        typer.Option(help="Cells that count as missing, separated by commas; by default NA, null, ?, - and the like."),
    ] = None,
    text_model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Local sentence-transformers model that embeds text; by default words are hashed."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Node column with train, valid or test.")] = None,
    split_by: Annotated[
        str | None, typer.Option(help="Split by this column of dates or numbers: oldest nodes train, newest test.")
    ] = None,
    split_group: Annotated[
        str | None, typer.Option(help="Split at random; nodes with the same value of this column are in the same part.")
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(help="Edge column with weights, positive numbers; for .npy edges, a .npy file of them."),
    ] = None,
    edge_features: Annotated[
        str | None,
        typer.Option(help="Edge columns of any kind, separated by commas, wildcards allowed; for .npy edges, a .npy."),
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option(help="Number of nodes when ids are 0..N-1 and nothing says N.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    settings: Settings = None,
    memory: Memory = None,
    engine: EngineName = "local",
    address: Address = None,
    shards: Annotated[
        int | None, typer.Option(help="With --engine ray: parts to read the edges in; four per core.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn your files into a store.

    From tables:  largegt ingest --edges edges.parquet --nodes nodes.csv.gz --label topic --out data/g

    From arrays:  largegt ingest --edges edge_index.npy --features x.npy --labels y.npy --out data/g

    With edge weights:  largegt ingest --edges transfers.parquet --weight amount --nodes accounts.parquet --out data/g

    From a database:  largegt ingest --database crm.duckdb --edges transfers --nodes customers --out data/g

    From a bucket, on a Ray cluster:  largegt ingest 's3://bucket/edges/*.parquet' --out /shared/g --engine ray

    Ids may be numbers or strings; predictions have the same ids. Nodes without a
    label are kept and can be predicted. All other columns of the node table
    become features: numbers, booleans, categories, dates, text and vectors. The
    printed table shows the kind of each column, and the reason for each ignored
    one. Without a split, labelled nodes are split at random. Settings (--set):
    undirected, task, split, split_seed, stratify, feature_dtype, unknown_ids,
    missing_values, parallel_edges; `largegt settings` explains them.

    Files may be larger than memory. After a kill or a full disk, the same command
    resumes. With --engine ray, --memory is the memory of each task, 1 GiB by
    default. The result is the same on any engine.
    """
    from ..config import IngestConfig
    from ..data import sources
    from ..data.ingest import ingest as run_ingest
    from ..settings import parse_overrides

    edges = [*(files or []), *(edges or [])]
    if not edges:
        raise ConfigError("which edges? name their files: largegt ingest edges.parquet --out data/g")
    config = parse_overrides(IngestConfig, [without_prefix(item, "ingest.") for item in settings or []])
    if kinds:
        config = config.model_copy(update={"kinds": (*config.kinds, *kinds)})
    if text_model is not None:
        config = config.model_copy(update={"text_model": text_model})
    if missing_markers is not None:
        config = config.model_copy(update={"missing_markers": tuple(missing_markers.split(","))})
    given = sources.files(
        edges, nodes=nodes, features=features, labels=labels, splits=splits,
        source=source, target=target, id=id, label=label, feature_columns=feature_columns, split=split,
        num_nodes=num_nodes, weight=weight, edge_features=edge_features, split_by=split_by, split_group=split_group,
        database=database,
    )  # fmt: skip
    with (
        shown_progress(as_json) as progress,
        goes_on(),
        redirect_stdout(sys.stderr),
    ):  # Ray speaks there
        means: dict[str, Any] = {"memory": memory}
        if (engine, address, shards) != ("local", None, None):
            means = {"engine": engine_for(engine, address, shards, None, None, memory, progress)}
        store = run_ingest(given, out, config, overwrite=overwrite, progress=progress, **means)
    if not as_json:
        say(*given.notes)
    show_folder(store.place, as_json, verify=False, estimate=False)


@app.command()
def append(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    nodes: Annotated[
        str | None, typer.Option(help="Table of new nodes, or SQL, with the columns that ingest was given.")
    ] = None,
    edges: Annotated[
        list[str] | None, typer.Option(help="New edges, between new nodes and old ones. Repeat as needed.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a new store here; STORE itself is replaced if not given.")
    ] = None,
    features: Annotated[str | None, typer.Option(help="Features of the new nodes apart, as ingest takes them.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels of the new nodes apart.")] = None,
    splits: Annotated[str | None, typer.Option(help="Splits of the new nodes apart: a table of id and split.")] = None,
    source: Annotated[str | None, typer.Option(help="Edge column that an edge leaves. Guessed when not given.")] = None,
    target: Annotated[str | None, typer.Option(help="Edge column that an edge enters.")] = None,
    id: Annotated[str | None, typer.Option(help="Node column with the ids.")] = None,
    label: Annotated[str | None, typer.Option(help="Label column, or several separated by commas.")] = None,
    feature_columns: Annotated[
        str | None, typer.Option(help="Feature columns; those that the store was made from if not given.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Node column that says train, valid or test.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Rows with known ids replace the labels, split or features of these nodes.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is at --out.")] = False,
    threads: Threads = None,
    memory: Memory = None,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Add new nodes and edges to a store: the store that an ingest of everything would have made.

    Example:  largegt append data/g --nodes today_nodes.parquet --edges today_edges.parquet

    Then:  largegt predict runs/a --out tonight.parquet

    Changed values of known nodes:  largegt append data/g --update --nodes changed.parquet

    With --update, what the table has no column for stays as it is, and so does a label or split whose cell is empty.
    Features are replaced from all their columns, or from none. Rows with new ids are new nodes.

    The old store is read once, and stays as it is until the new one is whole; if it is killed, the same command goes
    on where it stopped. Runs trained before go on predicting, old nodes and new ones. New nodes without a split are in
    none. Labels that are no class of the store are refused.
    """
    from ..data.append import append as run_append
    from ..data.append import found_store
    from ..data.versions import last_changes

    there = found_store(out or store)
    before = None if there is None else there.fingerprint
    with shown_progress(as_json) as progress, goes_on():
        grown = run_append(
            store, nodes, edges or None, out, overwrite, progress, update=update,
            threads=threads, memory=memory, features=features, labels=labels, splits=splits, source=source,
            target=target, id=id, label=label, feature_columns=feature_columns, split=split,
        )  # fmt: skip
    changes = last_changes(grown)
    if grown.fingerprint == before:
        changes = dict.fromkeys(changes, 0)
    facts = {"store": grown.place, "nodes": grown.num_nodes, "edges": grown.num_edges, **changes}
    if as_json:
        print_json(facts)
        return
    print_table(
        f"store {grown.place}", ("", ""), [(key.replace("_", " "), plain(value)) for key, value in facts.items()]
    )


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A store, a preparation or a run; the first two may be URLs.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare the checksums.")] = False,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Say what a folder holds: sizes, degrees, labels, splits, scores.

    Example:  largegt inspect data/g

    --verify reads everything first: a store and its preparations, or a run, its store and those. Each damaged file is
    named, and then the exit code is 1.
    """
    show_folder(path, as_json, verify)


def show_folder(path: Path | str, as_json: bool, verify: bool, estimate: bool = True) -> None:
    from ..inspection import inspect as run_inspect
    from ..io.remote import is_url, local_path, shown

    path = shown(local_path(path)) if is_url(path) else path
    found = _verified(path, as_json) if verify else {}
    facts = run_inspect(path, estimate=estimate) | found
    if as_json:
        print_json(facts | {"path": str(path)})
        return
    rows = [
        (name.replace("_", " "), plain(value))
        for name, value in facts.items()
        if not isinstance(value, dict) and name not in ("kind", "columns", "edge_columns") and value != []
    ]
    print_table(f"{facts['kind']} {path}", ("", ""), rows)
    for name, title in (("columns", "columns of the nodes"), ("edge_columns", "columns of the edges")):
        if facts.get(name):
            print_columns(title, facts[name])
    for name in ("splits", "classes", "degrees"):
        if isinstance(facts.get(name), dict):
            print_bars(name, facts[name])
    if "preparation" in facts:
        print_estimate(facts["preparation"], "To prepare it as the default recipe says")
    if "metrics" in facts:
        print_metrics(facts["metrics"])


def _verified(path: Path | str, as_json: bool) -> dict[str, Any]:
    """Compare everything with its checksums; damage is said, and ends the command."""
    from ..verification import verify

    with shown_progress(as_json) as progress:
        found = verify(path, progress)
    if found.damaged:
        if as_json:
            print_json({"path": str(path), **found.as_dict()})
        for damage in [] if as_json else found.damaged:
            say(f"damaged: {damage}")
        for note in [] if as_json else found.notes:
            say(f"note: {note}")
        raise typer.Exit(1)
    return {"verified": True, "verified_bytes": found.num_bytes, "notes": found.notes}


@app.command()
def prepare(
    store: Annotated[Path, typer.Argument(help="The store: a folder or a URL.")],
    recipe: Recipe = None,
    settings: Settings = None,
    model: Model = None,
    original: Original = False,
    threads: Threads = None,
    memory: Memory = None,
    engine: EngineName = "local",
    address: Address = None,
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
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Sample local nodes, compute context features and positional encodings; what is there already is kept.

    Example:  largegt prepare data/g --set prepare.local_nodes.k=100 --set prepare.positions.method=node2vec

    With --model, what that model needs, which may be less:  largegt prepare data/g --model graphsage

    On a Ray cluster that sees the store:  largegt prepare s3://bucket/g --engine ray --address auto

    The graph may be larger than memory. If it is killed or the disk is full, the same command goes on where it stopped.
    With --engine ray, --memory is what each task may hold, 1 GiB if not given. The result is the same on any engine.
    """
    from ..data.store import GraphStore
    from ..prepare.pipeline import prepare as run_prepare

    opened = GraphStore.open(store)
    config = config_from(opened, recipe, model, original, settings or [], as_json).preparation
    if dry_run:
        from ..prepare.estimate import estimate

        found = estimate(opened, config, memory, threads)
        print_json(found.as_dict()) if as_json else print_estimate(found.as_dict(), f"To prepare {opened.place}")
        return
    say_stale(opened, config, as_json)
    say_first_run(as_json)
    with (
        shown_progress(as_json) as progress,
        redirect_stdout(sys.stderr),
        goes_on(),
    ):  # Ray speaks there
        worker = engine_for(engine, address, shards, neighbors, threads, memory, progress)
        least = memory if engine == "local" else None
        prepared = run_prepare(opened, config, memory=least, engine=worker, wait=not no_wait)
    say_reused(prepared.reused, as_json)
    show_folder(prepared.place, as_json, verify=False)


@app.command()
def clean(
    store: Annotated[Path, typer.Argument(help="The store: a folder or a URL.")],
    drop: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Release the version that this run was trained on. Repeat as needed."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old versions of a store, and arrays and preparations that nothing needs.

    Example:  largegt clean data/g

    `append` and `ingest --overwrite` add a version to a store. An old version stays while a process reads it or a run
    is registered for it: every run needs the version it was trained on, for evaluate, --resume and for predicting a
    graph that has grown. A run that is no longer wanted is released with --drop:

    largegt clean data/g --drop runs/a
    """
    from dataclasses import asdict

    from ..data.versions import clean as run_clean
    from ..data.versions import release
    from ..io.remote import is_url, shown
    from ..memory import format_bytes

    place = shown(store) if is_url(store) else store
    for run in drop or []:
        release(place, run, dry_run)
    cleaned = run_clean(place, dry_run, without=drop or [])
    if as_json:
        print_json({"store": str(place), "dry_run": dry_run, **asdict(cleaned)})
        return
    for version, runs in cleaned.kept.items():
        needed = ", ".join(f"{run}{'' if Path(run).exists() else ' (no longer there)'}" for run in runs)
        say(f"version {version} stays: {needed or 'a process has it open'}")
    verb = "Would remove" if dry_run else "Removed"
    say(
        f"{verb} {len(cleaned.versions)} versions, {len(cleaned.preparations)} preparations and stages; "
        f"{cleaned.num_files} arrays, {format_bytes(cleaned.num_bytes)}"
    )


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

    A server with a password: set REDIS_PASSWORD (and REDIS_USERNAME), because others can see what is on a command line.
    """
    from typing import get_args

    from ..data.store import GraphStore
    from ..prepare.redis_lists import load_lists
    from ..types import Direction

    if direction not in get_args(Direction):
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(get_args(Direction))}")
    opened = GraphStore.open(store)
    with shown_progress(as_json) as progress:
        lists = load_lists(opened, url, direction, progress)  # type: ignore[arg-type]
    if as_json:
        print_json({"url": lists.url, "num_nodes": lists.num_nodes, "direction": direction})
    else:
        next_step = f"largegt prepare {quoted(opened.place)} --neighbors {quoted(lists.url)}"
        say(f"The lists of {lists.num_nodes:,} nodes are there. Next: {next_step}")
