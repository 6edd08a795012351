"""Prediction of a run through the product's own `predict`: nodes per second, once it is under way.

    python bench/train_step.py --like ogbn-products --scale 1 --out /tmp/products     # leaves a run there
    python bench/predict.py --run /tmp/products/run --batch-size 2048 4096

Compiling, laying out the table and writing the predictions are told apart: `steady` is the rate from a tenth of the
nodes to the last, `all` the whole call.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

import largegt as lg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[2048])
    parser.add_argument("--split", default=None, help="only the nodes of this split")
    args = parser.parse_args()
    run = lg.Run.open(args.run)
    for size in args.batch_size:
        train = run.config.train.model_copy(update={"eval_batch_size": size})
        run = replace(run, config=run.config.model_copy(update={"train": train}))
        times: list[tuple[float, int]] = []

        def watch(stage: str, done: int, total: int | None, times: list[tuple[float, int]] = times) -> None:
            if stage == "predict":
                times.append((time.perf_counter(), done))

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        table = lg.predict(run, split=args.split, progress=watch)
        all_s = time.perf_counter() - begin
        tenth = next(number for number, (_, done) in enumerate(times) if done >= table.num_rows / 10)
        steady = (times[-1][1] - times[tenth][1]) / max(1e-9, times[-1][0] - times[tenth][0])
        peak = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
        print(
            f"batches of {size}: steady {steady / 1e3:,.0f} thousand nodes/s, all {table.num_rows:,} nodes in "
            f"{all_s:.1f} s, peak {peak:.1f} GB on the GPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
