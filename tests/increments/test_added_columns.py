"""Which columns of new tables are features: those that the store's have come from, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from largegt.data import sources
from largegt.data.append import append
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore

NUM_OLD, NUM_NEW = 12, 3


def made(folder: Path) -> GraphStore:
    """A store whose features are called as labels and splits often are."""
    rng = np.random.default_rng(0)
    columns = {name: rng.random(NUM_OLD).astype(np.float32) for name in ("age", "class", "fold")}
    topic = np.where(np.arange(NUM_OLD) % 2, "a", "b")
    pq.write_table(pa.table({"id": np.arange(NUM_OLD), **columns, "topic": topic}), folder / "n.parquet")
    ends = np.stack([np.arange(NUM_OLD), np.roll(np.arange(NUM_OLD), 1)])
    pq.write_table(pa.table({"source": ends[0], "target": ends[1]}), folder / "e.parquet")
    source = sources.files(
        folder / "e.parquet", nodes=folder / "n.parquet", label="topic", feature_columns="age,class,fold"
    )
    return ingest(source, folder / "g")


def new_rows() -> dict[str, np.ndarray]:
    return {name: np.arange(NUM_NEW, dtype=np.float32) + 10 * at for at, name in enumerate(("age", "class", "fold"))}


def test_features_that_are_called_like_labels(tmp_path: Path) -> None:
    store = made(tmp_path)
    new = new_rows()
    pq.write_table(pa.table({"fold": new["fold"], "class": new["class"], "id": np.arange(20, 23), "age": new["age"]}),
                   tmp_path / "more.parquet")  # fmt: skip
    grown = append(store, nodes=tmp_path / "more.parquet")
    np.testing.assert_array_equal(grown.features[NUM_OLD:], np.stack(list(new.values()), axis=1))
    assert (grown.labels[NUM_OLD:] == -1).all()


def test_features_in_a_table_apart_are_found_by_name(tmp_path: Path) -> None:
    store = made(tmp_path)
    new = new_rows()
    pq.write_table(pa.table({"id": np.arange(20, 23)}), tmp_path / "more.parquet")
    pq.write_table(pa.table({name: new[name] for name in ("fold", "age", "class")}), tmp_path / "x.parquet")
    grown = append(store, nodes=tmp_path / "more.parquet", features=tmp_path / "x.parquet")
    np.testing.assert_array_equal(grown.features[NUM_OLD:], np.stack(list(new.values()), axis=1))
