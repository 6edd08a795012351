"""Synthetic graphs with the size and the character of a known dataset, streamed.

Enters: a dataset's name, a scale, a seed. Leaves: a `Source` whose edges and features are made as they are read, each
edge a function of (seed, its number) and each feature row of (seed, its node): any chunking gives the same values and
leaving out the first rows costs nothing. Cost: labels and splits are N × 2 or 3 bytes, a community some 20 bytes,
a chunk 16 MB of edges or 32 MB of features; tens of millions of edges and hundreds of millions of feature values a
second.

How such a graph is made. Nodes have a rank behind their number: the number is a keyed shuffle of the rank, so numbers
say nothing. Ranks lie class after class, and within a class community after community. An edge leaves a node drawn by
a power law and goes, by lot, to its own community, to any community of its class, to the class before its own, or
anywhere; the first nodes of a community and some nodes of the whole graph are hubs. A few nodes have another class
than their community ("strays"), and a few communities are described like another class, so features alone do not
tell the class, neighbours tell it better, and nothing tells all of it.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from ..config import IngestConfig
from ..data.ingest import ingest
from ..data.kernels import mix
from ..data.parts import EDGE_CHUNK_ROWS, EdgeChunk, Labels, Source, Splits, chunk_rows
from ..data.splits import SPLIT_CODES
from ..data.store import GraphStore
from ..errors import ConfigError, InputError, disk_errors, nearest
from ..io.array_writer import ArrayAppender
from ..progress import Progress, silent
from ..settings import build
from ..text import quoted
from ..threads import run_ranges
from ..types import Array, PathLike

MAX_SCALE = 10.0
ROWS_PER_FILE = 1 << 25
_SUFFIX = "-like"
_FILES = ("edges", "features.npy", "labels.npy", "splits.npz")
_ROUNDS = 4
_LOOKS = 4096
_LYING_SHARE = 0.2
_TASK_ROWS = 1 << 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FOR_ORDER, _FOR_SPLIT, _FOR_EDGES, _FOR_LABELS, _FOR_NOISE, _FOR_CLASSES, _FOR_LOOKS, _FOR_COMMUNITIES = range(8)


@dataclass(frozen=True)
class Shape:
    """What a dataset looks like from afar; counts are those of its raw files."""

    num_nodes: int
    num_edges: int
    directed: bool
    """Undirected datasets list each edge once."""
    num_features: int
    num_classes: int
    homophily: float
    """Share of edges whose ends have the same class."""
    split_sizes: tuple[int, int, int]
    """Train, valid and test; nodes beyond them have no label."""
    class_exponent: float
    """Class c has a share in proportion to (c + 1)^-exponent; 0 makes classes even."""
    related: float
    """Share of edges that go to the class before the source's own."""
    strays: float
    """Share of nodes whose class is drawn anew instead of being their community's."""
    community_sizes: tuple[int, int]
    """Smallest and largest community, at scale 1."""
    max_degree: int
    """In-degree of the greatest hub at scale 1 (of the whole degree where edges have no direction)."""
    out_exponent: float
    """Nodes are drawn as floor(N u^exponent): how uneven out-degrees are. 1 is even."""
    community_exponent: float
    """The same for the targets inside a community."""
    class_signal: float
    """Length of a class's mark on a feature, in standard deviations of the noise."""
    community_signal: float
    """Length of a community's mark on a feature."""


SHAPES = {
    "ogbn-products": Shape(
        num_nodes=2_449_029, num_edges=61_859_140, directed=False, num_features=100, num_classes=47, homophily=0.81,
        split_sizes=(196_615, 39_323, 2_213_091), class_exponent=1.0, related=0.03, strays=0.06,
        community_sizes=(1024, 8192), max_degree=17_500, out_exponent=1.6, community_exponent=2.0,
        class_signal=0.27, community_signal=0.05,
    ),
    "snap-patents": Shape(
        num_nodes=2_923_922, num_edges=13_975_788, directed=True, num_features=269, num_classes=5, homophily=0.22,
        split_sizes=(1_461_961, 730_981, 730_980), class_exponent=0.0, related=0.65, strays=0.05,
        community_sizes=(256, 2048), max_degree=800, out_exponent=1.3, community_exponent=1.8,
        class_signal=0.055, community_signal=0.04,
    ),
    "ogbn-papers100M": Shape(
        num_nodes=111_059_956, num_edges=1_615_685_872, directed=True, num_features=128, num_classes=172,
        homophily=0.57, split_sizes=(1_207_179, 125_265, 214_338), class_exponent=0.6, related=0.1, strays=0.15,
        community_sizes=(512, 4096), max_degree=250_000, out_exponent=1.4, community_exponent=2.2,
        class_signal=0.3, community_signal=0.1,
    ),
}  # fmt: skip


def shape_of(like: str) -> Shape:
    """The shape of this dataset, or an error that names the nearest."""
    if like not in SHAPES:
        raise ConfigError(f"no dataset {like!r} to imitate{nearest(like, SHAPES)}; there are {', '.join(SHAPES)}")
    return SHAPES[like]


def synthetic(like: str, scale: float = 1.0, seed: int = 0) -> Source:
    """A graph like `like`, `scale` times as large, ready to ingest (with `ingest_config(like)`).

    Nodes, edges, labelled nodes and splits grow with `scale`; the width of the features and the classes stay.
    """
    graph = SyntheticGraph(like, scale, seed)
    labels, codes = graph.labels_and_splits()
    where = graph.identity
    return Source(
        name=like + _SUFFIX,
        edges=SyntheticEdges(graph),
        features=SyntheticFeatures(graph),
        labels=Labels(pa.array(labels), where),
        splits=Splits(where, codes=codes),
        node_ids=None,
        num_nodes=graph.num_nodes,
        identity=graph.identity,
    )


def ingest_config(like: str, **overrides: Any) -> IngestConfig:
    """How `ingest` is to take a graph like `like`: its name, and whether its edges have a direction."""
    shape = shape_of(like)
    return build(IngestConfig, {"name": like + _SUFFIX, "undirected": not shape.directed} | overrides)


def synthesize(
    like: str, out: PathLike, scale: float = 1.0, seed: int = 0, config: IngestConfig | None = None, **how: Any
) -> GraphStore:
    """The store of a synthetic graph. `config` is `ingest_config(like)` when not given; `how` is for `ingest`."""
    return ingest(synthetic(like, scale, seed), out, config or ingest_config(like), **how)


# the plan of a graph --------------------------------------------------------------------------------------------


class _Order(NamedTuple):
    """A keyed shuffle of 0..size-1 (a Feistel network on a square of side × side, walked until inside)."""

    size: int
    side: int
    keys: Array


class _Layout(NamedTuple):
    """Which ranks belong to which community, and communities to which class."""

    order: _Order
    stride: int
    guide_shift: int
    guide: Array
    community_start: Array
    community_class: Array
    community_look: Array
    class_start: Array


class _Lot(NamedTuple):
    """Where an edge goes: bounds on 32 random bits, and how uneven the draws are (tables for `_uneven`)."""

    key: Any
    community: int
    same_class: int
    class_before: int
    out_powers: Array
    community_powers: Array
    anywhere_powers: Array


class SyntheticGraph:
    """The plan: a few small tables from which every edge, feature row and label follows."""

    def __init__(self, like: str, scale: float = 1.0, seed: int = 0) -> None:
        self.shape = shape_of(like)
        if not (isinstance(scale, int | float) and 0 < scale <= MAX_SCALE):
            raise ConfigError(f"scale is {scale}, expected more than 0 and at most {MAX_SCALE:g}: 0.01 is a hundredth")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed}, expected 0 or a positive whole number below 2^63")
        self.identity = f"synthetic {like}, scale {float(scale)!r}, seed {seed}"
        self.seed = seed
        shape = self.shape
        train, valid, test = (max(1, round(size * scale)) for size in shape.split_sizes)
        self.num_nodes = max(round(shape.num_nodes * scale), 2 * shape.num_classes)
        if sum(shape.split_sizes) == shape.num_nodes:  # every node has a label, however counts were rounded
            test = self.num_nodes - train - valid
        self.split_sizes = (train, valid, test)
        self.num_edges = max(1, round(shape.num_edges * scale))
        self.layout = self._layout(min(1.0, math.sqrt(scale)))
        self.lot = self._lot()
        self._classes_cd = shape.class_signal * _normal_rows(self._key(_FOR_CLASSES), shape.num_classes, shape)
        self._looks_ld = shape.community_signal * _normal_rows(self._key(_FOR_LOOKS), _LOOKS, shape)

    def edges(self, low: int, high: int) -> tuple[Array, Array]:
        """(sources, targets) of the edges numbered low..high-1, int64."""
        sources, targets = np.empty(high - low, np.int64), np.empty(high - low, np.int64)

        def draw(start: int, stop: int) -> None:
            _draw_edges(self.layout, self.lot, low, sources, targets, start, stop)

        _on_all_threads(draw, high - low, _TASK_ROWS)
        return sources, targets

    def features(self, low: int, high: int) -> Array:
        """float32 [high - low, d]: the rows of the nodes low..high-1."""
        rows = np.empty((high - low, self.shape.num_features), np.float32)
        keys, strays = np.array([self._key(_FOR_LABELS), self._key(_FOR_NOISE)]), _bits32(self.shape.strays)

        def draw(start: int, stop: int) -> None:
            _draw_features(self.layout, keys, strays, self._classes_cd, self._looks_ld, low, rows, start, stop)

        _on_all_threads(draw, high - low, max(1, _TASK_ROWS * 8 // self.shape.num_features))
        return rows

    def labels_and_splits(self) -> tuple[Array, Array]:
        """(labels, the smallest signed integers that hold them, -1 where a node has none; split codes uint8)."""
        labels, codes = self._empty_labels(), np.empty(self.num_nodes, np.uint8)
        order = _order(self.num_nodes, self._key(_FOR_SPLIT))
        ends = np.cumsum(self.split_sizes)
        key, strays = self._key(_FOR_LABELS), _bits32(self.shape.strays)

        def draw(start: int, stop: int) -> None:
            _draw_labels(self.layout, key, strays, labels, start, stop)
            _draw_splits(order, ends, codes, labels, start, stop)

        _on_all_threads(draw, self.num_nodes, _TASK_ROWS)
        return labels, codes

    def classes(self) -> Array:
        """The class of every node, also of those whose label nobody is told."""
        classes, key, strays = self._empty_labels(), self._key(_FOR_LABELS), _bits32(self.shape.strays)

        def draw(start: int, stop: int) -> None:
            _draw_labels(self.layout, key, strays, classes, start, stop)

        _on_all_threads(draw, self.num_nodes, _TASK_ROWS)
        return classes

    def _empty_labels(self) -> Array:
        return np.empty(self.num_nodes, np.int8 if self.shape.num_classes < 128 else np.int16)

    def _key(self, purpose: int) -> Any:
        with np.errstate(over="ignore"):
            return np.uint64(mix(np.uint64(mix(np.uint64(self.seed) + _GOLDEN)) + np.uint64(purpose)))

    def _layout(self, shrink: float) -> _Layout:
        """Cut the ranks into classes and those into communities. Small graphs have smaller communities, by the root
        of the scale: both their number and their size fall."""
        shape, key = self.shape, self._key(_FOR_COMMUNITIES)
        weights = np.arange(1, shape.num_classes + 1, dtype=np.float64) ** -shape.class_exponent
        spare = self.num_nodes - shape.num_classes  # a node each first
        class_start = np.r_[0, np.rint(spare * np.cumsum(weights) / weights.sum()).astype(np.int64)]
        class_start += np.arange(shape.num_classes + 1)
        ratio = shape.community_sizes[1] / shape.community_sizes[0]
        usual = max(16.0, shape.community_sizes[0] * shrink) * (ratio - 1) / math.log(ratio)
        starts, classes, looks = [], [], []
        for c in range(shape.num_classes):
            size = int(class_start[c + 1] - class_start[c])
            count = max(1, round(size / usual))
            bits = _random_bits(key ^ np.uint64(c << 32), count)
            parts = ratio ** (bits / 2.0**64)
            inner = np.rint(size * np.cumsum(parts)[:-1] / parts.sum()).astype(np.int64)
            starts.append(class_start[c] + np.unique(np.r_[0, inner[(inner > 0) & (inner < size)]]))
            number = np.arange(len(starts[-1]))
            lies = (number * 0.6180339887498949) % 1.0 > 1.0 - _LYING_SHARE  # evenly spread, never the first
            other = (c + 1 + bits[: len(number)] % np.uint64(shape.num_classes - 1)) % shape.num_classes
            classes.append(np.full(len(number), c, np.int16))
            looks.append(np.where(lies, other, c).astype(np.int16))
        community_start = np.r_[np.concatenate(starts), self.num_nodes].astype(np.int64)
        guide_shift = max(0, int(math.log2(self.num_nodes / len(community_start))) - 2)
        blocks = np.arange((self.num_nodes >> guide_shift) + 1, dtype=np.int64) << guide_shift
        guide = np.minimum(np.searchsorted(community_start, blocks, "right") - 1, len(community_start) - 2)
        return _Layout(
            order=_order(self.num_nodes, self._key(_FOR_ORDER)),
            stride=_stride(self.num_nodes),
            guide_shift=guide_shift,
            guide=guide.astype(np.int32),
            community_start=community_start,
            community_class=np.concatenate(classes),
            community_look=np.concatenate(looks),
            class_start=class_start,
        )

    def _lot(self) -> _Lot:
        """The shares that give the dataset's homophily, and the unevenness that gives its greatest hub.

        With χ the chance that two random nodes agree, and k = (1 - strays)² the chance that neither end is a stray,
        homophily = k same + (1 - k) χ, where same = within + anywhere χ + related share(first class)²: the first
        class has none before it and goes anywhere.
        """
        shape = self.shape
        shares = np.diff(self.layout.class_start) / self.num_nodes
        chance = float((shares**2).sum())
        kept = (1 - shape.strays) ** 2
        same = (shape.homophily - (1 - kept) * chance) / kept
        within = (same - (1 - shape.related) * chance - shape.related * shares[0] ** 2) / (1 - chance)
        within = min(max(within, 0.0), 1 - shape.related)
        anywhere = 1 - within - shape.related
        hub_share = shape.max_degree / (anywhere * shape.num_edges)
        return _Lot(
            key=self._key(_FOR_EDGES),
            community=_bits32(0.75 * within),
            same_class=_bits32(within),
            class_before=_bits32(within + shape.related),
            out_powers=_powers(shape.out_exponent),
            community_powers=_powers(shape.community_exponent),
            anywhere_powers=_powers(math.log(shape.num_nodes) / -math.log(hub_share)),
        )


class SyntheticEdges:
    """The edges of a plan, as a stream."""

    def __init__(self, graph: SyntheticGraph, rows: int = EDGE_CHUNK_ROWS) -> None:
        self.graph, self._rows = graph, rows
        self.where = self.identity = graph.identity
        self.total: int | None = graph.num_edges

    has_integers, is_weighted = True, False
    feature_names: Sequence[str] = ()

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[EdgeChunk]:
        for start in range(skip, self.graph.num_edges, self._rows):
            yield EdgeChunk(*self.graph.edges(start, min(start + self._rows, self.graph.num_edges)))


class SyntheticFeatures:
    """The feature rows of a plan, as a stream."""

    names: list[str] | None = None

    def __init__(self, graph: SyntheticGraph, rows: int | None = None) -> None:
        self.graph = graph
        self.where = self.identity = graph.identity
        self.width = graph.shape.num_features
        self.num_rows: int | None = graph.num_nodes
        self._rows = rows or chunk_rows(self.width)

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for start in range(skip, self.graph.num_nodes, self._rows):
            yield self.graph.features(start, min(start + self._rows, self.graph.num_nodes))


def _on_all_threads(task: Any, count: int, rows: int) -> None:
    for _ in run_ranges(task, [*range(0, count, rows), count]):
        pass


def _bits32(share: float) -> int:
    """The bound below which 32 random bits fall with this probability."""
    return round(min(max(share, 0.0), 1.0) * 2**32)


def _order(size: int, key: Any) -> _Order:
    side = math.isqrt(size - 1) + 1
    return _Order(size, side, _random_bits(key, _ROUNDS))


def _stride(size: int) -> int:
    """A step that visits every rank once and leaves neighbours far apart."""
    step = max(1, round(size * 0.6180339887498949))
    while math.gcd(step, size) != 1:
        step += 1
    return step


def _powers(exponent: float) -> Array:
    """u^exponent at the knots of `_uneven`: 256 between each power of two and the next, from 2^-33 to 1."""
    knots = np.ldexp((1 + np.arange(256) / 256)[None, :], np.arange(-33, 0)[:, None]).ravel()
    return np.asarray(np.r_[knots, 1.0] ** exponent)


def _normal_rows(key: Any, rows: int, shape: Shape) -> Array:
    out = np.zeros((rows, shape.num_features), np.float32)
    _add_noise(key, out)
    return out


def _random_bits(key: Any, count: int) -> Array:
    out = np.empty(count, np.uint64)
    _fill_bits(np.uint64(key), out)
    return out


# kernels --------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _fill_bits(key: Any, out: Any) -> None:
    for n in range(len(out)):
        out[n] = mix(key + np.uint64(n + 1) * _GOLDEN)


@njit(nogil=True, cache=True, inline="always")
def _round(value: Any, key: Any, side: Any) -> Any:
    """One round's keyed function: 32-bit value to [0, side)."""
    x = (np.uint64(value) ^ key) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    return np.uint32(((x >> np.uint64(32)) * np.uint64(side)) >> np.uint64(32))


@njit(nogil=True, cache=True)
def shuffled(order: Any, rank: Any) -> Any:
    """The number of the node with this rank."""
    side, x = np.uint32(order.side), np.uint32(rank)
    while True:
        left = x // side
        right = x - left * side
        for r in range(_ROUNDS):
            total = left + _round(right, order.keys[r], side)
            left, right = right, total - side if total >= side else total
        x = left * side + right
        if x < order.size:
            return np.int64(x)


@njit(nogil=True, cache=True)
def unshuffled(order: Any, node: Any) -> Any:
    """The rank of the node with this number: `shuffled` backwards."""
    side, x = np.uint32(order.side), np.uint32(node)
    while True:
        left = x // side
        right = x - left * side
        for r in range(_ROUNDS):
            step = _round(left, order.keys[_ROUNDS - 1 - r], side)
            left, right = (right - step if right >= step else right + side - step), left
        x = left * side + right
        if x < order.size:
            return np.int64(x)


@njit(nogil=True, cache=True)
def _community_of(layout: Any, rank: Any) -> Any:
    """The guide gives a community at or little before the right one."""
    k = np.int64(layout.guide[rank >> layout.guide_shift])
    while layout.community_start[k + 1] <= rank:
        k += 1
    return k


@njit(nogil=True, cache=True)
def _uneven(bits: Any, powers: Any, size: Any) -> Any:
    """floor(size u^exponent) for the uniform u that 32 random bits stand for: small numbers come up often. The power
    is read off a table, straight between its knots: the top bits of a float are its logarithm."""
    u = np.float64((np.float64(np.int64(bits)) + 0.5) * (1.0 / 4294967296.0)).view(np.int64)
    knot = (u >> 44) - ((1023 - 33) << 8)
    between = np.float64(u & 0xFFFFFFFFFFF) * (1.0 / 17592186044416.0)
    power = powers[knot] + between * (powers[knot + 1] - powers[knot])
    return min(np.int64(size * power), size - 1)


@njit(nogil=True, cache=True)
def _spread(layout: Any, number: Any) -> Any:
    """Hub `number` as a rank: hubs lie evenly over communities."""
    return np.int64(np.uint64(number) * np.uint64(layout.stride) % np.uint64(layout.order.size))


@njit(nogil=True, cache=True)
def _draw_edges(layout: Any, lot: Any, first: Any, sources: Any, targets: Any, low: Any, high: Any) -> None:
    """Edges first + low .. first + high - 1, each from 128 bits of its own."""
    size, start = layout.order.size, layout.community_start
    half, rest = np.uint64(32), np.uint64(0xFFFFFFFF)
    for e in range(low, high):
        a = mix(lot.key + np.uint64(first + e) * _GOLDEN)
        b = mix(a + _GOLDEN)
        source = _spread(layout, _uneven(a & rest, lot.out_powers, size))
        k = own = _community_of(layout, source)
        choice = np.int64(a >> half)
        if choice >= lot.community:
            c = np.int64(layout.community_class[own]) - (0 if choice < lot.same_class else 1)
            if c < 0 or choice >= lot.class_before:
                k = np.int64(-1)
            else:
                width = layout.class_start[c + 1] - layout.class_start[c]
                place = np.int64(((b >> half) * np.uint64(width)) >> half)
                k = _community_of(layout, layout.class_start[c] + place)
        if k >= 0:
            target = start[k] + _uneven(b & rest, lot.community_powers, start[k + 1] - start[k])
        else:
            target = size - 1 - _spread(layout, _uneven(b & rest, lot.anywhere_powers, size))
        if target == source:  # no self loops: its neighbour in the community instead
            target = source + 1 if source + 1 < start[own + 1] else start[own]
        sources[e] = shuffled(layout.order, source)
        targets[e] = shuffled(layout.order, target)


@njit(nogil=True, cache=True)
def _class_of(layout: Any, key: Any, strays: Any, node: Any, community: Any) -> Any:
    """The community's class, or for a stray that of a random rank."""
    bits = mix(key + np.uint64(node + 1) * _GOLDEN)
    if np.int64(bits & np.uint64(0xFFFFFFFF)) < strays:
        rank = ((bits >> np.uint64(32)) * np.uint64(layout.order.size)) >> np.uint64(32)
        return layout.community_class[_community_of(layout, np.int64(rank))]
    return layout.community_class[community]


@njit(nogil=True, cache=True)
def _draw_labels(layout: Any, key: Any, strays: Any, labels: Any, low: Any, high: Any) -> None:
    for node in range(low, high):
        community = _community_of(layout, unshuffled(layout.order, node))
        labels[node] = _class_of(layout, key, strays, node, community)


@njit(nogil=True, cache=True)
def _draw_splits(order: Any, ends: Any, codes: Any, labels: Any, low: Any, high: Any) -> None:
    """By another shuffle: the first are for training, the next for validation, … and the rest lose their label."""
    for node in range(low, high):
        place = unshuffled(order, node)
        code = 1 if place < ends[0] else 2 if place < ends[1] else 3 if place < ends[2] else 0
        codes[node] = code
        if code == 0:
            labels[node] = -1


@njit(nogil=True, cache=True)
def _noise(bits: Any) -> Any:
    """Nearly normal with mean 0 and variance 1: the sum of the four 16-bit parts."""
    part = np.uint64(0xFFFF)
    total = (bits & part) + (bits >> np.uint64(16) & part) + (bits >> np.uint64(32) & part) + (bits >> np.uint64(48))
    return np.float32((np.float32(np.int32(total)) - np.float32(131070.0)) * np.float32(1 / 37837.2))


@njit(nogil=True, cache=True)
def _add_noise(key: Any, out: Any) -> None:
    for n in range(out.shape[0]):
        row_key = mix(key + np.uint64(n + 1) * _GOLDEN)
        for c in range(out.shape[1]):
            out[n, c] += _noise(mix(row_key + np.uint64(c) * _GOLDEN))


@njit(nogil=True, cache=True)
def _draw_features(
    layout: Any, keys: Any, strays: Any, classes_cd: Any, looks_ld: Any, first: Any, out: Any, low: Any, high: Any
) -> None:
    """Row n is node first + n: the mark of its class (or of the class its community poses as), that of its community,
    and noise of its own."""
    for n in range(low, high):
        node = first + n
        k = _community_of(layout, unshuffled(layout.order, node))
        shown = np.int64(_class_of(layout, keys[0], strays, node, k))
        if shown == layout.community_class[k]:
            shown = np.int64(layout.community_look[k])
        class_d, look_d = classes_cd[shown], looks_ld[mix(np.uint64(k) + keys[1]) % np.uint64(len(looks_ld))]
        row_key = mix(keys[1] + np.uint64(node + 1) * _GOLDEN)
        for c in range(out.shape[1]):
            out[n, c] = class_d[c] + look_d[c] + _noise(mix(row_key + np.uint64(c) * _GOLDEN))


# files ----------------------------------------------------------------------------------------------------------


def write_files(
    source: Source,
    folder: PathLike,
    config: IngestConfig | None = None,
    *,
    rows_per_file: int = ROWS_PER_FILE,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> str:
    """Write a synthetic source as the files a user would have, and return the command that ingests them as `config`
    says (as `ingest_config` does when not given).

    edges/part-00000.parquet, … (int32 `source` and `target`), features.npy (float32 [N, d]), labels.npy (-1: none)
    and splits.npz (node numbers of train, valid and test). Written aside and renamed when whole.
    """
    folder, report = Path(folder), progress or silent
    assert source.features is not None
    assert source.labels is not None
    assert source.splits is not None
    _check_free(folder, overwrite)
    aside = folder.with_name(f".{folder.name}.writing")
    with disk_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "edges").mkdir(parents=True)
        try:
            _write_edges(source, aside / "edges", rows_per_file, report)
            _write_features(source, aside / "features.npy", report)
            np.save(aside / "labels.npy", source.labels.values.to_numpy())
            codes = np.asarray(source.splits.codes)
            parts = {name: np.flatnonzero(codes == code).astype(np.int32) for name, code in SPLIT_CODES.items()}
            np.savez(aside / "splits.npz", **parts)  # type: ignore[arg-type]
            if folder.exists():
                shutil.rmtree(folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    config = config or ingest_config(source.name.removesuffix(_SUFFIX))
    words = ["largegt", "ingest"]
    for file in _FILES:
        words += [f"--{file.partition('.')[0]}", quoted(folder / file)]
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        text = ",".join(str(part) for part in value) if isinstance(value, list) else json.dumps(value).strip('"')
        words += ["--set", quoted(f"{name}={text}")]
    return " ".join([*words, "--out", quoted(f"{folder}-store")])


def _check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is there, and to replace one that holds anything else than what `write_files` writes."""
    if not folder.exists():
        return
    if not overwrite:
        raise InputError(f"{folder} is there already: choose another --out, or replace it with --overwrite")
    if not folder.is_dir() or any(item.name not in _FILES for item in folder.iterdir()):
        raise InputError(f"{folder} holds other things than the files of a synthetic graph: choose another --out")


def _write_edges(source: Source, folder: Path, rows_per_file: int, report: Progress) -> None:
    """Random numbers do not compress: plain columns are the smallest and the fastest to read."""
    schema = pa.schema([("source", pa.int32()), ("target", pa.int32())])
    writer, room, done, number = None, 0, 0, 0
    for chunk in source.edges.chunks():
        sources, targets = chunk.sources, chunk.targets
        start = 0
        while start < len(sources):
            if writer is None:
                path = folder / f"part-{number:05d}.parquet"
                writer, room = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False), rows_per_file
                number += 1
            stop = min(len(sources), start + room)
            columns = [pa.array(ends[start:stop].astype(np.int32)) for ends in (sources, targets)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            room -= stop - start
            start = stop
            if room == 0:
                writer.close()
                writer = None
        done += len(sources)
        report("write edges", done, source.edges.total)
    if writer is not None:
        writer.close()


def _write_features(source: Source, path: Path, report: Progress) -> None:
    features = source.features
    assert features is not None
    array = ArrayAppender(path, "float32", (features.width,), rows=0)
    try:
        for block in features.chunks():
            array.append(block)
            report("write features", array.rows, features.num_rows)
        array.close()
    finally:
        array.abandon()
