"""What fresh neighbourhoods cost: epoch time with train.resample=never and =epoch, in one run.

    python bench/resample.py --scale 1.0 --out /tmp/resample     # ogbn-products' size; wants a GPU
    python bench/resample.py --scale 0.01 --out /tmp/resample    # anywhere

The graph has ogbn-products' numbers of nodes, edges, features, classes and training nodes; the model is the paper's
LargeGT-full for it (K=100, hidden 256, 2 heads of 256, 4096 centroids, batch 1024), with projection positions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

import largegt as lg


def products_shaped(out: Path, scale: float) -> lg.GraphStore:
    rng = np.random.default_rng(0)
    num_nodes, num_edges = int(2_449_029 * scale), int(61_859_140 * scale)
    weight = (rng.pareto(2.0, num_nodes) + 1).cumsum()
    ends = np.searchsorted(weight, rng.random((2, num_edges)) * weight[-1]).astype(np.int32)
    features = rng.standard_normal((num_nodes, 100), dtype=np.float32)
    order = rng.permutation(num_nodes)
    num_train = int(196_615 * scale)
    cuts = [num_train, num_train + 2_000, num_train + 4_000]
    labels = np.full(num_nodes, -1)
    labels[order[: cuts[2]]] = rng.integers(47, size=cuts[2])
    splits = {"train": order[: cuts[0]], "valid": order[cuts[0] : cuts[1]], "test": order[cuts[1] : cuts[2]]}
    source = lg.sources.arrays(ends, features, labels, splits, name="products-shaped")
    return lg.ingest(source, out / "g", lg.IngestConfig(undirected=True), overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("resample-bench"))
    args = parser.parse_args()
    start = time.perf_counter()
    store = products_shaped(args.out, args.scale)
    print(f"{store.num_nodes:,} nodes, {store.num_edges:,} entries: made in {time.perf_counter() - start:.0f} s")
    settings = ["prepare.positions.method=projection", "prepare.tokens.nodes=reachable", "train.label_smoothing=0",
                f"train.epochs={args.epochs}", "train.budget=none"]  # fmt: skip
    start = time.perf_counter()
    config = lg.Config.from_recipe("ogbn-products-largegt-full", settings)
    prepared = lg.prepare(store, config.prepare)
    print(f"prepared in {time.perf_counter() - start:.0f} s: {len(prepared.nodes):,} nodes, K={prepared.k}")
    times = {}
    for resample in ("never", "epoch"):
        config = lg.Config.from_recipe("ogbn-products-largegt-full", [*settings, f"train.resample={resample}"])
        run = lg.train(prepared, config, args.out / resample, overwrite=True)
        times[resample] = median(entry["train_s"] for entry in run.history[1:])
        print(f"resample={resample}: {times[resample]:.2f} s per epoch", flush=True)
    print(f"fresh neighbourhoods add {100 * (times['epoch'] / times['never'] - 1):.1f}%")


if __name__ == "__main__":
    main()
