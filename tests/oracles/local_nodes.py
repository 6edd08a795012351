"""LocalNodes (Algorithm 1) with Python sets: the neighbourhood T̂ by breadth-first search, and what a row must obey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def neighbor_sets(edges: Iterable[tuple[int, int]], num_nodes: int, direction: str) -> list[set[int]]:
    """The distinct neighbours of each node along `direction`, itself left out."""
    found: list[set[int]] = [set() for _ in range(num_nodes)]
    for source, target in edges:
        if source == target:
            continue
        if direction in ("out", "both"):
            found[int(source)].add(int(target))
        if direction in ("in", "both"):
            found[int(target)].add(int(source))
    return found


def neighborhood(neighbors: Sequence[set[int]], i: int, hops: int = 2) -> set[int]:
    """T̂(i): the nodes at distance 1 to `hops` from i, without i."""
    seen = {i}
    frontier = {i}
    for _ in range(hops):
        frontier = {v for j in frontier for v in neighbors[j]} - seen
        seen |= frontier
    return seen - {i}


def num_paths(neighbors: Sequence[set[int]], i: int) -> int:
    """Two-hop paths i→j→v, those back to i included."""
    return sum(len(neighbors[j]) for j in neighbors[i])


def paths_from(neighbors: Sequence[set[int]], i: int) -> list[int]:
    """The last node of every one- and two-hop path from i that does not lead back to i: T̂ with repetitions."""
    return list(neighbors[i]) + [v for j in neighbors[i] for v in neighbors[j] if v != i]


def check_row(row: Sequence[int], i: int, near: set[int], num_nodes: int) -> None:
    """What Algorithm 1 says of S_i, case by case."""
    first, *rest = (int(v) for v in row)
    assert first == i
    if len(near) >= len(rest):
        assert len(set(rest)) == len(rest), "without replacement"
        assert set(rest) <= near
    elif near:
        assert set(rest) <= near
    else:
        assert all(0 <= v < num_nodes for v in rest)
