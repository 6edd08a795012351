"""Verbs for comparisons: reproduce, datasets; doctor, which looks at the machine; settings, which lists them all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import ConfigError, nearest
from ..text import quoted
from . import completion
from .app import app, goes_on
from .data import show_folder
from .options import AsJson, Memory, Settings, without_prefix
from .show import plain, print_json, print_table, say, shown_progress


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(help="table-datasets, table-main, table-extended, fig-epoch-time, fig-k, fig-curves, or all."),
    ] = "all",
    dataset: Annotated[
        str,
        typer.Option(
            help="A dataset of the paper (its store is looked for in data/NAME), or a store's folder.",
            autocompletion=completion.datasets,
        ),
    ] = "ogbn-products",
    out: Annotated[Path, typer.Option(help="Where tables, figures, runs and the page go.")] = Path("reproduce"),
    runs: Annotated[int, typer.Option(help="Runs of each model, with seeds 0, 1, …; the paper has 4.", min=1)] = 4,
    budget: Annotated[str | None, typer.Option(help="Wall-clock limit of each run: 90s, 30m, 4h.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Models to compare, with commas; the paper's when not given.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="Use the paper's settings for this dataset of its, on a store of your own.",
            autocompletion=completion.datasets,
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make the paper's tables and figures, on its datasets or on a graph of your own.

    Example:  largegt reproduce table-main --dataset ogbn-products --budget 4h

    Example:  largegt reproduce all --dataset data/g --runs 2 --models graphsage,largegt-full --set train.epochs=10

    Each is written as CSV, Markdown and LaTeX, figures also as SVG, PDF and PNG, and report.html shows all of them.
    What is finished is not trained again: the same command goes on where it stopped.
    """
    from ..experiments.reproduce import reproduce as run_reproduce

    chosen = [name.strip() for name in models.split(",") if name.strip()] if models else None
    with shown_progress(as_json) as progress, goes_on():
        files = run_reproduce(what, dataset, out, runs, budget, chosen, settings or [], like, progress)
    if as_json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        if file.suffix == ".md":
            say(*file.read_text(encoding="utf-8").split("\n"))
    say(f"{len(files)} files in {out}: {', '.join(file.name for file in files)}")


datasets_app = typer.Typer(help="The paper's datasets: list, download, ingest.", no_args_is_help=False)
app.add_typer(datasets_app, name="datasets")
DatasetName = Annotated[
    str,
    typer.Argument(help="ogbn-products, snap-patents or ogbn-papers100M.", autocompletion=completion.datasets),
]
Root = Annotated[Path, typer.Option(help="The folder that datasets lie in, as their authors ship them.")]


@datasets_app.callback(invoke_without_command=True)
def datasets(context: typer.Context, root: Root = Path("datasets"), as_json: AsJson = False) -> None:
    """List the paper's datasets, and which of them are in --root.

    Download one:  largegt datasets download ogbn-products

    Make a store of it:  largegt datasets ingest ogbn-products --out data/ogbn-products
    """
    from ..datasets.registry import listing

    if context.invoked_subcommand is not None:
        return
    rows = listing(root)
    if as_json:
        print_json(rows)
        return
    shown = [
        (row["name"], _millions(row["nodes"]), _millions(row["edges"]), f"{row['features']} / {row['classes']}",
         row["download"], row["folder"] if row["complete"] else "not here")
        for row in rows
    ]  # fmt: skip
    columns = ("name", "nodes", "edges", "features / classes", "download", "where")
    print_table("Datasets", columns, shown, left=("where",))


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f}M"


@datasets_app.command()
def download(
    name: DatasetName,
    root: Root = Path("datasets"),
    url: Annotated[str | None, typer.Option(help="A mirror to fetch it from.")] = None,
    keep_archive: Annotated[bool, typer.Option("--keep-archive", help="Keep the archive once it is unpacked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, check it and unpack it. An interrupted download goes on where it stopped."""
    from ..datasets.download import download_dataset, noted_digest
    from ..datasets.registry import dataset

    with shown_progress(as_json) as progress, goes_on():
        folder = download_dataset(name, root, progress, url=url, keep_archive=keep_archive)
    digest = dataset(name).checksum or noted_digest(dataset(name).target(root))
    if as_json:
        print_json({"folder": str(folder), "checksum": digest})
    else:
        if digest:
            say(f"Checksum of the download: {digest}")
        say(f"{name} is in {folder}. Next: largegt datasets ingest {name} --root {quoted(root)} --out data/{name}")


@datasets_app.command(name="ingest")
def ingest_named(
    name: DatasetName,
    out: Annotated[Path, typer.Option(help="The store: a folder or a URL.")],
    root: Root = Path("datasets"),
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make a store of a dataset that lies in --root, with the split its authors give."""
    from ..config import IngestConfig
    from ..datasets.registry import ingest_config, ingest_dataset
    from ..settings import parse_overrides

    changed = parse_overrides(IngestConfig, [without_prefix(item, "ingest.") for item in settings or []])
    config = ingest_config(name, **changed.model_dump(exclude_unset=True))
    with shown_progress(as_json) as progress, goes_on():
        ingest_dataset(name, root, out, config, overwrite=overwrite, progress=progress, memory=memory)
    show_folder(out, as_json, verify=False)


@app.command()
def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the self-check; try nothing of the hardware.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether this machine can do the work, and what to do about what is in the way.

    Looks at versions, cores, memory, disk, GPUs, optional packages and what numba keeps. Tries bfloat16 on the CPU and
    torch.compile; on a GPU also Triton, CUDA graphs and pinned memory. Then ingests, prepares, trains and predicts on
    a tiny graph. Takes some 8 s, the first time 40 s, or 80 s with a GPU. The exit code is 1 where nothing would work.
    """
    from ..doctor import diagnose

    with shown_progress(as_json) as progress:
        found = diagnose(quick, progress)
    if as_json:
        print_json(found.as_dict())
    else:
        print_table(f"largegt {__version__} on this machine", ("", ""), found.rows(), left=("",))
        for problem in found.problems:
            say(f"{'stops' if problem.stops else 'note'}: {problem}")
        say("This machine can do the work." if found.works else "Nothing will work before that is mended.")
    raise typer.Exit(0 if found.works else 1)


@app.command()
def settings(
    section: Annotated[
        str | None, typer.Argument(help="Only names that begin so: train, model, prepare, ingest.")
    ] = None,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the recipes that come with the package.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every setting with its default and what it means.

    --recipes lists what --recipe of train and prepare takes. A recipe of your own is a .toml file; with a line such as
    extends = "gat" at its top it says only what differs.
    """
    from ..config import Config, IngestConfig
    from ..recipe import recipe_about, recipes_by_dataset
    from ..settings import describe_settings

    if recipes and as_json:
        print_json(recipe_about())
        return
    if recipes:
        for dataset, about in recipes_by_dataset().items():
            print_table(f"Recipes for {dataset}", ("name", "what it is"), list(about.items()), left=("what it is",))
        return
    every = [*describe_settings(IngestConfig, "ingest."), *describe_settings(Config)]
    chosen = [item for item in every if item[0].startswith(section or "")]
    if not chosen:
        raise ConfigError(f"no setting begins with {section!r}{nearest(section or '', [name for name, _, _ in every])}")
    if as_json:
        print_json({name: {"default": default, "help": text} for name, default, text in chosen})
    else:
        print_table(
            "Settings",
            ("name", "default", "meaning"),
            [(n, plain(d), text) for n, d, text in chosen],
            left=("meaning",),
        )
