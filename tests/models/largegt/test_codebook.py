"""Codebook: EMA k-means against a step-by-step NumPy version, and what must hold after many steps."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.models import CodebookConfig
from largegt.models.largegt.codebook import Codebook
from oracles.ema_kmeans import EmaKMeans


def book_of(num_nodes: int = 40, width: int = 3, centroids: int = 5, seed: int = 0, **settings: Any) -> Codebook:
    torch.manual_seed(seed)
    return Codebook(num_nodes, width, CodebookConfig(num_centroids=centroids, **settings))


def step_of(step: int, num_nodes: int = 40, b: int = 12, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of distinct nodes around three places, shifted and scaled so that normalising matters."""
    rng = np.random.default_rng([7, step])
    nodes = rng.permutation(num_nodes)[:b]
    places = np.random.default_rng(0).normal(scale=3.0, size=(3, width))
    z = places[rng.integers(0, 3, b)] + rng.normal(size=(b, width))
    return torch.from_numpy((2.5 * z + 4.0).astype(np.float32)), torch.from_numpy(nodes)


def record(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every random tensor the codebook draws, in order."""
    drawn: list[torch.Tensor] = []
    for name in ("randint", "randn_like"):

        def watched(*args: Any, real: Any = getattr(torch, name), **kwargs: Any) -> torch.Tensor:
            drawn.append(real(*args, **kwargs))
            return drawn[-1]

        monkeypatch.setattr(torch, name, watched)
    return drawn


def agree(book: Codebook, oracle: EmaKMeans) -> None:
    np.testing.assert_allclose(book.centroids, oracle.centroids, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(book.ema_size, oracle.sizes, rtol=1e-4)
    np.testing.assert_allclose(book.ema_sum, oracle.sums, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(book.mean, oracle.mean, rtol=1e-4)
    np.testing.assert_allclose(book.variance, oracle.variance, rtol=1e-4)
    assert book.counts.tolist() == oracle.counts()
    assert {n: int(c) for n, c in enumerate(book.assignment) if c >= 0} == oracle.where


@pytest.mark.parametrize(
    ("centroids", "dead_code_threshold", "eps"),
    [(5, 0.0, 1e-5), (5, 0.0, 0.3), (5, 0.05, 1e-5), (5, 0.6, 1e-5), (30, 0.3, 1e-5)],
)
def test_against_numpy_with_its_own_random_numbers(
    monkeypatch: pytest.MonkeyPatch, centroids: int, dead_code_threshold: float, eps: float
) -> None:
    """From the very first step, with centroids that die: the random numbers are recorded and given to the oracle."""
    book = book_of(centroids=centroids, dead_code_threshold=dead_code_threshold, eps=eps, ema_decay=0.8)
    drawn = record(monkeypatch)
    oracle = None
    for step in range(25):
        z, nodes = step_of(step)
        drawn.clear()
        book.update(z, nodes)
        if oracle is None:
            chosen, noise = drawn[:2]
            data = z.double().numpy()
            data = (data - data.mean(axis=0)) / np.sqrt(data.var(axis=0) + 1e-5)
            start = data[np.argsort(nodes.numpy())[chosen.numpy()]] + 0.01 * noise.double().numpy()
            oracle = EmaKMeans(start, 12 / centroids, decay=0.8, epsilon=eps, dead_code_threshold=dead_code_threshold)
        oracle.step(z.double().numpy(), nodes.numpy(), np.argsort(nodes.numpy())[drawn[-1].numpy()])
        agree(book, oracle)
    if dead_code_threshold > 0.1:
        assert oracle.revived > 3, "some have to be revived for this to test it"


def test_the_order_of_a_batch_changes_nothing() -> None:
    """What is drawn goes by node numbers: ranks, and tokens that stand for several, order a batch differently."""
    one, other = (book_of(centroids=9, dead_code_threshold=0.6, ema_decay=0.8) for _ in range(2))
    for step in range(15):
        z, nodes = step_of(step)
        order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(step))
        for book, rows in ((one, torch.arange(len(nodes))), (other, order)):
            torch.manual_seed(step)
            book.update(z[rows], nodes[rows])
        torch.testing.assert_close(one.centroids, other.centroids, rtol=1e-4, atol=1e-5)
        assert torch.equal(one.assignment, other.assignment)
        assert torch.equal(one.counts, other.counts)


@pytest.mark.parametrize(
    ("num_nodes", "centroids", "steps", "most"),
    [(300, 20, 400, 17), (6, 50, 30, 6), (40, 5, 5, 1)],
    ids=["many steps", "more centroids than nodes", "batches of one"],
)
def test_counts_are_a_recount(num_nodes: int, centroids: int, steps: int, most: int) -> None:
    book = book_of(num_nodes=num_nodes, centroids=centroids)
    seen: set[int] = set()
    for step in range(steps):
        z, nodes = step_of(step, num_nodes=num_nodes, b=1 + step % most)
        if step % 3 == 2:
            nodes[: len(nodes) // 2] = nodes[0]  # a loader over given nodes may name one twice
        book.update(z, nodes)
        seen |= set(nodes.tolist())
        assert torch.isfinite(book.centroids).all()
        assert torch.isfinite(book.normalize(z)).all()
    assigned = book.assignment[book.assignment >= 0].long()
    assert len(assigned) == len(seen)
    assert book.counts.tolist() == torch.bincount(assigned, minlength=centroids).tolist()


def test_a_step_changes_the_assignment_of_its_own_nodes_alone() -> None:
    book = book_of()
    book.update(*step_of(0))
    before = book.assignment.clone()
    z, nodes = step_of(1)
    book.assignment[nodes] = 4
    book.counts.copy_(torch.bincount(book.assignment[book.assignment >= 0].long(), minlength=5).float())
    book.update(z, nodes)
    others = torch.ones(40, dtype=torch.bool)
    others[nodes] = False
    assert torch.equal(book.assignment[others], before[others])
    assert (book.assignment[nodes] >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("dead_code_threshold", [0.0, 0.05])
def test_unused_centroids_do_not_explode(dead_code_threshold: float) -> None:
    """4,096 centroids, batches of 64: almost none is used in a step, and all of them stay among the data."""

    def largest(book: Codebook) -> float:
        norm = 0.0
        for step in range(500):
            z, nodes = step_of(step, num_nodes=5000, b=64)
            book.update(z, nodes)
            norm = max(norm, float(book.centroids.norm(dim=1).max()))
        return norm

    assert largest(book_of(num_nodes=5000, centroids=4096, dead_code_threshold=dead_code_threshold)) < 10


def test_an_inconsistent_start_would_explode() -> None:
    """What the test above would see of sums started at random over sizes of nothing."""
    book = book_of(num_nodes=5000, centroids=4096, dead_code_threshold=0.0)
    book.started.fill_(True)
    book.ema_size.zero_()
    book.update(*step_of(0, num_nodes=5000, b=64))
    assert book.centroids.norm(dim=1).max() > 1e3


def test_dead_centroids_move_to_the_data() -> None:
    def far_away(dead_code_threshold: float) -> float:
        book = book_of(centroids=6, ema_decay=0.9, dead_code_threshold=dead_code_threshold)
        book.update(*step_of(0))
        book.centroids[:3] = 100.0
        book.ema_sum[:3] = 100.0 * book.ema_size[:3, None]
        for step in range(1, 60):
            book.update(*step_of(step))
        return float(book.centroids.norm(dim=1).max())

    assert far_away(0.05) < 10
    assert far_away(0.0) > 50


def test_it_finds_clusters() -> None:
    """Three separate places, many centroids: nodes of different places never share one."""
    book = book_of(num_nodes=90, centroids=12, width=2)
    places = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    side = torch.arange(90) % 3
    g = torch.Generator().manual_seed(0)
    for _ in range(60):
        nodes = torch.randperm(90, generator=g)[:30]
        book.update(places[side[nodes]] + 0.3 * torch.randn(30, 2, generator=g), nodes)
    shared = {(int(c), int(s)) for c, s in zip(book.assignment, side, strict=True)}
    assert len({c for c, _ in shared}) == len(shared)


def test_saved_and_restored_it_goes_on_the_same() -> None:
    book = book_of(dead_code_threshold=0.5, ema_decay=0.8)
    for step in range(10):
        book.update(*step_of(step))
    stream = io.BytesIO()
    torch.save(book.state_dict(), stream)
    stream.seek(0)
    other = book_of(seed=99, dead_code_threshold=0.5, ema_decay=0.8)
    other.load_state_dict(torch.load(stream, weights_only=True))
    for one in (book, other):
        torch.manual_seed(5)
        for step in range(10, 25):
            one.update(*step_of(step))
    for name, value in book.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_nothing_of_it_is_trained() -> None:
    book = book_of()
    assert list(book.parameters()) == []
    z = torch.randn(12, 3, requires_grad=True)
    book.update(2 * z, torch.arange(12))
    assert all(not buffer.requires_grad and buffer.grad_fn is None for buffer in book.buffers())
    book.normalize(z).sum().backward()
    assert z.grad is not None, "the query's gradient does pass"


def test_log_counts() -> None:
    book = book_of(centroids=4)
    assert book.log_counts().tolist() == [0.0] * 4
    book.counts.copy_(torch.tensor([1.0, 0.0, 20.0, 3.0]))
    assert book.log_counts().tolist() == pytest.approx([0.0, -np.inf, np.log(20), np.log(3)])


@pytest.mark.parametrize(("centroids", "dtype"), [(100, torch.int16), (2**15 - 1, torch.int16), (2**15, torch.int32)])
def test_assignments_fit_their_type(centroids: int, dtype: torch.dtype) -> None:
    book = book_of(centroids=centroids, width=1)
    assert book.assignment.dtype == dtype
    assert centroids - 1 <= torch.iinfo(dtype).max


def test_counts_stay_exact_beyond_the_whole_numbers_of_float32() -> None:
    """One centroid, and as many nodes on it as float32 can still count: one more has to show."""
    book = book_of(num_nodes=8, centroids=1)
    book.update(torch.randn(2, 3), torch.tensor([0, 1]))
    book.counts.fill_(2**24)
    book.update(torch.randn(3, 3), torch.tensor([2, 3, 4]))
    assert int(book.counts[0]) == 2**24 + 3


def test_nearest_against_distances() -> None:
    book = book_of(centroids=30)
    z = torch.randn(50, 3)
    assert torch.equal(book.nearest(z), torch.cdist(z, book.centroids).argmin(dim=1))
