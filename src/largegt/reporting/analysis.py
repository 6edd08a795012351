"""Analyse: a run's best weights → what they get right and wrong on the test nodes.

Enters: a run whose store and preparation are at hand. Leaves: a dict of plain numbers, kept as `analysis.json` in the
run's folder and taken from there while the weights are the same. Cost: a prediction of at most `max_nodes` nodes, and
the neighbours of those; the test split is read after training, to look at, never to choose by.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.data.store import GraphStore
from largegt.errors import DiskError, FormatError, InputError
from largegt.explanation.columns import column_use, token_columns
from largegt.inference.embed import Embedder, vectors_head
from largegt.io.atomic import write_text_atomically
from largegt.io.checksums import file_checksum, read_sealed, sealed
from largegt.loader.loader import TokenLoader
from largegt.models.largegt.local_module import LocalNodeInputs
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.cache_key import is_prepared
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.progress import Progress
from largegt.runtime.text import quoted
from largegt.training.checksums import check_file
from largegt.training.evaluate import Scorer
from largegt.training.metrics import Scores, TaskHead
from largegt.training.run import Run
from largegt.training.setup import Loader
from largegt.types import Array, PathLike

from . import tallies
from .attention import attention_use
from .node_map import MAX_POINTS, node_map

FILE = "analysis.json"
MAX_NODES = 20_000
_VERSION = 4
_MOST_CELLS = 12
_MOST_CLASSES = 60
_ATTENTION_NODES = 1000
_ATTENTION_BATCH = 64
_COLUMN_NODES = 32


def analyse(
    run: PathLike | Run, max_nodes: int = MAX_NODES, progress: Progress | None = None, device: str | None = None
) -> dict[str, Any]:
    """What the run's weights do on (a sample of) its test nodes, or its validation nodes where there are no others."""
    opened = Run.open(run)
    weights = opened.path / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{opened.path} has no weights to look into")
    identity = {"version": _VERSION, "weights": file_checksum(weights), "max_nodes": max_nodes}
    if (known := _kept(opened.path / FILE, identity)) is not None:
        return known
    found: dict[str, Any] = json.loads(json.dumps(_rounded(_analysis(opened, max_nodes, progress, device))))
    with suppress(DiskError):  # a run folder that cannot be written to is analysed anew next time
        write_text_atomically(opened.path / FILE, sealed({**identity, **found}))
    return {**identity, **found}


def codebook_use(run: PathLike | Run) -> dict[str, Any] | None:
    """Nodes per centroid, most first, of a run with a GlobalModule: from the weights alone. None without one."""
    from safetensors import safe_open

    weights = Run.open(run).path / "model.safetensors"
    if not weights.is_file():
        return None
    check_file(weights.parent, weights)
    with safe_open(str(weights), framework="np") as tensors:
        name = next((name for name in tensors.keys() if name.endswith("codebook.counts")), None)  # noqa: SIM118
        if name is None:
            return None
        counts = np.sort(tensors.get_tensor(name))[::-1].astype(np.int64)
    shares = counts[counts > 0] / max(1, counts.sum())
    return {
        "centroids": len(counts), "live": int((counts > 0).sum()), "nodes": int(counts.sum()),
        "effective": float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0,
        "sizes": counts.tolist(),
    }  # fmt: skip


def _kept(file: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier analysis of the same weights found."""
    try:
        known = read_sealed(file, "it is made again")
    except FormatError:
        return None
    return known if all(known.get(key) == value for key, value in identity.items()) else None


def _analysis(run: Run, max_nodes: int, progress: Progress | None, device: str | None) -> dict[str, Any]:
    store = run.store()
    if not is_prepared(store, run.config.preparation):
        raise InputError(
            f"the preparation of {run.path} is no longer in {store.place}: largegt evaluate {quoted(run.path)} makes "
            "it again"
        )
    prepared = run.prepared(progress)
    split = "test" if len(prepared.split_rows("test")) else "valid"
    every = prepared.split_rows(split)
    if not len(every):
        raise InputError(f"{store.path} has no test and no validation nodes")
    rows = every
    if len(every) > max_nodes:
        rows = np.sort(np.random.default_rng(0).choice(every, max_nodes, replace=False))
    if device is None and run.config.train.device == "cuda" and not torch.cuda.is_available():
        device = "cpu"
    config = run.train_config(device)
    scorer = Scorer.of_run(run, prepared, store, config)
    model, head, loaders = scorer.model, scorer.head, scorer.loaders(rows, config.draws)
    scores = Scores(head)
    probabilities, truths = [], []
    stage = f"analyse {run.path.name}"
    for _, logits, labels in scorer.logits(loaders, rows, progress, stage):
        scores.add(logits, labels)
        probabilities.append(head.probabilities(logits).cpu().numpy())
        truths.append(labels.cpu().numpy())
    probability, truth = np.concatenate(probabilities), np.concatenate(truths)
    nodes = np.asarray(prepared.nodes[rows], dtype=np.int64)
    found: dict[str, Any] = {
        "task": head.task, "split": split, "num_nodes": len(rows), "num_split": len(every), "scores": scores.result(),
    }  # fmt: skip
    describe = {"regression": _regression, "multilabel": _multilabel}.get(head.task, _classes)
    found |= describe(store, nodes, truth, probability)
    if isinstance(model, LargeGT) and model.local_module is not None:
        sample = rows[:: max(1, len(rows) // _ATTENTION_NODES)][:_ATTENTION_NODES]
        batches = _token_batches(model, loaders[0], prepared, sample)
        found["attention"] = attention_use(model.local_module, batches, store.csr("both"), prepared.token_names)
    if isinstance(model, LargeGT):
        some = _spread(rows, MAX_POINTS)
        embedder = replace(scorer, model=Embedder(model), head=vectors_head(run.config.model.hidden))
        vectors = embedder.logits(scorer.loaders(some, config.draws), some, progress, stage)
        vectors_nd = np.concatenate([each.float().cpu().numpy() for _, each, _ in vectors])
        found["map"] = node_map(store, np.asarray(prepared.nodes[some], dtype=np.int64), vectors_nd)
        found |= _columns(store, prepared, model, head, loaders[0], rows)
    return found


def _columns(
    store: GraphStore, prepared: Prepared, model: LargeGT, head: TaskHead, loader: Loader, rows: Array
) -> dict[str, Any]:
    """What the columns of tables carry; nothing where there are none, or where the model reads no features."""
    columns = token_columns(store, prepared.config)
    reads_features = model.local_module is not None or model.input is not None
    if not columns or not reads_features or (head.task == "multiclass" and head.num_outputs < 2):
        return {}
    assert isinstance(loader, TokenLoader)
    return {"columns": column_use(model, head, loader, _spread(rows, _COLUMN_NODES), columns)}


def _spread(rows: Array, most: int) -> Array:
    """At most so many of the rows, spread evenly."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))]


# the tasks -------------------------------------------------------------------------------------------------------


def _classes(store: GraphStore, nodes: Array, truth: Array, probability: Array) -> dict[str, Any]:
    """Multiclass and binary: confusion, scores of each class, calibration, accuracy by degree and homophily."""
    names = [str(name) for name in store.classes]
    predicted, confidence = probability.argmax(axis=1), probability.max(axis=1)
    right = predicted == truth
    matrix = tallies.confusion(truth, predicted, probability.shape[1])
    scores: list[dict[str, Any]] = [
        {"name": name, **score} for name, score in zip(names, tallies.class_scores(matrix), strict=True)
    ]
    scores.sort(key=lambda score: -score["support"])
    kept, cells = tallies.folded(matrix, names, _MOST_CELLS)
    indptr, indices = store.csr("both")
    share = tallies.homophily(indptr, indices, store.labels, nodes)
    return {
        "num_classes": len(names),
        "confusion": {"classes": kept, "cells": cells},
        "per_class": scores[:_MOST_CLASSES],
        "calibration": tallies.calibration(confidence, right),
        "by_degree": tallies.by_degree(indptr[nodes + 1] - indptr[nodes], right),
        "by_homophily": tallies.by_share(share, right),
        "no_neighbours": int(np.isnan(share).sum()),
    }


def _multilabel(store: GraphStore, nodes: Array, truth: Array, probability: Array) -> dict[str, Any]:
    """Scores of each label; calibration and the share of right answers over all of them."""
    known = ~np.isnan(truth)
    right = ((probability >= 0.5) == (truth > 0.5)) & known
    indptr, _ = store.csr("both")
    labels = tallies.label_scores(truth, probability, [str(name) for name in store.classes])
    labels.sort(key=lambda label: -label["support"])
    answered = known.any(axis=1)
    share = right.sum(axis=1)[answered] / known.sum(axis=1)[answered]
    return {
        "num_classes": len(labels),
        "per_class": labels[:_MOST_CLASSES],
        "calibration": tallies.calibration(probability[known], truth[known] > 0.5),
        "by_degree": tallies.by_degree((indptr[nodes + 1] - indptr[nodes])[answered], share),
    }


def _regression(store: GraphStore, nodes: Array, truth: Array, probability: Array) -> dict[str, Any]:
    """Predicted against true values, and the error by value and degree."""
    predicted, truth = probability[:, 0].astype(np.float64), truth.astype(np.float64)
    indptr, _ = store.csr("both")
    return {
        "values": tallies.value_cells(truth, predicted),
        "by_value": tallies.by_value(truth, predicted),
        "by_degree": tallies.by_degree(indptr[nodes + 1] - indptr[nodes], np.abs(predicted - truth)),
    }


def _token_batches(
    model: LargeGT, loader: Loader, prepared: Prepared, rows: Array
) -> Iterator[tuple[Tensor, LocalNodeInputs, Array]]:
    """(tokens, inputs of local nodes, the nodes they belong to) of some rows, each local node standing for itself."""
    assert isinstance(loader, TokenLoader)
    plain = replace(loader, distinct=False)
    for low in range(0, len(rows), _ATTENTION_BATCH):
        some = rows[low : low + _ATTENTION_BATCH]
        batch = plain.gather(torch.from_numpy(np.ascontiguousarray(some, dtype=np.int64)).to(loader.table.device))
        nodes_bk = np.asarray(prepared.token_nodes[np.asarray(prepared.local_rows[some])])
        yield batch.tokens.float(), model.local_node_inputs(batch), nodes_bk


def _rounded(value: Any) -> Any:
    """Six digits are enough to look at, and keep the file small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
