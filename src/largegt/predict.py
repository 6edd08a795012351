"""Predict: a run's best weights → labels and probabilities for all nodes, some nodes, or one split.

Enters: a run folder and the nodes asked for. Leaves: a table with the user's own ids, and a Parquet, CSV or npz file.
Cost: memory is the prediction table, two numbers per node unless every probability is asked for; a node that was not
prepared is prepared first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from lightning.fabric import Fabric
from torch import Tensor

from .baselines.loader import NeighborLoader
from .config import TrainConfig
from .errors import ConfigError, disk_errors
from .graph.store import GraphStore
from .model.node_model import NodeModel
from .prepare.prepared import Prepared, prepare
from .progress import Progress
from .ranks import Ranks
from .tokens.loader import TokenLoader
from .tokens.rows import is_worth_reusing, with_rows
from .training.evaluate import averaged_logits
from .training.metrics import TaskHead
from .training.run import Run
from .training.setup import Loader, is_worth_compiling, make_fabric, make_loaders
from .types import Array, PathLike

_BATCHES_AT_ONCE = 16
_T = TypeVar("_T")
_SUFFIXES = (".parquet", ".csv", ".npz")


def predict(
    run: PathLike | Run,
    out: PathLike | None = None,
    ids: Iterable[Any] | str | int | None = None,
    split: str | None = None,
    all_probabilities: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    draws: int | None = None,
    memory: str | int | None = None,
) -> pa.Table:
    """Predictions of a run for the nodes with these ids, for one split, or for every node of its store.

    Columns: `node` (the user's own id), `label` and `probability`; with `all_probabilities` one more per class.
    With several `draws`, predictions are averaged over as many samples of local nodes; when not given, as many as the
    run is set to (`train.draws`). `memory` is for preparing nodes that are not prepared yet. Under torchrun each
    process predicts a part; the first one writes and returns the whole, the others return a table without rows.
    Multi-label: a 0/1 column `label_NAME` per label. Regression: `value`. `out` ends in .parquet, .csv or .npz.
    """
    if out is not None and Path(out).suffix not in _SUFFIXES:
        raise ConfigError(f"cannot write {out}: predictions end in {', '.join(_SUFFIXES)}")
    if ids is not None and split is not None:
        raise ConfigError("give predict ids or a split, not both")
    opened = Run.open(run)
    config = opened.train_config(device)
    draws = config.draws if draws is None else draws
    store = opened.store()
    ranks = Ranks.here(config.device)
    progress = progress if ranks.is_first else None
    with ranks.in_turn():
        prepared = opened.prepared(progress, reachable=draws > 1, memory=memory)
    if split is not None:
        nodes = np.asarray(prepared.nodes[prepared.split_rows(split)])
    else:
        wanted = [ids] if isinstance(ids, str | int) else ids
        nodes = np.arange(store.num_nodes) if wanted is None else store.nodes_of(list(wanted))
    fabric = make_fabric(config, opened.config.model, ranks)
    model = opened.load_model(prepared).to(fabric.device)
    head = opened.head(prepared)
    with ranks.in_turn():
        prepared = _covering(prepared, store, nodes, progress, memory)
    rows, place = np.unique(prepared.rows_of(nodes), return_inverse=True)
    own_rows = ranks.batches_of(rows, config.eval_batch_size)
    if is_worth_compiling(config, fabric.device, len(own_rows) // config.eval_batch_size):
        model.compile_for({config.eval_batch_size})
    loaders = make_loaders(prepared, model, config, fabric.device, store, own_rows, draws, opened.config.tokens.table)
    loaders = _reusing(loaders, model.eval(), config, len(rows), fabric)
    batches = averaged_logits(model, loaders, own_rows, config, head, fabric, progress, "predict")
    every = all_probabilities or store.task in ("multilabel", "regression")
    parts = ranks.collected(_collected((logits for _, logits, _ in batches), head, every, len(own_rows)))
    if not ranks.is_first:
        return _table(store, nodes[:0], np.empty((0, _width(head, every)), np.float32), all_probabilities)
    table = _table(store, nodes, np.concatenate(parts)[place], all_probabilities)
    if out is not None:
        write_table(table, out)
    return table


def _reusing(
    loaders: list[Loader], model: NodeModel, config: TrainConfig, num_rows: int, fabric: Fabric
) -> list[Loader]:
    """Loaders of rows computed beforehand, where that is asked for or pays."""
    first = loaders[0]
    if isinstance(first, NeighborLoader) or config.reuse == "no":
        return loaders
    if config.reuse == "auto" and not is_worth_reusing(first, num_rows * len(loaders)):
        return loaders
    rows = with_rows(first, model, fabric.autocast()).rows
    return [replace(loader, rows=rows) for loader in loaders if isinstance(loader, TokenLoader)]


def _collected(batches: Iterator[Tensor], head: TaskHead, every: bool, num_rows: int) -> Array:
    """[n, c] probabilities of every class, or [n, 2] the best class and its probability."""
    by_row = np.empty((num_rows, _width(head, every)), dtype=np.float32)
    done = 0
    together = (torch.cat(several) for several in _several(batches, _BATCHES_AT_ONCE))
    for found in _on_the_host(_decided(head.probabilities(logits), every) for logits in together):
        by_row[done : done + len(found)] = found
        done += len(found)
    return by_row


def _width(head: TaskHead, every: bool) -> int:
    return {"binary": 2, "regression": 1}.get(head.task, head.num_outputs) if every else 2


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


def _decided(probabilities: Tensor, every: bool) -> Tensor:
    if every:
        return probabilities
    probability, best = probabilities.max(dim=1)
    return torch.stack([best.to(probability.dtype), probability], dim=1)  # exact up to 16 million classes


def _copied(found: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """On its way to this machine's memory, and what says that it is there."""
    if not found.is_cuda:
        return found, None
    copy = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    copy.copy_(found, non_blocking=True)
    return copy, torch.cuda.current_stream(found.device).record_event()


def _several(items: Iterator[_T], count: int) -> Iterator[list[_T]]:
    """Lists of up to `count` items."""
    while several := list(islice(items, count)):
        yield several


def write_table(table: pa.Table, out: PathLike) -> None:
    """Write aside and rename, in the format the name asks for."""
    out = Path(out)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}{out.suffix}")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            if out.suffix == ".parquet":
                import pyarrow.parquet as pq

                pq.write_table(table, partial)
            elif out.suffix == ".csv":
                from pyarrow import csv

                csv.write_csv(table, partial)
            else:
                columns: dict[str, Any] = {name: _plain(table[name]) for name in table.column_names}
                np.savez(partial, **columns)
            os.replace(partial, out)
        finally:
            partial.unlink(missing_ok=True)


def _covering(
    prepared: Prepared, store: GraphStore, nodes: Array, progress: Progress | None, memory: str | int | None
) -> Prepared:
    """A Prepared that has a row for every node asked for. Sampling depends on (seed, node) alone, so the rows that
    both have are the same."""
    if (prepared.rows_of(nodes) >= 0).all():
        return prepared
    everyone = prepared.config.local_nodes.model_copy(update={"nodes": "all"})
    config = prepared.config.model_copy(update={"local_nodes": everyone})
    return prepare(store, config, progress=progress, memory=memory)


def _table(store: GraphStore, nodes: Array, found: Array, all_probabilities: bool) -> pa.Table:
    columns: dict[str, Any] = {"node": store.id_array(nodes)}
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


def _plain(column: Any) -> Array:
    """A column as a NumPy array that needs no pickle."""
    values: Array = column.to_numpy(zero_copy_only=False)
    return values.astype(str) if values.dtype == object else values
