"""Prepared: all arrays for training, without the graph.

Stored in `STORE/prepared/<stage>/<key>/`, a folder of arrays per stage, and `STORE/prepared/<fingerprint>/`, which
lists the keys; all memory-mapped. A stage with unchanged inputs has the same key and is reused.

Stages: nodes (nodes, labels, split), local_nodes (local_rows, is_neighbor, token_nodes), tokens (tokens, and their
normalisation feature_shift [d] and feature_gain [d]), positions, and optionally neighbor_label_histogram and
label_counts (label_features.py). `Prepared` documents each array.
"""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from largegt.config.models import LocalInputsConfig, ModelConfig, ModelSpec, NodeLabelsConfig
from largegt.config.overrides import build, setting_names
from largegt.config.schema import PrepareConfig, ResolvedPrepareConfig
from largegt.data.splits import SPLIT_CODES, split_name
from largegt.data.store import GraphStore
from largegt.data.versions import State
from largegt.errors import ConfigError, FormatError, InputError, LargeGTError
from largegt.io import remote
from largegt.io.array_folder import ArrayFolder
from largegt.io.checksums import is_checker
from largegt.runtime.memory import format_bytes
from largegt.runtime.progress import Progress
from largegt.runtime.summary import Summary
from largegt.types import Array, PathLike

from .cache_key import directions_of, directions_read, resolve_config
from .context import context_names
from .sampling.local_nodes import sample

KIND, STAGE = "prepared", "stage"
STAGES = ("nodes", "local_nodes", "tokens", "positions", "neighbor_label_histogram", "label_counts")
_SETTINGS = {name: attrgetter(name) for name in setting_names(ResolvedPrepareConfig)}
_OF_STORE = ("name", "fingerprint", "num_nodes", "task", "classes", "num_outputs")


def _stored(name: str) -> Any:
    """A property that returns the array of this name."""
    return property(lambda prepared: prepared.array(name))


class Prepared(Summary):
    """A prepared graph: `Prepared.open(folder)`. n nodes have a row, and t nodes are behind the token rows they use."""

    nodes: Array = _stored("nodes")
    """[n] node numbers, sorted."""
    labels: Array = _stored("labels")
    """[n] or [n, c], as in the store; likewise `split` [n]."""
    local_rows: Array = _stored("local_rows")
    """[n, K] LocalNodes (Algorithm 1), as rows of `tokens`; `token_nodes[local_rows]` are the node numbers."""
    is_neighbor: Array = _stored("is_neighbor")
    """[n, ⌈K/8⌉] whether an edge joins a local node to the node, in either direction: packed bits, lowest first."""
    token_nodes: Array = _stored("token_nodes")
    """[t] node numbers of the rows of `tokens`, sorted; every node with tokens.precompute_for=all."""
    tokens: Array = _stored("tokens")
    """[t, h + 1, d] H, C⁰, C¹, … of each token node; h = hops (the paper has 2), or 2·hops with separate directions; d
    is the number of features, plus degrees if added."""
    positions: Array = _stored("positions")
    """[n, p] positional encodings."""

    def __init__(self, folder: ArrayFolder) -> None:
        self.folder = folder
        self.reused: dict[str, tuple[int, int]] = {}
        """After an incremental preparation: (rows reused, rows computed) of each array."""
        folder.require({"config": dict, "stages": dict, "store": dict, "num_nodes": int}, {})
        try:
            self.config = build(ResolvedPrepareConfig, folder.meta["config"])
        except ConfigError as error:
            raise FormatError(f"{folder.path} has settings that this version does not support ({error})") from error
        self.stages = {name: self._stage(name, key) for name, key in folder.meta["stages"].items()}
        self._folders = [folder, *self.stages.values()]

    def _stage(self, name: str, key: Any) -> ArrayFolder:
        if name not in STAGES or remote.FINGERPRINT.fullmatch(str(key)) is None:
            raise FormatError(f"{self.path / 'manifest.json'} has an unknown stage {name}/{key}")
        try:
            return ArrayFolder(self.path.parent / name / str(key), STAGE)
        except InputError as error:
            raise FormatError(f"{error}; {self.folder.advice}") from error

    @classmethod
    def open(cls, path: PathLike) -> Prepared:
        prepared = cls(ArrayFolder(path, KIND))
        advice, config = prepared.folder.advice, prepared.config
        for name, sides in {"nodes": 1, "local_rows": 2, "tokens": 3, "positions": 2}.items():
            if len(prepared.shape(name)) != sides:
                raise FormatError(f"{prepared.file(name)} has shape {prepared.shape(name)}; {advice}")
        (n,), (t, _, d) = prepared.shape("nodes"), prepared.shape("tokens")
        lengths = dict.fromkeys(("local_rows", "is_neighbor", "positions", "labels", "split"), n)
        lengths |= {"token_nodes": t, "feature_shift": d, "feature_gain": d}
        lengths |= {"neighbor_label_histogram": n} if config.neighbor_label_hops else {}
        lengths |= {"label_counts": t} if config.local_label_histograms else {}
        for name, rows in lengths.items():
            prepared._folder_of(name).require({}, {name: rows})
        if missing := [key for key in _OF_STORE if key not in prepared.meta]:
            raise FormatError(f"{prepared.path / 'manifest.json'} lacks the store's {missing[0]}; {advice}")
        return prepared

    def close(self) -> None:
        """Close the folders, so that `clean` may remove them."""
        for folder in self._folders:
            folder.close()

    def store(self) -> GraphStore:
        """The version of the store that was prepared."""
        return GraphStore.open(self.path.parent.parent, version=str(self.meta["fingerprint"]))

    def summary(self) -> tuple[str, dict[str, object], str]:
        sizes = {"nodes": len(self.nodes), "local nodes of each": self.k, "token rows": len(self.token_nodes)}
        sizes |= {"features": self.num_features, "positions": self.num_positions}
        return f"{self.meta['name']}, {format_bytes(self.num_bytes)}", {**sizes}, self.place

    # its arrays

    def _folder_of(self, name: str) -> ArrayFolder:
        return next((folder for folder in self._folders if name in folder), self.folder)

    def array(self, name: str) -> Array:
        return self._folder_of(name).array(name)

    def checksum(self, name: str) -> str:
        return self._folder_of(name).checksum(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._folder_of(name).shape(name)

    def file(self, name: str) -> Path:
        return self._folder_of(name).file(name)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays on disk."""
        return sum(folder.num_bytes for folder in self._folders)

    def check(self, progress: Progress | None = None) -> None:
        """Refuse damage before training or prediction; checked once per process."""
        if is_checker() and self.folder.url is None:
            self.verify(progress)

    def verify(self, progress: Progress | None = None) -> None:
        """Read every byte; refuse damage and row numbers out of range."""
        for folder in self._folders:
            folder.verify(None, progress, bounds_of(folder))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def place(self) -> str:
        """Its path or URL, for messages."""
        return self.folder.place

    @property
    def fingerprint(self) -> str:
        return self.folder.fingerprint

    @property
    def meta(self) -> dict[str, Any]:
        """The store's name, fingerprint, num_nodes, task, classes and num_outputs."""
        meta: dict[str, Any] = self.folder.meta["store"]
        return meta

    @property
    def version(self) -> State | None:
        """The earlier state of the feature scale and training labels; None for the state that was prepared."""
        return State.read(self.folder.meta["version"], self.path) if "version" in self.folder.meta else None

    @property
    def num_trained_nodes(self) -> int:
        """The number of nodes at training time, for models with a parameter per node."""
        return int(self.meta["num_nodes"]) if self.version is None else self.version.num_nodes

    @property
    def neighbor_label_histogram(self) -> Array:
        """[n, hops, c + 1] label distributions around each node; zero hops if not prepared."""
        if self.config.neighbor_label_hops:
            return self.array("neighbor_label_histogram")
        return np.zeros((len(self.nodes), 0, 0), dtype=np.float16)

    @property
    def label_counts(self) -> Array:
        """[t, c + 2] training label counts around the token nodes; zero columns if not prepared."""
        if self.config.local_label_histograms:
            return self.array("label_counts")
        return np.zeros((len(self.token_nodes), 0), dtype=np.int16)

    @property
    def k(self) -> int:
        return self.shape("local_rows")[1]

    @property
    def hops(self) -> int:
        """The number of contexts in a token row: one per hop, or two with separate directions."""
        return self.shape("tokens")[1] - 1

    @property
    def token_names(self) -> list[str]:
        """The names of the tokens in a row: H, C0, C1; or H, out 1 hop, in 1 hop, out 2 hops, in 2 hops."""
        return ["H", *context_names(directions_of(self.config), self.config.tokens.num_hops)]

    @property
    def num_features(self) -> int:
        return self.shape("tokens")[2]

    @property
    def num_positions(self) -> int:
        return self.shape("positions")[1]

    def rows_of(self, nodes: Array) -> Array:
        """The rows of these node numbers; -1 for an unprepared node."""
        return _positions_in(self.nodes, np.asarray(nodes))

    def token_rows_of(self, nodes: Array) -> Array:
        """The token rows of these nodes; -1 for a node without one."""
        return _positions_in(self.token_nodes, np.asarray(nodes))

    def split_rows(self, split: str) -> Array:
        """The rows of one split: train, valid (or val) or test."""
        if (name := split_name(split)) is None:
            raise InputError(f"split {split!r} is not one of {', '.join(SPLIT_CODES)}")
        return np.flatnonzero(self.array("split") == SPLIT_CODES[name])

    # checks

    def check_resampling(self) -> None:
        """Refuse resampling if only the sampled nodes have token rows."""
        if not self.config.can_resample:
            raise ConfigError(
                f"{self.path} has token rows of the sampled nodes only, so no other sample can be drawn: "
                "prepare with `prepare.tokens.precompute_for=reachable`"
            )

    def check_model(self, spec: ModelSpec) -> None:
        """Refuse a model that needs token rows that are not prepared."""
        if not self.config.serves(spec):
            raise ConfigError(
                f"{self.path} has token rows of {self.config.tokens.precompute_for} nodes, and {spec.name} reads those "
                "of all: train from the store, or prepare with `prepare.tokens.precompute_for=all`"
            )
        if spec.needs.get("tokens", {}).get("separate_directions") is False and self.config.tokens.separate_directions:
            raise ConfigError(
                f"{self.path} has two contexts after each hop, along and against the edges, and {spec.name} reads one: "
                "prepare with `prepare.tokens.separate_directions=false`"
            )

    def check_inputs(self, model: ModelConfig) -> None:
        """Refuse a model whose label inputs are not prepared."""
        hops = model.neighbor_label_hops if isinstance(model, NodeLabelsConfig) else 0
        histograms = isinstance(model, LocalInputsConfig) and model.local_label_histograms
        for is_missing, setting in (
            (hops > self.config.neighbor_label_hops, f"neighbor_label_hops={hops}"),
            (histograms and not self.config.local_label_histograms, "local_label_histograms=true"),
        ):
            if is_missing:
                raise ConfigError(
                    f"{self.path} was prepared without the labels that model.{setting} reads: train from the store, or "
                    f"prepare with `model.{setting}`"
                )


def _positions_in(known: Array, nodes: Array) -> Array:
    """The positions of `nodes` in the sorted `known`; -1 for a missing node."""
    places = np.minimum(np.searchsorted(known, nodes), max(0, len(known) - 1))
    return np.where(known[places] == nodes, places, -1) if len(known) else np.full(len(nodes), -1)


def bounds_of(folder: ArrayFolder) -> dict[str, int]:
    """Exclusive upper bounds of the arrays that index other arrays."""
    num_nodes = folder.meta.get("num_nodes")
    nodes = {"nodes": num_nodes, "token_nodes": num_nodes} if isinstance(num_nodes, int) else {}
    every = {"local_rows": (*folder.shape("token_nodes"), 0)[0], **nodes}
    return {name: below for name, below in every.items() if name in folder}


def cached_preparations(store: GraphStore) -> list[Prepared]:
    """All readable preparations in the store's folder, of any version."""
    found = []
    for path in remote.folders(store.path / "prepared"):
        with suppress(LargeGTError):
            found.append(Prepared.open(path))
    return found


def stale_note(store: GraphStore, config: PrepareConfig) -> str | None:
    """A line on how the most similar preparation differs from `config`; None if the store has none."""
    wanted = resolve_config(store, config)
    differences: list[list[str]] = []
    for other in cached_preparations(store):
        if other.meta["fingerprint"] == store.fingerprint:
            pairs = [(name, of(other.config), of(wanted)) for name, of in _SETTINGS.items()]
            differences.append([f"{name}={old} (now {new})" for name, old, new in pairs if old != new])
    if not differences:
        return None
    fewest: list[str] = min(differences, key=len)
    return f"{store.place} was prepared with {', '.join(fewest)}"


class LocalNodeSample(NamedTuple):
    """LocalNodes of some rows of a Prepared."""

    local_rows: Array
    """[n, K] rows of the token table."""
    is_neighbor: Array
    """[n, K] boolean: whether an edge joins a local node to the node."""


def sample_rows(
    store: GraphStore, prepared: Prepared, rows: Array, sample_index: int, threads: int | None = None
) -> LocalNodeSample:
    """A new sample of LocalNodes for these rows of a Prepared."""
    prepared.check_resampling()
    store.check(*directions_read(prepared.config))
    nodes, is_neighbor_nk = sample(
        store, np.asarray(prepared.nodes[rows]), prepared.config.local_nodes, sample_index, threads
    )
    if len(prepared.token_nodes) != store.num_nodes:
        nodes = np.searchsorted(prepared.token_nodes, nodes).astype(nodes.dtype)
    return LocalNodeSample(nodes, is_neighbor_nk)
