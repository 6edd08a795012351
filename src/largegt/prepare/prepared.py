"""Prepared: everything training needs, and nothing of the graph.

Enters: a GraphStore and a PrepareConfig. Leaves: a folder `STORE/prepared/<fingerprint>/`, memory-mapped. Cost: the
sum of its stages; a stage whose inputs did not change is taken from an earlier folder, not run again.

Arrays (`n` nodes that have a row, `t` nodes whose tokens they use):
  nodes [n]            node numbers, sorted
  local_rows [n, K]    LocalNodes (Algorithm 1), as rows of `tokens`; `token_nodes[local_rows]` are the node numbers
  token_nodes [t]      node numbers behind the rows of `tokens`, sorted; every node with tokens.nodes=all
  tokens [t, h + 1, d] H, C⁰, C¹, … of each of them, h hops (the paper has 2); h = 2·hops contexts where those along
                       and against the edges are apart; d is the store's, and the degrees where they are added
  positions [n, p]     positional encodings
  label_contexts [n, h, c + 1]        training labels around each node (label_contexts.py), where they were asked for
  near [n, ⌈K/8⌉]      which local nodes are neighbours, and
  label_counts [t, c + 2]             training labels around the nodes behind `tokens` (surroundings.py), likewise
  labels [n] or [n, c], split [n]     as in the store
  feature_shift [d], feature_gain [d] what standardising did
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import storage
from ..config import LocalNodesConfig, ModelConfig, ModelName, PrepareConfig, TokensConfig, build
from ..errors import ConfigError, FormatError, InputError, LargeGTError
from ..folder import ArrayFolder, FolderWriter, fingerprint, require_space, tidy
from ..graph.csr import index_dtype
from ..graph.lineage import State, earlier_state, earlier_states
from ..graph.splits import SPLIT_CODES
from ..graph.store import GraphStore
from ..integrity import is_checker
from ..memory import memory_budget
from ..progress import Progress, silent
from ..types import Array, Direction, PathLike
from .blocks import Neighbors
from .context import ContextFeatures, context_names
from .edge_means import EdgeMeans
from .engines.engine import SEGMENT_NODES, Engine, sample_from
from .features import NodeFeatures, feature_scale
from .incremental import Earlier, Rows, merge, same_sample, same_token_rows, same_training_labels
from .label_contexts import TrainingLabels, write_label_contexts
from .positions import write_positions
from .surroundings import is_near, write_label_counts, write_near

KIND = "prepared"
_SAMPLED = "scratch_sampled"
_OF_STORE = ("name", "fingerprint", "num_nodes", "task", "classes", "num_outputs")
_UNSAID = (("hops", 2), ("contexts", "together"), ("degrees", False), ("weighted", False), ("edge_features", False))


class Prepared:
    """A prepared graph: `Prepared.open(folder)`. See the module's text for the arrays."""

    def __init__(self, folder: ArrayFolder) -> None:
        self.folder = folder
        self.reused: dict[str, tuple[int, int]] = {}
        """Where it was just made from one of an earlier state of the store: (rows kept, rows made) of each array."""
        folder.require({"config": dict, "stages": dict, "store": dict}, {})
        try:
            self.config = build(PrepareConfig, folder.meta["config"])
        except ConfigError as error:
            raise FormatError(f"{folder.path} has settings that this version does not know ({error})") from error

    @classmethod
    def open(cls, path: PathLike) -> Prepared:
        prepared = cls(ArrayFolder(path, KIND))
        folder, n, t = prepared.folder, (*prepared.folder.shape("nodes"), 0)[0], prepared.folder.shape("tokens")
        lengths = {"nodes": n, "local_rows": n, "positions": n, "labels": n, "split": n}
        lengths |= {"label_contexts": n} if prepared.config.labels.hops else {}
        lengths |= {"near": n} if prepared.config.local_nodes.near else {}
        lengths |= {"label_counts": (*t, 0)[0]} if prepared.config.labels.local else {}
        lengths |= {"token_nodes": (*t, 0)[0], "feature_shift": (0, *t)[-1], "feature_gain": (0, *t)[-1]}
        folder.require({}, lengths)
        sides = {"local_rows": 2, "tokens": 3, "positions": 2}
        if wrong := [name for name, sides_of in sides.items() if len(folder.shape(name)) != sides_of]:
            raise FormatError(f"{folder.file(wrong[0])} has shape {folder.shape(wrong[0])}; {folder.advice}")
        if missing := [key for key in _OF_STORE if key not in prepared.meta]:
            raise FormatError(f"{folder.path / 'manifest.json'} does not say the store's {missing[0]}; {folder.advice}")
        return prepared

    def check(self, progress: Progress | None = None) -> None:
        """Before anything is trained on it or predicted from it, whatever its size: refuse damage, and rows that are
        none. Once in a process."""
        if is_checker() and self.folder.url is None:
            self.verify(progress)

    def verify(self, progress: Progress | None = None) -> None:
        """Read every byte; refuse damage, and rows that are none."""
        self.folder.verify(None, progress, bounds_of(self.folder))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def place(self) -> str:
        """Where it lies, as a user says it: a path or a URL."""
        return self.folder.place

    @property
    def fingerprint(self) -> str:
        return self.folder.fingerprint

    @property
    def meta(self) -> dict[str, Any]:
        """Of the store: name, num_nodes, task, classes, num_outputs."""
        meta: dict[str, Any] = self.folder.meta["store"]
        return meta

    @property
    def as_of(self) -> State | None:
        """The state of the store whose scale and training labels it has; None: those of the store it was made of."""
        return State(**self.folder.meta["as_of"]) if "as_of" in self.folder.meta else None

    @property
    def num_trained_nodes(self) -> int:
        """Nodes of the store when a model was trained: some keep a number for each."""
        return int(self.meta["num_nodes"]) if self.as_of is None else self.as_of.num_nodes

    @property
    def nodes(self) -> Array:
        return self.folder.array("nodes")

    @property
    def local_rows(self) -> Array:
        return self.folder.array("local_rows")

    @property
    def token_nodes(self) -> Array:
        return self.folder.array("token_nodes")

    @property
    def tokens(self) -> Array:
        return self.folder.array("tokens")

    @property
    def positions(self) -> Array:
        return self.folder.array("positions")

    @property
    def labels(self) -> Array:
        return self.folder.array("labels")

    @property
    def label_contexts(self) -> Array:
        """Of no hops where none were asked for."""
        if self.config.labels.hops:
            return self.folder.array("label_contexts")
        return np.zeros((len(self.nodes), 0, 0), dtype=np.float16)

    @property
    def near(self) -> Array:
        """Of no local nodes where it was not asked for."""
        if self.config.local_nodes.near:
            return self.folder.array("near")
        return np.zeros((len(self.nodes), 0), dtype=np.uint8)

    @property
    def label_counts(self) -> Array:
        """Of no labels where they were not asked for."""
        if self.config.labels.local:
            return self.folder.array("label_counts")
        return np.zeros((len(self.token_nodes), 0), dtype=np.int16)

    @property
    def k(self) -> int:
        return int(self.local_rows.shape[1])

    @property
    def hops(self) -> int:
        """Contexts in a token row: one per hop, or two where directions are apart."""
        return int(self.tokens.shape[1]) - 1

    @property
    def token_names(self) -> list[str]:
        """What each part of a token row is called: H, C0, C1; or H, out 1 hop, in 1 hop, out 2 hops, in 2 hops."""
        return ["H", *context_names(directions_of(self.config), self.config.tokens.hops)]

    @property
    def num_features(self) -> int:
        return int(self.tokens.shape[2])

    @property
    def num_positions(self) -> int:
        return int(self.positions.shape[1])

    def rows_of(self, nodes: Array) -> Array:
        """The rows of these node numbers; -1 for a node that was not prepared."""
        return _places(self.nodes, np.asarray(nodes))

    def token_rows_of(self, nodes: Array) -> Array:
        """Where these nodes stand in the token table; -1 for a node that does not."""
        return _places(self.token_nodes, np.asarray(nodes))

    def check_reachable(self) -> None:
        """Refuse to draw other samples where only the sampled nodes have token rows."""
        if not self.config.can_resample:
            raise ConfigError(
                f"{self.path} has token rows of the sampled nodes only, so no other sample can be drawn: "
                "prepare with --set prepare.tokens.nodes=reachable"
            )

    def check_serves(self, name: ModelName) -> None:
        """Refuse a model that reads rows of nodes that have none here."""
        if not self.config.serves(name):
            raise ConfigError(
                f"{self.path} has token rows of {self.config.tokens.nodes} nodes, and {name} reads those of all: "
                "train from the store, or prepare with --set prepare.tokens.nodes=all"
            )
        if name == "sgc" and self.config.tokens.contexts == "apart":
            raise ConfigError(
                f"{self.path} has two contexts after the last hop, along and against the edges, and sgc reads one: "
                "prepare with --set prepare.tokens.contexts=together"
            )

    def check_told(self, model: ModelConfig) -> None:
        """Refuse a model that is told more of labels and local nodes than was prepared."""
        hops, there = model.label_contexts, self.config
        if hops > there.labels.hops:
            raise ConfigError(
                f"model.label_contexts={hops}, and {self.path} has labels of {there.labels.hops} hops: "
                f"train from the store, or prepare with --set prepare.labels.hops={hops}"
            )
        if not model.reads_surroundings:
            return
        if model.label_surroundings and not there.labels.local:
            self._refuse_missing("label_surroundings", "labels.local")
        if (model.distances or model.label_surroundings) and not there.local_nodes.near:
            self._refuse_missing("distances", "local_nodes.near")

    def _refuse_missing(self, model: str, setting: str) -> None:
        raise ConfigError(
            f"the model reads what model.{model}=true tells, and {self.path} does not have it: train from the "
            f"store, or prepare with --set prepare.{setting}=true"
        )

    def check_split(self, split: str) -> None:
        """Refuse a split that there is not."""
        if split not in SPLIT_CODES:
            raise InputError(f"split {split!r} is not one of {', '.join(SPLIT_CODES)}")

    def split_rows(self, split: str) -> Array:
        """The rows of one split."""
        self.check_split(split)
        return np.flatnonzero(self.folder.array("split") == SPLIT_CODES[split])


def _places(known: Array, nodes: Array) -> Array:
    """Where nodes stand among those known, which are sorted; -1 where they do not."""
    places = np.minimum(np.searchsorted(known, nodes), max(0, len(known) - 1))
    return np.where(known[places] == nodes, places, -1) if len(known) else np.full(len(nodes), -1)


def bounds_of(folder: ArrayFolder) -> dict[str, int]:
    """What the numbers of a preparation's arrays are less than, where they point into other arrays."""
    store = folder.meta.get("store")
    num_nodes = store.get("num_nodes") if isinstance(store, dict) else None
    nodes = {"nodes": num_nodes, "token_nodes": num_nodes} if isinstance(num_nodes, int) else {}
    return {"local_rows": (*folder.shape("token_nodes"), 0)[0], **nodes}


def prepare(
    store: GraphStore | PathLike,
    config: PrepareConfig | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    memory: str | int | None = None,
    engine: Engine | None = None,
    as_of: str | None = None,
) -> Prepared:
    """Run what is missing of LocalNodes, context features and positional encodings; open what is there.

    `memory` (`"4GiB"`) is what the work may hold at once, half of what is free by default; the result does not depend
    on it. A killed preparation goes on where it stopped when it is called again. `engine` is who does the work, with
    its own threads, progress and memory: this process by default, or a RayEngine; the result does not depend on that
    either. `as_of` is the fingerprint of the store before it was appended to: features are scaled as then, and labels
    are told by the training nodes of then, as weights that were trained then expect.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    config = settled(store, config or PrepareConfig())
    engine = engine or Engine(memory_budget(memory), threads, progress)
    engine.check_positions(config.positions.method)
    store = engine.opened(store)
    then = _state(store, config, as_of)
    path = prepared_path(store, config, as_of)
    if is_prepared(store, config, as_of):
        try:
            prepared = Prepared.open(path)
            prepared.check(engine.progress)
            tidy(path)
            return prepared
        except FormatError as error:  # damaged: it is ours, so make it again
            warnings.warn(f"{path} is made again: {error}", stacklevel=2)
            storage.remove_folder(path)
    store.check(*_directions_read(config), features=True, progress=engine.progress)
    nodes = nodes_to_prepare(store, config)
    stages = _stage_fingerprints(store, config, then)
    identity = _identity(store, config, then)
    with FolderWriter(path, KIND, identity=identity) as writer:
        run = _Stages(store, writer, stages)
        making = _Making(writer, store, nodes, config, engine, then, run.siblings, {})
        direction = config.local_nodes.direction
        writer.save("nodes", nodes)
        writer.save("labels", store.labels[nodes])
        writer.save("split", _split_of(store, nodes, then))
        run.stage(
            "local_nodes",
            ["local_rows", "token_nodes"],
            lambda: _write_local_nodes(making),
        )
        run.stage(
            "tokens",
            ["tokens", "feature_shift", "feature_gain"],
            lambda: _write_tokens(making),
        )
        run.stage(
            "positions",
            ["positions"],
            lambda: write_positions(writer, store, nodes, config.positions, direction, engine),
        )
        if config.labels.hops:
            run.stage(
                "label_contexts",
                ["label_contexts"],
                lambda: _write_label_contexts(making),
            )
        if config.local_nodes.near:
            run.stage("near", ["near"], lambda: write_near(writer, store, nodes, engine))
        if config.labels.local:
            run.stage("label_counts", ["label_counts"], lambda: _write_label_counts(making))
        meta = {
            "config": _told(store, config),
            "stages": stages,
            "store": {
                "name": store.name, "fingerprint": store.fingerprint, "num_nodes": store.num_nodes,
                "task": store.task, "classes": store.classes, "num_outputs": store.num_outputs,
            },
            **({} if then is None else {"as_of": asdict(then)}),
        }  # fmt: skip
        writer.finish(meta, identity=identity, progress=engine.progress)
    prepared = Prepared.open(path)
    prepared.reused = making.reused
    _remove_superseded(store, prepared, run.siblings)
    return prepared


def _state(store: GraphStore, config: PrepareConfig, as_of: str | None) -> State | None:
    """The earlier state of this name; None for the store as it is."""
    if as_of is None or as_of == store.fingerprint:
        return None
    state = earlier_state(store, as_of)
    if state is None:
        raise InputError(f"{store.place} was never what {as_of} names: put the old store back, or train again")
    if state.directed != store.directed:
        raise InputError(f"{store.place} has {'' if store.directed else 'no '}directions since it grew: train again")
    if config.positions.method in ("node2vec", "laplacian"):
        raise ConfigError(
            f"{store.place} has grown, and its {config.positions.method} encodings are unlike those of the training: "
            "train again, with --set prepare.positions.method=projection where a store is to grow"
        )
    return state


def _split_of(store: GraphStore, nodes: Array, then: State | None) -> Array:
    """Splits of these nodes; nodes that came after a state are no training nodes of it."""
    split = np.array(store.split[nodes])
    if then is not None:
        split[(nodes >= then.num_nodes) & (split == SPLIT_CODES["train"])] = 0
    return split


def _remove_superseded(store: GraphStore, prepared: Prepared, siblings: list[Prepared]) -> None:
    """Remove preparations of earlier states that were kept to make this one from: those by the same settings, for the
    same run, or for none."""
    states = {state.fingerprint for state in earlier_states(store)}

    def serves(each: Prepared) -> str:
        return str(each.meta["fingerprint"] if each.as_of is None else each.as_of.fingerprint)

    for other in siblings:
        is_same = other.config == prepared.config and other.folder.url is None
        is_for_none = prepared.as_of is None and other.as_of is None
        if is_same and other.meta["fingerprint"] in states and (is_for_none or serves(other) == serves(prepared)):
            storage.remove_folder(other.path)


def nodes_to_prepare(store: GraphStore, config: PrepareConfig) -> Array:
    """The nodes that get a row: the labelled ones, or all."""
    if config.local_nodes.nodes == "all":
        return np.arange(store.num_nodes, dtype=np.dtype(index_dtype(store.num_nodes)))
    nodes = np.flatnonzero(store.labelled)
    if not len(nodes):
        raise InputError(
            f"{store.place} has no labelled node to prepare: give labels to ingest, or prepare all nodes "
            "with --set prepare.local_nodes.nodes=all"
        )
    return nodes.astype(np.dtype(index_dtype(store.num_nodes)))


def settled(store: GraphStore, config: PrepareConfig) -> PrepareConfig:
    """What a configuration comes to for this store: without directions or hops there is nothing to keep apart, and
    without weights, hops or samples nothing to weigh."""
    wanted = {
        "local_nodes.weighted": (config.local_nodes.weighted, store.weighted, "weights", "--weight COLUMN"),
        "tokens.weighted": (config.tokens.weighted, store.weighted, "weights", "--weight COLUMN"),
        "tokens.edge_features": (
            config.tokens.edge_features, store.num_edge_features > 0, "features", "--edge-features COLUMNS"
        ),
    }  # fmt: skip
    for name, (choice, is_there, what, option) in wanted.items():
        if choice is True and not is_there:
            raise ConfigError(
                f"prepare.{name}=true, and the edges of {store.place} have no {what}: ingest it with {option}, or "
                "leave the setting out"
            )
    tokens: dict[str, Any] = {
        "weighted": store.weighted and config.tokens.weighted is not False and config.tokens.hops > 0,
        "edge_features": store.num_edge_features > 0 and config.tokens.edge_features is not False
        and config.tokens.hops > 0,
    }  # fmt: skip
    if config.tokens.contexts == "apart" and not (store.directed and config.tokens.hops):
        tokens["contexts"] = "together"
    sampled: dict[str, Any] = {
        "weighted": store.weighted and config.local_nodes.weighted is not False and config.local_nodes.k > 1,
        "near": config.local_nodes.near or config.labels.local,
    }  # fmt: skip
    update = {
        "local_nodes": config.local_nodes.model_copy(update=sampled),
        "tokens": config.tokens.model_copy(update=tokens),
    }
    return config.model_copy(update=update)


def _edge_sides(store: GraphStore, config: PrepareConfig) -> list[str]:
    """The directions whose edge features are read: those of contexts, and the one that sets the scale."""
    along = {*directions_of(config), config.local_nodes.direction}
    return sorted(along) if store.directed else ["out"]


def directions_of(config: PrepareConfig) -> tuple[Direction, ...]:
    """The directions of the contexts, of settled settings."""
    return ("out", "in") if config.tokens.contexts == "apart" else (config.local_nodes.direction,)


def _directions_read(config: PrepareConfig) -> set[Direction]:
    """The directions whose neighbours a preparation reads, of settled settings."""
    along: set[Direction] = {config.local_nodes.direction, *directions_of(config)}
    if along & {"in", "out"}:
        along |= {"in", "out"}  # degrees of the other side
    reads_both = config.labels.named() or config.local_nodes.near or config.positions.method == "laplacian"
    return along | ({"both"} if reads_both else set())


def prepared_path(store: GraphStore, config: PrepareConfig, as_of: str | None = None) -> Path:
    """Where this configuration's preparation of this store lies, or will lie."""
    config = settled(store, config)
    return Path(store.path) / "prepared" / fingerprint(_identity(store, config, _state(store, config, as_of)))


def is_prepared(store: GraphStore, config: PrepareConfig, as_of: str | None = None) -> bool:
    """Whether there is a preparation of this store by this configuration."""
    path = prepared_path(store, config, as_of)
    storage.refresh(path)
    return path.exists()


def _identity(store: GraphStore, config: PrepareConfig, then: State | None = None) -> list[Any]:
    """What a preparation depends on."""
    tree = config.model_dump(mode="json", exclude={"labels"})
    tree |= {"local_nodes": config.local_nodes.named(), "tokens": _named(config.tokens)}
    tree |= {"labels": config.labels.named()} if config.labels.named() else {}
    return [store.fingerprint, tree, *([] if then is None else [["as of", then.fingerprint]])]


def _told(store: GraphStore, config: PrepareConfig) -> dict[str, Any]:
    """The settings as a manifest has them: nothing of weights or features of edges where there are none, nor of
    surroundings where they were not asked for."""
    unsaid: dict[str, Any] = {} if store.weighted else {"local_nodes": {"weighted"}, "tokens": {"weighted"}}
    if not store.num_edge_features:
        unsaid["tokens"] = {*unsaid.get("tokens", ()), "edge_features"}
    if not config.local_nodes.near:
        unsaid["local_nodes"] = {*unsaid.get("local_nodes", ()), "near"}
    if not config.labels.local:
        unsaid["labels"] = {"local"}
    return config.model_dump(mode="json", exclude=unsaid)


def _named(tokens: TokensConfig) -> dict[str, Any]:
    """The settings that name token rows. What goes without saying is left out: preparations from before there was a
    choice keep their names."""
    tree = tokens.model_dump(mode="json")
    return {name: value for name, value in tree.items() if (name, value) not in _UNSAID}


def stale_note(store: GraphStore, config: PrepareConfig) -> str | None:
    """If there are preparations of this store but none for `config`: a line that says how the nearest differs."""
    new = settled(store, config).model_dump(mode="json")
    differences: list[list[str]] = []
    for other in _siblings(store):
        if other.meta["fingerprint"] != store.fingerprint:
            continue
        old = settled(store, other.config).model_dump(mode="json")
        differences.append([
            f"{table}.{key}={old[table].get(key)} (now {value})"
            for table in new
            for key, value in new[table].items()
            if old[table].get(key) != value
        ])  # fmt: skip
    if not differences:
        return None
    fewest = min(differences, key=lambda changed: len(changed))
    return f"{store.place} was prepared with {', '.join(fewest)}"


class _Stages:
    """Runs a stage, or takes its arrays from an earlier folder of the same store and the same settings."""

    def __init__(self, store: GraphStore, writer: FolderWriter, fingerprints: dict[str, str]) -> None:
        self.writer = writer
        self.fingerprints = fingerprints
        self.siblings = _siblings(store)

    def stage(self, name: str, arrays: list[str], make: Callable[[], None]) -> None:
        if all(self.writer.has(array) for array in arrays):
            return
        for other in self.siblings:
            whole = all((other.path / f"{array}.npy").is_file() or other.folder.url for array in arrays)
            if whole and other.folder.meta["stages"].get(name) == self.fingerprints[name]:
                try:
                    for array in arrays:
                        self.writer.link(array, other.folder)
                except FormatError:  # a damaged one serves nobody
                    continue
                self.writer.commit()
                return
        make()
        self.writer.commit()


def _siblings(store: GraphStore) -> list[Prepared]:
    """Earlier preparations in the store's folder, unreadable ones left out."""
    found = []
    for path in storage.folders(store.path / "prepared"):
        try:
            found.append(Prepared.open(path))
        except LargeGTError:
            continue
    return found


def _stage_fingerprints(store: GraphStore, config: PrepareConfig, then: State | None) -> dict[str, str]:
    """What each stage's result depends on, as a name."""
    which = config.local_nodes.nodes if config.local_nodes.nodes == "all" else store.folder.checksum("labels")
    structure = [store.structure_fingerprint, which]
    sampled = fingerprint([structure, config.local_nodes.relevant(), config.tokens.nodes])
    features = [store.folder.checksum("features"), store.feature_dtype]
    # as it was before directions could be apart, so that earlier rows are found
    along: Any = config.local_nodes.direction if config.tokens.contexts == "together" else directions_of(config)
    rows_of = [store.structure_fingerprint, along] if config.tokens.nodes == "all" else sampled
    known = [] if then is None else [then.fingerprint]
    scaled = known if config.tokens.standardize else []
    of_edges = []
    if config.tokens.edge_features is True:
        of_edges = [["edges", store.folder.checksum(f"{side}_edge_features")] for side in _edge_sides(store, config)]
    made = {
        "local_nodes": sampled,
        "tokens": fingerprint([rows_of, features, _named(config.tokens), *scaled, *of_edges]),
        "positions": fingerprint([structure, config.local_nodes.direction, config.positions.relevant()]),
        "label_contexts": fingerprint(
            [structure, store.folder.checksum("labels"), store.folder.checksum("split"), config.labels.hops, *known]
        ),
    }
    if config.local_nodes.near:
        made["near"] = fingerprint([sampled, "near"])
    if config.labels.local:
        labels = [store.folder.checksum("labels"), store.folder.checksum("split")]
        made["label_counts"] = fingerprint([rows_of, *labels, "counts", *known])
    return made


def sample(
    store: GraphStore, nodes: Array, settings: LocalNodesConfig, draw: int,
    threads: int | None = None, progress: Progress | None = None,
) -> Array:  # fmt: skip
    """LocalNodes of `nodes` as configured. Draw 0 is what `prepare` keeps; others are fresh and independent."""
    return sample_from(store, nodes, settings, draw, threads, progress)


class Drawn(NamedTuple):
    """Local nodes of some rows of a Prepared."""

    local_rows: Array
    """[n, K] rows of its token table."""
    near: Array | None
    """[n, K] boolean: which of them are neighbours; None where that was not asked for."""


def sample_rows(store: GraphStore, prepared: Prepared, rows: Array, draw: int, threads: int | None = None) -> Drawn:
    """A fresh draw of LocalNodes for these rows of a Prepared."""
    prepared.check_reachable()
    store.check(*_directions_read(prepared.config))
    own = np.asarray(prepared.nodes[rows])
    nodes = sample(store, own, prepared.config.local_nodes, draw, threads)
    near = None
    if prepared.config.local_nodes.near:
        near = is_near(Neighbors(*store.csr("both"), self_loops=False), own, nodes, threads)
    if len(prepared.token_nodes) == store.num_nodes:
        return Drawn(nodes, near)
    return Drawn(np.searchsorted(prepared.token_nodes, nodes).astype(nodes.dtype), near)


def _within_two_hops(store: GraphStore, nodes: Array, direction: Direction, engine: Engine) -> Array:
    """Boolean [N]: every node that LocalNodes of `nodes` can draw. All of them if one of `nodes` has no neighbour."""
    neighbors = Neighbors(*store.csr(direction), self_loops=False)
    reached = np.zeros(store.num_nodes, dtype=np.bool_)
    if (neighbors.degrees(nodes) == 0).any():
        reached[:] = True
        return reached
    engine.mark_neighbors(neighbors, nodes, reached)
    engine.mark_neighbors(neighbors, np.flatnonzero(reached), reached)
    reached[nodes] = True
    return reached


@dataclass(frozen=True)
class _Making:
    """A preparation in the making, and those of earlier states of the store that rows may be taken from."""

    writer: FolderWriter
    store: GraphStore
    nodes: Array
    config: PrepareConfig
    engine: Engine
    then: State | None
    """The state that scale and training labels are of."""
    siblings: list[Prepared]
    reused: dict[str, tuple[int, int]]
    """(rows kept, rows made) of each array."""

    @cached_property
    def training_labels(self) -> TrainingLabels:
        return TrainingLabels.of(self.store, None if self.then is None else self.then.num_nodes)

    def earlier(self, serves: Callable[[Prepared, State], bool]) -> Earlier | None:
        return Earlier.find(self.store, self.siblings, serves)

    def note(self, name: str, rows: Rows) -> None:
        kept = int(rows.kept.sum())
        self.reused[name] = kept, len(rows.before) - kept

    def note_all(self, name: str, rows: Rows | None) -> None:
        """That all were made, where some could have been kept."""
        if rows is not None:
            self.reused[name] = 0, len(rows.before)


def _write_local_nodes(making: _Making) -> None:
    """Sample node numbers, see which nodes they name, and write them as rows of the token table."""
    writer, store, nodes, config, engine = making.writer, making.store, making.nodes, making.config, making.engine
    k, which = config.local_nodes.k, config.tokens.nodes
    dtype = np.dtype(index_dtype(store.num_nodes))
    rows = writer.grow("local_rows", dtype.name, (k,))
    copies = (2 if k > 1 else 1) * len(nodes) - rows.rows - writer.rows(_SAMPLED)
    require_space(writer.path, copies * k * dtype.itemsize, "local nodes")
    sampled = nodes[:, None] if k == 1 else _sampled(making)
    if which == "reachable":
        used = _within_two_hops(store, nodes, config.local_nodes.direction, engine)
    else:
        used = np.full(store.num_nodes, which == "all")
        for start in range(0, len(nodes) if which == "sampled" else 0, SEGMENT_NODES):
            used[sampled[start : start + SEGMENT_NODES].reshape(-1)] = True
    writer.save("token_nodes", np.flatnonzero(used).astype(dtype))
    row_of = np.cumsum(used, dtype=dtype) - dtype.type(1)
    for start in range(rows.rows, len(nodes), SEGMENT_NODES):
        rows.append(row_of[sampled[start : start + SEGMENT_NODES]])
        writer.commit()
    writer.close("local_rows")
    writer.drop(_SAMPLED)


def _sampled(making: _Making) -> Array:
    """LocalNodes as node numbers [n, K], a scratch array, mapped."""
    writer, store, nodes, engine = making.writer, making.store, making.nodes, making.engine
    settings, show = making.config.local_nodes, engine.progress or silent
    sampled = writer.grow(_SAMPLED, index_dtype(store.num_nodes), (settings.k,))
    show("local nodes", sampled.rows, len(nodes))
    earlier = making.earlier(lambda prepared, _: same_sample(prepared, making.config))
    if earlier is None:
        segments = engine.local_nodes(store, nodes[sampled.rows :], settings, 0)
    else:
        rows, segments = earlier.local_nodes(nodes[sampled.rows :], settings, engine)
        making.note("local nodes", rows)
    for segment in segments:
        sampled.append(segment)
        writer.commit()
        show("local nodes", sampled.rows, len(nodes))
    return sampled.so_far()


def _write_tokens(making: _Making) -> None:
    writer, store, config, engine = making.writer, making.store, making.config, making.engine
    features = NodeFeatures(store, config.tokens.degrees)
    weighted, edge_features = config.tokens.weighted is True, config.tokens.edge_features is True
    if not writer.has("feature_gain"):
        then = features if making.then is None else NodeFeatures(store, config.tokens.degrees, making.then)
        shift, gain = feature_scale(then, config.tokens.standardize, engine)
        if edge_features:
            means = EdgeMeans(store, config.local_nodes.direction)
            of_edges = feature_scale(means, bool(config.tokens.standardize), engine)
            shift, gain = np.append(shift, of_edges[0]), np.append(gain, of_edges[1])
        writer.save("feature_shift", shift)
        writer.save("feature_gain", gain)
        writer.commit()
    shift, gain = np.array(writer.array("feature_shift")), np.array(writer.array("feature_gain"))
    token_nodes = writer.array("token_nodes")

    def write(nodes: Array, target: FolderWriter) -> None:
        directions = directions_of(config)
        ContextFeatures(features, nodes, shift, gain, directions, engine, weighted, edge_features).write(
            target, config.tokens.dtype, config.tokens.hops
        )

    earlier = making.earlier(
        lambda prepared, _: same_token_rows(prepared, settled(store, prepared.config), config, shift, gain)
    )
    rows = None if earlier is None else earlier.token_rows(token_nodes, config, directions_of(config), engine)
    if earlier is None or rows is None or not rows.is_worth_it:
        write(token_nodes, writer)
        making.note_all("token rows", rows)
        return
    making.note("token rows", rows)
    merge(writer, "tokens", rows, earlier.prepared.tokens, lambda which, scratch: write(token_nodes[which], scratch))


def _write_label_counts(making: _Making) -> None:
    writer = making.writer
    write_label_counts(writer, making.store, writer.array("token_nodes"), making.engine, making.training_labels)


def _write_label_contexts(making: _Making) -> None:
    writer, store, engine, hops = making.writer, making.store, making.engine, making.config.labels.hops
    own = making.training_labels

    def write(nodes: Array, target: FolderWriter) -> None:
        write_label_contexts(target, store, nodes, hops, engine, own)

    earlier = making.earlier(lambda prepared, state: same_training_labels(prepared, state, store, own, hops))
    rows = None if earlier is None else earlier.label_rows(making.nodes, hops, engine)
    if earlier is None or rows is None or not rows.is_worth_it:
        write(making.nodes, writer)
        making.note_all("label contexts", rows)
        return
    making.note("label contexts", rows)
    before = earlier.prepared.label_contexts
    merge(writer, "label_contexts", rows, before, lambda which, scratch: write(making.nodes[which], scratch))
