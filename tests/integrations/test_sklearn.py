"""The scikit-learn manners of LargeGT: nodes are the samples, the graph is prepared once, nothing is left behind."""

from __future__ import annotations

import copy
import gc
import importlib
import json
import pickle
import re
import runpy
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import scipy.sparse
import torch

import largegt as lg
from largegt.integrations import store_cache
from largegt.integrations.sklearn import SampleError
from largegt.training.run import Run
from run_helpers import easy_store, homophilous, left_in, one_thread  # noqa: F401

pytestmark = pytest.mark.slow

base = pytest.importorskip("sklearn.base")
model_selection = pytest.importorskip("sklearn.model_selection")
prepared_home = importlib.import_module("largegt.preprocessing.pipeline")

EDGES, FEATURES, CLASSES = homophilous()
NODES = np.arange(len(CLASSES))
WORDS = np.array(["art", "law", "zoo"])[CLASSES]
ADJACENCY = scipy.sparse.csr_matrix((np.ones(EDGES.shape[1]), (EDGES[0], EDGES[1])), shape=(150, 150))
LIKE_DATA = SimpleNamespace(edge_index=EDGES, x=FEATURES, num_nodes=150)
QUICK: dict[str, Any] = {
    "k": 4, "hidden_dim": 8, "epochs": 4, "batch_size": 32, "learning_rate": 0.02, "random_state": 0, "device": "cpu",
    "settings": {"prepare.positional_encoding.dim": 3, "train.num_eval_samples": 1, "train.resample": "never"},
}  # fmt: skip


def quick(graph: Any = ADJACENCY, features: Any = FEATURES, kind: Any = None, **changes: Any) -> Any:
    return (kind or lg.LargeGTClassifier)(graph=graph, features=features, **QUICK | changes)


@pytest.fixture(scope="module")
def fitted() -> Any:
    return quick().fit(NODES[:100], WORDS[:100])


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own for temporary files, and no graph from before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(store_cache, "_last", None)
    monkeypatch.setattr(store_cache, "_caches", WeakValueDictionary())
    return tmp_path


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which stages of a preparation were computed, not taken from an earlier one."""
    seen: list[str] = []
    names = {"local_nodes": "nodes", "tokens": "tokens", "neighbor_label_histogram": "labels"}
    for name, word in names.items():
        real = prepared_home.WRITE[name]

        def noted(*args: Any, real: Any = real, word: str = word) -> Any:
            seen.append(word)
            return real(*args)

        monkeypatch.setitem(prepared_home.WRITE, name, noted)
    return seen


# what it learns


def test_it_learns_and_says_the_users_own_classes(fitted: Any) -> None:
    others = NODES[100:]
    predicted, probabilities = fitted.predict(others), fitted.predict_proba(others)
    assert fitted.classes_.tolist() == ["art", "law", "zoo"]
    assert probabilities.shape == (50, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(predicted, fitted.classes_[probabilities.argmax(axis=1)])
    assert fitted.score(others, WORDS[100:]) == (predicted == WORDS[100:]).mean() > 0.8
    assert fitted.n_iter_ == 4
    assert set(fitted.validation_scores_) == {"loss", "accuracy", "macro_f1"}


def test_it_is_what_the_library_trains(fitted: Any, tmp_path: Path) -> None:
    """An ordinary ingest, train and predict with the same split and settings say the same."""
    store = Run.open(fitted.run_path_).store()
    assert sorted(np.concatenate([store.splits["train"], store.splits["valid"]])) == list(range(100))
    valid = WORDS[store.splits["valid"]]
    assert [int((valid == word).sum()) for word in ("art", "law", "zoo")] == pytest.approx([10 / 3] * 3, abs=1)
    assert not len(store.splits["test"])
    labels = np.where(NODES < 100, WORDS, "")
    again = lg.ingest(lg.sources.arrays(EDGES, FEATURES, labels, store.splits, num_nodes=150), tmp_path / "g")
    run = lg.train(again, fitted.config_, tmp_path / "run", score_test=False)
    table = lg.predict(run, all_probabilities=True)
    expected = np.stack([table[f"probability_{word}"].to_numpy() for word in fitted.classes_], axis=1)
    np.testing.assert_allclose(fitted.predict_proba(NODES), expected, atol=1e-6)


def test_the_order_of_nodes_is_the_callers(fitted: Any) -> None:
    some = np.array([140, 3, 77, 3])
    every = fitted.predict_proba(NODES)
    np.testing.assert_allclose(fitted.predict_proba(some), every[some], atol=1e-6)
    np.testing.assert_allclose(fitted.predict_proba(some[:, None]), every[some], atol=1e-6)
    mask = np.isin(NODES, some)
    np.testing.assert_allclose(fitted.predict_proba(mask), every[[3, 77, 140]], atol=1e-6)


def test_every_form_of_the_graph_is_the_same_graph(fitted: Any, work: Path) -> None:
    data_class = pytest.importorskip("torch_geometric.data").Data
    data = data_class(x=torch.from_numpy(FEATURES), edge_index=torch.from_numpy(EDGES))
    store = lg.ingest(lg.sources.arrays(torch.from_numpy(EDGES), FEATURES, CLASSES), work / "store")
    before = left_in(work / "store")
    expected = fitted.predict_proba(NODES[100:])
    sparse = scipy.sparse.csr_matrix(FEATURES)
    for graph, features in ((EDGES, sparse), (data, None), (work / "store", None)):
        found = quick(graph, features).fit(NODES[:100], WORDS[:100]).predict_proba(NODES[100:])
        np.testing.assert_allclose(found, expected, atol=1e-6)
    store_cache._last = None
    gc.collect()
    assert [name for name in left_in(work / "store") if name != "refs"] == before
    assert store.splits["test"].size  # the store's own labels and split are not looked at


def test_a_store_with_ids_of_its_own(work: Path) -> None:
    ids = np.array([f"page {node}" for node in NODES])
    store = lg.ingest(lg.sources.arrays(ids[EDGES], FEATURES, CLASSES, node_ids=ids), work / "g")
    clf = quick(store, None).fit(ids[:100], CLASSES[:100])
    assert clf.score(ids[100:], CLASSES[100:]) > 0.8
    with pytest.raises(SampleError, match="has no node 'page 999'"):
        clf.predict(["page 999"])


def test_two_classes_several_labels_and_values(work: Path) -> None:
    two = quick().fit(NODES[:100], CLASSES[:100] == 1)
    assert two.classes_.tolist() == [False, True]
    assert two.predict(NODES[100:]).dtype == bool
    assert two.predict_proba([0]).shape == (1, 2)
    rows = np.eye(3, dtype=int)[CLASSES]
    many = quick(epochs=8, learning_rate=0.05).fit(NODES[:100], rows[:100])
    assert many.predict_proba([5, 6]).shape == (2, 3)
    assert (many.predict(NODES[100:]) == rows[100:]).mean() > 0.8
    values = 100.0 + 5 * FEATURES[:, 0]
    line = quick(kind=lg.LargeGTRegressor, epochs=8, learning_rate=0.05).fit(NODES[:100], values[:100])
    assert line.predict(NODES[100:]).shape == (50,)
    assert line.score(NODES[100:], values[100:]) > 0.5


def test_validation_that_is_given_and_none(work: Path) -> None:
    clf = quick(epochs=1).fit(NODES[:80], WORDS[:80], validation=(NODES[80:100], WORDS[80:100]))
    store = Run.open(clf.run_path_).store()
    assert store.splits["train"].tolist() == list(range(80))
    assert store.splits["valid"].tolist() == list(range(80, 100))
    clf = quick(epochs=1, validation_fraction=0).fit(NODES[:20], WORDS[:20])
    assert clf.validation_scores_ == {}
    alone = np.r_[0, 1, 2, 3, 6, 9, 4]  # one node of the third class: it trains
    for seed in range(2):
        clf = quick(epochs=1, validation_fraction=0.5, random_state=seed).fit(alone, WORDS[alone])
        assert 2 in Run.open(clf.run_path_).store().splits["train"]


# what scikit-learn does with it


def test_cross_validation_prepares_the_graph_once(work: Path, stages: list[str]) -> None:
    scores = model_selection.cross_val_score(quick(), NODES, WORDS, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.7
    assert stages.count("nodes") == stages.count("tokens") == 1
    assert stages.count("labels") == 3  # these are counted over the training nodes of each fold


def test_folds_are_scored_on_nodes_they_never_saw(work: Path) -> None:
    found = model_selection.cross_validate(
        quick(epochs=1), NODES, WORDS, cv=3, return_estimator=True, return_indices=True
    )
    for clf, train, test in zip(found["estimator"], *found["indices"].values(), strict=True):
        store = Run.open(clf.run_path_).store()
        assert np.flatnonzero(store.labelled).tolist() == train.tolist()
        assert not store.labelled[test].any()


def test_a_grid_search(work: Path, stages: list[str]) -> None:
    search = model_selection.GridSearchCV(quick(epochs=1), {"k": [3, 4], "dropout": [0.0, 0.4]}, cv=2)
    search.fit(NODES, WORDS)
    assert search.best_estimator_.config_.model.dropout == search.best_params_["dropout"]
    assert search.best_estimator_.config_.prepare.local_nodes.k == search.best_params_["k"]
    assert search.predict(NODES).shape == (150,)
    assert stages.count("nodes") == 2  # one for each k


def test_clones_parameters_and_copies(fitted: Any) -> None:
    twin = base.clone(fitted)
    assert twin.graph is fitted.graph
    assert twin.features is fitted.features
    assert not hasattr(twin, "classes_")
    assert twin.get_params() == fitted.get_params()
    assert twin.settings is not fitted.settings
    assert twin.set_params(k=7, hidden_dim=16).get_params()["k"] == 7
    assert fitted.k == 4
    assert base.is_classifier(fitted)
    assert base.is_regressor(quick(kind=lg.LargeGTRegressor))


def test_it_is_pickled_whole(fitted: Any, work: Path) -> None:
    """Where no folder of the first one is in reach, all is made again from what was pickled."""
    expected = fitted.predict_proba(NODES)
    twin = pickle.loads(pickle.dumps(fitted))
    assert not left_in(work)
    np.testing.assert_array_equal(twin.predict_proba(NODES), expected)
    assert twin._fitted.run.is_relative_to(work)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(twin))))
    np.testing.assert_array_equal(again.predict_proba(NODES), expected)
    np.testing.assert_array_equal(copy.deepcopy(again).set_params(graph=None).predict(NODES), fitted.predict(NODES))


def test_a_number_seeds_everything(work: Path) -> None:
    one, two = (quick(epochs=1).fit(NODES[:60], WORDS[:60]) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(NODES), two.predict_proba(NODES))
    other = quick(epochs=1, random_state=1).fit(NODES[:60], WORDS[:60])
    assert (other.predict_proba(NODES) != one.predict_proba(NODES)).any()
    assert other.config_.prepare.local_nodes.seed == other.config_.prepare.positional_encoding.seed == 1
    drawn = quick(epochs=1, random_state=np.random.RandomState(5)).fit(NODES[:60], WORDS[:60])
    assert drawn.config_.train.seed == np.random.RandomState(5).randint(2**31 - 1)
    assert drawn.config_.prepare.local_nodes.seed == 0


@pytest.mark.parametrize("kind", ["LargeGTClassifier", "LargeGTRegressor"])
def test_the_checks_of_scikit_learn_that_need_no_data(kind: str) -> None:
    """The others fit X as a matrix of features, which the documentation says."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    estimator = quick(kind=getattr(lg, kind))
    for name in (
        "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
        "check_no_attributes_set_in_init", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
        "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params",
        "check_estimators_unfitted", "check_requires_y_none", "check_fit1d",
    ):  # fmt: skip
        getattr(checks, name)(kind, estimator)


# folders


def test_temporary_folders_go_with_the_estimator(work: Path) -> None:
    clf = quick(epochs=1).fit(NODES[:30], WORDS[:30])
    other = quick(epochs=1).fit(NODES[:40], WORDS[:40])
    assert len(list(work.glob("largegt-*"))) == 1
    first, second = clf.run_path_, other.run_path_
    del clf
    gc.collect()
    assert not first.exists()
    assert second.exists()
    cached = Run.open(second).store_path
    assert len(list(cached.glob("features-*.npy"))) == 1, "both fits share the graph's arrays"
    assert [json.loads(ref.read_text())["run"] for ref in (cached / "refs").iterdir()] == [str(second)]
    del other
    store_cache._last = None
    gc.collect()
    assert not list(work.glob("largegt-*"))


def test_a_work_folder_is_kept_and_serves_again(work: Path, stages: list[str]) -> None:
    folder = work / "kept"
    clf = quick(epochs=1, work_dir=folder).fit(NODES[:60], WORDS[:60])
    run = clf.run_path_
    assert run.is_relative_to(folder)
    expected = clf.predict(NODES)
    del clf
    gc.collect()
    assert [lg.predict(run)["label"].to_pylist()] == [expected.tolist()]
    quick(epochs=1, work_dir=folder).fit(NODES[:50], WORDS[:50])
    assert stages.count("nodes") == 1
    assert not list(work.glob("largegt-*"))


def test_a_user_s_preparation_is_used(work: Path, stages: list[str]) -> None:
    store = easy_store(work / "g")
    clf = quick(store, None, epochs=1).fit(NODES[:60], WORDS[:60])
    lg.prepare(store, clf.config_.preparation)
    stages.clear()
    del clf
    store_cache._last = None
    gc.collect()
    quick(store, None, epochs=1).fit(NODES[:60], WORDS[:60])
    assert set(stages) == {"labels"}


# what is refused


@pytest.mark.parametrize(
    ("changes", "X", "y", "message"),
    [
        ({"graph": None}, [0, 1], [0, 1], "no graph was given"),
        ({"graph": scipy.sparse.eye(3, 4)}, [0, 1], [0, 1], "square"),
        ({"graph": np.ones((5, 5))}, [0, 1], [0, 1], r"edge_index \[2, E\]"),
        ({"features": FEATURES[:, 0]}, [0, 1], [0, 1], r"expected \[N, d\]"),
        ({"graph": LIKE_DATA}, [0, 1], [0, 1], "features were given twice"),
        ({}, FEATURES, CLASSES, "features belong to the constructor"),
        ({}, [0, 150], [0, 1], "no node 150"),
        ({}, [0, 1.5], [0, 1], "not a whole number"),
        ({}, [0, np.inf], [0, 1], "infinity"),
        ({}, [0, 1, 2], [0, 1], "3 nodes, and y has 2"),
        ({}, [], [], "names no node"),
        ({}, [0, 1], [1, 1], "one class only"),
        ({}, [0, 1, 2], [0, 1, np.nan], "NaN"),
        ({}, [0, 1], np.array([[0, 2], [1, 1]]), "several classes of many values"),
        ({"kind": lg.LargeGTRegressor}, [0, 1], ["a", "b"], "must be one number per node"),
        ({}, [0, 1, 1], [0, 1, 0], "named twice"),
        ({}, np.ones(9, dtype=bool), [0] * 9, "mask of 9 entries"),
        ({"validation_fraction": 1.0}, [0, 1], [0, 1], "validation_fraction"),
        ({"settings": "model.num_heads=2"}, [0, 1], [0, 1], "a dict or a list"),
        ({"settings": {"model.hats": 2}}, [0, 1], [0, 1], "model.hats"),
        ({"hidden_dim": 7}, [0, 1], [0, 1], "multiple of num_heads"),
        ({"work_dir": "s3://bucket/x"}, [0, 1], [0, 1], "cannot lie at a URL"),
    ],
)
def test_one_line_says_what_is_wrong(work: Path, changes: dict[str, Any], X: Any, y: Any, message: str) -> None:
    with pytest.raises(lg.LargeGTError, match=message) as caught:
        quick(**changes).fit(X, y)
    assert "\n" not in str(caught.value)


def test_samples_that_cannot_be_are_value_errors_and_not_fitted_is_scikit_learns(work: Path) -> None:
    with pytest.raises(ValueError, match="no node"):
        quick().fit([0, 999], [0, 1])
    with pytest.raises(pytest.importorskip("sklearn.exceptions").NotFittedError):
        quick().predict([0])
    with pytest.raises(SampleError, match="in X and in validation"):
        quick().fit([0, 1, 2], [0, 1, 2], validation=([2], [2]))
    with pytest.raises(SampleError, match="not in y"):
        quick().fit([0, 1], [0, 1], validation=([2], [2]))
    with pytest.raises(SampleError, match="must be a pair"):
        quick().fit([0, 1], [0, 1], validation=5)
    with pytest.raises(SampleError, match="another shape than y"):
        quick().fit([0, 1], [0, 1], validation=([2], [[0, 1]]))
    with pytest.raises(lg.LargeGTError, match="has its own features"):
        quick(easy_store(work / "g")).fit([0, 1], [0, 1])


def test_without_scikit_learn_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LargeGTClassifier", "estimators"):
        monkeypatch.delitem(vars(lg), name, raising=False)
    monkeypatch.delitem(sys.modules, "largegt.integrations.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(lg.LargeGTError, match="pip install 'largegt\\[sklearn\\]'"):
        _ = lg.LargeGTClassifier
    assert "LargeGTClassifier" in dir(lg)
    assert "LargeGTClassifier" not in lg.__all__  # so that a star import asks for nothing that is not there


def test_the_example_and_the_page(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    root = Path(__file__).parents[2]
    runpy.run_path(str(root / "examples" / "sklearn_style.py"))
    assert float(capsys.readouterr().out.split("test: ")[1].split()[0]) > 0.6
    page = (root / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), names)
    assert names["clf"].score(names["nodes"], names["y"]) > 0.6
    for name in names["clf"].get_params():
        assert f"`{name}`" in page or name == "verbose"
    assert {item.split("/")[0][:8] for item in left_in(work)} == {"largegt-"}  # temporary, and nothing else
