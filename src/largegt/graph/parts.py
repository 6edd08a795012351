"""The parts of a Source: what every kind of input looks like to `ingest`.

Edges and features are streams (chunks made on demand, as often as asked); ids, labels and splits are O(N)
columns in memory. Cost: a chunk of edges is 16 bytes per edge, a chunk of features 32 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..types import Array
from .ids import Ids, as_ids, as_text
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

    def chunks(self, text: bool) -> Iterator[tuple[Ids, Ids]]:
        """(sources, targets) in pieces; with `text`, ids come as text whatever they are."""


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

    def chunks(self) -> Iterator[Array]:
        """float32 [rows, width]; missing values are NaN."""


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
    node_ids: Ids | None
    num_nodes: int | None
    node_where: str
    notes: tuple[str, ...] = ()
    """What was guessed on the way (which columns, for example), a line each."""


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

    def chunks(self, text: bool) -> Iterator[tuple[Ids, Ids]]:
        for start in range(0, self._pairs.shape[1], EDGE_CHUNK_ROWS):
            part = self._pairs[:, start : start + EDGE_CHUNK_ROWS]
            sources, targets = as_ids(part[0], self.where), as_ids(part[1], self.where)
            yield (as_text(sources), as_text(targets)) if text else (sources, targets)


class TableEdges:
    """Edges in two columns of a table."""

    def __init__(self, table: Table, source: str, target: str) -> None:
        self._table, self._source, self._target = table, source, target
        self.where = table.where
        self.total = table.num_rows

    def chunks(self, text: bool) -> Iterator[tuple[Ids, Ids]]:
        columns = [self._source, self._target]
        types = {name: pa.string() for name in columns} if text else {}
        for batch in self._table.batches(columns, types, EDGE_CHUNK_ROWS):
            sources = as_ids(batch.column(0), f"{self.where}: column {self._source!r}")
            targets = as_ids(batch.column(1), f"{self.where}: column {self._target!r}")
            yield (as_text(sources), as_text(targets)) if text else (sources, targets)


class ManyEdges:
    """Several streams, one after the other."""

    def __init__(self, streams: Sequence[Edges]) -> None:
        self._streams = streams
        self.where = streams[0].where + (f" and {len(streams) - 1} more" if len(streams) > 1 else "")
        totals = [stream.total for stream in streams]
        self.total = None if None in totals else sum(total for total in totals if total is not None)

    def chunks(self, text: bool) -> Iterator[tuple[Ids, Ids]]:
        for stream in self._streams:
            yield from stream.chunks(text)


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

    def chunks(self) -> Iterator[Array]:
        for start in range(0, self._matrix.shape[0], chunk_rows(self.width)):
            part = self._matrix[start : start + chunk_rows(self.width)]
            with np.errstate(over="ignore"):
                part = part.astype(np.float32)
                yield np.asarray(part.toarray() if self._sparse else part)


class TableFeatures:
    """Features in numeric columns and columns of vectors of a table."""

    def __init__(self, table: Table, columns: list[str], num_rows: int | None) -> None:
        self._table, self._columns = table, columns
        self.where = table.where
        self._types = {name: pa.float64() for name in columns if not table.is_list(name)}
        first = next(iter(table.batches(columns, self._types, rows=1024)), None)
        widths = [_width(first, name) for name in columns]
        self.width = sum(widths)
        self.num_rows = num_rows if num_rows is not None else self._count()
        self.names: list[str] | None = [
            name if len_ == 1 and not table.is_list(name) else f"{name}[{at}]"
            for name, len_ in zip(columns, widths, strict=True)
            for at in range(len_)
        ]

    def chunks(self) -> Iterator[Array]:
        for batch in self._table.batches(self._columns, self._types, chunk_rows(self.width)):
            block = float_block(batch, self._columns, self.where)
            if block.shape[1] != self.width:
                raise InputError(f"{self.where}: vectors have different lengths in different rows")
            yield block

    def _count(self) -> int:
        known = self._table.num_rows
        if known is not None:
            return known
        column = self._columns[:1]
        return sum(batch.num_rows for batch in self._table.batches(column, {column[0]: pa.string()}))


def chunk_rows(width: int) -> int:
    """Feature rows per chunk."""
    return max(1, _FEATURE_CHUNK_BYTES // (4 * max(1, width)))


def _width(batch: Any | None, name: str) -> int:
    if batch is None:
        return 1
    return int(float_block(batch.slice(0, 1), [name], name).shape[1])
