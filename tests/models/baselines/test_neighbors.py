"""The neighbour sampler against plain Python: sets, dicts and whole numbers of any size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from largegt.errors import ConfigError
from largegt.models.baselines import neighbor_kernels, neighbors
from largegt.models.baselines.neighbors import Neighborhoods, NeighborSampler, Sample, TorchBackend
from largegt.runtime.threads import run_ahead
from oracles.graphs import SIX_NODES
from oracles.local_nodes import neighbor_sets
from oracles.statistics import independence_p, uniformity_p

BACKENDS = ["numba", "torch"]
FANOUTS = [[3], [4, 2], [3, 3, 3], [-1], [-1, -1, -1], [2, -1], [-1, 2], [100, 1]]
TOP = 2**64


# the oracle --------------------------------------------------------------------------------------------------------


def plain_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % TOP
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % TOP
    return x ^ (x >> 31)


def plain_places(degree: int, fanout: int, seed: int, epoch: int, hop: int, node: int) -> list[int]:
    """Which of its neighbours a node draws, by Floyd's algorithm over the stream of (seed, epoch, hop, node)."""
    if fanout < 0 or degree <= fanout:
        return list(range(degree))
    golden, a, b = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    state = plain_mix(plain_mix((seed + golden) % TOP) + 3)
    state = plain_mix(state ^ (epoch * a + golden) % TOP)
    state = plain_mix(state ^ (hop * b + golden) % TOP)
    state = plain_mix(state ^ (node * b + golden) % TOP)
    chosen: list[int] = []
    for last in range(degree - fanout, degree):
        state = (state + golden) % TOP
        pick = plain_mix(state) * (last + 1) // TOP
        chosen.append(last if pick in chosen else pick)
    return chosen


class PlainSampler:
    """One node after the other."""

    def __init__(self, rows: Sequence[Sequence[int]], fanouts: Sequence[int], seed: int) -> None:
        self.rows, self.fanouts, self.seed = rows, fanouts, seed

    def draw(self, node: int, hop: int, epoch: int) -> list[int]:
        row = self.rows[node]
        return [row[p] for p in plain_places(len(row), self.fanouts[hop], self.seed, epoch, hop, node)]

    def sample(self, seeds: Iterable[int], epoch: int) -> tuple[list[int], list[list[list[int]]]]:
        """(nodes, blocks), a block being the places each target's sources have, outermost hop first."""
        nodes, blocks = [int(seed) for seed in seeds], []
        for hop in range(len(self.fanouts)):
            drawn = [self.draw(node, hop, epoch) for node in nodes]
            nodes = list(dict.fromkeys([*nodes, *(v for row in drawn for v in row)]))
            blocks.append([[nodes.index(v) for v in row] for row in drawn])
        return nodes, blocks[::-1]

    def around(self, seed: int, epoch: int) -> dict[int, int]:
        """The nodes around one seed and their distances, in order of discovery."""
        found, frontier = {int(seed): 0}, [int(seed)]
        for hop in range(len(self.fanouts)):
            drawn = [v for node in frontier for v in self.draw(node, hop, epoch)]
            frontier = [v for v in dict.fromkeys(drawn) if v not in found]
            found |= dict.fromkeys(frontier, hop + 1)
        return found


def as_lists(sample: Sample) -> tuple[list[int], list[list[list[int]]]]:
    blocks = []
    for block in sample.blocks:
        bounds = block.indptr.tolist()
        blocks.append([block.source[low:high].tolist() for low, high in pairwise(bounds)])
    return sample.nodes.tolist(), blocks


def as_dicts(found: Neighborhoods) -> list[dict[int, int]]:
    """Each seed's {node: distance}, in order, padding checked and left out."""
    around = []
    for b, (members, distances) in enumerate(zip(found.member.tolist(), found.distance.tolist(), strict=True)):
        count = sum(d >= 0 for d in distances)
        assert all(d == -1 for d in distances[count:])
        assert all(member == b for member in members[count:])
        numbers = found.nodes[members[:count]].tolist()
        assert len(set(numbers)) == count, "distinct"
        around.append(dict(zip(numbers, distances[:count], strict=True)))
    return around


def csr_of(rows: Sequence[Sequence[int]], dtype: Any = np.int32) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    return indptr, np.array([v for row in rows for v in row], dtype=dtype)


def sampler_of(
    rows: Sequence[Sequence[int]], fanouts: Sequence[int], seed: int = 0, backend: str = "numba", threads: int = 1
) -> NeighborSampler:
    """What a GPU computes with is tried on the CPU."""
    csr = csr_of(rows)
    sampler = NeighborSampler(*csr, fanouts, seed, threads=threads)
    if backend == "torch":
        sampler.backend = TorchBackend(*csr, torch.device("cpu"))
    return sampler


def random_rows(num_nodes: int, mean_degree: float, seed: int = 0) -> list[list[int]]:
    """Uneven degrees, some nodes without neighbours, one hub."""
    rng = np.random.default_rng(seed)
    degrees = np.minimum(rng.pareto(1.5, num_nodes) * mean_degree / 2, num_nodes // 2).astype(int)
    degrees[:: max(2, num_nodes // 7)] = 0
    degrees[1] = num_nodes // 2
    others = [np.delete(np.arange(num_nodes), i) for i in range(num_nodes)]
    return [sorted(rng.choice(others[i], d, replace=False).tolist()) for i, d in enumerate(degrees)]


def same(a: Sample | Neighborhoods, b: Sample | Neighborhoods) -> bool:
    if isinstance(a, Neighborhoods) and isinstance(b, Neighborhoods):
        return all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("nodes", "member", "distance"))
    assert isinstance(a, Sample)
    assert isinstance(b, Sample)
    return torch.equal(a.nodes, b.nodes) and all(
        torch.equal(x.indptr, y.indptr) and torch.equal(x.source, y.source) and x.num_inputs == y.num_inputs
        for x, y in zip(a.blocks, b.blocks, strict=True)
    )


# equality ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_samples_and_neighborhoods_are_the_oracles(backend: str, fanouts: list[int]) -> None:
    rows = random_rows(60, 8)
    seeds = torch.from_numpy(np.random.default_rng(1).permutation(60)[:17])
    for seed, epoch in ((0, 0), (5, 3), (2**40 + 1, 10**6)):
        sampler, plain = sampler_of(rows, fanouts, seed, backend), PlainSampler(rows, fanouts, seed)
        sample = sampler.sample(seeds, epoch)
        assert as_lists(sample) == plain.sample(seeds, epoch)
        sizes = [len(seeds), *(block.num_inputs for block in reversed(sample.blocks))]
        assert [block.num_targets for block in reversed(sample.blocks)] == sizes[:-1]
        assert sizes[-1] == len(sample.nodes)
        for block in sample.blocks:
            assert block.indptr.dtype == block.source.dtype == block.target.dtype == torch.int64
            expected_targets = torch.arange(block.num_targets).repeat_interleave(block.indptr.diff())
            assert torch.equal(block.target, expected_targets)
        found, expected = sampler.neighborhoods(seeds, epoch), [plain.around(int(i), epoch) for i in seeds]
        around = as_dicts(found)
        assert [list(d.items()) for d in around] == [list(d.items()) for d in expected], "in order of discovery"
        assert found.member.shape == found.distance.shape == (17, max(len(d) for d in expected)), "no wider than needed"
        assert found.nodes.tolist() == list(dict.fromkeys([*seeds.tolist(), *(v for d in expected for v in d)]))
        assert (found.nodes.dtype, found.member.dtype, found.distance.dtype) == (torch.int64, torch.int64, torch.int8)
        assert found.member[:, 0].tolist() == list(range(17)), "seeds first"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_backends_give_the_same_bits(data: Any) -> None:
    num_nodes = data.draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    rows = data.draw(st.lists(st.sets(node).map(sorted), min_size=num_nodes, max_size=num_nodes))
    fanouts = data.draw(st.lists(st.sampled_from([-1, 1, 2, 5, 60]), min_size=1, max_size=3))
    seeds = torch.tensor(data.draw(st.lists(node, unique=True)), dtype=torch.int64)
    seed, epoch = data.draw(st.integers(0, 2**63 - 1)), data.draw(st.integers(0, 2**31))
    one, other = (sampler_of(rows, fanouts, seed, backend) for backend in BACKENDS)
    plain = PlainSampler(rows, fanouts, seed)
    assert same(one.sample(seeds, epoch), other.sample(seeds, epoch))
    assert as_lists(one.sample(seeds, epoch)) == plain.sample(seeds, epoch)
    found = one.neighborhoods(seeds, epoch)
    assert same(found, other.neighborhoods(seeds, epoch))
    assert as_dicts(found) == [plain.around(int(i), epoch) for i in seeds]


@pytest.mark.parametrize("degree", [12, 10**6, 2**31 - 1])
def test_places_in_rows_of_any_length(degree: int) -> None:
    """Up to the largest degree there may be, where products come near 2⁶³."""
    nodes = torch.tensor([0, 1, 5, 10**9, 10**10])
    sampler = NeighborSampler(np.zeros(2, np.int64), np.zeros(0, np.int32), [11], 9)
    key = sampler.key(epoch=2, hop=0)
    found = neighbors._floyd(nodes, torch.full_like(nodes, degree), 11, key)
    row = np.empty(11, np.int64)
    for n, node in enumerate(nodes.tolist()):
        expected = plain_places(degree, 11, 9, 2, 0, node)
        assert found[:, n].tolist() == expected
        if node < 10:
            indptr = np.array([*[0] * (node + 1), degree])
            neighbor_kernels.pick_entries(indptr, node, np.uint64(key), row)
            assert row.tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits() -> None:
    indptr, indices = csr_of(random_rows(3000, 12))
    seeds = torch.from_numpy(np.random.default_rng(0).permutation(3000)[:700])
    for fanouts in ([15, 10, 5], [-1, 4]):
        here = NeighborSampler(indptr, indices, fanouts, 1)
        there = NeighborSampler(indptr, indices, fanouts, 1, device="cuda")
        on_gpu, around = there.sample(seeds.cuda(), 2), there.neighborhoods(seeds.cuda(), 2)
        assert on_gpu.blocks[0].target.is_cuda
        assert same(here.sample(seeds, 2), Sample(on_gpu.nodes.cpu(), tuple(b.to("cpu") for b in on_gpu.blocks)))
        assert same(here.neighborhoods(seeds, 2), Neighborhoods(*(part.cpu() for part in around)))
        assert not len(there.sample(seeds[:0].cuda()).nodes)


# properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_six_nodes_by_hand(backend: Any) -> None:
    """3-2-1-0-4, and 5 alone."""
    rows = [sorted(row) for row in neighbor_sets(SIX_NODES, 6, "both")]
    sampler = sampler_of(rows, [-1, 9], 0, backend)
    sample = sampler.sample(torch.tensor([3, 5]))
    assert as_lists(sample) == ([3, 5, 2, 1], [[[2], [], [3, 0]], [[2], []]])
    found = sampler.neighborhoods(torch.tensor([3, 5, 0]))
    assert as_dicts(found) == [{3: 0, 2: 1, 1: 2}, {5: 0}, {0: 0, 1: 1, 4: 1, 2: 2}]
    assert found.nodes.tolist() == [3, 5, 0, 2, 1, 4]
    assert found.member.tolist() == [[0, 3, 4, 0], [1, 1, 1, 1], [2, 4, 5, 3]]
    assert found.distance.tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [0, 1, 1, 2]]


# uniformity --------------------------------------------------------------------------------------------------------


def twins(num_nodes: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes that all have the neighbours 0 .. degree - 1."""
    return np.arange(num_nodes + 1) * degree, np.tile(np.arange(degree, dtype=np.int32), num_nodes)


SUBSETS = {subset: n for n, subset in enumerate(combinations(range(6), 3))}


def subsets_drawn(num_nodes: int, seed: int = 0, epoch: int = 0, hop: int = 0) -> np.ndarray:
    """Which of the 20 subsets of three out of six neighbours each of these nodes draws."""
    sampler = NeighborSampler(*twins(num_nodes, 6), [3, 3], seed)
    _, drawn = sampler.draw(torch.arange(num_nodes), hop, epoch)
    return np.array([SUBSETS[tuple(row)] for row in drawn.view(-1, 3).sort(dim=1).values.tolist()])


@pytest.mark.parametrize(("degree", "fanout"), [(7, 1), (7, 6), (20, 5), (500, 20)])
def test_each_neighbour_is_as_likely(degree: int, fanout: int) -> None:
    num_nodes = 20_000
    sampler = NeighborSampler(*twins(num_nodes, degree), [fanout], 1)
    _, drawn = sampler.draw(torch.arange(num_nodes), 0, 0)
    counts = torch.bincount(drawn, minlength=degree)
    assert int(counts.sum()) == fanout * num_nodes
    assert uniformity_p(counts.tolist(), fanout) > 1e-4


def test_each_subset_is_as_likely_over_nodes() -> None:
    assert uniformity_p(np.bincount(subsets_drawn(40_000), minlength=20)) > 1e-4


def test_each_subset_is_as_likely_over_epochs_and_seeds() -> None:
    """One node, drawing again and again through the public function."""
    for over in ("epoch", "seed"):
        drawn = []
        for n in range(4_000):
            sampler = NeighborSampler(*twins(9, 6), [3], n if over == "seed" else 3, threads=1)
            block = sampler.sample(torch.tensor([8]), n if over == "epoch" else 0)
            drawn.append(SUBSETS[tuple(sorted(block.nodes[1:].tolist()))])
        assert uniformity_p(np.bincount(drawn, minlength=20)) > 1e-4


@pytest.mark.slow
def test_draws_have_nothing_to_do_with_each_other() -> None:
    """The next epoch, the next hop, the next seed and the next node draw anew."""
    here = subsets_drawn(40_000)
    assert independence_p(here, subsets_drawn(40_000, epoch=1), 20) > 1e-4
    assert independence_p(here, subsets_drawn(40_000, hop=1), 20) > 1e-4
    assert independence_p(here, subsets_drawn(40_000, seed=1), 20) > 1e-4
    assert independence_p(here[:-1], here[1:], 20) > 1e-4
    assert independence_p(here[::2], here[1::2], 20) > 1e-4
    assert independence_p(subsets_drawn(40_000, epoch=1, seed=0), subsets_drawn(40_000, epoch=0, seed=1), 20) > 1e-4


def test_wrong_samplers_would_be_caught() -> None:
    """Three in a row from a random place are each as likely, but not each subset; picks without Floyd's exchange are
    not even that; an epoch that moves the draw by one place is uniform, but not independent."""
    start = np.random.default_rng(0).integers(6, size=20_000)
    consecutive = np.sort((start[:, None] + np.arange(3)) % 6, axis=1)
    assert uniformity_p(np.bincount(consecutive.ravel(), minlength=6), 3) > 1e-4
    assert uniformity_p(np.bincount([SUBSETS[tuple(row)] for row in consecutive.tolist()], minlength=20)) < 1e-6
    picks = np.random.default_rng(0).random((20_000, 3)) * [4, 5, 6]
    assert uniformity_p(np.bincount(picks.astype(int).ravel(), minlength=6), 3) < 1e-6
    here = subsets_drawn(20_000)
    assert independence_p(here, (here + 1) % 20, 20) < 1e-6


# what a draw depends on, and what not -------------------------------------------------------------------------------


def drawn_by(sample: Sample, block: int) -> dict[int, list[int]]:
    """What each target drew, by node numbers."""
    nodes, blocks = as_lists(sample)
    return {nodes[t]: [nodes[place] for place in row] for t, row in enumerate(blocks[block])}


@pytest.mark.parametrize("backend", BACKENDS)
def test_company_and_order_do_not_matter(backend: str) -> None:
    rows = random_rows(150, 12, 9)
    sampler = sampler_of(rows, [4, 3], 0, backend)
    seeds = torch.from_numpy(np.random.default_rng(0).permutation(150))
    together = sampler.sample(seeds, 1)
    outer, inner = drawn_by(together, 0), drawn_by(together, 1)
    around = as_dicts(sampler.neighborhoods(seeds, 1))
    for batch in (seeds[:1], seeds[30:60], seeds.flip(0)):
        some = sampler.sample(batch, 1)
        assert drawn_by(some, 1).items() <= inner.items()
        assert drawn_by(some, 0).items() <= outer.items()
        for seed, found in zip(batch.tolist(), as_dicts(sampler.neighborhoods(batch, 1)), strict=True):
            assert found == around[seeds.tolist().index(seed)]
    assert same(together, sampler.sample(seeds, 1))
    for other in (sampler.sample(seeds, 2), sampler_of(rows, [4, 3], 1).sample(seeds, 1)):
        assert drawn_by(other, 1) != inner, "another epoch, another seed: other neighbours"
    assert any(len(inner[i]) == 4 and inner[i][:3] != outer[i] for i in inner), "the hop matters"


def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one call, and several calls side by side as a loader makes them."""
    indptr, indices = csr_of(random_rows(3000, 12))
    seeds = torch.from_numpy(np.random.default_rng(0).permutation(3000)[:700])
    alone = NeighborSampler(indptr, indices, [6, 4], 1, threads=1)
    expected = alone.sample(seeds, 2)
    batches = seeds.split(50)
    for found, one in zip(run_ahead(alone.sample, batches, 4), map(alone.sample, batches), strict=True):
        assert same(found, one)
    monkeypatch.setattr(neighbors, "_TARGETS_PER_TASK", 37)
    for threads in (2, 8, None):
        assert same(NeighborSampler(indptr, indices, [6, 4], 1, threads=threads).sample(seeds, 2), expected)


# what may enter -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_arrays_may_be_mapped_and_of_any_width(tmp_path: Path) -> None:
    rows, seeds = random_rows(90, 9), torch.tensor([7, 3, 88, 12])
    expected = sampler_of(rows, [3, 2]).sample(seeds)
    for dtype in (np.int32, np.int64):
        for name, array in zip(("indptr", "indices"), csr_of(rows, dtype), strict=True):
            np.save(tmp_path / f"{name}.npy", array)
        mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
        assert same(NeighborSampler(mapped[0], mapped[1], [3, 2], 0).sample(seeds), expected)
    sample = sampler_of(rows, [3, 2]).sample(seeds)
    sample.nodes[:] = -1
    assert seeds.tolist() == [7, 3, 88, 12], "the caller's own"


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_seeds_and_no_neighbours(backend: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for rows in (random_rows(20, 3), []):
        sampler = sampler_of(rows, [3, -1], 0, backend)
        assert as_lists(sampler.sample(none)) == ([], [[], []])
        found = sampler.neighborhoods(none)
        assert found.member.shape == found.distance.shape == (0, 1)
        assert not len(found.nodes)
    sampler = sampler_of([[], [], [0]], [3, 2], 0, backend)
    assert as_lists(sampler.sample(torch.tensor([1, 0]))) == ([1, 0], [[[], []], [[], []]])
    found = sampler.neighborhoods(torch.tensor([1, 0]))
    assert found.member.tolist() == [[0], [1]]
    assert found.distance.tolist() == [[0], [0]]


@pytest.mark.parametrize("fanouts", [[], [0], [3, -2]])
def test_fanouts_that_are_none(fanouts: list[int]) -> None:
    with pytest.raises(ConfigError, match="fan-outs"):
        sampler_of([[]], fanouts)


def test_memory_is_the_samples_and_not_the_graphs() -> None:
    indptr = np.full(1_000_001, 5000)
    indptr[0] = 0  # node 0 is a hub, the others have nothing
    sampler, seeds = NeighborSampler(indptr, np.arange(1, 5001, dtype=np.int32), [4, 4], 0), torch.tensor([0, 1])
    for call in (sampler.sample, sampler.neighborhoods):
        call(seeds)
        tracemalloc.start()
        call(seeds)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
