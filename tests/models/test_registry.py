"""The registry: the models of the package, one's own, and the page that shows how (docs/adding-a-model.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from largegt.config import models
from largegt.config.models import model_config, model_names, model_spec, model_specs
from largegt.config.recipes import recipe_for
from largegt.config.schema import describe_config
from largegt.models.base import NodeModel
from largegt.training import metrics
from run_helpers import easy_store, one_thread  # noqa: F401

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding-a-model.md").read_text(encoding="utf-8"), flags=re.S)
QUICK = ["train.epochs=2", "model.hidden_dim=8", "train.device=cpu"]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(models._MODELS), dict(metrics._registered)
    yield
    for registry, kept in zip((models._MODELS, metrics._registered), before, strict=True):
        registry.clear()
        registry.update(kept)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> lg.GraphStore:
    return easy_store(tmp_path / "data" / "g")


def run_page(names: dict[str, Any]) -> None:
    """The class and the metric of the page, without the block that trains."""
    for block in (BLOCKS[0], BLOCKS[2]):
        exec(block, names)


def test_the_page_runs_as_it_is(store: lg.GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(block, names)
    assert names["run"].metrics["model"] == "my-gcn"
    lines = BLOCKS[0].splitlines()
    assert len(lines) <= 45, "forty lines, as its title says"


@pytest.mark.slow
def test_one_s_own_model_everywhere(store: lg.GraphStore, tmp_path: Path) -> None:
    run_page({"__name__": "page", "lg": lg})
    config = lg.Config.from_recipe(recipe_for("my-gcn"), [*QUICK, "model.name=my-gcn", "train.monitor=within_one"])
    run = lg.train(store, config, out=tmp_path / "run")
    assert 0 <= run.metrics["valid"]["accuracy"] <= run.metrics["valid"]["within_one"] <= 1
    assert lg.evaluate(run)["within_one"] == run.metrics["test"]["within_one"]
    assert lg.predict(run).num_rows == store.num_nodes
    assert "GCN" in [spec.title for spec in model_specs()]
    assert "model.self_weight" in [setting.name for setting in describe_config("my-gcn")]
    found = lg.tune(store, tmp_path / "tune", trials=2, model="my-gcn", overrides=QUICK)
    assert "model.self_weight" in found.space.axes
    written = lg.reproduce("table-main", store.path, tmp_path / "table", 1, models=["mlp", "my-gcn"], overrides=QUICK)
    assert "| GCN |" in next(file for file in written if file.suffix == ".md").read_text(encoding="utf-8")
    page = lg.report([run.path], tmp_path / "report.html")
    assert "my-gcn" in Path(page or tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_of_a_model_that_is_not_here_names_what_is_missing(store: lg.GraphStore, tmp_path: Path) -> None:
    run_page({"__name__": "page", "lg": lg})
    config = lg.Config.from_recipe("base", [*QUICK, "model.name=my-gcn"])
    run = lg.train(store, config, out=tmp_path / "run")
    del models._MODELS["my-gcn"]
    with pytest.raises(lg.LargeGTError, match=r"no model 'my-gcn'.*register_model"):
        lg.evaluate(run.path)


@pytest.mark.slow
def test_a_package_is_found_by_its_entry_point(store: lg.GraphStore, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "my_package-1.0.dist-info").mkdir(parents=True)
    (site / "my_package-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n"
    )
    (site / "my_package-1.0.dist-info" / "entry_points.txt").write_text("[largegt.models]\nmine = my_package\n")
    (site / "my_package.py").write_text("import largegt as lg\n" + BLOCKS[0] + BLOCKS[2], encoding="utf-8")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(Path(lg.__file__).parents[1])])}
    words = ["train", str(store.path), "--out", str(tmp_path / "run"), "--model", "my-gcn"]
    words += [part for one in [*QUICK, "train.monitor=within_one"] for part in ("--set", one)]
    done = subprocess.run([sys.executable, "-m", "largegt", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "within_one" in done.stdout


def test_every_model_of_the_package_loads_and_has_a_recipe() -> None:
    for spec in model_specs():
        assert issubclass(spec.load(), NodeModel), spec.name
        assert isinstance(model_config(spec.name), spec.settings)
        assert lg.Config.from_recipe(recipe_for(spec.name), [f"model.name={spec.name}"]).model.name == spec.name
    assert len({spec.title for spec in model_specs()}) == len(model_names())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mlp", {"codebook": {"num_centroids": 4}}, r"mlp does not read model\.codebook\.num_centroids, a setting of"),
        ("sgc", {"hidden_dim": 8}, r"sgc does not read model\.hidden_dim"),
        ("gat", {"hiden_dim": 8}, r"did you mean 'model\.hidden_dim'"),
        ("gta", {}, r"no model 'gta' \(did you mean 'gat'\?\)"),
    ],
)
def test_a_setting_that_a_model_does_not_read_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(lg.LargeGTError, match=message):
        model_config(name, **settings)


def test_settings_of_a_recipe_s_model_do_not_reach_another_one() -> None:
    config = lg.Config.from_recipe("default", ["model.name=mlp"])
    assert set(config.model.model_dump()) == set(model_config("mlp").model_dump())
    assert config.model.dropout == 0.2, "what both read is kept"
    assert config.preparation.positional_encoding.method == "none"
    assert config.preparation.tokens.num_hops == 0
    assert model_spec("mlp").needs["local_nodes"] == {"k": 1}


def test_a_metric_may_pick_the_best_epoch_and_be_undefined(store: lg.GraphStore, tmp_path: Path) -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    @lg.register_metric("distance", tasks=("multiclass",), larger_is_better=False)
    def distance(predicted: np.ndarray, labels: np.ndarray) -> float:
        seen.append((predicted, labels))
        return float(abs(predicted - labels).mean())

    @lg.register_metric("nothing", tasks=("multiclass",))
    def nothing(predicted: np.ndarray, labels: np.ndarray) -> float:
        return float("nan")

    @lg.register_metric("other", tasks=("regression",))
    def other(predicted: np.ndarray, labels: np.ndarray) -> float:
        raise AssertionError("of another task")

    config = lg.Config.from_recipe("base", [*QUICK, "model.name=mlp", "train.epochs=4", "train.monitor=distance"])
    run = lg.train(store, config, out=tmp_path / "run")
    of_epochs = [entry["valid"]["distance"] for entry in run.history]
    assert run.metrics["best_epoch"] == int(np.argmin(of_epochs)) + (run.history[0]["epoch"])
    assert "nothing" not in run.metrics["valid"]
    assert all(isinstance(values, np.ndarray) and values.ndim == 1 for pair in seen for values in pair)
