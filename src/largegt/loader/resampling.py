"""Resampling: new LocalNodes every epoch, sampled in the background during the previous epoch.

Enters: a store and a Prepared with token rows of every reachable node. Leaves: per epoch, a loader with new local
nodes. A sample is a function of (seed, epoch, node), so a resumed run gets the same samples.
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
    """Samples one epoch ahead. Call `close` after use."""

    def __init__(
        self, store: GraphStore, prepared: Prepared, loader: TokenLoader, rows_of: Callable[[int], Array],
        num_epochs: int, first_sample: int = 0,
    ) -> None:  # fmt: skip
        """`rows_of(epoch)` are the rows that the epoch reads, sorted. Epoch e uses sample `first_sample` + e; sample 0
        is the prepared one."""
        self.store, self.prepared, self.loader, self.rows_of = store, prepared, loader, rows_of
        self.num_epochs, self.first_sample = num_epochs, first_sample
        self._pool = ThreadPoolExecutor(1)
        self._pending: dict[int, tuple[Array, Future[LocalNodeSample]]] = {}
        """The rows and the sample of each started epoch."""

    def close(self) -> None:
        """Stop sampling."""
        self._pool.shutdown(cancel_futures=True)

    def loader_for(self, epoch: int) -> TokenLoader:
        """The loader of this epoch. Starts sampling for the next epoch."""
        self._start(epoch)
        pending = self._pending.pop(epoch, None)
        self._start(epoch + 1)
        if pending is None:
            return self.loader
        rows, sampled = pending
        return replace(self.loader, table=self.loader.table.with_local_rows(rows, *sampled.result()))

    def _start(self, epoch: int) -> None:
        sample_index = self.first_sample + epoch
        if sample_index > 0 and epoch < self.num_epochs and epoch not in self._pending:
            rows, threads = self.rows_of(epoch), max(1, num_threads(None) - 1)
            sampled = self._pool.submit(sample_rows, self.store, self.prepared, rows, sample_index, threads)
            self._pending[epoch] = rows, sampled
