"""The neighbour sampler's backend for a GPU, or for any device: whole-tensor operations of torch.

int64 wraps around as uint64 does, so the hash is that of the numba kernels, bit by bit.

Axes: b seeds, m members of a neighbourhood, t targets of a hop, f fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..types import Array
from .neighbors_cpu import GOLDEN, LOW_32, SPREAD


class TorchBackend:
    """What neighbors.Backend asks for, on any device."""

    def __init__(self, indptr: Array, indices: Array, device: torch.device) -> None:
        self.indptr, self.indices = torch.tensor(indptr, device=device), torch.tensor(indices, device=device)

    def draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
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
            known, _ = self.distinct(known, row[owners(indptr, len(drawn))] * n + drawn)
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


def owners(indptr: Tensor, num_edges: int) -> Tensor:
    """[e]: which row of the CSR each edge belongs to."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)
