"""The tables of bench/company_tables.py: each writer on a tiny input, and each command as it is run by hand; and
bench/column_kinds.py and bench/ingest_speed.py on tiny tables."""

from __future__ import annotations

import csv
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import column_kinds
import company_tables
import ingest_speed

import largegt as lg

FILMS = """director_name,genres,actor_1_name,actor_2_name,actor_3_name,gross,movie_title
Ann,Thriller|Drama|Action,Xi,Yu,,1000,"One, two"
Bob,Comedy|Drama,Zoe,Xi,Vic,,Three
,Horror,Ann,,,5,Four
"""
PACKAGES = """Package: a
Section: games
Priority: optional
Depends: b (>= 1.0) | c, b:any [amd64], nowhere
Pre-Depends: a
Description: a game
 of more lines
 .
 than one
Filename: pool/main/a.deb
Tag: game::arcade,
 role::program

Package: b
Section: libs
Priority: required
Description: a library

Package: c
Priority: optional
Depends: a
Description: none
Size: 12

Package: b
Section: devel
Description: a later stanza
"""


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_films(tmp_path: Path) -> None:
    nodes, edges = map(rows_of, company_tables.imdb(written(tmp_path / "films.csv", FILMS), tmp_path / "out"))
    assert [(row["id"], row["label"]) for row in nodes] == [("m0001", "Drama"), ("m0002", "Comedy"), ("m0003", "")]
    assert "genres" not in nodes[0]
    assert nodes[0]["movie_title"] == "One, two"
    assert nodes[1]["gross"] == ""
    assert [tuple(row.values()) for row in edges] == [("m0001", "m0002")]  # Ann directs one film and plays in another


def test_packages(tmp_path: Path) -> None:
    nodes, edges = map(rows_of, company_tables.debian(written(tmp_path / "dump.txt", PACKAGES), tmp_path / "out"))
    assert list(nodes[0]) == ["id", "Priority", "Size", "Description", "Tag", "label"]
    assert [(row["id"], row["label"]) for row in nodes] == [("a", "games"), ("b", "libs"), ("c", "")]
    assert nodes[0]["Description"] == "a game of more lines than one"
    assert nodes[0]["Tag"] == "game::arcade, role::program"
    assert [row["Size"] for row in nodes] == ["", "", "12"]
    assert [tuple(row.values()) for row in edges] == [("a", "b"), ("a", "c"), ("c", "a")]


def as_csv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


def test_csv_and_parquet_of_a_company_agree(tmp_path: Path) -> None:
    texts = company_tables.company(tmp_path, 2000, 4000, seed=3)
    typed = company_tables.company(tmp_path, 2000, 4000, seed=3, format="parquet")
    with_comma = 0
    for text, table in zip(map(rows_of, texts), map(pq.read_table, typed), strict=True):
        assert list(text[0]) == table.column_names
        for got, wanted in zip(text, table.to_pylist(), strict=True):
            revenue = got.get("revenue", "")
            with_comma += "," in revenue
            if revenue:
                assert revenue in (str(wanted["revenue"]), f"{wanted['revenue']:,}")
                got["revenue"] = str(wanted["revenue"])
            assert got == {name: as_csv(value) for name, value in wanted.items()}
    assert 0 < with_comma < 1000


def test_csv_and_parquet_of_a_company_are_one_store(tmp_path: Path) -> None:
    arrays = []
    for form in ("csv", "parquet"):
        nodes, edges = company_tables.company(tmp_path / form, 600, 1300, format=form)
        source = lg.sources.files(
            edges,
            nodes=nodes,
            source_column="payer",
            target_column="payee",
            label_column="churn_reason",
            edge_feature_columns="kind,paid_on,amount",
        )
        store = lg.ingest(source, tmp_path / f"{form}-store", lg.IngestConfig(name="company"))
        assert {column.kind for column in store.columns.columns} >= {"number", "boolean", "category", "date", "text"}
        arrays.append({name: entry["checksum"] for name, entry in store.folder.manifest["arrays"].items()})
    assert arrays[0] == arrays[1]


def test_ingest_beside_plain_duckdb(capsys: pytest.CaptureFixture[str]) -> None:
    ingest_speed.main(
        ["--nodes", "50", "--edges", "200", "--columns", "20", "--with", "largegt", "duckdb", "--rounds", "1"]
    )
    assert capsys.readouterr().out.count("CPU-s") == 2


def test_a_company_is_sound(tmp_path: Path) -> None:
    nodes, edges = map(pq.read_table, company_tables.company(tmp_path, 2000, 8000, format="parquet"))
    ids, ends = nodes["id"].to_pylist(), list(zip(edges["payer"].to_pylist(), edges["payee"].to_pylist(), strict=True))
    assert len(set(ids)) == len(set(nodes["email"].to_pylist())) == 2000
    assert ids != sorted(ids)
    assert {name for pair in ends for name in pair} <= set(ids)
    assert all(payer != payee for payer, payee in ends)
    assert len(set(ends)) < 0.95 * len(ends)
    assert min(edges["amount"].to_pylist()) > 0
    reasons = dict(zip(ids, nodes["churn_reason"].to_pylist(), strict=True))
    told = [(reasons[payer], reasons[payee]) for payer, payee in ends if reasons[payer] and reasons[payee]]
    assert sum(a == b for a, b in told) > 0.5 * len(told)
    assert 0.35 < nodes["churn_reason"].null_count / 2000 < 0.45


@pytest.mark.parametrize("command", ["imdb", "debian", "company", "company-parquet"])
def test_commands(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"imdb": FILMS, "debian": PACKAGES}
    if command in sources:
        words = [command, "--from", str(written(tmp_path / "source", sources[command]))]
    else:
        words = ["company", "--nodes", "2", "--edges", "3", "--format", command.partition("-")[2] or "csv"]
    company_tables.main([*words, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert ("2 nodes, 3 edges" if "company" in command else "3 nodes") in said
    assert "missing: id 0.0%" in said


def test_column_kinds_compares_variants_of_a_company(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, edges = company_tables.company(tmp_path, 200, 600)
    words = [str(nodes), str(edges), "--label", "churn_reason", "--epochs", "1", "--seeds", "1"]
    column_kinds.main([*words, "--set", "train.device=cpu", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert "currency: ignored" in said
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("| ")]
    for model, first in (("largegt-local", 0), ("mlp", len(rows) // 2)):
        table = {row[0]: row[1:] for row in rows[first : first + len(rows) // 2]}
        others = ["number + boolean", "number + category", "number + date", "number + text"]
        assert list(table) == ["variant", "number", column_kinds.WITHOUT_LOG, *others, "all"], model
        assert table[column_kinds.WITHOUT_LOG][:2] == table["number"][:2]
        assert [int(table[name][0]) for name in ("number", "number + boolean", "all")] == [3, 4, 10]
        features = [int(table[name][1]) for name in ("number", *others, "all")]
        assert features[-1] == sum(features[1:-1]) - 3 * features[0]
        assert all(0 <= float(score) <= 100 for name in ("number", *others, "all") for score in table[name][2:])
