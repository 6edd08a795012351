"""The inner loops of preparation, in numba. Plain arrays in, plain arrays out, explicit random state.

Every kernel releases the GIL and is driven in chunks by an engine. Rows of a CSR (`indptr`, `indices`) are sorted,
without duplicates and without self loops: `ingest` makes them so, and the sampler relies on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_LOW_32 = np.uint64(0xFFFFFFFF)

FOR_LOCAL_NODES, FOR_PROJECTION, FOR_WALKS = 0, 1, 2
"""Purposes of random streams: what one seed is used for in one place says nothing of another."""
PATH_BLOCKS = 1024
"""Blocks of neighbours whose path counts are remembered while one node is sampled: bounds the memory of a hub."""
PATHS_PER_TRY = 16
"""What one try of the rejection sampler costs, in enumerated paths: decides which way is cheaper."""


# random numbers ------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def mix(x: Any) -> Any:
    """A bijection of 64 bits in which every input bit moves about half of the output bits (splitmix64's)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_A
    x = (x ^ (x >> np.uint64(27))) * _MIX_B
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def start_stream(state: Any, purpose: int, seed: int, epoch: int, node: int) -> None:
    """Begin the stream of (purpose, seed, epoch, node). Each part goes through the mixer, so that neighbouring
    seeds, epochs or nodes share nothing, and neither do two uses of one seed."""
    x = mix(mix(np.uint64(seed) + _GOLDEN) + np.uint64(purpose))
    x = mix(x ^ (np.uint64(epoch) * _MIX_A + _GOLDEN))
    state[0] = mix(x ^ (np.uint64(node) * _MIX_B + _GOLDEN))


@njit(nogil=True, cache=True)
def next_bits(state: Any) -> Any:
    """The next 64 random bits."""
    state[0] += _GOLDEN
    return mix(state[0])


@njit(nogil=True, cache=True)
def below(state: Any, bound: Any) -> Any:
    """A whole number in [0, bound), exactly uniform (multiply-and-shift with rejection of the short end)."""
    n = np.uint64(bound)
    if n <= _LOW_32:
        product = (next_bits(state) >> np.uint64(32)) * n
        low = product & _LOW_32
        if low < n:
            short = (np.uint64(0x100000000) - n) % n
            while low < short:
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
def unit(state: Any) -> float:
    """A float in [0, 1)."""
    return float(next_bits(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


# sorted rows ---------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def lower_bound(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """First place in the sorted values[low:high] that holds `wanted` or more."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def contains(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """Whether the sorted values[low:high] hold `wanted`."""
    place = lower_bound(values, low, high, wanted)
    return place < high and values[place] == wanted


@njit(nogil=True, cache=True)
def share_an_element(a: Any, a_low: int, a_high: int, b: Any, b_low: int, b_high: int) -> bool:
    """Whether two sorted ranges meet: each element of the shorter is searched in what is left of the longer."""
    if a_high - a_low > b_high - b_low:
        a, a_low, a_high, b, b_low, b_high = b, b_low, b_high, a, a_low, a_high
    for place in range(a_low, a_high):
        b_low = lower_bound(b, b_low, b_high, a[place])
        if b_low == b_high:
            return False
        if b[b_low] == a[place]:
            return True
    return False


# LocalNodes ----------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def insert(table: Any, node: int) -> bool:
    """Put a node into an open-addressed table of -1s whose size is a power of two; False if it was there."""
    mask = len(table) - 1
    slot = np.int64(mix(np.uint64(node)) & np.uint64(mask))
    while table[slot] != -1:
        if table[slot] == node:
            return False
        slot = (slot + 1) & mask
    table[slot] = node
    return True


@njit(nogil=True, cache=True)
def count_paths(indptr: Any, indices: Any, start: int, stop: int, block_ends: Any) -> Any:
    """Two-hop paths through the neighbours indices[start:stop], cumulated at the end of each block of neighbours.
    Returns (paths, neighbours per block)."""
    block = max(1, (stop - start + len(block_ends) - 1) // len(block_ends))
    paths = np.int64(0)
    for place in range(start, stop):
        j = indices[place]
        paths += indptr[j + 1] - indptr[j]
        block_ends[(place - start) // block] = paths
    return paths, block


@njit(nogil=True, cache=True)
def sample_by_rejection(
    indptr: Any, indices: Any, rev_indptr: Any, rev_indices: Any, i: int, paths: int, block: int, block_ends: Any,
    state: Any, table: Any, row: Any, max_tries: int,
) -> bool:  # fmt: skip
    """Fill row[1:] with distinct nodes, uniform over the one- and two-hop neighbours of `i`; False if out of tries.

    A try draws one of all paths i→v and i→j→v uniformly and keeps v only if the path is the first to v: one hop
    before two, then by j. Each v has one first path, so every kept v is equally likely. The decision to give up
    depends on the number of tries alone, never on which nodes were met, so what is returned stays uniform.
    """
    start, stop = indptr[i], indptr[i + 1]
    degree = stop - start
    num_blocks = (degree + block - 1) // block
    table[:] = -1
    found = 1
    for _ in range(max_tries):
        draw = below(state, degree + paths)
        if draw < degree:
            v = indices[start + draw]
        else:
            draw -= degree
            low, high = 0, num_blocks
            while low < high:  # the first block that ends behind the draw
                middle = (low + high) >> 1
                if block_ends[middle] <= draw:
                    low = middle + 1
                else:
                    high = middle
            if low > 0:
                draw -= block_ends[low - 1]
            place = start + low * block
            j = indices[place]
            while draw >= indptr[j + 1] - indptr[j]:
                draw -= indptr[j + 1] - indptr[j]
                place += 1
                j = indices[place]
            v = indices[indptr[j] + draw]
            if v == i or contains(indices, start, stop, v):
                continue
            before_j = lower_bound(rev_indices, rev_indptr[v], rev_indptr[v + 1], j)
            if share_an_element(indices, start, place, rev_indices, rev_indptr[v], before_j):
                continue
        if insert(table, v):
            row[found] = v
            found += 1
            if found == len(row):
                return True
    return False


@njit(nogil=True, cache=True)
def enumerate_two_hops(indptr: Any, indices: Any, i: int, table: Any, members: Any) -> int:
    """Write the distinct one- and two-hop neighbours of `i` to `members`; returns how many."""
    table[:] = -1
    insert(table, i)
    count = 0
    for place in range(indptr[i], indptr[i + 1]):
        if insert(table, indices[place]):
            members[count] = indices[place]
            count += 1
    for place in range(indptr[i], indptr[i + 1]):
        j = indices[place]
        for second in range(indptr[j], indptr[j + 1]):
            if insert(table, indices[second]):
                members[count] = indices[second]
                count += 1
    return count


@njit(nogil=True, cache=True)
def fill_from_members(members: Any, count: int, num_nodes: int, state: Any, row: Any) -> None:
    """Algorithm 1, lines 4 to 10, with the set at hand: without replacement, with it, or from all nodes."""
    wanted = len(row) - 1
    for slot in range(wanted):
        if count == 0:
            row[slot + 1] = below(state, num_nodes)
        elif count < wanted:
            row[slot + 1] = members[below(state, count)]
        else:
            pick = slot + below(state, count - slot)
            members[slot], members[pick] = members[pick], members[slot]
            row[slot + 1] = members[slot]


@njit(nogil=True, cache=True)
def power_of_two_above(value: int) -> int:
    size = 16
    while size < value:
        size *= 2
    return size


@njit(nogil=True, cache=True)
def local_nodes_rows(
    indptr: Any, indices: Any, rev_indptr: Any, rev_indices: Any, nodes: Any, seed: int, epoch: int, rows: Any
) -> None:
    """LocalNodes (Algorithm 1) of `nodes` into rows [n, K]. Memory beside the result: a few K, whatever the graph,
    except where a node has many paths to few nodes and its neighbourhood has to be listed."""
    k = rows.shape[1]
    num_nodes = len(indptr) - 1
    state = np.zeros(1, np.uint64)
    block_ends = np.zeros(PATH_BLOCKS, np.int64)
    few_paths = PATHS_PER_TRY * k
    table = np.empty(power_of_two_above(4 * k), np.int64)
    members = np.empty(few_paths + k, np.int64)
    for n in range(len(nodes)):
        i = nodes[n]
        row = rows[n]
        row[0] = i
        start_stream(state, FOR_LOCAL_NODES, seed, epoch, i)
        degree = indptr[i + 1] - indptr[i]
        paths, block = count_paths(indptr, indices, indptr[i], indptr[i + 1], block_ends)
        if paths > few_paths and sample_by_rejection(
            indptr, indices, rev_indptr, rev_indices, i, paths, block, block_ends, state, table, row,
            paths // PATHS_PER_TRY,
        ):  # fmt: skip
            continue
        most = min(degree + paths, num_nodes)
        if most > len(members):
            members = np.empty(most, np.int64)
        wide_table = np.empty(power_of_two_above(2 * most + 2), np.int64)
        count = enumerate_two_hops(indptr, indices, i, wide_table, members)
        fill_from_members(members, count, num_nodes, state, row)


# context features and projections ------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def propagate_rows(
    indptr: Any, indices: Any, nodes: Any, row_scale: Any, column_scale: Any, self_loops: bool,
    dense: Any, place_of: Any, shift: Any, gain: Any, out: Any,
) -> None:  # fmt: skip
    """Rows `nodes` of Ã(X - shift)·gain: `out[n] = row_scale[i] Σ_j column_scale[j] (X[j] - shift) gain`, over the
    neighbours j of i (and i itself). X[j] is dense[place_of[j]], or dense[j] when `place_of` is empty."""
    width = dense.shape[1]
    total = np.empty(width, np.float32)
    for n in range(len(nodes)):
        i = nodes[n]
        first = indptr[i] - 1 if self_loops else indptr[i]  # the place before the row stands for i itself
        total[:] = np.float32(0.0)
        for place in range(first, indptr[i + 1]):
            j = np.int64(i) if place < indptr[i] else np.int64(indices[place])
            x = dense[place_of[j]] if len(place_of) else dense[j]
            scale = column_scale[j]
            for c in range(width):
                total[c] += scale * (x[c] - shift[c])
        for c in range(width):
            out[n, c] = row_scale[i] * gain[c] * total[c]


@njit(nogil=True, cache=True)
def random_signs(first_node: int, seed: int, out: Any) -> None:
    """±1 for each (node, column): rows of the random projection, a function of (seed, node) alone."""
    state = np.zeros(1, np.uint64)
    for n in range(len(out)):
        start_stream(state, FOR_PROJECTION, seed, 0, first_node + n)
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
    """node2vec's second-order walks into walks [w, length]. A proposal uniform over the neighbours is kept in
    proportion to 1/p (back where it came from), 1 (also a neighbour of that node) or 1/q (farther). A walk that
    has nowhere to go stays. Walk number `first_walk + w` is a function of (seed, that number) alone."""
    state = np.zeros(1, np.uint64)
    heaviest = max(1.0, 1.0 / p, 1.0 / q)
    for w in range(len(starts)):
        start_stream(state, FOR_WALKS, seed, 0, first_walk + w)
        previous, here = np.int64(-1), np.int64(starts[w])
        walks[w, 0] = here
        for step in range(1, walks.shape[1]):
            low, degree = indptr[here], indptr[here + 1] - indptr[here]
            target = here
            while degree > 0:
                target = np.int64(indices[low + below(state, degree)])
                if degree == 1 or previous < 0 or (p == 1.0 and q == 1.0):
                    break
                if target == previous:
                    weight = 1.0 / p
                elif contains(indices, indptr[previous], indptr[previous + 1], target):
                    weight = 1.0
                else:
                    weight = 1.0 / q
                if unit(state) * heaviest < weight:
                    break
            previous, here = here, target
            walks[w, step] = here


@njit(nogil=True, cache=True)
def mark_neighbors(indptr: Any, indices: Any, nodes: Any, marked: Any) -> None:
    """Set `marked` at every neighbour of `nodes`."""
    for n in range(len(nodes)):
        for place in range(indptr[nodes[n]], indptr[nodes[n] + 1]):
            marked[indices[place]] = True
