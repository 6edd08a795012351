"""`prepare`: the stages that make a Prepared, each taken from an earlier folder where its inputs did not change.

Enters: a GraphStore and a PrepareConfig. Leaves: a Prepared. Cost: the sum of its stages; rows that an appended store
has kept are taken from the preparation of its earlier state (incremental.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from .. import storage
from ..config import PrepareConfig
from ..disk import require_space
from ..errors import FormatError
from ..folder_writer import FolderWriter
from ..graph.csr import index_dtype
from ..graph.lineage import State, earlier_states
from ..graph.splits import SPLIT_CODES
from ..graph.store import GraphStore
from ..memory import memory_budget, rows_within
from ..progress import Progress, silent
from ..replacing import tidy
from ..types import Array, Direction, PathLike
from .blocks import Neighbors, marked_numbers
from .context import ContextFeatures
from .edge_means import EdgeMeans
from .engines.engine import SEGMENT_NODES, Engine
from .estimate import least_memory
from .features import NodeFeatures, feature_scale
from .identity import (
    as_told,
    directions_of,
    directions_read,
    identity_of,
    is_prepared,
    nodes_to_prepare,
    prepared_path,
    settled,
    stage_fingerprints,
    state_as_of,
)
from .incremental import Earlier, Rows, merge, same_sample, same_token_rows, same_training_labels
from .label_contexts import TrainingLabels, write_label_contexts
from .positions import write_positions
from .prepared import KIND, Prepared, siblings_of
from .surroundings import write_label_counts, write_near

_SAMPLED = "scratch_sampled"


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
    on it, but it has a least that grows with the nodes. A killed preparation goes on where it stopped when it is called
    again. `engine` is who does the work, with its own threads, progress and memory: this process by default, or a
    RayEngine; the result does not depend on that either. `as_of` is the fingerprint of the store before it was appended
    to: features are scaled as then, and labels are told by the training nodes of then, as weights that were trained
    then expect.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    config = settled(store, config or PrepareConfig())
    engine = engine or Engine(memory_budget(memory), threads, progress)
    engine.check_positions(config.positions.method)
    store = engine.opened(store)
    then = state_as_of(store, config, as_of)
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
    store.check(*directions_read(config), features=True, progress=engine.progress)
    nodes = nodes_to_prepare(store, config)
    memory_budget(memory, least_memory(store, config, len(nodes)))
    stages = stage_fingerprints(store, config, then)
    identity = identity_of(store, config, then)
    with FolderWriter(path, KIND, identity=identity) as writer:
        run = _Stages(store, writer, stages)
        writer.save("nodes", nodes)
        nodes = writer.array("nodes")
        making = _Making(writer, store, nodes, config, engine, then, run.siblings, {})
        direction = config.local_nodes.direction
        _write_labels(making)
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
            "config": as_told(store, config),
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


def _write_labels(making: _Making) -> None:
    """Labels and splits of the nodes."""
    writer, store, nodes = making.writer, making.store, making.nodes
    labels = writer.grow("labels", store.labels.dtype.name, store.labels.shape[1:])
    split = writer.grow("split", store.split.dtype.name)
    for start in range(0, len(nodes), SEGMENT_NODES):
        some = np.asarray(nodes[start : start + SEGMENT_NODES])
        labels.append(store.labels[some])
        split.append(_split_of(store, some, making.then))
    writer.close("labels")
    writer.close("split")


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


class _Stages:
    """Runs a stage, or takes its arrays from an earlier folder of the same store and the same settings."""

    def __init__(self, store: GraphStore, writer: FolderWriter, fingerprints: dict[str, str]) -> None:
        self.writer = writer
        self.fingerprints = fingerprints
        self.siblings = siblings_of(store)

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
    at_once = min(SEGMENT_NODES, rows_within(8 * k))
    if which == "reachable":
        used = _within_two_hops(store, nodes, config.local_nodes.direction, engine)
    else:
        used = np.full(store.num_nodes, which == "all")
        for start in range(0, len(nodes) if which == "sampled" else 0, at_once):
            used[sampled[start : start + at_once].reshape(-1)] = True
    writer.save("token_nodes", marked_numbers(used, dtype))
    row_of = np.cumsum(used, dtype=dtype)
    row_of -= dtype.type(1)
    for start in range(rows.rows, len(nodes), at_once):
        rows.append(row_of[sampled[start : start + at_once]])
        writer.commit()
    writer.close("local_rows")
    writer.drop(_SAMPLED)


def _within_two_hops(store: GraphStore, nodes: Array, direction: Direction, engine: Engine) -> Array:
    """Boolean [N]: every node that LocalNodes of `nodes` can draw. All of them if one of `nodes` has no neighbour."""
    neighbors = Neighbors(*store.csr(direction), self_loops=False)
    reached = np.zeros(store.num_nodes, dtype=np.bool_)
    starts = range(0, len(nodes), SEGMENT_NODES)
    if any((neighbors.degrees(nodes[start : start + SEGMENT_NODES]) == 0).any() for start in starts):
        reached[:] = True
        return reached
    engine.mark_neighbors(neighbors, nodes, reached)
    engine.mark_neighbors(neighbors, marked_numbers(reached, nodes.dtype), reached)
    reached[nodes] = True
    return reached


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
