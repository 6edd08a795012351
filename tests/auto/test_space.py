"""What is searched: the table, the language of --search, and the point to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from largegt.auto.tuning.space import make_space, search_space, text_of, value_of
from largegt.config.models import CodebookConfig, LargeGTGlobalConfig, ModelConfig, model_names, model_specs
from largegt.config.overrides import Settings, setting_names
from largegt.config.recipes import recipe_for
from largegt.config.schema import Config
from largegt.errors import ConfigError
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.setup import build_model
from run_helpers import easy_store, one_thread, small, small_settings  # noqa: F401


def axis_of(search: str) -> BaseDistribution:
    recipe = "gat" if "fanouts" in search else "base"
    return make_space(recipe, search=[search], only=True).axes[search.partition("=")[0]]


@pytest.mark.parametrize(("search", "axis"), [
    ("train.learning_rate=1e-4..1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
    ("model.dropout=0..1e-1", FloatDistribution(0.0, 0.1, log=False)),
    ("prepare.local_nodes.hop1_fraction=0..1", FloatDistribution(0.0, 1.0, log=False)),
    ("prepare.local_nodes.k=4..64:log", IntDistribution(4, 64, log=True)),
    ("train.patience=1..9", IntDistribution(1, 9, log=False)),
    ("model.hidden_dim=64, 128,256,64", CategoricalDistribution(("64", "128", "256"))),
    ("model.ffn_ratio=.5,1e0", CategoricalDistribution(("0.5", "1"))),
    ("prepare.local_nodes.hop1_fraction=none,0.50", CategoricalDistribution(("none", "0.5"))),
    ("model.label_embeddings=false,true", CategoricalDistribution(("false", "true"))),
    ("model.norm=batch", CategoricalDistribution(("batch",))),
    ("model.fanouts=[20,10],[5, 5, 5]", CategoricalDistribution(("[20,10]", "[5,5,5]"))),
])  # fmt: skip
def test_the_language(search: str, axis: BaseDistribution) -> None:
    assert axis_of(search) == axis


@pytest.mark.parametrize(("search", "words"), [
    ("train.lerning_rate=1e-4..1e-2:log", "did you mean 'train.learning_rate'"),
    ("hidden_dim=3,4", "did you mean 'model.hidden_dim'"),
    ("model.hidden_dim=64,-1", "greater than or equal to 1"),
    ("model.hidden_dim=64,65", "must be a multiple of codebook.num_heads"),
    ("model.fanouts=[20,10],[5,5]", "largegt-full does not read model.fanouts, a setting of graphsage"),
    ("model.dropout=0..1", "less than 1"),
    ("model.norm=layer,bach", "did you mean 'batch'"),
    ("model.norm=layer..batch", "list its values"),
    ("train.monitor=1..2", "valid string"),
    ("train.learning_rate=1e-2..1e-4:log", "not below"),
    ("train.weight_decay=0..1:log", "above 0"),
    ("train.weight_decay=0..1:lin", "no range"),
    ("train.weight_decay=0..x", "no range"),
    ("model.hidden_dim", "not of the form"),
    ("model.hidden_dim=", "not of the form"),
])  # fmt: skip
def test_what_cannot_be_searched_is_said_in_one_line(search: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_space("base", search=[search])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", model_names())
def test_every_model_starts_at_its_own_recipe(model: str) -> None:
    for recipe in (recipe_for(model), "demo"):
        overrides = [f"model.name={model}"]
        space = make_space(recipe, overrides)
        assert space.config(space.start) == Config.from_recipe(recipe, overrides)
        assert space.start == space.own
        for name, axis in space.axes.items():
            ends = axis.choices if isinstance(axis, CategoricalDistribution) else (axis.low, axis.high)
            assert len(set(ends)) > 1
            for value in ends:
                found = value_of(space.config({name: value}), name)
                assert text_of(found) == text_of(value)


def spied(settings: Settings, read: set[str], prefix: str = "") -> Any:
    """The same settings, which note in `read` the dotted name of each that is looked at."""

    def spy(self: Settings, name: str) -> Any:
        read.add(prefix + name)
        return object.__getattribute__(self, name)

    values = {
        name: spied(value, read, f"{prefix}{name}.") if isinstance(value, Settings) else value
        for name, value in settings
    }
    return type("Spied", (type(settings),), {"__getattribute__": spy})(**values)


def settings_read(config: ModelConfig, prepared: Prepared) -> set[str]:
    """Names of the settings that the making of this model looks at."""
    read: set[str] = set()
    settings = spied(config, read)
    read.clear()
    build_model(settings, prepared)
    return read


@pytest.mark.slow
def test_a_model_reads_every_setting_that_it_has(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g")
    for spec in model_specs():
        config = Config.from_recipe(recipe_for(spec.name), [*small_settings(spec.name), f"model.name={spec.name}"])
        read = settings_read(config.model, prepare(store, config.preparation))
        assert set(setting_names(spec.settings)) <= read, spec.name
        searched = {name.removeprefix("model.") for name in search_space(spec) if name.startswith("model.")}
        assert searched <= read, spec.name


def test_a_setting_that_a_model_does_not_read_is_found(tmp_path: Path) -> None:
    class WiderCodebook(CodebookConfig):
        unread: int = 3

    class Wider(LargeGTGlobalConfig):
        codebook: WiderCodebook = WiderCodebook()
        unread: int = 3

    config = small("model.name=largegt-global")
    prepared = prepare(easy_store(tmp_path / "g"), config.preparation)
    missed = set(setting_names(Wider)) - settings_read(Wider(**config.model.model_dump()), prepared)
    assert missed == {"unread", "codebook.unread"}


def test_what_is_fixed_is_not_searched() -> None:
    every = make_space("base").axes
    assert {"model.hidden_dim", "train.learning_rate", "prepare.local_nodes.k", "model.label_embeddings"} <= set(every)
    fixed = make_space("base", ["model.hidden_dim = 64"])
    assert set(fixed.axes) == set(every) - {"model.hidden_dim"}
    assert fixed.config(fixed.start).model.hidden_dim == 64
    both = make_space("base", ["model.hidden_dim=64"], ["model.hidden_dim=32,64", "train.max_grad_norm=0.5,none"])
    assert set(both.axes) == {*every, "train.max_grad_norm"}
    assert both.start["model.hidden_dim"] == "64"
    alone = make_space("base", search=["model.hidden_dim=32,64"], only=True)
    assert set(alone.axes) == {"model.hidden_dim"}
    with pytest.raises(ConfigError, match="nothing to search"):
        make_space("base", only=True)


def test_the_table_makes_room_for_the_recipe_and_the_user_does_not() -> None:
    own = ["model.name=largegt-full"]
    wide = make_space("demo", own)
    assert wide.axes["model.hidden_dim"] == CategoricalDistribution(("64", "96", "128", "256"))
    assert wide.start["model.hidden_dim"] == "96"
    strict = make_space("demo", own, ["model.hidden_dim=16,32,64", "train.learning_rate=1e-4..1e-3:log"])
    assert strict.start["model.hidden_dim"] == "64"
    assert strict.own["model.hidden_dim"] == "96"
    assert strict.start["train.learning_rate"] == 1e-3
    assert strict.own["train.learning_rate"] == 5e-3
    assert make_space("base", search=["prepare.local_nodes.hop1_fraction=0.25..1"]).start[
        "prepare.local_nodes.hop1_fraction"
    ] == 0.25  # fmt: skip


def test_zero_stands_beside_powers_of_ten() -> None:
    axis = make_space("sgc").axes["train.weight_decay"]
    assert axis == CategoricalDistribution(("0", "1e-05", "0.0001", "0.001", "0.01", "0.1"))
    assert isinstance(make_space("base").axes["train.weight_decay"], FloatDistribution)


def test_values_that_do_not_fit_the_recipe_are_left_out() -> None:
    axes = make_space("base", ["model.num_heads=6", "model.hidden_dim=96", "model.codebook.num_heads=2"]).axes
    assert "model.hidden_dim" not in axes
    fitted = make_space("base", ["model.num_heads=128", "model.codebook.num_heads=1"]).axes
    assert fitted["model.hidden_dim"] == CategoricalDistribution(("128", "256"))


def test_hops_stay_as_many_as_they_are() -> None:
    for recipe, fanouts in (
        ("graphsage", ("[20,10]", "[10,5]", "[30,20]")),
        ("graphsage-original", ("[15,10,5]", "[10,5,5]", "[20,15,10]")),
    ):
        assert make_space(recipe).axes["model.fanouts"] == CategoricalDistribution(fanouts)


def test_regression_smooths_no_labels() -> None:
    assert "train.label_smoothing" in make_space("base").axes
    assert "train.label_smoothing" not in make_space("base", task="regression").axes
