"""SQL queries and databases as input: the same store as the files they read; and how often tables are read."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.config.schema import IngestConfig
from largegt.data import sources, table_reading
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import InputError
from run_helpers import all_bytes

rng = np.random.default_rng(0)
NODES = pa.table({
    "id": [f"n{row}" for row in range(40)], "age": rng.integers(18, 90, 40), "city": rng.choice(["Bern", "Köln"], 40),
    "label": rng.choice(["a", "b"], 40),
})  # fmt: skip
EDGES = pa.table({
    "payer": rng.choice(NODES["id"], 200), "payee": rng.choice(NODES["id"], 200), "amount": rng.random(200),
    "kind": rng.choice(["p", "q"], 200),
})  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(NODES, tmp_path / "nodes.parquet")
    pacsv.write_csv(EDGES, tmp_path / "edges.csv")
    ingest(sources.files(tmp_path / "edges.csv", nodes=tmp_path / "nodes.parquet"), tmp_path / "files" / "g")
    return tmp_path


def assert_same(store: Any, folder: Path) -> None:
    """But for the manifest, which has the settings and the names of columns."""
    ours, theirs = (all_bytes(path) for path in (store.path, folder / "files" / "g"))
    assert {name: data for name, data in ours.items() if name != "manifest.json"} == {
        name: data for name, data in theirs.items() if name != "manifest.json"
    }


@pytest.mark.slow
def test_queries_over_files(folder: Path, lg: Any) -> None:
    query = f"SELECT payer AS source, payee AS target FROM '{folder}/edges.csv'"
    assert_same(ingest(sources.files(query, nodes=folder / "nodes.parquet"), folder / "a" / "g"), folder)
    found = lg("ingest", "--edges", query, "--nodes", folder / "nodes.parquet", "--out", folder / "b" / "g", "--json")
    assert found.code == 0, found.err
    assert_same(GraphStore.open(folder / "b" / "g"), folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_databases(folder: Path, kind: str) -> None:
    file = folder / f"crm.{kind}"
    if kind == "duckdb":
        with duckdb.connect(str(file)) as db:
            db.execute("CREATE TABLE customers AS FROM read_parquet(?)", [str(folder / "nodes.parquet")])
            db.execute("CREATE TABLE payments AS FROM read_csv(?)", [str(folder / "edges.csv")])
    else:
        with sqlite3.connect(file) as lite:
            lite.execute("CREATE TABLE customers (id, age, city, label)")
            rows = [tuple(row.values()) for row in NODES.to_pylist()]
            lite.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", rows)
            lite.execute("CREATE TABLE payments (payer, payee, amount, kind)")
            lite.executemany(
                "INSERT INTO payments VALUES (?, ?, ?, ?)", [tuple(row.values()) for row in EDGES.to_pylist()]
            )
        lite.close()
    before = file.read_bytes()
    given = sources.files("payments", nodes="customers", database=str(file))
    assert_same(ingest(given, folder / "a" / "g"), folder)
    given = sources.files("SELECT payer AS u, payee AS v FROM payments", nodes="customers", database=str(file))
    store = ingest(given, folder / "b" / "g")
    assert_same(store, folder)
    assert file.read_bytes() == before
    assert "SELECT" not in (store.path / "manifest.json").read_text()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS source, 2 AS target; SELECT 3",
        "SELECT * FROM 'edges.csv'; COPY (SELECT 1) TO 'evil.csv'",
        "WITH x AS (SELECT 1) INSERT INTO y SELECT * FROM x",
        "SELECT nothing FROM nowhere",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "SELECT source, FROM",
    ],
)
def test_what_a_query_may_not_do(folder: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="the query"):
        ingest(sources.files(query), folder / "g")
    assert not (folder / "evil.csv").exists()
    assert not (folder / "g").exists()


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.duckdb does not exist"):
        sources.files("a", database=str(tmp_path / "none.duckdb"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is read; every connection to it counts as once."""
    counted: Counter[str] = Counter()
    connected = table_reading._Files.connected

    @contextmanager
    def counting(self: Any, *means: Any) -> Iterator[Any]:
        counted.update(Path(str(piece.file)).stem for piece in self.pieces)
        with connected(self, *means) as found:
            yield found

    monkeypatch.setattr(table_reading._Files, "connected", counting)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("options", "config", "with_nodes"),
    [
        ({}, {}, True),
        ({}, {}, False),
        ({"weight_column": "amount", "edge_feature_columns": "kind,amount"}, {}, True),
        ({"weight_column": "amount"}, {"parallel_edges": "last"}, True),
        ({"split_group": "city"}, {"column_kinds": ("age=number",)}, True),
    ],
)
def test_tables_of_a_user_are_read_at_most_twice(
    tmp_path: Path, reads: Counter[str], form: str, options: dict[str, Any], config: dict[str, Any], with_nodes: bool
) -> None:
    nodes, edges = tmp_path / f"nodes.{form}", tmp_path / f"edges.{form}"
    for file, table in ((nodes, NODES), (edges, EDGES)):
        (pacsv.write_csv if form == "csv" else pq.write_table)(table, file)
    source = sources.files(edges, nodes=nodes if with_nodes else None, **options)
    reads.clear()  # of headers and footers
    ingest(source, tmp_path / "g", IngestConfig(**config))
    is_copied = form == "csv" or "edge_feature_columns" in options or "parallel_edges" in config
    assert reads["nodes"] == (1 if with_nodes else 0)
    assert reads["edges"] == (1 if is_copied or with_nodes else 2)
