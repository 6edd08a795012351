"""Splits: given by numbers, masks, words; made at random and stratified."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.splits import SPLIT_CODES, given_split, made_split, npz_splits, split_codes
from largegt.errors import ConfigError, InputError

EVERY = np.ones(10, dtype=bool)


def test_given_numbers_and_masks_mean_the_same() -> None:
    mask = np.zeros(10, dtype=bool)
    mask[[1, 2]] = True
    assert given_split(3, {"train": np.array([0, 1])}, np.array([True, False, True])).tolist() == [1, 0, 0], (
        "unlabelled"
    )
    numbers = given_split(10, {"train": np.array([1, 2]), "val": np.array([3, 3])}, EVERY)
    masks = given_split(10, {"train": mask, "valid": np.arange(10) == 3}, EVERY)
    assert numbers.tolist() == masks.tolist() == [0, 1, 1, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (np.array([-3, 1]), "names node -3"),
        (np.array([1, 10]), "names node 10"),
        (np.ones(4, dtype=bool), "expected \\(10,\\)"),
        (np.array([0.5, 1.0]), "node numbers or a boolean mask"),
    ],
)
def test_bad_parts(part: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        given_split(10, {"train": part}, EVERY)


def test_words() -> None:
    words = ["train", None, "", "Val", "test", "none", "DEV", "testing", "Train"]
    assert split_codes(pa.array(words), "t").tolist() == [1, 0, 0, 2, 3, 0, 2, 3, 1]
    with pytest.raises(InputError, match="split 'tarin' is not one of"):
        split_codes(pa.array(["tarin"]), "t")
    with pytest.raises(InputError, match="must be a word"):
        split_codes(pa.array([1, 2]), "t")


def test_made_split_has_the_shares_and_the_seed_decides() -> None:
    labelled = np.arange(1000) % 5 != 0
    labels = np.where(labelled, 0, -1)
    split = made_split(labels, labelled, (0.5, 0.25, 0.25), 0, False)
    assert np.bincount(split).tolist() == [200, 400, 200, 200]
    assert not split[~labelled].any()
    np.testing.assert_array_equal(split, made_split(labels, labelled, (0.5, 0.25, 0.25), 0, False))
    assert (split != made_split(labels, labelled, (0.5, 0.25, 0.25), 1, False)).any()


def test_stratified_shares_of_each_class_to_one_node() -> None:
    labels = np.repeat([0, 1, 2, 3], [400, 37, 9, 1]).astype(np.int32)
    labels = np.random.default_rng(0).permutation(labels)
    for seed in range(5):
        split = made_split(labels, labels >= 0, (0.6, 0.2, 0.2), seed, True)
        for c, size in enumerate([400, 37, 9, 1]):
            counts = np.bincount(split[labels == c], minlength=4)[1:]
            assert (np.abs(counts - np.array([0.6, 0.2, 0.2]) * size) <= 1).all()


def test_classes_of_one_node_do_not_all_land_in_the_same_part() -> None:
    labels = np.arange(600, dtype=np.int32)
    share = np.bincount(made_split(labels, labels >= 0, (0.5, 0.25, 0.25), 0, True), minlength=4)[1:] / 600
    np.testing.assert_allclose(share, [0.5, 0.25, 0.25], atol=0.08)


def test_empty_parts_and_bad_fractions() -> None:
    labels = np.zeros(50, dtype=np.int32)
    assert set(made_split(labels, labels >= 0, (0.9, 0.1, 0.0), 0, False).tolist()) == {1, 2}
    assert set(made_split(labels, labels >= 0, (1.0, 0.0, 0.0), 0, True).tolist()) == {1}
    for fractions in ((0.5, 0.5, 0.5), (0.0, 0.5, 0.5), (1.5, -0.25, -0.25)):
        with pytest.raises(ConfigError, match="sum to 1"):
            made_split(labels, labels >= 0, fractions, 0, False)
    with pytest.raises(ConfigError, match="stratif"):
        made_split(np.zeros((50, 2), np.float32), labels >= 0, (0.5, 0.25, 0.25), 0, True)


def test_npz_sets_and_masks(tmp_path: Path) -> None:
    file = tmp_path / "s.npz"
    masks = np.zeros((3, 10), dtype=bool)
    masks[2, 7] = True
    np.savez(file, ours_train=[1], ours_val=[2], ours_test=[3], geo_train_masks=masks, geo_val_masks=~masks)
    assert {key: part.tolist() for key, part in npz_splits(file, "ours").items()} == {
        "train": [1], "valid": [2], "test": [3],
    }  # fmt: skip
    assert np.flatnonzero(npz_splits(file, "geo:2")["train"]).tolist() == [7]
    assert not npz_splits(file, "geo")["train"].any()
    for wanted, message in (
        (None, "several split sets"),
        ("oars", "did you mean 'ours'"),
        ("geo:3", "holds 3 masks"),
        ("geo:x", "number of the mask"),
    ):
        with pytest.raises(InputError, match=message):
            npz_splits(file, wanted)
    np.savez(tmp_path / "t.npz", apples=[1])
    with pytest.raises(InputError, match="no arrays train"):
        npz_splits(tmp_path / "t.npz", None)


def test_store_gives_back_the_split(tmp_path: Path, six: Any) -> None:
    given = {"train": np.array([0, 1]), "val": np.array([2]), "test": np.array([5])}
    store = ingest(sources.arrays(six, labels=[0, 1, 0, 1, 0, 1], splits=given), tmp_path / "a")
    assert {name: nodes.tolist() for name, nodes in store.splits.items()} == {
        "train": [0, 1], "valid": [2], "test": [5],
    }  # fmt: skip
    made = ingest(
        sources.arrays(np.random.default_rng(0).integers(0, 100, (2, 300)), labels=np.arange(100) % 2),
        tmp_path / "b",
        IngestConfig(stratify=True, split_fractions=(0.8, 0.1, 0.1)),
    )
    assert [len(made.splits[name]) for name in SPLIT_CODES] == [80, 10, 10]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_split_by_time(tmp_path: Path, form: str) -> None:
    """From the oldest to the newest; dates of a CSV may be written in several ways, and a missing one is in no part."""
    edges, days = np.array([range(9), range(1, 10)]), [3, 1, 2, 5, 4, None, 8, 6, 7, 9]
    texts = ["NA" if day is None else f"2024-01-{day:02d}" if day % 2 else f"2024/01/{day:02d}" for day in days]
    dates = [None if day is None else datetime.date(2024, 1, day) for day in days]
    labels = list("abababcabc")
    for column in ("day", "number"):
        given: list[Any] = texts if form == "csv" else dates
        if column == "number":
            given = [f"{day or 'NA'}" for day in days] if form == "csv" else days
        table = pa.table({"id": range(10), column: given, "label": labels})
        if form == "csv":
            pacsv.write_csv(table, tmp_path / "n.csv")
        else:
            pq.write_table(table, tmp_path / "n.parquet")
        source = sources.files(_edges(tmp_path, edges), nodes=tmp_path / f"n.{form}", split_by=column)
        store = ingest(source, tmp_path / f"{form}-{column}", IngestConfig(split_fractions=(0.5, 0.25, 0.25)))
        assert store.folder.meta["split_from"] == "made by time"
        assert store.split.tolist() == [1, 1, 1, 2, 1, 0, 3, 2, 2, 3]
    broken = pa.table({"id": range(10), "day": [*texts[:9], "soon"], "label": labels})
    pacsv.write_csv(broken, tmp_path / "n.csv")
    source = sources.files(_edges(tmp_path, edges), nodes=tmp_path / "n.csv", split_by="day")
    with pytest.raises(InputError, match="column 'day' is neither dates nor numbers"):
        ingest(source, tmp_path / "broken")


def _edges(folder: Path, edges: Any) -> Path:
    pq.write_table(pa.table({"u": edges[0], "v": edges[1]}), folder / "e.parquet")
    return folder / "e.parquet"
