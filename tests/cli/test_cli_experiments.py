"""The verbs for researchers: datasets, reproduce, and what report can be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from largegt.data.store import GraphStore
from run_helpers import SMALL, Cli, easy_store, one_thread  # noqa: F401

pytestmark = pytest.mark.slow

QUICK = [part for item in (*SMALL, "train.epochs=1") for part in ("--set", item)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return easy_store(tmp_path_factory.mktemp("experiments") / "g")


def test_datasets_are_listed(lg: Cli, tmp_path: Path) -> None:
    code, out, _ = lg("datasets", "--root", tmp_path)
    assert code == 0
    for name in ("ogbn-products", "ogbn-papers100M", "snap-patents", "not here"):
        assert name in out
    code, out, _ = lg("datasets", "--root", tmp_path, "--json")
    assert [row["complete"] for row in json.loads(out)] == [False] * 3


@pytest.mark.parametrize(("arguments", "words"), [
    (("download", "ogbn-product"), "did you mean 'ogbn-products'"),
    (("ingest", "ogbn-products", "--out", "s"), "edge.csv.gz"),
    (("ingest", "snap-patents", "--out", "s", "--set", "undirectd=true"), "undirected"),
])  # fmt: skip
def test_what_is_wrong_with_a_dataset_is_one_line(
    lg: Cli, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = lg("datasets", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
    assert not list(tmp_path.iterdir())


def test_reproduce_prints_its_tables_and_leaves_a_page(lg: Cli, store: GraphStore, tmp_path: Path) -> None:
    code, out, err = lg(
        "reproduce", "table-main", "--dataset", store.path, "--out", tmp_path / "r", "--runs", 1,
        "--models", "mlp, sgc", *QUICK,
    )  # fmt: skip
    assert code == 0, err
    assert "| MLP |" in out
    assert "| SGC |" in out
    assert (tmp_path / "r" / "report.html").is_file()
    code, out, _ = lg(
        "reproduce", "table-datasets", "--dataset", store.path, "--out", tmp_path / "r", "--json"
    )  # fmt: skip
    assert [Path(file).name for file in json.loads(out)["files"]][-1] == "report.html"


@pytest.mark.parametrize(("arguments", "words"), [
    (("fig-q",), "there are: table-datasets"),
    (("table-main", "--models", "grafsage"), "grafsage"),
    (("table-main", "--max-time", "soon"), "duration"),
    (("table-main", "--dataset", "nowhere"), "nowhere"),
])  # fmt: skip
def test_reproduce_refuses_in_one_line(
    lg: Cli, store: GraphStore, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    given = () if "--dataset" in arguments else ("--dataset", str(store.path))
    code, out, err = lg("reproduce", *arguments, *given, "--out", tmp_path / "r")
    assert (code, out) == (2, "")
    assert words in err
    assert not (tmp_path / "r").exists()


def test_a_report_without_a_look_into_the_weights(lg: Cli, store: GraphStore, tmp_path: Path) -> None:
    assert lg("train", store.path, "--out", tmp_path / "run", "--model", "mlp", *QUICK).code == 0
    page = tmp_path / "p.html"
    assert lg("report", tmp_path / "run", "--out", page, "--no-analysis").code == 0
    assert not (tmp_path / "run" / "analysis.json").exists()
    assert lg("report", tmp_path / "run", "--out", page, "--max-nodes", 20).code == 0
    assert json.loads((tmp_path / "run" / "analysis.json").read_text())
