"""Evaluate: scores of a model over a split. The only reader of the test split.

Enters: a run folder (its best weights) and a split. Leaves: `{"loss": …, "accuracy": …}`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..config import TrainConfig
from ..errors import InputError
from ..model.node_model import NodeModel
from ..prepare.prepared import Prepared
from ..progress import Progress, silent
from ..tokens.loader import TokenLoader
from ..types import Array, PathLike
from .metrics import Scores, TaskHead
from .run import Run
from .setup import make_fabric, make_loader

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def evaluate(
    run: PathLike | Run, split: str = "test", progress: Progress | None = None, device: str | None = None
) -> dict[str, float]:
    """Scores of a run's best weights on `split`."""
    opened = Run.open(run)
    config = opened.train_config(device)
    prepared = opened.prepared(progress)
    if not len(prepared.split_rows(split)):
        raise InputError(f"the {split} split of {opened.store_path} is empty, so there is nothing to score")
    model = opened.load_model(prepared)
    return evaluate_prepared(model, config, prepared, split, opened.head(prepared), progress)


def evaluate_prepared(
    model: NodeModel,
    config: TrainConfig,
    prepared: Prepared,
    split: str,
    head: TaskHead,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Scores of a model on a split of a Prepared; empty when the split is."""
    fabric = make_fabric(config)
    model = model.to(fabric.device)
    loader = make_loader(prepared, model, config, fabric.device)
    return score_rows(model, loader, prepared.split_rows(split), config.eval_batch_size, head, fabric, progress)


def majority_scores(prepared: Prepared) -> dict[str, float]:
    """Accuracy on valid and test of always saying the most common class of the training nodes."""
    labels = np.asarray(prepared.labels)
    classes, counts = np.unique(labels[prepared.split_rows("train")], return_counts=True)
    common = classes[counts.argmax()]
    return {split: float((labels[prepared.split_rows(split)] == common).mean()) for split in ("valid", "test")}


@torch.no_grad()
def score_rows(
    model: NodeModel,
    loader: TokenLoader,
    rows: Array,
    batch_size: int,
    head: TaskHead,
    fabric: Fabric | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Scores of a model on rows of the loader's table."""
    show = progress or silent
    model.eval()
    scores = Scores(head)
    for number, batch in enumerate(loader.batches(rows, batch_size), start=1):
        with fabric.autocast() if fabric is not None else nullcontext():
            logits = model(batch).logits
        scores.add(logits, batch.labels)
        show("evaluate", number, loader.num_batches(len(rows), batch_size))
    return scores.result()
