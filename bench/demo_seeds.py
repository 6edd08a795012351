"""The demo graph over several seeds: MLP, local, global and full, mean ± standard deviation.

    python bench/demo_seeds.py --seeds 4 --out /tmp/demo-seeds

Runs one after the other on the CPU (about 25 minutes on two cores); what is finished is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import largegt as lg
from largegt.datasets.demo import demo_source

MODELS = {
    "mlp": "demo-mlp",
    "largegt-global": "demo",
    "largegt-local": "demo",
    "largegt-full": "demo",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("demo-seeds"))
    args = parser.parse_args()
    store_path = args.out / "graph"
    if not store_path.exists():
        lg.ingest(demo_source(), store_path, lg.IngestConfig(undirected=True, feature_dtype="float16"))
    prepared = lg.prepare(store_path, lg.Config.from_recipe("demo").prepare)
    print(f"{'model':<18}{'valid':>18}{'test':>18}{'training, s':>14}")
    for model, recipe in MODELS.items():
        found = []
        for seed in range(args.seeds):
            out = args.out / "runs" / f"{model}-{seed}"
            config = lg.Config.from_recipe(recipe, [f"model.name={model}", f"train.seed={seed}", "train.device=cpu"])
            done = (out / "metrics.json").exists()
            found.append((lg.Run.open(out) if done else lg.train(prepared, config, out, overwrite=True)).metrics)
        scores = {split: [metrics[split]["accuracy"] for metrics in found] for split in ("valid", "test")}
        cells = [f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}" for values in scores.values()]
        seconds = mean(metrics["train_time_s"] for metrics in found)
        print(f"{model:<18}{cells[0]:>18}{cells[1]:>18}{seconds:>14.0f}", flush=True)


if __name__ == "__main__":
    main()
