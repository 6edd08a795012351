"""Which nodes there are: the user's ids, written to the store and found again.

Enters: a `Source`, the writer of the store. Leaves: `NodeIds`, and in the store the ids themselves (`node_ids`, or
`node_id_offsets` and `node_id_bytes`) unless they are just the rows 0..N-1. Cost: the memory it is given; while ingest
runs, files for looking ids up beside the store's arrays (see `id_file`).

Ids come from a column of the source; or nobody names them and a number of nodes is stated; or they are found in the
edges, labels and splits, and sorted. What an earlier run has finished of this is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import InputError, disk_errors
from ..folder import FolderWriter
from ..progress import Progress
from ..types import Array
from .id_columns import Strings
from .id_file import IdFile
from .ids import Ids, MixedIdsError, as_numbers, as_text, is_text
from .parts import Source
from .sorted_ids import sorted_unique

_CHUNK_ROWS = 1 << 20
_LOOKUP, _FOUND = "lookup", "found"
"""Folders for scratch files; they go when the store is finished."""


class NodeIds:
    """The nodes 0..num_nodes-1 and what the user calls them. `kind` is `row` (their numbers), `integer` or `string`."""

    def __init__(self, num_nodes: int, where: str, own: Array | Strings | None = None, file: IdFile | None = None):
        self.num_nodes, self.where = num_nodes, where
        self.kind = "row" if own is None else "string" if isinstance(own, Strings) else "integer"
        self._own, self._file = own, file

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
        if self._own is None:
            return row
        return self._own.at(row).decode() if isinstance(self._own, Strings) else int(self._own[row])


def take_nodes(
    source: Source, writer: FolderWriter, text: bool, memory: int, threads: int, progress: Progress
) -> NodeIds:
    """Write the ids of all nodes, unless an earlier run did, and make them ready to be looked up.

    With `text`, ids are read as text whatever they are; without, `MixedIdsError` says that they must be."""
    count, where = stated_count(source)
    where = where or source.edges.where
    with disk_errors(writer.path):
        if "id_kind" not in writer.state:
            kind = "row"
            if source.node_ids is not None:
                kind, count = _write_ids(writer, source.node_ids.chunks(text))
            elif count is None:
                kind, count = _write_found(source, writer, text, memory, threads, progress)
            writer.commit(id_kind=kind, num_nodes=count)
        num_nodes = int(writer.state["num_nodes"])
        own = _own_ids(writer, writer.state["id_kind"])
        if own is None:
            return NodeIds(num_nodes, where)
        folder = writer.partial / _LOOKUP
        file = IdFile.open(folder, where, threads)
        if file is None or file.num_nodes != num_nodes:
            progress("sort ids", 0, num_nodes)
            file = IdFile.build(folder, _chunks(own, num_nodes), memory, threads, where)
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
    source: Source, writer: FolderWriter, text: bool, memory: int, threads: int, progress: Progress
) -> tuple[str, int]:
    """As `_write_ids`, for the distinct ids that anything names, sorted."""
    found = sorted_unique(_named_ids(source, text, progress), writer.partial / _FOUND, memory, threads)
    if found.total == 0:
        raise InputError(f"{source.edges.where} has no edges at all: a graph needs at least one")
    written = _write_ids(writer, found.chunks(_CHUNK_ROWS))
    found.remove()
    return written


def _named_ids(source: Source, text: bool, progress: Progress) -> Iterator[Ids]:
    """Every id that anything names: the ends of the edges, and the ids of labels and splits."""
    seen = 0
    for sources, targets in source.edges.chunks(text):
        yield sources
        yield targets
        seen += len(sources)
        progress("find nodes", seen, source.edges.total)
    for part in (source.labels, source.splits):
        if seen and part is not None and part.ids is not None:
            yield as_text(part.ids) if text else part.ids


def _write_ids(writer: FolderWriter, chunks: Iterable[Ids]) -> tuple[str, int]:
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


def _own_ids(writer: FolderWriter, kind: str) -> Array | Strings | None:
    """The ids that the store has, mapped."""
    if kind == "row":
        return None
    if kind == "integer":
        return writer.array("node_ids")
    return Strings(np.asarray(writer.array("node_id_offsets")), np.asarray(writer.array("node_id_bytes")))


def _chunks(own: Array | Strings, num_nodes: int) -> Iterator[Ids]:
    for low in range(0, num_nodes, _CHUNK_ROWS):
        high = min(low + _CHUNK_ROWS, num_nodes)
        yield own.rows(low, high) if isinstance(own, Strings) else np.asarray(own[low:high])
