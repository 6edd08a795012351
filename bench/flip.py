"""Is every damaged byte found? Flips one random bit, byte or run of bytes, or cuts a file off at a random place, in
every file of a store, an older version of it, a preparation and a run, many times over, and counts what finds it.

    python bench/flip.py --cases 5000

Each damage is tried at four places, in the order in which a user meets them: opening the folder; what a stage does
before it uses the arrays or files (prepare, train, evaluate, predict, report do the same); `inspect --verify`; nothing.
Damage that nothing finds, or that --verify does not find, ends it with exit code 1. The store has string ids, directed
edges and arrays on both sides of 1 MiB, the run a checkpoint, weights, metrics, TensorBoard events and an analysis.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from largegt.cli.verification import verify
from largegt.config.schema import Config
from largegt.data.ingest import ingest
from largegt.data.sources import files
from largegt.data.store import GraphStore
from largegt.data.versions import clean
from largegt.errors import LargeGTError
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.run import Run
from largegt.training.run_checksums import check_file
from largegt.training.trainer import train

SETTINGS = (
    "prepare.local_nodes.k=4", "prepare.local_nodes.direction=out", "prepare.positional_encoding.dim=4",
    "prepare.tokens.precompute_for=all", "model.neighbor_label_hops=1", "model.hidden_dim=8",
    "train.epochs=2", "train.batch_size=512",
)  # fmt: skip


@dataclass
class Folders:
    """What is damaged."""

    store: Path
    version: str
    """The version that the run was trained on, and the preparation was made from; the store has a newer one."""
    prepared: Path
    run: Path

    def parts(self) -> list[tuple[str, Path]]:
        """(name of the part, file) of every file; locks and the like are none."""
        arrays = GraphStore.open(self.store).folder.manifest["arrays"].values()
        newest = {"manifest.json", *(entry["file"] for entry in arrays)}
        own = [file for file in self.store.iterdir() if file.is_file()]
        found = [("store" if file.name in newest else "version", file) for file in own]
        found += [("version", file) for name in ("versions", "refs") for file in (self.store / name).iterdir()]
        found += [("prepared", file) for file in (self.store / "prepared").rglob("*") if file.is_file()]
        found += [("run", file) for file in self.run.rglob("*") if file.is_file()]
        return sorted((part, file) for part, file in found if not file.name.startswith("."))


@dataclass
class Report:
    """Counts by (part, kind of damage) and by who found it, and what nothing found."""

    found: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    @property
    def num_cases(self) -> int:
        return sum(self.found.values())

    def table(self) -> str:
        lines = [f"{'part':<10}{'damage':<12}" + "".join(f"{who:>10}" for who in WHO)]
        for part, kind in sorted({(part, kind) for part, kind, _ in self.found}):
            counts = "".join(f"{self.found[part, kind, who]:>10,}" for who in WHO)
            lines.append(f"{part:<10}{kind:<12}{counts}")
        lines.append(
            f"{'all':<22}" + "".join(f"{sum(n for k, n in self.found.items() if k[2] == who):>10,}" for who in WHO)
        )
        return "\n".join(lines)


WHO = ("open", "use", "verify", "nothing")


def make_folders(out: Path, num_nodes: int = 3000, width: int = 128) -> Folders:
    """A small graph of each kind of array, prepared and trained on."""
    rng = np.random.default_rng(0)
    names = np.array([f"node {number:05d}" for number in range(num_nodes)])
    ends = rng.integers(0, num_nodes, (2, 8 * num_nodes))
    pq.write_table(pa.table({"source": names[ends[0]], "target": names[ends[1]]}), out / "edges.parquet")
    features = rng.normal(size=(num_nodes, width)).astype(np.float32)
    columns = {
        "id": names,
        "x": list(features),
        "label": np.array(["red", "green", "blue"])[rng.integers(0, 3, num_nodes)],
    }
    pq.write_table(pa.table(columns), out / "nodes.parquet")
    store = ingest(files(out / "edges.parquet", nodes=out / "nodes.parquet"), out / "g")
    config = Config.from_recipe("default", SETTINGS)
    prepared = prepare(store, config.preparation)
    run = train(prepared, config, out / "run")
    from largegt.reporting.analysis import analyse

    analyse(run)
    columns["x"] = list(features + 1)
    pq.write_table(pa.table(columns), out / "nodes.parquet")
    ingest(files(out / "edges.parquet", nodes=out / "nodes.parquet"), out / "g", overwrite=True)
    return Folders(store.path, store.fingerprint, prepared.path, run.path)


def damaged(data: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """These bytes with one damage; never the same bytes."""
    at = int(rng.integers(len(data)))
    if kind == "cut off":
        return data[:at]
    changed = bytearray(data)
    length = 1 if kind != "zeros" else min(int(rng.integers(1, 4097)), len(data) - at)
    for place in range(at, at + length):
        changed[place] = 0 if kind == "zeros" else changed[place] ^ (1 << int(rng.integers(8)))
    if kind == "byte":
        changed[at] = (data[at] + int(rng.integers(1, 256))) % 256
    if bytes(changed) == data:  # zeros over zeros
        changed[at] ^= 255
    return bytes(changed)


KINDS = ("bit", "byte", "zeros", "cut off")


def who_finds(folders: Folders, part: str, file: Path) -> tuple[str, bool]:
    """(who is the first to find what is wrong now, whether --verify does)."""
    top = {"prepared": folders.prepared, "run": folders.run}.get(part, folders.store)
    told = False
    with suppress(LargeGTError):
        found = verify(top)
        told = any(damage.file == file for damage in found.damaged) or any(str(file) in note for note in found.notes)
    if _refuses(lambda: _open(folders, part)):
        return "open", told
    if _refuses(lambda: _use(folders, part)):
        return "use", told
    return ("verify" if told else "nothing"), told


def _open(folders: Folders, part: str) -> None:
    if part in ("store", "version"):
        GraphStore.open(folders.store, None if part == "store" else folders.version)
    elif part == "prepared":
        Prepared.open(folders.prepared)
    else:
        Run.open(folders.run)


def _use(folders: Folders, part: str) -> None:
    """What a stage does before it works with what it reads."""
    if part in ("store", "version"):
        store = GraphStore.open(folders.store, None if part == "store" else folders.version)
        store.check("out", "in", "both", features=True)
        store.ids_of(np.arange(3))
        if part == "version":
            clean(folders.store, dry_run=True)
    elif part == "prepared":
        Prepared.open(folders.prepared).check()
    else:
        run = Run.open(folders.run)
        assert run.metrics
        assert run.history
        run.load_model(Prepared.open(folders.prepared))
        check_file(run.path, run.path / "checkpoints" / "last.pt")  # as load_checkpoint begins


def _refuses(work: Callable[[], None]) -> bool:
    try:
        work()
    except LargeGTError:
        return True
    return False


_PLACE = re.compile(rb"^(store|absolute) = .*$", re.MULTILINE)


def _says_the_same(file: Path, good: bytes, bad: bytes) -> bool:
    """Whether JSON has the same values as before: checksums are of those, not of spaces or of a number's 18th digit.
    And of config.toml, whether only the place of the store differs: it is there twice, and the user may change it."""
    if file.name == "config.toml":
        return _PLACE.sub(b"", good) == _PLACE.sub(b"", bad)
    try:
        return file.suffix == ".json" and bool(json.loads(good) == json.loads(bad))
    except ValueError:
        return False


def harness(folders: Folders, cases: int, seed: int) -> Report:
    """Damage the files in turn, `cases` times in all."""
    parts, report = folders.parts(), Report()
    for part in ("store", "version", "prepared", "run"):
        found = verify(folders.run)
        assert not found.damaged, (part, found.damaged)
        assert not _refuses(lambda part=part: (_open(folders, part), _use(folders, part))[0]), part  # type: ignore[misc]
    for case in range(cases):
        rng = np.random.default_rng([seed, case])
        part, file = parts[case % len(parts)]
        kind = KINDS[(case // len(parts)) % len(KINDS)]
        good = file.read_bytes()
        bad = damaged(good, kind, rng)
        while _says_the_same(file, good, bad):
            bad = damaged(good, kind, rng)
        file.write_bytes(bad)
        try:
            who, told = who_finds(folders, part, file)
        finally:
            file.write_bytes(good)
        report.found[part, kind, who] += 1
        if who == "nothing" or not told:
            report.missed.append(f"case {case}: {kind} in {file}: found by {who}, {'' if told else 'not '}by --verify")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folders = make_folders(Path(folder))
        start = time.perf_counter()
        report = harness(folders, args.cases, args.seed)
        num_files = len(folders.parts())
    elapsed_s = time.perf_counter() - start
    if args.json:
        counts = {" ".join(key): count for key, count in report.found.items()}
        print(json.dumps({"cases": report.num_cases, "found": counts, "missed": report.missed}))
    else:
        print(report.table())
        print(f"{report.num_cases:,} damages of {num_files} files in {elapsed_s:.0f} s")
        print("\n".join(report.missed[:20]) or "None was missed.")
    raise SystemExit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
