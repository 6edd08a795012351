"""What the steps of an epoch read: a batch each, or two views of its nodes (consistency.py); of samples that are drawn
anew for it, or of what was prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ..config import TrainConfig
from ..graph.store import GraphStore
from ..model.node_model import NodeModel
from ..prepare.prepared import Prepared
from ..tokens.fresh import FreshNeighborhoods
from ..tokens.input_tokens import TokenBatch
from ..tokens.loader import TokenLoader
from .consistency import TwoViews
from .setup import Loader


class Views(Protocol):
    """`close` it when done."""

    num_others: int
    """Nodes at the end of a batch that are not trained on."""

    def batches(self, epoch: int) -> Iterator[Sequence[TokenBatch]]:
        """The views of each step."""

    def loader_of(self, epoch: int) -> Loader:
        """Gathers rows as this epoch reads them; of the latest one alone."""

    def weight(self, step: int, num_steps: int) -> float:
        """Of the views' agreement, at this step of so many."""

    def close(self) -> None:
        """Stop drawing."""


class OneView:
    """Batches of training nodes."""

    num_others = 0

    def __init__(self, loader: Loader, prepared: Prepared, config: TrainConfig, store: GraphStore | None) -> None:
        """With a store each epoch has samples of its own."""
        self.config, self.rows = config, prepared.split_rows("train")
        self._loader, self._epoch = loader, -1
        self._fresh: FreshNeighborhoods | None = None
        if store is not None and isinstance(loader, TokenLoader):
            self._fresh = FreshNeighborhoods(store, prepared, loader, lambda epoch: self.rows, config.epochs)

    def close(self) -> None:
        if self._fresh is not None:
            self._fresh.close()

    def batches(self, epoch: int) -> Iterator[Sequence[TokenBatch]]:
        batches = self.loader_of(epoch).batches(self.rows, self.config.batch_size, self.config.seed, epoch)
        return ([batch] for batch in batches)

    def loader_of(self, epoch: int) -> Loader:
        if self._fresh is not None and epoch != self._epoch:
            self._loader, self._epoch = self._fresh.loader_of(epoch), epoch
        return self._loader

    def weight(self, step: int, num_steps: int) -> float:
        return 0.0


def views_for(
    loader: Loader, prepared: Prepared, model: NodeModel, config: TrainConfig, store: Callable[[], GraphStore]
) -> Views:
    """As a training's settings have it. `store` opens the graph, where samples are drawn from it."""
    draws_anew = config.resample == "epoch" and isinstance(loader, TokenLoader) and model.num_local_nodes is None
    graph = store() if draws_anew else None
    if config.consistency and isinstance(loader, TokenLoader):
        return TwoViews(loader, prepared, config, graph)
    return OneView(loader, prepared, config, graph)
