"""Verbs for a finished run: predict, embed, explain, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .app import app
from .options import AsJson, Device, Devices, Draws, Memory, Replace, TrustRemote
from .show import plain, print_json, print_table, say, say_reused, short, shown_progress


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Option(help="Where to: .parquet, .csv or .npz.")] = Path("predictions.parquet"),
    node: Annotated[list[str] | None, typer.Option(help="Predict this node (your own id). Repeat as needed.")] = None,
    split: Annotated[str | None, typer.Option(help="Predict the nodes of this split.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column of probabilities for every class.")
    ] = False,
    new_nodes: Annotated[
        str | None, typer.Option(help="Predict these instead: a table of nodes that the store does not have.")
    ] = None,
    new_edges: Annotated[
        list[str] | None, typer.Option(help="With --new-nodes: edges of these, among them and to old nodes.")
    ] = None,
    new_features: Annotated[
        str | None, typer.Option(help="With --new-nodes or without it: features apart, as ingest takes them.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Column of the new edges that an edge leaves.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the new edges that an edge enters.")] = None,
    id: Annotated[str | None, typer.Option(help="Column of the new nodes with the ids.")] = None,
    feature_columns: Annotated[
        str | None, typer.Option(help="Feature columns of the new nodes; the store's own if not given.")
    ] = None,
    csv_safe: Annotated[
        bool, typer.Option("--csv-safe", help="In a .csv: put ' before text that a spreadsheet would run as a formula.")
    ] = False,
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    memory: Memory = None,
    overwrite: Replace = False,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Predict every node of the store, or some, with your own ids in the result.

    Example:  largegt predict runs/a --out predictions.parquet

    Nodes that are not in the store:  largegt predict runs/a --new-nodes n.parquet --new-edges e.parquet --out new.csv
    """
    from ..new_nodes import NewNodes
    from ..predict import PredictOptions, Predictor
    from ..prediction_files import check_prediction_file
    from ..ranks import check_devices, is_first_here
    from ..training.launch import launch

    check_prediction_file(out, overwrite)
    if csv_safe and out.suffix != ".csv":
        raise ConfigError(f"--csv-safe is for .csv files: leave it out, or write {out.with_suffix('.csv')}")
    is_new = bool(new_nodes or new_features)
    columns = {"source": source, "target": target, "id": id, "feature_columns": feature_columns}
    if is_new and (node or split or devices > 1):
        raise ConfigError("new nodes are all predicted, by one process: leave out --node, --split and --devices")
    if not is_new and (new_edges or any(columns.values())):
        raise ConfigError("--new-edges and column names go with --new-nodes: name the table of new nodes")
    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: f"{out} was not written; run the same command again"))
    with shown_progress(as_json or not is_first_here()) as progress:
        options = PredictOptions(
            out, node, split, probabilities, device, progress, draws, memory, overwrite, csv_safe
        )  # fmt: skip
        if is_new:
            written = NewNodes(run, options, new_nodes, new_edges or None, features=new_features, **columns).write()
        else:
            written = Predictor(run, options).write()
    if not is_first_here():
        return
    if as_json:
        reused = {name: {"kept": kept, "computed": made} for name, (kept, made) in written.reused.items()}
        facts = {"out": str(out), "rows": written.num_rows, "columns": written.columns}
        print_json(facts | ({"prepared": reused} if reused else {}))
        return
    say_reused(written.reused, as_json)
    shown = written.columns[:6]
    rows = [[short(row[name]) for name in shown] for row in written.first.to_pylist()]
    print_table(f"{written.num_rows:,} predictions in {out}", shown, rows)


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Option(help="Where to: .parquet, .npy or .npz.")] = Path("embeddings.parquet"),
    part: Annotated[str, typer.Option(help="joined (what the head reads), local or global.")] = "joined",
    node: Annotated[list[str] | None, typer.Option(help="Embed this node (your own id). Repeat as needed.")] = None,
    split: Annotated[str | None, typer.Option(help="Embed this split; with --nearest, look there.")] = None,
    nearest: Annotated[
        str | None, typer.Option(metavar="ID", help="Write nothing: show the nodes nearest to this one.")
    ] = None,
    top: Annotated[int, typer.Option(help="With --nearest: so many.", min=1)] = 10,
    draws: Draws = None,
    device: Device = None,
    devices: Devices = 1,
    memory: Memory = None,
    overwrite: Replace = False,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Write a vector per node: what LargeGT makes of it before it predicts. Or show which nodes lie nearest to one.

    Example:  largegt embed runs/a --out embeddings.parquet
    """
    from ..embed import Embedding, check_embedding_file, nearest_nodes
    from ..predict import PredictOptions
    from ..ranks import check_devices, is_first_here
    from ..training.launch import launch

    if nearest is not None:
        if node or devices > 1:
            raise ConfigError("--nearest looks for one node in one process: leave out --node and --devices")
        with shown_progress(as_json) as progress:
            found = nearest_nodes(run, nearest, top, split, part, device, progress, draws, memory).to_pylist()
        if as_json:
            print_json({"node": nearest, "part": part, "nearest": found})
            return
        rows = [(one["node"], plain(one["label"]), f"{one['similarity']:.4f}") for one in found]
        print_table(f"Nearest to {nearest} ({part})", ("node", "label", "similarity"), rows, left=("label",))
        return
    check_embedding_file(out, overwrite)
    if check_devices(devices):
        raise SystemExit(launch(devices, sys.argv[1:], lambda: f"{out} was not written; run the same command again"))
    with shown_progress(as_json or not is_first_here()) as progress:
        options = PredictOptions(out, node, split, True, device, progress, draws, memory, overwrite)
        written = Embedding(run, options, part).write()
    if not is_first_here():
        return
    width = written.first.schema.field("embedding").type.list_size
    if as_json:
        print_json({"out": str(out), "rows": written.num_rows, "width": width, "part": part})
    else:
        say(f"{written.num_rows:,} vectors of {width} numbers ({part}) in {out}")


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    node: Annotated[str, typer.Option(help="The node (your own id).")],
    out: Annotated[Path | None, typer.Option(help="Also write a .html page, a .svg picture or .json.")] = None,
    label: Annotated[str | None, typer.Option(help="The class or label to explain; else what is predicted.")] = None,
    top: Annotated[int, typer.Option(help="Rows of each table.", min=1)] = 15,
    draws: Draws = None,
    device: Device = None,
    memory: Memory = None,
    overwrite: Replace = False,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Show which sampled nodes, contexts, labels and centroids carried what a LargeGT says of a node.

    Example:  largegt explain runs/a --node ID --out why.html
    """
    from ..explain.files import check_explanation_file, write_explanation
    from ..explain.node import explain as run_explain

    if out is not None:
        check_explanation_file(out, overwrite)
    with shown_progress(as_json) as progress:
        found = run_explain(run, node, label, device, progress, draws, memory)
    if out is not None:
        write_explanation(found, out)
    if as_json:
        print_json(found.as_dict())
        return
    say(*found.text(top).rstrip("\n").split("\n"))
    if out is not None:
        say("", f"Written to {out}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its title.")] = "largegt report",
    analysis: Annotated[
        bool, typer.Option(help="Predict test nodes with the best run of every model, to show where it errs.")
    ] = True,
    max_nodes: Annotated[int, typer.Option(help="Test nodes to look at, at most.", min=1)] = 20_000,
    device: Device = None,
    trust_remote: TrustRemote = False,
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of runs: scores, learning curves, time and memory, where a model errs and why.

    Example:  largegt report runs/* --out report.html

    The page needs no network, reads well on a phone, in the dark and on paper, and shows numbers on a hover. What it
    finds out about a run is kept there in analysis.json.
    """
    from ..report.page import report as run_report

    with shown_progress(as_json) as progress:
        page = run_report(runs, out, title, look_into=analysis, max_nodes=max_nodes, device=device, progress=progress)
    if as_json:
        print_json({"page": str(page), "runs": len(runs)})
    else:
        say(f"{page} shows {len(runs)} run{'s' if len(runs) > 1 else ''}")
