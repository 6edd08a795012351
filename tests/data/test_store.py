"""GraphStore: ids in and out, classes, and folders that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.errors import FormatError, InputError
from largegt.io.checksums import sealed

NAMES = ["zoë", "bob", "日本", "a", " ", "carol"]


def _named(tmp_path: Path, six: Any) -> GraphStore:
    return ingest(sources.arrays(np.array(NAMES)[six], node_ids=NAMES), tmp_path / "g")


@pytest.mark.parametrize(
    ("own", "kind", "asked", "found", "wrong"),
    [
        (NAMES, "string", ["carol", "日本", "carol"], [5, 2, 5], [("Carol", "no node 'Carol'")]),
        ([70, -5, 2**40, 11, 12, 13], "integer", [2**40, "11", -5], [2, 3, 1],
         [(99, "no node 99"), ("x", "not a whole number"), (1.5, "not a whole number")]),
        ([*range(6)], "row", [5, 0], [5, 0], [(6, "no node 6")]),
    ],
)  # fmt: skip
def test_ids_round_trip(
    tmp_path: Path, six: Any, own: list[Any], kind: str, asked: list[Any], found: list[int], wrong: list[Any]
) -> None:
    store = ingest(sources.arrays(np.array(own)[six], node_ids=own), tmp_path / "g")
    assert store.id_kind == kind
    assert ("node_ids" in store.folder) == (kind == "integer")
    assert store.ids_of(np.arange(6)) == own
    assert store.ids_of(np.array([2, 0])) == [own[2], own[0]]
    assert store.nodes_of(asked).tolist() == found
    assert store.nodes_of([]).tolist() == []
    assert store.id_array(np.array([3, 1])).to_pylist() == [own[3], own[1]]
    assert store.id_array().to_pylist() == own
    assert pa.types.is_int64(store.id_array().type) == (kind != "string")
    for one, message in wrong:
        with pytest.raises(InputError, match=message):
            store.nodes_of([one])


def test_ids_found_in_the_edges_are_sorted(tmp_path: Path) -> None:
    numbers = ingest(sources.arrays([[30, 10], [20, 30]]), tmp_path / "a")
    assert numbers.ids_of(np.arange(3)) == [10, 20, 30]
    assert numbers.indices.tolist() == [2, 1]
    words = ingest(sources.arrays([["c", "a"], ["b", "c"]]), tmp_path / "b")
    assert words.ids_of(np.arange(3)) == ["a", "b", "c"]


def test_class_names(tmp_path: Path, six: Any) -> None:
    store = ingest(sources.arrays(six, labels=list("xyzxyz")), tmp_path / "g")
    assert [store.class_name(c) for c in range(3)] == ["x", "y", "z"]
    with pytest.raises(InputError, match="3 classes, number 3"):
        store.class_name(3)


def test_csr_and_its_reverse(tmp_path: Path, six: Any) -> None:
    store = ingest(sources.arrays(six, num_nodes=6), tmp_path / "g")
    for direction, opposite in (("out", "in"), ("in", "out"), ("both", "both")):
        for ours, theirs in zip(store.reverse_csr(direction), store.csr(opposite), strict=True):  # type: ignore[arg-type]
            np.testing.assert_array_equal(ours, theirs)


def test_name_comes_from_config_source_or_folder(tmp_path: Path, six: Any) -> None:
    assert _named(tmp_path, six).name == "g"
    assert ingest(sources.arrays(six, name="drawn"), tmp_path / "h").name == "drawn"


def test_structure_fingerprint_follows_edges_alone(tmp_path: Path, six: Any) -> None:
    plain = ingest(sources.arrays(six, np.ones((6, 1))), tmp_path / "a")
    other = ingest(sources.arrays(six, np.zeros((6, 1))), tmp_path / "b")
    fewer = ingest(sources.arrays(six[:, :4], np.ones((6, 1))), tmp_path / "c")
    assert plain.structure_fingerprint == other.structure_fingerprint != fewer.structure_fingerprint
    assert plain.fingerprint != other.fingerprint


def test_stores_that_cannot_be_opened(tmp_path: Path, six: Any) -> None:
    with pytest.raises(InputError, match="does not exist"):
        GraphStore.open(tmp_path / "nothing")
    with pytest.raises(FormatError, match="no manifest"):
        GraphStore.open(tmp_path)
    store = _named(tmp_path, six)
    manifest = json.loads((store.path / "manifest.json").read_text())
    del manifest["checksum"]
    (store.path / "manifest.json").write_text(sealed({**manifest, "version": 99}))
    with pytest.raises(FormatError, match="format version 99, this largegt reads 4"):
        GraphStore.open(store.path)
    (store.path / "manifest.json").write_text(sealed({**manifest, "format": "largegt-prepared"}))
    with pytest.raises(FormatError, match="not a largegt store"):
        GraphStore.open(store.path)
