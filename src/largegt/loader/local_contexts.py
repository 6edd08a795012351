"""LocalContexts: what a node is told of the training labels around its local nodes, its own left out.

Axes: b nodes of a batch, k local nodes, n prepared nodes, c classes or labels.

Enters: counts [b, k, c + 2] of training labels around local nodes (prepare/label_contexts.py), and which local nodes
are neighbours. Leaves: float32 [b, k, c + 1], as label contexts have it: the share of each label among the neighbours
in the training split, and the share of the neighbours that are in it. For a regression c = 1: the mean of the values,
in the scale that the node reads them in (LabelScale); the counts have that of either half.

A node of the training split is counted around each of its neighbours. Its own label and itself are taken out of those
counts before anything is divided: they are whole numbers, so not a bit of what a node receives depends on its own
label. Cost: a pass over b·k·(c + 2) numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from largegt.preprocessing.label_features import STEPS, TrainingLabels
from largegt.preprocessing.prepared import Prepared
from largegt.types import Task


@dataclass(frozen=True)
class LocalContexts:
    """What takes a node out of the counts around its neighbours."""

    task: Task
    is_train_n: Tensor
    """[n] whether a node is of the training split."""
    steps_n2: Tensor | None
    """[n, 2] what its value counts for in the scale of either half, for a regression."""
    half_n: Tensor | None
    """[n] which of the two scales a node reads, for a regression."""

    @classmethod
    def of(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalContexts:
        """`device` is where rows will be looked up."""
        task, is_train = prepared.meta["task"], np.zeros(len(prepared.nodes), dtype=np.bool_)
        is_train[prepared.split_rows("train")] = True
        steps = half = None
        own = TrainingLabels.among(np.asarray(prepared.labels), is_train, task)
        if own.scale is not None:
            steps = torch.from_numpy(own.rows(np.arange(len(is_train)), 3)[:, :2]).to(device)
            half = torch.from_numpy(own.scale.half).to(device)
        return cls(task, torch.from_numpy(is_train).to(device), steps, half)

    def told_to(self, rows: Tensor, labels: Tensor, counts_bkc: Tensor, near_bk: Tensor) -> Tensor:
        """[b, k, c + 1] as the nodes of these rows, with these labels, are told it."""
        counts_bkc = counts_bkc.to(torch.float32, copy=True)
        is_own_bk1 = (near_bk & self.is_train_n[rows][:, None])[:, :, None].float()
        labels_bkc, known_bk1, degree_bk1 = counts_bkc[:, :, :-2], counts_bkc[:, :, -2:-1], counts_bkc[:, :, -1:]
        self._take_out(labels_bkc, is_own_bk1, rows, labels)
        known_bk1 -= is_own_bk1
        labels_bkc /= known_bk1.clamp(min=1)
        known_bk1 /= degree_bk1.clamp(min=1)
        if self.half_n is None:
            return counts_bkc[:, :, :-1]
        half_bk1 = self.half_n[rows].long()[:, None, None].expand_as(known_bk1)
        return torch.cat([labels_bkc.gather(2, half_bk1) / STEPS, known_bk1], dim=2)

    def _take_out(self, labels_bkc: Tensor, is_own_bk1: Tensor, rows: Tensor, labels: Tensor) -> None:
        """Subtract what each node counts for from the counts around those of its local nodes that count it."""
        if self.steps_n2 is not None:
            labels_bkc -= is_own_bk1 * self.steps_n2[rows][:, None]
        elif self.task == "multilabel":
            labels_bkc.addcmul_(is_own_bk1, (labels.nan_to_num(0.0) > 0).float()[:, None], value=-1.0)
        elif labels_bkc.shape[2]:
            column_bk1 = labels.long().clamp(min=0)[:, None, None].expand_as(is_own_bk1)
            labels_bkc.scatter_add_(2, column_bk1, -is_own_bk1)
