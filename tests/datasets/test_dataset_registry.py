"""The datasets by name: facts, listing, and errors that say what to get and where to put it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import check_store, random_graph, write_papers, write_patents, write_products

from largegt.datasets import registry
from largegt.datasets.registry import DATASETS, dataset, ingest_config, ingest_dataset, listing, source
from largegt.errors import ConfigError, InputError
from largegt.training.trainer import train
from run_helpers import one_thread, small  # noqa: F401

NAMES = list(DATASETS)


def write(name: str, root: Path, made: Any) -> Path:
    if name == "snap-patents":
        return write_patents(root / "snap_patents", made, np.arange(made.num_nodes, dtype=float))
    writer = write_products if name == "ogbn-products" else write_papers
    return writer(root / dataset(name).folder, made)


@pytest.mark.parametrize("name", NAMES)
def test_ingest_takes_what_the_dataset_is(name: str) -> None:
    config = ingest_config(name, feature_dtype="float16")
    assert (config.name, config.undirected, config.feature_dtype) == (name, not dataset(name).directed, "float16")
    assert ingest_config(name, name="mine").name == "mine"


def test_names_are_found_whatever_their_case_and_the_nearest_is_offered() -> None:
    assert dataset("OGBN_Papers100m").name == "ogbn-papers100M"
    with pytest.raises(ConfigError, match=r"no dataset 'ogbn-product' \(did you mean 'ogbn-products'\?\)"):
        dataset("ogbn-product")


def test_the_listing_says_what_is_there(tmp_path: Path) -> None:
    assert [row["name"] for row in listing()] == NAMES
    assert "complete" not in listing()[0]
    write("ogbn-products", tmp_path, random_graph())
    rows = {row["name"]: row for row in listing(tmp_path)}
    assert [rows[name]["complete"] for name in NAMES] == [True, False, False]
    assert rows["ogbn-products"]["folder"] == str(tmp_path / "ogbn_products")
    for row in rows.values():
        assert row["licence"]
        assert row["url"].startswith("https://")
        assert row["files"]


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_is_ingested_by_its_name_and_trained_on(tmp_path: Path, name: str) -> None:
    made = random_graph(classes=5)
    write(name, tmp_path, made)
    seen = []
    store = ingest_dataset(name, tmp_path, tmp_path / "store", progress=lambda *at: seen.append(at[0]), threads=1)
    if name == "snap-patents":
        made.labels, made.splits = np.arange(120) // 24, store.splits
    check_store(store, made, undirected=name == "ogbn-products")
    assert "read edges" in seen
    run = train(store, small("train.epochs=1"), tmp_path / "run")
    assert 0 <= run.metrics["test"]["accuracy"] <= 1
    assert run.metrics["dataset"] == name


@pytest.mark.parametrize("name", NAMES)
def test_each_missing_file_is_named_with_its_place_and_where_it_comes_from(tmp_path: Path, name: str) -> None:
    folder = write(name, tmp_path, random_graph())
    known = dataset(name)
    for file in known.files:
        kept = (folder / file).read_bytes()
        (folder / file).unlink()
        with pytest.raises(InputError) as caught:
            source(name, tmp_path)
        said = str(caught.value)
        assert str(folder / file) in said
        assert [other for other in known.files if other != file and str(folder / other) in said] == []
        assert known.url in said
        assert known.homepage in said
        assert f"largegt datasets download {name} --root {tmp_path}" in said
        assert "\n" not in said
        (folder / file).write_bytes(kept)
    source(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_root_names_every_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # very long messages are shortened
    with pytest.raises(InputError) as caught:
        source(name, "nowhere")
    for file in dataset(name).files:
        assert str(Path("nowhere") / dataset(name).folder / file) in str(caught.value)


@pytest.mark.parametrize("cache", ["processed/geometric_data_processed.pt", "split/time/split_dict.pt"])
@pytest.mark.parametrize("inside", [True, False])
def test_caches_of_other_tools_are_named_and_not_opened(
    tmp_path: Path, cache: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pickle.load", None)
    monkeypatch.setattr("torch.load", None)
    folder = tmp_path / "ogbn_papers100M"
    (folder / cache).parent.mkdir(parents=True)
    (folder / cache).write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match=r"is a pickle, .*so it is not read") as caught:
        source("ogbn-papers100M", folder if inside else tmp_path)
    assert str(folder / "raw" / "data.npz") in str(caught.value)
    assert str(folder / cache) in str(caught.value)
    assert f"--root {tmp_path}" in str(caught.value)


def test_listing_imports_no_loader() -> None:
    """`largegt datasets` answers at once."""
    import subprocess
    import sys

    code = "import sys; from largegt.datasets.registry import listing; listing('.'); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert registry.__doc__
