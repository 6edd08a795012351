"""Verbs from files to tokens: ingest, append, inspect, prepare, clean, redis-load."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from largegt.errors import ConfigError
from largegt.runtime.text import quoted

from . import show
from .app import goes_on
from .options import ConfigOptions, EngineOptions, Files, NodeFiles, ingest_overrides, verb
from .show import Result


@verb()
def ingest(
    edge_files: list[str] | None = None, *, out: Path, edges: list[str] | None = None, files: Files,
    kinds: list[str] | None = None, missing_markers: str | None = None, text_model: str | None = None,
    overwrite: bool = False, settings: list[str] | None = None, work: EngineOptions,
) -> Result:  # fmt: skip
    """Turn your files into a store.

    From tables:  largegt ingest --edges edges.parquet --nodes nodes.csv.gz --label-column topic --out data/g

    From arrays:  largegt ingest --edges edge_index.npy --features x.npy --labels y.npy --out data/g

    With edge weights:  largegt ingest --edges paid.parquet --weight-column amount --nodes nodes.parquet --out data/g

    From a database:  largegt ingest --database crm.duckdb --edges transfers --nodes customers --out data/g

    From a bucket, on a Ray cluster:  largegt ingest 's3://bucket/edges/*.parquet' --out /shared/g --engine ray

    Ids may be numbers or strings; predictions have the same ids. Nodes without a
    label are kept and can be predicted. All other columns of the node table
    become features: numbers, booleans, categories, dates, text and vectors. The
    printed table shows the kind of each column, and the reason for each ignored
    one. Without a split, labelled nodes are split at random. Settings (--set):
    undirected, task, split_fractions, split_seed, stratify, feature_dtype, unknown_ids,
    missing_values, parallel_edges; `largegt config` explains them.

    Files may be larger than memory. After a kill or a full disk, the same command
    resumes. With --engine ray, --memory-limit is the memory of each task, 1 GiB by
    default. The result is the same on any engine.

    Args:
        out: The store: a folder or a URL.
        edge_files: Edges: .parquet, .csv, .tsv, .jsonl (also .gz, .zst), .arrow, .npy; folders, globs, URLs of them;
            or SQL: "SELECT payer AS source, payee AS target FROM 'tx/*.parquet'".
        edges: The same as EDGES.
        kinds: Set a column's kind: number, log, boolean, category, date, text, vector or ignore. Inferred if not
            set.
        missing_markers: Cells that count as missing, separated by commas; by default NA, null, ?, - and the
            like.
        text_model: Local sentence-transformers model that embeds text; by default words are hashed.
    """
    from largegt.data import sources
    from largegt.data.ingest import ingest as run_ingest

    edges = [*(edge_files or []), *(edges or [])]
    if not edges:
        raise ConfigError("which edges? name their files: largegt ingest edges.parquet --out data/g")
    config = ingest_overrides(settings)
    changes: dict[str, Any] = {"column_kinds": (*config.column_kinds, *(kinds or []))}
    if text_model is not None:
        changes["text_model"] = text_model
    if missing_markers is not None:
        changes["missing_markers"] = tuple(missing_markers.split(","))
    config = config.model_copy(update=changes)
    given = sources.files(edges, **vars(files))
    with show.progress() as progress, goes_on(), redirect_stdout(sys.stderr):  # Ray prints there
        is_plain = (work.engine, work.address, work.shards) == ("local", None, None)
        means = {"memory": work.memory} if is_plain else {"engine": work.make(progress)}
        store = run_ingest(given, out, config, overwrite=overwrite, progress=progress, **means)
    return show.folder(store.place, estimate=False, before=given.notes)


@verb()
def append(
    store: Path, *, edges: list[str] | None = None, out: Path | None = None, files: NodeFiles, update: bool = False,
    overwrite: bool = False, threads: int | None = None, memory: str | None = None, trust_remote: bool = False,
) -> Result:  # fmt: skip
    """Add new nodes and edges to a store: the store that an ingest of everything would have made.

    Example:  largegt append data/g --nodes today_nodes.parquet --edges today_edges.parquet

    Then:  largegt predict runs/a --out tonight.parquet

    Changed values of known nodes:  largegt append data/g --update --nodes changed.parquet

    With --update, what the table has no column for stays as it is, and so does a label or split whose cell is empty.
    Features are replaced from all their columns, or from none. Rows with new ids are new nodes.

    The old store is read once, and stays as it is until the new one is whole; if it is killed, the same command goes
    on where it stopped. Runs trained before go on predicting, old nodes and new ones. New nodes without a split are in
    none. Labels that are no class of the store are refused.

    Args:
        store: The store's folder.
        edges: New edges, between new nodes and old ones. Repeat as needed.
        out: Write a new store here; STORE itself is replaced if not given.
        update: Rows with known ids replace the labels, split or features of these nodes.
    """
    from largegt.data.append import append as run_append
    from largegt.data.append import found_store
    from largegt.data.versions import last_changes

    there = found_store(out or store)
    before = None if there is None else there.fingerprint
    with show.progress() as progress, goes_on():
        grown = run_append(
            store, edges=edges or None, out=out, overwrite=overwrite, progress=progress, update=update,
            threads=threads, memory=memory, **vars(files),
        )  # fmt: skip
    changes = last_changes(grown)
    if grown.fingerprint == before:
        changes = dict.fromkeys(changes, 0)
    facts = {"store": grown.place, "nodes": grown.num_nodes, "edges": grown.num_edges, **changes}
    return Result(facts, [show.facts(f"store {grown.place}", facts)])


@verb()
def inspect(path: Path, *, verify: bool = False, trust_remote: bool = False) -> Result:
    """Say what a folder holds: sizes, degrees, labels, splits, scores.

    Example:  largegt inspect data/g

    --verify reads everything first: a store and its preparations, or a run, its store and those. Each damaged file is
    named, and then the exit code is 1.

    Args:
        path: A store, a preparation or a run; the first two may be URLs.
        verify: Read every byte and compare the checksums.
    """
    if not verify:
        return show.folder(path)
    from largegt.cli.verification import verify as run_verify

    with show.progress() as progress:
        found = run_verify(path, progress)
    if not found.damaged:
        return show.folder(path, found={"verified": True, "verified_bytes": found.num_bytes, "notes": found.notes})
    lines = [*(f"damaged: {damage}" for damage in found.damaged), *(f"note: {note}" for note in found.notes)]
    return Result({"path": str(path), **found.as_dict()}, lines, exit_code=1)


@verb()
def prepare(
    store: Path, *, configuration: ConfigOptions, threads: int | None = None, work: EngineOptions,
    neighbor_store: str | None = None, dry_run: bool = False, no_wait: bool = False,
) -> Result:  # fmt: skip
    """Sample local nodes, compute context features and positional encodings; what is there already is kept.

    Example:  largegt prepare data/g --set prepare.local_nodes.k=100 --set prepare.positional_encoding.method=node2vec

    With --model, what that model needs, which may be less:  largegt prepare data/g --model graphsage

    On a Ray cluster that sees the store:  largegt prepare s3://bucket/g --engine ray --address auto

    The graph may be larger than memory. If it is killed or the disk is full, the same command goes on where it stopped.
    With --engine ray, --memory-limit is what each task may hold, 1 GiB if not given. The result is the same on any
    engine.

    Args:
        store: The store: a folder or a URL.
        neighbor_store: Sample from lists in Redis, redis://host:port/name; see redis-load.
        dry_run: Only say what it would take: disk, memory, rough time.
    """
    from largegt.data.store import GraphStore
    from largegt.preprocessing.pipeline import prepare as run_prepare

    opened = GraphStore.open(store)
    config = configuration.config(opened).preparation
    if dry_run:
        from largegt.preprocessing.estimate import estimate

        found = estimate(opened, config, work.memory, threads).as_dict()
        return Result(found, show.preparation(found, f"To prepare {opened.place}"))
    show.note_stale(opened, config)
    show.note_first_run()
    with show.progress() as progress, redirect_stdout(sys.stderr), goes_on():  # Ray prints there
        engine = work.make(progress, threads, neighbor_store)
        memory = work.memory if work.is_local else None
        prepared = run_prepare(opened, config, memory=memory, engine=engine, wait=not no_wait)
    show.note_reused(prepared.reused)
    return show.folder(prepared.place)


@verb()
def clean(store: Path, *, drop: list[Path] | None = None, dry_run: bool = False) -> Result:
    """Remove old versions of a store, and arrays and preparations that nothing needs.

    Example:  largegt clean data/g

    `append` and `ingest --overwrite` add a version to a store. An old version stays while a process reads it or a run
    is registered for it: every run needs the version it was trained on, for evaluate, --resume and for predicting a
    graph that has grown. A run that is no longer wanted is released with --drop:

    largegt clean data/g --drop runs/a

    Args:
        store: The store: a folder or a URL.
        drop: Release the version that this run was trained on. Repeat as needed.
        dry_run: Only say what would be removed.
    """
    from largegt.data.versions import clean as run_clean
    from largegt.data.versions import release
    from largegt.io.remote import is_url, shown
    from largegt.runtime.memory import format_bytes

    place = shown(store) if is_url(store) else store
    for run in drop or []:
        release(place, run, dry_run)
    cleaned = run_clean(place, dry_run, without=drop or [])
    lines = []
    for version, runs in cleaned.kept.items():
        needed = ", ".join(f"{run}{'' if Path(run).exists() else ' (no longer there)'}" for run in runs)
        lines.append(f"version {version} stays: {needed or 'a process has it open'}")
    lines.append(
        f"{'Would remove' if dry_run else 'Removed'} {len(cleaned.versions)} versions, {len(cleaned.preparations)} "
        f"preparations and stages; {cleaned.num_files} arrays, {format_bytes(cleaned.num_bytes)}"
    )
    facts = {"store": str(place), "dry_run": dry_run, **asdict(cleaned)}
    return Result(facts, lines)


@verb("redis-load")
def redis_load(store: Path, url: str, *, direction: str = "both") -> Result:
    """Put a store's neighbour lists into Redis, for prepare --neighbor-store to sample from.

    Example:  largegt redis-load data/g redis://localhost:6379/g

    Then:  largegt prepare data/g --neighbor-store redis://localhost:6379/g

    A server with a password: set REDIS_PASSWORD (and REDIS_USERNAME), because others can see what is on a command line.

    Args:
        store: The store: a folder or a URL.
        url: Where to: redis://host:port/name, with a name of your choice.
        direction: The prepare.local_nodes.direction to be sampled along: both, out or in.
    """
    from largegt.data.store import GraphStore
    from largegt.preprocessing.sampling.redis_lists import load_lists
    from largegt.types import OPPOSITE

    if direction not in OPPOSITE:
        raise ConfigError(f"direction is {direction!r}: it must be one of {', '.join(OPPOSITE)}")
    opened = GraphStore.open(store)
    with show.progress() as progress:
        lists = load_lists(opened, url, direction, progress)
    next_step = f"largegt prepare {quoted(opened.place)} --neighbor-store {quoted(lists.url)}"
    line = f"The lists of {lists.num_nodes:,} nodes are there. Next: {next_step}"
    facts = {"url": lists.url, "num_nodes": lists.num_nodes, "direction": direction}
    return Result(facts, [line])
