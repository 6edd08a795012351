"""The projection against node2vec: time and peak anonymous memory of the positional encodings, in one run.

    python bench/positions.py --like ogbn-products --scale 0.02

Both encode every node of one synthetic graph at the paper's width (64). node2vec runs with the paper's settings on the
device that is there. Then a logistic regression on each encoding alone says how much of the class it holds.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import torch

from largegt.config.schema import PositionalEncodingConfig
from largegt.data.store import GraphStore
from largegt.datasets.synthetic import generate
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.positional_encoding import write_positions
from largegt.runtime.memory import held_bytes


def encode(
    store: GraphStore, config: PositionalEncodingConfig, memory: int, folder: Path
) -> tuple[float, int, np.ndarray]:
    """(seconds, bytes held more than before at most, positions)."""
    peak, before, done = [0], held_bytes(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], held_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    with ArrayWriter(folder, "bench") as writer:
        nodes = np.arange(store.num_nodes, dtype=np.int32)
        write_positions(writer, store, nodes, config, "both", Engine(memory))
        elapsed_s = time.perf_counter() - begin
        done.set()
        watcher.join()
        return elapsed_s, peak[0], np.array(writer.array("positions"))


def linear_accuracy(positions: np.ndarray, store: GraphStore, steps: int = 300) -> float:
    """Test accuracy of a linear classifier trained on the training nodes' encodings."""
    torch.manual_seed(0)
    x = torch.from_numpy((positions - positions.mean(0)) / np.maximum(positions.std(0), 1e-6))
    y = torch.from_numpy(np.asarray(store.labels, dtype=np.int64))
    train, test = (torch.from_numpy(store.splits[name]) for name in ("train", "test"))
    model = torch.nn.Linear(x.shape[1], len(store.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x[train]), y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(x[test]).argmax(1) == y[test]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--out", type=Path, default=Path("positions-bench"))
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    store = generate(args.like, args.out / "store", args.scale)
    print(f"{store.num_nodes:,} nodes, {store.num_edges:,} edges")
    for config in (PositionalEncodingConfig(), PositionalEncodingConfig(method="node2vec")):
        for memory in (1 << 33, 1 << 28) if config.method == "random_projection" else (1 << 33,):
            elapsed_s, peak, rows = encode(store, config, memory, args.out / "rows")
            accuracy = linear_accuracy(rows, store)
            print(
                f"{config.method:<11} memory {memory >> 20:>5} MiB: {elapsed_s:8.2f} s, held {peak >> 20} MiB, "
                f"linear test accuracy {accuracy:.3f}",
                flush=True,
            )
    shutil.rmtree(args.out)


if __name__ == "__main__":
    main()
