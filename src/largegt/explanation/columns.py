"""Columns: attributions of the columns of a user's tables, summed over the features of each column.

A token row has the features of the node table's columns, then degrees if configured, then means of edge features. A
column has the same span in H and in the contexts. Enters: attributions and the store with the names of columns.
Leaves: a row per column for one node's explanation, or means over nodes for the report; none for a store whose features
came from an array. Cost: a forward pass per listed column and sample; for the report, 32 to 256 forward and backward
passes per node, in small batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from largegt.config.schema import PrepareConfig
from largegt.data.store import GraphStore
from largegt.loader.loader import TokenLoader
from largegt.models.largegt.model import LargeGT
from largegt.training.metrics import TaskHead
from largegt.types import Array

from .attribution import Attribution, scores
from .explanation import InputColumn
from .inputs import Inputs, OpenModel

MOST_COLUMNS = 100
_BATCH_SIZE = 16
_MEAN_ROWS = 4096
"""The average node is the mean of so many token rows, spread evenly over the table."""


@dataclass(frozen=True)
class TokenColumn:
    """One column of a table, and its span in a token row."""

    name: str
    table: Literal["nodes", "edges", "graph"]
    span: slice
    features: list[str]


def token_columns(store: GraphStore, config: PrepareConfig) -> list[TokenColumn]:
    """The columns of token rows whose names the store has."""
    made: list[TokenColumn] = []
    first = store.num_features
    degrees = [] if not config.tokens.add_degrees else ["out degree", "in degree"] if store.directed else ["degree"]
    if store.columns is not None:
        made += [TokenColumn(one.name, "nodes", span, one.names) for one, span in store.columns.spans]
        made += [TokenColumn(name, "graph", slice(at, at + 1), [name]) for at, name in enumerate(degrees, start=first)]
    if store.edge_columns is not None and config.tokens.use_edge_features is True:
        first += len(degrees)
        made += [TokenColumn(one.name, "edges", slice(first + span.start, first + span.stop), one.names)
                 for one, span in store.edge_columns.spans]  # fmt: skip
    return made


def input_columns(found: Attribution, columns: list[TokenColumn]) -> list[InputColumn]:
    """The columns with the largest attributions, largest first."""
    of_all_df, of_itself_df = _by_feature(found.carried)
    of_all, of_itself = of_all_df.sum(axis=0), of_itself_df.sum(axis=0)
    made = [
        InputColumn(
            column=one.name,
            table=one.table,
            carried=float(of_all[one.span].sum()),
            itself=float(of_itself[one.span].sum()),
            without=0.0,
            mostly=one.features[int(np.abs(of_all[one.span]).argmax())],
        )
        for one in columns
        if len(of_all)
    ]
    order = sorted(range(len(made)), key=lambda at: -abs(made[at].carried))[:MOST_COLUMNS]
    return [replace(made[at], without=_without(found, columns[at].span)) for at in order]


def _by_feature(carried: Inputs) -> tuple[Array, Array]:
    """(all, own) float64 [d, f]: the attribution of each feature, summed over tokens and local nodes. Own are the
    features H of the node's own token and those that the residual adds."""
    parts = [(carried["tokens"].sum(dim=1), carried["tokens"][:, 0])] if "tokens" in carried else []
    parts += [(carried["own"], carried["own"])] if "own" in carried else []
    if not parts:
        return np.zeros((1, 0)), np.zeros((1, 0))
    of_all, of_itself = (torch.stack(same).sum(dim=0).cpu().numpy() for same in zip(*parts, strict=True))
    return of_all, of_itself


def _without(found: Attribution, span: slice) -> float:
    """How much the score falls when all tokens have the average node's values in these features."""
    changed = {name: found.inputs[name].clone() for name in ("tokens", "own") if name in found.inputs}
    for name, part in changed.items():
        part[..., span] = found.baseline[name][..., span]
    return found.without(**changed)


def mean_token(loader: TokenLoader) -> Tensor:
    """[h, f] the mean of the token table's rows."""
    num_rows = loader.table.num_token_rows
    rows = np.unique(np.linspace(0, num_rows - 1, min(num_rows, _MEAN_ROWS)).astype(np.int64))
    tokens = loader.table.tokens_of(torch.from_numpy(rows).to(loader.table.device)[None])
    return tokens.to(loader.device).double().view(len(rows), -1, tokens.shape[-1]).mean(dim=0)


def column_use(
    model: LargeGT, head: TaskHead, loader: TokenLoader, rows: Array, columns: list[TokenColumn]
) -> dict[str, Any]:
    """Mean absolute attribution of each column over these rows, largest first; signed values could cancel out. Converts
    the model to double precision."""
    opened, plain, mean_hf = OpenModel(model), replace(loader, distinct=False), mean_token(loader)
    totals = np.zeros(len(columns))
    for chunk in torch.split(torch.from_numpy(rows.astype(np.int64)), _BATCH_SIZE):
        inputs = opened.inputs(plain.gather(chunk.to(loader.table.device)))
        with torch.no_grad():
            target_n = head.probabilities(opened.logits(inputs)).argmax(dim=1)
        baseline = opened.baseline(inputs, mean_hf)
        found = Attribution(opened, partial(_sum_of_scores, head, target_n), inputs, baseline)
        of_all_nf, _ = _by_feature(found.carried)
        totals += [np.abs(of_all_nf[:, one.span].sum(axis=1)).sum() for one in columns]
    means = totals / max(1, len(rows))
    order = np.argsort(-means, kind="stable")[:MOST_COLUMNS].tolist()
    listed = [{"column": columns[at].name, "table": columns[at].table, "carried": float(means[at])} for at in order]
    return {"num_nodes": len(rows), "num_columns": len(columns), "listed": listed}


def _sum_of_scores(head: TaskHead, target_n: Tensor, logits_vno: Tensor) -> Tensor:
    """[v] the sum of several nodes' scores. Each score depends on its own node's inputs alone, so one backward pass
    gives the gradients of all."""
    v, n, _ = logits_vno.shape
    return scores(head, logits_vno.flatten(0, 1)[:, None], target_n.repeat(v)).view(v, n).sum(dim=1)
