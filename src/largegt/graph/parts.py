"""The parts of a Source: what every kind of input looks like to `ingest`.

Edges, features and the ids of nodes are streams (chunks made on demand, as often as asked); labels and splits are
O(N) columns in memory. Cost: a chunk of edges is 16 bytes per edge, a chunk of features 32 MB.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..types import Array
from .ids import Ids, MixedIdsError, as_ids, as_text, is_text
from .tables import Table, float_block, load_npy
from .weight_values import as_weights
from .workers import Workers

EDGE_CHUNK_ROWS = 1 << 20
_FEATURE_CHUNK_BYTES = 1 << 25
_LEAST_PART, _MOST_PART = 1 << 20, 1 << 25
"""Edges of a part for a worker."""
_LEAST_CHUNK_ROWS, _CHUNK_SHARE = 1 << 14, 512
"""Edges of a chunk where memory is small, and bytes of memory for each otherwise: text takes about a fifth of it."""
_LINE_BYTES = 24
"""Of a text file for an edge, roughly."""
DEFAULT_NAME = "graph"


class Edges(Protocol):
    """A stream of edges."""

    @property
    def where(self) -> str: ...
    @property
    def total(self) -> int | None:
        """Edges in all, where it is known without reading them."""

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        """(sources, targets) in pieces, without the first `skip` edges; with `text`, ids come as text whatever they
        are."""


class IdColumn(Protocol):
    """A stream of ids, one for each node."""

    @property
    def where(self) -> str: ...
    @property
    def total(self) -> int:
        """Ids in all; they may have to be read for it."""

    def chunks(self, text: bool) -> Iterator[Ids]:
        """The ids in pieces; with `text`, they come as text whatever they are."""


class Features(Protocol):
    """A stream of feature rows."""

    @property
    def where(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def num_rows(self) -> int | None: ...
    @property
    def names(self) -> list[str] | None:
        """A name per column, where the input has names."""

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        """float32 [rows, width], without the first `skip` rows; missing values are NaN."""


@dataclass(frozen=True)
class Labels:
    """Labels by row, or by id: an Arrow column, or float32 [n, c] with NaN for several labels per node."""

    values: Any
    where: str
    names: list[str] | None = None
    ids: Ids | None = None


@dataclass(frozen=True)
class Splits:
    """A split: node numbers or masks by name, or a code per row or per id."""

    where: str
    parts: Mapping[str, Array] = field(default_factory=dict)
    codes: Array | None = None
    ids: Ids | None = None


@dataclass(frozen=True)
class Source:
    """One input graph, whatever it came from. `ingest` takes it; `sources` makes it."""

    name: str
    edges: Edges
    features: Features | None
    labels: Labels | None
    splits: Splits | None
    node_ids: IdColumn | None
    num_nodes: int | None
    notes: tuple[str, ...] = ()
    """What was guessed on the way (which columns, for example), a line each."""
    identity: str | None = None
    """Names this input, so that a killed ingest goes on with the same; without it, ingest starts over."""
    edge_features: Any = None
    """The edges once more, with features: `EdgeFeatures` of edge_features.py."""


class ArrayEdges:
    """Edges in an array, in memory or mapped: [2, E], or [E, 2]."""

    def __init__(self, array: Array, where: str) -> None:
        if array.ndim != 2 or 2 not in array.shape:
            raise InputError(f"{where} has shape {list(array.shape)}, expected [2, E] or [E, 2]")
        if array.dtype.kind not in "iuUSO":
            raise InputError(f"{where} holds {array.dtype}, ids must be whole numbers or text")
        self.where = where
        self._pairs = array if array.shape[0] == 2 else array.T

    @property
    def total(self) -> int | None:
        return int(self._pairs.shape[1])

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        bounds = np.linspace(0, self._pairs.shape[1], count + 1).astype(np.int64).tolist()
        return [self._part(low, high) for low, high in pairwise(bounds) if low < high]

    def _part(self, low: int, high: int) -> ArrayEdges:
        part = copy.copy(self)
        part._pairs = self._pairs[:, low:high]
        return part

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        for start in range(skip, self._pairs.shape[1], EDGE_CHUNK_ROWS):
            part = self._pairs[:, start : start + EDGE_CHUNK_ROWS]
            sources, targets = as_ids(part[0], self.where), as_ids(part[1], self.where)
            yield (as_text(sources), as_text(targets)) if text else (sources, targets)


class NpyEdges(ArrayEdges):
    """Edges [low, high) in a `.npy` file, mapped. Travels as the name of the file."""

    def __init__(self, file: str, low: int = 0, high: int | None = None) -> None:
        super().__init__(load_npy(file), file)
        self._low, self._high = low, high
        self._pairs = self._pairs[:, low:high]

    def __reduce__(self) -> Any:
        return NpyEdges, (str(Path(self.where).absolute()), self._low, self._high)

    def _part(self, low: int, high: int) -> NpyEdges:
        return NpyEdges(self.where, self._low + low, self._low + high)


class ArrayIds:
    """Ids in an array."""

    def __init__(self, ids: Any, where: str) -> None:
        self._ids = as_ids(ids, where)
        self.where, self.total = where, len(self._ids)

    def chunks(self, text: bool) -> Iterator[Ids]:
        for start in range(0, self.total, EDGE_CHUNK_ROWS):
            part = self._ids[start : start + EDGE_CHUNK_ROWS]
            yield as_text(part) if text else part


class TableIds:
    """Ids in a column of a table."""

    def __init__(self, table: Table, column: str) -> None:
        self._table, self._column = table, column
        self.where = table.where

    @property
    def total(self) -> int:
        return self._table.count()

    def chunks(self, text: bool) -> Iterator[Ids]:
        types = self._table.id_types([self._column], text)
        row = 0
        for batch in self._table.batches([self._column], types, EDGE_CHUNK_ROWS):
            ids = self._table.ids(self._column, batch.column(0), row)
            row += len(ids)
            yield as_text(ids) if text else ids


def same_ids(ids: IdColumn, others: IdColumn) -> bool:
    """Whether two streams give the same ids in the same order; a number is the same as its text."""
    if ids.total != others.total:
        return False
    try:
        return _same_chunks(ids.chunks(False), others.chunks(False))
    except MixedIdsError:
        return _same_chunks(ids.chunks(True), others.chunks(True))


def _same_chunks(chunks: Iterator[Ids], others: Iterator[Ids]) -> bool:
    """The streams are of one length; where their chunks end does not matter."""
    other: Ids = np.zeros(0, dtype=np.int64)
    for chunk in chunks:
        while len(chunk):
            if not len(other):
                other = next(others)
            if is_text(chunk) != is_text(other):
                raise MixedIdsError("ids are partly whole numbers and partly text")
            size = min(len(chunk), len(other))
            ours, theirs = chunk[:size], other[:size]
            if not (ours.equals(theirs) if is_text(ours) else np.array_equal(ours, theirs)):
                return False
            chunk, other = chunk[size:], other[size:]
    return True


class TableEdges:
    """Edges in two columns of a table, and their weights in a third where it is named."""

    def __init__(
        self, table: Table, source: str, target: str, *, chunk_rows: int | None = None, weight: str | None = None
    ) -> None:
        self._table, self._source, self._target, self._weight = table, source, target, weight
        self._chunk_rows = chunk_rows or EDGE_CHUNK_ROWS
        self.has_values = weight is not None
        self.where = table.where
        self.total = table.num_rows

    @property
    def rough_total(self) -> int:
        """About how many edges there are."""
        return self._table.num_bytes // _LINE_BYTES if self.total is None else self.total

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        return [
            TableEdges(part, self._source, self._target, chunk_rows=chunk_rows, weight=self._weight)
            for part in self._table.parts(count)
        ]

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        for sources, targets, _, _ in self.batches(text, skip, []):
            yield sources, targets

    def valued_chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids, Array]]:
        assert self._weight is not None
        where = f"{self.where}: column {self._weight!r}"
        for sources, targets, batch, row in self.batches(text, skip, [self._weight]):
            yield sources, targets, as_weights(batch.column(self._weight), where, row)

    def feature_columns(self, patterns: list[str]) -> list[str]:
        """Columns of numbers or vectors by name or glob; what names nodes or weighs edges is no feature."""
        taken = (self._source, self._target, self._weight)
        found = [name for name in self._table.matching(patterns, "edge features") if name not in taken]
        wrong = [name for name in found if not (self._table.is_numeric(name) or self._table.is_list(name))]
        if wrong or not found:
            what = f"column {wrong[0]!r} is no number" if wrong else "no column is left over"
            raise InputError(f"{self.where}: {what} to be a feature of edges; name columns of numbers")
        return found

    def batches(self, text: bool, skip: int, others: list[str]) -> Iterator[tuple[Ids, Ids, Any, int]]:
        """(sources, targets, a batch with the columns `others`, its first row); a CSV's come as fractions, its weights
        as text, to say which is none."""
        columns = [self._source, self._target]
        types = self._table.id_types(columns, text)
        if self._table.kind != ".parquet":
            types |= {name: pa.string() if name == self._weight else pa.float64() for name in others}
        columns += [name for name in others if name not in columns]
        row = self._table.first_row + skip
        for batch in self._table.batches(columns, types, self._chunk_rows, skip):
            sources = self._table.ids(self._source, batch.column(0), row)
            targets = self._table.ids(self._target, batch.column(1), row)
            yield *((as_text(sources), as_text(targets)) if text else (sources, targets)), batch, row
            row += len(sources)


class ManyEdges:
    """Several streams, one after the other."""

    def __init__(self, streams: Sequence[Edges]) -> None:
        self._streams = streams
        first = streams[0].where if streams else "no file"
        self.where = first + (f" and {len(streams) - 1} more" if len(streams) > 1 else "")
        totals = [stream.total for stream in streams]
        self.total = None if None in totals else sum(total for total in totals if total is not None)

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        for stream in self._streams:
            total = stream.total or 0
            if skip < total or not total:
                yield from stream.chunks(text, skip)
            skip = max(0, skip - total)

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        sizes = np.array([max(1, rough_total(stream)) for stream in self._streams], dtype=np.float64)
        counts = np.ceil(sizes * count / sizes.sum()).astype(int).tolist()
        return [
            part for stream, n in zip(self._streams, counts, strict=True) for part in parts_of(stream, n, chunk_rows)
        ]


def edge_parts(edges: Edges, count: int, memory: int) -> list[Edges]:
    """The same edges as about `count` streams, one after the other, whose chunks are small beside `memory`; one stream
    where they cannot be parted."""
    return parts_of(edges, count, int(np.clip(memory // _CHUNK_SHARE, _LEAST_CHUNK_ROWS, EDGE_CHUNK_ROWS)))


def parts_of(edges: Edges, count: int, chunk_rows: int) -> list[Edges]:
    found: list[Edges] = edges.parts(count, chunk_rows) if hasattr(edges, "parts") else [edges]
    return found


def rough_total(edges: Edges) -> int:
    """About how many edges there are; 0 where nobody can say."""
    return int(getattr(edges, "rough_total", edges.total or 0))


def num_parts(edges: Edges, workers: Workers) -> int:
    """As many parts as the user wants; or four for each worker, unless that makes them very small or large."""
    if workers.num_shards is not None:
        return workers.num_shards
    total = rough_total(edges)
    return max(1, -(-total // _MOST_PART), min(4 * workers.num_workers, total // _LEAST_PART))


class MatrixFeatures:
    """Features in a dense array (in memory or mapped) or a SciPy sparse matrix."""

    names: list[str] | None = None

    def __init__(self, matrix: Any, where: str) -> None:
        self._sparse = hasattr(matrix, "tocsr")
        matrix = matrix.tocsr() if self._sparse else matrix
        if not self._sparse and matrix.ndim == 1:
            matrix = matrix[:, None]
        if matrix.ndim != 2:
            raise InputError(f"{where} has shape {list(matrix.shape)}, features are [N, d]: a row per node")
        if matrix.dtype.kind not in "fiub":
            raise InputError(f"{where} holds {matrix.dtype}, features must be numbers")
        self.where = where
        self._matrix = matrix
        self.width = int(matrix.shape[1])
        self.num_rows: int | None = int(matrix.shape[0])

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for start in range(skip, self._matrix.shape[0], chunk_rows(self.width)):
            part = self._matrix[start : start + chunk_rows(self.width)]
            with np.errstate(over="ignore"):
                part = part.astype(np.float32)
                yield np.asarray(part.toarray() if self._sparse else part)


class TableFeatures:
    """Features in numeric columns and columns of vectors of a table."""

    def __init__(self, table: Table, columns: list[str]) -> None:
        self._table, self._columns = table, columns
        self.where = table.where
        self._types = {name: pa.float64() for name in columns if not table.is_list(name)}
        first = next(iter(table.batches(columns, self._types, rows=1024)), None)
        vectors = [name for name in columns if table.is_list(name)]
        self.names: list[str] | None = feature_names(first, columns, self.where, vectors)
        self.width = len(self.names)
        self.num_rows: int | None = table.count()

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for batch in self._table.batches(self._columns, self._types, chunk_rows(self.width), skip):
            block = float_block(batch, self._columns, self.where)
            if block.shape[1] != self.width:
                raise InputError(f"{self.where}: vectors have different lengths in different rows")
            yield block


def chunk_rows(width: int) -> int:
    """Feature rows per chunk."""
    return max(1, _FEATURE_CHUNK_BYTES // (4 * max(1, width)))


def feature_names(batch: Any | None, columns: Sequence[str], where: str, vectors: Sequence[str] = ()) -> list[str]:
    """A name for each number of a row of these columns, of which `batch` has some: `v[0]`, `v[1]`, … for a column of
    several, and for those that are called `vectors` in any case."""
    names: list[str] = []
    for name in columns:
        width = 1 if batch is None else int(float_block(batch.slice(0, 1), [name], where).shape[1])
        names += [name] if width == 1 and name not in vectors else [f"{name}[{at}]" for at in range(width)]
    return names
