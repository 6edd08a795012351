"""Verbs for a finished run: predict, embed, explain, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from largegt.errors import AGAIN, ConfigError

from . import show
from .options import ColumnNames, launch_ranks, verb
from .show import Result


@verb()
def predict(
    run: Path, *, columns: ColumnNames, out: Path = Path("predictions.parquet"), node: list[str] | None = None,
    split: str | None = None, probabilities: bool = False, new_nodes: str | None = None,
    new_edges: list[str] | None = None, new_features: str | None = None, csv_safe: bool = False,
    num_eval_samples: int | None = None, device: str | None = None, devices: int = 1, memory: str | None = None,
    overwrite: bool = False, trust_remote: bool = False,
) -> Result | None:  # fmt: skip
    """Predict every node of the store, or some, with your own ids in the result.

    Example:  largegt predict runs/a --out predictions.parquet

    Nodes that are not in the store:  largegt predict runs/a --new-nodes n.parquet --new-edges e.parquet --out new.csv

    Args:
        run: The run's folder.
        out: Where to: .parquet, .csv or .npz.
        node: Predict this node (your own id). Repeat as needed.
        split: Predict the nodes of this split.
        probabilities: Add a column of probabilities for every class.
        new_nodes: Predict these instead: a table of nodes that the store does not have.
        new_edges: With --new-nodes: edges of these, among them and to old nodes.
        new_features: With --new-nodes or without it: features apart, as ingest takes them.
        csv_safe: In a .csv: put ' before text that a spreadsheet would run as a formula.
    """
    from largegt.inference.new_nodes import NewNodes
    from largegt.inference.predictor import PredictOptions, Predictor
    from largegt.inference.writers import check_prediction_file

    check_prediction_file(out, overwrite)
    if csv_safe and out.suffix != ".csv":
        raise ConfigError(f"--csv-safe is for .csv files: leave it out, or write {out.with_suffix('.csv')}")
    is_new = bool(new_nodes or new_features)
    if is_new and (node or split or devices > 1):
        raise ConfigError("new nodes are all predicted, by one process: leave out --node, --split and --devices")
    if not is_new and (new_edges or any(vars(columns).values())):
        raise ConfigError("--new-edges and column names go with --new-nodes: name the table of new nodes")
    options = PredictOptions(
        out=out, ids=node, split=split, all_probabilities=probabilities, device=device,
        num_eval_samples=num_eval_samples, memory=memory, overwrite=overwrite, csv_safe=csv_safe,
    )  # fmt: skip
    given = {"nodes": new_nodes, "edges": new_edges or None, "features": new_features, **vars(columns)}
    written = _written(options, devices, lambda o: NewNodes(run, o, **given) if is_new else Predictor(run, o))
    if written is None:
        return None
    reused = {name: {"kept": kept, "computed": made} for name, (kept, made) in written.reused.items()}
    facts = {"out": str(out), "rows": written.num_rows, "columns": written.columns}
    show.note_reused(written.reused)
    shown = written.columns[:6]
    rows = [[_short(row[name]) for name in shown] for row in written.first.to_pylist()]
    title = f"{written.num_rows:,} predictions in {out}"
    return Result(facts | ({"prepared": reused} if reused else {}), [show.TextTable(title, shown, rows)])


def _written(options: Any, devices: int, make: Callable[[Any], Any]) -> Any:
    """The result of the predictor from `make`; None on all ranks but the first."""
    is_silent = launch_ranks(devices, lambda: f"{options.out} was not written; {AGAIN}")
    with show.progress(is_silent) as progress:
        written = make(replace(options, progress=progress)).write()
    return None if is_silent else written


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@verb()
def embed(
    run: Path, *, out: Path = Path("embeddings.parquet"), layer: str = "output", node: list[str] | None = None,
    split: str | None = None, nearest: str | None = None, top_k: int = 10, num_eval_samples: int | None = None,
    device: str | None = None, devices: int = 1, memory: str | None = None, overwrite: bool = False,
    trust_remote: bool = False,
) -> Result | None:  # fmt: skip
    """Write a vector per node: what LargeGT makes of it before it predicts. Or show which nodes lie nearest to one.

    Example:  largegt embed runs/a --out embeddings.parquet

    Args:
        run: The run's folder.
        out: Where to: .parquet, .npy or .npz.
        layer: output (what the head reads), local or global.
        node: Embed this node (your own id). Repeat as needed.
        split: Embed this split; with --nearest, look there.
        nearest: Write nothing: show the nodes nearest to this one.
        top_k: With --nearest: so many.
    """
    from largegt.inference.embed import SUFFIXES, Embedding, nearest_nodes
    from largegt.inference.predictor import PredictOptions
    from largegt.inference.writers import check_prediction_file

    how: dict[str, Any] = {"split": split, "device": device, "num_eval_samples": num_eval_samples, "memory": memory}
    if nearest is not None:
        if node or devices > 1:
            raise ConfigError("--nearest looks for one node in one process: leave out --node and --devices")
        with show.progress() as progress:
            found = nearest_nodes(run, nearest, top_k, layer=layer, progress=progress, **how).to_pylist()
        rows = [(one["node"], show.plain(one["label"]), f"{one['similarity']:.4f}") for one in found]
        title, heads = f"Nearest to {nearest} ({layer})", ("node", "label", "similarity")
        facts = {"node": nearest, "layer": layer, "nearest": found}
        return Result(facts, [show.TextTable(title, heads, rows, left=("label",))])
    check_prediction_file(out, overwrite, "embeddings", SUFFIXES)
    options = PredictOptions(out=out, ids=node, overwrite=overwrite, **how)
    written = _written(options, devices, lambda o: Embedding(run, o, layer))
    if written is None:
        return None
    width = written.first.schema.field("embedding").type.list_size
    facts = {"out": str(out), "rows": written.num_rows, "width": width, "layer": layer}
    return Result(facts, [f"{written.num_rows:,} vectors of {width} numbers ({layer}) in {out}"])


@verb()
def explain(
    run: Path, *, node: str, out: Path | None = None, label: str | None = None, top_k: int = 15,
    num_eval_samples: int | None = None, device: str | None = None, memory: str | None = None, overwrite: bool = False,
    trust_remote: bool = False,
) -> Result:  # fmt: skip
    """Show which sampled nodes, contexts, labels and centroids carried what a LargeGT says of a node.

    Example:  largegt explain runs/a --node ID --out why.html

    Args:
        run: The run's folder.
        node: The node (your own id).
        out: Also write a .html page, a .svg picture or .json.
        label: The class or label to explain; else what is predicted.
        top_k: Rows of each table.
    """
    from largegt.explanation.explanation import SUFFIXES
    from largegt.explanation.node import explain as run_explain
    from largegt.inference.writers import check_prediction_file

    if out is not None:
        check_prediction_file(out, overwrite, "explanations", SUFFIXES)
    with show.progress() as progress:
        found = run_explain(run, node, label, device, progress, num_eval_samples, memory)
    lines = found.text(top_k).rstrip("\n").split("\n")
    if out is not None:
        found.write(out)
        lines += ["", f"Written to {out}"]
    return Result(found.as_dict(), lines)


@verb()
def report(
    runs: list[Path], *, out: Path = Path("report.html"), title: str = "largegt report", analysis: bool = True,
    max_nodes: int = 20_000, device: str | None = None, trust_remote: bool = False,
) -> Result:  # fmt: skip
    """Make one HTML page of runs: scores, learning curves, time and memory, where a model errs and why.

    Example:  largegt report runs/* --out report.html

    The page needs no network, reads well on a phone, in the dark and on paper, and shows numbers on a hover. What it
    finds out about a run is kept there in analysis.json.

    Args:
        runs: Run folders.
        out: The page.
        title: Its title.
        analysis: Predict test nodes with the best run of every model, to show where it errs.
        max_nodes: Test nodes to look at, at most.
    """
    from largegt.reporting.page import report as run_report

    with show.progress() as progress:
        page = run_report(runs, out, title, look_into=analysis, max_nodes=max_nodes, device=device, progress=progress)
    return Result(
        {"page": str(page), "runs": len(runs)}, [f"{page} shows {len(runs)} run{'s' if len(runs) > 1 else ''}"]
    )
