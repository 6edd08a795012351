"""LargeGT and what it is compared with, on graphs of one's own: the table of docs/accuracy.md.

    python bench/accuracy.py --data data/debian-sid --contestants auto default paper sign --runs 4 --out accuracy-bench
    python bench/accuracy.py --data data/cora --contestants default --try labels='model.label_embeddings=true' --out DIR
    python bench/accuracy.py --data data/* --contestants auto --runs 4 --workers 8 --minutes 9 --out DIR

FOLDER as bench/baselines.py takes it; a meta.json whose `directed` begins with that word keeps its directions. A
contestant is auto, default, paper (the recipe of ogbn-products, with positions by projection and as many steps as auto
has) or the name of a model, by its own recipe. `--try NAME='SETTINGS'` runs every contestant once more, with these
settings on top. Run i has seed i for weights, samples and order, and split i where there are several. Test scores are
those of the epoch that validation chose. A finished run is not repeated. `--rewire` joins nodes at random, each with
as many edges as before: how far a graph that tells nothing leads a model astray.

With `--workers` so many run at a time, each a process of its own with its share of the cores: small models fill a GPU
only together. Seed 0 of everything comes first. With `--minutes` none is begun later, and those that are finished are
summed up; the same command goes on from there. Every finished run is a line of OUT/runs.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import sys
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baselines import features_of, label_of, metric_of, splits_of

import largegt as lg
from largegt.config.models import model_names
from largegt.config.recipes import recipe_for
from largegt.config.schema import Config
from largegt.data.store import GraphStore

PAPER = "ogbn-products-largegt-full"


def is_directed(folder: Path) -> bool:
    file = folder / "meta.json"
    return file.is_file() and str(json.loads(file.read_text()).get("directed", "")).startswith("directed")


def edges_of(folder: Path, rewire: bool) -> np.ndarray[Any, Any]:
    """To rewire them, the second ends of all edges change places; loops that come of it are left out by ingest."""
    edges = np.load(folder / "edge_index.npy")
    if rewire:
        if not is_directed(folder):  # of those that are there both ways, one
            edges = np.unique(np.sort(edges, axis=0), axis=1)
        edges = np.stack([edges[0], np.random.default_rng(0).permutation(edges[1])])
    return np.asarray(edges)


def stores_of(
    folder: Path, name: str, out: Path, protocol: str, runs: int, rewire: bool
) -> tuple[str, list[GraphStore]]:
    """The protocol's name, and the store of each run: one for all where there is one split."""
    y = np.load(folder / "y.npy")
    protocol, splits = splits_of(folder, y, protocol)
    stores: list[GraphStore] = []
    x: Any = None
    for number, split in zip(range(runs), splits, strict=False):
        if stores and protocol in ("public", "ours"):
            stores.append(stores[0])
            continue
        path = out / "stores" / f"{name}-{protocol}{number}"
        if not (path / "manifest.json").is_file():
            x = features_of(folder, folder.name, 0) if x is None else x
            source = lg.sources.arrays(edges_of(folder, rewire), x, y, split)
            lg.ingest(source, path, lg.IngestConfig(undirected=not is_directed(folder), name=folder.name))
        stores.append(lg.GraphStore.open(path))
    return protocol, stores


def config_of(contestant: str, store: GraphStore, settings: list[str]) -> Config:
    if contestant == "auto":
        return lg.auto_config(store, settings)[0]
    if contestant == "paper":
        steps = lg.auto_config(store)[0].train
        epochs = max(10, round(steps.epochs * 1024 / steps.batch_size))
        return Config.from_recipe(
            PAPER,
            [
                "prepare.positional_encoding.method=random_projection",
                f"train.epochs={epochs}",
                "train.max_time=none",
                *settings,
            ],
        )
    if contestant in model_names():
        return Config.from_recipe(recipe_for(contestant), [f"model.name={contestant}", *settings])
    return Config.from_recipe(contestant, settings)


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    protocol: str
    contestant: str
    variant: str
    settings: tuple[str, ...]
    seed: int
    store: Path

    @property
    def row(self) -> tuple[str, str, str]:
        """Which row of the table it belongs to."""
        return self.name, self.contestant, self.variant

    def run(self, out: Path, begin: bool = True) -> dict[str, Any] | None:
        """What came of it, now or earlier; None: nothing yet, and it is not to begin."""
        store = lg.GraphStore.open(self.store)
        seeds = [f"train.seed={self.seed}", f"prepare.local_nodes.seed={self.seed}"]
        config = config_of(self.contestant, store, [*self.settings, *seeds])
        label = label_of([f"config={json.dumps(config.model_dump(mode='json'), sort_keys=True)}"])
        folder = out / "runs" / f"{self.name}-{self.protocol}-{self.contestant}-{label}"
        if (folder / "metrics.json").is_file():
            return lg.Run.open(folder).metrics
        if not begin:
            return None
        with open(f"{self.store}.turn", "w") as turn:  # others wait instead of being refused
            fcntl.flock(turn, fcntl.LOCK_EX)
            lg.prepare(store, config.preparation)
        found = lg.train(store, config, folder, resume=folder.exists()).metrics
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the other workers
        line = {**asdict(self), "store": str(self.store), "valid": found["valid"], "test": found["test"]}
        with open(out / "runs.jsonl", "a") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)
            lines.write(json.dumps(line) + "\n")
        return found


def run_all(jobs: list[Job], out: Path, workers: int, until: float) -> dict[Job, dict[str, Any]]:
    """What came of the jobs that are finished, or were begun in time and did not fail."""
    done: dict[Job, dict[str, Any]] = {}
    waiting, num_left = deque(jobs), 0
    cores = str(max(1, (os.cpu_count() or 1) // workers))
    if workers > 1:  # of processes that are started from here
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), cores)
    executor: Executor = ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else ThreadPoolExecutor(1)
    with executor as pool:
        running: dict[Future[dict[str, Any] | None], Job] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.popleft()
                running[pool.submit(job.run, out, time.monotonic() < until)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                try:
                    found = future.result()
                except Exception as error:
                    print(f"{job.name} {job.contestant} {job.variant} {job.seed}: {error}", file=sys.stderr, flush=True)
                    continue
                if found is None:
                    num_left += 1
                else:
                    done[job] = found
    if num_left:
        print(f"{num_left} of {len(jobs)} runs were not begun: the same command goes on", file=sys.stderr)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--contestants", nargs="+", default=["auto", "default", "paper"])
    parser.add_argument("--try", nargs="*", default=[], dest="variants", metavar="NAME='a.b=c d.e=f'")
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="for everyone")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--split", default="auto")
    parser.add_argument("--rewire", action="store_true", help="join nodes at random")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=Path("accuracy-bench"))
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    variants = {"": ""} | dict(variant.split("=", 1) for variant in args.variants)
    jobs = []
    for folder in args.data:
        name = f"{folder.name}-rewired" if args.rewire else folder.name
        protocol, stores = stores_of(folder, name, args.out, args.split, args.runs, args.rewire)
        jobs += [
            Job(name, protocol, contestant, variant, (*args.set, *settings.split()), seed, store.path)
            for contestant in args.contestants
            for variant, settings in variants.items()
            for seed, store in enumerate(stores)
        ]
    done = run_all(sorted(jobs, key=lambda job: job.seed), args.out, args.workers, until)
    for row in dict.fromkeys(job.row for job in jobs):
        of_row = [job for job in jobs if job.row == row and job in done]
        if of_row:
            report(args.out, of_row[0], [done[job] for job in of_row])


def report(out: Path, job: Job, found: list[dict[str, Any]]) -> None:
    """One line on the screen, and one in the table."""
    metric = metric_of(found[0]["test"])
    valid, test = ([100 * each[part][metric] for each in found] for part in ("valid", "test"))
    row = {
        "graph": job.name, "split": job.protocol, "contestant": job.contestant, "variant": job.variant,
        "metric": metric, "runs": len(found),
        "valid": f"{np.mean(valid):.2f}", "valid_std": f"{_std(valid):.2f}",
        "test": f"{np.mean(test):.2f}", "test_std": f"{_std(test):.2f}",
        "epoch": f"{np.median([each['best_epoch'] for each in found]):.0f}",
        "seconds": f"{np.mean([each['train_time_s'] for each in found]):.1f}", "settings": " ".join(job.settings),
    }  # fmt: skip
    scores = f"valid {row['valid']}±{row['valid_std']}, test {row['test']}±{row['test_std']}"
    print(
        f"{job.name} {job.contestant} {job.variant}: {scores} ({row['runs']} runs, {row['seconds']} s a run)",
        flush=True,
    )
    file = out / "accuracy.csv"
    before = file.is_file()
    with file.open("a", newline="") as handle:
        writer = csv.DictWriter(handle, row)
        if not before:
            writer.writeheader()
        writer.writerow(row)


def _std(scores: list[float]) -> float:
    """Of a sample, as the tables have it."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0


if __name__ == "__main__":
    main()
