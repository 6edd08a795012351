"""Synthetic graphs with the size and the properties of a known dataset, streamed.

Enters: a dataset's name, a scale, a seed. Leaves: a `Source` that generates edges and features on reading: each edge
is a function of (seed, its number), each feature row of (seed, its node), so values do not depend on the chunks.
Cost: labels and splits, 2 or 3 bytes per node, and a chunk.

Each node has a rank. Ranks are sorted by class, and within a class by community; a permutation maps ranks to node
numbers. The source of an edge follows a power law. Its target is random: in the same community, in another community
of the same class, in the previous class, or anywhere; the first nodes of each community and some nodes of the whole
graph are hubs. Some nodes ("strays") have a class other than their community's, and some communities have the features
of another class: features predict the class partly, neighbours better, and neither perfectly.
"""

# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.kernels import mix
from largegt.data.parts import EDGE_CHUNK_ROWS, EdgeChunk, Labels, Source, Splits, chunk_rows
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.runtime.threads import run_ranges
from largegt.types import Array, PathLike

from . import registry
from .registry import dataset

MAX_SCALE = 10.0
_SUFFIX = "-like"
_NUM_COMMUNITY_MEANS = 4096
_DISGUISED_FRACTION = 0.2
_TASK_ROWS = 1 << 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN_RATIO, _SILVER_RATIO = 0.6180339887498949, 0.4142135623730951
"""Steps of these fractions of a range cover it evenly."""


@dataclass(frozen=True)
class Character:
    """Properties of a dataset other than its counts (registry.py)."""

    homophily: float
    """Fraction of edges between nodes of the same class."""
    class_exponent: float
    """The size of class c is proportional to (c + 1)^-exponent; 0: equal sizes."""
    related: float
    """Fraction of edges to the class before the source's class."""
    strays: float
    """Fraction of nodes with a random class instead of their community's."""
    community_size: int
    """Nodes in a community, at scale 1."""
    max_degree: int
    """Largest in-degree at scale 1 (largest degree of an undirected graph)."""
    out_exponent: float
    """Sources are sampled as floor(N u^exponent); 1: uniform."""
    community_exponent: float
    """The same for targets inside a community."""
    class_signal: float
    """Standard deviation of class means per feature, relative to the noise."""
    community_signal: float
    """Standard deviation of community means per feature, relative to the noise."""


_CHARACTERS = {
    "ogbn-products": Character(
        homophily=0.81, class_exponent=1.0, related=0.03, strays=0.06, community_size=3450, max_degree=17_500,
        out_exponent=1.6, community_exponent=2.0, class_signal=0.27, community_signal=0.05,
    ),
    "snap-patents": Character(
        homophily=0.22, class_exponent=0.0, related=0.65, strays=0.05, community_size=860, max_degree=800,
        out_exponent=1.3, community_exponent=1.8, class_signal=0.055, community_signal=0.04,
    ),
    "ogbn-papers100M": Character(
        homophily=0.57, class_exponent=0.6, related=0.1, strays=0.15, community_size=1720, max_degree=250_000,
        out_exponent=1.4, community_exponent=2.2, class_signal=0.3, community_signal=0.1,
    ),
}  # fmt: skip


def synthetic(like: str, scale: float = 1.0, seed: int = 0) -> Source:
    """A graph like `like`, `scale` times as large, ready to ingest (with `ingest_config(like)`).

    Nodes, edges, labelled nodes and splits scale with `scale`; the numbers of features and classes do not.
    """
    graph = SyntheticGraph(like, scale, seed)
    labels, codes = graph.labels_and_splits()
    where = graph.identity
    return Source(
        name=graph.dataset.name + _SUFFIX,
        edges=SyntheticEdges(graph),
        features=SyntheticFeatures(graph),
        labels=Labels(pa.array(labels), where),
        splits=Splits(where, codes=codes),
        node_ids=None,
        num_nodes=graph.num_nodes,
        identity=where,
    )


def ingest_config(like: str, **overrides: Any) -> IngestConfig:
    """The ingest configuration for a graph like `like`: its name, and whether edges are directed."""
    return registry.ingest_config(like, **{"name": dataset(like).name + _SUFFIX} | overrides)


def generate(
    like: str, out: PathLike, scale: float = 1.0, seed: int = 0, config: IngestConfig | None = None, **how: Any
) -> GraphStore:
    """Ingest a synthetic graph. `config` defaults to `ingest_config(like)`; `how` are keyword arguments of `ingest`."""
    return ingest(synthetic(like, scale, seed), out, config or ingest_config(like), **how)


# the plan of a graph


class _Layout(NamedTuple):
    """Assignment of ranks to communities, and of communities to classes."""

    size: int
    step: int
    """The node of a rank is rank * step modulo size."""
    back: int
    """The rank of a node is node * back modulo size."""
    hub_step: int
    """The rank of a hub is its number times this, modulo size."""
    community_start: Array
    community_class: Array
    community_disguise: Array
    class_start: Array


class _TargetDistribution(NamedTuple):
    """Distribution of edge targets: bounds on 32 random bits, and exponents of power laws."""

    key: Any
    community: int
    same_class: int
    class_before: int
    out_exponent: float
    community_exponent: float
    anywhere_exponent: float


class SyntheticGraph:
    """A synthetic graph: small tables that determine every edge, feature row and label."""

    def __init__(self, like: str, scale: float = 1.0, seed: int = 0) -> None:
        self.dataset = known = dataset(like)
        self.character = character = _CHARACTERS[known.name]
        if not (isinstance(scale, int | float) and 0 < scale <= MAX_SCALE):
            raise ConfigError(f"scale is {scale}, expected more than 0 and at most {MAX_SCALE:g}: 0.01 is a hundredth")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed}, expected 0 or a positive whole number below 2^63")
        self.identity = f"synthetic {known.name}, scale {float(scale)!r}, seed {seed}"
        self._seed = seed
        train, valid, test = (max(1, round(size * scale)) for size in known.split_sizes)
        self.num_nodes = max(round(known.num_nodes * scale), 2 * known.num_classes)
        if sum(known.split_sizes) == known.num_nodes:  # all nodes have labels, also after rounding
            test = self.num_nodes - train - valid
        self.split_sizes = (train, valid, test)
        self.num_edges = max(1, round(known.num_edges * scale))
        rng = np.random.default_rng(seed)
        edge_key, label_key, noise_key = rng.integers(2**64, size=3, dtype=np.uint64)
        self.layout = self._layout(min(1.0, math.sqrt(scale)))
        self.distribution = self._target_distribution(edge_key)
        self._keys = np.array([label_key, noise_key])
        self._strays = _bits32(character.strays)
        width = known.num_features
        self._means = (
            character.class_signal * rng.standard_normal((known.num_classes, width), np.float32),
            character.community_signal * rng.standard_normal((_NUM_COMMUNITY_MEANS, width), np.float32),
        )

    def edges(self, low: int, high: int) -> tuple[Array, Array]:
        """(sources, targets) of edges low..high-1, int64."""
        sources, targets = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
        _run_kernel(_fill_edges, high - low, _TASK_ROWS, self.layout, self.distribution, low, sources, targets)
        return sources, targets

    def features(self, low: int, high: int) -> Array:
        """float32 [high - low, d]: the features of nodes low..high-1."""
        rows = np.empty((high - low, self.dataset.num_features), np.float32)
        step = max(1, _TASK_ROWS * 8 // rows.shape[1])
        _run_kernel(_fill_features, len(rows), step, self.layout, self._keys, self._strays, self._means, low, rows)
        return rows

    def classes(self) -> Array:
        """The class of every node, including unlabelled nodes, as int8 or int16."""
        classes = np.empty(self.num_nodes, np.int8 if self.dataset.num_classes < 128 else np.int16)
        _run_kernel(_fill_classes, self.num_nodes, _TASK_ROWS, self.layout, self._keys[0], self._strays, classes)
        return classes

    def labels_and_splits(self) -> tuple[Array, Array]:
        """(labels, -1 for unlabelled nodes; split codes uint8)."""
        sizes = [self.num_nodes - sum(self.split_sizes), *self.split_sizes]
        codes = np.repeat(np.arange(4, dtype=np.uint8), sizes)
        np.random.default_rng([self._seed, 1]).shuffle(codes)
        labels = self.classes()
        labels[codes == 0] = -1
        return labels, codes

    def _layout(self, shrink: float) -> _Layout:
        """Divide the ranks into classes, and classes into communities. Below scale 1, both the number and the size of
        communities are proportional to the square root of the scale."""
        size, num_classes = self.num_nodes, self.dataset.num_classes
        weights = np.arange(1, num_classes + 1, dtype=np.float64) ** -self.character.class_exponent
        shares = np.cumsum(weights) / weights.sum()
        class_start = np.r_[0, np.rint((size - num_classes) * shares).astype(np.int64)]
        class_start += np.arange(num_classes + 1)  # at least one node per class
        sizes = np.diff(class_start)
        counts = np.maximum(1, np.rint(sizes / max(50.0, self.character.community_size * shrink))).astype(np.int64)
        classes = np.repeat(np.arange(num_classes), counts)
        number = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_disguised = (number * _GOLDEN_RATIO) % 1.0 > 1.0 - _DISGUISED_FRACTION  # evenly spread, never the first
        other = (classes + 1 + number % (num_classes - 1)) % num_classes
        step = _step(size, _SILVER_RATIO)
        return _Layout(
            size=size,
            step=step,
            back=pow(step, -1, size),
            hub_step=_step(size, _GOLDEN_RATIO),
            community_start=np.r_[class_start[classes] + sizes[classes] * number // counts[classes], size],
            community_class=classes.astype(np.int16),
            community_disguise=np.where(is_disguised, other, classes).astype(np.int16),
            class_start=class_start,
        )

    def _target_distribution(self, key: Any) -> _TargetDistribution:
        """The fractions that give the dataset's homophily, and the exponent that gives its largest hub.

        Let χ be the probability that two random nodes have the same class, and k = (1 - strays)² the probability that
        neither end is a stray. Then homophily = k same + (1 - k) χ, where same = within + anywhere χ +
        related share(first class)²: the first class has no previous class, so these edges go anywhere.
        """
        character = self.character
        shares = np.diff(self.layout.class_start) / self.num_nodes
        chance = float((shares**2).sum())
        kept = (1 - character.strays) ** 2
        same = (character.homophily - (1 - kept) * chance) / kept
        within = (same - (1 - character.related) * chance - character.related * shares[0] ** 2) / (1 - chance)
        within = min(max(within, 0.0), 1 - character.related)
        anywhere = 1 - within - character.related
        hub_share = character.max_degree / (anywhere * self.dataset.num_edges)
        return _TargetDistribution(
            key=key,
            community=_bits32(0.75 * within),
            same_class=_bits32(within),
            class_before=_bits32(within + character.related),
            out_exponent=character.out_exponent,
            community_exponent=character.community_exponent,
            anywhere_exponent=math.log(self.dataset.num_nodes) / -math.log(hub_share),
        )


class SyntheticEdges:
    """The edges of a synthetic graph, as a stream."""

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
    """The feature rows of a synthetic graph, as a stream."""

    names: list[str] | None = None

    def __init__(self, graph: SyntheticGraph, rows: int | None = None) -> None:
        self.graph = graph
        self.where = self.identity = graph.identity
        self.width = graph.dataset.num_features
        self.num_rows: int | None = graph.num_nodes
        self._rows = rows or chunk_rows(self.width)

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        for start in range(skip, self.graph.num_nodes, self._rows):
            yield self.graph.features(start, min(start + self._rows, self.graph.num_nodes))


def _run_kernel(kernel: Any, count: int, step: int, *args: Any) -> None:
    """Call `kernel(*args, low, high)` on all threads for ranges of length `step` in [0, count)."""
    for _ in run_ranges(lambda low, high: kernel(*args, low, high), [*range(0, count, step), count]):
        pass


def _bits32(share: float) -> int:
    """The bound that 32 random bits are below with probability `share`."""
    return round(min(max(share, 0.0), 1.0) * 2**32)


def _step(size: int, ratio: float) -> int:
    """A step near `ratio * size` that is coprime to `size`, so that its multiples are a permutation."""
    step = max(1, round(size * ratio))
    while math.gcd(step, size) != 1:
        step += 1
    return step


# kernels


@njit(nogil=True, cache=True, inline="always")
def _community_of(layout: Any, rank: Any) -> Any:
    return np.searchsorted(layout.community_start, rank, side="right") - 1


@njit(nogil=True, cache=True, inline="always")
def _power_law(bits: Any, exponent: Any, size: Any) -> Any:
    """floor(size u^exponent) for a uniform u from 32 random bits: small numbers are more frequent."""
    u = (np.float64(np.int64(bits)) + 0.5) * (1.0 / 4294967296.0)
    return min(np.int64(size * u**exponent), size - 1)


@njit(nogil=True, cache=True)
def _fill_edges(layout: Any, distribution: Any, first: Any, sources: Any, targets: Any, low: Any, high: Any) -> None:
    """Generate edges first + low .. first + high - 1, each from its own 128 random bits."""
    size, start = layout.size, layout.community_start
    half, rest = np.uint64(32), np.uint64(0xFFFFFFFF)
    for e in range(low, high):
        a = mix(distribution.key + np.uint64(first + e) * _GOLDEN)
        b = mix(a + _GOLDEN)
        source = _power_law(a & rest, distribution.out_exponent, size) * layout.hub_step % size
        k = own = _community_of(layout, source)
        choice = np.int64(a >> half)
        if choice >= distribution.community:
            c = np.int64(layout.community_class[own]) - (0 if choice < distribution.same_class else 1)
            if c < 0 or choice >= distribution.class_before:
                k = np.int64(-1)
            else:
                width = layout.class_start[c + 1] - layout.class_start[c]
                place = np.int64(((b >> half) * np.uint64(width)) >> half)
                k = _community_of(layout, layout.class_start[c] + place)
        if k >= 0:
            target = start[k] + _power_law(b & rest, distribution.community_exponent, start[k + 1] - start[k])
        else:
            target = size - 1 - _power_law(b & rest, distribution.anywhere_exponent, size) * layout.hub_step % size
        if target == source:  # avoid self loops: use the next node of the community
            target = source + 1 if source + 1 < start[own + 1] else start[own]
        sources[e] = source * layout.step % size
        targets[e] = target * layout.step % size


@njit(nogil=True, cache=True, inline="always")
def _class_of(layout: Any, key: Any, strays: Any, node: Any, community: Any) -> Any:
    """The class of the community, or for a stray the class of a random rank."""
    bits = mix(key + np.uint64(node + 1) * _GOLDEN)
    if np.int64(bits & np.uint64(0xFFFFFFFF)) < strays:
        rank = np.int64(((bits >> np.uint64(32)) * np.uint64(layout.size)) >> np.uint64(32))
        return layout.community_class[_community_of(layout, rank)]
    return layout.community_class[community]


@njit(nogil=True, cache=True)
def _fill_classes(layout: Any, key: Any, strays: Any, classes: Any, low: Any, high: Any) -> None:
    for node in range(low, high):
        community = _community_of(layout, node * layout.back % layout.size)
        classes[node] = _class_of(layout, key, strays, node, community)


@njit(nogil=True, cache=True, inline="always")
def _noise(bits: Any) -> Any:
    """Approximately normal with mean 0 and variance 1: the sum of four 16-bit parts."""
    part = np.uint64(0xFFFF)
    total = (bits & part) + (bits >> np.uint64(16) & part) + (bits >> np.uint64(32) & part) + (bits >> np.uint64(48))
    return np.float32((np.float32(np.int32(total)) - np.float32(131070.0)) * np.float32(1 / 37837.2))


@njit(nogil=True, cache=True)
def _fill_features(layout: Any, keys: Any, strays: Any, means: Any, first: Any, out: Any, low: Any, high: Any) -> None:
    """Row n, of node first + n, is the sum of a class mean (or the mean of the community's disguise class), a community
    mean, and noise."""
    classes_cd, looks_ld = means
    for n in range(low, high):
        node = first + n
        k = _community_of(layout, node * layout.back % layout.size)
        shown = np.int64(_class_of(layout, keys[0], strays, node, k))
        if shown == layout.community_class[k]:
            shown = np.int64(layout.community_disguise[k])
        class_d, look_d = classes_cd[shown], looks_ld[mix(np.uint64(k) + keys[1]) % np.uint64(len(looks_ld))]
        row_key = mix(keys[1] + np.uint64(node + 1) * _GOLDEN)
        for c in range(out.shape[1]):
            out[n, c] = class_d[c] + look_d[c] + _noise(mix(row_key + np.uint64(c) * _GOLDEN))
