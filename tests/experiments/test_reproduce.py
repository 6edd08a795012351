"""Every table and figure of the paper from one call, made once and found again."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import pytest

from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.experiments import plan
from largegt.experiments import reproduce as module
from largegt.experiments.figures import Panel, save_figure
from largegt.experiments.paper import DATASETS, DELTA_MODELS, EPOCH_SECONDS, ORIGINALS, OUR_MODELS, TEST_ACCURACY
from largegt.experiments.plan import Experiment
from largegt.experiments.reproduce import EXPERIMENTS, reproduce
from largegt.pages.charts import Axis, Dot, Line
from largegt.training.run import Run
from run_helpers import easy_store, history, one_thread  # noqa: F401

QUICK = (
    "prepare.local_nodes.k=4", "prepare.positional_encoding.method=random_projection",
    "prepare.positional_encoding.dim=3", "model.hidden_dim=8", "model.head_dim=4", "model.num_heads=2",
    "model.codebook.num_centroids=6", "model.codebook.dim=4",
    "model.codebook.head_dim=4", "train.epochs=2", "train.batch_size=64", "train.max_time=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return easy_store(tmp_path_factory.mktemp("reproduce") / "g")


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_table_main_says_what_the_runs_say(store: GraphStore, tmp_path: Path) -> None:
    models = ["mlp", "graphsage", "largegt-local"]
    files = reproduce("table-main", store.path, tmp_path, runs=2, models=models, overrides=QUICK)
    assert [file.name for file in files] == ["table-main.csv", "table-main.md", "table-main.tex", "report.html"]
    rows = rows_of(files[0])
    assert [row["Model"] for row in rows] == ["MLP", "GraphSAGE-δ", "LargeGT-local"]
    for model, row in zip(models, rows, strict=True):
        found = [Run.open(tmp_path / "runs" / f"{model}-seed{seed}").metrics["test"]["accuracy"] for seed in (0, 1)]
        assert row["Test accuracy"] == f"{100 * mean(found):.2f}±{100 * stdev(found):.2f}"
    assert "the paper" not in rows[0], "this is no dataset of the paper"
    assert files[1].read_text().count("**") == 2
    best = max(rows, key=lambda row: float(row["Test accuracy"].split("±")[0]))
    assert best["place"] == "first"
    shown = files[-1].read_text()
    tables = shown[shown.index('id="paper"') : shown.index('id="scores"')]
    assert tables.count('class="rank r1"') == [row["place"] for row in rows].count("first")
    assert ">place<" not in tables


@pytest.mark.slow
def test_nothing_is_trained_twice_and_what_stopped_goes_on(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(stage: str, done: int, total: int | None) -> None:
        if "epoch 2/" in stage and stage.startswith("sgc-seed1"):
            raise KeyboardInterrupt

    make = {"models": ["mlp", "sgc"], "overrides": QUICK, "runs": 2}
    with pytest.raises(KeyboardInterrupt):
        reproduce("table-main", store.path, tmp_path / "a", progress=stop, **make)  # type: ignore[arg-type]
    trained: list[tuple[str, bool]] = []
    real = plan.train

    def spy(data: Any, config: Any, out: Any, **settings: Any) -> Any:
        trained.append((Path(out).name, settings["resume"]))
        return real(data, config, out, **settings)

    monkeypatch.setattr(plan, "train", spy)
    reproduce("table-main", store.path, tmp_path / "a", **make)  # type: ignore[arg-type]
    assert trained == [("sgc-seed1", True)]
    reproduce("table-main", store.path, tmp_path / "a", **make)  # type: ignore[arg-type]
    assert len(trained) == 1
    reproduce("table-main", store.path, tmp_path / "a", models=["sgc"], overrides=[*QUICK, "train.epochs=3"], runs=1)
    assert trained[1:] == [("sgc-seed0", False)], "other settings are another run"


@pytest.mark.slow
def test_curves_watch_the_test_split_and_change_nothing(store: GraphStore, tmp_path: Path) -> None:
    files = reproduce("fig-curves", store.path, tmp_path, runs=1, models=["mlp", "largegt-full"], overrides=QUICK)
    rows = rows_of(files[0])
    assert [row["Model"] for row in rows] == ["MLP", "MLP", "LargeGT-full", "LargeGT-full"]
    experiment = Experiment.make(store.path, tmp_path, 1, ["largegt-full"], QUICK)
    alone = experiment.run("largegt-full", 0)
    assert history(alone.path) == history(tmp_path / "runs" / "largegt-full-watched-seed0")
    best = alone.metrics["best_epoch"]
    assert float(rows[1 + best]["Test accuracy"]) == pytest.approx(alone.metrics["test"]["accuracy"], abs=1e-6)
    assert all("test" not in entry for entry in alone.history)


@pytest.mark.slow
def test_every_experiment_leaves_its_files(store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "K_VALUES", (3, 5))
    models = ["graphsage", "goat-global", "largegt-full"]
    files = reproduce("all", store.path, tmp_path, runs=1, models=models, overrides=QUICK)
    assert {file.stem for file in files} == {*EXPERIMENTS, "report"}
    page = (tmp_path / "report.html").read_text()
    assert all(heading in page for heading in ("Main results", "The data", "Original and 2-hop forms"))
    assert page.count("by minutes of training</figcaption>") >= 4
    assert "-watched-" not in page
    assert all(file.stat().st_size > 50 for file in files)
    extended = rows_of(tmp_path / "table-extended.csv")
    assert [row["Original: test accuracy"] == "" for row in extended] == [False, False, True]
    assert [row["K"] for row in rows_of(tmp_path / "fig-k.csv")] == ["3", "5"]
    assert Run.open(tmp_path / "runs" / "largegt-full-k5-seed0").config.prepare.local_nodes.k == 5
    assert Run.open(tmp_path / "runs" / "graphsage-original-seed0").config.model.fanouts == (15, 10, 5)


def test_the_papers_numbers_stand_beside_ours(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "open_dataset", lambda _: store)
    experiment = Experiment.make("ogbn-products", tmp_path, 1, ["graphsage", "largegt-full"], QUICK)
    assert experiment.family == "ogbn-products"
    assert experiment.config("graphsage").train.learning_rate == 3e-3
    rows = rows_of(module.table_main(experiment)[0])
    assert [row["the paper"] for row in rows] == ["76.62±0.93", "79.81±0.25"]
    extended = rows_of(module.table_extended(experiment)[0])
    assert extended[0]["the paper, original"] == "78.17, 22 s"
    assert extended[0]["the paper, -δ"] == "76.62, 7 s"


def test_what_cannot_be_done_is_said_before_anything_is_trained(store: GraphStore, tmp_path: Path) -> None:
    for arguments, words in (
        ({"what": "table-mian"}, "did you mean 'table-main'"),
        ({"models": ["graphsag"]}, "graphsag"),
        ({"runs": 0}, "at least 1"),
        ({"like": "cora"}, "none of the paper's datasets"),
        ({"overrides": ["train.epoch=1"]}, "train.epochs"),
        ({"max_time": "soon"}, "duration"),
    ):
        with pytest.raises(ConfigError, match=words):
            reproduce(**{"dataset": store.path, "out": tmp_path / "r", **arguments})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="largegt datasets download snap-patents"):
        reproduce("table-main", "snap-patents", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_papers_tables_are_whole() -> None:
    every = {*DELTA_MODELS, *OUR_MODELS}
    assert set(TEST_ACCURACY) == set(DATASETS)
    assert set(TEST_ACCURACY["ogbn-products"]) == set(TEST_ACCURACY["snap-patents"]) == every
    assert set(EPOCH_SECONDS["ogbn-products"]) == every
    assert set(ORIGINALS["ogbn-products"]) == set(DELTA_MODELS)
    for family in ("ogbn-products", "snap-patents", ""):
        assert set(plan.default_models(family)) == every
    assert plan.default_models("ogbn-papers100M") == ["goat-full", "largegt-full"]


def test_figures_are_svg_and_need_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line(name, [1, 2], [0.5, 0.7], style, [0.1, 0.1]) for style, name in enumerate(("a<b", "c"))]
    panels = [
        Panel(Axis("x"), Axis("y"), lines),
        Panel(Axis("s", log=True), Axis(""), rows=[("m", [Dot("here", 3.0, 0.0, 0)])]),
    ]
    files = save_figure(tmp_path / "f", "t", panels)
    assert [file.suffix for file in files] == [".svg", ".pdf", ".png"]
    root = ElementTree.fromstring(files[0].read_text())
    assert [one.tag.rpartition("}")[2] for one in root] == ["style", "rect", "svg", "svg"]
    assert "a<b" in [one.text for one in root.iter() if one.tag.endswith("}text")], "lines are named"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert save_figure(tmp_path / "g", "t", panels) == [tmp_path / "g.svg"]
    assert (tmp_path / "g.svg").read_bytes() == files[0].read_bytes()
