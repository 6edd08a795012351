"""What the token table's place costs: time per training step with train.token_table = cuda, pinned and mmap.

    python bench/table.py --out /tmp/table                               # ogbn-products' size; wants a GPU
    python bench/table.py --scale 0.02 --k 20 --steps 5 --out /tmp/table       # anywhere; no table on a GPU here

A graph like ogbn-products (`largegt generate`); the model is the paper's LargeGT-full for it (hidden 256).
`gather` is the loader alone. `cold` is the first ten steps after the table's file was put out of the page cache.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import largegt as lg
from largegt.datasets.synthetic import generate
from largegt.loader import table as table_module
from largegt.runtime.memory import available_bytes
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_accelerator, make_loader, make_optimizer


def prepared_graph(args: argparse.Namespace, config: lg.Config) -> Path:
    store = generate("ogbn-products", args.out / "g", args.scale, overwrite=True)
    return lg.prepare(store, config.prepare).path


def forget(path: Path) -> None:
    """Put a file that nobody has mapped out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Bench:
    """One model, trained from tables in different places."""

    def __init__(self, path: Path, config: lg.Config) -> None:
        self.path, self.config, self.accelerator = path, config, make_accelerator(config.train)
        self.device = self.accelerator.device
        prepared = lg.Prepared.open(path)
        self.head = TaskHead.for_training(prepared, config.train)
        self.model = build_model(config.model, prepared).to(self.device)
        self.optimizer = make_optimizer(self.model, config.train, self.device)
        print(f"table: {len(prepared.tokens):,} rows, {prepared.tokens.nbytes / 2**30:.2f} GiB")

    def loader(self, place: Any) -> tuple[Any, Any]:
        prepared = lg.Prepared.open(self.path)
        return prepared, make_loader(prepared, self.model, self.config.train, self.device, place)

    def step(self, batch: Any) -> None:
        with self.accelerator.autocast():
            output = self.model(batch)
        self.optimizer.zero_grad()
        self.head.loss(output.logits, batch.labels).backward()
        self.optimizer.step()
        self.model.update_codebook(output)

    def ms_per_step(
        self, opened: tuple[Any, Any], steps: int, epoch: int, num_warmup: int = 3, is_step: bool = True
    ) -> float:
        prepared, loader = opened
        start = time.perf_counter()
        batches = loader.batches(prepared.split_rows("train"), self.config.train.batch_size, 0, epoch)
        for number, batch in enumerate(islice(batches, num_warmup + steps)):
            if number == num_warmup > 0:
                self.wait()
                start = time.perf_counter()
            if is_step:
                self.step(batch)
        self.wait()
        return 1000 * (time.perf_counter() - start) / (number + 1 - num_warmup)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    for name, default in (("k", 100), ("steps", 100), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="on top of the recipe")
    parser.add_argument("--out", type=Path, default=Path("table-bench"))
    args = parser.parse_args()
    config = lg.Config.from_recipe(
        "ogbn-products-largegt-full",
        ["prepare.positional_encoding.method=random_projection", f"prepare.local_nodes.k={args.k}", *args.set],
    )
    start = time.perf_counter()
    path = prepared_graph(args, config)
    print(f"made in {time.perf_counter() - start:.0f} s")
    bench = Bench(path, config)
    places = (["cuda"] if bench.device.type == "cuda" else []) + ["pinned", "mmap"]
    found: dict[str, list[float]] = {place: [] for place in places}
    for number in range(args.rounds):
        for place in places:
            opened = bench.loader(place)
            alone = bench.ms_per_step(opened, args.steps, number, is_step=False)
            found[place].append(bench.ms_per_step(opened, args.steps, number))
            print(f"round {number}: {place}: {found[place][-1]:.2f} ms per step, {alone:.2f} ms to gather", flush=True)
            del opened
    for is_large in (False, True):
        forget(lg.Prepared.open(path).file("tokens"))
        with patch.object(table_module, "available_bytes", (lambda: 0) if is_large else available_bytes):
            cold = bench.ms_per_step(bench.loader("mmap"), 10, args.rounds, num_warmup=0)
        print(f"disk, cold, {'as if larger than memory' if is_large else 'room in memory'}: {cold:.0f} ms per step")
    best = {place: min(times) for place, times in found.items()}
    print(", ".join(f"{place} {ms:.2f} ms ({ms / min(best.values()):.2f}x)" for place, ms in best.items()))


if __name__ == "__main__":
    main()
