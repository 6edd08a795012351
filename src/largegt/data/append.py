"""append: add nodes and edges to a store.

Enters: a GraphStore and `Additions` (new nodes and edges; with `update`, new values of existing nodes). Leaves: a store
in place of the old one or at another path, with the same bytes as an ingest of all data with the same fitted columns,
old nodes first. Cost: one sequential pass over the old store and a sort of the new edges; the memory of an ingest. Old
edges are not sorted again: their rows are merged with the new rows. An append in place does not copy unchanged arrays.

An append in place writes a new version of the store. After a kill, the old version is unchanged, and the same command
resumes; readers of the old version keep it. `prepare` reuses valid parts of preparations of the old version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from largegt.errors import InputError, LargeGTError
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space
from largegt.io.locks import remove_stale
from largegt.io.remote import refuse_url
from largegt.runtime.memory import memory_budget
from largegt.runtime.progress import Progress, silent
from largegt.runtime.threads import num_threads
from largegt.runtime.workers import Threads
from largegt.types import Array, Direction, PathLike

from .additions import EDGE_ARRAYS, ID_ARRAYS, Additions, additions_in_files, ingest_config, refuse_payload
from .csr import EdgeBuilder, Rows, merge_rows, same_rows, write_rows
from .edge_reading import read_here
from .ids import text_buffers
from .ingest import write_degrees
from .kernels import NO_WEIGHTS
from .nodes import Means
from .pair_runs import EdgeKind, windows
from .parts import Source, chunk_rows
from .sources import FileSource
from .store import KIND, GraphStore
from .versions import clean_quietly, column_names, earlier_states, last_source, write_lineage

_log = logging.getLogger(__name__)

_CHUNK_ROWS = 1 << 20
_WINDOW_EDGES = 1 << 20
_SIDES: tuple[Direction, ...] = ("out", "in")
_TABLE = "scratch_table"
"""Scratch array: features of given nodes in table order."""


def append(
    store: GraphStore | PathLike,
    nodes: Any = None,
    edges: Any = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    *,
    update: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    **files: Any,
) -> GraphStore:
    """Add nodes and edges to a store; return the new version of the store.

    `nodes`, `edges` and other arguments (`features`, `labels`, `label_column`, `source_column`, …) are read as by
    `sources.files`; `nodes` may also be a whole `Source`. The store gets a new version, unless `out` is the path of a
    new store. New nodes follow the old ones, in the order of their table; without a split column they are in no split.
    Ids, classes and features have the same form as in the store; edges may connect new and old nodes. With `update`,
    rows of `nodes` with known ids replace the labels, split or features of these nodes, if the table has columns for
    them. An empty label or split keeps the old value.

    `memory` is the memory limit. After a kill, the same call resumes an append of files; repeating a complete append
    warns and changes nothing. Runs keep the version that they were trained on (`largegt clean`).
    """
    place = store.place if isinstance(store, GraphStore) else store
    refuse_url(place, "a store that is appended to")
    refuse_url(out or "", "a store that is appended to")
    target = Path(place if out is None else out)
    in_place = target.resolve() == Path(place).resolve()
    old = GraphStore.open(place)
    refuse_payload(old)
    given = nodes
    if not isinstance(nodes, Source | FileSource):
        given = additions_in_files(old, nodes, edges, update=update, **files)
    existing = old if in_place else None if overwrite else found_store(target)
    is_repeated = existing is not None and given.identity is not None and last_source(existing) == given.identity
    if existing and is_repeated and (in_place or earlier_states(existing)[-1].fingerprint == old.fingerprint):
        remove_stale(target)
        _log.warning(f"{existing.place} has these files already, they came last: nothing is appended")
        return existing
    identity = None if given.identity is None else [old.fingerprint, given.identity, update]
    with ArrayWriter(target, KIND, replace=in_place or overwrite, identity=identity) as writer:
        if GraphStore.open(place).fingerprint != old.fingerprint:  # changed before this process locked it
            raise InputError(f"{place} has just been changed by another process: run the same command again")
        old.check("out", "in", "both", features=True, progress=progress)
        count, budget = num_threads(threads), memory_budget(memory)
        source = given.opened(writer.partial / "tables", ingest_config(old), budget // 2, count)
        means = Means(budget // 4, count, writer.partial.absolute())
        new = Additions(old, source, means, update)
        changed = _Append(old, new, writer, progress or silent, count, budget).run(identity)
    if not changed and in_place:
        _log.warning(f"{old.place} has all of this already: nothing changes")
        return old
    old.folder.close()
    grown = GraphStore.open(target)
    clean_quietly(grown)
    return grown


def found_store(path: PathLike) -> GraphStore | None:
    """The store at `path`; None if there is none."""
    with suppress(LargeGTError):
        return GraphStore.open(path)
    return None


@dataclass(frozen=True)
class _Append:
    """One append: the old store, the additions, the writer, and limits."""

    old: GraphStore
    new: Additions
    writer: ArrayWriter
    report: Progress
    threads: int
    memory: int

    def run(self, identity: Any) -> bool:
        """Write all arrays. If nothing changes, return False and write no new version in place."""
        old, new, writer = self.old, self.new, self.writer
        require_space(writer.path, old.folder.num_bytes, f"{old.place} with what is appended")
        encoded = new.labels()
        split = new.split(encoded)
        self._write_ids()
        writer.save("labels", encoded.values)
        writer.save("split", split)
        writer.commit()  # an interrupted append resumes from here
        counts = self._write_edges(identity)
        self._write_features()
        meta = {
            **old.folder.meta,
            **counts,
            "num_nodes": new.num_nodes,
            "label_counts": encoded.counts,
            "num_labelled": encoded.num_labelled,
            "id_kind": new.ids.kind,
        }
        if meta["split_from"] == "none" and split.any():
            meta["split_from"] = "given"
        changed = {"touched": self._touched()}
        changed |= {name: self._updated(name) for name in ("features", "labels", "split")}
        is_changed = meta != old.folder.meta or any(len(nodes) for nodes in changed.values())
        if is_changed or writer.path.resolve() != old.path.resolve():
            notes = write_lineage(writer, old, changed, new.source.identity) | {"column_names": column_names(old)}
            writer.finish(meta, progress=self.report, notes=notes)
        return is_changed

    def _reused(self, names: Collection[str]) -> bool:
        """Reuse unchanged arrays of the old version if it is in the same folder; return whether it is."""
        if self.writer.path != self.old.path:
            return False
        for name in self.old.folder.manifest["arrays"]:  # in manifest order
            if name in names:
                self.writer.reuse(name, self.old.folder)
        return True

    # nodes

    def _write_ids(self) -> None:
        new, folder = self.new.ids, self.old.folder
        if not len(new.new) and self._reused(ID_ARRAYS):
            return
        if new.kind == "integer":
            self._grow("node_ids", "int64", (), new.known[0], lambda skip: iter([new.new[skip:]]))
        elif new.kind == "string":
            offsets, text = text_buffers(new.new)
            last = len(folder.array("node_id_bytes"))
            self._grow("node_id_offsets", "int64", (), folder.array("node_id_offsets"),
                       lambda skip: iter([offsets[1:][skip:] + last]))  # fmt: skip
            self._grow("node_id_bytes", "uint8", (), folder.array("node_id_bytes"), lambda skip: iter([text[skip:]]))

    def _write_features(self) -> None:
        old, new, writer = self.old, self.new, self.writer
        given = new.features
        if writer.has("features"):
            return
        if old.features_are_degrees:
            write_degrees(writer, new.num_nodes, old.feature_dtype)
            return
        if given is None and self._reused(["features"]):
            return
        before: Any = old.features
        new_rows = new.feature_blocks
        is_old = new.ids.nodes < old.num_nodes
        if given is not None and is_old.any():
            rows, new_at = self._read_table(), np.flatnonzero(~is_old)
            before, step = _RowReplacement(old.features, new.ids.nodes, rows), chunk_rows(old.num_features)

            def new_rows(skip: int = 0) -> Iterator[Array]:
                return (rows[new_at[at : at + step]] for at in range(skip, len(new_at), step))

        self._grow("features", old.feature_dtype, (old.num_features,), before, new_rows, "copy features")
        writer.drop(_TABLE)

    def _read_table(self) -> Array:
        """The features of all given nodes, new and old, in table order: a memory-mapped scratch array."""
        old, writer = self.old, self.writer
        table = writer.grow(_TABLE, old.feature_dtype, (old.num_features,))
        for block in self.new.feature_blocks(table.rows):
            table.append(block)
            writer.commit()
            self.report("read features", table.rows, len(self.new.ids.nodes))
        return table.so_far()

    def _grow(
        self, name: str, dtype: str, row_shape: tuple[int, ...], before: Any,
        new_rows: Callable[[int], Iterator[Array]], stage: str = "",
    ) -> None:  # fmt: skip
        """Write the rows `before` of the old store and then the new rows, resuming where an earlier run stopped.
        `new_rows(skip)` yields the new rows after the first `skip`."""
        if self.writer.has(name):
            return
        array = self.writer.grow(name, dtype, row_shape)
        step = chunk_rows(int(np.prod(row_shape))) if row_shape else _CHUNK_ROWS
        left = (before[start : start + step] for start in range(array.rows, len(before), step))
        for rows in chain(left, new_rows(max(0, array.rows - len(before)))):
            array.append(rows)
            self.writer.commit()
            if stage:
                self.report(stage, array.rows, self.new.num_nodes)
        self.writer.close(name)
        self.writer.commit()

    # edges

    def _write_edges(self, identity: Any) -> dict[str, Any]:
        """Write all edge arrays; return their manifest entries."""
        writer, meta = self.writer, self.old.folder.meta
        with ArrayWriter(writer.partial / "today", "scratch", replace=True, identity=identity) as scratch:
            added = self._read_edges(scratch)
            directed = self.old.directed
            if self.new.num_new or added["pairs"] or not self._reused(EDGE_ARRAYS):
                directed = self._merge_edges(scratch)
        num_edges = len(writer.array("out_indices"))
        pairs = meta["duplicates_merged"] + self.old.num_edges + added["pairs"]
        return {
            "num_edges": num_edges,
            "directed": directed,
            "self_loops_dropped": meta["self_loops_dropped"] + added["self_loops"],
            "duplicates_merged": pairs - num_edges,
            "unknown_edges_dropped": meta["unknown_edges_dropped"] + added["dropped"],
        }

    def _merge_edges(self, scratch: ArrayWriter) -> bool:
        """Merge old and new edges in every direction; return whether the graph is directed."""
        writer = self.writer
        self._merge("out", scratch)
        if not self.new.config.undirected and "directed" not in writer.state:
            self._merge("in", scratch)
            writer.commit(directed=not same_rows(writer, "out", "in"))
        directed = bool(writer.state.get("directed", False))
        if directed:
            out_rows, in_rows = (
                Rows(writer.array(f"{side}_indptr"), writer.array(f"{side}_indices")) for side in _SIDES
            )
            workers, merge = Threads(self.memory, self.threads), partial(merge_rows, out_rows, in_rows)
            self._write_rows("both", lambda first: workers.run(merge, windows(out_rows.indptr, first, _WINDOW_EDGES)))
        else:
            for name in ("in_indptr", "in_indices"):
                writer.drop(name)
        return directed

    def _read_edges(self, scratch: ArrayWriter) -> dict[str, int]:
        """Write the new edges as CSR rows into the scratch folder; return counts."""
        new = self.new
        workers, task_memory = Threads(self.memory, self.threads), self.memory // (self.threads + 2)
        kind = EdgeKind(new.num_nodes, new.config.undirected)
        builder = EdgeBuilder(scratch, kind, new.source.edges.total, workers, task_memory, self.report)
        try:
            dropped = int(scratch.state.get("edges_dropped", 0))
            if not builder.is_read:
                refuse = None if new.config.unknown_ids == "drop" else new.refused_edge
                _, dropped = read_here(new.source.edges, new.ids, builder, dropped, refuse, self.report)
                if builder.num_pairs:
                    builder.end()
            if builder.is_read:
                builder.finish()
            return {"pairs": builder.num_pairs, "self_loops": builder.self_loops, "dropped": dropped}
        finally:
            builder.close()

    def _merge(self, side: Direction, scratch: ArrayWriter) -> None:
        """Merge the neighbour rows of the old store with those of the new edges."""
        if self.writer.has(f"{side}_indices"):
            return
        old_indptr, old_indices = self.old.csr(side)
        prefix = side if scratch.has(f"{side}_indptr") else "out"  # undirected edges have one CSR
        if scratch.has("out_indptr"):
            new_indptr, new_indices = scratch.array(f"{prefix}_indptr"), scratch.array(f"{prefix}_indices")
        else:
            new_indptr, new_indices = np.zeros(self.new.num_nodes + 1, dtype=np.int64), old_indices[:0]
        num_old = self.new.ids.num_old
        sizes: Any = _IndptrSum(old_indptr, new_indptr)
        merge = partial(merge_rows, Rows(old_indptr, old_indices), Rows(new_indptr, new_indices))

        def new_rows(first: int) -> Iterator[tuple[Array, ...]]:
            for low, high in windows(new_indptr, first, _WINDOW_EDGES):
                yield np.diff(new_indptr[low : high + 1]), new_indices[new_indptr[low] : new_indptr[high]], NO_WEIGHTS

        self._write_rows(side, lambda first: chain(
            Threads(self.memory, self.threads).run(merge, windows(sizes, min(first, num_old), _WINDOW_EDGES)),
            new_rows(max(first, num_old)),
        ))  # fmt: skip

    def _write_rows(self, name: str, rows: Callable[[int], Iterator[tuple[Array, ...]]]) -> None:
        report = partial(self.report, f"merge edges ({name})")
        write_rows(self.writer, name, EdgeKind(self.new.num_nodes, self.new.config.undirected), rows, report)

    # changed nodes

    def _touched(self) -> Array:
        """Old nodes with new neighbours."""
        old, writer = self.old, self.writer
        touched = np.zeros(old.num_nodes, dtype=np.bool_)
        for side in _SIDES:
            before = old.csr(side)[0]
            after = writer.array(f"{side if writer.has(f'{side}_indptr') else 'out'}_indptr")
            for start in range(0, old.num_nodes, _CHUNK_ROWS):
                stop = min(old.num_nodes, start + _CHUNK_ROWS)
                part = slice(start, stop + 1)
                touched[start:stop] |= np.diff(before[part]) != np.diff(after[part])
        return np.flatnonzero(touched)

    def _updated(self, name: str) -> Array:
        """Old nodes whose feature, label or split array (`name`) changed. Degrees are not updated."""
        if not self.new.update or (name == "features" and self.old.features_are_degrees):
            return np.zeros(0, dtype=np.int64)
        before, after = self.old.folder.array(name), self.writer.array(name)
        step = chunk_rows(int(np.prod(before.shape[1:])))
        found = []
        for start in range(0, self.old.num_nodes, step):
            rows = slice(start, min(start + step, self.old.num_nodes))
            bits = [np.ascontiguousarray(array[rows]).view(f"u{array.itemsize}") for array in (before, after)]
            differ = (bits[0] != bits[1]).reshape(rows.stop - start, -1).any(axis=1)
            found.append(start + np.flatnonzero(differ))
        return np.concatenate(found)


class _IndptrSum:
    """Lazy sum of two indptr arrays, with the length of the first."""

    def __init__(self, a: Array, b: Array) -> None:
        self.a, self.b = a, b

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, at: Any) -> Any:
        return self.a[at] + self.b[at]


class _RowReplacement:
    """An array in which `rows[i]` replaces row `nodes[i]`, if this row exists."""

    def __init__(self, before: Array, nodes: Array, rows: Array) -> None:
        self.before, self.rows = before, rows
        self.order = np.argsort(nodes)
        self.nodes = nodes[self.order]

    def __len__(self) -> int:
        return len(self.before)

    def __getitem__(self, part: slice) -> Array:
        block = np.array(self.before[part])
        low, high = np.searchsorted(self.nodes, [part.start, part.start + len(block)])
        block[self.nodes[low:high] - part.start] = self.rows[self.order[low:high]]
        return block
