"""Sampling and training throughput of the baselines: seeds per second through the product's own `train`.

    python bench/baselines_throughput.py --scale 1 --models graphsage goat-full --out /tmp/t       # on a GPU machine
    python bench/baselines_throughput.py --scale 0.05 --out /tmp/t                                 # anywhere

A graph like ogbn-products (`largegt generate`) and the paper's recipes for it, positions by projection. `drawn` is
the loader alone: sampling, features and labels on the device. `trained` is the fastest epoch of `lg.train` after the
first. `PyG` is PyTorch Geometric's NeighborLoader with the same fan-outs, drawing alone, where it and one of the
libraries it samples with are installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import largegt as lg
from largegt.datasets.synthetic import generate
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.threads import num_threads
from largegt.training.setup import build_model, make_accelerator, make_loader


def seeds_per_s(batches: Iterator[Any], device: torch.device) -> float:
    """Of a pass over all batches but the first two, which warm up."""
    count, begin = 0, 0.0
    for number, batch in enumerate(batches):
        if number == 1:
            wait(device)
            begin = time.perf_counter()
        elif number > 1:
            count += len(batch)
    wait(device)
    return count / max(1e-9, time.perf_counter() - begin)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pyg_batches(store: Any, nodes: Any, fanouts: tuple[int, ...], batch_size: int) -> Iterator[Any]:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    indptr, indices = store.csr("both")
    owner = np.repeat(np.arange(store.num_nodes), np.diff(indptr))
    data = Data(
        x=torch.from_numpy(np.array(store.features)), num_nodes=store.num_nodes,
        edge_index=torch.from_numpy(np.stack([np.asarray(indices), owner]).astype(np.int64)),
    )  # fmt: skip
    loader = NeighborLoader(
        data, list(fanouts), input_nodes=torch.from_numpy(np.asarray(nodes, dtype=np.int64)), batch_size=batch_size,
        num_workers=num_threads(None), shuffle=True,
    )  # fmt: skip
    for batch in loader:
        yield range(batch.batch_size)


def measured(name: str, args: argparse.Namespace) -> str:
    overrides = [
        "prepare.positional_encoding.method=random_projection",
        f"train.epochs={args.epochs}",
        "train.layerwise_inference=false",
    ]
    config = lg.Config.from_recipe(f"ogbn-products-{name}", [*overrides, *args.overrides])
    prepared: Prepared = lg.prepare(args.out / "store", config.preparation)
    accelerator = make_accelerator(config.train)
    model = build_model(config.model, prepared)
    loader = make_loader(prepared, model, config.train, accelerator.device, config.train.token_table)
    rows = prepared.split_rows("train")
    drawn = seeds_per_s(loader.batches(rows, config.train.batch_size, 0, 0), accelerator.device)
    run = lg.train(prepared, config, args.out / name, overwrite=True)
    trained = len(rows) / min(entry["train_s"] for entry in run.history[1:])
    words = f"{name}: drawn {drawn:,.0f} seeds/s, trained {trained:,.0f} seeds/s, batches of {config.train.batch_size}"
    if model.reads == "sample":
        try:
            nodes = prepared.nodes[rows]
            batches = pyg_batches(lg.GraphStore.open(args.out / "store"), nodes, model.fanouts, config.train.batch_size)
            words += f"; PyG draws {seeds_per_s(batches, torch.device('cpu')):,.0f} seeds/s"
        except ImportError as error:
            words += f"; PyG: not available ({str(error).splitlines()[0]})"
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--models", nargs="+", default=["graphsage", "goat-full"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--out", type=Path, required=True, help="kept for the next run")
    args = parser.parse_args()
    if not (args.out / "store").exists():
        generate("ogbn-products", args.out / "store", args.scale)
    for name in args.models:
        print(measured(name, args), flush=True)


if __name__ == "__main__":
    main()
