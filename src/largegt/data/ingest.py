"""ingest: a Source becomes a GraphStore on disk.

Enters: a `Source`, an `IngestConfig`, a folder. Leaves: the finished `GraphStore`; arrays are written to a partial
folder and committed when complete. Cost: the given memory, and labels and splits (some bytes per node); edges and
features are streamed from file to file. The output bytes do not depend on memory or threads. A killed ingest resumes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from largegt.config.schema import IngestConfig
from largegt.errors import ConfigError, InputError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.io.remote import refuse_url
from largegt.runtime.memory import memory_budget
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import num_threads
from largegt.runtime.workers import Threads, Workers
from largegt.types import Array, PathLike

from . import labels as label_encoding
from . import precision
from .columns import Columns
from .csr import EdgeBuilder, EdgeCounts
from .edge_features import write_edge_features
from .edge_reading import read_here, read_in_parts, unknown_id
from .ids import Ids, as_ids, id_at
from .labels import Encoded
from .nodes import Means, NodeIds, stated_count, take_nodes
from .pair_runs import EdgeKind
from .parts import Features, Source, TableFeatures, chunk_rows
from .sources import FileSource, column_options
from .splits import SPLIT_CODES, given_split, made_split, split_by_group, split_by_time
from .store import KIND, GraphStore
from .text_model import given_text_model
from .versions import clean_quietly
from .weights import MOST_NODES


def ingest(
    source: Source | FileSource,
    out: PathLike,
    config: IngestConfig | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    memory: str | int | None = None,
    engine: Workers | None = None,
) -> GraphStore:
    """Write a graph as a store, a folder of memory-mapped arrays.

    A killed ingest of files goes on where it stopped when it is called again.

    Args:
        source: the graph: `lg.sources.files`, `lg.sources.arrays` or `lg.sources.pyg`.
        out: the folder of the store.
        config: how files become a store.
        overwrite: replace a store that is there.
        progress: is called as `progress(stage, done, total)`; `total` is None where nobody can know it.
        threads: threads to use, all cores by default.
        memory: what the work may hold at once, such as `"4GiB"`, half of what is free by default. The result does not
            depend on it.
        engine: a cluster that does the work instead of this process, with threads and memory of its own.

    Returns:
        The store, opened.

    Raises:
        InputError: the data cannot be used as it is, or `out` is there already.
        ConfigError: a setting does not fit the data.
        DiskError: the disk is full or read-only.

    Examples:
        >>> store = lg.ingest(lg.sources.arrays(edge_index, features, labels), out="data/new")
        >>> store.num_nodes
        150
    """
    config = config or IngestConfig()
    report = progress or silent
    if engine is not None and (threads is not None or memory is not None):
        raise ConfigError("threads and memory are the engine's when ingest is given one")
    if engine is not None:
        refuse_url(out, "a store that a cluster makes")
    if config.text_model:
        given_text_model(config.text_model)  # before any work
    budget = memory_budget(memory) if engine is None else engine.memory
    count = num_threads(threads)
    identity = None if source.identity is None else [source.identity, config.model_dump(mode="json")]
    with ArrayWriter(out, KIND, replace=overwrite, identity=identity) as writer:
        opened = source.opened(writer.partial / _TABLES, config, budget // 2, count, engine is not None)
        if engine is not None and opened.edges.feature_names:
            raise ConfigError("edge features are not read on a cluster: leave `engine` out, or `edge_feature_columns`")
        workers = engine or Threads(budget, count)
        work = _Work(opened, writer, config, report, count, budget, workers, engine is not None)
        notes = {"column_names": dict(opened.column_names)} if opened.column_names else None
        writer.finish(_write(work), progress=report, notes=notes)
    store = GraphStore.open(out)
    clean_quietly(store)
    return store


_TABLES = "tables"
"""Scratch folder for copies of tables, deleted at the end."""


@dataclass(frozen=True)
class _Work:
    """One ingest: source, writer, configuration, and limits."""

    source: Source
    writer: ArrayWriter
    config: IngestConfig
    report: Progress
    threads: int
    memory: int
    workers: Workers
    is_distributed: bool
    """Whether the workers are other processes."""

    @property
    def task_memory(self) -> int:
        """Memory of a sort task: threads share the memory with the result being written and the next one."""
        return self.memory // (3 if self.is_distributed else self.threads + 2)

    @property
    def means(self) -> Means:
        """Resources for looking up ids."""
        return Means(self.memory // 4, self.threads, self.writer.partial.absolute())


def _write(work: _Work) -> dict[str, Any]:
    """Write all arrays; return the metadata of the manifest. Labels and the split come before features, because
    feature transforms are fitted on training nodes."""
    source, config, writer = work.source, work.config, work.writer
    nodes = take_nodes(source, writer, work.means, work.report, work.workers if work.is_distributed else None)
    encoded = _labels(source, config, nodes)
    split = _split(source, config, nodes, encoded)
    writer.save("labels", encoded.values)
    writer.save("split", split)
    edges, dropped = _write_edges(work, nodes)
    edge_features = {}
    if source.edges.feature_names:
        edge_features["edge_features"] = write_edge_features(
            writer, source.edges, nodes, edges.directed, work.memory, work.report
        )
        fitted = getattr(source.edges, "features", None)
        if isinstance(fitted, Columns):
            edge_features["edge_features"]["columns"] = fitted.to_json()
    features_meta = _write_features(work, nodes, encoded, split)
    return {
        "name": config.name or source.name,
        "num_nodes": nodes.num_nodes,
        "num_edges": edges.num_edges,
        "directed": edges.directed,
        "task": encoded.task,
        "classes": encoded.classes,
        "label_counts": encoded.counts,
        "num_labelled": encoded.num_labelled,
        "id_kind": nodes.kind,
        **features_meta,
        "self_loops_dropped": edges.self_loops_dropped,
        "duplicates_merged": edges.duplicates_merged,
        "unknown_edges_dropped": dropped,
        **({"weights": edges.weights} if edges.weights else {}),
        **edge_features,
        "split_from": _split_origin(source, encoded),
        "config": config.model_dump(mode="json"),
    }


def _split_origin(source: Source, encoded: Encoded) -> str:
    """The origin of the split: given, none, or how it was made."""
    if source.splits is not None:
        return "given"
    if not encoded.num_labelled:
        return "none"
    return next((f"made by {role}" for role in source.split_columns), "made")


def _write_edges(work: _Work, nodes: NodeIds) -> tuple[EdgeCounts, int]:
    """Map edge ends to node numbers and write the CSR; (counts, number of edges dropped for unknown ids)."""
    source, state = work.source, work.writer.state
    counted = work.config.parallel_edges == "count"
    if counted and source.edges.is_weighted:
        raise ConfigError("parallel_edges=count makes the weights: leave the weight column out, or add weights by sum")
    weighted = source.edges.is_weighted or counted
    if weighted and nodes.num_nodes > MOST_NODES:
        raise InputError(f"{nodes.num_nodes} nodes are more than a graph with edge weights may have ({MOST_NODES})")
    kind = EdgeKind(nodes.num_nodes, work.config.undirected, weighted)
    builder = EdgeBuilder(work.writer, kind, source.edges.total, work.workers, work.task_memory, work.report)
    seen, dropped = builder.seen, int(state.get("edges_dropped", 0))
    refuse = None if work.config.unknown_ids == "drop" else partial(unknown_id, source, nodes)
    try:
        if not builder.is_read:
            if work.is_distributed:
                seen, dropped = read_in_parts(source.edges, nodes, builder, refuse, work.workers, state, work.report)
            else:
                seen, dropped = read_here(source.edges, nodes, builder, dropped, refuse, work.report)
            if seen == 0:
                raise InputError(f"{source.edges.where} has no edges at all: a graph needs at least one")
            builder.end()
        if builder.num_pairs == 0:
            raise InputError(
                f"{source.edges.where} has no usable edges: of {seen}, {builder.self_loops} are self "
                f"loops and {dropped} have an end that is not a node"
            )
        return builder.finish(), dropped
    finally:
        builder.close()


def _write_features(work: _Work, nodes: NodeIds, encoded: Encoded, split: Array) -> dict[str, Any]:
    num_nodes, dtype = nodes.num_nodes, work.config.feature_dtype
    features, writer = work.source.features, work.writer
    columns: Columns | None = None
    if isinstance(features, TableFeatures):
        train = split == SPLIT_CODES["train"]
        codes = encoded.values if encoded.task in ("multiclass", "binary") else None
        options = column_options(work.config, features.chosen)
        features = features.fitted(options, train if train.any() else None, codes)
        columns = features.columns
    described = {} if columns is None else {"columns": columns.to_json()}
    if features is None or (columns is not None and not columns.width):
        write_degrees(writer, num_nodes, dtype)
        return {"features_from": "degree", "feature_names": ["log1p(out-degree)", "log1p(in-degree)"], **described}
    if features.width == 0:
        raise InputError(f"{features.where} has rows without any feature")
    means = None
    if not writer.has("features"):
        stored = writer.grow("features", dtype, (features.width,))
        require_space(
            writer.path, (num_nodes - stored.rows) * features.width * stored.stored.itemsize, "writing the features"
        )
        for block in features.chunks(stored.rows):
            if stored.rows + len(block) > num_nodes:
                raise InputError(f"{features.where} has more rows than the graph has nodes ({num_nodes})")
            if means is None and work.config.missing_values == "mean" and not np.isfinite(block).all():
                means = _column_means(features, split == SPLIT_CODES["train"])
            stored.append(stored_features(block, stored.rows, features, work.config, nodes, means))
            writer.commit()
            work.report("write features", stored.rows, num_nodes)
        if stored.rows != num_nodes:
            raise InputError(f"{features.where} has {stored.rows} rows, but the graph has {num_nodes} nodes")
        writer.close("features")
        writer.commit()
    if means is not None:
        described["feature_means"] = means.tolist()
    return {"features_from": "columns" if features.names else "matrix", "feature_names": features.names, **described}


def _column_means(features: Features, train: Array) -> Array:
    """float32: the mean of each column over the training nodes, or over all nodes if there are none."""
    sums, counts, row = np.zeros(features.width), np.zeros(features.width), 0
    for block in features.chunks():
        rows = train[row : row + len(block)] if train.any() else np.ones(len(block), dtype=bool)
        good = np.isfinite(block) & rows[:, None]
        sums += np.where(good, block, 0).sum(axis=0, dtype=np.float64)
        counts += good.sum(axis=0)
        row += len(block)
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def write_degrees(writer: ArrayWriter, num_nodes: int, dtype: str) -> None:
    """Write two features for a graph without features: log1p of the out-degree and the in-degree."""
    out_indptr = writer.array("out_indptr")
    in_indptr = writer.array("in_indptr") if writer.has("in_indptr") else out_indptr
    stored = writer.grow("features", dtype, (2,))
    step = chunk_rows(16)  # degrees and their logarithms take 64 bits
    for start in range(stored.rows, num_nodes, step):
        rows = slice(start, start + step + 1)
        degrees = np.stack([np.diff(out_indptr[rows]), np.diff(in_indptr[rows])], axis=1)
        stored.append(precision.encode_degrees(degrees, dtype))
    writer.close("features")


def stored_features(
    block: Array, start: int, features: Features, config: IngestConfig, nodes: NodeIds, means: Array | None
) -> Array:
    """The block in the stored precision. Missing values become `means`; without `means` they are an error."""
    good = np.isfinite(block)
    if not good.all():
        if means is None:
            row, column = (int(at) for at in np.argwhere(~good)[0])
            value = "missing or NaN" if np.isnan(block[row, column]) else "infinite"
            raise InputError(
                f"{features.where}: feature {_column(features, column)} of node {nodes.at(start + row)!r} is {value}; "
                "mend it, or take the mean of the training nodes with missing_values=mean"
            )
        block = np.where(good, block, means)
    stored = precision.encode(block, config.feature_dtype)
    if config.feature_dtype != "float32":
        good = np.isfinite(precision.decode(stored, config.feature_dtype))
        if not good.all():
            row, column = (int(at) for at in np.argwhere(~good)[0])
            raise InputError(
                f"{features.where}: feature {_column(features, column)} of node "
                f"{nodes.at(start + row)!r} is {block[row, column]:g}, too large for "
                f"{config.feature_dtype}; use feature_dtype=float32"
            )
    return stored


def _column(features: Features, column: int) -> str:
    return repr(features.names[column]) if features.names else f"column {column}"


def _labels(source: Source, config: IngestConfig, nodes: NodeIds) -> Encoded:
    part = source.labels
    if part is None:
        return label_encoding.unlabelled(nodes.num_nodes, "multiclass", [])
    values = part.values
    rows = None
    if part.ids is not None:
        rows, known = _find_nodes(part.ids, part.where, config, nodes)
        if not known.all():
            values = values[known] if isinstance(values, np.ndarray) else values.filter(known)
    encoded = label_encoding.encode(values, part.names, config.task, part.where)
    if rows is None:
        return encoded
    return replace(encoded, values=label_encoding.scatter(encoded, rows, nodes.num_nodes))


def _split(source: Source, config: IngestConfig, nodes: NodeIds, encoded: Encoded) -> Array:
    values = encoded.values
    labelled = label_encoding.labelled(values, encoded.task)
    part = source.splits
    if part is None and "time" in source.split_columns:
        return split_by_time(source.split_columns["time"], labelled, config.split_fractions)
    if part is None and "group" in source.split_columns:
        return split_by_group(source.split_columns["group"], labelled, config.split_fractions, config.split_seed)
    if part is None:
        return made_split(values, labelled, config.split_fractions, config.split_seed, config.stratify)
    if part.codes is not None:
        split = part.codes
        if part.ids is not None:
            rows, known = _find_nodes(part.ids, part.where, config, nodes)
            split = np.zeros(nodes.num_nodes, dtype=np.uint8)
            split[rows] = part.codes[known]
        return np.where(labelled, split, 0).astype(np.uint8)
    parts = part.parts
    if stated_count(source)[0] is None and nodes.kind != "row":
        # nodes come from the edges, so the user has no node numbers: these are ids
        parts = {key: _split_nodes(array, f"{part.where}: {key}", config, nodes) for key, array in parts.items()}
    try:
        return given_split(nodes.num_nodes, parts, labelled)
    except InputError as error:
        raise InputError(f"{part.where}: {error}") from None


def _split_nodes(array: Array, where: str, config: IngestConfig, nodes: NodeIds) -> Array:
    """Node numbers of the ids in a part of a split; a mask is returned as it is."""
    if array.dtype == bool or array.ndim != 1 or not array.size:
        return array
    return _find_nodes(as_ids(array, where), where, config, nodes)[0]


def _find_nodes(ids: Ids, where: str, config: IngestConfig, nodes: NodeIds) -> tuple[Array, Array]:
    """(node numbers of the known ids, mask of known ids); a repeated id is an error."""
    rows = nodes.find(ids)
    known = rows >= 0
    if not known.all() and config.unknown_ids == "error":
        unknown = id_at(ids, int(np.flatnonzero(~known)[0]))
        raise InputError(
            f"{where}: node id {unknown!r} is not a node of the graph ({nodes.num_nodes} nodes, from "
            f"{nodes.where}); mend it, or drop such rows with unknown_ids=drop"
        )
    rows = rows[known]
    found = np.zeros(nodes.num_nodes, dtype=bool)
    found[rows] = True
    if np.count_nonzero(found) < len(rows):
        twice = int(np.bincount(rows).argmax())
        raise InputError(f"{where}: node id {nodes.at(twice)!r} occurs twice")
    return rows, known
