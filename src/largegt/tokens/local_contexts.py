"""LocalContexts: what a node is told of the training labels around its local nodes, its own left out.

Axes: b nodes of a batch, k local nodes, n prepared nodes, c classes or labels.

Enters: counts [b, k, c + 2] of training labels around local nodes (prepare/surroundings.py), and which local nodes are
neighbours. Leaves: float32 [b, k, c + 1], as label contexts have it: the share of each label among the neighbours in
the training split, and the share of the neighbours that are in it. For a regression the labels' mean, in the steps that
they are counted in.

A node of the training split is counted around each of its neighbours. Its own label and itself are taken out of those
counts before anything is divided: they are whole numbers, so what it is told is the same to the bit whatever its label
is. Cost: a gather of b·k·(c + 2) numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..prepare.label_contexts import STEPS, TrainingLabels
from ..prepare.prepared import Prepared
from ..types import Task


@dataclass(frozen=True)
class LocalContexts:
    """What takes a node out of the counts around its neighbours."""

    task: Task
    is_train_n: Tensor
    """[n] whether a node is of the training split."""
    steps_n: Tensor | None
    """[n] what its value counts for, for a regression."""

    @classmethod
    def of(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalContexts:
        """`device` is where rows will be looked up."""
        task, is_train = prepared.meta["task"], np.zeros(len(prepared.nodes), dtype=np.bool_)
        is_train[prepared.split_rows("train")] = True
        steps = None
        if task == "regression":
            own = TrainingLabels.among(np.asarray(prepared.labels), is_train, task)
            steps = torch.from_numpy(own.rows(np.arange(len(is_train)), 1)[:, 0]).to(device)
        return cls(task, torch.from_numpy(is_train).to(device), steps)

    def told_to(self, rows: Tensor, labels: Tensor, counts_bkc: Tensor, near_bk: Tensor) -> Tensor:
        """[b, k, c + 1] as the nodes of these rows, with these labels, are told it."""
        counts_bkc = counts_bkc.float()
        is_own_bk = near_bk & self.is_train_n[rows][:, None]
        own_bc = self._own(rows, labels, counts_bkc.shape[2] - 2)
        labels_bkc = counts_bkc[:, :, :-2] - is_own_bk[:, :, None] * own_bc[:, None]
        known_bk1, degree_bk1 = counts_bkc[:, :, -2:-1] - is_own_bk[:, :, None].float(), counts_bkc[:, :, -1:]
        shares_bkc = labels_bkc / known_bk1.clamp(min=1)
        if self.steps_n is not None:
            shares_bkc = shares_bkc / STEPS
        return torch.cat([shares_bkc, known_bk1 / degree_bk1.clamp(min=1)], dim=2)

    def _own(self, rows: Tensor, labels: Tensor, width: int) -> Tensor:
        """[b, c] what each node counts for around its neighbours, were it of the training split."""
        if self.steps_n is not None:
            return self.steps_n[rows][:, None]
        if self.task == "multilabel":
            return (labels.nan_to_num(0.0) > 0).float()
        return F.one_hot(labels.long().clamp(min=0), width).float()
