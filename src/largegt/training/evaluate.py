"""Evaluate: scores of a model over a split. The only reader of the test split.

Enters: a run folder (its best weights) and a split. Leaves: `{"loss": …, "accuracy": …}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..config import TrainConfig
from ..errors import InputError
from ..model.node_model import NodeModel
from ..prepare.prepared import Prepared
from ..progress import Progress, silent
from ..tokens.input_tokens import TokenBatch
from ..tokens.loader import TokenLoader
from ..types import Array, PathLike
from .metrics import Scores, TaskHead
from .run import Run
from .setup import make_fabric, make_loader, make_loaders

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def evaluate(
    run: PathLike | Run,
    split: str = "test",
    progress: Progress | None = None,
    device: str | None = None,
    draws: int = 1,
) -> dict[str, float]:
    """Scores of a run's best weights on `split`; with several draws, of their averaged predictions."""
    opened = Run.open(run)
    config = opened.train_config(device)
    prepared = opened.prepared(progress, reachable=draws > 1)
    rows = prepared.split_rows(split)
    if not len(rows):
        raise InputError(f"the {split} split of {opened.store_path} is empty, so there is nothing to score")
    fabric = make_fabric(config, opened.config.model)
    model = opened.load_model(prepared).to(fabric.device)
    table = opened.config.tokens.table
    loaders = make_loaders(prepared, model, config, fabric.device, opened.store(), rows, draws, table)
    return score_rows(model, loaders, rows, config.eval_batch_size, opened.head(prepared), fabric, progress)


def evaluate_prepared(
    fabric: Fabric,
    model: NodeModel,
    config: TrainConfig,
    prepared: Prepared,
    split: str,
    head: TaskHead,
    loader: TokenLoader | None = None,
) -> dict[str, float]:
    """Scores of a model on a split of a Prepared; empty when the split is. A `loader` of it that is at hand saves
    laying out the token table once more."""
    model = model.to(fabric.device)
    loader = loader or make_loader(prepared, model, config, fabric.device)
    return score_rows(model, [loader], prepared.split_rows(split), config.eval_batch_size, head, fabric)


def majority_scores(prepared: Prepared) -> dict[str, float]:
    """Accuracy on valid and test of always saying the most common class of the training nodes."""
    labels = np.asarray(prepared.labels)
    classes, counts = np.unique(labels[prepared.split_rows("train")], return_counts=True)
    common = classes[counts.argmax()]
    return {split: float((labels[prepared.split_rows(split)] == common).mean()) for split in ("valid", "test")}


def score_rows(
    model: NodeModel,
    loaders: list[TokenLoader],
    rows: Array,
    batch_size: int,
    head: TaskHead,
    fabric: Fabric,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Scores of a model on rows of the loaders' table, predictions averaged over the loaders' draws."""
    scores = Scores(head)
    for _, logits, labels in averaged_logits(model, loaders, rows, batch_size, head, fabric, progress, "evaluate"):
        scores.add(logits, labels)
    return scores.result()


@torch.no_grad()
def averaged_logits(
    model: NodeModel,
    loaders: list[TokenLoader],
    rows: Array,
    batch_size: int,
    head: TaskHead,
    fabric: Fabric,
    progress: Progress | None = None,
    stage: str = "",
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(nodes, logits, labels) batch by batch, in the order of `rows`, which are sorted; each loader brings the same
    nodes with another draw of local nodes."""
    show = progress or silent
    model.eval()
    num_done, num_rows = 0, len(rows)
    if batch_size in model.compiled_sizes and num_rows > batch_size:  # the last batch as full as the others
        rows = np.concatenate([rows, np.repeat(rows[-1:], -num_rows % batch_size)])
    for batches in zip(*(loader.batches(rows, batch_size) for loader in loaders), strict=True):
        found = []
        for batch in batches:
            with fabric.autocast():
                found.append(_in_order(batch, model(batch).logits))
        nodes, labels = (_in_order(batches[0], values) for values in (batches[0].nodes, batches[0].labels))
        count = min(len(nodes), num_rows - num_done)
        yield nodes[:count], head.average(found)[:count], labels[:count]
        num_done += count
        show(stage, num_done, num_rows)


def _in_order(batch: TokenBatch, values: Tensor) -> Tensor:
    """Values of a batch by node; only batches of distinct tokens come in another order."""
    return values if batch.multiplicity is None else values[batch.nodes.argsort()]
