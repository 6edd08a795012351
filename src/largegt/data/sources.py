"""Sources: every kind of input as one `Source` that `ingest` reads in chunks.

Enters: arrays, tables and files, or a PyG `Data`. Leaves: a `Source` (see parts.py), or a `FileSource`, which becomes
one when it is opened. Cost: creating a source reads file headers; opening it copies node tables as Parquet into a
scratch folder and reads labels and splits (O(N)). Edges, ids and features are streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse

from largegt.config.schema import IngestConfig
from largegt.errors import ConfigError, InputError, first_line
from largegt.io.checksums import fingerprint
from largegt.types import Array

from .column_cells import Cells
from .columns import ColumnOptions, fit_columns
from .duckdb_connection import reading
from .files import expand, facts_of, file_kind
from .ids import Ids, as_arrow, join_ids
from .labels import from_text
from .limits import check_npz, checked_sparse
from .parts import (
    ArrayEdges,
    ArrayIds,
    Edges,
    Features,
    IdColumn,
    Labels,
    MatrixFeatures,
    Source,
    Splits,
    TableEdges,
    TableFeatures,
    TableIds,
    same_ids,
)
from .splits import npz_splits, split_codes
from .table_reading import Table, is_table, listed, load_npy

__all__ = ["FileSource", "Source", "arrays", "files", "pyg"]

_SOURCE_NAMES = ("source", "src", "from", "u", "source_id", "from_id", "head")
_TARGET_NAMES = ("target", "dst", "to", "v", "destination", "target_id", "to_id", "tail")
_ID_NAMES = ("id", "node", "node_id", "nodeid")
_LABEL_NAMES = ("label", "y", "target", "class", "labels")
_SPLIT_NAMES = ("split", "fold", "subset")


def arrays(
    edge_index: Any,
    features: Any = None,
    labels: Any = None,
    splits: Mapping[str, Any] | None = None,
    *,
    node_ids: Any = None,
    num_nodes: int | None = None,
    name: str = "",
    weights: Any = None,
    edge_features: Any = None,
) -> Source:
    """A graph in memory. `edge_index` is a NumPy or torch array [2, E] or [E, 2] (2×2 is read as [2, E]).

    Without `node_ids`, the numbers in `edge_index` are row numbers of `features` and `labels`. `splits` maps train,
    valid and test to node numbers (rows) or boolean masks. `weights` [E] are positive numbers, one per edge;
    `edge_features` [E, f] are any numbers, one row per edge.
    """
    edges = ArrayEdges(
        [(as_numpy(edge_index), "edge_index")],
        None if weights is None else (as_numpy(weights), "weights"),
        None if edge_features is None else (as_numpy(edge_features), "edge_features"),
    )
    matrix = features
    if features is not None and not scipy.sparse.issparse(features):
        matrix = as_numpy(features)
    parts = None
    if splits is not None:
        parts = Splits("splits", {key: as_numpy(part) for key, part in splits.items()})
    return Source(
        name=name,
        edges=edges,
        features=None if features is None else MatrixFeatures(matrix, "features"),
        labels=None if labels is None else _array_labels(as_numpy(labels), "labels"),
        splits=parts,
        node_ids=None if node_ids is None else ArrayIds(as_numpy(node_ids), "node_ids"),
        num_nodes=_checked_count(num_nodes),
    )


def pyg(
    data: Any,
    name: str = "",
    split_index: int = 0,
    edge_weights: bool = True,
    edge_features: bool = True,
) -> Source:
    """A PyG `Data` object (or anything with its attributes). Of masks [N, s], one column is taken. `edge_weight` and
    `edge_attr`, where it has them, are the weights and the features of its edges, unless told to leave them."""
    refuse_hetero(data)
    if getattr(data, "edge_index", None) is None:
        adjacency = [key for key in ("adj_t", "adj") if getattr(data, key, None) is not None]
        raise InputError(
            f"the {type(data).__name__} object has no edge_index"
            + (f" (it has {adjacency[0]}: convert it to edge_index first)" if adjacency else "")
        )
    splits: dict[str, Array] = {}
    for key in ("train_mask", "val_mask", "test_mask"):
        if getattr(data, key, None) is None:
            continue
        mask = as_numpy(getattr(data, key)).astype(bool)
        if mask.ndim == 2:
            if not 0 <= split_index < mask.shape[1]:
                raise InputError(f"split_index is {split_index}, but {key} has {mask.shape[1]} columns")
            mask = mask[:, split_index]
        splits[key.removesuffix("_mask")] = mask
    features = getattr(data, "x", None)
    num_nodes = getattr(data, "num_nodes", None)
    return arrays(
        data.edge_index,
        features,
        getattr(data, "y", None),
        splits or None,
        num_nodes=None if num_nodes is None else int(num_nodes),
        name=name,
        weights=getattr(data, "edge_weight", None) if edge_weights else None,
        edge_features=getattr(data, "edge_attr", None) if edge_features else None,
    )


def refuse_hetero(data: Any) -> None:
    """Refuse a PyG `HeteroData`."""
    if type(data).__name__ == "HeteroData":
        raise InputError(
            "a HeteroData has several types of nodes and edges, and LargeGT takes a graph of one type: give "
            "data.to_homogeneous(), or a Data with the nodes and edges of one type"
        )


def files(
    edges: Any,
    *,
    nodes: Any = None,
    features: Any = None,
    labels: Any = None,
    splits: Any = None,
    source_column: str | None = None,
    target_column: str | None = None,
    id_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    feature_columns: str | Sequence[str] | None = None,
    split_column: str | None = None,
    split_by: str | None = None,
    split_group: str | None = None,
    num_nodes: int | None = None,
    weight_column: str | None = None,
    edge_feature_columns: str | Sequence[str] | None = None,
    database: str | None = None,
) -> FileSource:
    """A graph in tables and files.

    edges: .parquet, .csv, .tsv, .jsonl (also .gz, .zst) or .arrow files (a path, a list, a folder, a glob, URLs); a
    pandas, polars or Arrow frame; a query: `"SELECT payer AS source, payee AS target FROM 'tx/*.parquet'"`; or `.npy`
    files [2, E]. None: no edges, for new nodes.
    nodes: a table in any of these forms, with one row per node. Its columns may be of any kind.
    features: a separate file of features: `.npy`, `.npz` (SciPy CSR), or a table in the order of the nodes.
    labels: a separate file of labels: `.npy`, or a table with or without ids.
    splits: a separate file of the split: `.npz` with train, valid and test, or a table with or without ids.
    source_column, target_column, id_column, split_column: column names. By default common names are recognised.
    label_column, feature_columns: one or several columns (a list, or a comma-separated text), globs allowed (`f*`).
    Without feature_columns, all other columns of the node table are features.
    split_by: a column of dates or numbers; the split goes from the oldest nodes (train) to the newest (test).
    split_group: a column; nodes with the same value are in the same part of the split.
    num_nodes: the number of nodes, if ids are 0 to N-1 and no table lists them.
    weight_column: the edge column with positive weights; for `.npy` edges, a `.npy` file of weights.
    edge_feature_columns: edge columns of any kind, as for feature_columns; for `.npy` edges, a `.npy` file [E, f].
    database: a DuckDB or SQLite file, or a `postgres://` address. Tables are then table names in it, or queries.
    """
    graph = FileSource(
        id_column, _names(label_column), _names(feature_columns), split_column, labels is None, splits is None, database
    )
    graph.add_edges(edges, source_column, target_column, weight_column, edge_feature_columns)
    graph.add_nodes(nodes, with_features=features is None)
    graph.add_features(features)
    graph.add_labels(labels)
    graph.add_splits(splits)
    graph.add_split_columns(split_by, split_group)
    if graph.split_columns and (splits is not None or split_column is not None):
        raise InputError("a split is given: leave out split_by and split_group, or the split")
    graph.num_nodes = _checked_count(num_nodes)
    graph.set_identity([
        source_column, target_column, id_column, label_column, feature_columns, split_column, split_by, split_group,
        num_nodes, weight_column, edge_feature_columns,
    ])  # fmt: skip
    return graph


@dataclass(frozen=True)
class _EdgeRoles:
    """The columns of an edge table, or edges in arrays."""

    arrays: ArrayEdges | None = None
    table: Table | None = None
    source: str = ""
    target: str = ""
    weight: str | None = None
    features: tuple[str, ...] = ()

    def opened(self, scratch: Path, config: IngestConfig, memory: int, threads: int, in_parts: bool) -> Edges:
        if self.table is None:
            return self.arrays or ArrayEdges([])
        table, last = self.table, config.parallel_edges == "last"
        columns = [self.source, self.target, *([self.weight] if self.weight else []), *self.features]
        if self.features or last or not (table.is_local_parquet or (in_parts and table.is_in_files)):
            table.stage(scratch / "edges.parquet", columns, (), memory, threads)
            if last:
                table.keep_last([self.source, self.target])
        else:
            table.limit(memory, threads)
        fitted = None
        if self.features:
            fitted = fit_columns(table, self.features, column_options(config, self.features), None)
        return TableEdges(table, self.source, self.target, self.weight, fitted)


class FileSource:
    """A graph in tables and files. Each column gets a role; only headers are read."""

    def __init__(
        self, id: str | None, label: list[str], feature_columns: list[str], split: str | None,
        labels_in_nodes: bool, split_in_nodes: bool, database: str | None,
    ) -> None:  # fmt: skip
        self._id, self._label, self._feature_columns, self._split = id, label, feature_columns, split
        self._labels_in_nodes, self._split_in_nodes = labels_in_nodes, split_in_nodes
        self._database = database
        self._tables: dict[str, Table] = {}
        self._keys: dict[str, list[str]] = {}
        self._inputs: dict[str, list[str]] = {}
        """Columns to copy from each table: keys (ids, labels, split) and inputs of features."""
        self._paths: list[Any] = []
        self.features: Features | None = None
        self.labels: Callable[[Sequence[str]], Labels] | None = None
        self.splits: Callable[[], Splits] | None = None
        self.node_ids: IdColumn | None = None
        self.split_columns: dict[str, str] = {}
        self.label_columns: list[str] = []
        self.id_column: str | None = None
        self.split_column: str | None = None
        self.edges = _EdgeRoles()
        self.num_nodes: int | None = None
        self.identity: str | None = None
        """A fingerprint of the files (path, size, modification time) and of the columns that are read."""
        self.notes: list[str] = []
        """One line per automatic choice, such as the columns used."""

    def opened(self, scratch: Path, config: IngestConfig, memory: int, threads: int, in_parts: bool = False) -> Source:
        """The source, ready to read. Tables are copied once into the folder `scratch`, as Parquet. Edges in local
        Parquet files are read in place; with `in_parts`, all edge files are, because workers read parts of them."""
        markers, edges = config.missing_markers, self.edges
        for name, table in self._tables.items():
            table.stage(scratch / f"{name}.parquet", self._keys[name], self._inputs.get(name, ()), memory, threads)
        return Source(
            name="",
            edges=edges.opened(scratch, config, memory, threads, in_parts),
            features=self.features,
            labels=None if self.labels is None else self.labels(markers),
            splits=None if self.splits is None else self.splits(),
            node_ids=self.node_ids,
            num_nodes=self.num_nodes,
            notes=tuple(self.notes),
            identity=self.identity,
            split_columns={role: self._split_values(role, name, markers) for role, name in self.split_columns.items()},
            column_names={
                "id": self.id_column, "label": self.label_columns, "split": self.split_column, "source": edges.source,
                "target": edges.target, "weight": edges.weight,
            },
        )  # fmt: skip

    def set_identity(self, choices: list[Any]) -> None:
        """Set the identity; None if changes of an input cannot be detected."""
        versions = [_versions_of(path) for path in self._paths]
        self.identity = None if None in versions else fingerprint([versions, [str(choice) for choice in choices]])

    def _open(self, what: Any, name: str) -> Table:
        table = Table(what, self._database)
        self._paths.append(table)
        self._tables[name], self._keys[name] = table, []
        return table

    def add_edges(
        self, what: Any, source: str | None, target: str | None, weight: str | None,
        features: str | Sequence[str] | None,
    ) -> None:  # fmt: skip
        if what is None:
            return
        if not is_table(what, self._database):
            edge_files = [str(file) for file in expand(what)]
            for extra, role in ((weight, "weights as a .npy file with a number per edge"),
                                (features, "edge features as a .npy file [E, f]")):  # fmt: skip
                if extra is not None and not _is_npy(extra):
                    raise InputError(f"{edge_files[0]} has no columns: give {role}")
            self._paths += [*edge_files, *(extra for extra in (weight, features) if extra is not None)]
            feature_file = None if features is None else str(features)
            self.edges = _EdgeRoles(arrays=ArrayEdges.in_files(edge_files, weight, feature_file))
            return
        table = Table(what, self._database)
        self._paths.append(table)
        if len(table.columns) < 2:
            raise InputError(f"{table.where} has {len(table.columns)} column, edges need two: source and target")
        first = table.column(source, "source") if source else table.guess(_SOURCE_NAMES)
        second = table.column(target, "target") if target else table.guess(_TARGET_NAMES)
        if first is None:
            first = next(name for name in table.columns if name != second)
        if second is None:
            second = next(name for name in table.columns if name != first)
        if first == second:
            raise InputError(f"{table.where}: source and target are both column {first!r}; name two columns")
        self.notes.append(f"{table.where}: edges go from column {first!r} to column {second!r}")
        if weight is not None and table.column(weight, "weights") in (first, second):
            raise InputError(f"{table.where}: column {weight!r} names nodes, so it cannot be the weights")
        chosen: list[str] = []
        if features is not None:
            taken = (first, second, weight)
            chosen = [name for name in table.matching(_names(features), "edge features") if name not in taken]
            if not chosen:
                raise InputError(f"{table.where}: no column is left over to be a feature of edges")
        unused = [name for name in table.columns if name not in (first, second, weight, *chosen)]
        if unused:
            self.notes.append(
                f"{table.where}: {listed(unused, 6)}: not used, as neither weight_column nor edge_feature_columns "
                "names them"
            )
        self.edges = _EdgeRoles(None, table, first, second, weight, tuple(chosen))

    def add_nodes(self, what: Any, with_features: bool = True, name: str = "nodes") -> None:
        """Add the node table: ids, and label, split and feature columns if it has them.

        Labels, splits or features in separate files are not read from this table. A label column is never a feature.
        """
        if what is None:
            return
        table = self._open(what, name)
        id_column = self._id_column(table) or table.columns[0]
        label_columns = self._label_columns(table, required=self._labels_in_nodes)
        split_column = self._split_column(table, required=self._split_in_nodes)
        self.node_ids, self.id_column = TableIds(table, id_column), id_column
        self._keys[name].append(id_column)
        self.notes.append(f"{table.where}: ids are column {id_column!r}")
        if label_columns and self._labels_in_nodes:
            self._set_labels(table, name, label_columns, None)
        if split_column and self._split_in_nodes:
            self._set_split(table, name, split_column, None)
        taken = [id_column, *label_columns, *([split_column] if split_column else [])]
        if with_features:
            self._set_features(table, name, taken)

    def add_features(self, what: Any) -> None:
        if what is None:
            return
        if not is_table(what, self._database):
            kind = file_kind(what)
            self._paths.append(what)
            if self._feature_columns:
                raise InputError(f"{what} has no named columns: leave feature_columns away, or give a table")
            with reading(what):
                if kind == ".npz":
                    check_npz(what)
                matrix = load_npy(what) if kind == ".npy" else checked_sparse(scipy.sparse.load_npz(what))
            self.features = MatrixFeatures(matrix, str(what))
            return
        if self.node_ids is None and self._id_column(Table(what, self._database)):
            self.add_nodes(what, name="features")  # a table with ids is a node table
            return
        table = self._open(what, "features")
        id_column = self._id_column(table)
        if id_column:
            ids = TableIds(table, id_column)
            if not (self.node_ids and same_ids(ids, self.node_ids)):
                raise InputError(
                    f"{table.where}: its ids are not those of the node table in the same order; "
                    "put the features into the node table, or sort both alike"
                )
        self._set_features(table, "features", [id_column] if id_column else [])
        if self.features is None:
            raise InputError(f"{table.where} has no column left over; its columns are: {', '.join(table.columns)}")

    def add_labels(self, what: Any) -> None:
        if what is None:
            return
        if not is_table(what, self._database):
            self._paths.append(what)
            array_labels = _array_labels(load_npy(what), str(what))
            self.labels = lambda _: array_labels
            return
        table = self._open(what, "labels")
        if len(table.columns) == 1:
            columns = [table.column(self._label[0], "label") if self._label else table.columns[0]]
            self._set_labels(table, "labels", columns, None)
            return
        id_column = self._id_column(table)
        columns = self._label_columns(table)
        if not columns and id_column is None and len(table.columns) > 2:
            raise InputError(f"{table.where}: which column is the label? its columns are: {', '.join(table.columns)}")
        if id_column is None and not columns:
            id_column = table.columns[0]
        columns = columns or [name for name in table.columns if name != id_column][:1]
        order = f"by {id_column!r}" if id_column else "in row order"
        self.notes.append(f"{table.where}: labels are {', '.join(columns)}, {order}")
        self._set_labels(table, "labels", columns, id_column)

    def add_splits(self, what: Any) -> None:
        if what is None:
            return
        if not is_table(what, self._database):
            self._paths.append(what)
            npz = Splits(str(what), npz_splits(what, self._split))
            self.splits = lambda: npz
            return
        table = self._open(what, "splits")
        split_column = self._split_column(table)
        if len(table.columns) == 1:
            self._set_split(table, "splits", split_column or table.columns[0], None)
            return
        id_column = self._id_column(table) or next(name for name in table.columns if name != split_column)
        split_column = split_column or next(name for name in table.columns if name != id_column)
        self._set_split(table, "splits", split_column, id_column)

    def add_split_columns(self, by: str | None, group: str | None) -> None:
        """Add node columns that define the split: a time column or a group column."""
        if by is not None and group is not None:
            raise InputError("a split is made by time or by group: name one of split_by and split_group")
        for role, name in (("time", by), ("group", group)):
            if name is None:
                continue
            if "nodes" not in self._tables:
                raise InputError(f"a split by column {name!r} needs a node table: give one")
            self.split_columns[role] = self._tables["nodes"].column(name, "split")
            self._keys["nodes"].append(name)

    def _split_values(self, role: str, name: str, markers: Sequence[str]) -> Array:
        """[N]: the time of each node, or its group number."""
        table = self._tables["nodes"]
        cells = Cells(table.read([name])[name], pa.array(["", *markers], pa.large_string()))
        if role == "group":
            groups = cells.text.dictionary_encode()
            codes = groups.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return np.where(
                codes < 0, len(groups.dictionary) + np.arange(len(codes)), codes
            )  # each missing value is a group
        for numbers, is_valid in (cells.numbers, cells.dates):
            if np.array_equal(is_valid, cells.filled):
                return np.where(is_valid, numbers, np.nan)
        raise InputError(f"{table.where}: column {name!r} is neither dates nor numbers, so nodes have no order by it")

    # roles of columns

    def _set_labels(self, table: Table, name: str, columns: list[str], id_column: str | None) -> None:
        self._keys[name] += [*columns, *([id_column] if id_column else [])]
        self.label_columns = columns
        self.labels = lambda markers: _table_labels(table, columns, id_column, markers)

    def _set_split(self, table: Table, name: str, column: str, id_column: str | None) -> None:
        self._keys[name] += [column, *([id_column] if id_column else [])]
        self.split_column = column

        def read() -> Splits:
            codes = split_codes(table.read([column])[column], f"{table.where}: column {column!r}")
            return Splits(table.where, codes=codes, ids=_read_ids(table, id_column))

        self.splits = read

    def _set_features(self, table: Table, name: str, taken: list[str]) -> None:
        names = self._feature_columns
        chosen = table.matching(names, "features") if names else table.columns
        chosen = [column for column in chosen if column not in taken]
        self.notes.append(f"{table.where}: features are {listed(chosen, 6) or 'none'}")
        self._inputs[name] = chosen
        if chosen:
            self.features = TableFeatures(table, tuple(chosen))

    def _id_column(self, table: Table) -> str | None:
        """The id column that the user named, if this table has it, else a column with a common name."""
        if self._id is not None:
            if self._id in table.columns:
                return self._id
            if self.node_ids is None:  # the first table with ids must have the named column
                return table.column(self._id, "ids")
        return table.guess(_ID_NAMES)

    def _label_columns(self, table: Table, required: bool = True) -> list[str]:
        """The label columns that the user named, or one with a common name. Names may be missing unless `required`."""
        if self._label and required:
            return table.matching(self._label, "label")
        guess = table.guess(_LABEL_NAMES, self._feature_columns)
        return [name for name in self._label if name in table.columns] or ([guess] if guess else [])

    def _split_column(self, table: Table, required: bool = True) -> str | None:
        if self._split is not None and required:
            return table.column(self._split, "split")
        return table.guess(_SPLIT_NAMES, self._feature_columns)


def column_options(config: IngestConfig, names: Sequence[str] = ()) -> ColumnOptions:
    """Options for encoding columns; with `names`, only the kinds of these columns are kept."""
    kinds: dict[str, str] = {}
    for entry in config.column_kinds:
        name, _, kind = entry.rpartition("=")
        if not name:
            raise ConfigError(f"kind {entry!r}: write COLUMN=KIND, for example city=category")
        kinds[name.strip()] = kind.strip()
    kinds = {name: kind for name, kind in kinds.items() if not names or name in names}
    missing: Any = "refuse" if config.missing_values == "refuse" else "mean"
    return ColumnOptions(
        kinds=kinds, missing_values=missing, missing_markers=("", *config.missing_markers),
        text_model=config.text_model or None,
    )  # fmt: skip


def _versions_of(path: Any) -> Any:
    """The current versions of the files of a table or path; None if changes cannot be detected."""
    if isinstance(path, Table):
        return path.identity
    return [facts_of(file) for file in expand(path)]


def _read_ids(table: Table, column: str | None) -> Ids | None:
    return None if column is None else join_ids(list(TableIds(table, column).chunks()))


def _array_labels(array: Array, where: str) -> Labels:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2:
        if array.dtype.kind not in "fiub":
            raise InputError(f"{where} holds {array.dtype}, several labels per node must be 0 or 1")
        return Labels(np.array(array, dtype=np.float32), where)
    if array.ndim != 1:
        raise InputError(f"{where} has shape {list(array.shape)}, labels are [N] or [N, c]")
    return Labels(as_arrow(array, where), where)


def _table_labels(table: Table, columns: list[str], id_column: str | None, markers: Sequence[str]) -> Labels:
    values = table.read(columns)
    ids = _read_ids(table, id_column)
    if len(columns) == 1 and not table.is_list(columns[0]):
        typed = from_text(values[columns[0]], markers)
        return Labels(typed, f"{table.where}: label column {columns[0]!r}", None, ids)
    where = f"{table.where}: label columns {', '.join(columns)}"
    matrix = np.hstack([_label_block(from_text(values[name], markers), f"{where}: {name!r}") for name in columns])
    return Labels(matrix, where, columns if len(columns) == matrix.shape[1] else None, ids)


def _label_block(values: Any, where: str) -> Array:
    """float32 [n, c] from a column of numbers or of vectors of equal length; missing labels are NaN."""
    is_list = hasattr(values.type, "value_type") and not pa.types.is_dictionary(values.type)
    try:
        flat = (values.flatten() if is_list else values).cast(pa.float32(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{where} is {values.type}, several labels per node must each be 0, 1 or missing") from None
    rows = max(1, len(values))
    if (values.null_count and is_list) or len(flat) % rows:
        raise InputError(f"{where} holds vectors of different lengths")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(values), -1)


def as_numpy(value: Any) -> Array:
    """NumPy view of an array-like; a torch tensor is moved to the CPU first."""
    for step in ("detach", "cpu"):
        if hasattr(value, step):
            value = getattr(value, step)()
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot be read as an array: {first_line(error)}") from None


def _checked_count(num_nodes: int | None) -> int | None:
    if num_nodes is not None and int(num_nodes) < 1:
        raise InputError(f"num_nodes is {num_nodes}: a graph needs at least one node")
    return None if num_nodes is None else int(num_nodes)


def _is_npy(name: str | Sequence[str]) -> bool:
    """Whether `name` is a file name rather than column names."""
    return isinstance(name, str) and name.endswith(".npy")


def _names(text: str | Sequence[str] | None) -> list[str]:
    """The names in a list or a comma-separated text."""
    parts = text.split(",") if isinstance(text, str) else list(text or ())
    return [part.strip() for part in parts if part.strip()]
