"""Does bfloat16 cost accuracy? The same seeds in bf16-mixed (compiled, fused) and in float32 (eager), side by side.

    python bench/precision.py --scale 0.1 --seeds 4 --epochs 15 --out /tmp/precision         # wants a GPU

A graph like ogbn-products (`largegt generate`) and the paper's recipe for it, with projections as positions. Reports
mean and standard deviation of the final scores, and Welch's test of their difference.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import largegt as lg
from largegt.datasets.synthetic import generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if not (args.out / "store").exists():
        generate("ogbn-products", args.out / "store", args.scale)
    compiles = "yes" if torch.cuda.is_available() else "no"
    found: dict[str, list[list[float]]] = {"32-true": [], "bf16-mixed": []}
    for seed in range(args.seeds):
        for precision, scores in found.items():
            config = lg.Config.from_recipe(
                "ogbn-products-largegt-full",
                ["prepare.positional_encoding.method=random_projection", f"train.epochs={args.epochs}",
                 f"train.seed={seed}", f"train.precision={precision}",
                 f"train.compile={compiles if precision != '32-true' else 'false'}", *args.overrides],
            )  # fmt: skip
            run = lg.train(args.out / "store", config, args.out / f"{precision}-{seed}", overwrite=True)
            scores.append([run.metrics["valid"]["accuracy"], run.metrics["test"]["accuracy"]])
            print(f"seed {seed}, {precision}: valid {scores[-1][0]:.4f}, test {scores[-1][1]:.4f}", flush=True)
    for number, split in enumerate(("valid", "test")):
        one, other = (np.array(scores)[:, number] for scores in found.values())
        p = stats.ttest_ind(one, other, equal_var=False).pvalue
        print(f"{split}: float32 {one.mean():.4f} ± {one.std(ddof=1):.4f}, "
              f"bfloat16 {other.mean():.4f} ± {other.std(ddof=1):.4f}, Welch p = {p:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
