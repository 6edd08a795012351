"""Lineage: what a store was before nodes and edges were appended to it.

Enters: a store that `append` has written. Leaves: its earlier states, oldest first, and which nodes have other
neighbours since. A store's manifest names its earlier states, and the files that came last; of each state,
`STORE/appended/<its fingerprint>/` holds what came after it:
  touched [t]                    nodes of that state with new neighbours, sorted
  out_degrees [t], in_degrees [t]  how many neighbours these had before
Cost: the touched nodes. A store that nothing was appended to has none of this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from ..folder import ArrayFolder
from ..folder_writer import FolderWriter
from ..types import Array
from .store import GraphStore

FOLDER, NOTE, KIND = "appended", "appended", "increment"
_SOURCE = "appended_from"


@dataclass(frozen=True)
class State:
    """A store as it was."""

    fingerprint: str
    num_nodes: int
    num_edges: int
    directed: bool

    @classmethod
    def of(cls, store: GraphStore) -> State:
        """As it is now."""
        return cls(store.fingerprint, store.num_nodes, store.num_edges, store.directed)


def earlier_states(store: GraphStore) -> list[State]:
    """Oldest first."""
    try:
        return [State(**entry) for entry in store.folder.manifest.get(NOTE, [])]
    except TypeError:
        raise FormatError(f"{store.path / 'manifest.json'} has no lineage that this version knows") from None


def earlier_state(store: GraphStore, fingerprint: str) -> State | None:
    """The state of this name, if the store has come from it."""
    return next((state for state in earlier_states(store) if state.fingerprint == fingerprint), None)


def last_source(store: GraphStore) -> str | None:
    """The identity of the files that were appended last, if files were."""
    source = store.folder.manifest.get(_SOURCE)
    return None if source is None else str(source)


def notes_of(states: list[State], source: str | None) -> dict[str, Any]:
    """What the manifest says of earlier states, and of what came to the last of them."""
    return {NOTE: [asdict(state) for state in states], **({} if source is None else {_SOURCE: source})}


def write_increment(folder: Path, state: State, touched: Array, out_degrees: Array, in_degrees: Array) -> None:
    """Note in the folder `appended` what became of a state."""
    with FolderWriter(folder / state.fingerprint, KIND, replace=True) as writer:
        writer.save("touched", touched)
        writer.save("out_degrees", out_degrees)
        writer.save("in_degrees", in_degrees)
        writer.finish({"before": asdict(state)})


def touched_since(store: GraphStore, state: State) -> Array:
    """The nodes of a state that have new neighbours since, sorted."""
    found = [np.zeros(0, dtype=np.int64)]
    found += [np.asarray(increment.array("touched")) for increment in _increments(store, state)]
    touched = np.unique(np.concatenate(found))
    return touched[touched < state.num_nodes]


def degrees_then(store: GraphStore, state: State) -> tuple[Array, dict[str, Array]]:
    """(touched nodes, how many neighbours `out` and `in` each had in that state)."""
    touched = touched_since(store, state)
    then = {side: np.zeros(len(touched), dtype=np.int64) for side in ("out", "in")}
    for increment in reversed(_increments(store, state)):  # the oldest has the last word
        nodes = np.asarray(increment.array("touched"))
        places = np.searchsorted(touched, nodes[nodes < state.num_nodes])
        for side, degrees in then.items():
            degrees[places] = increment.array(f"{side}_degrees")[: len(places)]
    return touched, then


def _increments(store: GraphStore, state: State) -> list[ArrayFolder]:
    """What was appended from a state on, oldest first; nothing since the last."""
    if state.fingerprint == store.fingerprint:
        return []
    states = earlier_states(store)
    return [ArrayFolder(store.path / FOLDER / each.fingerprint, KIND) for each in states[states.index(state) :]]
