"""What the steps of an epoch read: a batch each, or two views of its nodes (consistency.py); of samples that are drawn
anew for it, or of what was prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..config import TrainConfig
from ..data.store import GraphStore
from ..model.node_model import NodeModel
from ..prepare.prepared import Prepared
from ..tokens.fresh import FreshNeighborhoods
from ..tokens.input_tokens import TokenBatch
from ..tokens.loader import TokenLoader
from ..types import Array
from .consistency import TwoViews
from .setup import Loader


class OneView:
    """`batches(epoch)` of a training without consistency; `close` it when done."""

    num_others = 0

    def __init__(self, loader: Loader, rows: Array, config: TrainConfig, fresh: FreshNeighborhoods | None) -> None:
        """Batches of these rows; with `fresh` each epoch has samples of its own."""
        self.config, self.rows = config, rows
        self._loader, self._fresh = loader, fresh

    def close(self) -> None:
        """Stop drawing."""
        if self._fresh is not None:
            self._fresh.close()

    def batches(self, epoch: int) -> Iterator[tuple[TokenBatch]]:
        """The one view of each step."""
        batches = self.loader_of(epoch).batches(self.rows, self.config.batch_size, self.config.seed, epoch)
        return ((batch,) for batch in batches)

    def loader_of(self, epoch: int) -> Loader:
        """Gathers rows as this epoch reads them."""
        return self._loader if self._fresh is None else self._fresh.loader_of(epoch)

    def weight(self, step: int, num_steps: int) -> float:
        """There is nothing to agree on."""
        return 0.0


Views = OneView | TwoViews


def views_for(
    loader: Loader, prepared: Prepared, model: NodeModel, config: TrainConfig, store: Callable[[], GraphStore]
) -> Views:
    """As a training's settings have it. `store` opens the graph, where samples are drawn from it."""
    rows = prepared.split_rows("train")
    if not isinstance(loader, TokenLoader):
        return OneView(loader, rows, config, None)
    graph = store() if config.resample == "epoch" and model.num_local_nodes is None else None
    if config.consistency:
        return TwoViews(loader, prepared, config, graph)
    fresh = None if graph is None else FreshNeighborhoods(graph, prepared, loader, lambda epoch: rows, config.epochs)
    return OneView(loader, rows, config, fresh)
