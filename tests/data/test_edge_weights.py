"""Edge weights from input to store: dense sums, the same bytes whatever happens, and what is refused."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.cli.inspection import inspect
from largegt.cli.verification import verify
from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.kernels import SUM_BLOCK
from largegt.data.store import GraphStore
from largegt.errors import FormatError, InputError
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.workers import Threads
from oracles.weighted import along, weight_matrix
from run_helpers import all_bytes

CONFIG = IngestConfig(name="g")


def dense(store: GraphStore, direction: Any) -> np.ndarray:
    indptr, indices = store.csr(direction)
    matrix = np.zeros((store.num_nodes, store.num_nodes), dtype=np.float32)
    matrix[np.repeat(np.arange(store.num_nodes), np.diff(indptr)), indices] = store.weights_of(direction)[0]
    return matrix


def check_sums(store: GraphStore, direction: Any) -> None:
    indptr, _ = store.csr(direction)
    weights, strengths, sums = (np.asarray(part, dtype=np.float64) for part in store.weights_of(direction))
    parts = [weights[low:high].sum() for low, high in pairwise(indptr)]
    np.testing.assert_allclose(strengths, parts, rtol=1e-12)
    np.testing.assert_allclose(sums, np.add.reduceat(weights, np.arange(0, len(weights), SUM_BLOCK)), rtol=1e-12)
    assert store.mean_weight(direction) == pytest.approx(weights.mean())


@pytest.mark.slow
@pytest.mark.parametrize("undirected", [False, True])
def test_weights_are_those_of_a_dense_matrix(graph: Any, tmp_path: Path, undirected: bool) -> None:
    source = sources.arrays(graph.edges, num_nodes=graph.num_nodes, weights=graph.weights)
    store = ingest(source, tmp_path / "g", CONFIG.model_copy(update={"undirected": undirected}))
    assert store.weighted
    assert store.directed is not undirected
    matrix = weight_matrix(graph.edges, graph.weights, graph.num_nodes, undirected)
    for direction in ("out", "in", "both"):
        found = dense(store, direction)
        if direction == "both" and not undirected:  # two rounded numbers are added there
            np.testing.assert_allclose(found, along(matrix, "both"), rtol=1e-6)
        else:
            assert np.array_equal(found, (matrix if undirected else along(matrix, direction)).astype(np.float32))
        check_sums(store, direction)
    assert store.weights.dtype == np.float32
    store.verify_numbers()


def test_the_undirected_view_is_the_undirected_graph(graph: Any, tmp_path: Path) -> None:
    """Whole numbers, so that no sum is rounded."""
    weights = np.ceil(graph.weights)
    source = sources.arrays(graph.edges, num_nodes=graph.num_nodes, weights=weights)
    one, other = (
        ingest(source, tmp_path / f"g{undirected}", IngestConfig(undirected=undirected)) for undirected in (False, True)
    )
    for a, b in zip(
        (*one.csr("both"), *one.weights_of("both")), (*other.csr("both"), *other.weights_of("both")), strict=True
    ):
        assert np.array_equal(a, b)


def test_weights_of_one_direction_make_a_graph_directed(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    even = ingest(sources.arrays(edges, weights=[2, 2, 3, 3]), tmp_path / "even")
    odd = ingest(sources.arrays(edges, weights=[2, 5, 3, 3]), tmp_path / "odd")
    assert not even.directed
    assert odd.directed
    assert dense(odd, "in")[0, 1] == 5
    assert dense(odd, "both")[0, 1] == dense(odd, "both")[1, 0] == 7


# files


def files_of(graph: Any, folder: Path, kind: str) -> dict[str, Any]:
    columns = {"u": graph.edges[0], "v": graph.edges[1], "amount": graph.weights.astype(np.float32).astype(np.float64)}
    if kind == "npy":
        np.save(folder / "a.npy", graph.edges[:, :100])
        np.save(folder / "b.npy", graph.edges[:, 100:])
        np.save(folder / "w.npy", columns["amount"])
        return {"edges": [folder / "a.npy", folder / "b.npy"], "weight_column": str(folder / "w.npy"), "num_nodes": 30}
    if kind == "csv":
        pacsv.write_csv(pa.table(columns), folder / "e.csv")
    else:
        columns |= {end: pa.array([f"n{value:02d}" for value in columns[end]]) for end in "uv"}
        pq.write_table(pa.table(columns), folder / "e.parquet", row_group_size=70)
    return {"edges": folder / f"e.{kind}", "weight_column": "amount"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
def test_any_memory_threads_and_parts_give_the_same_bytes(
    graph: Any, tmp_path: Path, tinier: pytest.MonkeyPatch, kind: str
) -> None:
    files = files_of(graph, tmp_path, kind)
    made = []
    for memory, threads in ((1000, 1), (20_000, 3)):
        ingest(sources.files(**files), tmp_path / "g", CONFIG, True, memory=memory, threads=threads)
        made.append(all_bytes(tmp_path / "g"))
    ingest(sources.files(**files), tmp_path / "g", CONFIG, True, engine=Threads(9000, 2, 3))
    made.append(all_bytes(tmp_path / "g"))
    tinier.undo()
    store = ingest(sources.files(**files), tmp_path / "g", CONFIG, True)
    assert made[0] == made[1] == made[2] == all_bytes(tmp_path / "g")
    names = np.array([int(str(name).lstrip("n") or 0) for name in store.ids_of(np.arange(store.num_nodes))])
    expected = weight_matrix(graph.edges, graph.weights, graph.num_nodes)[np.ix_(names, names)]
    assert np.array_equal(dense(store, "out"), expected.astype(np.float32))


def test_a_node_with_more_edges_than_a_task_is_meant_to_hold(tmp_path: Path, tinier: pytest.MonkeyPatch) -> None:
    """Node 0 has 3000 of them: to many nodes, many to node 1 with all kinds of weights, one that comes 500 times."""
    rng = np.random.default_rng(0)
    targets = np.concatenate([rng.integers(2, 400, 1500), np.full(1000, 1), np.full(500, 7)])
    weights = np.concatenate([rng.exponential(1.0, 2500), np.full(500, 0.1)])
    order = rng.permutation(3000)
    edges, weights = np.stack([np.zeros(3000, int), targets])[:, order], weights[order]
    made = []
    for memory in (1000, 1 << 28):
        folder = tmp_path / str(memory) / "g"
        store = ingest(sources.arrays(edges, num_nodes=400, weights=weights), folder, CONFIG, memory=memory)
        made.append(all_bytes(folder))
    assert made[0] == made[1]
    assert np.array_equal(dense(store, "out"), weight_matrix(edges, weights, 400).astype(np.float32))


@pytest.mark.slow
def test_killed_at_any_commit(graph: Any, tmp_path: Path, tinier: pytest.MonkeyPatch) -> None:
    files = files_of(graph, tmp_path, "parquet")
    ingest(sources.files(**files), tmp_path / "whole", CONFIG)
    expected, commit = all_bytes(tmp_path / "whole"), ArrayWriter.commit
    after, is_stopped = 1, True
    while is_stopped:
        made = 0

        def stopping(writer: ArrayWriter, after: int = after, **state: Any) -> None:
            nonlocal made
            made += 1
            if made > after:
                raise KeyboardInterrupt
            commit(writer, **state)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrayWriter, "commit", stopping)
            try:
                ingest(sources.files(**files), tmp_path / "g", CONFIG, True, memory=9000, threads=2)
                is_stopped = False
            except KeyboardInterrupt:
                assert not (tmp_path / "g").exists()
                patch.undo()
                ingest(sources.files(**files), tmp_path / "g", CONFIG, True, memory=3000, threads=1)
        assert all_bytes(tmp_path / "g") == expected, after
        shutil.rmtree(tmp_path / "g")
        after += 9
    assert after > 15


# what cannot be


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "said"),
    [(-1.5, "-1.5"), (0.0, "is '?0"), (np.nan, "is missing"), (np.inf, "is '?inf"), (1e-60, "1e-60"), (1e60, "1e.?60")],
)
@pytest.mark.parametrize("kind", ["parquet", "csv", "npy"])
def test_what_is_no_weight_is_refused_by_its_row(
    graph: Any, tmp_path: Path, kind: str, value: float, said: str
) -> None:
    weights = graph.weights.copy()
    weights[[150, 170]] = value
    columns = {"u": graph.edges[0], "v": graph.edges[1], "w": weights}
    files: dict[str, Any] = {"edges": tmp_path / f"e.{kind}", "weight_column": "w"}
    if kind == "npy":
        np.save(tmp_path / "e.npy", graph.edges)
        np.save(tmp_path / "w.npy", weights)
        files["weight_column"] = str(tmp_path / "w.npy")
    elif kind == "csv":
        pacsv.write_csv(pa.table(columns), tmp_path / "e.csv")
    else:
        pq.write_table(pa.table(columns), tmp_path / "e.parquet", row_group_size=70)
    with pytest.raises(InputError, match="the weight in row 150, counted from 0, .*" + said) as error:
        ingest(sources.files(**files), tmp_path / "g")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "g").exists()


def test_other_faults_are_one_line(graph: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", graph.edges)
    (tmp_path / "e.csv").write_text("u,v,amount,who\n1,2,3.5,a\n2,3,,b\n")
    (tmp_path / "text.csv").write_text("u,v,amount\n1,2,3.5\n2,3,4\n3,4,many\n")
    cases = [
        (lambda: sources.files(tmp_path / "e.csv", weight_column="amuont"), "did you mean 'amount'"),
        (lambda: sources.files(tmp_path / "e.csv", weight_column="v"), "names nodes"),
        (lambda: sources.files(tmp_path / "e.npy", weight_column="amount"), "has no columns"),
        (
            lambda: ingest(sources.files(tmp_path / "e.csv", weight_column="amount"), tmp_path / "g"),
            "row 1, .* missing",
        ),
        (
            lambda: ingest(sources.files(tmp_path / "text.csv", weight_column="amount"), tmp_path / "g"),
            "row 2, .*'many'",
        ),
        (lambda: ingest(sources.files(tmp_path / "e.csv", weight_column="who"), tmp_path / "g"), "row 0, .*'a'"),
        (lambda: sources.arrays(graph.edges, weights=graph.weights[:-1]), "259 numbers, but there are 260 edges"),
        (lambda: sources.arrays(graph.edges, weights=graph.weights[:, None]), "a number per edge"),
        (lambda: ingest(sources.arrays(np.array([[0, 0], [1, 1]]), weights=[3e38, 3e38]), tmp_path / "g"), "add up"),
    ]
    for work, said in cases:
        with pytest.raises(InputError, match=said) as error:
            work()
        assert "\n" not in str(error.value)


# whoever opens a store


def test_inspect_and_verify_know_of_weights(graph: Any, tmp_path: Path) -> None:
    store = ingest(sources.arrays(graph.edges, num_nodes=30, weights=graph.weights), tmp_path / "g")
    assert not verify(tmp_path / "g").damaged
    facts = inspect(tmp_path / "g")
    assert facts["least_weight"] == pytest.approx(store.weights.min())
    assert facts["largest_weight"] == pytest.approx(store.weights.max())
    assert facts["mean_weight"] == pytest.approx(store.weights.mean())
    plain = ingest(sources.arrays(graph.edges, num_nodes=30), tmp_path / "plain")
    assert "mean_weight" not in inspect(tmp_path / "plain")
    with pytest.raises(InputError, match="no edge weights"):
        _ = plain.weights
    file = GraphStore.open(tmp_path / "g").folder.file("both_weights")
    raw = bytearray(file.read_bytes())
    raw[-2] ^= 0x40
    file.write_bytes(raw)
    assert "both_weights" in str(*verify(tmp_path / "g").damaged)
    with pytest.raises(FormatError, match="both_weights"):
        GraphStore.open(tmp_path / "g").check("both")
