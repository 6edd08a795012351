"""OGB's folders: what comes out is what went in, within little memory, and what is wrong is said."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import Made, check_store, random_graph, write_papers, write_products

from largegt.data.ingest import ingest
from largegt.datasets.npz_stream import NpzEdges, NpzFeatures, NpzMember
from largegt.datasets.ogb import ogbn_papers100m, ogbn_products
from largegt.datasets.registry import ingest_config
from largegt.errors import InputError
from largegt.io.array_writer import ArrayWriter

PAPERS_FORMS = [
    {"compressed": True},
    {"compressed": False},
    {"compressed": True, "fortran": True},
    {"compressed": False, "fortran": True},
    {"compressed": True, "dtype": np.float16},
]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files go by in many chunks."""
    monkeypatch.setattr("largegt.data.parts.EDGE_CHUNK_ROWS", 64)
    monkeypatch.setattr("largegt.data.parts._FEATURE_CHUNK_BYTES", 300)

    monkeypatch.setattr("largegt.datasets.npz_stream._PIECE_BYTES", 50)


def partly_labelled(made: Made) -> Made:
    made.labels = np.where(np.arange(made.num_nodes) % 3 == 0, made.labels, -1)
    return made


# ogbn-products


def test_products_as_ingested_are_the_arrays_with_every_edge_in_both_directions(
    tmp_path: Path, small_chunks: None
) -> None:
    made = random_graph()
    write_products(tmp_path / "ogbn_products", made)
    source = ogbn_products(tmp_path)
    assert source.edges.total == made.edges.shape[1]
    store = ingest(source, tmp_path / "store", ingest_config("ogbn-products"))
    check_store(store, made, undirected=True)
    assert store.name == "ogbn-products"
    assert store.classes == [0, 1, 2, 3]
    assert store.task == "multiclass"


@pytest.mark.parametrize("place", ["ogbn_products", "products", "."])
def test_products_are_found_under_each_name_and_at_the_root_itself(tmp_path: Path, place: str) -> None:
    write_products(tmp_path / place, random_graph())
    assert ogbn_products(tmp_path).num_nodes == 120


def test_a_file_of_products_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    made = random_graph()
    edges = write_products(tmp_path / "ogbn_products", made) / "raw" / "edge.csv.gz"
    lines = gzip.decompress(edges.read_bytes()).decode().splitlines()
    edges.write_bytes(gzip.compress("\n".join(lines[:-1]).encode()))
    with pytest.raises(InputError, match=r"edge\.csv\.gz has 699 edges, num-edge-list\.csv\.gz says 700"):
        ingest(ogbn_products(tmp_path), tmp_path / "store", ingest_config("ogbn-products"))
    edges.write_bytes(edges.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"edge\.csv\.gz"):
        ingest(ogbn_products(tmp_path), tmp_path / "store", ingest_config("ogbn-products"))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        ("raw/node-feat.csv.gz", "1,2\n3,4\n", r"node-feat\.csv\.gz has 2 rows, but the graph has 120 nodes"),
        ("raw/node-label.csv.gz", "1\n2\n", r"node-feat\.csv\.gz has 120 nodes, but .*node-label\.csv\.gz has 2"),
        ("raw/node-label.csv.gz", "1,2\n", r"has 2 columns, OGB's file has 1"),
        ("raw/edge.csv.gz", "1,2,3\n", r"has 3 columns, OGB's file has 2"),
        ("raw/num-node-list.csv.gz", "60\n60\n", r"speaks of 2 graphs, one is expected"),
        ("split/sales_ranking/test.csv.gz", "0.5\n", r"must hold a node number in each row"),
        ("split/sales_ranking/test.csv.gz", "120\n", r"split 'test' names node 120, but nodes go from 0 to 119"),
    ],
)
def test_files_of_products_that_do_not_fit_are_named(tmp_path: Path, file: str, rows: str, message: str) -> None:
    folder = write_products(tmp_path / "ogbn_products", random_graph())
    (folder / file).write_bytes(gzip.compress(rows.encode()))
    with pytest.raises(InputError, match=message):
        ingest(ogbn_products(tmp_path), tmp_path / "store", ingest_config("ogbn-products"))


# ogbn-papers100M


@pytest.mark.parametrize("form", PAPERS_FORMS)
def test_papers_as_ingested_are_the_arrays(tmp_path: Path, small_chunks: None, form: dict[str, Any]) -> None:
    made = partly_labelled(random_graph())
    if "dtype" in form:
        made.features = made.features.astype(np.float16).astype(np.float32)
    write_papers(tmp_path / "ogbn_papers100M", made, **form)
    store = ingest(ogbn_papers100m(tmp_path), tmp_path / "store", ingest_config("ogbn-papers100M"))
    check_store(store, made, undirected=False)
    assert store.name == "ogbn-papers100M"


@pytest.mark.parametrize("form", PAPERS_FORMS[:4])
@pytest.mark.parametrize("skip", [0, 1, 63, 64, 65, 699, 700])
def test_streams_may_begin_anywhere(tmp_path: Path, small_chunks: None, form: dict[str, Any], skip: int) -> None:
    made = random_graph()
    file = write_papers(tmp_path, made, **form) / "raw" / "data.npz"
    chunks = [np.stack([c.sources, c.targets]) for c in NpzEdges(NpzMember(file, "edge_index")).chunks(skip)]
    found = np.concatenate(chunks, axis=1) if chunks else np.empty((2, 0))
    assert np.array_equal(found, made.edges[:, skip:])
    rows = list(NpzFeatures(NpzMember(file, "node_feat")).chunks(skip // 6))
    assert np.array_equal(np.concatenate(rows), made.features[skip // 6 :])


def test_a_stopped_ingest_of_papers_goes_on_to_the_same_bytes(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_papers(tmp_path / "ogbn_papers100M", partly_labelled(random_graph()))
    config = ingest_config("ogbn-papers100M")
    whole = ingest(ogbn_papers100m(tmp_path), tmp_path / "whole", config)
    commit, left = ArrayWriter.commit, [12]

    def stop(self: ArrayWriter, **state: Any) -> None:
        commit(self, **state)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(ArrayWriter, "commit", stop)
    with pytest.raises(KeyboardInterrupt):
        ingest(ogbn_papers100m(tmp_path), tmp_path / "again", config)
    assert (tmp_path / ".again.partial").exists()
    monkeypatch.setattr(ArrayWriter, "commit", commit)
    again = ingest(ogbn_papers100m(tmp_path), tmp_path / "again", config)
    assert again.fingerprint == whole.fingerprint


_INGEST = """
import sys, threading, time
import largegt as lg
from largegt.datasets.ogb import ogbn_papers100m
from largegt.datasets.registry import ingest_config
from largegt.runtime.memory import held_bytes

root, small = sys.argv[1:]
lg.ingest(ogbn_papers100m(small), small + "/store", ingest_config("ogbn-papers100M"), threads=1)
before, peak, done = held_bytes(), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, held_bytes())
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
config = ingest_config("ogbn-papers100M")
store = lg.ingest(ogbn_papers100m(root), root + "/store", config, threads=1, memory="256MiB")
done.set()
watcher.join()
print(peak - before, store.num_nodes, store.num_features)
"""


@pytest.mark.slow
def test_ingesting_papers_takes_less_memory_than_the_file(tmp_path: Path) -> None:
    """In a process of its own: 614 MB of features and 128 MB of edges, deflated, within 250 MB."""
    num_nodes, num_edges, width = 600_000, 8_000_000, 256
    rng = np.random.default_rng(0)
    write_papers(tmp_path / "small" / "ogbn_papers100M", random_graph())
    folder = write_papers(tmp_path / "ogbn_papers100M", random_graph())
    row = rng.normal(size=(1, width)).astype(np.float32)
    ends = rng.integers(0, num_nodes, (2, 50_000))
    with zipfile.ZipFile(folder / "raw" / "data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _write_npy(archive, "edge_index", (2, num_edges), [*[ends[0]] * 160, *[ends[1]] * 160])
        _write_npy(archive, "num_nodes_list", (1,), [np.array([num_nodes])])
        _write_npy(archive, "num_edges_list", (1,), [np.array([num_edges])])
        _write_npy(archive, "node_feat", (num_nodes, width), [np.tile(row, (1000, 1))] * (num_nodes // 1000))
    labels = np.full((num_nodes, 1), np.nan, dtype=np.float32)
    labels[:120, 0] = np.arange(120) % 4
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    command = [sys.executable, "-c", _INGEST, str(tmp_path), str(tmp_path / "small")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    grown, nodes, features = (int(word) for word in result.stdout.split())
    assert (nodes, features) == (num_nodes, width)
    assert grown < 250e6, f"{grown / 1e6:.0f} MB"


def _write_npy(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], blocks: list[np.ndarray]) -> None:
    """An array out of blocks, without holding it."""
    assert np.prod(shape) == sum(block.size for block in blocks)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        header = {"descr": np.lib.format.dtype_to_descr(blocks[0].dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(block.tobytes())


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("edge_index", np.zeros((3, 700), dtype=np.int64), r"has shape \[3, 700\], expected \[2, E\]"),
        ("edge_index", np.zeros((2, 700)), r"holds float64, node numbers must be whole numbers"),
        ("edge_index", np.zeros((2, 699), dtype=np.int64), r"has 699 edges, its num_edges_list says 700"),
        ("edge_index", np.full((2, 700), 120), r"node id 120 is out of range"),
        ("node_feat", np.zeros((119, 5)), r"has 119 nodes, but .*node-label\.npz.* has 120"),
        ("node_feat", np.zeros((120, 5), order="F"), r"column by column"),
        ("node_feat", np.zeros(120), r"features are \[N, d\]"),
        ("node_feat", np.array([[{}]] * 120, dtype=object), r"nothing is unpickled"),
        ("node_label", np.full((120, 1), 0.5), r"label 0\.5 is no class number"),
        ("node_label", np.full((120, 1), 40_000), r"label 40000 is no class number"),
        ("node_label", np.zeros((120, 2)), r"expected \[N\] or \[N, 1\]"),
        ("node_label", np.full((120, 1), np.nan), r"every label is missing"),
        ("num_nodes_list", np.array([60, 60]), r"speaks of 2 graphs"),
    ],
)
def test_arrays_of_papers_that_do_not_fit_are_named(tmp_path: Path, name: str, array: Any, message: str) -> None:
    folder = write_papers(tmp_path / "ogbn_papers100M", random_graph())
    file = folder / "raw" / ("node-label.npz" if name == "node_label" else "data.npz")
    with np.load(file) as archive:
        arrays = {key: archive[key] for key in archive.files}
    np.savez(file, **arrays | {name: array})
    with pytest.raises(InputError, match=message):
        ingest(ogbn_papers100m(tmp_path), tmp_path / "store", ingest_config("ogbn-papers100M"))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("compressed", [True, False])
def test_damaged_bytes_of_papers_are_noticed(tmp_path: Path, compressed: bool) -> None:
    made = random_graph(num_nodes=2000, num_edges=20_000)
    file = write_papers(tmp_path / "ogbn_papers100M", made, compressed=compressed) / "raw" / "data.npz"
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo("node_feat.npy")
    content = bytearray(file.read_bytes())
    content[info.header_offset + info.compress_size // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"data\.npz cannot be read"):
        ingest(ogbn_papers100m(tmp_path), tmp_path / "store", ingest_config("ogbn-papers100M"))


def test_an_archive_without_an_array_says_which_it_has(tmp_path: Path) -> None:
    folder = write_papers(tmp_path / "ogbn_papers100M", random_graph())
    np.savez(folder / "raw" / "data.npz", edge_index=np.zeros((2, 1), dtype=int))
    with pytest.raises(InputError, match=r"has no array 'num_nodes_list'; it has: edge_index"):
        ogbn_papers100m(tmp_path)
    (folder / "raw" / "data.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"data\.npz cannot be read: File is not a zip file"):
        ogbn_papers100m(tmp_path)
