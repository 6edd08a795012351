"""LocalNodes over neighbour lists that lie elsewhere: the local kernel's rows, in few requests, within a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import largegt as lg
from largegt.errors import InputError
from largegt.preprocessing.sampling import uniform
from largegt.preprocessing.sampling.local_nodes import csr_and_reverse, local_nodes
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR, NeighborLists, split_by_size
from largegt.preprocessing.sampling.remote_sampling import BUFFER_BYTES, remote_rows
from oracles.graphs import SIX_NODES


def scale_free(num_nodes: int, num_edges: int, seed: int) -> np.ndarray:
    """Edges between nodes of which the first are hubs; the last two nodes have none."""
    rng = np.random.default_rng(seed)
    ends = (rng.random((num_edges, 2)) ** 3 * (num_nodes - 2)).astype(np.int64)
    return ends[ends[:, 0] != ends[:, 1]]


def clique_and_more(size: int, others: int) -> np.ndarray:
    """A clique, where tries run out; a path hangs on it."""
    inside = [(i, j) for i in range(size) for j in range(i)]
    return np.array(inside + [(size + i, size + i - 1) for i in range(others)])


GRAPHS: dict[str, tuple[Any, int]] = {
    "six nodes": (SIX_NODES, 6),
    "no edge": (np.zeros((0, 2), int), 5),
    "star": ([(0, i) for i in range(1, 900)], 900),
    "clique": (clique_and_more(120, 40), 160),
    "hubs": (scale_free(4_000, 40_000, 1), 4_000),
    "sparse hubs": (scale_free(30_000, 40_000, 2), 30_000),
}


class Logged(NeighborLists):
    """Only `neighbors`, or everything, of other lists; keeps what was asked for and how much came back."""

    def __init__(self, lists: NeighborLists, bare: bool = False, log: list[tuple[str, int]] | None = None) -> None:
        self.lists, self.bare, self.num_nodes = lists, bare, lists.num_nodes
        self.log: list[tuple[str, int]] = [] if log is None else log

    @property
    def reverse(self) -> Logged:
        return Logged(self.lists.reverse, self.bare, self.log)

    def neighbors(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert (np.diff(nodes) > 0).all(), "asked twice for the same list"
        found = self.lists.neighbors(nodes)
        self.log.append(("neighbors", found[1].nbytes))
        return found

    def degrees(self, nodes: np.ndarray) -> np.ndarray:
        return super().degrees(nodes) if self.bare else self._told("degrees", self.lists.degrees(nodes))

    def at(self, nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
        return super().at(nodes, places) if self.bare else self._told("at", self.lists.at(nodes, places))

    def has(self, nodes: np.ndarray, others: np.ndarray) -> np.ndarray:
        return super().has(nodes, others) if self.bare else self._told("has", self.lists.has(nodes, others))

    def _told(self, what: str, answer: np.ndarray) -> np.ndarray:
        self.log.append((what, answer.nbytes))
        return answer


def both(name: str, direction: Any) -> tuple[tuple[np.ndarray, ...], MappedCSR]:
    edges, num_nodes = GRAPHS[name]
    edges = np.asarray(edges).reshape(-1, 2)
    matrix = sp.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(num_nodes, num_nodes))
    csr = csr_and_reverse(matrix, direction)
    return csr, MappedCSR(*csr[:2], MappedCSR(*csr[2:]))


@pytest.mark.parametrize("hop1", [-1, 0, 6])
@pytest.mark.parametrize("direction", ["out", "in", "both"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_rows_as_the_local_kernel_each_way(name: str, direction: Any, hop1: int) -> None:
    csr, lists = both(name, direction)
    nodes = np.arange(0, lists.num_nodes, max(1, lists.num_nodes // 300))
    for way in (uniform.ANY_METHOD, uniform.BY_PATHS, uniform.BY_NODES, uniform.BY_LISTING):
        expected, found = np.empty((2, len(nodes), 20), np.int32)
        uniform.local_nodes_rows(*csr, nodes, hop1, way, 3, 5, expected)
        remote_rows(lists, nodes, hop1, way, 3, 5, found)
        assert np.array_equal(found, expected), (way, np.flatnonzero((found != expected).any(axis=1))[:5])


@pytest.mark.parametrize("name", ["clique", "hubs"])
@pytest.mark.parametrize("buffer_bytes", [1, 20_000, 1_000_000])
def test_any_buffer_gives_the_same_rows(name: str, buffer_bytes: int) -> None:
    csr, lists = both(name, "both")
    nodes = np.arange(0, lists.num_nodes, 25)
    for way in (uniform.ANY_METHOD, uniform.BY_PATHS, uniform.BY_NODES):
        expected, found = np.empty((2, len(nodes), 12), np.int32)
        uniform.local_nodes_rows(*csr, nodes, -1, way, 0, 0, expected)
        remote_rows(lists, nodes, -1, way, 0, 0, found, buffer_bytes)
        assert np.array_equal(found, expected)


def test_lists_that_only_know_neighbors_will_do() -> None:
    csr, lists = both("hubs", "out")
    nodes = np.arange(0, 4_000, 11)
    expected, found = np.empty((2, len(nodes), 30), np.int32)
    for way in (uniform.BY_PATHS, uniform.BY_NODES, uniform.BY_LISTING):
        uniform.local_nodes_rows(*csr, nodes, -1, way, 0, 1, expected)
        remote_rows(Logged(lists, bare=True), nodes, -1, way, 0, 1, found)
        assert np.array_equal(found, expected)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph_any_nodes(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=40))
    direction = data.draw(st.sampled_from(["out", "in", "both"]))
    k, way = data.draw(st.integers(2, 9)), data.draw(st.integers(-1, 2))
    nodes = np.array(data.draw(st.lists(node, max_size=10)), dtype=np.int64)  # in any order, some of them twice
    GRAPHS["any"] = (edges, num_nodes)
    csr, lists = both("any", direction)
    hop1 = data.draw(st.integers(-1, k - 1))
    expected, found = np.empty((2, len(nodes), k), np.int32)
    uniform.local_nodes_rows(*csr, nodes, hop1, way, 0, 0, expected)
    remote_rows(lists, nodes, hop1, way, 0, 0, found, data.draw(st.sampled_from([1, 500, BUFFER_BYTES])))
    assert np.array_equal(found, expected)


def test_requests_do_not_grow_with_the_nodes() -> None:
    _, lists = both("sparse hubs", "both")
    counts = []
    for step in (100, 10):
        logged = Logged(lists)
        nodes = np.arange(0, 30_000, step)
        remote_rows(logged, nodes, -1, uniform.ANY_METHOD, 0, 0, np.empty((len(nodes), 30), np.int32))
        counts.append(len(logged.log))
    assert max(counts) <= 16
    assert counts[1] <= counts[0] + 8


def test_the_list_of_a_hub_stays_where_it_is() -> None:
    """Leaves of a star see each other through its centre, whose list is as long as the graph: less than that travels
    for all of them together."""
    num_nodes = 60_000
    spokes = np.stack([np.zeros(num_nodes - 1, int), np.arange(1, num_nodes)], axis=1)
    GRAPHS["big star"] = (spokes, num_nodes)
    csr, lists = both("big star", "both")
    logged, nodes = Logged(lists), np.arange(1, 200)
    expected, found = np.empty((2, len(nodes), 20), np.int32)
    uniform.local_nodes_rows(*csr, nodes, -1, uniform.ANY_METHOD, 0, 0, expected)
    remote_rows(logged, nodes, -1, uniform.ANY_METHOD, 0, 0, found)
    assert np.array_equal(found, expected)
    hub_bytes = 4 * (num_nodes - 1)
    assert max(size for _, size in logged.log) < hub_bytes


@pytest.mark.slow
@pytest.mark.parametrize("way", [uniform.BY_PATHS, uniform.BY_NODES, uniform.BY_LISTING])
def test_no_answer_is_larger_than_the_buffer(way: int) -> None:
    """But for one node's own lists, which here are small."""
    _, lists = both("sparse hubs", "out")
    degrees = np.diff(lists.indptr)
    through = np.add.reduceat(np.append(degrees[lists.indices], 0), lists.indptr[:-1]) * (degrees > 0)
    nodes = np.flatnonzero(through < 2_000)
    for buffer_bytes in (40_000, 200_000):
        logged = Logged(lists)
        remote_rows(logged, nodes[::7], -1, way, 0, 0, np.empty((len(nodes[::7]), 20), np.int32), buffer_bytes)
        assert max(size for _, size in logged.log[1:]) <= buffer_bytes  # the first are the degrees of all nodes


def test_portions() -> None:
    assert list(split_by_size(np.array([3, 3, 3, 9, 1, 1]), 6)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(split_by_size(np.array([], int), 6)) == []
    assert list(split_by_size(np.array([0, 0, 0]), 0)) == [(0, 3)]


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_the_public_function_takes_lists(make_store: Any, direction: Any) -> None:
    store = make_store(scale_free(500, 3_000, 4), 500, undirected=False)
    lists = MappedCSR.of_store(store, direction)
    for more in ({}, {"hop1_fraction": 0.5}, {"nodes": [7, 3, 499, 3], "epoch": 2}, {"k": 1}):
        given = {"k": 9, "seed": 1, **more}
        expected = local_nodes(store, direction=direction, **given)
        for threads in (1, 3):
            assert np.array_equal(lg.local_nodes(lists, threads=threads, **given), expected)


def test_a_node_out_of_range_is_refused(make_store: Any) -> None:
    lists = MappedCSR.of_store(make_store(SIX_NODES, 6), "both")
    with pytest.raises(InputError, match="node 6 does not exist: nodes go from 0 to 5"):
        lg.local_nodes(lists, [2, 6])


def test_mapped_lists_answer_alike_whole_and_in_part(make_store: Any) -> None:
    store = make_store(scale_free(200, 900, 5), 200, undirected=False)
    whole = MappedCSR.of_store(store, "out")
    indptr, indices = store.csr("out")
    part = MappedCSR(indptr[50:151] - indptr[50], indices[indptr[50] : indptr[150]], first=50)
    rng = np.random.default_rng(0)
    nodes = np.sort(rng.choice(np.arange(50, 150), 30, replace=False))
    sets = {int(n): set(indices[indptr[n] : indptr[n + 1]].tolist()) for n in nodes}
    for lists in (whole, part, Logged(whole, bare=True)):
        found_indptr, found = lists.neighbors(nodes)
        for row, node in enumerate(nodes):
            assert found[found_indptr[row] : found_indptr[row + 1]].tolist() == sorted(sets[int(node)])
        assert lists.degrees(nodes).tolist() == [len(sets[int(n)]) for n in nodes]
        asked = rng.permutation(np.repeat(nodes, 5))
        others = rng.integers(0, 200, len(asked))
        expected = [int(o) in sets[int(n)] for n, o in zip(asked, others, strict=True)]
        assert lists.has(asked, others).tolist() == expected
        some = asked[[len(sets[int(n)]) > 0 for n in asked]]
        places = np.array([rng.integers(len(sets[int(n)])) for n in some])
        assert lists.at(some, places).tolist() == [sorted(sets[int(n)])[p] for n, p in zip(some, places, strict=True)]
