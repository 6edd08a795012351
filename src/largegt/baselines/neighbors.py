"""The neighbour sampler of the message-passing baselines and of GOAT.

Enters: a CSR (arrays or mapped files), a fan-out per hop, seeds. Leaves: a `Sample` (one `Block` of edges per layer,
over the distinct nodes of the batch) or `Neighborhoods` (each seed's own nodes by distance). Cost: time and memory in
proportion to the sample, beside the CSR; never to the graph, and to a hub's degree only where a fan-out of -1 asks for
all neighbours.

A node draws min(fan-out, degree) distinct neighbours, every subset of that size equally likely. What it draws is a
function of (seed, epoch, hop, node): in other company, another order, with other threads or on another device it draws
the same ones in the same order.

Two backends give the same bits: numba on a CPU, plain torch on a GPU (or anywhere). Each knows three things: what nodes
draw, which keys are distinct, and what lies around each seed.

Axes: b seeds, m members of a neighbourhood, t targets of a hop, e edges, u distinct nodes, f fan-out.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..errors import ConfigError, InputError
from ..graph.csr import index_dtype
from ..graph.kernels import mix
from ..graph.store import GraphStore
from ..prepare.kernels import start_stream
from ..prepare.local_nodes import node_numbers
from ..threads import num_threads, run_ranges
from ..types import Array, Direction

FOR_NEIGHBORS = 3
"""The purpose of these random streams, beside those of prepare/kernels.py."""

_TARGETS_PER_TASK, _SEEDS_PER_TASK = 1 << 13, 1 << 7
"""Fewer are done before another thread has begun."""
_GOLDEN, _SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x94D049BB133111EB)
_LOW_32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Block:
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
        return _owners(self.indptr, len(self.source))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        indptr, source = (part.to(device, non_blocking=non_blocking) for part in (self.indptr, self.source))
        return Block(indptr, source, self.num_inputs)


@dataclass(frozen=True)
class Sample:
    """The blocks of a batch. blocks[0].num_inputs is len(nodes), and a block's targets are the next one's inputs."""

    nodes: Tensor
    """[u] int64: distinct node numbers; the seeds first, in their order."""
    blocks: tuple[Block, ...]
    """In the order layers use them: the outermost hop first; the last one's targets are the seeds."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Sample:
        nodes = self.nodes.to(device, non_blocking=non_blocking)
        return Sample(nodes, tuple(block.to(device, non_blocking) for block in self.blocks))


@dataclass(frozen=True)
class Neighborhoods:
    """Each seed with the nodes sampled around it."""

    nodes: Tensor
    """[u] int64: distinct node numbers; the seeds first, in their order."""
    member: Tensor
    """[b, m] int64: places in `nodes`; column 0 is the seed, then nearer nodes before farther ones. Padding points
    at the seed."""
    distance: Tensor
    """[b, m] int8: the hop that found the member; 0 for the seed, -1 for padding."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Neighborhoods:
        parts = (self.nodes, self.member, self.distance)
        return Neighborhoods(*(part.to(device, non_blocking=non_blocking) for part in parts))


class NeighborSampler:
    """Draws neighbours from one CSR, whose rows hold no node twice (as those of a GraphStore).

    `fanouts` go from the seeds outwards; -1 takes all neighbours. `device` is where the CSR is read and samples are
    made: a CPU leaves the arrays where they are, mapped or not; a GPU gets a copy. `threads` (all cores when None)
    share the work of one call on a CPU; who samples several batches at once, which is faster, gives 1. `backend` is
    for tests and benches."""

    def __init__(
        self,
        indptr: Array,
        indices: Array,
        fanouts: Sequence[int],
        seed: int,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        backend: Literal["numba", "torch"] | None = None,
    ) -> None:
        self.fanouts, self.seed, self.device = tuple(int(fanout) for fanout in fanouts), seed, torch.device(device)
        if not self.fanouts or any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ConfigError(f"fan-outs are {[*self.fanouts]}: each must be at least 1, or -1 for all neighbours")
        self.num_nodes = len(indptr) - 1
        self.backend: Backend
        if (backend or ("numba" if self.device.type == "cpu" else "torch")) == "numba":
            self.backend = _Numba(indptr, indices, threads)
        else:
            self.backend = _Torch(indptr, indices, self.device)

    @classmethod
    def for_store(
        cls,
        store: GraphStore,
        direction: Direction,
        fanouts: Sequence[int],
        seed: int,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> NeighborSampler:
        """Over a store's successors (`out`), predecessors (`in`) or both; of the last the store keeps the union."""
        return cls(*store.csr(direction), fanouts, seed, device, threads)

    def sample(self, nodes: Any, epoch: int = 0) -> Sample:
        """The blocks of these seeds: distinct node numbers as a list, an array or a tensor, or a mask. In every hop all
        nodes reached so far draw, the seeds too, each with that hop's fan-out."""
        reached = self.seeds(nodes)
        blocks = []
        for hop in range(len(self.fanouts)):
            indptr, drawn = self.draw(reached, hop, epoch)
            together, places = self.backend.distinct(reached, drawn)
            blocks.append(Block(indptr, places[len(reached) :], len(together)))
            reached = together
        return Sample(reached, tuple(reversed(blocks)))

    def draw(self, nodes: Tensor, hop: int, epoch: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): what each of these nodes draws in this hop."""
        return self.backend.draw(nodes, self.fanouts[hop], self.key(epoch, hop))

    def seeds(self, nodes: Any) -> Tensor:
        """These node numbers on the sampler's device; an `InputError` if one is no node or is there twice."""
        if not isinstance(nodes, Tensor):
            nodes = torch.tensor(node_numbers(nodes))
        if nodes.dtype == torch.bool:
            nodes = nodes.nonzero()[:, 0]
        if nodes.ndim != 1 or (nodes.is_floating_point() and len(nodes)):
            raise InputError(f"seeds must be a row of node numbers, found {nodes.dtype} {tuple(nodes.shape)}")
        seeds: Tensor = nodes.to(self.device, torch.int64).contiguous()
        outside = (seeds < 0) | (seeds >= self.num_nodes)
        if outside.any():
            raise InputError(f"node {int(seeds[outside][0])} asked for, but nodes go from 0 to {self.num_nodes - 1}")
        values, places = self.backend.distinct(seeds)
        if len(values) < len(seeds):
            again = int((places != torch.arange(len(seeds), device=self.device)).nonzero()[0])
            raise InputError(f"node {int(seeds[again])} is among the seeds twice: give each node once")
        return seeds

    def key(self, epoch: int, hop: int) -> int:
        """64 bits that name the random streams of all nodes in this hop."""
        state = np.zeros(1, np.uint64)
        start_stream(state, FOR_NEIGHBORS, self.seed, epoch, hop)
        return int(state[0])


def neighborhoods(sampler: NeighborSampler, nodes: Any, epoch: int = 0) -> Neighborhoods:
    """The sampled neighbourhood of each seed, on its own: a seed draws fanouts[0] neighbours, each of these fanouts[1],
    and so on. A node that is met again keeps its smallest distance and draws no more."""
    seeds, backend = sampler.seeds(nodes), sampler.backend
    keys = [sampler.key(epoch, hop) for hop in range(len(sampler.fanouts))]
    member, distance = backend.neighborhoods(seeds, sampler.fanouts, keys)
    values, places = backend.distinct(seeds, member.flatten())
    return Neighborhoods(values, places[len(seeds) :].view_as(member), distance)


def _owners(indptr: Tensor, num_edges: int) -> Tensor:
    """[e]: which row of the CSR each edge belongs to."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)


class Backend(Protocol):
    """What a sampler is made of. `key` names the random streams of a hop; everything lies on the sampler's device."""

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """(indptr, neighbours): what each node draws."""
        ...

    def distinct(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        """(values, places): the distinct keys in order of first appearance, and where each key is among them."""
        ...

    def neighborhoods(self, seeds: Tensor, fanouts: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(member, distance), both [b, m]: as in `Neighborhoods`, but members are node numbers."""
        ...


# numba -----------------------------------------------------------------------------------------------------------


class _Numba:
    """On a CPU: kernels over ranges, on a pool of threads where there is enough to do."""

    def __init__(self, indptr: Array, indices: Array, threads: int | None) -> None:
        self.indptr, self.indices, self.threads = np.asarray(indptr), np.asarray(indices), num_threads(threads)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        targets = nodes.numpy()
        starts = np.zeros(len(targets) + 1, np.int64)
        count_draws(self.indptr, targets, fanout, starts)
        neighbors = np.empty(starts[-1], np.int64)

        def work(low: int, high: int) -> None:
            draw_rows(self.indptr, self.indices, targets, starts, np.uint64(key), low, high, neighbors)

        bounds = [*range(0, len(targets), _TARGETS_PER_TASK), len(targets)]
        for _ in run_ranges(work, bounds, self.threads):
            pass
        return torch.from_numpy(starts), torch.from_numpy(neighbors)

    def distinct(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        keys = np.concatenate([part.numpy() for part in parts])
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, index_dtype(len(keys)))
        places, values = np.empty_like(keys), np.empty_like(keys)
        count = number_distinct(keys, table, places, values)
        return torch.from_numpy(values[:count]), torch.from_numpy(places)

    def neighborhoods(self, seeds: Tensor, fanouts: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
        roots, ends = seeds.numpy(), np.empty((len(seeds), 1 + len(fanouts)), np.int64)
        hops = (np.array(fanouts, np.int64), np.array(keys, np.uint64))

        def work(low: int, high: int) -> Array:
            found: Array = list_neighborhoods(self.indptr, self.indices, roots[low:high], *hops, ends[low:high])
            return found

        bounds = [*range(0, len(roots), _SEEDS_PER_TASK), len(roots)]
        pieces = list(run_ranges(work, bounds, self.threads))
        shape = (len(roots), int(ends[:, -1].max(initial=1)))
        member, distance = np.empty(shape, np.int64), np.empty(shape, np.int8)
        spread_members(np.concatenate([roots[:0], *pieces]), ends, member, distance)
        return torch.from_numpy(member), torch.from_numpy(distance)


@njit(nogil=True, cache=True)
def num_drawn(indptr: Any, i: Any, fanout: int) -> Any:
    """How many neighbours node i draws."""
    degree = indptr[i + 1] - indptr[i]
    return fanout if 0 <= fanout < degree else degree


@njit(nogil=True, cache=True)
def count_draws(indptr: Any, nodes: Any, fanout: int, starts: Any) -> None:
    """starts[t] = what the targets before t draw together."""
    for t in range(len(nodes)):
        starts[t + 1] = starts[t] + num_drawn(indptr, nodes[t], fanout)


@njit(nogil=True, cache=True)
def draw_rows(
    indptr: Any, indices: Any, nodes: Any, starts: Any, key: Any, low: int, high: int, neighbors: Any
) -> None:  # fmt: skip
    """What targets [low, high) draw, into neighbors[starts[t] : starts[t + 1]]."""
    for t in range(low, high):
        pick_entries(indptr, nodes[t], key, neighbors[starts[t] : starts[t + 1]])
    for place in range(starts[low], starts[high]):  # a loop of its own: the memory answers many of them at once
        neighbors[place] = indices[neighbors[place]]


@njit(nogil=True, cache=True)
def pick_entries(indptr: Any, i: Any, key: Any, row: Any) -> None:
    """Fill `row` with distinct entries of node i's row of the CSR: all of them in order, or a subset by Floyd's way,
    one random number each, however large the degree."""
    first = indptr[i]
    degree = indptr[i + 1] - first
    if degree == len(row):
        for slot in range(degree):
            row[slot] = first + slot
        return
    state = mix(key ^ (np.uint64(i) * _SPREAD + _GOLDEN))
    for slot in range(len(row)):
        last = first + degree - len(row) + slot
        state += _GOLDEN
        pick = first + below(mix(state), last - first + 1)
        taken = False
        for other in range(slot):
            taken |= row[other] == pick
        row[slot] = last if taken else pick


@njit(nogil=True, cache=True)
def below(bits: Any, bound: Any) -> Any:
    """64 random bits as a whole number in [0, bound): the high word of their product, in halves. No number is more
    likely than another by over bound / 2⁶⁴; bound must be less than 2³¹."""
    n = np.uint64(bound)
    high, low = bits >> np.uint64(32), bits & np.uint64(_LOW_32)
    return np.int64((high * n + (low * n >> np.uint64(32))) >> np.uint64(32))


@njit(nogil=True, cache=True)
def number_distinct(keys: Any, table: Any, places: Any, values: Any) -> int:
    """places[j] = the number of keys[j] among the distinct `values`, which are numbered as they appear; how many.
    `table` is open-addressed and holds numbers: -1s at first, a power of two of them, more than there are keys."""
    mask, count = len(table) - 1, 0
    for j in range(len(keys)):
        slot = np.int64(mix(keys[j]) & np.uint64(mask))
        while table[slot] >= 0 and values[table[slot]] != keys[j]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = count
            values[count] = keys[j]
            count += 1
        places[j] = table[slot]
    return count


@njit(nogil=True, cache=True)
def list_neighborhoods(indptr: Any, indices: Any, seeds: Any, fanouts: Any, keys: Any, ends: Any) -> Any:
    """The members of each seed's neighbourhood, one seed after the other; ends[b, h] = how many within h hops."""
    members, table = np.empty(1024, np.int64), np.full(64, -1, np.int64)
    base = 0
    for b in range(len(seeds)):
        members, table = with_room(members, table, base, base, 1)
        add_member(members, table, base, base, seeds[b])
        at, begin = base + 1, base
        ends[b, 0] = 1
        for hop in range(len(fanouts)):
            end, total = at, 0
            for place in range(begin, end):
                total += num_drawn(indptr, members[place], fanouts[hop])
            members, table = with_room(members, table, base, end, total)
            stop = end
            for place in range(begin, end):
                row = members[stop : stop + num_drawn(indptr, members[place], fanouts[hop])]
                pick_entries(indptr, members[place], keys[hop], row)
                stop += len(row)
            for place in range(end, stop):
                members[place] = indices[members[place]]
            for place in range(end, stop):  # the new ones move together: `at` is never ahead of `place`
                at += add_member(members, table, base, at, members[place])
            begin = end
            ends[b, hop + 1] = at - base
        base = at
    return members[:base].copy()


@njit(nogil=True, cache=True)
def add_member(members: Any, table: Any, base: int, at: int, node: Any) -> int:
    """Put a node at members[at] unless it is among members[base:at]; 1 or 0. `table` is open-addressed and holds
    places of members: those below `base` are of another seed and count as empty, so that nothing need be cleared."""
    mask = len(table) - 1
    slot = np.int64(mix(node) & np.uint64(mask))
    while table[slot] >= base:
        if members[table[slot]] == node:
            return 0
        slot = (slot + 1) & mask
    table[slot] = at
    members[at] = node
    return 1


@njit(nogil=True, cache=True)
def with_room(members: Any, table: Any, base: int, at: int, count: int) -> Any:
    """(members, table), larger ones if `count` more members would not fit."""
    if at + count > len(members):
        larger = np.empty(2 * (at + count), np.int64)
        larger[:at] = members[:at]
        members = larger
    if 2 * (at + count - base) > len(table):
        size = len(table)
        while size < 2 * (at + count - base):
            size *= 2
        table = np.full(size, -1, np.int64)
        for place in range(base, at):
            add_member(members, table, base, place, members[place])
    return members, table


@njit(nogil=True, cache=True)
def spread_members(found: Any, ends: Any, member: Any, distance: Any) -> None:
    """One seed's members after the other's → a row each, padded with the seed."""
    at = 0
    for b in range(len(ends)):
        hop = 0
        for column in range(member.shape[1]):
            while hop < ends.shape[1] and column == ends[b, hop]:
                hop += 1
            inside = hop < ends.shape[1]
            member[b, column] = found[at + column] if inside else found[at]
            distance[b, column] = hop if inside else -1
        at += ends[b, -1]


# torch -----------------------------------------------------------------------------------------------------------


class _Torch:
    """On any device, by whole-tensor operations. int64 wraps around as uint64 does, so the hash is the same one."""

    def __init__(self, indptr: Array, indices: Array, device: torch.device) -> None:
        self.indptr, self.indices = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        first = self.indptr[nodes]
        degree = self.indptr[nodes + 1] - first
        counts = degree.clamp(max=fanout) if fanout >= 0 else degree
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        target = _owners(starts, int(starts[-1]))
        pick = torch.arange(len(target), device=nodes.device) - starts[target]
        if fanout >= 0:
            many = (degree > fanout).nonzero()[:, 0]
            slots = starts[many] + torch.arange(fanout, device=nodes.device)[:, None]
            pick[slots] = _floyd(nodes[many], degree[many], fanout, key)
        return starts, self.indices[first[target] + pick].long()

    def distinct(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat(parts)
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

    def neighborhoods(self, seeds: Tensor, fanouts: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
        b, n, device = len(seeds), len(self.indptr) - 1, seeds.device
        row, node = torch.arange(b, device=device), seeds
        known = row * n + node  # (seed, node) as one number
        filled = torch.ones_like(row)
        pieces = [(row, torch.zeros_like(row), node, torch.zeros_like(row, dtype=torch.int8))]
        for hop, (fanout, key) in enumerate(zip(fanouts, keys, strict=True), start=1):
            indptr, drawn = self.draw(node, fanout, key)
            num_known = len(known)
            known, _ = self.distinct(known, row[_owners(indptr, len(drawn))] * n + drawn)
            row, node = known[num_known:] // n, known[num_known:] % n
            counts = torch.bincount(row, minlength=b)
            before = counts.cumsum(0) - counts  # rows rise within a hop, so a seed's new nodes are side by side
            column = filled[row] + torch.arange(len(row), device=device) - before[row]
            pieces.append((row, column, node, torch.full_like(row, hop, dtype=torch.int8)))
            filled += counts
        rows, columns, nodes, hops = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        member = seeds[:, None].repeat(1, int(filled.max()) if b else 1)
        distance = torch.full_like(member, -1, dtype=torch.int8)
        member[rows, columns] = nodes
        distance[rows, columns] = hops
        return member, distance


def _floyd(nodes: Tensor, degree: Tensor, fanout: int, key: int) -> Tensor:
    """[f, t]: distinct places below each node's degree, which is greater than the fan-out."""
    slot = torch.arange(fanout, device=nodes.device)[:, None]
    state = _mix((nodes * _signed(_SPREAD) + _signed(_GOLDEN)) ^ _signed(key))
    bits = _mix(state + (slot + 1) * _signed(_GOLDEN))
    last = degree - fanout + slot
    high, low = _shift(bits, 32), bits & _LOW_32
    pick = _shift(high * (last + 1) + _shift(low * (last + 1), 32), 32)
    for s in range(1, fanout):
        taken = (pick[:s] == pick[s]).any(dim=0)
        pick[s] = torch.where(taken, last[s], pick[s])
    return pick


def _mix(x: Tensor) -> Tensor:
    """`graph.kernels.mix` of tensors."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """A right shift that brings in zeros, whatever the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: Any) -> int:
    """64 bits as torch has them."""
    return (int(bits) + (1 << 63)) % (1 << 64) - (1 << 63)
