"""Verbs for other graphs: generate, datasets, reproduce; and for information: doctor, config."""

from __future__ import annotations

from pathlib import Path

import typer

from largegt import __version__
from largegt.errors import ConfigError, nearest
from largegt.runtime.text import quoted

from . import show
from .app import app, goes_on
from .options import ingest_overrides, verb
from .show import Result

datasets_app = typer.Typer(help="The paper's datasets: list, download, ingest.", no_args_is_help=False)
app.add_typer(datasets_app, name="datasets")


@verb()
def generate(
    *, like: str, out: Path, scale: float = 1.0, seed: int = 0, memory: str | None = None, overwrite: bool = False,
    settings: list[str] | None = None,
) -> Result:  # fmt: skip
    """Make a graph with the size and the character of a known dataset, to try a machine or a setting on.

    Example:  largegt generate --like ogbn-products --scale 0.01 --out data/s

    Nodes, edges, degrees, homophily, feature width, classes and split sizes are the dataset's (counts times --scale),
    the contents are random. Communities carry the classes: features alone tell some of a node's class, its neighbours
    more, so scores mean something, though they are not the dataset's. Edges and features are made as they are
    written: memory grows by a few bytes per node. The same --like, --scale and --seed give the same graph.

    A store goes on as any other:  largegt train data/s --out runs/s

    --set takes the settings of ingest, e.g. --set feature_dtype=float16.

    Args:
        like: The dataset to imitate: ogbn-products, snap-patents or ogbn-papers100M.
        out: The store's folder.
        scale: How large, in units of the dataset: 0.01 is a hundredth of its nodes and edges.
        seed: Another seed is another graph of the same kind.
    """
    from largegt.datasets.synthetic import generate as make_store
    from largegt.datasets.synthetic import ingest_config

    config = ingest_config(like, **ingest_overrides(settings).model_dump(exclude_unset=True))
    with show.progress() as progress:
        make_store(like, out, scale, seed, config, overwrite=overwrite, progress=progress, memory=memory)
    return show.folder(out)


@verb(group=datasets_app, is_callback=True)
def datasets(context: typer.Context, *, root: Path = Path("datasets")) -> Result | None:
    """List the paper's datasets, and which of them are in --root.

    Download one:  largegt datasets download ogbn-products

    Make a store of it:  largegt datasets ingest ogbn-products --out data/ogbn-products

    Args:
        root: The folder that datasets lie in, as their authors ship them.
    """
    from largegt.datasets.registry import listing

    if context.invoked_subcommand is not None:
        return None
    found = listing(root)
    rows = [
        (row["name"], *(f"{row[count] / 1e6:,.1f}M" for count in ("nodes", "edges")),
         f"{row['features']} / {row['classes']}", row["download"], row["folder"] if row["complete"] else "not here")
        for row in found
    ]  # fmt: skip
    heads = ("name", "nodes", "edges", "features / classes", "download", "where")
    return Result(found, [show.TextTable("Datasets", heads, rows, left=("where",))])


@verb(group=datasets_app)
def download(name: str, *, root: Path = Path("datasets"), url: str | None = None, keep_archive: bool = False) -> Result:
    """Fetch a dataset, check it and unpack it. An interrupted download goes on where it stopped.

    Args:
        name: ogbn-products, snap-patents or ogbn-papers100M.
        root: The folder that datasets lie in, as their authors ship them.
        url: A mirror to fetch it from.
        keep_archive: Keep the archive once it is unpacked.
    """
    from largegt.datasets.download import download_dataset, noted_digest
    from largegt.datasets.registry import dataset

    with show.progress() as progress, goes_on():
        folder = download_dataset(name, root, progress, url=url, keep_archive=keep_archive)
    digest = dataset(name).checksum or noted_digest(dataset(name).target(root))
    lines = [f"Checksum of the download: {digest}"] if digest else []
    lines.append(f"{name} is in {folder}. Next: largegt datasets ingest {name} --root {quoted(root)} --out data/{name}")
    return Result({"folder": str(folder), "checksum": digest}, lines)


@verb("ingest", datasets_app)
def ingest_named(
    name: str, *, out: Path, root: Path = Path("datasets"), memory: str | None = None, overwrite: bool = False,
    settings: list[str] | None = None,
) -> Result:  # fmt: skip
    """Make a store of a dataset that lies in --root, with the split its authors give.

    Args:
        name: ogbn-products, snap-patents or ogbn-papers100M.
        out: The store: a folder or a URL.
        root: The folder that datasets lie in, as their authors ship them.
    """
    from largegt.datasets.registry import ingest_config, ingest_dataset

    config = ingest_config(name, **ingest_overrides(settings).model_dump(exclude_unset=True))
    with show.progress() as progress, goes_on():
        ingest_dataset(name, root, out, config, overwrite=overwrite, progress=progress, memory=memory)
    return show.folder(out)


@verb()
def reproduce(
    what: str = "all", *, dataset: str = "ogbn-products", out: Path = Path("reproduce"), num_runs: int = 4,
    max_time: str | None = None, models: str | None = None, like: str | None = None, settings: list[str] | None = None,
) -> Result:  # fmt: skip
    """Make the paper's tables and figures, on its datasets or on a graph of your own.

    Example:  largegt reproduce table-main --dataset ogbn-products --max-time 4h

    Example:  largegt reproduce all --dataset data/g --runs 2 --models graphsage,largegt-full --set train.epochs=10

    Each is written as CSV, Markdown and LaTeX, figures also as SVG (with matplotlib, pip install 'largegt\\[plots]', as
    PDF and PNG too), and report.html shows all of them.
    What is finished is not trained again: the same command goes on where it stopped.

    Args:
        what: table-datasets, table-main, table-extended, fig-epoch-time, fig-k, fig-curves, or all.
        dataset: A dataset of the paper (its store is looked for in data/NAME), or a store's folder.
        out: Where tables, figures, runs and the page go.
        num_runs: Runs of each model, with seeds 0, 1, …; the paper has 4.
        max_time: Wall-clock limit of each run: 90s, 30m, 4h.
        models: Models to compare, with commas; the paper's when not given.
        like: Use the paper's settings for this dataset of its, on a store of your own.
    """
    from largegt.experiments.reproduce import reproduce as run_reproduce

    chosen = [name.strip() for name in models.split(",") if name.strip()] if models else None
    with show.progress() as progress, goes_on():
        files = run_reproduce(what, dataset, out, num_runs, max_time, chosen, settings or [], like, progress)

    tables = [line for file in files if file.suffix == ".md" for line in file.read_text(encoding="utf-8").split("\n")]
    line = f"{len(files)} files in {out}: {', '.join(file.name for file in files)}"
    return Result({"files": [str(file) for file in files]}, [*tables, line])


@verb()
def doctor(*, quick: bool = False) -> Result:
    """Say whether this machine can do the work, and what to do about what is in the way.

    Looks at versions, cores, memory, disk, GPUs, optional packages and what numba keeps. Tries bfloat16 on the CPU and
    torch.compile; on a GPU also Triton, CUDA graphs and pinned memory. Then ingests, prepares, trains and predicts on
    a tiny graph. Takes some 8 s, the first time 40 s, or 80 s with a GPU. The exit code is 1 where nothing would work.

    Args:
        quick: Leave out the self-check; try nothing of the hardware.
    """
    from .doctor import diagnose

    with show.progress() as progress:
        found = diagnose(quick, progress)

    blocks = [
        show.TextTable(f"largegt {__version__} on this machine", ("", ""), found.rows(), left=("",)),
        *(f"{'stops' if problem.stops else 'note'}: {problem}" for problem in found.problems),
        "This machine can do the work." if found.works else "Nothing will work before that is mended.",
    ]
    return Result(found.as_dict(), blocks, exit_code=0 if found.works else 1)


@verb()
def config(
    section: str | None = None, *, model: str | None = None, models: bool = False,
    recipes: bool = False,
) -> Result:  # fmt: skip
    """List every setting with its default and what it means.

    --recipes lists what --recipe of train and prepare takes. A recipe of your own is a .toml file; with a line such as
    extends = "gat" at its top it says only what differs.

    Args:
        section: Only names that begin so: train, model, prepare, ingest.
        model: Only the settings that this model reads.
        models: List the models.
        recipes: List the recipes that come with the package.
    """
    from largegt.config.models import model_specs
    from largegt.config.overrides import describe_settings, text_of
    from largegt.config.recipes import recipe_about, recipes_by_dataset
    from largegt.config.schema import IngestConfig, describe_config

    if models:
        found = {spec.name: spec.about for spec in model_specs()}
        return Result(
            found, [show.TextTable("Models", ("name", "what it is"), list(found.items()), left=("what it is",))]
        )
    if recipes:
        heads = ("name", "what it is")
        tables = [
            show.TextTable(f"Recipes for {dataset}", heads, list(about.items()), left=heads)
            for dataset, about in recipes_by_dataset().items()
        ]
        return Result(recipe_about(), tables)
    every = [*describe_settings(IngestConfig, "ingest."), *describe_config(model)]
    chosen = [one for one in every if one.name.startswith(section or "")]
    if not chosen:
        raise ConfigError(f"no setting begins with {section!r}{nearest(section or '', [one.name for one in every])}")
    rows = [(one.name, text_of(one.default), one.help) for one in chosen]
    value = {one.name: {"default": one.default, "help": one.help} for one in chosen}
    return Result(value, [show.TextTable("Settings", ("name", "default", "meaning"), rows, left=("meaning",))])
