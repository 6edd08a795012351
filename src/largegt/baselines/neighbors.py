"""The neighbour sampler of the message-passing baselines and of GOAT.

Enters: a CSR (arrays or mapped files), a fan-out per hop, seeds. Leaves: a `Sample` (one `Block` of edges per layer,
over the distinct nodes of the batch) or `Neighborhoods` (each seed's own nodes by distance). Cost: time and memory in
proportion to the sample, beside the CSR; never to the graph, and to a hub's degree only where a fan-out of -1 asks for
all neighbours.

A node draws min(fan-out, degree) distinct neighbours, every subset of that size equally likely. What it draws is a
function of (seed, epoch, hop, node): in other company, another order, with other threads or on another device it draws
the same ones in the same order.

Two backends give the same bits: numba on a CPU (neighbors_cpu.py), plain torch on a GPU or anywhere (neighbors_gpu.py).
Each knows three things: what nodes draw, which keys are distinct, and what lies around each seed.

Axes: b seeds, m members of a neighbourhood, t targets of a hop, e edges, u distinct nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.store import GraphStore
from ..errors import ConfigError, InputError
from ..prepare.kernels import FOR_NEIGHBORS, start_stream
from ..prepare.local_nodes import node_numbers
from ..types import Array, Direction
from .neighbors_cpu import NumbaBackend
from .neighbors_gpu import TorchBackend, owners


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
        return owners(self.indptr, len(self.source))

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
            self.backend = NumbaBackend(indptr, indices, threads)
        else:
            self.backend = TorchBackend(indptr, indices, self.device)

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
        store.check(direction)
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
