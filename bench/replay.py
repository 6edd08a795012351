"""What compiling and recording a training step are worth: the same training four ways, in one process.

    python bench/replay.py --store data/npm-deps2017 --recipe default --set train.epochs=4

Wants a GPU: elsewhere nothing is recorded. For each way, seconds of every epoch (the first has the compiling in it),
validation scores, and the GPU's memory that was used and held at most. Scores agree up to the order of sums.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from baselines import metric_of

import largegt as lg
from largegt.auto.choose import config_for
from largegt.training import trainer
from largegt.training.step import TrainingStep

WAYS = {"one by one": ("no", False), "recorded": ("no", True), "compiled": ("yes", False), "both": ("yes", True)}


def recording(is_on: bool) -> AbstractContextManager[Any]:
    """Whether trainings record their steps, compiled or not."""

    def chosen(accelerator: Any, state: Any, head: Any, config: Any, record: bool, *others: Any) -> Any:
        return TrainingStep(accelerator, state, head, config, is_on, *others)

    return patch.object(trainer, "TrainingStep", chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    store, on_gpu = lg.GraphStore.open(args.store), torch.cuda.is_available()
    for name in args.ways:
        compiles, is_on = WAYS[name]
        config, _ = config_for(store, args.recipe, [*args.set, f"train.compile={compiles}"])
        if on_gpu:
            torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder, recording(is_on):
            run = lg.train(store, config, Path(folder) / "run")
            history, used = run.history, run.metrics["peak_gpu_bytes"]
        seconds = " ".join(f"{entry['train_s']:.2f}" for entry in history)
        metric = metric_of(history[0]["valid"])
        scores = " ".join(f"{entry['valid'][metric]:.4f}" for entry in history)
        held = torch.cuda.max_memory_reserved() if on_gpu else 0
        print(f"{name}: {seconds} s, {metric} {scores}, {used / 1e9:.2f} GB used, {held / 1e9:.2f} held", flush=True)


if __name__ == "__main__":
    main()
