"""LocalNodes (Algorithm 1) against sets and chi-square tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from largegt.errors import ConfigError, InputError
from largegt.preprocessing import kernels
from largegt.preprocessing.sampling import uniform
from largegt.preprocessing.sampling.local_nodes import csr_and_reverse, local_nodes
from oracles.graphs import SIX_NODES
from oracles.local_nodes import check_row, neighbor_sets, neighborhood, num_paths, paths_from
from oracles.statistics import independence_p, uniformity_p

DIRECTIONS = ["out", "in", "both"]


def matrix(edges: Any, num_nodes: int) -> sp.csr_array:
    edges = np.asarray(edges).reshape(-1, 2)
    return sp.csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(num_nodes, num_nodes))


# the three cases, on a hand-drawn graph: 3-2-1-0-4 and 5 alone ---------------------------------------------------


def test_enough_neighbours_are_drawn_without_replacement(make_store: Any) -> None:
    rows = local_nodes(make_store(SIX_NODES, 6), k=4)
    assert rows.dtype == np.int32
    assert rows[0, 0] == 0
    assert set(rows[0, 1:]) == {1, 2, 4}
    assert rows[1, 0] == 1
    assert set(rows[1, 1:]) < {0, 2, 3, 4}
    assert len(set(rows[1, 1:])) == 3


def test_few_neighbours_are_drawn_with_replacement(make_store: Any) -> None:
    rows = local_nodes(make_store(SIX_NODES, 6), k=40)
    near = [{1, 2, 4}, {0, 2, 3, 4}, {0, 1, 3}, {1, 2}, {0, 1}]
    for i, expected in enumerate(near):
        assert rows[i, 0] == i
        assert set(rows[i, 1:]) == expected


def test_no_neighbours_draws_from_all_nodes(make_store: Any) -> None:
    store = make_store(SIX_NODES, 6)
    rows = local_nodes(store, nodes=[5], k=200)
    assert rows[0, 0] == 5
    assert set(rows[0, 1:]) == set(range(6))
    drawn = np.concatenate([local_nodes(store, [5], k=50, epoch=e)[0, 1:] for e in range(60)])
    assert uniformity_p(np.bincount(drawn, minlength=6)) > 1e-4


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("k", [2, 3, 8, 30, 150])
def test_membership_on_a_random_graph(make_store: Any, random_edges: Any, direction: Any, k: int) -> None:
    edges = random_edges(60, 150)
    neighbors = neighbor_sets(edges, 60, direction)
    store = make_store(edges, 60, undirected=False)
    rows = local_nodes(store, k=k, direction=direction)
    assert np.array_equal(rows, local_nodes(matrix(edges, 60), k=k, direction=direction))
    for i in range(60):
        check_row(rows[i], i, neighborhood(neighbors, i), 60)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_whole_neighbourhood_by_direction(make_store: Any, random_edges: Any, direction: Any) -> None:
    """With many draws every member of T̂ shows up, and nothing else."""
    edges = random_edges(25, 40, 3)
    neighbors = neighbor_sets(edges, 25, direction)
    rows = local_nodes(make_store(edges, 25, undirected=False), k=600, direction=direction)
    for i in range(25):
        assert set(rows[i, 1:]) == (neighborhood(neighbors, i) or set(range(25)))


def test_self_loops_and_duplicates_of_a_scipy_matrix_do_not_count() -> None:
    clean = sp.coo_array((np.ones(3), ([0, 1, 2], [1, 2, 3])), shape=(5, 5))
    messy = sp.coo_array(
        (np.array([1.0, 1, 1, 2, -3, 1, 1]), ([0, 1, 2, 0, 1, 4, 0], [1, 2, 3, 1, 2, 4, 0])), shape=(5, 5)
    )
    for direction in DIRECTIONS:
        for k in (2, 3, 20):
            assert np.array_equal(
                local_nodes(clean, k=k, direction=direction), local_nodes(messy, k=k, direction=direction)
            )


def test_explicit_zeros_of_a_scipy_matrix_are_no_edges() -> None:
    graph = sp.coo_array((np.array([1.0, 0.0]), ([0, 0], [1, 2])), shape=(3, 3))
    assert set(local_nodes(graph, [0], k=50, direction="out")[0, 1:]) == {1}


@pytest.mark.parametrize("kind", [np.int8, np.bool_, np.float64])
def test_edges_in_both_directions_with_any_weights_stay(kind: Any) -> None:
    """1 and -1, or small integers whose sum wraps around, must not cancel in the undirected view."""
    weights = {np.int8: [1, -1], np.bool_: [True, True], np.float64: [2.5, -2.5]}[kind]
    graph = sp.csr_array((np.array(weights, dtype=kind), ([0, 1], [1, 0])), shape=(3, 3))
    assert set(local_nodes(graph, [0], k=9, direction="both")[0, 1:]) == {1}


def test_matrix_that_is_not_square_is_refused() -> None:
    for direction in DIRECTIONS:
        with pytest.raises(InputError, match="square"):
            local_nodes(sp.csr_array((3, 4)), k=2, direction=direction)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"k": 0}, ConfigError, "at least 1"),
        ({"k": -3}, ConfigError, "at least 1"),
        ({"nodes": [0, 6]}, InputError, "node 6 "),
        ({"nodes": [0, -1]}, InputError, "node -1 "),
        ({"nodes": [0, 10**12]}, InputError, "node 1000000000000 "),
        ({"nodes": np.array([1.5])}, InputError, "whole numbers or a mask"),
        ({"direction": "inn"}, ConfigError, "direction"),
        ({"hop1_fraction": 1.5}, ConfigError, "hop1_fraction"),
    ],
)
def test_what_cannot_be_is_refused(make_store: Any, given: dict[str, Any], error: Any, said: str) -> None:
    for graph in (matrix(SIX_NODES, 6), make_store(SIX_NODES, 6, undirected=False)):
        with pytest.raises(error, match=said):
            local_nodes(graph, **{"k": 3, **given})


def test_one_local_node_is_the_node_itself(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("nothing is to be sampled")

    monkeypatch.setattr(uniform, "local_nodes_rows", fail)
    store = make_store(SIX_NODES, 6)
    assert local_nodes(store, k=1).tolist() == [[node] for node in range(6)]
    assert local_nodes(store, [5, 2, 2], k=1, seed=3, hop1_fraction=0.5).tolist() == [[5], [2], [2]]
    with pytest.raises(InputError, match="node 6 "):
        local_nodes(store, [6], k=1)


def test_a_mask_is_not_taken_for_node_numbers(make_store: Any) -> None:
    mask = np.array([False, False, True, False, True, False])
    assert local_nodes(make_store(SIX_NODES, 6), mask, k=3)[:, 0].tolist() == [2, 4]


def test_no_nodes_asked_for(make_store: Any) -> None:
    assert local_nodes(make_store(SIX_NODES, 6), [], k=3).shape == (0, 3)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 9))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=25))
    direction, k = data.draw(st.sampled_from(DIRECTIONS)), data.draw(st.sampled_from([2, 3, 6, 200]))
    neighbors = neighbor_sets(edges, num_nodes, direction)
    rows = local_nodes(
        matrix(edges, num_nodes), k=k, direction=direction, seed=data.draw(st.integers(0, 2**40)), threads=1
    )
    for i in range(num_nodes):
        near = neighborhood(neighbors, i)
        check_row(rows[i], i, near, num_nodes)
        if k == 200:
            assert set(rows[i, 1:]) == (near or set(range(num_nodes)))


# a function of (seed, epoch, node) alone -------------------------------------------------------------------------


@pytest.mark.parametrize("hop1_fraction", [None, 0.5])
def test_threads_order_and_subset_change_nothing(hop1_fraction: float | None) -> None:
    rng = np.random.default_rng(2)
    edges = np.stack([(3000 * rng.random(20_000) ** 3).astype(int), rng.integers(3000, size=20_000)])

    def rows(nodes: Any = None, threads: int | None = None) -> np.ndarray:
        return local_nodes(edges, nodes, 20, 5, 2, threads=threads, hop1_fraction=hop1_fraction, num_nodes=3000)

    whole, order = rows(threads=1), rng.permutation(3000)
    assert all(np.array_equal(whole, rows(threads=threads)) for threads in (2, 16))
    assert np.array_equal(whole[order], rows(order, 2))
    assert np.array_equal(whole[[2999, 17, 17, 0]], rows(np.array([2999, 17, 17, 0])))


@pytest.mark.parametrize("part", ["seed", "epoch"])
def test_seeds_and_epochs_are_uncorrelated(make_store: Any, part: str) -> None:
    """In a ring of cliques of 9, the place of the drawn node under n and n + 1 are independent."""
    size, cliques = 9, 300
    edges = [(size * c + a, size * c + b) for c in range(cliques) for a in range(size) for b in range(a)]
    store = make_store(edges, size * cliques, width=1)
    drawn = [local_nodes(store, k=2, **{part: n})[:, 1] % size for n in (0, 1, 2)]
    own = np.arange(size * cliques) % size
    places = [(d - own - 1) % size for d in drawn]  # 0..7: which of the other eight
    assert not np.array_equal(places[0], places[1])
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert independence_p(places[a], places[b], size - 1) > 1e-4
    assert independence_p(places[0], places[0], size - 1) < 1e-6, "the test can fail"


def test_other_uses_of_the_same_seed_draw_other_numbers() -> None:
    """LocalNodes and the signs of the projection, both with seed 0: knowing one must not tell the other."""
    edges = [(3 * t + a, 3 * t + b) for t in range(1000) for a, b in ((0, 1), (1, 2), (2, 0))]
    choice = local_nodes(matrix(edges, 3000), k=2)[:, 1]
    others = np.array([[v for v in range(3 * (i // 3), 3 * (i // 3) + 3) if v != i] for i in range(3000)])
    second = (choice == others[:, 1]).astype(int)
    signs = np.empty((3000, 64), dtype=np.float32)
    kernels.random_signs(np.arange(3000), 0, signs)
    assert min(independence_p(second, (signs[:, c] > 0).astype(int), 2) for c in range(64)) > 1e-6


def test_members_of_one_clique_draw_independently(make_store: Any) -> None:
    size, cliques = 9, 300
    edges = [(size * c + a, size * c + b) for c in range(cliques) for a in range(size) for b in range(a)]
    store = make_store(edges, size * cliques, width=1)
    drawn = (local_nodes(store, k=2)[:, 1] % size).reshape(cliques, size)
    first = (drawn[:, 0] - 1) % size
    second = np.where(drawn[:, 1] == 0, 0, drawn[:, 1] - 1)
    assert independence_p(first, second, size - 1) > 1e-4


# uniform means uniform -------------------------------------------------------------------------------------------


def star(leaves: int) -> list[tuple[int, int]]:
    """Node 0 is the hub; leaf v is also tied to leaf v // 2, so that many leaves are reached by several paths."""
    return [(0, v) for v in range(1, leaves + 1)] + [(v // 2, v) for v in range(2, leaves + 1)]


def clique(size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size) for b in range(a)]


def bipartite(left: int, right: int) -> list[tuple[int, int]]:
    return [(a, left + b) for a in range(left) for b in range(right)]


def layered() -> list[tuple[int, int]]:
    """Directed: 0 → 1..20 → 21..60 with targets of very different in-degrees, edges inside 1..20, and some back."""
    rng = np.random.default_rng(4)
    edges = [(0, j) for j in range(1, 21)]
    edges += [(j, 21 + int(40 * rng.random() ** 3)) for j in range(1, 21) for _ in range(12)]
    edges += [(j, j % 20 + 1) for j in range(1, 21)] + [(j, 0) for j in range(1, 20, 2)]
    return edges


GRAPHS: dict[str, tuple[list[tuple[int, int]], int, str]] = {
    "hub": (star(60), 61, "both"),
    "leaf of a hub": ([(b, a) for a, b in star(60)] + [(61, 0)], 62, "both"),
    "clique": (clique(60), 60, "both"),
    "bipartite": (bipartite(6, 40), 46, "both"),
    "directed out": (layered(), 61, "out"),
    "directed in": ([(b, a) for a, b in layered()], 61, "in"),
    "directed both": (layered(), 61, "both"),
}
ROOT = {"leaf of a hub": 61}


WAYS = {"by paths": uniform.BY_PATHS, "by nodes": uniform.BY_NODES, "by listing": uniform.BY_LISTING}


def repeated(
    edges: Any, num_nodes: int, direction: Any, i: int, k: int, rounds: int, way: int = uniform.ANY_METHOD,
    hop1: int = -1,
) -> np.ndarray:  # fmt: skip
    """[rounds, k - 1] samples of node i, one per epoch."""
    csr = csr_and_reverse(matrix(edges, num_nodes), direction)
    nodes, rows = np.array([i]), np.empty((1, k), np.int32)
    drawn = np.empty((rounds, k - 1), np.int64)
    for epoch in range(rounds):
        uniform.local_nodes_rows(*csr, nodes, hop1, way, 11, epoch, rows)
        drawn[epoch] = rows[0, 1:]
    return drawn


class Desk:
    """What the inner loops of one node need, laid out once."""

    def __init__(self, edges: Any, num_nodes: int, direction: Any, i: int, k: int) -> None:
        self.csr = csr_and_reverse(matrix(edges, num_nodes), direction)
        self.i, self.start, self.stop = i, self.csr[0][i], self.csr[0][i + 1]
        self.state, self.row = np.zeros(1, np.uint64), np.empty(k - 1, np.int32)
        self.block_ends = np.zeros(uniform.PATH_BLOCKS, np.int64)
        self.bits = np.zeros(uniform.FILTER_BITS // 64, np.uint64)
        self.table = np.full(1024, -1, np.int64)
        self.paths, self.block = uniform.count_paths(*self.csr[:2], self.start, self.stop, self.block_ends)
        uniform.fill_filter(self.bits, self.csr[1], self.start, self.stop)

    def by_rejection(self, way: str, epoch: int, max_tries: int) -> bool:
        kernels.start_stream(self.state, kernels.FOR_LOCAL_NODES, 11, epoch, self.i)
        self.table[:] = -1
        by = (way == "by nodes", self.paths, self.block, self.block_ends)
        room = (self.bits, self.state, self.table, self.row, max_tries)
        return bool(uniform.sample_by_tries(*self.csr, self.i, True, *by, *room))


def counts_of(drawn: np.ndarray, members: set[int]) -> list[int]:
    """How often each member was drawn; nothing else may have been."""
    assert set(np.unique(drawn)) <= members
    return [int((drawn == v).sum()) for v in sorted(members)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GRAPHS)
def test_uniform_each_way(name: str, way: str) -> None:
    edges, num_nodes, direction = GRAPHS[name]
    i, k = ROOT.get(name, 0), 4
    members = neighborhood(neighbor_sets(edges, num_nodes, direction), i)
    drawn = repeated(edges, num_nodes, direction, i, k, 6_000, WAYS[way])
    assert all(len(set(row)) == k - 1 for row in drawn)
    assert uniformity_p(counts_of(drawn, members), k - 1) > 1e-4


@pytest.mark.parametrize("way", ["by paths", "by nodes"])
@pytest.mark.parametrize("name", GRAPHS)
def test_uniform_by_rejection_alone(name: str, way: str) -> None:
    """Without a limit to the tries, so that nothing falls back to listing."""
    edges, num_nodes, direction = GRAPHS[name]
    i = ROOT.get(name, 0)
    members = neighborhood(neighbor_sets(edges, num_nodes, direction), i)
    desk = Desk(edges, num_nodes, direction, i, 4)
    drawn = np.empty((4_000, 3), np.int64)
    for epoch in range(len(drawn)):
        assert desk.by_rejection(way, epoch, 1_000_000)
        drawn[epoch] = desk.row
    assert uniformity_p(counts_of(drawn, members), 3) > 1e-4


@pytest.mark.parametrize("way", ["by paths", "by nodes"])
def test_uniform_where_rejection_sometimes_gives_up(way: str) -> None:
    """A clique of 60 in a crowd of 1,500: tries often fail, some rounds run out of them and are listed instead. The
    kept rounds and the given-up ones have to be uniform each."""
    edges, num_nodes, k = clique(60), 1_500, 5
    neighbors = neighbor_sets(edges, num_nodes, "both")
    desk = Desk(edges, num_nodes, "both", 0, k)
    assert desk.paths == num_paths(neighbors, 0)
    price = uniform.PATHS_PER_NODE_TRY if way == "by nodes" else uniform.PATHS_PER_PATH_TRY
    rounds = 8_000
    gave_up = np.array([not desk.by_rejection(way, epoch, 2 * desk.paths // price) for epoch in range(rounds)])
    assert 0.005 < gave_up.mean() < 0.999, "both have to happen"
    drawn = repeated(edges, num_nodes, "both", 0, k, rounds, WAYS[way])
    members = neighborhood(neighbors, 0)
    assert uniformity_p(counts_of(drawn, members), k - 1) > 1e-4
    assert uniformity_p(counts_of(drawn[gave_up], members), k - 1) > 1e-4


def test_the_pilot_gives_up_by_counts_alone() -> None:
    assert uniform.should_give_up(256, 0, 99, 5_000)
    assert not uniform.should_give_up(256, 90, 99, 5_000)
    assert not uniform.should_give_up(255, 0, 99, 5_000)


@pytest.mark.parametrize("way", WAYS)
def test_more_wanted_than_there_are_falls_back_to_replacement(way: str) -> None:
    """Many paths to few nodes: K - 1 distinct ones cannot be found; what there is is drawn from with replacement."""
    edges, size, k = clique(40), 40, 60
    members = neighborhood(neighbor_sets(edges, size, "both"), 0)
    assert len(members) < k - 1
    drawn = repeated(edges, size, "both", 0, k, 400, WAYS[way])
    assert uniformity_p(counts_of(drawn, members)) > 1e-4
    assert any(len(set(row)) < len(members) for row in drawn), "with replacement some are missed"


@pytest.mark.parametrize("way", WAYS)
def test_pairs_are_uniform_too(way: str) -> None:
    """Every ordered pair of two draws is equally likely."""
    edges, num_nodes = [*bipartite(3, 4), (0, 1)], 7
    members = sorted(neighborhood(neighbor_sets(edges, num_nodes, "both"), 0))
    cells = {(a, b): n for n, (a, b) in enumerate((a, b) for a in members for b in members if a != b)}
    drawn = repeated(edges, num_nodes, "both", 0, 3, 9_000, WAYS[way])
    counts = np.bincount([cells[int(a), int(b)] for a, b in drawn], minlength=len(cells))
    assert uniformity_p(counts) > 1e-4


def test_listing_starts_again_with_other_limits() -> None:
    """Few distinct nodes on many paths: the first limit lets too few through. Many: more than can be held."""
    edges, num_nodes, k = clique(70), 70, 30
    members = neighborhood(neighbor_sets(edges, num_nodes, "both"), 0)
    drawn = repeated(edges, num_nodes, "both", 0, k, 3_000, uniform.BY_LISTING)
    assert uniformity_p(counts_of(drawn, members), k - 1) > 1e-4
    desk = Desk(star(400), 401, "both", 0, 5)
    tiny, table = np.empty(8, np.int64), np.empty(64, np.int64)
    counts = np.zeros(401, int)
    for epoch in range(4_000):
        kernels.start_stream(desk.state, kernels.FOR_LOCAL_NODES, 5, epoch, 0)
        own = desk.csr[1][desk.start : desk.stop]
        head = (*desk.csr[:2], 0, True, 1, desk.bits, desk.state)  # told of one path, so that it begins with no limit
        assert uniform.sample_by_listing(own, own, *head, table, tiny, desk.row) == 4
        counts[desk.row] += 1
    assert uniformity_p(counts[1:], 4) > 1e-4


def test_each_way_is_chosen_where_it_is_cheapest() -> None:
    assert uniform.choose_method(1_000, 10**6, 99) == uniform.BY_LISTING
    assert uniform.choose_method(10**6, 10**8, 99) == uniform.BY_PATHS
    assert uniform.choose_method(10**6, 10**5, 99) == uniform.BY_NODES


# strata ------------------------------------------------------------------------------------------------------------


def two_rings() -> tuple[list[tuple[int, int]], set[int], set[int]]:
    """Node 0 with 12 neighbours, some of them joined, and 40 nodes behind them with several paths each."""
    rng = np.random.default_rng(3)
    edges = [(0, j) for j in range(1, 13)] + [(1, 2), (3, 4)]
    edges += [(int(rng.integers(1, 13)), 13 + v) for v in range(40) for _ in range(1 + v % 4)]
    return edges, set(range(1, 13)), set(range(13, 53))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hop1", [0, 4, 10])
def test_strata_are_uniform_each(way: str, hop1: int) -> None:
    edges, near, far = two_rings()
    drawn = repeated(edges, 60, "both", 0, 11, 4_000, WAYS[way], hop1)
    is_near = np.isin(drawn, sorted(near))
    assert (is_near.sum(axis=1) == hop1).all()
    assert all(len(set(row)) == 10 for row in drawn)
    if hop1:
        assert uniformity_p(counts_of(drawn[is_near], near), hop1) > 1e-4
    if hop1 < 10:
        assert uniformity_p(counts_of(drawn[~is_near], far), 10 - hop1) > 1e-4
        assert uniformity_p(is_near.sum(axis=0) + 1, hop1) > 1e-4 or hop1 == 0, "slots are shuffled"


@pytest.mark.parametrize("way", WAYS)
def test_what_one_stratum_cannot_fill_the_other_does(way: str) -> None:
    edges, near, far = two_rings()
    mostly_near = repeated(edges, 60, "both", 0, 31, 50, WAYS[way], 25)
    assert all(near <= set(row) and len(set(row)) == 30 for row in mostly_near)
    mostly_far = repeated(edges, 60, "both", 0, 49, 50, WAYS[way], 2)
    assert all(far <= set(row) and len(set(row)) == 48 for row in mostly_far)
    everything = repeated(edges, 60, "both", 0, 80, 50, WAYS[way], 20)
    assert all(set(row) == near | far for row in everything)


def test_strata_of_the_public_function() -> None:
    edges, near, _ = two_rings()
    rows = local_nodes(matrix(edges, 60), [0, 59], k=11, hop1_fraction=0.4)
    assert len(near & set(rows[0, 1:])) == 4
    assert rows[1, 0] == 59


def test_hub_with_more_neighbours_than_path_blocks() -> None:
    """3,000 neighbours share 1,024 block ends: the block, then the neighbour in it, has to be found right."""
    rng = np.random.default_rng(0)
    leaves = 3 * uniform.PATH_BLOCKS - 5
    edges = [(0, v) for v in range(1, leaves + 1)]
    edges += [(int(rng.integers(1, leaves + 1)), leaves + int(rng.integers(1, 900))) for _ in range(4000)]
    num_nodes = leaves + 901
    members = neighborhood(neighbor_sets(edges, num_nodes, "out"), 0)
    drawn = repeated(edges, num_nodes, "out", 0, 41, 1_500)
    assert uniformity_p(counts_of(drawn, members), 40) > 1e-4


@pytest.mark.parametrize("name", ["hub", "bipartite", "directed out", "directed in", "directed both"])
def test_a_sampler_of_paths_would_be_caught(name: str) -> None:
    """Drawing uniform paths instead of nodes, as a list with repetitions does, fails the same test."""
    edges, num_nodes, direction = GRAPHS[name]
    neighbors = neighbor_sets(edges, num_nodes, direction)
    drawn = np.random.default_rng(0).choice(paths_from(neighbors, 0), size=16_000)
    members = neighborhood(neighbors, 0)
    assert uniformity_p(counts_of(drawn, members)) < 1e-6


def test_an_edge_index_will_do() -> None:
    edges = np.array(SIX_NODES).T
    from_matrix = local_nodes(matrix(SIX_NODES, 6), k=4)
    np.testing.assert_array_equal(local_nodes(edges, k=4, num_nodes=6), from_matrix)
    import torch

    np.testing.assert_array_equal(local_nodes(torch.from_numpy(edges), k=4, num_nodes=6), from_matrix)
    assert len(local_nodes(edges, k=4)) == 5, "node 5 has no edge, so nothing names it"
    for wrong in (edges.T, edges.astype(float), edges - 1):
        with pytest.raises(InputError):
            local_nodes(wrong, k=4, num_nodes=6)


def test_p_values_of_many_nodes_look_uniform() -> None:
    """One node may look odd by chance; the p-values of all of them together must not lean either way."""
    rng = np.random.default_rng(8)
    edges = [(int(40 * rng.random() ** 2), int(rng.integers(40))) for _ in range(140)]
    edges = [(a, b) for a, b in edges if a != b]
    p_values = []
    for direction in DIRECTIONS:
        neighbors = neighbor_sets(edges, 40, direction)
        for i in range(0, 40, 3):
            members = neighborhood(neighbors, i)
            for way in WAYS.values():
                if len(members) >= 8:
                    drawn = repeated(edges, 40, direction, i, 5, 700, way)
                    p_values.append(uniformity_p(counts_of(drawn, members), 4))
    assert len(p_values) > 60
    assert kstest(p_values, "uniform").pvalue > 1e-3
    assert min(p_values) > 1e-5
