"""Report: one page that needs nothing else, says what the runs say, and trusts no name."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.errors import InputError
from largegt.pages.template import SCRIPT
from largegt.reporting.groups import datasets_of, open_runs
from largegt.reporting.page import report
from largegt.reporting.settings import command
from largegt.runtime.text import printable
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import (
    HOSTILE_COLUMN,
    easy_store,
    homophilous,
    left_in,
    one_thread,  # noqa: F401
    small,
    table_store,
    thirds,
)

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags, links, tables by caption, sections, and whether everything that was opened was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.charts: list[dict[str, str | None]] = []
        self.attributes: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.attributes += list(found)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.ids += [found["id"] or ""] if "id" in found else []
        if tag == "svg" and found.get("class") == "chart":
            self.charts.append(found)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self._caption, self._rows)

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.scripts[-1] += data
        elif "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            self._rows[-1][-1] += data
        if not {"script", "style"} & set(self._open):
            self.text += data


def scores_of(page: Page) -> dict[str, list[str]]:
    """The score table: name → the other cells."""
    rows = next(rows for caption, rows in page.tables.items() if caption.startswith("Scores on"))
    return {row[0]: row[1:] for row in rows[1:]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with two seeds each, and one of them with two other K."""
    folder = tmp_path_factory.mktemp("report")
    store = easy_store(folder / "g")
    wanted = {
        f"{name}-{seed}": [f"model.name={name}", f"train.seed={seed}"]
        for name in ("mlp", "largegt-full") for seed in (0, 1)
    } | {f"k{k}": ["model.name=largegt-full", f"prepare.local_nodes.k={k}"] for k in (3, 6)}  # fmt: skip
    return [train(store, small(*settings), folder / name).path for name, settings in wanted.items()]


@pytest.fixture(scope="module")
def page(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("page") / "page.html"
    baselines = {"majority class": {"valid": 0.3, "test": 0.25}}
    return Page(report(runs, out, title="Mine", baselines=baselines).read_text(encoding="utf-8"))


def values(runs: list[Path], split: str, metric: str = "accuracy") -> list[float]:
    return [Run.open(path).metrics[split][metric] for path in runs]


def test_scores_are_means_over_seeds(runs: list[Path], page: Page) -> None:
    rows = scores_of(page)
    assert list(rows) == [
        "majority class (no model)", "mlp", "largegt-full (k=3)", "largegt-full (k=4)", "largegt-full (k=6)",
    ]  # fmt: skip
    assert rows["majority class (no model)"][0].endswith("0.2500")
    for name, members in (("mlp", runs[:2]), ("largegt-full (k=4)", runs[2:4]), ("largegt-full (k=3)", runs[4:5])):
        for column, split in enumerate(("test", "valid")):
            found = values(members, split)
            spread = stdev(found) if len(found) > 1 else 0.0
            assert rows[name][column].endswith(f"{mean(found):.4f}" + (f" ± {spread:.4f}" if spread else ""))
        assert rows[name][-1] == str(len(members))


def test_the_best_three_are_marked(page: Page) -> None:
    rows = scores_of(page)
    for column in (0, 1):
        cells = [cells[column] for cells in rows.values()]
        means = [float(cell.split(" ±")[0][-6:]) for cell in cells]
        for cell, value in zip(cells, means, strict=True):
            rank = 1 + sum(other > value for other in means)
            assert cell.startswith(f"{rank}0." if rank <= 3 else "0.")


def test_curves_tables_hold_the_history(runs: list[Path], page: Page) -> None:
    head, *rows = page.tables["Validation accuracy by epoch"]
    assert head == ["epoch", *(datum.name for datum in ordered(runs))]
    for row in rows:
        for name, cell in zip(head[1:], row[1:], strict=True):
            history = Run.open(next(path for path in runs if path.name == name)).history
            assert cell == f"{history[int(row[0]) - 1]['valid']['accuracy']:.4f}"
    last = page.tables["Training loss by minutes of training"][-1]
    longest = max(Run.open(path).history[-1]["elapsed_s"] / 60 for path in runs)
    assert float(last[0]) == pytest.approx(longest, rel=1e-3)
    assert last[1:] == [f"{Run.open(path).history[-1]['train']['loss']:.4f}" for path in ordered(runs)]


def ordered(runs: list[Path]) -> list[Path]:
    """As the page has them: by group."""
    return [one.run.path for one in datasets_of(open_runs(runs))[0].runs]


def test_sensitivity_to_k(runs: list[Path], page: Page) -> None:
    head, *rows = page.tables["Test accuracy by K"]
    assert head == ["K, local nodes", "largegt-full"]
    assert [row[0] for row in rows] == ["3", "4", "6"]
    found = values(runs[2:4], "test")
    assert rows[1][1].split(" ± ") == [f"{mean(found):.4f}", f"{stdev(found):.4f}"][: 1 + (stdev(found) > 0)]
    seconds = page.tables["Epoch time, s by K"]
    assert seconds[1][1] == f"{Run.open(runs[4]).metrics['epoch_time_s']:.4f}"


def test_differences_and_commands(runs: list[Path], page: Page) -> None:
    table = {row[0]: row[1:] for row in page.tables["Settings that differ between runs"]}
    assert table["setting"] == ["mlp", "largegt-full (k=3)", "largegt-full (k=4)", "largegt-full (k=6)"]
    assert table["prepare.local_nodes.k"][1:] == ["3", "4", "6"]
    assert table["train.seed"] == ["0, 1", "0", "0, 1", "0"]
    assert "model.hidden_dim" not in table
    listed = page.tables["All runs"]
    assert [row[0] for row in listed[1:]] == [path.name for path in runs]
    opened = open_runs(runs)[0]
    assert command(opened) in page.text
    assert command(opened).split()[:2] == ["largegt", "train"]


def test_every_chart_has_a_name_and_a_table(page: Page) -> None:
    assert len(page.charts) >= 14
    assert all(chart["role"] == "img" and chart["aria-label"] and chart["viewbox"] for chart in page.charts)
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(page.charts)
    assert page.tags.count("caption") == page.tags.count("table")
    assert page.tags.count("details") >= len(page.charts)


def test_contents_lead_somewhere(page: Page) -> None:
    wanted = ["scores", "curves", "cost", "k", "predictions", "codebook", "attention", "map", "settings", "runs"]
    assert [link[1:] for link in page.links if link.startswith("#")] == wanted
    assert set(wanted) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_insights_are_there(runs: list[Path], page: Page) -> None:
    for caption in (
        "Are they as sure as they should be? Share right by confidence", "Accuracy by degree",
        "Accuracy by local homophily", "Scores by class", "Codebook use at the best epoch", "Readout weight",
        "Nodes by true (row) and predicted (column) class, mlp",
    ):  # fmt: skip
        assert len(page.tables[caption]) > 1, caption
    found = json.loads((best(runs, "mlp") / "analysis.json").read_text())
    cells = page.tables["Nodes by true (row) and predicted (column) class, mlp"]
    assert [[int(cell) for cell in row[1:]] for row in cells[1:]] == found["confusion"]["cells"]


def best(runs: list[Path], model: str) -> Path:
    members = [path for path in runs if Run.open(path).metrics["model"] == model]
    return max(members, key=lambda path: Run.open(path).metrics["valid"]["accuracy"])


def test_the_page_needs_nothing_from_elsewhere(runs: list[Path], tmp_path: Path) -> None:
    text = report(runs, tmp_path / "page.html").read_text()
    assert left_in(tmp_path) == ["page.html"]
    page = Page(text)
    assert [link for link in page.links if not link.startswith("#")] == ["data:,"]
    assert not {"iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert not re.search(r"https?:|//[a-z]", re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL))
    assert not re.search(r"@import|url\(", text)
    assert page.scripts == [SCRIPT]
    assert "default-src 'none'" in text
    assert not [name for name in page.attributes if name.startswith("on")]
    assert len(text) < 250_000


def test_the_same_runs_give_the_same_page(runs: list[Path], tmp_path: Path) -> None:
    one, other = (report(runs, tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert one == other


@pytest.mark.parametrize(
    "name", [HOSTILE, "a&b \"c\" 'd'", "</svg></details><b>", "| ; ,", "_hidden", "größe 图", "50% {x}", "=1+1"]
)
def test_hostile_names_are_shown_and_do_nothing(name: str, tmp_path: Path) -> None:
    edges, features, labels = homophilous()
    classes = np.array([name, f"{name}2", f"{name}3"])[labels]
    folder = tmp_path / name.replace("/", "∕")
    store = ingest(arrays(edges, features, classes, thirds(150), name=name), tmp_path / "g", threads=1)
    run = train(store, small("train.epochs=2"), folder)
    text = report(
        [run.path], tmp_path / "page.html", title=name, baselines={name: {"valid": 0.1, "test": 0.1}}
    ).read_text()
    page = Page(text)
    assert page.scripts == [SCRIPT]
    assert HOSTILE not in text
    assert f"{name} (no model)" in scores_of(page)
    assert [row[0] for row in page.tables["All runs"][1:]] == [folder.name]
    assert {row[0] for row in page.tables["Scores by class"][1:]} == {name, f"{name}2", f"{name}3"}
    assert set(page.tags) <= {
        "html", "head", "meta", "title", "link", "style", "body", "main", "h1", "h2", "h3", "p", "ul", "ol", "li", "b",
        "span", "nav", "a", "section", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
        "figcaption", "svg", "path", "text", "g", "rect", "polyline", "details", "summary", "code", "pre", "script",
    }  # fmt: skip
    assert page.tags.count("b") == 3, "only the three facts"
    assert name in unescape(text)


@pytest.mark.parametrize("task", ["multilabel", "regression", "binary"])
def test_other_tasks_lead_with_their_own_metric(task: str, tmp_path: Path) -> None:
    _, features, classes = homophilous()
    labels: Any = {"multilabel": np.eye(3)[classes], "regression": features[:, 0] * 2.5, "binary": classes == 1}[task]
    store = easy_store(tmp_path / "g", labels)
    made = [train(store, small(f"model.name={name}"), tmp_path / name).path for name in ("mlp", "largegt-local")]
    page = Page(report(made, tmp_path / "page.html").read_text())
    metric = {"multilabel": "roc_auc", "regression": "rmse", "binary": "accuracy"}[task]
    assert f"Validation {metric} by epoch" in page.tables
    assert any(f"test {metric}" in rows[0] for rows in page.tables.values())
    assert "Not looked into" not in page.text
    if task == "regression":
        assert "Error by degree" in page.tables
        assert "Each tenth of the nodes by true value" in page.tables
        rows = scores_of(page)
        found = {name: Run.open(tmp_path / name).metrics["test"]["rmse"] for name in rows}
        better = min(found, key=lambda name: found[name])
        assert rows[better][0] == f"1{found[better]:.4f}", "rank 1: the smaller, the better"
    else:
        assert len(page.tables["Scores by label" if task == "multilabel" else "Scores by class"]) > 2


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    run = train(easy_store(tmp_path / "g"), small("train.epochs=2"), tmp_path / "run").path
    shutil.rmtree(tmp_path / "g")
    page = Page(report([run], tmp_path / "page.html").read_text())
    assert "Not looked into" in page.text
    assert "is no longer at" in page.text
    assert "codebook" in page.ids, "the weights alone say how the codebook is used"
    assert "attention" not in page.ids
    assert len(scores_of(page)) == 1


def test_columns_of_tables_are_shown_and_what_they_carried(tmp_path: Path) -> None:
    """As `largegt inspect` has them; and the column that says the class carried most."""
    store = table_store(tmp_path / "g", edge_columns=True)
    settings = ("train.epochs=20", "model.name=largegt-local", "model.residual=true")
    run = train(store, small(*settings), tmp_path / "run").path
    text = report([run], tmp_path / "page.html").read_text()
    page = Page(text)
    shown = printable(HOSTILE_COLUMN)
    assert page.tables["Columns of nodes"] == [
        ["column", "kind", "used as", "missing", "distinct"],
        ["city", "category", "one-hot, 4 wide", "0", "3"],
        ["age", "number", "number, 1 wide", "0", "63"],
        [shown, "number", "number, 1 wide", "0", ""],
        ["since", "date", "year, cycles and age, 6 wide", "0", ""],
        ["nothing", "ignored", "ignored: no value", "150", "0"],
    ]
    assert [row[0] for row in page.tables["Columns of edges"][1:]] == ["amount", "way"]
    assert "city: equals the label" in page.text
    assert "i" not in page.tags
    assert "\x1b" not in text
    carried = page.tables["What columns carried"][1:]
    assert carried[0][0] == "city"
    assert {row[0] for row in carried} == {"city", "age", shown, "since", "amount (edges)", "way (edges)"}
    means = [float(row[1]) for row in carried]
    assert means == sorted(means, reverse=True)
    shutil.rmtree(tmp_path / "g")
    gone = Page(report([run], tmp_path / "gone.html").read_text())
    assert "columns" not in gone.ids


def test_features_of_an_array_have_no_columns(page: Page) -> None:
    assert not {"columns", "column-use"} & set(page.ids)


def test_without_looking_into_weights(runs: list[Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("analysis.json")))
    page = Page(report([run], tmp_path / "page.html", look_into=False).read_text())
    assert "it was not asked for" in page.text
    assert not (run / "analysis.json").exists()


def test_one_run(runs: list[Path], tmp_path: Path) -> None:
    page = Page(report(runs[:1], tmp_path / "page.html").read_text())
    assert list(scores_of(page)) == ["mlp"]
    assert "nothing to compare" in page.text
    assert "k" not in page.ids
    assert "codebook" not in page.ids


def test_many_runs_with_long_histories_stay_small(runs: list[Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    copies = []
    for number in range(10):
        path = Path(shutil.copytree(runs[number % 4], tmp_path / f"run{number}"))
        text = (path / "config.toml").read_text()
        (path / "checksums.json").unlink()
        (path / "config.toml").write_text(text.replace("hidden_dim = 8", f"hidden_dim = {8 + 2 * number}"))
        entry = Run.open(path).history[-1]
        lines = [
            {**entry, "epoch": e + 1, "elapsed_s": 60.0 * e, "train": {"loss": rng.random()},
             "valid": {**entry["valid"], "accuracy": rng.random()}}
            for e in range(500)
        ]  # fmt: skip
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        copies.append(path)
    made = report(copies, tmp_path / "page.html", look_into=False)
    assert made.stat().st_size < 400_000
    page = Page(made.read_text())
    assert len(scores_of(page)) == 10
    assert len(page.tables["Validation accuracy by epoch"]) <= 28


def test_folders_of_one_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    twins = [Path(shutil.copytree(runs[0], tmp_path / part / "run")) for part in ("a", "b")]
    page = Page(report([*twins, twins[0]], tmp_path / "page.html").read_text())
    assert [row[0] for row in page.tables["All runs"][1:]] == ["a/run", "b/run"]


def test_a_run_without_validation_nodes(tmp_path: Path) -> None:
    parts = thirds(150)
    store = easy_store(tmp_path / "g", splits={"train": parts["train"], "test": parts["test"]})
    run = train(store, small(), tmp_path / "run")
    page = Page(report([run.path], tmp_path / "page.html").read_text())
    assert next(iter(scores_of(page).values()))[1] == "–"
    assert "no model is called best" in page.text


def test_a_run_without_valid_and_test_nodes_is_refused(tmp_path: Path) -> None:
    store = easy_store(tmp_path / "g", splits={"train": np.arange(100)})
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    with pytest.raises(InputError, match="nothing to report"):
        report([run.path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_an_unfinished_run_is_a_clear_error(runs: list[Path], tmp_path: Path) -> None:
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


def test_runs_of_different_graphs_have_tables_of_their_own(runs: list[Path], tmp_path: Path) -> None:
    other = train(easy_store(tmp_path / "h", name="second graph"), small("train.epochs=1"), tmp_path / "other")
    same_name = train(easy_store(tmp_path / "x" / "g", splits=None), small("train.epochs=1"), tmp_path / "twin")
    page = Page(report([*runs, other.path, same_name.path], tmp_path / "page.html").read_text())
    tables = [caption for caption in page.tables if caption.startswith("Scores on")]
    assert len(tables) == 3
    assert any("second graph" in caption for caption in tables)
    assert sum("Scores on g (" in caption for caption in tables) == 2, "two stores of one name are two"
