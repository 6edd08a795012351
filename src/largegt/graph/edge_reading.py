"""Reading edges: every end becomes a node number, and every edge a pair in a run on disk.

Enters: the edges of a `Source`, the `NodeIds`. Leaves: the pairs, with weights where edges have them, in the hands of
an `EdgeBuilder`, and how many edges were dropped. Cost: a quarter of the memory for ids looked up together, and three
eighths for runs.

This process reads from front to back and goes on where it was killed. Workers read parts of the files, each into a file
of pairs of its own; parts are taken in order, so that what counts is always a beginning of the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..progress import Progress
from ..types import Array
from .csr import EdgeBuilder
from .ids import Ids, id_at, join_ids
from .nodes import NodeIds
from .pair_runs import Buckets, PairBuffer, PairFile
from .parts import Edges, Source, edge_parts, num_parts
from .workers import Workers, new_token, written_aside

_FIND_BYTES = 80
"""What it costs to look up both ends of an edge, besides twice the ids."""
_LEAST_BATCH, _MOST_BATCH = 1 << 16, 1 << 24
"""Edges whose ends are looked up at a time."""


@dataclass(frozen=True)
class Found:
    """Some edges by node number, -1 for an end that is not a node; and the first id that is none."""

    sources: Array
    targets: Array
    dropped: int
    unknown: Any
    values: Array | None = None
    """What comes with each edge: its weight [n], or its features [n, f]."""


def read_here(
    source: Source, nodes: NodeIds, builder: EdgeBuilder, text: bool, dropped: int, drop: bool, memory: int,
    report: Progress,
) -> tuple[int, int]:  # fmt: skip
    """Read all edges that `builder` has not seen yet; (edges seen, dropped) in all."""
    seen = builder.seen
    for found in found_edges(source.edges, nodes, text, seen, memory):
        if found.dropped and not drop:
            raise _refusal(source, nodes, found.unknown)
        seen, dropped = seen + len(found.sources), dropped + found.dropped
        builder.add(found.sources, found.targets, found.values, edges_seen=seen, edges_dropped=dropped)
        report("read edges", seen, source.edges.total)
    return seen, dropped


def read_in_parts(
    source: Source, nodes: NodeIds, builder: EdgeBuilder, text: bool, drop: bool, workers: Workers,
    state: dict[str, Any], report: Progress,
) -> tuple[int, int]:  # fmt: skip
    """As `read_here`, by workers. `state` is what is committed: the plan, and how many parts are done."""
    if state.get("edges_read_until") != builder.seen:  # nothing yet, or this process went on alone in between
        builder.forget()
        state["edges_num_parts"] = num_parts(source.edges, workers)
    parts = edge_parts(source.edges, int(state["edges_num_parts"]), workers.memory)
    done, seen, dropped = (int(state.get(f"edges_{name}", 0)) for name in ("parts_done", "seen", "dropped"))
    folder = builder.runs.folder
    folder.mkdir(exist_ok=True)
    task = ReadPart(
        nodes, folder, builder.runs.buckets, builder.undirected, text, builder.run_pairs, workers.memory // 4,
        builder.weighted,
    )  # fmt: skip
    token = new_token()
    calls = ((parts[at], f"{token}-{at}") for at in range(done, len(parts)))
    for at, part in enumerate(workers.run(task, calls, workers.memory), done):
        if part.dropped and not drop:
            raise _refusal(source, nodes, part.unknown)
        seen, dropped = seen + part.seen, dropped + part.dropped
        builder.add_file(
            f"{token}-{at}", part.starts, part.self_loops, edges_seen=seen, edges_read_until=seen,
            edges_dropped=dropped, edges_parts_done=at + 1,
        )  # fmt: skip
        report("read edges", seen, source.edges.total)
    return seen, dropped


@dataclass(frozen=True)
class PartRead:
    """What a worker tells of its part: where its runs begin, and the counts."""

    starts: Array
    seen: int
    dropped: int
    self_loops: int
    unknown: Any


@dataclass(frozen=True)
class ReadPart:
    """Reads some edges into a file of pairs."""

    nodes: NodeIds
    folder: Path
    buckets: Buckets
    undirected: bool
    text: bool
    run_pairs: int
    memory: int
    weighted: bool = False

    def __call__(self, edges: Edges, name: str) -> PartRead:
        seen, dropped, unknown = 0, 0, None
        with written_aside(self.folder / name) as aside:
            file = PairFile(aside, self.buckets)
            buffer = PairBuffer(self.buckets.num_nodes, self.undirected, self.run_pairs, file.add, self.weighted)
            for found in found_edges(edges, self.nodes, self.text, 0, self.memory):
                unknown = found.unknown if unknown is None else unknown
                seen, dropped = seen + len(found.sources), dropped + found.dropped
                buffer.add(found.sources, found.targets, found.values)
            buffer.flush()
            return PartRead(file.close(), seen, dropped, buffer.self_loops, unknown)


def found_edges(edges: Edges, nodes: NodeIds, text: bool, skip: int, memory: int) -> Iterator[Found]:
    """The edges by node number, as many together as memory allows to look up."""
    for columns, size, values in _batches(edges, text, skip, 0 if nodes.kind == "row" else memory):
        numbers = np.concatenate([nodes.find(column) for column in columns])
        sources, targets = numbers[:size], numbers[size:]
        missing = (sources < 0) | (targets < 0)
        unknown = None
        if missing.any():
            row = int(missing.argmax())
            unknown = _place_of(columns, row if sources[row] < 0 else size + row)
        found = Found(sources, targets, int(missing.sum()), unknown, values)
        del columns, numbers, sources, targets, missing, values  # before the next batch comes together
        yield found
        del found
        pa.default_memory_pool().release_unused()  # Arrow keeps what it has freed


def _batches(edges: Edges, text: bool, skip: int, memory: int) -> Iterator[tuple[list[Ids], int, Array | None]]:
    """(ids, number of edges, values) of chunks of edges, as many together as memory allows to look up at once: first
    all sources, then all targets, in one column where they are of one kind. Memory of 0: each chunk by itself."""
    waiting: list[tuple[Ids, Ids, Array | None]] = []
    size, cost = 0, 0
    for chunk in _chunks(edges, text, skip):
        for sources, targets, values in _slices(*chunk, memory):
            more = _cost(sources, targets)
            if waiting and (cost + more > memory or size + len(sources) > _MOST_BATCH):
                yield _joined(waiting)
                waiting, size, cost = [], 0, 0
            waiting.append((sources, targets, values))
            size, cost = size + len(sources), cost + more
            del sources, targets, values
        del chunk
    if waiting:
        yield _joined(waiting)


def has_values(edges: Edges) -> bool:
    """Whether its edges come with values."""
    return bool(getattr(edges, "has_values", False))


def _chunks(edges: Edges, text: bool, skip: int) -> Iterator[tuple[Ids, Ids, Array | None]]:
    if has_values(edges):
        yield from edges.valued_chunks(text, skip)  # type: ignore[attr-defined]
        return
    for sources, targets in edges.chunks(text, skip):
        yield sources, targets, None


def _cost(sources: Ids, targets: Ids) -> int:
    """Bytes to look these up."""
    return int(_FIND_BYTES * len(sources) + 2 * (sources.nbytes + targets.nbytes))


def _slices(
    sources: Ids, targets: Ids, values: Array | None, memory: int
) -> Iterator[tuple[Ids, Ids, Array | None]]:  # fmt: skip
    """A chunk in pieces that can be looked up within memory, unless that makes them very small."""
    pieces = -(-_cost(sources, targets) // memory) if memory else 1
    rows = max(_LEAST_BATCH, -(-len(sources) // pieces)) if pieces else 1
    for low in range(0, len(sources), rows):
        some = slice(low, low + rows)
        yield sources[some], targets[some], None if values is None else values[some]


def _joined(chunks: list[tuple[Ids, Ids, Array | None]]) -> tuple[list[Ids], int, Array | None]:
    """All sources, then all targets; how many edges; their values. The chunks are emptied."""
    size = sum(len(sources) for sources, _, _ in chunks)
    parts = [sources for sources, _, _ in chunks] + [targets for _, targets, _ in chunks]
    values = [values for _, _, values in chunks if values is not None]
    chunks.clear()
    return join_ids(parts), size, np.concatenate(values) if values else None


def _place_of(columns: list[Ids], place: int) -> Any:
    """The id at a place, counted over all columns."""
    for column in columns:
        if place < len(column):
            return id_at(column, place)
        place -= len(column)
    raise AssertionError(place)


def _refusal(source: Source, nodes: NodeIds, unknown: Any) -> InputError:
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
