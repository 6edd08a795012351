"""Edge features: means at each node against a loop, contexts against dense algebra, the same bytes whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.cli.inspection import inspect
from largegt.config.models import model_spec
from largegt.config.schema import Config, IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, FormatError, InputError
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing.pipeline import prepare
from largegt.runtime.workers import Threads
from largegt.training.trainer import train
from oracles.context import adjacency, normalized
from oracles.weighted import edge_means

FEATURES = np.random.default_rng(5).normal(size=(30, 4)).astype(np.float32)
SETTINGS = ["prepare.tokens.precompute_for=all", "prepare.positional_encoding.method=none", "prepare.local_nodes.k=4"]


def source_of(graph: Any, **others: Any) -> sources.Source:
    labels = np.arange(30) % 2
    return sources.arrays(graph.edges, FEATURES, labels, num_nodes=30, edge_features=graph.edge_features, **others)


@pytest.mark.parametrize("undirected", [False, True])
def test_means_at_each_node(graph: Any, tmp_path: Path, undirected: bool) -> None:
    store = ingest(source_of(graph, weights=graph.weights), tmp_path / "g", IngestConfig(undirected=undirected))
    values = graph.edge_features.astype(np.float32)
    for direction in ("out", "in", "both"):
        expected = edge_means(graph.edges, values, 30, "both" if undirected else direction)
        assert np.array_equal(store.edge_features(direction), expected.astype(np.float32))
    assert store.num_edge_features == 3
    assert inspect(store.path)["edge_features"] == "edge feature 0, edge feature 1, edge feature 2"


@pytest.mark.parametrize(
    ("way", "normalize", "hops"),
    [
        ("both", "per_feature", 1), ("out", "none", 3), ("in", "per_feature", 2), ("separate", "per_feature", 2),
        ("separate", "none", 1),
    ],
)  # fmt: skip
def test_contexts_have_them(graph: Any, tmp_path: Path, way: str, normalize: str, hops: int) -> None:
    """H is [H, 0], C⁰ is [ÃH, e], C¹ is [Ã²H, Ãe]."""
    store = ingest(source_of(graph), tmp_path / "g")
    direction = "both" if way == "separate" else way
    given = [f"prepare.tokens.normalize={normalize}", f"prepare.local_nodes.direction={direction}"]
    given += ["prepare.tokens.separate_directions=true"] if way == "separate" else []
    found = prepare(store, Config.from_recipe("base", [*SETTINGS, *given, f"prepare.tokens.num_hops={hops}"]).prepare)

    def scaled(values: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (values - by.mean(axis=0)) / by.std(axis=0) if normalize == "per_feature" else values

    h = scaled(FEATURES.astype(np.float64), FEATURES.astype(np.float64))
    sides = ("out", "in") if way == "separate" else (direction,)
    expected = [np.hstack([h, np.zeros((30, 3))])]
    for hop in range(1, hops + 1):
        for side in sides:
            means = scaled(edge_means(graph.edges, graph.edge_features, 30, side),
                           edge_means(graph.edges, graph.edge_features, 30, direction))  # fmt: skip
            a = normalized(adjacency(graph.edges.T.tolist(), 30, side))
            power = np.linalg.matrix_power
            expected.append(np.hstack([power(a, hop) @ h, power(a, hop - 1) @ means]))
    np.testing.assert_allclose(found.tokens, np.stack(expected, axis=1), rtol=3e-5, atol=3e-5)


@pytest.mark.slow
def test_settings_leave_them_out_and_models_take_them(graph: Any, tmp_path: Path) -> None:
    store = ingest(source_of(graph), tmp_path / "g")
    plain = ingest(sources.arrays(graph.edges, FEATURES, np.arange(30) % 2, num_nodes=30), tmp_path / "plain")
    without = prepare(store, Config.from_recipe("base", [*SETTINGS, "prepare.tokens.use_edge_features=false"]).prepare)
    expected = prepare(plain, Config.from_recipe("base", SETTINGS).prepare)
    assert np.array_equal(without.tokens, expected.tokens)
    config = Config.from_recipe("base", [*SETTINGS, "train.epochs=1", "model.hidden_dim=8"])
    run = train(store, config, tmp_path / "run")
    assert run.prepared().num_features == 7
    assert prepare(store, config.prepare.for_model(model_spec("graphsage"))).num_features == 4, "it has no contexts"


# files


def files_of(graph: Any, folder: Path, kind: str) -> dict[str, Any]:
    if kind == "npy":
        np.save(folder / "e.npy", graph.edges)
        np.save(folder / "f.npy", graph.edge_features)
        return {"edges": folder / "e.npy", "edge_feature_columns": str(folder / "f.npy"), "num_nodes": 30}
    ids = {end: pa.array([f"n{value:02d}" for value in graph.edges[at]]) for at, end in enumerate("uv")}
    if kind == "csv":
        columns = {f"f{at}": graph.edge_features[:, at] for at in range(3)}
        pacsv.write_csv(pa.table({**ids, "w": graph.weights, **columns}), folder / "e.csv")
        return {"edges": folder / "e.csv", "edge_feature_columns": "f*", "weight_column": "w"}
    vectors = pa.array(graph.edge_features[:, 1:].tolist(), pa.list_(pa.float64(), 2))
    pq.write_table(pa.table({**ids, "a": graph.edge_features[:, 0], "v2": vectors}), folder / "e.parquet",
                   row_group_size=70)  # fmt: skip
    return {"edges": folder / "e.parquet", "edge_feature_columns": "a,v2"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
def test_any_memory_and_any_kill_give_the_same_bytes(
    graph: Any, tmp_path: Path, tinier: pytest.MonkeyPatch, kind: str
) -> None:
    files, config = files_of(graph, tmp_path, kind), IngestConfig(name="g")

    def made(name: str, **means: Any) -> dict[str, bytes]:
        ingest(sources.files(**files), tmp_path / name, config, **means)
        return {file.name: file.read_bytes() for file in sorted((tmp_path / name).iterdir())}

    expected = made("whole")
    assert made("small", memory=500, threads=2) == expected, "a few nodes at a time"
    store = GraphStore.open(tmp_path / "whole")
    names = np.array([int(str(name).lstrip("n") or 0) for name in store.ids_of(np.arange(store.num_nodes))])
    for direction in ("out", "in", "both"):
        means = edge_means(graph.edges, graph.edge_features.astype(np.float32), 30, direction)[names]
        assert np.array_equal(store.edge_features(direction), means.astype(np.float32))
    commit, stopped = ArrayWriter.commit, 0

    def stopping(writer: ArrayWriter, **state: Any) -> None:
        nonlocal stopped
        commit(writer, **state)
        growing = writer._growing.get("out_edge_features")
        if growing is not None and growing.rows > 5:
            stopped += 1
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArrayWriter, "commit", stopping)
        with pytest.raises(KeyboardInterrupt):
            made("killed", memory=500)
    assert stopped == 1
    assert made("killed", memory=3000) == expected


# what cannot be


def test_faults_are_one_line(graph: Any, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("u,v,f1,f2,who\n1,2,3.5,1,a\n2,3,1,,b\n")
    np.save(tmp_path / "e.npy", graph.edges)

    def ingested(**files: Any) -> GraphStore:
        return ingest(sources.files(**files), tmp_path / "g")

    broken = graph.edge_features.copy()
    broken[200, 1] = np.inf
    cases: list[tuple[Any, str]] = [
        (lambda: ingested(edges=tmp_path / "e.csv", edge_feature_columns="g*"), "no column like 'g"),
        (lambda: ingested(edges=tmp_path / "e.csv", edge_feature_columns="u"), "no column is left"),
        (lambda: ingested(edges=tmp_path / "e.npy", edge_feature_columns="f1"), "no columns"),
        (lambda: sources.arrays(graph.edges, edge_features=broken[:-1]), "259 rows, but there are 260 edges"),
        (lambda: ingest(sources.arrays(graph.edges, edge_features=broken), tmp_path / "g"), "row 200, .*infinite"),
    ]
    for work, said in cases:
        with pytest.raises(InputError, match=said) as error:
            work()
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="not read on a cluster"):
        ingest(source_of(graph), tmp_path / "g", engine=Threads(1 << 20, 2))
    source = sources.files(tmp_path / "e.csv", edge_feature_columns="f*")
    with pytest.raises(InputError, match=r"column 'f2' has no number in row 1"):
        ingest(source, tmp_path / "g", IngestConfig(missing_values="refuse"))


def test_damage_is_found(graph: Any, tmp_path: Path) -> None:
    store = ingest(source_of(graph), tmp_path / "g")
    file = store.folder.file("in_edge_features")
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 0x10
    file.write_bytes(raw)
    with pytest.raises(FormatError, match="in_edge_features"):
        prepare(store, Config.from_recipe("base", SETTINGS).prepare)


def test_ids_with_leading_zeros(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target,f\n007,8,1\n8,9,3\n")
    store = ingest(sources.files(tmp_path / "e.csv", edge_feature_columns="f"), tmp_path / "g")
    assert store.ids_of(np.arange(3)) == ["007", "8", "9"]
    np.testing.assert_array_equal(store.edge_features("out")[:, 0], [1, 3, 0])
