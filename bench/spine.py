"""Time and peak anonymous memory of ingest, prepare and one training epoch on a synthetic graph.

    python bench/spine.py --nodes 1000000 --edges 20000000 --out /tmp/spine

The graph has communities (which carry the label) and a heavy degree tail. Each stage runs in a process of its own;
anonymous memory is what the process holds beside mapped files, sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np


def synthesize(out: Path, num_nodes: int, num_edges: int, num_features: int, num_classes: int, seed: int) -> None:
    """Edges stay inside a node's community two times out of three; weights follow a power law."""
    rng = np.random.default_rng(seed)
    label = rng.integers(num_classes, size=num_nodes)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(num_classes + 1))
    weight = (rng.pareto(1.8, num_nodes) + 1).cumsum()
    hub = np.searchsorted(weight, rng.random(num_edges) * weight[-1]).astype(np.int32)
    any_node = np.searchsorted(weight, rng.random(num_edges) * weight[-1]).astype(np.int32)
    own = label[hub]
    size = starts[own + 1] - starts[own]
    neighbour = order[starts[own] + (rng.random(num_edges) * size).astype(np.int64)].astype(np.int32)
    target = np.where(rng.random(num_edges) < 2 / 3, neighbour, any_node)
    np.save(out / "edges.npy", np.stack([hub, target]))
    center = rng.normal(size=(num_classes, num_features)).astype(np.float32)
    x = np.lib.format.open_memmap(out / "x.npy", mode="w+", dtype=np.float32, shape=(num_nodes, num_features))
    for start in range(0, num_nodes, 65536):
        part = label[start : start + 65536]
        x[start : start + 65536] = 0.3 * center[part] + rng.normal(size=(len(part), num_features))
    x.flush()
    label[rng.random(num_nodes) > 0.1] = -1
    np.save(out / "y.npy", label)


def stage(name: str, out: Path) -> dict[str, float]:
    """Run one stage in this process and measure it."""
    import largegt as lg

    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    config = lg.Config.from_recipe("default", ["train.epochs=1"])
    before_s = time.perf_counter()
    result: dict[str, float] = {}
    if name == "ingest":
        source = lg.sources.files(out / "edges.npy", features=out / "x.npy", labels=out / "y.npy")
        lg.ingest(source, out / "store", lg.IngestConfig(undirected=True))
    elif name.startswith("prepare"):
        lg.prepare(out / "store", config.prepare)
    else:
        run = lg.train(out / "store", config, out / "run", overwrite=True)
        result = {"epoch_s": run.metrics["epoch_time_s"], "valid_accuracy": run.metrics["valid"]["accuracy"]}
    result["elapsed_s"] = time.perf_counter() - before_s
    done.set()
    watcher.join()
    result["peak_anonymous_bytes"] = max(peak[0], anonymous_bytes())
    return result


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("spine-bench"))
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        print(json.dumps(stage(args.stage, args.out)))
        return
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    synthesize(args.out, args.nodes, args.edges, args.features, args.classes, seed=0)
    print(f"{args.nodes:,} nodes, {args.edges:,} edges drawn, {args.features} features, a tenth of the nodes labelled")
    print(f"{'stage':<18}{'seconds':>10}{'peak anonymous MiB':>22}")
    for name in ("ingest", "prepare", "prepare again", "train"):
        command = [sys.executable, __file__, "--stage", name, "--out", str(args.out)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result = json.loads(output.splitlines()[-1])
        print(f"{name:<18}{result['elapsed_s']:>10.1f}{result['peak_anonymous_bytes'] / 2**20:>22.0f}", flush=True)
        if name == "train":
            print(f"one epoch {result['epoch_s']:.1f} s; validation accuracy {result['valid_accuracy']:.3f}")


if __name__ == "__main__":
    main()
