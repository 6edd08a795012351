"""Which nodes there are: the user's ids, written to the store and found again.

Enters: a `Source`, the writer of the store. Leaves: `NodeIds`, and in the store the ids themselves (`node_ids`, or
`node_id_offsets` and `node_id_bytes`) unless they are just the rows 0..N-1. Cost: the memory it is given; while ingest
runs, files for looking ids up beside the store's arrays (see `id_file`).

Ids come from a column of the source; or nobody names them and a number of nodes is stated; or they are found in the
edges, labels and splits, and sorted. What an earlier run has finished of this is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, disk_errors
from ..io.array_writer import ArrayWriter
from ..progress import Progress
from ..types import Array
from .claims import check_num_nodes
from .id_columns import Strings
from .id_file import IdFile
from .id_tasks import build_by, sorted_unique_by
from .ids import Ids, MixedIdsError, as_numbers, as_text, is_text
from .parts import Source, edge_parts, num_parts
from .sorted_ids import sorted_unique
from .workers import Workers

_CHUNK_ROWS = 1 << 20
_LOOKUP, _FOUND = "lookup", "found"
"""Folders for scratch files; they go when the store is finished."""


class NodeIds:
    """The nodes 0..num_nodes-1 and what the user calls them. `kind` is `row` (their numbers), `integer` or `string`."""

    def __init__(self, num_nodes: int, where: str, own: OwnIds | None = None, file: IdFile | None = None):
        self.num_nodes, self.where = num_nodes, where
        self.kind = "row" if own is None else own.kind
        self._own, self._file = own, file

    def __reduce__(self) -> Any:
        return _reopened, (self.num_nodes, self.where, self._own)

    def find(self, wanted: Ids) -> Array:
        """Node numbers int64 of these ids, -1 where there is no such node. Ask for many at a time."""
        if self._file is not None:
            return self._file.find(wanted)
        if is_text(wanted):
            numbers, meant = as_numbers(wanted)
            return np.where(meant, self.find(numbers), -1)
        return np.where((wanted >= 0) & (wanted < self.num_nodes), wanted, -1)

    def at(self, row: int) -> Any:
        """The user's id of a node."""
        return row if self._own is None else self._own.at(row)


class OwnIds:
    """The ids that the store in `folder` has, mapped. They travel as the name of that folder."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        names = ("node_ids",) if kind == "integer" else ("node_id_offsets", "node_id_bytes")
        arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in names]
        self._ids = arrays[0] if kind == "integer" else Strings(*arrays)

    def __reduce__(self) -> Any:
        return OwnIds, (self.folder, self.kind)

    def at(self, row: int) -> Any:
        return self._ids.at(row).decode() if isinstance(self._ids, Strings) else int(self._ids[row])

    def chunks(self, low: int, high: int) -> Iterator[Ids]:
        """The ids of nodes [low, high), in pieces."""
        for first in range(low, high, _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, high)
            yield self._ids.rows(first, last) if isinstance(self._ids, Strings) else np.asarray(self._ids[first:last])


def _reopened(num_nodes: int, where: str, own: OwnIds | None) -> NodeIds:
    """On another machine, which sees the same files."""
    file = None if own is None else IdFile.open(own.folder / _LOOKUP, where, 1)
    if own is not None and file is None:
        raise InputError(f"{own.folder} is not seen by every machine: with an engine, --out must be shared storage")
    return NodeIds(num_nodes, where, own, file)


def take_nodes(
    source: Source, writer: ArrayWriter, text: bool, memory: int, threads: int, progress: Progress,
    cluster: Workers | None = None,
) -> NodeIds:  # fmt: skip
    """Write the ids of all nodes, unless an earlier run did, and make them ready to be looked up.

    With `text`, ids are read as text whatever they are; without, `MixedIdsError` says that they must be."""
    count, where = stated_count(source)
    where = where or source.edges.where
    check_num_nodes(count or 0, where)
    with disk_errors(writer.path):
        if "id_kind" not in writer.state:
            kind = "row"
            if source.node_ids is not None:
                kind, count = _write_ids(writer, source.node_ids.chunks(text))
            elif count is None:
                kind, count = _write_found(source, writer, text, memory, threads, progress, cluster)
            writer.commit(id_kind=kind, num_nodes=count)
        num_nodes = int(writer.state["num_nodes"])
        if writer.state["id_kind"] == "row":
            return NodeIds(num_nodes, where)
        own = OwnIds(writer.partial.absolute(), writer.state["id_kind"])
        folder = own.folder / _LOOKUP
        file = IdFile.open(folder, where, threads)
        if file is None or file.num_nodes != num_nodes:
            progress("sort ids", 0, num_nodes)
            if cluster is not None:
                file = build_by(cluster, folder, own, num_nodes, where, threads)
            else:
                file = IdFile.build(folder, own.chunks(0, num_nodes), memory, threads, where)
            progress("sort ids", num_nodes, num_nodes)
        return NodeIds(num_nodes, where, own, file)


def stated_count(source: Source) -> tuple[int | None, str]:
    """How many nodes the parts that are in row order say there are, and which says so; they must agree."""
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


def _write_found(
    source: Source, writer: ArrayWriter, text: bool, memory: int, threads: int, progress: Progress,
    cluster: Workers | None,
) -> tuple[str, int]:  # fmt: skip
    """As `_write_ids`, for the distinct ids that anything names, sorted."""
    folder, seen = writer.partial.absolute() / _FOUND, 0

    def note(num_edges: int) -> None:
        nonlocal seen
        seen += num_edges
        progress("find nodes", seen, source.edges.total)

    if cluster is not None:
        parts = edge_parts(source.edges, num_parts(source.edges, cluster), cluster.memory)
        found = sorted_unique_by(cluster, parts, _other_ids(source, text), text, folder, note)
    else:
        found = sorted_unique(_named_ids(source, text, note), folder, memory, threads)
    if found.total == 0:
        raise InputError(f"{source.edges.where} has no edges at all: a graph needs at least one")
    written = _write_ids(writer, found.chunks(_CHUNK_ROWS))
    found.remove()
    return written


def _named_ids(source: Source, text: bool, note: Callable[[int], None]) -> Iterator[Ids]:
    """Every id that anything names: the ends of the edges, and the ids of labels and splits."""
    seen = 0
    for sources, targets in source.edges.chunks(text):
        yield sources
        yield targets
        seen += len(sources)
        note(len(sources))
    if seen:
        yield from _other_ids(source, text)


def _other_ids(source: Source, text: bool) -> Iterator[Ids]:
    """The ids of labels and splits."""
    for part in (source.labels, source.splits):
        if part is not None and part.ids is not None:
            yield as_text(part.ids) if text else part.ids


def _write_ids(writer: ArrayWriter, chunks: Iterable[Ids]) -> tuple[str, int]:
    """(kind, how many) of the ids, which are in the store now. Nothing is written as long as they are 0, 1, 2, …"""
    kind, rows = "row", 0
    for chunk in chunks:
        if kind == "row" and not (is_text(chunk) or np.array_equal(chunk, np.arange(rows, rows + len(chunk)))):
            kind = "integer"
            store = writer.grow("node_ids", "int64")
            for start in range(0, rows, _CHUNK_ROWS):
                store.append(np.arange(start, min(start + _CHUNK_ROWS, rows)))
        elif kind == "row" and is_text(chunk) and not rows:
            kind = "string"
            text = writer.grow("node_id_bytes", "uint8")
            offsets = writer.grow("node_id_offsets", "int64")
            offsets.append(np.zeros(1, dtype=np.int64))
        if is_text(chunk) != (kind == "string"):
            raise MixedIdsError("ids are partly whole numbers and partly text")
        if kind == "string":
            strings = Strings.of(chunk)
            begin, end = int(strings.offsets[0]), int(strings.offsets[-1])
            offsets.append(strings.offsets[1:] + (text.rows - begin))
            text.append(strings.text[begin:end])
        elif kind == "integer":
            store.append(chunk)
        rows += len(chunk)
    for name in {"row": (), "integer": ("node_ids",), "string": ("node_id_offsets", "node_id_bytes")}[kind]:
        writer.close(name)
    return kind, rows
