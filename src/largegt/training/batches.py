"""The batches of an epoch: one per step, or with `train.consistency_weight` two views of the same nodes. The samples of
local nodes are new in each epoch, or the prepared ones.

Consistency loss: two views of a node without a training label should get the same prediction. Each view has its own
sample of local nodes and its own dropout. Each step reads its training nodes and some nodes without a training label,
all twice. The loss adds the disagreement of the predictions for the latter (`TaskHead.disagreement`), times a weight
that grows over the first quarter of the training. Their labels are never read. Cost: 2·(batch + others) nodes per step
instead of a batch. The idea comes from random propagation on graphs (Feng et al. 2020, 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from largegt.config.schema import Config, TrainConfig
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader, local_dropout_seed, shuffled
from largegt.loader.resampling import Resampler
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.distributed import Ranks
from largegt.types import Array

from .setup import AnyLoader

_RAMP_FRACTION = 0.25
"""Fraction of all steps over which the weight of the consistency loss grows."""


def check_consistency(config: Config, ranks: Ranks, prepared: Prepared | None = None) -> None:
    """Refuse the consistency loss for models, numbers of processes and preparations that do not support it."""
    if not config.train.consistency_weight:
        return
    if config.model.spec.load().reads != "tokens":
        raise ConfigError(
            f"train.consistency_weight is for LargeGT and the baselines that read token rows, which "
            f"{config.model.name} does not: leave it out"
        )
    if ranks.size > 1:
        raise ConfigError("train.consistency_weight is for one process: leave it out, or train on one device")
    if prepared is not None and len(prepared.split_rows("train")) == len(prepared.nodes):
        raise ConfigError(
            "train.consistency_weight needs nodes without a training label, and all that are prepared have one: "
            "prepare the others with `prepare.local_nodes.target_nodes=all`"
        )


class EpochBatches:
    """`of(epoch)` yields the views of each step, one or two; call `close` at the end. Two views hold the same nodes in
    the same order: training nodes first, then `num_others` nodes without a training label."""

    def __init__(
        self, loader: AnyLoader, prepared: Prepared, config: TrainConfig, store: GraphStore | None = None
    ) -> None:
        """With a store, each epoch and view has new samples; without one, views differ only by dropout."""
        self.config, self.rows = config, prepared.split_rows("train")
        self.others = (
            np.delete(np.arange(len(prepared.nodes)), self.rows) if config.consistency_weight else self.rows[:0]
        )
        self.num_others = min(config.consistency_batch_size, len(self.others))
        if config.consistency_weight and isinstance(loader, TokenLoader):
            loader = replace(loader, distinct=False)  # deduplication would reorder the nodes of a batch
        self._loader = loader
        self._rows_by_step = lru_cache(maxsize=2)(self._make_rows_by_step)
        self._resamplers: list[Resampler] = []
        if store is not None and isinstance(loader, TokenLoader):
            self._resamplers = [
                Resampler(store, prepared, loader, self._rows_of_epoch, config.epochs, first_sample)
                for first_sample in ((0, config.epochs) if self.num_others else (0,))
            ]

    def close(self) -> None:
        """Stop sampling in the background."""
        for resampler in self._resamplers:
            resampler.close()

    def of(self, epoch: int) -> Iterator[tuple[TokenBatch, ...]]:
        """The views of each step."""
        config = self.config
        if not self.num_others:
            batches = self.loader_for(epoch).batches(self.rows, config.batch_size, config.seed, epoch)
            yield from ((batch,) for batch in batches)
            return
        rows = [torch.from_numpy(rows) for rows in self._rows_by_step(epoch)]
        assert isinstance(self._loader, TokenLoader), "check_consistency"
        loaders = [resampler.loader_for(epoch) for resampler in self._resamplers] or [self._loader, self._loader]
        seeds = local_dropout_seed(config.seed, epoch), local_dropout_seed(config.seed, config.epochs + epoch)
        first, second = (loader.batches_of(rows, seed) for loader, seed in zip(loaders, seeds, strict=True))
        with closing(first), closing(second):
            yield from zip(first, second, strict=True)

    def loader_for(self, epoch: int) -> AnyLoader:
        """Gathers rows as this epoch reads them; of two views, as they were prepared."""
        return self._resamplers[0].loader_for(epoch) if self._resamplers and not self.num_others else self._loader

    def weight(self, step: int, num_steps: int) -> float:
        """Weight of the consistency loss at step `step` of `num_steps`."""
        return self.config.consistency_weight * min(1.0, (step + 1) / max(1.0, _RAMP_FRACTION * num_steps))

    def _make_rows_by_step(self, epoch: int) -> list[Array]:
        """Rows of each step: its share of the shuffled training rows, then the other rows."""
        rows, size = shuffled(self.rows, self.config.seed, epoch), self.config.batch_size
        rng = np.random.default_rng([self.config.seed, epoch, 2])
        return [
            np.concatenate([
                rows[start : start + size],
                self.others[rng.choice(len(self.others), self.num_others, replace=False)],
            ])
            for start in range(0, len(rows), size)
        ]  # fmt: skip

    def _rows_of_epoch(self, epoch: int) -> Array:
        """All rows of an epoch, sorted."""
        return np.unique(np.concatenate(self._rows_by_step(epoch))) if self.num_others else self.rows
