"""The neighbour sampler of the message-passing baselines and of GOAT.

Enters: a CSR (arrays or mapped files), a fan-out per hop, seeds. Leaves: a `Sample` (one `Block` of edges per layer,
over the distinct nodes of the batch) or `Neighborhoods` (each seed's own nodes by distance). Cost: time and memory
proportional to the sample, beside the CSR.

Each node gets min(fan-out, degree) distinct neighbours; all subsets of that size are equally likely. A sample is a
function of (seed, epoch, hop, node), independent of batch, threads and device. Two backends return identical results:
on a CPU, the numba kernels are 4 to 5 times as fast as the tensor operations written for a GPU.

Axes: b seeds, m members of a neighbourhood, t targets of a hop, e edges, u distinct nodes, f fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from largegt.data.pair_runs import index_dtype
from largegt.errors import ConfigError
from largegt.preprocessing.kernels import FOR_NEIGHBORS, start_stream
from largegt.runtime.threads import num_threads, run_ranges
from largegt.types import Array

from .batch import Movable
from .neighbor_kernels import GOLDEN, LOW_32, SPREAD, count_draws, draw_rows, number_distinct

_TARGETS_PER_TASK = 1 << 13
"""Smaller samples finish before another thread would start."""


@dataclass(frozen=True)
class Block(Movable):
    """One hop of a sample: edges from input rows to target rows. The targets are the first rows of the input."""

    indptr: Tensor
    """[t+1] int64: the edges of target i are source[indptr[i] : indptr[i + 1]]."""
    source: Tensor
    """[e] int64: the source of each edge, as a row of the layer's input."""
    num_inputs: int
    """Rows of the layer's input."""

    @property
    def num_targets(self) -> int:
        return len(self.indptr) - 1

    @property
    def target(self) -> Tensor:
        """[e] int64: the target of each edge."""
        return owners(self.indptr, len(self.source))


class Sample(NamedTuple):
    """The blocks of a batch. blocks[0].num_inputs is len(nodes), and a block's targets are the next one's inputs."""

    nodes: Tensor
    """[u] int64: distinct node numbers; the seeds first, in their order."""
    blocks: tuple[Block, ...]
    """In layer order: the outermost hop first; the targets of the last block are the seeds."""


class Neighborhoods(NamedTuple):
    """Each seed with the nodes sampled around it."""

    nodes: Tensor
    """[u] int64: distinct node numbers; the seeds first, in their order."""
    member: Tensor
    """[b, m] int64: positions in `nodes`; column 0 is the seed, then nodes by increasing distance. Padding repeats
    the seed."""
    distance: Tensor
    """[b, m] int8: the hop that found the member; 0 for the seed, -1 for padding."""


class NeighborSampler:
    """Samples neighbours of distinct nodes from one CSR without duplicate entries in a row (as in a GraphStore).

    `fanouts` go from the seeds outwards; -1 takes all neighbours. Sampling runs on `device`: a CPU reads the arrays in
    place, mapped or not; a GPU gets a copy. On a CPU, `threads` (all cores when None) share the work of one call."""

    def __init__(
        self, indptr: Array, indices: Array, fanouts: Sequence[int], seed: int, device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.fanouts, self.seed, self.device = tuple(int(fanout) for fanout in fanouts), seed, torch.device(device)
        if not self.fanouts or any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ConfigError(f"fan-outs are {[*self.fanouts]}: each must be at least 1, or -1 for all neighbours")
        self.num_nodes = len(indptr) - 1
        self.backend: NumbaBackend | TorchBackend
        if self.device.type == "cpu":
            self.backend = NumbaBackend(indptr, indices, threads)
        else:
            self.backend = TorchBackend(indptr, indices, self.device)

    def sample(self, seeds: Tensor, epoch: int = 0) -> Sample:
        """The blocks of these seeds. Each hop samples neighbours of all nodes reached so far, including the seeds, with
        its fan-out."""
        reached, blocks = seeds, []
        for hop in range(len(self.fanouts)):
            indptr, sampled = self.draw(reached, hop, epoch)
            distinct, positions = self.backend.distinct(torch.cat([reached, sampled]))
            blocks.append(Block(indptr, positions[len(reached) :], len(distinct)))
            reached = distinct
        return Sample(reached, tuple(reversed(blocks)))

    def neighborhoods(self, seeds: Tensor, epoch: int = 0) -> Neighborhoods:
        """The separate sampled neighbourhood of each seed: fanouts[0] neighbours of the seed, fanouts[1] of each of
        these, and so on. A node that is reached again keeps its smallest distance and is not expanded again."""
        b, n, device = len(seeds), self.num_nodes, seeds.device
        row, node = torch.arange(b, device=device), seeds
        known = row * n + node  # (seed, node) as one number
        filled = torch.ones_like(row)
        member, distance = [(row, torch.zeros_like(row), node)], [torch.zeros_like(row, dtype=torch.int8)]
        for hop in range(len(self.fanouts)):
            indptr, sampled = self.draw(node, hop, epoch)
            num_known = len(known)
            known, _ = self.backend.distinct(torch.cat([known, row[owners(indptr, len(sampled))] * n + sampled]))
            row, node = known[num_known:] // n, known[num_known:] % n
            counts = torch.bincount(row, minlength=b)
            before = counts.cumsum(0) - counts  # rows are sorted within a hop, so a seed's new nodes are contiguous
            member.append((row, filled[row] + torch.arange(len(row), device=device) - before[row], node))
            distance.append(torch.full_like(row, hop + 1, dtype=torch.int8))
            filled += counts
        rows, columns, nodes = (torch.cat(parts) for parts in zip(*member, strict=True))
        member_bm = seeds[:, None].repeat(1, int(filled.max()) if b else 1)
        distance_bm = torch.full_like(member_bm, -1, dtype=torch.int8)
        member_bm[rows, columns] = nodes
        distance_bm[rows, columns] = torch.cat(distance)
        values, positions = self.backend.distinct(torch.cat([seeds, member_bm.flatten()]))
        return Neighborhoods(values, positions[b:].view_as(member_bm), distance_bm)

    def draw(self, nodes: Tensor, hop: int, epoch: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): the sampled neighbours of each of these nodes in this hop."""
        return self.backend.draw(nodes, self.fanouts[hop], self.key(epoch, hop))

    def key(self, epoch: int, hop: int) -> int:
        """64-bit key of this hop's random streams, one stream per node."""
        state = np.zeros(1, np.uint64)
        start_stream(state, FOR_NEIGHBORS, self.seed, epoch, hop)
        return int(state[0])


class NumbaBackend:
    """Kernels over ranges of nodes; large samples use a pool of threads."""

    def __init__(self, indptr: Array, indices: Array, threads: int | None) -> None:
        self.indptr, self.indices, self.threads = np.asarray(indptr), np.asarray(indices), num_threads(threads)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours) sampled for each node; `key` is the key of the hop's random streams."""
        targets = nodes.numpy()
        starts = np.zeros(len(targets) + 1, np.int64)
        count_draws(self.indptr, targets, fanout, starts)
        neighbors = np.empty(starts[-1], np.int64)

        def work(low: int, high: int) -> None:
            draw_rows(self.indptr, self.indices, targets, starts, np.uint64(key), low, high, neighbors)

        for _ in run_ranges(work, [*range(0, len(targets), _TARGETS_PER_TASK), len(targets)], self.threads):
            pass
        return torch.from_numpy(starts), torch.from_numpy(neighbors)

    def distinct(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(values, positions): the distinct keys in order of first appearance, and each key's position among them."""
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, index_dtype(len(keys)))
        positions, values = torch.empty_like(keys), torch.empty_like(keys)
        count = number_distinct(keys.numpy(), table, positions.numpy(), values.numpy())
        return values[:count], positions


class TorchBackend:
    """Tensor operations on any device. int64 overflows like uint64, so the hash equals that of the kernels."""

    def __init__(self, indptr: Array, indices: Array, device: torch.device) -> None:
        self.indptr, self.indices = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours) sampled for each node; `key` is the key of the hop's random streams."""
        first = self.indptr[nodes]
        degree = self.indptr[nodes + 1] - first
        counts = degree.clamp(max=fanout) if fanout >= 0 else degree
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        target = owners(starts, int(starts[-1]))
        pick = torch.arange(len(target), device=nodes.device) - starts[target]
        if fanout >= 0:
            many = (degree > fanout).nonzero()[:, 0]
            slots = starts[many] + torch.arange(fanout, device=nodes.device)[:, None]
            pick[slots] = _floyd(nodes[many], degree[many], fanout, key)
        return starts, self.indices[first[target] + pick].long()

    def distinct(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(values, positions): the distinct keys in order of first appearance, and each key's position among them."""
        ordered, order = keys.sort(stable=True)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        first = order[begins]  # the sort is stable, so a run of equal keys starts with the first appearance
        is_first = torch.zeros_like(begins)
        is_first[first] = True
        number = is_first.cumsum(0) - 1
        positions = torch.empty_like(order)
        positions[order] = number[first][begins.cumsum(0) - 1]
        return keys[is_first], positions


def _floyd(nodes: Tensor, degree: Tensor, fanout: int, key: int) -> Tensor:
    """[f, t]: distinct positions below each node's degree, which exceeds the fan-out (Floyd's algorithm)."""
    slot = torch.arange(fanout, device=nodes.device)[:, None]
    state = _mix((nodes * _signed(SPREAD) + _signed(GOLDEN)) ^ _signed(key))
    bits = _mix(state + (slot + 1) * _signed(GOLDEN))
    last = degree - fanout + slot
    high, low = _shift(bits, 32), bits & LOW_32
    pick = _shift(high * (last + 1) + _shift(low * (last + 1), 32), 32)
    for s in range(1, fanout):
        taken = (pick[:s] == pick[s]).any(dim=0)
        pick[s] = torch.where(taken, last[s], pick[s])
    return pick


def _mix(x: Tensor) -> Tensor:
    """`data.kernels.mix` for tensors."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift: fills with zeros regardless of the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: Any) -> int:
    """A 64-bit unsigned integer as the int64 with the same bits."""
    return (int(bits) + (1 << 63)) % (1 << 64) - (1 << 63)


def owners(indptr: Tensor, num_edges: int) -> Tensor:
    """[e]: the CSR row of each edge."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)
