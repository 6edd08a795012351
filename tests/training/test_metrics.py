"""Metrics of every task are those of torchmetrics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import functional as oracle

from largegt.training.metrics import Scores, TaskHead


def scores(task: Any, num_outputs: int, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Counted in batches of 37."""
    counted = Scores(TaskHead(task, num_outputs, None, 0.0, 0.0, 1.0))
    for some, their in zip(logits.split(37), labels.split(37), strict=True):
        counted.add(some, their)
    return counted.result()


@pytest.mark.parametrize("num_classes", [2, 7])
def test_classes(num_classes: int) -> None:
    """One class is never a label, and one is neither a label nor predicted."""
    torch.manual_seed(0)
    logits, labels = torch.randn(500, num_classes + 2), torch.randint(num_classes, (500,))
    logits[:, -1] = -100.0
    found = scores("multiclass", num_classes + 2, logits, labels)
    predicted = logits.argmax(dim=1)
    wanted = oracle.f1_score(predicted, labels, "multiclass", num_classes=num_classes + 2, average="macro")
    assert found["macro_f1"] == pytest.approx(float(wanted), abs=1e-6)
    wanted = oracle.accuracy(predicted, labels, "multiclass", num_classes=num_classes + 2, average="micro")
    assert found["accuracy"] == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("size", [2, 500, 20_000])
def test_two_classes(size: int, digits: int | None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(size, 1)
    if digits is not None:
        logits = logits.round(decimals=digits)
    labels = (logits[:, 0] + torch.randn(size) > 0).float()
    labels[:2] = torch.tensor([0.0, 1.0])
    found = scores("binary", 1, logits, labels)
    probability, truth = logits[:, 0].sigmoid(), labels.long()
    wanted = float(oracle.classification.binary_auroc(probability, truth))
    assert found["roc_auc"] == pytest.approx(wanted, abs=1e-6)
    wanted = float(oracle.classification.binary_average_precision(probability, truth))
    assert found["average_precision"] == pytest.approx(wanted, abs=1e-6)
    predicted = (probability >= 0.5).long()  # one half counts as positive here
    assert found["f1"] == pytest.approx(float(oracle.f1_score(predicted, truth, "binary")), abs=1e-6)
    assert found["accuracy"] == pytest.approx(float(oracle.accuracy(predicted, truth, "binary")), abs=1e-6)


def test_many_labels() -> None:
    """Some are missing; the last label has no positives and does not count."""
    torch.manual_seed(0)
    logits, labels = torch.randn(300, 4), torch.randint(2, (300, 4)).float()
    labels[torch.rand(300, 4) < 0.2] = torch.nan
    labels[:, 3] = 0.0
    found = scores("multilabel", 4, logits, labels)
    probability = logits.sigmoid()
    for name, metric in (
        ("roc_auc", oracle.classification.binary_auroc),
        ("average_precision", oracle.classification.binary_average_precision),
    ):
        each = []
        for column in range(3):
            known = ~labels[:, column].isnan()
            each.append(metric(probability[known, column], labels[known, column].long()))
        assert found[name] == pytest.approx(float(torch.stack(each).mean()), abs=1e-6)
    known = ~labels.isnan()
    wanted = oracle.f1_score(probability[known], labels[known].long(), "binary")
    assert found["micro_f1"] == pytest.approx(float(wanted), abs=1e-6)


def test_values() -> None:
    torch.manual_seed(0)
    labels = 1000.0 + 10.0 * torch.randn(400)
    logits = (labels + torch.randn(400))[:, None]
    found = scores("regression", 1, logits, labels)
    predicted, truth = logits[:, 0].double(), labels.double()
    assert found["r2"] == pytest.approx(float(oracle.r2_score(predicted, truth)))
    assert found["rmse"] == pytest.approx(float(oracle.mean_squared_error(predicted, truth, squared=False)))
    assert found["mae"] == pytest.approx(float(oracle.mean_absolute_error(predicted, truth)))


def test_r2_of_small_values() -> None:
    """torchmetrics calls sums of squares below 1e-4 zero."""
    truth = torch.tensor([1e-5, 2e-5, 3e-5, 4e-5])
    found = scores("regression", 1, truth.flip(0)[:, None], truth)
    assert found["r2"] == pytest.approx(-3.0)
