"""`prepare`: the stages that make a Prepared, each in a folder named by its key.

Enters: a GraphStore and a PrepareConfig. Leaves: a Prepared. Cost: the sum of its stages; a stage that is there already
is opened, and one that another process is making is waited for. Of an appended store, rows that did not change are
taken from the preparation of its earlier version (incremental.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..config import PrepareConfig
from ..data.pair_runs import index_dtype
from ..data.store import GraphStore
from ..data.versions import State, clean_quietly, earlier_states, labels_as_of
from ..errors import FormatError, InputError
from ..io import remote
from ..io.array_folder import VERSIONS, ArrayFolder
from ..io.array_writer import ArrayWriter, ExistsError, remove_leftovers
from ..io.atomic import refuse_links_out, require_space
from ..memory import memory_budget, rows_within
from ..progress import Progress, silent
from ..types import Array, Direction, PathLike
from .blocks import Neighbors, marked_numbers
from .cache_key import (
    directions_of,
    directions_read,
    identity_of,
    nodes_to_prepare,
    prepared_path,
    settled,
    stage_keys,
    state_as_of,
)
from .context import ContextFeatures
from .engines.engine import SEGMENT_NODES, Engine
from .estimate import least_memory
from .features import EdgeMeans, NodeFeatures, feature_scale
from .incremental import Earlier, Rows, merge, same_sample, same_token_rows, same_training_labels
from .label_contexts import TrainingLabels, write_label_contexts, write_label_counts
from .positions import write_positions
from .prepared import KIND, STAGE, Prepared, siblings_of

_SAMPLED = "scratch_sampled"
_SHOWN = {"tokens": "token rows", "label_contexts": "label contexts"}
"""What users read of these arrays."""


def prepare(
    store: GraphStore | PathLike,
    config: PrepareConfig | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    memory: str | int | None = None,
    engine: Engine | None = None,
    as_of: str | None = None,
    wait: bool = True,
) -> Prepared:
    """Run what is missing of LocalNodes, context features and positional encodings; open what is there.

    `memory` (`"4GiB"`) is what the work may hold at once, half of what is free by default; the result does not depend
    on it, but it has a least that grows with the nodes. A killed preparation goes on where it stopped when it is called
    again. `engine` is who does the work, with its own threads, progress and memory: this process by default, or a
    RayEngine; the result does not depend on that either. `as_of` is the fingerprint of an earlier version of the store:
    features are scaled as in that version, and label inputs come from its training nodes, as weights that were trained
    on it expect. A stage that another process is making is waited for; without `wait` it is an error.
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    config = settled(store, config or PrepareConfig())
    engine = engine or Engine(memory_budget(memory), threads, progress)
    engine.wait = engine.wait and wait
    engine.check_positions(config.positions.method)
    store = engine.opened(store)
    path = prepared_path(store, config, as_of)
    refuse_links_out(store.path, path)
    preparation = _Preparation(store, config, engine, state_as_of(store, config, as_of))
    if (path / remote.MANIFEST).is_file() or store.folder.url is not None:
        try:
            prepared = Prepared.open(path)
            prepared.check(engine.progress)
            remove_leftovers(path, KIND)
            return prepared
        except InputError:  # not at its URL yet
            pass
        except FormatError as error:  # damaged: whatever is damaged of it is made again
            warnings.warn(f"{path} is made again: {error}", stacklevel=2)
            remote.remove_folder(path)
    store.check(*directions_read(config), features=True, progress=engine.progress)
    num_nodes = store.num_nodes if config.local_nodes.nodes == "all" else int(np.count_nonzero(store.labelled))
    memory_budget(memory, least_memory(store, config, num_nodes))
    preparation.run(path)
    prepared = Prepared.open(path)
    prepared.reused = preparation.reused
    preparation.remove_superseded(prepared)
    return prepared


@dataclass(frozen=True)
class _Preparation:
    """One preparation of a store: its stages, and preparations of earlier versions that rows may be taken from."""

    store: GraphStore
    config: PrepareConfig
    engine: Engine
    then: State | None
    """The version that scale and training labels are of."""
    reused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(rows kept, rows made) of each array."""

    folders: list[ArrayFolder] = field(default_factory=list)
    """The stages, open so that nobody removes them before the preparation names them."""

    def run(self, path: Path) -> None:
        """Make the stages that are missing, and the folder that names them."""
        store, config, engine, nodes = self.store, self.config, self.engine, self.nodes
        direction = config.local_nodes.direction
        token_nodes = self._stage("local_nodes", lambda writer: _write_local_nodes(self, writer)).array("token_nodes")
        self._stage("tokens", lambda writer: _write_tokens(self, writer, token_nodes))
        self._stage(
            "positions", lambda writer: write_positions(writer, store, nodes, config.positions, direction, engine)
        )
        if config.labels.hops:
            self._stage("label_contexts", lambda writer: _write_label_contexts(self, writer))
        if config.labels.local:
            self._stage(
                "label_counts",
                lambda writer: write_label_counts(writer, store, token_nodes, engine, self.training_labels),
            )
        meta = {
            "config": config.model_dump(mode="json"),
            "stages": self.keys,
            "num_nodes": store.num_nodes,
            "store": {
                "name": store.name, "fingerprint": store.fingerprint, "num_nodes": store.num_nodes,
                "task": store.task, "classes": store.classes, "num_outputs": store.num_outputs,
            },
            **({} if self.then is None else {"as_of": asdict(self.then)}),
        }  # fmt: skip
        self._made(path, KIND, identity_of(store, config, self.then), meta, lambda writer: None)
        for folder in self.folders:
            folder.close()

    def _stage(self, name: str, write: Callable[[ArrayWriter], None]) -> ArrayFolder:
        path, key = self.store.path / "prepared" / name / self.keys[name], self.keys[name]
        folder = self._made(path, STAGE, [name, key], {"stage": name, "num_nodes": self.store.num_nodes}, write)
        self.folders.append(folder)
        return folder

    def _made(
        self, path: Path, kind: str, identity: Any, meta: dict[str, Any], write: Callable[[ArrayWriter], None]
    ) -> ArrayFolder:
        """The folder at `path`, which `write` fills where it is missing or damaged."""
        refuse_links_out(self.store.path, path)
        while True:
            remote.refresh(path)
            if (path / remote.MANIFEST).is_file():
                try:
                    folder = ArrayFolder(path, kind)
                    folder.check(progress=self.engine.progress)
                    remove_leftovers(path, kind)
                    return folder
                except InputError:  # removed between the two lines
                    continue
                except FormatError as error:
                    warnings.warn(f"{path} is made again: {error}", stacklevel=2)
                    remote.remove_folder(path)
            try:
                with ArrayWriter(path, kind, identity=identity, wait=self.engine.wait) as writer:
                    write(writer)
                    writer.finish(meta, identity=identity, progress=self.engine.progress)
            except ExistsError:  # another process made it while this one waited
                if not (path / remote.MANIFEST).is_file():
                    raise

    @cached_property
    def keys(self) -> dict[str, str]:
        return stage_keys(self.store, self.config, self.then)

    @cached_property
    def nodes(self) -> Array:
        """The nodes that get a row, mapped."""
        return self._stage("nodes", lambda writer: _write_nodes(self, writer)).array("nodes")

    @cached_property
    def siblings(self) -> list[Prepared]:
        """Preparations of earlier versions."""
        return siblings_of(self.store) if earlier_states(self.store) else []

    @cached_property
    def training_labels(self) -> TrainingLabels:
        return TrainingLabels.of(self.store, self.then)

    @cached_property
    def trained_store(self) -> GraphStore:
        """The version that the scale of features is of."""
        if self.then is None:
            return self.store
        return self.engine.opened(GraphStore.open(self.store.path, version=self.then.fingerprint))

    def earlier(self, serves: Callable[[Prepared, State], bool]) -> Earlier | None:
        return Earlier.find(self.store, self.siblings, serves)

    def keep_or_make(
        self, writer: ArrayWriter, name: str, before: tuple[Earlier | None, Rows | None], nodes: Array,
        make: Callable[[Array, ArrayWriter], None],
    ) -> None:  # fmt: skip
        """Write the array `name`, a row for each of `nodes`: those that an earlier preparation has are kept, where they
        are many, and the others are what `make(nodes, writer)` writes."""
        earlier, rows = before
        if earlier is None or rows is None or not rows.is_worth_it:
            make(nodes, writer)
        else:
            merge(writer, name, rows, earlier.prepared.array(name), lambda which, scratch: make(nodes[which], scratch))
        if rows is not None:
            kept = int(rows.kept.sum()) if rows.is_worth_it else 0
            self.reused[_SHOWN[name]] = kept, len(nodes) - kept

    def remove_superseded(self, prepared: Prepared) -> None:
        """Remove preparations of earlier versions by the same settings that were kept to make this one from: those for
        the same run, and those of versions that are gone."""
        states = {state.fingerprint for state in earlier_states(self.store)}
        removed = False
        for other in self.siblings:
            version, made_for = other.meta["fingerprint"], other.as_of
            other.close()
            if other.config != prepared.config or version not in states:
                continue
            same_run = made_for is not None and prepared.as_of is not None and made_for == prepared.as_of
            is_gone = made_for is None and not (self.store.path / VERSIONS / f"{version}.json").is_file()
            if same_run or is_gone:
                remote.remove_folder(other.path)
                removed = True
        if removed:
            clean_quietly(self.store)


def _write_nodes(making: _Preparation, writer: ArrayWriter) -> None:
    """The nodes that get a row, their labels and splits."""
    store, nodes = making.store, nodes_to_prepare(making.store, making.config)
    writer.save("nodes", nodes)
    all_labels, all_split = labels_as_of(store, making.then)
    labels = writer.grow("labels", all_labels.dtype.name, all_labels.shape[1:])
    split = writer.grow("split", all_split.dtype.name)
    for start in range(labels.rows, len(nodes), SEGMENT_NODES):
        some = nodes[start : start + SEGMENT_NODES]
        labels.append(all_labels[some])
        split.append(all_split[some])
    writer.close("labels")
    writer.close("split")


def _write_local_nodes(making: _Preparation, writer: ArrayWriter) -> None:
    """Sample node numbers, see which nodes they name, and write them as rows of the token table."""
    store, nodes, config, engine = making.store, making.nodes, making.config, making.engine
    k, which = config.local_nodes.k, config.tokens.nodes
    dtype = np.dtype(index_dtype(store.num_nodes))
    rows = writer.grow("local_rows", dtype.name, (k,))
    copies = (2 if k > 1 else 1) * len(nodes) - rows.rows - writer.rows(_SAMPLED)
    require_space(writer.path, copies * k * dtype.itemsize, "local nodes")
    sampled = _sampled(making, writer)
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
    for start in range(rows.rows, len(nodes), SEGMENT_NODES):
        stop = min(start + SEGMENT_NODES, len(nodes))
        for low in range(start, stop, at_once):
            rows.append(row_of[sampled[low : min(low + at_once, stop)]])
        writer.commit()
    writer.close("local_rows")
    writer.close("near")
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


def _sampled(making: _Preparation, writer: ArrayWriter) -> Array:
    """LocalNodes as node numbers [n, K], a scratch array, mapped; and `near`, which of them are neighbours."""
    store, nodes, engine = making.store, making.nodes, making.engine
    settings, show = making.config.local_nodes, engine.progress or silent
    near = writer.grow("near", "uint8", (-(-settings.k // 8),))
    if settings.k == 1:
        near.append(np.zeros((len(nodes) - near.rows, 1), dtype=np.uint8))
        return nodes[:, None]
    sampled = writer.grow(_SAMPLED, index_dtype(store.num_nodes), (settings.k,))
    show("local nodes", sampled.rows, len(nodes))
    earlier = making.earlier(lambda prepared, _: same_sample(prepared, making.config))
    if earlier is None:
        segments = engine.local_nodes(store, nodes[sampled.rows :], settings)
    else:
        rows, segments = earlier.local_nodes(nodes[sampled.rows :], settings, engine)
        making.reused["local nodes"] = int(rows.kept.sum()), int((~rows.kept).sum())
    for local_nk, near_bits in segments:
        sampled.append(local_nk)
        near.append(near_bits)
        writer.commit()
        show("local nodes", sampled.rows, len(nodes))
    return sampled.so_far()


def _write_tokens(making: _Preparation, writer: ArrayWriter, token_nodes: Array) -> None:
    store, config, engine = making.store, making.config, making.engine
    features = NodeFeatures(store, config.tokens.degrees)
    weighted, edge_features = config.tokens.weighted is True, config.tokens.edge_features is True
    if not writer.has("feature_gain"):
        trained = NodeFeatures(making.trained_store, config.tokens.degrees)
        shift, gain = feature_scale(trained, config.tokens.standardize, engine)
        if edge_features:
            means = EdgeMeans(store, config.local_nodes.direction)
            of_edges = feature_scale(means, bool(config.tokens.standardize), engine)
            shift, gain = np.append(shift, of_edges[0]), np.append(gain, of_edges[1])
        writer.save("feature_shift", shift)
        writer.save("feature_gain", gain)
        writer.commit()
    shift, gain = np.array(writer.array("feature_shift")), np.array(writer.array("feature_gain"))

    def write(nodes: Array, target: ArrayWriter) -> None:
        directions = directions_of(config)
        ContextFeatures(features, nodes, shift, gain, directions, engine, weighted, edge_features).write(
            target, config.tokens.dtype, config.tokens.hops
        )

    earlier = making.earlier(lambda prepared, _: same_token_rows(prepared, config, shift, gain))
    rows = None if earlier is None else earlier.token_rows(token_nodes, config, directions_of(config), engine)
    making.keep_or_make(writer, "tokens", (earlier, rows), token_nodes, write)


def _write_label_contexts(making: _Preparation, writer: ArrayWriter) -> None:
    store, engine, hops = making.store, making.engine, making.config.labels.hops
    own = making.training_labels

    def write(nodes: Array, target: ArrayWriter) -> None:
        write_label_contexts(target, store, nodes, hops, engine, own)

    ours = making.then or State.of(store)
    earlier = making.earlier(lambda prepared, state: same_training_labels(prepared, state, store, own, ours, hops))
    rows = None if earlier is None else earlier.label_rows(making.nodes, hops, engine)
    making.keep_or_make(writer, "label_contexts", (earlier, rows), making.nodes, write)
