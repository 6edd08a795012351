"""Config: recipes, overrides, the round trip through TOML, and what a mistake is answered with."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from largegt.config.describe import build, describe_settings, parse_overrides, seconds, setting_names, to_toml
from largegt.config.recipes import read_recipe, recipe_about, recipe_for, recipe_names, recipes_by_dataset
from largegt.config.schema import Config, IngestConfig, PrepareConfig
from largegt.errors import ConfigError
from largegt.types import MODEL_NAMES, ModelName


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds_and_says_what_it_is(name: str) -> None:
    assert isinstance(Config.from_recipe(name), Config)
    assert recipe_about()[name]


def test_the_default_recipe_is_the_defaults() -> None:
    assert Config.from_recipe("plain") == Config()


@pytest.mark.parametrize("name", recipe_names())
def test_a_configuration_survives_its_toml(name: str, tmp_path: Path) -> None:
    config = Config.from_recipe(name, ["train.patience=3", "train.budget=90s", "model.head_width=7"])
    file = tmp_path / "again.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_recipe(file) == config


def test_none_is_written_as_a_word_and_read_back() -> None:
    config = Config.from_recipe("plain", ["train.clip_norm=none", "train.patience=5"])
    assert config.train.clip_norm is None
    tree = tomllib.loads(config.to_toml())
    assert tree["train"]["clip_norm"] == "none"
    assert tree["train"]["patience"] == 5
    assert build(Config, tree) == config


def test_none_is_kept_as_a_word_where_it_is_a_choice() -> None:
    config = Config.from_recipe("plain", ["prepare.positions.method=none", "train.class_weights=none"])
    assert config.prepare.positions.method == "none"
    assert config.train.class_weights == "none"


@pytest.mark.parametrize("value", ['a "quoted" \\ name', "tab\tnewline\n", "größe ∑ 图", ""])
def test_any_text_survives_toml(value: str) -> None:
    assert tomllib.loads(to_toml({"data": {"store": value}}))["data"]["store"] == value


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e-5, 1e22, 0.1, 3])
def test_any_number_survives_toml(value: float) -> None:
    assert tomllib.loads(to_toml({"a": value}))["a"] == value


def test_an_infinite_setting_is_refused_or_survives_toml() -> None:
    try:
        config = Config.from_recipe("plain", ["train.weight_decay=inf"])
    except ConfigError:
        return
    assert build(Config, tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("train.epoch=3", "train.epochs"),
        ("model.hiden=3", "model.hidden"),
        ("model.codebook.centroid=3", "model.codebook.centroids"),
        ("prepare.local_nodes.K=3", "prepare.local_nodes.k"),
        ("local_nodes.k=3", "prepare.local_nodes.k"),
        ("epochs=3", "train.epochs"),
    ],
)
def test_an_unknown_setting_names_the_nearest(override: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        Config.from_recipe("plain", [override])
    assert f"did you mean {suggestion!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nepoch = 3\n")
    with pytest.raises(ConfigError, match=r"train\.epochs"):
        Config.from_recipe(file)


@pytest.mark.parametrize(
    "override",
    [
        "prepare.local_nodes.k=0", "prepare.tokens.hops=-1", "prepare.tokens.nodes=some", "model.fanouts=",
        "model.fanouts=20,0", "model.fanouts=[]", "model.fanouts=-2", "model.fanouts=a,b", "train.warmup_steps=-1",
        "train.end_learning_rate=-1", "train.schedule=linear",
        "prepare.local_nodes.k=-5", "prepare.local_nodes.k=many", "model.dropout=1",
        "model.dropout=-0.1", "train.epochs=0", "train.epochs=2.5", "train.epochs=", "train.learning_rate=0",
        "train.learning_rate=nan", "train.batch_size=0", "train.patience=0", "train.warmup=1", "model.name=gcn",
        "train.seed=-1", "train.seed=123456789012345678901",
        "train.device=gpu", "train.precision=fp8", "model.norm=group", "prepare.local_nodes.direction=up",
        "model.codebook.centroids=0", "train=5", "model.codebook=3", "train.epochs=[1, 2]", "train.budget=soon",
    ],
)  # fmt: skip
def test_out_of_range_is_one_line_that_names_the_setting(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_recipe("plain", [override])
    assert override.split("=")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["train.epochs", "=3", "", "train.epochs 5"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        Config.from_recipe("plain", [override])


@pytest.mark.parametrize("override", ["train..epochs=3", ".epochs=3", "train.=3", "train.epochs.more=3"])
def test_a_crooked_name_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        Config.from_recipe("plain", [override])


OWN_ROW = ("mlp", "sgc", "sign", "nagphormer", "goat-global", "largegt-global")
ALL_FEATURES = ("graphsage", "gat", "gt-sparse", "goat-local", "goat-full")


@pytest.mark.parametrize("name", get_args(ModelName))
def test_a_model_is_prepared_for_with_what_it_needs(name: str) -> None:
    settings = [
        "prepare.local_nodes.k=9",
        "prepare.tokens.hops=5",
        "prepare.tokens.dtype=float16",
        f"model.name={name}",
    ]
    config = Config.from_recipe("plain", settings)
    prepare = config.preparation
    found = (prepare.local_nodes.k, prepare.tokens.hops, prepare.tokens.nodes)
    expected = (1, 5, "sampled") if name in OWN_ROW else (1, 0, "all") if name in ALL_FEATURES else (9, 5, "sampled")
    assert found == (expected if name != "linkx" else (1, 0, "sampled"))
    assert prepare.tokens.dtype == "float16"
    assert prepare.positions.method == ("none" if name == "largegt-local" else "projection")
    assert config.prepare.local_nodes.k == 9, "as it was asked for, in the run's folder too"
    again = config.model_copy(update={"prepare": prepare})
    assert again.preparation == prepare, "what was prepared for it is what it needs"
    assert prepare.serves(config.model.name)
    assert config.prepare.serves(config.model.name) == (name not in ALL_FEATURES)


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ([], "reachable"),
        (["prepare.tokens.nodes=all"], "all"),
        (["model.name=mlp"], "sampled"),
        (["prepare.local_nodes.k=1"], "sampled"),
        (["model.name=goat-full"], "all"),
    ],
)
def test_fresh_samples_need_rows_only_where_something_is_sampled(settings: list[str], rows: str) -> None:
    config = Config.from_recipe("plain", ["train.resample=epoch", *settings])
    assert config.preparation.tokens.nodes == rows
    assert config.preparation.can_resample
    assert config.preparation.reachable() == config.preparation


@pytest.mark.parametrize(
    ("text", "value"),
    [("20,10", (20, 10)), ("[15, 10, 5]", (15, 10, 5)), ("7", (7,)), ("-1", (-1,)), ("5,-1", (5, -1))],
)
def test_fanouts_as_on_a_command_line_or_in_a_recipe(text: str, value: tuple[int, ...]) -> None:
    config = Config.from_recipe("plain", [f"model.fanouts={text}"])
    assert config.model.fanouts == value
    assert build(Config, tomllib.loads(config.to_toml())) == config


def test_the_step_size_does_not_end_above_its_peak() -> None:
    settings = ["train.learning_rate=1e-3", "train.end_learning_rate=1e-2"]
    assert Config.from_recipe("plain", settings).train.end_learning_rate == 1e-2, "one-cycle does not read it"
    with pytest.raises(ConfigError, match="end_learning_rate"):
        Config.from_recipe("plain", [*settings, "train.schedule=polynomial"])
    config = Config.from_recipe("plain", ["train.schedule=polynomial", "train.warmup_steps=1000"])
    assert (config.train.warmup_steps, config.train.end_learning_rate) == (1000, 0.0)


def test_the_token_table_is_no_part_of_the_preparation() -> None:
    config = Config.from_recipe("plain", ["tokens.table=disk"])
    assert config.tokens.table == "disk"
    assert config.preparation == Config().preparation
    with pytest.raises(ConfigError, match=r"tokens\.table cannot be 'ram'"):
        Config.from_recipe("plain", ["tokens.table=ram"])


def test_a_value_is_no_table() -> None:
    with pytest.raises(ConfigError, match="is a value, not a table"):
        Config.from_recipe("demo", ["train.epochs.more=3"])


def test_the_last_override_wins_and_spaces_do_not_matter() -> None:
    config = Config.from_recipe("demo", ["train.epochs=3", " train.epochs = 4 "])
    assert config.train.epochs == 4
    assert config.model.norm == "batch"


def test_override_values_are_toml_or_words() -> None:
    config = Config.from_recipe(
        "plain",
        ["model.hop_embeddings=false", "train.learning_rate=1e-4", 'model.name="mlp"',
         "prepare.positions.method=node2vec", "prepare.positions.projection_weights=[1.0, 0.5]"],
    )  # fmt: skip
    assert config.model.hop_embeddings is False
    assert config.train.learning_rate == 1e-4
    assert config.model.name == "mlp"
    assert config.prepare.positions.method == "node2vec"
    assert config.prepare.positions.projection_weights == (1.0, 0.5)


def test_a_bare_number_is_a_budget_too() -> None:
    """`seconds` says that a bare number is fine, so `--budget 90` has to be."""
    assert seconds(str(Config.from_recipe("plain", ["train.budget=90"]).train.budget)) == 90.0


def test_a_split_can_be_written_as_the_error_message_writes_it() -> None:
    assert parse_overrides(IngestConfig, ["split=0.6,0.2,0.2"]).split == (0.6, 0.2, 0.2)
    assert parse_overrides(IngestConfig, ["split=[0.6, 0.2, 0.2]"]).split == (0.6, 0.2, 0.2)


def test_every_setting_has_a_help_line() -> None:
    for cls in (IngestConfig, Config):
        for name, _, text in describe_settings(cls):
            assert text.strip(), name
            assert "\n" not in text, name


def test_setting_names_are_dotted_leaves() -> None:
    names = setting_names(Config)
    assert {"prepare.local_nodes.k", "model.codebook.centroids", "train.epochs"} <= set(names)
    assert "train" not in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("4h", 14400),
        ("1h30m", 5400),
        ("1h2m3s", 3723),
        ("1.5h", 5400),
        ("45", 45),
        (" 2M ", 120),
    ],
)
def test_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1d", "5 m", "h", "1h-2m", "1e3s"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        seconds(text)


def test_an_unknown_recipe_names_the_nearest_and_where_all_are_listed() -> None:
    with pytest.raises(ConfigError, match="did you mean 'demo'") as caught:
        Config.from_recipe("demoo")
    assert f"largegt settings --recipes lists all {len(recipe_names())}" in str(caught.value)


def test_a_missing_recipe_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Config.from_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"[train\nepochs=3", b"\xff\xfe\x00"])
def test_a_recipe_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        Config.from_recipe(file)


# recipes that extend others


def write(folder: Path, **recipes: str) -> None:
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def test_a_recipe_on_top_of_another(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine='about = "mine"\nextends = "demo"\n[train]\nepochs = 7\n[model.codebook]\ncentroids = 9\n',
    )
    config, demo = Config.from_recipe(tmp_path / "mine.toml"), Config.from_recipe("demo")
    assert (config.train.epochs, config.model.codebook.centroids) == (7, 9)
    assert config.model_copy(update={"train": demo.train, "model": demo.model}) == demo
    assert config.train.model_copy(update={"epochs": demo.train.epochs}) == demo.train
    assert config.model.model_copy(update={"codebook": demo.model.codebook}) == demo.model
    assert Config.from_recipe(tmp_path / "mine.toml", ["train.epochs=8"]).train.epochs == 8


def test_several_levels_the_nearest_wins_and_lists_are_replaced(tmp_path: Path) -> None:
    write(
        tmp_path,
        low='extends = "gat"\n[model]\nfanouts = [1, 2, 3]\nhidden = 4\n[train]\nepochs = 1\n',
        mid='extends = "low.toml"\n[model]\nfanouts = [5]\n[train]\nepochs = 2\n',
        top='extends = "mid.toml"\n[train]\nepochs = 3\n',
    )
    found, gat = Config.from_recipe(tmp_path / "top.toml"), Config.from_recipe("gat")
    assert (found.model.name, found.model.heads) == ("gat", gat.model.heads)
    assert (found.model.fanouts, found.model.hidden, found.train.epochs) == ((5,), 4, 3)
    assert "extends" not in read_recipe(tmp_path / "top.toml")


def test_an_extended_file_lies_beside_the_one_that_extends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path, base="[train]\nepochs = 4\n")
    write(tmp_path / "sub", mine='extends = "../base.toml"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Config.from_recipe("../sub/mine.toml").train.epochs == 4


@pytest.mark.parametrize(
    "recipes",
    [
        {"a": 'extends = "a.toml"'},
        {"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'},
        {"a": 'extends = "b.toml"', "b": 'extends = "c.toml"', "c": 'extends = "./b.toml"'},
    ],
)
def test_a_circle_is_refused(tmp_path: Path, recipes: dict[str, str]) -> None:
    write(tmp_path, **recipes)
    with pytest.raises(ConfigError, match="circle") as caught:
        Config.from_recipe(tmp_path / "a.toml")
    assert all(f"{name}.toml" in str(caught.value) for name in recipes)
    assert "\n" not in str(caught.value)


def test_a_file_may_have_the_name_of_the_recipe_it_extends(tmp_path: Path) -> None:
    write(tmp_path, gat='extends = "gat"\n[train]\nepochs = 2\n')
    assert Config.from_recipe(tmp_path / "gat.toml").train.epochs == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"gatt"', ("mine.toml", "'gatt'", "did you mean 'gat'", "largegt settings --recipes")),
        ('"gone.toml"', ("mine.toml", "gone.toml does not exist")),
        ('["gat", "demo"]', ("mine.toml", "one name")),
        ("3", ("mine.toml", "one name")),
    ],
)
def test_an_extended_recipe_that_is_not_there(tmp_path: Path, value: str, words: tuple[str, ...]) -> None:
    write(tmp_path, mine=f"extends = {value}")
    with pytest.raises(ConfigError) as caught:
        Config.from_recipe(tmp_path / "mine.toml")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_a_mistake_in_an_extended_file_names_that_file(tmp_path: Path) -> None:
    write(tmp_path, mine='extends = "base.toml"', base="[train")
    with pytest.raises(ConfigError, match=r"base\.toml is not valid TOML"):
        Config.from_recipe(tmp_path / "mine.toml")


def test_each_recipe_speaks_for_itself() -> None:
    """`about` is not inherited."""
    about = recipe_about()
    assert about["ogbn-products-gat"] != about["ogbn-products-gat-original"]
    assert not [name for name, line in about.items() if not line or "\n" in line]
    assert not [name for name in about if name.startswith("_")], "beginnings that others extend are no recipes"


def test_recipes_by_dataset() -> None:
    groups = recipes_by_dataset()
    assert next(iter(groups)) == "your own graph"
    assert set(groups) == {"your own graph", "demo", "ogbn-products", "snap-patents", "ogbn-papers100m"}
    assert {name: line for group in groups.values() for name, line in group.items()} == recipe_about()
    assert {"default", "mlp", "goat-full", "gt-sparse-original"} <= set(groups["your own graph"])
    assert set(groups["demo"]) == {"demo", "demo-mlp"}
    for dataset in ("ogbn-products", "snap-patents", "ogbn-papers100m"):
        assert set(groups[dataset]) == {name for name in recipe_names() if name.startswith(dataset)}


# a recipe for each model


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_recipe_of_a_model(name: str) -> None:
    assert recipe_for(name) == ("default" if name.startswith("largegt") else name)
    if f"{name}-original" in recipe_names():
        assert recipe_for(name, original=True) == f"{name}-original"
    else:
        with pytest.raises(ConfigError, match=f"{name} has no other original form.*graphsage, gat, .*goat-full have"):
            recipe_for(name, original=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("goatfull", "did you mean 'goat-full'?"),
        ("GAT-original", "did you mean --model gat --original?"),
        ("GraphSAGE", "did you mean 'graphsage'?"),
        ("gat-original", "did you mean --model gat --original?"),
        ("default", "no model 'default'"),
        ("", "no model ''"),
    ],
)
def test_an_unknown_model(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_for(name)
    assert hint in str(caught.value)
    assert str(caught.value).endswith(f"there are: {', '.join(MODEL_NAMES)}")


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_model_does_without_a_norm(name: str) -> None:
    config = Config.from_recipe("plain", [f"model.name={name}", "model.norm=none"])
    assert config.model.norm == "none"
    assert build(Config, tomllib.loads(config.to_toml())) == config


def test_a_wrong_choice_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model\.name cannot be 'goat-fulll' \(did you mean 'goat-full'\?\)"):
        Config.from_recipe("plain", ["model.name=goat-fulll"])
    with pytest.raises(ConfigError, match=r"train\.inference cannot be 'ful' \(did you mean 'full'\?\)"):
        Config.from_recipe("plain", ["train.inference=ful"])
    assert Config.from_recipe("plain", ["train.inference=sampled"]).train.inference == "sampled"


def test_configurations_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.epochs = 3  # type: ignore[misc]


def test_prepare_config_alone_takes_overrides() -> None:
    assert parse_overrides(PrepareConfig, ["local_nodes.k=7"]).local_nodes.k == 7
