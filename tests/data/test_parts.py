"""Streams: skipping rows is the same as slicing, whatever they come from, and ids are compared over chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from largegt.data.columns import ColumnOptions
from largegt.data.ids import as_text, is_text
from largegt.data.parts import ArrayEdges, ArrayIds, MatrixFeatures, TableEdges, TableFeatures, TableIds, same_ids
from largegt.data.tables import Table, load_npy
from largegt.errors import InputError

SIZE = 157
SKIPS = [0, 1, 9, 10, 11, 49, 50, 51, 99, 100, 101, 156, SIZE, SIZE + 3]
ENDS = np.random.default_rng(0).integers(-50, 10**12, (2, SIZE))
X = np.random.default_rng(1).standard_normal((SIZE, 3)).astype(np.float32)
COLUMNS = pa.table({
    "u": ENDS[0], "v": ENDS[1], "a": X[:, 0], "b": X[:, 1], "c": X[:, 2],
    "vector": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 3),
})  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("largegt.data.parts.EDGE_CHUNK_ROWS", 10)
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 4 * 3 * 10)


def parquet(folder: Path) -> Table:
    """Two files of several row groups: 100 and 57 rows."""
    for part, (low, high) in enumerate([(0, 100), (100, SIZE)]):
        pq.write_table(COLUMNS.slice(low, high - low), folder / f"{part}.parquet", row_group_size=25)
    return Table([folder / "0.parquet", folder / "1.parquet"])


def csv(folder: Path) -> Table:
    for part, (low, high) in enumerate([(0, 100), (100, SIZE)]):
        pacsv.write_csv(COLUMNS.slice(low, high - low).drop_columns("vector"), folder / f"{part}.csv")
    return Table([folder / "0.csv", folder / "1.csv"])


def npy(folder: Path, array: Any, name: str = "a.npy") -> Any:
    np.save(folder / name, array)
    return load_npy(folder / name)


EDGES = {
    "parquet": lambda folder: TableEdges(parquet(folder), "u", "v"),
    "csv": lambda folder: TableEdges(csv(folder), "u", "v"),
    "array": lambda _: ArrayEdges([(ENDS.T, "edges")]),
    "words": lambda _: ArrayEdges([(ENDS.astype(str), "edges")]),
    "npy": lambda folder: ArrayEdges([(npy(folder, ENDS), "a.npy")]),
    "two npy": lambda folder: ArrayEdges([
        (npy(folder, ENDS[:, :50], "a.npy"), "a.npy"), (npy(folder, ENDS[:, 50:], "b.npy"), "b.npy"),
    ]),
}  # fmt: skip


def together(parts: list[Any], empty: Any) -> Any:
    if parts and is_text(parts[0]):
        return pa.concat_arrays(parts).to_pylist()
    return np.concatenate([empty, *parts]).tolist()


@pytest.mark.parametrize("kind", EDGES)
def test_skipped_edges(tmp_path: Path, kind: str) -> None:
    edges = EDGES[kind](tmp_path)
    assert edges.total == (None if kind == "csv" else SIZE)
    for skip in SKIPS:
        chunks = list(edges.chunks(skip))
        assert all(len(chunk.sources) == len(chunk.targets) for chunk in chunks)
        for end, name in enumerate(("sources", "targets")):
            expected = ENDS[end, skip:].tolist()
            if kind in ("words", "csv"):
                expected = [str(value) for value in expected]
            assert together([getattr(chunk, name) for chunk in chunks], ENDS[0, :0]) == expected


def fitted(table: Table, folder: Path, *columns: str) -> TableFeatures:
    table.stage(folder / "staged.parquet", columns, 1 << 28, 1)
    return TableFeatures(table, columns).fitted(ColumnOptions(), None)


FEATURES = {
    "parquet": lambda folder: fitted(parquet(folder), folder, "a", "b", "c"),
    "vectors": lambda folder: fitted(parquet(folder), folder, "vector"),
    "csv": lambda folder: fitted(csv(folder), folder, "a", "b", "c"),
    "array": lambda _: MatrixFeatures(X, "features"),
    "npy": lambda folder: MatrixFeatures(npy(folder, X), "a.npy"),
    "sparse": lambda _: MatrixFeatures(scipy.sparse.coo_matrix(X), "features"),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_skipped_features(tmp_path: Path, kind: str) -> None:
    features = FEATURES[kind](tmp_path)
    assert (features.num_rows, features.width) == (SIZE, 3)
    for skip in SKIPS:
        blocks = list(features.chunks(skip))
        assert all(block.dtype == np.float32 for block in blocks)
        np.testing.assert_allclose(np.concatenate([X[:0], *blocks]), X[skip:], rtol=1e-6)


def test_id_columns(tmp_path: Path) -> None:
    for column in (TableIds(parquet(tmp_path), "u"), TableIds(csv(tmp_path), "u"), ArrayIds(ENDS[0], "ids")):
        assert column.total == SIZE
        assert together(list(column.chunks()), ENDS[0, :0]) == ENDS[0].tolist()


def test_a_missing_id_is_named_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,x\n" + "".join(f"{i},{i}\n" for i in range(300)) + ",5\n")
    with pytest.raises(InputError, match=r"n.csv: column 'id': an id is missing \(row 300, counted from 0\)"):
        list(TableIds(Table(tmp_path / "n.csv"), "id").chunks())
    edges = TableEdges(Table(tmp_path / "n.csv"), "id", "x")
    with pytest.raises(InputError, match=r"row 300"):
        list(edges.chunks(250))


def test_same_ids(tmp_path: Path) -> None:
    """Chunks end at different rows, and numbers may stand as text."""
    whole = ArrayIds(ENDS[0], "ids")
    for other in (TableIds(parquet(tmp_path), "u"), TableIds(csv(tmp_path), "u"), ArrayIds(as_text(ENDS[0]), "ids")):
        assert same_ids(whole, other)
        assert same_ids(other, whole)
    for wrong in (ENDS[0][::-1], ENDS[0][:-1], ENDS[0] + (np.arange(SIZE) == SIZE - 1), as_text(ENDS[1])):
        assert not same_ids(ArrayIds(wrong, "ids"), TableIds(csv(tmp_path), "u"))
    lines = [*map(str, range(200)), "last"]
    (tmp_path / "late.csv").write_text("id,x\n" + "".join(f"{line},1\n" for line in lines))
    pq.write_table(pa.table({"id": lines}), tmp_path / "late.parquet")
    late = TableIds(Table(tmp_path / "late.csv"), "id")  # text only in a later block
    assert same_ids(late, TableIds(Table(tmp_path / "late.parquet"), "id"))
    assert same_ids(late, late)
    assert not same_ids(late, ArrayIds(np.arange(201), "ids"))


def test_row_groups_of_vectors_are_short(tmp_path: Path) -> None:
    """One group at a time is in memory."""
    rows = 9000
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 1000, dtype=np.float32)), 1000)
    pq.write_table(pa.table({"id": np.arange(rows), "v": vectors}), tmp_path / "n.parquet")
    Table(tmp_path / "n.parquet").stage(tmp_path / "staged.parquet", ["id", "v"], 1 << 28, 1)
    assert pq.read_metadata(tmp_path / "staged.parquet").num_row_groups > 1
