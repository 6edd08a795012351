"""Read edges: map the ids of both ends to node numbers, and write the pairs in runs on disk.

Enters: the edges of a `Source`, the `NodeIds`. Leaves: the pairs, with weights if edges have them, in an `EdgeBuilder`,
and the number of dropped edges. Cost: a chunk of edges and the memory of a run. For a large table, DuckDB joins both
ends with the node ids into a scratch file (12 bytes per edge), within the given memory.

A single process reads sequentially and resumes after a kill. Workers read parts of the files and write separate files
of pairs; parts are committed in order, so that the committed edges are always a prefix of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from largegt.errors import InputError
from largegt.runtime.progress import Progress
from largegt.runtime.workers import Workers, new_token
from largegt.types import Array

from .csr import EdgeBuilder
from .duckdb_connection import identifier, literal
from .ids import id_at, id_sql, join_ids, missing_sql
from .kernels import NO_WEIGHTS
from .nodes import NodeIds
from .pair_runs import EdgeKind, PairBuffer, RunFolder, SortedRun
from .parts import EDGE_CHUNK_ROWS, Edges, Source, TableEdges, edge_parts, num_parts
from .table_reading import Table

_MISSING = -2
"""Node number of an end without an id."""
_FEW_EDGES = EDGE_CHUNK_ROWS
"""Tables up to this number of edges look up ids chunk by chunk."""


@dataclass(frozen=True)
class FoundEdges:
    """Edges by node number, -1 for an end with an unknown id."""

    sources: Array
    targets: Array
    dropped: int
    weights: Array | None = None
    features: Array | None = None


Refuse = Callable[[], InputError] | None
"""Creates the error for an edge with an unknown id; None: drop such edges."""


def read_here(
    edges: Edges, nodes: NodeIds, builder: EdgeBuilder, dropped: int, refuse: Refuse, report: Progress
) -> tuple[int, int]:
    """Read the edges that `builder` has not seen; total numbers (edges seen, dropped)."""
    seen = builder.seen
    for found in found_edges(edges, nodes, seen):
        if found.dropped and refuse:
            raise refuse()
        seen, dropped = seen + len(found.sources), dropped + found.dropped
        weights = _weights(found) if builder.kind.weighted else NO_WEIGHTS
        builder.add(found.sources, found.targets, weights, edges_seen=seen, edges_dropped=dropped)
        report("read edges", seen, edges.total)
    return seen, dropped


def read_in_parts(
    edges: Edges, nodes: NodeIds, builder: EdgeBuilder, refuse: Refuse, workers: Workers, state: dict[str, Any],
    report: Progress,
) -> tuple[int, int]:  # fmt: skip
    """`read_here` with workers. `state` is the committed state: the number of parts, and of completed parts."""
    if state.get("edges_read_until") != builder.seen:  # not started, or `read_here` continued in between
        builder.forget()
        if file := _scratch_file(nodes, "edges"):
            file.unlink(missing_ok=True)
        state["edges_num_parts"] = num_parts(edges, workers)
    parts = edge_parts(edges, int(state["edges_num_parts"]), workers.memory)
    done, seen, dropped = (int(state.get(f"edges_{name}", 0)) for name in ("parts_done", "seen", "dropped"))
    task, token = ReadPart(nodes, builder.runs.folder, builder.kind, builder.run_pairs), new_token()
    if nodes.kind != "row":
        nodes.dictionary()
    calls = ((parts[at], f"{token}-{at}") for at in range(done, len(parts)))
    for at, part in enumerate(workers.run(task, calls, workers.memory), done):
        if part.dropped and refuse:
            raise refuse()
        seen, dropped = seen + part.seen, dropped + part.dropped
        builder.add_runs(
            part.runs, part.self_loops, edges_seen=seen, edges_read_until=seen, edges_dropped=dropped,
            edges_parts_done=at + 1,
        )  # fmt: skip
        report("read edges", seen, edges.total)
    return seen, dropped


@dataclass(frozen=True)
class PartRead:
    """Result of a worker for its part: runs and counts."""

    runs: list[SortedRun]
    seen: int
    dropped: int
    self_loops: int


@dataclass(frozen=True)
class ReadPart:
    """Reads edges and writes files of pairs."""

    nodes: NodeIds
    folder: RunFolder
    kind: EdgeKind
    run_pairs: int

    def __call__(self, edges: Edges, name: str) -> PartRead:
        seen = dropped = 0
        runs: list[SortedRun] = []

        def write(pairs: Array) -> None:
            runs.append(self.folder.write(f"{name}-{len(runs)}", pairs))

        buffer = PairBuffer(self.kind, self.run_pairs, write)
        for found in found_edges(edges, self.nodes, name=name):
            seen, dropped = seen + len(found.sources), dropped + found.dropped
            buffer.add(found.sources, found.targets, _weights(found) if self.kind.weighted else NO_WEIGHTS)
        buffer.flush()
        if used := _scratch_file(self.nodes, name):
            used.unlink(missing_ok=True)
        return PartRead(runs, seen, dropped, buffer.self_loops)


def _weights(found: FoundEdges) -> Array:
    """The weights of edges; ones if edges have no weights."""
    return np.ones(len(found.sources), dtype=np.float32) if found.weights is None else found.weights


def found_edges(
    edges: Edges, nodes: NodeIds, skip: int = 0, features: bool = False, name: str = "edges"
) -> Iterator[FoundEdges]:
    """The edges by node number, in chunks. `name` is the name of the scratch file for a large table."""
    numbered = _join_node_numbers(edges, nodes, _scratch_file(nodes, name), skip)
    for chunk in (numbered or edges).chunks(skip, features):
        sources, targets = chunk.sources, chunk.targets
        if numbered is None and nodes.kind == "row":
            sources, targets = nodes.find(sources), nodes.find(targets)
        elif numbered is None:
            sources, targets = np.split(nodes.find(join_ids([sources, targets])), 2)
        elif len(sources) and min(sources.min(), targets.min()) == _MISSING:
            for _ in edges.chunks():  # raises an error with the row without an id
                pass
        dropped = int(np.count_nonzero((sources < 0) | (targets < 0)))
        yield FoundEdges(sources, targets, dropped, chunk.weights, chunk.features)
        del chunk, sources, targets
        pa.default_memory_pool().release_unused()  # Arrow caches freed memory


def first_unknown(edges: Edges, nodes: NodeIds) -> Any:
    """The first unknown id in the edges."""
    for chunk in edges.chunks():
        places = np.stack(np.split(nodes.find(join_ids([chunk.sources, chunk.targets])), 2), axis=1)
        if (places < 0).any():
            row, end = divmod(int((places < 0).argmax()), 2)
            return id_at(chunk.targets if end else chunk.sources, row)
    raise AssertionError("every id is a node's")


def _scratch_file(nodes: NodeIds, name: str) -> Path | None:
    return None if nodes.means.scratch is None else nodes.means.scratch / f"{name}.numbered.parquet"


def _join_node_numbers(edges: Edges, nodes: NodeIds, file: Path | None, skip: int) -> TableEdges | None:
    """The edges of a large table with node numbers instead of ids (-1: unknown), joined into `file`. None if ids are
    looked up chunk by chunk: if a lookup table fits into memory, for few edges, or if an earlier run started so."""
    if file is None or nodes.kind == "row" or not isinstance(edges, TableEdges):
        return None
    table, ends = edges.table, (edges.source, edges.target)
    if not file.exists():
        is_quick = edges.has_integers and nodes.by_number is not None
        if skip or is_quick or not table.has_id_types(ends) or (table.num_rows or 0) <= _FEW_EDGES:
            return None
        others = [name for name in edges.columns(features=True) if name not in ends]
        memory = max(nodes.means.memory, table.memory)
        try:
            in_order = bool(edges.feature_names)
            table.write(file, partial(_join_sql, table, nodes, ends, others, in_order), memory, in_order)
        except InputError:
            for _ in edges.chunks():  # raises a clearer error for an invalid id
                pass
            raise
    joined = Table(file)
    joined.where = edges.where
    joined.stage(file, joined.columns, (), table.memory, nodes.means.threads)
    return replace(edges, table=joined)


def _join_sql(
    table: Table, nodes: NodeIds, ends: Sequence[str], others: Sequence[str], in_order: bool, rows: str
) -> str:  # fmt: skip
    """SQL query that replaces both ends in `rows` by node numbers."""
    kept = [f"{identifier(name)} AS o{at}" for at, name in enumerate(others)]
    inner = [f"{id_sql(name, table.types[name], nodes.kind)} AS e{at}" for at, name in enumerate(ends)]
    inner += [f"{missing_sql(name, table.types[name])} AS m{at}" for at, name in enumerate(ends)]
    number = ["row_number() OVER () AS r"] if in_order else []
    outer = [
        f"coalesce(k{at}.node, CASE WHEN m{at} THEN {_MISSING} ELSE -1 END) AS {identifier(name)}"
        for at, name in enumerate(ends)
    ]
    outer += [f"o{at} AS {identifier(name)}" for at, name in enumerate(others)]
    known = f"read_parquet({literal(nodes.dictionary())})"
    joins = " ".join(f"LEFT JOIN {known} k{at} ON e{at} = k{at}.id" for at in range(2))
    return f"SELECT {', '.join(outer)} FROM (SELECT {', '.join([*inner, *kept, *number])} FROM {rows}) {joins}" + (
        " ORDER BY r" if in_order else ""
    )


def unknown_id(source: Source, nodes: NodeIds) -> InputError:
    """The error for the first unknown id in the edges."""
    unknown = first_unknown(source.edges, nodes)
    if source.node_ids is None:
        return InputError(
            f"{source.edges.where}: node id {unknown!r} is out of range: {nodes.where} gives "
            f"{nodes.num_nodes} nodes, so ids go from 0 to {nodes.num_nodes - 1}; give a node table if "
            "ids are not row numbers"
        )
    return InputError(
        f"{source.edges.where}: node id {unknown!r} is not among the {nodes.num_nodes} ids of "
        f"{source.node_ids.where}; add it there, or drop such edges with unknown_ids=drop"
    )
