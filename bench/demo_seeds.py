"""The demo graph over several seeds: an MLP; LargeGT with the paper's inputs, by halves and whole; and the demo, which
has labels as input. Mean ± standard deviation.

    python bench/demo_seeds.py --seeds 4 --out /tmp/demo-seeds

Runs one after the other on the CPU (about 25 minutes on two cores); what is finished is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import largegt as lg
from largegt.config.models import overrides_read
from largegt.datasets.demo import demo_source

AS_THE_PAPER = (
    "model.neighbor_label_hops=0", "model.label_embeddings=false", "prepare.local_nodes.hop1_fraction=none",
    "prepare.tokens.add_degrees=false", "model.hop_distance_embedding=false", "model.local_label_histograms=false",
)  # fmt: skip
CONTESTANTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "mlp": ("demo-mlp", "mlp", ()),
    "global": ("demo", "largegt-global", AS_THE_PAPER),
    "local": ("demo", "largegt-local", AS_THE_PAPER),
    "full": ("demo", "largegt-full", AS_THE_PAPER),
    "largegt-full": ("demo", "largegt-full", ()),
}
"""Recipe, model and settings of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="on top of the recipes")
    parser.add_argument("--out", type=Path, default=Path("demo-seeds"))
    args = parser.parse_args()
    store_path = args.out / "store"
    if not store_path.exists():
        lg.ingest(demo_source(), store_path, lg.IngestConfig(undirected=True, feature_dtype="float16"))
    print(f"{'':<18}{'valid':>18}{'test':>18}{'training, s':>14}")
    for name, (recipe, model, settings) in CONTESTANTS.items():
        given = [*overrides_read([*settings, *args.set], model), f"model.name={model}", "train.device=cpu"]
        found = []
        for seed in range(args.seeds):
            out = args.out / "runs" / f"{name}-{seed}"
            config = lg.Config.from_recipe(recipe, [*given, f"train.seed={seed}"])
            done = (out / "metrics.json").exists()
            found.append((lg.Run.open(out) if done else lg.train(store_path, config, out, overwrite=True)).metrics)
        scores = {split: [metrics[split]["accuracy"] for metrics in found] for split in ("valid", "test")}
        cells = [f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}" for values in scores.values()]
        seconds = mean(metrics["train_time_s"] for metrics in found)
        print(f"{name:<18}{cells[0]:>18}{cells[1]:>18}{seconds:>14.0f}", flush=True)


if __name__ == "__main__":
    main()
