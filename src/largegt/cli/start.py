"""Verbs to begin with, without a graph of one's own: demo, synthesize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import completion
from .app import app
from .data import show_folder
from .options import AsJson, Memory, Settings, without_prefix
from .show import print_json, print_table, say, say_first_run, shown_progress


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the store, the runs and the page.")] = Path("largegt-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of each model, for a shorter look; the recipes' own if not given.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train LargeGT on the graph that ships with the package: about three minutes on two cores.

    A look of half a minute, with lower scores:  largegt demo --epochs 1
    """
    from ..demo import demo as run_demo

    say_first_run(as_json)
    with shown_progress(as_json) as progress:
        result = run_demo(out, seed, progress, epochs)
    if as_json:
        print_json({"scores": result.scores, "metrics": result.metrics, "page": str(result.page)})
        return
    rows = [(name, f"{s['valid']:.4f}", f"{s['test']:.4f}") for name, s in result.scores.items()]
    print_table("Accuracy on wordnet31-lite", ("", "valid", "test"), rows)
    m = result.metrics
    say("", f"LargeGT trained {m['epochs']} epochs in {m['train_time_s']:.0f} s; kept epoch {m['best_epoch']}.")
    say(f"Look at the learning curves: {result.page}")
    say(f"Predictions of the test nodes: {result.folder / 'predictions.parquet'}")
    say("Your own graph next: largegt ingest --help")


@app.command()
def synthesize(
    like: Annotated[
        str,
        typer.Option(
            help="The dataset to imitate: ogbn-products, snap-patents or ogbn-papers100M.",
            autocompletion=completion.datasets,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The store's folder.")],
    scale: Annotated[
        float, typer.Option(help="How large, in units of the dataset: 0.01 is a hundredth of its nodes and edges.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed is another graph of the same kind.")] = 0,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make a graph with the size and the character of a known dataset, to try a machine or a setting on.

    Example:  largegt synthesize --like ogbn-products --scale 0.01 --out data/s

    Nodes, edges, degrees, homophily, feature width, classes and split sizes are the dataset's (counts times --scale),
    the contents are random. Communities carry the classes: features alone tell some of a node's class, its neighbours
    more, so scores mean something, though they are not the dataset's. Edges and features are made as they are
    written: memory grows by a few bytes per node. The same --like, --scale and --seed give the same graph.

    A store goes on as any other:  largegt train data/s --out runs/s

    --set takes the settings of ingest, e.g. --set feature_dtype=float16.
    """
    from ..config import IngestConfig
    from ..datasets.synthetic import ingest_config
    from ..datasets.synthetic import synthesize as make_store
    from ..settings import parse_overrides

    changed = parse_overrides(IngestConfig, [without_prefix(item, "ingest.") for item in settings or []])
    config = ingest_config(like, **changed.model_dump(exclude_unset=True))
    with shown_progress(as_json) as progress:
        make_store(like, out, scale, seed, config, overwrite=overwrite, progress=progress, memory=memory)
    show_folder(out, as_json, verify=False)
