"""Training labels as inputs: the labels of local nodes, and the label distributions around them.

Axes: b nodes of a batch, k local nodes, r rows of the token table, n prepared nodes, c classes or labels.

The label inputs of a node do not depend on its own label or on labels of the valid and test splits. They are the same
in training and in prediction. Regression values are standardised (LabelScale).
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
    """Training labels of local nodes, with each node's own label hidden. Cost: an integer per row of the token table,
    and two gathers of b·k numbers per batch."""

    label_rows_r: Tensor
    """[r] the row of `labels` for a training node; -1 for every other node."""
    labels: Tensor
    """[n] classes, or [n, c]; for a regression [n, 2] values in the scale of either half."""
    half_r: Tensor | None = None
    """[r] the half (LabelScale) of each node, for a regression."""

    @classmethod
    def of_training_nodes(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalLabels:
        """The labels of the training split, stored on the device of the local rows."""
        rows = prepared.split_rows("train")
        places = np.searchsorted(prepared.token_nodes, prepared.nodes[rows])  # each node is its own first local node
        label_rows = np.full(len(prepared.token_nodes), -1, dtype=prepared.nodes.dtype)
        label_rows[places] = rows
        own, half = _training_labels(prepared), None
        labels = np.array(own.labels)
        if own.scale is not None:
            half = torch.zeros(len(label_rows), dtype=torch.uint8)
            half[places] = torch.from_numpy(own.scale.half[rows])
            labels, half = own.scale.standardized(labels).astype(np.float32), half.to(device)
        return cls(torch.from_numpy(label_rows).to(device), torch.from_numpy(labels).to(device), half)

    def labels_for(self, local_rows_bk: Tensor) -> Tensor:
        """[b, k] or [b, k, c] labels of local nodes as inputs of the node in column 0, in the form of
        `TokenBatch.labels`: -1 or NaN outside the training split and for the node itself."""
        label_rows_bk = self.label_rows_r[local_rows_bk]
        is_hidden_bk = (label_rows_bk < 0) | (local_rows_bk == local_rows_bk[:, :1])
        label_rows_bk = label_rows_bk.clamp(min=0)
        if self.half_r is None:
            labels = self.labels[label_rows_bk]
        else:
            labels = self.labels[label_rows_bk, self.half_r[local_rows_bk[:, :1]].long()]
        is_hidden = is_hidden_bk.view(is_hidden_bk.shape + (1,) * (labels.ndim - 2))
        if labels.is_floating_point():
            return labels.masked_fill(is_hidden, torch.nan)
        return labels.long().masked_fill(is_hidden, -1)


@dataclass(frozen=True)
class LocalLabelHistograms:
    """Label distributions around local nodes, without the label of the node that reads them (label_features.py). Counts
    are integers and the node is subtracted before any division, so the result is bitwise independent of its label.
    Cost: a pass over b·k·(c + 2) numbers."""

    task: Task
    is_train_n: Tensor
    """[n] whether a node is in the training split."""
    steps_n2: Tensor | None
    """[n, 2] the quantised value of a node in the scale of either half, for a regression."""
    half_n: Tensor | None
    """[n] the half (LabelScale) of each node, for a regression."""

    @classmethod
    def from_prepared(cls, prepared: Prepared, device: torch.device | str = "cpu") -> LocalLabelHistograms:
        """The training split of `prepared`, stored on the device of the row numbers."""
        own, steps, half = _training_labels(prepared), None, None
        if own.scale is not None:
            steps = torch.from_numpy(own.rows(np.arange(len(own.is_train)), 3)[:, :2]).to(device)
            half = torch.from_numpy(own.scale.half).to(device)
        return cls(prepared.meta["task"], torch.from_numpy(own.is_train).to(device), steps, half)

    def histograms_for(self, rows: Tensor, labels: Tensor, counts_bkc: Tensor, is_neighbor_bk: Tensor) -> Tensor:
        """float32 [b, k, c + 1] inputs of the nodes of `rows` with these labels, from the counts [b, k, c + 2] around
        their local nodes. For each local node: the fraction of each label among its neighbours in the training split,
        and the fraction of its neighbours that are in the split. For a regression c = 1: the mean value, in the scale
        of the node's half."""
        counts_bkc = counts_bkc.to(torch.float32, copy=True)
        counts_self_bk1 = (is_neighbor_bk & self.is_train_n[rows][:, None])[:, :, None].float()
        labels_bkc, labelled_bk1, degree_bk1 = counts_bkc[:, :, :-2], counts_bkc[:, :, -2:-1], counts_bkc[:, :, -1:]
        if self.steps_n2 is not None:
            labels_bkc -= counts_self_bk1 * self.steps_n2[rows][:, None]
        elif self.task == "multilabel":
            labels_bkc.addcmul_(counts_self_bk1, (labels.nan_to_num(0.0) > 0).float()[:, None], value=-1.0)
        elif labels_bkc.shape[2]:
            column_bk1 = labels.long().clamp(min=0)[:, None, None].expand_as(counts_self_bk1)
            labels_bkc.scatter_add_(2, column_bk1, -counts_self_bk1)
        labelled_bk1 -= counts_self_bk1
        labels_bkc /= labelled_bk1.clamp(min=1)
        labelled_bk1 /= degree_bk1.clamp(min=1)
        if self.half_n is None:
            return counts_bkc[:, :, :-1]
        half_bk1 = self.half_n[rows].long()[:, None, None].expand_as(labelled_bk1)
        return torch.cat([labels_bkc.gather(2, half_bk1) / STEPS, labelled_bk1], dim=2)


def _training_labels(prepared: Prepared) -> TrainingLabels:
    """The labels of the training split, by row of `prepared`."""
    is_train = np.zeros(len(prepared.nodes), dtype=np.bool_)
    is_train[prepared.split_rows("train")] = True
    return TrainingLabels.from_split(np.asarray(prepared.labels), is_train, prepared.meta["task"])
