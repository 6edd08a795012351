"""Kernels of LocalNodes: uniform samples of the distinct one- and two-hop neighbours, without listing them.

Three methods, all exactly uniform; `choose_method` picks the cheapest one per node before sampling:

- **by paths**: pick one of the paths i→v, i→j→v uniformly and accept v only if the path is the first one to v. A try
  succeeds with probability |T̂| / paths.
- **by nodes**: pick one of all N nodes uniformly and accept it if some neighbour of i leads to it. A try succeeds with
  probability |T̂| / N, which is better if a neighbourhood has more paths than the graph has nodes.
- **by listing**: traverse all paths and keep the distinct nodes whose random key is below a limit that some K nodes
  pass. A node has the same key on every path to it, so its number of paths does not matter. Memory is some K.

The first two give up after as many tries as listing would cost. This depends only on counts, not on the nodes found, so
results stay uniform. Memory per thread: some K, and 24 KiB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from largegt.data.kernels import mix
from largegt.preprocessing.kernels import (
    FOR_LOCAL_NODES,
    contains,
    lower_bound,
    next_bits,
    randint,
    share_an_element,
    start_stream,
)

PATH_BLOCKS = 1024
"""Blocks of neighbours with cumulative path counts while one node is sampled: bounds the memory of a hub."""
FILTER_BITS = 1 << 17
"""Bits of the filter for neighbours (a Bloom filter with one hash): 16 KiB, to fit into the L1 cache."""
PATHS_PER_PATH_TRY, PATHS_PER_NODE_TRY = 150, 37
"""The cost of a try by paths and by nodes, in listed paths (measured by bench/local_nodes.py)."""
BATCH = 16
"""Tries per batch, so that their memory reads overlap."""
ANY_METHOD, BY_PATHS, BY_NODES, BY_LISTING = -1, 0, 1, 2

_FILTER_MASK = np.uint64(FILTER_BITS - 1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_ONE, _SIX, _LOW_6 = np.uint64(1), np.uint64(6), np.uint64(63)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)


# the neighbour filter -------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def filter_slot(node: Any) -> Any:
    return (np.uint64(node) * _SPREAD) >> np.uint64(47)


@njit(nogil=True, cache=True)
def fill_filter(bits: Any, indices: Any, start: int, stop: int) -> None:
    """Set the bit of every neighbour."""
    for place in range(start, stop):
        slot = filter_slot(indices[place])
        bits[slot >> _SIX] |= _ONE << (slot & _LOW_6)


@njit(nogil=True, cache=True)
def clear_filter(bits: Any, indices: Any, start: int, stop: int) -> None:
    """Undo `fill_filter`: clear only the words it set, or all words for a hub."""
    if stop - start > len(bits):
        bits[:] = np.uint64(0)
        return
    for place in range(start, stop):
        bits[filter_slot(indices[place]) >> _SIX] = np.uint64(0)


@njit(nogil=True, cache=True)
def is_neighbor(bits: Any, indices: Any, start: int, stop: int, node: Any) -> Any:
    """Whether indices[start:stop] contain `node`: the filter first, then a binary search."""
    slot = filter_slot(node)
    if not (bits[slot >> _SIX] >> (slot & _LOW_6)) & _ONE:
        return False
    return contains(indices, start, stop, node)


@njit(nogil=True, cache=True)
def meets_neighbor(
    bits: Any, indices: Any, start: Any, stop: Any, others: Any, low: Any, high: Any, below_node: Any
) -> Any:
    """Whether an element of the sorted others[low:high] less than `below_node` is in indices[start:stop]: a scan with
    the filter, or binary searches if indices[start:stop] is much shorter."""
    if high - low > 16 * (stop - start):
        high = lower_bound(others, low, high, below_node)
        return share_an_element(indices, start, stop, others, low, high)
    for place in range(low, high):
        node = others[place]
        if node >= below_node:
            return False
        if is_neighbor(bits, indices, start, stop, node):
            return True
    return False


@njit(nogil=True, cache=True)
def mark_one_hop(indptr: Any, indices: Any, nodes: Any, rows: Any, is_one_hop: Any) -> None:
    """Set is_one_hop[n, k] if rows[n, k] is a neighbour of nodes[n]."""
    bits = np.zeros(FILTER_BITS // 64, np.uint64)
    for n in range(len(nodes)):
        start, stop = indptr[nodes[n]], indptr[nodes[n] + 1]
        fill_filter(bits, indices, start, stop)
        for k in range(rows.shape[1]):
            if is_neighbor(bits, indices, start, stop, rows[n, k]):
                is_one_hop[n, k] = True
        clear_filter(bits, indices, start, stop)


# sets of nodes ---------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def slot_of(table: Any, node: Any) -> Any:
    """The slot of a node in an open-addressed hash table of -1s whose size is a power of two."""
    mask = len(table) - 1
    slot = np.int64(mix(np.uint64(node)) & np.uint64(mask))
    while table[slot] != -1 and table[slot] != node:
        slot = (slot + 1) & mask
    return slot


@njit(nogil=True, cache=True)
def insert(table: Any, node: Any) -> bool:
    """Insert a node into a hash table; False if it is already there."""
    slot = slot_of(table, node)
    if table[slot] == node:
        return False
    table[slot] = node
    return True


@njit(nogil=True, cache=True)
def should_give_up(tries: int, found: int, wanted: int, max_tries: int) -> bool:
    """After 256 pilot tries: whether the remaining tries will hardly find enough nodes. Depends only on counts."""
    return tries == 256 and (found + 1) * max_tries < 128 * wanted


# by paths and by nodes --------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def count_paths(indptr: Any, indices: Any, start: int, stop: int, block_ends: Any) -> Any:
    """The number of two-hop paths through the neighbours indices[start:stop], cumulative at the end of each block.
    Returns (paths, neighbours per block)."""
    block = max(1, (stop - start + len(block_ends) - 1) // len(block_ends))
    paths = np.int64(0)
    for place in range(start, stop):
        j = indices[place]
        paths += indptr[j + 1] - indptr[j]
        block_ends[(place - start) // block] = paths
    return paths, block


@njit(nogil=True, cache=True)
def find_path(indptr: Any, indices: Any, start: Any, num_blocks: Any, block: Any, block_ends: Any, draw: Any) -> Any:
    """Two-hop path number `draw`: (position of its first step, position of its second step)."""
    low, length = 0, num_blocks
    while length > 1:  # binary search without branches: the first block that ends after the draw
        half = length >> 1
        low += half * (block_ends[low + half - 1] <= draw)
        length -= half
    low += block_ends[low] <= draw
    if low > 0:
        draw -= block_ends[low - 1]
    place = start + low * block
    j = indices[place]
    while draw >= indptr[j + 1] - indptr[j]:
        draw -= indptr[j + 1] - indptr[j]
        place += 1
        j = indices[place]
    return place, indptr[j] + draw


@njit(nogil=True, cache=True)
def touch_rows(rev_indptr: Any, rev_indices: Any, drawn: Any, starts: Any, stops: Any) -> Any:
    """Look up the rows of the drawn nodes and read the first entry of each, so that memory reads overlap. The returned
    number is unused; without it the reads would be optimised away."""
    for b in range(BATCH):
        starts[b], stops[b] = rev_indptr[drawn[b]], rev_indptr[drawn[b] + 1]
    total = np.int64(0)
    for b in range(BATCH):
        if starts[b] < stops[b]:
            total += rev_indices[starts[b]]
    return total


@njit(nogil=True, cache=True)
def sample_by_tries(
    indptr: Any, indices: Any, rev_indptr: Any, rev_indices: Any, i: Any, one_hop: bool, by_nodes: bool, paths: Any,
    block: Any, block_ends: Any, bits: Any, state: Any, table: Any, row: Any, max_tries: int,
) -> bool:  # fmt: skip
    """Fill `row` with distinct nodes, uniform over the two-hop neighbours of i, including the one-hop ones with
    `one_hop`; False when out of tries. Paths are ordered: one hop before two, then by the middle node. Tries come in
    batches; unused ones are discarded."""
    start, stop = indptr[i], indptr[i + 1]
    num_nodes, degree = len(indptr) - 1, stop - start if one_hop else 0
    num_blocks = (stop - start + block - 1) // block
    lasts, drawn = np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)
    starts, stops = np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)
    found = 0
    for tries in range(0, max_tries, BATCH):
        if should_give_up(tries, found, len(row), max_tries):
            return False
        for b in range(BATCH):
            if by_nodes:
                lasts[b], drawn[b] = stop, randint(state, num_nodes)
                continue
            draw = randint(state, degree + paths)
            if draw < degree:
                lasts[b], drawn[b] = -1, start + draw
            else:
                lasts[b], drawn[b] = find_path(indptr, indices, start, num_blocks, block, block_ends, draw - degree)
        if not by_nodes:
            for b in range(BATCH):
                drawn[b] = indices[drawn[b]]
        touch_rows(rev_indptr, rev_indices, drawn, starts, stops)
        for b in range(BATCH):
            v = drawn[b]
            if lasts[b] >= 0:  # not a one-hop path
                if v == i:
                    continue
                if is_neighbor(bits, indices, start, stop, v):
                    if not (by_nodes and one_hop):
                        continue
                else:  # by paths, no neighbour before the middle one leads to v; by nodes, any one does
                    bound = num_nodes if by_nodes else np.int64(indices[lasts[b]])
                    has_path = meets_neighbor(bits, indices, start, lasts[b], rev_indices, starts[b], stops[b], bound)
                    if has_path != by_nodes:
                        continue
            if insert(table, v):
                row[found] = v
                found += 1
                if found == len(row):
                    return True
    return False


# by listing ------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def list_one(
    ends: Any, low: Any, high: Any, neighbors: Any, i: Any, direct: bool, bits: Any, base: Any, limit: Any, table: Any,
    members: Any, count: int,
) -> int:  # fmt: skip
    """Add the distinct ends[low:high] with a key of at most `limit` to members[:count]; returns the new count, which
    exceeds len(members) on overflow. Without `direct`, i and its neighbours are skipped."""
    for place in range(low, high):
        v = np.int64(ends[place])
        if mix(np.uint64(v) + base) > limit:
            continue
        if not direct and (v == i or is_neighbor(bits, neighbors, 0, len(neighbors), v)):
            continue
        if insert(table, v):
            if count == len(members):
                return count + 1
            members[count] = v
            count += 1
    return count


@njit(nogil=True, cache=True)
def list_below(
    neighbors: Any, rows: Any, indptr: Any, indices: Any, i: Any, one_hop: bool, bits: Any, base: Any, limit: Any,
    table: Any, members: Any,
) -> Any:  # fmt: skip
    """Write the distinct nodes on the paths from i with a key of at most `limit` to `members`; returns their number,
    which exceeds len(members) on overflow. A node's key is a function of `base` and the node. The list of neighbors[n]
    is row rows[n] of (indptr, indices)."""
    table[:] = -1
    count = 0
    if one_hop:
        count = list_one(neighbors, 0, len(neighbors), neighbors, i, True, bits, base, limit, table, members, count)
    for n in range(len(neighbors)):
        if count > len(members):
            break
        low, high = indptr[rows[n]], indptr[rows[n] + 1]
        count = list_one(indices, low, high, neighbors, i, False, bits, base, limit, table, members, count)
    return count


@njit(nogil=True, cache=True)
def sample_by_listing(
    neighbors: Any, rows: Any, indptr: Any, indices: Any, i: Any, one_hop: bool, paths: Any, bits: Any, state: Any,
    table: Any, members: Any, row: Any,
) -> Any:  # fmt: skip
    """Fill `row` with distinct nodes; returns their number, at most len(row). `neighbors` and `rows` as in
    `list_below`.

    The nodes with a small random key are a uniform random subset of the neighbourhood. Too few: repeat with a higher
    limit, up to no limit. Too many: repeat with a lower limit and new keys. Repetition depends only on the number of
    nodes.
    """
    wanted = len(row)
    fraction = min(1.0, 4.0 * wanted / max(1, paths))
    base = next_bits(state)
    while True:
        limit = _EMPTY if fraction >= 1.0 else np.uint64(fraction * 1.8446744073709550e19)
        count = list_below(neighbors, rows, indptr, indices, i, one_hop, bits, base, limit, table, members)
        if count > len(members):
            fraction *= 0.5
            base = next_bits(state)
        elif count < wanted and fraction < 1.0:
            fraction = min(1.0, fraction * min(16.0, max(2.0, 2.0 * wanted / (count + 1))))
        else:
            break
    for slot in range(min(count, wanted)):
        pick = slot + randint(state, count - slot)
        members[slot], members[pick] = members[pick], members[slot]
        row[slot] = members[slot]
    return min(count, wanted)


# Algorithm 1 -----------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def choose_method(paths: Any, num_nodes: int, wanted: int) -> int:
    """The cheapest method, in units of one listed path (measured by bench/local_nodes.py)."""
    listing = paths
    by_paths = PATHS_PER_PATH_TRY * wanted
    by_nodes = PATHS_PER_NODE_TRY * wanted * (1.0 + 2.8 * num_nodes / max(1, paths))
    if listing <= by_paths and listing <= by_nodes:
        return BY_LISTING
    return BY_NODES if by_nodes < by_paths else BY_PATHS


@njit(nogil=True, cache=True)
def shuffle(row: Any, state: Any) -> None:
    for last in range(len(row) - 1, 0, -1):
        pick = randint(state, last + 1)
        row[last], row[pick] = row[pick], row[last]


@njit(nogil=True, cache=True)
def sample_neighbors(indices: Any, start: int, stop: int, state: Any, table: Any, row: Any) -> None:
    """Fill `row` with distinct one-hop neighbours, uniformly (Floyd's algorithm: one random number each)."""
    table[:] = -1
    degree = stop - start
    for slot in range(len(row)):
        last = degree - len(row) + slot
        pick = randint(state, last + 1)
        if not insert(table, pick):
            pick = last
            insert(table, pick)
        row[slot] = indices[start + pick]


@njit(nogil=True, cache=True)
def fill_up(row: Any, count: int, num_nodes: int, state: Any) -> None:
    """Fill row[count:] with replacement from row[:count]; from all nodes if count is 0."""
    for slot in range(count, len(row)):
        row[slot] = row[randint(state, count)] if count else randint(state, num_nodes)


@njit(nogil=True, cache=True)
def table_size(wanted: int) -> int:
    """The size of the hash table for listing: a power of two, some dozen slots per wanted node."""
    size = 64
    while size < 32 * wanted:
        size *= 2
    return size


@njit(nogil=True, cache=True)
def num_hop2_slots(wanted: int, hop1_slots: int, degree: int) -> int:
    """Slots that are not reserved for one-hop neighbours; all slots if `hop1_slots` is negative."""
    return wanted if hop1_slots < 0 else wanted - min(hop1_slots, degree)


@njit(nogil=True, cache=True)
def complete_row(
    neighbors: Any, row: Any, count: int, one_hop: bool, num_nodes: int, state: Any, table: Any, members: Any
) -> None:
    """The rest of Algorithm 1, when row[:count] are all distinct nodes found. `table` and `members` are buffers."""
    wanted = len(row)
    if one_hop and 0 < count < wanted:  # line 7: fewer than wanted; sample every slot with replacement
        members[:count] = row[:count]
        for slot in range(wanted):
            row[slot] = members[randint(state, count)]
    elif one_hop:
        fill_up(row, count, num_nodes, state)
    else:
        num_hop1 = min(wanted - count, len(neighbors))
        sample_neighbors(neighbors, 0, len(neighbors), state, table, row[count : count + num_hop1])
        fill_up(row, count + num_hop1, num_nodes, state)
        shuffle(row, state)


@njit(nogil=True, cache=True)
def local_nodes_rows(
    indptr: Any, indices: Any, rev_indptr: Any, rev_indices: Any, nodes: Any, hop1_slots: int, forced: int, seed: int,
    epoch: int, rows: Any,
) -> None:  # fmt: skip
    """LocalNodes (Algorithm 1) of `nodes` into rows [n, K]. With `hop1_slots` ≥ 0 that many of the K - 1 slots are for
    one-hop neighbours and the rest for nodes at distance two. `forced` is the method for every node, for tests and
    benches; ANY_METHOD chooses per node."""
    wanted = rows.shape[1] - 1
    num_nodes = len(indptr) - 1
    size = table_size(wanted)
    state, bits = np.zeros(1, np.uint64), np.zeros(FILTER_BITS // 64, np.uint64)
    block_ends = np.zeros(PATH_BLOCKS, np.int64)
    wide_table, members = np.empty(size, np.int64), np.empty(size // 2, np.int64)
    table = wide_table[: size // 8]
    one_hop = hop1_slots < 0
    for n in range(len(nodes)):
        i = nodes[n]
        rows[n, 0] = i
        row = rows[n, 1:]
        start, stop = indptr[i], indptr[i + 1]
        neighbors = indices[start:stop]
        start_stream(state, FOR_LOCAL_NODES, seed, epoch, i)
        paths, block = count_paths(indptr, indices, start, stop, block_ends)
        fill_filter(bits, indices, start, stop)
        hop2_row = row[: num_hop2_slots(wanted, hop1_slots, stop - start)]
        method = choose_method(paths, num_nodes, len(hop2_row)) if forced == ANY_METHOD else forced
        table[:] = -1
        found = len(hop2_row) == 0  # every slot is for a one-hop neighbour
        if not found and method != BY_LISTING:
            price = PATHS_PER_NODE_TRY if method == BY_NODES else PATHS_PER_PATH_TRY
            found = sample_by_tries(
                indptr, indices, rev_indptr, rev_indices, i, one_hop, method == BY_NODES, paths, block, block_ends,
                bits, state, table, hop2_row, 2 * paths // price,
            )  # fmt: skip
        count = len(hop2_row)
        if not found:
            count = sample_by_listing(
                neighbors, neighbors, indptr, indices, i, one_hop, paths, bits, state, wide_table, members, hop2_row
            )
        complete_row(neighbors, row, count, one_hop, num_nodes, state, table, members)
        clear_filter(bits, indices, start, stop)
