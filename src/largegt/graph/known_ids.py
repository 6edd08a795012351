"""Ids of a store that is there, and of nodes that come behind it.

Enters: a GraphStore and the ids of new nodes. Leaves: node numbers of any of them: 0..N-1 as in the store, N and on for
the new ones in their order. Cost: the new ids, and what is looked up; the store's own ids are gone through once per
lookup, mapped, so ask for many at a time. Nothing of the store is sorted or copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from ..types import Array
from .ids import Ids, as_numbers, as_text, id_at, is_text, join_ids
from .nodes import NodeIds
from .store import GraphStore

_CHUNK_ROWS = 1 << 20


class KnownIds(NodeIds):
    """The nodes of a store and new ones behind them, by the user's ids. Ids that are there already, or twice among the
    new ones, are refused."""

    def __init__(self, store: GraphStore, new: Ids, where: str) -> None:
        super().__init__(store.num_nodes + len(new), where)
        self.store, self.num_old = store, store.num_nodes
        self.new = new = self._alike(new)
        """Ids of the new nodes, as the store has its own: int64 or text."""
        follows = store.id_kind == "row" and np.array_equal(new, np.arange(self.num_old, self.num_nodes))
        self.kind = "row" if follows else "string" if store.id_kind == "string" else "integer"
        if not follows:
            self._refuse_repeats()

    def _alike(self, ids: Ids) -> Ids:
        """Ids in the store's kind; refused where they cannot be."""
        if self.store.id_kind == "string":
            return as_text(ids)
        if not is_text(ids):
            return np.asarray(ids, dtype=np.int64)
        numbers, meant = as_numbers(ids)
        if not meant.all():
            odd = id_at(ids, int(np.flatnonzero(~meant)[0]))
            raise InputError(
                f"{self.where}: id {odd!r} is text, and the ids of {self.store.place} are whole numbers: give a number"
            )
        return numbers

    def _refuse_repeats(self) -> None:
        column = _arrow(self.new)
        firsts = pc.index_in(column, value_set=column).to_numpy(zero_copy_only=False)
        if len(again := np.flatnonzero(firsts != np.arange(len(firsts)))):
            raise InputError(f"{self.where}: id {id_at(self.new, int(again[0]))!r} occurs twice: each node has one row")
        there = np.flatnonzero(self._find_old(self.new) >= 0)
        if len(there):
            raise InputError(
                f"{self.where}: node {id_at(self.new, int(there[0]))!r} is in {self.store.place} already: leave out "
                "nodes that are known; edges may name them"
            )

    def find(self, wanted: Ids) -> Array:
        """Node numbers int64 of these ids, -1 where there is no such node. Ask for many at a time."""
        if self.store.id_kind != "string" and is_text(wanted):
            numbers, meant = as_numbers(wanted)
            return np.where(meant, self.find(numbers), -1)
        if self.kind == "row":
            return super().find(wanted)
        wanted = self._alike(wanted)
        found = _places(wanted, self.new)
        found = np.where(found >= 0, found + self.num_old, -1)
        if len(left := np.flatnonzero(found < 0)):
            found[left] = self._find_old(wanted.take(pa.array(left)) if is_text(wanted) else wanted[left])
        return found

    def at(self, row: int) -> Any:
        """The user's id of a node."""
        return id_at(self.new, row - self.num_old) if row >= self.num_old else self.store.ids_of(np.array([row]))[0]

    def _find_old(self, wanted: Ids) -> Array:
        """Node numbers among those of the store, -1 for others."""
        if self.store.id_kind == "row":
            return np.where((wanted >= 0) & (wanted < self.num_old), wanted, -1)
        distinct = pc.unique(_arrow(wanted))
        numbers = np.full(len(distinct), -1, dtype=np.int64)
        for first, ids in self._old_chunks(max(_CHUNK_ROWS, len(distinct))):
            at = pc.index_in(ids, value_set=distinct)
            rows = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
            numbers[at.drop_null().to_numpy()] = first + rows
        return numbers[_places(wanted, distinct)] if len(distinct) else np.zeros(0, dtype=np.int64)

    def _old_chunks(self, rows: int) -> Iterator[tuple[int, Any]]:
        every = self.store.id_array() if self.store.id_kind == "string" else self.store.folder.array("node_ids")
        for first in range(0, self.num_old, rows):
            yield first, _arrow(every[first : first + rows])


def _arrow(ids: Ids) -> Any:
    return ids if is_text(ids) else pa.array(np.asarray(ids))


def _places(wanted: Ids, among: Ids) -> Array:
    """Where each of `wanted` stands in `among`, -1 for none."""
    found = pc.index_in(_arrow(wanted), value_set=_arrow(among))
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def joined(chunks: Iterator[Ids]) -> Ids:
    """All chunks as one column; whole numbers without any."""
    parts = list(chunks)
    if not parts:
        return np.zeros(0, dtype=np.int64)
    whole = join_ids(parts)
    return whole[0] if len(whole) == 1 else pa.concat_arrays([as_text(part) for part in parts])
