"""Explain: the score is that of predict, its parts add up, and what a node is worth is what the model says without
it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from browser_helpers import CHROMIUM, answer, browse, driven
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.explanation.attribution import Attribution
from largegt.explanation.explanation import Explanation
from largegt.explanation.inputs import Inputs, by_part
from largegt.explanation.node import explain
from largegt.inference.predictor import predict
from largegt.loader.batch import TokenBatch
from largegt.loader.label_inputs import LocalLabels
from largegt.preprocessing.prepared import sample_rows
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import HOSTILE_COLUMN, Cli, easy_store, homophilous, left_in, one_thread, small, table_store  # noqa: F401

EVERYTHING = (
    "model.name=largegt-full", "model.label_embeddings=true", "model.neighbor_label_hops=2", "model.num_layers=2",
    "model.hop_embedding=true", "model.residual=true", "prepare.local_nodes.k=6", "train.num_eval_samples=2",
    "model.local_label_histograms=true", "model.hop_distance_embedding=true",
)  # fmt: skip
PLAIN = ("model.name=largegt-local", "prepare.local_nodes.k=8", "model.residual=false", "train.num_eval_samples=1")


def labels_of(task: str) -> Any:
    classes = homophilous()[2]
    if task == "multiclass":
        labels: Any = np.array(["blue", "<green>", "red"])[classes].astype(object)
        labels[::5] = None
        return labels
    if task == "binary":
        return classes % 2
    if task == "multilabel":
        return np.stack([classes == 0, classes > 0], axis=1).astype(np.float32)
    return classes + np.random.default_rng(0).normal(size=150)


def trained(folder: Path, task: str, *settings: str) -> Run:
    store = easy_store(folder / "g", labels_of(task), **({"task": task} if task != "multiclass" else {}))
    return train(store, small("train.epochs=2", *settings), folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All parts that a LargeGT may have, and nodes without a label."""
    return trained(tmp_path_factory.mktemp("explained"), "multiclass", *EVERYTHING)


@pytest.fixture(scope="module")
def found(run: Run) -> Explanation:
    return explain(run, 7)


def log_odds(probability: float) -> float:
    return float(np.log(probability) - np.log1p(-probability))


class Said:
    """The slow, obvious way: the model itself, on the node's tokens written out, with some local nodes left out."""

    def __init__(self, run: Run, num_eval_samples: int) -> None:
        self.num_eval_samples, self.store = num_eval_samples, run.store()
        self.prepared = run.prepared(reachable=num_eval_samples > 1)
        self.model = run.load_model(self.prepared).double()
        self.labels = LocalLabels.of_training_nodes(self.prepared)

    def local_rows(self, node: int, draw: int) -> list[int]:
        row = self.prepared.rows_of(np.array([node]))
        if draw == 0:
            return [int(each) for each in self.prepared.local_rows[row[0]]]
        return [int(each) for each in sample_rows(self.store, self.prepared, row, draw).local_rows[0]]

    def nodes(self, node: int) -> set[int]:
        drawn = {row for draw in range(self.num_eval_samples) for row in self.local_rows(node, draw)[1:]}
        return {int(self.prepared.token_nodes[row]) for row in drawn}

    def surroundings(self, node: int, at: int, rows: list[int]) -> dict[str, torch.Tensor]:
        """Which of its local nodes are neighbours, and labels around each of them, one neighbour after the other."""
        indptr, indices = self.store.csr("both")
        around = {n: indices[indptr[n] : indptr[n + 1]].tolist() for n in range(self.store.num_nodes)}
        local = [int(self.prepared.token_nodes[row]) for row in rows]
        train = set(self.store.splits["train"].tolist())
        contexts = np.zeros((1, len(rows), len(self.store.classes) + 1))
        for k, other in enumerate(local):
            known = [n for n in around[other] if n in train and n != node]
            for n in known:
                contexts[0, k, self.store.labels[n]] += 1 / len(known)
            contexts[0, k, -1] = len(known) / max(1, len(around[other]))
        near = [[other in around[node] for other in local]]
        return {"is_neighbor": torch.tensor(near), "local_label_histogram": torch.from_numpy(contexts)}

    @torch.no_grad()
    def probabilities(self, node: int, dropped: int | None = None) -> np.ndarray:
        [at] = self.prepared.rows_of(np.array([node]))
        every = []
        for draw in range(self.num_eval_samples):
            own, *others = self.local_rows(node, draw)
            rows = [own, *(row for row in others if int(self.prepared.token_nodes[row]) != dropped)]
            tokens = torch.from_numpy(np.array(self.prepared.tokens[rows])).double()
            batch = TokenBatch(
                nodes=torch.tensor([node]),
                tokens=tokens.view(1, -1, tokens.shape[2]),
                multiplicity=None,
                positions=torch.from_numpy(np.array(self.prepared.positions[at : at + 1])).double(),
                labels=torch.tensor([0]),
                neighbor_label_histogram=torch.from_numpy(np.array(self.prepared.neighbor_label_histogram[at : at + 1]))
                .flatten(1)
                .double(),
                local_labels=self.labels.labels_for(torch.tensor([rows])),
                **self.surroundings(node, at, rows),
            )
            every.append(self.model(batch).logits[0].softmax(dim=0).numpy())
        mean: np.ndarray = np.mean(every, axis=0)
        return mean


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "num_eval_samples"), [(EVERYTHING, 2), (PLAIN, 1)], ids=["everything", "plain"])
def test_what_a_node_is_worth_is_what_the_model_says_without_it(
    settings: tuple[str, ...], num_eval_samples: int, run: Run, tmp_path: Path
) -> None:
    one = run if settings is EVERYTHING else trained(tmp_path, "multiclass", *settings)
    found = explain(one, 7)
    said = Said(one, num_eval_samples)
    target = said.store.classes.index(found.target)
    whole = log_odds(said.probabilities(7)[target])
    assert found.score == pytest.approx(whole, abs=1e-6)
    assert {each.node for each in found.local_nodes} == said.nodes(7)
    for each in found.local_nodes:
        expected = whole - log_odds(said.probabilities(7, dropped=each.node)[target])
        assert each.without == pytest.approx(expected, abs=1e-6)
    assert max(abs(each.without) for each in found.local_nodes) > 1e-3


def test_the_parts_add_up(found: Explanation) -> None:
    total = sum(piece.carried for piece in found.pieces)
    assert total + found.gap == pytest.approx(found.score - found.base_score, abs=1e-9)
    assert abs(found.gap) <= 1e-2 * max(1.0, abs(found.score - found.base_score))
    by_name = {piece.name: piece.carried for piece in found.pieces}
    of_nodes = sum(value for name, value in by_name.items() if "local nodes" in name)
    assert sum(each.carried for each in found.local_nodes) == pytest.approx(of_nodes, abs=1e-9)
    assert sum(each.from_label for each in found.local_nodes) == pytest.approx(
        by_name["labels of local nodes"], abs=1e-9
    )
    for each in found.local_nodes:
        assert each.carried == pytest.approx(each.from_label + sum(each.by_token.values()), abs=1e-9)
    around = sum(each.carried for each in found.labels_around)
    assert around == pytest.approx(by_name["training labels around it"], abs=1e-9)
    centroids = sum(each.carried for each in found.centroids)
    assert centroids == pytest.approx(by_name["centroids of the whole graph"], abs=1e-9), "all six are listed"


@pytest.mark.slow
def test_columns_add_up_to_the_tokens_and_the_residual(tmp_path: Path) -> None:
    """Of a store whose nodes and edges come from tables: each feature belongs to one column, those of the degree and of
    edges lie behind, and the column that says the class is the strongest."""
    settings = ("model.name=largegt-full", "model.residual=true", "prepare.tokens.add_degrees=true", "train.epochs=20")
    one = train(table_store(tmp_path / "g", edge_columns=True), small(*settings), tmp_path / "run")
    found = explain(one, "n7")
    assert {(each.column, each.table) for each in found.columns} == {
        ("city", "nodes"), ("age", "nodes"), (HOSTILE_COLUMN, "nodes"), ("since", "nodes"), ("degree", "graph"),
        ("amount", "edges"), ("way", "edges"),
    }  # fmt: skip
    pieces = {piece.name: piece.carried for piece in found.pieces}
    of_features = sum(pieces.values()) - pieces["centroids of the whole graph"]
    assert sum(each.carried for each in found.columns) == pytest.approx(of_features, abs=1e-9)
    of_itself = pieces["its own H"] + pieces["its own features, added last"]
    assert sum(each.itself for each in found.columns) == pytest.approx(of_itself, abs=1e-9)
    assert found.columns[0].column == "city"
    assert found.columns[0].mostly.startswith("city=")
    assert {each.itself for each in found.columns if each.table == "edges"} == {0.0}
    assert found.as_dict()["columns"][0]["column"] == "city"
    assert HOSTILE_COLUMN not in found.text()
    assert "amount (edges)" in found.text()
    assert "<i>" not in found.html()
    assert "&lt;i&gt;" in found.html()


@pytest.mark.slow
def test_without_a_column_is_what_the_model_says_of_the_mean(tmp_path: Path) -> None:
    """Leaving a column out, the slow way: the features of one column replaced by hand in the tokens."""
    one = train(table_store(tmp_path / "g"), small(*PLAIN, "train.epochs=5"), tmp_path / "run")
    found = explain(one, "n7")
    said, number = Said(one, 1), 7
    target = said.store.classes.index(found.target)
    rows = said.local_rows(number, 0)
    real = torch.from_numpy(np.array(said.prepared.tokens[rows])).double()
    mean = torch.from_numpy(np.array(said.prepared.tokens)).double().mean(dim=0)
    places = {"city": range(4), "age": range(4, 5), HOSTILE_COLUMN: range(5, 6), "since": range(6, 12)}
    for each in found.columns:
        tokens = real.clone()
        tokens[..., list(places[each.column])] = mean[:, list(places[each.column])]
        scores = []
        for some in (real, tokens):
            batch = TokenBatch(
                nodes=torch.tensor([number]), tokens=some.view(1, -1, some.shape[2]), multiplicity=None,
                positions=torch.zeros(1, 0).double(), labels=torch.tensor([0]), neighbor_label_histogram=None,
                local_labels=None,
            )  # fmt: skip
            with torch.no_grad():
                scores.append(log_odds(float(said.model(batch).logits[0].softmax(dim=0)[target])))
        assert each.without == pytest.approx(scores[0] - scores[1], abs=1e-6), each.column
    assert len(found.columns) == 4


def test_features_of_an_array_have_no_columns(found: Explanation) -> None:
    assert found.columns == []
    assert "\nColumns" not in found.text()
    assert 'id="columns"' not in found.html()


@pytest.mark.slow
def test_integrated_gradients_against_small_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part's share, by going the way in small steps and moving that part alone for a bit at each."""
    asked: list[Attribution] = []
    real = Attribution.integrated

    def kept(self: Attribution) -> tuple[Inputs, float]:
        asked.append(self)
        return real(self)

    monkeypatch.setattr(Attribution, "integrated", kept)
    explain(run, 12)
    [one] = asked
    way = by_part(torch.sub, one.inputs, one.baseline)

    num_steps, small_bit = 60, 1e-4
    for name in ("tokens", "labels", "weights", "around", "own"):
        total = 0.0
        for step in range(num_steps):
            place = (step + 0.5) / num_steps
            here = by_part(lambda base, step, place=place: base + place * step, one.baseline, way)
            low, high = (one.score_of(here | {name: here[name] + sign * small_bit * way[name]}) for sign in (-1, 1))
            total += (high - low) / (2 * small_bit) / num_steps
        assert float(one.carried[name].sum()) == pytest.approx(total, abs=1e-2), name


def test_attention_is_beside_and_sums_to_at_most_one(found: Explanation) -> None:
    assert 0 < sum(each.weight for each in found.local_nodes) <= 1 + 1e-9
    assert sum(each.weight for each in found.centroids) == pytest.approx(1.0)
    assert sum(each.by_size for each in found.centroids) == pytest.approx(1.0)
    drawn = sum(each.drawn for each in found.local_nodes)
    assert drawn == pytest.approx(5), "K = 6, and one of them is the node itself"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_other_tasks(task: str, tmp_path: Path) -> None:
    name = {"binary": "full", "multilabel": "local", "regression": "global"}[task]
    one = trained(tmp_path, task, f"model.name=largegt-{name}", "model.neighbor_label_hops=0")
    row = predict(one, ids=[3], all_probabilities=True).to_pylist()[0]
    found = explain(one, 3)
    if task == "regression":
        assert found.score == pytest.approx(row["value"], abs=1e-4)
        assert found.local_nodes == []
        with pytest.raises(ConfigError, match="leave out `label`"):
            explain(one, 3, label="1")
    else:
        for label in one.store().classes:
            each = explain(one, 3, label=label)
            assert each.target == label
            assert each.score == pytest.approx(log_odds(row[f"probability_{label}"]), abs=1e-3)
            assert each.probability == pytest.approx(row[f"probability_{label}"], abs=1e-5)
            total = sum(piece.carried for piece in each.pieces)
            assert total == pytest.approx(each.score - each.base_score, abs=1e-2)
    assert str(found.node) in found.text()
    assert "NaN" not in found.html()


def test_hops_and_edges_are_those_of_the_graph(run: Run, found: Explanation) -> None:
    indptr, indices = run.store().csr("both")
    near = {node: set(indices[indptr[node] : indptr[node + 1]].tolist()) for node in range(150)}
    for each in found.local_nodes:
        assert each.hop == (1 if each.node in near[7] else 2)
        assert each.node in near[7] or near[each.node] & near[7]
    drawn = [7, *(each.node for each in found.local_nodes)]
    expected = {
        (a - 1, b - 1) for a in range(len(drawn)) for b in range(a + 1, len(drawn)) if drawn[b] in near[drawn[a]]
    }
    assert set(found.edges) == expected


def test_a_node_that_was_not_prepared(run: Run) -> None:
    found = explain(run, 5)
    assert found.label is None
    row = predict(run, ids=[5]).to_pylist()[0]
    assert found.predicted == row["label"]
    assert found.probability == pytest.approx(row["probability"], abs=1e-5)


def test_a_node_without_neighbours(make_store: Any, tmp_path: Path) -> None:
    """Its local nodes come from the whole graph, and are said to."""
    store: GraphStore = make_store(
        [(a, (a + 1) % 40) for a in range(40)], 41, np.random.default_rng(0).normal(size=(41, 4))
    )
    one = train(store, small("train.epochs=1", "model.name=largegt-local"), tmp_path / "run")
    found = explain(one, 40)
    assert {each.hop for each in found.local_nodes} == {0}
    assert "drawn at random" in found.text()
    assert "</svg>" in found.html()


def test_what_cannot_be_explained(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'blue'.*there are"):
        explain(run, 7, label="blu")
    with pytest.raises(ConfigError, match=r"explanations end in \.html"):
        explain(run, 7).write(tmp_path / "e.png")
    with pytest.raises(InputError, match=r"has no node 'nobody'|not a whole number"):
        explain(run, "nobody")
    mlp = train(run.store(), small("model.name=mlp", "train.epochs=1"), tmp_path / "mlp")
    with pytest.raises(ConfigError, match=r"is a mlp.*only predictions of LargeGT"):
        explain(mlp, 7)


def test_the_page_shows_names_and_runs_nothing(found: Explanation) -> None:
    html, svg = found.html(), found.svg()
    assert "<green>" not in html
    assert "<green>" not in svg
    assert "&lt;green&gt;" in html
    assert svg.count("data-tip") == min(40, len(found.local_nodes)) + 1
    assert len(html) < 60_000
    assert len(re.findall(r"<script", html)) == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_fits_a_phone_and_answers(found: Explanation, tmp_path: Path) -> None:
    """In 390 pixels nothing is wider, the picture has a size, and a hover tells the node under it."""
    script = """
      document.body.style.width = '390px';
      const right = document.body.getBoundingClientRect().right + 1;
      const wide = [...document.querySelectorAll('section > *, figure, svg.chart')]
        .filter(one => one.getBoundingClientRect().right > right).length;
      const dot = document.querySelector('svg.around g.full, svg.around g.open'), box = dot.getBoundingClientRect();
      const place = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
      dot.dispatchEvent(new PointerEvent('pointermove', place));
      const size = document.querySelector('svg.around').getBoundingClientRect();
      return [wide, Math.min(size.width, size.height), tip.textContent];
    """
    page = found.write(tmp_path / "page.html")
    wide, size, said = answer(browse(driven(page, tmp_path / "driven.html", script), tmp_path))  # type: ignore[misc]
    assert wide == 0
    assert size > 300
    assert said.split("\n")[0] in {str(each.node) for each in found.local_nodes}
    assert "without it" in said


@pytest.mark.slow
def test_the_command(run: Run, lg: Cli, tmp_path: Path) -> None:
    out = tmp_path / "new" / "e.json"
    done = lg("explain", run.path, "--node", 7, "--out", out, "--label", "red", "--num-eval-samples", 1)
    assert done.code == 0, done.err
    assert "log-odds of red" in done.out
    kept = json.loads(out.read_text())
    assert kept["target"] == "red"
    assert kept["num_eval_samples"] == 1
    assert lg("explain", run.path, "--node", 7, "--label", "red", "--num-eval-samples", 1, "--json").json == kept
    refused = lg("explain", run.path, "--node", 7, "--out", out)
    assert refused.code == 2
    assert "already exists" in refused.err
    assert lg("explain", run.path, "--node", 7, "--out", tmp_path / "e.png").code == 2
    assert lg("explain", run.path, "--node", 7, "--out", tmp_path / "e.svg").code == 0
    assert left_in(tmp_path) == ["e.svg", "new", "new/e.json"]
