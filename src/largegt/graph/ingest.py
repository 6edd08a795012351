"""ingest: a Source becomes a GraphStore on disk.

Enters: a `Source`, an `IngestConfig`, a folder. Leaves: the finished `GraphStore`; the folder is written aside and
renamed when whole. Cost: the memory it is given, and labels and splits (some bytes per node); edges and features go
from file to file. The same input gives the same bytes for any amount of memory and any number of threads, and a killed
ingest goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..config import IngestConfig
from ..errors import ConfigError, InputError
from ..io.array_writer import ArrayWriter
from ..io.atomic import require_space
from ..io.remote import refuse_url
from ..memory import memory_budget
from ..progress import Progress, silent
from ..threads import num_threads
from ..types import Array, PathLike
from . import labels as label_encoding
from . import precision
from .csr import EdgeBuilder, EdgeCounts
from .edge_features import write_edge_features
from .edge_reading import has_values, read_here, read_in_parts
from .ids import Ids, MixedIdsError, as_ids, id_at
from .labels import Encoded
from .nodes import NodeIds, stated_count, take_nodes
from .parts import DEFAULT_NAME, Source, chunk_rows
from .splits import given_split, made_split
from .store import KIND, GraphStore
from .versions import clean_quietly
from .weights import MOST_NODES
from .workers import Threads, Workers

_T = TypeVar("_T")


def ingest(
    source: Source,
    out: PathLike,
    config: IngestConfig | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    memory: str | int | None = None,
    engine: Workers | None = None,
) -> GraphStore:
    """Write `source` as a store into the folder `out` and open it.

    `memory` (`"4GiB"`) is what the work may hold at once, half of what is free by default; the result does not depend
    on it. `engine` is a cluster that does the work instead of this process's threads (a `RayEngine`), and has the
    memory of each of its tasks; the result is the same. A killed ingest of files goes on where it stopped when it is
    called again. `progress(stage, done, total)` is called as the work goes on; `total` is None where nobody can know
    it.
    """
    config = config or IngestConfig()
    report = progress or silent
    if engine is not None and (threads is not None or memory is not None):
        raise ConfigError("threads and memory are the engine's when ingest is given one")
    if engine is not None:
        refuse_url(out, "a store that a cluster makes")
        if source.edge_features is not None:
            raise ConfigError("edge features are not read on a cluster: leave --engine ray out, or --edge-features")
    budget = memory_budget(memory) if engine is None else engine.memory
    count = num_threads(threads)
    identity = None if source.identity is None else [source.identity, config.model_dump(mode="json")]
    with ArrayWriter(out, KIND, replace=overwrite, identity=identity) as writer:
        workers = engine or Threads(budget, count)
        work = _Work(source, writer, config, report, count, budget, workers, engine is not None)
        nodes, edges, dropped = numbers_or_text(writer, "edges", lambda text: _take_graph(work, text))
        edge_features = _write_edge_features(work, nodes, edges.directed)
        features_meta = _write_features(work, nodes)
        encoded = _labels(source, config, nodes)
        writer.save("labels", encoded.values)
        writer.save("split", _split(source, config, nodes, encoded))
        meta = {
            "name": config.name or (source.name if source.name != DEFAULT_NAME else ""),
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
            "split_from": "given" if source.splits is not None else "made" if encoded.num_labelled else "none",
            "config": config.model_dump(mode="json"),
        }
        writer.finish(meta, progress=report)
    store = GraphStore.open(out)
    clean_quietly(store)
    return store


@dataclass(frozen=True)
class _Work:
    """One ingest: what is read, where it goes, and with what means."""

    source: Source
    writer: ArrayWriter
    config: IngestConfig
    report: Progress
    threads: int
    memory: int
    workers: Workers
    apart: bool
    """Whether the workers are other processes."""

    @property
    def task_memory(self) -> int:
        """What a task of sorting may hold: threads share the memory with the result that is written and the next."""
        return self.memory // (3 if self.apart else self.threads + 2)


def numbers_or_text(writer: ArrayWriter, part: str, work: Callable[[bool], _T]) -> _T:
    """`work(False)`: the ids of a part as they look. When they turn out to be numbers here and text there, everything
    begins again with `work(True)`: all of them as text."""
    flag = f"{part}_as_text"
    if not writer.state.get(flag):
        try:
            return work(False)
        except MixedIdsError:
            others = {name: value for name, value in writer.state.items() if name.endswith("_as_text")}
            writer.restart()
            writer.commit(**others, **{flag: True})
    return work(True)


def _take_graph(work: _Work, text: bool) -> tuple[NodeIds, EdgeCounts, int]:
    """Write the nodes and the edges; (nodes, counts, edges dropped as unknown). `text`: the edges' ids are text."""

    def take(text: bool) -> NodeIds:
        cluster = work.workers if work.apart else None
        return take_nodes(work.source, work.writer, text, work.memory, work.threads, work.report, cluster)

    nodes = take(text) if work.source.node_ids is None else numbers_or_text(work.writer, "nodes", take)
    return nodes, *_take_edges(work, nodes, text)


def _take_edges(work: _Work, nodes: NodeIds, text: bool) -> tuple[EdgeCounts, int]:
    """Map every edge's ends to node numbers and write the rows; (counts, edges dropped as unknown)."""
    source, state = work.source, work.writer.state
    weighted = has_values(source.edges)
    if weighted and nodes.num_nodes > MOST_NODES:
        raise InputError(f"{nodes.num_nodes} nodes are more than a graph with edge weights may have ({MOST_NODES})")
    builder = EdgeBuilder(
        work.writer, nodes.num_nodes, work.config.undirected, work.workers, work.task_memory, work.report,
        source.edges.total, weighted,
    )  # fmt: skip
    seen, dropped = builder.seen, int(state.get("edges_dropped", 0))
    drop = work.config.unknown_ids == "drop"
    try:
        if not builder.is_read:
            if work.apart:
                seen, dropped = read_in_parts(source, nodes, builder, text, drop, work.workers, state, work.report)
            else:
                seen, dropped = read_here(source, nodes, builder, text, dropped, drop, work.memory // 4, work.report)
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


def _write_edge_features(work: _Work, nodes: NodeIds, directed: bool) -> dict[str, Any]:
    """The means of edge features at each node, where edges have any."""
    features = work.source.edge_features
    if features is None:
        return {}
    text = bool(work.writer.state.get("edges_as_text"))
    return {
        "edge_features": write_edge_features(
            work.writer, features, nodes, directed, text, work.config, work.memory, work.report
        )
    }


def _write_features(work: _Work, nodes: NodeIds) -> dict[str, Any]:
    num_nodes, dtype = nodes.num_nodes, work.config.feature_dtype
    features, writer = work.source.features, work.writer
    if features is None:
        write_degrees(writer, num_nodes, dtype)
        return {"features_from": "degree", "feature_names": ["log1p(out-degree)", "log1p(in-degree)"]}
    if features.width == 0:
        raise InputError(f"{features.where} has rows without any feature")
    if not writer.has("features"):
        stored = writer.grow("features", dtype, (features.width,))
        require_space(
            writer.path, (num_nodes - stored.rows) * features.width * stored.stored.itemsize, "writing the features"
        )
        for block in features.chunks(stored.rows):
            if stored.rows + len(block) > num_nodes:
                raise InputError(f"{features.where} has more rows than the graph has nodes ({num_nodes})")
            stored.append(stored_features(block, stored.rows, work.source, work.config, nodes))
            writer.commit()
            work.report("write features", stored.rows, num_nodes)
        if stored.rows != num_nodes:
            raise InputError(f"{features.where} has {stored.rows} rows, but the graph has {num_nodes} nodes")
        writer.close("features")
        writer.commit()
    return {"features_from": "columns" if features.names else "matrix", "feature_names": features.names}


def write_degrees(writer: ArrayWriter, num_nodes: int, dtype: str) -> None:
    """Two features for a graph that has none: log1p of the out- and the in-degree."""
    outward = writer.array("out_indptr")
    inward = writer.array("in_indptr") if writer.has("in_indptr") else outward
    stored = writer.grow("features", dtype, (2,))
    for start in range(stored.rows, num_nodes, chunk_rows(2)):
        rows = slice(start, start + chunk_rows(2) + 1)
        degrees = np.stack([np.diff(outward[rows]), np.diff(inward[rows])], axis=1)
        stored.append(precision.encode_degrees(degrees, dtype))
    writer.close("features")


def stored_features(block: Array, start: int, source: Source, config: IngestConfig, nodes: NodeIds) -> Array:
    """The block in its stored precision, with missing values filled or refused."""
    assert source.features is not None
    good = np.isfinite(block)
    if not good.all():
        if config.fill_missing is None:
            row, column = (int(at) for at in np.argwhere(~good)[0])
            value = "missing or NaN" if np.isnan(block[row, column]) else "infinite"
            raise InputError(
                f"{source.features.where}: feature {_column(source, column)} of node "
                f"{nodes.at(start + row)!r} is {value}; mend it, or fill such values with "
                "fill_missing=0"
            )
        block = np.where(good, block, np.float32(config.fill_missing))
    stored = precision.encode(block, config.feature_dtype)
    if config.feature_dtype != "float32":
        good = np.isfinite(precision.decode(stored, config.feature_dtype))
        if not good.all():
            row, column = (int(at) for at in np.argwhere(~good)[0])
            raise InputError(
                f"{source.features.where}: feature {_column(source, column)} of node "
                f"{nodes.at(start + row)!r} is {block[row, column]:g}, too large for "
                f"{config.feature_dtype}; use feature_dtype=float32"
            )
    return stored


def _column(source: Source, column: int) -> str:
    names = source.features.names if source.features is not None else None
    return repr(names[column]) if names else f"column {column}"


def _labels(source: Source, config: IngestConfig, nodes: NodeIds) -> Encoded:
    part = source.labels
    if part is None:
        return label_encoding.no_labels(nodes.num_nodes)
    values = part.values
    rows = None
    if part.ids is not None:
        rows, known = _rows_of(part.ids, part.where, config, nodes)
        if not known.all():
            values = values[known] if isinstance(values, np.ndarray) else values.filter(known)
    encoded = label_encoding.encode(values, part.names, config.task, part.where)
    if rows is None:
        return encoded
    spread = label_encoding.scatter(encoded, rows, nodes.num_nodes)
    return Encoded(spread, encoded.task, encoded.classes, encoded.counts, encoded.num_labelled)


def _split(source: Source, config: IngestConfig, nodes: NodeIds, encoded: Encoded) -> Array:
    values = encoded.values
    labelled = label_encoding.labelled(values, encoded.task)
    part = source.splits
    if part is None:
        return made_split(values, labelled, config.split, config.split_seed, config.stratify)
    if part.codes is not None:
        split = part.codes
        if part.ids is not None:
            rows, known = _rows_of(part.ids, part.where, config, nodes)
            split = np.zeros(nodes.num_nodes, dtype=np.uint8)
            split[rows] = part.codes[known]
        return np.where(labelled, split, 0).astype(np.uint8)
    parts = part.parts
    if stated_count(source)[0] is None and nodes.kind != "row":
        # the nodes were found in the edges, so the user cannot know their numbers: these are ids
        parts = {key: _rows_named(array, f"{part.where}: {key}", config, nodes) for key, array in parts.items()}
    try:
        return given_split(nodes.num_nodes, parts, labelled)
    except InputError as error:
        raise InputError(f"{part.where}: {error}") from None


def _rows_named(array: Array, where: str, config: IngestConfig, nodes: NodeIds) -> Array:
    """Node numbers of the ids in a part of a split; a mask stays one."""
    if array.dtype == bool or array.ndim != 1 or not array.size:
        return array
    return _rows_of(as_ids(array, where), where, config, nodes)[0]


def _rows_of(ids: Ids, where: str, config: IngestConfig, nodes: NodeIds) -> tuple[Array, Array]:
    """(node numbers of the known ids, which ids are known); each id may occur once."""
    rows = nodes.find(ids)
    known = rows >= 0
    if not known.all() and config.unknown_ids == "error":
        unknown = id_at(ids, int(np.flatnonzero(~known)[0]))
        raise InputError(
            f"{where}: node id {unknown!r} is not a node of the graph ({nodes.num_nodes} nodes, from "
            f"{nodes.where}); mend it, or drop such rows with unknown_ids=drop"
        )
    rows = rows[known]
    named = np.zeros(nodes.num_nodes, dtype=bool)
    named[rows] = True
    if np.count_nonzero(named) < len(rows):
        twice = int(np.bincount(rows).argmax())
        raise InputError(f"{where}: node id {nodes.at(twice)!r} occurs twice")
    return rows, known
