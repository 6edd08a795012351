"""Columns: what the columns of a user's tables carried, from what single features of tokens carried.

A token row has the features of the node table's columns, then degrees where asked for, then means of the features of
edges; each column has its places there, the same in H and in the contexts. Enters: attributions and the store that
names the columns. Leaves: a row per column of one node's explanation, or means over nodes for the report; none for a
store whose features came from an array. Cost: a forward per listed column, of each draw; for the report, 32 to 256
forwards and backwards of each node, some nodes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

from .attribution import Attribution, Score
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
    degrees = [] if not config.tokens.degrees else ["out degree", "in degree"] if store.directed else ["degree"]
    if store.columns is not None:
        made += [TokenColumn(one.name, "nodes", span, one.names) for one, span in store.columns.spans]
        made += [TokenColumn(name, "graph", slice(first + at, first + at + 1), [name])
                 for at, name in enumerate(degrees)]  # fmt: skip
    if store.edge_columns is not None and config.tokens.edge_features is True:
        first += len(degrees)
        made += [TokenColumn(one.name, "edges", slice(first + span.start, first + span.stop), one.names)
                 for one, span in store.edge_columns.spans]  # fmt: skip
    return made


def carried_by_feature(carried: Inputs) -> tuple[Array, Array]:
    """(all, of the node itself) float64 [f]: what each feature carried, over draws, tokens and local nodes. Of the node
    itself are the features H of its own token and those that the residual adds."""
    of_all, of_itself = [], []
    if carried.tokens is not None:
        tokens_tf = carried.tokens.sum(dim=0).cpu().numpy()
        of_all.append(tokens_tf.sum(axis=0))
        of_itself.append(tokens_tf[0])
    if carried.own is not None:
        own_f = carried.own.sum(dim=0).cpu().numpy()
        of_all.append(own_f)
        of_itself.append(own_f)
    return (np.sum(of_all, axis=0), np.sum(of_itself, axis=0)) if of_all else (np.zeros(0), np.zeros(0))


def input_columns(found: Attribution, carried: Inputs, columns: list[TokenColumn]) -> list[InputColumn]:
    """The columns that carried most, the strongest first."""
    of_all, of_itself = carried_by_feature(carried)
    if not len(of_all):
        return []
    sums = {id(one): float(of_all[one.span].sum()) for one in columns}
    strongest = sorted(columns, key=lambda one: -abs(sums[id(one)]))[:MOST_COLUMNS]
    return [
        InputColumn(
            column=one.name,
            table=one.table,
            carried=sums[id(one)],
            itself=float(of_itself[one.span].sum()),
            without=_without(found, one.span),
            mostly=one.features[int(np.abs(of_all[one.span]).argmax())],
        )
        for one in strongest
    ]


def _without(found: Attribution, span: slice) -> float:
    """How much the score falls when these features are those of an average node, in all tokens."""
    changed = {}
    for name in ("tokens", "own"):
        part, average = getattr(found.inputs, name), getattr(found.baseline, name)
        if part is not None:
            changed[name] = part.clone()
            changed[name][..., span] = average[..., span]
    return found.without(**changed)


def mean_token(loader: TokenLoader) -> Tensor:
    """[h, f] the mean of the token table's rows."""
    num_rows = loader.table.num_token_rows
    rows = np.unique(np.linspace(0, num_rows - 1, min(num_rows, _MEAN_ROWS)).astype(np.int64))
    tokens = loader.table.tokens_of(torch.from_numpy(rows).to(loader.table.device)[None])
    return tokens.to(loader.device).double().view(len(rows), -1, tokens.shape[-1]).mean(dim=0)


@dataclass(frozen=True)
class _ScoreSum:
    """The sum of several nodes' scores. Each node depends on its own inputs alone, so the sum's parts are theirs."""

    head: TaskHead
    targets: list[int]

    def __call__(self, logits_vno: Tensor) -> Tensor:
        """[v] sums of v variants."""
        total_v = logits_vno.new_zeros(len(logits_vno))
        for target in set(self.targets):
            members = [at for at, one in enumerate(self.targets) if one == target]
            each = Score(self.head, target)(logits_vno[:, members].flatten(0, 1)[:, None])
            total_v = total_v + each.view(len(logits_vno), -1).sum(dim=1)
        return total_v


def column_use(
    model: LargeGT, head: TaskHead, loader: TokenLoader, rows: Array, columns: list[TokenColumn]
) -> dict[str, Any]:
    """What columns carry of the predictions for these rows, the strongest first: the mean of the absolute value, since
    a column may speak for one node's class and against another's. The model is turned to double precision."""
    opened, plain, mean_hf = OpenModel(model), replace(loader, distinct=False), mean_token(loader)
    totals = np.zeros(len(columns))
    for low in range(0, len(rows), _NODES_AT_ONCE):
        some = torch.from_numpy(np.ascontiguousarray(rows[low : low + _NODES_AT_ONCE], dtype=np.int64))
        inputs = opened.inputs(plain.gather(some.to(loader.table.device)).to(loader.device))
        bias_nt = mean_hf.new_zeros(len(some), 1 if inputs.tokens is None else inputs.tokens.shape[1])
        with torch.no_grad():
            probabilities_no = head.probabilities(opened.logits(inputs, bias_nt))
        targets = [0] * len(some) if head.task == "regression" else probabilities_no.argmax(dim=1).tolist()
        baseline = opened.nothing_known(inputs, mean_hf)
        carried, _ = Attribution(opened, _ScoreSum(head, targets), inputs, baseline, bias_nt).integrated()
        for at in range(len(some)):
            of_all, _ = carried_by_feature(carried.map(lambda part, at=at: part[at : at + 1]))
            totals += [abs(float(of_all[one.span].sum())) for one in columns]
    means = totals / max(1, len(rows))
    order = np.argsort(-means, kind="stable")[:MOST_COLUMNS].tolist()
    listed = [{"column": columns[at].name, "table": columns[at].table, "carried": float(means[at])} for at in order]
    return {"num_nodes": len(rows), "num_columns": len(columns), "listed": listed}
