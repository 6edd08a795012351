"""Ranks against threads: nodes per second of one process with all cores, and of several that share them.

    python bench/ddp.py --out /tmp/ddp --like ogbn-products --scale 0.004 --ranks 1 2 --model largegt-full goat-full

Trains for some epochs through the command line, with the same cores for each number of ranks, and takes the fastest
epoch of the last ones. On a machine with GPUs, leave one for each rank; the ratio then says how well they scale.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from largegt.config.models import overrides_read
from largegt.data.store import GraphStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--like", default="ogbn-products")
    parser.add_argument("--scale", default="0.004")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--model", nargs="+", default=["largegt-full"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    arguments = parser.parse_args()
    store = arguments.out / "store"
    if not store.exists():
        largegt("generate", "--like", arguments.like, "--scale", arguments.scale, "--out", store)
    cores = len(os.sched_getaffinity(0))
    print(f"{'model':16} {'ranks':>5} {'threads':>7} {'nodes/s':>9} {'ratio':>6}  loss of the last epoch")
    for model in arguments.model:
        alone = None
        for ranks in arguments.ranks:
            rate, loss = measured(arguments, store, model, ranks, cores // ranks)
            alone = alone or rate
            print(f"{model:16} {ranks:5} {cores // ranks:7} {rate:9,.0f} {rate / alone:6.2f}  {loss:.6f}", flush=True)


def measured(arguments: argparse.Namespace, store: Path, model: str, ranks: int, threads: int) -> tuple[float, float]:
    """Training nodes per second in the fastest epoch after the first, and the last loss."""
    out = arguments.out / f"{model}-{ranks}"
    settings = [
        f"train.epochs={arguments.epochs}", f"train.batch_size={arguments.batch_size}", "model.dropout=0",
        "model.encoder_dropout=0", "model.attention_dropout=0", *arguments.settings,
    ]  # fmt: skip
    given = [part for setting in overrides_read(settings, model) for part in ("--set", setting)]
    largegt("train", store, "--model", model, "--out", out, "--overwrite", "--devices", ranks, *given, threads=threads)
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    num_nodes = len(GraphStore.open(store).splits["train"])
    return num_nodes / min(epoch["train_s"] for epoch in epochs[1:]), epochs[-1]["train"]["loss"]


def largegt(*arguments: object, threads: int | None = None) -> None:
    """The command line."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, "-m", "largegt", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
