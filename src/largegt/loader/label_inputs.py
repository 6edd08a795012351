"""LocalLabels: what local nodes may tell of their labels. Training nodes tell theirs, to everyone but themselves.

Axes: b nodes of a batch, k local nodes, r rows of the token table, n prepared nodes, c labels of a multi-label task.

Enters: a Prepared, and per batch the local nodes [b, k] as rows of the token table. Leaves: their labels, in the form
that the batch's own labels have; values of a regression are standardised (LabelScale). What a node is told does not
depend on its own label nor on any label of the valid and test splits, and is the same whether one trains on the node or
predicts it. Cost: an integer per row of the token table, and two gathers of b·k numbers per batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from largegt.preprocessing.label_features import LabelScale
from largegt.preprocessing.prepared import Prepared


@dataclass(frozen=True)
class LocalLabels:
    """Labels by rows of the token table."""

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
        labels, half = np.array(prepared.labels), None
        if prepared.meta["task"] == "regression":
            scale = LabelScale.fit(labels, np.isin(np.arange(len(labels)), rows))
            half = torch.zeros(len(label_rows), dtype=torch.uint8)
            half[places] = torch.from_numpy(scale.half[rows])
            labels, half = scale.standardized(labels).astype(np.float32), half.to(device)
        return cls(torch.from_numpy(label_rows).to(device), torch.from_numpy(labels).to(device), half)

    def told_to(self, local_rows_bk: Tensor) -> Tensor:
        """[b, k] or [b, k, c] labels of local nodes as they are told to the node in column 0: -1 or NaN where a node
        is not in the training split, and wherever it is the node itself."""
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
