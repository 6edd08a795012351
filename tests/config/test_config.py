"""Config: recipes, overrides, the round trip through TOML, and what a mistake is answered with."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from largegt.config.models import model_config, model_names
from largegt.config.overrides import (
    Settings,
    build,
    describe_settings,
    parse_overrides,
    seconds,
    setting_names,
    to_toml,
)
from largegt.config.recipes import read_recipe, recipe_about, recipe_for, recipe_names, recipes_by_dataset
from largegt.config.renamed import RENAMED
from largegt.config.schema import Config, IngestConfig, PrepareConfig, describe_config
from largegt.errors import ConfigError


def plain(*overrides: str) -> Config:
    return Config.from_recipe("base", overrides)


def refused(call: Callable[[], Any], *words: str) -> None:
    """A ConfigError of one line with these words."""
    with pytest.raises(ConfigError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


# to TOML and back


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_what_it_is_and_survives_its_toml(name: str, tmp_path: Path) -> None:
    assert recipe_about()[name]
    config = Config.from_recipe(name, ["train.patience=3", "train.max_time=90s", "prepare.local_nodes.k=7"])
    (tmp_path / "again.toml").write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_recipe(tmp_path / "again.toml") == config


def test_none_is_a_word_in_toml_and_a_choice_where_it_is_one() -> None:
    config = plain("train.max_grad_norm=none", "prepare.positional_encoding.method=none", "train.class_weights=none")
    assert config.train.max_grad_norm is None
    assert (config.prepare.positional_encoding.method, config.train.class_weights) == ("none", "none")
    tree = tomllib.loads(config.to_toml())
    assert tree["train"]["max_grad_norm"] == "none"
    assert build(Config, tree) == config


@pytest.mark.parametrize(
    "value", ['a "quoted" \\ name', "tab\tnewline\n", "größe ∑ 图", "", math.inf, -math.inf, 1e-5, 1e22, 0.1, 3]
)
def test_any_text_and_any_number_survive_toml(value: Any) -> None:
    assert tomllib.loads(to_toml({"data": {"store": value}}))["data"]["store"] == value


# overrides


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("train.epoch=3", "train.epochs"),
        ("model.hiden=3", "model.hidden_dim"),
        ("model.codebook.centroid=3", "model.codebook.num_centroids"),
        ("prepare.local_nodes.K=3", "prepare.local_nodes.k"),
        ("local_nodes.k=3", "prepare.local_nodes.k"),
        ("epochs=3", "train.epochs"),
    ],
)
def test_an_unknown_setting_names_the_nearest(override: str, suggestion: str, tmp_path: Path) -> None:
    refused(lambda: plain(override), "unknown setting", f"did you mean {suggestion!r}")
    (tmp_path / "mine.toml").write_text(override)
    refused(lambda: Config.from_recipe(tmp_path / "mine.toml"), f"did you mean {suggestion!r}")


@pytest.mark.parametrize(
    "override",
    [
        "prepare.local_nodes.k=0", "prepare.tokens.num_hops=-1", "prepare.tokens.precompute_for=some",
        "train.warmup_steps=-1",
        "train.min_learning_rate=-1", "train.lr_scheduler=step", "train.weight_decay=inf",
        "prepare.local_nodes.k=-5", "prepare.local_nodes.k=many", "model.dropout=1",
        "model.dropout=-0.1", "train.epochs=0", "train.epochs=2.5", "train.epochs=", "train.learning_rate=0",
        "train.learning_rate=nan", "train.batch_size=0", "train.patience=0", "train.warmup_ratio=1",
        "train.seed=-1", "train.seed=123456789012345678901",
        "train.device=gpu", "train.precision=fp8", "model.norm=group", "prepare.local_nodes.direction=up",
        "model.codebook.num_centroids=0", "train=5", "model.codebook=3", "train.epochs=[1, 2]", "train.max_time=soon",
        "train.token_table=ram",
    ],
)  # fmt: skip
def test_out_of_range_is_one_line_that_names_the_setting(override: str) -> None:
    refused(lambda: plain(override), override.split("=")[0])


@pytest.mark.parametrize("fanouts", ["", "20,0", "[]", "-2", "a,b"])
def test_fanouts_out_of_range(fanouts: str) -> None:
    refused(lambda: plain("model.name=gat", f"model.fanouts={fanouts}"), "setting model.fanouts")


def test_a_setting_of_another_model_is_refused() -> None:
    words = "mlp does not read model.codebook.num_centroids, a setting of "
    refused(lambda: plain("model.name=mlp", "model.codebook.num_centroids=9"), words, "largegt-full", "goat-global")
    refused(lambda: plain("model.fanouts=20,10"), "largegt-full does not read model.fanouts", "graphsage")
    refused(lambda: plain("model.name=sgc", "model.hidden_dim=-1"), "sgc does not read model.hidden_dim")
    refused(lambda: plain("model.codebook.variant=goat"), "largegt-full does not read model.codebook.variant")
    refused(lambda: plain("model.name=mlp", "model.no_such=1"), "unknown setting 'model.no_such'")


def test_settings_of_a_recipe_s_model_that_another_does_not_read_are_dropped() -> None:
    assert Config.from_recipe("gat-original", ["model.name=mlp"]).model == model_config("mlp", hidden_dim=256)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_answered_with_the_new_one(old: str, new: str) -> None:
    cls: type[Settings] = IngestConfig if old in ("split", "kinds") else Config
    refused(lambda: parse_overrides(cls, [f"{old}=1"]), f"unknown setting {old!r} (its name is {new})")
    names = setting_names(cls)
    assert any(name == new or name.startswith(f"{new}.") for name in names)
    assert not any(name == old or name.startswith(f"{old}.") for name in names)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        *((text, "not of the form") for text in ("train.epochs", "=3", "", "train.epochs 5")),
        *((text, "unknown setting") for text in ("train..epochs=3", ".epochs=3", "train.=3")),
        ("train.epochs.more=3", "train.epochs cannot be {'more': 3}"),
        ("model.name=goat-fulll", "no model 'goat-fulll' (did you mean 'goat-full'?)"),
        ("train.lr_scheduler=cosin", "train.lr_scheduler cannot be 'cosin' (did you mean 'cosine'?)"),
        ("train.layerwise_inference=ful", "train.layerwise_inference cannot be 'ful': input should be a valid boolean"),
    ],
)
def test_a_crooked_override_is_refused(override: str, words: str) -> None:
    refused(lambda: Config.from_recipe("demo", [override]), words)


def test_an_override_below_a_value_is_refused() -> None:
    refused(lambda: plain("train.epochs=3", "train.epochs.more=3"), "'epochs' is a value, not a table")


def test_override_values_are_toml_or_words_and_the_last_one_wins() -> None:
    config = plain(
        "model.hop_embedding=false", "train.learning_rate=1e-4", 'model.name="largegt-local"', "train.epochs=3",
        "prepare.positional_encoding.method=node2vec", "prepare.positional_encoding.projection_weights=[1.0, 0.5]",
        " train.epochs = 4 ",
    )  # fmt: skip
    assert config.model == model_config("largegt-local", hop_embedding=False)
    assert (config.train.learning_rate, config.train.epochs) == (1e-4, 4)
    assert config.prepare.positional_encoding.method == "node2vec"
    assert config.prepare.positional_encoding.projection_weights == (1.0, 0.5)


@pytest.mark.parametrize(
    ("text", "value"),
    [("20,10", (20, 10)), ("[15, 10, 5]", (15, 10, 5)), ("7", (7,)), ("-1", (-1,)), ("5,-1", (5, -1))],
)
def test_fanouts_as_on_a_command_line_or_in_a_recipe(text: str, value: tuple[int, ...]) -> None:
    config = plain("model.name=gat", f"model.fanouts={text}")
    assert config.model == model_config("gat", fanouts=value)
    assert build(Config, tomllib.loads(config.to_toml())) == config


def test_parts_take_overrides_alone() -> None:
    assert parse_overrides(PrepareConfig, ["local_nodes.k=7"]).local_nodes.k == 7
    for text in ("0.6,0.2,0.2", "[0.6, 0.2, 0.2]"):  # the first as the error message writes it
        assert parse_overrides(IngestConfig, [f"split_fractions={text}"]).split_fractions == (0.6, 0.2, 0.2)


def test_the_step_size_does_not_end_above_its_peak() -> None:
    settings = ["train.learning_rate=1e-3", "train.min_learning_rate=1e-2"]
    assert plain(*settings).train.min_learning_rate == 1e-2, "cosine does not read it"
    refused(lambda: plain(*settings, "train.lr_scheduler=linear"), "min_learning_rate")
    config = plain("train.lr_scheduler=linear", "train.warmup_steps=1000")
    assert (config.train.warmup_steps, config.train.min_learning_rate) == (1000, 0.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("30m", 1800), ("4h", 14400), ("1h30m", 5400), ("1h2m3s", 3723), ("1.5h", 5400), ("45", 45),
     (" 2M ", 120)],
)  # fmt: skip
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value
    assert seconds(str(plain(f"train.max_time={text.strip()}").train.max_time)) == value


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1d", "5 m", "h", "1h-2m", "1e3s"])
def test_not_a_duration(text: str) -> None:
    refused(lambda: seconds(text), "not a duration")


def test_every_setting_has_a_name_with_dots_and_a_help_line() -> None:
    for settings in (describe_settings(IngestConfig), describe_config()):
        assert not [setting.name for setting in settings if not setting.help.strip() or "\n" in setting.help]
    names = [setting.name for setting in describe_config()]
    assert {"prepare.local_nodes.k", "model.codebook.num_centroids", "model.fanouts", "train.epochs"} <= set(names)
    assert "train" not in names
    assert len(names) == len(set(names))
    of_gat = {setting.name for setting in describe_config("gat")}
    assert "model.fanouts" in of_gat
    assert of_gat < set(names)
    assert not [name for name in of_gat if name.startswith("model.codebook")]


def test_configurations_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.epochs = 3  # type: ignore[misc]


# what is prepared for a model

LOCAL_NODES = ("largegt-full", "largegt-local")
CONTEXTS = (*LOCAL_NODES, "sgc", "sign", "nagphormer")
POSITIONS = ("largegt-full", "largegt-global", "nagphormer", "goat-global", "goat-full")
ALL_FEATURES = ("graphsage", "gat", "gt-sparse", "goat-local", "goat-full")


@pytest.mark.parametrize("name", model_names())
def test_a_model_is_prepared_for_with_what_it_needs(name: str) -> None:
    settings = ("prepare.local_nodes.k=9", "prepare.tokens.num_hops=5", "prepare.tokens.dtype=float16")
    config = plain(*settings, f"model.name={name}", "train.token_table=mmap")
    assert build(Config, tomllib.loads(config.to_toml())) == config
    prepare = config.preparation
    assert prepare.local_nodes.k == (9 if name in LOCAL_NODES else 1)
    assert prepare.tokens.num_hops == (5 if name in CONTEXTS else 0)
    assert prepare.tokens.precompute_for == ("all" if name in ALL_FEATURES else "sampled")
    assert prepare.tokens.separate_directions == (name != "sgc" and config.prepare.tokens.separate_directions)
    assert prepare.tokens.dtype == "float16"
    assert prepare.positional_encoding.method == ("random_projection" if name in POSITIONS else "none")
    assert config.prepare.local_nodes.k == 9, "as it was asked for, in the run's folder too"
    again = config.model_copy(update={"prepare": prepare})
    assert again.preparation == prepare, "what was prepared for it is what it needs"
    assert plain(*settings, f"model.name={name}").preparation == prepare, "the token table is no part of it"
    assert prepare.serves(config.model.spec)
    assert config.prepare.serves(config.model.spec) == (name not in ALL_FEATURES)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ([], "reachable"),
        (["prepare.tokens.precompute_for=all"], "all"),
        (["model.name=mlp"], "sampled"),
        (["prepare.local_nodes.k=1"], "sampled"),
        (["model.name=goat-full"], "all"),
    ],
)
def test_fresh_samples_need_rows_only_where_something_is_sampled(settings: list[str], rows: str) -> None:
    config = plain("train.resample=epoch", *settings)
    assert config.preparation.tokens.precompute_for == rows
    assert config.preparation.can_resample
    assert config.preparation.reachable() == config.preparation


# recipes


def test_recipes_by_dataset_each_speak_for_themselves() -> None:
    assert plain() == Config()
    groups, about = recipes_by_dataset(), recipe_about()
    assert next(iter(groups)) == "your own graph"
    assert set(groups) == {"your own graph", "demo", "ogbn-products", "snap-patents", "ogbn-papers100m"}
    assert {name: line for group in groups.values() for name, line in group.items()} == about
    assert {"default", "mlp", "goat-full", "gt-sparse-original"} <= set(groups["your own graph"])
    assert set(groups["demo"]) == {"demo", "demo-mlp"}
    for dataset in ("ogbn-products", "snap-patents", "ogbn-papers100m"):
        assert set(groups[dataset]) == {name for name in recipe_names() if name.startswith(dataset)}
    assert about["ogbn-products-gat"] != about["ogbn-products-gat-original"], "not inherited"
    assert not [name for name, line in about.items() if name.startswith("_") or not line or "\n" in line]


def test_a_recipe_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    known = f"`lg.recipe_names()` lists all {len(recipe_names())}"
    refused(lambda: Config.from_recipe("demoo"), "did you mean 'demo'", known)
    refused(lambda: Config.from_recipe(tmp_path / "none.toml"), "does not exist")
    for content in (b"[train\nepochs=3", b"\xff\xfe\x00"):
        (tmp_path / "bad.toml").write_bytes(content)
        refused(lambda: Config.from_recipe(tmp_path / "bad.toml"), "bad.toml is not valid TOML")


def write(folder: Path, **recipes: str) -> Path:
    """The first of these files."""
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(recipes))}.toml"


def test_a_recipe_on_top_of_another(tmp_path: Path) -> None:
    mine = write(
        tmp_path, mine='about = "mine"\nextends = "demo"\n[train]\nepochs = 7\n[model.codebook]\nnum_centroids = 9\n'
    )
    assert Config.from_recipe(mine) == Config.from_recipe("demo", ["train.epochs=7", "model.codebook.num_centroids=9"])
    assert Config.from_recipe(mine, ["train.epochs=8"]).train.epochs == 8


def test_several_levels_the_nearest_wins_and_lists_are_replaced(tmp_path: Path) -> None:
    top = write(
        tmp_path,
        top='extends = "mid.toml"\n[train]\nepochs = 3\n',
        mid='extends = "low.toml"\n[model]\nfanouts = [5]\n[train]\nepochs = 2\n',
        low='extends = "gat"\n[model]\nfanouts = [1, 2, 3]\nhidden_dim = 4\n[train]\nepochs = 1\n',
    )
    overrides = ["model.fanouts=[5]", "model.hidden_dim=4", "train.epochs=3"]
    assert Config.from_recipe(top) == Config.from_recipe("gat", overrides)
    assert "extends" not in read_recipe(top)


def test_an_extended_file_lies_beside_the_one_that_extends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path, base="[train]\nepochs = 4\n")
    write(tmp_path / "sub", mine='extends = "../base.toml"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Config.from_recipe("../sub/mine.toml").train.epochs == 4
    gat = write(tmp_path, gat='extends = "gat"\n[train]\nepochs = 2\n')
    assert Config.from_recipe(gat).train.epochs == 2, "a file may have the name of the recipe it extends"


@pytest.mark.parametrize(
    "recipes",
    [
        {"a": 'extends = "a.toml"'},
        {"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'},
        {"a": 'extends = "b.toml"', "b": 'extends = "c.toml"', "c": 'extends = "./b.toml"'},
    ],
)
def test_a_circle_is_refused(tmp_path: Path, recipes: dict[str, str]) -> None:
    first = write(tmp_path, **recipes)
    refused(lambda: Config.from_recipe(first), "circle", *(f"{name}.toml" for name in recipes))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"gatt"', ("mine.toml", "'gatt'", "did you mean 'gat'", "lg.recipe_names()")),
        ('"gone.toml"', ("mine.toml", "gone.toml does not exist")),
        ('"broken.toml"', ("broken.toml is not valid TOML",)),
        ('["gat", "demo"]', ("mine.toml", "one name")),
        ("3", ("mine.toml", "one name")),
    ],
)
def test_a_recipe_that_cannot_be_extended(tmp_path: Path, value: str, words: tuple[str, ...]) -> None:
    mine = write(tmp_path, mine=f"extends = {value}", broken="[train")
    refused(lambda: Config.from_recipe(mine), *words)


# a recipe for each model


@pytest.mark.parametrize("name", model_names())
def test_the_recipe_of_a_model(name: str) -> None:
    assert recipe_for(name) == ("default" if name.startswith("largegt") else name)
    if f"{name}-original" in recipe_names():
        assert recipe_for(name, original=True) == f"{name}-original"
    else:
        refused(lambda: recipe_for(name, original=True), f"{name} has no other original form", "goat-full have")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("goatfull", "did you mean 'goat-full'?"),
        ("GAT-original", "did you mean `recipe=gat-original`?"),
        ("GraphSAGE", "did you mean 'graphsage'?"),
        ("gat-original", "did you mean `recipe=gat-original`?"),
        ("default", "no model 'default'"),
        ("", "no model ''"),
    ],
)
def test_an_unknown_model(name: str, hint: str) -> None:
    refused(lambda: recipe_for(name), hint, f"there are: {', '.join(model_names())}")
