"""Soak: train, evaluate and predict again and again in one process, and see whether its memory grows.

    python bench/soak.py --out /tmp/soak --minutes 30

Each round trains a model for an epoch into the same run folder, scores it and writes predictions, on a small graph;
models take turns. After each round the memory that the process itself holds is read. The first part of the time is left
out, since libraries fill their caches then. Of the rest, means of twenty stretches (neighbours in time are not
independent) give a slope with its 95% interval. It fails, with exit code 1, if memory surely grows faster than
`--limit` allows: if the lower end of the interval is above it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

import largegt as lg
from largegt.config.models import overrides_read
from largegt.runtime.memory import format_bytes, held_bytes, parse_bytes

MODELS = ("largegt-full", "graphsage", "mlp")
SETTINGS = (
    "prepare.local_nodes.k=8", "prepare.positional_encoding.dim=8", "model.hidden_dim=16",
    "model.codebook.num_centroids=32", "model.neighbor_label_hops=0", "train.epochs=1", "train.batch_size=256",
    "train.resample=never", "train.num_eval_samples=1",
)  # fmt: skip


@dataclass(frozen=True)
class Trend:
    """Bytes per hour: the slope and the ends of its 95% interval."""

    slope: float
    low: float
    high: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--warm-up", type=float, default=0.25, help="Share of the time that is left out.")
    parser.add_argument("--stretches", type=int, default=20, help="Of the rounds that count; 3 rounds each at least.")
    parser.add_argument("--limit", default="30MiB", help="Growth per hour that is let pass.")
    args = parser.parse_args()
    store = made(args.out / "g", args.nodes)
    times, held = soaked(store, args.out, 60 * args.minutes, 3 * args.stretches)
    counted = times >= args.warm_up * times[-1]
    if counted.sum() < 3 * args.stretches:
        raise SystemExit(f"only {counted.sum()} rounds to judge by: give it more --minutes")
    trend = trend_of(times[counted], held[counted], args.stretches)
    limit = parse_bytes(args.limit)
    grows = trend.low > limit
    first, last, most, low, slope, high = (
        format_bytes(size) for size in (held[counted][0], held[-1], held.max(), trend.low, trend.slope, trend.high)
    )
    print(
        f"{len(times):,} rounds in {times[-1] / 60:.1f} minutes, {counted.sum():,} counted: {first} then, {last} at "
        f"the end, {most} at most; slope {slope}/h, 95% interval {low}/h to {high}/h: "
        f"{'grows' if grows else 'does not grow'} by more than {format_bytes(limit)}/h"
    )
    sys.exit(1 if grows else 0)


def made(path: Path, num_nodes: int) -> lg.GraphStore:
    """A graph whose neighbours mostly share a class; a tenth of the nodes has no label."""
    rng = np.random.default_rng(0)
    labels = np.arange(num_nodes) % 3
    ends = rng.integers(0, num_nodes, (2, 12 * num_nodes))
    ends = ends[:, (labels[ends[0]] == labels[ends[1]]) | (rng.random(ends.shape[1]) < 0.05)]
    features = rng.normal(size=(num_nodes, 8)).astype(np.float32) + labels[:, None].astype(np.float32)
    labels[::10] = -1
    return lg.ingest(lg.sources.arrays(ends, features, labels), path, lg.IngestConfig(undirected=True), overwrite=True)


def soaked(store: lg.GraphStore, folder: Path, seconds: float, fewest: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since the beginning and bytes held, after each of at least so many rounds, `fewest`."""
    times: list[float] = []
    held: list[int] = []
    begin, told = time.monotonic(), 0.0
    while len(times) < fewest or times[-1] < seconds:
        model = MODELS[len(times) % len(MODELS)]
        settings = [*overrides_read(SETTINGS, model), f"model.name={model}", f"train.seed={len(times)}"]
        config = lg.Config.from_recipe("default", settings)
        run = lg.train(store, config, folder / "run", overwrite=True)
        scores = lg.evaluate(run, "valid")
        table = lg.predict(run, folder / "p.parquet", overwrite=True)
        assert 0 <= scores["accuracy"] <= 1
        assert table.num_rows == store.num_nodes
        del run, table
        gc.collect()
        times.append(time.monotonic() - begin)
        held.append(held_bytes())
        if times[-1] - told > 60:
            told = times[-1]
            print(f"{told / 60:5.1f} min, round {len(times):,}: {format_bytes(held[-1])}", flush=True)
    return np.array(times), np.array(held, dtype=np.float64)


def trend_of(times: np.ndarray, held: np.ndarray, stretches: int) -> Trend:
    """The slope of stretches' means over time."""
    parts = np.array_split(np.arange(len(times)), stretches)
    hours = np.array([times[part].mean() for part in parts]) / 3600
    means = np.array([held[part].mean() for part in parts])
    fit = stats.linregress(hours, means)
    reach = float(stats.t.ppf(0.975, stretches - 2)) * float(fit.stderr)
    return Trend(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach)


if __name__ == "__main__":
    main()
