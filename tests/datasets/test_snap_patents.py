"""snap-patents: the authors' classes, sparse features streamed, splits given or drawn, no pickle opened."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from dataset_files import check_store, random_graph, write_patents

from largegt.data.ingest import ingest
from largegt.datasets.registry import ingest_config
from largegt.datasets.snap_patents import even_quantile_classes, snap_patents
from largegt.errors import InputError

YEARS = 1963.0 + np.random.default_rng(5).integers(0, 37, 120)


def classes_by_hand(years: np.ndarray) -> np.ndarray:
    """The definition, one year at a time."""
    bounds = [np.nanquantile(years, k / 5) for k in range(1, 5)]
    return np.array([-1 if np.isnan(year) else sum(year >= bound for bound in bounds) for year in years])


def test_classes_are_even_quantiles_as_the_authors_define_them() -> None:
    assert even_quantile_classes(np.arange(10), 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    # the quantiles are 1, 1, 1 and 2: nothing is below the first, and a year on a bound is in the class above it
    assert even_quantile_classes(np.array([1, 1, 1, 1, 2, 3]), 5).tolist() == [3, 3, 3, 3, 4, 4]
    years = np.r_[YEARS, np.nan, np.nan]
    assert np.array_equal(even_quantile_classes(years, 5), classes_by_hand(years))
    with pytest.raises(InputError, match="every year is missing"):
        even_quantile_classes(np.array([np.nan]), 5)


@pytest.mark.parametrize("place", ["snap_patents", "."])
def test_patents_as_ingested_are_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr("largegt.data.parts.EDGE_CHUNK_ROWS", 64)
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 300)
    made = random_graph()
    made.features[made.features < 0.5] = 0
    years = YEARS.copy()
    years[7] = np.nan
    made.labels = classes_by_hand(years)
    write_patents(tmp_path / place, made, years)
    np.savez(
        tmp_path / place / "snap-patents-splits.npz", **{f"0_{name}": nodes for name, nodes in made.splits.items()}
    )
    store = ingest(snap_patents(tmp_path), tmp_path / "store", ingest_config("snap-patents"))
    check_store(store, made, undirected=False)
    assert store.name == "snap-patents"
    assert store.classes == [0, 1, 2, 3, 4]


def test_without_the_authors_splits_a_seeded_one_of_half_and_quarters_is_drawn(tmp_path: Path) -> None:
    write_patents(tmp_path / "snap_patents", random_graph(), YEARS)
    source = snap_patents(tmp_path)
    assert source.splits is None
    assert any("random split" in note for note in source.notes)
    stores = [
        ingest(snap_patents(tmp_path), tmp_path / f"s{at}", ingest_config("snap-patents", split_seed=seed))
        for at, seed in enumerate((0, 0, 1))
    ]
    assert [len(stores[0].splits[name]) for name in ("train", "valid", "test")] == [60, 30, 30]
    assert np.array_equal(stores[0].split, stores[1].split)
    assert not np.array_equal(stores[0].split, stores[2].split)


def test_each_of_the_authors_splits_can_be_chosen(tmp_path: Path) -> None:
    folder = write_patents(tmp_path, random_graph(), YEARS)
    orders = [np.random.default_rng(seed).permutation(120) for seed in range(5)]
    np.savez(
        folder / "snap-patents-splits.npz",
        **{
            f"{i}_{name}": part
            for i, order in enumerate(orders)
            for name, part in zip(("train", "valid", "test"), np.split(order, [60, 90]), strict=True)
        },
    )
    source = snap_patents(tmp_path, split=3)
    assert source.splits is not None
    assert np.array_equal(source.splits.parts["valid"], orders[3][60:90])
    assert source.identity != snap_patents(tmp_path, split=2).identity
    with pytest.raises(InputError, match="has no split set '5'"):
        snap_patents(tmp_path, split=5)


class _Trap:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def test_a_pickle_of_splits_is_not_opened_and_the_error_says_how_to_convert_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_graph()
    folder = write_patents(tmp_path / "snap_patents", made, YEARS)
    pickled = folder / "snap-patents-splits.npy"
    np.save(pickled, np.array([_Trap(tmp_path / "trapped")], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"snap-patents-splits\.npy is a pickle.*so it is not read") as caught:
        snap_patents(tmp_path)
    assert not (tmp_path / "trapped").exists()
    # a user who trusts the file runs the line
    np.save(pickled, np.array([made.splits, made.splits], dtype=object), allow_pickle=True)
    monkeypatch.chdir(folder)
    exec(str(caught.value).partition('python -c "')[2].removesuffix('"'), {})
    source = snap_patents(tmp_path, split=1)
    assert source.splits is not None
    assert np.array_equal(source.splits.parts["train"], made.splits["train"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"years": None}, r"has no variable years"),
        ({"edge_index": np.zeros((3, 5))}, r"edge_index has shape \[3, 5\], expected \[2, E\]"),
        ({"edge_index": np.full((2, 5), 0.5)}, r"holds fractions"),
        ({"edge_index": np.full((2, 5), 120)}, r"node id 120 is out of range"),
        ({"num_nodes": 119}, r"has 120 nodes, but num_nodes has 119"),
        ({"num_nodes": np.array([1, 2])}, r"num_nodes must be one number"),
        ({"years": np.array(["1999"] * 120)}, r"years must be numbers"),
    ],
)
def test_variables_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_patents(tmp_path, random_graph(), YEARS, **changes)
    with pytest.raises(InputError, match=message):
        ingest(snap_patents(tmp_path), tmp_path / "store", ingest_config("snap-patents"))


def test_whole_numbers_in_floats_and_dense_features_are_taken(tmp_path: Path) -> None:
    made = random_graph()
    made.labels = classes_by_hand(YEARS)
    write_patents(tmp_path, made, YEARS, edge_index=made.edges.astype(float), node_feat=made.features)
    store = ingest(snap_patents(tmp_path), tmp_path / "store", ingest_config("snap-patents"))
    made.splits = store.splits
    check_store(store, made, undirected=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n", r"version 7\.3 \(HDF5\), version 5 is"),
        (b"\x89HDF\r\n\x1a\n".ljust(600), r"version 7\.3 \(HDF5\)"),
        (b"<html>not what you asked for</html>".ljust(300), r"cannot be read"),
        (b"", r"cannot be read"),
    ],
)
def test_other_files_under_its_name_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "snap_patents.mat").write_bytes(content)
    with pytest.raises(InputError, match=message):
        snap_patents(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = write_patents(tmp_path, random_graph(), YEARS) / "snap_patents.mat"
    for size in (100, 127, 128, 200, file.stat().st_size // 2, file.stat().st_size - 10):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(InputError, match=r"snap_patents\.mat"):
            snap_patents(tmp_path)
        write_patents(tmp_path, random_graph(), YEARS)


@pytest.mark.slow
def test_sparse_features_are_never_dense_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 × 269 would be 65 MB; one in a hundred is there."""
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 1 << 20)
    made = random_graph(num_nodes=60_000, num_edges=10)
    sparse = scipy.sparse.random(60_000, 269, 0.01, format="csc", random_state=0)
    write_patents(tmp_path, made, np.arange(60_000.0), node_feat=sparse)
    tracemalloc.start()
    try:
        features = snap_patents(tmp_path).features
        assert features is not None
        total = sum(float(block.sum(dtype=np.float64)) for block in features.chunks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == pytest.approx(float(sparse.sum()), rel=1e-6)
    assert peak < 20_000_000, f"{peak / 1e6:.1f} MB"
