"""Incremental preparation: after an append, compute only the rows that changed.

Enters: the store, and preparations of its earlier states. Leaves: the same bytes as a preparation from scratch: rows
with unchanged inputs are copied, and the stage computes all others. Cost: that of the stage for the computed rows, and
a copy of the others; some bytes per node.

A row changes if its node is within a few hops of a node that is new or has new neighbours. In addition,
  local nodes       change if the sample depends on the number of nodes: for nodes without neighbours, and for those
                    sampled by nodes (uniform.py)
  token rows        change with the features within reach, and all of them with the feature scale
  label histograms  all change with the labels or the split of old nodes, or with the scale of regression values
Positional encodings depend on the whole graph and are recomputed; so are label counts around local nodes.
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
from largegt.preprocessing.sampling.uniform import BY_NODES, choose_method, num_hop2_slots
from largegt.types import Array, Direction

from .blocks import Neighbors
from .cache_key import directions_of
from .engine import Engine
from .label_features import TrainingLabels

if TYPE_CHECKING:
    from .prepared import Prepared

_CHUNK_ROWS = 1 << 14

SAMPLED = "scratch_sampled"
"""LocalNodes as node numbers [n, K]; a temporary array."""


@dataclass(frozen=True)
class EarlierPreparation:
    """An earlier preparation of an appended store: of an earlier state, or of other nodes. `…_before` maps each row of
    an array to its row there, -1 for a row to compute; None if all rows must be computed."""

    prepared: Prepared
    state: State
    store: GraphStore
    engine: Engine

    def changed(
        self, directions: Sequence[Direction], hops: int, lists: bool = True, features: bool = False
    ) -> Array:  # fmt: skip
        """Boolean [N]: nodes within `hops` of a node that is new or, with `lists`, has new neighbours or, with
        `features`, has updated features."""
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

    def label_rows_before(
        self, nodes: Array, hops: int, training_labels: TrainingLabels, version: State | None
    ) -> Array | None:
        """`training_labels` are the labels to count, of `version` or of the current store."""
        state, earlier = version or State.of(self.store), self.prepared.version or self.state
        if earlier != state:
            if any(labels_updated_since(self.store, one) for one in (earlier, state)):
                return None
            counted = TrainingLabels.from_store(self.store, earlier)
            before, now = (each.is_train[: self.state.num_nodes] for each in (counted, training_labels))
            scales = [each.scale and (each.scale.mean, each.scale.std) for each in (counted, training_labels)]
            if scales[0] != scales[1] or not np.array_equal(before, now):
                return None
        before = self.prepared.rows_of(nodes)
        before[self.changed(("both",), hops - 1)[nodes]] = -1
        return before

    def rows(self, name: str, places: Array) -> Array:
        """Rows of one array of the earlier preparation."""
        earlier = self.prepared
        rows = earlier.token_nodes[earlier.local_rows[places]] if name == SAMPLED else earlier.array(name)[places]
        return np.asarray(rows)


def find_earlier(
    store: GraphStore, cached: Iterable[Prepared], config: ResolvedPrepareConfig, engine: Engine
) -> EarlierPreparation | None:
    """The preparation with the same settings and the most rows, the latest of several; None if there is none."""
    states = {state.fingerprint: state for state in [*earlier_states(store), State.of(store)]}
    names = list(states)
    known = [prepared for prepared in cached if prepared.meta["fingerprint"] in states]
    known.sort(key=lambda prepared: (len(prepared.nodes), names.index(prepared.meta["fingerprint"])), reverse=True)
    for prepared in known:
        state = states[prepared.meta["fingerprint"]]
        if state.directed == store.directed and _rows_depend_on(prepared.config) == _rows_depend_on(config):
            with suppress(FormatError):  # skip a damaged one
                prepared.check()
                return EarlierPreparation(prepared, state, store, engine)
    return None


def _rows_depend_on(config: ResolvedPrepareConfig) -> list[Any]:
    """The settings that the rows of a node depend on."""
    sampled, tokens = config.local_nodes.relevant(), config.tokens.model_dump(exclude={"precompute_for"})
    return [{**sampled, "target_nodes": ""}, tokens, config.neighbor_label_hops]


def merge(
    writer: ArrayWriter, names: Sequence[str], before: Array, rows_at: Callable[[str, Array], Array],
    make: Callable[[Array, ArrayWriter], None],
) -> None:  # fmt: skip
    """Write arrays of these names from reused rows, `rows_at(name, places)`, and computed rows, which `make(which,
    scratch)` writes to a scratch folder. Resumes after an interrupted run."""
    missing = np.flatnonzero(before < 0)
    which = [names, sha256(missing.tobytes()).hexdigest()]  # another earlier preparation has other missing rows
    with ArrayWriter(writer.partial / "made", "scratch", replace=True, identity=which) as scratch:
        if len(missing) and not all(scratch.has(name) for name in names):
            make(missing, scratch)
            scratch.commit()
        for name in names:
            empty = rows_at(name, before[:0])
            made = scratch.array(name) if len(missing) else empty
            out = writer.grow(name, empty.dtype.name, empty.shape[1:])
            done = int(np.searchsorted(missing, out.rows))
            for start in range(out.rows, len(before), _CHUNK_ROWS):
                places = before[start : start + _CHUNK_ROWS]
                count = int((places < 0).sum())
                block = np.empty((len(places), *empty.shape[1:]), dtype=empty.dtype)
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
    """Boolean: whether each node's sample depended on the number of nodes. With more nodes, a node that was not sampled
    by nodes keeps its method."""
    found = np.zeros(len(nodes), np.bool_)
    for n in range(len(nodes)):
        start, stop = indptr[nodes[n]], indptr[nodes[n] + 1]
        paths = np.int64(0)
        for place in range(start, stop):
            j = indices[place]
            paths += indptr[j + 1] - indptr[j]
        far = num_hop2_slots(wanted, hop1_slots, stop - start)
        found[n] = stop == start or (far > 0 and choose_method(paths, num_nodes, far) == BY_NODES)
    return found
