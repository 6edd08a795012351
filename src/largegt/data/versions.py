"""Versions of a store: earlier versions, their users, and cleaning.

`append` and `ingest --overwrite` commit a new version into the store's folder (io/array_folder.py). A version is kept
  while it is the newest,
  while a process has it open (a shared lock on its manifest), or
  while a run is registered for it: `refs/<key>.json`, written by `train`.
`clean` removes all other versions, with their arrays and preparations.

A version made by `append` lists its predecessors, oldest first, and for each of them the nodes that the next version
changed: `touched_<number>` has nodes with new neighbours; `features_<number>`, `labels_<number>` and `split_<number>`,
if present, have updated nodes. These are not part of the fingerprint.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from largegt.errors import FormatError, InputError, LargeGTError
from largegt.io import remote
from largegt.io.array_folder import ARRAY_FILE, VERSIONS, ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import refuse_links_out, write_text_atomically
from largegt.io.checksums import read_sealed, sealed
from largegt.io.locks import HeldError, Lock
from largegt.io.remote import FINGERPRINT, MANIFEST
from largegt.types import Array, PathLike

from .splits import SPLIT_CODES
from .store import KIND, GraphStore

PREPARED = "prepared"
REFS = "refs"
CHANGES = ("touched", "features", "labels", "split")


# earlier versions


@dataclass(frozen=True)
class State:
    """Fingerprint and size of one version of a store."""

    fingerprint: str
    num_nodes: int
    num_edges: int
    directed: bool

    @classmethod
    def of(cls, store: GraphStore) -> State:
        return cls(store.fingerprint, store.num_nodes, store.num_edges, store.directed)

    @classmethod
    def read(cls, entry: Any, folder: Path) -> State:
        """Parse a state from the manifest of a folder."""
        types = {"fingerprint": str, "num_nodes": int, "num_edges": int, "directed": bool}
        if not isinstance(entry, dict) or {name: type(value) for name, value in entry.items()} != types:
            raise FormatError(f"{folder / MANIFEST} has no lineage that this version knows")
        return cls(**entry)


def earlier_states(store: GraphStore) -> list[State]:
    """The versions that `append` made this one from, oldest first."""
    return _states(store.folder.manifest, store.path)


def earlier_state(store: GraphStore, fingerprint: str) -> State | None:
    """The earlier version with this fingerprint; None if there is none."""
    return next((state for state in earlier_states(store) if state.fingerprint == fingerprint), None)


def is_branch(store: GraphStore) -> bool:
    """Whether this version has other labels and was added without becoming the newest one (store_cache.py)."""
    return bool(_notes(store.folder.manifest).get("branch", False))


def last_source(store: GraphStore) -> str | None:
    """The identity of the files of the last append; None if there are none."""
    source = _notes(store.folder.manifest).get("source")
    return None if source is None else str(source)


def write_lineage(
    writer: ArrayWriter, old: GraphStore, changed: dict[str, Array], source: str | None
) -> dict[str, Any]:
    """Write the changed nodes of `old` for each of `CHANGES`; return the notes of the new version."""
    states = earlier_states(old)
    arrays = {name: old.folder.array(name) for name in lineage_arrays(old)}
    arrays |= {f"{what}_{len(states)}": nodes for what, nodes in changed.items() if len(nodes) or what == "touched"}
    for name, nodes in arrays.items():
        writer.save(name, nodes)
    return {
        "earlier": [asdict(state) for state in (*states, State.of(old))],
        "arrays": list(arrays),
        **({} if source is None else {"source": source}),
    }


def lineage_arrays(store: GraphStore) -> list[str]:
    """The names of the arrays of changed nodes."""
    names = [f"{what}_{number}" for number in range(len(earlier_states(store))) for what in CHANGES]
    return [name for name in names if name in store.folder]


def touched_since(store: GraphStore, state: State, what: str = "touched") -> Array:
    """The sorted nodes of an earlier version that changed since: new neighbours, or another one of `CHANGES`."""
    parts = [np.zeros(0, dtype=np.int64)]
    if state.fingerprint != store.fingerprint:
        states = earlier_states(store)
        names = [f"{what}_{number}" for number in range(states.index(state), len(states))]
        parts += [np.asarray(store.folder.array(name)) for name in names if name in store.folder]
    touched = np.unique(np.concatenate(parts))
    return touched[touched < state.num_nodes]


def last_changes(store: GraphStore) -> dict[str, int]:
    """Counts of the changes of the last `append`; zeros if there was none."""
    before = (earlier_states(store) or [State.of(store)])[-1]
    return {
        "new_nodes": store.num_nodes - before.num_nodes,
        "new_edges": store.num_edges - before.num_edges,
        "old_nodes_with_new_neighbours": len(touched_since(store, before)),
        "labels_changed": len(touched_since(store, before, "labels")),
        "splits_changed": len(touched_since(store, before, "split")),
        "features_changed": len(touched_since(store, before, "features")),
    }


def labels_updated_since(store: GraphStore, state: State) -> bool:
    """Whether labels or splits of nodes of an earlier version were updated."""
    return any(len(touched_since(store, state, what)) for what in ("labels", "split"))


def labels_as_of(store: GraphStore, state: State | None) -> tuple[Array, Array]:
    """(labels, split) for a model that was trained on an earlier version: those of that version. Later nodes have their
    current labels and splits, but are not training nodes. Without a state: those of the store."""
    if state is None:
        return store.labels, store.split
    labels, split = store.labels, np.array(store.split)
    if labels_updated_since(store, state):
        then = GraphStore.open(store.path, version=state.fingerprint)
        labels = np.concatenate([then.labels, labels[state.num_nodes :]])
        split[: state.num_nodes] = then.split
    later = split[state.num_nodes :]
    later[later == SPLIT_CODES["train"]] = 0
    return labels, split


def _states(manifest: dict[str, Any], path: Path) -> list[State]:
    states = _notes(manifest).get("earlier", [])
    return [State.read(entry, path) for entry in (states if isinstance(states, list) else [states])]


def column_names(store: GraphStore) -> dict[str, Any]:
    """The column name of each role (`id`, `label`, `source`, …) in the tables of the ingest."""
    names = _notes(store.folder.manifest).get("column_names", {})
    return names if isinstance(names, dict) else {}


def _notes(manifest: dict[str, Any]) -> dict[str, Any]:
    notes = manifest.get("notes", {})
    return notes if isinstance(notes, dict) else {}


# registered runs


def register(store: GraphStore, run: Path) -> None:
    """Register a run, which keeps this version of the store."""
    run = run.resolve()
    file = store.path / _ref(run)
    refuse_links_out(store.path, file)
    file.parent.mkdir(exist_ok=True)
    write_text_atomically(file, sealed({"run": str(run), "version": store.fingerprint}))
    remote.upload(file)


def release(store: PathLike, run: PathLike, dry_run: bool = False) -> None:
    """Unregister a run, so that the next `clean` can remove its version. A `dry_run` only refuses an unknown run."""
    path, run = remote.local_path(store), Path(run).resolve()
    known = [known for runs in registered(path).values() for known in runs]
    if run not in known:
        raise InputError(
            f"{run} is not registered in {remote.shown(path)}: " + (f"these are: {', '.join(map(str, known))}"
            if known else "no run is")
        )  # fmt: skip
    remote.remove_file(path / _ref(run), dry_run)


def registered(path: Path) -> dict[str, list[Path]]:
    """The registered runs of each version."""
    found: dict[str, list[Path]] = {}
    refuse_links_out(path, path / REFS)
    for name in remote.names(path / REFS):
        if name.endswith(".json"):
            remote.refresh(path / REFS, name)
            version, run = read_ref(path / REFS / name)
            found.setdefault(version, []).append(run)
    return found


def read_ref(file: Path) -> tuple[str, Path]:
    """(version, run) of a registration."""
    ref = read_sealed(file, "delete it to go on without it")
    version, run = ref.get("version"), ref.get("run")
    if not isinstance(version, str) or not isinstance(run, str):
        raise FormatError(f"{file} names no run and version: delete it to go on without it")
    return version, Path(run)


def _ref(run: Path) -> str:
    return f"{REFS}/{hashlib.sha256(os.fsencode(run)).hexdigest()[:16]}.json"


# cleaning


@dataclass
class Cleaned:
    """What `clean` removed or would remove, and the older versions that it kept."""

    versions: list[str] = field(default_factory=list)
    preparations: list[str] = field(default_factory=list)
    num_files: int = 0
    num_bytes: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)
    """Older version → its registered runs; empty if a process has it open."""


def clean(
    store: PathLike, dry_run: bool = False, without: Iterable[PathLike] = (), keep_sources: bool = False
) -> Cleaned:
    """Remove unused versions of a store, and arrays and preparations that no version names. Runs in `without` count as
    released. Preparations of earlier versions are removed once the newest version is prepared; `keep_sources` keeps
    them, because the next preparation reuses their rows."""
    path = remote.local_path(store)
    remote.refresh(path)
    cleaned = Cleaned()
    with Lock(path, "cleaning"):
        newest = ArrayFolder(path, KIND, check=False).manifest
        refuse_links_out(path, path / VERSIONS, path / PREPARED)
        released = {Path(run).resolve() for run in without}
        needed = {version: {*runs} - released for version, runs in registered(path).items()}
        manifests = [newest, *_clean_versions(path, newest["fingerprint"], needed, cleaned, dry_run)]
        named = {entry["file"] for manifest in manifests for entry in manifest["arrays"].values()}
        for name in remote.names(path):
            if ARRAY_FILE.fullmatch(name) and name not in named:
                cleaned.num_files += 1
                cleaned.num_bytes += remote.remove_file(path / name, dry_run)
        known = {str(manifest["fingerprint"]) for manifest in manifests}
        prepared = {_version_of(_manifest(folder, PREPARED)) for folder in remote.folders(path / PREPARED)}
        if keep_sources or newest["fingerprint"] not in prepared:
            known |= {state.fingerprint for state in _states(newest, path)}
        _clean_preparations(path / PREPARED, known, cleaned, dry_run)
        for folder in () if dry_run else (path / PREPARED, path / VERSIONS):
            with suppress(OSError):  # not empty
                folder.rmdir()
    return cleaned


def clean_quietly(store: GraphStore) -> None:
    """`clean` after a commit, ignoring errors. Folders at a URL are not cleaned, because they have no reader locks."""
    if store.folder.url is None:
        with suppress(LargeGTError, OSError):
            clean(store.path, keep_sources=True)


def _clean_versions(
    path: Path, newest: str, needed: dict[str, set[Path]], cleaned: Cleaned, dry_run: bool
) -> Iterator[dict[str, Any]]:
    """Remove unused versions; yield the manifests of the others."""
    for name in remote.names(path / VERSIONS):
        version = name.removesuffix(".json")
        if version == name or not FINGERPRINT.fullmatch(version):
            continue
        remote.refresh(path, f"{VERSIONS}/{name}")
        with _lock_if_unused(path / VERSIONS / name) as is_free:
            if is_free and (version == newest or not needed.get(version)):
                cleaned.versions.append(version)
                remote.remove_file(path / VERSIONS / name, dry_run)
                continue
        cleaned.kept[version] = sorted(str(run) for run in needed.get(version, ()))
        yield ArrayFolder(path, KIND, version, check=False).manifest


def _clean_preparations(path: Path, versions: set[str], cleaned: Cleaned, dry_run: bool) -> None:
    """Remove preparations of removed versions, and stages that no preparation names."""
    named: set[tuple[str, str]] = set()
    for folder in remote.folders(path):
        manifest = _manifest(folder, PREPARED)
        if _version_of(manifest) in versions or not _remove(folder, manifest, cleaned, dry_run):
            named |= {(str(stage), str(key)) for stage, key in manifest.get("meta", {}).get("stages", {}).items()}
    for stage in remote.names(path):
        refuse_links_out(path, path / stage)
        for folder in remote.folders(path / stage):
            if (stage, folder.name) not in named:
                _remove(folder, _manifest(folder, "stage"), cleaned, dry_run)


def _version_of(manifest: dict[str, Any]) -> str | None:
    """The store version of a preparation; None if its manifest is invalid."""
    meta = manifest.get("meta", {})
    readable = isinstance(meta.get("stages"), dict) and isinstance(meta.get("store"), dict)
    return str(meta["store"].get("fingerprint")) if readable else None


def _manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder; empty if it is unreadable."""
    with suppress(LargeGTError):
        return ArrayFolder(folder, kind, check=False).manifest
    return {}


def _remove(folder: Path, manifest: dict[str, Any], cleaned: Cleaned, dry_run: bool) -> bool:
    """Remove a folder unless a process reads or writes it; return whether it was free."""
    try:
        lock = Lock(folder, "cleaning")
    except HeldError:
        return False
    with lock, _lock_if_unused(folder / MANIFEST) as is_free:
        if is_free:
            cleaned.preparations.append(f"{folder.parent.name}/{folder.name}")
            cleaned.num_files += len(manifest.get("arrays", {}))
            cleaned.num_bytes += sum(entry["bytes"] for entry in manifest.get("arrays", {}).values())
            if not dry_run:
                remote.remove_folder(folder)
    if not dry_run:
        with suppress(OSError):  # not empty
            folder.parent.rmdir()
    return is_free


@contextmanager
def _lock_if_unused(manifest: Path) -> Iterator[bool]:
    """Yield whether no other process has this manifest open; lock it inside the block."""
    try:
        stream = open(manifest, "rb")  # noqa: SIM115 - closed below
    except OSError:
        yield True
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
