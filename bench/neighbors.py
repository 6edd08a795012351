"""Neighbour sampling: seeds per second of each backend, over fan-outs and threads, and of PyTorch Geometric's loader.

    python bench/neighbors.py                          # ogbn-products' size; CUDA where there is one
    python bench/neighbors.py --scale 0.05             # anywhere

A graph like ogbn-products (`largegt generate`), batches of its shuffled nodes, no features: sampling alone.
`threads` share the work of one batch; `at once` samples that many batches side by side, a thread each, as a loader may.
PyTorch Geometric draws for the new nodes of each hop only, ours for all reached so far (the seeds draw again): its
batches are a little smaller. It needs pyg-lib or torch-sparse for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from largegt.datasets.synthetic import generate
from largegt.models.baselines.neighbors import NeighborSampler, TorchBackend
from largegt.runtime.threads import num_threads, run_ahead

FANOUTS = ([20, 10], [15, 10, 5])


class Bench:
    """One graph in memory, and the same batches of seeds for all."""

    def __init__(self, scale: float, batch_size: int, num_batches: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            store = generate("ogbn-products", f"{folder}/g", scale)
            self.indptr, self.indices = (np.array(part) for part in store.csr("both"))
        print(f"{len(self.indptr) - 1:,} nodes, {len(self.indices):,} entries, largest degree "
              f"{np.diff(self.indptr).max():,}: made in {time.perf_counter() - start:.0f} s")  # fmt: skip
        order = np.random.default_rng(0).permutation(len(self.indptr) - 1)
        self.seeds = order[: batch_size * num_batches]
        self.batches = [torch.from_numpy(batch) for batch in np.array_split(self.seeds, num_batches)]

    def sampler(self, fanouts: list[int], backend: str, device: str, threads: int = 1) -> NeighborSampler:
        sampler = NeighborSampler(self.indptr, self.indices, fanouts, 0, device, threads)
        if backend == "torch":
            sampler.backend = TorchBackend(self.indptr, self.indices, torch.device(device))
        return sampler

    def report(self, what: str, work: Callable[[], Iterator[Any]]) -> None:
        """The best of three rounds over all batches, after a batch to warm up."""
        num_nodes = next(len(sample) for sample in work())
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            for _ in work():
                pass
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        print(f"  {what:<44}{len(self.seeds) / best:>12,.0f} seeds/s{1000 * best / len(self.batches):>10.2f} ms a batch"
              f"{num_nodes:>12,} nodes", flush=True)  # fmt: skip

    def ours(self, fanouts: list[int], devices: list[str]) -> None:
        cores = num_threads(None)
        counts = [threads for threads in (1, 2, 4, 8, 16) if threads <= cores]
        for threads in counts:
            sampler = self.sampler(fanouts, "numba", "cpu", threads)
            self.report(f"numba, threads={threads}", lambda s=sampler: (s.sample(b).nodes for b in self.batches))
        sampler = self.sampler(fanouts, "numba", "cpu")
        for threads in counts[1:]:
            self.report(
                f"numba, {threads} batches at once",
                lambda s=sampler, t=threads: run_ahead(lambda b: s.sample(b).nodes, self.batches, t),
            )
        for device in devices:
            sampler = self.sampler(fanouts, "torch", device)
            self.report(f"torch on {device}", lambda s=sampler: (s.sample(b).nodes for b in self.batches))

    def goat(self, fanouts: list[int], devices: list[str]) -> None:
        for backend, device in (("numba", "cpu"), *(("torch", device) for device in devices)):
            sampler = self.sampler(fanouts, backend, device)
            self.report(
                f"neighborhoods, {backend} on {device}",
                lambda s=sampler: (s.neighborhoods(b).nodes for b in self.batches),
            )

    def theirs(self, fanouts: list[int]) -> None:
        try:
            from torch_geometric.data import Data
            from torch_geometric.loader import NeighborLoader

            sources = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
            edges = torch.from_numpy(np.stack([self.indices.astype(np.int64), sources]))
            loader = NeighborLoader(
                Data(edge_index=edges, num_nodes=len(self.indptr) - 1), fanouts,
                input_nodes=torch.from_numpy(self.seeds), batch_size=len(self.batches[0]),
            )  # fmt: skip
            self.report("PyTorch Geometric's NeighborLoader", lambda: (batch.n_id for batch in loader))
        except ImportError as error:  # raised on the first batch where pyg-lib and torch-sparse are missing
            print(f"  PyTorch Geometric's NeighborLoader: not available ({error})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    args = parser.parse_args()
    bench = Bench(args.scale, args.batch_size, args.batches)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for fanouts in FANOUTS:
        print(f"fan-outs {fanouts}, batches of {args.batch_size}:")
        bench.ours(fanouts, devices)
        bench.goat(fanouts, devices)
        bench.theirs(fanouts)


if __name__ == "__main__":
    main()
