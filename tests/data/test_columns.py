"""Columns of tables become features: kinds, fitted values, text against typed cells, hostile content."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from largegt.data.column_cells import Cells
from largegt.data.columns import Column, ColumnOptions, Columns, fit_columns
from largegt.data.table_reading import Table
from largegt.errors import ConfigError, FormatError, InputError
from largegt.types import MISSING_MARKERS
from oracles.text_hashing import frequent_words, hashed_words, word_hash


def fit(folder: Path, columns: dict[str, Any], train: Any = None, labels: Any = None, **options: Any) -> Columns:
    memory = options.pop("memory", 1 << 28)
    mask = None if train is None else np.asarray(train, dtype=bool)
    codes = None if labels is None else np.asarray(labels, dtype=np.int32)
    table = _staged(folder, columns, memory, options.pop("row_group_size", 1000))
    return fit_columns(table, list(columns), ColumnOptions(**options), mask, codes)


def _staged(folder: Path, columns: dict[str, Any], memory: int = 1 << 28, row_group_size: int = 1000) -> Table:
    pq.write_table(pa.table(columns), folder / "given.parquet", row_group_size=row_group_size)
    table = Table(folder / "given.parquet")
    table.where = "nodes.csv"
    (folder / "again.parquet").unlink(missing_ok=True)
    table.stage(folder / "again.parquet", (), list(columns), memory, 1)
    return table


def features(fitted: Columns, columns: dict[str, Any]) -> Any:
    out = fitted.transform(pa.RecordBatch.from_pydict(columns), "nodes.csv")
    assert out.dtype == np.float32
    assert out.shape[1] == fitted.width == len(fitted.names)
    assert np.isfinite(out).all()
    return out


def date_oracle(cell: dt.datetime, newest: dt.datetime) -> list[float]:
    turns = [(cell.month - 1) / 12, cell.weekday() / 7, (cell.hour * 60 + cell.minute) / 1440]
    waves = [wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)]
    return [cell.year, *waves, (newest - cell).total_seconds() / 86400]


NUMBERS = ["3", " -1.5 ", "1,234.5", None, "NA", "1e3", "9007199254740993", "0.12345678901234567"]


@pytest.mark.slow
def test_numbers_as_text_and_typed_equal_the_oracle(tmp_path: Path) -> None:
    values = [3.0, -1.5, 1234.5, None, None, 1e3, 9007199254740993.0, 0.12345678901234567]
    fitted = fit(tmp_path, {"age": NUMBERS})
    assert fitted.names == ["age", "age is missing"]
    known = [value for value in values if value is not None]
    mean = math.fsum(known) / len(known)
    assert fitted.columns[0].means == (mean,)
    expected = np.float32([[mean if value is None else value, value is None] for value in values])
    assert np.array_equal(features(fitted, {"age": NUMBERS}), expected)
    assert np.array_equal(features(fitted, {"age": values}), expected)
    floats = pa.array([math.nan if value is None else value for value in values])
    assert np.array_equal(features(fitted, {"age": floats}), expected)
    ints = pa.array([3, None, 2**62], pa.int64())
    assert np.array_equal(features(fitted, {"age": ints}), features(fitted, {"age": ["3", "", str(2**62)]}))
    decimals = pa.array([Decimal("0.10"), Decimal("7.77")])
    assert np.array_equal(features(fitted, {"age": decimals}), features(fitted, {"age": ["0.1", "7.77"]}))
    assert np.array_equal(features(fitted, {"age": pa.nulls(2)}), np.float32([[mean, 1], [mean, 1]]))


@pytest.mark.parametrize("cell", ["1_000", "0x10", "1,00", "12,34", "1e", ".", "+", "1.2.3", "inf", "١"])
def test_what_is_no_number(cell: str) -> None:
    assert not Cells(pa.array([cell]), pa.array([""], pa.large_string())).numbers[1].any()


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_numbers_are_read_as_python_reads_them(value: float) -> None:
    for text in (repr(value), f"{value:.17e}", f"{value:,.3f}"):
        values, read = Cells(pa.array([text]), pa.array([""], pa.large_string())).numbers
        assert read[0]
        assert values[0] == float(text.replace(",", ""))


@pytest.mark.slow
def test_odd_cells_are_named(tmp_path: Path) -> None:
    cells = [str(row) for row in range(100)]
    cells[17] = "0x10"
    column = fit(tmp_path, {"n": cells}).columns[0]
    assert (column.kind, column.missing) == ("number", 1)
    assert "1 cell is no number, first '0x10' in row 17: treated as missing" in column.notes
    cells[18:20] = ["a", "b"]
    assert fit(tmp_path, {"n": cells}).columns[0].kind != "number"
    column = fit(tmp_path, {"n": cells}, kinds={"n": "number"}).columns[0]
    assert (column.kind, column.missing) == ("number", 3)
    with pytest.raises(InputError, match="most cells of column 'n' are no dates"):
        fit(tmp_path, {"n": cells}, kinds={"n": "date"})


def test_booleans(tmp_path: Path) -> None:
    cells = ["Yes", "no", None, "TRUE", "f"]
    fitted = fit(tmp_path, {"vip": cells})
    assert fitted.columns[0].kind == "boolean"
    expected = np.float32([[1, 0], [0, 0], [0.5, 1], [1, 0], [0, 0]])
    assert np.array_equal(features(fitted, {"vip": cells}), expected)
    assert np.array_equal(features(fitted, {"vip": [True, False, None, True, False]}), expected)
    assert np.array_equal(features(fitted, {"vip": [1, 0, 7, 1, 0]}), expected)
    assert fit(tmp_path, {"vip": ["0", "1"]}).columns[0].kind == "number"


def test_categories(tmp_path: Path) -> None:
    cells = [" Berlin", "Paris", "Rome", None, "Berlin"]
    fitted = fit(tmp_path, {"city": cells}, train=[1, 1, 0, 1, 1])
    assert fitted.names == ["city=Berlin", "city=Paris", "city=(other)", "city=(missing)"]
    places = [0, 1, 2, 3, 0]
    assert np.array_equal(features(fitted, {"city": cells}), np.eye(4, dtype=np.float32)[places])
    coded = pa.array(cells).dictionary_encode()
    assert np.array_equal(features(fitted, {"city": coded}), np.eye(4, dtype=np.float32)[places])


def test_numbers_as_categories_are_their_text(tmp_path: Path) -> None:
    fitted = fit(tmp_path, {"zone": [5, 7, 7]}, kinds={"zone": "category"})
    assert fitted.names == ["zone=5", "zone=7", "zone=(other)"]
    for cells in ([5, 7], ["5", "7 "], [5.0, 7.0], [Decimal("5.0"), Decimal("7.0")]):
        assert np.array_equal(features(fitted, {"zone": cells}), np.eye(3, dtype=np.float32)[:2])


def test_many_categories_are_hashed(tmp_path: Path) -> None:
    cells = [f"c{row % 100}" for row in range(300)] + [None]
    fitted = fit(tmp_path, {"c": cells}, hash_buckets=16)
    assert fitted.columns[0].distinct == 100
    expected = np.zeros((301, 17), np.float32)
    for row, cell in enumerate(cells):
        expected[row, 16 if cell is None else word_hash(cell.encode()) % 16] = 1
    assert np.array_equal(features(fitted, {"c": cells}), expected)


def test_dates(tmp_path: Path) -> None:
    cells = ["2024-02-29", "2023/12/31 23:59", None, "2024-03-01T01:30:00+02:00", "1969-07-20T20:17:40.123456789Z"]
    typed = [
        dt.datetime(2024, 2, 29), dt.datetime(2023, 12, 31, 23, 59), None, dt.datetime(2024, 2, 29, 23, 30),
        dt.datetime(1969, 7, 20, 20, 17, 40, 123456),
    ]  # fmt: skip
    fitted = fit(tmp_path, {"signup": cells}, train=[1, 1, 1, 0, 1])
    assert fitted.names[0] == "signup.year"
    assert fitted.names[-2:] == ["signup.age_days", "signup is missing"]
    newest = typed[0]
    known = [date_oracle(cell, newest) for cell in (typed[0], typed[1], typed[4])]
    fill = [math.fsum(row[0] for row in known) / 3, *[0.0] * 6, math.fsum(row[7] for row in known) / 3]
    expected = [[*(date_oracle(cell, newest) if cell else fill), cell is None] for cell in typed]
    out = features(fitted, {"signup": cells})
    assert np.allclose(out, np.float32(expected), rtol=1e-6, atol=1e-6)
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo")):
        assert np.array_equal(features(fitted, {"signup": pa.array(typed, kind)}), out)
    days = fit(tmp_path, {"d": [dt.date(2024, 2, 29), dt.date(2020, 1, 1)]})
    assert "d.hour_sin" not in days.names
    assert np.array_equal(features(days, {"d": [dt.date(2024, 2, 29)]}), features(days, {"d": ["2024-02-29"]}))
    assert np.array_equal(features(days, {"d": ["2023-02-29"]}), features(days, {"d": pa.nulls(1)}))


@pytest.mark.slow
def test_text_is_encoded_as_the_oracle_does(tmp_path: Path) -> None:
    cells = [f"The QUICK brown-fox no {row} jumps über {row % 7} dogs" for row in range(80)] + [None]
    train = [row % 3 > 0 for row in range(81)]
    fitted = fit(tmp_path, {"bio": cells}, train, text_dims=16)
    [column] = fitted.columns
    assert column.kind == "text"
    assert list(column.words) == frequent_words([cell for cell, used in zip(cells, train, strict=True) if used], 12)
    assert column.dims == 16
    assert fitted.names[0] == f"bio~{column.words[0]}"
    assert fitted.names[12] == "bio~#12"
    expected = [[*(hashed_words(cell, 16, column.words) if cell else [0.0] * 16), cell is None] for cell in cells]
    assert np.array_equal(features(fitted, {"bio": cells}), np.float32(expected))


def test_words_of_training_rows_that_are_not_missing(tmp_path: Path) -> None:
    cells = [f"alpha beta{row} gamma delta{row % 2} alpha" for row in range(200)]
    cells[100:] = ["not applicable"] * 100
    [column] = fit(tmp_path, {"t": cells}, missing_markers=("", "not applicable"), text_dims=8).columns
    assert column.words == ("alpha", "gamma", "delta0", "delta1")
    assert (column.missing, column.dims) == (100, 6)


def test_addresses_that_are_all_different_are_ids(tmp_path: Path) -> None:
    columns = {
        "mail": [f"ann.{row}@example.com" for row in range(100)],
        "link": [f"https://example.com/films/{row}/?ref=list" for row in range(100)],
        "about": [f"ann.{row}@example.com is her address" for row in range(100)],
        "site": [f"https://example.com/{row // 10}/page" for row in range(1000)][:100],
    }
    kinds = {column.name: column.kind for column in fit(tmp_path, columns).columns}
    assert kinds == {"mail": "ignored", "link": "ignored", "about": "text", "site": "category"}


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=60))
def test_words_of_any_text(text: str) -> None:
    fitted = Columns([Column("t", "text", words=("0", "a", "é"), dims=8)], missing_markers=())
    cell = Cells(pa.array([text]), pa.array([], pa.large_string())).text[0].as_py()
    assert np.array_equal(features(fitted, {"t": [text]}), np.float32([hashed_words(cell, 8, ("0", "a", "é"))]))


def test_vectors(tmp_path: Path) -> None:
    cells = [[1.0, 2.0], [3.0, None], [5.0, math.nan]]
    fitted = fit(tmp_path, {"v": cells})
    assert fitted.names == ["v[0]", "v[1]"]
    expected = np.float32([[1, 2], [3, 2], [5, 2]])
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2)):
        assert np.array_equal(features(fitted, {"v": pa.array(cells, kind)}), expected)
    with pytest.raises(InputError, match="row 1 has no vector"):
        fit(tmp_path, {"v": [[1.0], None]})
    with pytest.raises(InputError, match="row 7 has a vector of 1 numbers, expected 2"):
        fitted.transform(pa.RecordBatch.from_pydict({"v": [[1.0, 2.0], [1.0]]}), "new.parquet", first_row=6)


def test_what_is_ignored(tmp_path: Path) -> None:
    columns = {
        "key": [f"k{row}" for row in range(100)], "same": ["x"] * 100, "none": [" "] * 100, "null": pa.nulls(100),
        "binary": [b"1"] * 100, "words": [["a"]] * 100, "struct": [{"a": 1}] * 100, "time": [dt.time(1)] * 100,
        "dropped": list(range(100)), "kept": ["y", None] * 50,
    }  # fmt: skip
    fitted = fit(tmp_path, columns, kinds={"dropped": "ignore"})
    reasons = {column.name: column.reason for column in fitted.columns}
    assert reasons["key"] == "every value is different: looks like an id"
    assert reasons["same"] == "one value only: 'x'"
    assert reasons["none"] == reasons["null"] == "no value"
    assert all("cannot be a feature" in reasons[name] for name in ("binary", "words", "struct", "time"))
    assert fitted.input_columns == ["kept"]
    assert fitted.table()[1]["used_as"] == "ignored: one value only: 'x'"


def test_only_training_rows_are_fitted(tmp_path: Path) -> None:
    train = [row < 6 for row in range(10)]
    columns = {
        "n": [1.5 * row for row in range(10)], "c": list("aabbcaabbc"),
        "d": [f"2020-01-{row + 1:02}" for row in range(10)]
    }  # fmt: skip
    before = fit(tmp_path, columns, train=train)
    columns["n"][9], columns["c"][9], columns["d"][9] = -1e9, "z", "2031-01-01"
    after = fit(tmp_path, columns, train=train)
    for one, other in zip(before.columns, after.columns, strict=True):
        assert (one.means, one.categories, one.newest) == (other.means, other.categories, other.newest)
    column = fit(tmp_path, {"n": ["", "1", "2"]}, train=[1, 0, 0]).columns[0]
    assert column.means == (0.0,)
    assert "no training row has a value" in column.notes


def test_batches_memory_row_groups_and_lists_change_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    rows = 5000
    columns = {
        "n": [None if row % 11 == 0 else f"{value:.9g}" for row, value in enumerate(rng.normal(size=rows) * 1e6)],
        "c": [f"c{value}" for value in rng.integers(0, 300, rows)],
        "big": [str(2**24 + row // 2) for row in range(rows)],
        "bio": [f"a b {value} c d e" for value in range(rows)],
        "v": list(rng.normal(size=(rows, 3))),
        "d": [dt.datetime(2020, 1, 1) + dt.timedelta(hours=h) for h in range(rows)],
    }  # fmt: skip
    fitted = fit(tmp_path, columns)
    assert fitted == fit(tmp_path, columns, memory=1 << 12, row_group_size=77)
    whole = features(fitted, columns)
    table = pa.table(columns)
    parts = [fitted.transform(table.slice(at, 173).to_batches()[0], "x", at) for at in range(0, rows, 173)]
    assert np.array_equal(np.concatenate(parts), whole)
    again = Columns.from_json(json.loads(json.dumps(fitted.to_json())))
    assert again == fitted
    assert np.array_equal(features(again, columns), whole)
    monkeypatch.setattr("largegt.data.table_reading._MANY_COLUMNS", 2)
    assert fitted == fit(tmp_path, columns)
    assert pq.read_schema(tmp_path / "again.parquet").names == ["v", "d", "n"]  # the text columns are one
    [batch] = [*_staged(tmp_path, columns).batches(["bio", "d", "n"], skip=4990)]
    assert batch.to_pydict() == table.select(["bio", "d", "n"]).slice(4990).to_pydict()


def test_missing_values_can_be_refused(tmp_path: Path) -> None:
    columns = {"c": ["a", None, "b"], "n": ["1", "2", "?"]}
    with pytest.raises(InputError, match=r"nodes.csv: column 'n' has no number in row 2"):
        fit(tmp_path, columns, missing_values="refuse")
    fitted = fit(tmp_path, {"c": columns["c"], "n": [1, 2, 4]}, missing_values="refuse")
    with pytest.raises(InputError, match="row 12"):
        fitted.transform(pa.RecordBatch.from_pydict(columns), "new.csv", first_row=10)
    filled = fit(tmp_path, {"n": [1, 2, 6]})
    assert np.array_equal(features(filled, {"n": [None, 1e300]}), np.float32([[3], [3]]))
    with pytest.raises(InputError, match=r"new\.csv has no column 'n'"):
        filled.transform(pa.RecordBatch.from_pydict({"m": [1]}), "new.csv")


def test_leaks_are_noted(tmp_path: Path) -> None:
    labels = [0, 1, 2, 0, 1, -1, -1]
    columns = {
        "copy": ["a", "b", "c", "a", "b", "a", "c"], "code": [10, 20, 30, 10, 20, 10, 20], "fair": list("aabbcca"),
        "verdict": ["1.5", "2", "7", "2", "3", None, None], "age": [3, 4, 3, 4, 3, 4, 3],
    }  # fmt: skip
    notes = {column.name: " ".join(column.notes) for column in fit(tmp_path, columns, None, labels).columns}
    assert "equals the label" in notes["copy"]
    assert "equals the label" in notes["code"]
    assert "filled exactly where there is a label" in notes["verdict"]
    assert notes["fair"] == notes["age"] == ""


def test_ids_and_large_numbers_are_noted(tmp_path: Path) -> None:
    ids = [2**24 + row for row in range(200)]
    for cells in (ids, [str(one) for one in ids]):
        column = fit(tmp_path, {"k": cells}).columns[0]
        assert any("beyond 2^24" in note for note in column.notes)
    assert "every value is different: looks like an id" in fit(tmp_path, {"k": ids}).columns[0].notes
    assert not fit(tmp_path, {"k": [2**25, 2**26, 2**26]}).columns[0].notes


def test_odd_column_names(tmp_path: Path) -> None:
    names = ['a"b', "x.y", "x", "'; DROP", "日本", "{0}", " "]
    columns = {name: [f"v{row % (90 + place)}" for row in range(200)] for place, name in enumerate(names)}
    fitted = fit(tmp_path, columns)
    assert [column.distinct for column in fitted.columns] == list(range(90, 90 + len(names)))
    features(fitted, columns)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "magic"}, {"kind": None}, {"name": 3}, {"dims": 10**12}, {"dims": -1}, {"dims": True}, {"means": [1]},
        {"means": "x"}, {"categories": [1]}, {"categories": ["a", "a"]}, {"newest": 10**30}, {"extra": 1},
        {"missing": "1"}, {"kind": "text", "dims": 1, "words": ["a", "b"]}, {"words": ["a"]}, {"words": "a"},
        {"kind": "number", "means": [math.inf]}, {"kind": "number"}, {"kind": "text"},
        {"kind": "vector", "dims": 2, "means": [0.0]}, {"has_time": 1}, {"notes": [None]}, {"model": 1},
        {"kind": "number", "means": [10**400]}, {"kind": "number", "means": [math.nan]},
    ],
)  # fmt: skip
def test_hostile_json(change: dict[str, Any]) -> None:
    good = {"name": "c", "kind": "category", "categories": ["a"]}
    assert Columns.from_json({"columns": [good]}).width == 2
    with pytest.raises(FormatError):
        Columns.from_json({"columns": [{**good, **change}]})
    wide = [{"name": str(place), "kind": "text", "dims": 65536} for place in range(20)]
    for data in (None, [], {}, {"columns": 1}, {"columns": [1]}, {"columns": [good, good]}, {"columns": wide}):
        with pytest.raises(FormatError):
            Columns.from_json(data)


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of number, log, boolean, category, date, text, vector, ignore"):
        ColumnOptions(kinds={"a": "categroy"})
    with pytest.raises(ConfigError, match="did you mean 'city'"):
        fit(tmp_path, {"city": ["a"]}, kinds={"citty": "text"})
    with pytest.raises(InputError, match="cannot be kind number"):
        fit(tmp_path, {"v": [[1.0]]}, kinds={"v": "number"})
    with pytest.raises(InputError, match="no such folder"):
        fit(tmp_path, {"t": ["a b c"]}, kinds={"t": "text"}, text_model=str(tmp_path / "none"))


CELLS = st.lists(
    st.none() | st.text(max_size=12) | st.sampled_from([*MISSING_MARKERS, "1e39", "-0", "1e-400", "2024-01-01", "yes"]),
    min_size=1, max_size=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CELLS, CELLS, st.sampled_from(["", "category", "text"]))
def test_features_of_any_text_are_finite(tmp_path: Path, cells: list[Any], later: list[Any], kind: str) -> None:
    kind_of = {"c": kind} if kind else {}
    fitted = fit(tmp_path, {"c": pa.array(cells, pa.string())}, kinds=kind_of, max_categories=3)
    features(fitted, {"c": pa.array(cells, pa.string())})
    features(fitted, {"c": pa.array(later, pa.string())})
    assert Columns.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


@pytest.mark.slow
def test_numbers_with_heavy_tails_are_on_a_log_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    money = np.round(rng.lognormal(6, 1.5, 400), 2)
    money[::7] *= -1
    cells = {"money": list(money), "text": [str(cell) for cell in money], "age": list(rng.normal(40, 9, 400)),
             "rare": [int(row % 50 == 0) for row in range(400)], "few": [None] * 390 + [1.0] * 9 + [1e6]}  # fmt: skip
    fitted = fit(tmp_path, cells)
    assert [column.kind for column in fitted.columns] == ["log", "log", "number", "number", "number"]
    size = np.abs(money).mean()
    found = features(fitted, cells)
    np.testing.assert_allclose(found[:, 0], np.sign(money) * np.log1p(np.abs(money) / size), rtol=1e-6)
    assert np.array_equal(found[:, 0], found[:, 1])
    parts = [features(fitted, {name: some[at : at + 3] for name, some in cells.items()}) for at in range(0, 399, 3)]
    assert np.array_equal(np.concatenate(parts), found[:399])
    assert fit(tmp_path, cells, kinds={"money": "number"}).columns[0].kind == "number"
    given = fit(tmp_path, {"age": ["1", "", "3"]}, kinds={"age": "log"})
    np.testing.assert_allclose(features(given, {"age": ["1", ""]})[:, 0], np.log1p([0.5, 1.0]), rtol=1e-6)
    for kind in ("log", "number"):
        with pytest.raises(InputError, match="no numbers"):
            fit(tmp_path, {"c": ["a", "b"]}, kinds={"c": kind})
