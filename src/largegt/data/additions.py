"""Additions: nodes and edges that come to a store that is there.

Enters: a GraphStore and a `Source` of the new ones, or the files of one. Leaves: their ids by number (GrownIds), their
features in the store's precision, labels and split of all nodes, and edges by node number. Cost: the new ids, and the
labels and split of all nodes in memory; features and edges are streams.
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
    """How a store was ingested: so are additions to it."""
    return build(IngestConfig, store.folder.meta["config"])


def refuse_payload(store: GraphStore) -> None:
    """Refuse a store whose edges carry more than their ends, which additions do not have."""
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
    """New nodes and edges in files, as `sources.files` reads them. Columns are those that the store has come from, by
    name, unless others are named. With `update`, a table may lack all feature columns."""
    by_id = [others.get("labels"), others.get("splits")] if update else []
    if all(what is None for what in (nodes, edges, features, *by_id)):
        raise InputError("nothing to add: name a table of nodes, edges, or both")
    remembered = column_names(store)
    database = others.get("database")
    for role, what in (("id", nodes), ("label", nodes), ("split", nodes), ("source", edges), ("target", edges)):
        name = remembered.get(role)
        if not others.get(f"{role}_column") and name and what is not None and is_table(what, database):
            there = Table(what, database).columns
            known = [one for one in ([name] if isinstance(name, str) else name) if one in there]
            if known:
                others[f"{role}_column"] = known if role == "label" else known[0]
    with_features = nodes if features is None else features
    fitted = store.columns
    if fitted is not None and not feature_columns and with_features is not None and is_table(with_features, database):
        table, wanted = Table(with_features, database), fitted.input_columns
        missing = [name for name in wanted if name not in table.columns]
        if not update or len(missing) < len(wanted):
            if update and missing:
                raise InputError(
                    f"{table.where} has no column {', '.join(map(repr, missing))}: features are updated from all their "
                    "columns, so add what is missing, or leave out the others"
                )
            for name in wanted:
                table.column(name, "features")
            feature_columns = [glob.escape(name) for name in wanted]
    return sources.files(edges, nodes=nodes, features=features, feature_columns=feature_columns, **others)


class GrownIds(NodeIds):
    """The nodes of a store and new ones behind them, by the user's ids. An id that is in the store is refused unless
    `update`, and one that is given twice always."""

    def __init__(self, store: GraphStore, given: Ids, where: str, means: Means, update: bool = False) -> None:
        super().__init__(store.num_nodes, where, means, store.id_kind)
        self.num_old = num_old = store.num_nodes
        old = NodeIds(num_old, where, means, store.id_kind)
        old.known = self.known = [] if store.own_ids is None else [store.own_ids]
        given = _as_stored(store, given, where)
        self.given = NodeIds(len(given), where, means, store.id_kind)
        self.given.known = [given]
        self.nodes = old.find(given)
        """The number of each given node."""
        is_new = self.nodes < 0
        if not update and not is_new.all():
            raise InputError(
                f"{where}: node {id_at(given, int(np.argmin(is_new)))!r} is in {store.place} already: leave out nodes "
                "that are known (edges may name them), or update them with largegt append --update"
            )
        self.new: Ids = given.filter(is_new) if is_text(given) else given[is_new]
        """Ids of the new nodes, as the store has its own: int64 or text."""
        self.num_nodes += len(self.new)
        self.nodes[is_new] = np.arange(num_old, self.num_nodes)
        follows = self.kind == "row" and np.array_equal(self.new, np.arange(num_old, self.num_nodes))
        if len(given) and not (follows and is_new.all()):
            repeat = first_repeat([given], is_text(given), means.memory, means.threads)
            if repeat is not None:
                raise InputError(f"{where}: id {repeat[1]!r} occurs twice: each node has one row")
        if self.kind == "row" and not follows:
            self.kind, self.known = "integer", [np.arange(num_old)]
        if self.kind != "row":
            self.known = [*self.known, self.new]


def _as_stored(store: GraphStore, ids: Ids, where: str) -> Ids:
    """Ids in the store's kind; refused where they cannot be."""
    if store.id_kind == "string":
        return as_text(ids)
    if not is_text(ids):
        return np.asarray(ids, dtype=np.int64)
    numbers, meant = as_numbers(ids)
    if not meant.all():
        odd = id_at(ids, int(np.argmin(meant)))
        raise InputError(f"{where}: id {odd!r} is text, and the ids of {store.place} are whole numbers: give a number")
    return numbers


@dataclass(frozen=True)
class Additions:
    """What comes to a store: new nodes and edges; with `update`, other values of nodes that are there."""

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
        """Of the store and new."""
        return self.ids.num_nodes

    # features

    @cached_property
    def features(self) -> Features | None:
        """The features of the given nodes, in the order of their table; None where they have none."""
        part, store = self.source.features, self.store
        if isinstance(part, TableFeatures):
            if store.columns is not None and not {*store.columns.input_columns} & {*part.chosen}:
                part = None
            else:
                part = replace(part, columns=store.columns or self._as_numbers(part))
        if store.features_are_degrees:
            if part is not None and part.width:
                raise InputError(f"{part.where} has features, and {store.place} has none but degrees: leave them out")
            return None
        if part is None and self.num_new:
            raise InputError(f"{self.ids.where} has no features, and nodes of {store.place} have: {_wanted(store)}")
        if part is not None and part.width != store.num_features and len(self.ids.nodes):
            raise InputError(
                f"{part.where} has {part.width} features, and {store.place} has {store.num_features}: {_wanted(store)}"
            )
        return part

    def feature_blocks(self, skip: int = 0) -> Iterator[Array]:
        """Rows of the given nodes as the store stores them, from the `skip`-th on. None where they have none."""
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

    def _as_numbers(self, part: TableFeatures) -> Columns:
        """The columns of a table for a store whose features came from an array: numbers as they are."""
        if self.store.features_are_degrees:
            return Columns([])
        kinds = {name: "vector" if part.table.is_list(name) else "number" for name in part.chosen}
        options = replace(column_options(self.config), kinds=kinds, missing_values="refuse")
        return part.fitted(options, None).columns

    # edges

    def edges(self) -> Iterator[tuple[Array, Array]]:
        """(sources, targets) by node number, in pieces; ends that are no nodes are refused, or dropped as at ingest."""
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
        """The labels of all nodes, by the store's classes. An empty cell leaves the label that a node has."""
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
        """uint8: the split of all nodes. An empty cell leaves the one that a node has; new nodes without one, and nodes
        without a label, are in none."""
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
        """The numbers of the nodes that `count` values belong to: those of these ids, or the given nodes in order."""
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


def _wanted(store: GraphStore) -> str:
    """What features new nodes must have."""
    if store.columns is None:
        return f"give {store.num_features} numbers for each node"
    return f"give the columns {listed(store.columns.input_columns, 8)}"
