"""Context features from disk against an in-RAM torch.sparse product, as ratios in one run.

    python bench/context.py --like ogbn-papers100M --scale 0.02 --memory-limit 6GiB 1GiB 512MiB

`torch`: C = AX with a torch.sparse CSR matrix of int64 indices and X in RAM, which is the least that ÃH costs there.
`ours`: token rows [H, C⁰] as `prepare` makes them, from the mapped store to a file, within the memory given:
normalisation, decoding and writing included. `sums` are the sums alone, with X in RAM as for torch.
"""

from __future__ import annotations

import argparse
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from largegt.datasets.synthetic import generate
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.blocks import Neighbors, NeighborSums, block_sums
from largegt.preprocessing.context import ContextFeatures
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.features import NodeFeatures, feature_scale
from largegt.runtime.memory import parse_bytes

warnings.filterwarnings("ignore", message=".*[Ss]parse.*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-papers100M")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--memory-limit", nargs="+", default=["6GiB", "1GiB", "512MiB"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("context-bench"))
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    store = generate(args.like, args.out / "store", args.scale)
    indptr, indices = store.csr("both")
    features = np.array(store.features)
    print(f"{store.num_nodes:,} nodes, {len(indices):,} entries, {store.num_features} features")
    matrix = torch.sparse_csr_tensor(
        torch.from_numpy(np.array(indptr)),
        torch.from_numpy(indices.astype(np.int64)),
        torch.ones(len(indices)),
        (store.num_nodes, store.num_nodes),
    )
    x = torch.from_numpy(features)
    neighbors = Neighbors(indptr, indices, self_loops=False)
    stored = NodeFeatures(store)
    shift, gain = feature_scale(stored, "per_feature", Engine(parse_bytes(args.memory_limit[0])))

    def load(first: int, last: int, out: np.ndarray) -> None:
        out[:] = features[first:last]

    def sums(memory: int) -> float:
        begin = time.perf_counter()
        width = features.shape[1]
        wanted = NeighborSums(neighbors, range(store.num_nodes), load, width, range(store.num_nodes))
        block_sums(wanted, lambda first, last, sums: None, memory)
        return time.perf_counter() - begin

    def context(memory: int) -> float:
        begin = time.perf_counter()
        with ArrayWriter(args.out / "tokens", "bench") as writer:
            nodes = np.arange(store.num_nodes, dtype=np.int32)
            ContextFeatures(stored, nodes, shift, gain, ["both"], Engine(memory)).write(writer, "float32", hops=1)
        return time.perf_counter() - begin

    sums(parse_bytes(args.memory_limit[0]))
    for number in range(args.repeat):
        begin = time.perf_counter()
        _ = matrix @ x
        torch_s = time.perf_counter() - begin
        print(f"round {number + 1}: torch {torch_s:.2f} s")
        for memory in args.memory_limit:
            alone, whole = sums(parse_bytes(memory)), context(parse_bytes(memory))
            print(
                f"  {memory:>7}: sums {alone:.2f} s ({alone / torch_s:.2f}x), [H, C⁰] from disk to disk {whole:.2f} s "
                f"({whole / torch_s:.2f}x)",
                flush=True,
            )
    shutil.rmtree(args.out)


if __name__ == "__main__":
    main()
