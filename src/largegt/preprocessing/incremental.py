"""Incremental preparation: of a store that was appended to, only rows that changed are made.

Enters: the store, and preparations of its earlier states. Leaves: the same bytes as a preparation from nothing: rows
whose inputs are as they were are copied, all others are made by the stage itself. Cost: that of the stage for the rows
that are made, and one copy of the others; some bytes per node.

A row changes where a walk of a few hops from its node reaches a node that is new or has new neighbours. Beside that,
  local nodes       change where the sample depends on how many nodes there are: nodes without neighbours, and those
                    sampled by nodes (uniform.py)
  token rows        change with the features of nodes in reach, and all of them with the features' scale
  label histograms  all change when labels or the split of nodes were updated, or the scale of a regression's values
Positional encodings look at the whole graph and are made in full; so are labels around local nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from largegt.config.schema import LocalNodesConfig, ResolvedPrepareConfig
from largegt.data.store import GraphStore
from largegt.data.versions import State, earlier_states, labels_updated_since, touched_since
from largegt.errors import FormatError
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.sampling.uniform import BY_NODES, choose_way, num_far
from largegt.types import Array, Direction

from .blocks import Neighbors
from .cache_key import directions_of
from .engine import Engine
from .label_features import TrainingLabels

if TYPE_CHECKING:
    from .prepared import Prepared

_CHUNK_ROWS = 1 << 14

SAMPLED = "scratch_sampled"
"""LocalNodes as node numbers [n, K], while they are made."""


@dataclass(frozen=True)
class Earlier:
    """An earlier preparation of a store that was appended to: of a state before that, or of other nodes. `…_before` is
    where each row of an array stands in it, -1 where the row must be made; None where all must be."""

    prepared: Prepared
    state: State
    store: GraphStore
    engine: Engine

    def changed(
        self, directions: Sequence[Direction], hops: int, lists: bool = True, features: bool = False
    ) -> Array:  # fmt: skip
        """Boolean [N]: nodes that are new, or from which so many hops lead to one that is new or, with `lists`, has new
        neighbours or, with `features`, other features."""
        marked = np.zeros(self.store.num_nodes, dtype=np.bool_)
        marked[self.state.num_nodes :] = True
        for what in ["touched"] * lists + ["features"] * features:
            marked[touched_since(self.store, self.state, what)] = True
        for _ in range(hops):
            reached = np.flatnonzero(marked)
            for side in directions:
                neighbors = Neighbors(*self.store.reverse_csr(side), self_loops=False)
                self.engine.mark_neighbors(neighbors, reached, marked)
        return marked

    def local_nodes_before(self, nodes: Array, settings: LocalNodesConfig) -> Array:
        before = self.prepared.rows_of(nodes)
        before[self.changed((settings.direction,), 1)[nodes]] = -1
        if self.store.num_nodes != self.state.num_nodes:
            slots = -1 if settings.hop1_fraction is None else round(settings.hop1_fraction * (settings.k - 1))
            some = np.flatnonzero(before >= 0)
            csr = self.store.csr(settings.direction)
            depends = _depends_on_count(*csr, nodes[some], settings.k - 1, slots, self.state.num_nodes)
            before[some[depends]] = -1
        return before

    def token_rows_before(
        self, token_nodes: Array, config: ResolvedPrepareConfig, shift: Array, gain: Array
    ) -> Array | None:
        for name, values in (("feature_shift", shift), ("feature_gain", gain)):
            if not np.array_equal(self.prepared.array(name), values):
                return None
        hops, before = config.tokens.num_hops, self.prepared.token_rows_of(token_nodes)
        has_degrees = config.tokens.add_degrees or self.store.features_are_degrees
        changed = self.changed(directions_of(config), hops, lists=bool(hops) or has_degrees, features=True)
        before[changed[token_nodes]] = -1
        return before

    def label_rows_before(self, nodes: Array, hops: int, own: TrainingLabels, then: State | None) -> Array | None:
        """`own` are the labels to count, those of the version `then` or of the store's own."""
        ours, theirs = then or State.of(self.store), self.prepared.as_of or self.state
        if theirs != ours:
            if any(labels_updated_since(self.store, version) for version in (theirs, ours)):
                return None
            counted = TrainingLabels.of(self.store, theirs)
            before, now = (each.is_train[: self.state.num_nodes] for each in (counted, own))
            scales = [each.scale and (each.scale.mean, each.scale.std) for each in (counted, own)]
            if scales[0] != scales[1] or not np.array_equal(before, now):
                return None
        before = self.prepared.rows_of(nodes)
        before[self.changed(("both",), hops - 1)[nodes]] = -1
        return before

    def rows(self, name: str, places: Array) -> Array:
        """Rows of one of its arrays."""
        earlier = self.prepared
        rows = earlier.token_nodes[earlier.local_rows[places]] if name == SAMPLED else earlier.array(name)[places]
        return np.asarray(rows)


def find_earlier(
    store: GraphStore, siblings: Iterable[Prepared], config: ResolvedPrepareConfig, engine: Engine
) -> Earlier | None:
    """The preparation by the same settings, for whichever nodes, that has the most rows, the latest of such; None where
    there is none."""
    states = {state.fingerprint: state for state in [*earlier_states(store), State.of(store)]}
    names = list(states)
    known = [prepared for prepared in siblings if prepared.meta["fingerprint"] in states]
    known.sort(key=lambda prepared: (len(prepared.nodes), names.index(prepared.meta["fingerprint"])), reverse=True)
    for prepared in known:
        state = states[prepared.meta["fingerprint"]]
        if state.directed == store.directed and _rows_depend_on(prepared.config) == _rows_depend_on(config):
            with suppress(FormatError):  # a damaged one serves nobody
                prepared.check()
                return Earlier(prepared, state, store, engine)
    return None


def _rows_depend_on(config: ResolvedPrepareConfig) -> list[Any]:
    """The settings that a node's rows depend on, wherever there are some."""
    sampled, tokens = config.local_nodes.relevant(), config.tokens.model_dump(exclude={"precompute_for"})
    return [{**sampled, "target_nodes": ""}, tokens, config.neighbor_label_hops]


def merge(
    writer: ArrayWriter, names: Sequence[str], before: Array, rows_at: Callable[[str, Array], Array],
    make: Callable[[Array, ArrayWriter], None],
) -> None:  # fmt: skip
    """Write arrays of these names: the rows that are kept, as `rows_at(name, places)` gives them, and those between
    them as `make(which, scratch)` writes them into a scratch folder. It goes on where an earlier run stopped."""
    missing = np.flatnonzero(before < 0)
    which = [names, sha256(missing.tobytes()).hexdigest()]  # another earlier preparation lacks other rows
    with ArrayWriter(writer.partial / "made", "scratch", replace=True, identity=which) as scratch:
        if len(missing) and not all(scratch.has(name) for name in names):
            make(missing, scratch)
            scratch.commit()
        for name in names:
            none = rows_at(name, before[:0])
            made = scratch.array(name) if len(missing) else none
            out = writer.grow(name, none.dtype.name, none.shape[1:])
            done = int(np.searchsorted(missing, out.rows))
            for start in range(out.rows, len(before), _CHUNK_ROWS):
                places = before[start : start + _CHUNK_ROWS]
                count = int((places < 0).sum())
                block = np.empty((len(places), *none.shape[1:]), dtype=none.dtype)
                block[places >= 0] = rows_at(name, places[places >= 0])
                block[places < 0] = made[done : done + count]
                done += count
                out.append(block)
                writer.commit()
            writer.close(name)
            writer.commit()


@njit(nogil=True, cache=True)
def _depends_on_count(
    indptr: Any, indices: Any, nodes: Any, wanted: int, hop1_slots: int, num_nodes: int
) -> Any:  # fmt: skip
    """Boolean: whose sample depended on how many nodes there were. More nodes make no other way the best one where
    drawing from all nodes was not."""
    found = np.zeros(len(nodes), np.bool_)
    for n in range(len(nodes)):
        start, stop = indptr[nodes[n]], indptr[nodes[n] + 1]
        paths = np.int64(0)
        for place in range(start, stop):
            j = indices[place]
            paths += indptr[j + 1] - indptr[j]
        far = num_far(wanted, hop1_slots, stop - start)
        found[n] = stop == start or (far > 0 and choose_way(paths, num_nodes, far) == BY_NODES)
    return found
