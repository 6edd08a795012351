"""ogbn-products and ogbn-papers100M from OGB's folders: the raw files, not OGB's caches.

Enters: `ROOT/ogbn_products/` or `ROOT/ogbn_papers100M/` as unpacked from OGB's archives. Leaves: a `Source`. Cost:
labels and splits in memory (2 to 10 bytes per node); edges and features are streamed from the files.

    ogbn_products/raw/edge.csv.gz (E rows of two node numbers), node-feat.csv.gz and node-label.csv.gz (N rows each),
        num-node-list.csv.gz and num-edge-list.csv.gz (one number each); without headers
    ogbn_products/split/sales_ranking/{train,valid,test}.csv.gz: one node number per row
    ogbn_papers100M/raw/data.npz: edge_index [2, E], node_feat [N, d], num_nodes_list, num_edges_list, node_year
    ogbn_papers100M/raw/node-label.npz: node_label [N, 1], NaN: no label
    ogbn_papers100M/split/time/{train,valid,test}.csv.gz: as above

`processed/*.pt` and `split_dict.pt` are pickles and are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from largegt.data.duckdb_connection import reading
from largegt.data.labels import from_text
from largegt.data.parts import EdgeChunk, Labels, Source, Splits, TableEdges, chunk_rows
from largegt.data.table_reading import Table
from largegt.errors import InputError
from largegt.io.checksums import fingerprint
from largegt.types import MISSING_MARKERS, Array, PathLike

from .npz_stream import NpzEdges, NpzFeatures, NpzMember, npz_labels
from .registry import dataset


def ogbn_products(root: PathLike) -> Source:
    """ogbn-products, ready to ingest with `ingest_config("ogbn-products")`, which adds all inverse edges."""
    known = dataset("ogbn-products")
    folder = known.require(root)
    raw = folder / "raw"
    num_nodes, num_edges = (
        _single_count(_nodes(file), str(file)) for file in (raw / "num-node-list.csv.gz", raw / "num-edge-list.csv.gz")
    )
    edges = _table(raw / "edge.csv.gz", 2)
    return Source(
        name=known.name,
        edges=CsvEdges(edges, edges.columns[0], edges.columns[1], num_edges=num_edges),
        features=CsvFeatures(raw / "node-feat.csv.gz", num_nodes),
        labels=Labels(_column(raw / "node-label.csv.gz"), str(raw / "node-label.csv.gz")),
        splits=_splits(folder / "split" / "sales_ranking"),
        node_ids=None,
        num_nodes=num_nodes,
        identity=identity_of(folder, known.files),
    )


def ogbn_papers100m(root: PathLike) -> Source:
    """ogbn-papers100M, ready to ingest with `ingest_config("ogbn-papers100M")`; edges keep their direction."""
    known = dataset("ogbn-papers100M")
    folder = known.require(root)
    data = folder / "raw" / "data.npz"
    edges = NpzEdges(NpzMember(data, "edge_index"))
    num_nodes, num_edges = (
        _single_count(NpzMember(data, name).read(), f"{data}: {name}") for name in ("num_nodes_list", "num_edges_list")
    )
    if num_edges != edges.total:
        raise InputError(f"{edges.where} has {edges.total} edges, its num_edges_list says {num_edges}")
    labels = NpzMember(folder / "raw" / "node-label.npz", "node_label")
    return Source(
        name=known.name,
        edges=edges,
        features=NpzFeatures(NpzMember(data, "node_feat")),
        labels=Labels(pa.array(npz_labels(labels)), labels.where),
        splits=_splits(folder / "split" / "time"),
        node_ids=None,
        num_nodes=num_nodes,
        identity=identity_of(folder, known.files),
    )


@dataclass(frozen=True)
class CsvEdges(TableEdges):
    """Edges in a table without a header; their number is known from another file, and checked after the last edge."""

    num_edges: int = 0

    @property
    def total(self) -> int | None:
        return self.num_edges

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[EdgeChunk]:
        seen = skip
        for chunk in super().chunks(skip, features):
            seen += len(chunk)
            yield chunk
        if seen != self.total:
            raise InputError(
                f"{self.where} has {seen} edges, num-edge-list.csv.gz says {self.total}: "
                "one of them was cut off; get them again"
            )


class CsvFeatures:
    """Feature rows in a table without a header; their number is known from another file, and checked by ingest."""

    names: list[str] | None = None

    def __init__(self, file: Path, num_rows: int) -> None:
        self._table = Table(file)
        self.where = self._table.where
        self.width = len(self._table.columns)
        self.num_rows: int | None = num_rows

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for batch in self._table.batches(self._table.columns, chunk_rows(self.width), skip):
            with reading(self.where), np.errstate(over="ignore"):
                block = np.stack([np.asarray(column.cast("double"), np.float32) for column in batch.columns], axis=1)
            yield block


def identity_of(folder: Path, files: tuple[str, ...]) -> str:
    """Fingerprint of the files' paths, sizes and times, so that a killed ingest resumes only with unchanged files."""
    paths = [(folder / file).resolve() for file in files]
    return fingerprint([[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths])


def _splits(folder: Path) -> Splits:
    return Splits(str(folder), {name: _nodes(folder / f"{name}.csv.gz") for name in ("train", "valid", "test")})


def _nodes(file: Path) -> Array:
    """Node numbers, one per row."""
    values = _column(file)
    if not pa.types.is_integer(values.type) or values.null_count:
        raise InputError(f"{file} must hold a node number in each row, found {values.type}")
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _column(file: Path) -> Any:
    """The single column of a table, with its inferred type."""
    table = _table(file, 1)
    return from_text(table.read(table.columns)[table.columns[0]], MISSING_MARKERS)


def _single_count(counts: Array, where: str) -> int:
    if counts.size != 1:
        raise InputError(f"{where} speaks of {counts.size} graphs, one is expected")
    return int(counts.reshape(-1)[0])


def _table(file: Path, num_columns: int) -> Table:
    table = Table(file)
    if len(table.columns) != num_columns:
        raise InputError(f"{table.where} has {len(table.columns)} columns, OGB's file has {num_columns}")
    return table
