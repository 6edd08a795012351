"""Incremental preparation: of a store that was appended to, only rows that changed are made.

Enters: the store, and preparations of its earlier states that came along. Leaves: the same arrays, byte for byte, as a
preparation from nothing: rows whose inputs are as they were are copied, all others are made by the stage itself. Cost:
that of the stage for the rows that are made, and one copy of the others; some bytes per node.

A row's inputs are few hops away, so what changed is what a walk of as many steps reaches from: nodes that are new or
have new neighbours (for token rows also nodes whose features were updated), and nodes that lead to those. Beside that,
  local nodes     also change where the sample depends on how many nodes there are: nodes without neighbours, and those
                  sampled by nodes (sampler.py)
  token rows      all change when the features' scale does; a run's does not, since it keeps that of its training
  label contexts  all change when labels or the split of nodes were updated, and those of a regression when the scale of
                  its training values does
Positional encodings look at the whole graph and are made in full; so are distances and labels around local nodes, which
take one pass over the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from ..config import LocalNodesConfig, PrepareConfig
from ..data.store import GraphStore
from ..data.versions import State, earlier_state, earlier_states, labels_updated_since, touched_since
from ..errors import FormatError
from ..io.array_writer import ArrayWriter
from ..types import Array, Direction
from .blocks import Neighbors
from .engines.engine import SEGMENT_NODES, Engine
from .label_contexts import TrainingLabels
from .sampler import BY_NODES, choose_way, num_far

if TYPE_CHECKING:
    from .prepared import Prepared

_CHUNK_ROWS = 1 << 14
_LEAST_KEPT = 0.2
"""Where less than this share of the rows would be kept, all are made: that is simpler, and hardly slower."""


@dataclass(frozen=True)
class Rows:
    """Rows of an array that is to be made: where each stands in an earlier one, -1 where it must be made."""

    before: Array

    @property
    def kept(self) -> Array:
        return np.asarray(self.before >= 0)

    @property
    def is_worth_it(self) -> bool:
        return len(self.before) > 0 and float(self.kept.mean()) >= _LEAST_KEPT


class Earlier:
    """An earlier preparation of a store that was appended to: of a state before that, or of other nodes."""

    def __init__(self, prepared: Prepared, state: State, store: GraphStore) -> None:
        self.prepared, self.state, self.store = prepared, state, store
        self.touched = touched_since(store, state)
        self.updated = touched_since(store, state, "features")

    @classmethod
    def find(
        cls, store: GraphStore, siblings: Sequence[Prepared], serves: Callable[[Prepared, State], bool]
    ) -> Earlier | None:
        """The one that serves with the most rows, the latest of such; None when there is none, or nothing was ever
        appended to the store."""
        states = earlier_states(store)
        names = [state.fingerprint for state in [*states, *([State.of(store)] if states else [])]]
        ordered = sorted(
            (prepared for prepared in siblings if prepared.meta["fingerprint"] in names),
            key=lambda prepared: (len(prepared.nodes), names.index(prepared.meta["fingerprint"])),
        )
        for prepared in reversed(ordered):
            state = earlier_state(store, prepared.meta["fingerprint"]) or State.of(store)
            if state.directed == store.directed and serves(prepared, state):
                with suppress(FormatError):  # a damaged one serves nobody
                    prepared.check()
                    return cls(prepared, state, store)
        return None

    def changed(
        self, directions: Sequence[Direction], hops: int, engine: Engine, lists: bool = True, features: bool = False
    ) -> Array:
        """Boolean [N]: nodes that are new, or from which so many hops lead to one that is new or, with `lists`, has new
        neighbours or, with `features`, other features."""
        marked = np.zeros(self.store.num_nodes, dtype=np.bool_)
        marked[self.state.num_nodes :] = True
        marked[self.touched if lists else self.touched[:0]] = True
        marked[self.updated if features else self.updated[:0]] = True
        for _ in range(hops):
            reached = np.flatnonzero(marked)
            for side in directions:
                engine.mark_neighbors(Neighbors(*self.store.reverse_csr(side), self_loops=False), reached, marked)
        return marked

    # local nodes

    def local_nodes(
        self, nodes: Array, settings: LocalNodesConfig, engine: Engine
    ) -> tuple[Rows, Iterator[tuple[Array, Array]]]:
        """LocalNodes of `nodes`, segment after segment, as the engine makes them; and which are kept."""
        before = self.prepared.rows_of(nodes)
        before[self.changed((settings.direction,), 1, engine)[nodes]] = -1
        if self.store.num_nodes != self.state.num_nodes:
            slots = -1 if settings.hop1_share is None else round(settings.hop1_share * (settings.k - 1))
            some = np.flatnonzero(before >= 0)
            csr = self.store.csr(settings.direction)
            depends = _depends_on_count(*csr, nodes[some], settings.k - 1, slots, self.state.num_nodes)
            before[some[depends]] = -1
        return Rows(before), self._local_nodes(nodes, before, settings, engine)

    def _local_nodes(
        self, nodes: Array, before: Array, settings: LocalNodesConfig, engine: Engine
    ) -> Iterator[tuple[Array, Array]]:
        earlier, made = self.prepared, _Stream(engine.local_nodes(self.store, nodes[before < 0], settings))
        for start in range(0, len(nodes), SEGMENT_NODES):
            places = before[start : start + SEGMENT_NODES]
            kept = places[places >= 0]
            local_nk = np.empty((len(places), settings.k), dtype=earlier.local_rows.dtype)
            near_bits = np.empty((len(places), -(-settings.k // 8)), dtype=np.uint8)
            local_nk[places >= 0] = earlier.token_nodes[earlier.local_rows[kept]]
            near_bits[places >= 0] = earlier.array("near")[kept]
            if len(kept) < len(places):
                local_nk[places < 0], near_bits[places < 0] = made.take(len(places) - len(kept))
            yield local_nk, near_bits

    # rows by node

    def token_rows(
        self, token_nodes: Array, config: PrepareConfig, directions: Sequence[Direction], engine: Engine
    ) -> Rows:
        """Which token rows are as they were."""
        hops, before = config.tokens.hops, self.prepared.token_rows_of(token_nodes)
        has_degrees = config.tokens.degrees or self.store.features_are_degrees
        changed = self.changed(directions, hops, engine, lists=bool(hops) or has_degrees, features=True)
        before[changed[token_nodes]] = -1
        return Rows(before)

    def label_rows(self, nodes: Array, hops: int, engine: Engine) -> Rows:
        """Which label contexts are as they were."""
        before = self.prepared.rows_of(nodes)
        before[self.changed(("both",), hops - 1, engine)[nodes]] = -1
        return Rows(before)


def same_sample(prepared: Prepared, config: PrepareConfig) -> bool:
    """Whether local nodes were sampled as these settings say, for whichever nodes."""
    ours, theirs = config.local_nodes.relevant(), prepared.config.local_nodes.relevant()
    return {**ours, "nodes": ""} == {**theirs, "nodes": ""}


def same_token_rows(prepared: Prepared, config: PrepareConfig, shift: Array, gain: Array) -> bool:
    """Whether token rows were made as these settings say, with this scale, for whichever nodes."""
    ours, theirs = (each.tokens.model_dump(exclude={"nodes"}) for each in (config, prepared.config))
    same = ours == theirs and config.local_nodes.direction == prepared.config.local_nodes.direction
    scale = [prepared.array(name) for name in ("feature_shift", "feature_gain")]
    return same and np.array_equal(scale[0], shift) and np.array_equal(scale[1], gain)


def same_training_labels(
    prepared: Prepared, state: State, store: GraphStore, own: TrainingLabels, ours: State, hops: int
) -> bool:
    """Whether labels were counted over as many hops, from the same training nodes among those there were. `own` are the
    labels to count, those of the version `ours`. Where labels were updated since either version, they are not."""
    theirs = prepared.as_of or state
    if prepared.config.labels.hops != hops:
        return False
    if theirs == ours:
        return True
    if labels_updated_since(store, theirs) or labels_updated_since(store, ours):
        return False
    then = TrainingLabels.of(store, theirs)
    if not np.array_equal(then.is_train[: state.num_nodes], own.is_train[: state.num_nodes]):
        return False
    if own.scale is None or then.scale is None:
        return True
    return (then.scale.mean, then.scale.std) == (own.scale.mean, own.scale.std)


def merge(
    writer: ArrayWriter, name: str, rows: Rows, earlier: Array, make: Callable[[Array, ArrayWriter], None]
) -> None:
    """Write the array `name`: the kept rows of `earlier`, and those between them as `make(which, scratch)` writes them
    under the same name into a scratch folder. It goes on where an earlier run stopped."""
    missing = np.flatnonzero(~rows.kept)
    which = [name, sha256(missing.tobytes()).hexdigest()]  # another earlier preparation lacks other rows
    with ArrayWriter(writer.partial / "made", "scratch", replace=True, identity=which) as scratch:
        if len(missing) and not scratch.has(name):
            make(missing, scratch)
            scratch.commit()
        made = scratch.array(name) if len(missing) else earlier[:0]
        out = writer.grow(name, earlier.dtype.name, earlier.shape[1:])
        done = int(np.searchsorted(missing, out.rows))
        for start in range(out.rows, len(rows.before), _CHUNK_ROWS):
            before = rows.before[start : start + _CHUNK_ROWS]
            block = np.empty((len(before), *earlier.shape[1:]), dtype=earlier.dtype)
            block[before >= 0] = earlier[before[before >= 0]]
            count = int((before < 0).sum())
            block[before < 0] = made[done : done + count]
            done += count
            out.append(block)
            writer.commit()
        writer.close(name)


class _Stream:
    """Rows of several arrays that come in segments, taken in other portions."""

    def __init__(self, segments: Iterator[tuple[Array, ...]]) -> None:
        self._segments = segments
        self._left: tuple[Array, ...] | None = None

    def take(self, count: int) -> tuple[Array, ...]:
        parts = []
        while count:
            if self._left is None or not len(self._left[0]):
                self._left = next(self._segments)
            parts.append(tuple(rows[:count] for rows in self._left))
            self._left = tuple(rows[count:] for rows in self._left)
            count -= len(parts[-1][0])
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


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
