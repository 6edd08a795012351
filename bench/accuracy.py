"""LargeGT and what it is compared with, on graphs of one's own: the table of docs/accuracy.md.

    python bench/accuracy.py --data data/debian-sid --contestants auto default paper sign --runs 4 --out accuracy-bench
    python bench/accuracy.py --data data/cora --contestants default --try labels='model.label_tokens=true' --out DIR

FOLDER as bench/baselines.py takes it; a meta.json whose `directed` begins with that word keeps its directions. A
contestant is auto, default, paper (the recipe of ogbn-products, with positions by projection and as many steps as auto
has) or the name of a model, by its own recipe. `--try NAME='SETTINGS'` runs every contestant once more, with these
settings on top. Run i has seed i for weights, samples and order, and split i where there are several. Test scores are
those of the epoch that validation chose. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

import largegt as lg
from baselines import features_of, label_of, splits_of
from largegt.config import Config
from largegt.graph.store import GraphStore
from largegt.recipe import recipe_for
from largegt.types import MODEL_NAMES

PAPER = "ogbn-products-largegt-full"


def is_directed(folder: Path) -> bool:
    file = folder / "meta.json"
    return file.is_file() and str(json.loads(file.read_text()).get("directed", "")).startswith("directed")


def stores_of(folder: Path, out: Path, protocol: str, runs: int) -> tuple[str, list[GraphStore]]:
    """The protocol's name, and the store of each run: one for all where there is one split."""
    y = np.load(folder / "y.npy")
    protocol, splits = splits_of(folder, y, protocol)
    stores: list[GraphStore] = []
    x: Any = None
    for number, split in zip(range(runs), splits, strict=False):
        if stores and protocol in ("public", "ours"):
            stores.append(stores[0])
            continue
        path = out / "stores" / f"{folder.name}-{protocol}{number}"
        if not (path / "manifest.json").is_file():
            x = features_of(folder, folder.name, 0) if x is None else x
            edges = np.load(folder / "edge_index.npy")
            source = lg.sources.arrays(edges[:, edges[0] != edges[1]], x, y, split)
            lg.ingest(source, path, lg.IngestConfig(undirected=not is_directed(folder), name=folder.name))
        stores.append(lg.GraphStore.open(path))
    return protocol, stores


def config_of(contestant: str, store: GraphStore, settings: list[str]) -> Config:
    if contestant == "auto":
        return lg.auto_config(store, settings)[0]
    if contestant == "paper":
        steps = lg.auto_config(store)[0].train
        epochs = max(10, round(steps.epochs * 1024 / steps.batch_size))
        return Config.from_recipe(
            PAPER, ["prepare.positions.method=projection", f"train.epochs={epochs}", "train.budget=none", *settings]
        )
    if contestant in MODEL_NAMES:
        return Config.from_recipe(recipe_for(contestant), [f"model.name={contestant}", *settings])
    return Config.from_recipe(contestant, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, nargs="+", metavar="FOLDER")
    parser.add_argument("--contestants", nargs="+", default=["auto", "default", "paper"])
    parser.add_argument("--try", nargs="*", default=[], dest="variants", metavar="NAME='a.b=c d.e=f'")
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="for everyone")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--split", default="auto")
    parser.add_argument("--out", type=Path, default=Path("accuracy-bench"))
    args = parser.parse_args()
    variants = {"": ""} | dict(variant.split("=", 1) for variant in args.variants)
    for folder in args.data:
        protocol, stores = stores_of(folder, args.out, args.split, args.runs)
        for contestant in args.contestants:
            for variant, settings in variants.items():
                measure(args, folder.name, protocol, stores, contestant, variant, [*args.set, *settings.split()])


def measure(
    args: argparse.Namespace, name: str, protocol: str, stores: list[GraphStore], contestant: str, variant: str,
    settings: list[str],
) -> None:  # fmt: skip
    found = []
    for seed, store in enumerate(stores):
        config = config_of(contestant, store, [*settings, f"train.seed={seed}", f"prepare.local_nodes.seed={seed}"])
        label = label_of([f"config={json.dumps(config.model_dump(mode='json'), sort_keys=True)}"])
        out = args.out / "runs" / f"{name}-{protocol}-{contestant}-{label}"
        if not (out / "metrics.json").is_file():
            lg.train(store, config, out, resume=out.exists())
        found.append(json.loads((out / "metrics.json").read_text()))
    metric = next(metric for metric in ("roc_auc", "accuracy", "rmse") if metric in found[0]["test"])
    valid, test = ([100 * each[part][metric] for each in found] for part in ("valid", "test"))
    row = {
        "graph": name, "split": protocol, "contestant": contestant, "variant": variant, "metric": metric,
        "runs": len(found), "valid": f"{np.mean(valid):.2f}", "valid_std": f"{np.std(valid):.2f}",
        "test": f"{np.mean(test):.2f}", "test_std": f"{np.std(test):.2f}",
        "epoch": f"{np.median([each['best_epoch'] for each in found]):.0f}",
        "seconds": f"{np.mean([each['train_time_s'] for each in found]):.1f}", "settings": " ".join(settings),
    }  # fmt: skip
    scores = f"valid {row['valid']}±{row['valid_std']}, test {row['test']}±{row['test_std']}"
    print(f"{name} {contestant} {variant}: {scores} ({row['runs']} runs, {row['seconds']} s a run)", flush=True)
    file = args.out / "accuracy.csv"
    before = file.is_file()
    with file.open("a", newline="") as handle:
        writer = csv.DictWriter(handle, row)
        if not before:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
