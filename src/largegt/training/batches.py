"""What the steps of an epoch read: a batch each, or with `train.consistency_weight` two views of its nodes; of samples
that are drawn anew for the epoch, or of what was prepared.

Consistency: two views of a node without a training label are to be predicted alike. A view has a sample of local nodes
and dropout of its own. Each step reads, beside its training nodes, some of those that will be predicted, twice, and the
loss gets their disagreement (`TaskHead.disagreement`), times a weight that grows over the first quarter of the
training. Labels of these nodes are never read. Cost: 2·(batch + others) nodes a step instead of a batch. The idea is
that of random propagation on graphs (Feng et al. 2020, 2022).
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

_RAMP = 0.25
"""Share of all steps over which the weight of consistency grows."""


def check_consistency(config: Config, ranks: Ranks, prepared: Prepared | None = None) -> None:
    """Refuse consistency for a model, a number of processes or a preparation that it is not for."""
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
    """`of(epoch)` are the batches of its steps, one view or two of each; `close` it when done. In two views, training
    nodes come first, then `num_others` others, the same nodes in the same order."""

    def __init__(
        self, loader: AnyLoader, prepared: Prepared, config: TrainConfig, store: GraphStore | None = None
    ) -> None:
        """With a store every epoch and view has samples of its own; otherwise dropout alone tells views apart."""
        self.config, self.rows = config, prepared.split_rows("train")
        self.others = (
            np.delete(np.arange(len(prepared.nodes)), self.rows) if config.consistency_weight else self.rows[:0]
        )
        self.num_others = min(config.consistency_batch_size, len(self.others))
        if config.consistency_weight and isinstance(loader, TokenLoader):
            loader = replace(loader, distinct=False)  # which would put the nodes of a batch into another order
        self._loader = loader
        self._pieces = lru_cache(maxsize=2)(self._make_pieces)
        self._fresh: list[Resampler] = []
        if store is not None and isinstance(loader, TokenLoader):
            self._fresh = [
                Resampler(store, prepared, loader, self._rows_of, config.epochs, first_sample)
                for first_sample in ((0, config.epochs) if self.num_others else (0,))
            ]

    def close(self) -> None:
        """Stop drawing."""
        for fresh in self._fresh:
            fresh.close()

    def of(self, epoch: int) -> Iterator[tuple[TokenBatch, ...]]:
        """The views of each step."""
        config = self.config
        if not self.num_others:
            batches = self.loader_for(epoch).batches(self.rows, config.batch_size, config.seed, epoch)
            yield from ((batch,) for batch in batches)
            return
        pieces = [torch.from_numpy(piece) for piece in self._pieces(epoch)]
        assert isinstance(self._loader, TokenLoader), "check_consistency"
        loaders = [fresh.loader_for(epoch) for fresh in self._fresh] or [self._loader, self._loader]
        seeds = local_dropout_seed(config.seed, epoch), local_dropout_seed(config.seed, config.epochs + epoch)
        first, second = (loader.batches_of(pieces, seed) for loader, seed in zip(loaders, seeds, strict=True))
        with closing(first), closing(second):
            yield from zip(first, second, strict=True)

    def loader_for(self, epoch: int) -> AnyLoader:
        """Gathers rows as this epoch reads them; of two views, as they were prepared."""
        return self._fresh[0].loader_for(epoch) if self._fresh and not self.num_others else self._loader

    def weight(self, step: int, num_steps: int) -> float:
        """Of consistency in the loss, at this step of so many."""
        return self.config.consistency_weight * min(1.0, (step + 1) / max(1.0, _RAMP * num_steps))

    def _make_pieces(self, epoch: int) -> list[Array]:
        """Rows of each step: those it trains on, shuffled, and others."""
        rows, size = shuffled(self.rows, self.config.seed, epoch), self.config.batch_size
        rng = np.random.default_rng([self.config.seed, epoch, 2])
        return [
            np.concatenate([
                rows[start : start + size],
                self.others[rng.choice(len(self.others), self.num_others, replace=False)],
            ])
            for start in range(0, len(rows), size)
        ]  # fmt: skip

    def _rows_of(self, epoch: int) -> Array:
        """All that an epoch reads, rising."""
        return np.unique(np.concatenate(self._pieces(epoch))) if self.num_others else self.rows
