"""The parts of a Source: the common interface of all inputs of `ingest`.

Edges, features and node ids are streams of chunks, which can be iterated repeatedly; labels and splits are O(N)
columns in memory. Cost: a chunk of edges takes 16 bytes per edge, a chunk of features 32 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from largegt.errors import InputError
from largegt.runtime.workers import Workers
from largegt.types import Array

from .columns import ColumnOptions, Columns, fit_columns
from .ids import Ids, as_ids, as_text, is_text, text_buffers
from .table_reading import Table, load_npy
from .weights import as_weights

EDGE_CHUNK_ROWS = 1 << 20
_FEATURE_CHUNK_BYTES = 1 << 25
_MIN_PART_EDGES, _MAX_PART_EDGES = 1 << 20, 1 << 25
"""Bounds of the number of edges in a part for a worker."""
_MIN_CHUNK_ROWS, _CHUNK_SHARE = 1 << 14, 512
"""Minimum edges per chunk, and bytes of memory per edge of a chunk: text uses about a fifth of it."""
_LINE_BYTES = 24
"""Approximate size of an edge in a text file."""


@dataclass(frozen=True)
class EdgeChunk:
    """A chunk of edges: ids of their ends, weights [n] float32, and features [n, f] float32."""

    sources: Ids
    targets: Ids
    weights: Array | None = None
    features: Array | None = None

    def __len__(self) -> int:
        return len(self.sources)


class Edges(Protocol):
    """A stream of edges."""

    @property
    def where(self) -> str: ...
    @property
    def total(self) -> int | None:
        """Number of edges; None if unknown without reading them."""

    @property
    def has_integers(self) -> bool:
        """Whether ids in chunks have an integer type."""

    @property
    def is_weighted(self) -> bool: ...
    @property
    def feature_names(self) -> Sequence[str]:
        """Names of the edge features; empty if edges have none."""

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[EdgeChunk]:
        """The edges in chunks, after the first `skip`; edge features are included only with `features`."""


class IdColumn(Protocol):
    """A stream of ids, one per node."""

    @property
    def where(self) -> str: ...
    @property
    def total(self) -> int:
        """Number of ids; may read the column."""

    def chunks(self) -> Iterator[Ids]:
        """The ids in chunks, all integers or all text."""


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
        """Column names, if the input has names."""

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        """float32 [rows, width] chunks, after the first `skip` rows; missing values are NaN."""


@dataclass(frozen=True)
class Labels:
    """Labels by row or by id: an Arrow column, or for several labels per node float32 [n, c] with NaN for missing."""

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
    """One input graph. `sources` creates it; `ingest` reads it."""

    name: str
    edges: Edges
    features: Features | None
    labels: Labels | None
    splits: Splits | None
    node_ids: IdColumn | None
    num_nodes: int | None
    notes: tuple[str, ...] = ()
    """One line per automatic choice, such as the columns used."""
    identity: str | None = None
    """Identifies this input, so that a killed ingest resumes only with the same input; None: ingest starts over."""
    split_columns: Mapping[str, Array] = field(default_factory=dict)
    """Columns that define a split: `time`, a number per node (NaN: none), or `group`, an integer per node."""
    column_names: Mapping[str, Any] = field(default_factory=dict)
    """Column name of each role, with which `append` reads further tables."""

    def opened(self, scratch: Path, config: Any, memory: int, threads: int, in_parts: bool = False) -> Source:
        """The source itself; a `FileSource` is opened here (sources.py)."""
        return self


class ArrayEdges:
    """Edges in a sequence of arrays [2, E] or [E, 2], in memory or mapped, with optional weights [E] and features
    [E, f]."""

    def __init__(
        self, arrays: Sequence[tuple[Array, str]], weights: tuple[Array, str] | None = None,
        features: tuple[Array, str] | None = None,
    ) -> None:  # fmt: skip
        self._pairs = [_checked_pairs(array, where) for array, where in arrays]
        self._bounds = np.cumsum([0, *(pairs.shape[1] for pairs in self._pairs)]).tolist()
        self._weights, self._features = weights, None if features is None else _checked_rows(*features)
        self._low, self._high = 0, int(self._bounds[-1])
        self._files: tuple[Any, ...] | None = None
        first = arrays[0][1] if arrays else "no file"
        self.where = first + (f" and {len(arrays) - 1} more" if len(arrays) > 1 else "")
        if weights is not None and weights[0].ndim != 1:
            raise InputError(f"{weights[1]} has shape {list(weights[0].shape)}, expected [E]: a number per edge")
        for column, what in ((weights, "numbers"), (self._features, "rows")):
            if column is not None and len(column[0]) != self._high:
                raise InputError(f"{column[1]} has {len(column[0])} {what}, but there are {self._high} edges: one each")
        self.is_weighted = weights is not None
        width = 0 if self._features is None else self._features[0].shape[1]
        self.feature_names: Sequence[str] = [f"edge feature {column}" for column in range(width)]

    @classmethod
    def in_files(cls, edges: Sequence[str], weights: str | None, features: str | None) -> ArrayEdges:
        """Edges in `.npy` files, memory-mapped. They are pickled as file names."""
        found = cls(
            [(load_npy(file), file) for file in edges],
            None if weights is None else (load_npy(weights), weights),
            None if features is None else (load_npy(features), features),
        )
        names = [str(Path(file).absolute()) for file in edges]
        others = [None if file is None else str(Path(file).absolute()) for file in (weights, features)]
        found._files = (names, *others)
        return found

    def __reduce__(self) -> Any:
        if self._files is None:
            return _from_arrays, (self._columns(self._low, self._high), self.where, self._weights_between())
        return _from_files, (self._files, self._low, self._high)

    def _weights_between(self) -> tuple[Array, str] | None:
        if self._weights is None:
            return None
        return np.asarray(self._weights[0][self._low : self._high]), self._weights[1]

    @property
    def total(self) -> int | None:
        return self._high - self._low

    @property
    def has_integers(self) -> bool:
        return all(pairs.dtype.kind in "iu" for pairs in self._pairs)

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        bounds = np.linspace(self._low, self._high, count + 1).astype(np.int64).tolist()
        return [self._slice(low, high) for low, high in pairwise(bounds) if low < high]

    def _slice(self, low: int, high: int) -> ArrayEdges:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__, _low=low, _high=high)
        return part

    def _columns(self, low: int, high: int) -> Array:
        """The ends of edges [low, high), which may span several arrays."""
        found = [
            pairs[:, max(low - first, 0) : high - first]
            for pairs, first, last in zip(self._pairs, self._bounds, self._bounds[1:], strict=False)
            if low < last and first < high
        ]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[EdgeChunk]:
        for low in range(self._low + skip, self._high, EDGE_CHUNK_ROWS):
            some = slice(low, min(low + EDGE_CHUNK_ROWS, self._high))
            ends = self._columns(some.start, some.stop)
            weights = None if self._weights is None else as_weights(self._weights[0][some], self._weights[1], low)
            rows = None
            if features and self._features is not None:
                with np.errstate(over="ignore"):
                    rows = np.ascontiguousarray(self._features[0][some], dtype=np.float32)
            yield EdgeChunk(as_ids(ends[0], self.where), as_ids(ends[1], self.where), weights, rows)


def _from_arrays(ends: Array, where: str, weights: tuple[Array, str] | None) -> ArrayEdges:
    return ArrayEdges([(ends, where)], weights)


def _from_files(files: tuple[Any, ...], low: int, high: int) -> ArrayEdges:
    return ArrayEdges.in_files(*files)._slice(low, high)


def _checked_pairs(array: Array, where: str) -> Array:
    if array.ndim != 2 or 2 not in array.shape:
        raise InputError(f"{where} has shape {list(array.shape)}, expected [2, E] or [E, 2]")
    if array.dtype.kind not in "iuUSO":
        raise InputError(f"{where} holds {array.dtype}, ids must be whole numbers or text")
    return array if array.shape[0] == 2 else array.T


def _checked_rows(matrix: Array, where: str) -> tuple[Array, str]:
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"{where} has shape {list(matrix.shape)}, expected [E, f]: a row per edge")
    if matrix.dtype.kind not in "fiub":
        raise InputError(f"{where} holds {matrix.dtype}, features must be numbers")
    return matrix, where


class ArrayIds:
    """Ids in an array."""

    def __init__(self, ids: Any, where: str) -> None:
        self._ids = as_ids(ids, where)
        self.where, self.total = where, len(self._ids)

    def chunks(self) -> Iterator[Ids]:
        for start in range(0, self.total, EDGE_CHUNK_ROWS):
            yield self._ids[start : start + EDGE_CHUNK_ROWS]


class TableIds:
    """Ids in a column of a table: integers if all ids are integers, else text."""

    def __init__(self, table: Table, column: str) -> None:
        self._table, self._column = table, column
        self.where = table.where

    @property
    def total(self) -> int:
        return self._table.count()

    def chunks(self) -> Iterator[Ids]:
        row, are_integers = 0, self._table.has_integers(self._column)
        for batch in self._table.batches([self._column]):
            ids = as_ids(batch.column(0), f"{self.where}: column {self._column!r}", row)
            row += len(ids)
            yield np.asarray(ids.cast("int64")) if are_integers and is_text(ids) else ids


def same_ids(ids: IdColumn, others: IdColumn) -> bool:
    """Whether two streams have the same ids in the same order; a number equals its text."""
    return ids.total == others.total and _digest(ids) == _digest(others)


def _digest(ids: IdColumn) -> tuple[bytes, bytes]:
    """Digests of the lengths and the bytes of all ids as text, independent of chunk sizes."""
    lengths, content = sha256(), sha256()
    for chunk in ids.chunks():
        offsets, text = text_buffers(as_text(chunk))
        lengths.update(np.diff(offsets).data)
        content.update(text.data)
    return lengths.digest(), content.digest()


@dataclass(frozen=True)
class TableEdges:
    """Edges in two columns of a table, with an optional weight column and feature columns."""

    table: Table
    source: str
    target: str
    weight: str | None = None
    features: Columns | None = None
    chunk_rows: int | None = None

    @property
    def where(self) -> str:
        return self.table.where

    @property
    def total(self) -> int | None:
        return self.table.num_rows

    @property
    def has_integers(self) -> bool:
        return all(self.table.types[name] != "VARCHAR" for name in (self.source, self.target))

    @property
    def is_weighted(self) -> bool:
        return self.weight is not None

    @property
    def feature_names(self) -> Sequence[str]:
        return [] if self.features is None else self.features.names

    @property
    def rough_total(self) -> int:
        """Approximate number of edges."""
        total = self.total
        return self.table.num_bytes // _LINE_BYTES if total is None else total

    def columns(self, features: bool = False) -> list[str]:
        """The columns to read: ends, weights if there are any, and with `features` the feature columns."""
        fitted = self.features.input_columns if features and self.features is not None else []
        return list(dict.fromkeys([self.source, self.target, *([self.weight] if self.weight else []), *fitted]))

    def parts(self, count: int, chunk_rows: int) -> list[Edges]:
        return [replace(self, table=part, chunk_rows=chunk_rows) for part in self.table.parts(count)]

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[EdgeChunk]:
        row = self.table.first_row + skip
        for batch in self.table.batches(self.columns(features), self.chunk_rows or EDGE_CHUNK_ROWS, skip):
            ends = [
                as_ids(batch.column(name), f"{self.where}: column {name!r}", row) for name in (self.source, self.target)
            ]
            weights = block = None
            if self.weight is not None:
                weights = as_weights(batch.column(self.weight), f"{self.where}: column {self.weight!r}", row)
            if features and self.features is not None:
                block = self.features.transform(batch, self.where, row)
            yield EdgeChunk(ends[0], ends[1], weights, block)
            row += batch.num_rows


def edge_parts(edges: Edges, count: int, memory: int) -> list[Edges]:
    """The edges as about `count` consecutive streams with chunks that are small relative to `memory`; one stream if the
    edges cannot be divided."""
    chunk_rows = int(np.clip(memory // _CHUNK_SHARE, _MIN_CHUNK_ROWS, EDGE_CHUNK_ROWS))
    return edges.parts(count, chunk_rows) if hasattr(edges, "parts") else [edges]


def num_parts(edges: Edges, workers: Workers) -> int:
    """The number of parts that the user sets, or four per worker within the bounds of the part size."""
    if workers.num_shards is not None:
        return workers.num_shards
    total = int(getattr(edges, "rough_total", edges.total or 0))
    return max(1, -(-total // _MAX_PART_EDGES), min(4 * workers.num_workers, total // _MIN_PART_EDGES))


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


@dataclass(frozen=True)
class TableFeatures:
    """Features in columns of a staged table, encoded by kind (columns.py) after fitting."""

    table: Table
    chosen: tuple[str, ...]
    columns: Columns = field(default_factory=lambda: Columns([]))

    @property
    def where(self) -> str:
        return self.table.where

    @property
    def width(self) -> int:
        return self.columns.width

    @property
    def names(self) -> list[str] | None:
        return list(self.columns.names)

    @property
    def num_rows(self) -> int | None:
        return self.table.count()

    def fitted(self, options: ColumnOptions, train: Array | None, labels: Array | None = None) -> TableFeatures:
        """The same columns with kinds and transforms fitted on the training rows."""
        return replace(self, columns=fit_columns(self.table, self.chosen, options, train, labels))

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        row = skip
        for batch in self.table.batches(self.columns.input_columns, chunk_rows(self.width), skip):
            yield self.columns.transform(batch, self.where, row)
            row += batch.num_rows


def chunk_rows(width: int) -> int:
    """Feature rows per chunk."""
    return max(1, _FEATURE_CHUNK_BYTES // (4 * max(1, width)))
