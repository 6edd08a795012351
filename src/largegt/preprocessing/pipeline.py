"""`prepare` runs the stages of a preparation, each in a folder named by its key.

Enters: a GraphStore and a PrepareConfig. Leaves: a Prepared. Cost: the sum of its stages; a cached stage is reused, and
a stage that another process is writing is awaited. For an appended store, unchanged rows are copied from the
preparation of its earlier version (incremental.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from largegt.config.schema import PrepareConfig, ResolvedPrepareConfig
from largegt.data.pair_runs import index_dtype
from largegt.data.store import GraphStore
from largegt.data.versions import State, clean_quietly, earlier_states, labels_as_of
from largegt.errors import FormatError, InputError
from largegt.io import remote
from largegt.io.array_folder import VERSIONS, ArrayFolder
from largegt.io.array_writer import ArrayWriter, ExistsError
from largegt.io.atomic import refuse_links_out, require_space
from largegt.io.locks import Lock, remove_stale
from largegt.runtime.memory import memory_budget, rows_within
from largegt.runtime.progress import Progress
from largegt.types import Array, PathLike

from .auto_config import ConfigLike, config_for
from .blocks import Neighbors, degrees_of, marked_nodes
from .cache_key import (
    cache_key_inputs,
    directions_of,
    directions_read,
    nodes_to_prepare,
    prepared_path,
    resolve_config,
    resolve_version,
    stage_keys,
)
from .context import ContextFeatures
from .engine import SEGMENT_NODES, Engine
from .estimate import min_memory
from .features import EdgeMeans, NodeFeatures, feature_scale
from .incremental import SAMPLED, EarlierPreparation, find_earlier, merge
from .label_features import TrainingLabels, write_label_counts, write_neighbor_label_histogram
from .positional_encoding import write_positions
from .prepared import KIND, STAGE, Prepared, cached_preparations

_log = logging.getLogger(__name__)

Opened = TypeVar("Opened", ArrayFolder, Prepared)


def prepare(
    store: GraphStore | PathLike,
    config: PrepareConfig | ConfigLike = None,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    memory: str | int | None = None,
    engine: Engine | None = None,
    version: str | None = None,
    wait: bool = True,
) -> Prepared:
    """Sample local nodes, compute context features and positional encodings; what is there already is opened.

    A killed preparation resumes when it is called again.

    Args:
        store: a store, or its path.
        config: a PrepareConfig, or what `lg.train` takes as `config`: what its model needs is prepared. By default the
            recipe "default".
        threads: threads to use, all cores by default.
        progress: is called as `progress(stage, done, total)`.
        memory: what the work may hold at once, such as `"4GiB"`, half of what is free by default. The result does not
            depend on it, but there is a least that grows with the nodes.
        engine: who does the work, with its own threads, progress and memory: this process by default, or a RayEngine.
        version: the fingerprint of an earlier version of the store: features are scaled as in that version, and label
            inputs come from its training nodes, as weights that were trained on it expect.
        wait: wait for a stage that another process is making, or refuse.

    Returns:
        The preparation, opened. It lies in the folder of the store.

    Raises:
        ConfigError: a setting is wrong or does not fit the store, or the memory is too small.
        InputError: there is no store, or it has no labelled node.

    Examples:
        >>> prepared = lg.prepare("data/g", {"prepare.local_nodes.k": 8})
        >>> prepared.local_rows.shape
        (150, 8)
    """
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    if not isinstance(config, PrepareConfig):
        config = config_for(store, config)[0].preparation
    resolved = resolve_config(store, config)
    engine = engine or Engine(memory_budget(memory), threads, progress)
    engine.check_positions(resolved.positional_encoding.method)
    store = engine.opened(store)
    path = prepared_path(store, resolved, version)
    refuse_links_out(store.path, path)
    if (existing := _open_if_valid(path, engine, wait, Prepared.open)) is not None:
        return existing
    store.check(*directions_read(resolved), features=True, progress=engine.show)
    num_nodes = store.num_nodes if resolved.local_nodes.target_nodes == "all" else int(np.count_nonzero(store.labelled))
    memory_budget(memory, min_memory(store, resolved, num_nodes))
    preparation = _Preparation(store, resolved, engine, wait, resolve_version(store, resolved, version))
    preparation.run(path)
    prepared = Prepared.open(path)
    prepared.reused = preparation.reused
    preparation.remove_superseded(prepared)
    return prepared


def _open_if_valid(path: Path, engine: Engine, wait: bool, open_folder: Callable[[Path], Opened]) -> Opened | None:
    """Open the folder; None if it does not exist or is damaged. A damaged folder is removed."""
    try:
        found = _open_checked(path, engine, open_folder)
        remove_stale(path)
        return found
    except InputError:
        return None
    except FormatError:
        pass
    with Lock(path, wait=wait):  # a folder during a commit of another process has no manifest, which is not damage
        try:
            return _open_checked(path, engine, open_folder)
        except InputError:
            return None
        except FormatError as error:
            _log.warning(f"{path} is made again: {error}")
            remote.remove_folder(path)
            return None


def _open_checked(path: Path, engine: Engine, open_folder: Callable[[Path], Opened]) -> Opened:
    remote.refresh(path)
    found = open_folder(path)
    found.check(progress=engine.show)
    return found


@dataclass(frozen=True)
class _Preparation:
    """A running preparation: its stages, and earlier preparations to reuse rows of."""

    store: GraphStore
    config: ResolvedPrepareConfig
    engine: Engine
    wait: bool
    version: State | None
    """The version of the feature scale and the training labels."""
    reused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(rows reused, rows computed) of each array."""
    folders: dict[str, ArrayFolder] = field(default_factory=dict)
    """The open stages; an open stage is not removed before the preparation refers to it."""

    def run(self, path: Path) -> None:
        """Write the missing stages, and the folder that refers to them."""
        store, keys = self.store, stage_keys(self.store, self.config, self.version)
        for name, key in keys.items():
            meta = {"stage": name, "num_nodes": store.num_nodes}
            stage_path = store.path / "prepared" / name / key
            self.folders[name] = self._open_or_write(stage_path, STAGE, [name, key], meta, WRITE[name])
        meta = {
            "config": self.config.model_dump(mode="json"),
            "stages": keys,
            "num_nodes": store.num_nodes,
            "store": {
                "name": store.name, "fingerprint": store.fingerprint, "num_nodes": store.num_nodes,
                "task": store.task, "classes": store.classes, "num_outputs": store.num_outputs,
            },
            **({} if self.version is None else {"version": asdict(self.version)}),
        }  # fmt: skip
        inputs = cache_key_inputs(store, self.config, self.version)
        self._open_or_write(path, KIND, inputs, meta, lambda *_: None).close()
        for folder in self.folders.values():
            folder.close()

    def _open_or_write(self, path: Path, kind: str, identity: Any, meta: dict[str, Any], write: Write) -> ArrayFolder:
        """Open the folder at `path`; `write` fills it if it is missing or damaged."""
        refuse_links_out(self.store.path, path)
        while (found := _open_if_valid(path, self.engine, self.wait, lambda path: ArrayFolder(path, kind))) is None:
            try:
                with ArrayWriter(path, kind, identity=identity, wait=self.wait) as writer:
                    write(self, writer)
                    writer.finish(meta, identity=identity, progress=self.engine.show)
            except ExistsError:  # another process wrote it during the wait
                if not (path / remote.MANIFEST).is_file():
                    raise
        return found

    @property
    def nodes(self) -> Array:
        """The prepared nodes, mapped."""
        return self.folders["nodes"].array("nodes")

    @property
    def token_nodes(self) -> Array:
        """The nodes of the token rows, mapped."""
        return self.folders["local_nodes"].array("token_nodes")

    @cached_property
    def cached(self) -> list[Prepared]:
        """Preparations of earlier versions."""
        return cached_preparations(self.store) if earlier_states(self.store) else []

    @cached_property
    def earlier(self) -> EarlierPreparation | None:
        return find_earlier(self.store, self.cached, self.config, self.engine)

    @cached_property
    def training_labels(self) -> TrainingLabels:
        return TrainingLabels.from_store(self.store, self.version)

    def reuse_or_write(
        self, writer: ArrayWriter, what: str, names: Sequence[str], before: Array | None, nodes: Array,
        make: Callable[[Array, ArrayWriter], None],
    ) -> None:  # fmt: skip
        """Write arrays with a row for each of `nodes`: rows of an earlier preparation (`before`) are copied, and
        `make(nodes, writer)` computes the others."""
        num_reused = 0 if before is None else int((before >= 0).sum())
        if before is not None:
            self.reused[what] = num_reused, len(nodes) - num_reused
        if before is not None and num_reused and self.earlier is not None:
            merge(writer, names, before, self.earlier.rows, lambda which, scratch: make(nodes[which], scratch))
        else:
            make(nodes, writer)

    def remove_superseded(self, prepared: Prepared) -> None:
        """Remove earlier preparations with the same settings that this one replaces: those for the same run, and those
        of removed versions."""
        states = {state.fingerprint for state in earlier_states(self.store)}
        for other in self.cached:
            fingerprint, made_for = other.meta["fingerprint"], other.version
            other.close()
            same_run = made_for is not None and made_for == prepared.version
            is_removed = made_for is None and not (self.store.path / VERSIONS / f"{fingerprint}.json").is_file()
            if other.config == prepared.config and fingerprint in states and (same_run or is_removed):
                remote.remove_folder(other.path)
                clean_quietly(self.store)


def _write_nodes(preparation: _Preparation, writer: ArrayWriter) -> None:
    """The prepared nodes, their labels and splits."""
    nodes = nodes_to_prepare(preparation.store, preparation.config)
    writer.save("nodes", nodes)
    for name, values in zip(("labels", "split"), labels_as_of(preparation.store, preparation.version), strict=True):
        out = writer.grow(name, values.dtype.name, values.shape[1:])
        for start in range(out.rows, len(nodes), SEGMENT_NODES):
            out.append(values[nodes[start : start + SEGMENT_NODES]])
        writer.close(name)


def _write_local_nodes(preparation: _Preparation, writer: ArrayWriter) -> None:
    """Sample node numbers, collect the nodes in use, and write the samples as rows of the token table."""
    store, nodes, config = preparation.store, preparation.nodes, preparation.config
    k, which = config.local_nodes.k, config.tokens.precompute_for
    dtype = np.dtype(index_dtype(store.num_nodes))
    rows = writer.grow("local_rows", dtype.name, (k,))
    copies = (2 if k > 1 else 1) * len(nodes) - rows.rows - writer.rows(SAMPLED)
    require_space(writer.path, copies * k * dtype.itemsize, "local nodes")
    sampled = _sample_local_nodes(preparation, writer)
    at_once = min(SEGMENT_NODES, rows_within(8 * k))
    if which == "reachable":
        used = _within_two_hops(preparation)
    else:
        used = np.full(store.num_nodes, which == "all")
        for start in range(0, len(nodes) if which == "sampled" else 0, at_once):
            used[sampled[start : start + at_once].reshape(-1)] = True
    writer.save("token_nodes", marked_nodes(used, dtype))
    row_of = np.cumsum(used, dtype=dtype)
    row_of -= dtype.type(1)
    for start in range(rows.rows, len(nodes), at_once):
        rows.append(row_of[sampled[start : start + at_once]])
    writer.close("local_rows")
    writer.drop(SAMPLED)


def _within_two_hops(preparation: _Preparation) -> Array:
    """Boolean [N]: every node that can be sampled. All nodes, if a prepared node has no neighbour."""
    store, nodes, engine = preparation.store, preparation.nodes, preparation.engine
    neighbors = Neighbors(*store.csr(preparation.config.local_nodes.direction), self_loops=False)
    starts = range(0, len(nodes), SEGMENT_NODES)
    if any((degrees_of(neighbors.indptr, nodes[start : start + SEGMENT_NODES]) == 0).any() for start in starts):
        return np.ones(store.num_nodes, dtype=np.bool_)
    reached = np.zeros(store.num_nodes, dtype=np.bool_)
    engine.mark_neighbors(neighbors, nodes, reached)
    engine.mark_neighbors(neighbors, marked_nodes(reached, nodes.dtype), reached)
    reached[nodes] = True
    return reached


def _sample_local_nodes(preparation: _Preparation, writer: ArrayWriter) -> Array:
    """LocalNodes as node numbers [n, K], a mapped scratch array. Writes `is_neighbor`."""
    store, nodes, engine = preparation.store, preparation.nodes, preparation.engine
    settings = preparation.config.local_nodes
    if settings.k == 1:
        writer.save("is_neighbor", np.zeros((len(nodes), 1), dtype=np.uint8))
        return nodes[:, None]

    def make(some: Array, target: ArrayWriter) -> None:
        sampled = target.grow(SAMPLED, index_dtype(store.num_nodes), (settings.k,))
        packed = target.grow("is_neighbor", "uint8", (-(-settings.k // 8),))
        engine.show("local nodes", sampled.rows, len(some))
        for local_nk, is_neighbor_nk in engine.local_nodes(store, some[sampled.rows :], settings):
            sampled.append(local_nk)
            packed.append(np.packbits(is_neighbor_nk, axis=1, bitorder="little"))
            target.commit()
            engine.show("local nodes", sampled.rows, len(some))
        target.close(SAMPLED)
        target.close("is_neighbor")

    if not (writer.has(SAMPLED) and writer.has("is_neighbor")):
        earlier = preparation.earlier
        before = earlier.local_nodes_before(nodes, settings) if earlier else None
        preparation.reuse_or_write(writer, "local nodes", (SAMPLED, "is_neighbor"), before, nodes, make)
        writer.commit()
    return writer.array(SAMPLED)


def _write_tokens(preparation: _Preparation, writer: ArrayWriter) -> None:
    store, config, engine = preparation.store, preparation.config, preparation.engine
    tokens, directions = config.tokens, directions_of(config)
    if not writer.has("feature_gain"):
        version = preparation.version
        trained = store if version is None else engine.opened(GraphStore.open(store.path, version=version.fingerprint))
        scales = [feature_scale(NodeFeatures(trained, tokens.add_degrees), tokens.normalize, engine)]
        if tokens.use_edge_features is True:
            means = EdgeMeans(store, config.local_nodes.direction)
            scales.append(feature_scale(means, "none" if tokens.normalize == "none" else "per_feature", engine))
        writer.save("feature_shift", np.concatenate([shift for shift, _ in scales]))
        writer.save("feature_gain", np.concatenate([gain for _, gain in scales]))
        writer.commit()
    shift, gain = np.array(writer.array("feature_shift")), np.array(writer.array("feature_gain"))

    def make(nodes: Array, target: ArrayWriter) -> None:
        ContextFeatures(
            NodeFeatures(store, tokens.add_degrees), nodes, shift, gain, directions, engine,
            tokens.use_edge_weights is True, tokens.use_edge_features is True,
        ).write(target, tokens.dtype, tokens.num_hops)  # fmt: skip

    nodes = preparation.token_nodes
    earlier = preparation.earlier
    before = earlier.token_rows_before(nodes, config, shift, gain) if earlier else None
    preparation.reuse_or_write(writer, "token rows", ("tokens",), before, nodes, make)


def _write_neighbor_label_histogram(preparation: _Preparation, writer: ArrayWriter) -> None:
    hops, labels, nodes = preparation.config.neighbor_label_hops, preparation.training_labels, preparation.nodes

    def make(some: Array, target: ArrayWriter) -> None:
        write_neighbor_label_histogram(target, preparation.store, some, hops, preparation.engine, labels)

    earlier, version = preparation.earlier, preparation.version
    before = earlier.label_rows_before(nodes, hops, labels, version) if earlier else None
    preparation.reuse_or_write(writer, "label histograms", ("neighbor_label_histogram",), before, nodes, make)


Write = Callable[[_Preparation, ArrayWriter], None]
WRITE: dict[str, Write] = {
    "nodes": _write_nodes,
    "local_nodes": _write_local_nodes,
    "tokens": _write_tokens,
    "positions": lambda preparation, writer: write_positions(
        writer,
        preparation.store,
        preparation.nodes,
        preparation.config.positional_encoding,
        preparation.config.local_nodes.direction,
        preparation.engine,
    ),
    "neighbor_label_histogram": _write_neighbor_label_histogram,
    "label_counts": lambda preparation, writer: write_label_counts(
        writer, preparation.store, preparation.token_nodes, preparation.engine, preparation.training_labels
    ),
}
"""The function that writes each stage."""
