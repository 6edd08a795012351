"""`lg.train` and its like take a configuration in any form, and fail in Python's terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from largegt.config.schema import Config
from largegt.preprocessing.auto_config import config_for
from run_helpers import Killed, easy_store, one_thread  # noqa: F401

TINY: dict[str, Any] = {"prepare": {"local_nodes": {"k": 4}}, "model.hidden_dim": 8, "train.epochs": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> lg.GraphStore:
    return easy_store(tmp_path_factory.mktemp("manners") / "g")


# a configuration in any form


def test_a_configuration_is_a_recipe_a_file_a_dict_or_a_config(store: lg.GraphStore, tmp_path: Path) -> None:
    default = Config.from_recipe("default")
    file = tmp_path / "own.toml"
    file.write_text('extends = "default"\n[train]\nepochs = 3\n')
    assert config_for(store)[0] == config_for(store, "default")[0] == config_for(store, default)[0] == default
    assert config_for(store, "auto")[0] == lg.auto_config(store)[0]
    for three_epochs in (file, str(file), {"train.epochs": 3}, {"train": {"epochs": 3}}):
        assert config_for(store, three_epochs)[0] == Config.from_recipe("default", ["train.epochs=3"])


def test_a_dict_is_on_top_of_its_recipe_or_of_its_models_recipe(store: lg.GraphStore) -> None:
    mlp = {"model": {"name": "mlp"}, "train.epochs": 3}
    assert config_for(store, mlp)[0] == Config.from_recipe("mlp", ["train.epochs=3"])
    named = {"recipe": "base", "train": {"max_time": None, "learning_rate": np.float32(0.5)}}
    assert config_for(store, named)[0] == Config.from_recipe("base", ["train.learning_rate=0.5"])
    of_auto = config_for(store, {"recipe": "auto", "train.epochs": 3})
    assert of_auto == lg.auto_config(store, ["train.epochs=3"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, "cannot be 3: give a recipe, a .toml file, a dict or a Config"),
        ("defualt", "no recipe 'defualt' .did you mean 'default'"),
        ({"train.epoch": 3}, "unknown setting 'train.epoch' .did you mean 'train.epochs'"),
        ({"train": {"epochs": 0}}, "setting train.epochs cannot be 0"),
        ({"model": "mlp"}, "model is a table of settings"),
    ],
)
def test_a_wrong_configuration_is_a_config_error(store: lg.GraphStore, config: Any, message: str) -> None:
    with pytest.raises(lg.ConfigError, match=message):
        lg.train(store, config)


def test_train_without_a_configuration_is_the_default_recipe(store: lg.GraphStore, tmp_path: Path) -> None:
    run = lg.train(store, TINY, tmp_path / "a")
    assert run.config == Config.from_recipe(
        "default", ["prepare.local_nodes.k=4", "model.hidden_dim=8", "train.epochs=1"]
    )

    def stop(*_: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        lg.train(store, out=tmp_path / "b", watch=stop)
    assert lg.Run.open(tmp_path / "b").config == Config.from_recipe("default")


def test_a_preparation_without_a_configuration_serves_the_default_training(
    store: lg.GraphStore, tmp_path: Path
) -> None:
    prepared = lg.prepare(store)
    assert prepared.config.neighbor_label_hops == 2
    assert lg.prepare(store, "default").path == prepared.path
    assert lg.prepare(store, {"model.name": "sgc"}).config.local_nodes.k == 1
    assert lg.prepare(store, lg.PrepareConfig()).config.neighbor_label_hops == 0
    assert lg.train(prepared, {"train.epochs": 1}, tmp_path / "a").config.model.name == "largegt-local"


# errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lg.PrepareConfig(local_nodes={"k": 0}), "setting local_nodes.k cannot be 0"),
        (lambda: lg.TrainConfig(epochs=0), "setting epochs cannot be 0"),
        (lambda: lg.TrainConfig(epoch=1), "unknown setting 'epoch' .did you mean 'epochs'"),
        (lambda: lg.Config(prepare={"local_nodes": {"k": 0}}), "setting prepare.local_nodes.k cannot be 0"),
        (lambda: lg.model_config("mlp", hidden_dim=0), "setting model.hidden_dim cannot be 0"),
        (lambda: lg.IngestConfig(split_fractions=(1, 2)), "setting split_fractions.2"),
    ],
)
def test_a_wrong_setting_is_a_config_error(make: Any, message: str) -> None:
    with pytest.raises(lg.ConfigError, match=message):
        make()


def test_the_errors_and_the_recipes_are_public() -> None:
    assert {lg.ConfigError, lg.InputError, lg.FormatError} <= set(lg.LargeGTError.__subclasses__())
    assert "default" in lg.recipe_names()


# what an object shows of itself, and methods of a run


@pytest.fixture(scope="module")
def run(store: lg.GraphStore) -> lg.Run:
    return lg.train(store, TINY, store.path.parent / "run")


def test_a_store_a_preparation_and_a_run_are_three_lines(store: lg.GraphStore, run: lg.Run) -> None:
    prepared = run.prepared()
    assert repr(store).splitlines() == [
        "GraphStore g: undirected, multiclass",
        f"  150 nodes, {store.num_edges:,} edges, 5 features, 3 classes",
        f"  {store.path}",
    ]
    assert repr(prepared).splitlines()[1].startswith("  150 nodes, 4 local nodes of each, 150 token rows, ")
    assert repr(prepared).splitlines()[2] == f"  {prepared.path}"
    what, sizes, where = repr(run).splitlines()
    assert what == f"Run largegt-local on {store.path}"
    assert sizes.endswith(f"{run.metrics['test']['accuracy']:.4f} test accuracy")
    assert where == f"  {run.path}"


def test_a_notebook_shows_a_table(store: lg.GraphStore, run: lg.Run, tmp_path: Path) -> None:
    for one in (store, run.prepared(), run):
        page = one._repr_html_()
        assert page.count("<tr>") == page.count("</tr>") >= 5
    hostile = easy_store(tmp_path / "<b>g")
    assert "&lt;b&gt;g" in hostile._repr_html_()
    assert "<b>" not in hostile._repr_html_()


def test_a_run_evaluates_and_predicts(run: lg.Run, tmp_path: Path) -> None:
    assert run.evaluate() == lg.evaluate(run) == run.metrics["test"]
    table = run.predict(tmp_path / "p.parquet", split="val", all_probabilities=True)
    assert table.equals(lg.predict(run, split="valid", all_probabilities=True))
    assert (tmp_path / "p.parquet").is_file()


def test_val_is_valid(run: lg.Run) -> None:
    assert run.evaluate("val") == run.evaluate("valid")
    batches = [list(lg.token_batches(run.prepared(), split=name, batch_size=64)) for name in ("val", "valid")]
    assert [b.nodes.tolist() for b in batches[0]] == [b.nodes.tolist() for b in batches[1]]
    with pytest.raises(lg.InputError, match="split 'vald' is not one of train, valid, test"):
        run.evaluate("vald")


def test_a_hetero_data_is_refused_by_name(tmp_path: Path) -> None:
    class HeteroData:
        num_nodes = 3

    takers = (
        lg.from_pyg, lg.sources.pyg, lambda data: lg.pyg.Loader(data),
        lambda data: lg.LargeGTClassifier(data).fit([0, 1], [0, 1]),
    )  # fmt: skip
    for take in takers:
        with pytest.raises(lg.InputError, match=r"a HeteroData has several types .* give data\.to_homogeneous"):
            take(HeteroData())


def test_a_training_without_a_store_goes_on_with_a_run(run: lg.Run) -> None:
    assert lg.train(out=run.path, resume=True).metrics == run.metrics
    with pytest.raises(lg.InputError, match="which store"):
        lg.train(out=run.path)
    with pytest.raises(lg.InputError, match="leave out `config`"):
        lg.train(config="default", out=run.path, resume=True)
