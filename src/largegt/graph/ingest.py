"""ingest: a Source becomes a GraphStore on disk.

Enters: a `Source`, an `IngestConfig`, a folder. Leaves: the finished `GraphStore`, or nothing at all: the
folder is written aside and renamed when whole. Cost: O(N) memory (ids, labels, a few integers per node) and
one chunk; edges and features go from file to file. The same input gives the same bytes for any number of
threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..config import IngestConfig
from ..errors import InputError
from ..folder import FolderWriter
from ..progress import Progress, silent
from ..threads import num_threads
from ..types import Array, PathLike
from . import labels as label_encoding
from . import precision
from .csr import EdgeBuilder, EdgeCounts
from .ids import (
    IdMap,
    Ids,
    MixedIdsError,
    as_text,
    id_at,
    is_text,
    sorted_unique,
    text_buffers,
)
from .labels import Encoded
from .parts import DEFAULT_NAME, Source, chunk_rows
from .splits import given_split, made_split
from .store import KIND, GraphStore


def ingest(
    source: Source,
    out: PathLike,
    config: IngestConfig | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    *,
    threads: int | None = None,
) -> GraphStore:
    """Write `source` as a store into the folder `out` and open it.

    `progress(stage, done, total)` is called as the work goes on; `total` is None where nobody can know it.
    """
    config = config or IngestConfig()
    report = progress or silent
    with FolderWriter(out, KIND, replace=overwrite) as writer:
        threads = num_threads(threads)
        try:
            id_map, edges, dropped = _take_edges(source, writer, config, report, threads, text=False)
        except MixedIdsError:
            id_map, edges, dropped = _take_edges(source, writer, config, report, threads, text=True)
        _write_ids(writer, id_map)
        features_meta = _write_features(writer, source, config, id_map, edges, report)
        encoded = _labels(source, config, id_map)
        writer.save("labels", encoded.values)
        writer.save("split", _split(source, config, id_map, encoded))
        meta = {
            "name": config.name or (source.name if source.name != DEFAULT_NAME else ""),
            "num_nodes": id_map.num_nodes,
            "num_edges": edges.num_edges,
            "directed": edges.directed,
            "task": encoded.task,
            "classes": encoded.classes,
            "label_counts": encoded.counts,
            "num_labelled": encoded.num_labelled,
            "id_kind": id_map.kind,
            **features_meta,
            "self_loops_dropped": edges.self_loops_dropped,
            "duplicates_merged": edges.duplicates_merged,
            "unknown_edges_dropped": dropped,
            "split_from": "given" if source.splits is not None else "made" if encoded.num_labelled else "none",
            "config": config.model_dump(mode="json"),
        }
        report("write", 0, None)
        writer.finish(meta)
    return GraphStore.open(out)


def _take_edges(
    source: Source, writer: FolderWriter, config: IngestConfig, report: Progress, threads: int, text: bool
) -> tuple[IdMap, EdgeCounts, int]:
    """Map every edge's ends to node numbers and write the rows; (ids, counts, edges dropped as unknown)."""
    id_map = _nodes(source, report, threads, text)
    builder = EdgeBuilder(writer, id_map.num_nodes, config.undirected, threads, report)
    seen = dropped = 0
    try:
        for sources, targets in source.edges.chunks(text):
            ends = id_map.find(sources), id_map.find(targets)
            seen += len(ends[0])
            unknown = (ends[0] < 0) | (ends[1] < 0)
            if unknown.any():
                if config.unknown_ids == "error":
                    row = int(np.flatnonzero(unknown)[0])
                    _refuse(source, id_map, id_at(sources if ends[0][row] < 0 else targets, row))
                dropped += int(unknown.sum())
            builder.add(*ends)
            report("read edges", seen, source.edges.total)
        if seen == 0:
            raise InputError(f"{source.edges.where} has no edges at all: a graph needs at least one")
        if builder.num_pairs == 0:
            raise InputError(
                f"{source.edges.where} has no usable edges: of {seen}, {builder.self_loops} are self "
                f"loops and {dropped} have an end that is not a node"
            )
        return id_map, builder.finish(), dropped
    finally:
        builder.close()


def _nodes(source: Source, report: Progress, threads: int, text: bool) -> IdMap:
    """Which nodes there are: the node table's, the rows of features and labels, or the ends of the edges."""
    count, where = _stated_count(source)
    if source.node_ids is not None:
        return IdMap(len(source.node_ids), _unless_rows(source.node_ids), source.node_where, threads)
    if count is not None:
        return IdMap(count, None, where, threads)
    ids = sorted_unique(_all_ids(source, report, text))
    if len(ids) == 0:
        raise InputError(f"{source.edges.where} has no edges at all: a graph needs at least one")
    return IdMap(len(ids), _unless_rows(ids), source.edges.where, threads)


def _stated_count(source: Source) -> tuple[int | None, str]:
    """How many nodes the parts that are in row order say there are; they must agree."""
    stated: list[tuple[int, str]] = []
    if source.node_ids is not None:
        stated.append((len(source.node_ids), source.node_where))
    if source.features is not None and source.features.num_rows is not None:
        stated.append((source.features.num_rows, source.features.where))
    if source.labels is not None and source.labels.ids is None:
        stated.append((len(source.labels.values), source.labels.where))
    if source.splits is not None and source.splits.codes is not None and source.splits.ids is None:
        stated.append((len(source.splits.codes), source.splits.where))
    if source.num_nodes is not None:
        stated.append((source.num_nodes, "num_nodes"))
    if not stated:
        return None, ""
    count, where = stated[0]
    for other, other_where in stated[1:]:
        if other != count:
            raise InputError(
                f"{where} has {count} nodes, but {other_where} has {other}: "
                "each needs one row per node, in the same order"
            )
    if count == 0:
        raise InputError(f"{where} has no rows: the graph would have no nodes")
    return count, where


def _all_ids(source: Source, report: Progress, text: bool) -> Iterator[Ids]:
    """Every id that anything names: the ends of the edges, and the ids of labels and splits."""
    seen = 0
    for sources, targets in source.edges.chunks(text):
        yield sources
        yield targets
        seen += len(sources)
        report("find nodes", seen, source.edges.total)
    for part in (source.labels, source.splits):
        if seen and part is not None and part.ids is not None:
            yield as_text(part.ids) if text else part.ids


def _unless_rows(ids: Ids) -> Ids | None:
    """None when the ids are just 0..N-1 in order."""
    if not is_text(ids) and len(ids) and ids[0] == 0 and np.array_equal(ids, np.arange(len(ids))):
        return None
    return ids


def _refuse(source: Source, id_map: IdMap, unknown: Any) -> None:
    if source.node_ids is None:
        raise InputError(
            f"{source.edges.where}: node id {unknown!r} is out of range: {id_map.where} gives "
            f"{id_map.num_nodes} nodes, so ids go from 0 to {id_map.num_nodes - 1}; give a node table if "
            "ids are not row numbers"
        )
    raise InputError(
        f"{source.edges.where}: node id {unknown!r} is not among the {id_map.num_nodes} ids of "
        f"{source.node_where}; add it there, or drop such edges with unknown_ids=drop"
    )


def _write_ids(writer: FolderWriter, id_map: IdMap) -> None:
    if id_map.ids is None:
        return
    if id_map.kind == "integer":
        writer.save("node_ids", id_map.ids)
    else:
        offsets, text = text_buffers(id_map.ids)
        writer.save("node_id_offsets", offsets)
        writer.save("node_id_bytes", text)


def _write_features(
    writer: FolderWriter,
    source: Source,
    config: IngestConfig,
    id_map: IdMap,
    edges: EdgeCounts,
    report: Progress,
) -> dict[str, Any]:
    num_nodes, dtype = id_map.num_nodes, config.feature_dtype
    features = source.features
    if features is None:
        stored = writer.create("features", (num_nodes, 2), dtype)
        for start in range(0, num_nodes, chunk_rows(2)):
            rows = slice(start, start + chunk_rows(2))
            degrees = np.stack([edges.out_degree[rows], edges.in_degree[rows]], axis=1)
            stored[rows] = precision.encode(np.log1p(degrees).astype(np.float32), dtype)
        return {"features_from": "degree", "feature_names": ["log1p(out-degree)", "log1p(in-degree)"]}
    if features.width == 0:
        raise InputError(f"{features.where} has rows without any feature")
    stored = writer.create("features", (num_nodes, features.width), dtype)
    done = 0
    for block in features.chunks():
        if done + len(block) > num_nodes:
            raise InputError(f"{features.where} has more rows than the graph has nodes ({num_nodes})")
        stored[done : done + len(block)] = _finite(block, done, source, config, id_map)
        done += len(block)
        report("write features", done, num_nodes)
    if done != num_nodes:
        raise InputError(f"{features.where} has {done} rows, but the graph has {num_nodes} nodes")
    return {"features_from": "columns" if features.names else "matrix", "feature_names": features.names}


def _finite(block: Array, start: int, source: Source, config: IngestConfig, id_map: IdMap) -> Array:
    """The block in its stored precision, with missing values filled or refused."""
    assert source.features is not None
    good = np.isfinite(block)
    if not good.all():
        if config.fill_missing is None:
            row, column = (int(at) for at in np.argwhere(~good)[0])
            value = "missing or NaN" if np.isnan(block[row, column]) else "infinite"
            raise InputError(
                f"{source.features.where}: feature {_column(source, column)} of node "
                f"{id_at(id_map.ids, start + row)!r} is {value}; mend it, or fill such values with "
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
                f"{id_at(id_map.ids, start + row)!r} is {block[row, column]:g}, too large for "
                f"{config.feature_dtype}; use feature_dtype=float32"
            )
    return stored


def _column(source: Source, column: int) -> str:
    names = source.features.names if source.features is not None else None
    return repr(names[column]) if names else f"column {column}"


def _labels(source: Source, config: IngestConfig, id_map: IdMap) -> Encoded:
    part = source.labels
    if part is None:
        return label_encoding.no_labels(id_map.num_nodes)
    values = part.values
    rows = None
    if part.ids is not None:
        rows, known = _rows_of(part.ids, part.where, config, id_map)
        if not known.all():
            values = values[known] if isinstance(values, np.ndarray) else values.filter(known)
    encoded = label_encoding.encode(values, part.names, config.task, part.where)
    if rows is None:
        return encoded
    spread = label_encoding.scatter(encoded, rows, id_map.num_nodes)
    return Encoded(spread, encoded.task, encoded.classes, encoded.counts, encoded.num_labelled)


def _split(source: Source, config: IngestConfig, id_map: IdMap, encoded: Encoded) -> Array:
    values = encoded.values
    labelled = label_encoding.labelled(values, encoded.task)
    part = source.splits
    if part is None:
        return made_split(values, labelled, config.split, config.split_seed, config.stratify)
    if part.codes is not None:
        split = part.codes
        if part.ids is not None:
            rows, known = _rows_of(part.ids, part.where, config, id_map)
            split = np.zeros(id_map.num_nodes, dtype=np.uint8)
            split[rows] = part.codes[known]
        return np.where(labelled, split, 0).astype(np.uint8)
    parts = part.parts
    if _stated_count(source)[0] is None and id_map.ids is not None:
        # the nodes were found in the edges, so the user cannot know their numbers: these are ids
        parts = {
            key: array if array.dtype == bool else _rows_of(array, f"{part.where}: {key}", config, id_map)[0]
            for key, array in parts.items()
        }
    try:
        return given_split(id_map.num_nodes, parts, labelled)
    except InputError as error:
        raise InputError(f"{part.where}: {error}") from None


def _rows_of(ids: Ids, where: str, config: IngestConfig, id_map: IdMap) -> tuple[Array, Array]:
    """(node numbers of the known ids, which ids are known); each id may occur once."""
    rows = id_map.find(ids)
    known = rows >= 0
    if not known.all() and config.unknown_ids == "error":
        unknown = id_at(ids, int(np.flatnonzero(~known)[0]))
        raise InputError(
            f"{where}: node id {unknown!r} is not a node of the graph ({id_map.num_nodes} nodes, from "
            f"{id_map.where}); mend it, or drop such rows with unknown_ids=drop"
        )
    rows = rows[known]
    times = np.bincount(rows, minlength=id_map.num_nodes)
    if rows.size and times.max() > 1:
        raise InputError(f"{where}: node id {id_at(id_map.ids, int(times.argmax()))!r} occurs twice")
    return rows, known
