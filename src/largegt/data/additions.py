"""Additions: new nodes and edges for an existing store.

Enters: a GraphStore and a `Source` of the additions, or their files. Leaves: node numbers of the ids (GrownIds),
features in the store's precision, labels and split of all nodes, and edges by node number. Cost: the new ids, and the
labels and split of all nodes in memory; features and edges are streamed.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from largegt.config.overrides import build
from largegt.config.schema import IngestConfig
from largegt.errors import InputError
from largegt.types import Array

from . import labels as label_encoding
from . import sources
from .columns import Columns
from .edge_reading import first_unknown, found_edges
from .ids import Ids, as_numbers, as_text, first_repeat, id_at, is_text, join_ids
from .ingest import stored_features
from .labels import Encoded
from .nodes import Means, NodeIds, stated_count
from .parts import Features, Source, TableFeatures
from .sources import FileSource, column_options
from .store import GraphStore
from .table_reading import Table, is_table, listed
from .versions import column_names, lineage_arrays

EDGE_ARRAYS = [f"{side}_{part}" for side in ("out", "in", "both") for part in ("indptr", "indices")]
ID_ARRAYS = ["node_ids", "node_id_offsets", "node_id_bytes"]


def ingest_config(store: GraphStore) -> IngestConfig:
    """The ingest configuration of a store, which also applies to additions."""
    return build(IngestConfig, store.folder.meta["config"])


def refuse_payload(store: GraphStore) -> None:
    """Refuse a store with edge weights or edge features, which additions do not support."""
    known = {"features", "labels", "split", *ID_ARRAYS, *EDGE_ARRAYS, *lineage_arrays(store)}
    if others := sorted(set(store.folder.manifest["arrays"]) - known):
        raise InputError(
            f"{store.place} has edges with weights or features ({others[0]}), to which nothing can be added: ingest "
            "everything again"
        )


def additions_in_files(
    store: GraphStore, nodes: Any = None, edges: Any = None, *, update: bool = False, feature_columns: Any = None,
    features: Any = None, **others: Any,
) -> FileSource:  # fmt: skip
    """New nodes and edges in files, read by `sources.files`. Column names default to those of the store's ingest. With
    `update`, a table may lack all feature columns."""
    by_id = [others.get("labels"), others.get("splits")] if update else []
    if all(what is None for what in (nodes, edges, features, *by_id)):
        raise InputError("nothing to add: name a table of nodes, edges, or both")
    remembered = column_names(store)
    database = others.get("database")
    for role, what in (("id", nodes), ("label", nodes), ("split", nodes), ("source", edges), ("target", edges)):
        name = remembered.get(role)
        if not others.get(f"{role}_column") and name and what is not None and is_table(what, database):
            columns = Table(what, database).columns
            present = [one for one in ([name] if isinstance(name, str) else name) if one in columns]
            if present:
                others[f"{role}_column"] = present if role == "label" else present[0]
    with_features = nodes if features is None else features
    fitted = store.columns
    if fitted is not None and not feature_columns and with_features is not None and is_table(with_features, database):
        table, required = Table(with_features, database), fitted.input_columns
        missing = [name for name in required if name not in table.columns]
        if not update or len(missing) < len(required):
            if update and missing:
                raise InputError(
                    f"{table.where} has no column {', '.join(map(repr, missing))}: features are updated from all their "
                    "columns, so add what is missing, or leave out the others"
                )
            for name in required:
                table.column(name, "features")
            feature_columns = [glob.escape(name) for name in required]
    return sources.files(edges, nodes=nodes, features=features, feature_columns=feature_columns, **others)


class GrownIds(NodeIds):
    """The nodes of a store followed by new nodes, by the user's ids. A known id is an error unless `update`; a repeated
    id is always an error."""

    def __init__(self, store: GraphStore, given: Ids, where: str, means: Means, update: bool = False) -> None:
        super().__init__(store.num_nodes, where, means, store.id_kind)
        self.num_old = num_old = store.num_nodes
        old = NodeIds(num_old, where, means, store.id_kind)
        old.known = self.known = [] if store.own_ids is None else [store.own_ids]
        given = _convert_ids(store, given, where)
        self.given = NodeIds(len(given), where, means, store.id_kind)
        self.given.known = [given]
        self.nodes = old.find(given)
        """Node number of each given node."""
        is_new = self.nodes < 0
        if not update and not is_new.all():
            raise InputError(
                f"{where}: node {id_at(given, int(np.argmin(is_new)))!r} is in {store.place} already: leave out nodes "
                "that are known (edges may name them), or update them with `lg.append(..., update=True)`"
            )
        self.new: Ids = given.filter(is_new) if is_text(given) else given[is_new]
        """Ids of the new nodes in the store's type: int64 or text."""
        self.num_nodes += len(self.new)
        self.nodes[is_new] = np.arange(num_old, self.num_nodes)
        are_rows = self.kind == "row" and np.array_equal(self.new, np.arange(num_old, self.num_nodes))
        if len(given) and not (are_rows and is_new.all()):
            repeat = first_repeat([given], is_text(given), means.memory, means.threads)
            if repeat is not None:
                raise InputError(f"{where}: id {repeat[1]!r} occurs twice: each node has one row")
        if self.kind == "row" and not are_rows:
            self.kind, self.known = "integer", [np.arange(num_old)]
        if self.kind != "row":
            self.known = [*self.known, self.new]


def _convert_ids(store: GraphStore, ids: Ids, where: str) -> Ids:
    """Ids in the store's type; an error if they cannot be converted."""
    if store.id_kind == "string":
        return as_text(ids)
    if not is_text(ids):
        return np.asarray(ids, dtype=np.int64)
    numbers, is_number = as_numbers(ids)
    if not is_number.all():
        text = id_at(ids, int(np.argmin(is_number)))
        raise InputError(f"{where}: id {text!r} is text, and the ids of {store.place} are whole numbers: give a number")
    return numbers


@dataclass(frozen=True)
class Additions:
    """New nodes and edges for a store; with `update`, new values of existing nodes."""

    store: GraphStore
    source: Source
    means: Means
    update: bool = False

    @cached_property
    def config(self) -> IngestConfig:
        return ingest_config(self.store)

    @cached_property
    def ids(self) -> GrownIds:
        store, named = self.store, self.source.node_ids
        if self.source.edges.is_weighted:
            raise InputError(f"{self.source.edges.where} has weights, and edges of {store.place} have none: leave them")
        if named is not None:
            return GrownIds(store, join_ids(list(named.chunks())), named.where, self.means, self.update)
        count, where = stated_count(self.source)
        if count and (self.update or store.id_kind != "row"):
            raise InputError(
                f"{where} has rows without ids, so nobody knows which nodes of {store.place} are meant: give a table "
                "with ids" if self.update else
                f"{where} has rows without ids, and the nodes of {store.place} have some: give a table"
            )  # fmt: skip
        numbers = np.arange(store.num_nodes, store.num_nodes + (count or 0))
        return GrownIds(store, numbers, where or self.source.edges.where, self.means)

    @property
    def num_new(self) -> int:
        return len(self.ids.new)

    @property
    def num_nodes(self) -> int:
        """Number of old and new nodes."""
        return self.ids.num_nodes

    # features

    @cached_property
    def features(self) -> Features | None:
        """The features of the given nodes in table order; None if they have none."""
        part, store = self.source.features, self.store
        if isinstance(part, TableFeatures):
            if store.columns is not None and not {*store.columns.input_columns} & {*part.chosen}:
                part = None
            else:
                part = replace(part, columns=store.columns or self._number_columns(part))
        if store.features_are_degrees:
            if part is not None and part.width:
                raise InputError(f"{part.where} has features, and {store.place} has none but degrees: leave them out")
            return None
        if part is None and self.num_new:
            raise InputError(f"{self.ids.where} has no features, and nodes of {store.place} have: {_needed(store)}")
        if part is not None and part.width != store.num_features and len(self.ids.nodes):
            raise InputError(
                f"{part.where} has {part.width} features, and {store.place} has {store.num_features}: {_needed(store)}"
            )
        return part

    def feature_blocks(self, skip: int = 0) -> Iterator[Array]:
        """Features of the given nodes in the stored precision, after the first `skip` rows; empty if they have none."""
        part, count = self.features, len(self.ids.nodes)
        if part is None:
            return
        means = self.store.folder.meta.get("feature_means")
        means = None if means is None else np.array(means, dtype=np.float32)
        done = skip
        for block in part.chunks(skip):
            if done + len(block) > count:
                raise InputError(f"{part.where} has more rows than there are new nodes ({count})")
            yield stored_features(block, done, part, self.config, self.ids.given, means)
            done += len(block)
        if done != count:
            raise InputError(f"{part.where} has {done} rows, but there are {count} new nodes")

    def _number_columns(self, part: TableFeatures) -> Columns:
        """Columns for a store whose features came from an array: unscaled numbers."""
        if self.store.features_are_degrees:
            return Columns([])
        kinds = {name: "vector" if part.table.is_list(name) else "number" for name in part.chosen}
        options = replace(column_options(self.config), kinds=kinds, missing_values="refuse")
        return part.fitted(options, None).columns

    # edges

    def edges(self) -> Iterator[tuple[Array, Array]]:
        """Chunks of (sources, targets) by node number; unknown ids are refused or dropped, as at ingest."""
        for found in found_edges(self.source.edges, self.ids):
            if found.dropped and self.config.unknown_ids != "drop":
                raise self.refused_edge()
            known = (found.sources >= 0) & (found.targets >= 0)
            yield found.sources[known], found.targets[known]

    def refused_edge(self) -> InputError:
        unknown = first_unknown(self.source.edges, self.ids)
        return InputError(
            f"{self.source.edges.where}: node id {unknown!r} is neither in {self.store.place} nor among the "
            f"{self.num_new} new nodes: add it to their table"
        )

    # labels and split

    def labels(self) -> Encoded:
        """The labels of all nodes, in the store's classes. An empty cell keeps the old label."""
        part, store = self.source.labels, self.store
        task, classes = store.task, store.classes
        values = np.concatenate([store.labels, label_encoding.unlabelled(self.num_new, task, classes).values])
        if part is not None:
            given = label_encoding.encode_as(part.values, part.names, task, classes, part.where).values
            nodes = self._nodes_of(part.ids, len(given), part.where)
            missing = given == -1 if given.dtype.kind == "i" else np.isnan(given)
            values[nodes] = np.where(missing, values[nodes], given)
        return label_encoding.counted(values, task, classes)

    def split(self, encoded: Encoded) -> Array:
        """uint8: the split of all nodes. An empty cell keeps the old split; new nodes with an empty cell and unlabelled
        nodes are in no split."""
        part = self.source.splits
        split = np.concatenate([self.store.split, np.zeros(self.num_new, dtype=np.uint8)])
        if part is not None:
            if part.codes is None:
                raise InputError(f"{part.where}: give the split of new nodes as a column of their table")
            nodes = self._nodes_of(part.ids, len(part.codes), part.where)
            split[nodes] = np.where(part.codes > 0, part.codes, split[nodes])
        split[~label_encoding.labelled(encoded.values, encoded.task)] = 0
        return split

    def _nodes_of(self, ids: Ids | None, count: int, where: str) -> Array:
        """The node numbers of `count` values: of these ids, or of the given nodes in order."""
        if ids is None:
            if count != len(self.ids.nodes):
                raise InputError(f"{where} has {count} rows for {len(self.ids.nodes)} new nodes")
            return self.ids.nodes
        nodes = self.ids.find(ids)
        first = 0 if self.update else self.ids.num_old
        if len(wrong := np.flatnonzero(nodes < first)):
            those = f"neither in {self.store.place} nor among" if self.update else "none of"
            raise InputError(f"{where}: {id_at(ids, int(wrong[0]))!r} is {those} the new nodes: leave it out")
        if len(np.unique(nodes)) < len(nodes):
            raise InputError(f"{where}: a node occurs twice")
        return nodes


def _needed(store: GraphStore) -> str:
    """The features that new nodes must have, for error messages."""
    if store.columns is None:
        return f"give {store.num_features} numbers for each node"
    return f"give the columns {listed(store.columns.input_columns, 8)}"
