"""Loss, predictions and metrics of each task, and the metric that picks the best epoch.

Enters: logits [b, o] and labels. Leaves: a loss, probabilities, or scores over a whole split, independent of its
batches. A metric that is undefined on the given nodes (ROC-AUC of a single class) is omitted, not reported as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from largegt.config.models import load_plugins
from largegt.config.schema import TrainConfig
from largegt.errors import ConfigError, nearest
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import ALONE, Ranks
from largegt.types import Task

_METRICS: dict[Task, tuple[str, ...]] = {
    "multiclass": ("accuracy", "macro_f1"),
    "binary": ("accuracy", "roc_auc", "average_precision", "f1"),
    "multilabel": ("roc_auc", "average_precision", "micro_f1"),
    "regression": ("rmse", "mae", "r2"),
}
_registered: dict[str, Metric] = {}
_MIN_WEIGHT = 1e-12
"""Smaller than the weight of any node; avoids a division by zero for a batch without nodes."""


@dataclass(frozen=True)
class Metric:
    """A metric registered by another package."""

    compute: Callable[[np.ndarray, np.ndarray], float]
    tasks: tuple[Task, ...]
    larger_is_better: bool


MetricT = TypeVar("MetricT", bound=Callable[[np.ndarray, np.ndarray], float])


def register_metric(name: str, tasks: tuple[Task, ...], larger_is_better: bool = True) -> Callable[[MetricT], MetricT]:
    """A decorator that adds `metric(predicted, labels) -> float` to the scores of these tasks. `train.monitor` can name
    it as well.

    The function gets NumPy arrays of a whole split: class numbers [n] for multiclass, probabilities of the positive
    class [n] for binary and [n, c] for multilabel (an unknown label is NaN), values [n] for regression. It returns NaN
    if the metric is undefined.

    Args:
        name: its name in scores.
        tasks: multiclass, binary, multilabel, regression.
        larger_is_better: whether the best epoch has the largest value.
    """

    def register(compute: MetricT) -> MetricT:
        _registered[name] = Metric(compute, tasks, larger_is_better)
        return compute

    return register


def larger_is_better(name: str) -> bool:
    """Whether larger values of this metric are better."""
    return _registered[name].larger_is_better if name in _registered else name not in ("rmse", "mae", "loss")


@dataclass(frozen=True)
class TaskHead:
    """Loss, predictions and metrics of one task on one data set."""

    task: Task
    num_outputs: int
    weight: Tensor | None
    """Class weights [o] (binary: [2]), or for multi-label the weight of positives [o]; None: equal weights."""
    label_smoothing: float
    target_mean: float
    target_std: float
    """Regression: the model predicts (y - mean) / std."""

    @classmethod
    def for_training(cls, prepared: Prepared, config: TrainConfig) -> TaskHead:
        """The head for this data. Class weights and target scale come only from the training split."""
        task, num_outputs = prepared.meta["task"], prepared.meta["num_outputs"]
        mean, std, weight = 0.0, 1.0, None
        if config.class_weights == "balanced" or task == "regression":  # otherwise no label is read
            labels = np.asarray(prepared.labels[prepared.split_rows("train")])
            if task == "regression":
                mean, std = float(labels.mean(dtype=np.float64)), float(labels.std(dtype=np.float64)) or 1.0
            else:
                weight = _balanced(task, labels, num_outputs)
        return cls(task, num_outputs, weight, config.label_smoothing, mean, std)

    def loss(self, logits: Tensor, labels: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """Mean loss of a batch in float32, without unknown labels of multi-label rows. With several ranks, this rank's
        part of it: the parts add up to the mean over all nodes of the batch."""
        total, weight = self.loss_terms(logits, labels)
        if ranks.has_empty_batch:
            total, weight = 0.0 * total, 0.0 * weight
        return total / ranks.all_reduce_(weight).clamp(min=_MIN_WEIGHT)

    def on(self, device: torch.device) -> TaskHead:
        """A copy with the class weights on `device`."""
        return self if self.weight is None else replace(self, weight=self.weight.to(device))

    def loss_terms(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of a batch, and the total weight to divide it by."""
        logits = logits.float()
        weight = None if self.weight is None else self.weight.to(logits.device)
        count = torch.full((), float(len(labels)), device=logits.device)  # no copy from the host, so no sync
        if self.task == "multiclass":
            labels = labels.long()
            total = F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=self.label_smoothing)
            return total, count if weight is None else weight[labels].sum()
        if self.task == "regression":
            target = (labels.float() - self.target_mean) / self.target_std
            return F.mse_loss(logits[:, 0], target, reduction="sum"), count
        if self.task == "binary":
            labels = labels.float()[:, None]
        known = ~labels.isnan()
        target = labels.float().nan_to_num(0.0) * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        positives = weight if self.task == "multilabel" else None
        each = F.binary_cross_entropy_with_logits(logits, target, pos_weight=positives, reduction="none")
        if self.task == "binary" and weight is not None:
            by_class = weight[labels.long()]
            return (each * by_class).sum(), by_class.sum()
        return (each * known).sum(), known.sum().float()

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

    def disagreement(self, logits: list[Tensor], confidence: float = 0.0) -> Tensor:
        """[b] mean squared distance between the views' probabilities and their sharpened mean (squared and normalised,
        without gradient); 0 for a node whose mean has no class with at least the probability `confidence`."""
        if self.task == "regression":
            values = torch.stack([each.float() for each in logits])
            return (values - values.mean(dim=0).detach()).square().sum(dim=-1).mean(dim=0)
        views = torch.stack([self.probabilities(each) for each in logits])
        if self.task == "multilabel":  # each label as a binary task
            views = torch.stack([views, 1.0 - views], dim=-1)
        mean = views.mean(dim=0).detach()
        target = mean.square() / mean.square().sum(dim=-1, keepdim=True)
        distance = (views - target).square().sum(dim=-1).mean(dim=0) * (mean.amax(dim=-1) >= confidence)
        return distance.mean(dim=1) if self.task == "multilabel" else distance

    def average(self, logits: list[Tensor]) -> Tensor:
        """Logits whose probabilities are the mean of the given ones' probabilities (regression: the mean value)."""
        if len(logits) == 1:
            return logits[0]
        stacked = torch.stack([each.float() for each in logits])
        if self.task == "multiclass":
            return stacked.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))
        if self.task == "regression":
            return stacked.mean(dim=0)
        return stacked.double().sigmoid().mean(dim=0).logit(eps=1e-12).float()

    def monitor(self, wanted: str) -> tuple[str, float]:
        """The metric that picks the best epoch, and its sign: +1 if larger is better, -1 if smaller is."""
        load_plugins()
        own = [name for name, metric in _registered.items() if self.task in metric.tasks]
        known = (*_METRICS[self.task], "loss", *own)
        if wanted == "auto":
            wanted = {"multiclass": "accuracy", "regression": "rmse"}.get(self.task, "roc_auc")
        if wanted not in known:
            raise ConfigError(
                f"train.monitor={wanted} is no metric of a {self.task} task{nearest(wanted, known)}; "
                f"there are: {', '.join(known)}"
            )
        return wanted, 1.0 if larger_is_better(wanted) else -1.0


class Scores:
    """Collects losses and predictions over the batches of a split, on the model's device."""

    def __init__(self, head: TaskHead) -> None:
        self.head = head
        self._batches: list[tuple[Tensor, ...]] = []
        """For each batch: the summed loss, its weight, predictions and labels."""

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add one batch."""
        loss, weight = self.head.loss_terms(logits, labels)
        predicted = self.head.probabilities(logits)
        if self.head.task == "multiclass":
            predicted = predicted.argmax(dim=1)
        elif self.head.task == "binary":
            predicted, labels = predicted[:, 1:], labels[:, None]
        elif self.head.task == "regression":
            predicted = predicted[:, 0]
        self._batches.append((loss, weight, predicted, labels))

    def result(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """`{"loss": …, "accuracy": …}` over the batches of all ranks, the same on each rank; {} without batches."""
        if ranks.size == 1:
            return self._scores_of(self._batches)
        every = ranks.gather_objects([tuple(values.cpu() for values in batch) for batch in self._batches])
        return ranks.broadcast_object(self._scores_of([batch for counted in every for batch in counted]))

    def _scores_of(self, batches: list[tuple[Tensor, ...]]) -> dict[str, float]:
        if not batches:
            return {}
        losses, weights, predicted, truth = zip(*batches, strict=True)
        total, weight = (torch.stack(terms).double().sum() for terms in (losses, weights))
        loss = float(total / weight.clamp(min=_MIN_WEIGHT))
        of_split = torch.cat(predicted), torch.cat(truth)
        return {"loss": loss, **_metrics(self.head, *of_split), **_registered_metrics(self.head.task, *of_split)}


def _registered_metrics(task: Task, predicted: Tensor, truth: Tensor) -> dict[str, float]:
    arrays = [values.squeeze(1) if task == "binary" else values for values in (predicted, truth)]
    arrays_np = [
        values.double().cpu().numpy() if values.is_floating_point() else values.cpu().numpy() for values in arrays
    ]
    scores = {name: float(metric.compute(*arrays_np)) for name, metric in _registered.items() if task in metric.tasks}
    return {name: score for name, score in scores.items() if not math.isnan(score)}


def _metrics(head: TaskHead, predicted: Tensor, truth: Tensor) -> dict[str, float]:
    if head.task == "multiclass":
        accuracy = float((predicted == truth).double().mean())
        return {"accuracy": accuracy, "macro_f1": _macro_f1(predicted, truth.long(), head.num_outputs)}
    if head.task == "regression":
        predicted, truth = predicted.double(), truth.double()  # squares of large targets overflow float32
        error = predicted - truth
        found = {"rmse": float(error.square().mean().sqrt()), "mae": float(error.abs().mean())}
        if len(truth) > 1 and bool((truth != truth[0]).any()):
            found["r2"] = float(1 - error.square().sum() / (truth - truth.mean()).square().sum())
        return found
    truth = truth.float().nan_to_num(-1.0).long()
    ranked = {
        "roc_auc": _mean_over_labels(roc_auc, predicted, truth),
        "average_precision": _mean_over_labels(_average_precision, predicted, truth),
    }
    found = {name: value for name, value in ranked.items() if value is not None}
    known = truth >= 0
    positive, true = predicted[known] >= 0.5, truth[known] == 1
    f1 = float(2.0 * (positive & true).sum() / (positive.sum() + true.sum()).clamp(min=1))
    if head.task == "multilabel":
        return {**found, "micro_f1": f1}
    return {"accuracy": float((positive == true).double().mean()), **found, "f1": f1}


def _mean_over_labels(metric: Callable[[Tensor, Tensor], Tensor], predicted: Tensor, truth: Tensor) -> float | None:
    """The mean of a ranking metric over the labels with positives and negatives; None if there is no such label."""
    values = []
    for scores, labels in zip(predicted.T, truth.T, strict=True):
        known = labels >= 0
        if bool((labels == 1).any()) and bool((labels == 0).any()):
            values.append(float(metric(scores[known], labels[known])))
    return float(np.mean(values)) if values else None


def roc_auc(score: Tensor, truth: Tensor) -> Tensor:
    """Area under the ROC curve by the trapezoidal rule: ties count half."""
    positives, negatives = (F.pad(counts, (1, 0)) for counts in _counts_by_threshold(score, truth))
    return torch.trapezoid(positives / positives[-1], negatives / negatives[-1])


def _average_precision(score: Tensor, truth: Tensor) -> Tensor:
    """Mean of the precision at each threshold, weighted by the increase in recall."""
    positives, negatives = (counts.flip(0) for counts in _counts_by_threshold(score, truth))
    recall, precision = positives / positives[0], positives / (positives + negatives)
    return ((recall - F.pad(recall[1:], (0, 1))) * precision).sum()


def _counts_by_threshold(score: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positives at each distinct score, highest score first."""
    score, order = score.sort(descending=True)
    last = torch.cat([score.diff().nonzero()[:, 0], torch.tensor([len(score) - 1], device=score.device)])
    positives = truth[order].cumsum(0)[last]
    return positives, last + 1 - positives


def _macro_f1(predicted: Tensor, truth: Tensor, num_classes: int) -> float:
    """Mean F1 score over the classes that occur in labels or predictions."""
    hits = truth[predicted == truth].bincount(minlength=num_classes)
    total = truth.bincount(minlength=num_classes) + predicted.bincount(minlength=num_classes)
    return float((2.0 * hits / total.clamp(min=1))[total > 0].double().mean())


def _balanced(task: Task, labels: np.ndarray, num_outputs: int) -> Tensor:
    """scikit-learn's "balanced": nodes / (classes · nodes of the class), over the classes that occur. Multi-label:
    negatives per positive, as a weight of the positives. A class without training nodes gets 1."""
    if task != "multilabel":
        count = np.bincount(labels, minlength=2 if task == "binary" else num_outputs).astype(np.float64)
        weight = np.where(count > 0, count.sum() / np.maximum(count, 1) / (count > 0).sum(), 1.0)
    else:
        each = labels.reshape(len(labels), -1)
        weight = (each == 0).sum(axis=0) / np.maximum((each == 1).sum(axis=0), 1)
    return torch.tensor(weight, dtype=torch.float32)
