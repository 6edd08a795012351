"""A store that grows: append against ingest, incremental preparation against a full one, new nodes without appending.

    python bench/append.py --like ogbn-papers100M --scale 0.007 --share 0.01 0.0001 --out /tmp/append

The last nodes of a synthetic graph are held back with all of their edges, and come later. `cpu` is the processor time
of all threads, which other work on the machine hardly changes; `wall` is the clock. Every result is compared with the
one made from everything: the same fingerprint, and for preparations the same checksums.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import largegt as lg
from largegt.config.overrides import build
from largegt.config.schema import Config, IngestConfig, PrepareConfig
from largegt.data.versions import earlier_states, touched_since
from largegt.training.run import Run

T = TypeVar("T")
PREPARE: dict[str, Any] = {
    "local_nodes": {"k": 16, "target_nodes": "all"},
    "tokens": {"precompute_for": "all", "normalize": "none", "dtype": "float16"},
    "positional_encoding": {"method": "none"},
}  # fmt: skip


def timed(name: str, work: Callable[[], T]) -> T:
    begin, used = time.perf_counter(), sum(os.times()[:2])
    result = work()
    wall, cpu = time.perf_counter() - begin, sum(os.times()[:2]) - used
    print(f"{name:<60} wall {wall:7.1f} s   cpu {cpu:7.1f} s", flush=True)
    return result


class Parts:
    """A synthetic graph of which the last nodes come later."""

    def __init__(self, like: str, scale: float, out: Path) -> None:
        source = lg.synthetic(like, scale)
        from largegt.datasets.synthetic import ingest_config

        self.config: IngestConfig = ingest_config(like)
        self.everything = lg.ingest(source, out / "source", self.config)
        self.edges = np.concatenate([np.stack([c.sources, c.targets]) for c in source.edges.chunks()], axis=1)
        self.num_nodes = self.everything.num_nodes

    def source(self, low: int, high: int, mine: Any) -> Any:
        store = self.everything
        labels = np.asarray(store.labels[low:high])
        split = np.asarray(store.split[low:high])
        named = {name: np.flatnonzero(split == code) for name, code in (("train", 1), ("valid", 2), ("test", 3))}
        return lg.sources.arrays(
            self.edges[:, mine], store.features[low:high], np.where(labels >= 0, labels, -1),
            named if low == 0 else None, num_nodes=high - low,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-papers100M")
    parser.add_argument("--scale", type=float, default=0.007)
    parser.add_argument("--share", type=float, nargs="+", default=[0.01, 0.0001])
    parser.add_argument("--predict", type=int, default=1000, help="new nodes to predict without appending; 0: none")
    parser.add_argument("--out", type=Path, default=Path("/tmp/append"))
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    parts = Parts(args.like, args.scale, args.out)
    last = parts.edges.max(axis=0)
    settings = build(PrepareConfig, PREPARE)
    print(f"{parts.num_nodes:,} nodes, {parts.edges.shape[1]:,} edges, {parts.everything.num_features} features")
    everything = np.ones(parts.edges.shape[1], dtype=bool)
    full = timed("ingest of everything", lambda: lg.ingest(
        parts.source(0, parts.num_nodes, everything), args.out / "full", parts.config))  # fmt: skip
    whole = timed("preparation of everything", lambda: lg.prepare(full, settings))
    for share in args.share:
        folder = args.out / f"share-{share}"
        num_old = parts.num_nodes - max(1, round(share * parts.num_nodes))
        old = lg.ingest(parts.source(0, num_old, last < num_old), folder / "g", parts.config)
        lg.prepare(old, settings)
        new = parts.source(num_old, parts.num_nodes, last >= num_old)
        print(f"\n{parts.num_nodes - num_old:,} new nodes, {int((last >= num_old).sum()):,} new edges")
        if args.predict and share == args.share[0]:
            quick = [
                "model.hidden_dim=32", "train.epochs=1", "prepare.local_nodes.k=16",
                "prepare.positional_encoding.dim=16", "prepare.tokens.precompute_for=all",
            ]  # fmt: skip
            for name in ("largegt-local", "largegt-full"):
                config = Config.from_recipe("base", [f"model.name={name}", *quick])
                run = lg.train(old, config, folder / name)
                some = num_old + args.predict
                mine = (last >= num_old) & (last < some)
                source = parts.source(num_old, some, mine)
                label = f"{args.predict:,} new nodes by {name}"
                few = parts.source(num_old, num_old + 10, (last >= num_old) & (last < num_old + 10))
                lg.predict_new(run, few)  # kernels are compiled then
                timed(label, lambda run=run, source=source: lg.predict_new(run, source))  # type: ignore[misc]
        grown = timed("append", lambda new=new, folder=folder: lg.append(folder / "g", new))  # type: ignore[misc]
        state = earlier_states(grown)[0]
        print(f"  {len(touched_since(grown, state)):,} old nodes have new neighbours")
        prepared = timed("incremental preparation", lambda grown=grown: lg.prepare(grown, settings))  # type: ignore[misc]
        for name, (kept, made) in prepared.reused.items():
            print(f"  {name}: {made:,} rows computed, {kept:,} kept")
        for array in ("local_rows", "tokens"):
            assert prepared.checksum(array) == whole.checksum(array), array
        for array in ("out_indices", "features"):
            assert grown.folder.checksum(array) == full.folder.checksum(array), array
        if args.predict and share == args.share[0]:
            run = Run.open(folder / "largegt-local")
            timed("predict everything with a run from before", lambda run=run: lg.predict(run))  # type: ignore[misc]
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
