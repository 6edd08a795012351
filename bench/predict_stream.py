"""Memory of a prediction against the number of nodes: `largegt predict` of rings of several sizes, one after another.

    python bench/predict_stream.py --out /tmp/stream --nodes 1000000 10000000

The graph is a ring with a few features, one node in a thousand labelled; K is 2 and the model is small, so that what is
measured is the way of the rows and not the model. Everything is prepared and trained before. `anonymous` is memory that
the process itself holds, at its peak: it must not grow with the graph. `files` are pages of mapped files, which the
kernel takes back when someone needs them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import largegt as lg

SETTINGS = (
    "prepare.local_nodes.k=2", "prepare.local_nodes.target_nodes=all", "prepare.positional_encoding.method=none",
    "model.hidden_dim=16", "train.epochs=1", "train.eval_batch_size=8192",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--suffix", nargs="+", default=[".parquet"], choices=[".parquet", ".csv", ".npz"])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="of the training, such as model.name=…"
    )
    args = parser.parse_args()
    print(f"{'nodes':>12} {'file':>9} {'seconds':>8} {'nodes/s':>9} {'anonymous':>12} {'files':>10} {'written':>10}")
    for nodes in args.nodes:
        run = trained(args.out / f"{nodes}", nodes, [*SETTINGS, *args.settings])
        for suffix in args.suffix:
            out = args.out / f"p{suffix}"
            out.unlink(missing_ok=True)
            seconds, anonymous, files = watched("predict", run, "--out", out, "--devices", args.devices, "--json")
            print(
                f"{nodes:12,} {suffix:>9} {seconds:8.1f} {nodes / seconds:9,.0f} {anonymous / 2**20:8.0f} MiB "
                f"{files / 2**20:6.0f} MiB {out.stat().st_size / 2**20:6.0f} MiB",
                flush=True,
            )


def trained(folder: Path, num_nodes: int, settings: list[str]) -> Path:
    """A run over a ring of so many nodes; as it is, if it is there."""
    if not (folder / "run" / "metrics.json").exists():
        rng = np.random.default_rng(0)
        ring = np.arange(num_nodes)
        labels = np.full(num_nodes, -1)
        labels[::1000] = rng.integers(3, size=len(labels[::1000]))
        features = rng.normal(size=(num_nodes, 4)).astype(np.float32)
        source = lg.sources.arrays(np.stack([ring, np.roll(ring, -1)]), features, labels)
        store = lg.ingest(source, folder / "g", lg.IngestConfig(undirected=True), overwrite=True)
        lg.train(store, lg.Config.from_recipe("default", settings), folder / "run", overwrite=True)
    return folder / "run"


def watched(*arguments: object) -> tuple[float, int, int]:
    """Seconds of a command, and the most that it and its children hold: of their own, and of mapped files."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "largegt", *map(str, arguments)], stdout=subprocess.DEVNULL)
    anonymous = files = 0
    while process.poll() is None:
        held = [held_by(pid) for pid in family(process.pid)]
        anonymous = max(anonymous, sum(own for own, _ in held))
        files = max(files, sum(mapped for _, mapped in held))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - begin, anonymous, files


def family(pid: int) -> list[int]:
    """A process and its children."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return [pid]


def held_by(pid: int) -> tuple[int, int]:
    """Bytes of memory of its own, and of mapped files, that a process has now."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return sizes.get("RssAnon", 0), sizes.get("RssFile", 0)


if __name__ == "__main__":
    main()
