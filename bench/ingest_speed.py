"""How fast tables become a store, beside the least that DuckDB and polars need for the same two CSR matrices.

    python bench/ingest_speed.py --nodes 2_000_000 --edges 10_000_000 --ids text
    python bench/ingest_speed.py --ids numbers --memory-limit 512MiB --with largegt duckdb
    python bench/ingest_speed.py --nodes 6 --edges 6 --columns 10000 --with largegt

A node table of ids and an edge table of pairs are written as Parquet. Each contestant is a process of its own: it reads
both, replaces ids by node numbers, and writes the rows and the columns of the adjacency matrix as `.npy` files.
`largegt` writes the union of both directions, checksums and a manifest as well. Printed are CPU seconds, wall time and
the peak of anonymous memory, of each round; imports count. Run an earlier version of the package by
`PYTHONPATH=OTHER/src`. With `--columns`, the node table is a CSV file that has so many columns of numbers besides;
LargeGT reads them as features, the others leave them alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

CONTESTANTS = ("largegt", "duckdb", "polars")


def write_tables(folder: Path, nodes: int, edges: int, text: bool, columns: int) -> None:
    """Ids in no order; text ids have about 20 bytes."""
    random = np.random.default_rng(0)
    ids = pa.array(random.permutation(nodes) * 7 + 3)
    if text:
        ids = pc.binary_join_element_wise("p:", pc.multiply(ids, 500_000_000_003).cast(pa.string()), "")
    pq.write_table(pa.table({"id": ids}), folder / "nodes.parquet")
    if columns:
        numbers = {f"c{at}": random.normal(size=nodes).round(4) for at in range(columns)}
        csv.write_csv(pa.table({"id": ids, **numbers}), folder / "nodes.csv")
    schema = pa.schema([("source", ids.type), ("target", ids.type)])
    with pq.ParquetWriter(folder / "edges.parquet", schema) as writer:
        for low in range(0, edges, 1 << 20):
            ends = random.integers(nodes, size=(2, min(1 << 20, edges - low)))
            writer.write_table(pa.table([ids.take(pa.array(end)) for end in ends], schema=schema))


def save(folder: Path, prefix: str, rows: Any, neighbors: Any, num_nodes: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_nodes))])
    np.save(folder / f"{prefix}_indptr.npy", indptr)
    np.save(folder / f"{prefix}_indices.npy", np.asarray(neighbors, dtype=np.int32))


def by_largegt(folder: Path, memory: str | None) -> None:
    import largegt as lg

    wide = folder / "nodes.csv"
    source = lg.sources.files(folder / "edges.parquet", nodes=wide if wide.exists() else folder / "nodes.parquet")
    lg.ingest(source, folder / "store", overwrite=True, memory=memory, threads=os.cpu_count())


def by_duckdb(folder: Path, memory: str | None) -> None:
    import duckdb

    db = duckdb.connect(config={"temp_directory": str(folder)} | ({"memory_limit": memory} if memory else {}))
    nodes, edges = (f"read_parquet('{folder / name}.parquet')" for name in ("nodes", "edges"))
    db.execute(f"CREATE TABLE ids AS SELECT id, (row_number() OVER () - 1)::INTEGER AS node FROM {nodes}")
    db.execute(
        "CREATE TABLE pairs AS SELECT DISTINCT a.node AS source, b.node AS target "
        f"FROM {edges} e JOIN ids a ON e.source = a.id JOIN ids b ON e.target = b.id WHERE a.node != b.node"
    )
    [[count]] = db.sql("SELECT count(*) FROM ids").fetchall()
    for prefix, order in (("out", "source, target"), ("in", "target, source")):
        first, second = db.sql(f"SELECT {order} FROM pairs ORDER BY {order}").fetchnumpy().values()
        save(folder, prefix, first, second, count)


def by_polars(folder: Path, memory: str | None) -> None:
    import polars as pl

    nodes = pl.read_parquet(folder / "nodes.parquet").with_row_index("node")
    pairs = pl.read_parquet(folder / "edges.parquet")
    for end in ("source", "target"):
        pairs = pairs.join(nodes.rename({"id": end, "node": f"{end}_node"}), on=end).drop(end)
    pairs = pairs.unique().filter(pl.col("source_node") != pl.col("target_node"))
    for prefix, order in (("out", ["source_node", "target_node"]), ("in", ["target_node", "source_node"])):
        first, second = (column.to_numpy() for column in pairs.select(order).sort(order).get_columns())
        save(folder, prefix, first, second, len(nodes))


def measured(name: str, folder: Path, memory: str | None) -> tuple[float, float, int]:
    """(CPU seconds, wall seconds, peak anonymous bytes) of one contestant."""
    start, before = time.perf_counter(), os.times()
    words = [
        sys.executable,
        __file__,
        "--one",
        name,
        "--folder",
        str(folder),
        *(["--memory-limit", memory] if memory else []),
    ]
    peak = 0
    with subprocess.Popen(words) as process:
        while process.poll() is None:
            for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
                peak = max(peak, int(line.split()[1]) << 10) if line.startswith("RssAnon") else peak
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{name} failed")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, time.perf_counter() - start, peak


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--ids", choices=("text", "numbers"), default="text")
    parser.add_argument("--with", nargs="+", dest="contestants", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--columns", type=int, default=0, help="feature columns of the node table")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory-limit", help="limit of largegt and DuckDB, for example 512MiB")
    parser.add_argument("--folder", type=Path, help="where the tables are, or are to be written")
    parser.add_argument("--one", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.one:
        globals()[f"by_{args.one}"](args.folder, args.memory_limit)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        if not (folder / "edges.parquet").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_tables(folder, args.nodes, args.edges, args.ids == "text", args.columns)
        for _ in range(args.rounds):
            for name in args.contestants:
                cpu, wall, peak = measured(name, folder, args.memory_limit)
                print(f"{name:8} {cpu:7.1f} CPU-s {wall:7.1f} s {peak / 2**20:7.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
