"""What each kind of column is worth: a node table's numbers alone, with each other kind beside them, and all columns.

    python bench/column_kinds.py nodes.csv edges.csv --epochs 10 --seeds 2 --model largegt-local mlp --out DIR

The kinds are those that `largegt ingest` infers; a column that it ignores is in no variant. Numbers on a log scale
are there a second time as they are. Every variant is a store of its own with the same labels and the same split, and
is trained with seeds 0, 1, … of weights, order and local nodes. LargeGT has the recipe `base` with K=8 and hidden
64, which a CPU trains in about a minute, unless `--recipe` names another; other models have their own recipe. `mlp`
reads the features of a node alone, so that its scores are about the columns and not about the graph. `--set` is for
every run. Scores are accuracy in % at the epoch that validation chose, mean ± deviation over the seeds.
"""

from __future__ import annotations

import argparse
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import largegt as lg
from largegt.config.models import overrides_read
from largegt.config.recipes import recipe_for
from largegt.config.schema import Config
from largegt.data.columns import Column
from largegt.data.store import GraphStore

WITHOUT_LOG = "number, none on a log scale"
SMALL = ("prepare.local_nodes.k=8", "model.hidden_dim=64")


def variants_of(columns: Sequence[Column]) -> dict[str, list[str]]:
    """The columns of each variant, by its name."""
    by_kind: dict[str, list[str]] = {}
    for column in columns:
        if column.width:
            by_kind.setdefault(column.kind, []).append(column.name)
    plain, logs = by_kind.pop("number", []), by_kind.pop("log", [])
    numbers = [*plain, *logs]
    variants = {"number": numbers} if numbers else {}
    if logs:
        variants[WITHOUT_LOG] = numbers
    for kind, names in sorted(by_kind.items()):
        variants[f"number + {kind}" if numbers else kind] = [*numbers, *names]
    if len(by_kind) > 1:
        variants["all"] = [*numbers, *(name for names in by_kind.values() for name in names)]
    return variants


def stores_of(nodes: str, edges: str, label: str, out: Path) -> dict[str, tuple[list[str], GraphStore]]:
    """The columns and the store of each variant."""
    config = lg.IngestConfig(name="columns")
    every = lg.ingest(lg.sources.files(edges, nodes=nodes, label_column=label), out / "stores" / "every", config, True)
    if every.columns is None:
        raise SystemExit(f"{nodes} has no columns that become features")
    for row in every.columns.table():
        print(f"{row['column']}: {row['kind']}, {row['used_as']}{''.join(f'; {note}' for note in row['notes'])}")
    stores = {}
    for variant, names in variants_of(every.columns.columns).items():
        source = lg.sources.files(
            edges, nodes=nodes, label_column=label, feature_columns=[glob.escape(name) for name in names]
        )
        kinds = tuple(f"{name}=number" for name in names) if variant == WITHOUT_LOG else ()
        own = config.model_copy(update={"kinds": kinds})
        store = lg.ingest(source, out / "stores" / variant.replace(" + ", "-"), own, True)
        same = np.array_equal(store.split, every.split) and np.array_equal(store.labels, every.labels)
        assert same, "variants differ in their labels or split"
        stores[variant] = (names, store)
    return stores


def config_of(model: str, recipe: str | None, settings: Sequence[str]) -> Config:
    settings = overrides_read(settings, model)
    if not model.startswith("largegt"):
        return Config.from_recipe(recipe_for(model), [f"model.name={model}", *settings])
    return Config.from_recipe(recipe or "base", [f"model.name={model}", *(() if recipe else SMALL), *settings])


def scores(runs: list[dict[str, Any]], part: str) -> str:
    found = [100 * run[part]["accuracy"] for run in runs]
    return f"{np.mean(found):.1f}" + (f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else "")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", help="node table")
    parser.add_argument("edges", help="edge table")
    parser.add_argument("--label", default="label", help="label column")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each variant")
    parser.add_argument("--model", nargs="+", default=["largegt-local", "mlp"])
    parser.add_argument("--recipe", help="recipe of the LargeGT models")
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="settings of every run")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    stores = stores_of(args.nodes, args.edges, args.label, args.out)
    for model in args.model:
        lines = ["| variant | columns | features | valid | test |", "|---|---|---|---|---|"]
        for variant, (names, store) in stores.items():
            runs = []
            for seed in range(args.seeds):
                seeds = [f"train.seed={seed}", f"prepare.local_nodes.seed={seed}", f"train.epochs={args.epochs}"]
                folder = args.out / "runs" / f"{model}-{variant.replace(' + ', '-')}-{seed}"
                config = config_of(model, args.recipe, [*seeds, *args.set])
                runs.append(lg.train(store, config, folder, overwrite=True).metrics)
                print(f"{folder.name}: {runs[-1]['train_time_s']:.0f} s", flush=True)
            sizes = f"{len(names)} | {store.num_features}"
            lines.append(f"| {variant} | {sizes} | {scores(runs, 'valid')} | {scores(runs, 'test')} |")
        print(f"\n{model}, {args.epochs} epochs, {args.seeds} seeds, accuracy in %\n", *lines, "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
