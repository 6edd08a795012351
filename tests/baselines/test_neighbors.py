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

from largegt.baselines import neighbors_cpu, neighbors_gpu
from largegt.baselines.neighbors import Neighborhoods, NeighborSampler, Sample, neighborhoods
from largegt.data.kernels import mix
from largegt.errors import ConfigError, InputError
from largegt.threads import run_ahead
from oracles.graphs import SIX_NODES
from oracles.local_nodes import neighbor_sets
from oracles.statistics import independence_p, uniformity_p

BACKENDS = ["numba", "torch"]
FANOUTS = [[3], [4, 2], [3, 3, 3], [-1], [2, -1], [-1, 2], [100, 1]]
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_samples_are_the_oracles(backend: Any, fanouts: list[int]) -> None:
    rows = random_rows(60, 8)
    seeds = np.random.default_rng(1).permutation(60)[:17]
    for seed, epoch in ((0, 0), (5, 3), (2**40 + 1, 10**6)):
        sampler = NeighborSampler(*csr_of(rows), fanouts, seed, backend=backend)
        assert as_lists(sampler.sample(seeds, epoch)) == PlainSampler(rows, fanouts, seed).sample(seeds, epoch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_neighborhoods_are_the_oracles(backend: Any, fanouts: list[int]) -> None:
    rows = random_rows(60, 8)
    seeds = np.random.default_rng(2).permutation(60)[:17]
    found = neighborhoods(NeighborSampler(*csr_of(rows), fanouts, 4, backend=backend), seeds, 7)
    expected = [PlainSampler(rows, fanouts, 4).around(seed, 7) for seed in seeds]
    around = as_dicts(found)
    assert [list(d.items()) for d in around] == [list(d.items()) for d in expected], "in order of discovery"
    assert found.member.shape == found.distance.shape == (17, max(len(d) for d in expected)), "no wider than needed"
    assert found.nodes.tolist() == list(dict.fromkeys([*seeds, *(v for d in expected for v in d)]))
    assert (found.nodes.dtype, found.member.dtype, found.distance.dtype) == (torch.int64, torch.int64, torch.int8)
    assert found.member[:, 0].tolist() == list(range(17)), "seeds first"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_backends_give_the_same_bits(data: Any) -> None:
    num_nodes = data.draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    rows = data.draw(st.lists(st.sets(node).map(sorted), min_size=num_nodes, max_size=num_nodes))
    fanouts = data.draw(st.lists(st.sampled_from([-1, 1, 2, 5, 60]), min_size=1, max_size=3))
    seeds = data.draw(st.lists(node, unique=True))
    seed, epoch = data.draw(st.integers(0, 2**63 - 1)), data.draw(st.integers(0, 2**31))
    samplers = [NeighborSampler(*csr_of(rows), fanouts, seed, backend=backend, threads=1) for backend in BACKENDS]
    one, other = (sampler.sample(seeds, epoch) for sampler in samplers)
    assert same(one, other)
    assert as_lists(one) == PlainSampler(rows, fanouts, seed).sample(seeds, epoch)
    one, other = (neighborhoods(sampler, seeds, epoch) for sampler in samplers)
    assert same(one, other)
    assert as_dicts(one) == [PlainSampler(rows, fanouts, seed).around(i, epoch) for i in seeds]


@pytest.mark.parametrize("fanouts", [[15, 10, 5], [20, 10], [70, 2]], ids=str)
def test_both_backends_on_a_larger_graph(fanouts: list[int]) -> None:
    indptr, indices = csr_of(random_rows(3000, 12))
    seeds = np.random.default_rng(0).permutation(3000)[:700]
    numba, plain = (NeighborSampler(indptr, indices, fanouts, 1, backend=backend) for backend in BACKENDS)
    assert same(numba.sample(seeds, 2), plain.sample(seeds, 2))
    assert same(neighborhoods(numba, seeds, 2), neighborhoods(plain, seeds, 2))


def test_hash_of_tensors() -> None:
    values = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15]
    values += [int(v) for v in np.random.default_rng(0).integers(0, TOP, 200, dtype=np.uint64)]
    mixed = neighbors_gpu._mix(torch.tensor([neighbors_gpu._signed(v) for v in values])).tolist()
    assert [v % TOP for v in mixed] == [plain_mix(v) for v in values] == [int(mix(np.uint64(v))) for v in values]


@pytest.mark.parametrize("degree", [12, 10**6, 2**31 - 1])
def test_places_in_rows_of_any_length(degree: int) -> None:
    """Up to the largest degree there may be, where products come near 2⁶³."""
    nodes = torch.tensor([0, 1, 5, 10**9, 10**10])
    sampler = NeighborSampler(np.zeros(2, np.int64), np.zeros(0, np.int32), [11], 9)
    key = sampler.key(epoch=2, hop=0)
    found = neighbors_gpu._floyd(nodes, torch.full_like(nodes, degree), 11, key)
    row = np.empty(11, np.int64)
    for n, node in enumerate(nodes.tolist()):
        expected = plain_places(degree, 11, 9, 2, 0, node)
        assert found[:, n].tolist() == expected
        if node < 10:
            indptr = np.array([*[0] * (node + 1), degree])
            neighbors_cpu.pick_entries(indptr, node, np.uint64(key), row)
            assert row.tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_bits() -> None:
    indptr, indices = csr_of(random_rows(3000, 12))
    seeds = np.random.default_rng(0).permutation(3000)[:700]
    for fanouts in ([15, 10, 5], [-1, 4]):
        here = NeighborSampler(indptr, indices, fanouts, 1)
        there = NeighborSampler(indptr, indices, fanouts, 1, device="cuda")
        on_gpu = there.sample(torch.from_numpy(seeds).cuda(), 2)
        assert on_gpu.nodes.is_cuda
        assert on_gpu.blocks[0].target.is_cuda
        assert same(here.sample(seeds, 2), on_gpu.to("cpu"))
        assert same(neighborhoods(here, seeds, 2), neighborhoods(there, seeds, 2).to("cpu"))
        assert not len(there.sample([]).nodes)


# properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_block_invariants(backend: Any, fanouts: list[int]) -> None:
    rows = random_rows(200, 10, 3)
    seeds = np.random.default_rng(1).permutation(200)[:40]
    sample = NeighborSampler(*csr_of(rows), fanouts, 0, backend=backend).sample(seeds)
    assert len(sample.blocks) == len(fanouts)
    assert sample.nodes.tolist()[:40] == seeds.tolist()
    assert len(set(sample.nodes.tolist())) == len(sample.nodes)
    assert sample.blocks[0].num_inputs == len(sample.nodes)
    assert sample.blocks[-1].num_targets == 40
    for outer, inner in zip(sample.blocks, sample.blocks[1:], strict=False):
        assert outer.num_targets == inner.num_inputs
    for block, fanout in zip(sample.blocks, reversed(fanouts), strict=True):
        assert block.indptr.dtype == block.source.dtype == block.target.dtype == torch.int64
        assert block.indptr[0] == 0
        assert block.indptr[-1] == len(block.source) == len(block.target)
        for t in range(block.num_targets):
            sources = block.source[block.target == t]
            assert torch.equal(sources, block.source[block.indptr[t] : block.indptr[t + 1]])
            drawn, row = sample.nodes[sources].tolist(), rows[int(sample.nodes[t])]
            assert len(set(drawn)) == len(drawn) == (len(row) if fanout < 0 else min(fanout, len(row)))
            assert set(drawn) <= set(row)
        assert set(range(block.num_targets)) | set(block.source.tolist()) == set(range(block.num_inputs)), (
            "no strangers"
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_six_nodes_by_hand(backend: Any) -> None:
    """3-2-1-0-4, and 5 alone."""
    rows = [sorted(row) for row in neighbor_sets(SIX_NODES, 6, "both")]
    sampler = NeighborSampler(*csr_of(rows), [-1, 9], 0, backend=backend)
    sample = sampler.sample([3, 5])
    assert as_lists(sample) == ([3, 5, 2, 1], [[[2], [], [3, 0]], [[2], []]])
    found = neighborhoods(sampler, [3, 5, 0])
    assert as_dicts(found) == [{3: 0, 2: 1, 1: 2}, {5: 0}, {0: 0, 1: 1, 4: 1, 2: 2}]
    assert found.nodes.tolist() == [3, 5, 0, 2, 1, 4]
    assert found.member.tolist() == [[0, 3, 4, 0], [1, 1, 1, 1], [2, 4, 5, 3]]
    assert found.distance.tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [0, 1, 1, 2]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_neighbours_are_a_breadth_first_search(backend: Any) -> None:
    rows = random_rows(80, 3, 5)
    found = as_dicts(neighborhoods(NeighborSampler(*csr_of(rows), [-1, -1, -1], 0, backend=backend), range(80)))
    for seed in range(80):
        seen, frontier = {seed: 0}, {seed}
        for hop in (1, 2, 3):
            frontier = {v for j in frontier for v in rows[j]} - seen.keys()
            seen |= dict.fromkeys(frontier, hop)
        assert found[seed] == seen


def test_a_long_neighbourhood_after_a_short_one_and_before() -> None:
    """The kernel's arrays grow on the way, and what an earlier seed left there must not count."""
    rows = [[1, 2], [0, 2], [0, 1], list(range(5000)), [3]]
    rows += [[0, i - 1] for i in range(5, 5000)]
    rows[3].remove(3)
    seeds = [0, 3, 1, 4, 2, 10]
    found = neighborhoods(NeighborSampler(*csr_of(rows), [-1, -1], 0, threads=1), seeds)
    assert as_dicts(found) == [PlainSampler(rows, [-1, -1], 0).around(seed, 0) for seed in seeds]


# uniformity --------------------------------------------------------------------------------------------------------


def twins(num_nodes: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes that all have the neighbours 0 .. degree - 1."""
    return np.arange(num_nodes + 1) * degree, np.tile(np.arange(degree, dtype=np.int32), num_nodes)


SUBSETS = {subset: n for n, subset in enumerate(combinations(range(6), 3))}


def subsets_drawn(num_nodes: int, seed: int = 0, epoch: int = 0, hop: int = 0, backend: Any = "numba") -> np.ndarray:
    """Which of the 20 subsets of three out of six neighbours each of these nodes draws."""
    sampler = NeighborSampler(*twins(num_nodes, 6), [3, 3], seed, backend=backend)
    _, drawn = sampler.draw(torch.arange(num_nodes), hop, epoch)
    return np.array([SUBSETS[tuple(row)] for row in drawn.view(-1, 3).sort(dim=1).values.tolist()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("degree", "fanout"), [(7, 1), (7, 6), (20, 5), (500, 20)])
def test_each_neighbour_is_as_likely(backend: Any, degree: int, fanout: int) -> None:
    num_nodes = 20_000
    sampler = NeighborSampler(*twins(num_nodes, degree), [fanout], 1, backend=backend)
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
            block = sampler.sample([8], n if over == "epoch" else 0)
            drawn.append(SUBSETS[tuple(sorted(block.nodes[1:].tolist()))])
        assert uniformity_p(np.bincount(drawn, minlength=20)) > 1e-4


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
def test_company_and_order_do_not_matter(backend: Any) -> None:
    rows = random_rows(150, 12, 9)
    sampler = NeighborSampler(*csr_of(rows), [4, 3], 0, backend=backend)
    seeds = np.random.default_rng(0).permutation(150)
    together = sampler.sample(seeds, 1)
    outer, inner = drawn_by(together, 0), drawn_by(together, 1)
    around = as_dicts(neighborhoods(sampler, seeds, 1))
    for batch in (seeds[:1], seeds[30:60], seeds[::-1]):
        some = sampler.sample(batch, 1)
        assert drawn_by(some, 1).items() <= inner.items()
        assert drawn_by(some, 0).items() <= outer.items()
        for seed, found in zip(batch, as_dicts(neighborhoods(sampler, batch, 1)), strict=True):
            assert found == around[seeds.tolist().index(seed)]
    again = sampler.sample(seeds, 1)
    assert same(together, again)
    for other in (sampler.sample(seeds, 2), NeighborSampler(*csr_of(rows), [4, 3], 1).sample(seeds, 1)):
        assert drawn_by(other, 1) != inner, "another epoch, another seed: other neighbours"
    assert any(len(inner[i]) == 4 and inner[i][:3] != outer[i] for i in inner), "the hop matters"


def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    indptr, indices = csr_of(random_rows(3000, 12))
    seeds = np.random.default_rng(0).permutation(3000)[:700]
    alone = NeighborSampler(indptr, indices, [6, 4], 1, threads=1)
    expected, around = alone.sample(seeds, 2), neighborhoods(alone, seeds, 2)
    monkeypatch.setattr(neighbors_cpu, "_TARGETS_PER_TASK", 37)
    monkeypatch.setattr(neighbors_cpu, "_SEEDS_PER_TASK", 11)
    for threads in (2, 8, None):
        sampler = NeighborSampler(indptr, indices, [6, 4], 1, threads=threads)
        assert same(sampler.sample(seeds, 2), expected)
        assert same(neighborhoods(sampler, seeds, 2), around)


def test_batches_side_by_side() -> None:
    """One sampler, several threads of a loader."""
    indptr, indices = csr_of(random_rows(3000, 12))
    sampler = NeighborSampler(indptr, indices, [6, 4], 1, threads=1)
    batches = np.array_split(np.random.default_rng(0).permutation(3000), 30)
    expected = [sampler.sample(batch) for batch in batches]
    for found, alone in zip(run_ahead(sampler.sample, batches, 4), expected, strict=True):
        assert same(found, alone)


# what may enter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("error")
def test_any_array_will_do(tmp_path: Path, backend: Any) -> None:
    """int32 or int64 indices, in memory or mapped read-only; seeds as a list, array, tensor or mask."""
    rows = random_rows(90, 9)
    seeds = [7, 3, 88, 12]
    expected = NeighborSampler(*csr_of(rows), [3, 2], 0).sample(seeds)
    for dtype in (np.int32, np.int64):
        indptr, indices = csr_of(rows, dtype)
        np.save(tmp_path / "indptr.npy", indptr)
        np.save(tmp_path / "indices.npy", indices)
        mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
        for csr in ((indptr, indices), mapped):
            sampler = NeighborSampler(csr[0], csr[1], np.array([3, 2]), 0, backend=backend)
            spaced = torch.tensor(seeds).repeat_interleave(2)[::2]
            for given_seeds in (seeds, np.array(seeds, np.int32), torch.tensor(seeds, dtype=torch.int32), spaced):
                assert same(sampler.sample(given_seeds), expected)
            mask = np.isin(np.arange(90), seeds)
            for given_mask in (mask, torch.from_numpy(mask)):
                assert same(sampler.sample(given_mask), sampler.sample(sorted(seeds)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_callers_seeds_are_left_alone(backend: Any) -> None:
    sampler = NeighborSampler(*csr_of(random_rows(90, 9)), [3, 2], 0, backend=backend)
    seeds = torch.arange(10, 20)
    sample, around = sampler.sample(seeds), neighborhoods(sampler, seeds)
    sample.nodes[:] = -1
    around.nodes[:] = -1
    assert torch.equal(seeds, torch.arange(10, 20))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seeds", [[], np.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)])
def test_no_seeds(backend: Any, seeds: Any) -> None:
    for rows in (random_rows(20, 3), []):
        sampler = NeighborSampler(*csr_of(rows), [3, -1], 0, backend=backend)
        sample = sampler.sample(seeds)
        assert as_lists(sample) == ([], [[], []])
        assert [block.num_inputs for block in sample.blocks] == [0, 0]
        found = neighborhoods(sampler, seeds)
        assert found.member.shape == found.distance.shape == (0, 1)
        assert not len(found.nodes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_without_neighbours(backend: Any) -> None:
    sampler = NeighborSampler(*csr_of([[], [], [0]]), [3, 2], 0, backend=backend)
    assert as_lists(sampler.sample([1, 0])) == ([1, 0], [[[], []], [[], []]])
    found = neighborhoods(sampler, [1, 0])
    assert found.member.tolist() == [[0], [1]]
    assert found.distance.tolist() == [[0], [0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_refused(backend: Any) -> None:
    sampler = NeighborSampler(*csr_of(random_rows(20, 3)), [3], 0, backend=backend)
    for call in (sampler.sample, lambda seeds: neighborhoods(sampler, seeds)):
        with pytest.raises(InputError, match="node 4 is among the seeds twice"):
            call([3, 4, 5, 4])
        for node in (20, -1, 10**12):
            with pytest.raises(InputError, match=f"node {node} asked for"):
                call([1, node])
        for wrong in ([1.5], torch.tensor([1.0]), torch.tensor([[1, 2]]), np.array([[1, 2]])):
            with pytest.raises(InputError):
                call(wrong)
    for fanouts in ([], [0], [3, -2]):
        with pytest.raises(ConfigError, match="fan-outs"):
            NeighborSampler(*csr_of([[]]), fanouts, 0, backend=backend)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("direction", ["out", "in", "both"])
def test_stores_by_direction(make_store: Any, random_edges: Any, direction: Any, undirected: bool) -> None:
    edges = random_edges(50, 200)
    store = make_store(edges, 50, undirected=undirected)
    rows = [sorted(row) for row in neighbor_sets(edges, 50, "both" if undirected else direction)]
    for fanouts in ([-1], [3, 2]):
        sample = NeighborSampler.for_store(store, direction, fanouts, 6).sample(range(0, 50, 3))
        assert as_lists(sample) == PlainSampler(rows, fanouts, 6).sample(range(0, 50, 3), 0)


def test_memory_is_the_samples_and_not_the_graphs() -> None:
    num_nodes = 1_000_000
    indptr = np.full(num_nodes + 1, 5000)
    indptr[0] = 0  # node 0 is a hub, the others have nothing
    sampler = NeighborSampler(indptr, np.arange(1, 5001, dtype=np.int32), [4, 4], 0, threads=1)
    for call in (sampler.sample, lambda seeds: neighborhoods(sampler, seeds)):
        call([0, 1])
        tracemalloc.start()
        call([0, 1])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


def test_moving_to_a_device() -> None:
    sampler = NeighborSampler(*csr_of(random_rows(90, 9)), [3, 2], 0)
    sample, around = sampler.sample(range(9)), neighborhoods(sampler, range(9))
    assert same(sample.to("cpu", non_blocking=True), sample)
    assert same(around.to("cpu"), around)
    meta = sample.to("meta")
    assert {part.device.type for block in meta.blocks for part in (meta.nodes, block.indptr, block.source)} == {"meta"}
    assert [block.num_inputs for block in meta.blocks] == [block.num_inputs for block in sample.blocks]
    assert around.to("meta").member.device.type == "meta"
