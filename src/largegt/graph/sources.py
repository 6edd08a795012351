"""Sources: every kind of input as one `Source` that `ingest` reads in chunks.

Enters: arrays, files, or a PyG `Data`. Leaves: a `Source` (see parts.py). Cost: opening reads labels and splits
(O(N)) and leaves edges, ids and features on disk until `ingest` streams them; rows of a CSV are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse

from ..errors import InputError, first_line
from ..io.checksums import fingerprint
from ..types import Array, PathLike
from .claims import check_npz, checked_sparse
from .edge_features import ArrayEdgeFeatures, EdgeFeatures, TableEdgeFeatures
from .files import expand, facts_of, file_kind
from .ids import Ids, native
from .parts import (
    DEFAULT_NAME,
    ArrayEdges,
    ArrayIds,
    Edges,
    Features,
    IdColumn,
    Labels,
    ManyEdges,
    MatrixFeatures,
    NpyEdges,
    Source,
    Splits,
    TableEdges,
    TableFeatures,
    TableIds,
    same_ids,
)
from .splits import npz_splits, split_codes
from .tables import Table, float_block, is_table, load_npy, reading
from .weights import WeightedEdges

__all__ = ["Source", "arrays", "files", "pyg"]

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
    name: str = DEFAULT_NAME,
    weights: Any = None,
    edge_features: Any = None,
) -> Source:
    """A graph in memory. `edge_index` is [2, E] or [E, 2] (2×2 is read as [2, E]), NumPy or torch.

    Without `node_ids` the numbers in `edge_index` are rows of `features` and `labels`. `splits` maps train,
    valid and test to node numbers (rows) or boolean masks. `weights` [E] are positive numbers, one for each edge;
    `edge_features` [E, f] any numbers, a row for each edge.
    """
    edges: Edges = ArrayEdges(as_numpy(edge_index), "edge_index")
    of_edges = None if edge_features is None else ArrayEdgeFeatures(edges, as_numpy(edge_features), "edge_features")
    if weights is not None:
        edges = WeightedEdges(edges, as_numpy(weights), "weights")
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
        edge_features=of_edges,
    )


def pyg(
    data: Any,
    name: str = DEFAULT_NAME,
    split_index: int = 0,
    edge_weights: bool = True,
    edge_features: bool = True,
) -> Source:
    """A PyG `Data` object (or anything with its attributes). Of masks [N, s], one column is taken. `edge_weight` and
    `edge_attr`, where it has them, are the weights and the features of its edges, unless told to leave them."""
    if getattr(data, "edge_index", None) is None:
        found = [key for key in ("adj_t", "adj") if getattr(data, key, None) is not None]
        raise InputError(
            f"the {type(data).__name__} object has no edge_index"
            + (f" (it has {found[0]}: convert it to edge_index first)" if found else "")
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


def files(
    edges: PathLike | Sequence[PathLike] | None,
    *,
    nodes: PathLike | None = None,
    features: PathLike | None = None,
    labels: PathLike | None = None,
    splits: PathLike | None = None,
    source: str | None = None,
    target: str | None = None,
    id: str | None = None,
    label: str | None = None,
    feature_columns: str | Sequence[str] | None = None,
    split: str | None = None,
    num_nodes: int | None = None,
    weight: str | None = None,
    edge_features: str | Sequence[str] | None = None,
) -> Source:
    """A graph in files.

    edges: .parquet, .csv, .tsv (each plain or .gz), .npy; a folder of such tables, a glob (`edges/part-*.csv`), or a
    list of files. Tables may lie at URLs: `s3://bucket/edges/*.parquet`, `https://host/edges.csv.gz`. None: no edges,
    where nodes come to a store that is there.
    nodes: a table, a row per node: an id, features (numeric columns, columns of vectors), label(s), a split.
    features: .npy [N, d], .npz (SciPy sparse), or a table whose numeric columns are features, in node order.
    labels: .npy, or a table: one column is in node order, with an id column it is by id.
    splits: .npz with train, valid and test (or sets `NAME_train`, …: choose one with split=NAME, and one of
    several masks with split=NAME:3), or a table of ids and splits.
    source, target, id, label, feature_columns, split: column names; label and feature_columns may be comma
    lists, feature_columns may hold globs (`f*`). Without them the usual names are looked for.
    weight: the edge column with the weights, positive numbers; for edges in .npy files, a .npy file with a number per
    edge. Without it edges have none.
    edge_features: edge columns of numbers or vectors, a comma list with globs; for edges in .npy files, a .npy file
    [E, f].
    """
    reader = _Files(
        id, _names(label), _names(feature_columns), split, own_labels=labels is None, own_split=splits is None
    )
    paths = [edges, nodes, features, labels, splits]
    choices = [source, target, id, label, feature_columns, split, num_nodes]
    for extra in (weight, edge_features):
        if extra is not None:
            paths, choices = [*paths, extra if _is_npy(extra) else None], [*choices, extra]
    identity = _identity_of(paths, choices)
    edge_stream = ManyEdges([]) if edges is None else reader.edges(edges, source, target, weight)
    of_edges = None if edge_features is None else reader.edge_features(edge_stream, edge_features)
    reader.take_nodes(nodes, own_features=features is None)
    reader.take_features(features)
    reader.take_labels(labels)
    reader.take_splits(splits)
    return Source(
        name="",
        edges=edge_stream,
        features=reader.features,
        labels=reader.labels,
        splits=reader.splits,
        node_ids=reader.node_ids,
        num_nodes=_checked_count(num_nodes),
        notes=tuple(reader.notes),
        identity=identity,
        edge_features=of_edges,
    )


def _identity_of(paths: Sequence[Any], choices: Sequence[Any]) -> str:
    """Names these files as they are now (path, size, time of change) and what is read of them."""
    found = []
    for path in paths:
        for file in expand(path) if path is not None else ():
            file_kind(file)
            found.append(facts_of(file))
        found.append([])
    return fingerprint([found, [str(choice) for choice in choices]])


class _Files:
    """Opens the files of one graph, one after the other, and remembers what it found."""

    def __init__(
        self,
        id: str | None,
        label: list[str],
        feature_columns: list[str],
        split: str | None,
        own_labels: bool,
        own_split: bool,
    ) -> None:
        self._id, self._label, self._feature_columns, self._split = id, label, feature_columns, split
        self._own_labels, self._own_split = own_labels, own_split  # whether the node table is to have them
        self.features: Features | None = None
        self.labels: Labels | None = None
        self.splits: Splits | None = None
        self.node_ids: IdColumn | None = None
        self.notes: list[str] = []

    def edges(
        self, paths: PathLike | Sequence[PathLike], source: str | None, target: str | None, weight: str | None = None
    ) -> Edges:
        found = expand(paths)
        if all(file_kind(file) == ".npy" for file in found):
            stream = ManyEdges([NpyEdges(str(file)) for file in found])
            if weight is None:
                return stream
            if not _is_npy(weight):
                raise InputError(f"{stream.where} has no columns: give weights as a .npy file with a number per edge")
            return WeightedEdges(stream, load_npy(weight), weight, file=weight)
        table = Table(found)
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
        return TableEdges(table, first, second, weight=weight)

    def edge_features(self, edges: Edges, wanted: str | Sequence[str]) -> EdgeFeatures:
        """The features of edges: columns of their table, or a .npy file beside theirs."""
        if isinstance(edges, TableEdges):
            columns = edges.feature_columns(_names(wanted))
            self.notes.append(f"{edges.where}: features of edges are {', '.join(columns)}")
            return TableEdgeFeatures(edges, columns)
        if not _is_npy(wanted):
            raise InputError(f"{edges.where} has no columns: give edge features as a .npy file [E, f]")
        return ArrayEdgeFeatures(edges, load_npy(str(wanted)), str(wanted))

    def take_nodes(self, path: PathLike | None, own_features: bool = True) -> None:
        """The node table: ids, label columns, a split column and feature columns, each where there is one.

        What has a file of its own is not read here, and a label column is never taken for a feature.
        """
        if path is None:
            return
        table = Table(path)
        id_column = self._id_column(table) or table.columns[0]
        label_columns = self._label_columns(table, named=self._own_labels)
        split_column = self._split_column(table, named=self._own_split)
        self.node_ids = TableIds(table, id_column)
        wanted = [*(label_columns if self._own_labels else []), *([split_column] if self._own_split else [])]
        columns = list(dict.fromkeys(name for name in wanted if name is not None))
        values = table.read(columns) if columns else {}
        self.notes.append(f"{table.where}: ids are column {id_column!r}")
        if label_columns and self._own_labels:
            self.labels = _table_labels(table, values, label_columns, None)
        if split_column and self._own_split:
            self.splits = Splits(
                table.where,
                codes=split_codes(values[split_column], f"{table.where}: column {split_column!r}"),
            )
        taken = [id_column, *label_columns, *([split_column] if split_column else [])]
        chosen = self._chosen_features(table, taken) if own_features else []
        if chosen:
            self.features = TableFeatures(table, chosen)

    def take_features(self, path: PathLike | None) -> None:
        if path is None:
            return
        kind = file_kind(path)
        if self._feature_columns and kind in (".npy", ".npz"):
            raise InputError(f"{path} has no named columns: leave feature_columns away, or give a table")
        if kind == ".npy":
            self.features = MatrixFeatures(load_npy(path), str(path))
        elif kind == ".npz":
            with reading(path):
                check_npz(path)
                self.features = MatrixFeatures(checked_sparse(scipy.sparse.load_npz(path)), str(path))
        elif self.node_ids is None and self._id_column(Table(path)):
            self.take_nodes(path)  # a table with ids is a node table, whatever it was called
        else:
            table = Table(path)
            id_column = self._id_column(table)
            if id_column and not (self.node_ids and same_ids(TableIds(table, id_column), self.node_ids)):
                raise InputError(
                    f"{table.where}: its ids are not those of the node table in the same order; "
                    "put the features into the node table, or sort both alike"
                )
            chosen = self._chosen_features(table, [id_column] if id_column else [])
            if not chosen:
                raise InputError(f"{table.where} has no numeric column; its columns are: {', '.join(table.columns)}")
            self.features = TableFeatures(table, chosen)

    def take_labels(self, path: PathLike | None) -> None:
        if path is None:
            return
        if not is_table(path):
            self.labels = _array_labels(load_npy(path), str(path))
            return
        table = Table(path)
        if len(table.columns) == 1:
            columns = [table.column(self._label[0], "label") if self._label else table.columns[0]]
            self.labels = _table_labels(table, table.read(columns), columns, None)
            return
        id_column = self._id_column(table)
        columns = self._label_columns(table)
        if not columns and id_column is None and len(table.columns) > 2:
            raise InputError(f"{table.where}: which column is the label? its columns are: {', '.join(table.columns)}")
        if id_column is None and not columns:
            id_column = table.columns[0]
        columns = columns or [name for name in table.columns if name != id_column][:1]
        own = [id_column] if id_column else []
        values = table.read(list(dict.fromkeys([*own, *columns])), ids=own)
        ids = table.ids(id_column, values[id_column]) if id_column else None
        order = f"by {id_column!r}" if id_column else "in row order"
        self.notes.append(f"{table.where}: labels are {', '.join(columns)}, {order}")
        self.labels = _table_labels(table, values, columns, ids)

    def take_splits(self, path: PathLike | None) -> None:
        if path is None:
            return
        if file_kind(path) == ".npz":
            self.splits = Splits(str(path), npz_splits(path, self._split))
            return
        table = Table(path)
        split_column = self._split_column(table)
        if len(table.columns) == 1:
            split_column = split_column or table.columns[0]
            values = table.read([split_column])
            codes = split_codes(values[split_column], f"{table.where}: column {split_column!r}")
            self.splits = Splits(table.where, codes=codes)
            return
        id_column = self._id_column(table) or next(name for name in table.columns if name != split_column)
        split_column = split_column or next(name for name in table.columns if name != id_column)
        values = table.read([id_column, split_column], ids=[id_column])
        self.splits = Splits(
            table.where,
            codes=split_codes(values[split_column], f"{table.where}: column {split_column!r}"),
            ids=table.ids(id_column, values[id_column]),
        )

    def _id_column(self, table: Table) -> str | None:
        """The id column named by the user, where this table has it, or one with a usual name."""
        if self._id is not None:
            if self._id in table.columns:
                return self._id
            if self.node_ids is None:  # the first table with ids is the one that was meant
                return table.column(self._id, "ids")
        return table.guess(_ID_NAMES)

    def _label_columns(self, table: Table, named: bool = True) -> list[str]:
        """The label columns the user named, or one with a usual name; unless `named`, names may lack."""
        if self._label and named:
            return table.matching(self._label, "label")
        guess = table.guess(_LABEL_NAMES, self._feature_columns)
        return [name for name in self._label if name in table.columns] or ([guess] if guess else [])

    def _split_column(self, table: Table, named: bool = True) -> str | None:
        if self._split is not None and named:
            return table.column(self._split, "split")
        return table.guess(_SPLIT_NAMES, self._feature_columns)

    def _chosen_features(self, table: Table, taken: list[str]) -> list[str]:
        if self._feature_columns:
            chosen = table.matching(self._feature_columns, "features")
        else:
            chosen = [name for name in table.columns if table.is_numeric(name) or table.is_list(name)]
        chosen = [name for name in chosen if name not in taken]
        shown = ", ".join(chosen[:6]) + (f", … ({len(chosen)} columns)" if len(chosen) > 6 else "")
        self.notes.append(f"{table.where}: features are {shown or 'none'}")
        return chosen


def _array_labels(array: Array, where: str) -> Labels:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2:
        if array.dtype.kind not in "fiub":
            raise InputError(f"{where} holds {array.dtype}, several labels per node must be 0 or 1")
        return Labels(np.array(array, dtype=np.float32), where)
    if array.ndim != 1:
        raise InputError(f"{where} has shape {list(array.shape)}, labels are [N] or [N, c]")
    array = array.astype(str) if array.dtype.kind == "S" else native(array)
    try:
        values = pa.array(array.tolist() if array.dtype.kind == "U" else array, from_pandas=True)
        values.validate(full=True)  # NumPy's text may hold numbers that are no letters
    except (pa.ArrowException, ValueError, TypeError, OverflowError, SystemError) as error:
        raise InputError(f"{where}: labels must be all numbers or all text ({first_line(error)})") from None
    return Labels(values, where)


def _table_labels(table: Table, values: Mapping[str, Any], columns: list[str], ids: Ids | None) -> Labels:
    if len(columns) == 1 and not table.is_list(columns[0]):
        return Labels(values[columns[0]], f"{table.where}: label column {columns[0]!r}", None, ids)
    batch = pa.table({name: values[name] for name in columns}).combine_chunks().to_batches()
    if not batch:
        raise InputError(f"{table.where} has no rows")
    matrix = float_block(batch[0], columns, table.where)
    names = columns if len(columns) == matrix.shape[1] else None
    return Labels(matrix, f"{table.where}: label columns {', '.join(columns)}", names, ids)


def as_numpy(value: Any) -> Array:
    """NumPy view of an array-like; a torch tensor is brought to the CPU first."""
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
    """Whether this names a file rather than columns."""
    return isinstance(name, str) and name.endswith(".npy")


def _names(text: str | Sequence[str] | None) -> list[str]:
    """Names out of a comma list."""
    parts = text.split(",") if isinstance(text, str) else list(text or ())
    return [part.strip() for part in parts if part.strip()]
