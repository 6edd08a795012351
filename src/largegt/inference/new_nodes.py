"""New nodes: predictions for nodes that are not in the store, without changing the store.

Enters: a run, tables of new nodes and of their edges. Leaves: the same as `predict`. Old nodes are numbered 0..N-1, new
ones from N on, in the order of their table. Cost: time for the neighbourhoods of the new nodes, one segment of nodes at
a time; memory for the new nodes and edges, and for the rows of one segment. Features of old nodes are read in place.

A new node's own rows (its sample, contexts, degrees, label distributions, projected positions) equal those of a store
that includes all new nodes and edges: edges may join new nodes with old ones and with each other. Sampled *old* nodes
keep their prepared rows, computed on the training graph. `largegt append` updates these as well.

Encodings by node2vec and Laplacian eigenvectors cannot be computed for single nodes: a new node gets the mean of its
neighbours' encodings, or zero if they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from largegt.config.models import model_specs
from largegt.data.additions import Additions, additions_in_files, ingest_config, refuse_payload
from largegt.data.ids import is_text
from largegt.data.labels import unlabelled
from largegt.data.nodes import Means
from largegt.data.parts import Source
from largegt.data.sources import FileSource
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.io.array_writer import ArrayWriter
from largegt.loader.label_inputs import LocalLabels
from largegt.loader.loader import TokenLoader
from largegt.preprocessing.cache_key import directions_of
from largegt.preprocessing.context import ContextFeatures
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.extended_graph import ExtendedGraph
from largegt.preprocessing.features import NodeFeatures
from largegt.preprocessing.label_features import TrainingLabels
from largegt.preprocessing.prepared import KIND, LocalNodeSample, Prepared
from largegt.preprocessing.sampling.local_nodes import sample
from largegt.preprocessing.subgraph import (
    label_counts,
    mean_positions,
    neighbor_label_histogram,
    projected_positions,
    scratch_folder,
    token_rows,
)  # fmt: skip
from largegt.runtime.distributed import ALONE, Ranks
from largegt.runtime.memory import memory_budget
from largegt.runtime.threads import num_threads
from largegt.training.evaluate import Scorer
from largegt.training.run import Run
from largegt.training.setup import make_loader, num_samples
from largegt.types import Array, PathLike

from .predictor import PredictOptions, Predictor, first_not_finite, prediction_table

MakeRows = Callable[[Array], Array]
_OPTIONS = {field.name for field in fields(PredictOptions)} - {"out", "ids", "split"}
_SEGMENT_NODES = 1 << 14


def predict_new(
    run: PathLike | Run, nodes: Any = None, edges: Any = None, out: PathLike | None = None, **more: Any
) -> pa.Table:
    """Predictions of a run for nodes that are not in its store, which stays as it is.

    `nodes` is a table as `ingest` reads them, with an id and the store's feature columns; `edges` are tables of ids,
    new or old. Other arguments are options of `predict`, or name files and columns as `sources.files` has them
    (`features`, `source`, `id`, …); `nodes` may also be a whole `Source`. Labels are not read. An edge between two old
    nodes counts for what is around new ones. Columns and `out` are as `predict` has them, nodes in the order of their
    table.
    """
    options = {name: more.pop(name) for name in _OPTIONS & more.keys()}
    return NewNodes(run, PredictOptions(out, **options), nodes, edges, **more).collect()


class NewNodes(Predictor):
    """Predicts new nodes with a run."""

    def __init__(
        self, run: PathLike | Run, options: PredictOptions, nodes: Any = None, edges: Any = None, **files: Any
    ) -> None:
        """`nodes`, `edges` and `files` are as for `predict_new`."""
        self._given = nodes, edges, files
        super().__init__(run, options)

    def check_run(self) -> None:
        spec = self.run.config.model.spec
        if "neighbors" in spec.inputs or not spec.new_nodes:
            able = [one.name for one in model_specs() if "neighbors" not in one.inputs and one.new_nodes]
            raise ConfigError(
                f"{self.run.path} is a {spec.name}, which reads neighbours from the store itself: append the new nodes "
                f"to the store (`lg.append(...)`), then predict. New nodes are predicted by {', '.join(able)}"
            )

    def join_ranks(self) -> Ranks:
        return ALONE

    def prepare(self) -> Prepared:
        """The preparation of the training. First reads the new nodes and edges."""
        refuse_payload(self.store)
        self._scratch = TemporaryDirectory(prefix="largegt-")  # removed with this object
        memory = memory_budget(self.options.memory)
        nodes, edges, files = self._given
        additions = _additions(self.store, nodes, edges, files, Path(self._scratch.name), memory)
        self.ids = additions.ids
        self.graph = _extended(additions, memory)
        self.engine = Engine(memory)
        return self.run.prepared(self.show, memory=self.options.memory, store=self.store)

    def open_rows(self) -> None:
        self.model.eval()
        self.reads_positions = "positions" in self.run.config.model.spec.inputs
        self.num_eval_samples = num_samples(self.model, self.config, self.num_eval_samples)
        self.local_labels = LocalLabels.of_training_nodes(self.prepared) if self.model.reads_labels else None

    def table(self, done: int, found: Array) -> pa.Table:
        ids = self.ids.new[done : done + len(found)]
        if (bad := first_not_finite(found)) is not None:
            raise self.not_a_number(self.ids.at(self.graph.num_old + done + bad))
        ids = ids if is_text(ids) else pa.array(ids, pa.int64())
        return prediction_table(self.store, ids, found, self.options.all_probabilities)

    def groups(self) -> Iterator[Array]:
        """[·, w] predictions, one segment at a time, in order."""
        numbers = self.prepared.num_features * (1 + self.prepared.hops) + self.prepared.label_counts.shape[1]
        row_bytes = 4 * numbers * self._k * self.num_eval_samples
        step = max(1, min(_SEGMENT_NODES, self.engine.memory // (4 * row_bytes)))
        num_new = self.graph.num_nodes - self.graph.num_old
        for start in range(0, num_new, step):
            self.show("predict", start, num_new)
            yield self._predicted(np.arange(start, min(start + step, num_new)) + self.graph.num_old)
        self.show("predict", num_new, num_new)

    def _predicted(self, nodes: Array) -> Array:
        """[n, w] predictions for some new nodes."""
        rows = np.arange(len(nodes))
        with TemporaryDirectory(prefix="largegt-") as folder:
            prepared, samples = self.prepared_rows(nodes, Path(folder) / "rows")
            loader = make_loader(prepared, self.model, self.config, self.accelerator.device, self.place, self.store)
            assert isinstance(loader, TokenLoader)
            if self.local_labels is not None:
                loader = replace(loader, local_labels=self._labels_of(prepared, loader.table.device))
            others = [replace(loader, table=loader.table.with_local_rows(rows, *sample)) for sample in samples]
            scorer = Scorer(self.model, self.head, self.config, self.accelerator, loader, prepared, self.store)
            logits = [part for _, part, _ in scorer.logits([loader, *others], rows)]
        return self.decide(torch.cat(logits))

    # rows in the format of a preparation

    @property
    def _k(self) -> int:
        return self.model.num_local_nodes or self.prepared.k

    def prepared_rows(self, nodes: Array, path: Path) -> tuple[Prepared, list[LocalNodeSample]]:
        """A Prepared for these new nodes (sorted), with a token table of the nodes they sample; and more samples of
        local nodes, as rows of that table."""
        config, index = self.prepared.config, self.prepared.nodes.dtype
        settings = config.local_nodes.model_copy(update={"k": self._k})
        lists = self.graph.lists(settings.direction)
        sampled = [sample(lists, nodes, settings, draw) for draw in range(self.num_eval_samples)]
        used = np.unique(np.concatenate([nodes, *(rows.reshape(-1) for rows, _ in sampled)]))
        first, *others = (
            LocalNodeSample(np.searchsorted(used, rows).astype(index), is_neighbor) for rows, is_neighbor in sampled
        )
        labels = unlabelled(len(nodes), self.store.task, self.store.classes).values
        with ArrayWriter(path, KIND) as writer:
            writer.save("nodes", nodes.astype(index))
            writer.save("labels", labels)
            writer.save("split", np.zeros(len(nodes), dtype=np.uint8))
            writer.save("local_rows", first.local_rows)
            writer.save("token_nodes", used.astype(index))
            writer.save("tokens", self._token_rows(used))
            for name in ("feature_shift", "feature_gain"):
                writer.save(name, np.array(self.prepared.array(name)))
            writer.save("positions", self._positions(nodes))
            if config.neighbor_label_hops:
                hops, own = config.neighbor_label_hops, self.training_labels
                writer.save(
                    "neighbor_label_histogram", neighbor_label_histogram(self.graph, nodes, hops, own, self.engine)
                )
            writer.save("is_neighbor", np.packbits(sampled[0][1], axis=1, bitorder="little"))
            if config.local_label_histograms:
                writer.save("label_counts", self._label_counts(used))
            meta = self.prepared.folder.meta
            grown = {"num_nodes": self.graph.num_nodes}
            writer.finish({**meta, **grown, "stages": {}, "store": {**meta["store"], **grown}})
        return Prepared.open(path), others

    def _rows(self, nodes: Array, prepared: Array, dtype: Any, of_old: MakeRows, of_new: MakeRows) -> Array:
        """Rows of a token table for `nodes`: old nodes keep their `prepared` row, or get the same row as from `prepare`
        (`of_old`); new nodes get `of_new`."""
        first = int(np.searchsorted(nodes, self.graph.num_old))
        places = self.prepared.token_rows_of(nodes[:first])
        existing = np.flatnonzero(places >= 0)
        rows = np.empty((len(nodes), *prepared.shape[1:]), dtype=dtype)
        rows[existing] = prepared[places[existing]]
        for which, make in ((np.flatnonzero(places < 0), of_old), (np.arange(first, len(nodes)), of_new)):
            if len(which):
                rows[which] = make(nodes[which])
        return rows

    def _token_rows(self, nodes: Array) -> Array:
        prepared, engine = self.prepared, self.engine
        config, directions = prepared.config, directions_of(prepared.config)
        shift, gain = (np.array(prepared.array(name)) for name in ("feature_shift", "feature_gain"))

        def of_old(missing: Array) -> Array:
            features = ContextFeatures(
                NodeFeatures(self.store, config.tokens.add_degrees), missing, shift, gain, directions, engine
            )
            with scratch_folder() as folder:
                features.write(folder, config.tokens.dtype, config.tokens.num_hops)
                return np.array(folder.array("tokens"))

        of_new = partial(token_rows, self.graph, shift=shift, gain=gain, config=config, engine=engine)
        return self._rows(nodes, prepared.tokens, prepared.tokens.dtype, of_old, of_new)

    def _positions(self, nodes: Array) -> Array:
        prepared, settings = self.prepared, self.prepared.config.positional_encoding
        if not self.reads_positions:
            return np.zeros((len(nodes), prepared.num_positions), dtype=np.float32)
        if settings.method == "random_projection":
            return projected_positions(self.graph, nodes, prepared.config, self.engine)
        direction = "both" if settings.method == "laplacian" else prepared.config.local_nodes.direction
        return mean_positions(self.graph, nodes, direction, prepared.rows_of, prepared.positions)

    def _label_counts(self, nodes: Array) -> Array:
        none = self.graph.new_features[:0]
        before = ExtendedGraph(self.store, none, nodes[:0], nodes[:0])
        of_old, of_new = (
            partial(label_counts, graph, labels=self.training_labels, engine=self.engine)
            for graph in (before, self.graph)
        )
        return self._rows(nodes, self.prepared.label_counts, np.int32, of_old, of_new)

    @cached_property
    def training_labels(self) -> TrainingLabels:
        return TrainingLabels.from_store(self.store, self.prepared.version)

    def _labels_of(self, prepared: Prepared, device: torch.device) -> LocalLabels:
        """The label inputs of a token table: only old nodes of the training split have a label."""
        assert self.local_labels is not None
        nodes = np.asarray(prepared.token_nodes)
        rows = self.prepared.rows_of(np.minimum(nodes, self.graph.num_old - 1))
        is_train = np.zeros(len(self.prepared.nodes) + 1, dtype=np.bool_)  # the last entry is for nodes without a row
        is_train[self.prepared.split_rows("train")] = True
        rows = np.where(is_train[rows] & (nodes < self.graph.num_old), rows, -1)
        label_rows = torch.from_numpy(rows).to(device)
        half_r = None if self.local_labels.half_r is None else torch.zeros_like(label_rows, dtype=torch.uint8)
        return LocalLabels(label_rows, self.local_labels.labels.to(device), half_r)


def _additions(
    store: GraphStore, nodes: Any, edges: Any, files: dict[str, Any], scratch: Path, memory: int
) -> Additions:  # fmt: skip
    """Open the tables of new nodes and edges."""
    given = nodes if isinstance(nodes, Source | FileSource) else additions_in_files(store, nodes, edges, **files)
    means = Means(memory // 4, num_threads(None), scratch)
    return Additions(store, given.opened(scratch, ingest_config(store), means.memory, means.threads), means)


def _extended(additions: Additions, memory: int) -> ExtendedGraph:
    """The store with its additions, read whole."""
    store = additions.store
    features = np.zeros((additions.num_new, store.num_features), dtype=store.features.dtype)
    done = 0
    for block in additions.feature_blocks():
        features[done : done + len(block)] = block
        done += len(block)
    ends = [np.zeros((2, 0), dtype=np.int64), *(np.stack(pair) for pair in additions.edges())]
    sources, targets = np.concatenate(ends, axis=1)
    return ExtendedGraph(store, features, sources, targets)
