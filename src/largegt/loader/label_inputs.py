"""Labels of training nodes as inputs of other nodes: what local nodes tell of theirs, and of those around them.

Axes: b nodes of a batch, k local nodes, r rows of the token table, n prepared nodes, c classes or labels.

What a node is told does not depend on its own label nor on any label of the valid and test splits, and is the same
whether one trains on the node or predicts it. Values of a regression are standardised (LabelScale).
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
class LocalLabels:
    """Labels by rows of the token table: training nodes tell theirs, to everyone but themselves. Cost: an integer per
    row of the token table, and two gathers of b·k numbers per batch."""

    label_rows_r: Tensor
    """[r] where the label of a training node stands in `labels`; -1 for every other node."""
    labels: Tensor
    """[n] classes, or [n, c]; [n, 2] values of a regression in the scale of either half."""
    half_r: Tensor | None = None
    """[r] which of the two scales a node reads, for a regression."""

    @classmethod
    def of_training_nodes(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalLabels:
        """The labels of the training split; `device` is where local rows will be looked up."""
        rows = prepared.split_rows("train")
        places = np.searchsorted(prepared.token_nodes, prepared.nodes[rows])  # a node is its own local node
        label_rows = np.full(len(prepared.token_nodes), -1, dtype=prepared.nodes.dtype)
        label_rows[places] = rows
        own, half = _training_labels(prepared), None
        labels = np.array(own.labels)
        if own.scale is not None:
            half = torch.zeros(len(label_rows), dtype=torch.uint8)
            half[places] = torch.from_numpy(own.scale.half[rows])
            labels, half = own.scale.standardized(labels).astype(np.float32), half.to(device)
        return cls(torch.from_numpy(label_rows).to(device), torch.from_numpy(labels).to(device), half)

    def seen_from(self, local_rows_bk: Tensor) -> Tensor:
        """[b, k] or [b, k, c] labels of local nodes as they are told to the node in column 0, in the form that the
        batch's own labels have: -1 or NaN where a node is not in the training split, and wherever it is the node
        itself."""
        label_rows_bk = self.label_rows_r[local_rows_bk]
        is_untold_bk = (label_rows_bk < 0) | (local_rows_bk == local_rows_bk[:, :1])
        label_rows_bk = label_rows_bk.clamp(min=0)
        if self.half_r is None:
            labels = self.labels[label_rows_bk]
        else:
            labels = self.labels[label_rows_bk, self.half_r[local_rows_bk[:, :1]].long()]
        is_untold = is_untold_bk.view(is_untold_bk.shape + (1,) * (labels.ndim - 2))
        if labels.is_floating_point():
            return labels.masked_fill(is_untold, torch.nan)
        return labels.long().masked_fill(is_untold, -1)


@dataclass(frozen=True)
class LocalLabelHistograms:
    """What takes a node out of the counts of training labels around its local nodes (label_features.py). They are whole
    numbers and it is taken out before anything is divided, so not a bit of what it receives depends on its own label.
    Cost: a pass over b·k·(c + 2) numbers."""

    task: Task
    is_train_n: Tensor
    """[n] whether a node is of the training split."""
    steps_n2: Tensor | None
    """[n, 2] what its value counts for in the scale of either half, for a regression."""
    half_n: Tensor | None
    """[n] which of the two scales a node reads, for a regression."""

    @classmethod
    def of(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalLabelHistograms:
        """`device` is where rows will be looked up."""
        own, steps, half = _training_labels(prepared), None, None
        if own.scale is not None:
            steps = torch.from_numpy(own.rows(np.arange(len(own.is_train)), 3)[:, :2]).to(device)
            half = torch.from_numpy(own.scale.half).to(device)
        return cls(prepared.meta["task"], torch.from_numpy(own.is_train).to(device), steps, half)

    def seen_from(self, rows: Tensor, labels: Tensor, counts_bkc: Tensor, is_neighbor_bk: Tensor) -> Tensor:
        """float32 [b, k, c + 1] as the nodes of these rows, with these labels, are told it, from the counts
        [b, k, c + 2] around their local nodes and which of these are neighbours: the share of each label among a local
        node's neighbours in the training split, and the share of its neighbours that are in it. For a regression c = 1:
        the mean of the values, in the scale that the node reads them in."""
        counts_bkc = counts_bkc.to(torch.float32, copy=True)
        is_own_bk1 = (is_neighbor_bk & self.is_train_n[rows][:, None])[:, :, None].float()
        labels_bkc, known_bk1, degree_bk1 = counts_bkc[:, :, :-2], counts_bkc[:, :, -2:-1], counts_bkc[:, :, -1:]
        if self.steps_n2 is not None:
            labels_bkc -= is_own_bk1 * self.steps_n2[rows][:, None]
        elif self.task == "multilabel":
            labels_bkc.addcmul_(is_own_bk1, (labels.nan_to_num(0.0) > 0).float()[:, None], value=-1.0)
        elif labels_bkc.shape[2]:
            column_bk1 = labels.long().clamp(min=0)[:, None, None].expand_as(is_own_bk1)
            labels_bkc.scatter_add_(2, column_bk1, -is_own_bk1)
        known_bk1 -= is_own_bk1
        labels_bkc /= known_bk1.clamp(min=1)
        known_bk1 /= degree_bk1.clamp(min=1)
        if self.half_n is None:
            return counts_bkc[:, :, :-1]
        half_bk1 = self.half_n[rows].long()[:, None, None].expand_as(known_bk1)
        return torch.cat([labels_bkc.gather(2, half_bk1) / STEPS, known_bk1], dim=2)


def _training_labels(prepared: Prepared) -> TrainingLabels:
    """The labels of the training split, by rows."""
    is_train = np.zeros(len(prepared.nodes), dtype=np.bool_)
    is_train[prepared.split_rows("train")] = True
    return TrainingLabels.among(np.asarray(prepared.labels), is_train, prepared.meta["task"])
