"""The baselines on real graphs, against the numbers their authors published.

    python bench/baselines.py --data data/cora --models sgc gat graphsage --runs 10 --out baselines-bench

FOLDER holds edge_index.npy [2, E], x.npy or x.npz (SciPy CSR), y.npy (-1: no label) and, where there are splits,
splits.npz: index arrays `NAME_train`, `NAME_val`, `NAME_test`, or masks `NAME_train_masks` [runs, N] and so on. Without
splits each run draws its own 60/20/20. Edges are taken as undirected.

Run i has seed i, and split i where there are several. The score is that of the test nodes at the epoch that was best on
validation. A finished run is not repeated, an interrupted one goes on; other settings are other runs. Summaries are
printed and added to OUT/baselines.csv. `--valid-only` shows no test score: for choosing settings.

"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch

import largegt as lg
from largegt.data.store import GraphStore

Split = dict[str, np.ndarray]

EVERYWHERE = """
    train.optimizer=adam train.lr_scheduler=constant train.max_grad_norm=none train.precision=32-true
    train.checkpoint_every_n_epochs=1000000 train.batch_size=1000000 prepare.positional_encoding.method=none
    prepare.tokens.normalize=none
"""
"""Full batches at a constant step size, as the small-graph papers train."""

_SGC = "train.epochs=200 train.learning_rate=0.2 train.monitor=loss"  # convex: the authors take the last epoch
_GAT = """
    model.hidden_dim=64 model.num_heads=8 model.fanouts=-1,-1 model.input_dropout=0.6 model.attention_dropout=0.6
    model.dropout=0.6 model.residual=false model.norm=none train.weight_decay=5e-4 train.learning_rate=5e-3
    train.epochs=1000 train.monitor=loss train.patience=100
"""
_NAGPHORMER = """
    model.hidden_dim=128 model.num_heads=8 model.encoder_dropout=0.3 train.optimizer=adamw train.weight_decay=1e-2
    train.batch_size=1000 train.learning_rate=1e-3 prepare.tokens.normalize=per_feature
"""
_LINKX = """
    model.hidden_dim=64 model.dropout=0.5 train.batch_size=1000 train.learning_rate=1e-3 train.weight_decay=1e-3
    train.epochs=30 prepare.tokens.normalize=per_feature
"""
SETTINGS: dict[tuple[str, str], str] = {
    ("cora", "sgc"): f"{_SGC} train.weight_decay=1e-5 train.epochs=100",
    ("citeseer", "sgc"): f"{_SGC} train.weight_decay=1e-4",
    ("pubmed", "sgc"): f"{_SGC} train.weight_decay=1e-4",
    ("cora", "gat"): _GAT,
    ("citeseer", "gat"): _GAT,
    ("pubmed", "gat"): f"{_GAT} train.weight_decay=1e-3 train.learning_rate=1e-2",
    ("amazon-photo", "nagphormer"): f"{_NAGPHORMER} prepare.tokens.num_hops=3 train.epochs=15",
    ("amazon-photo", "graphsage"): """
        model.hidden_dim=128 model.fanouts=-1,-1,-1 model.dropout=0.6 model.norm=layer train.learning_rate=2e-3
        train.weight_decay=5e-5 train.epochs=300""",
    ("amazon-photo", "gat"): """
        model.hidden_dim=128 model.num_heads=4 model.fanouts=-1,-1 model.dropout=0.5 model.norm=layer
        train.learning_rate=2e-3 train.weight_decay=5e-5 train.epochs=200""",
    ("coauthor-physics", "nagphormer"): f"""
        {_NAGPHORMER} prepare.tokens.num_hops=3 prepare.tokens.normalize=none model.encoder_dropout=0.5
        train.epochs=40 train.patience=12""",
    ("coauthor-physics", "graphsage"): """
        model.hidden_dim=64 model.fanouts=-1,-1 model.dropout=0.5 model.norm=layer train.learning_rate=1e-3
        train.weight_decay=5e-4 train.epochs=500 train.patience=120""",
    ("minesweeper", "graphsage"): """
        model.hidden_dim=64 model.fanouts=-1,-1,-1,-1,-1,-1,-1,-1 model.dropout=0.3 model.norm=batch
        train.learning_rate=1e-2 train.weight_decay=0 train.epochs=200 train.patience=60""",
    ("minesweeper", "linkx"): _LINKX,
    ("tolokers", "linkx"): _LINKX,
    ("tolokers", "graphsage"): """
        model.hidden_dim=64 model.fanouts=-1,-1,-1 model.dropout=0.2 model.norm=batch train.learning_rate=1e-2
        train.weight_decay=0 train.epochs=120 prepare.tokens.normalize=per_feature""",
    ("tolokers", "gat"): """
        model.hidden_dim=128 model.num_heads=8 model.fanouts=-1,-1,-1,-1,-1 model.dropout=0.2 model.norm=batch
        train.learning_rate=3e-3 train.weight_decay=0 train.epochs=200 train.patience=60
        prepare.tokens.normalize=per_feature""",
    ("minesweeper", "gat"): """
        model.hidden_dim=64 model.num_heads=2 model.fanouts=-1,-1,-1,-1,-1,-1 model.dropout=0.2 model.norm=batch
        train.learning_rate=1e-2 train.weight_decay=0 train.epochs=300 train.patience=80""",
    ("minesweeper", "nagphormer"): """
        model.hidden_dim=64 model.num_heads=4 prepare.tokens.num_hops=7 model.encoder_dropout=0.1 train.batch_size=1000
        train.learning_rate=2e-3 train.weight_decay=0 train.epochs=60""",
    ("tolokers", "nagphormer"): """
        model.hidden_dim=64 model.num_heads=4 prepare.tokens.num_hops=3 model.encoder_dropout=0.1 train.batch_size=1000
        train.learning_rate=1e-3 train.weight_decay=0 train.epochs=40 prepare.tokens.normalize=per_feature""",
}
"""Chosen on validation nodes, beginning at the published settings; docs/baselines.md says how, and what was not."""

ROWS_SUM_TO_ONE = ("cora", "citeseer", "pubmed", "amazon-photo", "coauthor-physics")
"""Bags of words, which all the papers normalize by row."""


def features_of(folder: Path, name: str, svd: int) -> Any:
    """[N, d] features as a model reads them, sparse or dense; d singular directions if svd is one."""
    if (folder / "x.npy").is_file():
        return np.load(folder / "x.npy").astype(np.float32)
    x: Any = scipy.sparse.load_npz(folder / "x.npz")
    x = x.tocsr().astype(np.float32)
    if name in ROWS_SUM_TO_ONE:
        total = np.asarray(x.sum(axis=1)).ravel()
        x = scipy.sparse.diags_array(1 / np.maximum(total, 1e-12)).astype(np.float32) @ x
    if svd:
        u, s, _ = scipy.sparse.linalg.svds(x, svd, random_state=0)
        x = (u * s / s.max() * len(u) ** 0.5).astype(np.float32)
    return x


def splits_of(folder: Path, y: np.ndarray, protocol: str) -> tuple[str, Iterator[Split]]:
    """The protocol's name, and a split for each run."""
    given = dict(np.load(folder / "splits.npz")) if (folder / "splits.npz").is_file() else {}
    if protocol == "auto":
        names = [key.removesuffix("_train") for key in given if key.endswith("_train")]
        masks = [key.removesuffix("train_masks") for key in given if key.endswith("train_masks")]
        protocol = names[0] if names else masks[0] + "masks" if masks else "random"
    return protocol, _draw(given, y, protocol)


def _draw(given: Split, y: np.ndarray, protocol: str) -> Iterator[Split]:
    parts = {"train": "train", "valid": "val", "test": "test"}
    if f"{protocol}_train" in given:
        while True:
            yield {part: given[f"{protocol}_{key}"] for part, key in parts.items()}
    elif protocol.endswith("masks"):
        masks = {part: given[protocol.removesuffix("masks") + f"{key}_masks"] for part, key in parts.items()}
        for number in range(len(masks["train"])):
            yield {part: np.flatnonzero(rows[number]) for part, rows in masks.items()}
    elif protocol in ("random", "per-class"):
        labelled = np.flatnonzero(y >= 0)
        for number in range(1 << 30):
            order = np.random.default_rng(number).permutation(labelled)
            if protocol == "random":
                ends = [round(0.6 * len(order)), round(0.8 * len(order))]
                yield dict(zip(parts, np.split(order, ends), strict=True))
            else:  # 20 of each class, then 500 and 1000 of the others
                train = np.concatenate([order[y[order] == c][:20] for c in np.unique(y[labelled])])
                rest = order[~np.isin(order, train)]
                yield {"train": train, "valid": rest[:500], "test": rest[500:1500]}
    else:
        raise SystemExit(f"no split {protocol!r}: splits.npz has {sorted(given) or 'nothing'}, or random, per-class")


def make_store(folder: Path, out: Path, split: Split, svd: int, cache: dict[str, Any]) -> GraphStore:
    if (out / "manifest.json").is_file():
        return lg.GraphStore.open(out)
    if not cache:
        cache |= {"edges": np.load(folder / "edge_index.npy"), "x": features_of(folder, folder.name, svd)}
    y = np.load(folder / "y.npy")
    source = lg.sources.arrays(cache["edges"], cache["x"], y, split)
    return lg.ingest(source, out, lg.IngestConfig(undirected=True, name=folder.name), overwrite=True, threads=1)


def run_all(args: argparse.Namespace) -> None:
    folder: Path = args.data
    name = folder.name
    protocol, splits = splits_of(folder, np.load(folder / "y.npy"), args.split)
    chosen = [split for _, split in zip(range(args.runs), splits, strict=False)]
    svd = args.svd
    kind = f"{name}-svd{svd}" if svd else name
    cache: dict[str, Any] = {}
    for model in args.models:
        chosen_here = [*SETTINGS.get((name, model), "").split(), *args.set]
        settings = [*EVERYWHERE.split(), *chosen_here]
        label = label_of(settings)
        found = []
        for number, split in enumerate(chosen):
            which = protocol if protocol in ("public", "ours") else f"{protocol}{number}"
            store = make_store(folder, args.out / "stores" / f"{kind}-{which}", split, svd, cache)
            out = args.out / "runs" / f"{kind}-{protocol}-{model}-{label}" / str(number)
            if not (out / "metrics.json").is_file():
                config = lg.Config.from_recipe("base", [f"model.name={model}", *settings, f"train.seed={number}"])
                lg.train(store, config, out, resume=out.exists())
            found.append(json.loads((out / "metrics.json").read_text()))
        report(args, kind, protocol, model, label, found, " ".join(chosen_here))


def label_of(settings: list[str]) -> str:
    """A name for what these settings come to, in whatever order they are given."""
    last = dict(setting.split("=", 1) for setting in settings)
    return hashlib.sha256(json.dumps(sorted(last.items())).encode()).hexdigest()[:8]


def metric_of(scores: dict[str, float]) -> str:
    """Which of a run's scores the tables have."""
    return next(metric for metric in ("roc_auc", "accuracy", "rmse") if metric in scores)


def report(
    args: argparse.Namespace, name: str, protocol: str, model: str, label: str, found: list[dict[str, Any]], said: str
) -> None:
    """One line on the screen, and one in the table unless it is there."""
    metric = metric_of(found[0]["test"])
    valid, test = ([100 * each[part][metric] for each in found] for part in ("valid", "test"))
    row = {
        "dataset": name, "split": protocol, "model": model, "metric": metric, "runs": len(found),
        "valid": f"{np.mean(valid):.2f}", "valid_std": f"{np.std(valid):.2f}",
        "test": f"{np.mean(test):.2f}", "test_std": f"{np.std(test):.2f}",
        "epoch": f"{np.median([each['best_epoch'] for each in found]):.0f}",
        "seconds": f"{np.mean([each['train_time_s'] for each in found]):.1f}", "label": label, "settings": said,
    }  # fmt: skip
    shown = f"{name} {protocol} {model}: valid {row['valid']}±{row['valid_std']}"
    shown += "" if args.valid_only else f", test {row['test']}±{row['test_std']}"
    print(f"{shown} ({len(found)} runs, best epoch {row['epoch']}, {row['seconds']} s a run) {said}", flush=True)
    if args.valid_only:
        return
    file = args.out / "baselines.csv"
    before = list(csv.DictReader(file.open())) if file.is_file() else []
    if any(all(old[key] == str(row[key]) for key in ("split", "label", "runs", "test", "dataset")) for old in before):
        return
    with file.open("a", newline="") as handle:
        writer = csv.DictWriter(handle, row)
        if not before:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--split", default="auto", help="a name in splits.npz, NAME_masks, random, or per-class")
    parser.add_argument("--out", type=Path, default=Path("baselines-bench"))
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="on top of the settings of the table")
    parser.add_argument("--svd", type=int, default=0, help="replace sparse features by so many singular directions")
    parser.add_argument("--valid-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run_all(args)


if __name__ == "__main__":
    main()
