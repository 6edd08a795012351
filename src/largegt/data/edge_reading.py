"""Reading edges: every end becomes a node number, and every edge a pair in a run on disk.

Enters: the edges of a `Source`, the `NodeIds`. Leaves: the pairs, with weights where edges have them, in the hands of
an `EdgeBuilder`, and how many edges were dropped. Cost: a quarter of the memory for ids looked up together, and three
eighths for runs.

This process reads from front to back and goes on where it was killed. Workers read parts of the files, each into
files of pairs of its own; parts are taken in order, so that what counts is always a beginning of the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..progress import Progress
from ..types import Array
from .csr import EdgeBuilder
from .ids import id_at, join_ids
from .kernels import NO_WEIGHTS
from .nodes import NodeIds
from .pair_runs import EdgeKind, PairBuffer, Run, RunFolder
from .parts import EdgeChunk, Edges, Source, edge_parts, num_parts
from .workers import Workers, new_token

_FIND_BYTES = 120
"""What it costs to look up both ends of an edge, besides twice the ids."""
_LEAST_BATCH, _MOST_BATCH = 1 << 16, 1 << 23
"""Edges whose ends are looked up at a time."""


@dataclass(frozen=True)
class FoundEdges:
    """Some edges by node number, -1 for an end that is not a node; and the first id that is none."""

    sources: Array
    targets: Array
    dropped: int
    unknown: Any
    weights: Array | None = None
    features: Array | None = None


def read_here(
    source: Source, nodes: NodeIds, builder: EdgeBuilder, dropped: int, drop: bool, memory: int, report: Progress
) -> tuple[int, int]:
    """Read all edges that `builder` has not seen yet; (edges seen, dropped) in all."""
    seen = builder.seen
    for found in found_edges(source.edges, nodes, seen, memory):
        if found.dropped and not drop:
            raise _refusal(source, nodes, found.unknown)
        seen, dropped = seen + len(found.sources), dropped + found.dropped
        weights = _weights(found) if builder.kind.weighted else NO_WEIGHTS
        builder.add(found.sources, found.targets, weights, edges_seen=seen, edges_dropped=dropped)
        report("read edges", seen, source.edges.total)
    return seen, dropped


def read_in_parts(
    source: Source, nodes: NodeIds, builder: EdgeBuilder, drop: bool, workers: Workers, state: dict[str, Any],
    report: Progress,
) -> tuple[int, int]:  # fmt: skip
    """As `read_here`, by workers. `state` is what is committed: the plan, and how many parts are done."""
    if state.get("edges_read_until") != builder.seen:  # nothing yet, or this process went on alone in between
        builder.forget()
        state["edges_num_parts"] = num_parts(source.edges, workers)
    parts = edge_parts(source.edges, int(state["edges_num_parts"]), workers.memory)
    done, seen, dropped = (int(state.get(f"edges_{name}", 0)) for name in ("parts_done", "seen", "dropped"))
    task, token = (
        ReadPart(nodes, builder.runs.folder, builder.kind, builder.run_pairs, workers.memory // 4),
        new_token(),
    )
    calls = ((parts[at], f"{token}-{at}") for at in range(done, len(parts)))
    for at, part in enumerate(workers.run(task, calls, workers.memory), done):
        if part.dropped and not drop:
            raise _refusal(source, nodes, part.unknown)
        seen, dropped = seen + part.seen, dropped + part.dropped
        builder.add_runs(
            part.runs, part.self_loops, edges_seen=seen, edges_read_until=seen, edges_dropped=dropped,
            edges_parts_done=at + 1,
        )  # fmt: skip
        report("read edges", seen, source.edges.total)
    return seen, dropped


@dataclass(frozen=True)
class PartRead:
    """What a worker tells of its part: its runs, and the counts."""

    runs: list[Run]
    seen: int
    dropped: int
    self_loops: int
    unknown: Any


@dataclass(frozen=True)
class ReadPart:
    """Reads some edges into files of pairs."""

    nodes: NodeIds
    folder: RunFolder
    kind: EdgeKind
    run_pairs: int
    memory: int

    def __call__(self, edges: Edges, name: str) -> PartRead:
        seen, dropped, unknown = 0, 0, None
        runs: list[Run] = []

        def write(pairs: Array) -> None:
            runs.append(self.folder.write(f"{name}-{len(runs)}", pairs))

        buffer = PairBuffer(self.kind, self.run_pairs, write)
        for found in found_edges(edges, self.nodes, 0, self.memory):
            unknown = found.unknown if unknown is None else unknown
            seen, dropped = seen + len(found.sources), dropped + found.dropped
            buffer.add(found.sources, found.targets, _weights(found) if self.kind.weighted else NO_WEIGHTS)
        buffer.flush()
        return PartRead(runs, seen, dropped, buffer.self_loops, unknown)


def _weights(found: FoundEdges) -> Array:
    """The weights of edges; where they have none, each counts as one."""
    return np.ones(len(found.sources), dtype=np.float32) if found.weights is None else found.weights


def found_edges(
    edges: Edges, nodes: NodeIds, skip: int, memory: int, features: bool = False
) -> Iterator[FoundEdges]:  # fmt: skip
    """The edges by node number, as many together as memory allows to look up."""
    for chunk in _batches(edges, skip, 0 if nodes.kind == "row" else memory, features):
        ids = join_ids([chunk.sources, chunk.targets]) if nodes.kind != "row" else None
        if ids is None:
            sources, targets = nodes.find(chunk.sources), nodes.find(chunk.targets)
        else:
            sources, targets = np.split(nodes.find(ids), 2)
        missing = (sources < 0) | (targets < 0)
        unknown = None
        if missing.any():
            row = int(missing.argmax())
            unknown = id_at(chunk.sources if sources[row] < 0 else chunk.targets, row)
        found = FoundEdges(sources, targets, int(missing.sum()), unknown, chunk.weights, chunk.features)
        del ids, chunk, sources, targets, missing  # before the next batch comes together
        yield found
        del found
        pa.default_memory_pool().release_unused()  # Arrow keeps what it has freed


def _batches(edges: Edges, skip: int, memory: int, features: bool) -> Iterator[EdgeChunk]:
    """Chunks of edges, as many together as memory allows to look up at once. Memory of 0: each chunk by itself."""
    waiting: list[EdgeChunk] = []
    size, cost = 0, 0
    for chunk in edges.chunks(skip, features):
        for part in _slices(chunk, memory):
            more = _cost(part)
            if waiting and (cost + more > memory or size + len(part) > _MOST_BATCH):
                yield _joined(waiting)
                waiting, size, cost = [], 0, 0
            waiting.append(part)
            size, cost = size + len(part), cost + more
            del part
        del chunk
    if waiting:
        yield _joined(waiting)


def _cost(chunk: EdgeChunk) -> int:
    """Bytes to look these up."""
    return int(_FIND_BYTES * len(chunk) + 2 * (chunk.sources.nbytes + chunk.targets.nbytes))


def _slices(chunk: EdgeChunk, memory: int) -> Iterator[EdgeChunk]:
    """A chunk in pieces that can be looked up within memory, unless that makes them very small."""
    pieces = -(-_cost(chunk) // memory) if memory else 1
    rows = max(_LEAST_BATCH, -(-len(chunk) // pieces)) if pieces else 1
    for low in range(0, len(chunk), rows):
        yield chunk.part(low, low + rows)


def _joined(chunks: list[EdgeChunk]) -> EdgeChunk:
    """The chunks as one. The list is emptied."""
    if len(chunks) == 1:
        return chunks.pop()
    weights = [chunk.weights for chunk in chunks if chunk.weights is not None]
    features = [chunk.features for chunk in chunks if chunk.features is not None]
    joined = EdgeChunk(
        join_ids([chunk.sources for chunk in chunks]),
        join_ids([chunk.targets for chunk in chunks]),
        np.concatenate(weights) if weights else None,
        np.concatenate(features) if features else None,
    )
    chunks.clear()
    return joined


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
