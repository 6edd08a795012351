"""PyTorch Geometric: `Data` and store to and fro, and token batches in a PyG script's own loop."""

from __future__ import annotations

import gc
import importlib
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
import torch
from torch.nn import functional as F

import largegt as lg
from largegt.integrations import store_cache
from oracles.context import token_rows
from run_helpers import homophilous, left_in, one_thread  # noqa: F401

Data = pytest.importorskip("torch_geometric.data").Data
transforms = pytest.importorskip("torch_geometric.transforms")

EDGES, FEATURES, CLASSES = homophilous()


def a_graph(y: Any = CLASSES, **parts: Any) -> Any:
    numbers = torch.arange(150)
    masks = {"train_mask": numbers < 90, "val_mask": (numbers >= 90) & (numbers < 120), "test_mask": numbers >= 120}
    y = {} if y is None else {"y": torch.as_tensor(y)}
    return Data(x=torch.from_numpy(FEATURES), edge_index=torch.from_numpy(EDGES), **masks, **y, **parts)


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(store_cache, "_last", None)
    monkeypatch.setattr(store_cache, "_caches", WeakValueDictionary())
    return tmp_path


# to and fro


def distinct_edges(data: Any) -> set[tuple[int, int]]:
    return {(a, b) for a, b in data.edge_index.T.tolist() if a != b}


@pytest.mark.parametrize("undirected", [False, True])
def test_there_and_back(work: Path, undirected: bool) -> None:
    data = a_graph()
    if undirected:
        data = transforms.ToUndirected()(data)
    back = lg.to_pyg(lg.from_pyg(data, work / "g"))
    assert isinstance(back, Data)
    assert back.validate()
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(back[name], data[name]), name
        assert back[name].dtype == data[name].dtype
    assert back.edge_index.dtype == torch.int64
    assert [tuple(pair) for pair in back.edge_index.T.tolist()] == sorted(distinct_edges(data))
    assert back.is_undirected() is undirected
    again = lg.to_pyg(lg.from_pyg(back, work / "h"))
    assert torch.equal(again.edge_index, back.edge_index)


@pytest.mark.parametrize(
    "y",
    [
        np.where(CLASSES == 2, 7, CLASSES * 2),  # classes 0, 2, 7
        np.where(np.arange(150) % 4 == 0, -1, CLASSES),
        FEATURES[:, 0],
        np.eye(3, dtype=np.float32)[CLASSES],
    ],
    ids=["gaps", "unlabelled", "values", "labels"],
)
def test_labels_come_back_as_they_were(y: np.ndarray) -> None:
    back = lg.to_pyg(lg.from_pyg(a_graph(y)))
    np.testing.assert_array_equal(back.y.numpy(), y)


def test_other_stores(work: Path) -> None:
    """Text for labels and ids, features of 16 bits, no labels at all."""
    words, ids = np.array(["art", "law", "zoo"])[CLASSES], np.array([f"page {n}" for n in range(150)])
    source = lg.sources.arrays(ids[EDGES], FEATURES, words, node_ids=ids)
    data = lg.to_pyg(lg.ingest(source, work / "g", lg.IngestConfig(feature_dtype="bfloat16")))
    assert [data.classes[c] for c in data.y] == words.tolist()
    assert data.node_id == ids.tolist()
    assert torch.equal(data.x, torch.from_numpy(FEATURES).bfloat16().float())
    bare = lg.to_pyg(lg.from_pyg(a_graph(None), work / "h"))
    assert "y" not in bare
    assert "train_mask" not in bare
    assert lg.to_pyg(str(work / "h")).num_nodes == 150


def test_a_store_without_a_place_of_its_own_outlives_its_object() -> None:
    prepared = lg.prepare(lg.from_pyg(a_graph()), lg.pyg.preparation(k=4))
    gc.collect()
    assert prepared.path.exists()


def test_without_pyg_one_line_says_so(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = lg.from_pyg(a_graph(), work / "g")
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(lg.LargeGTError, match="pip install 'largegt\\[pyg\\]'"):
        lg.to_pyg(store)


# batches


def accuracy(model: Any, batches: Any) -> float:
    model.eval()
    with torch.no_grad():
        right = [model(batch).logits.argmax(dim=1) == batch.labels for batch in batches]
    return float(torch.cat(right).float().mean())


def learn(model: Any, epochs: Any) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batches in epochs:
        model.train()
        for batch in batches:
            out = model(batch)
            optimizer.zero_grad()
            F.cross_entropy(out.logits, batch.labels).backward()
            optimizer.step()
            model.update_codebook(out)


def test_a_plain_loop_with_the_loader(work: Path) -> None:
    data = a_graph()
    batches = lg.pyg.loader(data, data.train_mask, k=4, batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = batches.model(lg.LargeGTConfig(hidden_dim=8))
    learn(model, [batches] * 12)
    assert accuracy(model, lg.pyg.loader(data, data.test_mask, k=4)) > 0.7
    assert len(list(work.glob("largegt-*"))) == 1


def test_what_a_batch_holds_and_the_order_of_epochs() -> None:
    data = a_graph(np.where(CLASSES == 1, 3, CLASSES))  # class 1 does not occur
    batches = lg.pyg.loader(data, data.val_mask, k=5, batch_size=7, shuffle=True, seed=3)
    epochs = [list(batches) for _ in range(2)]
    orders = [torch.cat([batch.nodes for batch in epoch]).tolist() for epoch in epochs]
    assert len(batches) == len(epochs[0]) == 5
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(90, 120))
    for batch in epochs[0]:
        assert torch.equal(batch.labels, data.y[batch.nodes])
        assert batch.tokens.shape == (len(batch), 15, 5)
    assert batches.model().head[-1].out_features == 4
    ordered = lg.pyg.loader(data, [4, 2], k=5)
    assert [batch.nodes.tolist() for batch in ordered] == [[4, 2]]


def test_loaders_of_a_graph_share_its_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    write = importlib.import_module("largegt.preprocessing.pipeline").WRITE
    real, calls = write["tokens"], []
    monkeypatch.setitem(write, "tokens", lambda *args: (calls.append(1), real(*args)))
    data = a_graph()
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        lg.pyg.loader(data, mask, k=4)
    assert len(calls) == 1
    data.x = data.x + 1
    lg.pyg.loader(data, k=4)
    assert len(calls) == 2


def test_the_transform_against_the_oracle_and_the_loader() -> None:
    data = transforms.Compose([transforms.ToUndirected(), lg.pyg.LargeGTTransform(k=4, seed=1)])(a_graph())
    np.testing.assert_array_equal(data.local_nodes, lg.local_nodes(data.edge_index.numpy(), k=4, seed=1))
    expected = token_rows(data.edge_index.T.tolist(), FEATURES, "both", standardize=True)
    np.testing.assert_allclose(data.token_rows, expected, atol=1e-4)
    batch = lg.pyg.token_batch(data, data.test_mask)
    same = next(iter(lg.pyg.loader(data, data.test_mask, prepare=lg.pyg.preparation(k=4, seed=1))))
    for name in ("nodes", "tokens", "positions", "labels"):
        assert torch.equal(getattr(batch, name), getattr(same, name)), name
    assert repr(lg.pyg.LargeGTTransform(k=4)) == "LargeGTTransform(k=4, seed=0, positions=64)"


def test_a_plain_loop_with_the_transform() -> None:
    data = lg.pyg.LargeGTTransform(k=4, positions=0)(a_graph())
    torch.manual_seed(0)
    model = lg.pyg.model_for(data, num_outputs=3, config=lg.LargeGTConfig(hidden_dim=8))
    nodes = data.train_mask.nonzero()[:, 0]
    learn(model, ([lg.pyg.token_batch(data, part) for part in nodes.split(32)] for _ in range(12)))
    assert accuracy(model, [lg.pyg.token_batch(data, data.test_mask)]) > 0.7


def test_nothing_is_left_behind(work: Path) -> None:
    batches = lg.pyg.loader(a_graph(), k=4)
    assert next(iter(batches)).tokens.shape == (150, 12, 5)
    del batches
    store_cache._last = None
    gc.collect()
    assert not left_in(work)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lg.pyg.loader(Data(x=torch.ones(3, 2))), "no edge_index"),
        (lambda: lg.pyg.loader(a_graph(), torch.ones(9, dtype=torch.bool)), r"shape \[9\]"),
        (lambda: lg.pyg.loader(a_graph(), [0, 150]), "names node 150"),
        (lambda: lg.pyg.loader(a_graph(), batch_size=0), "batch_size is 0"),
        (lambda: lg.pyg.loader(a_graph(CLASSES[:9])), "y has 9 entries"),
        (lambda: lg.pyg.loader(a_graph(None), k=4).model(), "has no y"),
        (lambda: lg.pyg.loader(SimpleNamespace(edge_index=EDGES, num_nodes=150, y=["a"] * 150)), "expected classes"),
        (lambda: lg.pyg.token_batch(a_graph(), [0]), "LargeGTTransform"),
        (lambda: lg.pyg.model_for(a_graph(), 3), "LargeGTTransform"),
    ],
)
def test_one_line_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(lg.LargeGTError, match=message):
        make()


@pytest.mark.slow
def test_the_example_and_the_page(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    root = Path(__file__).parents[2]
    runpy.run_path(str(root / "examples" / "pyg_script.py"))
    assert float(capsys.readouterr().out.split("test: ")[1]) > 0.6
    page = (root / "docs" / "pyg.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), names)
    assert names["loss"].isfinite()
