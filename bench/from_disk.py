"""Time, peak anonymous memory and disk of every stage on graphs like ogbn-papers100M, over scale.

    python bench/from_disk.py --scales 0.01 0.03 0.1 --memory-limit 3GiB --out /tmp/from-disk

Each stage is the command a user would type, in a process of its own. Anonymous memory is what the process holds beside
mapped files, sampled every 20 ms; disk is what the work folder holds, sampled every second. With three scales or more
a straight line is fitted and read at scale 1. `--direct` writes the store without input files, which saves their
disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_files import ingest_options, write_files

from largegt.datasets.synthetic import synthetic


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a command; its time, its peak of anonymous memory, and the most that `folder` held."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "largegt", *command, "--json"], stdout=subprocess.PIPE)
    peak = disk = 0
    looked = 0.0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        if time.perf_counter() - looked > 1:
            disk, looked = max(disk, bytes_below(folder)), time.perf_counter()
        time.sleep(0.02)
    assert process.stdout is not None
    text = process.stdout.read().decode()
    if process.returncode:
        raise SystemExit(f"failed: largegt {' '.join(command)}")
    elapsed_s = time.perf_counter() - begin
    return {"elapsed_s": elapsed_s, "peak_bytes": peak, "disk_bytes": max(disk, bytes_below(folder)), "said": text}


def anonymous_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


def run(scale: float, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All stages at one scale."""
    folder = args.out / f"{args.like}-{scale:g}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store, memory = str(folder / "store"), ["--memory-limit", args.memory_limit]
    ingest_set = [part for item in args.ingest_set for part in ("--set", item)]
    prepare_set = ["--set", f"prepare.local_nodes.k={args.k}"]
    prepare_set += [part for item in args.prepare_set for part in ("--set", item)]
    train_set = [*prepare_set, "--set", "train.epochs=1"]
    train_set += [part for item in args.train_set for part in ("--set", item)]
    rows = []

    def stage(name: str, command: list[str]) -> dict[str, Any]:
        result = {"scale": scale, "stage": name, **measured(command, folder)}
        rows.append({key: value for key, value in result.items() if key != "said"})
        print(
            f"{scale:<6g} {name:<11} {result['elapsed_s']:8.1f} s  {result['peak_bytes'] / 2**20:8.0f} MiB "
            f" {result['disk_bytes'] / 1e9:7.2f} GB on disk",
            flush=True,
        )
        return result

    if args.direct:
        generate = ["generate", "--like", args.like, "--scale", str(scale), "--out", store]
        stage("generate", [*generate, *memory, *ingest_set])
    else:
        files = folder / "files"
        write_files(synthetic(args.like, scale), files)
        said = stage("ingest", ["ingest", *ingest_options(files), "--out", store, *memory, *ingest_set])["said"]
        edges = json.loads(said)["edges"]
        print(f"       {edges / rows[-1]['elapsed_s'] / 1e6:.2f} M edges/s with features", flush=True)
        if args.edges_alone:
            alone = ["ingest", "--edges", str(files / "edges.parquet"), "--out", str(folder / "edges-alone"), *memory]
            num_nodes = str(json.loads(said)["nodes"])
            stage("edges alone", [*alone, "--num-nodes", num_nodes])
            print(f"       {edges / rows[-1]['elapsed_s'] / 1e6:.2f} M edges/s", flush=True)
            shutil.rmtree(folder / "edges-alone")
        shutil.rmtree(files)
    dry = json.loads(measured(["prepare", store, "--dry-run", *memory, *prepare_set], folder)["said"])
    print(
        f"       dry run: {dry['elapsed_s']:.0f} s, {dry['memory_bytes'] / 2**20:.0f} MiB, peak disk "
        f"{dry['peak_disk_bytes'] / 1e9:.2f} GB, {dry['token_rows']:,} token rows",
        flush=True,
    )
    before = bytes_below(folder)
    said = stage("prepare", ["prepare", store, *memory, *prepare_set])["said"]
    print(
        f"       it added at most {(rows[-1]['disk_bytes'] - before) / 1e9:.2f} GB, "
        f"{json.loads(said)['token_rows']:,} token rows",
        flush=True,
    )
    said = stage("train", ["train", store, "--out", str(folder / "run"), *memory, *train_set])["said"]
    print(f"       valid {json.loads(said)['valid']}", flush=True)
    if not args.keep:
        shutil.rmtree(folder)
    return rows


def fit(rows: list[dict[str, Any]]) -> None:
    """A straight line through the scales, read at scale 1."""
    print("\nstage        at scale 1, along a straight line: time, anonymous memory, disk")
    for name in dict.fromkeys(row["stage"] for row in rows):
        mine = [row for row in rows if row["stage"] == name]
        scales = [row["scale"] for row in mine]
        at_one = {
            key: float(np.polyval(np.polyfit(scales, [row[key] for row in mine], 1), 1.0))
            for key in ("elapsed_s", "peak_bytes", "disk_bytes")
        }
        print(
            f"{name:<11} {at_one['elapsed_s'] / 3600:8.2f} h  {at_one['peak_bytes'] / 2**30:8.1f} GiB "
            f" {at_one['disk_bytes'] / 1e9:7.0f} GB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-papers100M")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    parser.add_argument("--memory-limit", default="3GiB")
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("from-disk"))
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--edges-alone", action="store_true", help="ingest the edges once more without the features")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--ingest-set", nargs="*", default=[])
    parser.add_argument("--prepare-set", nargs="*", default=[])
    parser.add_argument("--train-set", nargs="*", default=[])
    args = parser.parse_args()
    rows = [row for scale in args.scales for row in run(scale, args)]
    (args.out / "result.json").write_text(json.dumps(rows, indent=1))
    if len(args.scales) > 2:
        fit(rows)


if __name__ == "__main__":
    main()
