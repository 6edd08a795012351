"""The neighbour sampler of the message-passing baselines and of GOAT.

Enters: a CSR (arrays or mapped files), a fan-out per hop, seeds. Leaves: a `Sample` (one `Block` of edges per layer,
over the distinct nodes of the batch) or `Neighborhoods` (each seed's own nodes by distance). Cost: time and memory in
proportion to the sample, beside the CSR.

A node draws min(fan-out, degree) distinct neighbours, every subset of that size equally likely. What it draws is a
function of (seed, epoch, hop, node): in any batch, with any number of threads, on any device. Two backends give the
same bits: numba kernels on a CPU, which draw 4 to 5 times as fast there as the tensor operations of a GPU.

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
"""Fewer are drawn before another thread has begun."""


@dataclass(frozen=True)
class Block(Movable):
    """One hop of a sample: edges from input rows to target rows. The targets are the first rows of the input."""

    indptr: Tensor
    """[t+1] int64: the edges of target i are source[indptr[i] : indptr[i + 1]]."""
    source: Tensor
    """[e] int64: the place of each edge's source among the layer's input rows."""
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
    """In the order layers use them: the outermost hop first; the last one's targets are the seeds."""


class Neighborhoods(NamedTuple):
    """Each seed with the nodes sampled around it."""

    nodes: Tensor
    """[u] int64: distinct node numbers; the seeds first, in their order."""
    member: Tensor
    """[b, m] int64: places in `nodes`; column 0 is the seed, then nearer nodes before farther ones. Padding points
    at the seed."""
    distance: Tensor
    """[b, m] int8: the hop that found the member; 0 for the seed, -1 for padding."""


class NeighborSampler:
    """Draws neighbours of distinct nodes from one CSR, whose rows hold no node twice (as those of a GraphStore).

    `fanouts` go from the seeds outwards; -1 takes all neighbours. `device` is where the CSR is read and samples are
    made: a CPU leaves the arrays where they are, mapped or not; a GPU gets a copy. `threads` (all cores when None)
    share the work of one call on a CPU."""

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
        """The blocks of these seeds. In every hop all nodes reached so far draw, the seeds too, each with that hop's
        fan-out."""
        reached, blocks = seeds, []
        for hop in range(len(self.fanouts)):
            indptr, drawn = self.draw(reached, hop, epoch)
            together, places = self.backend.distinct(torch.cat([reached, drawn]))
            blocks.append(Block(indptr, places[len(reached) :], len(together)))
            reached = together
        return Sample(reached, tuple(reversed(blocks)))

    def neighborhoods(self, seeds: Tensor, epoch: int = 0) -> Neighborhoods:
        """The sampled neighbourhood of each seed, on its own: a seed draws fanouts[0] neighbours, each of these
        fanouts[1], and so on. A node that is met again keeps its smallest distance and draws no more."""
        b, n, device = len(seeds), self.num_nodes, seeds.device
        row, node = torch.arange(b, device=device), seeds
        known = row * n + node  # (seed, node) as one number
        filled = torch.ones_like(row)
        member, distance = [(row, torch.zeros_like(row), node)], [torch.zeros_like(row, dtype=torch.int8)]
        for hop in range(len(self.fanouts)):
            indptr, drawn = self.draw(node, hop, epoch)
            num_known = len(known)
            known, _ = self.backend.distinct(torch.cat([known, row[owners(indptr, len(drawn))] * n + drawn]))
            row, node = known[num_known:] // n, known[num_known:] % n
            counts = torch.bincount(row, minlength=b)
            before = counts.cumsum(0) - counts  # rows rise within a hop, so a seed's new nodes are side by side
            member.append((row, filled[row] + torch.arange(len(row), device=device) - before[row], node))
            distance.append(torch.full_like(row, hop + 1, dtype=torch.int8))
            filled += counts
        rows, columns, nodes = (torch.cat(parts) for parts in zip(*member, strict=True))
        member_bm = seeds[:, None].repeat(1, int(filled.max()) if b else 1)
        distance_bm = torch.full_like(member_bm, -1, dtype=torch.int8)
        member_bm[rows, columns] = nodes
        distance_bm[rows, columns] = torch.cat(distance)
        values, places = self.backend.distinct(torch.cat([seeds, member_bm.flatten()]))
        return Neighborhoods(values, places[b:].view_as(member_bm), distance_bm)

    def draw(self, nodes: Tensor, hop: int, epoch: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): what each of these nodes draws in this hop."""
        return self.backend.draw(nodes, self.fanouts[hop], self.key(epoch, hop))

    def key(self, epoch: int, hop: int) -> int:
        """64 bits that name the random streams of all nodes in this hop."""
        state = np.zeros(1, np.uint64)
        start_stream(state, FOR_NEIGHBORS, self.seed, epoch, hop)
        return int(state[0])


class NumbaBackend:
    """Kernels over ranges of nodes, on a pool of threads where there is enough to do."""

    def __init__(self, indptr: Array, indices: Array, threads: int | None) -> None:
        self.indptr, self.indices, self.threads = np.asarray(indptr), np.asarray(indices), num_threads(threads)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): what each node draws; `key` names the random streams of the hop."""
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
        """(values, places): the distinct keys in order of first appearance, and where each key is among them."""
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, index_dtype(len(keys)))
        places, values = torch.empty_like(keys), torch.empty_like(keys)
        count = number_distinct(keys.numpy(), table, places.numpy(), values.numpy())
        return values[:count], places


class TorchBackend:
    """Tensor operations, on any device. int64 wraps around as uint64 does, so the hash is that of the kernels."""

    def __init__(self, indptr: Array, indices: Array, device: torch.device) -> None:
        self.indptr, self.indices = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): what each node draws; `key` names the random streams of the hop."""
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
        """(values, places): the distinct keys in order of first appearance, and where each key is among them."""
        ordered, order = keys.sort(stable=True)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        first = order[begins]  # equal keys stay in order, so a run begins with the first appearance
        is_first = torch.zeros_like(begins)
        is_first[first] = True
        number = is_first.cumsum(0) - 1
        places = torch.empty_like(order)
        places[order] = number[first][begins.cumsum(0) - 1]
        return keys[is_first], places


def _floyd(nodes: Tensor, degree: Tensor, fanout: int, key: int) -> Tensor:
    """[f, t]: distinct places below each node's degree, which is greater than the fan-out (Floyd's algorithm)."""
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
    """`data.kernels.mix` of tensors."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """A right shift that brings in zeros, whatever the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: Any) -> int:
    """64 bits as torch has them."""
    return (int(bits) + (1 << 63)) % (1 << 64) - (1 << 63)


def owners(indptr: Tensor, num_edges: int) -> Tensor:
    """[e]: which row of the CSR each edge belongs to."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)
