"""What weights and features of edges cost: ingest, local nodes and contexts with and without them.

    python bench/weights.py --nodes 300000 --edges 3000000

The graph has hubs (degrees follow a power law), weights too (log-normal); four features per edge; files are Parquet.
Peak memory is that of an ingest in a process of its own, above what it holds before it begins.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from largegt.config.schema import Config, IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.sampling.local_nodes import local_nodes
from largegt.runtime.memory import format_bytes

OPTIONS = {
    "edges": [], "weights": ["weight_column=amount"], "features": ["edge_feature_columns=f*"],
    "both": ["weight_column=amount", "edge_feature_columns=f*"],
}  # fmt: skip


def write_edges(file: Path, num_nodes: int, num_edges: int) -> None:
    rng = np.random.default_rng(0)
    busy = (rng.pareto(1.5, num_nodes) + 1).cumsum()
    ends = np.searchsorted(busy, rng.random((2, num_edges)) * busy[-1])
    columns: dict[str, Any] = {"u": ends[0], "v": ends[1], "amount": rng.lognormal(0, 2, num_edges)}
    columns |= {f"f{at}": rng.normal(size=num_edges).astype(np.float32) for at in range(4)}
    pq.write_table(pa.table(columns), file)


def held_at_most() -> int:
    """Bytes that this process has held at its worst moment; mapped files count as far as they were touched."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def ingested(file: Path, out: Path, num_nodes: int, memory: str, options: dict[str, str]) -> None:
    labels = np.arange(num_nodes) % 2
    np.save(out.parent / "y.npy", labels)
    before = held_at_most()
    start = time.perf_counter()
    source = sources.files(file, labels=out.parent / "y.npy", num_nodes=num_nodes, **options)
    store = ingest(source, out, IngestConfig(), memory=memory)
    took = time.perf_counter() - start
    peak = held_at_most() - before
    print(f"  {took:5.1f} s, peak {format_bytes(peak)}, store {format_bytes(store.folder.num_bytes)}")


def timed(name: str, work: Any, num_nodes: int) -> None:
    work()  # compiled by now
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    print(f"  {name:34s} {took:6.2f} s, {1e6 * took / num_nodes:6.1f} µs a node")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--edges", type=int, default=3_000_000)
    parser.add_argument("--memory-limit", default="512MiB")
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--kinds", nargs="*", default=["edges", "weights", "features"], help="to ingest beside both")
    parser.add_argument("--ingest", nargs=2, help="for the bench itself: a file and a store")
    parser.add_argument("--option", nargs="*", default=[], help="for the bench itself: weight_column=amount")
    given = parser.parse_args()
    if given.ingest:
        options = dict(option.split("=", 1) for option in given.option)
        ingested(Path(given.ingest[0]), Path(given.ingest[1]), given.nodes, given.memory_limit, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "e.parquet"
        write_edges(file, given.nodes, given.edges)
        print(f"{given.nodes:,} nodes, {given.edges:,} edges; ingest with {given.memory_limit}")
        for name in [*given.kinds, "both"]:
            print(f"ingest, {name}:", flush=True)
            again = [sys.executable, __file__, "--nodes", str(given.nodes), "--memory-limit", given.memory_limit]
            command = [*again, "--ingest", str(file), f"{folder}/{name}", "--option", *OPTIONS[name]]
            subprocess.run(command, check=True)
        store = GraphStore.open(f"{folder}/both")
        nodes = np.random.default_rng(1).permutation(given.nodes)[:50_000]
        print(f"local nodes of {len(nodes):,} nodes, K={given.k}:")
        for fraction in (None, 0.5):
            for weighted in (False, True):
                name = f"hop1_fraction={fraction}, {'weighted' if weighted else 'uniform'}"
                work = partial(local_nodes, store, nodes, given.k, hop1_fraction=fraction, weighted=weighted)
                timed(name, work, len(nodes))
        print("contexts of two hops:")
        for choice in ("false", "true"):
            settings = [f"prepare.tokens.{name}={choice}" for name in ("use_edge_weights", "use_edge_features")]
            settings += ["prepare.local_nodes.k=1", "prepare.positional_encoding.method=none"]
            config = Config.from_recipe("base", [*settings, "prepare.tokens.precompute_for=all"]).prepare
            start = time.perf_counter()
            prepare(store, config)
            print(f"  weighted, with edge features: {choice:5s} {time.perf_counter() - start:6.2f} s")


if __name__ == "__main__":
    main()
