"""Recipes: each says what the paper's tables say, and each runs from edges to predictions on a tiny graph."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from largegt.config.models import BlockConfig, CodebookModelConfig, model_names
from largegt.config.recipes import read_recipe, recipe_names
from largegt.config.schema import Config
from largegt.inference.predictor import predict
from largegt.training.evaluate import evaluate
from largegt.training.trainer import train
from run_helpers import easy_store, one_thread  # noqa: F401

pytestmark = pytest.mark.slow

BASELINES = [name for name in model_names() if not name.startswith("largegt")]
IN_THE_PAPER = ["graphsage", "gat", "gt-sparse", "nagphormer", "goat-local", "goat-global", "goat-full"]


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def own_tree(name: str) -> dict[str, Any]:
    files = (resources.files("largegt") / "config" / "recipes").iterdir()
    return next(tree[name] for file in files if name in (tree := tomllib.loads(file.read_text(encoding="utf-8"))))


# the paper's tables


TABLES = {
    "ogbn-products": """
                        graphsage  gat       gt-sparse  nagphormer  goat           largegt
    batch size          1024       512       1024       200         512            1024
    hidden dim          256        128       128        512         256            256
    heads               --         4         4          4           2              2
    pos enc             --         --        --         --          node2vec (64)  node2vec (64)
    centroids           --         --        --         --          4096           4096
    NS                  [20, 10]   [20, 10]  [20, 10]   --          [20, 10]       --
    dropout             0.5        0.5       0.3        0.3         0.5            0.5
    learning rate       3e-3       1e-3      1e-3       --          1e-3           1e-3
    weight decay        0.0        0.0       0.0        1e-5        0.0            0.0
    warmup steps        --         --        --         1000        --             --
    peak learning rate  --         --        --         1e-3        --             --
    end learning rate   --         --        --         1e-4        --             --
    learning patience   --         --        --         30          --             --
    hops                --         --        --         2           --             --
    """,
    "snap-patents": """
                        graphsage  gat       gt-sparse  nagphormer  goat           largegt
    batch size          1024       512       1024       200         2048           2048
    hidden dim          256        128       128        512         128            128
    heads               --         4         4          4           2              2
    pos enc             --         --        --         --          node2vec (64)  node2vec (64)
    centroids           --         --        --         --          4096           4096
    NS                  [20, 10]   [20, 10]  [20, 10]   --          [20, 10]       --
    dropout             0.5        0.5       0.3        0.2         0.5            0.5
    learning rate       3e-3       1e-3      1e-3       --          1e-3           1e-3
    weight decay        0.0        0.0       0.0        1e-5        0.0            0.0
    warmup steps        --         --        --         1000        --             --
    peak learning rate  --         --        --         1e-3        --             --
    end learning rate   --         --        --         1e-4        --             --
    learning patience   --         --        --         30          --             --
    hops                --         --        --         2           --             --
    """,
    "ogbn-papers100m": """
                        goat            largegt
    batch size          2048            1024
    hidden dim          768             512
    heads               2               2
    pos enc             node2vec (128)  node2vec (128)
    centroids           4096            4096
    NS                  [20, 10]        --
    dropout             0.5             0.5
    learning rate       1e-3            1e-3
    weight decay        0.0             0.0
    """,
}
"""As in the paper, a row for each hyperparameter; -- where the model has none."""

VARIANTS = {"goat": ("goat-local", "goat-global", "goat-full"), "largegt": ("largegt-local", "largegt-full")}
"""One column stands for several models; on ogbn-papers100M for the full one alone."""

READ: dict[str, Callable[[Config], Any]] = {
    "batch size": lambda c: c.train.batch_size,
    "hidden dim": lambda c: c.model.hidden_dim,
    "heads": lambda c: getattr(c.model, "num_heads", None) or c.model.codebook.num_heads,
    "pos enc": lambda c: f"{c.prepare.positional_encoding.method} ({c.prepare.positional_encoding.dim})",
    "centroids": lambda c: c.model.codebook.num_centroids,
    "NS": lambda c: str(list(c.model.fanouts)),
    "dropout": lambda c: c.model.encoder_dropout if c.model.name == "nagphormer" else c.model.dropout,
    "learning rate": lambda c: c.train.learning_rate,
    "weight decay": lambda c: c.train.weight_decay,
    "warmup steps": lambda c: c.train.warmup_steps,
    "peak learning rate": lambda c: c.train.learning_rate,
    "end learning rate": lambda c: c.train.min_learning_rate,
    "learning patience": lambda c: c.train.patience,
    "hops": lambda c: c.prepare.tokens.num_hops,
}


def columns() -> Iterator[tuple[str, dict[str, str]]]:
    """(recipe, its column of a table)."""
    for dataset, table in TABLES.items():
        head, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines())
        for number, column in enumerate(head, start=1):
            values = {row[0]: row[number] for row in rows}
            for model in VARIANTS.get(column, (column,)):
                if dataset != "ogbn-papers100m" or model.endswith("-full"):
                    yield f"{dataset}-{model}", values


def number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("recipe", "column"), list(columns()), ids=[recipe for recipe, _ in columns()])
def test_a_recipe_says_what_the_paper_s_table_says(recipe: str, column: dict[str, str]) -> None:
    config = Config.from_recipe(recipe)
    expected = {row: number(value) for row, value in column.items() if value != "--"}
    if recipe.endswith(("goat-local", "largegt-local")):
        del expected["pos enc"], expected["centroids"]  # of the column's other models
    if recipe.endswith("goat-global"):
        del expected["NS"]
    assert {row: READ[row](config) for row in expected} == expected
    has_positions = "pos enc" in expected
    assert config.preparation.positional_encoding.method == ("node2vec" if has_positions else "none")
    assert config.train.lr_scheduler == ("linear" if "peak learning rate" in expected else "constant")


def test_the_tables_are_whole() -> None:
    """Every recipe for the paper's datasets is in a table, or an original form."""
    of_datasets = [name for name in recipe_names() if name.startswith(tuple(TABLES))]
    assert {name for name in of_datasets if not name.endswith("-original")} == {recipe for recipe, _ in columns()}
    assert [len(values) for _, values in columns()] == [14] * 18 + [9] * 2


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith(tuple(TABLES))])
def test_what_the_paper_s_recipes_share(name: str) -> None:
    config = Config.from_recipe(name)
    assert name.removesuffix("-original").endswith(config.model.name)
    assert (config.train.epochs, config.train.max_grad_norm, config.prepare.tokens.normalize) == (500, None, "none")
    assert config.train.max_time == ("48h" if "papers100m" in name else "4h")
    assert config.prepare.local_nodes.direction == ("out" if name.startswith("snap-patents") else "both")
    assert config.train.optimizer == ("adamw" if config.model.name == "nagphormer" else "adam")
    if isinstance(config.model, CodebookModelConfig):
        assert config.model.codebook.dead_code_threshold == 0, "the paper moves no centroid to a node of the batch"
    if isinstance(config.model, BlockConfig):
        assert config.model.norm == ("batch" if config.model.name.startswith(("goat", "largegt")) else "none")


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        ("graphsage", {"model.fanouts": [15, 10, 5]}),
        ("gat", {"model.fanouts": [10, 10, 10]}),
        ("gt-sparse", {"model.fanouts": [10, 10, 10]}),
        ("goat-local", {"model.fanouts": [20, 10, 5]}),
        ("goat-full", {"model.fanouts": [20, 10, 5], "model.codebook.variant": "goat"}),
        ("goat-global", {"model.codebook.variant": "goat"}),
        (
            "nagphormer",
            {"prepare.tokens.num_hops": 3, "train.batch_size": 2000, "prepare.positional_encoding.method": "laplacian"},
        ),
    ],
)
@pytest.mark.parametrize("dataset", ["", "ogbn-products-"])
def test_original_forms(dataset: str, model: str, changed: dict[str, Any]) -> None:
    scalable, original = (
        dict(leaves(Config.from_recipe(f"{dataset}{model}{form}").model_dump(mode="json")))
        for form in ("", "-original")
    )
    differs = {name: value for name, value in original.items() if value != scalable[name]}
    assert changed.items() <= differs.items()
    assert model == "nagphormer" or differs == changed
    assert len(scalable.get("model.fanouts", (0, 0))) == scalable["prepare.tokens.num_hops"] == 2


@pytest.mark.parametrize("dataset", ["ogbn-products", "snap-patents"])
def test_heads_are_as_wide_as_the_table_s_hidden_dim(dataset: str) -> None:
    from largegt.models.base import DataShape
    from largegt.models.baselines.gat import GAT
    from largegt.models.baselines.goat import GOAT
    from largegt.models.baselines.gt_sparse import GTSparse

    def of(name: str) -> Any:
        return Config.from_recipe(f"{dataset}-{name}").model

    hidden_dim = of("goat-full").hidden_dim
    assert GAT(DataShape(7, 3), of("gat")).layers[0].weight_hwd.shape == (4, 128, 7)
    assert GTSparse(DataShape(7, 3), of("gt-sparse")).layers[0].value.weight.shape == (4 * 128, 7)
    goat = GOAT(DataShape(7, 3, 10, 64), of("goat-full"))
    assert goat.local_module is not None
    assert goat.global_module is not None
    assert goat.local_module.value.weight.shape == (2 * hidden_dim, hidden_dim)
    assert goat.global_module.value.weight.shape == (2 * hidden_dim, 64)


# for a graph of one's own


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_has_a_recipe_for_any_graph(name: str) -> None:
    config = Config.from_recipe(name)
    assert config.model.name == name
    assert config.prepare.tokens.normalize == "per_feature"
    reads_positions = name in ("goat-global", "goat-full")
    assert config.preparation.positional_encoding.method == ("random_projection" if reads_positions else "none")
    assert config.train.max_time is None
    for dataset in ("ogbn-products", "snap-patents"):
        assert (f"{dataset}-{name}" in recipe_names()) == (name in IN_THE_PAPER)
    for original in (f"{name}-original", f"ogbn-products-{name}-original"):
        assert (original in recipe_names()) == (name in IN_THE_PAPER)


@pytest.mark.parametrize("name", [name for name in recipe_names() if "extends" in own_tree(name)])
def test_a_recipe_says_only_what_differs_from_the_one_it_extends(name: str) -> None:
    own = own_tree(name)
    base = dict(leaves(read_recipe(own.pop("extends"))))
    assert own.pop("about")
    for setting, value in leaves(own):
        assert base.get(setting) != value, setting


# all of them, run


SHRINK = (
    "prepare.local_nodes.k=4", "prepare.positional_encoding.dim=4", "prepare.positional_encoding.walk_length=6",
    "prepare.positional_encoding.context_size=3", "prepare.positional_encoding.walks_per_node=1", "train.epochs=1",
    "train.batch_size=40",
)  # fmt: skip
"""Only what makes a recipe big, beside its model."""
SMALL_MODEL = {"hidden_dim": 8, "head_dim": 4, "codebook.num_centroids": 8, "codebook.dim": 4, "codebook.head_dim": 4}


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_runs_end_to_end(name: str, tmp_path: Path) -> None:
    own = dict(leaves(Config.from_recipe(name).model.model_dump()))
    model = [f"model.{setting}={value}" for setting, value in SMALL_MODEL.items() if own.get(setting) is not None]
    store = easy_store(tmp_path / "g")
    run = train(store, Config.from_recipe(name, [*SHRINK, *model]), tmp_path / "run")
    assert run.metrics["epochs"] == 1
    assert np.isfinite(run.history[0]["train"]["loss"])
    assert evaluate(run.path) == run.metrics["test"]
    assert predict(run.path).num_rows == store.num_nodes
