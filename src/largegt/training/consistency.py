"""Consistency: two views of a node that has no training label are to be predicted alike.

A view is the node with local nodes of a draw of its own, and with dropout of its own. Where labels are few, this lets
the others teach: each step reads, beside its training nodes, some of those that will be predicted, twice, and the loss
gets how far the two predictions are from what they say together (`TaskHead.disagreement`), times a weight that grows
over the first quarter of the training. Nodes of which the two say nothing with confidence are left alone: made surer,
a first guess becomes a mistake that the model learns from. Their labels are never read. The idea is that of random
propagation on graphs (Feng et al. 2020, 2022); here fresh neighbourhoods are what is random.

Enters: a loader and, where samples are drawn anew, what draws them. Leaves: for each step of an epoch two batches, of
the same nodes in the same order: training nodes first, then `num_others` others. Cost: a step reads
2·(batch + others) nodes instead of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from ..config import Config, TrainConfig
from ..data.store import GraphStore
from ..errors import ConfigError
from ..prepare.prepared import Prepared
from ..ranks import Ranks
from ..tokens.fresh import FreshNeighborhoods
from ..tokens.input_tokens import TokenBatch
from ..tokens.loader import TokenLoader, left_out_seed, shuffled
from ..types import Array
from .setup import kind_of

_RAMP = 0.25
"""Share of all steps over which the weight grows: first predictions agree on nothing worth keeping."""


def check_model(config: Config, ranks: Ranks) -> None:
    """Refuse consistency for a model or a number of processes that it is not for."""
    if config.train.consistency and kind_of(config.model).reads != "tokens":
        raise ConfigError(
            f"train.consistency is for LargeGT and the baselines that read token rows, which {config.model.name} does "
            "not: leave it out"
        )
    if config.train.consistency and ranks.size > 1:
        raise ConfigError("train.consistency is for one process: leave it out, or train on one device")


def check_nodes(config: Config, prepared: Prepared) -> None:
    """Refuse it where there is no node to agree about."""
    if config.train.consistency and len(prepared.split_rows("train")) == len(prepared.nodes):
        raise ConfigError(
            "train.consistency needs nodes without a training label, and all that are prepared have one: "
            "prepare the others with --set prepare.local_nodes.nodes=all"
        )


class TwoViews:
    """`batches(epoch)` of a training with consistency; `close` it when done."""

    def __init__(
        self, loader: TokenLoader, prepared: Prepared, config: TrainConfig, store: GraphStore | None = None
    ) -> None:
        """With a store the views have samples of their own; otherwise only dropout tells them apart."""
        self.config = config
        self.train_rows = prepared.split_rows("train")
        self.others = np.delete(np.arange(len(prepared.nodes)), self.train_rows)
        self.num_others = min(config.consistency_nodes, len(self.others))
        self._loader = replace(loader, distinct=False)  # which would put the nodes of a batch into another order
        self._pieces_of = lru_cache(maxsize=2)(self._make_pieces)
        self._fresh: list[FreshNeighborhoods] = []
        if store is not None:
            self._fresh = [
                FreshNeighborhoods(store, prepared, self._loader, self._rows_of, config.epochs, first_draw)
                for first_draw in (0, config.epochs)
            ]

    def close(self) -> None:
        """Stop drawing."""
        for fresh in self._fresh:
            fresh.close()

    def batches(self, epoch: int) -> Iterator[tuple[TokenBatch, TokenBatch]]:
        """Both views of the nodes of each step."""
        pieces = [torch.from_numpy(piece) for piece in self._pieces_of(epoch)]
        loaders = [fresh.loader_of(epoch) for fresh in self._fresh] or [self._loader, self._loader]
        seeds = left_out_seed(self.config.seed, epoch), left_out_seed(self.config.seed, self.config.epochs + epoch)
        first, second = (loader.batches_of(pieces, seed) for loader, seed in zip(loaders, seeds, strict=True))
        with closing(first), closing(second):
            yield from zip(first, second, strict=True)

    def loader_of(self, epoch: int) -> TokenLoader:
        """Without the samples of either view: what rows of the token table tell is the same."""
        return self._loader

    def weight(self, step: int, num_steps: int) -> float:
        """Of the second loss, at this step of so many."""
        return self.config.consistency * min(1.0, (step + 1) / max(1.0, _RAMP * num_steps))

    def _make_pieces(self, epoch: int) -> list[Array]:
        """Rows of each step: those it trains on, shuffled as ever, and others."""
        rows, size = shuffled(self.train_rows, self.config.seed, epoch), self.config.batch_size
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
        return np.unique(np.concatenate(self._pieces_of(epoch)))
