"""What fresh neighbourhoods cost: epoch time with train.resample=never and =epoch, in one run.

    python bench/resample.py --scale 1.0 --out /tmp/resample     # ogbn-products' size; wants a GPU
    python bench/resample.py --scale 0.01 --out /tmp/resample    # anywhere

The graph is synthetic and like ogbn-products (`largegt generate`), `--scale` times its size; the model is the paper's
LargeGT-full for it (K=100, hidden 256, 2 heads of 256, 4096 centroids, batch 1024), with projection positions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import largegt as lg
from largegt.datasets.synthetic import generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="on top of the recipe")
    parser.add_argument("--out", type=Path, default=Path("resample-bench"))
    args = parser.parse_args()
    start = time.perf_counter()
    store = generate("ogbn-products", args.out / "g", args.scale, overwrite=True)
    print(f"{store.num_nodes:,} nodes, {store.num_edges:,} entries: made in {time.perf_counter() - start:.0f} s")
    settings = ["prepare.positional_encoding.method=random_projection", "prepare.tokens.precompute_for=reachable",
                "train.label_smoothing=0", f"train.epochs={args.epochs}", "train.max_time=none",
                *args.set]  # fmt: skip
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
