"""Evaluate: scores of a model over a split.

Enters: a run folder (its best weights) and a split. Leaves: `{"loss": …, "accuracy": …}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.config.schema import TrainConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.io.remote import shown
from largegt.loader.loader import TokenLoader
from largegt.models.base import NodeModel
from largegt.models.baselines.layerwise import layerwise
from largegt.models.baselines.loader import NeighborLoader
from largegt.models.baselines.message_passing import MessagePassing
from largegt.preprocessing.prepared import Prepared, sample_rows
from largegt.runtime.distributed import ALONE, Ranks, get_distributed
from largegt.runtime.progress import Progress, silent
from largegt.types import Array, PathLike

from .metrics import Scores, TaskHead
from .run import Run
from .setup import Accelerator, AnyLoader, make_accelerator, make_loader, num_samples

Predicted = tuple[Tensor, Tensor, Tensor]
"""Nodes, logits and labels."""
_BATCH_BYTES, _FEWEST = 1 << 29, 16
"""Limit on the tokens of a batch, and the fewest nodes per batch: features may have thousands of columns."""


def evaluate(
    run: PathLike | Run,
    split: str = "test",
    progress: Progress | None = None,
    device: str | None = None,
    num_eval_samples: int | None = None,
) -> dict[str, float]:
    """Score the best weights of a run on a split.

    Under torchrun each process scores a part, and all return the whole.

    Args:
        run: a run, or its folder.
        split: train, valid or test.
        progress: is called as `progress(stage, done, total)`.
        device: auto, cpu or cuda; that of the run by default.
        num_eval_samples: average predictions over so many samples of local nodes; as many as the run is set to by
            default.

    Returns:
        The value of each metric by its name, such as loss and accuracy.

    Raises:
        InputError: there is no run, its store is gone, or the split is empty.
        ConfigError: the loss is not finite.

    Examples:
        >>> scores = lg.evaluate("runs/a", split="test")
        >>> 0 <= scores["accuracy"] <= 1
        True
    """
    opened = Run.open(run)
    config = opened.train_config(device)
    num_eval_samples = config.num_eval_samples if num_eval_samples is None else num_eval_samples
    ranks = get_distributed(config.device)
    progress = progress if ranks.is_first else None
    with ranks.rank_zero_first():
        prepared = opened.prepared(progress, reachable=num_eval_samples > 1)
    rows = prepared.split_rows(split)
    if not len(rows):
        raise InputError(f"the {split} split of {shown(opened.store_path)} is empty, so there is nothing to score")
    scorer = Scorer.of_run(opened, prepared, opened.store(), config, ranks)
    scores = scorer.scores(ranks.batches_of(rows, config.eval_batch_size), num_eval_samples, progress)
    if not math.isfinite(scores["loss"]):
        raise ConfigError(
            f"the loss on the {split} nodes is {scores['loss']}, which is no score: "
            f"`lg.predict({str(opened.path)!r}, split={split!r})` names the first node that the model says no number of"
        )
    return scores


def majority_scores(prepared: Prepared) -> dict[str, float]:
    """Accuracy on valid and test of always predicting the most common class of the training nodes."""
    labels = np.asarray(prepared.labels)
    classes, counts = np.unique(labels[prepared.split_rows("train")], return_counts=True)
    common = classes[counts.argmax()]
    return {split: float((labels[prepared.split_rows(split)] == common).mean()) for split in ("valid", "test")}


@dataclass(frozen=True)
class Scorer:
    """A model with everything that predictions and scores need. `rows` are sorted rows of the loader's table."""

    model: NodeModel
    head: TaskHead
    config: TrainConfig
    accelerator: Accelerator
    loader: AnyLoader
    prepared: Prepared
    store: GraphStore

    @classmethod
    def of_run(
        cls, run: Run, prepared: Prepared, store: GraphStore, config: TrainConfig, ranks: Ranks = ALONE
    ) -> Scorer:
        """Scores a run's best weights. A run trained with its token table on a GPU can be scored without a GPU."""
        accelerator = make_accelerator(config, ranks)
        model = run.load_model(prepared).to(accelerator.device)
        place = run.config.train.token_table
        loader = make_loader(prepared, model, config, accelerator.device, "auto" if place == "cuda" else place, store)
        return cls(model, run.head(prepared), config, accelerator, loader, prepared, store)

    def scores(self, rows: Array, num_eval_samples: int = 1, progress: Progress | None = None) -> dict[str, float]:
        """Scores of predictions for `rows`, averaged over `num_eval_samples` samples. With several ranks, each passes
        its own rows and gets the scores over all of them."""
        scores = Scores(self.head)
        for _, logits, labels in self.logits(self.loaders(rows, num_eval_samples), rows, progress, "evaluate"):
            scores.add(logits, labels)
        return scores.result(self.accelerator.ranks)

    def loaders(self, rows: Array, num_eval_samples: int) -> list[AnyLoader]:
        """The loader, and others like it with fresh samples of local nodes or neighbours for these rows."""
        if num_eval_samples < 1:
            raise ConfigError(f"num_eval_samples is {num_eval_samples}: it must be at least 1")
        first, others = self.loader, range(1, num_samples(self.model, self.config, num_eval_samples))
        if isinstance(first, NeighborLoader):
            return [first, *(replace(first, draw=draw) for draw in others)]
        samples = (sample_rows(self.store, self.prepared, rows, draw) for draw in others)
        return [first, *(replace(first, table=first.table.with_local_rows(rows, *sample)) for sample in samples)]

    @torch.no_grad()
    def logits(
        self, loaders: Sequence[AnyLoader], rows: Array, progress: Progress | None = None, stage: str = ""
    ) -> Iterator[Predicted]:
        """(nodes, logits, labels) batch by batch, in the order of `rows`, averaged over the loaders' samples."""
        show = progress or silent
        self.model.eval()
        if not len(rows):
            return
        num_done = 0
        for found in zip(*(self._predicted(loader, rows) for loader in loaders), strict=True):
            nodes, _, labels = found[0]
            yield nodes, self.head.average([logits for _, logits, _ in found]), labels
            num_done += len(nodes)
            show(stage, num_done, len(rows))

    def _predicted(self, loader: AnyLoader, rows: Array) -> Iterator[Predicted]:
        model = self.model
        if isinstance(loader, NeighborLoader) and isinstance(model, MessagePassing) and self.config.layerwise_inference:
            yield from self._over_all_neighbors(model, loader, rows)
            return
        num_left, size = len(rows), nodes_at_once(loader, self.config)
        if size in model.compiled_sizes and num_left > size:  # pad the last batch to the compiled size
            rows = np.concatenate([rows, np.repeat(rows[-1:], -num_left % size)])
        for batch in loader.batches(rows, size):
            with self.accelerator.autocast():
                logits = _in_order(batch, model(batch).logits)
            nodes, labels = (_in_order(batch, values) for values in (batch.nodes, batch.labels))
            count = min(len(nodes), num_left)
            yield nodes[:count], logits[:count], labels[:count]
            num_left -= count

    def _over_all_neighbors(self, model: MessagePassing, loader: NeighborLoader, rows: Array) -> Iterator[Predicted]:
        """Layer-wise inference: computes each layer once per node."""
        table = loader.table
        table_rows = torch.from_numpy(rows).to(table.device)
        nodes, labels = table.nodes[table_rows].cpu().numpy(), table.labels[table_rows].to(self.accelerator.device)
        outputs = layerwise(model, loader.csr, lambda some: loader.features(torch.from_numpy(some)), nodes)
        done = 0
        while True:
            with self.accelerator.autocast():
                output = next(outputs, None)
            if output is None:
                return
            part = labels[done : done + len(output.nodes)]
            yield output.nodes, output.logits, part if part.is_floating_point() else part.long()
            done += len(output.nodes)


def nodes_at_once(loader: AnyLoader, config: TrainConfig) -> int:
    """Nodes per step of evaluation and prediction: as set, but fewer where their tokens are very wide."""
    if not isinstance(loader, TokenLoader):
        return config.eval_batch_size
    return min(config.eval_batch_size, max(_FEWEST, _BATCH_BYTES // loader.bytes_per_node))


def _in_order(batch: Any, values: Tensor) -> Tensor:
    """Values of a batch in the order of its nodes; only batches with deduplicated tokens are reordered."""
    return values if batch.multiplicity is None else values[batch.nodes.argsort()]
