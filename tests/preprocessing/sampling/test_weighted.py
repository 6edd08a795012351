"""LocalNodes in proportion to edge weights: chi-square tests against every order in which nodes can be drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.preprocessing.sampling.local_nodes import local_nodes, weighted_csr
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from largegt.preprocessing.sampling.weighted import weighted_rows
from oracles.local_nodes import check_row, neighbor_sets, neighborhood
from oracles.statistics import fit_p
from oracles.weighted import along, set_chances, walk_chances, weight_matrix

ROUNDS = 4000
EDGES = np.array([
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 1, 8],
    [1, 2, 3, 4, 5, 6, 6, 2, 7, 0, 8, 1, 9, 9, 5, 2, 3],
])  # fmt: skip
WEIGHTS = [5.0, 1.0, 0.3, 2.0, 4.0, 0.2, 1.5, 9.0, 1.0, 0.7, 3.0, 0.4, 2.0, 2.0, 1.0, 0.6, 1.1]
NUM_NODES = 11


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    folder: Path = tmp_path_factory.mktemp("weighted") / "g"
    return ingest(sources.arrays(EDGES, num_nodes=NUM_NODES, weights=WEIGHTS), folder)


def drawn(store: GraphStore, direction: Any, k: int, hop1_slots: int, max_walks: int, i: int = 0) -> list[list[int]]:
    """Rows of a node, round after round, without the node itself."""
    lists = weighted_csr(store, direction)
    rows = np.empty((ROUNDS, 1, k), dtype=np.int32)
    for epoch in range(ROUNDS):
        weighted_rows(*lists, np.array([i]), hop1_slots, max_walks, 7, epoch, rows[epoch])
    assert (rows[:, 0, 0] == i).all()
    return rows[:, 0, 1:].tolist()  # type: ignore[no-any-return]


def chances_of(direction: str, i: int = 0) -> dict[str, np.ndarray]:
    return walk_chances(along(weight_matrix(EDGES, WEIGHTS, NUM_NODES), direction), i)


def sets_fit(found: list[frozenset[int]], chances: np.ndarray, wanted: int) -> float:
    expected = set_chances(chances, wanted)
    counts = Counter(found)
    assert set(counts) <= set(expected)
    return fit_p([counts[each] for each in expected], list(expected.values()))


@pytest.mark.slow
@pytest.mark.parametrize("max_walks", [-1, 0, 3, 10_000], ids=["as is", "race", "walks, then race", "walks"])
@pytest.mark.parametrize("direction", ["both", "out"])
def test_either_hop_without_replacement(store: GraphStore, direction: str, max_walks: int) -> None:
    found = [frozenset(row) for row in drawn(store, direction, 4, -1, max_walks)]
    assert {len(each) for each in found} == {3}
    assert sets_fit(found, chances_of(direction)["either"], 3) > 1e-4


@pytest.mark.parametrize("max_walks", [-1, 0, 2, 10_000], ids=["as is", "race", "walks, then race", "walks"])
def test_slots_for_each_hop_without_replacement(store: GraphStore, max_walks: int) -> None:
    chances = chances_of("both")
    rows = drawn(store, "both", 5, 2, max_walks)
    near = set(np.flatnonzero(chances["is_neighbor"]).tolist())
    assert sets_fit([frozenset(row) & near for row in rows], chances["is_neighbor"], 2) > 1e-4
    assert sets_fit([frozenset(row) - near for row in rows], chances["far"], 2) > 1e-4


def test_more_slots_than_nodes_are_filled_with_replacement(store: GraphStore) -> None:
    """Node 9 has two neighbours: each slot is the end of a walk of one step or two."""
    either = chances_of("both", 9)["either"]
    ends = np.array(drawn(store, "both", 30, -1, -1, i=9)[:200]).ravel()
    assert fit_p(np.bincount(ends, minlength=NUM_NODES), either / either.sum()) > 1e-4
    split = np.array(drawn(store, "both", 30, 4, -1, i=9)[:20])
    everyone = set(np.flatnonzero(either).tolist())
    assert all(set(row) == everyone for row in split.tolist()), "each at least once"


def test_long_lists_are_drawn_from_by_their_blocks(tmp_path: Path) -> None:
    """A star of 1000 leaves behind other lists, so that its list begins and ends amid blocks."""
    rng = np.random.default_rng(1)
    leaves = np.arange(1001) + 1
    edges = np.stack([np.append(np.zeros(5, int), np.full(1001, 1)), np.append(np.arange(2, 7), leaves)])
    weights = np.append(np.ones(5), rng.exponential(1.0, 1001))
    store = ingest(sources.arrays(edges, weights=weights), tmp_path / "g")
    chances = walk_chances(weight_matrix(edges, weights, store.num_nodes), 1)["is_neighbor"]
    ends = np.array(drawn(store, "out", 2, 1, 1, i=1))[:, 0]
    by_forty = [np.add.reduceat(each, np.arange(0, store.num_nodes, 40))
                for each in (np.bincount(ends, minlength=store.num_nodes), chances)]  # fmt: skip
    assert fit_p(*by_forty) > 1e-4


@pytest.mark.parametrize("hop1_fraction", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [2, 6, 40])
def test_rows_obey_algorithm_1(graph: Any, tmp_path: Path, hop1_fraction: float | None, k: int) -> None:
    """And they do not depend on threads, order or which nodes are asked for, and are those of a SciPy matrix."""
    store = ingest(sources.arrays(graph.edges, num_nodes=30, weights=np.ceil(graph.weights)), tmp_path / "g")
    neighbors = neighbor_sets(graph.edges.T, 30, "both")
    rows = local_nodes(store, k=k, seed=3, hop1_fraction=hop1_fraction, weighted=True, threads=2)
    for i in range(30):
        check_row(rows[i], i, neighborhood(neighbors, i), 30)
    some = np.array([17, 3, 29, 3])
    assert np.array_equal(rows[some], local_nodes(store, some, k, 3, hop1_fraction=hop1_fraction, weighted=True))
    matrix = sp.coo_array((np.ceil(graph.weights), tuple(graph.edges)), shape=(30, 30))
    assert np.array_equal(rows, local_nodes(matrix, k=k, seed=3, hop1_fraction=hop1_fraction, weighted=True))
    assert not np.array_equal(rows, local_nodes(store, k=k, seed=4, hop1_fraction=hop1_fraction, weighted=True))


def test_where_there_are_no_weights_it_says_so(store: GraphStore, tmp_path: Path) -> None:
    plain = ingest(sources.arrays(EDGES), tmp_path / "g")
    with pytest.raises(InputError, match="no edge weights"):
        local_nodes(plain, weighted=True)
    with pytest.raises(ConfigError, match="use_edge_weights=false"):
        local_nodes(MappedCSR.of_store(store, "both"), weighted=True)
    with pytest.raises(InputError, match="positive"):
        local_nodes(sp.csr_array(np.array([[0, -1.0], [1, 0]])), direction="out", weighted=True)
