"""A Ray cluster of simulated machines: the same bytes, a machine lost, memory, rates.

    python bench/cluster.py --data data/npm-deps2017 --out /tmp/cluster
    python bench/cluster.py --data data/npm-deps2017 --out /tmp/cluster --ingest --copies 8

Prints one line per measurement:

1. bytes: every file of the preparation against the local engine's; then again with a machine killed in the middle;
2. memory: the peak of anonymous memory of shards and of tasks, less that of the same process on a graph of some
   hundred nodes (Python, Ray, compiled kernels), against the shard's share of the graph and the task's memory;
3. rates of one worker: nodes sampled per second through shards and bytes fetched for each, edges summed per second.

With --ingest: the graph (or some copies of it, side by side) is written as Parquet files, with whole numbers and with
text for ids and no node table, and ingested by the local engine and by the cluster. Prints for each whether all bytes
are the same, also with a machine killed in the middle, how long it took, and the peaks of anonymous memory of tasks
(above those of an ingest of some hundred edges) and of the driver (above what it held before).
"""

from __future__ import annotations

import argparse
import filecmp
import gc
import os
import shutil
import threading
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster

import largegt as lg
from largegt.preprocessing.blocks import Neighbors, NeighborSums, block_sums
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.ray_engine import RayEngine, start_shards
from largegt.preprocessing.sampling.neighbor_lists import NeighborLists
from largegt.runtime.memory import format_bytes, held_bytes

MACHINE = {"num_cpus": 1, "object_store_memory": 300 << 20}


class Memory:
    """Peak of anonymous memory of each Ray worker, by what it was doing, and of this process."""

    def __init__(self) -> None:
        self.peaks: dict[str, dict[int, int]] = defaultdict(dict)
        self.own = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.done.set()
        self.thread.join()

    def of(self, name: str) -> int:
        return max(self.peaks[name].values(), default=0)

    def _watch(self) -> None:
        while not self.done.wait(0.02):
            self.own = max(self.own, held_bytes())
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    title = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                    if not title.startswith("ray::"):
                        continue
                    status = (folder / "status").read_text()
                except OSError:
                    continue
                name, pid = title[5:].split(".")[0].split(":")[0], int(folder.name)
                size = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))
                self.peaks[name][pid] = max(size, self.peaks[name].get(pid, 0))


class Counted(NeighborLists):
    """Counts the requests to other lists and the bytes that go and come."""

    def __init__(self, lists: NeighborLists, counts: dict[str, list[int]] | None = None) -> None:
        self.lists, self.num_nodes = lists, lists.num_nodes
        self.counts = defaultdict(lambda: [0, 0]) if counts is None else counts

    @property
    def reverse(self) -> Counted:
        return Counted(self.lists.reverse, self.counts)

    def neighbors(self, nodes: np.ndarray) -> Any:
        return self._note("neighbors", self.lists.neighbors(nodes), nodes)

    def degrees(self, nodes: np.ndarray) -> Any:
        return self._note("degrees", self.lists.degrees(nodes), nodes)

    def at(self, nodes: np.ndarray, places: np.ndarray) -> Any:
        return self._note("at", self.lists.at(nodes, places), nodes, places)

    def has(self, nodes: np.ndarray, others: np.ndarray) -> Any:
        return self._note("has", self.lists.has(nodes, others), nodes, others)

    def _note(self, what: str, answer: Any, *asked: np.ndarray) -> Any:
        self.counts[what][0] += 1
        self.counts[what][1] += sum(array.nbytes for array in (*asked, *(answer if what == "neighbors" else [answer])))
        return answer


def shard_seconds() -> float:
    """CPU time of all shards until now."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::Shard"):
                ticks += sum(int(field) for field in (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def ingested(data: Path, out: Path) -> Any:
    if out.exists():
        return lg.GraphStore.open(out)
    edges, features, labels = (np.load(data / f"{name}.npy") for name in ("edge_index", "x", "y"))
    return lg.ingest(lg.sources.arrays(edges, features, labels), out=out)


def made_by(engine: Engine, store: Any) -> tuple[dict[str, bytes], float]:
    """Every file of a preparation and its stages, and how long it took."""
    start = time.perf_counter()
    folder = lg.prepare(store, engine=engine).path.parent
    elapsed_s = time.perf_counter() - start
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    shutil.rmtree(folder)
    return files, elapsed_s


def export(data: Path, out: Path, copies: int, text: bool) -> Path:
    """The edges as eight Parquet files; ids are scattered, so that they are no rows."""
    if out.exists():
        return out
    out.mkdir(parents=True)
    edges = np.load(data / "edge_index.npy").astype(np.int64)
    step = int(edges.max()) + 1
    bounds = np.linspace(0, edges.shape[1], 9 // max(1, min(copies, 8)) + 1).astype(int)
    for copy in range(copies):
        for part, (low, high) in enumerate(pairwise(bounds)):
            ids = (edges[:, low:high] + copy * step) * 7919
            columns = [pa.array(row) for row in ids]
            if text:
                columns = [pc.binary_join_element_wise("package/", row.cast("string"), "") for row in columns]
            table = pa.table({"source": columns[0], "target": columns[1]})
            pq.write_table(table, out / f"part-{copy:03}-{part}.parquet", row_group_size=1 << 18)
    return out


def measure_ingest(args: argparse.Namespace, cluster: Cluster, machines: list[Any]) -> None:
    config = lg.IngestConfig(name="g")
    engine = partial(RayEngine, memory=args.memory_limit)
    few = np.random.default_rng(0).integers(0, 500, (2, 900))
    for text in (False, True):
        kind = "text" if text else "numbers"
        files = export(args.data, args.out / f"{args.data.name}-{args.copies}-{kind}", args.copies, text)
        small = args.out / f"few-{kind}.parquet"
        names = [pa.array(row) if not text else pa.array(row).cast("string") for row in few * 7919]
        pq.write_table(pa.table({"source": names[0], "target": names[1]}), small)
        start = time.perf_counter()
        store = lg.ingest(
            lg.sources.files(files), args.out / "ingested" / "local", config, overwrite=True, memory="1GiB"
        )
        local_s = time.perf_counter() - start
        print(f"ids are {kind}: {store.num_nodes:,} nodes, {store.num_edges:,} edges; local engine {local_s:.1f} s")
        with Memory() as idle:
            lg.ingest(lg.sources.files(small), args.out / "ingested" / "few", config, overwrite=True, engine=engine())
        gc.collect()
        before = held_bytes()
        with Memory() as busy:
            start = time.perf_counter()
            lg.ingest(lg.sources.files(files), args.out / "ingested" / "ray", config, overwrite=True, engine=engine())
            elapsed_s = time.perf_counter() - start
        print(f"  ray: same bytes {same(args.out / 'ingested')}, {elapsed_s:.1f} s")
        print(
            f"  memory of a task: {format_bytes(busy.of('_remote') - idle.of('_remote'))} above an idle one "
            f"({format_bytes(idle.of('_remote'))}), of the driver {format_bytes(busy.own - before)}; "
            f"a task may hold {format_bytes(args.memory_limit)}"
        )
        spare = machines.pop()

        def lose(stage: str, done: int, total: int | None, spare: Any = spare) -> None:
            if stage == "read edges" and spare.any_processes_alive():
                cluster.remove_node(spare, allow_graceful=False)

        start = time.perf_counter()
        ray_out = args.out / "ingested" / "ray"
        lg.ingest(lg.sources.files(files), ray_out, config, overwrite=True, progress=lose, engine=engine())
        elapsed_s = time.perf_counter() - start
        gone = not spare.any_processes_alive()
        print(
            f"  one machine killed in the middle ({gone}): same bytes {same(args.out / 'ingested')}, {elapsed_s:.1f} s"
        )


def same(folder: Path) -> bool:
    """Of the versions made last: what they replaced may lie beside them."""
    one, other = (lg.GraphStore.open(folder / engine).folder for engine in ("local", "ray"))
    arrays = one.manifest["arrays"]
    alike = (filecmp.cmp(one.file(name), other.file(name), shallow=False) for name in arrays)
    return set(arrays) == set(other.manifest["arrays"]) and all(alike)


def rates(store: Any, shards: int, num_nodes: int) -> None:
    lists = Counted(start_shards(store, "both", shards))
    nodes = np.random.default_rng(0).choice(store.num_nodes, min(store.num_nodes, num_nodes), replace=False)
    lg.local_nodes(lists, nodes[:2000], threads=1)
    lists.counts.clear()
    start, own, held = time.perf_counter(), time.process_time(), shard_seconds()
    lg.local_nodes(lists, nodes, threads=1)
    elapsed_s = time.perf_counter() - start
    own, held = (time.process_time() - own) / len(nodes), (shard_seconds() - held) / len(nodes)
    parts = ", ".join(f"{what} {c} ({b / len(nodes):,.0f} B)" for what, (c, b) in lists.counts.items())
    total = sum(b for _, b in lists.counts.values()) / len(nodes)
    print(f"LocalNodes, K=50: {len(nodes) / elapsed_s:,.0f} nodes/s, {total:,.0f} B per node; requests: {parts}")
    print(f"  CPU time per node: {own * 1e6:.0f} µs where it is sampled, {held * 1e6:.0f} µs in shards")
    start = time.perf_counter()
    lg.local_nodes(store, nodes, threads=1)
    print(f"  the local kernel in one thread: {len(nodes) / (time.perf_counter() - start):,.0f} nodes/s")
    neighbors, width = Neighbors(*store.csr("both"), self_loops=True), 128
    x = np.zeros((store.num_nodes, width), np.float32)

    def load(first: int, last: int, out: np.ndarray) -> None:
        out[:] = x[first:last]

    block_sums(
        NeighborSums(neighbors, range(10), load, width, range(store.num_nodes)), lambda a, b, c: None, 1 << 30, 1
    )  # compiles
    for memory in (1 << 30, x.nbytes // 3):
        start = time.perf_counter()
        block_sums(
            NeighborSums(neighbors, range(store.num_nodes), load, width, range(store.num_nodes)),
            lambda a, b, c: None,
            memory,
            1,
        )
        elapsed_s, edges = time.perf_counter() - start, len(neighbors.indices) + store.num_nodes
        print(
            f"sums, width {width}, memory {format_bytes(memory)}: {store.num_nodes / elapsed_s:,.0f} rows/s, "
            f"{edges / elapsed_s:,.0f} edges/s, one thread"
        )


def started(num_machines: int) -> tuple[Cluster, list[Any]]:
    """A cluster of so many machines with a core each, and one more for the driver alone."""
    cluster = Cluster(initialize_head=True, head_node_args={**MACHINE, "num_cpus": 0, "include_dashboard": False})
    machines = [cluster.add_node(**MACHINE) for _ in range(num_machines)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.wait_for_nodes()
    return cluster, machines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="scratch folder for the store")
    parser.add_argument("--memory-limit", type=int, default=1 << 26, help="bytes of a task")
    parser.add_argument("--nodes", type=int, default=100_000, help="nodes to sample for the rate")
    parser.add_argument("--ingest", action="store_true", help="measure ingest instead")
    parser.add_argument("--copies", type=int, default=1, help="copies of the graph to ingest as one")
    parser.add_argument("--machines", type=int, default=3, help="of one core each; of one machine none is killed")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(lg.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    if args.ingest:
        cluster, machines = started(4)
        try:
            measure_ingest(args, cluster, machines)
        finally:
            ray.shutdown()
            cluster.shutdown()
        return
    store = ingested(args.data, args.out / args.data.name)
    rng = np.random.default_rng(0)
    shutil.rmtree(args.out / "tiny", ignore_errors=True)
    tiny = lg.ingest(
        lg.sources.arrays(
            rng.integers(0, 500, (2, 900)), rng.normal(size=(500, store.num_features)), rng.integers(0, 2, 500)
        ),
        out=args.out / "tiny",
    )
    print(f"{store.name}: {store.num_nodes:,} nodes, {store.num_edges:,} edges, {store.num_features} features")
    expected, local_s = made_by(Engine(1 << 30), store)
    print(f"local engine: {local_s:.1f} s")
    cluster, (*_, spare) = started(args.machines)
    engine = partial(RayEngine, shards=args.machines, memory=args.memory_limit)
    try:
        with Memory() as idle:
            made_by(engine(), tiny)
        with Memory() as busy:
            found, elapsed_s = made_by(engine(), store)
        print(f"ray, {args.machines} machines of 1 core: same bytes {found == expected}, {elapsed_s:.1f} s")
        indptr, indices = store.csr("both")
        share = (indices.nbytes + indptr.nbytes) / args.machines
        print(
            f"memory of a shard: {format_bytes(busy.of('Shard') - idle.of('Shard'))} above an idle one "
            f"({format_bytes(idle.of('Shard'))}); its share of the graph is {format_bytes(share)}"
        )
        print(
            f"memory of a task: {format_bytes(busy.of('_remote') - idle.of('_remote'))} above an idle one "
            f"({format_bytes(idle.of('_remote'))}); it may hold {format_bytes(args.memory_limit)}"
        )

        def lose(stage: str, done: int, total: int | None) -> None:
            if stage == "local nodes" and done > 0.2 * store.num_nodes and spare.any_processes_alive():
                cluster.remove_node(spare, allow_graceful=False)

        if args.machines > 1:
            found, elapsed_s = made_by(engine(progress=lose), store)
            gone = not spare.any_processes_alive()
            print(f"one machine killed in the middle ({gone}): same bytes {found == expected}, {elapsed_s:.1f} s")
        rates(store, args.machines, args.nodes)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
