"""Additions: nodes and edges that come to a store that is there.

Enters: a GraphStore and a `Source` of the new ones, or the files of one. Leaves: their ids by number (GrownIds), their
features in the store's precision, their labels by the store's classes, and edges by node number. Cost: the new ids and
labels in memory; features and edges are streams.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..config import IngestConfig
from ..errors import InputError
from ..settings import build
from ..types import Array
from . import labels as label_encoding
from . import sources
from .columns import Columns
from .edge_reading import found_edges
from .ids import Ids, id_at, join_ids
from .ingest import stored_features
from .labels import Encoded
from .nodes import GrownIds, Means, stated_count
from .parts import Source, TableFeatures
from .sources import FileSource, column_options
from .store import GraphStore
from .tables import Table, is_table
from .versions import column_names

_ARRAYS = {
    *("features", "labels", "split", "node_ids", "node_id_offsets", "node_id_bytes"),
    *(f"{side}_{part}" for side in ("out", "in", "both") for part in ("indptr", "indices")),
}


def ingest_config(store: GraphStore) -> IngestConfig:
    """How a store was ingested: so are additions to it."""
    return build(IngestConfig, store.folder.meta["config"])


def refuse_payload(store: GraphStore) -> None:
    """Refuse a store whose edges carry more than their ends, which additions do not have."""
    others = sorted(set(store.folder.manifest["arrays"]) - _ARRAYS)
    if others := [name for name in others if not name.startswith("touched_")]:
        raise InputError(
            f"{store.place} has edges with weights or features ({others[0]}), to which nothing can be added: ingest "
            "everything again"
        )


def additions_in_files(
    store: GraphStore, nodes: Any = None, edges: Any = None, *, feature_columns: Any = None, features: Any = None,
    **others: Any,
) -> FileSource:  # fmt: skip
    """New nodes and edges in files, as `sources.files` reads them. Columns are those that the store has come from, by
    name, unless others are named."""
    if nodes is None and edges is None and features is None:
        raise InputError("nothing to add: name a table of nodes, edges, or both")
    remembered = column_names(store)
    database = others.get("database")
    for role, what in (("id", nodes), ("label", nodes), ("split", nodes), ("source", edges), ("target", edges)):
        name = remembered.get(role)
        if not others.get(role) and name and what is not None and is_table(what, database):
            there = Table(what, database).columns
            known = [one for one in ([name] if isinstance(name, str) else name) if one in there]
            if known:
                others[role] = known if role == "label" else known[0]
    with_features = nodes if features is None else features
    if not feature_columns and with_features is not None and is_table(with_features, database):
        fitted = store.columns
        feature_columns = None if fitted is None else [glob.escape(name) for name in fitted.input_columns]
        if fitted is not None:
            table = Table(with_features, database)
            for name in fitted.input_columns:
                table.column(name, "features")
    return sources.files(edges, nodes=nodes, features=features, feature_columns=feature_columns, **others)


@dataclass(frozen=True)
class Additions:
    """What comes to a store."""

    store: GraphStore
    source: Source
    means: Means

    @cached_property
    def config(self) -> IngestConfig:
        return ingest_config(self.store)

    @cached_property
    def ids(self) -> GrownIds:
        store, named = self.store, self.source.node_ids
        if self.source.edges.is_weighted:
            raise InputError(f"{self.source.edges.where} has weights, and edges of {store.place} have none: leave them")
        if named is not None:
            return GrownIds(store, join_ids(list(named.chunks())), named.where, self.means)
        count, where = stated_count(self.source)
        if count and store.id_kind != "row":
            raise InputError(f"{where} has rows without ids, and the nodes of {store.place} have some: give a table")
        numbers = np.arange(store.num_nodes, store.num_nodes + (count or 0))
        own = numbers if store.id_kind == "row" else numbers[:0]
        return GrownIds(store, own, where or self.source.edges.where, self.means)

    @property
    def num_new(self) -> int:
        return len(self.ids.new)

    @property
    def num_nodes(self) -> int:
        """Of the store and new."""
        return self.ids.num_nodes

    def feature_blocks(self, skip: int = 0) -> Iterator[Array]:
        """Rows of the new nodes as the store stores them, from the `skip`-th on. None where it has degrees instead."""
        part, store = self.source.features, self.store
        if isinstance(part, TableFeatures):
            part = replace(part, columns=store.columns or self._as_numbers(part))
        if store.features_are_degrees:
            if part is not None and part.width:
                raise InputError(f"{part.where} has features, and {store.place} has none but degrees: leave them out")
            return
        if part is None:
            if self.num_new:
                raise InputError(f"{self.ids.where} has no features, and nodes of {store.place} have: {_wanted(store)}")
            return
        if part.width != store.num_features and self.num_new:
            raise InputError(
                f"{part.where} has {part.width} features, and {store.place} has {store.num_features}: {_wanted(store)}"
            )
        means = store.folder.meta.get("feature_means")
        means = None if means is None else np.array(means, dtype=np.float32)
        done = skip
        for block in part.chunks(skip):
            done += len(block)
            if done > self.num_new:
                raise InputError(f"{part.where} has more rows than there are new nodes ({self.num_new})")
            first = self.ids.num_old + done - len(block)
            yield stored_features(block, first, part, self.config, self.ids, means)
        if done != self.num_new:
            raise InputError(f"{part.where} has {done} rows, but there are {self.num_new} new nodes")

    def _as_numbers(self, part: TableFeatures) -> Columns:
        """The columns of a table for a store whose features came from an array: numbers as they are."""
        if self.store.features_are_degrees:
            return Columns([])
        kinds = {name: "vector" if part.table.is_list(name) else "number" for name in part.chosen}
        options = replace(column_options(self.config), kinds=kinds, missing_values="refuse")
        return part.fitted(options, None).columns

    def edges(self, memory: int) -> Iterator[tuple[Array, Array]]:
        """(sources, targets) by node number, in pieces; ends that are no nodes are refused, or dropped as at ingest."""
        for found in found_edges(self.source.edges, self.ids, 0, memory):
            if found.dropped and self.config.unknown_ids != "drop":
                raise self.refused_edge(found.unknown)
            known = (found.sources >= 0) & (found.targets >= 0)
            yield found.sources[known], found.targets[known]

    def refused_edge(self, unknown: Any) -> InputError:
        return InputError(
            f"{self.source.edges.where}: node id {unknown!r} is neither in {self.store.place} nor among the "
            f"{self.num_new} new nodes: add it to their table"
        )

    def labels(self) -> Encoded:
        """Labels of the new nodes, by the store's classes."""
        part, store = self.source.labels, self.store
        if part is None:
            return label_encoding.unlabelled(self.num_new, store.task, store.classes)
        encoded = label_encoding.encode_as(part.values, part.names, store.task, store.classes, part.where)
        if part.ids is None:
            if len(encoded.values) != self.num_new:
                raise InputError(f"{part.where} has {len(encoded.values)} labels for {self.num_new} new nodes")
            return encoded
        rows = self._new_rows(part.ids, part.where)
        spread = label_encoding.scatter(encoded, rows, self.num_new)
        return Encoded(spread, encoded.task, encoded.classes, encoded.counts, encoded.num_labelled)

    def split(self, encoded: Encoded) -> Array:
        """uint8: the split of each new node; none where nobody says one, and for nodes without a label."""
        part = self.source.splits
        if part is None:
            return np.zeros(self.num_new, dtype=np.uint8)
        if part.codes is None:
            raise InputError(f"{part.where}: give the split of new nodes as a column of their table")
        codes = part.codes
        if part.ids is not None:
            codes = np.zeros(self.num_new, dtype=np.uint8)
            codes[self._new_rows(part.ids, part.where)] = part.codes
        if len(codes) != self.num_new:
            raise InputError(f"{part.where} has {len(codes)} rows for {self.num_new} new nodes")
        return np.where(label_encoding.labelled(encoded.values, encoded.task), codes, 0).astype(np.uint8)

    def _new_rows(self, ids: Ids, where: str) -> Array:
        """Which of the new nodes these ids are, each once."""
        rows = self.ids.find(ids) - self.ids.num_old
        if len(wrong := np.flatnonzero(rows < 0)):
            raise InputError(f"{where}: {id_at(ids, int(wrong[0]))!r} is none of the new nodes: leave it out")
        if len(np.unique(rows)) < len(rows):
            raise InputError(f"{where}: a node occurs twice")
        return rows


def _wanted(store: GraphStore) -> str:
    """What features new nodes must have."""
    names = store.folder.meta.get("feature_names")
    if not names or store.folder.meta.get("features_from") != "columns":
        return f"give {store.num_features} numbers for each node"
    return "give the columns " + ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")
