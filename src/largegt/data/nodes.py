"""Node ids: write the user's ids to the store, and map ids to node numbers.

Enters: a `Source`, the writer of the store. Leaves: `NodeIds`, and in the store the ids (`node_ids`, or
`node_id_offsets` and `node_id_bytes`) unless they are the row numbers 0..N-1. Cost: the given memory.

Ids come from a column of the source, or are row numbers if only the number of nodes is given, or are collected from
the edges, labels and splits and sorted. Completed work of an earlier run is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from largegt.errors import InputError, disk_errors
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.progress import Progress
from largegt.runtime.workers import Workers, written_atomically
from largegt.types import Array

from .ids import (
    Ids,
    as_ids,
    as_numbers,
    as_text,
    distinct_ids,
    find_ids,
    first_repeat,
    id_at,
    id_sql,
    is_text,
    text_buffers,
    text_over,
    write_distinct,
    write_numbered,
)
from .limits import check_num_nodes
from .pair_runs import index_dtype
from .parts import Edges, Source, TableEdges, edge_parts, num_parts

_CHUNK_ROWS = 1 << 20
_SCRATCH = "found"
"""Folder for scratch files, deleted at the end."""


@dataclass(frozen=True)
class Means:
    """Resources for looking up ids: memory, threads, and a scratch folder."""

    memory: int
    threads: int
    scratch: Path | None = None


class NodeIds:
    """The nodes 0..num_nodes-1 and their user ids. `kind` is `row` (node numbers), `integer` or `string`.

    `folder` holds the ids as arrays; the object is pickled as the path of this folder.
    """

    def __init__(self, num_nodes: int, where: str, means: Means, kind: str = "row", folder: Path | None = None) -> None:
        self.num_nodes, self.where, self.means, self.kind, self.folder = num_nodes, where, means, kind, folder
        self.known: list[Ids] = [] if folder is None else [_open_ids(folder, kind)]
        """The ids of all nodes in order, in one or more columns; empty if ids are row numbers."""

    def __reduce__(self) -> Any:
        return NodeIds, (self.num_nodes, self.where, self.means, self.kind, self.folder)

    def find(self, wanted: Ids) -> Array:
        """Node numbers (int64) of these ids, -1 for an unknown id. Each call has a fixed cost: pass many ids."""
        if self.kind == "string":
            wanted = as_text(wanted)
        elif is_text(wanted):
            numbers, meant = as_numbers(wanted)
            return np.where(meant, self.find(numbers), -1)
        if self.kind == "row":
            return np.where((wanted >= 0) & (wanted < self.num_nodes), wanted, -1)
        if self.by_number is not None:
            least, nodes = self.by_number
            inside = (wanted >= least) & (wanted <= least + len(nodes) - 1)
            return np.where(inside, nodes[np.where(inside, wanted - least, 0)], -1)
        return find_ids(self.known, wanted, self.means.memory, self.means.threads, self.means.scratch)

    @cached_property
    def by_number(self) -> tuple[int, Array] | None:
        """Lookup table for integer ids: (the smallest id; the node number of each integer from this id on, -1: none).
        None if ids are not integers, or the table does not fit into memory."""
        if self.kind != "integer" or not any(map(len, self.known)):
            return None
        least, largest = (int(end([end(ids) for ids in self.known if len(ids)])) for end in (np.min, np.max))
        dtype = np.dtype(index_dtype(self.num_nodes))
        if (largest - least + 1) * dtype.itemsize > self.means.memory:
            return None
        nodes, row = np.full(largest - least + 1, -1, dtype), 0
        for ids in self.known:
            nodes[ids - least] = np.arange(row, row + len(ids))
            row += len(ids)
        return least, nodes

    def dictionary(self) -> Path:
        """A Parquet file of all ids and node numbers in the scratch folder, written on first use."""
        assert self.means.scratch is not None
        file = self.means.scratch / "ids.parquet"
        if not file.exists():
            with written_atomically(file) as aside:
                write_numbered(self.known, self.kind == "string", aside, self.means.memory, self.means.threads)
        return file

    def at(self, row: int) -> Any:
        """The user's id of a node."""
        for ids in self.known:
            if row < len(ids):
                return id_at(ids, row)
            row -= len(ids)
        return row


def _open_ids(folder: Path, kind: str) -> Ids:
    """The memory-mapped ids in a partial folder of arrays."""
    names = ("node_ids",) if kind == "integer" else ("node_id_offsets", "node_id_bytes")
    try:
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names]
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not seen by every machine: with an engine, `out` must be shared storage"
        ) from None
    return arrays[0] if kind == "integer" else text_over(*arrays)


def take_nodes(
    source: Source, writer: ArrayWriter, means: Means, progress: Progress, cluster: Workers | None = None
) -> NodeIds:
    """Write the ids of all nodes, unless an earlier run did; return the ids for lookup."""
    count, where = stated_count(source)
    where = where or source.edges.where
    check_num_nodes(count or 0, where)
    with disk_errors(writer.path):
        if "id_kind" not in writer.state:
            kind = "row"
            if source.node_ids is not None:
                kind, count = _write_ids(writer, source.node_ids.chunks())
                _refuse_repeats(writer, kind, where, means)
            elif count is None:
                kind, count = _write_distinct_ids(source, writer, means, progress, cluster)
            writer.commit(id_kind=kind, num_nodes=count)
        kind = str(writer.state["id_kind"])
        folder = None if kind == "row" else writer.partial.absolute()
        return NodeIds(int(writer.state["num_nodes"]), where, means, kind, folder)


def _refuse_repeats(writer: ArrayWriter, kind: str, where: str, means: Means) -> None:
    if kind == "row":
        return
    known = [_open_ids(writer.partial.absolute(), kind)]
    repeat = first_repeat(known, kind == "string", means.memory, means.threads, means.scratch)
    if repeat is not None:
        raise InputError(
            f"{where}: id {repeat[1]!r} occurs twice (again in row {repeat[0]}): each node may have one row only"
        )


def stated_count(source: Source) -> tuple[int | None, str]:
    """The number of nodes according to the parts in row order, and the name of one; all parts must agree."""
    stated: list[tuple[int, str]] = []
    if source.node_ids is not None:
        stated.append((source.node_ids.total, source.node_ids.where))
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


def _write_distinct_ids(
    source: Source, writer: ArrayWriter, means: Means, progress: Progress, cluster: Workers | None
) -> tuple[str, int]:
    """Write the sorted distinct ids of edges, labels and splits; (kind, count) like `_write_ids`."""
    edges, scratch, seen = source.edges, writer.partial.absolute() / _SCRATCH, 0

    def note(num_edges: int) -> None:
        nonlocal seen
        seen += num_edges
        progress("find nodes", seen, edges.total)

    others = [part.ids for part in (source.labels, source.splits) if part is not None and part.ids is not None]
    text = not edges.has_integers or any(is_text(ids) for ids in others)
    if cluster is None:
        calls: Iterable[tuple[Path, int]] = [_DistinctIds(scratch, means.memory, means.threads)(edges, "ends")]
    else:
        parts = edge_parts(edges, num_parts(edges, cluster), cluster.memory)
        tasks = ((part, str(at)) for at, part in enumerate(parts))
        calls = cluster.run(_DistinctIds(scratch, cluster.memory), tasks, cluster.memory)
    ends = _read_id_files(calls, edges, note)
    scratch.mkdir(parents=True, exist_ok=True)
    kind, count = _write_ids(writer, distinct_ids(chain(ends, others), text, scratch, means.memory, means.threads))
    if seen == 0:
        raise InputError(f"{edges.where} has no edges at all: a graph needs at least one")
    return kind, count


@dataclass(frozen=True)
class _DistinctIds:
    """Writes the distinct ids of both ends of edges to a file; (the file, approximate number of edges)."""

    folder: Path
    memory: int
    threads: int = 1

    def __call__(self, edges: Edges, name: str) -> tuple[Path, int]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{name}.parquet"
        if not isinstance(edges, TableEdges) or not edges.table.has_id_types((edges.source, edges.target)):
            seen: list[int] = []
            with written_atomically(file) as aside:
                write_distinct(_ends(edges, seen), not edges.has_integers, aside, self.folder / name, self.memory, 1)
            return file, sum(seen)
        table, kind = edges.table, "integer" if edges.has_integers else "string"
        ids = ", ".join(id_sql(name, table.types[name], kind) for name in (edges.source, edges.target))
        table.write(file, lambda rows: f"SELECT DISTINCT unnest([{ids}]) AS id FROM {rows}", self.memory, False)
        return file, table.num_rows or pq.read_metadata(file).num_rows


def _ends(edges: Edges, seen: list[int]) -> Iterator[Ids]:
    """The ids of both ends of all edges; appends the number of edges per chunk to `seen`."""
    for chunk in edges.chunks():
        yield chunk.sources
        yield chunk.targets
        seen.append(len(chunk))


def _read_id_files(files: Iterable[tuple[Path, int]], edges: Edges, note: Callable[[int], None]) -> Iterator[Ids]:
    """The ids in the files; removes each file after reading."""
    for file, seen in files:
        note(seen)
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(columns=["id"]):
                try:
                    ids = as_ids(batch.column(0), edges.where)
                except InputError:
                    for _ in edges.chunks():  # raises an error with the row without an id
                        pass
                    raise
                yield ids
        file.unlink()


def _write_ids(writer: ArrayWriter, chunks: Iterable[Ids]) -> tuple[str, int]:
    """Write ids to the store; (kind, count). Ids 0, 1, 2, … are not written."""
    kind, rows = "row", 0
    for chunk in chunks:
        if kind == "row" and is_text(chunk):
            kind = "string"
            text = writer.grow("node_id_bytes", "uint8")
            offsets = writer.grow("node_id_offsets", "int64")
            offsets.append(np.zeros(1, dtype=np.int64))
        elif kind == "row" and not np.array_equal(chunk, np.arange(rows, rows + len(chunk))):
            kind = "integer"
            store = writer.grow("node_ids", "int64")
            for start in range(0, rows, _CHUNK_ROWS):
                store.append(np.arange(start, min(start + _CHUNK_ROWS, rows)))
        if kind == "string":
            places, content = text_buffers(chunk)
            offsets.append(places[1:] + text.rows)
            text.append(content)
        elif kind == "integer":
            store.append(chunk)
        rows += len(chunk)
    for name in {"row": (), "integer": ("node_ids",), "string": ("node_id_offsets", "node_id_bytes")}[kind]:
        writer.close(name)
    return kind, rows
