"""The command line: the whole walk, JSON for programs, and one line for every mistake."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import largegt
from largegt import cli
from largegt.config.models import model_names
from largegt.config.overrides import build
from largegt.config.recipes import recipe_names, recipes_by_dataset
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.preprocessing.prepared import Prepared
from run_helpers import (  # noqa: F401
    SMALL,
    Cli,
    Result,
    easy_store,
    homophilous,
    left_in,
    one_thread,
    small_settings,
    thirds,
)

pytestmark = pytest.mark.slow

VERBS = (
    "demo", "generate", "ingest", "inspect", "prepare", "train", "evaluate", "predict", "report", "config",
    "tune",
)  # fmt: skip
SET = [part for item in SMALL for part in ("--set", item)]


def refused(result: Result, *words: str) -> None:
    """Exit code 2, one line on standard error, nothing on standard output."""
    assert result.code == 2, result
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0], lines[0]


def write_tables(folder: Path, kind: str = ".csv") -> tuple[Path, Path]:
    """The homophilous graph as two tables with string ids, string labels, some missing, and a split."""
    edges, features, classes = homophilous()
    ids = np.array([f"paper-{n:03d}" for n in range(150)])
    labels = np.array(["blue", "green", "red"])[classes].astype(object)
    labels[::5] = None
    words = np.full(150, "", dtype=object)
    for name, nodes in thirds(150).items():
        words[nodes] = name
    columns = {"id": ids, **{f"f{c}": features[:, c] for c in range(5)}, "color": labels, "split": words}
    tables = {"edges": pa.table({"source": ids[edges[0]], "target": ids[edges[1]]}), "nodes": pa.table(columns)}
    paths = []
    for name, table in tables.items():
        path = folder / f"{name}{kind}"
        if kind == ".parquet":
            pq.write_table(table, path)
        elif kind == ".csv":
            pacsv.write_csv(table, path)
        else:
            pacsv.write_csv(table, folder / f"{name}.csv")
            path.write_bytes(gzip.compress((folder / f"{name}.csv").read_bytes()))
            (folder / f"{name}.csv").unlink()
        paths.append(path)
    return paths[0], paths[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that tests look at and prepare, and do not change otherwise."""
    return easy_store(tmp_path_factory.mktemp("cli") / "g").path


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from largegt.training.trainer import train
    from run_helpers import small

    return train(store, small("train.epochs=1"), tmp_path_factory.mktemp("cli-run") / "run").path


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    return write_tables(tmp_path)


# help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_says_what_it_does(verb: str, lg: Cli) -> None:
    assert verb in lg("--help").out
    result = lg(verb, "--help")
    assert result.code == 0
    assert "--json" in result.out
    called = next(c.callback for c in cli.app.registered_commands if c.callback and c.callback.__name__ == verb)
    doc = (called.__doc__ or "").strip().splitlines()[0]
    assert doc.split()[0] in result.out


def test_version(lg: Cli) -> None:
    assert lg("--version").out == f"largegt {largegt.__version__}\n"


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = "import sys, largegt.cli; print([m for m in ('torch', 'numba', 'lightning', 'pyarrow') if m in sys.modules])"
    env = os.environ | {"PYTHONPATH": str(Path(largegt.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout.strip() == "[]"


# the walk


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".parquet"])
def test_the_whole_walk_with_string_ids_and_string_labels(kind: str, lg: Cli, tmp_path: Path) -> None:
    edges, nodes = write_tables(tmp_path, kind)
    g, r = tmp_path / "g", tmp_path / "r"
    facts = lg("ingest", "--edges", edges, "--nodes", nodes, "--label-column", "color", "--set", "undirected=true",
               "--out", g, "--json").json  # fmt: skip
    assert (facts["nodes"], facts["features"], facts["ids"], facts["labelled"]) == (150, 5, "string", 120)
    assert facts["classes"].keys() == {"blue", "green", "red"}
    assert sum(facts["splits"].values()) == 120
    assert facts["example_ids"] == ["paper-000", "paper-001", "paper-002"]
    assert lg("inspect", g, "--verify", "--json").json["verified"] is True
    prepared = lg("prepare", g, *SET, "--json").json
    assert (prepared["kind"], prepared["nodes"], prepared["k"]) == ("prepared", 120, 4)
    assert lg("inspect", prepared["path"], "--json").json["fingerprint"] == prepared["fingerprint"]
    metrics = lg("train", g, "--out", r, *SET, "--epochs", 4, "--seed", 3, "--json").json
    assert (metrics["epochs"], metrics["seed"], metrics["dataset"]) == (4, 3, "g")
    assert lg("inspect", g, "--json").json["prepared"] == [prepared["fingerprint"]]
    assert lg("evaluate", r, "--json").json == metrics["test"]
    assert lg("evaluate", r, "--split", "valid", "--num-eval-samples", 1, "--json").json == metrics["valid"]
    shown = lg("inspect", r, "--json").json
    assert (shown["finished"], shown["epochs"], shown["metrics"]["test"]) == (True, "4 of 4", metrics["test"])
    said = lg("predict", r, "--out", tmp_path / "p.parquet", "--probabilities", "--json").json
    assert said["rows"] == 150
    table = pq.read_table(tmp_path / "p.parquet")
    assert table["node"].to_pylist() == [f"paper-{n:03d}" for n in range(150)]
    assert set(table["label"].to_pylist()) <= {"blue", "green", "red"}
    lg("predict", r, "--out", tmp_path / "q.csv", "--node", "paper-007", "--node", "paper-000", "--node", "paper-007")
    assert [row.split(",")[0] for row in (tmp_path / "q.csv").read_text().splitlines()[1:]] == [
        '"paper-007"', '"paper-000"', '"paper-007"',
    ]  # fmt: skip
    page = lg("report", r, "--out", tmp_path / "page.html", "--json").json
    assert page == {"page": str(tmp_path / "page.html"), "runs": 1}
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_the_walk_from_npy(lg: Cli, tmp_path: Path) -> None:
    edges, features, labels = homophilous()
    for name, array in (("e", edges), ("x", features), ("y", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "s.npz", **thirds(150))
    facts = lg("ingest", "--edges", tmp_path / "e.npy", "--features", tmp_path / "x.npy", "--labels",
               tmp_path / "y.npy", "--splits", tmp_path / "s.npz", "--out", tmp_path / "g", "--json").json  # fmt: skip
    assert (facts["ids"], facts["nodes"], facts["splits"]) == ("row", 150, {"train": 75, "valid": 37, "test": 38})
    trained = lg("train", tmp_path / "g", "--out", tmp_path / "r", *SET, "--epochs", 1, "--model", "mlp", "--json")
    assert trained.json["model"] == "mlp"


def test_what_people_see(lg: Cli, tmp_path: Path) -> None:
    edges, nodes = write_tables(tmp_path)
    g, r = tmp_path / "g", tmp_path / "r"
    for arguments, word in (
        (("ingest", "--edges", edges, "--nodes", nodes, "--label-column", "color", "--out", g), "150"),
        (("inspect", g), "blue"),
        (("prepare", g, *SET), "prepared"),
        (("train", g, "--out", r, *SET, "--epochs", 1), "accuracy"),
        (("evaluate", r), "accuracy"),
        (("inspect", r), "largegt-local"),
        (("predict", r, "--out", tmp_path / "p.csv"), "150 predictions"),
        (("report", r, "--out", tmp_path / "p.html"), "1 run"),
        (("config", "train"), "train.epochs"),
        (("config", "--recipes"), "demo"),
    ):
        result = lg(*arguments)
        assert result.code == 0, result
        assert word in result.out, result.out


def test_settings_for_programs(lg: Cli) -> None:
    every = lg("config", "--json").json
    assert every["train.epochs"]["default"] == 30
    assert "ingest.undirected" in every
    assert set(lg("config", "model", "--json").json) == {name for name in every if name.startswith("model")}
    assert set(lg("config", "--recipes", "--json").json) == set(recipe_names())
    refused(lg("config", "trian"), "no setting begins with 'trian'")


@pytest.mark.parametrize("name", ["undirected=true", "ingest.undirected=true"])
def test_ingest_settings_with_and_without_prefix(name: str, lg: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("ingest", "--edges", tables[0], "--nodes", tables[1], "--out", tmp_path / "g", "--set", name, "--json")
    assert lg(*words).json["directed"] is False


# models


def set_for(arguments: tuple[str, ...]) -> list[str]:
    """Settings that make the model quick that a command names."""
    names = [name for option, name in pairwise(arguments) if option == "--model"]
    return [part for item in small_settings(*names or ["largegt-local"]) for part in ("--set", item)]


def trained_config(lg: Cli, store: Path, out: Path, *arguments: Any) -> dict[str, Any]:
    result = lg("train", store, "--out", out, *set_for(arguments), "--epochs", 1, *arguments, "--json")
    assert result.code == 0, result.err
    return tomllib.loads((out / "config.toml").read_text())


@pytest.mark.parametrize(
    ("arguments", "recipe", "overrides"),
    [
        (("--model", "nagphormer"), "nagphormer", ()),
        (("--model", "nagphormer", "--original"), "nagphormer-original", ()),
        (("--recipe", "demo", "--model", "nagphormer"), "demo", ("model.name=nagphormer",)),
        (("--model", "largegt-local", "--set", "model.name=mlp"), "default", ("model.name=largegt-local",)),
    ],
)
def test_a_model_is_trained_by_its_own_recipe(
    arguments: tuple[str, ...], recipe: str, overrides: tuple[str, ...], lg: Cli, store: Path, tmp_path: Path
) -> None:
    """--set is on top; with --recipe, --model is short for model.name, and nothing else of it changes."""
    config = trained_config(lg, store, tmp_path / "a", *arguments)
    own = {key: value for key, value in config.items() if key != "data"}
    assert build(Config, own) == Config.from_recipe(recipe, [*SMALL, "train.epochs=1", *overrides])


def test_a_resumed_run_keeps_its_model(lg: Cli, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    trained_config(lg, store, out, "--model", "sgc")
    assert lg("train", "--resume", "--out", out, "--json").json["model"] == "sgc"
    again = ("train", store, "--resume", "--out", out, "--epochs", 1)
    assert lg(*again, *set_for(("--model", "sgc")), "--model", "sgc", "--json").json["model"] == "sgc"
    refused(lg(*again, *SET, "--model", "sign"), "other settings")
    for arguments in (("--model", "sgc"), ("--original",), ("--recipe", "sgc")):
        refused(lg("train", "--resume", "--out", out, *arguments), "own settings", "--model")


@pytest.mark.parametrize(
    ("arguments", "k", "hops", "nodes", "positions"),
    [
        ((), 4, 2, "reachable", "none"),
        (("--model", "largegt-full"), 4, 2, "reachable", "random_projection"),
        (("--model", "largegt-global"), 1, 0, "sampled", "random_projection"),
        (("--model", "sgc"), 1, 2, "sampled", "none"),
        (("--model", "nagphormer", "--original"), 1, 3, "sampled", "laplacian"),
        (("--model", "graphsage"), 1, 0, "all", "none"),
        (("--model", "goat-full"), 1, 0, "all", "random_projection"),
        (("--model", "sgc", "--set", "prepare.tokens.num_hops=1"), 1, 1, "sampled", "none"),
        (("--recipe", "demo", "--model", "graphsage"), 1, 0, "all", "none"),
    ],
)
def test_prepare_makes_what_the_model_needs(
    arguments: tuple[str, ...], k: int, hops: int, nodes: str, positions: str, lg: Cli, store: Path
) -> None:
    prepared = Prepared.open(lg("prepare", store, *set_for(arguments), *arguments, "--json").json["path"]).config
    assert (prepared.local_nodes.k, prepared.tokens.num_hops, prepared.tokens.precompute_for) == (k, hops, nodes)
    assert prepared.positional_encoding.method == positions


def test_what_is_prepared_for_a_model_is_what_its_training_finds(lg: Cli, tmp_path: Path) -> None:
    g = easy_store(tmp_path / "g").path
    for model in ("graphsage", "sgc"):
        named = ("--model", model)
        made = lg("prepare", g, *set_for(named), *named, "--json").json["fingerprint"]
        before = lg("inspect", g, "--json").json["prepared"]
        assert made in before
        trained_config(lg, g, tmp_path / model, *named)
        assert lg("inspect", g, "--json").json["prepared"] == before
    refused(lg("prepare", g, "--model", "gcn"), "no model 'gcn'")
    refused(lg("prepare", g, "--model", "mlp", "--original"), "mlp has no other original form")


def test_help_tells_of_every_model(lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert set(lg("config", "--models", "--json").json) == set(model_names())
    assert all(f" {name} " in lg("config", "--models").out for name in model_names())
    assert "config --models" in lg("train", "--help").out
    assert "--model" in lg("prepare", "--help").out


def test_recipes_are_listed_by_dataset(lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    said = lg("config", "--recipes").out
    assert all(f" {name} " in said for name in recipe_names())
    titles = [line.strip() for line in said.splitlines() if line.startswith("Recipes for ")]
    assert titles == [f"Recipes for {dataset}" for dataset in recipes_by_dataset()]
    assert said.index("Recipes for snap-patents") < said.index("snap-patents-gat")


def test_inspect_of_an_unfinished_run(lg: Cli, run: Path, tmp_path: Path) -> None:
    import shutil

    half = shutil.copytree(run, tmp_path / "half")
    (half / "metrics.json").unlink()
    shown = lg("inspect", half, "--json").json
    assert shown["finished"] is False
    assert shown["last_epoch"]["epoch"] == 1
    assert lg("inspect", half).code == 0


def test_too_few_steps_are_noted(lg: Cli, store: Path, tmp_path: Path) -> None:
    """All training nodes in one batch, thirty epochs: thirty steps. Who asks for few epochs knows that."""
    num_nodes = len(GraphStore.open(store).splits["train"])
    quick = ["--set", "prepare.local_nodes.k=4", "--set", "train.batch_size=512"]

    def notes(*words: str) -> list[str]:
        result = lg("train", store, *quick, "--out", tmp_path / "run", "--overwrite", *words)
        assert result.code == 0, result.err
        return [line for line in result.err.splitlines() if "steps in all" in line]

    (note,) = notes("--epochs", "10", "--set", "model.hidden_dim=8")
    size = -(-num_nodes // 4)
    assert note.startswith(f"note: {num_nodes} training nodes are one batch, so there are 10 steps in all")
    assert note.endswith(f"--recipe auto, or --set train.batch_size={size}")
    (note,) = notes("--epochs", "10", "--model", "mlp")
    assert "auto" not in note, "which is for LargeGT"
    assert not notes("--epochs", "2", "--model", "mlp")
    assert not notes("--epochs", "10", "--model", "mlp", "--set", f"train.batch_size={size}")
    assert not notes("--epochs", "10", "--model", "mlp", "--json")


def test_train_resumes_and_overwrites_when_asked(lg: Cli, store: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "r")
    first = lg("train", store, *out, *SET, "--epochs", 1, "--json").json
    refused(lg("train", store, *out, *SET, "--epochs", 1), "--resume", "--overwrite")
    assert lg("train", "--resume", *out, "--json").json == first
    assert lg("train", store, "--resume", *out, *SET, "--epochs", 1, "--json").json == first
    refused(lg("train", store, "--resume", *out, *SET, "--epochs", 2), "other settings")
    refused(lg("train", "--resume", *out, "--epochs", 2), "own settings")
    assert lg("train", store, "--overwrite", *out, *SET, "--epochs", 2, "--json").json["epochs"] == 2


def test_the_config_of_a_run_is_a_recipe_for_another(lg: Cli, store: Path, run: Path, tmp_path: Path) -> None:
    result = lg("train", store, "--recipe", run / "config.toml", "--out", tmp_path / "r", "--json")
    assert result.code == 0, result.err
    assert result.json["test"] == json.loads((run / "metrics.json").read_text())["test"]


def test_a_note_tells_which_setting_makes_a_new_preparation(lg: Cli, store: Path) -> None:
    lg("prepare", store, *SET)
    result = lg("prepare", store, *SET, "--set", "prepare.local_nodes.k=5")
    assert "local_nodes.k=4 (now 5)" in result.err
    assert lg("prepare", store, *SET, "--set", "prepare.local_nodes.k=6", "--json").err == ""


# real processes


def python(*arguments: Any, **env: str) -> Result:
    path = {"PYTHONPATH": str(Path(largegt.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "largegt", *map(str, arguments)], env=os.environ | path | env,
                          capture_output=True, text=True)  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def test_json_of_a_real_process_is_json_and_nothing_else(store: Path, tmp_path: Path) -> None:
    result = python("train", store, "--out", tmp_path / "r", *SET, "--epochs", 1, "--json")
    assert result.code == 0, result.err
    assert result.json["epochs"] == 1
    assert result.err == ""


def test_a_mistake_in_a_real_process_is_one_line(tmp_path: Path) -> None:
    refused(python("inspect", tmp_path / "nothing"), "does not exist")


# mistakes


@pytest.mark.parametrize("option", ["--edges", "--nodes", "--features", "--labels", "--splits"])
def test_a_missing_file(option: str, lg: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    before = left_in(tmp_path)
    edges = () if option == "--edges" else ("--edges", tables[0])
    refused(lg("ingest", *edges, option, tmp_path / "none.csv", "--out", tmp_path / "g"), "none.csv")
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("option", "name", "word"),
    [("--label-column", "colour", "color"), ("--source-column", "sourc", "source"), ("--target-column", "x", "target"),
     ("--id-column", "idd", "id"), ("--split-column", "splitt", "split"), ("--feature-columns", "g*", "f0")],
)  # fmt: skip
def test_a_wrong_column(option: str, name: str, word: str, lg: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    before = left_in(tmp_path)
    refused(lg("ingest", "--edges", tables[0], "--nodes", tables[1], option, name, "--out", tmp_path / "g"), name, word)
    assert left_in(tmp_path) == before


def save(folder: Path, **arrays: Any) -> list[str]:
    """Options of ingest for arrays saved as .npy."""
    options = []
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        options += [f"--{name}", str(folder / f"{name}.npy")]
    return [*options, "--out", str(folder / "g")]


PATH = np.array([[0, 1, 2], [1, 2, 3]])
FOUR = np.ones((4, 2), dtype=np.float32)


def holed(value: float) -> np.ndarray:
    features = FOUR.copy()
    features[2, 1] = value
    return features


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"edges": PATH + 1, "features": FOUR}, ("out of range", "0 to 3")),
        ({"edges": PATH - 1, "features": FOUR}, ("out of range", "-1")),
        ({"edges": PATH, "features": holed(np.nan)}, ("NaN", "missing_values")),
        ({"edges": PATH, "features": holed(np.inf)}, ("infinite", "missing_values")),
        ({"edges": PATH, "features": FOUR, "labels": np.full(4, np.nan)}, ("every label is missing",)),
        ({"edges": PATH, "features": FOUR, "labels": np.full(4, -1)}, ("every label is missing",)),
        ({"edges": PATH, "features": FOUR, "labels": np.arange(5)}, ("4", "5")),
        ({"edges": np.zeros((2, 0), dtype=np.int64), "features": FOUR}, ("no edges",)),
        ({"edges": np.zeros((2, 0), dtype=np.int64)}, ("no edges",)),
        ({"edges": PATH.astype(float) + 0.5, "features": FOUR}, ("edges.npy",)),
    ],
    ids=["id too large", "negative id", "NaN", "inf", "labels NaN", "labels -1", "rows differ", "empty", "empty, bare",
         "fractions"],
)  # fmt: skip
def test_data_that_cannot_be_used(arrays: dict[str, Any], words: tuple[str, ...], lg: Cli, tmp_path: Path) -> None:
    options = save(tmp_path, **arrays)
    before = left_in(tmp_path)
    refused(lg("ingest", *options), *words)
    assert left_in(tmp_path) == before


def test_an_existing_store_is_not_replaced_unasked(lg: Cli, tables: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = ("ingest", "--edges", tables[0], "--nodes", tables[1], "--out", tmp_path / "g")
    assert lg(*arguments).code == 0
    refused(lg(*arguments), "--overwrite")
    assert lg(*arguments, "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "prepare.local_nodes.k=0"), ("prepare.local_nodes.k",)),
        (("--set", "train.epoch=3"), ("did you mean 'train.epochs'",)),
        (("--set", "epochs"), ("section.name=value",)),
        (("--set", "train.device=gpu"), ("train.device", "cuda")),
        (("--recipe", "dem"), ("demo",)),
        (("--recipe", "none.toml"), ("none.toml",)),
        (("--model", "gcn"), ("no model 'gcn' (did you mean", "largegt-full, largegt-local", "goat-full")),
        (("--recipe", "demo", "--model", "goatfull"), ("did you mean 'goat-full'",)),
        (("--set", "model.name=goatfull"), ("no model 'goatfull'", "did you mean 'goat-full'")),
        (("--model", "gat-original"), ("--recipe gat-original",)),
        (("--model", "sign", "--original"), ("sign has no other original form", "leave out --original", "graphsage")),
        (("--model", "largegt-full", "--original"), ("largegt-full has no other original form",)),
        (("--original",), ("--model gat --original",)),
        (("--model", "gat", "--original", "--recipe", "demo"), ("without --recipe",)),
        (("--max-time", "soon"), ("soon", "90s")),
        (("--set", "train.monitor=acc"), ("train.monitor", "accuracy")),
        (("--epochs", "0"), ("train.epochs",)),
    ],
)
def test_settings_that_cannot_be(
    arguments: tuple[str, ...], words: tuple[str, ...], lg: Cli, store: Path, tmp_path: Path
) -> None:
    refused(lg("train", store, "--out", tmp_path / "r", *SET, *arguments), *words)
    assert left_in(tmp_path) == []


def test_train_without_a_store(lg: Cli, tmp_path: Path) -> None:
    refused(lg("train", "--out", tmp_path / "r"), "which store")
    refused(lg("train", "--resume", "--out", tmp_path / "r"), "not a run")
    refused(lg("train", tmp_path / "none", "--out", tmp_path / "r"), "does not exist")
    refused(lg("train", tmp_path, "--out", tmp_path / "r"), "manifest.json")
    assert left_in(tmp_path) == []


def test_a_run_is_not_a_store_and_a_store_is_not_a_run(lg: Cli, store: Path, run: Path, tmp_path: Path) -> None:
    refused(lg("train", run, "--out", tmp_path / "r"), "is a run, not a store")
    refused(lg("prepare", run), "is a run, not a store")
    refused(lg("evaluate", store), "is not a run but a store", f"largegt train {store}")
    refused(lg("report", store), "is not a run")
    refused(lg("predict", store, "--out", tmp_path / "p.csv"), "is not a run")
    refused(lg("inspect", tmp_path), "neither")
    refused(lg("train", tmp_path / "none"), "check the path", "largegt ingest edges.parquet")
    assert left_in(tmp_path) == []


def test_a_store_without_labels_cannot_be_trained_on(lg: Cli, tmp_path: Path) -> None:
    assert lg("ingest", *save(tmp_path, edges=PATH, features=FOUR)).code == 0
    before = left_in(tmp_path)
    refused(lg("train", tmp_path / "g", "--out", tmp_path / "r"), "label")
    assert left_in(tmp_path) == before
    refused(
        lg("train", tmp_path / "g", "--out", tmp_path / "r", "--set", "prepare.local_nodes.target_nodes=all"), "label"
    )
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("verb", ["inspect", "prepare", "train"])
def test_a_store_of_a_newer_format(verb: str, lg: Cli, tmp_path: Path) -> None:
    path = easy_store(tmp_path / "g").path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": manifest["version"] + 1}))
    before = left_in(tmp_path)
    out = ("--out", tmp_path / "r") if verb == "train" else ()
    refused(lg(verb, path, *out), "format version", "upgrade")
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "RUN", "--out", "OUT/p.txt"), ".parquet"),
        (("predict", "RUN", "--out", "OUT/p.csv", "--node", "nobody"), "nobody"),
        (("predict", "RUN", "--out", "OUT/p.csv", "--node", "99999"), "99999"),
        (("predict", "RUN", "--out", "OUT/p.csv", "--split", "nothing"), "nothing"),
        (("predict", "RUN", "--out", "OUT/p.csv", "--split", "test", "--node", "3"), "not both"),
        (("predict", "RUN", "--out", "OUT/p.csv", "--device", "gpu"), "cuda"),
        (("evaluate", "RUN", "--device", "gpu"), "cuda"),
        (("evaluate", "RUN", "--split", "nothing"), "train, valid, test"),
        (("evaluate", "OUT/none"), "is not a run"),
        (("report", "RUN", "OUT/none", "--out", "OUT/p.html"), "is not a run"),
    ],
)
def test_mistakes_with_a_run(words: tuple[str, ...], said: str, lg: Cli, run: Path, tmp_path: Path) -> None:
    refused(lg(*(word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words)), said)
    assert left_in(tmp_path) == []


def test_a_page_in_a_new_folder(lg: Cli, run: Path, tmp_path: Path) -> None:
    assert lg("report", run, "--out", tmp_path / "new" / "p.html").code == 0


def test_usage_mistakes_are_one_line_with_what_to_write(lg: Cli) -> None:
    nothing = lg()
    assert "Begin with" in nothing.out + nothing.err
    assert "error" not in nothing.err
    refused(lg("trian"), "no such command 'trian'", "'train'", "largegt --help")
    refused(lg("--nonsense"), "no such option: --nonsense", "largegt --help")
    refused(lg("inspect"), "largegt inspect", "'path'", "largegt inspect data/g")
    refused(lg("ingest"), "'--out'", "largegt ingest --edges edges.parquet --nodes nodes.csv.gz")
    refused(lg("train", "--nonsense"), "no such option: --nonsense", "largegt train data/g --out runs/a")
    refused(lg("train", "--epochs", "few"), "'--epochs'", "integer")
    refused(lg("explain", "r"), "'--node'", "largegt explain runs/a --node ID")
    refused(lg("datasets", "fetch"), "no such command 'fetch'", "largegt datasets --help")


# larger than memory


def test_a_dry_run_says_what_it_takes_and_does_nothing(lg: Cli, tmp_path: Path) -> None:
    g = easy_store(tmp_path / "g").path
    said = lg("prepare", g, *SET, "--model", "largegt-full", "--dry-run", "--json").json
    assert not (g / "prepared").exists()
    assert said["num_nodes"] == 150
    assert said["peak_disk_bytes"] >= said["disk_bytes"] > 0
    assert any(stage["scratch_bytes"] for stage in said["stages"])
    assert said["memory_bytes"] > 10 << 20
    stages = {"local nodes", "context features", "positions, random_projection", "label histograms", "label counts"}
    assert {stage["name"] for stage in said["stages"]} == stages
    shown = lg("prepare", g, *SET, "--dry-run").out
    for word in ("To prepare", "on disk", "scratch", "memory", "rough time", "context features", "all"):
        assert word in shown
    assert "does not fit" not in shown
    inspected = lg("inspect", g, "--json").json["preparation"]
    assert inspected["num_nodes"] == 150
    assert "To prepare it as the default recipe says" in lg("inspect", g).out
    lg("prepare", g)
    assert "preparation" not in lg("inspect", g, "--json").json
    assert "It is prepared already" in lg("prepare", g, "--dry-run").out


def test_a_disk_that_is_too_small_is_said_before(lg: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from collections import namedtuple

    g = easy_store(tmp_path / "g").path
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10000, 9000, 1000))
    assert "This does not fit: 1000 B are free on that disk." in lg("prepare", g, *SET, "--dry-run").out
    refused(lg("prepare", g, *SET), "local nodes needs", "1000 B are free", "run the same command again")


@pytest.mark.parametrize("verb", ["ingest", "prepare", "train", "generate"])
def test_memory_that_is_none(lg: Cli, store: Path, tmp_path: Path, verb: str) -> None:
    edges, _ = write_tables(tmp_path)
    arguments: dict[str, list[Any]] = {
        "ingest": ["--edges", edges, "--out", tmp_path / "g"],
        "prepare": [store, "--set", "prepare.local_nodes.k=9"],
        "train": [store, "--out", tmp_path / "r", "--set", "prepare.local_nodes.k=9"],
        "generate": ["--like", "ogbn-products", "--scale", 0.0001, "--out", tmp_path / "s"],
    }
    refused(lg(verb, *arguments[verb], "--memory-limit", "plenty"), "'plenty' is not a size: write 4GiB")
    refused(lg(verb, *arguments[verb], "--memory-limit", "4kb"), "at least 256.0 MiB")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


def test_generate_to_a_prediction(lg: Cli, tmp_path: Path) -> None:
    g, r, p = tmp_path / "g", tmp_path / "r", tmp_path / "p.parquet"
    facts = lg("generate", "--like", "snap-patents", "--scale", 0.0002, "--out", g, "--json").json
    assert facts["nodes"] == 585
    assert facts["directed"]
    assert facts["name"] == "snap-patents-like"
    words = ("--set", "train.token_table=pinned", "--epochs", 1, "--memory-limit", "1GiB")
    trained = lg("train", g, *SET, *words, "--out", r, "--json")
    assert 0 <= trained.json["valid"]["accuracy"] <= 1
    assert lg("predict", r, "--out", p, "--memory-limit", "1GiB", "--json").json["rows"] == 585
    words = ("--set", "train.token_table=cuda", "--set", "train.device=cpu")
    refused(lg("train", g, *SET, *words, "--out", tmp_path / "q"), "train.token_table=auto")
    refused(lg("generate", "--like", "ogbn-product", "--out", tmp_path / "h"), "did you mean 'ogbn-products'")
