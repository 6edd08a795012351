"""Columns: what the columns of a user's tables carried, from what single features of tokens carried.

A token row has the features of the node table's columns, then degrees where asked for, then means of the features of
edges; each column has its places there, the same in H and in the contexts. Enters: attributions and the store that
names the columns. Leaves: a row per column of one node's explanation, or means over nodes for the report; none for a
store whose features came from an array. Cost: a forward per listed column, of each sample; for the report, 32 to 256
forwards and backwards of each node, some nodes at once.
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
_NODES_AT_ONCE = 16
_MEAN_ROWS = 4096
"""Token rows that an average node is the mean of, spread evenly over the table."""


@dataclass(frozen=True)
class TokenColumn:
    """One column of a table, and its places in a token row."""

    name: str
    table: Literal["nodes", "edges", "graph"]
    span: slice
    features: list[str]


def token_columns(store: GraphStore, config: PrepareConfig) -> list[TokenColumn]:
    """The columns that token rows are made of, as far as the store knows their names."""
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
    """The columns that carried most, the strongest first."""
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
    """(all, of the node itself) float64 [d, f]: what each feature carried, over tokens and local nodes. Of the node
    itself are the features H of its own token and those that the residual adds."""
    parts = [(carried["tokens"].sum(dim=1), carried["tokens"][:, 0])] if "tokens" in carried else []
    parts += [(carried["own"], carried["own"])] if "own" in carried else []
    if not parts:
        return np.zeros((1, 0)), np.zeros((1, 0))
    of_all, of_itself = (torch.stack(same).sum(dim=0).cpu().numpy() for same in zip(*parts, strict=True))
    return of_all, of_itself


def _without(found: Attribution, span: slice) -> float:
    """How much the score falls when these features are those of an average node, in all tokens."""
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
    """What columns carry of the predictions for these rows, the strongest first: the mean of the absolute value, since
    a column may speak for one node's class and against another's. The model is turned to double precision."""
    opened, plain, mean_hf = OpenModel(model), replace(loader, distinct=False), mean_token(loader)
    totals = np.zeros(len(columns))
    for some in torch.split(torch.from_numpy(rows.astype(np.int64)), _NODES_AT_ONCE):
        inputs = opened.inputs(plain.gather(some.to(loader.table.device)))
        with torch.no_grad():
            target_n = head.probabilities(opened.logits(inputs)).argmax(dim=1)
        baseline = opened.nothing_known(inputs, mean_hf)
        found = Attribution(opened, partial(_sum_of_scores, head, target_n), inputs, baseline)
        of_all_nf, _ = _by_feature(found.carried)
        totals += [np.abs(of_all_nf[:, one.span].sum(axis=1)).sum() for one in columns]
    means = totals / max(1, len(rows))
    order = np.argsort(-means, kind="stable")[:MOST_COLUMNS].tolist()
    listed = [{"column": columns[at].name, "table": columns[at].table, "carried": float(means[at])} for at in order]
    return {"num_nodes": len(rows), "num_columns": len(columns), "listed": listed}


def _sum_of_scores(head: TaskHead, target_n: Tensor, logits_vno: Tensor) -> Tensor:
    """[v] the sum of several nodes' scores. Each depends on its own inputs alone, so the sum's parts are theirs."""
    v, n, _ = logits_vno.shape
    return scores(head, logits_vno.flatten(0, 1)[:, None], target_n.repeat(v)).view(v, n).sum(dim=1)
