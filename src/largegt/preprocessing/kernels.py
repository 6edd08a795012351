"""The inner loops of preparation, in numba. Plain arrays in, plain arrays out, explicit random state.

Every kernel releases the GIL and runs on chunks. Rows of a CSR (`indptr`, `indices`) are sorted, without duplicates and
without self loops: `ingest` guarantees it, and the sampler relies on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.data.kernels import mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_LOW_32 = np.uint64(0xFFFFFFFF)

FOR_LOCAL_NODES, FOR_PROJECTION, FOR_WALKS, FOR_NEIGHBORS = 0, 1, 2, 3
"""Purposes of random streams: one seed gives independent streams for different purposes."""


# random numbers ------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def start_stream(state: Any, purpose: int, seed: int, epoch: int, node: int) -> None:
    """Start the stream of (purpose, seed, epoch, node). Each part is hashed, so streams of neighbouring seeds, epochs
    or nodes are independent."""
    x = mix(mix(np.uint64(seed) + _GOLDEN) + np.uint64(purpose))
    x = mix(x ^ (np.uint64(epoch) * _MIX_A + _GOLDEN))
    state[0] = mix(x ^ (np.uint64(node) * _MIX_B + _GOLDEN))


@njit(nogil=True, cache=True)
def next_bits(state: Any) -> Any:
    """The next 64 random bits."""
    state[0] += _GOLDEN
    return mix(state[0])


@njit(nogil=True, cache=True)
def randint(state: Any, bound: Any) -> Any:
    """An exactly uniform integer in [0, bound), by multiply-and-shift with rejection."""
    n = np.uint64(bound)
    if n <= _LOW_32:
        product = (next_bits(state) >> np.uint64(32)) * n
        low = product & _LOW_32
        if low < n:
            threshold = (np.uint64(0x100000000) - n) % n
            while low < threshold:
                product = (next_bits(state) >> np.uint64(32)) * n
                low = product & _LOW_32
        return np.int64(product >> np.uint64(32))
    top = np.uint64(0xFFFFFFFFFFFFFFFF)
    limit = top - (top % n + np.uint64(1)) % n
    bits = next_bits(state)
    while bits > limit:
        bits = next_bits(state)
    return np.int64(bits % n)


@njit(nogil=True, cache=True)
def random_unit(state: Any) -> float:
    """A float in [0, 1)."""
    return float(next_bits(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


# sorted rows ---------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def lower_bound(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """The first position in the sorted values[low:high] with a value of at least `wanted`."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def contains(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """Whether the sorted values[low:high] contain `wanted`."""
    place = lower_bound(values, low, high, wanted)
    return place < high and values[place] == wanted


@njit(nogil=True, cache=True)
def share_an_element(a: Any, a_low: int, a_high: int, b: Any, b_low: int, b_high: int) -> bool:
    """Whether two sorted ranges share an element, by binary searches in the longer one."""
    if a_high - a_low > b_high - b_low:
        a, a_low, a_high, b, b_low, b_high = b, b_low, b_high, a, a_low, a_high
    for place in range(a_low, a_high):
        b_low = lower_bound(b, b_low, b_high, a[place])
        if b_low == b_high:
            return False
        if b[b_low] == a[place]:
            return True
    return False


@njit(nogil=True, cache=True)
def copy_rows(indptr: Any, indices: Any, rows: Any, out_indptr: Any, out: Any) -> None:
    """Copy row rows[n] of a CSR to row n of another one."""
    for n in range(len(rows)):
        low, to = indptr[rows[n]], out_indptr[n]
        for place in range(out_indptr[n + 1] - to):
            out[to + place] = indices[low + place]


@njit(nogil=True, cache=True)
def in_rows(indptr: Any, indices: Any, rows: Any, wanted: Any) -> Any:
    """Boolean: whether row rows[n] of a CSR contains wanted[n]."""
    found = np.empty(len(rows), np.bool_)
    for n in range(len(rows)):
        found[n] = contains(indices, indptr[rows[n]], indptr[rows[n] + 1], wanted[n])
    return found


# context features and projections ------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def add_neighbors(
    indptr: Any, indices: Any, weights: Any, scale: float, self_loops: bool, nodes: Any, cursor: Any, low: int,
    high: int, dense: Any, row_of: Any, sums: Any,
) -> None:  # fmt: skip
    """`sums[n] += w·X[j]` over the neighbours j of nodes[n] with low <= j < high, in ascending order, including the
    node itself if `self_loops`. w is the entry's weight times `scale`, and 1 for the node itself or if `weights` is
    empty. cursor[n] is the next position in `indices` and is updated. X[j] is dense[row_of[j - low]], or dense[j - low]
    if `row_of` is empty."""
    width = dense.shape[1]
    for n in range(len(nodes)):
        i = nodes[n]
        place, end = cursor[n], indptr[i + 1]
        adds_self = self_loops and low <= i < high
        total = sums[n]
        while True:
            j = np.int64(indices[place]) if place < end else high
            weight = np.float32(1.0)
            if adds_self and i < j:
                j = i
                adds_self = False
            elif j < high:
                if len(weights):
                    weight = np.float32(np.float64(weights[place]) * scale)
                place += 1
            else:
                break
            x = dense[row_of[j - low]] if len(row_of) else dense[j - low]
            for c in range(width):
                total[c] += weight * x[c]
        cursor[n] = place


@njit(nogil=True, cache=True)
def random_signs(nodes: Any, seed: int, out: Any) -> None:
    """±1 for each node and column: rows of the random projection, a function of (seed, node) only."""
    state = np.zeros(1, np.uint64)
    for n in range(len(out)):
        start_stream(state, FOR_PROJECTION, seed, 0, nodes[n])
        bits = np.uint64(0)
        for c in range(out.shape[1]):
            if c % 64 == 0:
                bits = next_bits(state)
            out[n, c] = np.float32(1.0) if bits & np.uint64(1) else np.float32(-1.0)
            bits >>= np.uint64(1)


# random walks --------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def random_walks(
    indptr: Any, indices: Any, starts: Any, p: float, q: float, seed: int, first_walk: int, walks: Any
) -> None:
    """node2vec's second-order walks into walks [w, length], by rejection sampling: a uniform neighbour is accepted in
    proportion to 1/p (the previous node), 1 (a neighbour of the previous node) or 1/q (any other). A walk at a node
    without neighbours stays there. Walk number `first_walk + w` is a function of (seed, that number) only."""
    state = np.zeros(1, np.uint64)
    max_weight = max(1.0, 1.0 / p, 1.0 / q)
    for w in range(len(starts)):
        start_stream(state, FOR_WALKS, seed, 0, first_walk + w)
        previous, here = np.int64(-1), np.int64(starts[w])
        walks[w, 0] = here
        for step in range(1, walks.shape[1]):
            low, degree = indptr[here], indptr[here + 1] - indptr[here]
            target = here
            while degree > 0:
                target = np.int64(indices[low + randint(state, degree)])
                if degree == 1 or previous < 0 or (p == 1.0 and q == 1.0):
                    break
                if target == previous:
                    weight = 1.0 / p
                elif contains(indices, indptr[previous], indptr[previous + 1], target):
                    weight = 1.0
                else:
                    weight = 1.0 / q
                if random_unit(state) * max_weight < weight:
                    break
            previous, here = here, target
            walks[w, step] = here


@njit(nogil=True, cache=True)
def mark_neighbors(indptr: Any, indices: Any, nodes: Any, marked: Any) -> None:
    """Set `marked` at every neighbour of `nodes`."""
    for n in range(len(nodes)):
        for place in range(indptr[nodes[n]], indptr[nodes[n] + 1]):
            marked[indices[place]] = True
