"""What a task means: its loss, its predictions, its metrics, and which of them picks the best epoch.

Enters: logits [b, o] and labels. Leaves: a loss, probabilities, or scores over a whole split. Metrics accumulate on
the model's device, batch by batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import TrainConfig
from ..errors import ConfigError, nearest
from ..prepare.prepared import Prepared
from ..types import Task

_METRICS: dict[Task, tuple[str, ...]] = {
    "multiclass": ("accuracy", "macro_f1"),
    "binary": ("accuracy", "roc_auc", "average_precision", "f1"),
    "multilabel": ("roc_auc", "average_precision", "micro_f1"),
    "regression": ("rmse", "mae", "r2"),
}
_SMALLER_IS_BETTER = ("rmse", "mae", "loss")


@dataclass(frozen=True)
class TaskHead:
    """Loss, predictions and metrics of one task on one data set."""

    task: Task
    num_outputs: int
    weight: Tensor | None
    """Class weights [o], or the weight of positives [1] for binary; None: all alike."""
    label_smoothing: float
    target_mean: float
    target_std: float
    """Regression: the model predicts (y - mean) / std."""

    @classmethod
    def for_training(cls, prepared: Prepared, config: TrainConfig) -> TaskHead:
        """The head for this data: class weights and target scale come from the training split alone."""
        task: Task = prepared.meta["task"]
        labels = np.asarray(prepared.labels[prepared.split_rows("train")])
        mean, std, weight = 0.0, 1.0, None
        if task == "regression":
            mean, std = float(labels.mean()), float(labels.std()) or 1.0
        elif config.class_weights == "balanced":
            weight = _balanced(task, labels, prepared.meta["num_outputs"])
        return cls(task, prepared.meta["num_outputs"], weight, config.label_smoothing, mean, std)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch in float32; missing parts of a multi-label row count nothing."""
        logits = logits.float()
        weight = None if self.weight is None else self.weight.to(logits.device)
        if self.task == "multiclass":
            return F.cross_entropy(logits, labels.long(), weight, label_smoothing=self.label_smoothing)
        if self.task == "regression":
            return F.mse_loss(logits[:, 0], (labels.float() - self.target_mean) / self.target_std)
        if self.task == "binary":
            target = self._smooth(labels.float())
            return F.binary_cross_entropy_with_logits(logits[:, 0], target, pos_weight=weight)
        known = ~labels.isnan()
        target = self._smooth(labels.float().nan_to_num(0.0))
        each = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
        return (each * known).sum() / known.sum().clamp(min=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[b, classes] for multiclass and binary, [b, labels] for multi-label, [b, 1] values for regression."""
        logits = logits.float()
        if self.task == "multiclass":
            return logits.softmax(dim=1)
        if self.task == "binary":
            positive = logits.sigmoid()
            return torch.cat([1.0 - positive, positive], dim=1)
        if self.task == "multilabel":
            return logits.sigmoid()
        return logits * self.target_std + self.target_mean

    def monitor(self, wanted: str) -> tuple[str, float]:
        """The metric that picks the best epoch, and +1 or -1 for larger or smaller is better."""
        known = (*_METRICS[self.task], "loss")
        if wanted == "auto":
            wanted = {"multiclass": "accuracy", "regression": "rmse"}.get(self.task, "roc_auc")
        if wanted not in known:
            raise ConfigError(
                f"train.monitor={wanted} is no metric of a {self.task} task"
                f"{nearest(wanted, known)}; there are: {', '.join(known)}"
            )
        return wanted, -1.0 if wanted in _SMALLER_IS_BETTER else 1.0

    def scores(self, device: torch.device) -> Scores:
        """An empty tally."""
        return Scores(self, device)

    def _smooth(self, target: Tensor) -> Tensor:
        return target * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing


class Scores:
    """Tallies loss and metrics over the batches of a split."""

    def __init__(self, head: TaskHead, device: torch.device) -> None:
        self.head = head
        self.metrics = _metric_collection(head).to(device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.count = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count one batch."""
        self.loss_sum += self.head.loss(logits, labels).double() * len(labels)
        self.count += len(labels)
        predicted = self.head.probabilities(logits)
        if self.head.task == "binary":
            predicted = predicted[:, 1]
        elif self.head.task == "regression":
            predicted = predicted[:, 0]
        target = labels if self.head.task == "regression" else labels.nan_to_num(-1.0).long()
        self.metrics.update(predicted, target)

    def result(self) -> dict[str, float]:
        """`{"loss": …, "accuracy": …}` over everything counted."""
        if not self.count:
            return {}
        values = {name: float(value) for name, value in self.metrics.compute().items()}
        return {"loss": float(self.loss_sum) / self.count, **values}


def _metric_collection(head: TaskHead):  # type: ignore[no-untyped-def]
    """torchmetrics of the task; imported here because importing them takes seconds."""
    from torchmetrics import MeanAbsoluteError, MeanSquaredError, MetricCollection, R2Score
    from torchmetrics import classification as c

    n = head.num_outputs
    if head.task == "multiclass":
        classes = max(2, n)
        return MetricCollection({
            "accuracy": c.MulticlassAccuracy(classes, average="micro", validate_args=False),
            "macro_f1": c.MulticlassF1Score(classes, average="macro", validate_args=False),
        })  # fmt: skip
    if head.task == "binary":
        return MetricCollection({
            "accuracy": c.BinaryAccuracy(validate_args=False), "roc_auc": c.BinaryAUROC(validate_args=False),
            "average_precision": c.BinaryAveragePrecision(validate_args=False),
            "f1": c.BinaryF1Score(validate_args=False),
        })  # fmt: skip
    if head.task == "multilabel":
        return MetricCollection({
            "roc_auc": c.MultilabelAUROC(n, ignore_index=-1, validate_args=False),
            "average_precision": c.MultilabelAveragePrecision(n, ignore_index=-1, validate_args=False),
            "micro_f1": c.MultilabelF1Score(n, average="micro", ignore_index=-1, validate_args=False),
        })  # fmt: skip
    return MetricCollection({
        "rmse": MeanSquaredError(squared=False), "mae": MeanAbsoluteError(), "r2": R2Score(),
    })  # fmt: skip


def _balanced(task: Task, labels: np.ndarray, num_outputs: int) -> Tensor:
    """Inverse class frequencies with mean 1, or negatives per positive."""
    if task == "multiclass":
        count = np.bincount(labels, minlength=num_outputs).astype(np.float64)
        weight = np.where(count > 0, count.sum() / np.maximum(count, 1) / (count > 0).sum(), 0.0)
    else:
        known = labels.reshape(len(labels), -1)
        positive = np.nansum(known == 1, axis=0)
        weight = np.nansum(known == 0, axis=0) / np.maximum(positive, 1)
    return torch.tensor(weight, dtype=torch.float32)
