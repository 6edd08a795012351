"""Resampling: another sample of LocalNodes every epoch, drawn in the background while the last one trains.

Enters: a store and a Prepared with token rows of every node in reach. Leaves: per epoch, a loader whose rows of that
epoch have new local nodes. A sample is a function of (seed, epoch, node), so a resumed run sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from largegt.data.store import GraphStore
from largegt.preprocessing.prepared import LocalNodeSample, Prepared, sample_rows
from largegt.runtime.threads import num_threads
from largegt.types import Array

from .loader import TokenLoader


class Resampler:
    """Samples one epoch ahead; `close` it when done."""

    def __init__(
        self, store: GraphStore, prepared: Prepared, loader: TokenLoader, rows_of: Callable[[int], Array],
        num_epochs: int, first_draw: int = 0,
    ) -> None:  # fmt: skip
        """`rows_of` an epoch, rising, are those that it reads. Epoch e has draw `first_draw` + e; draw 0 is what was
        prepared."""
        self.store, self.prepared, self.loader, self.rows_of = store, prepared, loader, rows_of
        self.num_epochs, self.first_draw = num_epochs, first_draw
        self._pool = ThreadPoolExecutor(1)
        self._coming: dict[int, tuple[Array, Future[LocalNodeSample]]] = {}
        """Of epochs to come: their rows, and the draw."""

    def close(self) -> None:
        """Stop drawing."""
        self._pool.shutdown(cancel_futures=True)

    def loader_of(self, epoch: int) -> TokenLoader:
        """The loader of this epoch; the draw of the next one begins."""
        self._begin(epoch)
        begun = self._coming.pop(epoch, None)
        self._begin(epoch + 1)
        if begun is None:
            return self.loader
        rows, drawn = begun
        return replace(self.loader, table=self.loader.table.with_local_rows(rows, *drawn.result()))

    def _begin(self, epoch: int) -> None:
        draw = self.first_draw + epoch
        if draw > 0 and epoch < self.num_epochs and epoch not in self._coming:
            rows, threads = self.rows_of(epoch), max(1, num_threads(None) - 1)
            drawn = self._pool.submit(sample_rows, self.store, self.prepared, rows, draw, threads)
            self._coming[epoch] = rows, drawn
