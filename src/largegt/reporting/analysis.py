"""Analyse: a run's best weights → their errors on the test nodes, and what the model uses.

Enters: a run with its store and preparation. Leaves: a dict of plain numbers, cached as `analysis.json` in the run's
folder as long as the weights stay the same. Cost: a prediction of at most `max_nodes` nodes, and their neighbours. The
analysis reads the test split after training; no choice depends on it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import entr

from largegt.data.store import GraphStore
from largegt.errors import DiskError, FormatError, InputError
from largegt.explanation.columns import column_use, token_columns
from largegt.inference.embed import Embedder, vectors_head
from largegt.io.atomic import write_text_atomically
from largegt.io.checksums import file_checksum, read_sealed, sealed
from largegt.loader.loader import TokenLoader
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.cache_key import is_prepared
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from largegt.runtime.progress import Progress
from largegt.training.evaluate import Scorer
from largegt.training.metrics import Scores
from largegt.training.run import Run
from largegt.training.run_checksums import check_file
from largegt.types import Array, PathLike

from . import tallies
from .attention import attention_use, kinds
from .node_map import MAX_POINTS, node_map

FILE = "analysis.json"
MAX_NODES = 20_000
_VERSION = 5
_MOST_CELLS = 12
_MOST_CLASSES = 60
_ATTENTION_NODES = 1000
_ATTENTION_BATCH = 64
_COLUMN_NODES = 32


def analyse(
    run: PathLike | Run, max_nodes: int = MAX_NODES, progress: Progress | None = None, device: str | None = None
) -> dict[str, Any]:
    """Analyse predictions for (a sample of) the test nodes, or for validation nodes if there are no test nodes."""
    opened = Run.open(run)
    weights = opened.path / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{opened.path} has no weights to look into")
    identity = {"version": _VERSION, "weights": file_checksum(weights), "max_nodes": max_nodes}
    with suppress(FormatError):
        known: dict[str, Any] = read_sealed(opened.path / FILE, "it is made again")
        if all(known.get(key) == value for key, value in identity.items()):
            return known
    made = json.dumps(_analysis(opened, max_nodes, progress, device))
    # six digits are enough for a chart and keep the file small
    found = json.loads(made, parse_float=lambda text: float(f"{float(text):.6g}"), parse_constant=lambda _: None)
    with suppress(DiskError):  # a read-only run folder has no cached analysis
        write_text_atomically(opened.path / FILE, sealed({**identity, **found}))
    return {**identity, **found}


def codebook_use(run: PathLike | Run) -> dict[str, Any] | None:
    """Nodes per centroid, largest first, from the weights of a run with a GlobalModule; None without one."""
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
    return {
        "centroids": len(counts), "live": int((counts > 0).sum()), "nodes": int(counts.sum()),
        "effective": float(np.exp(entr(counts / max(1, counts.sum())).sum())), "sizes": counts.tolist(),
    }  # fmt: skip


def _analysis(run: Run, max_nodes: int, progress: Progress | None, device: str | None) -> dict[str, Any]:
    store = run.store()
    if not is_prepared(store, run.config.preparation):
        raise InputError(
            f"the preparation of {run.path} is no longer in {store.place}: `lg.evaluate({str(run.path)!r})` makes "
            "it again"
        )
    prepared = run.prepared(progress)
    split = "test" if len(prepared.split_rows("test")) else "valid"
    rows = every = prepared.split_rows(split)
    if not len(every):
        raise InputError(f"{store.path} has no test and no validation nodes")
    if len(every) > max_nodes:
        rows = np.sort(np.random.default_rng(0).choice(every, max_nodes, replace=False))
    if device is None and run.config.train.device == "cuda" and not torch.cuda.is_available():
        device = "cpu"
    config = run.train_config(device)
    scorer = Scorer.of_run(run, prepared, store, config)
    head, loaders, stage = scorer.head, scorer.loaders(rows, config.num_eval_samples), f"analyse {run.path.name}"
    scores = Scores(head)
    probabilities, truths = [], []
    for _, logits, labels in scorer.logits(loaders, rows, progress, stage):
        scores.add(logits, labels)
        probabilities.append(head.probabilities(logits).cpu().numpy())
        truths.append(labels.cpu().numpy())
    nodes = np.asarray(prepared.nodes[rows], dtype=np.int64)
    found: dict[str, Any] = {
        "task": head.task, "split": split, "num_nodes": len(rows), "num_split": len(every), "scores": scores.result(),
        **_answers(store, nodes, np.concatenate(truths), np.concatenate(probabilities)),
    }  # fmt: skip
    if isinstance(scorer.model, LargeGT):
        some = _spread(rows, MAX_POINTS)
        embedder = replace(scorer, model=Embedder(scorer.model), head=vectors_head(scorer.model.hidden_dim))
        vectors = embedder.logits(scorer.loaders(some, config.num_eval_samples), some, progress, stage)
        vectors_nd = np.concatenate([each.float().cpu().numpy() for _, each, _ in vectors])
        found["map"] = node_map(store, np.asarray(prepared.nodes[some], dtype=np.int64), vectors_nd)
        found |= _attention(store, prepared, scorer.model, loaders[0], _spread(rows, _ATTENTION_NODES))
        found |= _columns(store, prepared, scorer, _spread(rows, _COLUMN_NODES))
    return found


def _answers(store: GraphStore, nodes: Array, truth: Array, probability: Array) -> dict[str, Any]:
    """Predictions against labels: by class or value, by degree, by neighbourhood."""
    lists = MappedCSR.of_store(store, "both")
    degree = lists.degrees(nodes)
    if store.task == "regression":
        predicted, truth = probability[:, 0].astype(np.float64), truth.astype(np.float64)
        return {
            "values": tallies.value_cells(truth, predicted), "by_value": tallies.by_value(truth, predicted),
            "by_degree": tallies.by_degree(degree, np.abs(predicted - truth)),
        }  # fmt: skip
    names = [str(name) for name in store.classes]
    if store.task == "multilabel":
        known = ~np.isnan(truth)
        right = ((probability >= 0.5) == (truth > 0.5)) & known
        answered = known.any(axis=1)
        return {
            "num_classes": len(names), "per_class": _largest(names, tallies.label_scores(truth, probability)),
            "calibration": tallies.calibration(probability[known], truth[known] > 0.5),
            "by_degree": tallies.by_degree(degree[answered], right.sum(axis=1)[answered] / known.sum(axis=1)[answered]),
        }  # fmt: skip
    predicted = probability.argmax(axis=1)
    right = predicted == truth
    matrix = tallies.confusion(truth, predicted, probability.shape[1])
    classes, cells = tallies.folded(matrix, names, _MOST_CELLS)
    share = tallies.homophily(lists, store.labels, nodes)
    return {
        "num_classes": len(names), "per_class": _largest(names, tallies.class_scores(matrix)),
        "confusion": {"classes": classes, "cells": cells},
        "calibration": tallies.calibration(probability.max(axis=1), right),
        "by_degree": tallies.by_degree(degree, right), "by_homophily": tallies.by_share(share, right),
        "no_neighbours": int(np.isnan(share).sum()),
    }  # fmt: skip


def _largest(names: list[str], scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores with the names of their classes, largest class first."""
    named = [{"name": name, **score} for name, score in zip(names, scores, strict=True)]
    return sorted(named, key=lambda one: -int(one["support"]))[:_MOST_CLASSES]


@torch.no_grad()
def _attention(store: GraphStore, prepared: Prepared, model: LargeGT, loader: Any, rows: Array) -> dict[str, Any]:
    """Readout weights, without deduplication of local nodes."""
    module = model.local_module
    if module is None:
        return {}
    plain, weights = replace(loader, distinct=False), []
    for piece in torch.split(torch.from_numpy(rows.astype(np.int64)), _ATTENTION_BATCH):
        batch = plain.gather(piece.to(plain.table.device))
        embedded = model.embed(replace(batch, tokens=batch.tokens.float()))
        assert embedded.tokens is not None
        h_btd = module.hidden_states(embedded.tokens)
        weights.append(module.readout_weights(h_btd).double().cpu().numpy())
    nodes_bk = np.asarray(prepared.token_nodes[np.asarray(prepared.local_rows[rows])], dtype=np.int64)
    kind_bk = kinds(MappedCSR.of_store(store, "both"), nodes_bk)
    return {"attention": attention_use(np.concatenate(weights), kind_bk, prepared.token_names)}


def _columns(store: GraphStore, prepared: Prepared, scorer: Scorer, rows: Array) -> dict[str, Any]:
    """Attributions of table columns; nothing if there are none or the model reads no features."""
    model, head, loader, columns = scorer.model, scorer.head, scorer.loader, token_columns(store, prepared.config)
    assert isinstance(model, LargeGT)
    assert isinstance(loader, TokenLoader)
    reads_features = model.local_module is not None or model.input is not None
    if not columns or not reads_features or (head.task == "multiclass" and head.num_outputs < 2):
        return {}
    return {"columns": column_use(model, head, loader, rows, columns)}


def _spread(rows: Array, most: int) -> Array:
    """At most `most` of the rows, spread evenly."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64))]
