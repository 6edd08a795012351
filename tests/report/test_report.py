"""Report: one page that needs nothing else, says what the runs say, and trusts no name."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from largegt.errors import InputError
from largegt.graph.ingest import ingest
from largegt.graph.sources import arrays
from largegt.report.page import report
from largegt.training.loop import train
from largegt.training.run import Run
from run_helpers import easy_store, homophilous, left_in, one_thread, small, thirds  # noqa: F401

HOSTILE = "<script>alert(1)"


class Page(HTMLParser):
    """Tags, attributes and the text outside style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag == "tr":
            self.rows.append([])
        self.cell = tag in ("td", "th")
        if self.cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.cell = False

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("report")
    store = easy_store(folder / "g")
    return [train(store, small(f"model.name={name}"), folder / name).path for name in ("mlp", "largegt-full")]


def test_the_page_says_what_the_runs_say(runs: list[Path], tmp_path: Path) -> None:
    made = report(
        runs, tmp_path / "page.html", title="Mine", baselines={"majority class": {"valid": 0.3, "test": 0.25}}
    )
    assert left_in(tmp_path) == ["page.html"]
    text = made.read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("svg") == 3
    head, *rows = page.rows
    assert head[:4] == ["run", "model", "valid accuracy", "test accuracy"]
    assert rows[0][:4] == ["majority class", "–", "0.3000", "0.2500"]
    for row, path in zip(rows[1:], runs, strict=True):
        metrics = Run.open(path).metrics
        assert row[:5] == [
            path.name, metrics["model"], f"{metrics['valid']['accuracy']:.4f}", f"{metrics['test']['accuracy']:.4f}",
            str(metrics["best_epoch"]),
        ]  # fmt: skip
    assert "<title>Mine</title>" in text
    assert "hidden = 8" in text


def test_the_best_run_by_validation_is_marked(runs: list[Path], tmp_path: Path) -> None:
    text = report(runs, tmp_path / "page.html").read_text()
    scores = {path.name: Run.open(path).metrics["valid"]["accuracy"] for path in runs}
    marked = re.findall(r"<tr class=best><td>([^<]*)", text)
    assert marked == [name for name, score in scores.items() if score == max(scores.values())]


def test_the_page_needs_nothing_from_elsewhere(runs: list[Path], tmp_path: Path) -> None:
    text = report(runs, tmp_path / "page.html").read_text()
    page = Page(text)
    assert not [link for link in page.links if not link.startswith("#")]
    assert not {"script", "iframe", "img", "link", "object", "embed"} & set(page.tags)
    addresses = set(re.findall(r"https?://[^\s\"'<>)]*", text))
    assert {address for address in addresses if not address.startswith("http://www.w3.org/")} == set()
    assert not re.search(r"@import|url\((?!#)", text)


def test_the_same_runs_give_the_same_page(runs: list[Path], tmp_path: Path) -> None:
    one, other = (report(runs, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert one == other


@pytest.mark.parametrize("name", [HOSTILE, "a&b \"c\" 'd'", "$\\frac$", "$x^2$", "_hidden", "größe 图", "50% {x}"])
def test_hostile_names_are_shown_and_do_nothing(name: str, tmp_path: Path) -> None:
    edges, features, labels = homophilous()
    classes = np.array([name, f"{name}2", f"{name}3"])[labels]
    store = ingest(arrays(edges, features, classes, thirds(150), name=name), tmp_path / f"g{name}", threads=1)
    run = train(store, small("train.epochs=2"), tmp_path / name)
    text = report(
        [run.path], tmp_path / "page.html", title=name, baselines={name: {"valid": 0.1, "test": 0.1}}
    ).read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert HOSTILE not in text
    assert [row[0] for row in page.rows[1:]] == [name, name]
    assert page.tags.count("svg") == 3
    for figure in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert name in unescape(figure), "the legend names every run as it is"


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_other_tasks_lead_with_their_own_metric(task: str, tmp_path: Path) -> None:
    _, features, classes = homophilous()
    labels = np.eye(3)[classes] if task == "multilabel" else features[:, 0] * 2.5
    run = train(easy_store(tmp_path / "g", labels), small(), tmp_path / "run")
    page = Page(report([run.path], tmp_path / "page.html").read_text())
    assert page.rows[0][2] == ("valid roc_auc" if task == "multilabel" else "valid rmse")
    assert page.tags.count("svg") == 3


def test_a_run_without_validation_nodes(tmp_path: Path) -> None:
    parts = thirds(150)
    store = easy_store(tmp_path / "g", splits={"train": parts["train"], "test": parts["test"]})
    run = train(store, small(), tmp_path / "run")
    text = report([run.path], tmp_path / "page.html").read_text()
    assert Page(text).rows[1][2] == "–"
    assert "class=best" not in text, "nothing was validated, so nothing is best"


def test_a_run_without_valid_and_test_nodes_is_refused(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", splits={"train": np.arange(100)})
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    with pytest.raises(InputError, match="nothing to report"):
        report([run.path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_an_unfinished_run_is_a_clear_error(runs: list[Path], tmp_path: Path) -> None:
    import shutil

    half = Path(shutil.copytree(runs[0], tmp_path / "half"))
    (half / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"has not finished.*--resume"):
        report([runs[1], half], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_no_runs_and_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run folders"):
        report([], tmp_path / "page.html")
    with pytest.raises(InputError, match="is not a run"):
        report([tmp_path], tmp_path / "page.html")


def test_a_folder_for_the_page_is_made(runs: list[Path], tmp_path: Path) -> None:
    assert report(runs, tmp_path / "new" / "page.html").exists()


def test_runs_of_different_graphs_are_all_named(runs: list[Path], tmp_path: Path) -> None:
    other = train(easy_store(tmp_path / "h", name="second graph"), small("train.epochs=1"), tmp_path / "other")
    text = report([*runs, other.path], tmp_path / "page.html").read_text()
    assert "g, second graph" in text
    assert json.loads((other.path / "metrics.json").read_text())["dataset"] == "second graph"
