"""Predict: labels and probabilities from a run's best weights, for all nodes, some nodes, or one split.

Enters: a run folder and the requested nodes. Leaves: a Parquet, CSV or npz file with the user's own ids, a table of the
same, or both. Nodes without prepared rows are prepared first.

Rows are written in groups of fixed size as soon as they are predicted. Memory: the model and one segment of nodes,
independent of the number of nodes. With several ranks, each collects its predictions in a temporary file and rank 0
writes them in order: the same bytes as with one rank.
"""

from __future__ import annotations

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

from largegt.data.store import GraphStore
from largegt.errors import ConfigError, disk_errors
from largegt.models.base import NodeModel
from largegt.models.baselines.message_passing import MessagePassing
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import Ranks, get_distributed
from largegt.runtime.progress import Progress, silent
from largegt.runtime.text import quoted
from largegt.training.evaluate import Scorer, nodes_at_once
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.training.setup import is_worth_compiling, make_accelerator, make_loader
from largegt.types import Array, PathLike

from .writers import SUFFIXES, check_prediction_file, prediction_file

_SEGMENT_ROWS = 1 << 18
"""Nodes per segment, whose row numbers and new samples of local nodes are in memory at the same time."""
_GROUP_ROWS, _GROUP_NUMBERS = 1 << 20, 1 << 22
"""Rows per written group, or fewer if rows are wide; independent of batches and ranks."""
_NUMBERS_AT_ONCE = 1 << 22
"""Outputs of several batches, about this many numbers, are copied from a GPU together."""


Ids = Iterable[Any] | str | int
"""Ids of nodes, or one."""


@dataclass(frozen=True)
class Written:
    """A written prediction file."""

    out: Path
    num_rows: int
    columns: list[str]
    first: pa.Table
    """The first rows, as a preview."""
    reused: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows kept from an earlier preparation and rows computed, by array, if a grown store was prepared."""


@dataclass(frozen=True)
class PredictOptions:
    """Which nodes to predict, how, and where to."""

    out: PathLike | None = None
    """The file to write; none when None."""
    ids: Ids | None = None
    """Nodes by the user's own ids, in the order of the result."""
    split: str | None = None
    all_probabilities: bool = False
    """A column for every class."""
    device: str | None = None
    progress: Progress | None = None
    num_eval_samples: int | None = None
    """Samples of local nodes that predictions are averaged over; the run's `train.num_eval_samples` when not given."""
    memory: str | int | None = None
    """For preparing nodes that are not prepared yet."""
    overwrite: bool = False
    csv_safe: bool = False
    """Put a single quote before ids and classes that a spreadsheet would run as formulas."""


def predict(
    run: PathLike | Run, out: PathLike | None = None, ids: Ids | None = None, split: str | None = None, **options: Any
) -> pa.Table:
    """Predict the nodes with these ids, of one split, or every node of the run's store.

    Under torchrun each process predicts a part; the first one writes and returns the whole, the others a table without
    rows.

    Args:
        run: a run, or its folder.
        out: a file to write, .parquet, .csv or .npz; none by default.
        ids: nodes by the user's own ids, in the order of the result.
        split: train, valid or test.
        options: fields of `PredictOptions`: `all_probabilities` for a column per class, `overwrite`, `num_eval_samples`
            for the samples of local nodes that predictions are averaged over, `device`, `memory`, `progress`,
            `csv_safe`.

    Returns:
        A table with the columns `node`, `label` and `probability`. A multi-label task has a column `label_NAME` of 0
        and 1 per label, a regression the column `value`.

    Raises:
        InputError: there is no run, an id is unknown, or `out` is there already.
        ConfigError: the ending of `out` is unknown, or a prediction is not finite.

    Examples:
        >>> table = lg.predict("runs/a", out="predictions.parquet", split="test")
        >>> table.column_names
        ['node', 'label', 'probability']
    """
    return Predictor(run, PredictOptions(out, ids, split, **options)).collect()


class Predictor:
    """Predicts some or all nodes of a run's store."""

    what: str = "predictions"
    suffixes: tuple[str, ...] = SUFFIXES

    def __init__(self, run: PathLike | Run, options: PredictOptions) -> None:
        if options.out is not None:
            check_prediction_file(options.out, options.overwrite, self.what, self.suffixes)
        if options.ids is not None and options.split is not None:
            raise ConfigError("give ids or a split, not both")
        self.options, self.run = options, Run.open(run)
        self.check_run()
        self.config = config = self.run.train_config(options.device)
        self.num_eval_samples = (
            config.num_eval_samples if options.num_eval_samples is None else options.num_eval_samples
        )
        if self.num_eval_samples < 1:
            raise ConfigError(f"num_eval_samples is {self.num_eval_samples}: it must be at least 1")
        self.store = self.run.newest_store()
        self.ranks = self.join_ranks()
        self.show = options.progress if options.progress and self.ranks.is_first else silent
        with self.ranks.rank_zero_first():
            self.prepared = self.prepare()
        self.reused = self.prepared.reused
        """Rows kept and rows computed while preparing these predictions, by array."""
        self.accelerator = make_accelerator(config, self.ranks)
        self.model, self.head = self.open_model()
        self.model = self.model.to(self.accelerator.device)
        self.writes_all_columns = options.all_probabilities or self.store.task in ("multilabel", "regression")
        self.width = self.row_width()
        """Numbers written per node."""
        place = self.run.config.train.token_table
        self.place: Any = "auto" if place == "cuda" else place  # predictions must also run without a GPU
        self.open_rows()

    # overridden by other kinds of predictions

    def check_run(self) -> None:
        """Refuse a run that cannot be used, before any work is done."""

    def join_ranks(self) -> Ranks:
        return get_distributed(self.config.device)

    def prepare(self) -> Prepared:
        """A Prepared with a row for every requested node."""
        ids = self.options.ids
        self.nodes = None if ids is None else self.store.nodes_of([ids] if isinstance(ids, str | int) else list(ids))
        """The nodes of `options.ids`, in that order."""
        prepared = self.run.prepared(self.show, self.num_eval_samples > 1, self.options.memory, self.store)
        return prepared if self.options.split is not None else self._covering(prepared)

    def open_model(self) -> tuple[NodeModel, TaskHead]:
        """The model, and the head that turns its outputs into predictions."""
        return self.run.load_model(self.prepared), self.run.head(self.prepared)

    def row_width(self) -> int:
        if not self.writes_all_columns:
            return 2
        return {"binary": 2, "regression": 1}.get(self.head.task, self.head.num_outputs)

    def open_rows(self) -> None:
        """The rows of the Prepared to predict, and their batches."""
        prepared, config, split = self.prepared, self.config, self.options.split
        self.id_positions: Array | None = None
        """Positions of the nodes of `options.ids` in the sorted `rows`."""
        self.rows: Array | range
        if self.nodes is not None:
            self.rows, self.id_positions = np.unique(prepared.rows_of(self.nodes), return_inverse=True)
        else:
            self.rows = range(len(prepared.nodes)) if split is None else prepared.split_rows(split)
        self.own_positions = self.ranks.batches_of(range(len(self.rows)), config.eval_batch_size)
        """This rank's positions in `rows`."""
        device = self.accelerator.device
        self.loader = make_loader(prepared, self.model.eval(), config, device, self.place, self.store)
        self.scorer = Scorer(self.model, self.head, config, self.accelerator, self.loader, prepared, self.store)
        at_once = nodes_at_once(self.loader, config)
        if is_worth_compiling(config, device, len(self.own_positions) // at_once):
            self.model.compile_for({at_once})

    def table(self, done: int, found: Array) -> pa.Table:
        """The output table for `found`, the predictions of the nodes from position `done` on."""
        ids = self.store.id_array(self.nodes_of(done, found))
        return prediction_table(self.store, ids, found, self.options.all_probabilities)

    # all rows

    def write(self) -> Written:
        """Write all rows to `options.out`. Memory does not grow with their number."""
        assert self.options.out is not None
        num_rows = 0
        for table in self._written():
            if not num_rows:
                first = table.slice(0, 5)
            num_rows += table.num_rows
        return Written(Path(self.options.out), num_rows, first.column_names, first, self.reused)

    def collect(self) -> pa.Table:
        """All rows as one table; also writes them to `options.out` if that is given."""
        return pa.concat_tables(list(self._written()))

    def _written(self) -> Iterator[pa.Table]:
        """An empty table, then the tables of all rows. Writes each before it is yielded."""
        out = self.options.out
        with ExitStack() as stack:
            file = None
            if out is not None and self.ranks.is_first:
                file = stack.enter_context(prediction_file(out, self.options.overwrite, self.options.csv_safe))
            empty = self.table(0, np.empty((0, self.width), np.float32))
            for table in chain([empty], self.tables()):
                if file is not None:
                    file.add(table)
                yield table

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in order, on rank 0; no rows on other ranks."""
        done = 0
        for group in self.groups():
            yield self.table(done, group)
            done += len(group)

    def groups(self) -> Iterator[Array]:
        """[·, w] the predictions of `tables` as arrays."""
        found = self._gather_ranks()
        if self.id_positions is not None:  # nodes of `options.ids`: few enough for memory
            every = np.concatenate([np.empty((0, self.width), np.float32), *found])
            found = iter([every[self.id_positions]] if self.ranks.is_first else [])
        return _regrouped(found, self._group_rows)

    @property
    def _group_rows(self) -> int:
        return max(1, min(_GROUP_ROWS, _GROUP_NUMBERS // self.width))

    def _gather_ranks(self) -> Iterator[Array]:
        """[·, w] predictions for `rows`, in order: those of all ranks on rank 0, none on the others. These collect
        theirs in an unnamed temporary file, which leaves nothing behind after a crash, and send it to rank 0."""
        if self.ranks.is_first:
            yield from self._predict_own_rows()
            for rank in range(1, self.ranks.size):
                while (rows := self.ranks.receive_rows(rank, self.width)) is not None:
                    yield rows.numpy()
            return
        folder = Path(self.options.out or ".").parent
        with disk_errors(folder), TemporaryFile(dir=folder if folder.is_dir() else None) as stream:
            for rows_nw in self._predict_own_rows():
                stream.write(rows_nw.tobytes())
            stream.seek(0)
            while piece := stream.read(4 * self.width * self._group_rows):
                self.ranks.send_rows(torch.frombuffer(bytearray(piece), dtype=torch.float32).view(-1, self.width))
        self.ranks.send_rows(torch.empty(0, self.width))

    def _predict_own_rows(self) -> Iterator[Array]:
        """[·, w] this rank's predictions for its part of `rows`, in order."""
        waiting: list[Tensor] = []
        for part in self._segments():
            rows = np.asarray(self.rows[part.start : part.stop])
            loaders, done = self.scorer.loaders(rows, self.num_eval_samples), part.start - self.own_positions.start
            for _, logits, _ in self.scorer.logits(loaders, rows):
                waiting.append(logits)
                done += len(logits)
                self.show("predict", done, len(self.own_positions))
                if sum(each.numel() for each in waiting) >= _NUMBERS_AT_ONCE:
                    yield self.decide(torch.cat(waiting))
                    waiting = []
        if waiting:
            yield self.decide(torch.cat(waiting))

    def decide(self, logits: Tensor) -> Array:
        """[n, w] probabilities of every class, or the best class and its probability."""
        probabilities = self.head.probabilities(logits)
        if not self.writes_all_columns:
            probability, best = probabilities.max(dim=1)
            # exact up to 16 million classes
            probabilities = torch.stack([best.to(probability.dtype), probability], dim=1)
        return probabilities.cpu().numpy()

    def _segments(self) -> list[range]:
        """This rank's positions in segments of whole batches. The last segment has at least one full batch if possible:
        a smaller one would be padded to a compiled batch size. Layer-wise inference uses a single segment: it would
        compute all layers again for each segment."""
        size = self.config.eval_batch_size
        step = max(1, _SEGMENT_ROWS // size) * size
        if isinstance(self.model, MessagePassing) and self.config.layerwise_inference:
            step = max(1, len(self.own_positions))
        starts = list(range(self.own_positions.start, self.own_positions.stop, step))
        if len(starts) > 1 and self.own_positions.stop - starts[-1] < size:
            del starts[-1]
        return [range(low, high) for low, high in pairwise([*starts, self.own_positions.stop])]

    def nodes_of(self, done: int, found: Array) -> Array:
        """The nodes that these rows belong to, from position `done` on. Raises if a row is not finite."""
        part = slice(done, done + len(found))
        nodes = self.prepared.nodes[self.rows[part]] if self.nodes is None else self.nodes[part]
        if (bad := first_not_finite(found)) is not None:
            raise self.not_a_number(self.store.ids_of(np.asarray(nodes[bad : bad + 1]))[0])
        return np.asarray(nodes)

    def not_a_number(self, id_: Any) -> ConfigError:
        """The error for a node whose prediction is not finite, with its likely cause and what to do."""
        error = f"what the model says of node {id_!r} is not a finite number"
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            return ConfigError(f"{error}, since its weights are not: train it again")
        return ConfigError(
            f"{error}: features of this node or around it are too large for the model, or damaged; mend them, or train "
            f"with `prepare.tokens.normalize=per_feature` (largegt inspect {quoted(self.store.path)} "
            "--verify looks for damage)"
        )

    def _covering(self, prepared: Prepared) -> Prepared:
        """A Prepared with a row for every requested node, or for all nodes. Sampling depends only on (seed, node), so
        the rows of nodes in both are equal."""
        nodes = self.nodes
        is_whole = len(prepared.nodes) == self.store.num_nodes
        if is_whole or (nodes is not None and (prepared.rows_of(nodes) >= 0).all()):
            return prepared
        config = prepared.config.for_all_nodes()
        version = None if prepared.version is None else prepared.version.fingerprint
        covering = prepare(self.store, config, progress=self.show, memory=self.options.memory, version=version)
        covering.reused |= {f"{name} of labelled nodes": counts for name, counts in prepared.reused.items()}
        return covering


def first_not_finite(rows_nw: Array) -> int | None:
    """The first row with a value that is not finite; None if there is none."""
    is_finite = np.isfinite(rows_nw).all(axis=1)
    return None if is_finite.all() else int(np.argmin(is_finite))


def _regrouped(pieces: Iterator[Array], size: int) -> Iterator[Array]:
    """The same rows in pieces of `size`; the last piece may be shorter."""
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


def prediction_table(store: GraphStore, ids: Any, found: Array, all_probabilities: bool) -> pa.Table:
    """The output table of predictions for the nodes with these ids."""
    found = np.asfortranarray(found)  # contiguous columns
    columns: dict[str, Any] = {"node": ids}
    if store.task == "regression":
        return pa.table(columns | {"value": found[:, 0]})
    if store.task == "multilabel":
        for name, column in zip(store.classes, found.T, strict=True):
            columns[f"label_{name}"] = (column >= 0.5).astype(np.int8)
            if all_probabilities:
                columns[f"probability_{name}"] = column
        return pa.table(columns)
    best, probability = found[:, 0].astype(np.int64), found[:, 1]
    if all_probabilities:
        best, probability = found.argmax(axis=1), found.max(axis=1)
    columns |= {"label": pa.array(store.classes).take(pa.array(best)), "probability": probability}
    if all_probabilities:
        columns |= {f"probability_{name}": column for name, column in zip(store.classes, found.T, strict=True)}
    return pa.table(columns)
