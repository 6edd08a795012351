"""Kill ingest and prepare (SIGKILL) at random moments, run the same command again, compare the bytes.

    python bench/killed.py --like ogbn-papers100M --scale 0.003 --kills 30

An unbroken run gives the checksums and the time it takes. Then each round kills the command at up to three random
moments within that time, each time with another --memory-limit, lets it finish, and compares every array.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from synthetic_files import ingest_options, write_files

from largegt.datasets.synthetic import synthetic


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "largegt", *command, "--json"], stdout=subprocess.DEVNULL)


def checksums(folder: Path) -> dict[str, str]:
    """Of every array of a store, or of a preparation and its stages."""
    found = {}
    for manifest in [*folder.glob("manifest.json"), *folder.glob("*/manifest.json"), *folder.glob("*/*/manifest.json")]:
        for entry in json.loads(manifest.read_text())["arrays"].values():
            found[str(manifest.with_name(entry["file"]).relative_to(folder))] = entry["checksum"]
    return found


def rounds(name: str, command: list[str], result: Path, kills: int, rng: random.Random) -> None:
    """`result` is the store that the command makes, or the folder of its preparations."""

    def unfinished() -> list[Path]:
        return [*result.parent.glob(f".{result.name}.partial"), *result.glob("**/.*.partial")]

    begin = time.perf_counter()
    assert start(command).wait() == 0
    whole_s = time.perf_counter() - begin
    expected = checksums(result)
    assert expected
    shutil.rmtree(result)
    made = went_on = 0
    while made < kills:
        for _ in range(rng.randint(1, 3)):
            process = start([*command, "--memory-limit", rng.choice(["256MiB", "1GiB", "3GiB"])])
            time.sleep(rng.uniform(0.3 * whole_s, whole_s))
            process.kill()
            made += process.wait() != 0
            if not unfinished() and result.name != "prepared":
                break
            went_on += any((folder / "progress.json").exists() for folder in unfinished())
        if result.name == "prepared" or not (result / "manifest.json").exists():  # else the last kill came too late
            assert start(command).wait() == 0
        assert checksums(result) == expected, "the bytes differ"
        assert not unfinished(), unfinished()
        shutil.rmtree(result)
    print(f"{name}: {made} kills, {went_on} of them left work to go on from; the same bytes every time", flush=True)
    assert start(command).wait() == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-papers100M")
    parser.add_argument("--scale", type=float, default=0.003)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("killed-bench"))
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    files, store = args.out / "files", args.out / "store"
    write_files(synthetic(args.like, args.scale), files)
    rng = random.Random(args.seed)
    ingest = ["ingest", *ingest_options(files), "--out", str(store)]
    rounds("ingest", ingest, store, args.kills, rng)
    rounds("prepare", ["prepare", str(store)], store / "prepared", args.kills, rng)
    shutil.rmtree(args.out)


if __name__ == "__main__":
    main()
