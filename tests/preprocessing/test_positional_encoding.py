"""Positional encodings: the projection, node2vec's walks and its loss, Laplacian eigenvectors."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from largegt.config.schema import PositionalEncodingConfig
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing import laplacian as laplacian_home
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.positional_encoding import _random_walks, _skip_gram_loss, node2vec, write_positions
from oracles import walks as oracle
from oracles.context import adjacency
from oracles.graphs import SIX_NODES
from oracles.local_nodes import neighbor_sets

TWO_CLIQUES = [(a, b) for c in (0, 8) for a in range(c, c + 8) for b in range(c, a)] + [(0, 8)]
WALKS = PositionalEncodingConfig(method="node2vec", walk_length=8, walks_per_node=1, context_size=4, dim=8)


def positions(
    store: Any, nodes: Any, config: PositionalEncodingConfig, direction: Any = "both", threads: int | None = None,
    memory: int = 1 << 30,
) -> Any:  # fmt: skip
    with ArrayWriter(store.path / "rows", "test") as writer:
        write_positions(writer, store, np.asarray(nodes), config, direction, Engine(memory, threads))
        return np.array(writer.array("positions"))


def projection(
    store: Any, config: PositionalEncodingConfig, direction: Any = "both", threads: int | None = None
) -> Any:
    return positions(store, np.arange(store.num_nodes), config, direction, threads)


# projection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_projection_against_dense_powers(make_store: Any, random_edges: Any, direction: Any) -> None:
    """Σ_t w_t normalised((D⁻¹A)ᵗ R): R is read off a graph where every node's only successor is its twin."""
    edges = random_edges(30, 70)
    config = PositionalEncodingConfig(dim=70, seed=3, projection_weights=(0.5, 0.0, 2.0))
    signs = signs_of(make_store, 30, config)
    a = adjacency(edges, 30, direction)
    step = a / np.maximum(a.sum(axis=1, keepdims=True), 1)
    expected, power = np.zeros((30, 70)), signs
    for weight in config.projection_weights:
        power = step @ power
        length = np.linalg.norm(power, axis=1, keepdims=True)
        expected += weight * np.divide(power, length, out=np.zeros_like(power), where=length > 1e-9)
    found = projection(make_store(edges, 30, undirected=False), config, direction)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def signs_of(make_store: Any, num_nodes: int, config: PositionalEncodingConfig) -> np.ndarray:
    """R [N, p]: in a perfect matching the first power of node v is the sign row of its partner."""
    partner = np.arange(num_nodes) ^ 1
    store = make_store(np.stack([np.arange(num_nodes), partner], axis=1), num_nodes)
    rows = projection(store, config.model_copy(update={"projection_weights": (1.0,)}))
    signs = rows[partner] * np.sqrt(config.dim)
    np.testing.assert_allclose(np.abs(signs), 1, atol=1e-5)
    return np.sign(signs).astype(np.float64)


def test_signs_are_balanced_and_uncorrelated(make_store: Any) -> None:
    signs = signs_of(make_store, 600, PositionalEncodingConfig(dim=100))
    assert abs(signs.mean()) < 5 / np.sqrt(signs.size)
    between = signs.T @ signs / 600 - np.eye(100)
    assert np.abs(between).max() < 6 / np.sqrt(600)
    others = signs_of(make_store, 600, PositionalEncodingConfig(dim=100, seed=1))
    assert abs((signs * others).mean()) < 5 / np.sqrt(signs.size)


def test_projection_is_a_function_of_seed_and_graph_alone(make_store: Any, random_edges: Any) -> None:
    edges = random_edges(9000, 30_000)
    one, other = make_store(edges, 9000, width=1), make_store(edges, 9000, width=2, seed=9)
    config = PositionalEncodingConfig(dim=8)
    first = projection(one, config, threads=1)
    assert first.dtype == np.float32
    for threads in (2, 5):
        assert projection(other, config, threads=threads).tobytes() == first.tobytes()
    assert not np.allclose(projection(one, PositionalEncodingConfig(dim=8, seed=1)), first)


def test_same_neighbourhood_is_closer_than_others(make_store: Any) -> None:
    rng = np.random.default_rng(0)
    groups = [rng.choice(np.arange(20, 200), 6, replace=False) for _ in range(10)]
    edges = [(2 * g + twin, int(v)) for g in range(10) for twin in (0, 1) for v in groups[g]]
    rows = projection(make_store(edges, 200, width=1), PositionalEncodingConfig())
    twins = np.linalg.norm(rows[0:20:2] - rows[1:20:2], axis=1)
    strangers = np.linalg.norm(rows[0:18:2] - rows[2:20:2], axis=1)
    assert twins.max() < 1e-5
    assert strangers.min() > 0.5


def test_isolated_nodes_have_finite_rows(make_store: Any) -> None:
    rows = projection(make_store(SIX_NODES, 6), PositionalEncodingConfig(dim=4))
    assert np.isfinite(rows).all()
    assert not rows[5].any()


def test_positions_are_rows_of_the_nodes_asked_for(make_store: Any) -> None:
    store = make_store(SIX_NODES, 6)
    config = PositionalEncodingConfig(dim=4)
    assert np.array_equal(positions(store, np.array([1, 4]), config), projection(store, config)[[1, 4]])
    none = positions(store, np.array([4, 1]), PositionalEncodingConfig(method="none"))
    assert none.shape == (2, 0)
    assert none.dtype == np.float32


# node2vec's walks ------------------------------------------------------------------------------------------------


def walks_from(
    store: Any, starts: Any, config: PositionalEncodingConfig, direction: Any = "both", threads: int = 1
) -> np.ndarray:
    return _random_walks(store, config, direction, np.asarray(starts), 0, threads)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["out", "in", "both"])
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.3, 3.0)])
def test_walks_follow_edges(make_store: Any, random_edges: Any, direction: Any, p: float, q: float) -> None:
    edges = random_edges(40, 60)
    neighbors = neighbor_sets(edges, 40, direction)
    store = make_store(edges, 40, undirected=False)
    walks = walks_from(store, np.arange(40), WALKS.model_copy(update={"p": p, "q": q}), direction)
    assert walks[:, 0].tolist() == list(range(40))
    for walk in walks:
        for here, after in pairwise(walk):
            assert after in neighbors[here] or (not neighbors[here] and after == here)
    assert (walks[39] == 39).all(), "an isolated node stays"


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (0.5, 1.0)])
def test_second_order_bias(make_store: Any, p: float, q: float) -> None:
    """Each step given the two nodes before it, against the written-out probabilities."""
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (1, 5)]
    neighbors = neighbor_sets(edges, 6, "both")
    config = WALKS.model_copy(update={"p": p, "q": q, "walk_length": 30})
    walks = walks_from(make_store(edges, 6), np.arange(6).repeat(300), config)
    steps: dict[tuple[int | None, int], Counter[int]] = {}
    for walk in walks.tolist():
        steps.setdefault((None, walk[0]), Counter())[walk[1]] += 1
        for previous, here, after in zip(walk[:-2], walk[1:-1], walk[2:], strict=True):
            steps.setdefault((previous, here), Counter())[after] += 1
    assert len(steps) == 6 + 2 * len(edges)
    worst = 1.0
    against_uniform = 1.0
    for (previous, here), seen in steps.items():
        expected = oracle.transition(neighbors, previous, here, p, q)
        assert set(seen) <= set(expected)
        if len(expected) > 1:
            observed = [seen[target] for target in expected]
            worst = min(worst, chisquare(observed, [sum(observed) * share for share in expected.values()]).pvalue)
            against_uniform = min(against_uniform, chisquare(observed).pvalue)
    assert worst > 1e-4
    if (p, q) != (1.0, 1.0):
        assert against_uniform < 1e-6, "the test can fail"


def test_walks_are_the_same_for_any_number_of_threads(make_store: Any, random_edges: Any) -> None:
    store = make_store(random_edges(500, 1500), 500, width=1)
    config = WALKS.model_copy(update={"p": 0.5, "q": 2.0})
    starts = np.arange(500).repeat(20)
    one = walks_from(store, starts, config)
    assert np.array_equal(one, walks_from(store, starts, config, threads=3))
    assert not np.array_equal(one[0::20], one[1::20]), "walks from the same node differ"


# node2vec's training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "context", "negatives"), [(6, 3, 1), (6, 6, 2), (5, 2, 3)])
def test_skip_gram_loss_against_loops(length: int, context: int, negatives: int) -> None:
    rng = np.random.default_rng(0)
    table = torch.nn.Embedding(12, 4).double()
    walks = rng.integers(0, 12, (5, length))
    strangers = rng.integers(0, 12, (negatives * 5, length))
    found = _skip_gram_loss(table, torch.from_numpy(walks), torch.from_numpy(strangers), context)
    expected = oracle.skip_gram_loss(table.weight.detach().numpy(), walks, strangers, context)
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_context_longer_than_the_walk_is_the_whole_walk() -> None:
    table = torch.nn.Embedding(5, 3)
    walks, strangers = torch.tensor([[0, 1, 2]]), torch.tensor([[3, 4, 3]])
    assert _skip_gram_loss(table, walks, strangers, 20) == _skip_gram_loss(table, walks, strangers, 3)


@pytest.mark.slow
def test_two_cliques_come_apart(make_store: Any) -> None:
    store = make_store(TWO_CLIQUES, 16)
    config = PositionalEncodingConfig(
        method="node2vec",
        dim=8,
        walk_length=10,
        context_size=4,
        walks_per_node=5,
        epochs=25,
        batch_size=16,
        learning_rate=0.05,
    )
    rows = node2vec(store, config)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    alike = rows @ rows.T
    side = np.arange(16) // 8
    same = side[:, None] == side[None, :]
    assert alike[same].mean() > alike[~same].mean() + 0.3
    nearest = np.where(np.eye(16, dtype=bool), -np.inf, alike).argmax(axis=1)
    assert (side[nearest] == side).all()


def test_same_seed_same_bytes(make_store: Any) -> None:
    store = make_store(TWO_CLIQUES, 16)
    config = PositionalEncodingConfig(
        method="node2vec", dim=4, walk_length=6, context_size=3, walks_per_node=2, batch_size=5
    )
    first = node2vec(store, config, threads=1)
    assert first.shape == (16, 4)
    assert first.dtype == np.float32
    torch.manual_seed(99)
    assert node2vec(store, config, threads=2).tobytes() == first.tobytes()
    assert not np.array_equal(node2vec(store, config.model_copy(update={"seed": 1})), first)


# Laplacian eigenvectors ------------------------------------------------------------------------------------------


LAPLACIAN = PositionalEncodingConfig(method="laplacian", dim=6)


def eigen(edges: Any, num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(L, eigenvalues, eigenvectors) of the dense normalised Laplacian D^{-1/2}(D - A)D^{-1/2}, the zeros left out."""
    a = adjacency(edges, num_nodes, "both")
    degree = a.sum(axis=1)
    scale = np.diag(np.divide(1.0, np.sqrt(degree), out=np.zeros(num_nodes), where=degree > 0))
    matrix = scale @ (np.diag(degree) - a) @ scale
    values, vectors = np.linalg.eigh(matrix)
    return matrix, values[values > 1e-9], vectors[:, values > 1e-9]


def check_eigenvectors(edges: Any, num_nodes: int, rows: np.ndarray, atol: float = 1e-5) -> None:
    """Columns are orthonormal eigenvectors up to √N, with the smallest eigenvalues in rising order."""
    matrix, values, _ = eigen(edges, num_nodes)
    unit = rows.astype(np.float64) / np.sqrt(num_nodes)
    np.testing.assert_allclose(unit.T @ unit, np.eye(rows.shape[1]), atol=atol)
    np.testing.assert_allclose(matrix @ unit, unit * values[: rows.shape[1]], atol=atol)


@pytest.fixture(params=["dense", "lanczos"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small graphs take the dense way; here both."""
    monkeypatch.setattr(laplacian_home, "_DENSE_NODES", 10_000 if request.param == "dense" else 0)
    if request.param == "dense":
        monkeypatch.setattr("scipy.sparse.linalg.eigsh", None)
    else:
        monkeypatch.setattr(np.linalg, "eigh", None)
        monkeypatch.setattr(laplacian_home, "_TOLERANCE", 1e-9)
    return str(request.param)


@pytest.mark.parametrize("direction", ["out", "both"])
@pytest.mark.parametrize("num_edges", [60, 400])
def test_laplacian_against_dense_algebra(
    make_store: Any, random_edges: Any, way: str, direction: Any, num_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few edges: many components and isolated nodes, each with an eigenvalue 0 that has to be passed over."""
    edges = random_edges(90, num_edges)
    rows = positions(make_store(edges, 90, undirected=False), np.arange(90), LAPLACIAN, direction)
    monkeypatch.undo()
    assert rows.dtype == np.float32
    check_eigenvectors(edges, 90, rows)
    assert not rows[88:].any(), "a node without edges has zeros"


def test_laplacian_of_a_path_by_its_formula(make_store: Any, way: str) -> None:
    """L of a path of n nodes has the eigenvalues 1 - cos(πj / (n - 1)), its vectors √degree · cos(πji / (n - 1))."""
    n = 30
    rows = positions(make_store([(i, i + 1) for i in range(n - 1)], n), np.arange(n), LAPLACIAN)
    degree = np.full(n, 2.0)
    degree[[0, -1]] = 1.0
    for j in range(6):
        expected = np.sqrt(degree) * np.cos(np.pi * (j + 1) * np.arange(n) / (n - 1))
        expected *= np.sqrt(n) / np.linalg.norm(expected)
        sign = np.sign(rows[0, j] * expected[0])
        np.testing.assert_allclose(rows[:, j], sign * expected, atol=1e-4)


def test_signs_do_not_depend_on_the_solver(make_store: Any, random_edges: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(random_edges(90, 400), 90)
    found = []
    for nodes in (0, 10_000):
        monkeypatch.setattr(laplacian_home, "_DENSE_NODES", nodes)
        monkeypatch.setattr(laplacian_home, "_TOLERANCE", 1e-9)
        found.append(positions(store, np.arange(90), LAPLACIAN))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert (found[0].max(axis=0) >= -found[0].min(axis=0)).all(), "the largest entry is positive"


@pytest.mark.slow
def test_laplacian_is_the_same_for_any_threads_and_nodes(make_store: Any, random_edges: Any) -> None:
    edges = random_edges(3000, 9000)
    store = make_store(edges, 3000, width=1)
    every = positions(store, np.arange(3000), LAPLACIAN, threads=1)
    assert positions(store, np.arange(3000), LAPLACIAN, threads=3).tobytes() == every.tobytes()
    some = np.arange(5, 3000, 7)
    assert np.array_equal(positions(store, some, LAPLACIAN), every[some])
    assert np.array_equal(positions(store, some, LAPLACIAN.model_copy(update={"seed": 5})), every[some])
    check_eigenvectors(edges, 3000, every, atol=1e-4)


@pytest.mark.parametrize(("edges", "num_nodes", "count"), [(SIX_NODES, 6, 4), ([(0, 1)], 3, 1)])
def test_columns_that_the_graph_does_not_have_are_zero(
    make_store: Any, edges: Any, num_nodes: int, count: int
) -> None:  # fmt: skip
    rows = positions(make_store(edges, num_nodes), np.arange(num_nodes), LAPLACIAN)
    assert rows.shape == (num_nodes, 6)
    assert rows.any(axis=0).tolist() == [True] * count + [False] * (6 - count)
    check_eigenvectors(edges, num_nodes, rows[:, :count])


def test_laplacian_that_is_not_found_is_said(
    make_store: Any, random_edges: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian_home, "_MAX_RESTARTS", 1)
    with pytest.raises(ConfigError, match=r"of 6 Laplacian eigenvectors.*smaller prepare\.positional_encoding\.dim"):
        positions(make_store(random_edges(3000, 4000), 3000, width=1), np.arange(3000), LAPLACIAN)


def test_two_cliques_have_opposite_signs(make_store: Any) -> None:
    first = positions(make_store(TWO_CLIQUES, 16), np.arange(16), LAPLACIAN)[:, 0]
    assert (np.sign(first[:8]) == np.sign(first[0])).all()
    assert (np.sign(first[8:]) == -np.sign(first[0])).all()
