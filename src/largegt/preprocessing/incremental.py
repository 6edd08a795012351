"""Incremental preparation: of a store that was appended to, only rows that changed are made.

Enters: the store, and preparations of its earlier states. Leaves: the same bytes as a preparation from nothing: rows
whose inputs are as they were are copied, all others are made by the stage itself. Cost: that of the stage for the rows
that are made, and one copy of the others; some bytes per node.

A row changes where a walk of a few hops from its node reaches a node that is new or has new neighbours. Beside that,
  local nodes     change where the sample depends on how many nodes there are: nodes without neighbours, and those
                  sampled by nodes (sampler.py)
  token rows      change with the features of nodes in reach, and all of them with the features' scale
  label contexts  all change when labels or the split of nodes were updated, or the scale of a regression's values
Positional encodings look at the whole graph and are made in full; so are labels around local nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from largegt.config.schema import LocalNodesConfig, PrepareConfig
from largegt.data.store import GraphStore
from largegt.data.versions import State, earlier_state, earlier_states, labels_updated_since, touched_since
from largegt.errors import FormatError
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.engine import SEGMENT_NODES, Engine
from largegt.types import Array, Direction

from .blocks import Neighbors
from .cache_key import directions_of
from .label_features import TrainingLabels
from .sampling.sampler import BY_NODES, choose_way, num_far

if TYPE_CHECKING:
    from .prepared import Prepared

_CHUNK_ROWS = 1 << 14
_LEAST_KEPT = 0.2
"""Where less than this share of the rows would be kept, all are made: that is simpler, and hardly slower."""


@dataclass(frozen=True)
class Earlier:
    """An earlier preparation of a store that was appended to: of a state before that, or of other nodes. `before` is
    where each row of an array stands in it, -1 where the row must be made."""

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
            slots = -1 if settings.hop1_share is None else round(settings.hop1_share * (settings.k - 1))
            some = np.flatnonzero(before >= 0)
            csr = self.store.csr(settings.direction)
            depends = _depends_on_count(*csr, nodes[some], settings.k - 1, slots, self.state.num_nodes)
            before[some[depends]] = -1
        return before

    def token_rows_before(self, token_nodes: Array, config: PrepareConfig) -> Array:
        hops, before = config.tokens.hops, self.prepared.token_rows_of(token_nodes)
        has_degrees = config.tokens.degrees or self.store.features_are_degrees
        changed = self.changed(directions_of(config), hops, lists=bool(hops) or has_degrees, features=True)
        before[changed[token_nodes]] = -1
        return before

    def label_rows_before(self, nodes: Array, hops: int) -> Array:
        before = self.prepared.rows_of(nodes)
        before[self.changed(("both",), hops - 1)[nodes]] = -1
        return before

    def local_nodes(
        self, nodes: Array, before: Array, settings: LocalNodesConfig
    ) -> Iterator[tuple[Array, Array]]:  # fmt: skip
        """LocalNodes of `nodes` and which of them are neighbours, segment after segment."""
        earlier, places = self.prepared, np.split(before, range(SEGMENT_NODES, len(nodes), SEGMENT_NODES))
        made = _regrouped(
            self.engine.local_nodes(self.store, nodes[before < 0], settings), [int((p < 0).sum()) for p in places]
        )
        for place in places:
            kept = place[place >= 0]
            local_nk = np.empty((len(place), settings.k), dtype=earlier.local_rows.dtype)
            near_nk = np.empty(local_nk.shape, dtype=np.bool_)
            local_nk[place >= 0] = earlier.token_nodes[earlier.local_rows[kept]]
            bits = earlier.array("near")[kept]
            near_nk[place >= 0] = np.unpackbits(bits, axis=1, count=settings.k, bitorder="little")
            if len(kept) < len(place):
                local_nk[place < 0], near_nk[place < 0] = next(made)
            yield local_nk, near_nk


def find_earlier(
    store: GraphStore, siblings: Iterable[Prepared], engine: Engine, serves: Callable[[Prepared, State], bool]
) -> Earlier | None:
    """The preparation that serves with the most rows, the latest of such; None where there is none."""
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
                return Earlier(prepared, state, store, engine)
    return None


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
    prepared: Prepared, state: State, store: GraphStore, own: TrainingLabels, ours: State
) -> bool:  # fmt: skip
    """Whether labels were counted from the same training nodes among those there were. `own` are the labels to count,
    those of the version `ours`. Where labels were updated since either version, they are not."""
    theirs = prepared.as_of or state
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


def is_worth_it(before: Array) -> bool:
    """Whether enough rows are kept."""
    return len(before) > 0 and float((before >= 0).mean()) >= _LEAST_KEPT


def merge(
    writer: ArrayWriter, name: str, before: Array, earlier: Array, make: Callable[[Array, ArrayWriter], None]
) -> None:
    """Write the array `name`: the kept rows of `earlier`, and those between them as `make(which, scratch)` writes them
    under the same name into a scratch folder. It goes on where an earlier run stopped."""
    missing = np.flatnonzero(before < 0)
    which = [name, sha256(missing.tobytes()).hexdigest()]  # another earlier preparation lacks other rows
    with ArrayWriter(writer.partial / "made", "scratch", replace=True, identity=which) as scratch:
        if len(missing) and not scratch.has(name):
            make(missing, scratch)
            scratch.commit()
        made = scratch.array(name) if len(missing) else earlier[:0]
        out = writer.grow(name, earlier.dtype.name, earlier.shape[1:])
        done = int(np.searchsorted(missing, out.rows))
        for start in range(out.rows, len(before), _CHUNK_ROWS):
            places = before[start : start + _CHUNK_ROWS]
            block = np.empty((len(places), *earlier.shape[1:]), dtype=earlier.dtype)
            block[places >= 0] = earlier[places[places >= 0]]
            count = int((places < 0).sum())
            block[places < 0] = made[done : done + count]
            done += count
            out.append(block)
            writer.commit()
        writer.close(name)


def _regrouped(segments: Iterator[tuple[Array, Array]], counts: list[int]) -> Iterator[tuple[Array, Array]]:
    """The same rows in segments of so many, empty ones left out."""
    rows, near = None, None
    for count in filter(None, counts):
        while rows is None or near is None or len(rows) < count:
            more, more_near = next(segments)
            rows = more if rows is None else np.concatenate([rows, more])
            near = more_near if near is None else np.concatenate([near, more_near])
        yield rows[:count], near[:count]
        rows, near = rows[count:], near[count:]


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
