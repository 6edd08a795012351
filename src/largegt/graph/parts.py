"""The parts of a Source: what every kind of input looks like to `ingest`.

Edges, features and the ids of nodes are streams (chunks made on demand, as often as asked); labels and splits are
O(N) columns in memory. Cost: a chunk of edges is 16 bytes per edge, a chunk of features 32 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..types import Array
from .ids import Ids, MixedIdsError, as_ids, as_text, is_text
from .tables import Table, float_block

EDGE_CHUNK_ROWS = 1 << 20
_FEATURE_CHUNK_BYTES = 1 << 25
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


class ArrayEdges:
    """Edges in an array, in memory or mapped: [2, E], or [E, 2]."""

    def __init__(self, array: Array, where: str) -> None:
        if array.ndim != 2 or 2 not in array.shape:
            raise InputError(f"{where} has shape {list(array.shape)}, expected [2, E] or [E, 2]")
        if array.dtype.kind not in "iuUSO":
            raise InputError(f"{where} holds {array.dtype}, ids must be whole numbers or text")
        self.where = where
        self._pairs = array if array.shape[0] == 2 else array.T
        self.total: int | None = self._pairs.shape[1]

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        for start in range(skip, self._pairs.shape[1], EDGE_CHUNK_ROWS):
            part = self._pairs[:, start : start + EDGE_CHUNK_ROWS]
            sources, targets = as_ids(part[0], self.where), as_ids(part[1], self.where)
            yield (as_text(sources), as_text(targets)) if text else (sources, targets)


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
        types = {self._column: pa.string()} if text else {}
        row = 0
        for batch in self._table.batches([self._column], types, EDGE_CHUNK_ROWS):
            ids = as_ids(batch.column(0), f"{self.where}: column {self._column!r}", row)
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
    """Edges in two columns of a table."""

    def __init__(self, table: Table, source: str, target: str) -> None:
        self._table, self._source, self._target = table, source, target
        self.where = table.where
        self.total = table.num_rows

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        columns = [self._source, self._target]
        types = {name: pa.string() for name in columns} if text else {}
        row = skip
        for batch in self._table.batches(columns, types, EDGE_CHUNK_ROWS, skip):
            sources = as_ids(batch.column(0), f"{self.where}: column {self._source!r}", row)
            targets = as_ids(batch.column(1), f"{self.where}: column {self._target!r}", row)
            row += len(sources)
            yield (as_text(sources), as_text(targets)) if text else (sources, targets)


class ManyEdges:
    """Several streams, one after the other."""

    def __init__(self, streams: Sequence[Edges]) -> None:
        self._streams = streams
        self.where = streams[0].where + (f" and {len(streams) - 1} more" if len(streams) > 1 else "")
        totals = [stream.total for stream in streams]
        self.total = None if None in totals else sum(total for total in totals if total is not None)

    def chunks(self, text: bool, skip: int = 0) -> Iterator[tuple[Ids, Ids]]:
        for stream in self._streams:
            total = stream.total or 0
            if skip < total or not total:
                yield from stream.chunks(text, skip)
            skip = max(0, skip - total)


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
        widths = [_width(first, name) for name in columns]
        self.width = sum(widths)
        self.num_rows: int | None = table.count()
        self.names: list[str] | None = [
            name if len_ == 1 and not table.is_list(name) else f"{name}[{at}]"
            for name, len_ in zip(columns, widths, strict=True)
            for at in range(len_)
        ]

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for batch in self._table.batches(self._columns, self._types, chunk_rows(self.width), skip):
            block = float_block(batch, self._columns, self.where)
            if block.shape[1] != self.width:
                raise InputError(f"{self.where}: vectors have different lengths in different rows")
            yield block


def chunk_rows(width: int) -> int:
    """Feature rows per chunk."""
    return max(1, _FEATURE_CHUNK_BYTES // (4 * max(1, width)))


def _width(batch: Any | None, name: str) -> int:
    if batch is None:
        return 1
    return int(float_block(batch.slice(0, 1), [name], name).shape[1])
