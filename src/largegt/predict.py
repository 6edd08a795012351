"""Predict: a run's best weights → labels and probabilities for all nodes, some nodes, or one split.

Enters: a run folder and the nodes asked for. Leaves: a Parquet, CSV or npz file with the user's own ids, a table of the
same, or both. A node that was not prepared is prepared first.

Rows are written as they are made, in groups of fixed size, so memory does not grow with the number of nodes: it is that
of the model and of one segment of nodes. Who wants the table holds the table; named nodes are held, since they come in
the order they were named in. Of several ranks each keeps what it predicts in a file of its own, and the first one takes
them in order: the same bytes as one rank writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from .baselines.message_passing import MessagePassing
from .data.splits import SPLIT_CODES
from .data.store import GraphStore
from .errors import ConfigError, disk_errors
from .model.node_model import NodeModel
from .prediction_files import check_prediction_file, prediction_file
from .prepare.pipeline import prepare
from .prepare.prepared import Prepared
from .progress import Progress, silent
from .ranks import Ranks
from .streams import pinned_buffer
from .text import quoted
from .training.accelerator import make_accelerator
from .training.evaluate import Scorer, nodes_at_once
from .training.metrics import TaskHead
from .training.run import Run
from .training.setup import is_worth_compiling, make_loader
from .types import Array, PathLike

_SEGMENT_ROWS = 1 << 18
"""Nodes whose row numbers, and fresh draws of local nodes, are held at once."""
_GROUP_ROWS, _GROUP_NUMBERS = 1 << 20, 1 << 22
"""A group that is written has so many rows, or fewer if they are wide: whatever the batches and ranks."""
_NUMBERS_AT_ONCE = 1 << 20
"""Outputs of small batches are taken together, about so many numbers at a time: fewer copies from a GPU."""


Ids = Iterable[Any] | str | int
"""Ids of nodes, or one."""


@dataclass(frozen=True)
class Written:
    """What a prediction has written."""

    out: Path
    num_rows: int
    columns: list[str]
    first: pa.Table
    """Some rows to look at."""
    reused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where a store that has grown was prepared for it: rows kept from before and rows made, by array."""


@dataclass(frozen=True)
class PredictOptions:
    """Which nodes to predict, how, and where to; as `predict` has them."""

    out: PathLike | None = None
    """The file to write; none when None."""
    ids: Ids | None = None
    split: str | None = None
    all_probabilities: bool = False
    device: str | None = None
    progress: Progress | None = None
    draws: int | None = None
    memory: str | int | None = None
    overwrite: bool = False
    csv_safe: bool = False
    """Put a single quote before ids and classes that a spreadsheet would run as formulas."""


def predict(
    run: PathLike | Run,
    out: PathLike | None = None,
    ids: Ids | None = None,
    split: str | None = None,
    all_probabilities: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    draws: int | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
) -> pa.Table:
    """Predictions of a run for the nodes with these ids, for one split, or for every node of its store.

    Columns: `node` (the user's own id), `label` and `probability`; with `all_probabilities` one more per class.
    With several `draws`, predictions are averaged over as many samples of local nodes; when not given, as many as the
    run is set to (`train.draws`). `memory` is for preparing nodes that are not prepared yet. Under torchrun each
    process predicts a part; the first one writes and returns the whole, the others return a table without rows.
    Multi-label: a 0/1 column `label_NAME` per label. Regression: `value`. `out` ends in .parquet, .csv or .npz, and
    is not replaced without `overwrite`. The table is held in memory: `Predictor.write` only writes it.
    """
    options = PredictOptions(out, ids, split, all_probabilities, device, progress, draws, memory, overwrite)
    return Predictor(run, options).collect()


class TableSource(ABC):
    """What gives tables of rows one after the other, to write or to keep."""

    options: PredictOptions
    ranks: Ranks
    width: int
    """Numbers of a row."""
    reused: dict[str, tuple[int, int]]
    """Rows kept and made in preparing for these predictions, by array."""

    @abstractmethod
    def table(self, done: int, found: Array) -> pa.Table:
        """The rows from place `done` on, of these numbers, as the user reads them."""

    @abstractmethod
    def tables(self, folder: Path) -> Iterator[pa.Table]:
        """All rows, in order. `folder` takes what must wait."""

    def write(self) -> Written:
        """Write all rows to `options.out`, in memory that does not grow with them."""
        assert self.options.out is not None
        num_rows = 0
        for table in self._written():
            if not num_rows:
                first = table.slice(0, 5)
            num_rows += table.num_rows
        return Written(Path(self.options.out), num_rows, first.column_names, first, self.reused)

    def collect(self) -> pa.Table:
        """All rows as one table; also written to `options.out` where that is given."""
        return pa.concat_tables(list(self._written()))

    def _written(self) -> Iterator[pa.Table]:
        """An empty table, then those of all rows, each when it is written."""
        out = self.options.out
        with ExitStack() as stack:
            file = None
            if out is not None and self.ranks.is_first:
                file = stack.enter_context(prediction_file(out, self.options.overwrite, self.options.csv_safe))
            empty = self.table(0, np.empty((0, self.width), np.float32))
            for table in chain([empty], self.tables(Path(out or ".").parent)):
                if file is not None:
                    file.add(table)
                yield table


class Predictor(TableSource):
    """A run, opened to predict some of its nodes."""

    def __init__(self, run: PathLike | Run, options: PredictOptions) -> None:
        self.options = options
        self.check(options)
        opened = Run.open(run)
        self.config = config = opened.train_config(options.device)
        self.draws = config.draws if options.draws is None else options.draws
        if self.draws < 1:
            raise ConfigError(f"draws is {self.draws}: it must be at least 1")
        self.store = opened.newest_store()
        self.ranks = Ranks.here(config.device)
        self.show = options.progress if options.progress and self.ranks.is_first else silent
        with self.ranks.in_turn():
            prepared = opened.prepared(self.show, self.draws > 1, options.memory, self.store)
        self.nodes = self._named_nodes()
        """The nodes that were named, in that order."""
        self.accelerator = make_accelerator(config, self.ranks)
        self.model, self.head = self.opened_model(opened, prepared)
        self.model = self.model.to(self.accelerator.device)
        self.every = options.all_probabilities or self.store.task in ("multilabel", "regression")
        self.width = self.row_width()
        self.group_rows = max(1, min(_GROUP_ROWS, _GROUP_NUMBERS // self.width))
        if options.split is None:
            with self.ranks.in_turn():
                prepared = _covering(prepared, self.store, self.nodes, self.show, options.memory)
        self.prepared, self.reused = prepared, prepared.reused
        self.place: Array | None = None
        """Where among the sorted rows those of the named nodes are."""
        self.rows: Array | range | _SplitRows
        if self.nodes is not None:
            self.rows, self.place = np.unique(prepared.rows_of(self.nodes), return_inverse=True)
        else:
            self.rows = range(len(prepared.nodes)) if options.split is None else _SplitRows(prepared, options.split)
        self.own = self.ranks.batches_of(range(len(self.rows)), config.eval_batch_size)
        """The places among `rows` that are this rank's."""
        place = opened.config.tokens.table  # one that was trained with its table on a GPU may predict without
        where, device_used = "auto" if place == "gpu" else place, self.accelerator.device
        self.loader = make_loader(prepared, self.model.eval(), config, device_used, where, self.store)
        self.scorer = Scorer(self.model, self.head, config, self.accelerator, self.loader, prepared, self.store)
        at_once = nodes_at_once(self.loader, config)
        if is_worth_compiling(config, self.accelerator.device, len(self.own) // at_once):
            self.model.compile_for({at_once})

    def check(self, options: PredictOptions) -> None:
        """Refuse what cannot be written or predicted, before any work is done."""
        if options.out is not None:
            check_prediction_file(options.out, options.overwrite)
        if options.ids is not None and options.split is not None:
            raise ConfigError("give predict ids or a split, not both")

    def _named_nodes(self) -> Array | None:
        ids = self.options.ids
        return None if ids is None else self.store.nodes_of([ids] if isinstance(ids, str | int) else list(ids))

    def opened_model(self, run: Run, prepared: Prepared) -> tuple[NodeModel, TaskHead]:
        """What computes rows, and what makes of its outputs what is written."""
        return run.load_model(prepared), run.head(prepared)

    def row_width(self) -> int:
        """Numbers that are written of a node."""
        return prediction_width(self.head, self.every)

    def tables(self, folder: Path) -> Iterator[pa.Table]:
        """Predictions group by group, in order: on the first rank, those of all. Others keep theirs in `folder` until
        they are taken, and have no tables."""
        done = 0
        for group in self.groups(folder):
            yield self.table(done, group)
            done += len(group)

    def groups(self, folder: Path) -> Iterator[Array]:
        """[·, w] the same as numbers."""
        found = self.ranks_found(folder)
        if self.place is not None:  # named nodes: as many as someone has written down
            every = np.concatenate([np.empty((0, self.width), np.float32), *found])
            found = iter([every[self.place]] if self.ranks.is_first else [])
        return _groups(found, self.group_rows)

    def ranks_found(self, folder: Path) -> Iterator[Array]:
        """[·, w] what is predicted of `rows`, in order: of this rank and those behind it on the first, nothing on the
        others, which keep theirs in a file that has no name, so that nothing is left of it whatever happens."""
        if self.ranks.is_first:
            yield from self.found()
            for rank in range(1, self.ranks.size):
                while (rows := self.ranks.taken(rank, self.width)) is not None:
                    yield rows.numpy()
            return
        with disk_errors(folder), TemporaryFile(dir=folder if folder.is_dir() else None) as stream:
            for rows_nw in self.found():
                stream.write(rows_nw.tobytes())
            stream.seek(0)
            while piece := stream.read(4 * self.width * self.group_rows):
                self.ranks.give(torch.frombuffer(bytearray(piece), dtype=torch.float32).view(-1, self.width))
        self.ranks.give(torch.empty(0, self.width))

    def found(self) -> Iterator[Array]:
        """[·, w] what this rank predicts of its part of `rows`, in order: probabilities of every class, or the best
        class and its probability."""
        outputs = _together(chain.from_iterable(map(self._logits_of, self._segments())), _NUMBERS_AT_ONCE)
        return _on_the_host(decided(self.head.probabilities(logits), self.every) for logits in outputs)

    def _logits_of(self, part: range) -> Iterator[Tensor]:
        rows = _cut(self.rows, part)
        loaders = self.scorer.loaders(rows, self.draws)

        def show(stage: str, done: int, total: int | None) -> None:
            self.show(stage, part.start - self.own.start + done, len(self.own))

        for _, logits, _ in self.scorer.logits(loaders, rows, show, "predict"):
            yield logits

    def _segments(self) -> list[range]:
        """This rank's places in pieces of whole batches. None ends in less than a batch if that can be, since such a
        one is filled up where batches are compiled for. Message passing over all neighbours is not cut: it would
        compute its layers once for each piece."""
        size = self.config.eval_batch_size
        step = max(1, _SEGMENT_ROWS // size) * size
        if isinstance(self.model, MessagePassing) and self.config.inference == "full":
            step = max(1, len(self.own))
        starts = list(range(self.own.start, self.own.stop, step))
        if len(starts) > 1 and self.own.stop - starts[-1] < size:
            del starts[-1]
        return [range(low, high) for low, high in pairwise([*starts, self.own.stop])]

    def table(self, done: int, found: Array) -> pa.Table:
        """The predictions of nodes from place `done` on, as the user reads them."""
        ids = self.store.id_array(self.nodes_of(done, found))
        return prediction_table(self.store, ids, found, self.options.all_probabilities)

    def nodes_of(self, done: int, found: Array) -> Array:
        """The nodes from place `done` on that these rows are of; refused where a row is no number."""
        part = range(done, done + len(found))
        nodes = self.prepared.nodes[_cut(self.rows, part)] if self.nodes is None else self.nodes[done : part.stop]
        good = np.isfinite(found).all(axis=1)
        if not good.all():
            raise self._not_a_number(int(nodes[int(np.argmin(good))]))
        return np.asarray(nodes)

    def _not_a_number(self, node: int) -> ConfigError:
        """The error for a node of which the model says no number: whose fault it is, and what to do."""
        said = f"what the model says of node {self.store.ids_of(np.array([node]))[0]!r} is not a finite number"
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            return ConfigError(f"{said}, since its weights are not: train it again")
        return ConfigError(
            f"{said}: features of this node or around it are too large for the model, or damaged; mend them, or train "
            f"with --set prepare.tokens.standardize=true (largegt inspect {quoted(self.store.path)} "
            "--verify looks for damage)"
        )


class _SplitRows:
    """The rows of a split, looked up piece by piece."""

    def __init__(self, prepared: Prepared, split: str) -> None:
        prepared.check_split(split)
        self.split, self.code = prepared.array("split"), SPLIT_CODES[split]
        counts = [int(np.count_nonzero(self._are(start))) for start in range(0, len(self.split), _SEGMENT_ROWS)]
        self.bounds = np.cumsum([0, *counts])

    def _are(self, start: int) -> Array:
        return np.asarray(self.split[start : start + _SEGMENT_ROWS] == self.code)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, part: slice) -> Array:
        pieces = [np.empty(0, np.int64)]
        at = int(np.searchsorted(self.bounds, part.start, side="right")) - 1
        while at < len(self.bounds) - 1 and self.bounds[at] < part.stop:
            start = at * _SEGMENT_ROWS
            rows = np.flatnonzero(self._are(start)) + start
            pieces.append(rows[max(0, part.start - self.bounds[at]) : part.stop - self.bounds[at]])
            at += 1
        return np.concatenate(pieces)


def _cut(rows: Array | range | _SplitRows, part: range) -> Array:
    if isinstance(rows, range):
        return np.arange(part.start, part.stop)
    return np.asarray(rows[part.start : part.stop])


def _groups(pieces: Iterator[Array], size: int) -> Iterator[Array]:
    """The same rows in pieces of `size`, the last one shorter."""
    waiting: list[Array] = []
    count = 0
    for piece in pieces:
        while len(piece):
            waiting.append(piece[: size - count])
            piece = piece[len(waiting[-1]) :]
            count += len(waiting[-1])
            if count == size:
                yield np.concatenate(waiting)
                waiting, count = [], 0
    if count:
        yield np.concatenate(waiting)


def prediction_width(head: TaskHead, every: bool) -> int:
    """Numbers that are written of a node."""
    return {"binary": 2, "regression": 1}.get(head.task, head.num_outputs) if every else 2


def _together(tensors: Iterator[Tensor], num_numbers: int) -> Iterator[Tensor]:
    """Small ones joined to ones of about so many numbers."""
    waiting: list[Tensor] = []
    for tensor in tensors:
        waiting.append(tensor)
        if sum(each.numel() for each in waiting) >= num_numbers:
            yield torch.cat(waiting)
            waiting = []
    if waiting:
        yield torch.cat(waiting)


def _on_the_host(tensors: Iterator[Tensor]) -> Iterator[Array]:
    """Each as an array. One that comes from a GPU is given out when the next one is on its way: no one waits."""
    last: tuple[Tensor, torch.cuda.Event | None] | None = None
    for tensor in chain(tensors, [None]):
        coming = None if tensor is None else _copied(tensor)
        if last is not None:
            copy, whole = last
            if whole is not None:
                whole.synchronize()
            yield copy.numpy()
        last = coming


def decided(probabilities: Tensor, every: bool) -> Tensor:
    """Probabilities of every class, or the best class and its probability."""
    if every:
        return probabilities
    probability, best = probabilities.max(dim=1)
    return torch.stack([best.to(probability.dtype), probability], dim=1)  # exact up to 16 million classes


def _copied(found: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """On its way to this machine's memory, and what says that it is there."""
    if not found.is_cuda:
        return found, None
    copy = pinned_buffer(found.shape, found.dtype)
    copy.copy_(found, non_blocking=True)
    return copy, torch.cuda.current_stream(found.device).record_event()


def _covering(
    prepared: Prepared, store: GraphStore, nodes: Array | None, progress: Progress | None, memory: str | int | None
) -> Prepared:
    """A Prepared that has a row for every node asked for, all when None. Sampling depends on (seed, node) alone, so
    the rows that both have are the same."""
    if len(prepared.nodes) == store.num_nodes or (nodes is not None and (prepared.rows_of(nodes) >= 0).all()):
        return prepared
    everyone = prepared.config.local_nodes.model_copy(update={"nodes": "all"})
    config = prepared.config.model_copy(update={"local_nodes": everyone})
    as_of = None if prepared.as_of is None else prepared.as_of.fingerprint
    covering = prepare(store, config, progress=progress, memory=memory, as_of=as_of)
    covering.reused |= {f"{name} of labelled nodes": counts for name, counts in prepared.reused.items()}
    return covering


def prediction_table(store: GraphStore, ids: Any, found: Array, all_probabilities: bool) -> pa.Table:
    """What is predicted of the nodes with these ids, as the user reads it."""
    columns: dict[str, Any] = {"node": ids}
    if store.task == "regression":
        columns["value"] = pa.array(found[:, 0])
    elif store.task == "multilabel":
        for number, name in enumerate(store.classes):
            columns[f"label_{name}"] = pa.array((found[:, number] >= 0.5).astype(np.int8))
            if all_probabilities:
                columns[f"probability_{name}"] = pa.array(found[:, number])
    else:
        best, probability = found[:, 0].astype(np.int64), found[:, 1]
        if all_probabilities:
            best = found.argmax(axis=1)
            probability = found[np.arange(len(best)), best]
        columns["label"] = pa.array(store.classes).take(pa.array(best))
        columns["probability"] = pa.array(np.ascontiguousarray(probability))
        if all_probabilities:
            for number, name in enumerate(store.classes):
                columns[f"probability_{name}"] = pa.array(np.ascontiguousarray(found[:, number]))
    return pa.table(columns)
